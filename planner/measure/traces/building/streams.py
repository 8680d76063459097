"""Events of an iteration that are tasks, the dependencies of those on streams, and the waits of threads."""

from __future__ import annotations

from bisect import bisect_left as bisect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Events, Integers, Trace, Track, Wait
from planner.measure.traces.graph import Waiting
from planner.measure.traces.iterations import Iteration
from planner.measure.traces.structure.records import GRAPH_LAUNCHES

WAITING: Mapping[str, Waiting] = {
    r"^((cuda|hip)DeviceSynchronize|cuCtxSynchronize|(cuda|hip)Free)$": Waiting.DEVICE,
    r"^(cuda|hip|cu)StreamSynchronize(_ptsz)?$": Waiting.STREAM,
    r"^((cuda|hip)Memcpy(2D)?|hipMemcpyWithStream|cuMemcpy[DH]to[DH](_v2)?)$": Waiting.STREAM,
    r"^(cuda|hip|cu)EventSynchronize$": Waiting.TASK,
}

"""
Calls that return when something on a device has ended, and its kind.

CUDA Runtime API, "API synchronization behavior", and cudaFree's implicit synchronisation ("CUDA C++ Programming Guide",
implicit synchronization).
"""

RECORDS = r"^(cuda|hip|cu)EventRecord(WithFlags)?(_ptsz)?$"

"""Calls that record an event on a stream."""

STREAM_WAITS = r"^(cuda|hip|cu)StreamWaitEvent(_ptsz)?$"

"""Calls that make a stream wait for an event."""

PAGEABLE = r"^Memcpy DtoH \(Device -> Pageable\)"

"""
Asynchronous copies whose call nevertheless returns only when they are done.

CUDA Runtime API, "API synchronization behavior", of asynchronous calls: from device memory to pageable host memory the
function returns only once the copy has completed.
"""


def find_calls(trace: Trace, pattern: str) -> NDArray[np.intp]:
    """Return the rows of calls in whose name a pattern is found."""
    return np.flatnonzero((trace.events.category == Category.CALL) & trace.match_name(pattern))


def waiting_calls(trace: Trace) -> dict[int, Waiting]:
    """Return the rows of calls that wait, each with the object that it waits for."""
    return {row: what for pattern, what in WAITING.items() for row in find_calls(trace, pattern).tolist()}


WRAPPERS = r"^(autograd::|torch::|.*Backward\d*$|DistributedDataParallel|## |ProfilerStep|Optimizer\.|\[)"

"""Operators that only contain others; the outermost operator that is not one of them is a task."""


def sort_by_stream(
    events: Events, device: NDArray[np.intp], call: Integers
) -> tuple[NDArray[np.intp], Integers, Integers]:
    """
    Sort tasks by stream, with the time of each call: where there is none, that of the task before on its stream.

    Tasks before all recorded calls of their stream were launched before the trace began.
    """
    order = np.lexsort((events.start[device], events.track[device]))
    device, call = device[order], call[order]
    known = np.where(call == UNKNOWN, 0, np.arange(len(call)))
    first = np.r_[True, events.track[device[1:]] != events.track[device[:-1]]] if len(device) else np.zeros(0, bool)
    known[first] = np.flatnonzero(first)
    source = np.maximum.accumulate(known) if len(known) else known
    unknown = -1 if (call != UNKNOWN).any() else events.start[device]
    when = np.where(call[source] == UNKNOWN, unknown, events.start[call[source]])
    return device, call, when


def host_tasks(trace: Trace, iteration: Iteration, launching: Integers) -> NDArray[np.intp]:
    """
    Return the threads' tasks that begin in an iteration: calls that affect streams; operators where there is no device.

    Parameters
    ----------
    trace, iteration
        Trace and iteration of one rank.
    launching
        Rows of the calls that launch work on a stream.

    Returns
    -------
    array
        Rows, thread by thread in the order of their start, none inside another.
    """
    if trace.has_device:
        calls = (find_calls(trace, one) for one in (RECORDS, STREAM_WAITS, *WAITING))
        rows = np.unique(np.concatenate([launching, *calls])).astype(np.intp)
    else:
        rows = np.flatnonzero((trace.events.category == Category.OPERATOR) & ~trace.match_name(WRAPPERS))
    start = trace.events.start[rows]
    rows = rows[(start >= iteration.begin) & (start < iteration.end)]
    return outermost(trace.events, rows)


def outermost(events: Events, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return rows that are not nested in another of their thread, thread by thread in the order of their start."""
    rows = rows[np.lexsort((-events.duration[rows], events.start[rows], events.track[rows]))]
    ends = events.end[rows]
    kept = np.ones(len(rows), dtype=bool)
    for track in np.unique(events.track[rows]):
        of_track = np.flatnonzero(events.track[rows] == track)
        latest = np.maximum.accumulate(ends[of_track])
        kept[of_track[1:]] = events.start[rows[of_track[1:]]] >= latest[:-1]
    return rows[kept]


# --- streams -------------------------------------------------------------------------------------------------
JUST = 10_000
"""Nanoseconds within which a task counts as beginning right after another: a few times the lag of an event."""

DRAINING = 40_000
"""Nanoseconds in which the last blocks of a kernel may still end while another one begins on free processors."""

SOON = 64
"""Launches after a wait within which the waiting stream is looked for."""


class Streams:
    """
    Tasks on the streams of one rank, stream by stream, and the waits between them.

    Attributes
    ----------
    rows, call
        Rows of the tasks, stream by stream in the order of their start, and rows of the calls that launched them;
        ``UNKNOWN`` where none was recorded.
    when
        Launch time of each: the start of its call; where none was recorded, of the call before on its stream.
    places, put
        Per stream: places of its tasks, and the time at which each and all before it had been launched.
    of_graph
        Mask of tasks of CUDA graphs.
    waits
        Pairs of places in ``rows``: the second waits for the first through an event.
    launch_lag
        Nanoseconds from the start of a call to the start of its kernel on an idle stream.
    gap_lag
        From the end of a kernel to the start of the next on its stream, launched long before.
    event_lag
        From the end of a kernel to the start of one on another stream that waited only for it.
    inferred
        Number of waits whose event was not recorded, so that the awaited task was inferred.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = trace.find_rows(*ON_STREAMS)
        self.rows, self.call, self.when = sort_by_stream(trace.events, rows, trace.calls_of(rows))
        self.track = trace.events.track[self.rows]
        self.start, self.end = trace.events.start[self.rows], trace.events.end[self.rows]
        self.first = np.r_[True, self.track[1:] != self.track[:-1]] if len(rows) else np.zeros(0, dtype=bool)
        self.places = {track: np.flatnonzero(self.track == track) for track in np.unique(self.track).tolist()}
        self.put = {track: np.maximum.accumulate(self.when[places]) for track, places in self.places.items()}
        self.of_graph = np.isin(self.call, find_calls(trace, GRAPH_LAUNCHES))
        self.waits = self._waits()
        self.launch_lag, self.gap_lag, self.event_lag = self._find_lags()

    def _find_lags(self) -> tuple[int, int, int]:
        """Return the lags of launches, on busy streams, and after events: one median of each for the whole trace."""
        awaited, after = np.array(self.waits, dtype=np.int64).reshape(-1, 2).T
        launch, gap = self._launch_and_gap(after, quantile=0.5)
        last = np.zeros(len(self.rows), dtype=np.int64)
        np.maximum.at(last, after, self.end[awaited])
        alone = (self.end[awaited] > self._free(launch, gap)[after]) & (self.end[awaited] == last[after])
        event = (self.start[after] - self.end[awaited])[alone]
        return launch, gap, max(0, _quantile(event, 0.5))

    def _launch_and_gap(self, waiting: Integers, quantile: float) -> tuple[int, int]:
        """Return quantiles of the lag of launches on idle streams, and of the gap after a kernel on a busy one."""
        counted = (self.call != UNKNOWN) & ~self.of_graph
        counted[waiting] = False
        before = np.where(self.first, 0, np.r_[0, self.end[:-1]])
        since = self.start - self.when
        idle = since[counted & (self.when >= before)]
        launched = since[self.call != UNKNOWN]
        launch = _quantile(idle, quantile) if len(idle) else int(launched.min()) if len(launched) else 0
        gap = _quantile((self.start - before)[counted & ~self.first & (self.when + launch < before)], quantile)
        return max(0, launch), max(0, gap)

    def _free(self, launch: int, gap: int) -> Integers:
        """Return the earliest begin of each task without events: after its launch and the task before on its stream."""
        before = np.where(self.first, 0, np.r_[0, self.end[:-1]] + gap)
        return np.maximum(before, np.where(self.call == UNKNOWN, 0, self.when + launch))

    @cached_property
    def graph_pauses(self) -> Integers:
        """
        Nanoseconds in front of each task of a CUDA graph that belong to the graph; 0 for tasks outside of graphs.

        A graph runs as a whole: once it has begun, nothing outside of it delays its tasks. Pauses of its stream are
        unrecorded work of the graph, or another of its branches.
        """
        found = np.zeros(len(self.rows), dtype=np.int64)
        if not self.of_graph.any():
            return found
        free = self._free(self.launch_lag, self.gap_lag)
        awaited, after = np.array(self.waits, dtype=np.int64).reshape(-1, 2).T
        np.maximum.at(free, after, self.end[awaited] + self.event_lag)
        follows = self.of_graph & ~self.first & (self.call == np.r_[UNKNOWN, self.call[:-1]])
        free[follows] = np.r_[0, self.end[:-1]][follows] + self.gap_lag
        found[self.of_graph] = np.maximum(self.start - free, 0)[self.of_graph]
        return found

    def last_launched(self, track: int, moment: int) -> int:
        """Return the place of the last task launched on a stream before a moment; ``UNKNOWN`` if there is none."""
        if track not in self.places:
            return UNKNOWN
        number = int(np.searchsorted(self.put[track], moment, side="left"))
        return int(self.places[track][number - 1]) if number else UNKNOWN

    def moment_of(self, correlation: int) -> int | None:
        """Return the begin of the call with a correlation number; None if it was not recorded."""
        return self._call_starts.get(correlation) if correlation != UNKNOWN else None

    def put_by(self, call: int) -> int:
        """Return the place of the last task that a call launched; ``UNKNOWN`` if it launched none."""
        return self._put.get(call, UNKNOWN)

    @cached_property
    def _put(self) -> dict[int, int]:
        return dict(zip(self.call.tolist(), range(len(self.call)), strict=True))

    @cached_property
    def is_pageable(self) -> NDArray[np.bool_]:
        """Mask of copies whose call returns only when they are done."""
        copies: NDArray[np.bool_] = self.trace.match_name(PAGEABLE) & (self.trace.events.category == Category.COPY)
        return copies[self.rows]

    def last_marked(self, start: int, end: int) -> int:
        """
        Return the place of the task with an event recorded before a call that ended last during the call.

        Without any recorded event, any task counts. ``UNKNOWN`` if there is none.
        """
        places, ends, since = self._tasks_with_events
        first, stop = np.searchsorted(ends, [start, end], side="right").tolist()
        known = np.flatnonzero(since[first:stop] < start)
        return int(places[first + known[-1]]) if len(known) else UNKNOWN

    @cached_property
    def _tasks_with_events(self) -> tuple[NDArray[np.intp], Integers, Integers]:
        """Tasks followed by a recorded event, in the order of their ends; their ends; the first event's time."""
        moments = self.trace.events.start[find_calls(self.trace, RECORDS)]
        never = np.iinfo(np.int64).max
        since = np.full(len(self.rows), never) if len(moments) else self.when.copy()
        for track, places in self.places.items():
            number = np.searchsorted(self.put[track], moments, side="left")
            np.minimum.at(since, places[number[number > 0] - 1], moments[number > 0])
        marked = np.flatnonzero(since != never)
        marked = marked[np.argsort(self.end[marked], kind="stable")]
        return marked, self.end[marked], since[marked]

    @cached_property
    def _call_starts(self) -> dict[int, int]:
        events, rows = self.trace.events, self.trace.find_rows(Category.CALL)
        return dict(zip(events.correlation[rows].tolist(), events.start[rows].tolist(), strict=True))

    def _first_launched(self, track: int, moment: int) -> int:
        """Return the place of the first task launched on a stream at a moment or later."""
        places = self.places.get(track, np.zeros(0, dtype=np.intp))
        number = int(np.searchsorted(self.put[track], moment, side="left")) if len(places) else 0
        return int(places[number]) if number < len(places) else UNKNOWN

    @cached_property
    def late_kernels(self) -> list[tuple[int, int, int]]:
        """
        Kernels that began late, when one on another stream ended and freed processors: that one, this one, lag.

        The last blocks of a kernel free processors shortly before it ends, so lags may be negative. Kernels without a
        recorded number of blocks are left out.
        """
        share = self._share_of_processors()
        late = (self.start - self._free(self.launch_lag, self.gap_lag) > JUST) & (share > 0)
        late[[after for _, after in self.waits]] = False
        large = np.flatnonzero(share > 0)
        large = large[np.argsort(self.end[large], kind="stable")]
        ends = self.end[large]
        found = []
        for place in np.flatnonzero(late).tolist():
            begin = int(self.start[place])
            first, last = np.searchsorted(ends, [begin - JUST, begin + DRAINING]).tolist()
            others = [
                one
                for one in large[first:last].tolist()
                if self.track[one] != self.track[place]
                and self.start[one] < begin - DRAINING
                and share[one] + share[place] > 1
            ]
            if others:
                other = min(others, key=lambda one: abs(int(self.end[one]) - begin))
                found.append((other, place, begin - int(self.end[other])))
        return found

    def _share_of_processors(self) -> NDArray[np.float64]:
        """Return the share of processors that each kernel's blocks fill, one block each; 0 for communication."""
        events, number = self.trace.events, max((one.num_processors for one in self.trace.devices), default=0)
        blocks = np.array([*(one.num_blocks for one in self.trace.blocks), 0])[events.blocks[self.rows]]
        counts = (events.message[self.rows] == UNKNOWN) & (number > 0)
        return np.where(counts, np.minimum(1.0, blocks / max(number, 1)), 0.0)

    # --- waits between streams ---------------------------------------------------------------------------------

    def _waits(self) -> list[tuple[int, int]]:
        calls = find_calls(self.trace, STREAM_WAITS).tolist()
        known = self._find_recorded_waits()
        found = {pair for pairs in known.values() for pair in pairs if UNKNOWN not in pair}
        unknown = [call for call in calls if int(self.trace.events.correlation[call]) not in known]
        if unknown:
            launch, gap = self._launch_and_gap(np.zeros(0, dtype=np.int64), quantile=0.25)
            idle = self.start - self._free(launch, gap)
            found.update(pair for call in unknown if (pair := self._infer_wait(call, idle)))
        self.inferred = len(unknown)
        return sorted(found, key=lambda pair: pair[1])

    def _find_recorded_waits(self) -> dict[int, list[tuple[int, int]]]:
        """
        Return pairs by the correlation of the call that makes a stream wait, where the profiler recorded the event.

        An event is after the last task of its stream, and after all tasks for which that stream waits since then.
        """
        events, begun = self.trace.events, self._call_starts
        found: dict[int, list[tuple[int, int]]] = {}
        waited: dict[int, list[tuple[int, int]]] = {}
        rows = self.trace.find_rows(Category.SYNCHRONIZATION)
        for row in rows[np.argsort(events.start[rows], kind="stable")].tolist():
            wait = self.trace.waits[events.wait[row]] if events.wait[row] != UNKNOWN else None
            number = int(events.correlation[row])
            if wait is None or wait.of != "stream_event" or wait.record not in begun or number not in begun:
                continue
            track, made = self.track_of(wait, row), begun[wait.record]
            if made > begun[number]:  # no stream waits for an event that is recorded later
                continue
            last = self.last_launched(track, made)
            launched = int(self.when[last]) if last != UNKNOWN else UNKNOWN
            pending = waited.get(track, [])
            since = pending[bisect(pending, (launched, UNKNOWN)) : bisect(pending, (made, UNKNOWN))]
            awaited = [last, *(place for _, place in since)]
            own, moment = int(events.track[row]), begun[number]
            waited.setdefault(own, []).extend((moment, place) for place in sorted(awaited))
            found[number] = [(place, self._first_launched(own, moment)) for place in awaited]
        return found

    def track_of(self, wait: Wait, row: int) -> int:
        """Return the track of the stream that a synchronising event waits for; ``UNKNOWN`` if it was not recorded."""
        process = self.trace.tracks[self.trace.events.track[row]].process
        for number, track in enumerate(self.trace.tracks):
            if track.kind == "stream" and track.number == wait.stream and track.process == process:
                return number
        return UNKNOWN

    def _infer_wait(self, call: int, idle: Integers) -> tuple[int, int] | None:
        """
        Infer the awaited and the waiting task of a call, where the profiler did not record its event.

        The awaited task was launched on another stream before the call. If a task launched soon afterwards began late,
        and a task of another stream ended just before, these are the two. Else the stream of the next launch waits for
        the last such task that had ended when it began.
        """
        moment = int(self.trace.events.start[call])
        places, starts = self._launches
        coming = places[int(np.searchsorted(starts, moment, side="right")) :][:SOON]
        if not len(coming):
            return None
        _, first = np.unique(self.track[coming], return_index=True)
        pairs = [
            (ended, int(after))
            for after in coming[np.sort(first)]
            for track in self.places
            if track != self.track[after] and (ended := self._last_ended(track, moment, int(after))) != UNKNOWN
        ]
        late = [pair for pair in pairs if idle[pair[1]] > JUST and self.start[pair[1]] - self.end[pair[0]] <= JUST]
        if late:
            return min(late, key=lambda pair: int(self.start[pair[1]] - self.end[pair[0]]))
        next_ones = [pair for pair in pairs if pair[1] == int(coming[0])]
        return max(next_ones, key=lambda pair: int(self.when[pair[0]]), default=None)

    def _last_ended(self, track: int, moment: int, after: int) -> int:
        """Return the last task launched on a stream before a moment and ended before a task began."""
        last = self.last_launched(track, moment)
        if last == UNKNOWN:
            return UNKNOWN
        first = int(self.places[track][0])
        number = int(np.searchsorted(self.end[first : last + 1], self.start[after], side="right"))
        return first + number - 1 if number else UNKNOWN

    @cached_property
    def _launches(self) -> tuple[NDArray[np.intp], Integers]:
        """Places in the order of their calls, and the begins of these calls."""
        known = np.flatnonzero(self.call != UNKNOWN)
        starts = self.when[known]
        order = np.argsort(starts, kind="stable")
        return known[order], starts[order]


def _quantile(numbers: Integers, quantile: float) -> int:
    return int(np.quantile(numbers, quantile)) if len(numbers) else 0


# --- threads -------------------------------------------------------------------------------------------------
HostWait: TypeAlias = tuple[Waiting, int, int]

"""
A call that waits: kind of the awaited object, its target, and nanoseconds of the call without the wait.

The target is the track of a stream, or the place of a task in :class:`Streams`; else ``UNKNOWN``. The nanoseconds are
from the end of the awaited task, or all of the call.
"""


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
            for row in trace.find_rows(Category.SYNCHRONIZATION).tolist()
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
        return of, target, end - max(start, awaited)


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

SOON_AFTER = 100_000

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
        if 0 <= since <= SOON_AFTER and start[waiting] - end[task] >= LONG:
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
