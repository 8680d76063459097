"""Reasons why no strategy fits: the rules that exclude each other, and the missing memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from constraints.conflict import Conflict
from constraints.rule import sentence
from costmodel.events import log_event
from planner.jobs.problem import Problem
from planner.search.alternatives import AlternativeOutcome, JointOutcome
from planner.search.branch_and_bound import SHORTEST_SECONDS, Outcome, Status, search
from planner.search.candidates import OWN, CostTable, Formulas
from planner.search.clock import Clock, OutOfTimeError
from planner.verbs.memory_gap import MemoryGap, closest
from planner.verbs.repairs import explain

EXPLANATION_FRACTION = 0.1
"""Least share of the time limit for an explanation."""

BUBBLE_ROWS = 2048
"""Rows whose bubble is tabulated at once; the clock is read between such blocks."""


def search_or_explain(problem: Problem, formulas: Formulas = OWN) -> Outcome:
    """
    Search the best strategies of a problem with proof, or explain why no strategy fits.

    Parameters
    ----------
    problem
        Job to plan.
    formulas
        Formulas of cost; default: the cost model.
    """
    clock = Clock(seconds=problem.search.time_limit_seconds)
    return add_conflict(problem, search(problem, formulas), formulas, clock)


def add_conflict(problem: Problem, outcome: Outcome, formulas: Formulas, clock: Clock) -> Outcome:
    """Add the reason to the result of a search where no strategy fits."""
    if outcome.status != Status.INFEASIBLE:
        return outcome
    return replace(outcome, conflict=_conflict(problem, outcome, formulas, clock.seconds_left))


def _conflict(problem: Problem, outcome: Outcome, formulas: Formulas, seconds_left: float) -> Conflict:
    """Return the reason why no strategy fits; rules of time are the reason if a strategy fits without them."""
    space = outcome.space
    enough = max(seconds_left, EXPLANATION_FRACTION * problem.search.time_limit_seconds)
    if not space.rules.timed:
        return explain(problem, space.keep_largest_sets(), formulas.memory, seconds_left=enough)
    longest = max(seconds_left, SHORTEST_SECONDS)
    roomy = replace(problem, top=1).change_limits(max_bubble_fraction=None, time_limit_seconds=longest)
    without = search_or_explain(roomy, formulas)
    if not without.strategies:
        no_time = Conflict(exclusive=(), repairs=(), release=(), is_cut=True)
        return without.conflict or no_time
    texts = tuple(sentence(rule) for rule in space.rules.timed)
    return Conflict(
        exclusive=(texts,),
        repairs=(texts,),
        release=texts,
        releases=(texts,),
        least_bubble_fraction=_least_bubble_fraction(problem, outcome, formulas, Clock(seconds=enough)),
    )


def _least_bubble_fraction(problem: Problem, outcome: Outcome, formulas: Formulas, clock: Clock) -> float | None:
    """Return the smallest bubble fraction of a strategy that fits; None where time is short."""
    space, least = outcome.space, np.inf
    table = CostTable.of(problem, space, formulas)
    for start in range(0, space.num_rows, BUBBLE_ROWS):
        if clock.is_over:
            return None
        least = min(least, table.least_bubble(np.arange(start, min(start + BUBBLE_ROWS, space.num_rows))))
    return float(least)


def explain_failure(problem: Problem, joint: JointOutcome, clock: Clock) -> JointOutcome:
    """Add the reason why nothing fits: the conflict of the closest combination, and the missing memory of all."""
    if joint.outcome.status != Status.INFEASIBLE:
        return joint
    log_event(__name__, "nothing fits: reasons are looked for")
    of_each = joint.of_each
    if len(of_each) == 1:
        reason = add_conflict(problem, joint.outcome, OWN, clock)
        return replace(joint, outcome=reason, of_each=(replace(of_each[0], outcome=reason),))
    clock = Clock(seconds=max(clock.seconds_left, EXPLANATION_FRACTION * problem.search.time_limit_seconds))
    gaps = [_gap(one, Clock(seconds=clock.seconds_left / (2 * len(of_each)))) for one in of_each]
    with_gaps = [
        replace(one, shortage_bytes=gap.device_bytes, host_shortage_bytes=gap.host_bytes) if gap else one
        for one, gap in zip(of_each, gaps, strict=True)
    ]
    known = [number for number, gap in enumerate(gaps) if gap]
    nearest = min(known, key=lambda number: (gaps[number].size, number), default=0)  # type: ignore[union-attr]
    chosen = of_each[nearest]
    longest = max(clock.seconds_left, SHORTEST_SECONDS)
    alone = search_or_explain(chosen.problem.change_limits(time_limit_seconds=longest))
    return JointOutcome(
        outcome=replace(alone, effort=joint.outcome.effort),
        problem=chosen.problem,
        ranked=(),
        of_each=tuple(with_gaps),
    )


def _gap(one: AlternativeOutcome, clock: Clock) -> MemoryGap | None:
    """Return the missing memory of a combination's closest strategy; None without one, or where time is short."""
    with suppress(OutOfTimeError):
        return closest(one.problem, one.outcome.space.keep_largest_sets(), OWN.memory, clock)
    return None
