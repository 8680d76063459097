"""
How fast a long trace is read, and how much memory that takes: ``python -m benchmarks.traces.reading_speed TRACE``.

The long trace is a real one, whose events follow one another many times, each time later: the same names, shapes and
numbers as a long recording has.
"""

from __future__ import annotations

import argparse
import gzip
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from json import dumps, loads
from pathlib import Path
from time import perf_counter, process_time
from typing import cast

LEVEL = 6
"""Of gzip: what PyTorch's users pack with."""

EVENTS, END = '"traceEvents": [', "\n  ]"
"""What Kineto writes before the first event and behind the last one."""

START = re.compile(r'("ts": )(\d+)')
SHIFT_MICROSECONDS = 1_000_000


def write_long_trace(source: Path, target: Path, file_bytes: int) -> int:
    """
    Write a packed trace of at least a size; returns the bytes that it unpacks to.

    Parameters
    ----------
    source
        A packed file of PyTorch's profiler, as it wrote it.
    target
        Where to.
    file_bytes
        Of the packed file at least.
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


def measure(path: Path, json_bytes: int) -> dict[str, float]:
    """
    Read a file in a process of its own, whose memory is that of reading alone.

    Returns
    -------
    dict
        Bytes of the file and of the JSON in it, its events, seconds by the clock and of the processor, peak memory.
    """
    command = [sys.executable, "-m", "benchmarks.traces.reading_speed", "--read", str(path)]
    found: dict[str, float] = loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"file_bytes": path.stat().st_size, "json_bytes": json_bytes, **found}


def _read(path: Path) -> dict[str, float]:
    from planner.measure.traces.reading import read_trace

    begin, processor = perf_counter(), process_time()
    trace = read_trace(path)
    return {
        "num_events": len(trace.events),
        "seconds": perf_counter() - begin,
        "processor_seconds": process_time() - processor,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print what was found as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.reading_speed", description=__doc__)
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="packed files of PyTorch's profiler")
    parser.add_argument("--megabytes", type=float, default=100, help="size of each long file, packed (default: 100)")
    parser.add_argument("--read", action="store_true", help="read the files as they are, in this process")
    arguments = parser.parse_args(argv)
    if arguments.read:
        for path in cast("list[Path]", arguments.traces):
            print(dumps(_read(path)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for path in cast("list[Path]", arguments.traces):
            target = Path(folder) / path.name
            json_bytes = write_long_trace(path, target, int(arguments.megabytes * 1e6))
            print(dumps({"trace": path.name, **measure(target, json_bytes)}), flush=True)
            target.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
