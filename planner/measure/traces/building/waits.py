"""Waits of threads for streams, and the time of such calls without the wait."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.building.calls import waiting_calls
from planner.measure.traces.building.streams import Streams
from planner.measure.traces.events import UNKNOWN, Category
from planner.measure.traces.graph import Waiting


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
            self.num_early += known and row in self.early and self._must_wait(row)
            if wait is not None:
                self.by_row[row] = wait

    def _must_wait(self, row: int) -> bool:
        """Return true if a call always waits; one that frees memory need not."""
        return "Synchronize" in self.streams.trace.name_of(row)

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
            return self._wait_for_stream(row, int(self.streams.track[own]), own), True
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
        return self._wait_for_stream(row, int(self.streams.track[own]), own)

    def _wait_for_copied(self, row: int) -> HostWait | None:
        """
        Return the wait of a call for the stream of the host-device copy that the thread launched right before it.

        PyTorch synchronises so behind every copy that must be done when it returns (``c10/cuda/CUDAFunctions.h``,
        ``memcpy_and_sync``).
        """
        streams = self.streams
        own = streams.put_by(self.before[row]) if row in self.before else UNKNOWN
        if own == UNKNOWN or self.events.category[streams.rows[own]] != Category.COPY:
            return None
        track = int(streams.track[own])
        return self._wait_for_stream(row, track, streams.last_launched(track, int(self.start[row])))

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
        return self._wait_for_stream(row, int(streams.track[place]), place)

    def _wait_for_event(self, row: int) -> HostWait | None:
        """Return the wait of a call whose event is unknown: for the recorded event reached last during the call."""
        place = self.streams.last_marked(int(self.start[row]), int(self.end[row]))
        return None if place == UNKNOWN else self._wait_until(row, Waiting.TASK, place, place)

    def _wait_for_stream(self, row: int, track: int, last: int) -> HostWait | None:
        return self._wait_until(row, Waiting.STREAM, track, last)

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
