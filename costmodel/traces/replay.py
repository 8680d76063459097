"""A graph of tasks simulated: when each of them starts and ends, and what it was that held it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.awaited import awaited
from costmodel.traces.events import UNKNOWN, Integers
from costmodel.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks, Waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """
    When each task of a graph runs.

    Parameters
    ----------
    start, end
        Nanoseconds since the iteration began; shape (tasks,). A collective starts when its own rank has come.
    cause
        The task whose end, or launch, let each one start; ``UNKNOWN`` for the first ones. Shape (tasks,).
    held_by
        The task that each one waited for before it ended: of a thread the last that ended on a stream, of a
        collective its last member to come; ``UNKNOWN``: nothing held it up. Shape (tasks,).
    begins
        When the window of each rank's iteration begins: when its device is free of what was before.
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
        """Nanoseconds of the iteration: of the rank that takes longest."""
        return max(self.iterations.values())


def replay(graph: ExecutionGraph) -> Replayed:
    """
    Simulate a graph: every task starts as soon as its track and all that it waits for allow.

    Threads run in the order of time, so that a call that waits for a device waits for what was launched until then in
    this replay, not in the measured run (Lumos, arXiv 2504.09307). Members of a collective end together, as long after
    the last of them has come as each takes.

    Parameters
    ----------
    graph
        Without circles: whoever adds edges breaks them (:func:`costmodel.traces.circles.without_circles`).
    """
    return replayed(graph, *_Machine(graph).run())


def measured(graph: ExecutionGraph) -> Replayed:
    """The times of a graph's tasks as its traces have them; the same record, so that both can lie side by side."""
    starts, ends = graph.tasks.start.copy(), graph.tasks.start + graph.tasks.duration
    for number, trace in enumerate(graph.traces):
        rows = np.flatnonzero((graph.tasks.trace == number) & (graph.tasks.event != UNKNOWN))
        ends[rows] = starts[rows] + trace.events.duration[graph.tasks.event[rows]]
    nothing = np.full(len(starts), UNKNOWN)
    return replayed(graph, starts, ends, nothing, nothing)


def replayed(graph: ExecutionGraph, start: Integers, end: Integers, cause: Integers, held_by: Integers) -> Replayed:
    r"""
    Times of tasks with the iterations that they make.

    .. math:: T = \max(e - b, d - d_0)

    with b and e the begin and the end of the main thread's iteration, d the end of the last task on a stream,
    :math:`d_0` when what was there before had ended. In a run that goes on both are the same but
    for what the host is ahead by.
    """
    on_stream, of_rank = graph.on_stream, graph.task_ranks
    iterations = {}
    for rank in graph.ranks:
        ends = end[on_stream & (of_rank == rank)]
        last = int(end[graph.last[rank]]) - graph.begins[rank] if rank in graph.last else 0
        iterations[rank] = max(last, int(ends.max()) - graph.device_free[rank] if len(ends) else 0)
    return Replayed(
        start=start,
        end=end,
        cause=cause,
        held_by=held_by,
        begins=dict(graph.device_free),
        iterations=iterations,
    )


class _Machine:
    """The state of a replay; lists, since single numbers of arrays are slow to get at."""

    def __init__(self, graph: ExecutionGraph) -> None:
        tasks, edges = graph.tasks, graph.edges
        number = len(tasks)
        previous = graph.previous()
        first = previous == UNKNOWN
        followers = np.full(number, UNKNOWN)
        followers[previous[~first]] = np.flatnonzero(~first)
        self.follower = followers.tolist()
        self.duration, self.gap = tasks.duration.tolist(), tasks.gap.tolist()
        self.host = (tasks.kind == Kind.HOST).tolist()
        self.waiting, self.waits_for = tasks.waiting.tolist(), tasks.waits_for.tolist()
        self.track, self.collective = tasks.track.tolist(), tasks.collective.tolist()
        self.missing = (np.bincount(edges.after, minlength=number) + ~first).tolist()
        self.ready = np.where(first, tasks.gap, 0).tolist()
        self.cause, self.held_by = [UNKNOWN] * number, [UNKNOWN] * number
        self.start, self.end = [UNKNOWN] * number, [UNKNOWN] * number
        launches = edges.dependency == Dependency.LAUNCH
        self.launched, self.later = _by_task(edges, launches), _by_task(edges, ~launches)
        self.come: list[int] = []
        self.threads: list[tuple[int, int]] = []
        self.members, self.absent = _members(tasks)
        self.awaited = awaited(graph)
        self.on_stream: dict[int, int] = {}
        self.waiters: dict[int, list[int]] = {}
        self.open: dict[int, int] = {}

    def run(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Start, end, cause and what held up every task."""
        self.come = [task for task, missing in enumerate(self.missing) if not missing]
        while self.come or self.threads:
            while self.come:
                self._has_come(self.come.pop())
            if self.threads:
                now, task = heappop(self.threads)
                self._thread_runs(task, now)
        assert UNKNOWN not in self.end, "Tasks wait for each other in a circle."
        columns = (self.start, self.end, self.cause, self.held_by)
        start, end, cause, held_by = (np.array(column, dtype=np.int64) for column in columns)
        return start, end, cause, held_by

    def _has_come(self, task: int) -> None:
        """All that a task depends on is done."""
        if self.host[task]:
            heappush(self.threads, (self.ready[task], task))
        elif self.collective[task] == UNKNOWN:
            self._done(task, self.ready[task], self.ready[task] + self.duration[task])
        else:
            self._joins(task, self.collective[task])

    def _joins(self, task: int, collective: int) -> None:
        self.absent[collective] -= 1
        if self.absent[collective]:
            return
        members = self.members[collective]
        last = max(members, key=self.ready.__getitem__)
        for member in members:
            if member != last:
                self.held_by[member] = last
            self._done(member, self.ready[member], self.ready[last] + self.duration[member])

    def _thread_runs(self, task: int, now: int) -> None:
        for launched, lag in self.launched.get(task, ()):
            track = self.track[launched]
            self.on_stream[track] = max(launched, self.on_stream.get(track, UNKNOWN))
            self._allow(launched, now + lag, task)
        if self.waiting[task] == Waiting.NOTHING:
            self._done(task, now, now + self.duration[task])
            return
        self.start[task] = now
        unfinished = [one for one in self._awaited(task) if self.end[one] == UNKNOWN]
        self.open[task] = len(unfinished)
        for one in unfinished:
            self.waiters.setdefault(one, []).append(task)
        for one in self._awaited(task):
            self._comes_back(task, one)
        if not unfinished:
            self._done(task, now, max(now, self.ready[task]) + self.duration[task])

    def _awaited(self, task: int) -> list[int]:
        if self.waiting[task] == Waiting.TASK:
            return [self.waits_for[task]]
        tracks = self.awaited.get(task, ())
        return [min(last, self.on_stream[track]) for track, last in tracks if track in self.on_stream]

    def _comes_back(self, task: int, awaited: int) -> None:
        """What a thread waits for has an end, which may be later than the call."""
        if self.end[awaited] > self.ready[task]:
            self.ready[task], self.held_by[task] = self.end[awaited], awaited

    def _done(self, task: int, start: int, end: int) -> None:
        self.start[task], self.end[task] = start, end
        follower = self.follower[task]
        if follower != UNKNOWN:
            self._allow(follower, end + self.gap[follower], task)
        for later, lag in self.later.get(task, ()):
            self._allow(later, end + lag, task)
        for waiter in self.waiters.pop(task, ()):
            self._comes_back(waiter, task)
            self.open[waiter] -= 1
            if not self.open[waiter]:
                self._done(waiter, self.start[waiter], self.ready[waiter] + self.duration[waiter])

    def _allow(self, task: int, when: int, cause: int) -> None:
        if when > self.ready[task] or self.cause[task] == UNKNOWN:
            self.ready[task], self.cause[task] = max(when, self.ready[task]), cause
        self.missing[task] -= 1
        if not self.missing[task]:
            self.come.append(task)


def _by_task(edges: Edges, chosen: NDArray[np.bool_]) -> dict[int, list[tuple[int, int]]]:
    """Tasks and lags that leave each task, by task; the launched in the order of their stream."""
    found: dict[int, list[tuple[int, int]]] = {}
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(edges.after[rows], kind="stable")]
    columns = (edges.before[rows].tolist(), edges.after[rows].tolist(), edges.lag[rows].tolist())
    for before, after, lag in zip(*columns, strict=True):
        found.setdefault(before, []).append((after, lag))
    return found


def _members(tasks: Tasks) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Tasks of each collective, and how many of them have not come yet."""
    members: dict[int, list[int]] = {}
    rows = np.flatnonzero(tasks.collective != UNKNOWN)
    for task, collective in zip(rows.tolist(), tasks.collective[rows].tolist(), strict=True):
        members.setdefault(collective, []).append(task)
    return members, {collective: len(those) for collective, those in members.items()}
