"""Breakdown of an iteration's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Device, Integers, Trace, Track, length, union
from planner.measure.traces.graph import Dependency, ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed, replay


@record(frozen=True, kw_only=True, slots=True)
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


@record(frozen=True, kw_only=True, slots=True)
class StreamUse:
    """
    Use of one thread or stream in a window.

    Parameters
    ----------
    kind
        thread or stream.
    process
        The process of a thread, the device of a stream.
    number
        Its number in the profiler's output.
    num_tasks
        Tasks on it.
    computation_nanoseconds
        Nanoseconds in which it computes or copies.
    communication_nanoseconds
        Nanoseconds in which it communicates; 0 for a thread.
    """

    kind: str
    process: str
    number: str
    num_tasks: int
    computation_nanoseconds: int
    communication_nanoseconds: int


def break_down(graph: ExecutionGraph, times: Replayed) -> dict[int, Breakdown]:
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
    communicates, found = graph.tasks.kind == Kind.COMMUNICATION, []
    for number, one in enumerate(graph.tracks):
        own = graph.tasks.track == number
        if one.rank == rank and own.any():
            use = StreamUse(
                kind=one.track.kind,
                process=one.track.process,
                number=one.track.number,
                num_tasks=int(np.count_nonzero(own)),
                computation_nanoseconds=_busy(times, own & ~communicates, begin, end),
                communication_nanoseconds=_busy(times, own & communicates, begin, end),
            )
            found.append(use)
    return tuple(found)


def device_tasks(graph: ExecutionGraph, rank: int) -> NDArray[np.bool_]:
    """Return a mask of tasks that occupy a rank's device: those on its streams; all, where no stream computes."""
    of_rank: NDArray[np.bool_] = graph.task_ranks == rank
    chosen = of_rank & graph.is_on_stream
    return chosen if (graph.tasks.kind[chosen] != Kind.COMMUNICATION).any() else of_rank


def sums_of_tasks(graph: ExecutionGraph, times: Replayed) -> Mapping[int, int]:
    """
    Sum the nanoseconds of all tasks on each rank's device, as if nothing overlapped and nothing waited.

    Parameters
    ----------
    graph, times
        A graph and the times of its tasks.
    """
    lengths = times.end - times.start
    return {rank: int(lengths[device_tasks(graph, rank)].sum()) for rank in graph.ranks}


def replay_without_events(graph: ExecutionGraph) -> Replayed:
    """
    Replay a graph without waits of streams for events of other streams.

    dPRO replays so (arXiv 2205.02473); Lumos (arXiv 2504.09307) adds these dependencies.

    Parameters
    ----------
    graph
        Graph of an iteration.
    """
    kept = graph.edges[graph.edges.dependency != Dependency.EVENT]
    return replay(replace(graph, edges=kept))


Shares: TypeAlias = NDArray[np.float64]

"""Shares of the processors, 0 to 1."""


NUM_PARTS, NUM_FRACTIONS = 6000, 100

"""Parts of an iteration with a share of processors, on a page for zooming, and in JSON."""


@record(frozen=True, kw_only=True, slots=True)
class ProcessorUse:
    """
    Share of a device's processors (streaming multiprocessors, compute units) that kernels occupy, 0 to 1.

    Parameters
    ----------
    mean_fraction
        Mean share over the iteration.
    num_kernels
        Number of kernels.
    num_kernels_left_out
        Kernels whose blocks or device were not recorded: they are not in the shares.
    nanoseconds_left_out
        Total time of the latter.
    fractions
        Mean share in each of equal parts of the iteration.
    """

    mean_fraction: float
    num_kernels: int
    num_kernels_left_out: int
    nanoseconds_left_out: int
    fractions: tuple[float, ...]


def processor_use(graph: ExecutionGraph, times: Replayed, rank: int) -> ProcessorUse | None:
    """Return the use of a rank's processors in its iteration; None where no kernel's blocks were recorded."""
    kernels, share = _kernel_shares(graph, rank)
    shares = _mean_shares(times, rank, kernels, share, NUM_PARTS)
    if shares is None:
        return None
    unknown = kernels[np.isnan(share)]
    return ProcessorUse(
        mean_fraction=float(shares.mean()),
        num_kernels=len(kernels),
        num_kernels_left_out=len(unknown),
        nanoseconds_left_out=int((times.end - times.start)[unknown].sum()),
        fractions=tuple(round(one, 4) for one in shares.reshape(NUM_FRACTIONS, -1).mean(axis=1).tolist()),
    )


def processor_shares(graph: ExecutionGraph, times: Replayed, rank: int, *, num_parts: int = NUM_PARTS) -> Shares | None:
    r"""
    Return the share of a rank's processors that are occupied in each part of its iteration; shape (parts,).

    .. math:: u(t) = \min\left(1, \sum_k \min\left(1, \frac{b_k}{n}\right)\right)

    with :math:`b_k` the blocks of the kernels that run at t, n the processors of the device. It is an upper bound: a
    kernel counts in full from its first block to its last, and blocks of several kernels may share a processor. None
    where no kernel's blocks were recorded.

    Parameters
    ----------
    graph, times, rank
        A graph, the times of its tasks, and the rank of the device.
    num_parts
        Number of equal parts of the iteration.
    """
    return _mean_shares(times, rank, *_kernel_shares(graph, rank), num_parts)


def _mean_shares(times: Replayed, rank: int, kernels: Integers, share: Shares, num_parts: int) -> Shares | None:
    known, begin, nanoseconds = ~np.isnan(share), times.begins[rank], times.iterations[rank]
    if not known.any() or nanoseconds <= 0:
        return None
    edges = np.linspace(begin, begin + nanoseconds, num_parts + 1)
    return _means(times.start[kernels][known], times.end[kernels][known], share[known], edges)


def _kernel_shares(graph: ExecutionGraph, rank: int) -> tuple[Integers, Shares]:
    """Return the kernels of a rank, and the share of the processors that each occupies; NaN where it is unknown."""
    own = (graph.task_ranks == rank) & graph.is_on_stream
    kernels = np.flatnonzero(own & np.isin(graph.tasks.kind, (Kind.COMPUTE, Kind.COMMUNICATION)))
    found = np.full(len(kernels), np.nan)
    of_trace, event = graph.tasks.trace[kernels], graph.tasks.event[kernels]
    for number, trace in enumerate(graph.traces):
        own = np.flatnonzero((of_trace == number) & (event != UNKNOWN))
        places = trace.events.blocks[event[own]]
        tracks = trace.events.track[event[own]]
        pairs, which = np.unique(np.column_stack([places, tracks]), axis=0, return_inverse=True)
        shares = [_share(trace, place, trace.tracks[track]) for place, track in pairs.tolist()]
        found[own] = np.array(shares, dtype=np.float64)[which.ravel()]
    return kernels, found


def _share(trace: Trace, place: int, track: Track) -> float:
    """Return the share of a kernel with some blocks on a stream."""
    if place == UNKNOWN:
        return np.nan
    blocks, device = trace.blocks[place], _device(trace, track)
    if device is not None and device.num_processors and blocks.num_blocks:
        return min(1.0, blocks.num_blocks / device.num_processors)
    return min(1.0, blocks.blocks_per_processor) if blocks.blocks_per_processor else np.nan


def _device(trace: Trace, track: Track) -> Device | None:
    """Return the device of a stream; where its number names none, the only kind of device, else None."""
    if track.process.isascii() and track.process.isdigit() and int(track.process) < len(trace.devices):
        return trace.devices[int(track.process)]
    return trace.devices[0] if len(set(trace.devices)) == 1 else None


def _means(
    start: Integers, end: Integers, share: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean between edges of the sum of some intervals' shares, at most 1."""
    moments, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    changes = np.bincount(place.ravel(), weights=np.concatenate([share, -share]), minlength=len(moments))
    level = np.clip(np.cumsum(changes)[:-1], 0, 1)
    until = np.concatenate([[0.0], np.cumsum(level * np.diff(moments))])
    means: Shares = np.diff(np.interp(edges, moments, until)) / np.diff(edges)
    return np.clip(means, 0, 1)
