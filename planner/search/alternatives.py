"""
The settings that a job leaves open, and fewer devices than it has, as questions that are answered together.

Each combination of settings is a question. One whose lower bound is above the best strategy is not tabulated. One that
is has only to prove that it has nothing better.

Whole nodes stay idle where that is faster. Degrees must multiply to the devices and divide batch, layers and heads.
With 504 devices a batch of 1,024 is faster on 448 of them than on all. So after the search on all devices, smaller
numbers of whole nodes are searched for faster strategies. These are rows of one space, cut by the best strategy on all
devices, as if the number were a setting.

Few numbers matter. The time of the layers on all devices together has a lower bound
(:func:`costmodel.step.step.least_layers_seconds`), so below some number no step can be as short. The other numbers are
searched from the largest down, all from one to its half at once. Results exclude more of the smaller numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, Literal

from constraints.cp_sat import TICK_SECONDS
from constraints.limits import Bound
from costmodel.record import record
from costmodel.step.layouts import summed_strategy_seconds
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import keep_effective, text_of
from planner.search.branch_and_bound import GROUP_DECISIONS, Outcome, Status
from planner.search.candidates import NO_RIVALS, OWN, Formulas, Rivals
from planner.search.domains import least_nodes, limit_nodes, may_leave_idle, smaller_nodes
from planner.search.questions import answer, rivals_at, rivals_of
from planner.search.solver import Clock


@record(frozen=True, kw_only=True, slots=True)
class AlternativeOutcome:
    """
    Result for one combination of settings.

    Parameters
    ----------
    problem
        The job with these settings.
    searched
        Searched part of that job. If an earlier combination differs only in settings of optimizer offload, that search
        has all other strategies, and this one is restricted to strategies that offload optimizer states.
    outcome
        Result of the search: only strategies faster than the best of the combinations before it.
    fits_elsewhere
        True where another combination has strategies that fit.
    shortage_bytes, host_shortage_bytes
        Memory that the closest strategy lacks, if no combination has a strategy that fits. None: not known, or no
        strategy satisfies the other rules.
    """

    problem: Problem
    searched: Problem
    outcome: Outcome
    fits_elsewhere: bool = False
    shortage_bytes: float | None = None
    host_shortage_bytes: float | None = None

    @property
    def answer(self) -> Literal["found", "nothing faster", "nothing fits", "unknown"]:
        """The result in a word; a search that finds nothing besides its rivals has proven that nothing is faster."""
        if self.outcome.status in (Status.FEASIBLE, Status.UNKNOWN):
            return "unknown"
        if self.outcome.strategies:
            return "found"
        return "nothing faster" if self.fits_elsewhere else "nothing fits"

    @property
    def bound_seconds(self) -> float | None:
        """Lower bound of all steps where that alone excludes the combination, without a search; None elsewhere."""
        bounds, is_searched = self.outcome.row_bounds, bool(self.outcome.effort.num_rows_tabulated)
        if is_searched or not len(bounds) or self.answer != "nothing faster":
            return None
        return int(bounds.min()) * TICK_SECONDS


@record(frozen=True, kw_only=True, slots=True)
class JointOutcome:
    """
    The best strategies of all combinations of settings.

    Parameters
    ----------
    outcome
        Result of all combinations; space and bounds are those of the best strategy's combination.
    problem
        The job with the settings of the best strategy; without one, with those of the closest combination.
    ranked
        The best strategies, each with the job that it is for.
    of_each
        Result for each combination, in the job's order; a single one where there are no alternatives.
    """

    outcome: Outcome
    problem: Problem
    ranked: tuple[tuple[Problem, Strategy], ...]
    of_each: tuple[AlternativeOutcome, ...]


def search_each(
    problem: Problem, formulas: Formulas = OWN, rivals: Rivals = NO_RIVALS, clock: Clock | None = None
) -> JointOutcome:
    """
    Search the best strategies with any of a job's combinations of settings, with proof.

    Parameters
    ----------
    problem
        Job to plan.
    formulas
        Formulas of cost.
    rivals
        Results of other searches for the same job; only faster strategies are searched.
    clock
        Clock of the time limit of all combinations together; default: the job's own.
    """
    each, tolerance = problem.each, problem.search.tolerance if problem.search.simplest else 0.0
    searched = [_narrow(one, each[:number]) for number, one in enumerate(each)]
    outcomes = answer(searched, formulas, clock, rivals=rivals, tolerance=tolerance)
    some = any(own.strategies for own in outcomes)
    of_each = (
        AlternativeOutcome(problem=one, searched=part, outcome=own, fits_elsewhere=some)
        for one, part, own in zip(each, searched, outcomes, strict=True)
    )
    return join_outcomes(problem, tuple(of_each))


def join_outcomes(problem: Problem, of_each: Sequence[AlternativeOutcome]) -> JointOutcome:
    """
    Merge the results of several searches for the same job.

    Parameters
    ----------
    problem
        Job that gives the number and variety of wanted plans.
    of_each
        Searched combinations with their results.
    """
    outcomes, each = [one.outcome for one in of_each], [one.problem for one in of_each]
    if len(of_each) == 1:
        ranked = tuple((each[0], strategy) for strategy in outcomes[0].strategies)
        return JointOutcome(outcome=outcomes[0], problem=each[0], ranked=ranked, of_each=tuple(of_each))
    best = _list_best(problem, outcomes)
    chosen = best[0][0] if best else 0
    whole = replace(
        outcomes[chosen],
        **_proof(outcomes, [outcomes[number].step_seconds[place] for number, place in best]),
        strategies=tuple(outcomes[number].strategies[place] for number, place in best),
        step_seconds=tuple(outcomes[number].step_seconds[place] for number, place in best),
        even=tuple(outcomes[number].even[place] for number, place in best),
        effort=reduce(add, (one.effort for one in outcomes)),
        stages_differ=any(one.stages_differ for one in outcomes),
    )
    return JointOutcome(
        outcome=whole,
        problem=each[chosen],
        ranked=tuple((each[number], outcomes[number].strategies[place]) for number, place in best),
        of_each=tuple(of_each),
    )


def _narrow(problem: Problem, earlier: Sequence[Problem]) -> Problem:
    """Restrict a job to optimizer offload where an earlier one differs only in its settings: the rest is known."""
    limits = problem.search
    drop_offload = partial(keep_effective, optimizer_offload=False, activation_offload=True)
    is_known = drop_offload(problem.settings) in [drop_offload(one.settings) for one in earlier]
    if not is_known or limits.candidates or "optimizer_offload" in limits.pin:
        return problem
    # A bound, not a pin: what the job itself names needs no evidence.
    offloads = Bound(names=("optimizer_offload",), relation=">=", number=1)
    return problem.change_limits(limits=(*limits.limits, offloads))


# --- the joint outcome -------------------------------------------------------------------------------------


def _list_best(problem: Problem, outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """
    Return the best strategy of each group, best first, as many as the job wants: its outcome, and its place in that.

    Among equal steps the first combination's is the better one. With all variants each strategy is a group.
    """
    found = (
        (seconds, number, place)
        for number, outcome in enumerate(outcomes)
        for place, seconds in enumerate(outcome.step_seconds)
    )
    groups: dict[Hashable, tuple[int, int]] = {}
    for _, number, place in sorted(found):
        strategy = outcomes[number].strategies[place]
        group = tuple(getattr(strategy, name) for name in GROUP_DECISIONS)
        groups.setdefault((number, place) if problem.variants == "all" else group, (number, place))
    return list(groups.values())[: problem.top]


def _proof(outcomes: Sequence[Outcome], steps: Sequence[float]) -> dict[str, Any]:
    """Merge statuses and bounds: a result is proven if every search has proven its own."""
    finished = all(one.status in (Status.OPTIMAL, Status.INFEASIBLE) for one in outcomes)
    bound = min(one.lower_bound_seconds for one in outcomes)
    if not steps:
        status = Status.INFEASIBLE if finished else Status.UNKNOWN
        return {"status": status, "lower_bound_seconds": bound, "gap": float("inf"), "ticks": 0}
    return {
        "status": Status.OPTIMAL if finished else Status.FEASIBLE,
        "lower_bound_seconds": bound,
        "gap": max(0.0, 1 - bound / steps[0]) if not finished else 0.0,
        "ticks": min(one.ticks for one in outcomes if one.strategies),
    }


def each_once(of_each: Sequence[AlternativeOutcome]) -> tuple[AlternativeOutcome, ...]:
    """Keep one outcome per combination: the first with a strategy, otherwise the last."""
    by_settings: dict[str, AlternativeOutcome] = {}
    for one in of_each:
        text = text_of(one.problem.settings)
        if text not in by_settings or not by_settings[text].outcome.strategies:
            by_settings[text] = one
    return tuple(by_settings.values())


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
    is_summed = problem.search.stages != "even"  # else no sum is compared with it
    summed = summed_strategy_seconds(job.facts, strategy) if is_summed else fastest
    return rivals_at(fastest - TICK_SECONDS, summed - TICK_SECONDS, problem.top)
