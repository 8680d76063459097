"""Breakdown of an iteration's time, the critical path through it, and the verdict on its replay."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeAlias, cast

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
    launched in it lies inside. If a rank has no streams, the tasks of its threads count.

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
                kind=one.kind,
                process=one.process,
                number=one.number,
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


# --- the critical path ---------------------------------------------------------------------------------------
PathKind: TypeAlias = Literal["host", "computation", "copy", "communication", "gap"]

"""
Kind of a part of the path: work of a thread, kernels that compute, copies between host and device, communication.

``gap``: the time between a launch and its task, or between one task on a device and the next.
"""

KINDS: Mapping[int, PathKind] = {
    Kind.HOST: "host",
    Kind.COMPUTE: "computation",
    Kind.COPY: "copy",
    Kind.COMMUNICATION: "communication",
}

BETWEEN_CALLS = "between the calls of a thread"

LAUNCH_OR_GAP = "launches, and gaps between tasks"


@record(frozen=True, kw_only=True, slots=True)
class Step:
    """
    A piece of the critical path.

    Parameters
    ----------
    task
        The task.
    begin, end
        Nanoseconds from its release by the step before to its release of the next one, gaps and launch lags included.
    ends
        True if it releases the next one when it ends; False if when it starts, as a launch does.
    """

    task: int
    begin: int
    end: int
    ends: bool


def critical_path(graph: ExecutionGraph, times: Replayed) -> tuple[Step, ...]:
    """
    Return the critical path of the slowest rank's iteration, from the first task to the last.

    Shortening any other task does not shorten the iteration.

    Parameters
    ----------
    graph, times
        A graph and its replay; measured times have no causes.
    """
    rank = max(times.iterations, key=lambda one: times.iterations[one])
    return chain(graph, times, last_task(graph, times, rank))


def last_task(graph: ExecutionGraph, times: Replayed, rank: int) -> int:
    """
    Return the task that ends the iteration of a rank: the end of its main thread, or the last task on its streams.

    It is the one of the two that determines the iteration (:func:`planner.measure.traces.replay.time_iterations`).
    Another thread may run longer, and the host may be ahead of a device that began late.
    """
    own = graph.task_ranks == rank
    rows = np.flatnonzero(own & graph.is_on_stream)
    if rank not in graph.last:
        rows = rows if len(rows) else np.flatnonzero(own)
        return int(rows[np.argmax(times.end[rows])])
    last = graph.last[rank]
    task = int(rows[np.argmax(times.end[rows])]) if len(rows) else last
    on_device = int(times.end[task]) - graph.device_free[rank]
    return task if on_device > int(times.end[last]) - graph.begins[rank] else last


def chain(graph: ExecutionGraph, times: Replayed, task: int) -> tuple[Step, ...]:
    """
    Return the chain of tasks that determines the end of one task, which is the last of the chain.

    Each task began when the one before released it; the chain is followed back from the last one.

    Parameters
    ----------
    graph, times, task
        A graph, its replay, and the last task of the chain.
    """
    until, ends = int(times.end[task]), True
    found: list[Step] = []
    while task != UNKNOWN:
        before, at_end = _let_go(graph, times, task, until, ends=ends)
        when = times.end if at_end else times.start
        begin = min(int(when[before]), until) if before != UNKNOWN else min(0, until)
        found.append(Step(task=task, begin=begin, end=until, ends=ends))
        task, until, ends = before, begin, at_end
    return tuple(reversed(found))


def _let_go(graph: ExecutionGraph, times: Replayed, task: int, until: int, *, ends: bool) -> tuple[int, bool]:
    """
    Return the task that released another one, and True if it did so at its end.

    On the path's end it is the task that held up the end, else the one that allowed the start. A call that copies and
    waits starts its copy and ends after it, so that it is on the path twice. A launch releases its kernel when it
    begins.
    """
    holding = int(times.held_by[task])
    if ends and holding != UNKNOWN:
        return holding, bool(times.end[holding] <= until)
    cause = int(times.cause[task])
    if cause == UNKNOWN:
        return cause, True
    launches = graph.tasks.kind[task] != Kind.HOST and times.held_by[cause] != UNKNOWN
    waited = launches and graph.tasks.kind[cause] == Kind.HOST
    return cause, bool(times.end[cause] <= until and not waited)


@record(frozen=True, slots=True)
class PathPart:
    """
    All pieces of the critical path with one name.

    Parameters
    ----------
    name
        Name of the tasks, or of the time between them: ``BETWEEN_CALLS``, ``LAUNCH_OR_GAP``.
    kind
        Kind of the tasks.
    num_tasks
        Number of pieces.
    nanoseconds
        Time of the iteration that they take.
    fraction
        Their share of it.
    """

    name: str
    kind: PathKind
    num_tasks: int
    nanoseconds: int
    fraction: float


def path_parts(graph: ExecutionGraph, times: Replayed, path: Sequence[Step]) -> tuple[PathPart, ...]:
    """
    Break down the critical path, the longest part first; the parts sum to the iteration.

    Only the last part of the path counts, as long as the iteration: before it the host ran ahead.

    Parameters
    ----------
    graph, times, path
        A graph, its replay and the critical path of both.
    """
    earliest = path[-1].end - times.iteration
    counts: Counter[tuple[str, PathKind]] = Counter()
    sums: Counter[tuple[str, PathKind]] = Counter()

    def add(name: str, kind: PathKind, nanoseconds: int) -> None:
        if nanoseconds > 0:
            counts[name, kind] += 1
            sums[name, kind] += nanoseconds

    for step in path:
        kind = KINDS[int(graph.tasks.kind[step.task])]
        begin, end = max(step.begin, earliest), max(step.end, earliest)
        own = max(0, min(end, int(times.end[step.task])) - max(begin, int(times.start[step.task])))
        add(graph.names[graph.tasks.name[step.task]], kind, own)
        add(*(BETWEEN_CALLS, "host") if kind == "host" else (LAUNCH_OR_GAP, "gap"), end - begin - own)
    return tuple(
        PathPart(name, kind, counts[name, kind], nanoseconds, nanoseconds / max(times.iteration, 1))
        for (name, kind), nanoseconds in sums.most_common()
    )


MOST_OFF = 0.05

"""Largest difference of a usable replay, as a fraction of the recorded iteration."""

MOST_WAITS = 3

"""Waits that are named."""

LEAST_SHARE = 0.05

"""Share of the difference that a wait must cause to be named with the worst."""

BEGIN = "begin of the iteration"

"""Name of the object that the first task of a chain waits for."""

Reason: TypeAlias = Literal["host wait", "launch", "event", "thread", "added", "processors", "order", "collective"]

"""
Cause of a wait.

A thread waits for a stream, a stream for a launch or an event, a thread for a thread. A wait may also be added by a
change, or be for free processors, for the task before on the track, or for the last rank of a collective.
"""


@record(frozen=True, slots=True)
class WrongWait:
    """
    A wait whose replayed time differs from the recorded one.

    Parameters
    ----------
    name
        The task that waits.
    track
        Its thread or stream.
    awaited
        The task that releases it.
    awaited_track
        Its thread or stream.
    reason
        host wait, launch, event, thread, added, processors, order or collective.
    number
        Number of waits between tasks of these names.
    nanoseconds
        Nanoseconds that the replay takes longer there than the recording; negative if shorter, so that a wait is
        missing.
    """

    name: str
    track: str
    awaited: str
    awaited_track: str
    reason: Reason
    number: int
    nanoseconds: int


def difference(measured: int, predicted: int) -> float:
    """Return the relative difference from the measured time; 1 if that is zero and the prediction is not."""
    return (predicted - measured) / measured if measured else float(predicted > 0)


def worst_rank(measured: Replayed, times: Replayed) -> int:
    """Return the rank with the largest difference between replay and recording."""
    return max(times.iterations, key=lambda rank: abs(difference(measured.iterations[rank], times.iterations[rank])))


def is_usable(measured: Replayed, times: Replayed) -> bool:
    """Return True if a replay is close enough to the recording on each rank."""
    rank = worst_rank(measured, times)
    return abs(difference(measured.iterations[rank], times.iterations[rank])) <= MOST_OFF


def wrong_waits(graph: ExecutionGraph, measured: Replayed, times: Replayed) -> tuple[WrongWait, ...]:
    r"""
    Return the waits that make a replay longer or shorter than the recording, worst first; () only if it is usable.

    .. math:: r_k - m_k = \sum_{i \le k} (r_i - r_{i-1}) - (m_i - m_{i-1})

    with :math:`r_i` and :math:`m_i` the replayed and recorded moments along the chain of waits to the last task of the
    worst rank. Each term is the contribution of one wait to the difference. A wait that is too long is wrong, or for
    the wrong task: the waiting task went on earlier. A wait that is too short lacks another dependency. The terms sum
    to at least the whole difference, since the chain leads to the end of the longer iteration.

    Parameters
    ----------
    graph, measured, times
        A graph, its recorded times, and its replay.
    """
    if is_usable(measured, times):
        return ()
    rank = worst_rank(measured, times)
    is_long = times.iterations[rank] > measured.iterations[rank]
    counts: dict[tuple[str, str, str, str, Reason], list[int]] = defaultdict(list)
    last = last_task(graph, times if is_long else measured, rank)
    path = chain(graph, times, last)
    reasons = _reasons(graph)
    for before, after in pairwise((None, *path)):
        assert after is not None
        more = _moment(times, after) - _moment(times, before) - (_moment(measured, after) - _moment(measured, before))
        if more and (more > 0) == is_long:
            ends = [(_name(graph, one), _track(graph, one or after)) for one in (after, before)]
            counts[*ends[0], *ends[1], _reason(graph, times, before, after, reasons)].append(more)
    found = [WrongWait(*key, len(those), sum(those)) for key, those in counts.items()]
    found.sort(key=lambda one: -abs(one.nanoseconds))
    least = LEAST_SHARE * abs(times.iterations[rank] - measured.iterations[rank])
    return tuple(one for one in found[:MOST_WAITS] if one is found[0] or abs(one.nanoseconds) >= least)


def _moment(times: Replayed, step: Step | None) -> int:
    """Return the moment at which a step releases the next one; 0 before the first step."""
    return int((times.end if step.ends else times.start)[step.task]) if step is not None else 0


def _name(graph: ExecutionGraph, step: Step | None) -> str:
    return graph.names[int(graph.tasks.name[step.task])] if step is not None else BEGIN


def _track(graph: ExecutionGraph, step: Step) -> str:
    track = graph.tracks[int(graph.tasks.track[step.task])]
    return f"{track.kind} {track.number}"


def _reasons(graph: ExecutionGraph) -> Mapping[tuple[int, int], Reason]:
    edges = graph.edges
    columns = (edges.before.tolist(), edges.after.tolist(), edges.dependency.tolist())
    return {
        (before, after): cast(Reason, Dependency(why).name.lower()) for before, after, why in zip(*columns, strict=True)
    }


def _reason(
    graph: ExecutionGraph,
    times: Replayed,
    before: Step | None,
    after: Step,
    reasons: Mapping[tuple[int, int], Reason],
) -> Reason:
    if before is None:
        return "order"
    if after.ends and times.held_by[after.task] == before.task != UNKNOWN:
        return "host wait" if graph.tasks.kind[after.task] == Kind.HOST else "collective"
    return reasons.get((before.task, after.task), "order")
