"""
Fewer devices than a job has, where that is faster: whole nodes stay idle.

Degrees must multiply to the devices and divide batch, layers and heads. With 504 devices a batch of 1,024 is faster on
448 of them than on all. So after the search on all devices, smaller numbers of whole nodes are searched for faster
strategies. These are rows of one space, cut by the best strategy on all devices, as if the number were a setting.

Few numbers matter. The time of the layers on all devices together has a lower bound
(:func:`costmodel.step.step.least_layers_seconds`), so below some number no step can be as short. The other numbers are
searched from the largest down, all from one to its half at once. Results exclude more of the smaller numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from constraints.encoding import TICK_SECONDS
from costmodel.record import record
from costmodel.step.layouts import summed_strategy_seconds
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.search.alternatives import (
    AlternativeOutcome,
    JointOutcome,
    join_outcomes,
    search_each,
)
from planner.search.branch_and_bound import Status
from planner.search.candidates import OWN, Formulas
from planner.search.clock import Clock
from planner.search.domains import least_nodes, limit_nodes, may_leave_idle, smaller_nodes
from planner.search.incumbents import NO_RIVALS, Rivals
from planner.search.questions import rivals_at, rivals_of


@record(frozen=True, kw_only=True, slots=True)
class FewerDevices:
    """
    Results for smaller numbers of devices than the job's own.

    Parameters
    ----------
    all_devices
        Result of the search on all devices.
    parts
        Results for smaller numbers, the largest first; each holds only strategies that are faster than those known
        before.
    fewest_nodes, most_nodes
        Whole nodes of the searched plans. On fewer than the fewest no plan can be as fast. Both are 0 where that holds
        for all smaller numbers, or where time left none to search.
    is_proven
        True where the best of all smaller numbers is proven, or that none of them is faster.
    """

    all_devices: JointOutcome
    parts: tuple[AlternativeOutcome, ...] = ()
    fewest_nodes: int = 0
    most_nodes: int = 0
    is_proven: bool = True

    @property
    def are_faster(self) -> bool:
        """True where plans that leave devices idle are faster than all that use every device."""
        return any(one.outcome.strategies for one in self.parts)


def search_numbers(problem: Problem, formulas: Formulas = OWN) -> tuple[JointOutcome, FewerDevices | None]:
    """
    Search the best strategies on all devices, or on fewer where those are faster, with proof.

    Parameters
    ----------
    problem
        Job to plan; its time limit covers all searches together.
    formulas
        Formulas of cost.

    Returns
    -------
    tuple
        The result, and the results for smaller numbers; None for the latter where the job wants none of them.
    """
    clock = Clock(seconds=problem.search.time_limit_seconds)
    whole = search_each(problem, formulas, clock=clock)
    fewer = _fewer(problem, whole, formulas, clock) if may_leave_idle(problem) else None
    if fewer is not None and fewer.are_faster:
        each = (replace(one, fits_elsewhere=True) for one in (*fewer.parts, *whole.of_each))
        return join_outcomes(problem, tuple(each)), fewer
    return whole, fewer


def _fewer(problem: Problem, whole: JointOutcome, formulas: Formulas, clock: Clock) -> FewerDevices:
    """Search smaller numbers, from the largest down, until no smaller one can be as fast as the best."""
    known = FewerDevices(all_devices=whole)
    if whole.outcome.status not in PROVEN:
        return replace(known, is_proven=False)
    limit = whole.outcome.step_seconds[0] if whole.ranked else math.inf
    slowest, rivals, most = limit, _rivals(problem, whole), smaller_nodes(problem)
    while most >= (least := least_nodes(problem, slowest)):
        fewest = max(least, most // 2 + 1)
        part = limit_nodes(problem, fewest, most)
        found = search_each(part.change_limits(faster_than_seconds=slowest), formulas, rivals, clock)
        each = tuple(_faster(one, limit, part) for one in found.of_each)
        most_nodes = known.most_nodes or most
        known = replace(known, parts=(*known.parts, *each), fewest_nodes=fewest, most_nodes=most_nodes)
        if found.outcome.status not in PROVEN:
            return replace(known, is_proven=False)
        steps = sorted(seconds for one in known.parts for seconds in one.outcome.step_seconds)
        slowest = steps[problem.top - 1] if len(steps) >= problem.top else limit
        for one in each:
            pairs = zip(one.outcome.strategies, one.outcome.step_seconds, strict=True)
            rivals = rivals.merge(rivals_of(one.problem, pairs))
        most = fewest - 1
    return known


PROVEN = (Status.OPTIMAL, Status.INFEASIBLE)
"""Statuses of a search that had enough time."""


def _faster(one: AlternativeOutcome, limit: float, part: Problem) -> AlternativeOutcome:
    """Keep the strategies below a limit: uneven stages may be below it by the sum over their ranks alone."""
    num_faster = sum(seconds < limit for seconds in one.outcome.step_seconds)
    outcome = replace(
        one.outcome,
        strategies=one.outcome.strategies[:num_faster],
        step_seconds=one.outcome.step_seconds[:num_faster],
        even=one.outcome.even[:num_faster],
    )
    return replace(one, problem=replace(one.problem, search=part.search), outcome=outcome)


def _rivals(problem: Problem, whole: JointOutcome) -> Rivals:
    """Return the best plan on all devices as rivals: only plans that are a tick faster are of interest."""
    if not whole.ranked:
        return NO_RIVALS
    (job, strategy), fastest = whole.ranked[0], whole.outcome.step_seconds[0]
    is_summed = problem.search.stages != StageChoice.EVEN  # else no sum is compared with it
    summed = summed_strategy_seconds(job.facts, strategy) if is_summed else fastest
    return rivals_at(fastest - TICK_SECONDS, summed - TICK_SECONDS, problem.top)
