"""Waits of threads for streams, and the time of such calls without the wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.building.streams import Streams
from planner.measure.traces.building.tasks import waiting_calls
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace, Track
from planner.measure.traces.graph import Waiting
from planner.measure.traces.iterations import Iteration


class HostWait(NamedTuple):
    """
    A call that waits.

    Parameters
    ----------
    of
        Kind of the awaited object.
    target
        Track of an awaited stream, or place of an awaited task in :class:`Streams`; else ``UNKNOWN``.
    duration
        Nanoseconds of the call without the wait: from the end of the awaited task, or all of it.
    """

    of: Waiting
    target: int
    duration: int


class HostWaits:
    """
    Calls of threads that wait.

    Parameters
    ----------
    streams
        Tasks on streams.
    rows
        Rows of tasks of threads, thread by thread in their order.

    Attributes
    ----------
    by_row
        Each wait by the row of its call.
    num_inferred
        Number of calls whose awaited event or stream the profiler did not record.
    num_early
        Number of calls that, as recorded, return before the awaited task has ended.
    """

    def __init__(self, streams: Streams, rows: NDArray[np.intp]) -> None:
        trace = streams.trace
        self.streams, self.events = streams, trace.events
        self.start, self.end = self.events.start, self.events.end
        self.synchronized = {
            int(trace.events.correlation[row]): row
            for row in trace.of(Category.SYNCHRONIZATION).tolist()
            if trace.events.wait[row] != UNKNOWN
        }
        track = self.events.track[rows]
        same = np.flatnonzero(track[1:] == track[:-1]) if len(rows) else np.zeros(0, dtype=np.intp)
        self.before = dict(zip(rows[same + 1].tolist(), rows[same].tolist(), strict=True))
        """The task in front of each on its thread."""
        self.early: set[int] = set()
        """Calls that return before the awaited task has ended."""
        self.by_row: dict[int, HostWait] = {}
        self.num_inferred = self.num_early = 0
        calls = waiting_calls(trace)
        for row in rows.tolist():
            wait, known = self._wait_of_call(row, calls[row]) if row in calls else (self._wait_of_copy(row), True)
            self.num_inferred += not known
            must_wait = "Synchronize" in trace.name_of(row)  # a call that frees memory need not
            self.num_early += known and row in self.early and must_wait
            if wait is not None:
                self.by_row[row] = wait

    def _wait_of_call(self, row: int, of: Waiting) -> tuple[HostWait | None, bool]:
        """Return a call's wait, None if nothing was left to wait for; and True if the profiler recorded its object."""
        if of == Waiting.DEVICE:
            return self._wait_for_device(row), True
        known = self._find_recorded_target(row, of)
        if known is not None:
            return self._wait_until(row, of, *known), True
        if of == Waiting.TASK:
            return self._wait_for_event(row), False
        own = self.streams.put_by(row)
        if own != UNKNOWN:  # a copy that waits for itself
            return self._wait_until(row, Waiting.STREAM, int(self.streams.track[own]), own), True
        return self._wait_for_copied(row) or self._wait_for_drained(row), False

    def _find_recorded_target(self, row: int, of: Waiting) -> tuple[int, int] | None:
        """Return the recorded target and last awaited task of a call; None where the profiler recorded none."""
        streams = self.streams
        waited = self.synchronized.get(int(self.events.correlation[row]), UNKNOWN)
        if waited == UNKNOWN:
            return None
        wait = streams.trace.waits[self.events.wait[waited]]
        track = streams.track_of(wait, waited) if wait.stream else int(self.events.track[waited])
        if of == Waiting.STREAM and track in streams.places:
            return track, streams.last_launched(track, int(self.start[row]))
        moment = streams.moment_of(wait.record)
        is_before = moment is not None and moment <= self.start[row]
        if of == Waiting.TASK and track != UNKNOWN and moment is not None and is_before:
            place = streams.last_launched(track, moment)
            return place, place
        return None

    def _wait_for_device(self, row: int) -> HostWait | None:
        streams, start = self.streams, int(self.start[row])
        places = [streams.last_launched(track, start) for track in streams.places]
        ends = [int(streams.end[place]) for place in places if place != UNKNOWN]
        return self._wait_after(row, Waiting.DEVICE, UNKNOWN, max(ends, default=start))

    def _wait_of_copy(self, row: int) -> HostWait | None:
        """Return the wait of a call that returns when its copy is done; None for copies of another kind."""
        own = self.streams.put_by(row)
        if own == UNKNOWN or not self.streams.is_pageable[own]:
            return None
        return self._wait_until(row, Waiting.STREAM, int(self.streams.track[own]), own)

    def _wait_for_copied(self, row: int) -> HostWait | None:
        """
        Return the wait of a call for the stream of the host-device copy that the thread launched right before it.

        PyTorch synchronises so after every copy that must be done when it returns (``c10/cuda/CUDAFunctions.h``,
        ``memcpy_and_sync``).
        """
        streams = self.streams
        own = streams.put_by(self.before[row]) if row in self.before else UNKNOWN
        if own == UNKNOWN or self.events.category[streams.rows[own]] != Category.COPY:
            return None
        track = int(streams.track[own])
        return self._wait_until(row, Waiting.STREAM, track, streams.last_launched(track, int(self.start[row])))

    def _wait_for_drained(self, row: int) -> HostWait | None:
        """
        Return the wait of a call for the stream whose last task ended during the call.

        A stream with work left when the call returned is not the synchronised one.
        """
        streams, start, end = self.streams, int(self.start[row]), int(self.end[row])
        last = [place for track in streams.places if (place := streams.last_launched(track, start)) != UNKNOWN]
        drained = [place for place in last if start < streams.end[place] <= end]
        if not drained:
            return None
        place = max(drained, key=lambda one: int(streams.end[one]))
        return self._wait_until(row, Waiting.STREAM, int(streams.track[place]), place)

    def _wait_for_event(self, row: int) -> HostWait | None:
        """Return the wait of a call whose event is unknown: for the recorded event reached last during the call."""
        place = self.streams.last_marked(int(self.start[row]), int(self.end[row]))
        return None if place == UNKNOWN else self._wait_until(row, Waiting.TASK, place, place)

    def _wait_until(self, row: int, of: Waiting, target: int, last: int) -> HostWait | None:
        awaited = int(self.streams.end[last]) if last != UNKNOWN else int(self.start[row])
        return self._wait_after(row, of, target, awaited)

    def _wait_after(self, row: int, of: Waiting, target: int, awaited: int) -> HostWait | None:
        """Return the wait if the awaited task ended no later than the call, else None."""
        start, end = int(self.start[row]), int(self.end[row])
        if awaited > end:
            self.early.add(row)
        if awaited > end or (target == UNKNOWN and of != Waiting.DEVICE):
            return None
        return HostWait(of, target, end - max(start, awaited))


BLOCKED_FRACTION = 0.5

"""Part of a thread's pause that another thread must fill for the pause to be a wait for it."""


def thread_edges(
    track: NDArray[np.int32], start: Integers, end: Integers, main: int
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """
    Find waits between threads: where the main thread pauses while another one works, each waits for the other.

    PyTorch runs the backward pass on autograd's threads while the thread that called ``backward`` is blocked. No event
    records this; the pause shows it.

    Parameters
    ----------
    track, start, end
        Track and times of the threads' tasks, thread by thread in the order of their start; shape (tasks,).
    main
        Track of the main thread.

    Returns
    -------
    edges, explained
        Task before, task after and nanoseconds between them; tasks whose pause before them is a wait, not work of their
        own thread.
    """
    of_main = np.flatnonzero(track == main)
    edges: list[tuple[int, int, int]] = []
    explained: list[int] = []
    for other in np.unique(track[track != main]).tolist():
        tasks = np.flatnonzero(track == other)
        pause = np.searchsorted(start[of_main], start[tasks], side="right") - 1
        for number in np.unique(pause).tolist():
            burst = tasks[pause == number]
            if number < 0 or number + 1 >= len(of_main):
                continue
            left, right = int(of_main[number]), int(of_main[number + 1])
            first, last = int(burst[0]), int(burst[-1])
            if end[last] > start[right] or start[first] < end[left]:
                continue
            if end[last] - start[first] < BLOCKED_FRACTION * (start[right] - end[left]):
                continue
            edges += [(left, first, int(start[first] - end[left])), (last, right, int(start[right] - end[last]))]
            explained += [first, right]
    return edges, explained


def pauses(track: NDArray[np.int32], start: Integers, end: Integers, begin: int) -> Integers:
    """Return nanoseconds between each task and the one before on its thread, or the begin of the iteration."""
    first = np.r_[True, track[1:] != track[:-1]] if len(track) else np.zeros(0, dtype=bool)
    before = np.where(first, begin, np.r_[begin, end[:-1]][: len(track)])
    return np.maximum(start - before, 0)


POLLS = frozenset({"notify"})

"""
Operations for which a thread polls: the host learns how many tokens arrive before they are sent.

DeepEP, ``csrc/deep_ep.cpp``: ``internode_dispatch`` and ``intranode_dispatch`` loop until the counter in mapped memory
is set; libraries derived from it do the same.
"""

SOON = 100_000

"""Nanoseconds after the kernel's end within which the thread goes on."""

LONG = 100_000

"""Nanoseconds below which a pause is ignored."""


def find_polls(
    launches: Iterable[tuple[int, int]], following: Mapping[int, int], start: Sequence[int], end: Sequence[int]
) -> list[tuple[int, int, int]]:
    """
    Find kernels for which the thread that launched them waited.

    Parameters
    ----------
    launches
        Pairs of a task of a thread and the kernel of such an operation that it launched.
    following
        The next task of each thread's task.
    start, end
        Nanoseconds of all tasks.

    Returns
    -------
    list
        The kernel, the task that waited for it, and the nanoseconds between the kernel's end and the task's begin.
    """
    found = []
    for task, kernel in launches:
        waiting = following.get(task)
        if waiting is None:
            continue
        since = start[waiting] - end[kernel]
        if 0 <= since <= SOON and start[waiting] - end[task] >= LONG:
            found.append((kernel, waiting, since))
    return found


ASKS = r"^c10d::"

"""Operators of PyTorch that start communication."""

WAITS_FOR = 0.1

"""Part of a thread's pause that may follow the end of the awaited communication."""

SHORT = 100_000

"""Nanoseconds that may always follow it; in shorter pauses a thread has not waited."""


def find_background(trace: Trace, iteration: Iteration) -> tuple[NDArray[np.intp], Integers]:
    """
    Find the communication that a library ran during an iteration, and the queue that runs each event.

    Queues are added as needed: an event takes the first free one, so that events of a queue do not overlap. Events are
    in the order of their queues, then of their start.
    """
    events = trace.events
    chosen = (events.category == Category.ANNOTATION) & (events.message != UNKNOWN) & (not trace.has_device)
    chosen &= (events.start >= iteration.begin) & (events.start < iteration.end)
    rows = np.flatnonzero(chosen)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    queue = []
    for start, end in zip(events.start[rows].tolist(), events.end[rows].tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        number = heappop(free) if free else len(busy)
        heappush(busy, (end, number))
        queue.append(number)
    queues = np.array(queue, dtype=np.int64)
    order = np.lexsort((rows, queues))
    return rows[order], queues[order]


def queue_track(trace: Trace, number: int) -> Track:
    """Return the track of a queue, named after the library."""
    libraries = [message.library for message in trace.messages if message.library]
    return Track("stream", libraries[0] if libraries else "background", str(number))


def background_edges(
    start: Integers, end: Integers, asks: NDArray[np.bool_], begun: Integers, done: Integers
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]], set[int]]:
    """
    Find the task that starts each message, and the task that waits for it.

    If there are as many starting tasks as messages, each task starts one, in order. Else a message is
    started by the last task that began before it. Messages before the first task were started before this iteration. A
    pause of the thread that ends just after a message is a wait for it, and for all messages that ended before.

    Parameters
    ----------
    start, end, asks
        Times of the main thread's tasks in order; True for tasks that start communication.
    begun, done
        Begins and ends of messages.

    Returns
    -------
    launches, waits, explained
        Task, message and lag; message, task and lag; tasks whose pause before them is a wait.
    """
    by_begin = np.argsort(begun, kind="stable")
    launching = np.searchsorted(start, begun[by_begin], side="right") - 1
    if np.count_nonzero(asks) == len(begun):
        asking = np.flatnonzero(asks)
        launching = np.where(start[asking] <= begun[by_begin], asking, launching)
    is_known = launching >= 0
    launching, launched = launching[is_known], by_begin[is_known]
    lags = begun[launched] - start[launching]
    if len(lags):
        lags = np.minimum(lags, np.median(lags).astype(np.int64))  # beyond, the message waited for its queue
    launches = list(zip(launching.tolist(), launched.tolist(), lags.tolist(), strict=True))
    waits: list[tuple[int, int, int]] = []
    explained: set[int] = set()
    pauses = np.r_[0, start[1:] - end[:-1]]
    open_ = by_begin[~is_known].tolist()
    coming = 0
    for place in np.flatnonzero(pauses > SHORT).tolist():
        while coming < len(launches) and launches[coming][0] < place:
            open_.append(launches[coming][1])
            coming += 1
        finished = [one for one in open_ if done[one] <= start[place]]
        last = max((int(done[one]) for one in finished), default=0)
        since = int(start[place]) - last
        if last > end[place - 1] and since <= max(SHORT, WAITS_FOR * pauses[place]):
            waits += [(one, place, since) for one in finished]
            explained.add(place)
            open_ = [one for one in open_ if one not in finished]
    rest = [*open_, *(one for _, one, _ in launches[coming:])]
    waits += [(one, len(start) - 1, 0) for one in rest if done[one] <= start[-1]]
    return launches, waits, explained
