"""
The final candidates of a search: all that may be the fastest once their pipelines are simulated, ranked by that.

A search compares closed forms. Of plain pipelines they are exact; of interleaved ones and of schedules that do weights'
gradients apart, a simulated step may be shorter by a known fraction. So every strategy whose closed form less that
fraction is below the simulated best is simulated, in this order, until none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from constraints.encoding import TICK_SECONDS
from costmodel.axes import Array
from costmodel.pipelines.schedules import WHOLE_BACKWARD
from costmodel.step.rank_time import is_plain
from costmodel.strategy import Schedule, Strategy, Vocabulary, is_one_of
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.candidates import CostTable, Ints
from planner.search.incumbents import Rivals
from planner.search.space import CandidateBlock, strategy_of

SHORTER_INTERLEAVED, SHORTER_OTHERS = 0.035, 0.15
"""
Fraction by which no simulated step was shorter than its closed form: interleaved (at most 0.030), others (0.132).

Measured over 3,000 random strategies of all models of the catalog (``python -m benchmarks.solver.simulated``).
"""

ROWS_AT_ONCE = 1024
"""Rows whose features are tabulated at once; a matter of memory only."""

Simulated = Callable[[Facts, Strategy], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finalists:
    """
    The best strategies by their simulated steps.

    Parameters
    ----------
    strategies, seconds
        Best first, each of another group, and their simulated steps.
    num_simulated
        Strategies that were simulated.
    num_exact
        Strategies beside them that have an exact closed form.
    largest_difference_fraction
        Fraction by which a simulated step may be shorter than its closed form, of all strategies that are not exact.
    complete
        Whether none was left for want of time.
    """

    strategies: tuple[Strategy, ...]
    seconds: tuple[float, ...]
    num_simulated: int
    num_exact: int
    largest_difference_fraction: float
    complete: bool


class Run(Protocol):
    """What finalists need of the search that found the first of them."""

    problem: Problem
    cost_table: CostTable
    group_of_row: Ints
    bounds: Ints
    rivals: Rivals

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""


def shorter_fraction(decisions: Mapping[str, Any]) -> Array:
    """Largest fraction by which simulated steps are shorter than closed forms: 0 where these are exact, or the step."""
    plain = is_plain(decisions) | ~has_simulation(decisions)
    whole = is_one_of(decisions["schedule"], WHOLE_BACKWARD)
    return np.where(plain, 0.0, np.where(whole, SHORTER_INTERLEAVED, SHORTER_OTHERS))


def is_exact(facts: Facts, decisions: Mapping[str, Any]) -> Any:
    """Whether a simulated step takes what its closed form says: in full plain pipelines, and without an order."""
    full = np.asarray(microbatches(facts, decisions)) >= decisions["pp"]
    return (is_plain(decisions) & full) | ~has_simulation(decisions)


def has_simulation(decisions: Mapping[str, Any]) -> Any:
    """Whether a pipeline is simulated at all, see :func:`costmodel.step.rank_time.simulated_order`."""
    ordered = (np.asarray(decisions["schedule"]) != Schedule.V_HALF) & (np.asarray(decisions["pp"]) > 1)
    return ordered & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contender:
    """A strategy that may be among the best: its group and row, and what its closed form leaves of its step."""

    seconds: float
    least_seconds: float
    group: Hashable
    row: int
    is_exact: bool
    decisions: dict[str, int]


@dataclass(kw_only=True, slots=True)
class _Ranking:
    """The best of each group by simulated steps so far; what rivals take limits as well."""

    top: int
    best: dict[Hashable, tuple[float, Strategy]] = field(default_factory=dict)
    rivals: Mapping[Hashable, float] = field(default_factory=dict)

    def offer(self, group: Hashable, seconds: float, strategy: Strategy) -> None:
        """Keep a strategy if it is its group's best."""
        if group not in self.best or seconds < self.best[group][0]:
            self.best[group] = (seconds, strategy)

    @property
    def leading(self) -> list[tuple[float, Strategy]]:
        """The best strategies, best first; of equals the one that came first."""
        return sorted(self.best.values(), key=lambda one: one[0])[: self.top]

    def limits(self, groups: Iterable[Hashable]) -> list[float]:
        """Seconds above which nothing of each group is of interest."""
        least = {group: seconds for group, (seconds, _) in self.best.items()}
        for group, seconds in self.rivals.items():
            least[group] = min(seconds, least.get(group, seconds))
        leading = sorted(least.values())
        limit = leading[self.top - 1] if len(leading) >= self.top else np.inf
        return [min(limit, least.get(group, limit)) for group in groups]


class FinalistSearch:
    """Simulates what may be among the best."""

    def __init__(self, run: Run, simulated: Simulated) -> None:
        self.run = run
        self.facts = run.cost_table.space.facts
        self.simulated = simulated
        self.ranking = _Ranking(top=run.problem.top, rivals=run.rivals.seconds)
        self.ratios: dict[int, float] = {}
        self.known: set[Strategy] = set()
        self.num_simulated = self.num_exact = 0
        self.complete = True

    def search(self, found: Iterable[tuple[Hashable, Strategy]]) -> Finalists:
        """
        Rank what the search found together with all that may be faster.

        Parameters
        ----------
        found
            Group and strategy, whatever the closed form says of them.
        """
        for group, strategy in found:
            self.ranking.offer(group, self.seconds_of(strategy), strategy)
        if self.run.problem.variants != "all":
            for one in sorted(self.contenders(), key=lambda one: one.least_seconds):
                if self.run.seconds_left <= 0:
                    self.complete = False
                    break
                self.try_out(one)
        leading = self.ranking.leading
        return Finalists(
            strategies=tuple(strategy for _, strategy in leading),
            seconds=tuple(seconds for seconds, _ in leading),
            num_simulated=self.num_simulated,
            num_exact=self.num_exact,
            largest_difference_fraction=float(shorter_fraction(self.run.cost_table.space.rows).max(initial=0.0)),
            complete=self.complete,
        )

    def try_out(self, one: _Contender) -> None:
        """Simulate a strategy if it may be among the best, by what another one of its degrees took."""
        (limit,) = self.ranking.limits([one.group])
        if one.least_seconds * max(self.ratios.get(one.row, 1.0), 1.0) >= limit:
            return
        strategy = strategy_of(one.decisions)
        if one.is_exact:
            self.num_exact += 1
            self.ranking.offer(one.group, one.seconds, strategy)
        elif strategy not in self.known:
            seconds = self.seconds_of(strategy)
            self.ratios.setdefault(one.row, seconds / one.seconds)
            self.ranking.offer(one.group, seconds, strategy)

    def seconds_of(self, strategy: Strategy) -> float:
        """The simulated step of one strategy."""
        self.num_simulated += 1
        self.known.add(strategy)
        return self.simulated(self.facts, strategy)

    def contenders(self) -> Iterator[_Contender]:
        """Strategies that fit, within the limits: of each row and mode the one whose closed form is least."""
        cuts = self.cuts(np.arange(self.run.cost_table.space.num_rows))
        rows = np.flatnonzero(self.run.bounds * TICK_SECONDS <= cuts)
        rows = rows[np.argsort(self.run.bounds[rows], kind="stable")]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            if self.run.seconds_left <= 0:
                self.complete = False
                return
            some = np.sort(rows[start : start + ROWS_AT_ONCE])
            ticks = np.ceil(np.minimum(cuts[some] / TICK_SECONDS, 2.0**52)).astype(np.int64)
            block, row, _, _ = self.run.cost_table.promising(some, ticks)
            for first in range(0, len(row), ROWS_AT_ONCE):
                part = np.arange(first, min(first + ROWS_AT_ONCE, len(row)))
                yield from self.of_block(block.take(part), row[part], cuts)

    def of_block(self, block: CandidateBlock, row: Ints, cuts: Array) -> Iterator[_Contender]:
        """The contenders of a box of some rows, of which each has a cut."""
        for index, seconds, decisions in self.run.cost_table.fitting(block, cuts[row]):
            yield _Contender(
                seconds=seconds,
                least_seconds=seconds * (1 - float(shorter_fraction(decisions))),
                group=int(self.run.group_of_row[row[index]]),
                row=int(row[index]),
                is_exact=bool(is_exact(self.facts, decisions)),
                decisions=decisions,
            )

    def cuts(self, rows: Ints) -> Array:
        """Seconds of the closed form above which nothing of some rows is of interest."""
        degrees = self.run.cost_table.space.degrees(rows)
        limits = np.array(self.ranking.limits(self.run.group_of_row[rows].tolist()))
        return np.asarray(limits / (1 - shorter_fraction(degrees)))
