"""Simulation of a graph: start and end of each task, and the task that delayed it; circular waits, found and broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Integers
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks, Waiting

Awaited: TypeAlias = Mapping[int, tuple[tuple[int, int], ...]]

"""For each host task, the tracks that it waits for, and the last task there that it may wait for."""


def find_awaited(graph: ExecutionGraph) -> Awaited:
    """
    Find the last task on each stream for which each synchronising call may wait.

    A call waits for everything launched before it runs. In a replay an unblocked thread may run ahead of another, so
    that more has been launched by then than in the recording; the recorded call never waited for it. Therefore a replay
    waits for these tasks at most, whatever its times.

    Parameters
    ----------
    graph
        Any graph.
    """
    tasks = graph.tasks
    waits = np.flatnonzero(np.isin(tasks.waiting, (Waiting.DEVICE, Waiting.STREAM)))
    if not len(waits):
        return {}
    streams, launched = _streams(graph), _launch_times(graph)
    found = {}
    for task in waits.tolist():
        is_stream = tasks.waiting[task] == Waiting.STREAM
        tracks = [int(tasks.waits_for[task])] if is_stream else streams.get(int(tasks.track[task]), [])
        last = (
            (track, _last_before(*launched[track], int(tasks.start[task]))) for track in tracks if track in launched
        )
        found[task] = tuple((track, place) for track, place in last if place != UNKNOWN)
    return found


def _last_before(places: NDArray[np.intp], when: Integers, moment: int) -> int:
    """Return the last task launched, with all before it, no later than a moment: a call may launch and wait."""
    number = int(np.searchsorted(when, moment, side="right"))
    return int(places[number - 1]) if number else UNKNOWN


def _launch_times(graph: ExecutionGraph) -> dict[int, tuple[NDArray[np.intp], Integers]]:
    """Return for each stream its tasks, and the times by which each of them and all before it had been launched."""
    tasks, edges = graph.tasks, graph.edges
    when = np.full(len(tasks), np.iinfo(np.int64).min)
    launches = edges.dependency == Dependency.LAUNCH
    np.maximum.at(when, edges.after[launches], tasks.start[edges.before[launches]])
    order = np.flatnonzero(graph.is_on_stream)
    order = order[np.argsort(tasks.track[order], kind="stable")]
    tracks, first = np.unique(tasks.track[order], return_index=True)
    stop = np.append(first, len(order))[1:]
    found = {}
    for track, begin, end in zip(tracks.tolist(), first.tolist(), stop.tolist(), strict=True):
        places = order[begin:end]
        found[track] = places, np.maximum.accumulate(when[places])
    return found


def _streams(graph: ExecutionGraph) -> dict[int, list[int]]:
    """Return the streams on the rank of each thread."""
    of_rank: dict[int, list[int]] = {}
    for number, one in enumerate(graph.tracks):
        if one.kind == "stream":
            of_rank.setdefault(one.rank, []).append(number)
    return {number: of_rank.get(one.rank, []) for number, one in enumerate(graph.tracks) if one.kind == "thread"}


@record(frozen=True, slots=True)
class Replayed:
    """
    Times of each task of a graph.

    Parameters
    ----------
    start, end
        Nanoseconds since the iteration began; shape (tasks,). A collective starts when its own rank has arrived.
    cause
        Task whose end, or launch, allowed each one to start; ``UNKNOWN`` for the first ones. Shape (tasks,).
    held_by
        Task that delayed the end of each one: for a thread the last that ended on a stream, for a collective its last
        member to arrive; ``UNKNOWN`` where nothing did. Shape (tasks,).
    begins
        Begin of the window of each rank's iteration: the end of earlier work on its device.
    iterations
        Nanoseconds of each rank's iteration.
    """

    start: Integers
    end: Integers
    cause: Integers
    held_by: Integers
    begins: Mapping[int, int]
    iterations: Mapping[int, int]

    @property
    def iteration(self) -> int:
        """Nanoseconds of the iteration: that of the slowest rank."""
        return max(self.iterations.values())


def replay(graph: ExecutionGraph) -> Replayed:
    """
    Simulate a graph: every task starts as soon as its track and its dependencies allow.

    Threads run in the order of time. A call that waits for a device waits for the work launched until then in this
    replay, not in the measured run (Lumos, arXiv 2504.09307). Members of a collective end when their own duration has
    passed since the last of them arrived.

    Parameters
    ----------
    graph
        Graph without circular waits (:func:`planner.measure.traces.replay.break_circles`).
    """
    return time_iterations(graph, *_Machine(graph).run())


def take_recorded_times(graph: ExecutionGraph) -> Replayed:
    """Return the recorded times of a graph's tasks, in the record of a replay for comparison."""
    starts, nothing = graph.tasks.start.copy(), np.full(len(graph.tasks), UNKNOWN)
    return time_iterations(graph, starts, starts + find_recorded_durations(graph), nothing, nothing)


def find_recorded_durations(graph: ExecutionGraph) -> Integers:
    """Return the recorded nanoseconds of tasks, waits included; those of the graph for tasks without an event."""
    durations = graph.take_event_column([trace.events.duration for trace in graph.traces])
    return np.where(durations == UNKNOWN, graph.tasks.duration, durations)


def time_iterations(
    graph: ExecutionGraph, start: Integers, end: Integers, cause: Integers, held_by: Integers
) -> Replayed:
    r"""
    Return the times of tasks with the iterations that they result in.

    .. math:: T = \max(e - b, d - d_0)

    with b and e the begin and end of the main thread's iteration, d the end of the last task on a stream, :math:`d_0`
    the end of earlier work there. In a longer run both are equal up to the lead of the host.
    """
    on_stream, of_rank = graph.is_on_stream, graph.task_ranks
    iterations = {}
    for rank in graph.ranks:
        ends = end[on_stream & (of_rank == rank)]
        last = int(end[graph.last[rank]]) - graph.begins[rank] if rank in graph.last else 0
        iterations[rank] = max(last, int(ends.max()) - graph.device_free[rank] if len(ends) else 0)
    return Replayed(start, end, cause, held_by, begins=dict(graph.device_free), iterations=iterations)


class _Machine:
    """State of a replay, in lists, since access to single numbers of arrays is slow."""

    def __init__(self, graph: ExecutionGraph) -> None:
        tasks, edges = graph.tasks, graph.edges
        number = len(tasks)
        first = graph.previous() == UNKNOWN
        self.follower = graph.following().tolist()
        self.duration, self.gap = tasks.duration.tolist(), tasks.gap.tolist()
        self.host = (tasks.kind == Kind.HOST).tolist()
        self.waiting, self.waits_for = tasks.waiting.tolist(), tasks.waits_for.tolist()
        self.track, self.collective = tasks.track.tolist(), tasks.collective.tolist()
        self.missing = (np.bincount(edges.after, minlength=number) + ~first).tolist()
        self.ready = np.where(first, tasks.gap, 0).tolist()
        self.cause, self.held_by = [UNKNOWN] * number, [UNKNOWN] * number
        self.start, self.end = [UNKNOWN] * number, [UNKNOWN] * number
        launches = edges.dependency == Dependency.LAUNCH
        self.launched, self.later = _group_by_task(edges, launches), _group_by_task(edges, ~launches)
        self.come: list[int] = []
        self.threads: list[tuple[int, int]] = []
        self.members, self.absent = _members(tasks)
        self.awaited = find_awaited(graph)
        self.is_on_stream: dict[int, int] = {}
        self.waiters: dict[int, list[int]] = {}
        self.open: dict[int, int] = {}

    def run(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return the start, end, cause and holding task of every task."""
        self.come = [task for task, missing in enumerate(self.missing) if not missing]
        while self.come or self.threads:
            while self.come:
                self._start(self.come.pop())
            if self.threads:
                now, task = heappop(self.threads)
                self._run_thread(task, now)
        assert UNKNOWN not in self.end, "Tasks wait for each other in a circle."
        columns = (self.start, self.end, self.cause, self.held_by)
        start, end, cause, held_by = (np.array(column, dtype=np.int64) for column in columns)
        return start, end, cause, held_by

    def _start(self, task: int) -> None:
        """Start a task whose dependencies have all ended."""
        if self.host[task]:
            heappush(self.threads, (self.ready[task], task))
        elif self.collective[task] == UNKNOWN:
            self._finish(task, self.ready[task], self.ready[task] + self.duration[task])
        else:
            self._join(task, self.collective[task])

    def _join(self, task: int, collective: int) -> None:
        self.absent[collective] -= 1
        if self.absent[collective]:
            return
        members = self.members[collective]
        last = max(members, key=self.ready.__getitem__)
        for member in members:
            if member != last:
                self.held_by[member] = last
            self._finish(member, self.ready[member], self.ready[last] + self.duration[member])

    def _run_thread(self, task: int, now: int) -> None:
        for launched, lag in self.launched.get(task, ()):
            track = self.track[launched]
            self.is_on_stream[track] = max(launched, self.is_on_stream.get(track, UNKNOWN))
            self._allow(launched, now + lag, task)
        if self.waiting[task] == Waiting.NOTHING:
            self._finish(task, now, now + self.duration[task])
            return
        self.start[task] = now
        unfinished = [one for one in self._find_awaited(task) if self.end[one] == UNKNOWN]
        self.open[task] = len(unfinished)
        for one in unfinished:
            self.waiters.setdefault(one, []).append(task)
        for one in self._find_awaited(task):
            self._note_end(task, one)
        if not unfinished:
            self._finish(task, now, max(now, self.ready[task]) + self.duration[task])

    def _find_awaited(self, task: int) -> list[int]:
        if self.waiting[task] == Waiting.TASK:
            return [self.waits_for[task]]
        tracks = self.awaited.get(task, ())
        return [min(last, self.is_on_stream[track]) for track, last in tracks if track in self.is_on_stream]

    def _note_end(self, task: int, awaited: int) -> None:
        """Note the end of a task that a thread waits for, which may be later than the call."""
        if self.end[awaited] > self.ready[task]:
            self.ready[task], self.held_by[task] = self.end[awaited], awaited

    def _finish(self, task: int, start: int, end: int) -> None:
        self.start[task], self.end[task] = start, end
        follower = self.follower[task]
        if follower != UNKNOWN:
            self._allow(follower, end + self.gap[follower], task)
        for later, lag in self.later.get(task, ()):
            self._allow(later, end + lag, task)
        for waiter in self.waiters.pop(task, ()):
            self._note_end(waiter, task)
            self.open[waiter] -= 1
            if not self.open[waiter]:
                self._finish(waiter, self.start[waiter], self.ready[waiter] + self.duration[waiter])

    def _allow(self, task: int, when: int, cause: int) -> None:
        if when > self.ready[task] or self.cause[task] == UNKNOWN:
            self.ready[task], self.cause[task] = max(when, self.ready[task]), cause
        self.missing[task] -= 1
        if not self.missing[task]:
            self.come.append(task)


def _group_by_task(edges: Edges, chosen: NDArray[np.bool_]) -> dict[int, list[tuple[int, int]]]:
    """Return the tasks and lags that leave each task, by task; launched ones in the order of their stream."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    own = edges[chosen]
    own = own[np.argsort(own.after, kind="stable")]
    for before, after, lag in zip(own.before.tolist(), own.after.tolist(), own.lag.tolist(), strict=True):
        found[before].append((after, lag))
    return found


def _members(tasks: Tasks) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return the tasks of each collective, and the number of them that have not arrived yet."""
    members: dict[int, list[int]] = defaultdict(list)
    for task in np.flatnonzero(tasks.collective != UNKNOWN).tolist():
        members[int(tasks.collective[task])].append(task)
    return members, {collective: len(those) for collective, those in members.items()}


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
    """Return the iteration after a replayed one."""
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


# --- circular waits ------------------------------------------------------------------------------------------
WAITS: dict[int, str] = {
    Dependency.EVENT: "a stream for an event",
    Dependency.THREAD: "a thread for another task",
    Dependency.ADDED: "one task for another",
    Dependency.PROCESSORS: "a kernel for free processors",
}
"""
Dependencies that can be dropped, as they are called in messages. A launch is kept: nothing runs before its launch.
"""

LONGEST_NAME = 60
"""Characters of a name in a sentence."""


def break_circles(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Break circular waits, with a doubt on the dropped waits.

    Traces have circular waits where their clocks disagree, numbers are used twice, or a wait was inferred from a
    coincidence. Tasks of one track never wait in a circle, nor do launches and the tasks that they launch: only waits
    between tracks close one. If nothing can run any more, the task that ran first in the recording does not wait,
    since the task that it would wait for ran later. So each replay of the graph ends, whatever the durations of its
    tasks.

    Parameters
    ----------
    graph
        Any graph; every function that adds edges to one ends with this.
    """
    waits = _Waits(graph)
    dropped = waits.find_closing_links()
    return waits.drop_links(dropped) if dropped.any() else graph


class _Waits:
    """
    All waits of a graph, as links between moments.

    A moment is the start of a task, the end of one that waits or joins a collective, or the begin of a collective.
    Other tasks need no moment for their end, since nothing happens between the two. ``soft`` links can be dropped.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        tasks, edges = graph.tasks, graph.edges
        number = len(tasks)
        self.graph = graph
        joins = tasks.collective != UNKNOWN
        waits = tasks.waiting != Waiting.NOTHING
        split = np.flatnonzero(joins | waits)
        self.end = np.arange(number)
        self.end[split] = number + np.arange(len(split))
        members = np.flatnonzero(joins)
        collectives, place = np.unique(tasks.collective[members], return_inverse=True)
        begin = number + len(split) + place
        self.number = number + len(split) + len(collectives)
        previous = graph.previous()
        follows = np.flatnonzero(previous != UNKNOWN)
        launch = edges.dependency == Dependency.LAUNCH
        hosts, awaiteds = self._host_waits()
        hard = [
            (self.end[previous[follows]], follows),
            (split, self.end[split]),
            (edges.before[launch], edges.after[launch]),
            (begin, self.end[members]),
        ]
        self.edge = np.flatnonzero(~launch)
        soft = [
            (self.end[edges.before[~launch]], edges.after[~launch]),
            (awaiteds, self.end[hosts]),
            (members, begin),
        ]
        self.num_hard = sum(len(before) for before, _ in hard)
        self.before = np.concatenate([before for before, _ in [*hard, *soft]]).astype(np.int64)
        self.after = np.concatenate([after for _, after in [*hard, *soft]]).astype(np.int64)
        """Links: hard ones, edges, waits of threads, and of collectives for their members."""
        self.hosts, self.members = hosts, members
        when = np.zeros(self.number, dtype=np.int64)
        when[self.end] = take_recorded_times(graph).end
        when[:number] = tasks.start
        np.maximum.at(when, begin, tasks.start[members])
        self.when = when.tolist()

    def _host_waits(self) -> tuple[Integers, Integers]:
        """Return calls that wait, and the moments at which the awaited tasks end."""
        tasks = self.graph.tasks
        pairs = [(task, place) for task, last in find_awaited(self.graph).items() for _, place in last]
        one = np.flatnonzero(tasks.waiting == Waiting.TASK)
        pairs += zip(one.tolist(), tasks.waits_for[one].tolist(), strict=True)
        host, place = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return host, self.end[place]

    def find_closing_links(self) -> NDArray[np.bool_]:
        """
        Return a mask of the droppable links that close a circle.

        A moment is reached once all before it are (Kahn's algorithm). If none can be reached, the earliest recorded
        moment that only droppable links hold back is reached without them.
        """
        place = np.array(self._order(), dtype=np.int64)
        closing: NDArray[np.bool_] = place[self.before] >= place[self.after]
        return closing[self.num_hard :]

    def _order(self) -> list[int]:
        """Return the place of each moment in an order that all links keep except those that close a circle."""
        by_before = np.argsort(self.before, kind="stable")
        first = np.searchsorted(self.before[by_before], np.arange(self.number + 1)).tolist()
        after, is_hard = self.after[by_before].tolist(), (by_before < self.num_hard).tolist()
        hard = np.bincount(self.after[: self.num_hard], minlength=self.number).tolist()
        soft = np.bincount(self.after[self.num_hard :], minlength=self.number).tolist()
        place, number = [UNKNOWN] * self.number, 0
        come = [moment for moment in range(self.number) if not hard[moment] and not soft[moment]]
        waiting: list[tuple[int, int]] | None = None
        while True:
            while come:
                moment = come.pop()
                place[moment] = number
                number += 1
                for link in range(first[moment], first[moment + 1]):
                    other = after[link]
                    if is_hard[link]:
                        hard[other] -= 1
                    else:
                        soft[other] -= 1
                    if hard[other] or place[other] != UNKNOWN:
                        continue
                    if not soft[other]:
                        come.append(other)
                    elif waiting is not None and is_hard[link]:
                        heappush(waiting, (self.when[other], other))
            if waiting is None:
                waiting = [
                    (self.when[one], one) for one in range(self.number) if place[one] == UNKNOWN and not hard[one]
                ]
                heapify(waiting)
            while waiting and place[waiting[0][1]] != UNKNOWN:
                heappop(waiting)
            if not waiting:
                return place
            come.append(heappop(waiting)[1])

    def drop_links(self, dropped: NDArray[np.bool_]) -> ExecutionGraph:
        """Return the graph without some of the droppable links."""
        graph, tasks = self.graph, self.graph.tasks
        of_edges, of_hosts, of_members = np.split(dropped, np.cumsum([len(self.edge), len(self.hosts)]))
        kept = np.ones(len(graph.edges), dtype=bool)
        kept[self.edge[of_edges]] = False
        free = np.unique(self.hosts[of_hosts])
        alone = np.flatnonzero(np.isin(tasks.collective, np.unique(tasks.collective[self.members[of_members]])))
        alone = alone[tasks.collective[alone] != UNKNOWN]
        waiting, waits_for, collective = tasks.waiting.copy(), tasks.waits_for.copy(), tasks.collective.copy()
        duration = tasks.duration.copy()
        duration[alone] = find_recorded_durations(graph)[alone]  # they count from their own begin now, without a wait
        waiting[free], waits_for[free] = Waiting.NOTHING, UNKNOWN
        doubt = self._doubt(graph.edges[~kept], free, alone)
        collective[alone] = UNKNOWN
        changed = replace(tasks, waiting=waiting, waits_for=waits_for, collective=collective, duration=duration)
        return replace(graph, tasks=changed, edges=graph.edges[kept], doubts=(*graph.doubts, doubt))

    def _doubt(self, edges: Edges, hosts: Integers, members: Integers) -> str:
        """Describe the dropped waits in a sentence."""
        tasks, name = self.graph.tasks, self._name
        kinds = Counter(edges.dependency.tolist())
        found = [f"{kinds[kind]:,} of {what}" for kind, what in WAITS.items() if kinds[kind]]
        if len(hosts):
            found.append(f"{len(hosts):,} of a thread for a stream")
        if len(members):
            found.append(f"{len(np.unique(tasks.collective[members])):,} of a collective for its other ranks")
        examples = [
            f"'{name(after)}' for '{name(before)}'"
            for before, after in zip(edges.before[:1], edges.after[:1], strict=True)
        ]
        examples += [f"'{name(one)}' for a stream" for one in hosts[:1]]
        examples += [f"'{name(one)}' for its other ranks" for one in members[:1]]
        return (
            f"Tasks wait for each other in circles. The one that ran first when it was recorded is assumed not to have "
            f"waited, which drops waits: {', '.join(found)}; such as {examples[0]}."
        )

    def _name(self, task: int) -> str:
        return self.graph.names[int(self.graph.tasks.name[task])][:LONGEST_NAME]
