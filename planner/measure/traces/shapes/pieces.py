"""Operators behind the events of a trace, and their own times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace, look_up
from planner.measure.traces.iterations import UPDATE_KERNEL, UPDATE_OPERATOR
from planner.measure.traces.structure.names import PHASES
from planner.measure.traces.structure.nesting import Nesting, find_launchers, nesting
from planner.measure.traces.structure.records import Phase

ACCUMULATES = "AccumulateGrad"
"""Node of autograd that accumulates a weight's gradient."""

UPDATES = next(pattern for phase, pattern in PHASES if phase is Phase.OPTIMIZER)
"""Names of operators that update parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """
    Pieces of events: a kernel is one piece, on threads each nested operator is one; arrays of shape (pieces,).

    Parameters
    ----------
    place
        Place of its event among those that were taken apart.
    event, operator
        Row of the piece, and row of the operator behind it: itself; for a kernel the innermost operator with tensors
        that launched it. Where no operator around the launch has tensors, it is the forward operator of autograd's
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
    """Return the operator behind each event, and True where it works on weights."""
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
