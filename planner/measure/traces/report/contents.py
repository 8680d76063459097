"""Contents of traces: counts, threads and streams, communication, the longest kernels, and missing information."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from costmodel.record import record
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Trace, length, union
from planner.measure.traces.iterations import Found, iterations
from planner.measure.traces.reading.messages import element_bytes
from planner.measure.traces.report.replay import short_name
from planner.report.console import sections_text
from planner.report.section import NOTHING, Screen, Section, amount_of_bytes, number_rows, share

NANOSECONDS = 1e9


@record(frozen=True, slots=True)
class IterationContents:
    """
    An iteration on the host.

    Parameters
    ----------
    name
        The profiler's name, or its number.
    seconds
        Seconds from its begin to its end, or to the next one.
    """

    name: str
    seconds: float


@record(frozen=True, kw_only=True, slots=True)
class TrackContents:
    """
    A thread or a stream.

    Parameters
    ----------
    kind, process, number
        As in :class:`~planner.measure.traces.events.Track`.
    num_events
        Events on it.
    busy_seconds
        Seconds in which at least one of them ran, without annotations.
    """

    kind: str
    process: str
    number: str
    num_events: int
    busy_seconds: float


@record(frozen=True, slots=True)
class CommunicationContents:
    """
    Communications of one kind.

    Parameters
    ----------
    library, operation, group, description, num_ranks
        As in :class:`~planner.measure.traces.events.Message`.
    number
        Number of communications.
    seconds
        Their total time, waits for other ranks included.
    nbytes
        Bytes that this rank sends; 0 where they were not recorded.
    """

    library: str
    operation: str
    group: str
    description: str
    num_ranks: int
    number: int
    seconds: float
    nbytes: int


@record(frozen=True, slots=True)
class KernelContents:
    """
    Kernels of one name, or operators where nothing ran on a device.

    Parameters
    ----------
    name
        Name of the kernels or operators.
    number
        Number of launches.
    seconds
        Their total time.
    """

    name: str
    number: int
    seconds: float


@record(frozen=True, kw_only=True, slots=True)
class TraceContents:
    """
    Contents of one rank's trace.

    Parameters
    ----------
    source, rank, world_size
        As in :class:`~planner.measure.traces.events.Trace`.
    device
        Name of the devices; "" where it was not recorded.
    num_devices
        Devices of the host.
    seconds
        From the begin of the first event to the end of the last.
    iterations, iterations_by
        Iterations on the host, and how they were found.
    num_events
        Events by category.
    tracks, communications, kernels
        Each track; each kind of communication, the longest first; the longest kernels.
    doubts
        Missing information, its consequence, and how to record it.
    """

    source: str
    rank: int | None
    world_size: int | None
    device: str
    num_devices: int
    seconds: float
    iterations: tuple[IterationContents, ...]
    iterations_by: Found
    num_events: dict[str, int]
    tracks: tuple[TrackContents, ...]
    communications: tuple[CommunicationContents, ...]
    kernels: tuple[KernelContents, ...]
    doubts: tuple[str, ...]


def contents(trace: Trace, *, num_kernels: int) -> TraceContents:
    """
    List the contents of a trace of at least one event.

    Parameters
    ----------
    trace
        The trace.
    num_kernels
        Largest number of kernel names to list.
    """
    found = iterations(trace)
    counts = np.bincount(trace.events.category, minlength=len(Category))
    names = {device.name for device in trace.devices}
    return TraceContents(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=" and ".join(sorted(names)),
        num_devices=len(trace.devices),
        seconds=int(trace.events.end.max()) / NANOSECONDS,
        iterations=tuple(IterationContents(one.name, one.duration / NANOSECONDS) for one in found),
        iterations_by=found[0].found,
        num_events={of.name.lower(): int(counts[of]) for of in Category if counts[of]},
        tracks=tuple(_tracks(trace)),
        communications=_communications(trace),
        kernels=_kernels(trace, num_kernels),
        doubts=trace.doubts,
    )


def _tracks(trace: Trace) -> Iterable[TrackContents]:
    events = trace.events
    works = ~np.isin(events.category, (Category.ANNOTATION, Category.DEVICE_ANNOTATION, Category.SYNCHRONIZATION))
    for place, track in enumerate(trace.tracks):
        mine = events.track == place
        yield TrackContents(
            kind=track.kind,
            process=track.process,
            number=track.number,
            num_events=int(np.count_nonzero(mine)),
            busy_seconds=length(union(events.start[mine & works], events.end[mine & works])) / NANOSECONDS,
        )


def _communications(trace: Trace) -> tuple[CommunicationContents, ...]:
    """Sum communications on streams; where there are none, those of the host."""
    sent = np.flatnonzero(trace.events.message != UNKNOWN)
    on_streams = sent[np.isin(trace.events.category[sent], ON_STREAMS)]
    on_host = sent[trace.events.category[sent] == Category.ANNOTATION]
    rows = on_streams if len(on_streams) else on_host
    kinds: dict[tuple[str, str, str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in rows.tolist():
        one = trace.messages[trace.events.message[row]]
        kind = (one.library, one.operation, one.group, one.description, one.num_ranks)
        nbytes = one.elements_in * element_bytes(one.dtype)
        kinds[kind].append((int(trace.events.duration[row]), nbytes))
    found = [
        CommunicationContents(
            *kind, len(those), sum(ns for ns, _ in those) / NANOSECONDS, sum(sent for _, sent in those)
        )
        for kind, those in kinds.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _kernels(trace: Trace, most: int) -> tuple[KernelContents, ...]:
    """Return the kernels with the longest total time."""
    rows = trace.find_rows(*ON_STREAMS) if trace.has_device else trace.find_rows(Category.OPERATOR)
    names = trace.events.name[rows]
    seconds = np.bincount(names, weights=trace.events.duration[rows], minlength=len(trace.names)) / NANOSECONDS
    number = np.bincount(names, minlength=len(trace.names))
    order = [place for place in np.argsort(-seconds, kind="stable")[:most].tolist() if number[place]]
    return tuple(KernelContents(trace.names[place], int(number[place]), float(seconds[place])) for place in order)


LONGEST_NAME = 60

"""Characters of a kernel's name in a table."""

FOUND_BY: Mapping[Found, str] = {
    "steps": "marked by the profiler",
    "optimizer": "found by the updates of the parameters",
    "repetition": "found because the trace repeats itself",
    "whole": "not found: the whole trace",
}

CATEGORY_LABELS = {"fill": "memory set", "synchronization": "synchronisation", "device_annotation": "device annotation"}

"""Labels of categories whose name is not a usual word."""


def contents_json(found: Sequence[TraceContents]) -> str:
    """Write contents as JSON: a list with an entry for each trace."""
    return json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False)


def contents_text(found: Sequence[TraceContents], screen: Screen) -> str:
    """Write contents as text: sections of each trace."""
    return sections_text((section for one in found for section in _sections(one)), screen)


def _sections(one: TraceContents) -> Iterator[Section]:
    yield Section(title=_title(one), rows=tuple(_facts(one)))
    yield _tracks_section(one)
    if one.communications:
        yield _communications_section(one)
    if one.kernels:
        yield _kernels_section(one)
    if one.doubts:
        yield Section(title="Missing information", rows=number_rows(one.doubts))


def _title(one: TraceContents) -> str:
    if one.rank is None:
        return "Trace of an unknown rank"
    return f"Trace of rank {one.rank}" + (f" of {one.world_size:,}" if one.world_size else "")


def _facts(one: TraceContents) -> Iterator[tuple[str, str]]:
    yield "file", one.source
    yield "devices", f"{one.num_devices} x {one.device}" if one.num_devices else "not recorded"
    yield "length", f"{_milliseconds(one.seconds)} ms"
    lengths = ", ".join(f"{step.name} {_milliseconds(step.seconds)} ms" for step in one.iterations)
    yield "iterations", f"{FOUND_BY[one.iterations_by]}: {lengths}"
    counts = (f"{number:,} {CATEGORY_LABELS.get(name, name)}" for name, number in one.num_events.items())
    yield "events", ", ".join(counts)


def _tracks_section(one: TraceContents) -> Section:
    return Section(
        title="Threads and streams",
        header=("track", "process or device", "number", "events", "busy, ms", "of the trace"),
        rows=tuple(
            (
                track.kind,
                track.process,
                track.number,
                f"{track.num_events:,}",
                _milliseconds(track.busy_seconds),
                share(track.busy_seconds, one.seconds) if one.seconds else NOTHING,
            )
            for track in one.tracks
        ),
    )


def _communications_section(one: TraceContents) -> Section:
    return Section(
        title="Communication",
        header=("library", "operation", "group", "ranks", "number", "ms", "put in"),
        rows=tuple(
            (
                sent.library or NOTHING,
                sent.operation or NOTHING,
                " ".join(word for word in (sent.group, sent.description) if word) or NOTHING,
                f"{sent.num_ranks}" if sent.num_ranks else NOTHING,
                f"{sent.number:,}",
                _milliseconds(sent.seconds),
                amount_of_bytes(sent.nbytes) if sent.nbytes else NOTHING,
            )
            for sent in one.communications
        ),
        notes=("Times include waits for other ranks.",),
    )


def _kernels_section(one: TraceContents) -> Section:
    num_kernels = one.num_events.get("kernel", 0)
    rows = (
        (short_name(kernel.name, LONGEST_NAME), f"{kernel.number:,}", _milliseconds(kernel.seconds))
        for kernel in one.kernels
    )
    return Section(
        title="Longest kernels and copies" if num_kernels else "Longest operators",
        header=("name", "number", "ms"),
        rows=tuple(rows),
        notes=() if num_kernels else ("Operators that call others count twice.",),
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
