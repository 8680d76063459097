"""Iteration, phase, micro-batch and layer of each event, found in this order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace
from planner.measure.traces.iterations import (
    BACKWARD,
    UPDATE_KERNEL,
    UPDATE_OPERATOR,
    Iteration,
    iteration_numbers,
    iterations,
)
from planner.measure.traces.structure import records
from planner.measure.traces.structure.layers import BACK, FRONT, Cut, Cutter, cutter
from planner.measure.traces.structure.records import (
    ON_THREADS,
    Parts,
    Phase,
    Role,
    find_launchers,
    find_parents,
    inherit_values,
)


def autograd_nodes(trace: Trace, parents: Integers) -> NDArray[np.bool_]:
    """Find the nodes of the backward pass that autograd runs, without recomputed ones, which lie in another node."""
    events = trace.events
    node = trace.match_name(f"^{BACKWARD}") & (events.category == Category.OPERATOR)
    inside = inherit_values(parents, np.where(node, 1, UNKNOWN), unknown=UNKNOWN)
    has_parent = parents >= 0
    nested = has_parent & (inside[parents] == 1)
    return np.asarray(node & ~nested)


def host_phases(trace: Trace, parents: Integers, nodes: NDArray[np.bool_]) -> tuple[NDArray[np.int64], str]:
    """
    Return the phase of each event of a thread, ``NONE`` where it is unknown, and its source.

    An annotation applies to all events within it, the innermost one first. Autograd's nodes are the backward pass.
    Modules within them, and operators within them that record for another backward pass, are recomputed.
    """
    events = trace.events
    named = records.phases_of_names(trace, records.PHASES, but=records.SEVERAL_PHASES)
    annotation = events.category == Category.ANNOTATION
    marks = np.where(annotation, named[events.name], np.int64(Phase.NONE))
    update = trace.match_name(UPDATE_OPERATOR) & (events.category == Category.OPERATOR)
    marks[update] = Phase.OPTIMIZER
    said = "annotations" if np.isin(marks, (Phase.FORWARD, Phase.BACKWARD)).any() else ""
    marks[nodes] = Phase.BACKWARD
    inside = inherit_values(parents, np.where(nodes, 1, UNKNOWN), unknown=UNKNOWN) == 1
    recording = (events.category == Category.OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    again = inside & (recording | (events.category == Category.MODULE)) & ~nodes
    marks[again & ~trace.match_name(f"^{BACKWARD}")] = Phase.RECOMPUTE
    if nodes.any():
        said = f"{said} and autograd" if said else "autograd"
    return inherit_values(parents, marks, unknown=Phase.NONE), said


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
            result[rows] = stretch if tokens is None else _divide_stretches(stretch, tokens[rows])
    return result


def _divide_stretches(stretch: Integers, tokens: Integers) -> Integers:
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


# --- parts, one after the other ------------------------------------------------------------------------------
IN_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)
"""Phases of a backward pass."""


def parts(trace: Trace) -> Parts:
    """
    Find the iteration, phase, micro-batch and layer of each event of a trace.

    Annotations take precedence. Without them the backward pass is everything that autograd runs, sequence numbers join
    its operators with those of the forward pass, and layers are repetitions within a forward pass. Events on a device
    belong to the parts of the call that launched them. Without any operators, kernels are assigned by their names and
    their order.

    Parameters
    ----------
    trace
        Trace of one rank.

    Returns
    -------
    Parts
        Columns next to ``trace.events``, and how they were found.
    """
    found = iterations(trace)
    launched = find_launchers(trace)
    number = len(trace.events)
    columns = Parts(
        iterations=found,
        iteration=iteration_numbers(trace).astype(np.int32),
        phase=np.zeros(number, dtype=np.int64),
        microbatch=np.full(number, UNKNOWN, dtype=np.int64),
        layer=np.full(number, UNKNOWN, dtype=np.int64),  # while it is being found also FRONT or BACK
        role=np.zeros(number, dtype=np.int8),
    )
    device = launched >= 0
    if (trace.events.category == Category.OPERATOR).any():
        cuts = _find_on_threads(trace, found, columns)
        for column in (columns.iteration, columns.phase, columns.microbatch, columns.layer):
            column[device] = column[launched[device]]
    else:
        columns.iteration[device] = columns.iteration[launched[device]]
        cuts = _find_on_streams(trace, found, launched, columns)
        for column in (columns.phase, columns.microbatch, columns.layer):
            column[launched[device]] = column[device]
    _find_roles(trace, columns)
    _summarize(trace, columns, cuts)
    return columns


def _find_on_threads(trace: Trace, found: tuple[Iteration, ...], columns: Parts) -> list[Cut]:
    """Find the parts of a trace with operators; return how its passes are cut into layers."""
    parents = find_parents(trace)
    nodes = autograd_nodes(trace, parents)
    host = np.isin(trace.events.category, ON_THREADS)
    columns.iteration[~host] = UNKNOWN
    columns.phase, columns.phases_from = host_phases(trace, parents, nodes)
    complete_thread(columns.phase, trace, found)
    if not columns.phases_from and columns.phase.any():
        columns.phases_from = "order"
    cuts = cutter(trace, columns.phase)
    for one in found:
        rows = one.rows(trace)
        _find_in_iteration(trace, one, rows[host[rows]], nodes, cuts, columns)
    backward = np.isin(columns.phase, IN_BACKWARD)
    for column in (columns.microbatch, columns.layer):
        inherited = inherit_values(parents, column, unknown=UNKNOWN)
        column[backward] = inherited[backward]
    return cuts.made


def _find_in_iteration(
    trace: Trace,
    one: Iteration,
    rows: NDArray[np.intp],
    nodes: NDArray[np.bool_],
    cuts: Cutter,
    columns: Parts,
) -> None:
    """Find micro-batches and layers of the host's events in one iteration."""
    events = trace.events
    main = rows[events.track[rows] == one.thread]
    is_call = events.category[main] == Category.CALL
    main, calls = main[~is_call], main[is_call]
    forward = main[columns.phase[main] == Phase.FORWARD]
    made = forward[(events.category[forward] == Category.OPERATOR) & (events.sequence[forward] >= 0)]
    backward = backward_passes(trace, rows[nodes[rows]], made)
    rest = rows[np.isin(columns.phase[rows], IN_BACKWARD)]
    if len(backward.lowest):
        columns.microbatch[forward] = forward_passes(trace, forward, backward)
        columns.microbatch[rest] = _find_pass(trace, rest, backward)
        columns.microbatch[backward.rows] = backward.passes
        columns.microbatches_from = "autograd"
    else:
        columns.microbatch[main] = number_by_order(columns.phase[main])
        elsewhere = rest[events.track[rest] != one.thread]
        known = main[columns.microbatch[main] >= 0]
        columns.microbatch[elsewhere] = values_at(
            columns.microbatch[known], events.start[known], events.start[elsewhere]
        )
        columns.microbatches_from = "order"
    _apply_numbers(trace, main, np.union1d(forward, rest), columns)
    _renumber_passes(columns, np.union1d(forward, rest))
    for number in np.unique(columns.microbatch[forward]):
        mine = forward[columns.microbatch[forward] == number]
        cut = cuts.cut(mine)
        if cut is not None:
            columns.layer[mine] = cut.find_layers(events.start[mine])
    _assign_calls(trace, calls[columns.phase[calls] == Phase.FORWARD], forward, columns)
    _layers_of_backward(trace, one, made, backward, rest, cuts, columns)


def _assign_calls(trace: Trace, calls: NDArray[np.intp], forward: NDArray[np.intp], columns: Parts) -> None:
    """Give calls in the forward pass the parts of the last event that began before them."""
    starts = trace.events.start
    for column in (columns.microbatch, columns.layer):
        column[calls] = values_at(column[forward], starts[forward], starts[calls])


def _find_pass(trace: Trace, rows: NDArray[np.intp], backward: Backward) -> Integers:
    """Return the backward pass of events around nodes: that of the first node within them, else of the last before."""
    events = trace.events
    starts = events.start[backward.rows]
    place = np.searchsorted(starts, events.start[rows])
    upcoming = np.minimum(place, len(starts) - 1)
    within = (place < len(starts)) & (starts[upcoming] < events.start[rows] + events.duration[rows])
    return np.asarray(backward.passes[np.where(within, upcoming, np.maximum(place - 1, 0))])


def _apply_numbers(trace: Trace, main: NDArray[np.intp], rows: NDArray[np.intp], columns: Parts) -> None:
    """Number micro-batches as annotations of the main thread do, also for events of other threads at the same time."""
    number, begin, end = read_numbers(trace, main)
    if len(number) == 0:
        return
    start = trace.events.start[rows]
    place = np.searchsorted(begin, start, side="right") - 1
    inside = (place >= 0) & (start < end[np.maximum(place, 0)])
    if inside.any():
        columns.microbatch[rows[inside]] = number[place[inside]]
        columns.microbatches_from = "annotations"


def _renumber_passes(columns: Parts, rows: NDArray[np.intp]) -> None:
    """Number the passes of an iteration from 0 on."""
    known = rows[columns.microbatch[rows] >= 0]
    if len(known):
        columns.microbatch[known] = np.unique(columns.microbatch[known], return_inverse=True)[1]


def _layers_of_backward(
    trace: Trace,
    one: Iteration,
    made: NDArray[np.intp],
    backward: Backward,
    rest: NDArray[np.intp],
    cuts: Cutter,
    columns: Parts,
) -> None:
    """Find the layers of backward passes: from the operators that made their nodes, else from their own repetition."""
    events = trace.events
    for number in np.unique(columns.microbatch[rest]):
        rows = rest[columns.microbatch[rest] == number]
        mine = np.isin(backward.rows, rows)
        nodes, passes = backward.rows[mine], backward.passes[mine]
        if len(nodes) and len(backward.joined) and backward.joined[passes[0]]:
            order = made[np.argsort(events.sequence[made], kind="stable")]
            layer = values_at(columns.layer[order], events.sequence[order], events.sequence[nodes])
            known = np.flatnonzero((events.sequence[nodes] >= 0) & (layer != UNKNOWN))
            columns.layer[nodes] = values_at(layer[known], known, np.arange(len(nodes)))
            continue
        thread = one.thread if len(nodes) == 0 else int(np.bincount(events.track[nodes]).argmax())
        pieces = rows[(events.track[rows] == one.thread) & (events.category[rows] == Category.ANNOTATION)]
        cut = cuts.cut(np.union1d(pieces, rows[(events.track[rows] == thread) & (events.category[rows] == 0)]))
        if cut is not None:
            columns.layer[rows] = cut.find_layers(events.start[rows], backward=True)


def _find_on_streams(trace: Trace, found: tuple[Iteration, ...], launched: Integers, columns: Parts) -> list[Cut]:
    """Find the parts of a trace without operators, by annotations or its busiest stream; return the cuts of passes."""
    events = trace.events
    kernels = trace.find_rows(Category.KERNEL)
    if len(kernels) == 0:
        return []
    rows = kernels[events.track[kernels] == np.bincount(events.track[kernels]).argmax()]
    columns.phase, said = host_phases(trace, find_parents(trace), np.zeros(len(events), dtype=bool))
    by_call = (launched >= 0) & (said != "")
    columns.phase[by_call] = columns.phase[launched[by_call]]
    columns.phase[rows] = columns.phase[rows] if said else kernel_phases(trace, rows)
    columns.phases_from, columns.microbatches_from = said or "kernels", "order"
    cuts = cutter(trace, columns.phase)
    others = np.setdiff1d(trace.find_rows(*ON_STREAMS), rows)
    for number in range(len(found)):
        mine = rows[columns.iteration[rows] == number]
        columns.microbatch[mine] = number_by_order(columns.phase[mine], cuts.tokens[mine])
        _apply_call_numbers(trace, found[number], mine, launched, columns)
        backward = mine[columns.phase[mine] == Phase.BACKWARD]
        if len(backward):
            late = mine[columns.microbatch[mine] > columns.microbatch[backward].max()]
            columns.phase[late], columns.microbatch[late] = Phase.NONE, UNKNOWN
        for microbatch in range(int(columns.microbatch[mine].max(initial=UNKNOWN)) + 1):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                part = mine[(columns.microbatch[mine] == microbatch) & (columns.phase[mine] == phase)]
                cut = cuts.cut(part)
                if cut is not None:
                    columns.layer[part] = cut.find_layers(events.start[part], backward=phase == Phase.BACKWARD)
        beside = others[columns.iteration[others] == number]
        for column in (columns.microbatch, columns.layer):
            column[beside] = values_at(column[mine], events.start[mine], events.start[beside])
        beside = beside[~by_call[beside]]
        columns.phase[beside] = values_at(columns.phase[mine], events.start[mine], events.start[beside])
    columns.phase = np.maximum(columns.phase, Phase.NONE)
    return cuts.made


def _apply_call_numbers(
    trace: Trace, one: Iteration, rows: NDArray[np.intp], launched: Integers, columns: Parts
) -> None:
    """Number micro-batches of kernels as annotations around their calls do."""
    main = one.rows(trace)
    main = main[trace.events.track[main] == one.thread]
    known = rows[(launched[rows] >= 0) & np.isin(columns.phase[rows], (Phase.FORWARD, *IN_BACKWARD))]
    columns.microbatch[launched[known]] = columns.microbatch[known]
    _apply_numbers(trace, main, launched[known], columns)
    columns.microbatch[known] = columns.microbatch[launched[known]]
    _renumber_passes(columns, known)


def _find_roles(trace: Trace, columns: Parts) -> None:
    """Tell layers from what stands before and after them, and narrow the columns."""
    columns.role[columns.layer >= 0] = Role.LAYER
    for place, pattern, which in ((FRONT, records.EMBEDDING, Role.EMBEDDING), (BACK, records.HEAD, Role.HEAD)):
        rows = columns.layer == place
        if trace.match_name(pattern)[rows].any():
            columns.role[rows] = which
    columns.phase = columns.phase.astype(np.int8)
    columns.microbatch = columns.microbatch.astype(np.int32)
    columns.layer = np.maximum(columns.layer, UNKNOWN).astype(np.int32)


def _summarize(trace: Trace, columns: Parts, cuts: Sequence[Cut]) -> None:
    """Summarise the parts, how they were found, and those that were not."""
    counts, found = Counter(cut.num_layers for cut in cuts), columns.iterations
    columns.num_layers = counts.most_common(1)[0][0] if counts else 0
    model = next((cut for cut in cuts if cut.num_layers == columns.num_layers), None)
    if model:
        columns.layer_kinds, columns.layers_from = model.kinds, model.found
    columns.num_microbatches = int(columns.microbatch.max(initial=UNKNOWN)) + 1
    if not columns.num_microbatches:
        columns.microbatches_from = ""
    doubts = []
    if found and found[0].found in ("repetition", "whole"):
        how = "they were found by repetition" if found[0].found == "repetition" else "the whole trace is taken as one"
        doubts.append(f"Nothing marks iterations: {how}.")
    if not (columns.phase == Phase.BACKWARD).any():
        doubts.append("No backward pass was found: everything that could be one is taken as a forward pass.")
    if columns.num_layers == 0:
        doubts.append("No layers were found: nothing names them, and no pass repeats itself.")
    if model and model.found == "repetition" and not trace.match_name(records.ATTENTION)[columns.layer >= 0].any():
        doubts.append("No layer has an attention with a known name: the repeated part may not be a layer.")
    if len(counts) > 1:
        doubts.append(f"Passes differ in their number of layers: {dict(sorted(counts.items()))} (number: passes).")
    if columns.phases_from == "kernels":
        doubts.append("There are no operators: phases are guessed from the names of kernels and their order.")
    if trace.match_name(records.GRAPH_LAUNCHES).any():
        doubts.append("Kernels that were launched as a graph all belong to where it was launched.")
    columns.doubts = tuple(doubts)
