"""Phase of each event of the host: forward pass, backward pass, recomputation, update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.iterations import BACKWARD, UPDATE_KERNEL, UPDATE_OPERATOR, Iteration
from planner.measure.traces.structure import records
from planner.measure.traces.structure.records import Nesting, Phase


def autograd_nodes(trace: Trace, nest: Nesting) -> NDArray[np.bool_]:
    """Find the nodes of the backward pass that autograd runs, without recomputed ones, which lie in another node."""
    events = trace.events
    node = trace.named(f"^{BACKWARD}") & (events.category == Category.OPERATOR)
    inside = nest.inherit_values(np.where(node, 1, UNKNOWN), unknown=UNKNOWN)
    has_parent = nest.parent >= 0
    nested = has_parent & (inside[nest.parent] == 1)
    return np.asarray(node & ~nested)


def host_phases(trace: Trace, nest: Nesting, nodes: NDArray[np.bool_]) -> tuple[NDArray[np.int64], str]:
    """
    Return the phase of each event of a thread, ``NONE`` where it is unknown, and its source.

    An annotation applies to all events within it, the innermost one first. Autograd's nodes are the backward pass.
    Modules within them, and operators within them that record for another backward pass, are recomputed.
    """
    events = trace.events
    named = records.phases_of_names(trace, records.PHASES, but=records.SEVERAL_PHASES)
    annotation = events.category == Category.ANNOTATION
    marks = np.where(annotation, named[events.name], np.int64(Phase.NONE))
    update = trace.named(UPDATE_OPERATOR) & (events.category == Category.OPERATOR)
    marks[update] = Phase.OPTIMIZER
    said = "annotations" if np.isin(marks, (Phase.FORWARD, Phase.BACKWARD)).any() else ""
    marks[nodes] = Phase.BACKWARD
    inside = nest.inherit_values(np.where(nodes, 1, UNKNOWN), unknown=UNKNOWN) == 1
    recording = (events.category == Category.OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    again = inside & (recording | (events.category == Category.MODULE)) & ~nodes
    marks[again & ~trace.named(f"^{BACKWARD}")] = Phase.RECOMPUTE
    if nodes.any():
        said = f"{said} and autograd" if said else "autograd"
    return nest.inherit_values(marks, unknown=Phase.NONE), said


def complete_thread(phase: NDArray[np.int64], trace: Trace, found: tuple[Iteration, ...]) -> None:
    """
    Complete the phases of operators and calls of each iteration's main thread from their neighbours.

    Before the last backward pass every operator that records for autograd is the forward pass. After it, up to the end
    of the update, everything is the update: norm of the gradients, clipping.
    """
    events = trace.events
    makes_nodes = (events.category == Category.OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    works = np.isin(events.category, (Category.OPERATOR, Category.CALL, Category.MODULE))
    for one in found:
        rows = one.rows(trace)
        backward = rows[phase[rows] == Phase.BACKWARD]
        update = rows[phase[rows] == Phase.OPTIMIZER]
        rows = rows[works[rows] & (events.track[rows] == one.thread)]
        update = update[events.start[update] >= events.start[backward].max(initial=0)]
        last_backward = int(events.start[backward].max(initial=one.begin))
        last_update = int((events.start[update] + events.duration[update]).max(initial=one.begin))
        free = phase[rows] == Phase.NONE
        forward = free & makes_nodes[rows]
        if len(backward):
            forward &= events.start[rows] < last_backward
        phase[rows[forward]] = Phase.FORWARD
        _hand_down(phase, trace, rows[makes_nodes[rows] & (phase[rows] == Phase.FORWARD)], rows)
        _fill_between(phase, rows)
        end = events.start[rows] + events.duration[rows]
        late = (events.start[rows] >= last_backward) & (end <= last_update) & (phase[rows] == Phase.NONE)
        if len(backward):
            phase[rows[late]] = Phase.OPTIMIZER


def _hand_down(phase: NDArray[np.int64], trace: Trace, operators: NDArray[np.intp], rows: NDArray[np.intp]) -> None:
    """
    Assign events that start within an operator of the forward pass to it.

    For the last operator of a pass nothing else does: it may have no forward or backward pass after it.
    """
    begins, ends = trace.events.start[operators], np.maximum.accumulate(trace.events.end[operators])
    place = np.searchsorted(begins, trace.events.start[rows], side="right") - 1
    inside = (place >= 0) & (trace.events.start[rows] < ends[np.maximum(place, 0)]) if len(ends) else place >= 0
    phase[rows[inside & (phase[rows] == Phase.NONE)]] = Phase.FORWARD


def _fill_between(phase: NDArray[np.int64], rows: NDArray[np.intp]) -> None:
    """Assign events between two forward events, and between a forward and a backward pass, to the forward pass."""
    known = np.flatnonzero(phase[rows] != Phase.NONE)
    if len(known) == 0:
        return
    place = np.searchsorted(known, np.arange(len(rows)), side="right") - 1
    before = np.where(place >= 0, phase[rows[known[np.maximum(place, 0)]]], Phase.NONE)
    after = np.where(place + 1 < len(known), phase[rows[known[np.minimum(place + 1, len(known) - 1)]]], Phase.NONE)
    free = phase[rows] == Phase.NONE
    same = free & (before == after)
    phase[rows[same]] = before[same]
    loss = free & (before == Phase.FORWARD) & (after == Phase.BACKWARD)
    phase[rows[loss]] = Phase.FORWARD


def kernel_phases(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """
    Return the phase of kernels of one stream by their names, and of others by the last kernel before with a phase.

    After an update, and before a backward pass, kernels are the forward pass. All are the forward pass where no name
    tells a phase.
    """
    events = trace.events
    patterns = ((Phase.OPTIMIZER, UPDATE_KERNEL), *records.KERNEL_PHASES)
    phase = records.phases_of_names(trace, patterns)[events.name[rows]].astype(np.int64)
    updates = np.flatnonzero(phase == Phase.OPTIMIZER)
    known = np.flatnonzero(phase)
    following = known[np.minimum(np.searchsorted(known, updates) + 1, len(known) - 1)] if len(known) else known
    ends = updates[(phase[following] != Phase.OPTIMIZER) & (updates + 1 < len(rows))] + 1
    phase[ends[phase[ends] == Phase.NONE]] = Phase.FORWARD
    known = np.flatnonzero(phase)
    if len(known) == 0:
        return np.full(len(rows), Phase.FORWARD, dtype=np.int64)
    place = np.searchsorted(known, np.arange(len(rows)), side="right") - 1
    first = Phase.FORWARD if phase[known[0]] == Phase.BACKWARD else Phase(int(phase[known[0]]))
    return np.where(place >= 0, phase[known[np.maximum(place, 0)]], np.int64(first))


def values_at(values: Integers, starts: Integers, when: Integers) -> Integers:
    """Return the value at each time; each holds from its start to the next. ``UNKNOWN`` before the first."""
    if len(starts) == 0:
        return np.full(len(when), UNKNOWN, dtype=np.int64)
    place = np.searchsorted(starts, when, side="right") - 1
    return np.where(place >= 0, values[np.maximum(place, 0)], UNKNOWN)


LEAST_NODES = 0.05

"""Nodes of a backward pass as a share of the largest pass; a pass with fewer is part of another one."""

LEAST_JOINED = 0.5

"""Share of a backward pass's nodes that recorded operators must have made for these to be its forward pass."""


@record(frozen=True, kw_only=True, slots=True)
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
    found = [records.number_in(trace.name_of(row), records.MICROBATCH) for row in rows]
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
