"""Contents of traces as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from planner.measure.traces.iterations import Found
from planner.measure.traces.report.contents import TraceContents
from planner.report.console import sections_text
from planner.report.screen import PLAIN, Screen
from planner.report.section import Section, number_rows
from planner.report.wording import NOTHING, amount_of_bytes, share

LONGEST_NAME = 60
"""Characters of a kernel's name in a table: templates have thousands."""

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


def contents_text(found: Sequence[TraceContents], screen: Screen = PLAIN) -> str:
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
    rows = ((_short(kernel.name), f"{kernel.number:,}", _milliseconds(kernel.seconds)) for kernel in one.kernels)
    return Section(
        title="Longest kernels and copies" if num_kernels else "Longest operators",
        header=("name", "number", "ms"),
        rows=tuple(rows),
        notes=() if num_kernels else ("Operators that call others count twice.",),
    )


def _short(name: str) -> str:
    """Shorten a kernel's name, without the return type of its template."""
    bare = name.removeprefix("void ")
    return bare if len(bare) <= LONGEST_NAME else f"{bare[: LONGEST_NAME - 3]}..."


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
