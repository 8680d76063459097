"""
The one loop of all searches: questions about a job, answered together.

A question is a job with one value of each setting. Combinations of the settings that a job leaves open are questions of
one loop; so are numbers of nodes, batches, limits that are relaxed and amounts of memory. The questions of one call are
searched one after the other, those with small lower bounds first. The best strategies so far cut the others: a question
whose lower bound is above them tabulates no row, and the bound is its proof. When all are tabulated, one CP-SAT model
with every rule and the memory of each names the fastest strategy of all, then the fastest of another group, and so on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import itemgetter

import numpy as np

from constraints.cp_sat import MAX_TICKS, cp_model, seconds_to_ticks
from costmodel.step.layouts import summed_strategy_seconds
from costmodel.strategy import DECISIONS, Strategy
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import (
    GROUP_DECISIONS,
    SHORTEST_SECONDS,
    Outcome,
    Search,
    Status,
)
from planner.search.candidates import NO_RIVALS, OWN, Formulas, Found, Rivals, SearchStats, sort_by_preference
from planner.search.margin import build_model, join_candidates
from planner.search.solver import Clock

ORDERED_ROWS = 64
"""Number of degree combinations whose lower bounds order the questions."""

DESCENT_FRACTION = 0.01
"""
Fraction by which sums over ranks of other questions are raised before they cut where descents may begin.

A descent of uneven stages shortened a sum by 1.5 %: it was 0.85 % above the slowest plan, and became faster than it.
"""


def search(problem: Problem, formulas: Formulas = OWN) -> Outcome:
    """
    Search the best strategies of a problem, with proof.

    Parameters
    ----------
    problem
        Job to plan, each setting with one value.
    formulas
        Formulas of cost; default: the cost model.
    """
    return answer([problem], formulas)[0]


def answer(
    questions: Sequence[Problem],
    formulas: Formulas = OWN,
    clock: Clock | None = None,
    *,
    rivals: Rivals = NO_RIVALS,
    tolerance: float = 0.0,
) -> list[Outcome]:
    """
    Answer questions about strategies that compete: each result cuts the others, and one model decides among all.

    Parameters
    ----------
    questions
        Changed jobs of one job, each setting with one value; all want equally many plans.
    formulas
        Formulas of cost.
    clock
        Clock of the time limit of all questions together; default: the job's own.
    rivals
        Steps to beat; slower strategies are not searched.
    tolerance
        Margin above the fastest strategy up to which all strategies are tabulated, as a fraction of its step.

    Returns
    -------
    list
        Result for each question: only strategies that are among the best of all.
    """
    first = questions[0]
    clock = clock or Clock(seconds=first.search.time_limit_seconds)
    began = clock.usage_seconds
    runs, found = {0: Search(first, formulas, tolerance)}, dict[int, Rivals]()
    for number in _order(questions, runs[0], formulas):
        if number and clock.is_over:
            continue
        run = runs[number] = runs[0] if number == 0 else Search(questions[number], formulas, tolerance)
        _limit_time(run, clock, len(questions))
        run.compete_with(_rivals_beside(number, rivals, found))
        run.tabulate()
        found[number] = _rivals_of_run(run)
    for number, run in runs.items():
        run.compete_with(_rivals_beside(number, rivals, found))
    chosen = _decide(runs, first)
    found = {number: _rivals_of_run(run, chosen[number].values()) for number, run in runs.items()}
    outcomes: dict[int, Outcome] = {}
    for number, run in runs.items():
        _limit_time(run, clock, len(questions))
        run.compete_with(_rivals_beside(number, rivals, found))
        outcomes[number] = run.finish(chosen[number])
        found[number] = _rivals_of_run(run, run.incumbents.best)
    solved = sum(one.effort.solve_seconds for one in outcomes.values())
    effort = replace(outcomes[0].effort, build_seconds=clock.usage_seconds - began - solved)  # of all together
    outcomes[0] = replace(outcomes[0], effort=effort)
    return [outcomes.get(number) or _leave_out(outcomes[0]) for number in range(len(questions))]


def _order(questions: Sequence[Problem], first: Search, formulas: Formulas) -> list[int]:
    """Order questions by their least lower bound for promising degrees: good results early cut most."""
    promising = np.argsort(first.bounds, kind="stable")[:ORDERED_ROWS]
    if len(questions) == 1 or not len(promising):
        return list(range(len(questions)))
    degrees = first.space.degrees(promising)
    least = [float(np.min(np.asarray(formulas.lower_bound(one.facts, degrees)))) for one in questions]
    return sorted(range(len(questions)), key=lambda number: (least[number], number))


def _limit_time(run: Search, clock: Clock, num_questions: int) -> None:
    """Give a search all of the time left, or half of it where other questions are asked with it."""
    run.clock = clock if num_questions == 1 else Clock(seconds=max(clock.seconds_left, SHORTEST_SECONDS) / 2)


def _rivals_beside(number: int, rivals: Rivals, found: Mapping[int, Rivals]) -> Rivals:
    """Return the rivals of a question: those of all questions, and the best strategies for other ones."""
    return reduce(Rivals.merge, (own for other, own in found.items() if other != number), rivals)


def _rivals_of_run(run: Search, chosen: Iterable[Found] | None = None) -> Rivals:
    """Return the best strategies of a search as rivals; chosen ones by the sum over ranks, too."""
    found = run.incumbents.best if chosen is None else chosen
    return rivals_of(
        run.problem,
        [(one.strategy, one.seconds) for one in found],
        summed=chosen is not None and run.stages_may_differ,
        raised=DESCENT_FRACTION,
    )


def rivals_at(seconds: float, summed_seconds: float, number: int) -> Rivals:
    """Return so many rivals of one step, also by the sum over ranks: nothing slower is of interest."""
    groups: list[Hashable] = [("limit", place) for place in range(number)]
    ticks, summed = (int(seconds_to_ticks(np.asarray(one))) for one in (seconds, summed_seconds))
    return Rivals(ticks=dict.fromkeys(groups, ticks), summed_ticks=dict.fromkeys(groups, summed))


def rivals_of(
    problem: Problem, found: Iterable[tuple[Strategy, float]], *, summed: bool = True, raised: float = 0.0
) -> Rivals:
    """
    Return strategies and their steps as rivals, one tick more, so that float noise does not exclude equals.

    Sums over ranks are left out unless ``summed``, and ``raised`` by a fraction.
    """
    known: list[dict[Hashable, int]] = [{}, {}]
    for strategy, own in found:
        group: Hashable = tuple(getattr(strategy, name) for name in GROUP_DECISIONS)
        key = (tuple(problem.settings.items()), strategy) if problem.variants == "all" else group
        steps = (own, (1 + raised) * summed_strategy_seconds(problem.facts, strategy)) if summed else (own,)
        for of_law, seconds in zip(known, steps, strict=False):
            ticks = int(seconds_to_ticks(np.asarray(seconds))) + 1
            of_law[key] = min(ticks, of_law.get(key, ticks))
    return Rivals(ticks=known[0], summed_ticks=known[1])


# --- the decision ------------------------------------------------------------------------------------------


def _decide(runs: Mapping[int, Search], problem: Problem) -> dict[int, dict[Hashable, Found]]:
    """
    Let CP-SAT choose the fastest strategy of each group, best first, among all that were costed for any question.

    Among equally fast strategies of one question the preferred one is taken, among several questions the first one's.

    Returns
    -------
    dict
        For each question the chosen strategies, by its search's numbers of groups.
    """
    chosen: dict[int, dict[Hashable, Found]] = {number: {} for number in runs}
    if problem.variants == "all":
        return chosen
    margins = {number: run.collect_candidates() for number, run in runs.items()}
    asked = [number for number, one in margins.items() if len(one.candidates)]
    group_of = itemgetter(*map(DECISIONS.index, GROUP_DECISIONS))
    known = {group_of(one.values) for run in runs.values() for one in run.incumbents.groups.values()}
    if not known:
        return chosen
    joint = build_model([margins[number] for number in asked])
    candidates, part = join_candidates([margins[number] for number in asked])
    usable = np.concatenate([margins[number].usable for number in asked])
    groups = np.stack([candidates.decisions[name] for name in GROUP_DECISIONS], axis=-1)
    main, open_ones = runs[asked[0]], usable.copy()
    for _ in range(min(problem.top, len(known))):
        status, solver = main.solve(joint.model, of_tables=True)
        if status == cp_model.INFEASIBLE:
            break
        if status != cp_model.OPTIMAL:
            for number, run in runs.items():
                left = {group: one for group, one in run.incumbents.groups.items() if group not in chosen[number]}
                run.leave(min((one.ticks for one in left.values()), default=MAX_TICKS))
                chosen[number] |= left
            break
        equal = np.flatnonzero((candidates.ticks == round(solver.objective_value)) & open_ones)
        equal = equal[sort_by_preference(candidates.take(equal))]
        firsts = equal[np.unique(part[equal], return_index=True)[1]]
        first = int(min(firsts, key=lambda index: (candidates.seconds[index], part[index])))
        number, group = asked[part[first]], tuple(groups[first].tolist())
        chosen[number][runs[number].groups[group]] = Found.build(candidates, first)
        open_ones &= (groups != groups[first]).any(axis=1)
        joint.forbid(dict(zip(GROUP_DECISIONS, group, strict=True)))
    return chosen


def _leave_out(other: Outcome) -> Outcome:
    """Return the empty result of a question for which no time was left."""
    return replace(
        other,
        status=Status.UNKNOWN,
        strategies=(),
        step_seconds=(),
        even=(),
        lower_bound_seconds=0.0,
        effort=SearchStats(bounds=other.effort.bounds),
        ticks=0,
        margin=None,
    )
