"""
Tabulate rows of the space, lower bounds of memory and time first, and keep the results of a search so far.

Costs are in the solver's integers. Strategies that no bound excludes go to the solver whether or not they fit. Results
are strategies in the order of preference, the best of each group, and the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import ceil
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from constraints.cp_sat import (
    MAX_TICKS,
    Candidates,
    Capacity,
    bytes_to_mebibytes,
    capacity_mebibytes,
    cp_model,
    most_seconds,
    seconds_to_floor_ticks,
    seconds_to_ticks,
)
from costmodel.lowering.layer import recomputes
from costmodel.memory import different_ranks, least_rank_bytes, rank_bytes, rank_host_bytes
from costmodel.module_sets import memory_follows, needless_sets
from costmodel.record import record
from costmodel.step import step
from costmodel.step.step import Cost
from costmodel.strategy import DECISIONS, MODULES, OVERLAPS, Recompute, StageLayout, Strategy
from costmodel.tables import Facts, largest, tabulate
from planner.jobs.problem import Problem
from planner.search.domains import FEATURES, Columns, Rules, needs
from planner.search.space import TIME_ONLY, CandidateBlock, FeatureSplit, Space, spread, strategy_of

MODES = tuple(name for name in FEATURES if name not in ("sharding", *OVERLAPS))
"""Features with most of the effect on time and memory; bounds leave the others open."""

TIME_MODES = tuple(name for name in MODES if name in TIME_ONLY)
"""Modes that change time alone, as far as the memory has no axis for them."""

MEMORY_MODES = tuple(name for name in MODES if name not in TIME_MODES)

SAVINGS = ("recompute", "activation_offload", "optimizer_offload")
"""Features that save memory for time; their first value saves least."""

MOST_UNFIT = 64
"""Most strategies of a model that do not fit and that no other part of it has."""

NO_TICKS = int(np.iinfo(np.int64).max)
"""Ticks of a strategy that may not be chosen."""

BOUND_NOISE = 1e-9
"""Relative difference between a bound and a memory that sum the same terms in another order."""

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


CostFunction: TypeAlias = Callable[..., Cost]
SecondsFunction: TypeAlias = Callable[[Facts, Mapping[str, Any]], Any]
LeastSecondsFunction: TypeAlias = Callable[..., Any]
NeedlessFunction: TypeAlias = Callable[..., NDArray[np.bool_]]


@record(frozen=True, kw_only=True, slots=True)
class Memory:
    """
    Memory of strategies.

    Parameters
    ----------
    device_bytes, host_bytes
        Bytes on the fullest device, and in its share of the host.
    """

    device_bytes: Floats
    host_bytes: Floats


MemoryLike: TypeAlias = Memory | Cost
MemoryFunction: TypeAlias = Callable[[Facts, Mapping[str, Any]], MemoryLike]


def memory_only(facts: Facts, decisions: Mapping[str, Any]) -> Memory:
    """Return the memory of a cost without its time, which is most of the work."""
    stages = different_ranks(facts, decisions)
    return Memory(
        device_bytes=largest(rank_bytes(facts, decisions, stages).total),
        host_bytes=largest(rank_host_bytes(facts, decisions, stages)),
    )


def least_memory(facts: Facts, degrees: Columns, features: Columns) -> Memory:
    """
    Return a lower bound of the memory of rows in every mode of the features that change it most, shape (rows, modes).

    Only the largest sharding and the fewest overlaps are evaluated: memory falls with the first and grows with the
    second. This takes an eighth of the work of the memory itself.
    """
    few = {name: values.max(keepdims=True) if name == "sharding" else values for name, values in features.items()}
    few |= {name: features[name].min(keepdims=True) for name in OVERLAPS}
    function = memory_only if len(features["sharding"]) == 1 else least_memory_only
    bound, _ = memory_by_mode(function(facts, spread(degrees, few)), len(degrees["tp"]), few)
    return _lower_by_noise(bound)


def _lower_by_noise(bound: MemoryLike) -> Memory:
    """Lower a bound so that no order of summing the same terms exceeds it."""
    return Memory(device_bytes=bound.device_bytes * (1 - BOUND_NOISE), host_bytes=bound.host_bytes * (1 - BOUND_NOISE))


def least_memory_only(facts: Facts, decisions: Mapping[str, Any]) -> Memory:
    """Return a lower bound of the memory of all shardings up to the given one."""
    stages = different_ranks(facts, decisions)
    return Memory(
        device_bytes=largest(least_rank_bytes(facts, decisions, stages)),
        host_bytes=largest(rank_host_bytes(facts, decisions, stages)),
    )


@record(frozen=True, kw_only=True, slots=True)
class Formulas:
    """
    Formulas that a search evaluates: the cost model's own, or others with valid bounds.

    Parameters
    ----------
    cost, memory
        Step time and memory, :func:`costmodel.step.step.cost`; slower steps may get bounds only, on request. The memory
        alone.
    lower_bound
        Bound of the step time from the degrees alone.
    least_seconds
        Bound of the step time over all overlaps and all shardings up to the given one,
        :func:`costmodel.step.step.least_seconds`. On request it covers all parts of sets of modules to recompute, and
        activation offload.
    least_memory
        Bound of the memory over all shardings up to the given one, with the overlaps that need least.
    needless_sets
        Sets of modules to recompute that a row does not need; :func:`costmodel.module_sets.needless_sets`.
    """

    cost: CostFunction = step.cost
    memory: MemoryFunction = memory_only
    lower_bound: SecondsFunction = step.lower_bound_seconds
    least_seconds: LeastSecondsFunction = step.least_seconds
    least_memory: MemoryFunction = least_memory_only
    needless_sets: NeedlessFunction = needless_sets


OWN = Formulas()
"""The cost model's own formulas."""


def fits(
    facts: Facts, rules: Rules, memory: MemoryLike, headroom_bytes: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the strategies that fit by the memory rules, on the device and on the host."""
    resources: dict[str, Any] = {
        "device_bytes": memory.device_bytes,
        "host_bytes": memory.host_bytes,
        "memory_headroom_bytes": headroom_bytes,
    }
    answers = {name: np.ones(np.shape(resources[name]), dtype=bool) for name in ("device_bytes", "host_bytes")}
    for rule in rules.memory:
        for name, answer in answers.items():
            if name in needs(rule):
                answer &= tabulate(rule, facts, resources)
    return answers["device_bytes"], answers["host_bytes"]


def satisfy_time_rules(facts: Facts, rules: Rules, cost: Cost) -> NDArray[np.bool_]:
    """Mark strategies that have a finite time and satisfy the rules of time."""
    answer = np.isfinite(cost.step_seconds)
    for rule in rules.timed:
        times = {"step_seconds": cost.step_seconds, "bubble_seconds": cost.bubble_seconds}
        answer = answer & tabulate(rule, facts, times)
    return np.asarray(answer)


def capacity(problem: Problem) -> Capacity:
    """Return the memory of the problem's devices without the headroom, in MiB rounded down."""
    device = problem.facts.cluster.device
    return Capacity(
        device_mebibytes=capacity_mebibytes(device.memory_bytes - problem.search.memory_headroom_bytes),
        host_mebibytes=capacity_mebibytes(device.host_memory_bytes),
    )


def mode_memory(
    facts: Facts, degrees: Columns, features: Columns, memory: MemoryFunction
) -> tuple[Memory, FeatureSplit]:
    """Return the memory of rows in every mode of the features, shape (rows, modes), and the split into modes."""
    return memory_by_mode(memory(facts, spread(degrees, features)), len(degrees["tp"]), features)


def memory_by_mode(memory: MemoryLike, num_rows: int, features: Columns) -> tuple[Memory, FeatureSplit]:
    """Return memory without the axes of overlaps that have none in it, shape (rows, modes)."""
    split = FeatureSplit.split(features, memory.device_bytes, memory.host_bytes)
    shape = (num_rows, *(1 if name in split.overlaps else len(values) for name, values in features.items()))
    return Memory(
        device_bytes=split.flat(np.broadcast_to(memory.device_bytes, shape))[..., 0],
        host_bytes=split.flat(np.broadcast_to(memory.host_bytes, shape))[..., 0],
    ), split


@record(frozen=True, kw_only=True, slots=True)
class SearchStats:
    """
    Effort of the search.

    Parameters
    ----------
    raw_size
        Combinations of all values before any rule.
    size
        Strategies that satisfy every rule except those of memory.
    bounds
        Restrictions that the search adds by itself, one sentence each.
    num_rows, num_rows_tabulated
        Rows of degrees; rows whose features were tabulated.
    num_bounded
        Strategies of the other rows, whose lower bound is above the best step time.
    num_tabulated
        Strategies of the tabulated rows. The counts that follow are parts of them that are left out, each by the first
        reason that applies.
    num_bounded_tabulated
        Strategies whose bound is slower than the best one, with any overlaps.
    num_untimed
        Strategies without a time, or refused by a rule of time.
    num_cut
        Strategies slower than the best one so far, or than the margin above it.
    num_needless
        Strategies whose modules to recompute another set makes needless.
    num_unfit_tabulated
        Strategies too large for device or host, where that was checked before the solver.
    num_candidates
        Strategies in the tables of CP-SAT's model that the other rules allow.
    num_unfit
        Strategies among them that are too large for device or host.
    num_solves
        Number of CP-SAT runs.
    num_pipelines
        Combinations of decisions for a whole pipeline with uneven stages whose bound is within the cut.
    num_pipelines_costed
        Combinations among them whose ranks were costed; results found meanwhile exclude the others.
    num_pipelines_solved
        Combinations among them whose layers CP-SAT divided.
    build_seconds, solve_seconds
        Time for the space, tables and models of all questions of a loop, at its first; time inside CP-SAT.
    """

    raw_size: int = 0
    size: int = 0
    bounds: tuple[str, ...] = ()
    num_rows: int = 0
    num_rows_tabulated: int = 0
    num_bounded: int = 0
    num_tabulated: int = 0
    num_bounded_tabulated: int = 0
    num_untimed: int = 0
    num_cut: int = 0
    num_needless: int = 0
    num_unfit_tabulated: int = 0
    num_candidates: int = 0
    num_unfit: int = 0
    num_solves: int = 0
    num_pipelines: int = 0
    num_pipelines_costed: int = 0
    num_pipelines_solved: int = 0
    build_seconds: float = 0.0
    solve_seconds: float = 0.0

    def __add__(self, other: SearchStats) -> SearchStats:
        """Add the effort of a further part, or of another search of the same job; of equal restrictions one stays."""
        each = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return SearchStats(**each | {"bounds": tuple(dict.fromkeys(each["bounds"]))})


@record(frozen=True, kw_only=True, slots=True)
class CostTable:
    """
    Cost tables of rows of one problem's space.

    Parameters
    ----------
    problem
        The problem, with one value of each setting.
    space
        Rows and their possible features.
    capacity
        Available memory.
    headroom_bytes
        Device memory to leave free.
    formulas
        Formulas of cost.
    """

    problem: Problem
    space: Space
    capacity: Capacity
    headroom_bytes: float
    formulas: Formulas

    @classmethod
    def build(cls, problem: Problem, space: Space, formulas: Formulas) -> CostTable:
        """Build the cost table of a problem."""
        headroom_bytes = problem.search.memory_headroom_bytes
        return cls(
            problem=problem,
            space=space,
            capacity=capacity(problem),
            headroom_bytes=headroom_bytes,
            formulas=formulas,
        )

    def promising(
        self, rows: Ints, cuts: Ints, *, every_set: bool = False
    ) -> tuple[CandidateBlock, Ints, Ints, SearchStats]:
        """
        Return the modes of some rows with a strategy that may fit and take at most ``cuts`` ticks.

        Sharding and overlaps, most of the features' combinations, are left open: the largest sharding of a row is
        evaluated with the fewest overlaps. Modes that change memory come first, with the others open. If those have one
        value each, their bounds are the same.

        Returns
        -------
        tuple
            A box with a row for each mode; for each its row of the space and its bound in ticks; the strategies left
            out.
        """
        block, row, pruned = self.split_by_set(self.space.block(rows), every_set=every_set)
        ticks = np.zeros(len(row), np.int64)
        for names in (MEMORY_MODES, TIME_MODES):
            is_open = names is MEMORY_MODES or any(len(self.space.features[name]) > 1 for name in names)
            if len(row) and is_open:
                block, at, ticks, left_out = self.split_modes(block, cuts[row], names)
                row, pruned = row[at], pruned + left_out
        return block, rows[row], ticks, pruned

    def split_modes(
        self, block: CandidateBlock, cuts: Ints, names: tuple[str, ...]
    ) -> tuple[CandidateBlock, Ints, Ints, SearchStats]:
        """
        Split off the values of some modes with a strategy that may fit and take at most ``cuts`` ticks, each as a row.

        Modes that still have an axis are left open, too: any of them may fit, and the fastest is evaluated.

        Returns
        -------
        tuple
            The box; the old row of each; its bound in ticks; the strategies left out.
        """
        few = {name: block.features[name] for name in (*names, *TIME_MODES) if name in block.features}
        chosen = {name: values for name, values in few.items() if name in names}
        still_open = {name: self.space.features[name].tolist() for name in few if name not in names}
        of_open = tuple(range(1 + len(chosen), 1 + len(few)))
        others = tuple(1 + axis for axis, name in enumerate(block.features) if name not in names)
        counts = block.of_class.sum(axis=others)[block.class_of_row]
        degrees = {**block.degrees, "sharding": block.furthest_sharding}
        fewest = {name: block.features[name].min() for name in OVERLAPS}
        least = self.formulas.least_memory(self.space.facts, spread(degrees, few) | fewest)
        of_few = (len(counts), *map(len, few.values()))
        fitting = np.asarray(np.broadcast_to(self.may_fit(least), of_few).any(axis=of_open))
        modes = fitting & (counts > 0)
        bounds, feasible = np.zeros(modes.shape, np.int64), np.flatnonzero(_any_of_each(modes))
        if len(feasible):
            of_feasible = spread({name: values[feasible] for name, values in degrees.items()}, chosen) | fewest
            first = {name: values[0] for name, values in few.items() if name in still_open}
            at_most = np.where(modes[feasible], most_seconds(cuts[feasible]).reshape(-1, *(1,) * len(chosen)), -np.inf)
            seconds = self.formulas.least_seconds(
                self.space.facts, of_feasible | first, among=still_open, at_most=at_most
            )
            bounds[feasible] = seconds_to_floor_ticks(np.asarray(seconds, dtype=np.float64))
        kept = modes & (bounds <= cuts.reshape(-1, *(1,) * len(chosen)))
        left, of_left = block.split(kept, tuple(chosen))
        num_left, num_fitting = int(counts.sum(where=~kept)), int(counts.sum(where=fitting & ~kept))
        pruned = SearchStats(
            num_tabulated=num_left, num_bounded_tabulated=num_fitting, num_unfit_tabulated=num_left - num_fitting
        )
        return left, of_left, bounds[kept], pruned

    def bound_by_memory(self, rows: Ints, cut: int) -> Ints:
        """
        Return a lower bound of each row in ticks, over its strategies that may fit; above all ticks where none may.

        Bounds above a cut, in ticks, may be lower than necessary.

        The largest sets of modules and whole layers keep least memory; no recomputation is fastest. Rows that fit only
        with whole layers are at least as slow as with whole layers.
        """
        block = self.space.keep_largest_sets().block(rows)
        fit, bounds = self.least_of_modes(block)[0], np.full(len(rows), NO_TICKS)
        is_whole = block.features["recompute"] == Recompute.FULL
        for which in (is_whole, ~is_whole):
            fit_so = np.asarray(fit[:, which].any(axis=1))
            some = np.flatnonzero(_any_of_each(fit_so))
            if len(some):
                seconds = self.least_of_sets(block, some, block.features["recompute"][which], fit_so[some], cut)
                ticks = np.where(fit_so[some], seconds_to_floor_ticks(seconds), NO_TICKS)
                bounds[some] = np.minimum(bounds[some], ticks.reshape(len(some), -1).min(axis=1))
        return bounds

    def unfit(self, rows: Ints, cut: int) -> Candidates:
        """Return the fastest strategies of some rows up to ``cut`` ticks that save no memory and do not fit."""
        least = {name: self.space.features[name][:1].tolist() for name in SAVINGS}
        block, at_most = self.space.keep_values(**least).block(rows), np.full(len(rows), cut)
        within, _ = self.cost(block, at_most).select(np.full(len(rows), -1), cut)
        unfit = np.flatnonzero(within.allowed & ~self.usable(within))
        return within.take(unfit[np.argsort(within.ticks[unfit], kind="stable")[:MOST_UNFIT]])

    def least_of_modes(self, block: CandidateBlock) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """
        Return a bound of the memory with each recomputation and any activation offload, and whether it may fit.

        Shape: (rows, recompute, other modes ...). If a peak does not follow what layers keep, everything may fit.
        """
        facts = self.space.facts
        values = {name: block.features[name] if name not in TIME_ONLY else block.features[name][:1] for name in MODES}
        degrees = {**block.degrees, "sharding": block.furthest_sharding}
        fewest = {name: block.features[name].min() for name in OVERLAPS}
        least = _lower_by_noise(self.formulas.least_memory(facts, spread(degrees, values) | fewest))
        shape = (len(degrees["tp"]), *map(len, values.values()))
        device, host = (np.broadcast_to(one, shape) for one in self.mebibytes(least))
        fit, axis = self.capacity.holds(device, host), 1 + MODES.index("activation_offload")
        best = np.where(fit.any(axis=axis, keepdims=True) & ~fit, NO_TICKS, device).argmin(axis, keepdims=True)
        follows = memory_follows(facts, block.degrees).reshape(-1, *(1,) * len(values))
        may_fit = np.take_along_axis(fit, best, axis) | ~follows
        device, host = np.take_along_axis(device, best, axis), np.take_along_axis(host, best, axis)
        of_set = 1 + MODES.index("recompute")
        return np.moveaxis(may_fit, of_set, 1), np.moveaxis(device, of_set, 1), np.moveaxis(host, of_set, 1)

    def least_of_sets(
        self, block: CandidateBlock, rows: Ints, sets: Ints, wanted: NDArray[np.bool_], cut: int
    ) -> Floats:
        """
        Return a bound of the seconds of some rows of a box that recompute whole layers, or else any part of some sets.

        Axes are those of :meth:`least_of_modes` without the recomputation. Activation offload may be on or off. Bounds
        that are not wanted, or above a cut in ticks, may be lower than necessary.
        """
        every = self.space.features  # not the box's own, so that layers are the same in each
        still_open = {name: every[name].tolist() for name in TIME_MODES}
        only = {"recompute": block.features["recompute"][:1], "activation_offload": np.zeros(1, dtype=bool)}
        only |= {name: block.features[name][:1] for name in TIME_MODES}
        features = {name: only.get(name, block.features[name]) for name in MODES}
        degrees = {
            name: values[rows] for name, values in {**block.degrees, "sharding": block.furthest_sharding}.items()
        }
        fewest = {name: block.features[name].min() for name in OVERLAPS}
        axis = 1 + MODES.index("recompute")
        at_most = np.where(np.expand_dims(wanted, axis), most_seconds(np.asarray(cut)), -np.inf)
        decisions, bound = spread(degrees, features) | fewest, partial(self.formulas.least_seconds, at_most=at_most)
        if (sets == Recompute.FULL).any():
            least = bound(self.space.facts, {**decisions, "recompute": Recompute.FULL}, among=still_open)
        else:
            most = Recompute.of(*(name for name in MODULES if recomputes(name, recompute=every["recompute"]).any()))
            may_offload = bool(every["activation_offload"].any())
            nothing = {**decisions, "recompute": Recompute.NONE}
            least = bound(self.space.facts, nothing, among=still_open, most_recompute=most, may_offload=may_offload)
        shape = (len(rows), *map(len, features.values()))
        seconds = np.broadcast_to(np.asarray(least, dtype=np.float64), shape)
        return np.asarray(seconds.take(0, axis=axis))

    def split_by_set(self, block: CandidateBlock, *, every_set: bool) -> tuple[CandidateBlock, Ints, SearchStats]:
        """Split a box into one row for each set of modules that may be needed, or every set; return the old rows."""
        axis = 1 + list(block.features).index("recompute")
        per_class = block.of_class.sum(axis=tuple(other for other in range(1, block.of_class.ndim) if other != axis))
        counts = per_class[block.class_of_row]
        wanted = counts > 0
        if not every_set:
            wanted &= ~self.formulas.needless_sets(
                self.space.facts,
                block.degrees,
                sets=block.features["recompute"],
                dispatchers=block.features["token_dispatcher"],
                graphs=block.features["cuda_graphs"],
                alike=block.alike("recompute"),
            )
        kept, row = block.split(wanted, ("recompute",))
        num_needless = int(counts.sum(where=~wanted))
        return kept, row, SearchStats(num_tabulated=num_needless, num_needless=num_needless)

    def may_fit(self, least: MemoryLike) -> NDArray[np.bool_]:
        """Tell whether a bound of the memory fits; differences within float noise count as fitting."""
        device, host = fits(self.space.facts, self.space.rules, _lower_by_noise(least), self.headroom_bytes)
        return np.asarray(device & host)

    def cost(self, block: CandidateBlock, cuts: Ints) -> CostedBlock:
        """Cost the strategies of a box; those that take more than their row's ``cuts`` ticks may get bounds only."""
        at_most = most_seconds(cuts).reshape(-1, *(1,) * len(block.features))
        costs = self.formulas.cost(self.space.facts, block.decisions, at_most=at_most)
        shape = (len(block.class_of_row), *map(len, block.features.values()))
        timed = np.broadcast_to(satisfy_time_rules(self.space.facts, self.space.rules, costs), shape)
        device, host = self.mebibytes(costs)
        return CostedBlock(
            block=block,
            seconds=np.broadcast_to(costs.step_seconds, shape),
            ticks=seconds_to_ticks(np.where(timed, costs.step_seconds, np.inf)),
            device_mebibytes=np.broadcast_to(device, shape),
            host_mebibytes=np.broadcast_to(host, shape),
            timed=timed,
            allowed=block.allowed,
            fits=np.broadcast_to(self.capacity.holds(device, host), shape),
        )

    def least_bubble(self, rows: Ints) -> float:
        """Return the smallest bubble fraction of fitting strategies of some rows; infinite where none fits."""
        block = self.space.block(rows)
        costs = self.formulas.cost(self.space.facts, block.decisions)
        device, host = fits(self.space.facts, self.space.rules, costs, self.headroom_bytes)
        possible = block.allowed & np.isfinite(costs.step_seconds) & device & host
        shares = np.divide(costs.bubble_seconds, costs.step_seconds)
        return float(np.where(possible, shares, np.inf).min(initial=np.inf))

    def fitting(self, rows: Ints) -> Ints:
        """Return those of some rows that have a strategy that fits, at any time."""
        block = self.space.keep_largest_sets().block(rows)
        memory, split = mode_memory(self.space.facts, block.degrees, block.features, self.formulas.memory)
        fit = self.capacity.holds(*self.mebibytes(memory))
        return rows[_any_of_each(fit & split.flat(block.allowed).any(axis=-1))]

    def usable(self, candidates: Candidates) -> NDArray[np.bool_]:
        """Mark strategies that the rules and the memory allow."""
        return candidates.allowed & self.capacity.holds(candidates.device_mebibytes, candidates.host_mebibytes)

    def mebibytes(self, memory: MemoryLike) -> tuple[Ints, Ints]:
        """Convert device and host memory to the solver's integers."""
        device, host = fits(self.space.facts, self.space.rules, memory, self.headroom_bytes)
        return (
            bytes_to_mebibytes(memory.device_bytes, device, self.capacity.device_mebibytes),
            bytes_to_mebibytes(memory.host_bytes, host, self.capacity.host_mebibytes),
        )


def _any_of_each(table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell for each row that any of its entries is true; rows are on the first axis."""
    return np.asarray(table.reshape(len(table), -1).any(axis=1))


@record(frozen=True, kw_only=True, slots=True)
class CostedBlock:
    """
    Costs of the strategies of a box; every array has the shape of its rows and features.

    Parameters
    ----------
    block
        The box.
    seconds, ticks
        Steps; the most possible ticks without a time.
    device_mebibytes, host_mebibytes
        Memory of the fullest device and of its share of the host.
    timed
        True where there is a time, and the rules of time allow it.
    allowed, fits
        True where the other rules allow a strategy, and where it fits into memory.
    """

    block: CandidateBlock
    seconds: Floats
    ticks: Ints
    device_mebibytes: Ints
    host_mebibytes: Ints
    timed: NDArray[np.bool_]
    allowed: NDArray[np.bool_]
    fits: NDArray[np.bool_]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """True for each strategy that may be chosen."""
        return self.timed & self.allowed & self.fits

    def select(self, cuts: Ints, forbidden_cut: int = -1) -> tuple[Candidates, Ints]:
        """
        Return the strategies that may be chosen within their row's cut, in ticks, and the row of each.

        Strategies that break a rule or do not fit are returned up to ``forbidden_cut``.
        """
        at_most = cuts.reshape(-1, *(1,) * (self.ticks.ndim - 1))
        return self.take((self.usable & (self.ticks <= at_most)) | (self.timed & (self.ticks <= forbidden_cut)))

    def count_left_out(self, cuts: Ints, kept: Candidates) -> SearchStats:
        """Count the allowed strategies that are not kept within their row's cut, by reason."""
        timed = self.allowed & self.timed
        within = timed & (self.ticks <= cuts.reshape(-1, *(1,) * (self.ticks.ndim - 1)))
        num_allowed, num_timed, num_within = (int(one.sum()) for one in (self.allowed, timed, within))
        return SearchStats(
            num_tabulated=num_allowed,
            num_untimed=num_allowed - num_timed,
            num_cut=num_timed - num_within,
            num_unfit_tabulated=num_within - int(kept.allowed.sum()),
        )

    def take(self, chosen: NDArray[np.bool_]) -> tuple[Candidates, Ints]:
        """Return some strategies, and the row of each."""
        cells = np.flatnonzero(chosen)
        row, *where = np.unravel_index(cells, chosen.shape)
        block = self.block
        values = {name: degrees[row] for name, degrees in block.degrees.items()}
        values |= {name: of[index] for (name, of), index in zip(block.features.items(), where, strict=True)}
        return Candidates(
            decisions={name: values[name].astype(np.int64) for name in DECISIONS},
            seconds=self.seconds[chosen],
            ticks=self.ticks[chosen],
            device_mebibytes=self.device_mebibytes[chosen],
            host_mebibytes=self.host_mebibytes[chosen],
            allowed=self.allowed[chosen],
        ), row

    def best(self, cuts: Ints, groups: Ints) -> tuple[Candidates, Ints]:
        """Return the fastest strategies of each group that may be chosen within their row's cut, and their rows."""
        ticks = np.where(self.usable, self.ticks, NO_TICKS)
        of_row = ticks.reshape(len(ticks), -1).min(axis=1, initial=NO_TICKS)
        _, number = np.unique(groups, return_inverse=True)
        least = np.full(number.max(initial=-1) + 1, NO_TICKS)
        np.minimum.at(least, number, of_row)
        in_front = np.flatnonzero((of_row <= np.minimum(cuts, least[number])) & (of_row < NO_TICKS))
        chosen = np.zeros(ticks.shape, dtype=bool)
        chosen[in_front] = ticks[in_front] == of_row[in_front].reshape(-1, *(1,) * (ticks.ndim - 1))
        return self.take(chosen)


def sort_by_preference(candidates: Candidates) -> Ints:
    """
    Return the order of strategies, the preferred one first.

    The least ticks come first, then the least device memory, then the least host memory. Then come the least values of
    the decisions in their order; of features that change time alone the fewest.
    """
    values = candidates.decisions
    num_on = np.sum([values[name] != 0 for name in TIME_ONLY], axis=0, dtype=np.int64)
    last = [values[name] for name in reversed(DECISIONS) if name in TIME_ONLY]
    first = [values[name] for name in reversed(DECISIONS) if name not in TIME_ONLY]
    keys = (*last, num_on, *first, candidates.host_mebibytes, candidates.device_mebibytes, candidates.ticks)
    return np.lexsort(keys)


@dataclass(order=True, frozen=True, slots=True)
class Found:
    """A strategy, in the order of preference."""

    ticks: int
    device_mebibytes: int
    host_mebibytes: int
    values: tuple[int, ...]
    layout: StageLayout | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def build(cls, candidates: Candidates, index: int) -> Found:
        """Return one of some candidates."""
        return cls(
            seconds=float(candidates.seconds[index]),
            ticks=int(candidates.ticks[index]),
            device_mebibytes=int(candidates.device_mebibytes[index]),
            host_mebibytes=int(candidates.host_mebibytes[index]),
            values=tuple(int(candidates.decisions[name][index]) for name in DECISIONS),
        )

    @property
    def strategy(self) -> Strategy:
        """The strategy itself."""
        return replace(strategy_of(dict(zip(DECISIONS, self.values, strict=True))), layout=self.layout)


@record(frozen=True, kw_only=True, slots=True)
class Rivals:
    """
    Best ticks of each group that other searches for the same job have found; slower strategies are not needed.

    Parameters
    ----------
    ticks, summed_ticks
        Ticks of the compared step time; of uneven stages, ticks of the sum over their ranks.
    """

    ticks: Mapping[Hashable, int] = field(default_factory=dict)
    summed_ticks: Mapping[Hashable, int] = field(default_factory=dict)

    def merge(self, others: Rivals) -> Rivals:
        """Merge other rivals into these; of two in one group the faster one stays."""
        ticks, summed = _merge(self.ticks, others.ticks), _merge(self.summed_ticks, others.summed_ticks)
        return Rivals(ticks=ticks, summed_ticks=summed)


def _merge(some: Mapping[Hashable, int], others: Mapping[Hashable, int]) -> dict[Hashable, int]:
    return {**some, **{group: min(ticks, some.get(group, ticks)) for group, ticks in others.items()}}


NO_RIVALS = Rivals()
"""No other search has results."""


@dataclass(kw_only=True, slots=True)
class IncumbentPool:
    """
    The best strategy of each group so far, and the cut that follows; with all variants each is a group.

    Ticks of rivals cut as well, though they are not among the best. Strategies are of interest up to a margin above the
    fastest one, the ``tolerance``, whatever their group.
    """

    top: int
    tolerance: float = 0.0
    groups: dict[Hashable, Found] = field(default_factory=dict)
    rivals: Mapping[Hashable, int] = field(default_factory=dict)

    def add_candidates(self, candidates: Candidates, groups: Ints) -> None:
        """Keep the preferred one of each group of some candidates, if it is its group's best."""
        order = sort_by_preference(candidates)
        for index in order[np.sort(np.unique(groups[order], return_index=True)[1])].tolist():
            self.add(int(groups[index]), Found.build(candidates, index))

    def add(self, group: Hashable, found: Found) -> None:
        """Keep a strategy if it is its group's best."""
        self.groups[group] = min(found, self.groups.get(group, found))

    def add_all(self, variants: Iterable[Found]) -> None:
        """Keep the best of the known and some more strategies."""
        known = sorted({*self.groups.values(), *variants})
        self.groups = {(found.values, found.layout): found for found in known[: self.top]}

    @property
    def best(self) -> list[Found]:
        """The best strategies, best first."""
        return sorted(self.groups.values())[: self.top]

    @property
    def least(self) -> list[int]:
        """Ticks of the best strategy of each group, rivals among them, ascending."""
        least = {group: found.ticks for group, found in self.groups.items()}
        for group, ticks in self.rivals.items():
            least[group] = min(ticks, least.get(group, ticks))
        return sorted(least.values())

    @property
    def cut(self) -> int:
        """Ticks of the slowest strategy that is reported; slower strategies are cut."""
        best = self.least
        return best[self.top - 1] if len(best) >= self.top else MAX_TICKS

    @property
    def margin(self) -> int:
        """Ticks up to which every strategy is of interest; negative where none is known."""
        best = self.least
        return min(ceil(best[0] * (1 + self.tolerance)), MAX_TICKS) if best else -1

    @property
    def reach(self) -> int:
        """Ticks above which no strategy is of interest."""
        return max(self.cut, self.margin)

    def reaches(self, groups: Ints) -> Ints:
        """Return the ticks above which no strategy is of interest, for rows of given groups."""
        return np.maximum(self.cuts(groups), self.margin)

    def cuts(self, groups: Ints) -> Ints:
        """Return the cuts for rows of given groups: a group's own strategy cuts it too."""
        cut = self.cut
        rivals = self.rivals
        own = [min(cut, self.groups[group].ticks) if group in self.groups else cut for group in groups.tolist()]
        if rivals:
            own = [min(ticks, rivals.get(group, ticks)) for ticks, group in zip(own, groups.tolist(), strict=True)]
        return np.array(own, dtype=np.int64)


class Run(Protocol):
    """Interface of the search whose candidate list and uneven stages other modules cost."""

    problem: Problem
    space: Space
    cost_table: CostTable
    group_of_row: Ints

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""

    def cuts(self, groups: Ints) -> Ints:
        """Return the upper bound of each group, in ticks."""

    def leave(self, ticks: int) -> None:
        """Note that a strategy with these ticks may have been left out."""

    def solve(self, model: cp_model.CpModel) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
        """Run CP-SAT."""

    def resources(self, cost: Cost) -> dict[str, Any]:
        """Return the figures that rules of memory and time need."""

    def keep(self, group: Hashable, found: Found) -> None:
        """Keep a strategy if it is among the best."""

    def keep_uneven(self, group: int, strategy: Strategy, cost: Any) -> None:
        """Keep a strategy with uneven stages."""

    def build_found(self, strategy: Strategy, cost: Cost) -> Found:
        """Return a strategy with its cost."""

    def reprice(self, found: Found, law: Callable[[Facts, Strategy], float]) -> Found:
        """Return a strategy with the ticks of another cost formula."""
