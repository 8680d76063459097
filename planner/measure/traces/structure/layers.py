"""Layers of a pass."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Category, Events, Integers, Trace, match_names
from planner.measure.traces.structure import records
from planner.measure.traces.structure.records import Phase

MOST_UNITS = 512

"""Repetitions up to which tokens are compared: no published model has more layers."""

MOST_KINDS = 160

"""Kinds of tokens with equal counts that are compared with each other; only a matter of speed."""

LEAST_KINDS = 2

"""Kinds of tokens that a repetition must have: one alone has no order."""

LEAST_COVERED = 0.3

"""Share of a sequence that its repetitions must cover."""

LEAST_ALIKE = 0.3

"""Share of tokens that neighbouring repetitions must have in common, in half of the cases."""

SAME_KIND = 0.9

"""Share of kinds of tokens that repetitions of one kind have in common."""

CARRIES = 0.25

"""Share of the best candidate's kinds that a candidate with a longer reach needs: dense layers before MoE layers."""


@record(frozen=True, kw_only=True, slots=True)
class _Turns:
    """
    Kinds of tokens that alternate, each once per repetition.

    Parameters
    ----------
    begins, lasts
        Places of the first and the last of these tokens in each repetition.
    num_kinds
        Number of kinds.
    """

    begins: Integers
    lasts: Integers
    num_kinds: int

    @property
    def unit(self) -> float:
        """Median number of tokens of a repetition."""
        return float(np.median(np.diff(self.begins)))


def repetitions(
    tokens: Integers,
    *,
    needs: NDArray[np.bool_] | None = None,
    opens: NDArray[np.bool_] | None = None,
    once: NDArray[np.bool_] | None = None,
) -> Integers:
    """
    Find the longest stretch of a sequence that repeats, whatever stands before and after it.

    Tokens of different kinds that occur equally often and always in the same order alternate, and each turn is a
    repetition. Tokens between them may differ. A repetition begins at the earliest token from which on all repetitions
    are equal.

    Parameters
    ----------
    tokens
        A number for each kind of token, shape (tokens,).
    needs
        True for tokens that do the work: each repetition needs one of them.
    opens
        True for tokens that open a repetition, where it might begin with several.
    once
        True for tokens that occur once in a repetition. If there are any, each repetition needs one, and a
        repetition with several of them is divided.

    Returns
    -------
    Integers
        Begin of each repetition, and end of the last one; () where nothing repeats.

    >>> repetitions(np.array([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8]))
    array([ 1,  4,  7, 10])
    """
    turns = [one for one in _candidates(tokens) if needs is None or _has_token(one, needs)]
    if once is not None and once.any():
        turns = [one for one in turns if _has_token(one, once)]
    if not turns:
        return np.zeros(0, dtype=np.int64)
    best = max(turns, key=lambda one: one.num_kinds)
    for one in turns:
        reach = max(best.begins[0] - one.begins[0], one.lasts[-1] - best.lasts[-1])
        if one.num_kinds >= CARRIES * best.num_kinds and len(one.begins) > len(best.begins) and reach > best.unit / 2:
            best = one
    places = _extend(tokens, best, opens)
    if once is not None:
        places = _divide(tokens, places, once)
    covered = (places[-1] - places[0]) / len(tokens)
    return places if covered >= LEAST_COVERED and _are_alike(tokens, places) else np.zeros(0, dtype=np.int64)


def kinds(tokens: Integers, places: Integers) -> tuple[int, ...]:
    """
    Number repetitions by kind: those with nearly the same kinds of tokens have equal numbers.

    >>> kinds(np.array([1, 2, 1, 3, 1, 2]), np.array([0, 2, 4, 6]))
    (0, 1, 0)
    """
    models: list[set[int]] = []
    result = []
    for begin, end in pairwise(places):
        part = set(tokens[begin:end].tolist())
        same = [len(part & model) >= SAME_KIND * len(part | model) for model in models]
        result.append(same.index(True) if any(same) else len(models))
        if not any(same):
            models.append(part)
    return tuple(result)


def _candidates(tokens: Integers) -> list[_Turns]:
    """Find, for each count of occurrences, the largest set of kinds of tokens that alternate."""
    _, kind, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    order = np.argsort(kind, kind="stable")
    firsts = np.cumsum(counts) - counts
    found = []
    for count in np.unique(counts[(counts >= 2) & (counts <= MOST_UNITS)]):
        same = np.flatnonzero(counts == count)
        places = order[firsts[same][:, None] + np.arange(count)]
        places = places[np.argsort(places[:, 0])]
        if len(places) > MOST_KINDS:
            places = places[np.linspace(0, len(places) - 1, MOST_KINDS).astype(int)]
        after = np.array([_find_following(places, one) for one in places])
        which = int(after.sum(axis=1).argmax())
        members = np.append(which, np.flatnonzero(after[which]))
        if len(members) >= LEAST_KINDS:
            lasts = places[members].max(axis=0)
            found.append(_Turns(begins=places[which], lasts=lasts, num_kinds=len(members)))
    return found


def _has_token(turns: _Turns, which: NDArray[np.bool_]) -> bool:
    """True where each repetition has one of some tokens."""
    before = np.concatenate([[0], np.cumsum(which)])
    return bool((before[np.append(turns.begins[1:], turns.lasts[-1] + 1)] > before[turns.begins]).all())


def _find_following(places: Integers, one: Integers) -> NDArray[np.bool_]:
    """Find the kinds that occur exactly once between any two successive occurrences of one kind."""
    behind = (places > one).all(axis=1)
    return np.asarray(behind & (places[:, :-1] < one[1:]).all(axis=1))


def _extend(tokens: Integers, turns: _Turns, opens: NDArray[np.bool_] | None) -> Integers:
    """Return the begins of repetitions and the end of the last one, extended by equal tokens before and after them."""
    begins, lasts = turns.begins, turns.lasts
    room = min(int((begins[1:] - lasts[:-1]).min()) - 1, int(begins[0]))
    before = 0
    while before < room and len(set(tokens[begins - before - 1].tolist())) == 1:
        before += 1
    if opens is not None:
        opening = np.flatnonzero(opens[begins[0] - before : begins[0] + 1])
        before -= int(opening[0]) if len(opening) else 0
    begins = begins - before
    return np.append(begins, _end(tokens, begins, lasts))


def _end(tokens: Integers, begins: Integers, lasts: Integers) -> int:
    """Return the end of the last repetition: as another one ends, or else where one more would begin."""
    first = int(lasts[-1]) + 1
    longest, openings = 0, 0
    for last, following in zip(lasts[:-1].tolist(), begins[1:].tolist(), strict=True):
        tail = tokens[last + 1 : following]
        here = tokens[first : first + len(tail)]
        same = tail[: len(here)] == here
        if len(here) == len(tail) and same.all():
            return first + len(tail)
        openings = int((tail == tokens[begins[0]]).sum())
        longest = max(longest, len(here) if same.all() else int(same.argmin()))
    again = np.flatnonzero(tokens[first:] == tokens[begins[0]])
    return first + (int(again[openings]) if len(again) > openings else longest)


def _divide(tokens: Integers, places: Integers, once: NDArray[np.bool_]) -> Integers:
    """Divide repetitions that have several of the tokens that occur once in a repetition."""
    begin, end = places[:2]
    first = np.flatnonzero(once[begin:end])
    if len(first) == 0:
        return places
    token, offset = tokens[begin + first[0]], int(first[0])
    found = [np.flatnonzero(tokens[a:b] == token) + a for a, b in pairwise(places)]
    if len({len(one) for one in found}) > 1 or len(found[0]) < 2:
        return places
    result = []
    for one in found:
        before = offset
        for place in one[1:]:
            same = tokens[one[0] - offset : one[0]][::-1] == tokens[place - offset : place][::-1]
            before = min(before, offset if same.all() else int(same.argmin()))
        result.extend([one[0] - offset, *(one[1:] - before)])
    return np.array([*result, places[-1]], dtype=np.int64)


def _are_alike(tokens: Integers, places: Integers) -> bool:
    """True where half of the neighbouring repetitions have enough in common."""
    shares = []
    _, kind = np.unique(tokens, return_inverse=True)
    size = int(kind.max()) + 1
    counts = [np.bincount(kind[a:b], minlength=size) for a, b in pairwise(places)]
    for one, other in pairwise(counts):
        shares.append(np.minimum(one, other).sum() / max(np.maximum(one, other).sum(), 1))
    return float(np.median(shares)) >= LEAST_ALIKE


FRONT, BACK = -2, -3

"""Values instead of a layer's number: before the first layer, after the last one."""

LEAST_OPERATORS = 0.5

"""Share of a pass's operators that must lie in annotated layers for annotations without numbers to be used."""


@record(frozen=True, kw_only=True, slots=True)
class Cut:
    """
    A pass cut into layers.

    Parameters
    ----------
    times
        Nanoseconds at which each layer begins, and the last one ends.
    kinds
        A number for each layer, equal for layers that run equal operators.
    found
        ``annotations``, ``modules`` or ``repetition``.
    """

    times: Integers
    kinds: tuple[int, ...]
    found: str

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.times) - 1

    def find_layers(self, when: Integers, *, backward: bool = False) -> Integers:
        """Return the layer at each time, ``FRONT`` or ``BACK``; a backward pass begins with the last layer."""
        place = np.searchsorted(self.times, when, side="right") - 1
        before, behind = (BACK, FRONT) if backward else (FRONT, BACK)
        layer = self.num_layers - 1 - place if backward else place
        return np.select([place < 0, place >= self.num_layers], [before, behind], layer).astype(np.int64)


@record(frozen=True, kw_only=True, slots=True)
class Cutter:
    """
    Divides passes of a trace into layers; passes with equal operators are divided alike.

    Parameters
    ----------
    trace
        Trace of one rank.
    numbers, found
        Number of the layer that each event names, ``UNKNOWN`` for most, and the source of the number.
    tokens
        A number for each kind of event: its name with its operands, or with its blocks.
    needs, opens, once, pieces
        True for names of which a layer has at least one, that begin it, that occur once in it, and that are
        annotations of a phase.
    known
        Cuts as places among the operators, by the names of these.
    made
        All cuts, in the order in which passes were divided.
    """

    trace: Trace
    numbers: Integers
    found: str
    tokens: Integers
    needs: NDArray[np.bool_]
    opens: NDArray[np.bool_]
    once: NDArray[np.bool_]
    pieces: NDArray[np.bool_]
    known: dict[bytes, Integers] = field(default_factory=dict)
    made: list[Cut] = field(default_factory=list)

    def cut(self, rows: NDArray[np.intp]) -> Cut | None:
        """
        Divide a pass: by events that name a layer, by repeated annotations, or by repeated operators.

        Parameters
        ----------
        rows
            Events of a pass on one track.

        Returns
        -------
        Cut or None
            None where nothing names layers and nothing repeats.
        """
        events = self.trace.events
        works = rows[np.isin(events.category[rows], (Category.OPERATOR, Category.KERNEL))]
        if len(works) == 0:
            return None
        said = self._find_numbered(rows)
        if said is not None:
            return self._build_cut(said, works, self.found)
        pieces = rows[self.pieces[events.name[rows]] & (events.category[rows] == Category.ANNOTATION)]
        places = repetitions(events.name[pieces].astype(np.int64)) if len(pieces) else np.zeros(0, dtype=np.int64)
        if len(places):
            times = self._times(pieces, places)
            inside = (events.start[works] >= times[0]) & (events.start[works] < times[-1])
            if inside.mean() >= LEAST_OPERATORS:
                return self._build_cut(times, works, "annotations")
        places = self._find_repetitions(works)
        return self._build_cut(self._times(works, places), works, "repetition") if len(places) else None

    def _find_numbered(self, rows: NDArray[np.intp]) -> Integers | None:
        """Return the begin of each layer, and the end of the last, from events that name their layer."""
        events = self.trace.events
        marks = rows[self.numbers[rows] >= 0]
        number, first = np.unique(self.numbers[marks], return_index=True)
        if len(number) == 0:
            return None
        first = np.sort(first)
        last = self.numbers[marks] == self.numbers[marks[first[-1]]]
        return np.append(events.start[marks[first]], _end_nanoseconds(events, marks[last]))

    def _find_repetitions(self, works: NDArray[np.intp]) -> Integers:
        """Return the places in a pass at which repeated layers begin: by names and operands, else by names alone."""
        events = self.trace.events
        name = events.name[works]
        key = name.tobytes()
        if key not in self.known:
            for tokens in (self.tokens[works], name.astype(np.int64)):
                places = repetitions(tokens, needs=self.needs[name], opens=self.opens[name], once=self.once[name])
                if len(places):
                    break
            self.known[key] = places
        return self.known[key]

    def _times(self, rows: NDArray[np.intp], places: Integers) -> Integers:
        """Return the begin of the events at some places; for the last place, the end of the event before it."""
        events = self.trace.events
        last = rows[places[-2] : places[-1]]
        return np.append(events.start[rows[places[:-1]]], _end_nanoseconds(events, last))

    def _build_cut(self, times: Integers, works: NDArray[np.intp], found: str) -> Cut:
        """Build a cut, with the kinds of its layers, and keep it."""
        events = self.trace.events
        places = np.searchsorted(events.start[works], times)
        self.made.append(Cut(times=times, kinds=kinds(events.name[works].astype(np.int64), places), found=found))
        return self.made[-1]


def _end_nanoseconds(events: Events, rows: NDArray[np.intp]) -> np.int64:
    """Return the time at which the last of some events ends."""
    return np.int64((events.start[rows] + events.duration[rows]).max())


def cutter(trace: Trace, phase: NDArray[np.int64]) -> Cutter:
    """Build the cutter of a trace whose phases are known."""
    events = trace.events
    table = np.where(events.operands >= 0, events.operands, np.where(events.blocks >= 0, events.blocks, UNKNOWN))
    tokens = events.name.astype(np.int64) * (int(table.max(initial=0)) + 2) + table + 1
    numbers, found = _numbers(trace, phase)
    return Cutter(
        trace=trace,
        numbers=numbers,
        found=found,
        tokens=tokens,
        needs=match_names(trace.names, records.WORK),
        opens=match_names(trace.names, records.NORM),
        once=match_names(trace.names, records.ATTENTION),
        pieces=records.phases_of_names(trace, records.PHASES, but=records.SEVERAL_PHASES) > 0,
    )


def _numbers(trace: Trace, phase: NDArray[np.int64]) -> tuple[Integers, str]:
    """Return the layer that each annotation or module of the forward pass names, ``UNKNOWN`` for other events."""
    events = trace.events
    number = records.numbers_of_names(trace, records.LAYER, unknown=UNKNOWN)[events.name]
    found = np.where((events.category == Category.ANNOTATION) & (phase == Phase.FORWARD), number, UNKNOWN)
    if (found >= 0).any():
        return found, "annotations"
    modules = np.flatnonzero((events.category == Category.MODULE) & (phase == Phase.FORWARD))
    best = _class_of_layers(trace, modules)
    found = np.full(len(events), UNKNOWN, dtype=np.int64)
    rows = [row for row in modules.tolist() if (match := records.MODULE.match(trace.name_of(row))) and match[1] == best]
    found[rows] = [int(records.MODULE.match(trace.name_of(row))[2]) for row in rows]  # type: ignore[index]
    return found, "modules"


def _class_of_layers(trace: Trace, modules: NDArray[np.intp]) -> str:
    """
    Return the class of the layers: its modules never nest and together run the longest; "" if there is none.

    A class that is run once per pass, or of which there is only one, is no layer.
    """
    events = trace.events
    classes: dict[str, list[int]] = {}
    instances: dict[str, set[str]] = {}
    for row in modules.tolist():
        match = records.MODULE.match(trace.name_of(row))
        if match:
            classes.setdefault(match[1], []).append(row)
            instances.setdefault(match[1], set()).add(match[2])
    best, longest = "", 0
    for name, rows in classes.items():
        start, end = events.start[rows], events.start[rows] + events.duration[rows]
        flat = len(instances[name]) > 1 and bool((start[1:] >= end[:-1]).all())
        seconds = int(events.duration[rows].sum())
        if flat and seconds > longest:
            best, longest = name, seconds
    return best
