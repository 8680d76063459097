"""Communication that a library runs in the background of a thread, where no device is recorded: Gloo, MPI."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace, Track
from planner.measure.traces.iterations import Iteration

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
