"""What tasks on streams wait for: their calls, the stream's order, events of other streams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.building.calls import STREAM_WAITS, named
from costmodel.traces.building.tasks import by_stream, calls_of
from costmodel.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace, Wait


@dataclass(frozen=True, slots=True)
class Lags:
    """
    What it takes from one thing on a device to the next; nanoseconds, one of each for a whole trace.

    Parameters
    ----------
    launch
        From the start of a call to the start of its kernel on an idle stream: the median.
    gap
        From the end of a kernel to the start of the next on its stream that was launched long before: the median.
    event
        From the end of a kernel to the start of one on another stream that waited for it alone: the median.
    """

    launch: int
    gap: int
    event: int


class Streams:
    """
    All that ran on the streams of one rank, stream by stream, and the waits between them.

    Attributes
    ----------
    rows, call
        Rows of what ran, stream by stream in the order of their start, and of the calls that put them there;
        ``UNKNOWN`` where none was recorded.
    when
        When each was launched: the start of its call; where none was recorded, of the call before on its stream.
    waits
        Pairs of places in ``rows``: the latter waits for the former by way of an event.
    inferred
        Number of waits whose event was not recorded, so that what they wait for was inferred.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = trace.of(*ON_STREAMS)
        self.rows, self.call, self.when = by_stream(trace.events, rows, calls_of(trace, rows))
        self.track = trace.events.track[self.rows]
        self.start, self.end = trace.events.start[self.rows], trace.events.end[self.rows]
        self.first = np.r_[True, self.track[1:] != self.track[:-1]] if len(rows) else np.zeros(0, dtype=bool)
        self.places = {track: np.flatnonzero(self.track == track) for track in np.unique(self.track).tolist()}
        self.inferred = 0
        self.waits = self._waits()

    @cached_property
    def lags(self) -> Lags:
        """The lags of this trace."""
        known = (self.call != UNKNOWN) & ~self.first
        known[[after for _, after in self.waits]] = False
        before = np.r_[0, self.end[:-1]]
        since = self.start - self.when
        idle = since[known & (self.when >= before)]
        launch = _median(idle) if len(idle) else int(since[self.call != UNKNOWN].min(initial=0))
        early = (self.start - before)[known & (self.when + launch < before)]
        gap = max(0, _median(early))
        event = [
            int(self.start[after] - self.end[awaited])
            for awaited, after in self.waits
            if self.end[awaited] > max(self.when[after] + launch, before[after] if not self.first[after] else 0)
        ]
        return Lags(launch=max(0, launch), gap=gap, event=max(0, _median(np.array(event))))

    def launched_before(self, track: int, moment: int) -> int:
        """Place of the last task that was put on a stream before a moment; ``UNKNOWN`` if there is none."""
        places = self.places.get(track, np.zeros(0, dtype=np.intp))
        number = int(np.searchsorted(self.when[places], moment, side="left"))
        return int(places[number - 1]) if number else UNKNOWN

    def moment_of(self, correlation: int) -> int | None:
        """When the call with a correlation began; None if it was not recorded."""
        return self._begun.get(correlation) if correlation != UNKNOWN else None

    def put_by(self, call: int) -> int:
        """Place of the last task that a call put on a stream; ``UNKNOWN`` if it put none there."""
        places = np.flatnonzero(self.call == call)
        return int(places[-1]) if len(places) else UNKNOWN

    def ended_last(self, start: int, end: int) -> int:
        """Place of the task launched before a call that ended last during it; ``UNKNOWN`` if there is none."""
        places = np.flatnonzero((self.when < start) & (self.end > start) & (self.end <= end))
        return int(places[np.argmax(self.end[places])]) if len(places) else UNKNOWN

    @cached_property
    def _begun(self) -> dict[int, int]:
        events, rows = self.trace.events, self.trace.of(Category.CALL)
        return dict(zip(events.correlation[rows].tolist(), events.start[rows].tolist(), strict=True))

    def _launched_from(self, track: int, moment: int) -> int:
        """Place of the first task that was put on a stream at a moment or later."""
        places = self.places.get(track, np.zeros(0, dtype=np.intp))
        number = int(np.searchsorted(self.when[places], moment, side="left"))
        return int(places[number]) if number < len(places) else UNKNOWN

    # --- waits between streams ---------------------------------------------------------------------------------

    def _waits(self) -> list[tuple[int, int]]:
        calls = named(self.trace, STREAM_WAITS).tolist()
        recorded = self._recorded_waits()
        found = set()
        for call in calls:
            pair = recorded.get(int(self.trace.events.correlation[call])) or self._inferred_wait(call)
            if pair and UNKNOWN not in pair:
                found.add(pair)
        return sorted(found, key=lambda pair: pair[1])

    def _recorded_waits(self) -> dict[int, tuple[int, int]]:
        """Pairs by the correlation of the call that makes a stream wait, where the profiler recorded the event."""
        events = self.trace.events
        found: dict[int, tuple[int, int]] = {}
        start_of = self._begun
        for row in self.trace.of(Category.SYNCHRONIZATION).tolist():
            wait = self.trace.waits[events.wait[row]] if events.wait[row] != UNKNOWN else None
            number = int(events.correlation[row])
            if wait is None or wait.of != "stream_event" or wait.record not in start_of or number not in start_of:
                continue
            awaited = self.launched_before(self.track_of(wait, row), start_of[wait.record])
            found[number] = (awaited, self._launched_from(int(events.track[row]), start_of[number]))
        return found

    def track_of(self, wait: Wait, row: int) -> int:
        """The track of the stream that a synchronising event waits for; ``UNKNOWN`` if it is not recorded."""
        process = self.trace.tracks[self.trace.events.track[row]].process
        for number, track in enumerate(self.trace.tracks):
            if track.kind == "stream" and track.number == wait.stream and track.process == process:
                return number
        return UNKNOWN

    def _inferred_wait(self, call: int) -> tuple[int, int] | None:
        """
        What a call makes which stream wait for, where the profiler did not record it.

        The stream is that of the next launch of the same thread. It waits for what was put last on any other stream
        before the call, and had ended when the waiting task began.
        """
        self.inferred += 1
        moment = int(self.trace.events.start[call])
        after = self._next_launch(call, moment)
        if after == UNKNOWN:
            return None
        candidates = []
        for track in self.places:
            if track == self.track[after]:
                continue
            places = self.places[track]
            launched = places[self.when[places] < moment]
            ended = launched[self.end[launched] <= self.start[after]]
            if len(ended):
                candidates.append(int(ended[-1]))
        return (max(candidates, key=lambda place: self.when[place]), after) if candidates else None

    def _next_launch(self, call: int, moment: int) -> int:
        thread = self.trace.events.track[call]
        places, starts = self._launches_of(int(thread))
        number = int(np.searchsorted(starts, moment, side="right"))
        return int(places[number]) if number < len(places) else UNKNOWN

    @cached_property
    def _by_thread(self) -> dict[int, tuple[NDArray[np.intp], Integers]]:
        known = np.flatnonzero(self.call != UNKNOWN)
        starts = self.trace.events.start[self.call[known]]
        threads = self.trace.events.track[self.call[known]]
        order = np.argsort(starts, kind="stable")
        known, starts, threads = known[order], starts[order], threads[order]
        return {one: (known[threads == one], starts[threads == one]) for one in np.unique(threads).tolist()}

    def _launches_of(self, thread: int) -> tuple[NDArray[np.intp], Integers]:
        return self._by_thread.get(thread, (np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int64)))


def _median(numbers: Integers) -> int:
    return int(np.median(numbers)) if len(numbers) else 0
