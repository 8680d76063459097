"""
Rows of the space to candidates for the solver: tabulated, reduced, in the solver's integers.

Two reductions are exact. An overlap that changes time alone is folded: each candidate takes its fastest allowed ones. A
candidate that another one beats in time, device memory and host memory at once is never needed (of equals the first is
kept).
What fits into memory is left to the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from constraints.encoding import Candidates, Capacity, bytes_to_mebibytes, capacity_mebibytes, seconds_to_ticks
from costmodel.rank import different_ranks, least_rank_bytes, rank_bytes, rank_host_bytes
from costmodel.strategy import DECISIONS, OVERLAPS
from costmodel.tables import Facts, tabulate
from planner.problem import Problem
from planner.space import Box, Columns, Fold, Rules, Space, needs, spread

BOUND_NOISE = 1e-9
"""Relative difference between a bound and a memory that sum the same terms in another order."""

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class MemoryLike(Protocol):
    """The memory of a cost; see :class:`costmodel.step.Cost`."""

    @property
    def device_bytes(self) -> Any:
        """Peak memory of the fullest device."""

    @property
    def host_bytes(self) -> Any:
        """Host memory that one device needs."""


class CostLike(MemoryLike, Protocol):
    """A cost; see :class:`costmodel.step.Cost`."""

    @property
    def step_seconds(self) -> Any:
        """One optimizer step."""


CostFunction: TypeAlias = Callable[[Facts, Mapping[str, Any]], CostLike]
MemoryFunction: TypeAlias = Callable[[Facts, Mapping[str, Any]], MemoryLike]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """
    Memory of strategies.

    Parameters
    ----------
    device_bytes, host_bytes
        Of the fullest device, and of its share of the host.
    """

    device_bytes: Floats
    host_bytes: Floats


def memory_alone(facts: Facts, decisions: Mapping[str, Any]) -> Memory:
    """The memory of a cost without its time, which is most of the work."""
    held = different_ranks(facts, decisions)
    return Memory(
        device_bytes=rank_bytes(facts, decisions, held).total.max(axis=-1),
        host_bytes=rank_host_bytes(facts, decisions, held).max(axis=-1),
    )


def least_memory(facts: Facts, degrees: Columns, features: Columns) -> Memory:
    """
    A lower bound of the memory of rows in every mode of the features that changes it most, shape (rows, modes).

    Of the shardings only the furthest is looked at, of overlaps the fewest; memory falls with the one and grows with
    the other. An eighth of the work of the memory itself.
    """
    few = {name: values.max(keepdims=True) if name == "sharding" else values for name, values in features.items()}
    few |= {name: features[name].min(keepdims=True) for name in OVERLAPS}
    function = memory_alone if len(features["sharding"]) == 1 else _least_alone
    bound, _ = by_mode(function(facts, spread(degrees, few)), len(degrees["tp"]), few)
    return Memory(
        device_bytes=bound.device_bytes * (1 - BOUND_NOISE),
        host_bytes=bound.host_bytes * (1 - BOUND_NOISE),
    )


def _least_alone(facts: Facts, decisions: Mapping[str, Any]) -> Memory:
    held = different_ranks(facts, decisions)
    return Memory(
        device_bytes=least_rank_bytes(facts, decisions, held).max(axis=-1),
        host_bytes=rank_host_bytes(facts, decisions, held).max(axis=-1),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fits:
    """Whether strategies fit, by the memory rules: on the device and on the host."""

    device: NDArray[np.bool_]
    host: NDArray[np.bool_]


def fits(facts: Facts, rules: Rules, memory: MemoryLike, headroom_bytes: float) -> Fits:
    """What the memory rules say of device and host."""
    resources = {
        "device_bytes": memory.device_bytes,
        "host_bytes": memory.host_bytes,
        "memory_headroom_bytes": headroom_bytes,
    }
    answers = {name: np.ones(np.shape(resources[name]), dtype=bool) for name in ("device_bytes", "host_bytes")}
    for rule in rules.memory:
        for name, answer in answers.items():
            if name in needs(rule):
                answer &= tabulate(rule, facts, resources)
    return Fits(device=answers["device_bytes"], host=answers["host_bytes"])


def capacity(problem: Problem) -> Capacity:
    """Memory of the problem's devices without the headroom, in MiB rounded down."""
    device = problem.facts.cluster.device
    return Capacity(
        device_mebibytes=capacity_mebibytes(device.memory_bytes - problem.search.memory_headroom_bytes),
        host_mebibytes=capacity_mebibytes(device.host_memory_bytes),
    )


def mode_memory(facts: Facts, degrees: Columns, features: Columns, memory: MemoryFunction) -> tuple[Memory, Fold]:
    """Memory of rows in every mode of the features, shape (rows, modes), and what the modes are."""
    return by_mode(memory(facts, spread(degrees, features)), len(degrees["tp"]), features)


def by_mode(memory: MemoryLike, num_rows: int, features: Columns) -> tuple[Memory, Fold]:
    """Memory without the axes of folded overlaps, shape (rows, modes)."""
    fold = Fold.of(memory.device_bytes, memory.host_bytes)
    shape = (num_rows, *(1 if name in fold.overlaps else len(values) for name, values in features.items()))
    return Memory(
        device_bytes=fold.flat(np.broadcast_to(memory.device_bytes, shape))[..., 0],
        host_bytes=fold.flat(np.broadcast_to(memory.host_bytes, shape))[..., 0],
    ), fold


@dataclass(frozen=True, kw_only=True, slots=True)
class Tabulator:
    """
    Tabulates rows of one problem's space.

    Parameters
    ----------
    space
        Rows and the features that they may have.
    capacity
        Memory.
    headroom_bytes
        Device memory to leave free.
    cost, memory
        Step time and memory of strategies; the memory alone.
    """

    space: Space
    capacity: Capacity
    headroom_bytes: float
    cost: CostFunction
    memory: MemoryFunction

    def fastest(self, rows: Ints, cuts: Ints, groups: Ints) -> tuple[Candidates, Ints]:
        """
        What of some rows may be the fastest strategy that fits, at most ``cuts`` ticks long, and the row of each.

        Candidates compete with those of their own group only.
        """
        box = self.space.box(rows)
        costs = self.cost(self.space.facts, box.decisions)
        possible = box.allowed & np.isfinite(costs.step_seconds)
        memory, fold = by_mode(costs, len(rows), box.features)
        every = fold.flat(np.where(possible, costs.step_seconds, np.inf))
        seconds = every.min(axis=-1)
        ticks = seconds_to_ticks(seconds)
        device, host = self.mebibytes(memory)
        row, mode = np.nonzero(np.isfinite(seconds) & (ticks <= cuts[:, None]))
        kept = not_dominated(ticks[row, mode], device[row, mode], host[row, mode], groups[row])
        row, mode = row[kept], mode[kept]
        overlaps = _fewest_of_the_fastest(box.features, fold, every[row, mode])
        decisions = fold.features(box.features, mode, overlaps)
        candidates = _candidates(box, row, decisions, ticks[row, mode], device[row, mode], host[row, mode])
        return candidates, rows[row]

    def smallest(self, rows: Ints) -> tuple[Candidates, Ints]:
        """What of some rows takes least memory, whatever its time (0 ticks), and the row of each."""
        box = self.space.box(rows)
        memory, fold = mode_memory(self.space.facts, box.degrees, box.features, self.memory)
        device, host = self.mebibytes(memory)
        allowed = fold.flat(box.allowed)
        row, mode = np.nonzero(allowed.any(axis=-1))
        zero = np.zeros(len(row), dtype=np.int64)
        kept = not_dominated(zero, device[row, mode], host[row, mode], zero)
        row, mode = row[kept], mode[kept]
        decisions = fold.features(box.features, mode, allowed[row, mode].argmax(axis=-1))
        candidates = _candidates(box, row, decisions, zero[kept], device[row, mode], host[row, mode])
        return candidates, rows[row]

    def mebibytes(self, memory: MemoryLike) -> tuple[Ints, Ints]:
        """Device and host memory in the solver's integers."""
        fit = fits(self.space.facts, self.space.rules, memory, self.headroom_bytes)
        return (
            bytes_to_mebibytes(memory.device_bytes, fit.device, self.capacity.device_mebibytes),
            bytes_to_mebibytes(memory.host_bytes, fit.host, self.capacity.host_mebibytes),
        )


def not_dominated(ticks: Ints, device: Ints, host: Ints, group: Ints) -> Ints:
    """Candidates that no other one of their group beats in everything, ascending; of equals the first."""
    order = np.lexsort([host, device, ticks, group])
    kept = []
    for rest in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        while len(rest):
            first = rest[0]
            kept.append(first)
            rest = rest[(device[rest] < device[first]) | (host[rest] < host[first])]
    return np.array(sorted(kept), dtype=np.int64)


def _fewest_of_the_fastest(features: Columns, fold: Fold, seconds: Floats) -> Ints:
    """The fastest combination of folded overlaps of each candidate; of equally fast ones, to the tick, the fewest."""
    combinations = np.arange(seconds.shape[-1])
    flags = fold.features(features, np.zeros_like(combinations), combinations)
    num_on = np.sum([flags[name] for name in fold.overlaps], axis=0) if fold.overlaps else combinations
    fewest_first: Ints = np.argsort(num_on, kind="stable")
    position: Ints = seconds_to_ticks(seconds[:, fewest_first]).argmin(axis=1)
    return fewest_first[position]


def _candidates(
    box: Box, row: Ints, features: Columns, ticks: Ints, device_mebibytes: Ints, host_mebibytes: Ints
) -> Candidates:
    values = {name: degrees[row] for name, degrees in box.degrees.items()} | features
    return Candidates(
        decisions={name: values[name].astype(np.int64) for name in DECISIONS},
        ticks=ticks,
        device_mebibytes=device_mebibytes,
        host_mebibytes=host_mebibytes,
    )
