"""Recorded ranks that are the stages of one replica; of several replicas those of the slowest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.change.layout import Layout
from planner.measure.traces.change.steady import steady
from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.graph import ExecutionGraph

UNLIKE = 0.05
"""Share of a step above which waits for other replicas are reported."""

Ranks: TypeAlias = tuple[int, ...]


def slowest_replica(graph: ExecutionGraph, layout: Layout) -> tuple[Ranks, list[str]]:
    """
    Return the recorded ranks of one replica's stages, from the first one, and doubts on the waits that they omit.

    The chosen replica waits least for others: the others wait for it, so that its step is the step of all.

    Parameters
    ----------
    graph, layout
        The recorded iteration, and its layout.

    Raises
    ------
    SpecError
        If no replica was recorded with all of its stages.
    """
    replicas = _replicas(graph, layout)
    if len(replicas) == 1:
        return replicas[0], []
    step, waits = _waits(graph)
    slowest = min(replicas, key=lambda ranks: sum(waits[rank] for rank in ranks))
    longest = max(waits, key=waits.__getitem__)
    if waits[longest] <= UNLIKE * step:
        return slowest, []
    return slowest, [
        f"Ranks are not alike: in a step rank {longest} waits {waits[longest] / 1e6:,.3f} ms for others in "
        f"collectives. The changed step is that of rank {', '.join(map(str, slowest))}, which waits least; its waits, "
        f"{max(waits[rank] for rank in slowest) / 1e6:,.3f} ms, are left out."
    ]


def _waits(graph: ExecutionGraph) -> tuple[int, Mapping[int, int]]:
    """Return the time of a steady step, and each rank's wait for others in it, without sends and receives."""
    _, times = steady(graph)
    tasks = graph.tasks
    transfers = np.array([*(message.operation in ("send", "recv") for message in graph.messages), False])
    rows = np.flatnonzero((tasks.collective != UNKNOWN) & (times.held_by != UNKNOWN) & ~transfers[tasks.message])
    waits = np.maximum(times.start[times.held_by[rows]] - times.start[rows], 0)
    rank = graph.task_ranks[rows]
    return times.iteration, {one: int(waits[rank == one].sum()) for one in graph.ranks}


def _replicas(graph: ExecutionGraph, layout: Layout) -> list[Ranks]:
    """Return the ranks of each replica that was recorded with all of its stages: those that send to each other."""
    ranks = graph.ranks
    if layout.pp == 1:
        return [(rank,) for rank in ranks]
    peers = _peers(graph)
    silent = any(message.operation in ("send", "recv", "") for message in graph.messages)
    if silent and not peers:
        raise SpecError(
            "traces",
            f"do not name the other rank of sends and receives: the stages of a pipeline of {layout.pp} cannot "
            "be identified.",
            "Profilers record it for single sends and receives, not for batches: send and receive one by one.",
        )
    found: list[list[int]] = []
    for rank in ranks:
        if not any(rank in one for one in found):
            found.append(_connected_ranks(rank, peers))
    whole = [tuple(sorted(one)) for one in found if len(one) == layout.pp and set(one) <= set(ranks)]
    if whole:
        return whole
    missing = [rank for rank in found[0] if rank not in ranks]
    raise SpecError(
        "traces",
        f"have {len(found[0]) - len(missing)} stages of a pipeline of {layout.pp}: one rank of each stage is needed.",
        f"ranks without a trace: {missing}" if missing else "",
    )


def _peers(graph: ExecutionGraph) -> Mapping[int, set[int]]:
    """Return the ranks to which each rank sends, or from which it receives."""
    peers: dict[int, set[int]] = defaultdict(set)
    for task in np.flatnonzero(graph.tasks.message != UNKNOWN).tolist():
        message = graph.messages[int(graph.tasks.message[task])]
        if message.operation in ("send", "recv") and message.peer != UNKNOWN:
            peers[graph.tracks[int(graph.tasks.track[task])].rank].add(message.peer)
    return peers


def _connected_ranks(rank: int, peers: Mapping[int, set[int]]) -> list[int]:
    """Return a rank and all ranks that are connected to it."""
    found = [rank]
    for one in found:
        found += sorted(other for other in peers.get(one, ()) if other not in found)
    return found
