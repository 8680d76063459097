"""Build a trace from its columns: events in the order of time, table entries in the order of their first use."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import fields
from marshal import loads
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.events import UNKNOWN, Events, Integers, Trace, Track
from costmodel.traces.reading import arguments as said
from costmodel.traces.reading.columns import LISTED, Columns
from costmodel.traces.reading.described import Described
from costmodel.traces.reading.messages import Rows, Tables, messages

Entry = TypeVar("Entry", bound=Hashable)


def assembled(columns: Columns, about: Described, source: str) -> Trace:
    """
    Build the trace of at least one event.

    Parameters
    ----------
    columns
        Its events. They are empty afterwards, so that memory does not hold them twice.
    about
        Rank, devices and process groups, which stand beside the events.
    source
        Name of the file.
    """
    begin, rows = _sorted(columns)
    names, rows["name"] = _in_order(list(columns.names), rows["name"])
    tracks, rows["track"] = _in_order([_track(*key) for key in columns.tracks], rows["track"])
    operands, rows["operands"] = _in_order([said.operands(*loads(key)) for key in columns.operands], rows["operands"])
    blocks, rows["blocks"] = _in_order([said.blocks(*loads(key)) for key in columns.blocks], rows["blocks"])
    waits, rows["wait"] = _in_order(list(columns.waits), rows["wait"])
    tables = Tables(names, operands, list(columns.messages), about.groups, about.library)
    message, found = messages(Rows(**{column: rows[column] for column in Rows._fields}), tables)
    sent, rows["message"] = _in_order(found, message)
    return Trace(
        source=source,
        rank=about.rank,
        world_size=about.world_size,
        events=Events(**{column.name: rows[column.name] for column in fields(Events)}),
        names=names,
        tracks=tracks,
        operands=operands,
        blocks=blocks,
        messages=sent,
        waits=waits,
        devices=about.devices,
        groups=about.groups,
        begin=about.base + begin,
    )


def _sorted(columns: Columns) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the start of the first event and all columns in the order of time, longer events first."""
    start = _taken(columns, "start", np.int64)
    duration = np.maximum(_taken(columns, "duration", np.int64), 0)
    order = np.lexsort((-duration, start))
    begin = int(start[order[0]])
    rows: dict[str, NDArray[Any]] = {"start": start[order] - begin, "duration": duration[order]}
    for name, dtype in (("category", np.int8), ("external", np.int64), ("name", np.int32), ("track", np.int32)):
        rows[name] = _taken(columns, name, dtype)[order]
    for name in LISTED:
        rows[name] = _listed(columns, name, len(order))[order]
    return begin, rows


def _taken(columns: Columns, name: str, dtype: type[np.signedinteger]) -> NDArray[Any]:
    """Take a column that every event has, and release its memory."""
    column: array[int] = getattr(columns, name)
    setattr(columns, name, array(column.typecode))
    return np.frombuffer(column, dtype=dtype)


def _listed(columns: Columns, name: str, num_events: int) -> Integers:
    """Take a column that only some events have; ``UNKNOWN`` for the others."""
    column = np.full(num_events, UNKNOWN, dtype=np.int64)
    rows, entries = (np.frombuffer(one.pop(name), dtype=np.int64) for one in (columns.rows, columns.entries))
    column[rows] = entries
    return column


def _track(on_stream: bool, process: object, number: object) -> Track:
    return Track("stream" if on_stream else "thread", str(process), str(number))


def _in_order(entries: Sequence[Entry], column: NDArray[Any]) -> tuple[tuple[Entry, ...], NDArray[np.int32]]:
    """Order entries by their first use in a column, without duplicates; renumber the column."""
    first = np.full(len(entries) + 1, len(column))
    first[column[::-1]] = np.arange(len(column))[::-1]
    met = [place for place in np.argsort(first[:-1], kind="stable") if first[place] < len(column)]
    places: dict[Entry, int] = {}
    new = np.full(len(entries) + 1, UNKNOWN, dtype=np.int32)
    for place in met:
        new[place] = places.setdefault(entries[place], len(places))
    return tuple(places), new[column]
