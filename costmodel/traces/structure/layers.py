"""Which layer an event of a pass belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.events import UNKNOWN, Category, Events, Integers, Trace
from costmodel.traces.structure import names
from costmodel.traces.structure.records import Phase
from costmodel.traces.structure.repeats import kinds, repetitions

FRONT, BACK = -2, -3
"""Instead of the number of a layer: before the first one, after the last one."""

LEAST_OPERATORS = 0.5
"""Share of a pass's operators that lie in annotated layers, for annotations without numbers to count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """
    A pass cut into layers.

    Parameters
    ----------
    times
        Nanoseconds at which each layer begins, and the last one ends.
    kinds
        A number for each layer, the same for layers that run the same operators.
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
        """The layer at each time, ``FRONT`` or ``BACK``; a backward pass meets the last one first."""
        place = np.searchsorted(self.times, when, side="right") - 1
        before, behind = (BACK, FRONT) if backward else (FRONT, BACK)
        layer = self.num_layers - 1 - place if backward else place
        return np.select([place < 0, place >= self.num_layers], [before, behind], layer).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cutter:
    """
    Cuts passes of a trace into layers; passes that run the same are cut the same.

    Parameters
    ----------
    trace
        What the profiler recorded.
    numbers, found
        Number of the layer that each event says it is, ``UNKNOWN`` for most, and where the number comes from.
    tokens
        A number for each kind of event: its name with its operands, or with its blocks.
    needs, opens, once, pieces
        Which names a layer needs, begin it, and occur once in it, and which are annotations of a phase.
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
        Cut a pass: by layers that say so, by annotations that take turns, or by operators that take turns.

        Parameters
        ----------
        rows
            Events of a pass on one track.

        Returns
        -------
        Cut or None
            None where neither says nor repeats anything.
        """
        events = self.trace.events
        works = rows[np.isin(events.category[rows], (Category.OPERATOR, Category.KERNEL))]
        if len(works) == 0:
            return None
        said = self._said(rows)
        if said is not None:
            return self._made(said, works, self.found)
        pieces = rows[self.pieces[events.name[rows]] & (events.category[rows] == Category.ANNOTATION)]
        places = repetitions(events.name[pieces].astype(np.int64)) if len(pieces) else np.zeros(0, dtype=np.int64)
        if len(places):
            times = self._times(pieces, places)
            inside = (events.start[works] >= times[0]) & (events.start[works] < times[-1])
            if inside.mean() >= LEAST_OPERATORS:
                return self._made(times, works, "annotations")
        places = self._repeated(works)
        return self._made(self._times(works, places), works, "repetition") if len(places) else None

    def _said(self, rows: NDArray[np.intp]) -> Integers | None:
        """Where the layers of a pass begin, and the last one ends, as events with numbers say it."""
        events = self.trace.events
        marks = rows[self.numbers[rows] >= 0]
        number, first = np.unique(self.numbers[marks], return_index=True)
        if len(number) == 0:
            return None
        first = np.sort(first)
        last = self.numbers[marks] == self.numbers[marks[first[-1]]]
        return np.append(events.start[marks[first]], _end(events, marks[last]))

    def _repeated(self, works: NDArray[np.intp]) -> Integers:
        """Places among a pass's operators where layers begin by repetition: with operands, or else by names alone."""
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
        """When events at some places begin; for the last place, when what stands before it has ended."""
        events = self.trace.events
        last = rows[places[-2] : places[-1]]
        return np.append(events.start[rows[places[:-1]]], _end(events, last))

    def _made(self, times: Integers, works: NDArray[np.intp], found: str) -> Cut:
        """A cut, with the kinds of its layers."""
        events = self.trace.events
        places = np.searchsorted(events.start[works], times)
        return Cut(times=times, kinds=kinds(events.name[works].astype(np.int64), places), found=found)


def _end(events: Events, rows: NDArray[np.intp]) -> np.int64:
    """When the last of some events ends."""
    return np.int64((events.start[rows] + events.duration[rows]).max())


def cutter(trace: Trace, phase: NDArray[np.int64]) -> Cutter:
    """What cuts the passes of a trace whose phases are known."""
    events = trace.events
    table = np.where(events.operands >= 0, events.operands, np.where(events.blocks >= 0, events.blocks, UNKNOWN))
    tokens = events.name.astype(np.int64) * (int(table.max(initial=0)) + 2) + table + 1
    numbers, found = _numbers(trace, phase)
    return Cutter(
        trace=trace,
        numbers=numbers,
        found=found,
        tokens=tokens,
        needs=names.matches(trace, names.WORK),
        opens=names.matches(trace, names.NORM),
        once=names.matches(trace, names.ATTENTION),
        pieces=names.phases_of_names(trace, names.PHASES, but=names.SEVERAL_PHASES) > 0,
    )


def _numbers(trace: Trace, phase: NDArray[np.int64]) -> tuple[Integers, str]:
    """The layer that each annotation or module of the forward pass says it is: ``UNKNOWN`` for others."""
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
    Of all classes whose modules never lie within each other, that whose modules run the longest; "": none.

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
