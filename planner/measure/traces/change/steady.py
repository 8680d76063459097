"""Iterations of a longer run: each rank begins one at the end of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.replay import Replayed, replay

MOST_ROUNDS = 8
"""Iterations after which a run is taken as steady: pipelines repeat from the second or third on."""


def align_begins(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Let the iteration of all ranks begin at 0.

    Parameters
    ----------
    graph
        Any graph; stages of a pipeline in a longer run begin one after the other.
    """
    return _delay_begins(graph, {rank: -begin for rank, begin in graph.begins.items()})


def steady(graph: ExecutionGraph) -> tuple[ExecutionGraph, Replayed]:
    """
    Return a graph's iteration as it is in a run of many, and its times.

    A change affects the begins of ranks only in the next iteration. So the graph is replayed repeatedly, each rank from
    the end of its thread and its streams, until the duration of an iteration no longer changes.

    Parameters
    ----------
    graph
        Any graph.

    Returns
    -------
    graph
        The graph, with other begins.
    times
        Its replay.
    """
    times = replay(graph)
    for _ in range(MOST_ROUNDS):
        following = _next_iteration(graph, times)
        then = replay(following)
        if then.iterations == times.iterations:
            break
        graph, times = following, then
    return graph, times


def _next_iteration(graph: ExecutionGraph, times: Replayed) -> ExecutionGraph:
    """Return the iteration behind a replayed one."""
    ends = {
        rank: int(times.end[graph.last[rank]]) if rank in graph.last else times.begins[rank] + times.iterations[rank]
        for rank in graph.ranks
    }
    earliest = min(ends.values())
    moved = _delay_begins(graph, {rank: end - earliest - graph.begins[rank] for rank, end in ends.items()})
    tasks, on_stream, of_rank = graph.tasks, graph.is_on_stream, graph.task_ranks
    gap, free = moved.tasks.gap.copy(), dict(moved.begins)
    first = graph.previous() == UNKNOWN
    for track in np.unique(tasks.track[on_stream]).tolist():
        own = tasks.track == track
        ended = int(times.end[own].max()) - earliest
        rank = int(of_rank[own][0])
        gap[own & first] = max(ended, moved.begins[rank])
        free[rank] = max(free[rank], ended)
    return replace(moved, tasks=replace(moved.tasks, gap=gap), device_free=free)


def _delay_begins(graph: ExecutionGraph, by: Mapping[int, int]) -> ExecutionGraph:
    """Delay the begins of ranks by some nanoseconds."""
    tasks = graph.tasks
    later = np.array([by[rank] for rank in graph.ranks], dtype=np.int64)
    later = later[np.searchsorted(graph.ranks, graph.task_ranks)]
    first = graph.previous() == UNKNOWN
    return replace(
        graph,
        tasks=replace(tasks, gap=np.where(first, tasks.gap + later, tasks.gap)),
        begins={rank: begin + by[rank] for rank, begin in graph.begins.items()},
        device_free={rank: free + by[rank] for rank, free in graph.device_free.items()},
    )
