"""
One search over several combinations of settings: the best result of each combination cuts the others.

Each combination has its own space and costs. They are searched one after the other, those with small lower bounds
first. The best strategies so far are rivals: a later search looks only for faster ones. So all together take little
more than the first, and each still proves that it has nothing better.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np

from constraints.encoding import seconds_to_ticks
from constraints.limits import Bound
from costmodel.record import record
from costmodel.step.layouts import summed_strategy_seconds
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.jobs.setting_choices import Value, keep_effective, text_of
from planner.search.branch_and_bound import (
    GROUP_DECISIONS,
    SHORTEST_SECONDS,
    Outcome,
    Search,
    SearchStats,
    Status,
)
from planner.search.candidates import OWN, Formulas, Pruned
from planner.search.clock import Clock
from planner.search.incumbents import NO_RIVALS, Rivals
from planner.search.stages.search import StageSearchStats

ORDERED_ROWS = 64
"""Number of degree combinations whose lower bounds order the searches."""


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


@record(frozen=True, kw_only=True, slots=True)
class _Best:
    """A strategy of one combination of settings; the field order is the order of preference."""

    seconds: float
    number: int
    place: int
    strategy: Strategy
    even: Strategy | None = None

    @property
    def key(self) -> tuple[float, int, int]:
        """Sort key: with equal steps the first combination's strategy wins."""
        return (self.seconds, self.number, self.place)


def search_each(problem: Problem, formulas: Formulas = OWN, rivals: Rivals = NO_RIVALS) -> JointOutcome:
    """
    Search the best strategies with any of a job's combinations of settings, with proof.

    Parameters
    ----------
    problem
        Job to plan; its time limit covers all combinations together.
    formulas
        Formulas of cost.
    rivals
        Results of other searches for the same job; only faster strategies are searched.
    """
    clock = Clock(seconds=problem.search.time_limit_seconds)
    each = problem.each
    searched = [_narrow(one, each[:number]) for number, one in enumerate(each)]
    outcomes = _search_all(searched, formulas, clock, rivals)
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
    best = _leading(problem, (one for number, own in enumerate(outcomes) for one in _list_best(number, own)))
    first = next(iter(best), None)
    main = outcomes[first.number if first else 0]
    whole = replace(
        main,
        **_proof(outcomes, best),
        strategies=tuple(one.strategy for one in best),
        step_seconds=tuple(one.seconds for one in best),
        even=tuple(one.even for one in best),
        effort=_effort(outcomes),
        stages_differ=any(one.stages_differ for one in outcomes),
    )
    return JointOutcome(
        outcome=whole,
        problem=each[first.number if first else 0],
        ranked=tuple((each[one.number], one.strategy) for one in best),
        of_each=tuple(of_each),
    )


def _narrow(problem: Problem, earlier: Sequence[Problem]) -> Problem:
    """Restrict a job to optimizer offload where an earlier one differs only in its settings: the rest is known."""
    limits = problem.search
    is_known = any(_drop_offload(one.settings) == _drop_offload(problem.settings) for one in earlier)
    if not is_known or limits.candidates or "optimizer_offload" in limits.pin:
        return problem
    # A bound, not a pin: what the job itself names needs no evidence.
    offloads = Bound(names=("optimizer_offload",), relation=">=", number=1)
    return problem.change_limits(limits=(*limits.limits, offloads))


def _drop_offload(settings: Mapping[str, Value]) -> dict[str, Value]:
    return keep_effective(settings, optimizer_offload=False, activation_offload=True)


# --- the searches ------------------------------------------------------------------------------------------


def _search_all(each: Sequence[Problem], formulas: Formulas, clock: Clock, rivals: Rivals) -> list[Outcome]:
    """Search each combination, cut by those before it; each may take half of the time left, the last one all."""
    tolerance = each[0].search.tolerance if each[0].search.simplest else 0.0
    first = Search(each[0], formulas, tolerance)
    outcomes: dict[int, Outcome] = {}
    order = _order(each, first, formulas)
    for position, number in enumerate(order):
        if outcomes and clock.is_over:
            outcomes[number] = _empty_outcome(outcomes[order[0]])
            continue
        run = Search(each[number], formulas, tolerance) if number else first
        run.compete_with(rivals.merge(rivals_of((each[number], one) for number, one in outcomes.items())))
        share = 1.0 if position == len(order) - 1 else 0.5
        run.clock = Clock(seconds=share * max(clock.seconds_left, SHORTEST_SECONDS))
        outcomes[number] = run.run()
    return [outcomes[number] for number in range(len(each))]


def _order(each: Sequence[Problem], first: Search, formulas: Formulas) -> list[int]:
    """Order combinations by their least lower bound for promising degrees: good results early cut most."""
    if len(each) == 1:
        return [0]
    promising = np.argsort(first.bounds, kind="stable")[:ORDERED_ROWS]
    if not len(promising):
        return list(range(len(each)))
    degrees = first.space.degrees(promising)
    least = [float(np.min(np.asarray(formulas.lower_bound(one.facts, degrees)))) for one in each]
    return sorted(range(len(each)), key=lambda number: (least[number], number))


def _empty_outcome(other: Outcome) -> Outcome:
    """Return the empty result of a combination for which no time was left."""
    numbers = [one.name for one in fields(SearchStats) if one.name not in ("bounds", "pruned", "stages")]
    zeros: dict[str, Any] = dict.fromkeys(numbers, 0)
    nothing = replace(other.effort, **zeros, pruned=Pruned(), stages=StageSearchStats())
    return replace(
        other,
        status=Status.UNKNOWN,
        strategies=(),
        step_seconds=(),
        even=(),
        lower_bound_seconds=0.0,
        effort=nothing,
        ticks=0,
    )


def rivals_of(searched: Iterable[tuple[Problem, Outcome]]) -> Rivals:
    """Return the results of searches as rivals, one tick more, so that float noise does not exclude equals."""
    ticks: dict[Hashable, int] = {}
    summed: dict[Hashable, int] = {}
    for number, (problem, outcome) in enumerate(searched):
        for found in _list_best(number, outcome):
            group = _group(problem, found)
            law = summed_strategy_seconds(problem.facts, found.strategy)
            for known, seconds in ((ticks, found.seconds), (summed, law)):
                own = int(seconds_to_ticks(np.asarray(seconds))) + 1
                known[group] = min(own, known.get(group, own))
    return Rivals(ticks=ticks, summed_ticks=summed)


# --- the joint outcome -------------------------------------------------------------------------------------


def _list_best(number: int, outcome: Outcome) -> Iterator[_Best]:
    """Yield the strategies of a search's result."""
    found = zip(outcome.step_seconds, outcome.strategies, outcome.even, strict=True)
    for place, (seconds, strategy, even) in enumerate(found):
        yield _Best(seconds=seconds, number=number, place=place, strategy=strategy, even=even)


def _group(problem: Problem, one: _Best) -> Hashable:
    """Return the degrees of a strategy; with all variants each strategy is a group."""
    if problem.variants == "all":
        return (one.number, one.strategy)
    return tuple(getattr(one.strategy, name) for name in GROUP_DECISIONS)


def _leading(problem: Problem, found: Iterator[_Best]) -> list[_Best]:
    """Return the best strategy of each group, best first, as many as the job wants."""
    groups: dict[Hashable, _Best] = {}
    for one in sorted(found, key=lambda one: one.key):
        groups.setdefault(_group(problem, one), one)
    return list(groups.values())[: problem.top]


def _proof(outcomes: Sequence[Outcome], best: Sequence[_Best]) -> dict[str, Any]:
    """Merge statuses and bounds: a result is proven if every search has proven its own."""
    finished = all(one.status in (Status.OPTIMAL, Status.INFEASIBLE) for one in outcomes)
    bound = min(one.lower_bound_seconds for one in outcomes)
    if not best:
        status = Status.INFEASIBLE if finished else Status.UNKNOWN
        return {"status": status, "lower_bound_seconds": bound, "gap": float("inf"), "ticks": 0}
    return {
        "status": Status.OPTIMAL if finished else Status.FEASIBLE,
        "lower_bound_seconds": bound,
        "gap": max(0.0, 1 - bound / best[0].seconds) if not finished else 0.0,
        "ticks": min(one.ticks for one in outcomes if one.strategies),
    }


def _effort(outcomes: Sequence[Outcome]) -> SearchStats:
    """Sum the effort of all searches."""
    efforts = [one.effort for one in outcomes]
    summed = [one.name for one in fields(SearchStats) if one.name not in ("bounds", "pruned", "stages")]
    return SearchStats(
        **{name: sum(getattr(one, name) for one in efforts) for name in summed},
        bounds=tuple(dict.fromkeys(text for one in efforts for text in one.bounds)),
        pruned=reduce(add, (one.pruned for one in efforts)),
        stages=StageSearchStats(
            **{
                one.name: sum(getattr(effort.stages, one.name) for effort in efforts)
                for one in fields(StageSearchStats)
            }
        ),
    )


def each_once(of_each: Sequence[AlternativeOutcome]) -> tuple[AlternativeOutcome, ...]:
    """Keep one outcome per combination: the first with a strategy, otherwise the last."""
    by_settings: dict[str, AlternativeOutcome] = {}
    for one in of_each:
        text = text_of(one.problem.settings)
        if text not in by_settings or not by_settings[text].outcome.strategies:
            by_settings[text] = one
    return tuple(by_settings.values())
