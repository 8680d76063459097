"""Operators of the forward pass to which autograd's nodes belong."""

from __future__ import annotations

from collections import Counter

import numpy as np

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.structure.nesting import Nesting


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
    made = dict(
        zip(
            zip(events.track[forward].tolist(), events.sequence[forward].tolist(), strict=True),
            forward.tolist(),
            strict=True,
        )
    )
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
