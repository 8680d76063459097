"""
Every strategy whose step is within a margin of the fastest one's, and the CP-SAT model that chooses among them.

Rows of degrees and sets of modules are left out by lower bounds of time and memory alone. The others are costed with
all their features, whether or not a rule allows them or the memory holds them. So the model's own rules and memory
limits exclude them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from constraints.cp_sat import MAX_MEBIBYTES, MAX_TICKS, Candidates, Capacity, concatenate_candidates
from constraints.joint import CostTables, JointModel, Part
from costmodel.record import record
from costmodel.strategy import OVERLAPS
from planner.jobs.problem import Problem
from planner.search.candidates import CostTable, Ints, capacity
from planner.search.solver import Clock
from planner.search.space import CandidateBlock, Space

MAX_ENTRIES = 100_000
"""Most strategies of a model: more would take hundreds of MB and a minute to solve."""

MOST_FORBIDDEN = 512
"""Most strategies that break a rule or do not fit in a model, the fastest; more take longer than the search."""

ROWS_AT_ONCE, CELLS_AT_ONCE = 2**13, 2**18
"""Rows that are bounded, strategies that are costed at once; affects memory, and how often the clock is read."""

FEW_CELLS = 2**14
"""Number of strategies up to which they are costed at once, without a bound."""

UNLIMITED = Capacity(device_mebibytes=MAX_MEBIBYTES, host_mebibytes=MAX_MEBIBYTES)
"""Memory that holds every strategy."""


@record(frozen=True, kw_only=True, slots=True)
class Margin:
    """
    Strategies of a job with steps up to a cut.

    Parameters
    ----------
    problem
        Job with one value of each setting.
    space
        Its rows and features.
    cut
        Largest step in ticks.
    candidates
        The strategies; those that break a rule or do not fit are among them.
    num_rows
        Rows of degrees that no lower bound excluded.
    is_complete
        True where no strategy is missing that the rules and the memory allow.
    """

    problem: Problem
    space: Space
    cut: int
    candidates: Candidates
    num_rows: int = 0
    is_complete: bool = True

    @property
    def usable(self) -> NDArray[np.bool_]:
        """True for each strategy that the rules and the memory allow, as arrays say."""
        return self.candidates.allowed & ~self.is_unfit

    @property
    def is_unfit(self) -> NDArray[np.bool_]:
        """True for each strategy that does not fit into memory."""
        found = self.candidates
        return ~capacity(self.problem).holds(found.device_mebibytes, found.host_mebibytes)

    def take(self, which: Ints) -> Margin:
        """Return some of the strategies."""
        return replace(self, candidates=self.candidates.take(which))

    def limit(self, cut: int) -> Margin:
        """Return the strategies up to a smaller cut."""
        return replace(self.take(np.flatnonzero(self.candidates.ticks <= cut)), cut=cut)


def build_model(
    margins: Sequence[Margin],
    domains: Mapping[str, Ints] | None = None,
    *,
    ranks: Ints | None = None,
    with_rules: bool = True,
    with_memory: bool = True,
) -> JointModel:
    """
    Build the CP-SAT model of all these strategies: a part for each margin, with all rules of its job and its memory.

    Parameters
    ----------
    margins
        Strategies of a job with each combination of its open settings, or of its numbers of devices.
    domains
        Values of each decision; default: those that occur in the tables.
    ranks
        Rank of each strategy, shape (N,): the least is chosen, then the fastest; default: the fastest.
    with_rules, with_memory
        False leaves out the rules or the memory limits, to see what they decide.
    """
    candidates, parts = join_candidates(margins)
    tables = CostTables.build(candidates, OVERLAPS, parts if len(margins) > 1 else None)
    return JointModel(
        [
            Part(
                facts=one.space.facts,
                rules=(*one.space.rules.rows, *one.space.rules.mixed) if with_rules else (),
                capacity=capacity(one.problem) if with_memory else UNLIMITED,
                settings=one.problem.settings,
            )
            for one in margins
        ],
        tables.domains if domains is None else domains,
        tables,
        cut=max(one.cut for one in margins),
        ranks=ranks,
    )


def join_candidates(margins: Sequence[Margin]) -> tuple[Candidates, Ints]:
    """Return the strategies of several margins, and the number of each one's margin."""
    sizes = [len(one.candidates) for one in margins]
    return concatenate_candidates(one.candidates for one in margins), np.repeat(np.arange(len(sizes)), sizes)


def tabulate_margin(
    table: CostTable, rows: Ints, cut: int, clock: Clock, *, is_thorough: bool = False, most: int | None = None
) -> Margin:
    """
    Tabulate every strategy of some rows with even stages whose step takes at most ``cut`` ticks.

    Combinations are left out if a bound of their memory exceeds device or host, or if a bound of their time is slower.

    Parameters
    ----------
    table
        Costs of a job's space.
    rows
        Rows that no lower bound excludes.
    cut
        Largest step in ticks.
    clock
        Clock of the time limit.
    is_thorough
        True for every combination of features, and every set of modules to recompute, whether or not rules allow it.
    most
        Most strategies that the rules and the memory allow; default: ``MAX_ENTRIES``.

    Raises
    ------
    OutOfTimeError
        If time is up.
    MemoryError
        If there are more strategies.
    """
    found, num_usable = [], 0
    for block, of_block in _promising(table, rows, cut, clock, is_thorough=is_thorough):
        clock.require()
        cuts = np.full(len(of_block), cut)
        candidates, row = table.cost(block, cuts).select(cuts, cut)
        if is_thorough:
            candidates = replace(candidates, allowed=table.space.allows(of_block[row], candidates.decisions))
        found.append(candidates)
        num_usable += int(table.usable(candidates).sum())
        if num_usable > (most or MAX_ENTRIES):
            raise MemoryError(f"its cost tables have more than {most or MAX_ENTRIES:,} rows")
    candidates = concatenate_candidates(found)
    candidates = candidates.take(np.flatnonzero(keep_fastest(candidates.ticks, table.usable(candidates))))
    return Margin(problem=table.problem, space=table.space, cut=cut, candidates=candidates, num_rows=len(rows))


def keep_fastest(ticks: Ints, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark all usable strategies, and the ``MOST_FORBIDDEN`` fastest of the others; equally fast ones all or none."""
    others = np.sort(ticks[~usable])
    least = others[MOST_FORBIDDEN] if len(others) > MOST_FORBIDDEN else MAX_TICKS + 1
    return np.asarray(usable | (ticks < least))


def _promising(
    table: CostTable, rows: Ints, cut: int, clock: Clock, *, is_thorough: bool
) -> Iterator[tuple[CandidateBlock, Ints]]:
    """Yield the part of some rows that may fit and take at most ``cut`` ticks, in boxes, with the row of each entry."""
    wide = replace(table, space=table.space.allow_everything()) if is_thorough else table
    every_set = is_thorough or bool(table.space.rules.timed)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        clock.require()
        some = rows[start : start + ROWS_AT_ONCE]
        block, row = wide.space.block(some), some
        if len(some) * block.width > FEW_CELLS:
            block, row, *_ = wide.promising(some, np.full(len(some), cut), every_set=every_set)
        width = max(1, CELLS_AT_ONCE // block.width)
        for first in range(0, len(block.class_of_row), width):
            part = np.arange(first, min(first + width, len(block.class_of_row)))
            yield block.take(part), row[part]
