"""Calls of a device's runtime by their effect: CUDA's, ROCm's, and those of CUDA's driver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Category, Trace
from planner.measure.traces.graph import Waiting

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


GRAPH_LAUNCHES = r"^(cuda|hip|cu)GraphLaunch(_ptsz)?$"
"""Calls that launch a graph of kernels and copies on a stream."""

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
