"""The critical path: the chain of tasks and waits that determines the length of a replayed iteration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from costmodel.record import record
from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.graph import Dependency, ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed

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

REASONS: Mapping[int, Reason] = {
    Dependency.LAUNCH: "launch",
    Dependency.EVENT: "event",
    Dependency.THREAD: "thread",
    Dependency.ADDED: "added",
    Dependency.PROCESSORS: "processors",
}


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
    track = graph.tracks[int(graph.tasks.track[step.task])].track
    return f"{track.kind} {track.number}"


def _reasons(graph: ExecutionGraph) -> Mapping[tuple[int, int], Reason]:
    edges = graph.edges
    columns = (edges.before.tolist(), edges.after.tolist(), edges.dependency.tolist())
    return {(before, after): REASONS[why] for before, after, why in zip(*columns, strict=True)}


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
