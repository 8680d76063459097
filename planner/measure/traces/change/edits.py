"""Changes of a graph that keep its layout: faster kernels, launches removed, overlap removed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.circles import break_circles
from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Waiting
from planner.measure.traces.structure.nesting import ON_THREADS

MOST_NAMES, LONGEST_NAME = 3, 60
"""Tasks that a message lists, and characters of each name: templates have thousands."""


def faster(graph: ExecutionGraph, pattern: str, factor: float) -> ExecutionGraph:
    """
    Speed up some tasks by a factor.

    Parameters
    ----------
    graph
        Any graph.
    pattern
        Regular expression that finds their names; case is ignored.
    factor
        Speed-up; below 1 slows them down.

    Raises
    ------
    SpecError
        If it is not a regular expression, or no task has such a name.
    """
    try:
        found = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise SpecError("faster", f"{pattern!r} is not a regular expression: {error}.") from None
    chosen = graph.named(found)
    if not chosen.any():
        raise SpecError("faster", f"no task has {pattern!r} in its name.", _suggest_names(graph, found))
    shorter = np.rint(graph.tasks.duration / factor).astype(np.int64)
    return replace(graph, tasks=replace(graph.tasks, duration=np.where(chosen, shorter, graph.tasks.duration)))


def _suggest_names(graph: ExecutionGraph, pattern: re.Pattern[str]) -> str:
    """Suggest tasks that contain operators with such names, or that these launch; else the command that lists names."""
    names: Counter[str] = Counter()
    for number, trace in enumerate(graph.traces):
        events = trace.events
        inner = np.flatnonzero(trace.named(pattern) & np.isin(events.category, ON_THREADS))
        own = (graph.tasks.trace == number) & (graph.tasks.event != UNKNOWN)
        tasks = graph.tasks.event[own]
        calls = trace.calls_of(tasks)
        launched = (calls != UNKNOWN) & ~np.isin(events.category[tasks], ON_THREADS)
        found = [
            events.find_enclosing(inner, tasks),
            tasks[launched][events.find_enclosing(calls[launched], inner) != UNKNOWN],
        ]
        names.update(trace.name_of(row) for rows in found for row in rows.tolist() if row != UNKNOWN)
    if not names:
        return "'planner trace read' lists the longest."
    listed = ", ".join(f"{name.removeprefix('void ')[:LONGEST_NAME]!r}" for name, _ in names.most_common(MOST_NAMES))
    return f"Operators with such names are part of these tasks, or launch them: {listed}."


def remove_launches(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Remove CPU launch overhead, as if CUDA graphs launched all work between two waits of a thread at once.

    The first launch of each stretch is kept and starts all others: the thread spends no time on them, nor between them.
    Calls that wait, and the work before them, are kept.

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


def remove_overlap(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Serialise communication and computation: each waits for everything of the other kind launched before it.

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
    more = Edges.build_from_rows([(before, after, 0, Dependency.ADDED) for before, after in added])
    return break_circles(replace(graph, edges=Edges.join([edges, more])))
