"""Simpler predictions for a graph, which show how much of a replay's accuracy comes from its dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.measure.traces.breakdown import device_tasks
from planner.measure.traces.graph import Dependency, ExecutionGraph
from planner.measure.traces.replay import Replayed, replay


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
