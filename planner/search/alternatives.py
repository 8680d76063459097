"""
The settings that a job leaves open, as questions: each combination is one, and all are answered together.

A combination whose lower bound is above the best strategy is not tabulated. One that is has only to prove that it has
nothing better.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, Literal

from constraints.cp_sat import TICK_SECONDS
from constraints.limits import Bound
from costmodel.record import record
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.jobs.setting_choices import keep_effective, text_of
from planner.search.branch_and_bound import GROUP_DECISIONS, Outcome, Status
from planner.search.candidates import OWN, Formulas
from planner.search.clock import Clock
from planner.search.incumbents import NO_RIVALS, Rivals
from planner.search.questions import Question, answer


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
    questions = [Question(problem=one, rivals=rivals, tolerance=tolerance) for one in searched]
    outcomes = answer(questions, formulas, clock)
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

    Of equal steps the first combination's is the better one. With all variants each strategy is a group.
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
