"""The critical path: the chain of tasks and waits that determines the length of a replayed iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.graph import ExecutionGraph, Kind
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


@dataclass(frozen=True, kw_only=True, slots=True)
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

    It is the one of the two that determines the iteration (:func:`planner.measure.traces.replay.time_iterations`): another
    thread may run longer, and the host may be ahead of a device that began late.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PathPart:
    """
    All pieces of the critical path with one name.

    Parameters
    ----------
    name, kind
        Name and kind of the tasks; ``BETWEEN_CALLS`` and ``LAUNCH_OR_GAP`` are the time between them.
    num_tasks
        Number of pieces.
    nanoseconds
        Time of the iteration that they take.
    """

    name: str
    kind: PathKind
    num_tasks: int
    nanoseconds: int


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
        PathPart(name=name, kind=kind, num_tasks=counts[name, kind], nanoseconds=nanoseconds)
        for (name, kind), nanoseconds in sums.most_common()
    )
