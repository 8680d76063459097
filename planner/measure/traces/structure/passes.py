"""Passes through the model, that is micro-batches, to which events belong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.structure import names
from planner.measure.traces.structure.phases import values_at
from planner.measure.traces.structure.records import Phase

LEAST_NODES = 0.05
"""Nodes of a backward pass as a share of the largest pass; a pass with fewer is part of another one."""

LEAST_JOINED = 0.5
"""Share of a backward pass's nodes that recorded operators must have made for these to be its forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backward:
    """
    Nodes of one iteration's backward passes.

    Parameters
    ----------
    rows, passes
        Rows of the nodes in the order in which they ran, and the pass of each.
    lowest, joined
        For each pass, its lowest sequence number, and True where its forward pass was recorded.
    """

    rows: NDArray[np.intp]
    passes: Integers
    lowest: Integers
    joined: NDArray[np.bool_]


def backward_passes(trace: Trace, rows: NDArray[np.intp], forward: NDArray[np.intp]) -> Backward:
    """
    Divide autograd's nodes into passes.

    PyTorch's engine runs the ready node that was made last, so sequence numbers fall within a pass. A number continues
    the pass whose last number is the lowest above it, or begins a new pass.

    Parameters
    ----------
    trace
        Trace of one rank.
    rows
        Nodes of one iteration in the order in which they ran.
    forward
        Operators of the same iteration that made nodes.
    """
    events = trace.events
    sequence = events.sequence[rows]
    numbered = np.flatnonzero(sequence >= 0)
    if len(numbered) == 0:
        return Backward(
            rows=rows, passes=np.full(len(rows), UNKNOWN), lowest=np.zeros(0, int), joined=np.zeros(0, bool)
        )
    threads = events.forward_thread[rows[numbered]]
    values, counts = np.unique(threads, return_counts=True)
    numbered = numbered[threads == values[counts.argmax()]]
    pile = _assign_runs(sequence[numbered].tolist())
    sizes = np.bincount(pile)
    large = sizes[pile] >= LEAST_NODES * sizes.max()
    numbered, pile = numbered[large], pile[large]
    lowest = np.array([sequence[numbered[pile == one]].min() for one in np.unique(pile)])
    order = np.argsort(lowest)
    pile = np.argsort(order)[np.searchsorted(np.unique(pile), pile)]
    made = np.isin(sequence[numbered], events.sequence[forward])
    joined = np.bincount(pile, weights=made) >= LEAST_JOINED * np.bincount(pile)
    passes = values_at(pile, numbered, np.arange(len(rows)))
    passes[: numbered[0]] = pile[0]
    return Backward(rows=rows, passes=passes, lowest=lowest[order], joined=joined)


def _assign_runs(sequence: list[int]) -> Integers:
    """Assign each number to the descending run that it continues."""
    tops: list[int] = []
    result = []
    for number in sequence:
        above = [place for place, top in enumerate(tops) if top >= number]
        if above:
            place = min(above, key=tops.__getitem__)
            tops[place] = number
        else:
            place = len(tops)
            tops.append(number)
        result.append(place)
    return np.array(result, dtype=np.int64)


def forward_passes(trace: Trace, rows: NDArray[np.intp], backward: Backward) -> Integers:
    """
    Return the pass of each event of the forward pass: the one whose backward pass uses its results.

    Operators that made nothing for a recorded backward pass are one more pass, the last one.

    Parameters
    ----------
    trace
        Trace of one rank.
    rows
        Events of one iteration's forward passes on its main thread.
    backward
        Its backward passes.
    """
    sequence = trace.events.sequence[rows]
    made = sequence >= 0
    if not backward.joined.any():
        return np.full(len(rows), len(backward.joined), dtype=np.int64)
    joined = np.flatnonzero(backward.joined)
    place = np.searchsorted(backward.lowest[joined], sequence, side="right") - 1
    number = np.where(made, joined[np.maximum(place, 0)], UNKNOWN)
    known = np.flatnonzero(number != UNKNOWN)
    result = values_at(number[known], known, np.arange(len(rows)))
    if len(known):
        result[: known[0]] = number[known[0]]
    return result


def read_numbers(trace: Trace, rows: NDArray[np.intp]) -> tuple[Integers, Integers, Integers]:
    """Return the micro-batch numbers of annotations among some events, with their begins and ends."""
    events = trace.events
    rows = rows[events.category[rows] == Category.ANNOTATION]
    found = [names.number_in(trace.name_of(row), names.MICROBATCH) for row in rows]
    number = np.array([UNKNOWN if one is None else one for one in found], dtype=np.int64)
    rows, number = rows[number >= 0], number[number >= 0]
    return number, events.start[rows], events.start[rows] + events.duration[rows]


def number_by_order(phase: NDArray[np.int64], tokens: Integers | None = None) -> Integers:
    """
    Find the pass of each event of a sequence by order alone.

    The n-th stretch of forward passes belongs to the n-th stretch of backward passes. A stretch that repeats the
    shortest one several times is several passes: the warm-up and cool-down of a pipeline.

    Parameters
    ----------
    phase
        A :class:`Phase` for each event.
    tokens
        A number for each kind of event.

    >>> number_by_order(np.array([1, 1, 2, 1, 2, 2, 4]))
    array([ 0,  0,  0,  1,  1,  1, -1])
    """
    result = np.full(len(phase), UNKNOWN, dtype=np.int64)
    for of in ((Phase.FORWARD,), (Phase.BACKWARD, Phase.RECOMPUTE)):
        rows = np.flatnonzero(np.isin(phase, of))
        others = np.cumsum(np.isin(phase, (Phase.FORWARD, Phase.BACKWARD)) & ~np.isin(phase, of))
        if len(rows):
            stretch = np.unique(others[rows], return_inverse=True)[1]
            result[rows] = stretch if tokens is None else _divide(stretch, tokens[rows])
    return result


def _divide(stretch: Integers, tokens: Integers) -> Integers:
    """Renumber the passes of stretches; a stretch that repeats the shortest one counts as several passes."""
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    parts = np.split(tokens, begins[1:])
    shortest = min(parts, key=len)
    result, number = [], 0
    for part in parts:
        times = len(part) // len(shortest)
        if not np.array_equal(np.tile(shortest, times), part):
            times = 1
        result.append(number + np.repeat(np.arange(times), len(part) // times))
        number += times
    return np.concatenate(result)
