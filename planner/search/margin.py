"""
Every strategy whose step is within a margin of the fastest one's, as the cost tables of one CP-SAT model.

Rows of degrees are left out by their lower bound alone. The others are tabulated with their features. If they are few,
features are kept whether or not a rule allows them, so that the model's own rules exclude them. If they are many, only
allowed features are kept, without needless sets of modules to recompute. Entries that lower bounds of memory and time
exclude are left out. So the tables rely on rows and bounds of the search, but on none of its cuts, folds and choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from constraints.encoding import most_seconds, seconds_to_floor_ticks, seconds_to_ticks
from constraints.joint import CostTables, JointModel, joint_model, narrow_domains
from costmodel.strategy import DECISIONS, OVERLAPS
from planner.jobs.problem import Problem
from planner.search.candidates import (
    MODES,
    OWN,
    CostTable,
    Formulas,
    Ints,
    capacity,
    memory_by_mode,
    satisfy_time_rules,
)
from planner.search.clock import Clock
from planner.search.space import CandidateBlock, Space, spread

MAX_ENTRIES = 100_000
"""Rows of both cost tables up to which a model is built: more would take hundreds of MB and a minute to solve."""

THOROUGH_CELLS = 2**16
"""Modes of rows up to which all are bounded; with more, arrays leave out those that the rules forbid."""

FEW_CELLS = 2**16
"""Number of strategies up to which they are costed at once, without a bound first."""

ROWS_AT_ONCE, CELLS_AT_ONCE = 2**13, 2**18
"""Rows that are bounded, strategies that are costed at once; affects memory, and how often the clock is read."""


class TooManyStrategiesError(Exception):
    """The cost tables would have more rows than allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
    tables
        Memory and step of each strategy.
    num_rows
        Rows of degrees in the tables; the others' lower bounds are above the cut.
    is_thorough
        True where the tables hold features that the rules forbid, so that the model's own rules exclude them.
    """

    problem: Problem
    space: Space
    cut: int
    tables: CostTables
    num_rows: int
    is_thorough: bool

    def take(self, strategies: Ints) -> Margin:
        """Return some of the strategies."""
        used, combination = np.unique(self.tables.combination[strategies], return_inverse=True)
        tables = CostTables(
            combinations={name: values[used] for name, values in self.tables.combinations.items()},
            device_mebibytes=self.tables.device_mebibytes[used],
            host_mebibytes=self.tables.host_mebibytes[used],
            combination=combination,
            others={name: values[strategies] for name, values in self.tables.others.items()},
            ticks=self.tables.ticks[strategies],
        )
        return replace(self, tables=tables)

    def build_model(
        self, domains: Mapping[str, Ints] | None = None, *, cut: int | None = None, ranks: Ints | None = None
    ) -> JointModel:
        """
        Build the CP-SAT model of these strategies with all rules of the job.

        Parameters
        ----------
        domains
            Values of each decision; default: those that occur in the tables.
        cut
            Largest step in ticks; default: that of the tables.
        ranks
            Rank of each strategy, shape (E,): the least is chosen, then the fastest; default: the fastest.
        """
        rules = (*self.space.rules.rows, *self.space.rules.mixed)
        return joint_model(
            self.space.facts,
            rules,
            self.tables.domains if domains is None else domains,
            self.tables,
            capacity=capacity(self.problem),
            cut=self.cut if cut is None else cut,
            ranks=ranks,
        )


def tabulate_margin(
    problem: Problem,
    space: Space,
    row_bounds: Ints,
    cut: int,
    clock: Clock,
    formulas: Formulas = OWN,
    *,
    most: int | None = None,
) -> Margin:
    """
    Tabulate every strategy with even stages whose step takes at most ``cut`` ticks.

    Combinations are left out if a bound of their memory exceeds device or host, or if a bound of their time is slower.

    Parameters
    ----------
    problem
        Job with one value of each setting.
    space
        Its rows and features.
    row_bounds
        Lower bound of each row in ticks.
    cut
        Largest step in ticks.
    clock
        Clock of the time limit.
    formulas
        Formulas of cost.
    most
        Most rows of the tables; default: ``MAX_ENTRIES``.

    Raises
    ------
    OutOfTimeError
        If time is up.
    TooManyStrategiesError
        If the tables have more rows.
    """
    costs, rows = CostTable.build(problem, space, formulas), np.flatnonzero(row_bounds <= cut)
    is_thorough = _are_few(space, rows)
    every_set, num_rows = is_thorough or bool(space.rules.timed), len(rows)
    if is_thorough:
        costs, rows = _whatever_the_rules(costs, rows)
    blocks, time_only = list(_promising(costs, rows, cut, clock, every_set=every_set)), OVERLAPS
    while True:
        try:
            tables = _stack_tables(list(_parts(costs, blocks, cut, clock, time_only, most or MAX_ENTRIES)), time_only)
        except _OtherAxesError as error:
            time_only = error.time_only
        else:
            break
    return Margin(problem=problem, space=space, cut=cut, tables=tables, num_rows=num_rows, is_thorough=is_thorough)


class _OtherAxesError(Exception):
    """Memory depends on an overlap that earlier blocks did not depend on; ``time_only`` are the other overlaps."""

    def __init__(self, time_only: tuple[str, ...]) -> None:
        self.time_only = time_only
        super().__init__()


def _are_few(space: Space, rows: Ints) -> bool:
    """Tell whether the modes of some rows are few enough to be tabulated without the rules."""
    return len(rows) * prod(len(space.features[name]) for name in MODES) <= THOROUGH_CELLS


def _whatever_the_rules(costs: CostTable, rows: Ints) -> tuple[CostTable, Ints]:
    """Return the space with every combination of features, except values that no strategy of some rows can have."""
    space = costs.space
    degrees = {name: np.unique(values) for name, values in space.degrees(rows).items()}
    rules = (*space.rules.rows, *space.rules.mixed)
    left = narrow_domains(
        space.facts, rules, degrees | {name: np.unique(values) for name, values in space.features.items()}
    )
    kept = np.logical_and.reduce([np.isin(space.rows[name][rows], left[name]) for name in degrees])
    features = {name: values[np.isin(values, left[name])] for name, values in space.features.items()}
    shape = tuple(len(values) for values in features.values())
    whole = replace(
        space,
        features=features,
        feature_class=np.zeros(space.num_rows, dtype=np.int64),
        allowed=np.ones((1, *shape), dtype=bool),
    )
    return replace(costs, space=whole), rows[kept] if all(shape) else rows[:0]


def _parts(
    costs: CostTable, blocks: Iterable[CandidateBlock], cut: int, clock: Clock, time_only: tuple[str, ...], most: int
) -> Iterator[CostTables]:
    """Yield the cost tables of one box after the other."""
    num_entries = 0
    for block in blocks:
        clock.require()
        part = _part(costs, block, cut, time_only)
        num_entries += len(part.device_mebibytes) + len(part.ticks)
        if num_entries > most:
            raise TooManyStrategiesError
        yield part


def _promising(costs: CostTable, rows: Ints, cut: int, clock: Clock, *, every_set: bool) -> Iterator[CandidateBlock]:
    """Yield the part of some rows that may fit and take at most ``cut`` ticks, in boxes of few strategies."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        clock.require()
        some = rows[start : start + ROWS_AT_ONCE]
        block = costs.space.block(some)
        if len(some) * block.width > FEW_CELLS:
            block, *_ = costs.promising(some, np.full(len(some), cut), every_set=every_set)
        if len(block.class_of_row) * block.width > FEW_CELLS:
            block = _split_shardings(costs, block, cut)
        width = max(1, CELLS_AT_ONCE // block.width)
        for first in range(0, len(block.class_of_row), width):
            yield block.take(np.arange(first, min(first + width, len(block.class_of_row))))


def _split_shardings(costs: CostTable, block: CandidateBlock, cut: int) -> CandidateBlock:
    """Split off the shardings of a box that may fit and take at most ``cut`` ticks, each as a row."""
    shardings = {"sharding": block.features["sharding"]}
    fewest = {name: block.features[name].min() for name in OVERLAPS}
    least = costs.formulas.memory(costs.space.facts, spread(block.degrees, shardings) | fewest)
    kept = np.array(np.broadcast_to(costs.may_fit(least), (len(block.class_of_row), len(shardings["sharding"]))))
    kept &= np.asarray(block.of_class.any(axis=tuple(range(2, block.of_class.ndim))))[block.class_of_row]
    row, sharding = np.nonzero(kept)
    columns = {name: values[row] for name, values in block.degrees.items()} | fewest
    columns["sharding"] = shardings["sharding"][sharding]
    seconds = np.asarray(costs.formulas.least_seconds(costs.space.facts, columns))
    kept[row, sharding] = seconds_to_floor_ticks(seconds) <= cut
    return block.split(kept, ("sharding",))[0]


def _part(costs: CostTable, block: CandidateBlock, cut: int, time_only: tuple[str, ...]) -> CostTables:
    """Make the cost tables of a box; ``time_only`` are the overlaps that change time alone."""
    num_rows = len(block.class_of_row)
    found = costs.formulas.cost(costs.space.facts, block.decisions, at_most=most_seconds(np.array(cut)))
    memory, own = memory_by_mode(found, num_rows, block.features)
    if own.overlaps != time_only:
        if not set(time_only) <= set(own.overlaps):
            raise _OtherAxesError(tuple(name for name in time_only if name in own.overlaps))
        memory, own = memory_by_mode(found, num_rows, block.features, time_only)
    shape = (num_rows, *(len(values) for values in block.features.values()))
    seconds = np.where(satisfy_time_rules(costs.space.facts, costs.space.rules, found), found.step_seconds, np.inf)
    ticks = own.flat(seconds_to_ticks(np.broadcast_to(seconds, shape)))
    within = ticks <= cut
    row, mode = np.nonzero(within.any(axis=-1))
    device, host = (use[row, mode] for use in costs.mebibytes(memory))
    fits = np.flatnonzero((device <= costs.capacity.device_mebibytes) & (host <= costs.capacity.host_mebibytes))
    position, other = np.nonzero(within[row[fits], mode[fits]])
    chosen = fits[position]
    of_features = own.chosen(block.features, mode, np.zeros_like(mode))
    of_others = own.chosen(block.features, mode[chosen], other)
    columns = {name: values[row] for name, values in block.degrees.items()} | of_features
    return CostTables(
        combinations={name: columns[name].astype(np.int64) for name in DECISIONS if name not in time_only},
        device_mebibytes=device,
        host_mebibytes=host,
        combination=chosen,
        others={name: of_others[name].astype(np.int64) for name in time_only},
        ticks=ticks[row[chosen], mode[chosen], other],
    )


def _stack_tables(parts: Sequence[CostTables], time_only: tuple[str, ...]) -> CostTables:
    """Stack cost tables."""
    firsts = np.cumsum([0, *(len(part.device_mebibytes) for part in parts)])
    empty = np.zeros(0, dtype=np.int64)

    def stack(columns: Iterable[Ints]) -> Ints:
        return np.concatenate([empty, *columns])

    return CostTables(
        combinations={
            name: stack(part.combinations[name] for part in parts) for name in DECISIONS if name not in time_only
        },
        device_mebibytes=stack(part.device_mebibytes for part in parts),
        host_mebibytes=stack(part.host_mebibytes for part in parts),
        combination=stack(first + part.combination for first, part in zip(firsts, parts, strict=False)),
        others={name: stack(part.others[name] for part in parts) for name in time_only},
        ticks=stack(part.ticks for part in parts),
    )
