"""Iteration, phase, micro-batch and layer of each event, found in this order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace
from planner.measure.traces.iterations import Iteration, iteration_numbers, iterations
from planner.measure.traces.structure import records
from planner.measure.traces.structure.layers import BACK, FRONT, Cut, Cutter, cutter
from planner.measure.traces.structure.phases import (
    Backward,
    autograd_nodes,
    backward_passes,
    complete_thread,
    forward_passes,
    host_phases,
    kernel_phases,
    number_by_order,
    read_numbers,
    values_at,
)
from planner.measure.traces.structure.records import ON_THREADS, Parts, Phase, Role, Summary, find_launchers, nesting

BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)
"""Phases of a backward pass."""


@dataclass(kw_only=True, slots=True)
class _Columns:
    """Parts of each event while they are being found; ``layer`` may also be ``FRONT`` or ``BACK``."""

    iteration: NDArray[np.int32]
    phase: Integers
    microbatch: Integers
    layer: Integers
    phases_from: str = ""
    microbatches_from: str = ""
    cuts: list[Cut] = field(default_factory=list)


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
    columns = _Columns(
        iteration=iteration_numbers(trace).astype(np.int32),
        phase=np.zeros(len(trace.events), dtype=np.int64),
        microbatch=np.full(len(trace.events), UNKNOWN, dtype=np.int64),
        layer=np.full(len(trace.events), UNKNOWN, dtype=np.int64),
    )
    device = launched >= 0
    if (trace.events.category == Category.OPERATOR).any():
        _find_on_threads(trace, found, columns)
        for column in (columns.iteration, columns.phase, columns.microbatch, columns.layer):
            column[device] = column[launched[device]]
    else:
        columns.iteration[device] = columns.iteration[launched[device]]
        _find_on_streams(trace, found, launched, columns)
        for column in (columns.phase, columns.microbatch, columns.layer):
            column[launched[device]] = column[device]
    return _build_parts(trace, found, columns)


def _find_on_threads(trace: Trace, found: tuple[Iteration, ...], columns: _Columns) -> None:
    """Find the parts of a trace with operators."""
    nest = nesting(trace)
    nodes = autograd_nodes(trace, nest)
    host = np.isin(trace.events.category, ON_THREADS)
    columns.iteration[~host] = UNKNOWN
    columns.phase, columns.phases_from = host_phases(trace, nest, nodes)
    complete_thread(columns.phase, trace, found)
    if not columns.phases_from and columns.phase.any():
        columns.phases_from = "order"
    cuts = cutter(trace, columns.phase)
    for one in found:
        rows = one.rows(trace)
        _find_in_iteration(trace, one, rows[host[rows]], nodes, cuts, columns)
    backward = np.isin(columns.phase, BACKWARD)
    for column in (columns.microbatch, columns.layer):
        inherited = nest.inherit_values(column, unknown=UNKNOWN)
        column[backward] = inherited[backward]


def _find_in_iteration(
    trace: Trace,
    one: Iteration,
    rows: NDArray[np.intp],
    nodes: NDArray[np.bool_],
    cuts: Cutter,
    columns: _Columns,
) -> None:
    """Find micro-batches and layers of the host's events in one iteration."""
    events = trace.events
    main = rows[events.track[rows] == one.thread]
    is_call = events.category[main] == Category.CALL
    main, calls = main[~is_call], main[is_call]
    forward = main[columns.phase[main] == Phase.FORWARD]
    made = forward[(events.category[forward] == Category.OPERATOR) & (events.sequence[forward] >= 0)]
    backward = backward_passes(trace, rows[nodes[rows]], made)
    rest = rows[np.isin(columns.phase[rows], BACKWARD)]
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
            columns.cuts.append(cut)
            columns.layer[mine] = cut.at(events.start[mine])
    _assign_calls(trace, calls[columns.phase[calls] == Phase.FORWARD], forward, columns)
    _layers_of_backward(trace, one, made, backward, rest, cuts, columns)


def _assign_calls(trace: Trace, calls: NDArray[np.intp], forward: NDArray[np.intp], columns: _Columns) -> None:
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


def _apply_numbers(trace: Trace, main: NDArray[np.intp], rows: NDArray[np.intp], columns: _Columns) -> None:
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


def _renumber_passes(columns: _Columns, rows: NDArray[np.intp]) -> None:
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
    columns: _Columns,
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
            columns.cuts.append(cut)
            columns.layer[rows] = cut.at(events.start[rows], backward=True)


def _find_on_streams(trace: Trace, found: tuple[Iteration, ...], launched: Integers, columns: _Columns) -> None:
    """Find the parts of a trace without operators: by annotations, or from the stream with the most kernels."""
    events = trace.events
    kernels = trace.of(Category.KERNEL)
    if len(kernels) == 0:
        return
    rows = kernels[events.track[kernels] == np.bincount(events.track[kernels]).argmax()]
    columns.phase, said = host_phases(trace, nesting(trace), np.zeros(len(events), dtype=bool))
    by_call = (launched >= 0) & (said != "")
    columns.phase[by_call] = columns.phase[launched[by_call]]
    columns.phase[rows] = columns.phase[rows] if said else kernel_phases(trace, rows)
    columns.phases_from, columns.microbatches_from = said or "kernels", "order"
    cuts = cutter(trace, columns.phase)
    others = np.setdiff1d(trace.of(*ON_STREAMS), rows)
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
                    columns.cuts.append(cut)
                    columns.layer[part] = cut.at(events.start[part], backward=phase == Phase.BACKWARD)
        beside = others[columns.iteration[others] == number]
        for column in (columns.microbatch, columns.layer):
            column[beside] = values_at(column[mine], events.start[mine], events.start[beside])
        beside = beside[~by_call[beside]]
        columns.phase[beside] = values_at(columns.phase[mine], events.start[mine], events.start[beside])
    columns.phase = np.maximum(columns.phase, Phase.NONE)


def _apply_call_numbers(
    trace: Trace, one: Iteration, rows: NDArray[np.intp], launched: Integers, columns: _Columns
) -> None:
    """Number micro-batches of kernels as annotations around their calls do."""
    main = one.rows(trace)
    main = main[trace.events.track[main] == one.thread]
    known = rows[(launched[rows] >= 0) & np.isin(columns.phase[rows], (Phase.FORWARD, *BACKWARD))]
    columns.microbatch[launched[known]] = columns.microbatch[known]
    _apply_numbers(trace, main, launched[known], columns)
    columns.microbatch[known] = columns.microbatch[launched[known]]
    _renumber_passes(columns, known)


def _build_parts(trace: Trace, found: tuple[Iteration, ...], columns: _Columns) -> Parts:
    """Build the record, with roles and the summary."""
    role = np.where(columns.layer >= 0, np.int8(Role.LAYER), np.int8(Role.OTHER))
    for place, pattern, which in ((FRONT, records.EMBEDDING, Role.EMBEDDING), (BACK, records.HEAD, Role.HEAD)):
        rows = columns.layer == place
        if trace.named(pattern)[rows].any():
            role[rows] = which
    return Parts(
        iteration=columns.iteration,
        phase=columns.phase.astype(np.int8),
        microbatch=columns.microbatch.astype(np.int32),
        layer=np.maximum(columns.layer, UNKNOWN).astype(np.int32),
        role=role,
        summary=_summary(trace, found, columns),
    )


def _summary(trace: Trace, found: tuple[Iteration, ...], columns: _Columns) -> Summary:
    """Summarise the parts, how they were found, and those that were not."""
    counts = Counter(cut.num_layers for cut in columns.cuts)
    num_layers = counts.most_common(1)[0][0] if counts else 0
    model = next((cut for cut in columns.cuts if cut.num_layers == num_layers), None)
    num_microbatches = int(columns.microbatch.max(initial=UNKNOWN)) + 1
    doubts = []
    if found and found[0].found in ("repetition", "whole"):
        how = "they were found by repetition" if found[0].found == "repetition" else "the whole trace is taken as one"
        doubts.append(f"Nothing marks iterations: {how}.")
    if not (columns.phase == Phase.BACKWARD).any():
        doubts.append("No backward pass was found: everything that could be one is taken as a forward pass.")
    if num_layers == 0:
        doubts.append("No layers were found: nothing names them, and no pass repeats itself.")
    if model and model.found == "repetition" and not trace.named(records.ATTENTION)[columns.layer >= 0].any():
        doubts.append("No layer has an attention with a known name: the repeated part may not be a layer.")
    if len(counts) > 1:
        doubts.append(f"Passes differ in their number of layers: {dict(sorted(counts.items()))} (number: passes).")
    if columns.phases_from == "kernels":
        doubts.append("There are no operators: phases are guessed from the names of kernels and their order.")
    if trace.named(records.GRAPH_LAUNCHES).any():
        doubts.append("Kernels that were launched as a graph all belong to where it was launched.")
    return Summary(
        iterations=found,
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        layer_kinds=model.kinds if model else (),
        phases_from=columns.phases_from,
        microbatches_from=columns.microbatches_from if num_microbatches else "",
        layers_from=model.found if model else "",
        doubts=tuple(doubts),
    )
