"""Layers of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Category, Events, Integers, Trace, match_names
from planner.measure.traces.structure import names
from planner.measure.traces.structure.records import Phase
from planner.measure.traces.structure.repeats import kinds, repetitions

FRONT, BACK = -2, -3
"""Values instead of a layer's number: before the first layer, after the last one."""

LEAST_OPERATORS = 0.5
"""Share of a pass's operators that must lie in annotated layers for annotations without numbers to be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
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

    def at(self, when: Integers, *, backward: bool = False) -> Integers:
        """Return the layer at each time, ``FRONT`` or ``BACK``; a backward pass begins with the last layer."""
        place = np.searchsorted(self.times, when, side="right") - 1
        before, behind = (BACK, FRONT) if backward else (FRONT, BACK)
        layer = self.num_layers - 1 - place if backward else place
        return np.select([place < 0, place >= self.num_layers], [before, behind], layer).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
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
        """Build a cut, with the kinds of its layers."""
        events = self.trace.events
        places = np.searchsorted(events.start[works], times)
        return Cut(times=times, kinds=kinds(events.name[works].astype(np.int64), places), found=found)


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
        needs=match_names(trace.names, names.WORK),
        opens=match_names(trace.names, names.NORM),
        once=match_names(trace.names, names.ATTENTION),
        pieces=names.phases_of_names(trace, names.PHASES, but=names.SEVERAL_PHASES) > 0,
    )


def _numbers(trace: Trace, phase: NDArray[np.int64]) -> tuple[Integers, str]:
    """Return the layer that each annotation or module of the forward pass names, ``UNKNOWN`` for other events."""
    events = trace.events
    number = names.numbers_of_names(trace, names.LAYER, unknown=UNKNOWN)[events.name]
    found = np.where((events.category == Category.ANNOTATION) & (phase == Phase.FORWARD), number, UNKNOWN)
    if (found >= 0).any():
        return found, "annotations"
    modules = np.flatnonzero((events.category == Category.MODULE) & (phase == Phase.FORWARD))
    best = _class_of_layers(trace, modules)
    found = np.full(len(events), UNKNOWN, dtype=np.int64)
    rows = [row for row in modules.tolist() if (match := names.MODULE.match(trace.name_of(row))) and match[1] == best]
    found[rows] = [int(names.MODULE.match(trace.name_of(row))[2]) for row in rows]  # type: ignore[index]
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
        match = names.MODULE.match(trace.name_of(row))
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
