"""Passes of the operators that a trace recorded, and how long each took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.operators.sampled_shapes import MATMULS
from costmodel.traces.events import UNKNOWN, Category, Integers, Trace
from costmodel.traces.iterations import iterations
from costmodel.traces.operators.autograd import forward_of_nodes
from costmodel.traces.operators.matching import Backward, Match, backward_nodes, matches
from costmodel.traces.operators.names import Names, known_names
from costmodel.traces.operators.records import Other, Recorded, RecordedOperators
from costmodel.traces.structure.nesting import Nesting, launched_by, nesting

MULTIPLICATIONS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm"}
)
"""Operators by which autograd multiplies."""

SUMS = frozenset({"aten::add", "aten::add_"})
"""Operators by which autograd adds up the gradients of what was used twice."""

ONLY_FORWARD = ("residual", "adam")
"""Operators without a backward pass: the gradient of a sum is handed on."""

NOT_KNOWN = "no operator that the planner samples"
CAUSAL = (
    "Attention without a mask is taken to be causal where it has as many queries as keys: the profiler's flag is not read."
)


def recorded_operators(trace: Trace) -> RecordedOperators:
    """
    The operators that the iterations of a trace ran, each of their passes with its time.

    An operator of a forward pass is known by its name, or a sequence by those of its members; its backward pass by the
    number that autograd gave both. Kernels belong to the operator in which they were launched. On the device the time of
    a pass is the sum of its kernels, on a thread what it took there, less what does not belong to it.

    Parameters
    ----------
    trace
        Of one rank, with shapes.
    """
    names, inside = known_names(), nesting(trace)
    backward = backward_nodes(trace, inside)
    within, number = _iteration_of(trace)
    found, reasons = matches(trace, inside, backward, names, within)
    passes = _Passes(trace, inside, backward, number)
    passes.add(found)
    return _timed(trace, inside, names, passes, within, reasons)


def _iteration_of(trace: Trace) -> tuple[NDArray[np.bool_], Integers]:
    """Which events begin in an iteration, and in which; both of shape (events,)."""
    steps, start = iterations(trace), trace.events.start
    begins = np.array([one.begin for one in steps], dtype=np.int64)
    ends = np.array([one.end for one in steps], dtype=np.int64)
    number = np.searchsorted(begins, start, side="right") - 1
    within = (number >= 0) & (start < ends[np.maximum(number, 0)]) if len(steps) else np.zeros(len(start), dtype=bool)
    return within, number


@dataclass
class _Passes:
    """Collects passes, and which events each of them is made of."""

    trace: Trace
    nesting: Nesting
    backward: Backward
    number: Integers

    def __post_init__(self) -> None:
        events = len(self.trace.events)
        self.found: list[Recorded] = []
        self.matches: list[Match] = []
        self.owner = np.full(events, UNKNOWN, dtype=np.int64)
        self.match_of_node: dict[int, int] = {}

    def add(self, matches: list[Match]) -> None:
        """All passes of operators that were found in forward passes."""
        of_match = np.full(len(self.trace.events), UNKNOWN, dtype=np.int64)
        for place, match in enumerate(matches):
            of_match[list(match.rows)] = place
            self.add_pass(match, "forward", match.rows)
        self.matches = matches
        of_match = self.nesting.handed_down(of_match, unknown=UNKNOWN)
        self.match_of_node = forward_of_nodes(self.trace, self.nesting, self.backward, of_match)
        children: dict[int, list[int]] = defaultdict(list)
        for node, place in self.match_of_node.items():
            if matches[place].pattern.operator not in (*MATMULS, *ONLY_FORWARD):
                children[place].append(node)
        for place, nodes in children.items():
            self.add_pass(matches[place], "backward", tuple(nodes))
        self._add_products()
        self._add_sums()

    def add_pass(self, match: Match, of_pass: str, rows: tuple[int, ...]) -> None:
        self.owner[list(rows)] = len(self.found)
        row = rows[min(match.pattern.at, len(rows) - 1)] if of_pass == "forward" else rows[0]
        self.found.append(
            Recorded(
                operator=match.pattern.operator,
                of_pass=of_pass,
                dtype=match.dtype,
                sizes=match.sizes,
                row=row,
                iteration=int(self.number[row]),
            )
        )

    def _add_products(self) -> None:
        """Gradients of inputs and weights of matmuls, by the sizes of the products in their nodes."""
        taken: set[tuple[int, str]] = set()
        for row in self._in_nodes(MULTIPLICATIONS):
            node = int(self.backward.node[row])
            place, operands = self.match_of_node.get(node), int(self.trace.events.operands[row])
            if place is None or operands == UNKNOWN or self.owner[self.nesting.parent[row]] != UNKNOWN:
                continue
            match = self.matches[place]
            for of_pass in _passes_of(match, self.trace.operands[operands].sizes):
                if (node, of_pass) not in taken:
                    taken.add((node, of_pass))
                    self.add_pass(match, of_pass, (row,))
                    break
        self.taken = taken

    def _add_sums(self) -> None:
        """Gradients of what a residual was added to and a block read: autograd adds them up as the forward pass does."""
        (residual,) = (one for one in known_names().patterns if one.operator == "residual")
        added = [one.sizes for one in self.found if one.operator == "residual"]
        for row in self._in_nodes(SUMS):
            place = int(self.trace.events.operands[row])
            if self.nesting.parent[row] != self.backward.node[row] or place == UNKNOWN:
                continue
            operands = self.trace.operands[place]
            sizes, dtype = residual.sizes_of(operands), known_names().dtypes.get(operands.dtypes[0])
            if sizes in added and dtype:
                self.add_pass(Match(pattern=residual, dtype=dtype, sizes=sizes, rows=(row,)), "forward", (row,))

    def _in_nodes(self, names: frozenset[str]) -> list[int]:
        known = np.array([name in names for name in self.trace.names], dtype=bool)
        inside = (self.backward.node != UNKNOWN) & (self.trace.events.category == Category.OPERATOR)
        rows: list[int] = np.flatnonzero(known[self.trace.events.name] & inside).tolist()
        return rows


def _passes_of(match: Match, sizes: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    """
    Which gradients of a matmul a product may be: of y = x w that of x multiplies (m, n) by (n, k), that of w sums over m.

    Both have the same sizes where m is n: then autograd does the weight's first.
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


# --- times ------------------------------------------------------------------------------------------------


def _timed(
    trace: Trace,
    inside: Nesting,
    names: Names,
    passes: _Passes,
    within: NDArray[np.bool_],
    reasons: dict[str, str],
) -> RecordedOperators:
    """The passes with their times, and what is left."""
    owner = inside.handed_down(passes.owner, unknown=UNKNOWN)
    events = trace.events
    if trace.has_device:
        call = launched_by(trace)
        rows = _computing(trace, within[np.maximum(call, 0)] | (call == UNKNOWN))
        owner[rows] = np.where(call[rows] == UNKNOWN, UNKNOWN, owner[np.maximum(call[rows], 0)])
        _only_products(trace, names, passes, rows, call, owner)
        spent = events.duration[rows]
    else:
        call = inside.parent
        rows = np.flatnonzero((events.category == Category.OPERATOR) & within)
        spent = own_nanoseconds(trace, inside)[rows]
    mine = owner[rows]
    known = mine != UNKNOWN
    sums = np.zeros(len(passes.found), dtype=np.int64)
    np.add.at(sums, mine[known], spent[known])
    others = _others(trace, inside, rows[~known], spent[~known], call, reasons)
    attention = any(one.operator == "attention" and one.sizes["causal"] for one in passes.found)
    return RecordedOperators(
        operators=tuple(replace(one, nanoseconds=int(ns)) for one, ns in zip(passes.found, sums, strict=True)),
        others=others,
        owner=owner,
        nanoseconds=int(spent.sum()),
        doubts=(CAUSAL,) if attention else (),
    )


def _computing(trace: Trace, within: NDArray[np.bool_]) -> NDArray[np.intp]:
    """What runs on a stream in an iteration and is no communication, copies over the host's link included."""
    events = trace.events
    of_device = np.isin(events.category, (Category.KERNEL, Category.FILL, Category.COPY))
    return np.flatnonzero(of_device & within & (events.message == UNKNOWN))


def own_nanoseconds(trace: Trace, inside: Nesting | None = None) -> Integers:
    """What each operator takes without the operators in it; shape (events,)."""
    events, inside = trace.events, inside or nesting(trace)
    is_operator = events.category == Category.OPERATOR
    around = inside.handed_down(np.where(is_operator, np.arange(len(events)), UNKNOWN), unknown=UNKNOWN)
    own: Integers = events.duration.copy()
    nested = np.flatnonzero(is_operator & (inside.parent != UNKNOWN))
    outer = around[inside.parent[nested]]
    np.subtract.at(own, outer[outer != UNKNOWN], events.duration[nested[outer != UNKNOWN]])
    return np.maximum(own, 0)


def _only_products(
    trace: Trace, names: Names, passes: _Passes, rows: NDArray[np.intp], call: Integers, owner: Integers
) -> None:
    """
    Kernels of operators that do more than multiply: only those that multiply are the matmul's.

    Nodes without an operator of their own for each product launch two such kernels, the input's gradient first.
    """
    events, found = trace.events, passes.found
    multiplies = np.array([names.gemm.search(name) is not None for name in trace.names], dtype=bool)
    only = np.array([passes.matches[place].pattern.gemm for place in range(len(passes.matches))], dtype=bool)
    mine = owner[rows]
    is_match = (mine != UNKNOWN) & (mine < len(only))
    wrong = is_match & ~multiplies[events.name[rows]]
    wrong[is_match] &= only[mine[is_match]]
    owner[rows[wrong]] = UNKNOWN
    free = rows[(owner[rows] == UNKNOWN) & multiplies[events.name[rows]] & (call[rows] != UNKNOWN)]
    of_node: dict[int, list[int]] = defaultdict(list)
    for row in free.tolist():
        node = int(passes.backward.node[call[row]])
        place = passes.match_of_node.get(node)
        if place is not None and passes.matches[place].pattern.operator in MATMULS:
            of_node[node].append(row)
    for node, kernels in of_node.items():
        missing = [one for one in ("dgrad", "wgrad") if (node, one) not in passes.taken]
        if len(kernels) == len(missing):
            for row, of_pass in zip(kernels, missing, strict=True):
                owner[row] = len(found)
                passes.add_pass(passes.matches[passes.match_of_node[node]], of_pass, (node,))
                passes.owner[node] = UNKNOWN


def _others(
    trace: Trace,
    inside: Nesting,
    rows: NDArray[np.intp],
    spent: Integers,
    call: Integers,
    reasons: dict[str, str],
) -> tuple[Other, ...]:
    """What is no part of any operator, by name: of a kernel that of the operator that launched it."""
    count: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    parents, is_operator = inside.parent, trace.events.category == Category.OPERATOR
    for row, ns in zip(rows.tolist(), spent.tolist(), strict=True):
        around = row if is_operator[row] else int(call[row])
        while around != UNKNOWN and not is_operator[around]:
            around = int(parents[around])
        name = trace.name_of(row if around == UNKNOWN else around)
        count[name] += 1
        nanoseconds[name] += ns
    return tuple(
        Other(name=name, reason=reasons.get(name, NOT_KNOWN), count=count[name], nanoseconds=ns)
        for name, ns in nanoseconds.most_common()
    )
