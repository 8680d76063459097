"""Passes of the operators in a trace: forward passes, and their backward passes by autograd."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from costmodel.timing.sampled_shapes import MATMULS
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.operators.autograd import forward_of_nodes
from planner.measure.traces.operators.matching import Match
from planner.measure.traces.operators.names import read_operator_names
from planner.measure.traces.operators.records import TracedPass
from planner.measure.traces.structure.nesting import Nesting

MULTIPLICATIONS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm"}
)
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
    trace, nesting, node
        A trace, the nesting of its events, and the node of autograd around each.
    number
        Iteration of each event, shape (events,).
    matches
        Operators of its forward passes; the n-th pass is the forward pass of the n-th operator.
    """

    def __init__(
        self, trace: Trace, nesting: Nesting, node: Integers, number: Integers, matches: Sequence[Match]
    ) -> None:
        self.trace = trace
        self.nesting = nesting
        self.node = node
        self.matches = matches
        self.found: list[TracedPass] = []
        self.owner = np.full(len(trace.events), UNKNOWN, dtype=np.int64)
        self.taken: set[tuple[int, str]] = set()
        self._number = number
        self._add_forward()
        of_match = nesting.inherit_values(self.owner, unknown=UNKNOWN)
        self.match_of_node = forward_of_nodes(trace, nesting, node, of_match)
        self._add_backward()
        self._add_products()
        self._add_sums()

    def add(self, match: Match, of_pass: str, row: int) -> int:
        """Add a pass without events; return its number."""
        self.found.append(
            TracedPass(
                operator=match.pattern.operator,
                of_pass=of_pass,
                dtype=match.dtype,
                sizes=match.sizes,
                row=row,
                iteration=int(self._number[row]),
            )
        )
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
            if place is None or operands == UNKNOWN or self.owner[self.nesting.parent[row]] != UNKNOWN:
                continue
            match = self.matches[place]
            if match.pattern.operator not in MATMULS:
                continue
            for of_pass in _passes_of(match, self.trace.operands[operands].sizes):
                if (node, of_pass) not in self.taken:
                    self.taken.add((node, of_pass))
                    self.owner[row] = self.add(match, of_pass, row)
                    break

    def _add_sums(self) -> None:
        """Add the sums of a residual's gradients, which autograd runs as operators, too."""
        (residual,) = (one for one in read_operator_names().patterns if one.operator == "residual")
        added = {tuple(one.sizes.items()) for one in self.found if one.operator == "residual"}
        for row in self._find_rows_in_nodes(SUMS):
            place = int(self.trace.events.operands[row])
            if self.nesting.parent[row] != self.node[row] or place == UNKNOWN:
                continue
            operands = self.trace.operands[place]
            sizes, dtype = residual.sizes_of(operands), read_operator_names().dtypes.get(operands.dtypes[0])
            if sizes and tuple(sizes.items()) in added and dtype:
                match = Match(pattern=residual, dtype=dtype, sizes=sizes, rows=(row,))
                self.owner[row] = self.add(match, "forward", row)

    def _find_rows_in_nodes(self, names: frozenset[str]) -> list[int]:
        known = np.array([name in names for name in self.trace.names], dtype=bool)
        inside = (self.node != UNKNOWN) & (self.trace.events.category == Category.OPERATOR)
        rows: list[int] = np.flatnonzero(known[self.trace.events.name] & inside).tolist()
        return rows


def _passes_of(match: Match, sizes: tuple[tuple[int, ...], ...]) -> Iterator[str]:
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
