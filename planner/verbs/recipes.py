"""Cost published layouts as strategies of a job: the nearest one, those of the default space, or one by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from constraints import find_violations, sentence
from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.record import record
from planner.jobs.problem import Problem
from planner.jobs.run_jobs import LISTED, recipe
from planner.results import EstimateReport
from planner.search.domains import problem_rules
from planner.search.recipes import (
    PublishedLayout,
    fit_recipe,
    is_set_by_layout,
    list_refused_recipes,
    nearest_layouts,
    published_headroom_bytes,
    recipes_for,
    sort_recipes,
)
from planner.verbs.plan import judge_strategy

if TYPE_CHECKING:
    from planner.verbs.compare import Comparison

OPTION = "--recipe"

OWN_SETTING = "is the recipe's"
"""End of the note on a setting that a layout brings along."""


@record(frozen=True, kw_only=True, slots=True)
class JudgedLayout:
    """
    A published layout with its estimate.

    Parameters
    ----------
    layout
        The layout, and its changes for the job.
    report
        Estimate of the layout, with the rules that forbid it.
    """

    layout: PublishedLayout
    report: EstimateReport

    @property
    def is_allowed(self) -> bool:
        """True where no rule forbids it; then it also fits."""
        return not self.report.broken_rules

    @property
    def outside(self) -> tuple[str, ...]:
        """Sentences for which it is outside the job's default space; empty: it is inside."""
        own = [f"The layout adds a setting: {note}." for note in self.layout.notes if note.endswith(OWN_SETTING)]
        return (*own, *reasons_outside(self.report))


def judge_recipes(problem: Problem) -> tuple[JudgedLayout, ...]:
    """
    Cost every published layout for a job, the nearest first.

    Parameters
    ----------
    problem
        The job; of several values of a setting the first is taken.
    """
    return tuple(map(judge_layout, recipes_for(problem.each[0])))


def judge_layout(layout: PublishedLayout) -> JudgedLayout:
    """Cost one published layout."""
    return JudgedLayout(layout=layout, report=judge_strategy(layout.problem, layout.strategy))


def nearest_recipe(problem: Problem) -> JudgedLayout | None:
    """
    Return the published layout that is nearest to a job, of several the fastest that no rule forbids.

    Parameters
    ----------
    problem
        The job; of several values of a setting the first is taken.
    """
    found = map(judge_layout, nearest_layouts(problem.each[0]))
    return min(found, key=lambda one: (not one.is_allowed, one.report.plan.step_seconds), default=None)


def reasons_outside(report: EstimateReport) -> Iterator[str]:
    """Yield broken rules and preferences of a costed strategy, broken bounds of the search, and untried stages."""
    problem, strategy = report.problem, report.plan.strategy
    dealt = {sentence(rule) for rule in problem_rules(problem).preferences if is_set_by_layout(strategy, rule)}
    yield from report.broken_rules
    yield from (one for one in report.broken_preferences if one not in dealt)
    headroom = published_headroom_bytes(problem)
    if not problem.search.asks_headroom and report.plan.headroom_bytes < headroom:
        yield f"The search leaves {headroom / GIB_BYTES:.1f} GiB free (search.memory_headroom_gib)."
    bounds = find_violations(problem.facts, strategy.decisions(), rules=problem_rules(problem).bounds)
    yield from (sentence(rule) for rule in bounds)
    if strategy.layout is not None and problem.search.stages == "even" and problem.search.asks_stages:
        yield "search.stages: stages are even."


def compare_recipe(problem: Problem, name: str = "") -> Comparison:
    """
    Compare a published layout with the job's recommended plan.

    Parameters
    ----------
    problem
        The job.
    name
        The recipe's id, or its published name; empty: the nearest one.

    Raises
    ------
    SpecError
        If no recipe has that name, if it is no layout for this job, or if none is.
    """
    from planner.verbs.compare import Comparison, plan_for_comparison

    if name:
        job = problem.each[0]
        one = recipe(name, sort_recipes(job))
        found = judge_layout(replace(fit_recipe(one, job), release=one.releases[-1]))
    else:
        found = nearest_recipe(problem) or _refuse(problem.each[0])
    layout = found.layout
    said = "; ".join((f"{layout.title} {layout.recipe.id}", *layout.notes))
    return Comparison(given=found.report, report=plan_for_comparison(problem), given_name=said)


def _refuse(problem: Problem) -> NoReturn:
    """Raise the error that no layout is published for a job, or that even the nearest one does not fit it."""
    for _, reason in list_refused_recipes(problem):
        raise SpecError(OPTION, f"no published layout fits the job. The nearest: {reason}", LISTED)
    facts = problem.facts
    job = f"{facts.model.name} on {facts.cluster.device.name} in {facts.workload.precision.name}"
    raise SpecError(OPTION, f"no layout is published for {job}.", LISTED)
