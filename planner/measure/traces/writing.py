"""Traces written in the format of PyTorch's profiler: for Perfetto, and to be read again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO, TypeAlias, cast

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Events, Message, Trace, Track, Wait
from planner.measure.traces.reading.arguments import COMMUNICATION, LIBRARY, NANOSECONDS_PER_MICROSECOND, WAITS
from planner.measure.traces.reading.columns import CATEGORIES, PER_SM

NAMES = {category: name for name, category in reversed(CATEGORIES.items())}
"""Names of PyTorch's profiler for each category, of several the first."""

NUMBERS = {
    "External id": "external",
    "correlation": "correlation",
    "Sequence number": "sequence",
    "Fwd thread id": "forward_thread",
    "bytes": "nbytes",
}
"""Names of PyTorch's profiler for numbers of an event, and their columns."""

KIND_OF_WAIT = {of: kind for kind, of in sorted(WAITS.items(), reverse=True)}

FASTEST = 1
"""Level of gzip: traces shrink to a tenth at once, and little more at higher levels."""

AT_ONCE = 100_000
"""Events that are converted from columns together."""

Plain: TypeAlias = dict[str, Any]


def write_trace(trace: Trace, path: str | Path) -> None:
    """
    Write a trace that :func:`~planner.measure.traces.reading.read_trace` reads into equal columns, and Perfetto shows.

    Arrows from launches to kernels, and names of threads and streams, are for display only. Grids belong to kernels,
    bytes to copies and waits to synchronisations; those of other events are not read again.

    Parameters
    ----------
    trace
        Trace to write.
    path
        The file; packed with gzip where its name ends with ``.gz``.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        with _open(draft, packed=target.suffix == ".gz") as file:
            _write(trace, file)
        draft.replace(target)
    except OSError as error:
        raise SpecError(str(path), f"cannot be written: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)


def _open(path: Path, *, packed: bool) -> TextIO:
    if packed:
        return cast(TextIO, gzip.open(path, "wt", encoding="utf-8", compresslevel=FASTEST))
    return path.open("w", encoding="utf-8")


def _write(trace: Trace, file: TextIO) -> None:
    base = max(trace.begin, 0)
    top = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": place, "name": one.name, "totalGlobalMem": one.memory_bytes, "numSms": one.num_processors}
            for place, one in enumerate(trace.devices)
        ],
        "distributedInfo": _describe_job(trace),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
    }
    file.write(json.dumps(top)[:-1] + ', "traceEvents": [')
    between = "\n"
    for event in _all_events(trace, trace.begin - base):
        file.write(between)
        file.write(event)
        between = ",\n"
    file.write("\n]}\n")


def _describe_job(trace: Trace) -> Plain:
    groups = [{"pg_name": name, "pg_size": len(ranks), "ranks": list(ranks)} for name, ranks in trace.groups.items()]
    known = {"rank": trace.rank, "world_size": trace.world_size}
    return {**{name: number for name, number in known.items() if number is not None}, "pg_config": groups}


def _all_events(trace: Trace, offset: int) -> Iterator[str]:
    """Yield each event as text; times are ``offset`` later than in the columns."""
    yield from _names(trace)
    tracks = [_place(track) for track in trace.tracks]
    names = [json.dumps(name) for name in trace.names]
    arguments_of, arrows = _arguments(trace), _arrows(trace)
    for number, row in enumerate(_rows(trace.events)):
        where, when = tracks[row["track"]], _microseconds(row["start"] + offset)
        yield (
            f'{{"ph": "X", "cat": "{NAMES[row["category"]]}", "name": {names[row["name"]]}, {where}, '
            f'"ts": {when}, "dur": {_microseconds(row["duration"])}, "args": {json.dumps(arguments_of(row))}}}'
        )
        if arrow := arrows.get(number):
            yield f'{{{arrow}, {where}, "ts": {when}, "cat": "ac2g", "name": "ac2g"}}'


def _rows(events: Events) -> Iterator[dict[str, int]]:
    """Yield events as rows, in batches, as plain numbers need more memory than columns."""
    columns = [one.name for one in fields(events)]
    for begin in range(0, len(events), AT_ONCE):
        part = events[np.arange(begin, min(begin + AT_ONCE, len(events)))]
        for row in zip(*(getattr(part, name).tolist() for name in columns), strict=True):
            yield dict(zip(columns, row, strict=True))


def _microseconds(nanoseconds: int) -> str:
    """Write a time with all its digits."""
    sign, (whole, rest) = "-" if nanoseconds < 0 else "", divmod(abs(nanoseconds), NANOSECONDS_PER_MICROSECOND)
    return f"{sign}{whole}.{rest:03d}"


# --- tracks and arrows ---------------------------------------------------------------------------------------


def _place(track: Track) -> str:
    return f'"pid": {_number(track.process)}, "tid": {_number(track.number)}'


def _number(text: str) -> str:
    """Write a number as such, so that Perfetto sorts by it; write anything else as text."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and str(int(text)) == text
    return text if is_number else json.dumps(text)


def _names(trace: Trace) -> Iterator[str]:
    """Yield Perfetto's names of processes and tracks."""
    processes = {track.process: track.kind for track in trace.tracks}
    for process, kind in processes.items():
        label = f"GPU {process}" if kind == "stream" else "CPU"
        yield _name_event("process_labels", f'"pid": {_number(process)}, "tid": 0', "labels", label)
    for track in trace.tracks:
        yield _name_event("thread_name", _place(track), "name", f"{track.kind} {track.number}")


def _name_event(kind: str, where: str, entry: str, name: str) -> str:
    return f'{{"ph": "M", "name": "{kind}", {where}, "ts": 0, "args": {json.dumps({entry: name})}}}'


def _arrows(trace: Trace) -> dict[int, str]:
    """Return the ends of arrows from each launch to its task on a stream, by row."""
    correlation = trace.events.correlation
    calls, launched = (
        rows[correlation[rows] != UNKNOWN] for rows in (trace.find_rows(Category.CALL), trace.find_rows(*ON_STREAMS))
    )
    both = np.intersect1d(correlation[calls], correlation[launched])
    begin = {row: f'"ph": "s", "id": {correlation[row]}' for row in calls[np.isin(correlation[calls], both)].tolist()}
    end = launched[np.isin(correlation[launched], both)].tolist()
    return begin | {row: f'"ph": "f", "bp": "e", "id": {correlation[row]}' for row in end}


# --- arguments -----------------------------------------------------------------------------------------------


def _arguments(trace: Trace) -> Callable[[Mapping[str, int]], Plain]:
    """Return a function of an event's row: its known arguments in the format of PyTorch's profiler."""
    tables: Mapping[str, Sequence[Plain]] = {
        "operands": [{"Input Dims": one.sizes, "Input type": one.dtypes} for one in trace.operands],
        "blocks": [
            {"grid": [of.num_blocks, 1, 1], "block": [of.threads_per_block, 1, 1], PER_SM: of.blocks_per_processor}
            for of in trace.blocks
        ],
        "message": [_message(one) for one in trace.messages],
        "wait": [_wait(one) for one in trace.waits],
    }

    def arguments_of(row: Mapping[str, int]) -> Plain:
        found: Plain = {name: row[column] for name, column in NUMBERS.items() if row[column] != UNKNOWN}
        if "Fwd thread id" in found:
            found["Sequence number"] = row["sequence"]
        if row["category"] in ON_STREAMS:
            track = trace.tracks[row["track"]]
            found |= {"device": track.process, "stream": track.number}
        for column, table in tables.items():
            if row[column] != UNKNOWN:
                found |= table[row[column]]
        return found

    return arguments_of


def _message(one: Message) -> Plain:
    written = {name: getattr(one, name) for name in COMMUNICATION if hasattr(one, name)}
    written["ranks"] = str(list(one.ranks))
    if one.peer != UNKNOWN:
        written["source" if one.operation == "recv" else "destination"] = one.peer
    return {COMMUNICATION[field]: entry for field, entry in written.items()} | {LIBRARY: one.library}


def _wait(one: Wait) -> Plain:
    found: Plain = {"cuda_sync_kind": KIND_OF_WAIT[one.of]}
    if one.stream:
        found["stream" if one.of == "stream" else "wait_on_stream"] = one.stream
    if one.record != UNKNOWN:
        found["wait_on_cuda_event_record_corr_id"] = one.record
    return found
