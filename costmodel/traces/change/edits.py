"""Changes of a graph that leave its layout: faster kernels, launches taken out, overlap removed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from costmodel.errors import SpecError
from costmodel.traces.circles import without_circles
from costmodel.traces.events import UNKNOWN
from costmodel.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Waiting


def faster(graph: ExecutionGraph, pattern: str, factor: float) -> ExecutionGraph:
    """
    What if some tasks were so many times faster.

    Parameters
    ----------
    graph
        Any graph.
    pattern
        Regular expression that is found in their names, upper and lower case alike.
    factor
        Times faster; below 1: slower.

    Raises
    ------
    SpecError
        If it is no regular expression, or no task has such a name.
    """
    try:
        search = re.compile(pattern, re.IGNORECASE).search
    except re.error as error:
        raise SpecError("faster", f"{pattern!r} is no regular expression: {error}.") from None
    chosen = np.array([search(name) is not None for name in graph.names], dtype=bool)[graph.tasks.name]
    if not chosen.any():
        raise SpecError("faster", f"no task has {pattern!r} in its name.", "'planner trace read' lists the longest.")
    shorter = np.rint(graph.tasks.duration / factor).astype(np.int64)
    return replace(graph, tasks=replace(graph.tasks, duration=np.where(chosen, shorter, graph.tasks.duration)))


def without_launches(graph: ExecutionGraph) -> ExecutionGraph:
    """
    What if CUDA graphs launched everything between two waits of a thread at once.

    The first launch of each stretch stays as it is and starts all others: the thread spends nothing on them, nor
    between them. Calls that wait, and the work before them, stay.

    Parameters
    ----------
    graph
        Any graph with a device.
    """
    tasks, launches = graph.tasks, np.zeros(len(graph.tasks), dtype=bool)
    launches[graph.edges.before[graph.edges.dependency == Dependency.LAUNCH]] = True
    waits = tasks.waiting != Waiting.NOTHING
    previous = graph.previous()
    taken = launches & ~waits
    follows = np.zeros(len(tasks), dtype=bool)
    for task in np.flatnonzero(tasks.kind == Kind.HOST).tolist():
        before = int(previous[task])
        follows[task] = before != UNKNOWN and not waits[task] and (taken[before] or follows[before])
    out = follows & (tasks.kind == Kind.HOST)
    return replace(
        graph, tasks=replace(tasks, duration=np.where(out, 0, tasks.duration), gap=np.where(out, 0, tasks.gap))
    )


def without_overlap(graph: ExecutionGraph) -> ExecutionGraph:
    """
    What if no communication ran beside computation: each waits for all that was launched before it, and all after it.

    Parameters
    ----------
    graph
        Any graph with a device.
    """
    edges = graph.edges
    launched = edges.after[edges.dependency == Dependency.LAUNCH]
    caller = edges.before[edges.dependency == Dependency.LAUNCH]
    rank = graph.task_ranks
    when = graph.tasks.start[caller]
    added: list[tuple[int, int]] = []
    for one in graph.ranks:
        own = np.flatnonzero(rank[launched] == one)
        order = launched[own[np.lexsort((launched[own], when[own]))]].tolist()
        last: dict[bool, int] = {}
        for task in order:
            communicates = graph.tasks.kind[task] == Kind.COMMUNICATION
            if (other := last.get(not communicates)) is not None:
                added.append((other, task))
            last[bool(communicates)] = task
    before, after = np.array(added, dtype=np.int64).reshape(-1, 2).T
    more = Edges(
        before=before,
        after=after,
        lag=np.zeros(len(before), dtype=np.int64),
        dependency=np.full(len(before), Dependency.ADDED, dtype=np.int8),
    )
    return without_circles(replace(graph, edges=Edges.together([edges, more])))
