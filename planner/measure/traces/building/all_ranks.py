"""Graph of all ranks: clocks aligned, collectives joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from planner.measure.traces.building.one_rank import rank_graph
from planner.measure.traces.circles import break_circles
from planner.measure.traces.events import UNKNOWN, Integers, Message, Trace
from planner.measure.traces.graph import Edges, ExecutionGraph, Kind, Tasks, Waiting
from planner.measure.traces.iterations import choose_iteration

CLOCKS_DISAGREE = 1_000_000
"""Nanoseconds by which the ends of most collectives may differ between ranks without a doubt being raised."""

Collective: TypeAlias = tuple[object, ...]
"""Group and operation of a collective, or sender and receiver."""


def execution_graph(traces: Sequence[Trace], iteration: int | None = None) -> ExecutionGraph:
    """
    Build the graph of one iteration of all recorded ranks, without circular waits.

    Parameters
    ----------
    traces
        One of each rank. Collectives do not wait for ranks without a trace: their recorded time is kept.
    iteration
        Number of the iteration among those recorded, from 0; by default the last one that is followed by another, else
        the last.

    Raises
    ------
    SpecError
        If a trace has no such iteration, or nothing ran in it.
    """
    parts, begins = [], {}
    for trace, rank in zip(traces, ranks_of(traces), strict=True):
        chosen = choose_iteration(trace, iteration)
        parts.append(rank_graph(trace, chosen, rank))
        begins[rank] = trace.begin + chosen.begin
    return break_circles(_add_collectives(_join_ranks(parts), begins))


def ranks_of(traces: Sequence[Trace]) -> list[int]:
    """Return the rank of each trace; its place where it is unknown."""
    return [trace.rank if trace.rank is not None else number for number, trace in enumerate(traces)]


# --- ranks side by side ------------------------------------------------------------------------------------


class _Table:
    """Numbers of distinct objects."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}

    def places(self, things: Sequence[object]) -> Integers:
        """Return the numbers of objects, and one more at the end for unknown ones."""
        return np.array([*(self.numbers.setdefault(one, len(self.numbers)) for one in things), UNKNOWN])


def _join_ranks(parts: Sequence[ExecutionGraph]) -> ExecutionGraph:
    names, messages, tracks = _Table(), _Table(), _Table()
    tasks: list[Tasks] = []
    edges: list[Edges] = []
    last: dict[int, int] = {}
    number = 0
    for place, part in enumerate(parts):
        of_track, of_name = tracks.places(part.tracks), names.places(part.names)
        target = part.tasks.waits_for
        stream = of_track[np.where(part.tasks.waiting == Waiting.STREAM, target, UNKNOWN)]
        waits_for = np.where(part.tasks.waiting == Waiting.TASK, target + number, stream)
        moved = replace(
            part.tasks,
            track=of_track[part.tasks.track].astype(np.int32),
            name=of_name[part.tasks.name].astype(np.int32),
            message=messages.places(part.messages)[part.tasks.message].astype(np.int32),
            trace=np.full(len(part.tasks), place, dtype=np.int32),
            waits_for=waits_for,
        )
        tasks.append(moved)
        edges.append(replace(part.edges, before=part.edges.before + number, after=part.edges.after + number))
        last |= {rank: task + number for rank, task in part.last.items()}
        number += len(part.tasks)
    return ExecutionGraph(
        tasks=Tasks.join(tasks),
        edges=Edges.join(edges),
        tracks=tuple(tracks.numbers),  # type: ignore[arg-type]
        names=tuple(names.numbers),  # type: ignore[arg-type]
        messages=tuple(messages.numbers),  # type: ignore[arg-type]
        begins={rank: begin for part in parts for rank, begin in part.begins.items()},
        device_free={rank: free for part in parts for rank, free in part.device_free.items()},
        last=last,
        traces=tuple(trace for part in parts for trace in part.traces),
        doubts=tuple(dict.fromkeys(doubt for part in parts for doubt in part.doubts)),
    )


# --- collectives -------------------------------------------------------------------------------------------


def _add_collectives(graph: ExecutionGraph, begins: Mapping[int, int]) -> ExecutionGraph:
    """Put all ranks on one clock, and let collectives begin when the last rank has arrived."""
    if len(begins) == 1:
        return graph
    found, doubts = _collectives(graph)
    graph, disagreement = _align_clocks(graph, begins, found)
    if disagreement > CLOCKS_DISAGREE:
        doubts.append(
            f"clocks of ranks disagree: most of their collectives end more than {disagreement / 1e6:.1f} ms apart "
            "after the clocks were aligned."
        )
    tasks = graph.tasks
    collective, duration = np.full(len(tasks), UNKNOWN), tasks.duration.copy()
    end = tasks.start + tasks.duration
    for number, members in enumerate(found):
        collective[members] = number
        duration[members] = np.maximum(end[members] - tasks.start[members].max(), 0)
    return replace(
        graph, tasks=replace(tasks, collective=collective, duration=duration), doubts=(*graph.doubts, *doubts)
    )


def _collectives(graph: ExecutionGraph) -> tuple[list[Integers], list[str]]:
    """Find the tasks of each collective of several ranks: the n-th of each group and operation on each rank."""
    tasks = graph.tasks
    of: dict[Collective, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = np.flatnonzero((tasks.message != UNKNOWN) & (tasks.kind == Kind.COMMUNICATION))
    for task in rows[np.argsort(tasks.start[rows], kind="stable")].tolist():
        rank = graph.tracks[tasks.track[task]].rank
        key = _key(graph.messages[tasks.message[task]], rank)
        if key is not None:
            of[key][rank].append(task)
    found, doubts = [], []
    for key, by_rank in of.items():
        lengths = {len(those) for those in by_rank.values()}
        if len(by_rank) > 1 and len(lengths) == 1:
            found += [np.array(members) for members in zip(*by_rank.values(), strict=True)]
        elif len(by_rank) > 1:
            doubts.append(
                f"ranks recorded different numbers of {key[-1]} ({min(lengths)} to {max(lengths)}): they are not "
                "synchronised between ranks."
            )
    return found, doubts


def _key(message: Message, rank: int) -> Collective | None:
    """Return the key that members of a collective share; None where nothing identifies them."""
    if message.operation in ("send", "recv"):
        if message.peer == UNKNOWN:
            return None
        pair = (rank, message.peer) if message.operation == "send" else (message.peer, rank)
        return (message.group, *pair, "sends and receives")
    group = message.ranks or (message.group,)
    return (group, message.operation) if message.group or message.ranks else None


def _align_clocks(
    graph: ExecutionGraph, begins: Mapping[int, int], found: Sequence[Integers]
) -> tuple[ExecutionGraph, int]:
    """
    Put times of all ranks on the clock of the first, from the earliest begin; return how far ends still disagree.

    A collective ends on all ranks at once, so the median difference between its ends is the difference of two clocks.
    Without collectives all ranks begin together.
    """
    tasks = graph.tasks
    rank = graph.task_ranks
    shift = np.array([begins[one] for one in graph.ranks])[np.searchsorted(graph.ranks, rank)]
    end = tasks.start + tasks.duration + shift
    offset = _offsets(graph.ranks, rank, end, found)
    moved = {one: begins[one] - offset[one] if one in offset else None for one in graph.ranks}
    earliest = min(when for when in moved.values() if when is not None)
    late = {one: when - earliest if when is not None else 0 for one, when in moved.items()}
    delay = np.array([late[one] for one in graph.ranks])[np.searchsorted(graph.ranks, rank)]
    first = graph.previous() == UNKNOWN
    start = tasks.start + delay
    ends = start + tasks.duration
    apart = int(np.median([np.ptp(ends[members]) for members in found])) if found else 0
    return replace(
        graph,
        tasks=replace(tasks, start=start, gap=np.where(first, tasks.gap + delay, tasks.gap)),
        begins=late,
        device_free={one: graph.device_free[one] + late[one] for one in graph.ranks},
    ), apart


def _offsets(ranks: Sequence[int], rank: Integers, end: Integers, found: Sequence[Integers]) -> dict[int, int]:
    """Return how far each rank's clock is ahead of the first one's, by collectives; ranks without any are omitted."""
    apart: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for members in found:
        for one in members.tolist():
            for other in members.tolist():
                if one != other:
                    apart[int(rank[one])][int(rank[other])].append(int(end[other] - end[one]))
    offset, waiting = {ranks[0]: 0}, [ranks[0]]
    while waiting:
        one = waiting.pop()
        for other, differences in apart[one].items():
            if other not in offset:
                offset[other] = offset[one] + int(np.median(differences))
                waiting.append(other)
    return offset
