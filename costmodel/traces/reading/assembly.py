"""A trace from its columns: in the order of time, every table in the order in which its entries are met."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from marshal import loads
from typing import TypeVar

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
    The trace of at least one event.

    Parameters
    ----------
    columns
        Its events; they are empty afterwards, which saves their memory.
    about
        What stands beside them.
    source
        Where it comes from.
    """
    start, duration = _dense(columns, "start"), np.maximum(_dense(columns, "duration"), 0)
    order = np.lexsort((-duration, start))
    begin = int(start[order[0]])
    start, duration = start[order] - begin, duration[order]
    dense = {name: _dense(columns, name)[order] for name in ("category", "external", "name", "track")}
    listed = {name: _listed(columns, name, len(order))[order] for name in LISTED}
    names, dense["name"] = _in_order(list(columns.names), dense["name"])
    tracks, dense["track"] = _in_order([_track(*key) for key in columns.tracks], dense["track"])
    operands, operand = _in_order([said.operands(*loads(key)) for key in columns.operands], listed["operands"])
    blocks, block = _in_order([said.blocks(*loads(key)) for key in columns.blocks], listed["blocks"])
    waits, wait = _in_order(list(columns.waits), listed["wait"])
    rows = Rows(
        category=dense["category"],
        name=dense["name"],
        track=dense["track"],
        start=start,
        duration=duration,
        correlation=listed["correlation"],
        operands=operand,
        message=listed["message"],
        peer=listed["peer"],
    )
    sent = messages(rows, Tables(names, operands, list(columns.messages), about.groups, about.library))
    found, message = _in_order(sent[1], sent[0])
    return Trace(
        source=source,
        rank=about.rank,
        world_size=about.world_size,
        events=Events(
            start=start,
            duration=duration,
            correlation=listed["correlation"],
            sequence=listed["sequence"],
            forward_thread=listed["forward_thread"],
            nbytes=listed["nbytes"],
            operands=operand,
            blocks=block,
            message=message,
            wait=wait,
            **dense,
        ),
        names=names,
        tracks=tracks,
        operands=operands,
        blocks=blocks,
        messages=found,
        waits=waits,
        devices=about.devices,
        groups=about.groups,
        begin=about.base + begin,
    )


_TYPES = {"b": np.int8, "i": np.int32, "q": np.int64}


def _dense(columns: Columns, name: str) -> NDArray[np.int64]:
    """A column that every event has; gives its memory away."""
    column: array[int] = getattr(columns, name)
    setattr(columns, name, array(column.typecode))
    return np.frombuffer(column, dtype=_TYPES[column.typecode])  # type: ignore[return-value]


def _listed(columns: Columns, name: str, num_events: int) -> Integers:
    """A column that some events have."""
    column = np.full(num_events, UNKNOWN, dtype=np.int64)
    rows, entries = (np.frombuffer(one.pop(name), dtype=np.int64) for one in (columns.rows, columns.entries))
    column[rows] = entries
    return column


def _track(on_stream: bool, process: object, number: object) -> Track:
    return Track("stream" if on_stream else "thread", str(process), str(number))


def _in_order(entries: Sequence[Entry], column: NDArray[np.integer]) -> tuple[tuple[Entry, ...], NDArray[np.int32]]:
    """Entries in the order in which a column meets them, each once; and the column with their new places."""
    first = np.full(len(entries) + 1, len(column))
    first[column[::-1]] = np.arange(len(column))[::-1]
    met = [place for place in np.argsort(first[:-1], kind="stable") if first[place] < len(column)]
    places: dict[Entry, int] = {}
    new = np.full(len(entries) + 1, UNKNOWN, dtype=np.int32)
    for place in met:
        new[place] = places.setdefault(entries[place], len(places))
    return tuple(places), new[column]
