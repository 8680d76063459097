"""Passes of the operators in a trace: forward passes, and their backward passes by autograd."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from costmodel.record import record
from costmodel.timing.sampled_source import MATMULS
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.operators.matching import Match, read_operator_names
from planner.measure.traces.structure import parts
from planner.measure.traces.structure.records import Nesting


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


def forward_of_nodes(trace: Trace, nesting: Nesting, around: Integers, of_match: Integers) -> dict[int, int]:
    """
    Return the match to which each node of autograd belongs, by the node's row; nodes of other operators are left out.

    The operator that made a node is the last one that began with its sequence number. Numbers are counted per thread.
    Nodes name the thread by a number of the profiler; it is the thread that explains most of their numbers.

    Parameters
    ----------
    trace, nesting, around
        A trace, the nesting of its events, and the node of autograd around each.
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
    inner = _only_match_inside(nesting, of_match)
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


def _only_match_inside(nesting: Nesting, of_match: Integers) -> dict[int, int]:
    """Return the match within operators that contain exactly one: custom functions around an operator."""
    parents = nesting.parent
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
        self.trace, self.nesting, self.node, self.matches, self._number = trace, nesting, node, matches, number
        self.found: list[TracedPass] = []
        self.owner = np.full(len(trace.events), UNKNOWN, dtype=np.int64)
        self.taken: set[tuple[int, str]] = set()
        self._add_forward()
        of_match = nesting.inherit_values(self.owner, unknown=UNKNOWN)
        self.match_of_node = forward_of_nodes(trace, nesting, node, of_match)
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
    summary = parts(trace).summary
    passes = max(summary.num_microbatches, 1)
    if operations.intersection(SHARDED):
        return {}
    if operations.intersection(STAGES) and summary.microbatches_from != "annotations" and passes > 1:
        return {}
    counts: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row in np.flatnonzero(trace.named(f"^{GRADIENT}$") & (trace.events.category == Category.OPERATOR)).tolist():
        place = int(trace.events.operands[row])
        if place != UNKNOWN and trace.operands[place].sizes:
            counts[int(number[row])][trace.operands[place].sizes[0]] += 1
    return {
        iteration: sum(prod(sizes) * count for sizes, count in own.items()) // passes
        for iteration, own in counts.items()
        if not any(count % passes for count in own.values())
    }
