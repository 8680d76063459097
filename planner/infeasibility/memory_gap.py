"""The strategy that comes closest to fitting into memory, and whether one fits at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.search.candidates import Floats, Ints, MemoryFunction, MemoryLike, least_memory, memory_only, mode_memory
from planner.search.clock import Clock
from planner.search.space import Space, strategy_of

CHUNK_ROWS = 2**12
"""Rows whose memory is computed at once; a matter of memory only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGap:
    """
    The memory that the closest strategy lacks.

    Parameters
    ----------
    device_bytes, host_bytes
        Memory that is missing; both are 0 where it fits.
    strategy
        That strategy.
    is_proven
        Whether none comes closer; else time ran out.
    """

    device_bytes: float
    host_bytes: float
    strategy: Strategy
    is_proven: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacks:
    """
    Bytes that strategies lack, shape (rows, modes).

    Parameters
    ----------
    device, host
        Of device and host memory.
    """

    device: Floats
    host: Floats

    @classmethod
    def of(cls, problem: Problem, memory: MemoryLike) -> Lacks:
        """What some memory lacks on the devices of a problem."""
        device = problem.facts.cluster.device
        capacity = device.memory_bytes - problem.search.memory_headroom_bytes
        return cls(
            device=np.maximum(memory.device_bytes - capacity, 0.0),
            host=np.maximum(memory.host_bytes - device.host_memory_bytes, 0.0),
        )

    @property
    def with_host(self) -> Floats:
        """What each row lacks on the device in the modes that fit on the host; infinite where none does."""
        least: Floats = np.where(self.host == 0, self.device, np.inf).min(axis=-1)
        return least


def least_lacking(problem: Problem, space: Space, rows: Ints, memory: MemoryFunction, clock: Clock) -> Floats:
    """
    A lower bound of what rows lack on the device in the modes that fit on the host.

    Of a memory other than the cost model's own no bound is known but 0.
    """
    if memory is not memory_only:
        return np.zeros(len(rows))
    bounds = [np.zeros(0)]
    for some in chunks(rows):
        clock.require()
        least = least_memory(problem.facts, space.degrees(some), space.features)
        bounds.append(Lacks.of(problem, least).with_host)
    return np.concatenate(bounds)


def chunks(rows: Ints) -> Iterator[Ints]:
    """Rows in parts whose memory is computed at once."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def closest(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> MemoryGap | None:
    """
    The strategy that lacks least device memory of all that satisfy the other rules, host memory among them.

    Where none has enough host memory, the one that lacks least in all. Rows are looked at in the order of a lower
    bound; where time runs out, the closest so far is returned.

    Raises
    ------
    OutOfTimeError
        If time runs out before there is one.
    """
    rows = np.arange(space.num_rows)
    bounds = least_lacking(problem, space, rows, memory, clock)
    order = np.argsort(bounds, kind="stable")
    best: tuple[float, float] = (np.inf, np.inf)
    found: MemoryGap | None = None
    for some in chunks(order):
        if (0.0, float(bounds[some[0]])) >= best:
            break
        if clock.is_over and found:
            return _unproven(found)
        clock.require()
        key, candidate = _closest_of(problem, space, memory, np.sort(some))
        if key < best:
            best, found = key, candidate
    return found


def _unproven(found: MemoryGap) -> MemoryGap:
    return MemoryGap(
        device_bytes=found.device_bytes, host_bytes=found.host_bytes, strategy=found.strategy, is_proven=False
    )


def _closest_of(
    problem: Problem, space: Space, memory: MemoryFunction, rows: Ints
) -> tuple[tuple[float, float], MemoryGap | None]:
    """The closest strategy of some rows, those that fit on the host first; of equals the first."""
    block = space.block(rows)
    used, fold = mode_memory(problem.facts, block.degrees, block.features, memory)
    overlaps = fold.flat(block.allowed)
    lacks = Lacks.of(problem, used)
    every = np.where(overlaps.any(axis=-1), lacks.device + lacks.host, np.inf)
    best: tuple[float, float] = (np.inf, np.inf)
    found: MemoryGap | None = None
    for which in (lacks.host == 0, lacks.host > 0):
        row, mode = np.unravel_index(np.where(which, every, np.inf).argmin(), every.shape)
        key = (float(lacks.host[row, mode] > 0), float(every[row, mode]))
        if np.isfinite(key[1]) and key < best:
            features = fold.chosen(block.features, mode, overlaps[row, mode].argmax())
            values = {name: int(degrees[row]) for name, degrees in block.degrees.items()}
            values |= {name: int(value) for name, value in features.items()}
            best = key
            found = MemoryGap(
                device_bytes=float(lacks.device[row, mode]),
                host_bytes=float(lacks.host[row, mode]),
                strategy=strategy_of(values),
            )
    return best, found


def least_host_bytes(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> float | None:
    """The host memory with which something would fit; None where more of it does not help, or time runs out."""
    least = np.inf
    for some in chunks(np.arange(space.num_rows)):
        if clock.is_over:
            return None
        block = space.block(some)
        used, fold = mode_memory(problem.facts, block.degrees, block.features, memory)
        fitting = fold.flat(block.allowed).any(axis=-1) & (Lacks.of(problem, used).device == 0)
        least = min(least, float(np.where(fitting, used.host_bytes, np.inf).min()))
    return least if np.isfinite(least) else None


def first_that_fits(
    problem: Problem, space: Space, memory: MemoryFunction, rows: Ints, clock: Clock
) -> tuple[int, Strategy] | None:
    """The first of some rows in which a strategy fits, and that strategy; None where none does."""
    for some in chunks(rows):
        clock.require()
        fitting = _fitting(problem, space, memory, some)
        if fitting.any():
            row = int(some[fitting.argmax()])
            _, found = _closest_of(problem, space, memory, np.array([row]))
            assert found is not None
            return row, found.strategy
    return None


def _fitting(problem: Problem, space: Space, memory: MemoryFunction, rows: Ints) -> NDArray[np.bool_]:
    block = space.block(rows)
    used, fold = mode_memory(problem.facts, block.degrees, block.features, memory)
    lacks = Lacks.of(problem, used)
    allowed = fold.flat(block.allowed).any(axis=-1)
    fit: NDArray[np.bool_] = (allowed & (lacks.device + lacks.host == 0)).any(axis=-1)
    return fit
