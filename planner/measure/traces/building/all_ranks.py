"""Graph of all ranks: clocks aligned, collectives joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from planner.measure.traces.building.streams import (
    ASKS,
    JUST,
    POLLS,
    HostWaits,
    Streams,
    background_edges,
    find_background,
    find_polls,
    host_tasks,
    pauses,
    queue_track,
    thread_edges,
)
from planner.measure.traces.events import UNKNOWN, Category, Integers, Message, Trace, Track, build_table
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks, Waiting
from planner.measure.traces.iterations import Iteration, choose_iteration
from planner.measure.traces.replay import break_circles

T = TypeVar("T")

END_OF_ITERATION = "end of the iteration"

"""Name of the task that ends the main thread's iteration."""

BETWEEN_HOST_AND_DEVICE = r"(?i)^memcpy (htod|dtoh)"

"""Names of copies that leave or enter a device."""

UNRECORDED = 0.05

"""Share of an iteration above which unrecorded time of CUDA graphs is reported."""

Link: TypeAlias = tuple[int, int, int, Dependency]

"""An edge: before, after, lag, and dependency."""


def rank_graph(trace: Trace, iteration: Iteration, rank: int = 0) -> ExecutionGraph:
    """
    Build the graph of one iteration of one rank.

    Its tracks are those of the trace, then queues of background communication; its names are those of the trace, and
    one more for the end of the iteration. Times count from the begin of the iteration.

    Parameters
    ----------
    trace, iteration, rank
        Trace of the rank, the iteration in it, and the rank's number.

    Raises
    ------
    SpecError
        If nothing ran in the iteration.
    """
    found = _Builder(trace, iteration).graph(rank)
    if not len(found.tasks):
        raise SpecError(
            "--iteration", f"{iteration.name} of {trace.source} holds nothing that ran.", "Take another one."
        )
    return found


class _Builder:
    def __init__(self, trace: Trace, iteration: Iteration) -> None:
        self.trace, self.iteration, self.events = trace, iteration, trace.events
        self.streams = streams = Streams(trace)
        inside = (streams.when >= iteration.begin) & (streams.when < iteration.end)
        self.places = np.flatnonzero(inside)
        calls = streams.call[streams.call != UNKNOWN]
        rows = host_tasks(trace, iteration, calls)
        self.waits = HostWaits(streams, rows)
        track = self.events.track[rows]
        of_main = np.flatnonzero(track == iteration.thread)
        stop = [int(of_main[-1]) + 1 if len(of_main) else 0] if iteration.thread != UNKNOWN else []
        self.last = stop[0] if stop else UNKNOWN
        self.rows = np.insert(rows, stop, UNKNOWN)
        self.track = np.insert(track, stop, iteration.thread)
        self.start = np.insert(self.events.start[rows], stop, iteration.end)
        self.end = np.insert(self.events.end[rows], stop, iteration.end)
        self.num_host = len(self.rows)
        self.background, self.queue = find_background(trace, iteration)
        self.task_of_place = np.full(len(streams.rows), UNKNOWN)
        self.task_of_place[self.places] = self.num_host + np.arange(len(self.places))
        self.task_of_row = {row: task for task, row in enumerate(self.rows.tolist()) if row != UNKNOWN}

    def graph(self, rank: int) -> ExecutionGraph:
        tasks, edges = self._add_edges(self._tasks())
        earlier = self.streams.end[self.streams.when < self.iteration.begin]
        queues = (queue_track(self.trace, one) for one in range(int(self.queue.max(initial=-1)) + 1))
        return ExecutionGraph(
            tasks=tasks,
            edges=edges,
            tracks=tuple(replace(one, rank=rank) for one in (*self.trace.tracks, *queues)),
            names=(*self.trace.names, END_OF_ITERATION),
            messages=self.trace.messages,
            begins={rank: 0},
            device_free={rank: max(0, int(earlier.max(initial=0)) - self.iteration.begin)},
            last={rank: self.last} if self.last != UNKNOWN else {},
            traces=(self.trace,),
            doubts=tuple(self._doubts()),
        )

    # --- tasks -------------------------------------------------------------------------------------------------

    def _tasks(self) -> Tasks:
        streams, begin = self.streams, self.iteration.begin
        rows = np.concatenate([self.rows, streams.rows[self.places], self.background])
        start = np.concatenate([self.start, streams.start[self.places], self.events.start[self.background]])
        end = self._ends()
        named = rows != UNKNOWN
        host = np.arange(len(rows)) < self.num_host
        message = np.where(named, self.events.message[rows], UNKNOWN)
        kind = np.where(host, Kind.HOST, self._kinds(rows, message))
        waiting, waits_for, duration = self._waits(len(rows), end - start)
        none = np.zeros(len(self.background), dtype=np.int64)
        return build_table(
            Tasks,
            len(rows),
            track=np.concatenate([self.track, streams.track[self.places], len(self.trace.tracks) + self.queue]),
            kind=kind,
            duration=duration,
            gap=np.concatenate([pauses(self.track, self.start, self.end, begin), self._stream_gaps(), none]),
            start=start - begin,
            event=rows,
            trace=0,
            name=np.where(named, self.events.name[rows], len(self.trace.names)),
            waiting=waiting,
            waits_for=waits_for,
            message=message,
        )

    def _ends(self) -> Integers:
        ends = [self.end, self.streams.end[self.places], self.events.end[self.background]]
        return np.concatenate(ends)

    def _kinds(self, rows: NDArray[np.intp], message: NDArray[np.int32]) -> NDArray[np.int8]:
        copied = ((self.events.category == Category.COPY) & self.trace.match_name(BETWEEN_HOST_AND_DEVICE))[rows]
        return np.where(message != UNKNOWN, Kind.COMMUNICATION, np.where(copied, Kind.COPY, Kind.COMPUTE))

    def _waits(self, number: int, duration: Integers) -> tuple[NDArray[np.int8], Integers, Integers]:
        waiting, waits_for = np.zeros(number, dtype=np.int8), np.full(number, UNKNOWN)
        for row, (of, awaited, own) in self.waits.by_row.items():
            target = int(self.task_of_place[awaited]) if of == Waiting.TASK else awaited
            task = self.task_of_row[row]
            duration[task] = own
            if of != Waiting.TASK or target != UNKNOWN:
                waiting[task], waits_for[task] = of, target
        return waiting, waits_for, duration

    def _stream_gaps(self) -> Integers:
        """
        Return the constant gap; for the first task of a stream, the time that earlier work on it still takes.

        Without recorded launches pauses of streams are unexplained, and are kept.
        """
        track = self.streams.track[self.places]
        if self._has_no_launches:
            return pauses(track, self.streams.start[self.places], self.streams.end[self.places], self.iteration.begin)
        gap = self.streams.gap_lag + self.streams.graph_pauses[self.places]
        first = np.flatnonzero(np.r_[True, track[1:] != track[:-1]]) if len(track) else np.zeros(0, dtype=np.intp)
        for number in first.tolist():
            place = self.places[number]
            has_before = place > 0 and self.streams.track[place - 1] == self.streams.track[place]
            ended = int(self.streams.end[place - 1]) + self.streams.gap_lag if has_before else self.iteration.begin
            gap[number] = max(0, ended - self.iteration.begin)
        return gap

    @property
    def _has_no_launches(self) -> bool:
        return not (self.streams.call != UNKNOWN).any()

    # --- edges -------------------------------------------------------------------------------------------------

    def _launches(self) -> list[Link]:
        pauses, found = self.streams.graph_pauses + self.streams.launch_lag, []
        for place in self.places.tolist():
            call = self.task_of_row.get(int(self.streams.call[place]))
            if call is not None:
                found.append((call, int(self.task_of_place[place]), int(pauses[place]), Dependency.LAUNCH))
        return found

    def _events(self) -> list[Link]:
        lags, of = self.streams.graph_pauses + self.streams.event_lag, self.task_of_place
        waits = self.streams.waits
        found = [(int(of[before]), int(of[after]), int(lags[after]), Dependency.EVENT) for before, after in waits]
        for before, after, late in self.streams.late_kernels:
            found.append((int(of[before]), int(of[after]), late, Dependency.PROCESSORS))
        return [one for one in found if UNKNOWN not in one[:2]]

    def _add_edges(self, tasks: Tasks) -> tuple[Tasks, Edges]:
        gap = tasks.gap.copy()
        threads, explained = thread_edges(self.track, self.start, self.end, self.iteration.thread)
        gap[explained] = 0
        found = [*self._launches(), *self._events(), *self._background_links(gap)]
        found += self._polls(tasks, gap, found)
        found += [(*one, Dependency.THREAD) for one in threads]
        return replace(tasks, gap=gap), Edges.build_from_rows(found)

    def _background_links(self, gap: Integers) -> list[Link]:
        """
        Return the edges of background communication, and remove pauses of the main thread that are waits for it.

        Communication that no task starts keeps its pause after the one before it in its queue.
        """
        of_main = np.flatnonzero(self.track == self.iteration.thread)
        rows, first = self.background, self.num_host + len(self.places)
        if not len(rows) or not len(of_main):
            return []
        asks = self.trace.match_name(ASKS)[self.rows[of_main]] & (self.rows[of_main] != UNKNOWN)
        begun, done = self.events.start[rows], self.events.end[rows]
        launches, waits, explained = background_edges(self.start[of_main], self.end[of_main], asks, begun, done)
        task = of_main.tolist()
        gap[[task[place] for place in sorted(explained)]] = 0
        alone = np.setdiff1d(np.arange(len(rows)), np.array([one for _, one, _ in launches], dtype=np.int64))
        gap[first + alone] = pauses(self.queue.astype(np.int32), begun, done, self.iteration.begin)[alone]
        return [
            *((task[place], first + one, lag, Dependency.LAUNCH) for place, one, lag in launches),
            *((first + one, task[place], lag, Dependency.THREAD) for one, place, lag in waits),
        ]

    def _polls(self, tasks: Tasks, gap: Integers, found: list[Link]) -> list[Link]:
        """Return edges from kernels that a thread polls for, and remove the pauses before its next tasks."""
        operations = [message.operation in POLLS for message in self.trace.messages]
        kernels = {int(task) for task in np.flatnonzero(tasks.message != UNKNOWN) if operations[tasks.message[task]]}
        launches = [(before, after) for before, after, _, why in found if why == Dependency.LAUNCH and after in kernels]
        same = np.flatnonzero(self.track[1:] == self.track[:-1])
        following = dict(zip(same.tolist(), (same + 1).tolist(), strict=True))
        times = (tasks.start + self.iteration.begin).tolist(), self._ends().tolist()
        polls = find_polls(launches, following, *times) if launches else []
        gap[[waiting for _, waiting, _ in polls]] = 0
        return [(kernel, waiting, lag, Dependency.THREAD) for kernel, waiting, lag in polls]

    def _doubts(self) -> Iterator[str]:
        streams = self.streams
        orphans = int((streams.call[self.places] == UNKNOWN).sum())
        if orphans and self._has_no_launches:
            yield "No launch was recorded: pauses of streams are kept, since their cause is unknown."
        elif orphans:
            yield f"{orphans:,} kernels have no recorded launch: they follow the task before them on their stream."
        if streams.inferred:
            yield (
                f"{streams.inferred:,} waits of streams do not name their event: the last ended task was taken. "
                "Record with enable_cuda_sync_events=True."
            )
        pauses = int(streams.graph_pauses[self.places].sum())
        if pauses > UNRECORDED * self.iteration.duration:
            yield (
                f"CUDA graphs pause {pauses / 1e6:,.3f} ms between their recorded tasks: their unrecorded "
                "work is assumed to fill it, and it is kept."
            )
        if streams.late_kernels:
            yield (
                f"{len(streams.late_kernels):,} kernels began late, when another one freed processors: "
                "they are assumed to have waited for it."
            )
        if self.waits.num_inferred:
            yield (
                f"{self.waits.num_inferred:,} calls wait for a stream or an event that was not recorded: the stream of "
                "the copy in front of each was taken, else the task that ended last during it and emptied its "
                "stream. Record with enable_cuda_sync_events=True."
            )
        yield from self._doubts_of_clocks()

    def _doubts_of_clocks(self) -> Iterator[str]:
        """Yield doubts about differences between the clocks of host and device."""
        since = (self.streams.start - self.streams.when)[self.places]
        early = since[(self.streams.call[self.places] != UNKNOWN) & (since < -JUST)]
        if len(early):
            yield (
                f"{len(early):,} kernels begin before their launch, by up to {-early.min() / 1e6:,.3f} ms: host and "
                "device have two clocks, or launches are joined to wrong kernels. Waits of threads are uncertain."
            )
        if self.waits.num_early:
            yield (
                f"{self.waits.num_early:,} calls that synchronise return before the awaited task ends: host and "
                "device have two clocks, or the recording is wrong. These calls wait for nothing."
            )


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
def _number(things: Sequence[T], numbers: dict[T, int]) -> Integers:
    """Return the numbers of objects, new ones numbered here, and one more at the end for unknown ones."""
    return np.array([*(numbers.setdefault(one, len(numbers)) for one in things), UNKNOWN])


def _join_ranks(parts: Sequence[ExecutionGraph]) -> ExecutionGraph:
    names: dict[str, int] = {}
    messages: dict[Message, int] = {}
    tracks: dict[Track, int] = {}
    tasks: list[Tasks] = []
    edges: list[Edges] = []
    last: dict[int, int] = {}
    number = 0
    for place, part in enumerate(parts):
        of_track, of_name = _number(part.tracks, tracks), _number(part.names, names)
        target = part.tasks.waits_for
        stream = of_track[np.where(part.tasks.waiting == Waiting.STREAM, target, UNKNOWN)]
        waits_for = np.where(part.tasks.waiting == Waiting.TASK, target + number, stream)
        moved = replace(
            part.tasks,
            track=of_track[part.tasks.track].astype(np.int32),
            name=of_name[part.tasks.name].astype(np.int32),
            message=_number(part.messages, messages)[part.tasks.message].astype(np.int32),
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
        tracks=tuple(tracks),
        names=tuple(names),
        messages=tuple(messages),
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
