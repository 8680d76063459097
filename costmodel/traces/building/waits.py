"""What threads wait for on streams, and what such a call takes without the wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.building.calls import waiting_calls
from costmodel.traces.building.streams import Streams
from costmodel.traces.events import UNKNOWN, Category
from costmodel.traces.graph import Waiting


@dataclass(frozen=True, slots=True)
class HostWait:
    """
    A call that waits.

    Parameters
    ----------
    of
        For what.
    target
        Of a stream its track; of one task its place in :class:`Streams`; ``UNKNOWN`` else.
    duration
        Nanoseconds of the call without the wait: from the end of what it waited for, or all of it.
    """

    of: Waiting
    target: int
    duration: int


def host_waits(streams: Streams, rows: NDArray[np.intp]) -> tuple[dict[int, HostWait], int]:
    """
    The calls among some rows that wait.

    Parameters
    ----------
    streams
        What ran on streams.
    rows
        Rows of tasks of threads.

    Returns
    -------
    waits, inferred
        By row; and how many wait for an event or a stream that the profiler did not record.
    """
    trace = streams.trace
    synchronized = {
        int(trace.events.correlation[row]): row
        for row in trace.of(Category.SYNCHRONIZATION).tolist()
        if trace.events.wait[row] != UNKNOWN
    }
    calls, wanted = waiting_calls(trace), set(rows.tolist())
    found, inferred = {}, 0
    for row in sorted(wanted.intersection(calls)):
        wait, known = _wait(streams, row, calls[row], synchronized.get(int(trace.events.correlation[row]), UNKNOWN))
        inferred += not known
        if wait is not None:
            found[row] = wait
    return found, inferred


def _wait(streams: Streams, row: int, of: Waiting, waited: int) -> tuple[HostWait | None, bool]:
    """One call's wait, None if it found everything done; and whether the profiler recorded what for."""
    events = streams.trace.events
    start, end = int(events.start[row]), int(events.end[row])
    if of == Waiting.DEVICE:
        places = [place for track in streams.places if (place := streams.launched_before(track, start)) != UNKNOWN]
        return _after(
            streams, row, of, UNKNOWN, max((int(streams.end[place]) for place in places), default=start)
        ), True
    known = waited != UNKNOWN
    if known:
        wait = streams.trace.waits[events.wait[waited]]
        track = streams.track_of(wait, waited) if wait.stream else int(events.track[waited])
        if of == Waiting.STREAM and streams.trace.tracks[track].kind == "stream":
            place = streams.launched_before(track, start)
            return _after(streams, row, of, track, int(streams.end[place]) if place != UNKNOWN else start), True
        moment = streams.moment_of(wait.record)
        if of == Waiting.TASK and track != UNKNOWN and moment is not None:
            place = streams.launched_before(track, moment)
            return _after(streams, row, of, place, int(streams.end[place]) if place != UNKNOWN else start), True
    own = streams.put_by(row)
    if of == Waiting.STREAM and own != UNKNOWN:  # a copy that waits for itself
        return _after(streams, row, of, int(streams.track[own]), int(streams.end[own])), True
    place = streams.ended_last(start, end)
    if place == UNKNOWN:
        return None, False
    target = int(streams.track[place]) if of == Waiting.STREAM else place
    return _after(streams, row, of, target, int(streams.end[place])), False


def _after(streams: Streams, row: int, of: Waiting, target: int, awaited: int) -> HostWait | None:
    """The wait, if what it is for ended no later than the call."""
    events = streams.trace.events
    start, end = int(events.start[row]), int(events.end[row])
    if awaited > end or (target == UNKNOWN and of != Waiting.DEVICE):
        return None
    return HostWait(of, target, end - max(start, awaited))
