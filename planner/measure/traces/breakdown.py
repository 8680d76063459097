"""Breakdown of an iteration's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Integers, Track
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """
    Nanoseconds of a window; its parts do not overlap and sum to the window.

    Parameters
    ----------
    computation
        Only computation, or copies: exposed computation.
    communication
        Only communication: exposed communication.
    overlapped
        Both at once.
    idle
        Neither.
    """

    computation: int
    communication: int
    overlapped: int
    idle: int

    @property
    def total(self) -> int:
        """Nanoseconds of the window."""
        return self.computation + self.communication + self.overlapped + self.idle


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamUse:
    """
    Use of one track in a window.

    Parameters
    ----------
    track
        The track.
    computation, communication
        Nanoseconds of computation and of communication; a thread has no communication.
    num_tasks
        Number of its tasks.
    """

    track: Track
    computation: int
    communication: int
    num_tasks: int


def breakdowns(graph: ExecutionGraph, times: Replayed) -> Mapping[int, Breakdown]:
    """
    Break down each rank's iteration, by rank.

    The window begins when the device has finished earlier work and is as long as the iteration, so that everything
    launched in it lies inside. Where a rank has no streams, the tasks of its threads count.

    Parameters
    ----------
    graph, times
        A graph and the times of its tasks.
    """
    return {rank: _breakdown(graph, times, rank) for rank in graph.ranks}


def _breakdown(graph: ExecutionGraph, times: Replayed, rank: int) -> Breakdown:
    begin = times.begins[rank]
    end = begin + times.iterations[rank]
    kind = graph.tasks.kind
    counted = device_tasks(graph, rank)
    communicates = kind == Kind.COMMUNICATION
    busy = union(times.start, times.end, counted & ~communicates, begin, end)
    talks = union(times.start, times.end, counted & communicates, begin, end)
    either = union(times.start, times.end, counted, begin, end)
    both = length(busy) + length(talks) - length(either)
    return Breakdown(
        computation=length(busy) - both,
        communication=length(talks) - both,
        overlapped=both,
        idle=end - begin - length(either),
    )


def stream_uses(graph: ExecutionGraph, times: Replayed, rank: int) -> tuple[StreamUse, ...]:
    """Return the use of each track of a rank in its iteration."""
    begin = times.begins[rank]
    end = begin + times.iterations[rank]
    communicates = graph.tasks.kind == Kind.COMMUNICATION
    found = []
    for number, one in enumerate(graph.tracks):
        own = graph.tasks.track == number
        if one.rank == rank and own.any():
            parts = [
                length(union(times.start, times.end, own & which, begin, end))
                for which in (~communicates, communicates)
            ]
            found.append(
                StreamUse(
                    track=one.track, computation=parts[0], communication=parts[1], num_tasks=int(np.count_nonzero(own))
                )
            )
    return tuple(found)


def device_tasks(graph: ExecutionGraph, rank: int) -> NDArray[np.bool_]:
    """Return a mask of tasks that occupy a rank's device: those on its streams; all, where no stream computes."""
    of_rank: NDArray[np.bool_] = graph.task_ranks == rank
    chosen = of_rank & graph.on_stream
    return chosen if (graph.tasks.kind[chosen] != Kind.COMMUNICATION).any() else of_rank


def union(start: Integers, end: Integers, chosen: NDArray[np.bool_], begin: int, stop: int) -> Integers:
    """
    Return the intervals of a window in which at least one of some tasks runs.

    Parameters
    ----------
    start, end, chosen
        Times of tasks, and mask of those that count; shape (tasks,).
    begin, stop
        The window.

    Returns
    -------
    array
        Begin and end of each interval, in order, without contact; shape (intervals, 2).
    """
    starts, ends = np.clip(start[chosen], begin, stop), np.clip(end[chosen], begin, stop)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
    opens = np.r_[True, starts[1:] > ends[:-1]] if len(starts) else np.zeros(0, dtype=bool)
    closes = np.r_[opens[1:], True] if len(starts) else opens
    return np.column_stack([starts[opens], ends[closes]])


def length(stretches: Integers) -> int:
    """Return the nanoseconds of intervals that do not overlap."""
    return int((stretches[:, 1] - stretches[:, 0]).sum())
