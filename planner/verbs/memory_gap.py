"""The strategy that is closest to fitting into memory, and checks that one fits at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from costmodel.record import record
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.search.candidates import (
    Floats,
    Ints,
    Memory,
    MemoryFunction,
    MemoryLike,
    least_memory,
    memory_only,
    mode_memory,
)
from planner.search.solver import Clock
from planner.search.space import Space, strategy_of

CHUNK_ROWS = 2**12
"""Rows whose memory is computed at once; affects memory only."""


@record(frozen=True, kw_only=True, slots=True)
class MemoryGap:
    """
    Missing memory of the closest strategy.

    Parameters
    ----------
    device_bytes, host_bytes
        Memory that is missing; both are 0 where it fits.
    strategy
        The closest strategy.
    is_proven
        True where none is closer; else time ran out.
    """

    device_bytes: float
    host_bytes: float
    strategy: Strategy
    is_proven: bool = True

    @property
    def size(self) -> tuple[bool, float]:
        """Key for comparison: gaps without host memory come first."""
        return self.host_bytes > 0, self.device_bytes + self.host_bytes


def missing_memory(problem: Problem, memory: MemoryLike) -> Memory:
    """Return the bytes that strategies lack on the devices of a problem and on their hosts."""
    device = problem.facts.cluster.device
    capacity = device.memory_bytes - problem.search.memory_headroom_bytes
    return Memory(
        device_bytes=np.maximum(memory.device_bytes - capacity, 0.0),
        host_bytes=np.maximum(memory.host_bytes - device.host_memory_bytes, 0.0),
    )


def least_lacking(problem: Problem, space: Space, rows: Ints, memory: MemoryFunction, clock: Clock) -> Floats:
    """
    Return a lower bound of the missing device memory of rows, over the modes that fit on the host.

    Another memory formula than the cost model's own has no bound but 0.
    """
    if memory is not memory_only:
        return np.zeros(len(rows))
    bounds = [np.zeros(0)]
    for some in chunks(rows):
        clock.require()
        lacks = missing_memory(problem, least_memory(problem.facts, space.degrees(some), space.features))
        bounds.append(np.where(lacks.host_bytes == 0, lacks.device_bytes, np.inf).min(axis=-1))
    return np.concatenate(bounds)


def chunks(rows: Ints) -> Iterator[Ints]:
    """Split rows into blocks whose memory is computed at once."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def closest(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> MemoryGap | None:
    """
    Search the strategy that lacks least device memory and satisfies all other rules, host memory included.

    If none has enough host memory, the result lacks least memory in all. Rows are searched in the order of a lower
    bound. If time runs out, the closest strategy so far is returned.

    Raises
    ------
    OutOfTimeError
        If time runs out before a strategy is found.
    """
    rows = np.arange(space.num_rows)
    bounds = least_lacking(problem, space, rows, memory, clock)
    order = np.argsort(bounds, kind="stable")
    found: MemoryGap | None = None
    for some in chunks(order):
        if found and found.size <= (False, bounds[some[0]]):
            break
        if found and clock.is_over:
            return replace(found, is_proven=False)
        clock.require()
        gap = _closest_of(problem, space, memory, np.sort(some))
        if gap and (found is None or gap.size < found.size):
            found = gap
    return found


def _closest_of(problem: Problem, space: Space, memory: MemoryFunction, rows: Ints) -> MemoryGap | None:
    """Return the closest strategy of some rows, those that fit on the host first; of equals the first."""
    block = space.block(rows)
    used, fold = mode_memory(problem.facts, block.degrees, block.features, memory)
    overlaps = fold.flat(block.allowed)
    lacks = missing_memory(problem, used)
    every = np.where(overlaps.any(axis=-1), lacks.device_bytes + lacks.host_bytes, np.inf)
    for which in (lacks.host_bytes == 0, lacks.host_bytes > 0):
        missing = np.where(which, every, np.inf)
        row, mode = np.unravel_index(missing.argmin(), every.shape)
        if np.isfinite(missing[row, mode]):
            features = fold.choose(block.features, mode, overlaps[row, mode].argmax())
            values = {name: int(degrees[row]) for name, degrees in block.degrees.items()}
            values |= {name: int(value) for name, value in features.items()}
            return MemoryGap(
                device_bytes=float(lacks.device_bytes[row, mode]),
                host_bytes=float(lacks.host_bytes[row, mode]),
                strategy=strategy_of(values),
            )
    return None


def least_host_bytes(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> float | None:
    """Return the host memory with which a strategy would fit; None where more does not help, or time runs out."""
    least = np.inf
    for some in chunks(np.arange(space.num_rows)):
        if clock.is_over:
            return None
        block = space.block(some)
        used, fold = mode_memory(problem.facts, block.degrees, block.features, memory)
        fitting = fold.flat(block.allowed).any(axis=-1) & (missing_memory(problem, used).device_bytes == 0)
        least = min(least, float(np.where(fitting, used.host_bytes, np.inf).min()))
    return least if np.isfinite(least) else None


def first_that_fits(
    problem: Problem, space: Space, memory: MemoryFunction, rows: Ints, clock: Clock
) -> Strategy | None:
    """Return a strategy that fits, of the first row with one; None without any."""
    for some in chunks(rows):
        clock.require()
        gap = _closest_of(problem, space, memory, some)
        if gap and not gap.device_bytes and not gap.host_bytes:
            return gap.strategy
    return None
