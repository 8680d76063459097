"""Breakdown of an iteration's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Track
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.intervals import length, union
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


def break_down(graph: ExecutionGraph, times: Replayed) -> Mapping[int, Breakdown]:
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
    counted, communicates = device_tasks(graph, rank), graph.tasks.kind == Kind.COMMUNICATION
    works, talks, either = (
        _busy(times, chosen, begin, end) for chosen in (counted & ~communicates, counted & communicates, counted)
    )
    both = works + talks - either
    return Breakdown(computation=works - both, communication=talks - both, overlapped=both, idle=end - begin - either)


def _busy(times: Replayed, chosen: NDArray[np.bool_], begin: int, end: int) -> int:
    """Return the nanoseconds of a window in which at least one of some tasks runs."""
    return length(union(np.clip(times.start[chosen], begin, end), np.clip(times.end[chosen], begin, end)))


def stream_uses(graph: ExecutionGraph, times: Replayed, rank: int) -> tuple[StreamUse, ...]:
    """Return the use of each track of a rank in its iteration."""
    begin = times.begins[rank]
    end = begin + times.iterations[rank]
    communicates = graph.tasks.kind == Kind.COMMUNICATION
    found = []
    for number, one in enumerate(graph.tracks):
        own = graph.tasks.track == number
        if one.rank == rank and own.any():
            found.append(
                StreamUse(
                    track=one.track,
                    computation=_busy(times, own & ~communicates, begin, end),
                    communication=_busy(times, own & communicates, begin, end),
                    num_tasks=int(np.count_nonzero(own)),
                )
            )
    return tuple(found)


def device_tasks(graph: ExecutionGraph, rank: int) -> NDArray[np.bool_]:
    """Return a mask of tasks that occupy a rank's device: those on its streams; all, where no stream computes."""
    of_rank: NDArray[np.bool_] = graph.task_ranks == rank
    chosen = of_rank & graph.is_on_stream
    return chosen if (graph.tasks.kind[chosen] != Kind.COMMUNICATION).any() else of_rank
