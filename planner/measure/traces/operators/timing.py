"""Times of each pass of the recorded operators, and of the remaining computation."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.fields import NARROW
from costmodel.record import record
from costmodel.timing.sampled_source import MATMULS
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace, overlap_nanoseconds
from planner.measure.traces.iterations import Iteration, iteration_numbers
from planner.measure.traces.operators.device import communication_overlap_nanoseconds
from planner.measure.traces.operators.matching import Names, backward_nodes, matches, read_operator_names
from planner.measure.traces.operators.passes import Other, Passes, TracedOperators, size_updates
from planner.measure.traces.structure.records import Nesting, find_launchers, nesting

NOT_KNOWN = "not an operator that the planner samples"

EIGHT_BITS = "its kernels have 8-bit inputs, and their FP8 recipe was not recorded"

CAUSAL = (
    "Attention without a mask is assumed to be causal where it has as many queries as keys: the profiler's flag is not "
    "read."
)


def find_operators(trace: Trace, *, parameters: int | None = None) -> TracedOperators:
    """
    Find the operators that the iterations of a trace ran, each pass with its time.

    An operator of a forward pass is identified by its name, or a sequence by those of its members; its backward pass by
    the sequence number of both. Kernels belong to the operator that launched them. The time of a pass on a device is
    the sum of its kernels; on a thread it is the operator's own time, without nested operators of others.

    Parameters
    ----------
    trace
        Trace of one rank, with shapes.
    parameters
        Elements that the rank's optimizer updates; None counts them from gradients where possible.
    """
    names, inside = read_operator_names(), nesting(trace)
    node, number = backward_nodes(trace, inside), iteration_numbers(trace)
    within = number != UNKNOWN
    found, unsized, reasons = matches(trace, inside, node, names, within)
    if unsized:
        found += size_updates(trace, number, unsized, tuple(found), parameters)
    return _time_passes(Passes(trace, inside, node, number, found), names, within, reasons)


def _time_passes(passes: Passes, names: Names, within: NDArray[np.bool_], reasons: dict[str, str]) -> TracedOperators:
    """Time the passes, and collect the rest."""
    trace, events = passes.trace, passes.trace.events
    owner = passes.nesting.inherit_values(passes.owner, unknown=UNKNOWN)
    if trace.has_device:
        launched = find_launchers(trace)
        rows = _find_computing(trace, within[np.maximum(launched, 0)] | (launched == UNKNOWN))
        owner[rows] = np.where(launched[rows] == UNKNOWN, UNKNOWN, owner[np.maximum(launched[rows], 0)])
        reasons = _remove_other_kernels(passes, names, rows, owner) | reasons
        _add_bare_products(passes, names, rows, launched, owner)
        around, spent, beside = launched, events.duration[rows], communication_overlap_nanoseconds(trace, rows)
    else:
        rows = np.flatnonzero((events.category == Category.OPERATOR) & within)
        around, spent = passes.nesting.parent, own_nanoseconds(trace, passes.nesting)[rows]
        beside = np.zeros_like(spent)
    known = owner[rows] != UNKNOWN
    sums, sums_beside = np.zeros((2, len(passes.found)), dtype=np.int64)
    np.add.at(sums, owner[rows[known]], spent[known])
    np.add.at(sums_beside, owner[rows[known]], beside[known])
    timed = zip(passes.found, sums.tolist(), sums_beside.tolist(), strict=True)
    attention = any(one.operator == "attention" and one.sizes["causal"] for one in passes.found)
    return TracedOperators(
        operators=tuple(replace(one, nanoseconds=ns, beside=of_it) for one, ns, of_it in timed),
        others=_sum_others(passes, rows[~known], spent[~known], around, reasons),
        owner=owner,
        nanoseconds=int(spent.sum()),
        doubts=(CAUSAL,) if attention else (),
    )


def _find_computing(trace: Trace, within: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return an iteration's events on streams without communication; copies over the host's link count."""
    events = trace.events
    of_device = np.isin(events.category, (Category.KERNEL, Category.FILL, Category.COPY))
    return np.flatnonzero(of_device & within & (events.message == UNKNOWN))


def own_nanoseconds(trace: Trace, inside: Nesting | None = None) -> Integers:
    """Return the time of each operator without the operators in it; shape (events,)."""
    events, inside = trace.events, inside or nesting(trace)
    is_operator = events.category == Category.OPERATOR
    around = inside.inherit_values(np.where(is_operator, np.arange(len(events)), UNKNOWN), unknown=UNKNOWN)
    own: Integers = events.duration.copy()
    nested = np.flatnonzero(is_operator & (inside.parent != UNKNOWN))
    outer = around[inside.parent[nested]]
    np.subtract.at(own, outer[outer != UNKNOWN], events.duration[nested[outer != UNKNOWN]])
    return np.maximum(own, 0)


def _remove_other_kernels(passes: Passes, names: Names, rows: NDArray[np.intp], owner: Integers) -> dict[str, str]:
    """
    Remove kernels that do not multiply from matmuls; return the reasons, by the names of the operators.

    Some operators do more than multiply. Kernels with 8-bit inputs in a 16-bit operator belong to an FP8 recipe; the
    trace tells neither the recipe nor how its casts count.
    """
    multiplies, eight = passes.trace.named(names.gemm)[rows], passes.trace.named(names.eight_bits)[rows]
    reasons: dict[str, str] = {}
    for row, is_product, is_eight in zip(rows.tolist(), multiplies.tolist(), eight.tolist(), strict=True):
        place = int(owner[row])
        if place == UNKNOWN or passes.found[place].operator not in MATMULS:
            continue
        only_products = place < len(passes.matches) and passes.matches[place].pattern.gemm
        if is_eight and passes.found[place].dtype not in NARROW:
            reasons[passes.trace.name_of(passes.found[place].row)] = EIGHT_BITS
            owner[row] = UNKNOWN
        elif only_products and not is_product:
            owner[row] = UNKNOWN
    return reasons


def _add_bare_products(
    passes: Passes, names: Names, rows: NDArray[np.intp], launched: Integers, owner: Integers
) -> None:
    """Add gradients of nodes with a kernel but no operator per product: first the input's, then the weight's."""
    events = passes.trace.events
    products = passes.trace.named(names.gemm) & ~passes.trace.named(names.eight_bits)
    free = rows[products[rows] & (owner[rows] == UNKNOWN) & (launched[rows] != UNKNOWN)]
    of_node: dict[int, list[int]] = defaultdict(list)
    for row in free[np.argsort(events.start[free], kind="stable")].tolist():
        node = int(passes.node[launched[row]])
        place = passes.match_of_node.get(node)
        if place is not None and passes.matches[place].pattern.operator in MATMULS:
            of_node[node].append(row)
    for node, kernels in of_node.items():
        missing = [one for one in ("dgrad", "wgrad") if (node, one) not in passes.taken]
        if len(kernels) == len(missing):
            for row, of_pass in zip(kernels, missing, strict=True):
                owner[row] = passes.add(passes.matches[passes.match_of_node[node]], of_pass, node)


def _sum_others(
    passes: Passes, rows: NDArray[np.intp], spent: Integers, around: Integers, reasons: dict[str, str]
) -> tuple[Other, ...]:
    """Sum the computation outside of known operators by name; a kernel has the name of its operator."""
    count: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    trace, parents = passes.trace, passes.nesting.parent
    is_operator = trace.events.category == Category.OPERATOR
    for row, ns in zip(rows.tolist(), spent.tolist(), strict=True):
        place = row if is_operator[row] else int(around[row])
        while place != UNKNOWN and not is_operator[place]:
            place = int(parents[place])
        name = trace.name_of(row if place == UNKNOWN else place)
        count[name] += 1
        nanoseconds[name] += ns
    return tuple(
        Other(name=name, reason=reasons.get(name, NOT_KNOWN), count=count[name], nanoseconds=ns)
        for name, ns in nanoseconds.most_common()
    )


LINKS = "HtoD|DtoH"

"""Parts of the names of copies over the link between host and device."""


@record(frozen=True, kw_only=True, slots=True)
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
            alone = _find_exposed_nanoseconds(starts, ends, covered_begin, covered_end)
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


def _find_exposed_nanoseconds(start: Integers, end: Integers, begins: Integers, ends: Integers) -> Integers:
    """Return the part of each interval that neither earlier ones of its kind nor some others cover."""
    order = np.lexsort((-end, start))
    latest = np.maximum.accumulate(np.append(start[order][:1], end[order]))[:-1] if len(order) else end
    fresh = np.maximum(start[order], latest) if len(order) else start
    last = np.maximum(end[order], fresh)
    found = np.zeros_like(start)
    found[order] = last - fresh - overlap_nanoseconds(fresh, last, begins, ends)
    return found
