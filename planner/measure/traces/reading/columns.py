"""Columns filled with the events of a document: the work per event determines how long reading takes."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from marshal import dumps, loads
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from planner.measure.traces.events import (
    ON_STREAMS,
    UNKNOWN,
    Category,
    Events,
    Integers,
    Trace,
    Track,
    Wait,
    build_table,
)
from planner.measure.traces.reading import arguments as said
from planner.measure.traces.reading.messages import number_messages

CALLS = [f"{of}{layer}" for of in ("cuda_", "hip_", "xpu_", "privateuse1_", "") for layer in ("runtime", "driver")]

CATEGORIES: dict[str, int] = {
    **dict.fromkeys(("cpu_op", "operator"), int(Category.OPERATOR)),
    **dict.fromkeys(CALLS, int(Category.CALL)),
    "kernel": int(Category.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), int(Category.COPY)),
    **dict.fromkeys(("gpu_memset", "memset"), int(Category.FILL)),
    "user_annotation": int(Category.ANNOTATION),
    "gpu_user_annotation": int(Category.DEVICE_ANNOTATION),
    "cuda_sync": int(Category.SYNCHRONIZATION),
    "python_function": int(Category.MODULE),
}

"""Categories by the names that releases of PyTorch give them, in small letters."""

OCCUPYING = frozenset(map(int, ON_STREAMS))

OF_STREAMS = OCCUPYING | {int(Category.DEVICE_ANNOTATION), int(Category.SYNCHRONIZATION)}

COPYING = frozenset((int(Category.COPY), int(Category.FILL)))

KERNELS, SYNCHRONIZATIONS, MODULES = int(Category.KERNEL), int(Category.SYNCHRONIZATION), int(Category.MODULE)

"""Plain integers, since comparing them is faster than comparing members of an enum."""

LISTED = ("correlation", "sequence", "forward_thread", "operands", "blocks", "message", "wait", "nbytes", "peer")

"""Columns that are empty for many events: only rows with an entry are stored."""

MODULE = "nn.Module: "

MOST_CATEGORIES = 1000

"""Spellings of categories that are remembered."""

MOST_EVENTS = 50_000_000

BYTES_PER_EVENT = 200

"""Memory of an event: its columns, and their copies while they are sorted."""

WITHOUT_REFERENCES = 2

"""Version of marshal that writes equal lists as equal bytes."""

NUMBERS = ("External id", "external id", "correlation", "Sequence number", "Fwd thread id", "bytes")

"""Arguments that some traces write as text."""

PER_SM = "blocks per SM"

OPERANDS, BLOCKS = ("Input Dims", "Input type"), ("grid", "block", PER_SM)

SENT = (*said.COMMUNICATION.values(), said.LIBRARY)

NOTHING: Mapping[str, Any] = {}

WRONG = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError)

"""Errors that entries of the wrong type raise."""

Key = TypeVar("Key")

Places: TypeAlias = defaultdict[Key, int]

"""Places of entries in a table; looking up a new entry gives it the next place."""


def _places() -> defaultdict[Any, int]:
    return defaultdict(count().__next__)


class Columns:
    """
    Events in columns, added batch by batch.

    Parameters
    ----------
    where
        Name of the file, for messages.

    Attributes
    ----------
    category, name, track, start, duration, external
        One entry per event; starts are those of the profiler.
    rows, entries
        Rows that have an entry in each column of ``LISTED``, and the entries.
    names, tracks, operands, blocks, messages, waits
        Tables for the numbers in the columns: the profiler's text, with its number.
    seen
        Unused categories that were met.
    num_left_out
        Events left out because an entry is not a number, or does not fit into 63 bits.
    """

    def __init__(self, where: str) -> None:
        self.category, self.name, self.track = array("b"), array("i"), array("i")
        self.start, self.duration, self.external = array("q"), array("q"), array("q")
        self.rows = {column: array("q") for column in LISTED}
        self.entries = {column: array("q") for column in LISTED}
        self.names: Places[str] = _places()
        self.tracks: Places[tuple[bool, object, object]] = _places()
        self.operands: Places[bytes] = _places()
        self.blocks: Places[bytes] = _places()
        self.messages: Places[bytes] = _places()
        self.waits: Places[Wait] = _places()
        self.seen: set[str] = set()
        self.num_left_out = 0
        self._where = where
        self._categories: dict[Any, int] = dict(CATEGORIES)

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def add(self, events: Sequence[Any]) -> None:
        """
        Add the events whose category is used.

        Raises
        ------
        SpecError
            If there are more than memory can hold.
        """
        before = len(self)
        try:
            self._add(events)
        except WRONG:
            self._undo(before)
            if len(events) > 1:
                middle = len(events) // 2
                self.add(events[:middle])
                self.add(events[middle:])
            else:
                self._add_mended(events[0])
        if len(self) > MOST_EVENTS:
            gigabytes = MOST_EVENTS * BYTES_PER_EVENT / 1e9
            raise SpecError(
                self._where,
                f"holds more than {MOST_EVENTS:,} events, for which {gigabytes:.0f} GB of memory do not suffice.",
                "Record fewer iterations: one or two are enough.",
            )

    def _undo(self, row: int) -> None:
        """Remove events again; some columns may not have them yet."""
        for column in (self.category, self.name, self.track, self.start, self.duration, self.external):
            del column[row:]
        for name, rows in self.rows.items():
            while rows and rows[-1] >= row:
                rows.pop()
            del self.entries[name][len(rows) :]

    def _add_mended(self, event: Any) -> None:
        """Add an event whose numbers are written as text, or leave it out."""
        before = len(self)
        try:
            arguments = event.get("args") or {}
            numbers = {name: said.whole(arguments[name]) for name in NUMBERS if name in arguments}
            self._add([{**event, "args": {**arguments, **numbers}}])
        except WRONG:
            self._undo(before)
            self.num_left_out += 1

    # --- many events at once: a column after the other takes half as long as an event after the other --------

    def _add(self, events: Sequence[Any]) -> None:
        """Add events whose entries all have the right types, or raise one of ``WRONG``."""
        category, first = self._category, len(self)
        found = [(one, of) for one in events if (of := category(one)) >= 0]
        chosen, categories = [one for one, _ in found], [of for _, of in found]
        arguments = [one.get("args") or NOTHING for one in chosen]
        named = [one["name"] for one in chosen]
        if not {str}.issuperset(map(type, named)):
            raise TypeError("a name is no text")
        nanoseconds = said.nanoseconds
        self.start.extend([nanoseconds(one["ts"]) for one in chosen])
        self.duration.extend([nanoseconds(one.get("dur", 0)) for one in chosen])
        self.category.extend(categories)
        self.external.extend([given.get("External id", UNKNOWN) for given in arguments])
        self.name.extend(map(self.names.__getitem__, named))
        tracks = self.tracks
        self.track.extend(
            [
                tracks[True, given.get("device", one["pid"]), given.get("stream", one["tid"])]
                if of in OCCUPYING
                else tracks[of in OF_STREAMS, one["pid"], one["tid"]]
                for one, of, given in zip(chosen, categories, arguments, strict=True)
            ]
        )
        self._add_numbers(first, categories, arguments)
        self._add_records(first, categories, arguments)
        for row, name in enumerate(named, first):
            if name in said.POINT_TO_POINT:
                self._list("peer", [(row, said.peer_of(name, arguments[row - first].get("Concrete Inputs")))])

    def _category(self, event: Mapping[str, Any]) -> int:
        """Return the category of an event; negative if it is not used."""
        named = event.get("cat")
        category = self._categories.get(named)
        if category is None:
            category = self._new_category(named)
        if event["ph"] != "X" or (category == MODULES and not event["name"].startswith(MODULE)):
            return UNKNOWN
        return category

    def _new_category(self, named: object) -> int:
        """Look up the spelling of a category that was not met before."""
        category = CATEGORIES.get(str(named).lower(), UNKNOWN)
        if len(self._categories) < MOST_CATEGORIES:
            self._categories[named] = category
            self.seen.update([str(named)] if category == UNKNOWN and named else [])
        return category

    def _list(self, column: str, found: Sequence[tuple[int, int]]) -> None:
        """Write entries of a sparse column; entries first, since they raise if they do not fit into 63 bits."""
        self.entries[column].extend([entry for _, entry in found])
        self.rows[column].extend([row for row, _ in found])

    def _add_numbers(self, first: int, categories: Sequence[int], arguments: Sequence[Mapping[str, Any]]) -> None:
        given = list(enumerate(arguments, first))
        self._list("correlation", [(row, one["correlation"]) for row, one in given if "correlation" in one])
        of_backward = [(row, one) for row, one in given if "Sequence number" in one]
        self._list("sequence", [(row, one["Sequence number"]) for row, one in of_backward])
        self._list("forward_thread", [(row, one.get("Fwd thread id", UNKNOWN)) for row, one in of_backward])
        copied = [one for one, of in zip(given, categories, strict=True) if of in COPYING]
        self._list("nbytes", [(row, one["bytes"]) for row, one in copied if "bytes" in one])

    def _add_records(self, first: int, categories: Sequence[int], arguments: Sequence[Mapping[str, Any]]) -> None:
        given = list(enumerate(arguments, first))
        self._list(
            "operands",
            [(row, self.operands[_key(one, OPERANDS)]) for row, one in given if one.get("Input Dims") is not None],
        )
        kernels = [one for one, of in zip(given, categories, strict=True) if of == KERNELS]
        self._list("blocks", [(row, self.blocks[_key(one, BLOCKS)]) for row, one in kernels if "grid" in one])
        sent = [(row, self.messages[_key(one, SENT)]) for row, one in given if said.OPERATION in one]
        self._list("message", sent)
        waiting = [one for one, of in zip(given, categories, strict=True) if of == SYNCHRONIZATIONS]
        waits = [(row, said.wait(one)) for row, one in waiting]
        self._list("wait", [(row, self.waits[one]) for row, one in waits if one])


def _key(arguments: Mapping[str, Any], names: tuple[str, ...]) -> bytes:
    """Return arguments as a key for a dictionary: lists cannot be keys."""
    return dumps([arguments.get(name) for name in names], WITHOUT_REFERENCES)


Entry = TypeVar("Entry", bound=Hashable)


def assemble_trace(columns: Columns, about: dict[str, Any], library: str, source: str) -> Trace:
    """
    Build the trace of at least one event.

    Parameters
    ----------
    columns
        Its events. They are empty afterwards, so that memory does not hold them twice.
    about, library
        Rank, devices and process groups, which stand next to the events, and the groups' communication library.
    source
        Name of the file.
    """
    begin, rows = _sort_columns(columns)
    names, rows["name"] = _order_entries(list(columns.names), rows["name"])
    of_rows = [Track("stream" if key[0] else "thread", str(key[1]), str(key[2])) for key in columns.tracks]
    tracks, rows["track"] = _order_entries(of_rows, rows["track"])
    operands, rows["operands"] = _order_entries(
        [said.operands(*loads(key)) for key in columns.operands], rows["operands"]
    )
    blocks, rows["blocks"] = _order_entries([said.blocks(*loads(key)) for key in columns.blocks], rows["blocks"])
    waits, rows["wait"] = _order_entries(list(columns.waits), rows["wait"])
    said_of, peer = rows.pop("message"), rows.pop("peer")
    trace = Trace(
        source=source,
        events=build_table(Events, len(rows["start"]), **rows),
        names=names,
        tracks=tracks,
        operands=operands,
        blocks=blocks,
        waits=waits,
        **{**about, "begin": about["begin"] + begin},
    )
    sent = [dict(zip((*said.COMMUNICATION, "library"), loads(key), strict=True)) for key in columns.messages]
    messages, column = _order_entries(*number_messages(trace, sent, said_of, peer, library))
    return replace(trace, messages=messages, events=replace(trace.events, message=column))


def _sort_columns(columns: Columns) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the start of the first event and all columns in the order of time, longer events first."""
    start = _take(columns, "start", np.int64)
    duration = np.maximum(_take(columns, "duration", np.int64), 0)
    order = np.lexsort((-duration, start))
    begin = int(start[order[0]])
    rows: dict[str, NDArray[Any]] = {"start": start[order] - begin, "duration": duration[order]}
    for name, dtype in (("category", np.int8), ("external", np.int64), ("name", np.int32), ("track", np.int32)):
        rows[name] = _take(columns, name, dtype)[order]
    for name in LISTED:
        rows[name] = _take_sparse(columns, name, len(order))[order]
    return begin, rows


def _take(columns: Columns, name: str, dtype: type[np.signedinteger]) -> NDArray[Any]:
    """Take a column that every event has, and release its memory."""
    column: array[int] = getattr(columns, name)
    setattr(columns, name, array(column.typecode))
    return np.frombuffer(column, dtype=dtype)


def _take_sparse(columns: Columns, name: str, num_events: int) -> Integers:
    """Take a column that only some events have; ``UNKNOWN`` for the others."""
    column = np.full(num_events, UNKNOWN, dtype=np.int64)
    rows, entries = (np.frombuffer(one.pop(name), dtype=np.int64) for one in (columns.rows, columns.entries))
    column[rows] = entries
    return column


def _order_entries(entries: Sequence[Entry], column: NDArray[Any]) -> tuple[tuple[Entry, ...], NDArray[np.int32]]:
    """Order entries by their first use in a column, without duplicates; renumber the column."""
    first = np.full(len(entries) + 1, len(column))
    first[column[::-1]] = np.arange(len(column))[::-1]
    met = [place for place in np.argsort(first[:-1], kind="stable") if first[place] < len(column)]
    places: dict[Entry, int] = {}
    new = np.full(len(entries) + 1, UNKNOWN, dtype=np.int32)
    for place in met:
        new[place] = places.setdefault(entries[place], len(places))
    return tuple(places), new[column]
