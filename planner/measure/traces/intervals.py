"""Intervals of time: their union, its length, and how much of others it covers."""

from __future__ import annotations

import numpy as np

from planner.measure.traces.events import Integers


def union(starts: Integers, ends: Integers) -> Integers:
    """
    Return the begin and end of each stretch that some intervals cover, in order, without contact; shape (stretches, 2).

    >>> union(np.array([5, 0, 1]), np.array([6, 2, 3])).tolist()
    [[0, 3], [5, 6]]
    """
    if not len(starts):
        return np.zeros((0, 2), dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    opens = np.r_[True, starts[1:] > ends[:-1]]
    return np.column_stack([starts[opens], ends[np.r_[opens[1:], True]]])


def length(stretches: Integers) -> int:
    """Return the nanoseconds of intervals that do not overlap."""
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def overlap_nanoseconds(start: Integers, end: Integers, begins: Integers, ends: Integers) -> Integers:
    """
    Return the nanoseconds of each interval that other intervals cover, which may overlap each other.

    >>> one = np.array([0, 10, 20]), np.array([10, 20, 30])
    >>> overlap_nanoseconds(*one, np.array([5, 8]), np.array([12, 18])).tolist()
    [5, 8, 0]
    """
    if not len(begins):
        return np.zeros_like(start)
    begins, ends = union(begins, ends).T
    before = np.r_[0, np.cumsum(ends - begins)]

    def until(time: Integers) -> Integers:
        place = np.searchsorted(begins, time, side="right") - 1
        inside = np.minimum(time - begins[np.maximum(place, 0)], (ends - begins)[np.maximum(place, 0)])
        return np.where(place < 0, 0, before[np.maximum(place, 0)] + inside)

    found: Integers = until(end) - until(start)
    return found
