"""Times to read a trace, to build and replay its graph, and to answer a change."""

from __future__ import annotations

import gzip
import multiprocessing
import re
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.traces.changed import CALLS
from benchmarks.traces.synthetic import Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import Layout, rebuild_graph, steady
from planner.measure.traces.events import UNKNOWN, Category, Events, Trace
from planner.measure.traces.reading import read_trace
from planner.measure.traces.replay import replay
from planner.measure.traces.structure import parts

GZIPPED_BYTES, READ_SECONDS = 100_000_000, 60.0
NUM_EVENTS, GRAPH_SECONDS = 1_000_000, 30.0
CHANGE_SECONDS = 1.0
MOST_MEMORY = 1.5
"""Bytes of memory for each byte of JSON."""

LEVEL = 6
"""Level of gzip that PyTorch's users pack with."""

EVENTS, END = '"traceEvents": [', "\n  ]"
"""Text of Kineto before the first event and after the last one."""

START = re.compile(r'("ts": )(\d+)')
SHIFT_MICROSECONDS = 1_000_000


def report(path: Path) -> Iterator[str | bool]:
    """Lines, and whether each limit is kept; with the events of a real trace."""
    yield from _time_reading(path)
    yield from _time_graph(read_trace(path))
    yield from _time_change()


def _time_reading(path: Path) -> Iterator[str | bool]:
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / path.name
        json_bytes = write_long_trace(path, large, GZIPPED_BYTES)
        num_events, seconds, peak_bytes = read_alone(large)
        yield (
            f"reading {large.stat().st_size / 1e6:.0f} MB of gzipped JSON, {json_bytes / 1e9:.2f} GB, "
            f"{num_events:,} events: {seconds:.1f} s, {peak_bytes / 1e9:.2f} GB of memory"
        )
    yield seconds <= READ_SECONDS
    yield peak_bytes <= MOST_MEMORY * json_bytes


def write_long_trace(source: Path, target: Path, file_bytes: int) -> int:
    """
    Write a real trace's events again and again, packed, to at least a size; returns the bytes that it unpacks to.

    Parameters
    ----------
    source
        A packed file of PyTorch's profiler, as it wrote it.
    target
        Path of the file to write.
    file_bytes
        Least bytes of the packed file.
    """
    text = gzip.decompress(source.read_bytes()).decode()
    begin = text.index(EVENTS) + len(EVENTS)
    end = text.index(END, begin)
    json_bytes = 0
    with target.open("wb") as raw, gzip.open(raw, "wb", compresslevel=LEVEL) as file:
        for piece in _pieces(text, begin, end):
            json_bytes += file.write(piece.encode())
            if raw.tell() >= file_bytes:
                break
        json_bytes += file.write(text[end:].encode())
    return json_bytes


def _pieces(text: str, begin: int, end: int) -> Iterator[str]:
    """The head, and the events again and again, each time a second later."""
    yield text[:begin] + text[begin:end]
    parts = START.split(text[begin:end])
    starts = [int(start) for start in parts[2::3]]
    shift = 0
    while True:
        shift += SHIFT_MICROSECONDS
        parts[2::3] = [str(start + shift) for start in starts]
        yield "," + "".join(parts)


def read_alone(path: Path) -> tuple[int, float, int]:
    """Read a file in a process of its own; return its number of events, seconds and peak memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_read, path).result()


def _read(path: Path) -> tuple[int, float, int]:
    begin = time.perf_counter()
    num_events = len(read_trace(path).events)
    seconds = time.perf_counter() - begin
    return num_events, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- graphs ------------------------------------------------------------------------------------------------


def _time_graph(trace: Trace) -> Iterator[str | bool]:
    large = tiled(trace, -(-NUM_EVENTS // len(trace.events)))
    begin = time.perf_counter()
    graph = execution_graph([large])
    built = time.perf_counter()
    replay(graph)
    seconds = time.perf_counter() - begin
    yield (
        f"graph and replay of {len(large.events):,} events, {len(graph.tasks):,} tasks: {built - begin:.1f} s and "
        f"{seconds - built + begin:.1f} s"
    )
    yield seconds <= GRAPH_SECONDS


def tiled(trace: Trace, number: int) -> Trace:
    """A trace whose events come again and again, one after the other, as one iteration."""
    events = trace.events[trace.events.category != Category.ANNOTATION]
    span, numbers = int(events.end.max()) + 1_000, int(events.correlation.max()) + 1
    copies = []
    for copy in range(number):
        known = events.correlation != UNKNOWN
        copies.append(
            replace(
                events,
                start=events.start + copy * span,
                correlation=np.where(known, events.correlation + copy * numbers, UNKNOWN),
            )
        )
    return replace(trace, events=Events.join(copies))


def _time_change() -> Iterator[str | bool]:
    durations = SteadyDurations(seed=0, calls=CALLS)
    made = make(Recipe(duration=durations, annotations=True, operators=True, num_layers=16, num_microbatches=16, pp=4))
    graph, found = execution_graph(made.traces), [parts(trace) for trace in made.traces]
    before = Layout(num_layers=16, num_microbatches=16, pp=4)
    begin = time.perf_counter()
    changed = rebuild_graph(graph, found, before, replace(before, pp=8), network=durations.nanoseconds)
    steady(graph)
    steady(changed)
    seconds = time.perf_counter() - begin
    yield f"pp 4 to pp 8, {len(graph.tasks):,} to {len(changed.tasks):,} tasks: {seconds:.2f} s"
    yield seconds <= CHANGE_SECONDS
