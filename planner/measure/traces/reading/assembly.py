"""Build a trace from its columns: events in the order of time, table entries in the order of their first use."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import replace
from marshal import loads
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Events, Integers, Trace, Track
from planner.measure.traces.reading import arguments as said
from planner.measure.traces.reading.columns import LISTED, Columns
from planner.measure.traces.reading.described import Described
from planner.measure.traces.reading.messages import Messages

Entry = TypeVar("Entry", bound=Hashable)


def assemble_trace(columns: Columns, about: Described, source: str) -> Trace:
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
    begin, rows = _sort_columns(columns)
    names, rows["name"] = _order_entries(list(columns.names), rows["name"])
    tracks, rows["track"] = _order_entries([_track(*key) for key in columns.tracks], rows["track"])
    operands, rows["operands"] = _order_entries(
        [said.operands(*loads(key)) for key in columns.operands], rows["operands"]
    )
    blocks, rows["blocks"] = _order_entries([said.blocks(*loads(key)) for key in columns.blocks], rows["blocks"])
    waits, rows["wait"] = _order_entries(list(columns.waits), rows["wait"])
    said_of, peer = rows.pop("message"), rows.pop("peer")
    trace = Trace(
        source=source,
        rank=about.rank,
        world_size=about.world_size,
        events=Events.build(len(rows["start"]), **rows),
        names=names,
        tracks=tracks,
        operands=operands,
        blocks=blocks,
        waits=waits,
        devices=about.devices,
        groups=about.groups,
        begin=about.base + begin,
    )
    found = Messages(trace, list(columns.messages), said_of, peer, about.library)
    messages, column = _order_entries(list(found.found), found.places)
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


def _track(on_stream: bool, process: object, number: object) -> Track:
    return Track("stream" if on_stream else "thread", str(process), str(number))


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
