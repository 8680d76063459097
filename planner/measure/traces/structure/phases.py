"""Phase of each event of the host: forward pass, backward pass, recomputation, update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.iterations import BACKWARD, UPDATE_KERNEL, UPDATE_OPERATOR, Iteration
from planner.measure.traces.structure import names
from planner.measure.traces.structure.nesting import Nesting
from planner.measure.traces.structure.records import Phase


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
    named = names.phases_of_names(trace, names.PHASES, but=names.SEVERAL_PHASES)
    annotation = events.category == Category.ANNOTATION
    marks = np.where(annotation, named[events.name], np.int64(Phase.NONE))
    update = trace.named(UPDATE_OPERATOR) & (events.category == Category.OPERATOR)
    marks[update] = Phase.OPTIMIZER
    said = "annotations" if np.isin(marks, (Phase.FORWARD, Phase.BACKWARD)).any() else ""
    marks[nodes] = Phase.BACKWARD
    inside = nest.inherit_values(np.where(nodes, 1, UNKNOWN), unknown=UNKNOWN) == 1
    records = (events.category == Category.OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    again = inside & (records | (events.category == Category.MODULE)) & ~nodes
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

    For the last operator of a pass nothing else does: it may have no forward or backward pass behind it.
    """
    begins, ends = trace.events.start[operators], np.maximum.accumulate(trace.events.end[operators])
    place = np.searchsorted(begins, trace.events.start[rows], side="right") - 1
    inside = (place >= 0) & (trace.events.start[rows] < ends[np.maximum(place, 0)]) if len(ends) else place >= 0
    phase[rows[inside & (phase[rows] == Phase.NONE)]] = Phase.FORWARD


def _fill_between(phase: NDArray[np.int64], rows: NDArray[np.intp]) -> None:
    """Assign events between two events of the forward pass to it, and events between it and a backward pass."""
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
    patterns = ((Phase.OPTIMIZER, UPDATE_KERNEL), *names.KERNEL_PHASES)
    phase = names.phases_of_names(trace, patterns)[events.name[rows]].astype(np.int64)
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
