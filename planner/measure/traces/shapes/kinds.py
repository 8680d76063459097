"""Kinds of operators of a trace, by name and sizes, with their times and their work at other sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Trace
from planner.measure.traces.shapes.explaining import Explained, Explanations
from planner.measure.traces.shapes.pieces import Pieces
from planner.measure.traces.shapes.work import Shape, Work, shape_of, work

SHORT = 60
"""Letters of a kernel's name in messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
