"""Share of each event in an interval of time: shares sum to it exactly, with nothing counted twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.intervals import overlap_nanoseconds
from planner.measure.traces.iterations import Iteration
from planner.measure.traces.operators.timing import own_nanoseconds

LINKS = "HtoD|DtoH"
"""Parts of the names of copies over the link between host and device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """
    Breakdown of a rank's iteration; arrays of shape (rows,).

    Parameters
    ----------
    rows
        Events that run in it.
    exposed
        Exposed nanoseconds of each event: of computation, the time that no earlier computation covers; of copies and
        communication, the time that neither computation nor an earlier one covers.
    hidden
        Nanoseconds of communication overlapped with computation.
    idle
        Nanoseconds in which nothing runs; with the sum of ``exposed`` they are the iteration.
    """

    rows: NDArray[np.intp]
    exposed: Integers
    hidden: Integers
    idle: int


def shares(trace: Trace, iteration: Iteration) -> Shares:
    """
    Break down the time of a rank's iteration.

    Computation has precedence, then communication, then copies over the host's link. Without a device, the thread of
    the iteration computes, and its library communicates in the background.

    Parameters
    ----------
    trace, iteration
        Trace and iteration of one rank.
    """
    layers = _device_rows(trace) if trace.has_device else _thread_rows(trace, iteration)
    begin, end = iteration.begin, iteration.end
    events = trace.events
    rows: list[NDArray[np.intp]] = []
    exposed: list[Integers] = []
    hidden: list[Integers] = []
    covered_begin = covered_end = np.zeros(0, dtype=np.int64)
    for number, layer in enumerate(layers):
        layer = layer[(events.start[layer] < end) & (events.end[layer] > begin)]
        starts, ends = np.maximum(events.start[layer], begin), np.minimum(events.end[layer], end)
        if number == 0 and not trace.has_device:
            alone = own_nanoseconds(trace)[layer]
        else:
            alone = _exposed_nanoseconds(starts, ends, covered_begin, covered_end)
        rows.append(layer)
        exposed.append(alone)
        hidden.append(overlap_nanoseconds(starts, ends, covered_begin, covered_end))
        covered_begin, covered_end = np.append(covered_begin, starts), np.append(covered_end, ends)
    spent = np.concatenate(exposed)
    return Shares(
        rows=np.concatenate(rows),
        exposed=spent,
        hidden=np.concatenate(hidden),
        idle=iteration.duration - int(spent.sum()),
    )


def _device_rows(trace: Trace) -> tuple[NDArray[np.intp], ...]:
    events = trace.events
    runs = np.isin(events.category, (Category.KERNEL, Category.FILL, Category.COPY))
    copies = runs & (events.category == Category.COPY) & trace.named(LINKS)
    sends = runs & (events.message != UNKNOWN)
    return tuple(np.flatnonzero(one) for one in (runs & ~copies & ~sends, sends & ~copies, copies))


def _thread_rows(trace: Trace, iteration: Iteration) -> tuple[NDArray[np.intp], ...]:
    events = trace.events
    computes = (events.category == Category.OPERATOR) & (events.track == iteration.thread)
    sends = (events.message != UNKNOWN) & (events.category == Category.ANNOTATION)
    return np.flatnonzero(computes), np.flatnonzero(sends)


def _exposed_nanoseconds(start: Integers, end: Integers, begins: Integers, ends: Integers) -> Integers:
    """Return the part of each interval that neither earlier ones of its kind nor some others cover."""
    order = np.lexsort((-end, start))
    latest = np.maximum.accumulate(np.append(start[order][:1], end[order]))[:-1] if len(order) else end
    fresh = np.maximum(start[order], latest) if len(order) else start
    last = np.maximum(end[order], fresh)
    found = np.zeros_like(start)
    found[order] = last - fresh - overlap_nanoseconds(fresh, last, begins, ends)
    return found
