"""Nesting of events on a thread, and values that events inherit from those around them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace, look_up

ON_THREADS = (Category.OPERATOR, Category.CALL, Category.ANNOTATION, Category.MODULE)
"""Categories that nest on a thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nesting:
    """
    The innermost event around each event of a thread; arrays of shape (events,).

    Parameters
    ----------
    parent
        Its row; ``UNKNOWN`` for outermost events and for those of streams.
    depth
        Number of events around it; ``UNKNOWN`` for those of streams.
    """

    parent: Integers
    depth: NDArray[np.int32]

    def inherit_values(self, values: NDArray[np.int64], *, unknown: int) -> NDArray[np.int64]:
        """Fill in missing values of events from the innermost event around them that has one."""
        result = values.copy()
        order = np.argsort(self.depth, kind="stable")
        levels = np.searchsorted(self.depth[order], np.arange(self.depth.max(initial=0) + 2))
        for begin, end in pairwise(levels[1:]):
            rows = order[begin:end]
            rows = rows[result[rows] == unknown]
            result[rows] = result[self.parent[rows]]
        return result


def nesting(trace: Trace) -> Nesting:
    """Find the innermost event around each event: an event lies within those of its thread that run when it starts."""
    events = trace.events
    parent = np.full(len(events), UNKNOWN, dtype=np.int64)
    depth = np.full(len(events), UNKNOWN, dtype=np.int32)
    rows = trace.of(*ON_THREADS)
    rows = rows[np.argsort(events.track[rows], kind="stable")]
    around: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    before = UNKNOWN
    for row, track, start, end in zip(
        rows.tolist(), events.track[rows].tolist(), events.start[rows].tolist(), events.end[rows].tolist(), strict=True
    ):
        if track != before:
            around, ends, before = [], [], track
        while ends and ends[-1] <= start:
            ends.pop()
            around.pop()
        parents.append(around[-1] if around else UNKNOWN)
        depths.append(len(around))
        around.append(row)
        ends.append(end)
    parent[rows] = parents
    depth[rows] = depths
    return Nesting(parent=parent, depth=depth)


def find_launchers(trace: Trace) -> Integers:
    """
    Return the row that put each event on its stream; ``UNKNOWN`` for others.

    It is the call with the same correlation number, else the operator with the same external id.
    """
    events = trace.events
    found = np.full(len(events), UNKNOWN, dtype=np.int64)
    device = trace.of(*ON_STREAMS, Category.SYNCHRONIZATION)
    for numbers, category in ((events.external, Category.OPERATOR), (events.correlation, Category.CALL)):
        host = np.flatnonzero((events.category == category) & (numbers > 0))
        launcher = look_up(numbers[device], numbers[host], host)
        found[device] = np.where(launcher == UNKNOWN, found[device], launcher)
    return found
