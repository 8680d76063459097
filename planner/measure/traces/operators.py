"""Operators and messages of the cost model in a trace, with the time of each of their passes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.catalog.files import read
from costmodel.facts.fields import NARROW
from costmodel.record import record
from costmodel.timing.sampled_source import ELEMENT_BYTES, MATMULS
from planner.measure.sample.samples import COLLECTIVES, Point, Sizes
from planner.measure.traces.events import (
    UNKNOWN,
    Category,
    Integers,
    Message,
    Operands,
    Trace,
    look_up,
    overlap_nanoseconds,
)
from planner.measure.traces.iterations import BACKWARD, Iteration, iteration_numbers
from planner.measure.traces.structure import parts
from planner.measure.traces.structure.records import find_launchers, find_parents, inherit_values

BESIDE, ALONE = 0.9, 0.01

"""Share of a kernel's time above which it ran next to communication, and below which it ran alone."""

STEADY, FEWEST = 0.1, 2

"""
Largest half interquartile range over the median for kernels to count as equal work, and least number of each kind.

Persistent kernels have one grid for every size: where sizes were not recorded, only times distinguish them.
"""


Slowdown: TypeAlias = tuple[float, int]
"""
Slowdown of kernels next to communication, and the number of kernels that ran both ways.

It is the median over kinds of kernels, each weighted by its time: median next to communication over the median alone.
"""


def slowdown_beside_communication(traces: Iterable[Trace]) -> Slowdown | None:
    """
    Measure how much slower kernels of equal name, grid and inputs are while communication runs on another stream.

    Only kinds with steady times both ways count.

    Parameters
    ----------
    traces
        Traces of one kind of device; kernels are compared within a trace.

    Returns
    -------
    Slowdown or None
        None where no kind of kernel ran both ways.
    """
    ratios: list[float] = []
    weights: list[float] = []
    number = 0
    for beside, alone in (both for trace in traces for both in _both_ways(trace)):
        ratios.append(float(np.median(beside) / np.median(alone)))
        weights.append(float(beside.sum()))
        number += len(beside) + len(alone)
    if not ratios:
        return None
    return float(np.quantile(ratios, 0.5, weights=weights, method="inverted_cdf")), number


def _both_ways(trace: Trace) -> Iterator[tuple[Integers, Integers]]:
    """Yield the nanoseconds next to communication and alone, of each kind of kernel that is steady in both."""
    events = trace.events
    is_kernel = events.category == Category.KERNEL
    computing = np.flatnonzero(is_kernel & (events.message == UNKNOWN) & (events.duration > 0))
    spent = pd.Series(events.duration[computing])
    share = communication_overlap_nanoseconds(trace, computing) / spent
    kinds = [events.name[computing], events.blocks[computing], _operands(trace, computing)]
    for _, own in spent.groupby(kinds, sort=False):
        beside, alone = (own[chosen[own.index]].to_numpy() for chosen in (share >= BESIDE, share <= ALONE))
        if _is_steady(beside) and _is_steady(alone):
            yield beside, alone


def communication_overlap_nanoseconds(trace: Trace, rows: NDArray[np.intp]) -> Integers:
    """Return the nanoseconds of each event on a stream during which communication runs on any stream; shape (rows,)."""
    events = trace.events
    talking = np.flatnonzero((events.category == Category.KERNEL) & (events.message != UNKNOWN))
    return overlap_nanoseconds(events.start[rows], events.end[rows], events.start[talking], events.end[talking])


def _is_steady(nanoseconds: Integers) -> bool:
    if len(nanoseconds) < FEWEST:
        return False
    low, median, high = np.quantile(nanoseconds, (0.25, 0.5, 0.75))
    return bool((high - low) / 2 <= STEADY * median)


def _operands(trace: Trace, rows: NDArray[np.intp]) -> Integers:
    """Return the inputs of the operator that launched each kernel; ``UNKNOWN`` where they were not recorded."""
    events = trace.events
    operators = trace.find_rows(Category.OPERATOR)
    operators = operators[events.external[operators] != UNKNOWN]
    return look_up(events.external[rows], events.external[operators], events.operands[operators])


def late_launches(trace: Trace) -> Integers:
    """
    Return nanoseconds between the calls of two consecutive kernels for which streams waited.

    A kernel is late if its call begins when its stream is already idle. If two consecutive kernels of a stream are
    late and one thread launches both, the time between their calls is the CPU launch overhead of a kernel. Calls with
    an interruption between them, such as a wait for the device, are longer, and so is the begin of a pass: use the
    median.

    Parameters
    ----------
    trace
        Trace of one rank.
    """
    events = trace.events
    rows = trace.find_rows(Category.KERNEL)
    call = find_launchers(trace)[rows]
    rows, call = rows[call != UNKNOWN], call[call != UNKNOWN]
    order = np.lexsort((events.start[rows], events.track[rows]))
    rows, call = rows[order], call[order]
    if len(rows) < 3:
        return np.zeros(0, dtype=np.int64)
    same = events.track[rows[1:]] == events.track[rows[:-1]]
    late = np.r_[False, same & (events.start[call[1:]] >= events.end[rows[:-1]])]
    both = late[1:] & late[:-1] & (events.track[call[1:]] == events.track[call[:-1]])
    between: Integers = (events.start[call[1:]] - events.start[call[:-1]])[both]
    return between[between > 0]


WHOLE_OUTPUT = ("all_gather", "recv")

"""Operations whose output holds the whole tensor, as in the table of samples; of all others it is the input."""

ELEMENTS: Mapping[str, tuple[str, int]] = {
    "float": ("fp32", 4),
    "c10::float": ("fp32", 4),
    "bfloat16": ("bf16", 2),
    "c10::bfloat16": ("bf16", 2),
    "half": ("fp16", 2),
    "c10::half": ("fp16", 2),
    "byte": ("fp8", 1),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
}

"""Types in lower case as in NCCL's and Gloo's records, and bytes of an element. 8-bit tensors are recorded as bytes."""


Sent: TypeAlias = tuple[Point, int, bool]
"""
A collective, or one message from a rank to another, with its nanoseconds; True where all of its ranks were recorded.

The time is the least over the recorded ranks: the last rank to arrive does not wait for others. A rank that was not
recorded may have arrived later.
"""


def find_messages(traces: Sequence[Trace], devices_per_node: int = 0) -> tuple[list[Sent], Counter[str]]:
    """
    Return the messages of all iterations; and the number of messages without size or kind, by their names.

    The n-th collective of a kind in a group is joined over the group's ranks. The n-th send between two ranks is joined
    with their n-th receive.

    Parameters
    ----------
    traces
        Traces of ranks of one job.
    devices_per_node
        Devices of a host; 0 where ranks are threads of one host.
    """
    joined: dict[Hashable, list[tuple[Message, int]]] = defaultdict(list)
    unknown: Counter[str] = Counter()
    for place, trace in enumerate(traces):
        count: Counter[Hashable] = Counter()
        for row, message in _messages(trace):
            ns, dtype = int(trace.events.duration[row]), message.dtype.lower()
            if ns <= 0:
                continue
            if message.operation not in (*COLLECTIVES, "recv") or dtype not in ELEMENTS or not _num_elements(message):
                unknown[message.operation or trace.name_of(row)] += 1
                continue
            key = _key(message, trace.rank if trace.rank is not None else place)
            joined[key, count[key]].append((message, ns))
            count[key] += 1
    found = (_join_messages(several, devices_per_node) for several in joined.values())
    return [one for one in found if one], unknown


def _messages(trace: Trace) -> Iterator[tuple[int, Message]]:
    """Yield rows with a message: kernels, or without a device the library's annotations on its thread."""
    of = Category.KERNEL if trace.has_device else Category.ANNOTATION
    chosen = (trace.events.message != UNKNOWN) & (trace.events.category == of) & (iteration_numbers(trace) != UNKNOWN)
    for row in np.flatnonzero(chosen).tolist():
        yield row, trace.messages[int(trace.events.message[row])]


def _num_elements(message: Message) -> int:
    return message.elements_out if message.operation in WHOLE_OUTPUT else message.elements_in


def _key(message: Message, rank: int) -> tuple[Hashable, ...]:
    if message.operation in ("send", "recv"):
        ends = (rank, message.peer) if message.operation == "send" else (message.peer, rank)
        return ("send", message.group, *ends)
    return (message.operation, message.group, message.ranks, _num_elements(message))


def _join_messages(several: Sequence[tuple[Message, int]], devices_per_node: int) -> Sent | None:
    """Join what the ranks recorded of a message; None where it has one rank, or its hosts have unequal shares of it."""
    first = several[0][0]
    is_pair = first.operation in ("send", "recv")
    number, ranks = (2, ()) if is_pair else (first.num_ranks or len(first.ranks), first.ranks)
    nodes = 1
    if devices_per_node:  # by its ranks, or the fewest with as many devices
        hosts = {rank // devices_per_node for rank in ranks}
        nodes = len(hosts) or -(-number // devices_per_node)
    dtype, element = ELEMENTS[first.dtype.lower()]
    if number < 2 or number % nodes or dtype not in ELEMENT_BYTES:
        return None
    sizes = Sizes(nbytes=element * _num_elements(first), ranks=number, nodes=nodes)
    point = Point("send" if is_pair else first.operation, "forward", dtype, sizes)
    return point, min(ns for _, ns in several), len(several) >= number


# --- operators of forward passes -----------------------------------------------------------------------------
FILE = "operators.yaml"

"""In the catalog."""


@record(frozen=True, kw_only=True, slots=True)
class Pattern:
    """
    A recorded operator, or a sequence of them, and its name in the cost model; the file describes each entry.

    Parameters
    ----------
    operator
        Name in the table of samples.
    sequence
        Names that each member may have.
    sizes
        Place of each size.
    at, dtype
        The member whose inputs have the sizes, and the input whose type counts.
    mask
        Input that is a mask; None where there is none.
    alike, gemm
        True where both inputs must have equal sizes; True where only GEMM kernels count.
    """

    operator: str
    sequence: tuple[frozenset[str], ...]
    sizes: Mapping[str, str] = field(hash=False)
    at: int = 0
    dtype: int = 0
    mask: int | None = None
    alike: bool = False
    gemm: bool = False

    def sizes_of(self, operands: Operands) -> dict[str, int] | None:
        """Return the sizes of a recorded operator; None where its inputs do not have them."""
        if self.alike and (len(operands.sizes) < 2 or operands.sizes[0] != operands.sizes[1]):
            return None
        try:
            found = {name: _size(where, operands.sizes) for name, where in self.sizes.items()}
        except (IndexError, StopIteration):
            return None
        if self.alike and len(operands.sizes[0]) < 2:
            return None
        if self.operator == "attention":
            unmasked = self.mask is None or len(operands.sizes) <= self.mask or not operands.sizes[self.mask]
            found["causal"] = int(unmasked and found["queries"] == found["keys"])
        return found if all(size > 0 for name, size in found.items() if name != "causal") else None


def _size(where: str, sizes: tuple[tuple[int, ...], ...]) -> int:
    """
    Return one size of an operator's inputs.

    >>> _size("1.-1", ((4, 8), (16, 8))), _size("0.rows", ((2, 4, 8),)), _size("0.repeated", ((9, 4, 8), (9, 1, 8)))
    (8, 8, 4)
    """
    place, _, which = where.partition(".")
    if place.startswith("all"):
        return sum(prod(one) for one in sizes if one) // int(place.partition("/")[2])
    one = sizes[int(place)]
    if which == "rows":
        return prod(one[:-1]) if len(one) > 1 else 0
    if which == "elements":
        return prod(one)
    if which in ("repeated", "rest"):
        along = _broadcast_size(one, sizes[int(place) + 1])
        return along if which == "repeated" else prod(one[:-1]) // along
    return one[int(which)]


def _broadcast_size(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the size along which the other tensor is broadcast; 1 where it is not."""
    beside = (1,) * (len(one) - len(other)) + other
    return next((size for size, least in zip(one[:-1], beside[:-1], strict=True) if least == 1 and size > 1), 1)


@cache
def _names() -> Mapping[str, Any]:
    """Names of the profiler in the catalog: of operators, views, types and kernels."""
    return cast("Mapping[str, Any]", read(FILE))


@cache
def operator_patterns() -> tuple[Pattern, ...]:
    """Patterns of recorded operators, in the order of the catalog's file."""
    return tuple(
        Pattern(**{**one, "sequence": tuple(frozenset(member.split("|")) for member in one["sequence"])})
        for one in _names()["operators"]
    )


@record(frozen=True, kw_only=True, slots=True)
class Match:
    """
    An operator of a forward pass.

    Parameters
    ----------
    pattern
        The pattern that matched.
    dtype, sizes
        Type and sizes as in the table of samples.
    rows
        The events of its sequence, views between them included.
    """

    pattern: Pattern
    dtype: str
    sizes: Mapping[str, int]
    rows: tuple[int, ...]


def backward_nodes(trace: Trace, parents: Integers) -> Integers:
    """
    Return the row of autograd's node around each event, itself included; ``UNKNOWN`` in forward passes.

    Recomputation in a node is a forward pass: its operators have their own sequence numbers.
    """
    events = trace.events
    starts = trace.match_name(f"^{BACKWARD}") & (events.category == Category.OPERATOR)
    parent = np.maximum(parents, 0)  # operators that nodes run first have the node's sequence number
    is_inner = (parents != UNKNOWN) & starts[parent] & (events.sequence == events.sequence[parent])
    again = (events.sequence != UNKNOWN) & ~is_inner
    found = [UNKNOWN] * len(events)
    rows = zip(starts.tolist(), again.tolist(), parents.tolist(), strict=True)
    for row, (is_node, is_again, around) in enumerate(rows):
        if is_node:
            found[row] = row
        elif around != UNKNOWN and not is_again:
            found[row] = found[around]
    return np.array(found, dtype=np.int64)


def _siblings(trace: Trace, parents: Integers, rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Group rows by parent and thread, in the order in which they ran; outer groups first."""
    order = np.lexsort((rows, trace.events.track[rows], parents[rows]))
    rows = rows[order]
    parent, track = parents[rows], trace.events.track[rows]
    breaks = np.flatnonzero((parent[1:] != parent[:-1]) | (track[1:] != track[:-1])) + 1
    return [group for group in np.split(rows, breaks) if len(group)]


class _Search:
    """
    Operators of forward passes, searched from outer to inner operators, without those inside a match.

    Parameters
    ----------
    trace, parents, node
        A trace, and the innermost event and the node of autograd around each.
    within
        True for events that count; shape (events,).

    Attributes
    ----------
    found, unsized
        Matches, and updates without sizes.
    reasons
        Reasons that names did not match.
    """

    def __init__(self, trace: Trace, parents: Integers, node: Integers, within: NDArray[np.bool_]) -> None:
        self.found, self.unsized = list[Match](), list[Match]()
        self.reasons: dict[str, str] = {}
        self._trace, self._inside = trace, set[int]()
        self._views, self._dtypes = frozenset(_names()["views"]), _names()["dtypes"]
        self._by_first: dict[str, list[Pattern]] = defaultdict(list)
        for pattern in operator_patterns():
            for name in pattern.sequence[0]:
                self._by_first[name].append(pattern)
        rows = np.flatnonzero((trace.events.category == Category.OPERATOR) & within & (node == UNKNOWN))
        for siblings in _siblings(trace, parents, rows):
            self._search_among(siblings, int(parents[siblings[0]]))

    def _search_among(self, siblings: NDArray[np.intp], parent: int) -> None:
        """Look for sequences among consecutive operators."""
        rows = siblings.tolist()
        if parent in self._inside:
            self._inside.update(rows)
            return
        names = [self._trace.names[name] for name in self._trace.events.name[siblings].tolist()]
        place = 0
        while place < len(rows):
            place = self._search_at(rows, names, place) if names[place] in self._by_first else place + 1

    def _search_at(self, rows: list[int], names: list[str], place: int) -> int:
        """Return the next place to search: after the sequence that begins here, else one further."""
        reasons: dict[str, str] = {}
        for pattern in self._by_first[names[place]]:
            members = self._members(pattern, names, place)
            if members and self._take(pattern, rows, members, reasons):
                return members[-1] + 1
        for name, reason in reasons.items():
            self.reasons.setdefault(name, reason)
        return place + 1

    def _members(self, pattern: Pattern, names: list[str], place: int) -> list[int]:
        """Return the places of a sequence that begins here; [] if it does not."""
        members = [place]
        for allowed in pattern.sequence[1:]:
            place += 1
            while place < len(names) and names[place] in self._views and names[place] not in allowed:
                place += 1
            if place >= len(names) or names[place] not in allowed:
                return []
            members.append(place)
        return members

    def _take(self, pattern: Pattern, rows: list[int], members: list[int], reasons: dict[str, str]) -> bool:
        row = rows[members[pattern.at]]
        name, place = self._trace.name_of(row), int(self._trace.events.operands[row])
        if place == UNKNOWN:
            reasons[name] = NO_SHAPES
            return False
        operands = self._trace.operands[place]
        sizes = pattern.sizes_of(operands)
        dtype = operands.dtypes[pattern.dtype] if pattern.dtype < len(operands.dtypes) else ""
        own = tuple(rows[members[0] : members[-1] + 1])
        if sizes is None and dtype == LIST and not any(operands.sizes):
            self.unsized.append(Match(pattern=pattern, dtype=self._dtypes[dtype], sizes={}, rows=own))
            reasons[name] = LONG_LIST
            return False
        if sizes is None or dtype not in self._dtypes:
            if not pattern.alike:
                reasons[name] = f"inputs {_sizes_text(operands.sizes)} of type {dtype or 'unknown'}"
            return False
        self.found.append(Match(pattern=pattern, dtype=self._dtypes[dtype], sizes=sizes, rows=own))
        self._inside.update(own)
        return True


LIST = "TensorList"

"""The profiler's type of a list of tensors."""

LONG_LIST = "PyTorch records no sizes of lists of more than 30 tensors; pass --job with its strategy to count them"

"""
Reason that most updates have no sizes (``TENSOR_LIST_DISPLAY_LENGTH_LIMIT`` in ``torch/csrc/profiler/util.h``), if
gradients have none either.
"""

NO_SHAPES = "no shapes were recorded (torch.profiler.profile(record_shapes=True))"

"""Reason that operators known only by name have no sizes."""


def _sizes_text(sizes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(" x ".join(str(size) for size in one) or "-" for one in sizes[:4])


# --- all passes ----------------------------------------------------------------------------------------------
@record(frozen=True, slots=True)
class TracedPass:
    """
    One pass of one operator, run once in one iteration.

    Parameters
    ----------
    operator, of_pass, dtype
        Names in the table of samples; ``backward`` is the pass of operators that are not matmuls.
    sizes
        Sizes by the names of the table's columns, those of the forward pass.
    row
        Its event: the operator in the forward pass, else the node of autograd or the operator in it.
    iteration
        Place in the trace's iterations.
    nanoseconds
        Sum of its kernels on a device, else its own time on its thread.
    beside
        Nanoseconds of these during which the device also communicated.
    """

    operator: str
    of_pass: str
    dtype: str
    sizes: Mapping[str, int] = field(hash=False)
    row: int
    iteration: int
    nanoseconds: int = 0
    beside: int = 0


@record(frozen=True, kw_only=True, slots=True)
class Other:
    """
    A recorded operator or kernel that the cost model does not know.

    Parameters
    ----------
    name
        Name of the operator, else of the kernel.
    reason
        Reason that it is not known.
    count, nanoseconds
        Number of times that it was recorded, and their total time.
    """

    name: str
    reason: str
    count: int
    nanoseconds: int


@record(frozen=True, kw_only=True, slots=True)
class TracedOperators:
    """
    All computation of a trace's iterations: known operators, and the rest.

    Parameters
    ----------
    operators
        Each pass of a known operator.
    others
        All other computation, the longest first.
    owner
        Place in ``operators`` of each event that is part of one: shape (events,); ``UNKNOWN`` for others.
    nanoseconds
        Total time of computation: kernels, fills and copies inside of the device, without communication; operators on
        threads where there is no device.
    doubts
        Sentences on assumptions.
    """

    operators: tuple[TracedPass, ...]
    others: tuple[Other, ...]
    owner: Integers = field(repr=False)
    nanoseconds: int
    doubts: tuple[str, ...] = ()


def forward_of_nodes(trace: Trace, parents: Integers, around: Integers, of_match: Integers) -> dict[int, int]:
    """
    Return the match to which each node of autograd belongs, by the node's row; nodes of other operators are left out.

    The operator that made a node is the last one that began with its sequence number. Numbers are counted per thread.
    Nodes name the thread by a number of the profiler; it is the thread that explains most of their numbers.

    Parameters
    ----------
    trace, parents, around
        A trace, and the innermost event and the node of autograd around each.
    of_match
        Place of the match that contains each event, shape (events,).
    """
    events = trace.events
    operators = (events.category == Category.OPERATOR) & (events.sequence != UNKNOWN)
    forward = np.flatnonzero(operators & (around == UNKNOWN))
    nodes = np.flatnonzero(operators & (around == np.arange(len(events))))
    keys = zip(events.track[forward].tolist(), events.sequence[forward].tolist(), strict=True)
    made = dict(zip(keys, forward.tolist(), strict=True))
    threads = np.unique(events.track[forward]).tolist()
    inner = _only_match_inside(parents, of_match)
    found: dict[int, int] = {}
    for number in np.unique(events.forward_thread[nodes]).tolist():
        own = nodes[events.forward_thread[nodes] == number].tolist()
        numbers = events.sequence[own].tolist()
        explained = Counter({track: sum((track, one) in made for one in numbers) for track in threads})
        track = explained.most_common(1)[0][0] if explained else UNKNOWN
        for node, one in zip(own, numbers, strict=True):
            maker = made.get((track, one), UNKNOWN)
            if maker == UNKNOWN or events.start[maker] > events.start[node]:
                continue
            place = int(of_match[maker])
            place = inner.get(maker, UNKNOWN) if place == UNKNOWN else place
            if place != UNKNOWN:
                found[node] = place
    return found


def _only_match_inside(parents: Integers, of_match: Integers) -> dict[int, int]:
    """Return the match within operators that contain exactly one: custom functions around an operator."""
    own = np.flatnonzero(of_match != UNKNOWN)
    outermost = own[(parents[own] == UNKNOWN) | (of_match[np.maximum(parents[own], 0)] != of_match[own])]
    inside: dict[int, int | None] = {}
    for row in outermost.tolist():
        place, around = int(of_match[row]), int(parents[row])
        while around != UNKNOWN:
            inside[around] = place if inside.setdefault(around, place) == place else None
            around = int(parents[around])
    return {around: place for around, place in inside.items() if place is not None}


MULTIPLICATIONS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm"))

"""Operators by which autograd multiplies."""

SUMS = frozenset({"aten::add", "aten::add_"})

"""Operators by which autograd adds gradients of a tensor that was used twice."""

ONLY_FORWARD = ("residual", "adam")

"""Operators without a backward pass: a sum passes its gradient on unchanged."""


class Passes:
    """
    All passes of the operators found in forward passes, and the events of each.

    Parameters
    ----------
    trace, parents, node
        A trace, and the innermost event and the node of autograd around each.
    number
        Iteration of each event, shape (events,).
    matches
        Operators of its forward passes; the n-th pass is the forward pass of the n-th operator.
    """

    def __init__(
        self, trace: Trace, parents: Integers, node: Integers, number: Integers, matches: Sequence[Match]
    ) -> None:
        self.trace, self.parents, self.node, self.matches, self._number = trace, parents, node, matches, number
        self.found: list[TracedPass] = []
        self.owner = np.full(len(trace.events), UNKNOWN, dtype=np.int64)
        self.taken: set[tuple[int, str]] = set()
        self._add_forward()
        of_match = inherit_values(parents, self.owner, unknown=UNKNOWN)
        self.match_of_node = forward_of_nodes(trace, parents, node, of_match)
        self._add_backward()
        self._add_products()
        self._add_sums()

    def add(self, match: Match, of_pass: str, row: int) -> int:
        """Add a pass without events; return its number."""
        operator, iteration = match.pattern.operator, int(self._number[row])
        self.found.append(TracedPass(operator, of_pass, match.dtype, match.sizes, row, iteration))
        return len(self.found) - 1

    def _add_forward(self) -> None:
        for match in self.matches:
            row = match.rows[min(match.pattern.at, len(match.rows) - 1)]
            self.owner[list(match.rows)] = self.add(match, "forward", row)

    def _add_backward(self) -> None:
        """Add the backward passes of operators other than matmuls: all nodes of an operator together."""
        several: dict[int, list[int]] = defaultdict(list)
        for node, place in self.match_of_node.items():
            if self.matches[place].pattern.operator not in (*MATMULS, *ONLY_FORWARD):
                several[place].append(node)
        for place, nodes in several.items():
            self.owner[nodes] = self.add(self.matches[place], "backward", nodes[0])

    def _add_products(self) -> None:
        """Add the gradients of inputs and weights of matmuls, by the sizes of the products in their nodes."""
        for row in self._find_rows_in_nodes(MULTIPLICATIONS):
            node = int(self.node[row])
            place, operands = self.match_of_node.get(node), int(self.trace.events.operands[row])
            if place is None or operands == UNKNOWN or self.owner[self.parents[row]] != UNKNOWN:
                continue
            match = self.matches[place]
            if match.pattern.operator not in MATMULS:
                continue
            for of_pass in _find_gradient_passes(match, self.trace.operands[operands].sizes):
                if (node, of_pass) not in self.taken:
                    self.taken.add((node, of_pass))
                    self.owner[row] = self.add(match, of_pass, row)
                    break

    def _add_sums(self) -> None:
        """Add the sums of a residual's gradients, which autograd runs as operators, too."""
        (residual,) = (one for one in operator_patterns() if one.operator == "residual")
        added = {tuple(one.sizes.items()) for one in self.found if one.operator == "residual"}
        for row in self._find_rows_in_nodes(SUMS):
            place = int(self.trace.events.operands[row])
            if self.parents[row] != self.node[row] or place == UNKNOWN:
                continue
            operands = self.trace.operands[place]
            sizes, dtype = residual.sizes_of(operands), _names()["dtypes"].get(operands.dtypes[0])
            if sizes and tuple(sizes.items()) in added and dtype:
                match = Match(pattern=residual, dtype=dtype, sizes=sizes, rows=(row,))
                self.owner[row] = self.add(match, "forward", row)

    def _find_rows_in_nodes(self, names: frozenset[str]) -> list[int]:
        known = np.array([name in names for name in self.trace.names], dtype=bool)
        inside = (self.node != UNKNOWN) & (self.trace.events.category == Category.OPERATOR)
        rows: list[int] = np.flatnonzero(known[self.trace.events.name] & inside).tolist()
        return rows


def _find_gradient_passes(match: Match, sizes: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    """
    Yield the gradients of a matmul that a product may be, by its sizes.

    For y = x w, the gradient of x multiplies (m, n) by (n, k), that of w sums over m. Both have equal sizes where m is
    n: then autograd computes the weight's first.
    """
    sides = [one[-2:] for one in sizes if len(one) > 1][-2:]
    m, n, k = (match.sizes[name] for name in ("m", "n", "k"))
    if len(sides) < 2:
        return
    left, right = sides
    if (left, right) in (((n, m), (m, k)), ((k, m), (m, n))):
        yield "wgrad"
    if (left, right) == ((m, n), (n, k)):
        yield "dgrad"


GRADIENT = "torch::autograd::AccumulateGrad"

"""Operator that adds a gradient of the backward pass to that of one parameter, whose sizes are those of its input."""

SHARDED = ("reduce_scatter", "all_gather", "broadcast")

"""Collectives of ranks whose optimizer may update only a shard of the parameters."""

STAGES = ("send", "recv")

"""Messages between pipeline stages; a rank may have several stages, each with its own parameters."""


def size_updates(
    trace: Trace, number: Integers, unsized: Sequence[Match], known: Sequence[Match], parameters: int | None
) -> Iterator[Match]:
    """
    Yield updates of lists without sizes, one per iteration; none where the number of elements is unknown.

    Parameters
    ----------
    trace, number
        A trace, and the iteration of each of its events.
    unsized, known
        Updates of lists without sizes, and operators with sizes, whose elements are not updated twice.
    parameters
        Elements that the rank updates in a step; None counts those with a gradient.
    """
    several: dict[int, list[Match]] = defaultdict(list)
    for one in unsized:
        several[int(number[one.rows[0]])].append(one)
    sized: Counter[int] = Counter()
    for one in known:
        if one.pattern.operator == "adam":
            sized[int(number[one.rows[0]])] += one.sizes["n"]
    elements = gradient_elements(trace, number) if parameters is None else dict.fromkeys(several, parameters)
    for iteration, updates in several.items():
        rest = elements.get(iteration, 0) - sized[iteration]
        if rest > 0:
            rows = tuple(row for one in updates for row in one.rows)
            yield replace(updates[0], sizes={"n": rest}, rows=rows)


def gradient_elements(trace: Trace, number: Integers) -> Mapping[int, int]:
    """
    Count the elements of parameters with a gradient, by iteration; iterations with an uncertain count are left out.

    Each micro-batch adds to the gradient of each parameter once. With sharded optimizer states the updated elements
    differ from those with a gradient. Passes of several stages on a rank can be told from micro-batches only by
    annotations.

    Parameters
    ----------
    trace, number
        A trace, and the iteration of each of its events.
    """
    operations = {message.operation for message in trace.messages}
    summary = parts(trace)
    passes = max(summary.num_microbatches, 1)
    if operations.intersection(SHARDED):
        return {}
    if operations.intersection(STAGES) and summary.microbatches_from != "annotations" and passes > 1:
        return {}
    counts: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row in np.flatnonzero(
        trace.match_name(f"^{GRADIENT}$") & (trace.events.category == Category.OPERATOR)
    ).tolist():
        place = int(trace.events.operands[row])
        if place != UNKNOWN and trace.operands[place].sizes:
            counts[int(number[row])][trace.operands[place].sizes[0]] += 1
    return {
        iteration: sum(prod(sizes) * count for sizes, count in own.items()) // passes
        for iteration, own in counts.items()
        if not any(count % passes for count in own.values())
    }


# --- times ---------------------------------------------------------------------------------------------------
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
    parents = find_parents(trace)
    node, number = backward_nodes(trace, parents), iteration_numbers(trace)
    within = number != UNKNOWN
    search = _Search(trace, parents, node, within)
    found = search.found
    if search.unsized:
        found += size_updates(trace, number, search.unsized, tuple(found), parameters)
    return _time_passes(Passes(trace, parents, node, number, found), within, search.reasons)


def _time_passes(passes: Passes, within: NDArray[np.bool_], reasons: dict[str, str]) -> TracedOperators:
    """Time the passes, and collect the rest."""
    trace, events = passes.trace, passes.trace.events
    owner = inherit_values(passes.parents, passes.owner, unknown=UNKNOWN)
    if trace.has_device:
        launched = find_launchers(trace)
        rows = _find_computing(trace, within[np.maximum(launched, 0)] | (launched == UNKNOWN))
        owner[rows] = np.where(launched[rows] == UNKNOWN, UNKNOWN, owner[np.maximum(launched[rows], 0)])
        reasons = _remove_other_kernels(passes, rows, owner) | reasons
        _add_bare_products(passes, rows, launched, owner)
        around, spent, beside = launched, events.duration[rows], communication_overlap_nanoseconds(trace, rows)
    else:
        rows = np.flatnonzero((events.category == Category.OPERATOR) & within)
        around, spent = passes.parents, own_nanoseconds(trace, passes.parents)[rows]
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


def own_nanoseconds(trace: Trace, parents: Integers) -> Integers:
    """Return the time of each operator without the operators in it; shape (events,)."""
    events = trace.events
    is_operator = events.category == Category.OPERATOR
    around = inherit_values(parents, np.where(is_operator, np.arange(len(events)), UNKNOWN), unknown=UNKNOWN)
    own: Integers = events.duration.copy()
    nested = np.flatnonzero(is_operator & (parents != UNKNOWN))
    outer = around[parents[nested]]
    np.subtract.at(own, outer[outer != UNKNOWN], events.duration[nested[outer != UNKNOWN]])
    return np.maximum(own, 0)


def _remove_other_kernels(passes: Passes, rows: NDArray[np.intp], owner: Integers) -> dict[str, str]:
    """
    Remove kernels that do not multiply from matmuls; return the reasons, by the names of the operators.

    Some operators do more than multiply. Kernels with 8-bit inputs in a 16-bit operator belong to an FP8 recipe; the
    trace tells neither the recipe nor how its casts count.
    """
    multiplies, eight = (
        passes.trace.match_name(_names()["gemm"])[rows],
        passes.trace.match_name(_names()["eight_bits"])[rows],
    )
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


def _add_bare_products(passes: Passes, rows: NDArray[np.intp], launched: Integers, owner: Integers) -> None:
    """Add gradients of nodes with a kernel but no operator per product: first the input's, then the weight's."""
    events = passes.trace.events
    products = passes.trace.match_name(_names()["gemm"]) & ~passes.trace.match_name(_names()["eight_bits"])
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
    trace, parents = passes.trace, passes.parents
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


Shares: TypeAlias = tuple[NDArray[np.intp], Integers, Integers, int]
"""
Breakdown of a rank's iteration: its rows, their exposed and their hidden nanoseconds, and the idle ones.

Exposed is the time of computation that no earlier one covers. For copies and communication it is the time that neither
computation nor an earlier one covers. With the idle time it sums to the iteration. Hidden is communication overlapped
with computation.
"""


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
            alone = own_nanoseconds(trace, find_parents(trace))[layer]
        else:
            alone = _find_exposed_nanoseconds(starts, ends, covered_begin, covered_end)
        rows.append(layer)
        exposed.append(alone)
        hidden.append(overlap_nanoseconds(starts, ends, covered_begin, covered_end))
        covered_begin, covered_end = np.append(covered_begin, starts), np.append(covered_end, ends)
    spent = np.concatenate(exposed)
    return np.concatenate(rows), spent, np.concatenate(hidden), iteration.duration - int(spent.sum())


def _device_rows(trace: Trace) -> tuple[NDArray[np.intp], ...]:
    events = trace.events
    runs = np.isin(events.category, (Category.KERNEL, Category.FILL, Category.COPY))
    copies = runs & (events.category == Category.COPY) & trace.match_name(LINKS)
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
