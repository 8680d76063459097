"""Events of an iteration that are tasks: calls and kernels, or operators where there is no device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Events, Integers, Trace
from planner.measure.traces.graph import Waiting
from planner.measure.traces.iterations import Iteration

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
    return np.flatnonzero((trace.events.category == Category.CALL) & trace.named(pattern))


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
        rows = np.flatnonzero((trace.events.category == Category.OPERATOR) & ~trace.named(WRAPPERS))
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
