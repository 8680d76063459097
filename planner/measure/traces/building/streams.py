"""Dependencies of tasks on streams: their launch, the order of the stream, events of other streams."""

from __future__ import annotations

from bisect import bisect_left as bisect
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.building.tasks import (
    PAGEABLE,
    RECORDS,
    STREAM_WAITS,
    find_calls,
    sort_by_stream,
)
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace, Wait
from planner.measure.traces.structure.records import GRAPH_LAUNCHES

JUST = 10_000
"""Nanoseconds within which a task counts as beginning right after another: a few times the lag of an event."""

DRAINING = 40_000
"""Nanoseconds in which the last blocks of a kernel may still end while another one begins on free processors."""

SOON = 64
"""Launches after a wait within which the waiting stream is looked for."""


@record(frozen=True, slots=True)
class Lags:
    """
    Lags between dependent tasks on a device; nanoseconds, one value of each kind for a whole trace.

    Parameters
    ----------
    launch
        From the start of a call to the start of its kernel on an idle stream: the median.
    gap
        From the end of a kernel to the start of the next on its stream, launched long before: the median.
    event
        From the end of a kernel to the start of one on another stream that waited only for it: the median.
    """

    launch: int
    gap: int
    event: int


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
    inferred
        Number of waits whose event was not recorded, so that the awaited task was inferred.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = trace.of(*ON_STREAMS)
        self.rows, self.call, self.when = sort_by_stream(trace.events, rows, trace.calls_of(rows))
        self.track = trace.events.track[self.rows]
        self.start, self.end = trace.events.start[self.rows], trace.events.end[self.rows]
        self.first = np.r_[True, self.track[1:] != self.track[:-1]] if len(rows) else np.zeros(0, dtype=bool)
        self.places = {track: np.flatnonzero(self.track == track) for track in np.unique(self.track).tolist()}
        self.put = {track: np.maximum.accumulate(self.when[places]) for track, places in self.places.items()}
        self.of_graph = np.isin(self.call, find_calls(trace, GRAPH_LAUNCHES))
        self.waits = self._waits()

    @cached_property
    def lags(self) -> Lags:
        """The lags of this trace."""
        awaited, after = np.array(self.waits, dtype=np.int64).reshape(-1, 2).T
        launch, gap = self._launch_and_gap(after, quantile=0.5)
        last = np.zeros(len(self.rows), dtype=np.int64)
        np.maximum.at(last, after, self.end[awaited])
        alone = (self.end[awaited] > self._free(launch, gap)[after]) & (self.end[awaited] == last[after])
        event = (self.start[after] - self.end[awaited])[alone]
        return Lags(launch=launch, gap=gap, event=max(0, _quantile(event, 0.5)))

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
        free = self._free(self.lags.launch, self.lags.gap)
        awaited, after = np.array(self.waits, dtype=np.int64).reshape(-1, 2).T
        np.maximum.at(free, after, self.end[awaited] + self.lags.event)
        follows = self.of_graph & ~self.first & (self.call == np.r_[UNKNOWN, self.call[:-1]])
        free[follows] = np.r_[0, self.end[:-1]][follows] + self.lags.gap
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
        copies: NDArray[np.bool_] = self.trace.named(PAGEABLE) & (self.trace.events.category == Category.COPY)
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
        events, rows = self.trace.events, self.trace.of(Category.CALL)
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
        late = (self.start - self._free(self.lags.launch, self.lags.gap) > JUST) & (share > 0)
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
        rows = self.trace.of(Category.SYNCHRONIZATION)
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
