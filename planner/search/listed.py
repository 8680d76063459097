"""The job's list of strategies (``search.candidates``): rows that the rules forbid, and whole strategies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from constraints import find_violations
from constraints.rule import Rule, sentence
from costmodel.record import record
from costmodel.step.layouts import strategy_cost, strategy_seconds
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.search.domains import Rules, needs
from planner.search.space import Space

if TYPE_CHECKING:
    from planner.search.candidates import Run

MAX_EXPLAINED = 5
"""Impossible rows whose reason is given."""


@record(frozen=True, kw_only=True, slots=True)
class ImpossibleRow:
    """
    A strategy of the job's list that no rule allows.

    Parameters
    ----------
    place
        Its place in the list.
    rules
        Sentences of the rules that forbid it; empty where none does alone, but no completion satisfies all of them.
    """

    place: str
    rules: tuple[str, ...]


@record(frozen=True, kw_only=True, slots=True)
class CandidateListReport:
    """
    Number of strategies of the job's candidate list that the rules allow.

    Parameters
    ----------
    source
        Its file.
    num_rows
        Its strategies.
    num_impossible
        Strategies of the list that rules forbid, memory apart.
    impossible
        The first forbidden strategies.
    """

    source: str
    num_rows: int
    num_impossible: int
    impossible: tuple[ImpossibleRow, ...]


def check_list(problem: Problem, space: Space) -> CandidateListReport | None:
    """Check a problem's list against the rules; None without a list."""
    candidate_list = problem.search.candidates
    if candidate_list is None:
        return None
    matches = _match_rows(space)
    impossible = [number for number, row in enumerate(candidate_list.rows) if not matches(row)]
    judged = [find_broken_rules(problem, space.rules, one, NO_RESOURCES) for one in candidate_list.whole]
    wrong = [
        ImpossibleRow(place=place, rules=rules)
        for place, rules in zip(candidate_list.whole_places, judged, strict=True)
        if rules
    ]
    asked = [rule for rule in (*space.rules.rows, *space.rules.mixed) if rule not in space.rules.candidate_list]
    return CandidateListReport(
        source=candidate_list.source,
        num_rows=candidate_list.num_strategies,
        num_impossible=len(impossible) + len(wrong),
        impossible=(
            *(
                ImpossibleRow(
                    place=candidate_list.places[number], rules=_reasons(problem, candidate_list.rows[number], asked)
                )
                for number in impossible[:MAX_EXPLAINED]
            ),
            *wrong,
        )[:MAX_EXPLAINED],
    )


def _match_rows(space: Space) -> Callable[[Mapping[str, int]], bool]:
    """Return the function that tells whether a strategy of the space has all the values of a row."""

    @cache
    def classes_by(degrees: tuple[str, ...]) -> dict[tuple[int, ...], set[int]]:
        """Return the classes of features by the values of some degrees."""
        known: dict[tuple[int, ...], set[int]] = {}
        columns = [space.rows[name].astype(np.int64).tolist() for name in degrees]
        keys: Iterable[tuple[int, ...]] = zip(*columns, strict=True) if degrees else ((),) * space.num_rows
        for key, one in zip(keys, space.feature_class.tolist(), strict=True):
            known.setdefault(key, set()).add(one)
        return known

    def matches(row: Mapping[str, int]) -> bool:
        degrees = tuple(name for name in row if name in space.rows)
        found = classes_by(degrees).get(tuple(int(row[name]) for name in degrees), ())
        axes: list[Any] = []
        for name, values in space.features.items():
            axes.append(np.isin(values, row[name]) if name in row else np.ones(len(values), dtype=bool))
        return any(space.allowed[one][np.ix_(*axes)].any() for one in found)

    return matches


def _reasons(problem: Problem, row: Mapping[str, int], rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return the sentences of the rules that forbid a row by its given values alone."""
    values = dict(row)
    uses_all = problem.search.max_devices is None
    if uses_all and "dp" not in values and {"tp", "cp", "pp"} <= values.keys():
        rest, remainder = divmod(problem.facts.cluster.num_devices, values["tp"] * values["cp"] * values["pp"])
        values |= {"dp": rest} if rest and not remainder else {}
    decided = [rule for rule in rules if needs(rule) <= values.keys()]
    return tuple(dict.fromkeys(sentence(rule) for rule in find_violations(problem.facts, values, rules=decided)))


# --- whole strategies --------------------------------------------------------------------------------------

EVEN_STAGES = "search.stages: even: all virtual stages hold as many layers as the search deals them."

NO_RESOURCES: dict[str, Any] = {}
"""Figures of a strategy that was not costed; rules of memory and time are then skipped."""


def rules_for(problem: Problem, rules: Rules, strategy: Strategy) -> list[Rule]:
    """Return the rules for a strategy; a whole strategy of the list is exempt from bounds and from the list."""
    candidate_list = problem.search.candidates
    is_whole = candidate_list is not None and strategy in candidate_list.whole
    others = {*rules.bounds, *rules.candidate_list} if is_whole else set()
    return [rule for rule in (*rules.rows, *rules.mixed, *rules.memory, *rules.timed) if rule not in others]


def find_broken_rules(problem: Problem, rules: Rules, strategy: Strategy, resources: dict[str, Any]) -> tuple[str, ...]:
    """Return the sentences of the rules that forbid a whole strategy of a list."""
    later = () if resources else (*rules.memory, *rules.timed)
    asked = [rule for rule in rules_for(problem, rules, strategy) if rule not in later]
    broken = [sentence(rule) for rule in find_violations(problem.facts, strategy.decisions() | resources, rules=asked)]
    is_even = problem.search.stages != "even" or strategy.layout is None
    return tuple(dict.fromkeys([*broken, *([] if is_even else [EVEN_STAGES])]))


# --- strategies that are whole -----------------------------------------------------------------------------


def cost_whole(run: Run) -> None:
    """Cost the whole strategies of a list, and keep those that the rules allow."""
    candidate_list = run.problem.search.candidates
    for strategy in candidate_list.whole if candidate_list else ():
        if run.seconds_left <= 0:
            run.leave(0)
            return
        facts = run.space.facts
        cost = strategy_cost(facts, strategy)
        if not find_broken_rules(run.problem, run.space.rules, strategy, run.resources(cost)):
            run.keep(_group_of(run, strategy), run.reprice(run.build_found(strategy, cost), strategy_seconds))


def _group_of(run: Run, strategy: Strategy) -> Hashable:
    """Return the group of a strategy in the space, or its degrees if the space has no row of the group."""
    values = {name: getattr(strategy, name) for name in ("tp", "cp", "pp", "dp", "ep")}
    same = np.logical_and.reduce([run.space.rows[name] == value for name, value in values.items()])
    return int(run.group_of_row[same][0]) if same.any() else tuple(values.values())
