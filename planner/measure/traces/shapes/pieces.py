"""Operators of the events of a trace, and their own times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace, look_up
from planner.measure.traces.iterations import UPDATE_KERNEL, UPDATE_OPERATOR
from planner.measure.traces.shapes.sizes import Explained, Explanations
from planner.measure.traces.shapes.work import Shape, Work, shape_of, work
from planner.measure.traces.structure.records import PHASES, Nesting, Phase, find_launchers, nesting

ACCUMULATES = "AccumulateGrad"

"""Node of autograd that accumulates a weight's gradient."""

UPDATES = next(pattern for phase, pattern in PHASES if phase is Phase.OPTIMIZER)

"""Names of operators that update parameters."""


@record(frozen=True, kw_only=True, slots=True)
class Pieces:
    """
    Pieces of events: a kernel is one piece, on threads each nested operator is one; arrays of shape (pieces,).

    Parameters
    ----------
    place
        Place of its event among those that were taken apart.
    event, operator
        Row of the piece, and row of its operator: itself; for a kernel the innermost operator with tensors that
        launched it. Where no operator around the launch has tensors, it is the forward operator of autograd's
        node. ``UNKNOWN`` where there is none.
    nanoseconds
        Its own time, without that of operators within it.
    works
        True where its own time is most of its time; else it only calls others.
    on_weights
        True where it belongs to an optimizer, or accumulates a weight's gradient.
    """

    place: Integers
    event: Integers
    operator: Integers
    nanoseconds: Integers
    works: NDArray[np.bool_]
    on_weights: NDArray[np.bool_]


def pieces_of(trace: Trace, rows: NDArray[np.intp]) -> Pieces:
    """
    Take events apart into pieces.

    Parameters
    ----------
    trace
        Trace of one rank.
    rows
        Events that are not nested in each other.
    """
    events, nest = trace.events, nesting(trace)
    roots = np.full(len(events), UNKNOWN)
    roots[rows] = np.arange(len(rows))
    place = nest.inherit_values(roots, unknown=UNKNOWN)
    inside = nest.parent != UNKNOWN
    within = np.bincount(nest.parent[inside], weights=events.duration[inside], minlength=len(events))
    own = events.duration - within.astype(np.int64)
    found = np.flatnonzero(place != UNKNOWN)
    operator, on_weights = _find_operators(trace, nest)
    return Pieces(
        place=place[found],
        event=found,
        operator=operator[found],
        nanoseconds=own[found],
        works=2 * own[found] >= events.duration[found],
        on_weights=on_weights[found],
    )


def _find_operators(trace: Trace, nest: Nesting) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the operator of each event, and True where it works on weights."""
    events = trace.events
    has_tensors = np.array([any(map(len, one.sizes)) for one in trace.operands] + [False])
    with_tensors = has_tensors[events.operands] & (events.category == Category.OPERATOR)
    rows = np.arange(len(events))
    innermost = nest.inherit_values(np.where(with_tensors, rows, UNKNOWN), unknown=UNKNOWN)
    forward = nest.inherit_values(_find_forward(trace, with_tensors), unknown=UNKNOWN)
    named = trace.named(ACCUMULATES) | trace.named(UPDATES) | trace.named(UPDATE_OPERATOR)
    of_host = np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION))
    on_weights = nest.inherit_values(np.where(named & of_host, 1, UNKNOWN), unknown=UNKNOWN) == 1
    launch = find_launchers(trace)
    launched = launch != UNKNOWN
    operator = np.where(with_tensors, rows, UNKNOWN)
    operator[launched] = np.where(innermost == UNKNOWN, forward, innermost)[launch[launched]]
    on_weights[launched] = on_weights[launch[launched]]
    return operator, on_weights | trace.named(UPDATE_KERNEL)


def _find_forward(trace: Trace, with_tensors: NDArray[np.bool_]) -> Integers:
    """Return the operator of the forward pass with the sequence number of each event in the backward pass."""
    events = trace.events
    found = np.full(len(events), UNKNOWN)
    forward = np.flatnonzero(with_tensors & (events.sequence > 0) & (events.forward_thread <= 0))
    backward = np.flatnonzero((events.sequence > 0) & (events.forward_thread > 0))
    found[backward] = look_up(events.sequence[backward], events.sequence[forward], forward)
    return found


SHORT = 60

"""Letters of a kernel's name in messages."""


@record(frozen=True, kw_only=True, slots=True)
class Alike:
    """
    Pieces of one operator with equal sizes, and kernels of one name.

    Parameters
    ----------
    operator, kernel
        Names; the kernel's is empty on threads.
    shape
        Shape of the operator; None where it has no tensors.
    explained
        Sizes in the other job.
    before, after
        Work in both jobs.
    works
        True where most of their time is their own, not that of nested operators.
    on_weights
        True where they work on weights or their gradients.
    nanoseconds, total
        Median time of a piece, and total time.
    """

    operator: str
    kernel: str
    shape: Shape | None
    explained: tuple[Explained, ...]
    before: Work
    after: Work
    works: bool
    on_weights: bool
    nanoseconds: float
    total: int

    @property
    def changes(self) -> bool:
        """True where the work differs in the other job."""
        return self.before != self.after

    @property
    def text(self) -> str:
        """Name and sizes, shortened."""
        sizes = ", ".join("x".join(map(str, one)) for one in self.shape.sizes[:3]) if self.shape else ""
        return f"{self.operator or self.kernel:.{SHORT}}{' of ' if sizes else ''}{sizes}"


def alike(
    trace: Trace, pieces: Pieces, explanations: Explanations, *, sequence_length: int
) -> tuple[tuple[Alike, ...], NDArray[np.intp]]:
    """
    Group equal pieces, and derive their work in the other job.

    Parameters
    ----------
    trace, pieces
        A trace, and its pieces.
    explanations
        Explanations of sizes in the other job.
    sequence_length
        Sequence length of the recorded job.

    Returns
    -------
    kinds, array
        Kinds of pieces, and the kind of each piece; shape (pieces,).
    """
    events = trace.events
    known = pieces.operator != UNKNOWN
    on_stream = np.isin(events.category[pieces.event], ON_STREAMS)
    columns = [
        np.where(known, events.name[pieces.operator], UNKNOWN),
        np.where(known, events.operands[pieces.operator], UNKNOWN),
        np.where(on_stream | ~known, events.name[pieces.event], UNKNOWN),
        pieces.on_weights,
    ]
    _, first, kind = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    order = np.argsort(kind, kind="stable")
    members = np.split(order, np.searchsorted(kind[order], np.arange(1, len(first))))
    found = [
        _alike(trace, pieces, rows, explanations, sequence_length=sequence_length, on_stream=bool(on_stream[rows[0]]))
        for rows in members
        if len(rows)
    ]
    return tuple(found), kind


def _alike(
    trace: Trace,
    pieces: Pieces,
    members: NDArray[np.intp],
    explanations: Explanations,
    *,
    sequence_length: int,
    on_stream: bool,
) -> Alike:
    one, operator = members[0], int(pieces.operator[members[0]])
    event = trace.name_of(int(pieces.event[one]))
    name, kernel, weights = event, event if on_stream else "", bool(pieces.on_weights[one])
    shape = None
    if operator != UNKNOWN:
        name, operands = trace.name_of(operator), trace.operands[int(trace.events.operands[operator])]
        shape = shape_of(name, operands, sequence_length=sequence_length, weights=weights, kernel=kernel)
    elif on_stream:
        name = ""
    explained = tuple(explanations.explained(sizes, shape.expected) for sizes in shape.sizes) if shape else ()
    return Alike(
        operator=name,
        kernel=kernel,
        shape=shape,
        explained=explained,
        before=work(shape, shape.sizes) if shape else Work(0.0, 0.0),
        after=work(shape, tuple(each.after for each in explained)) if shape else Work(0.0, 0.0),
        works=bool(pieces.works[members].mean() >= 0.5),
        on_weights=weights,
        nanoseconds=float(np.median(pieces.nanoseconds[members])),
        total=int(pieces.nanoseconds[members].sum()),
    )
