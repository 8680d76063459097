"""Traced step of one rank, by part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.strategy import Strategy
from costmodel.timing.sampled_source import size_of_operator
from costmodel.timing.work import Operator
from planner.measure.traces.events import UNKNOWN, Category, Message, Trace
from planner.measure.traces.iterations import Iteration
from planner.measure.traces.operators import TracedPass, find_operators
from planner.measure.traces.operators.shares import Shares, shares
from planner.measure.traces.report.comparison.kinds import (
    COPIES,
    EXPERTS,
    IDLE,
    MODEL_PARTS,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    group_of,
    kind_of,
)
from planner.measure.traces.report.routed import drop_routed_sizes
from planner.measure.traces.structure import Phase, parts
from planner.measure.traces.structure.nesting import find_launchers, nesting

Size = tuple[str, tuple[tuple[str, int], ...]]
"""A sampled operator and its sizes."""

ADDS_GRADIENTS = "AccumulateGrad"
"""Part of the name of autograd's node that accumulates gradients of micro-batches."""

COLLECTIVES = "c10d::"
"""Prefix of operators that communicate."""

OPERATIONS: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send": "send",
    "recv": "recv",
}
"""Operations by the rest of such names."""


def names_by_size(operators: Iterable[tuple[Operator, float]]) -> dict[Size, list[str]]:
    """List the parts of a step by the sizes of their operators, as often as a rank's layers have them."""
    found: dict[Size, list[str]] = defaultdict(list)
    for operator, count in operators:
        size = size_of_operator(operator)
        if size is not None and all(value is not None for value in size.sizes.values()):
            whole = {name: round(float(value)) for name, value in size.sizes.items()}
            found[_size(size.kernel, whole)] += [kind_of(operator.name)] * max(1, round(count))
    return found


def _size(kernel: str, sizes: Mapping[str, int]) -> Size:
    return kernel, tuple(sorted(sizes.items()))


class TracedParts:
    """
    Time of one rank's iteration by part, in nanoseconds.

    Attributes
    ----------
    exposed, hidden
        Time that each part adds to the step, and time of each part that is overlapped with computation.
    summary
        Parts of the trace, and how they were found.

    Parameters
    ----------
    trace, iteration
        A trace, and an iteration of it.
    names
        Parts of the step by the sizes of operators, those of its own pipeline stage first.
    strategy
        Strategy of the job.
    """

    def __init__(
        self, trace: Trace, iteration: Iteration, names: Sequence[Mapping[Size, list[str]]], strategy: Strategy
    ) -> None:
        self.exposed: dict[str, float] = defaultdict(float)
        self.hidden: dict[str, float] = defaultdict(float)
        self._trace, self._names, self._strategy = trace, names, strategy
        self._operators, structure = find_operators(trace), parts(trace)
        self.summary, self._phase = structure.summary, structure.phase
        self._experts = {
            drop_routed_sizes(kernel, dict(sizes))
            for one in names
            for (kernel, sizes), of in one.items()
            if EXPERTS in of
        }
        self._kinds = self._kind_of_operators()
        self._adds = self._adds_gradients()
        self._add(shares(trace, iteration))

    def doubts(self) -> Iterator[str]:
        """Yield sentences on assumptions, and on operators that the job's sizes do not explain."""
        yield from (*self.summary.doubts, *self._operators.doubts)
        operators = self._operators.operators
        if not operators:
            yield "Operators have no sizes, so all computation is in 'other': record with record_shapes=True."
            return
        routed = sum(self._exact(one) is None and self._is_routed(one) for one in operators)
        if routed:
            yield (
                f"{routed} of {len(operators)} traced operators are assigned to MoE by all of their sizes but the "
                "rows: the router changes these in each step, while the planner distributes tokens evenly."
            )
        if unknown := self._kinds.count(OTHER):
            yield (
                f"{unknown} of {len(operators)} traced operators have sizes that the job does not have: they are "
                "in 'other'. Is it the same job and strategy?"
            )

    def _kind_of_operators(self) -> list[str]:
        """Return the part of each traced operator; operators of equal size are assigned in turn."""
        turn: dict[tuple[Size, str], int] = defaultdict(int)
        return [self._kind(one, turn) for one in self._operators.operators]

    def _kind(self, one: TracedPass, turn: dict[tuple[Size, str], int]) -> str:
        if one.operator == "adam":
            return OPTIMIZER
        kinds = self._exact(one)
        if not kinds:
            return EXPERTS if self._is_routed(one) else OTHER
        size = _size(one.operator, one.sizes)
        place = turn[size, one.of_pass]
        turn[size, one.of_pass] += 1
        return kinds[place % len(kinds)]

    def _exact(self, one: TracedPass) -> list[str] | None:
        size = _size(one.operator, one.sizes)
        return next((names[size] for names in self._names if size in names), None)

    def _is_routed(self, one: TracedPass) -> bool:
        return drop_routed_sizes(one.operator, one.sizes) in self._experts

    def _add(self, found: Shares) -> None:
        for row, exposed, hidden in zip(
            found.rows.tolist(), found.exposed.tolist(), found.hidden.tolist(), strict=True
        ):
            if exposed or hidden:
                part = self._part_of(row)
                self.exposed[part] += exposed
                if self._trace.events.message[row] != UNKNOWN:
                    self.hidden[part] += hidden
        self.exposed[IDLE] += found.idle

    def _part_of(self, row: int) -> str:
        events, owner = self._trace.events, int(self._operators.owner[row])
        message = self._message(row)
        if message is not None:
            group = group_of(message, self._strategy)
            return MODEL_PARTS[group] if group else OTHER
        if events.category[row] == Category.COPY and "DtoD" not in self._trace.name_of(row):
            return COPIES
        if self._phase[row] == Phase.RECOMPUTE:
            return RECOMPUTE
        if self._phase[row] == Phase.OPTIMIZER or self._adds[row]:
            return OPTIMIZER
        return self._kinds[owner] if owner != UNKNOWN else OTHER

    def _message(self, row: int) -> Message | None:
        """Return the message of an event; an operator that calls a library has only its operation."""
        place = int(self._trace.events.message[row])
        if place != UNKNOWN:
            return self._trace.messages[place]
        name = self._trace.name_of(row)
        if not name.startswith(COLLECTIVES):
            return None
        called = name.removeprefix(COLLECTIVES)
        return next((Message(operation=one) for said, one in OPERATIONS.items() if called.startswith(said)), None)

    def _adds_gradients(self) -> NDArray[np.bool_]:
        """Return a mask of events that accumulate gradients: autograd's nodes for that, and the events in them."""
        own = np.where(self._trace.named(ADDS_GRADIENTS), 1, UNKNOWN)
        adds = nesting(self._trace).inherit_values(own, unknown=UNKNOWN) != UNKNOWN
        launched = find_launchers(self._trace)
        return np.asarray(adds | ((launched != UNKNOWN) & adds[launched]))
