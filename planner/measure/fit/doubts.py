"""Points to measure next: operators of a plan whose times leave most of its step uncertain."""

from __future__ import annotations

from collections.abc import Sequence

from planner.measure.sample.job_shapes import JobShapes, points_of
from planner.measure.sample.samples import Point
from planner.measure.sample.shapes import spread_out
from planner.results import Plan
from planner.uncertainty.operators import strategy_operators

MOST_NEIGHBOURS = 24
"""Other sizes of an operator and pass that are measured beside a plan's own."""


def doubtful_points(plans: Sequence[Plan], job: JobShapes) -> tuple[Point, ...]:
    """
    List points of the plans' operators, those first that leave most of the first plan's step uncertain.

    For each operator the plans' own sizes come first, then others that the job may have. Operators that cannot be
    measured are left out.

    Parameters
    ----------
    plans
        Plans on a sampled device, the best first.
    job
        Sizes of the job.
    """
    names = [one.name for one in plans[0].operators]
    own: dict[str, list[Point]] = {name: [] for name in names}
    for plan in plans:
        for operator, _ in strategy_operators(plan.facts, plan.strategy):
            own.setdefault(operator.name, []).extend(points_of(operator))
    found: dict[Point, None] = {}
    for name in own:
        found |= dict.fromkeys(own[name])
        groups = (group for (operator, _), group in job.groups.items() if operator == name)
        for group in groups:
            found |= dict.fromkeys(spread_out(sorted(group, key=lambda one: (group[one], str(one))))[:MOST_NEIGHBOURS])
    return tuple(found)
