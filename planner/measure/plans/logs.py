"""
Steps and peaks of memory in logs of training runs.

- Megatron-LM and Megatron-Bridge, ``training_log``: ``iteration 7/ 20 | ... elapsed time per iteration (ms): 1234.5 |``
  (megatron/training/training.py; megatron/bridge/training/utils/train_utils.py), the mean since the line before.
- Their ``report_memory``: ``memory (MB) | ... | max allocated: 65432.10 | ... | max reserved: 70000.00``, of Bridge
  ``memory (GB) | ... | mem-max-allocated-gigabytes: 65.4 | ... mem-max-reserved-gigabytes``.
- torchtitan, ``MetricsProcessor.log``: ``step: 7  loss: ...  memory: 41.66GiB(52.6%)  tps: 8,012  tflops: ...``; tps
  counts tokens of one device (torchtitan/components/metrics.py).

A number counts only with what stands behind it, so that a line that was cut says nothing. Lines of several ranks may
stand among each other, also within one line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import BinaryIO, cast

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.imports.printed import COLOUR

ITERATION = re.compile(
    r"iteration +(\d+)/ *\d+ \|(?:(?!iteration +\d+/).)*?elapsed time per iteration \(ms\): (\d+(?:\.\d+)?) \|"
    r"(?:(?:(?!iteration +\d+/).)*?global batch size: +(\d+) \|)?"
)
MEGABYTES = re.compile(
    r"memory \(MB\)(?:(?!memory \().)*?max allocated: (\d+\.\d\d) \|(?:(?!memory \().)*?max reserved: (\d+\.\d\d)(?!\d)"
)
GIGABYTES = re.compile(r"mem-max-(allocated|reserved)-gigabytes: (\d+(?:\.\d+)?) \|")
TITAN = re.compile(
    r"(?<!validate )step: +(\d+)  loss: (?:(?!step: ).)*?memory: +([\d.]+)GiB\([\d.]+%\)  tps: ([\d,]+)  (?=tflops|mfu)"
)
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory")
OTHERS = {
    "NeMo 2": re.compile(r"train_step_timing in s: "),
    "DeepSpeed": re.compile(r"SamplesPerSec=|\bstep=\d+, skipped=\d+"),
    "transformers' Trainer": re.compile(r"\{'loss': [\d.]+, 'grad_norm'"),
    "MLPerf": re.compile(r":::MLLOG "),
}
"""Marks of logs that have no step times in a form that is known here."""

MIB, GB = 2**20, 10**9
GIB = 2**30

WARM_UP = 5
"""Iterations that allocate, compile and tune; lines that hold one of them are left out."""

LONGEST_LINE = 1_000_000
MOST_BYTES = 2**31
"""Most bytes of a log that are read."""


@record(frozen=True, kw_only=True, slots=True)
class Logged:
    """
    Measurements of one run.

    Parameters
    ----------
    step_seconds
        Median of the steps behind the first ones; None where the log has none.
    tokens_per_second_per_device
        The same of torchtitan's throughput, from which its step follows.
    num_steps
        Steps that the median is of.
    allocated_bytes, reserved_bytes
        Highest peaks of all ranks; None where they are not printed.
    global_batch_size
        Sequences per step as printed.
    is_out_of_memory
        True if the run ended for lack of memory.
    is_warm
        True if the steps are behind the first ones, which are slower.
    """

    step_seconds: float | None = None
    tokens_per_second_per_device: float | None = None
    num_steps: int = 0
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    global_batch_size: int | None = None
    is_out_of_memory: bool = False
    is_warm: bool = True


class _Lines:
    """Lines of one run's logs, until they are summed up."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self.rates: dict[int, list[float]] = {}
        self.allocated: list[float] = []
        self.reserved: list[float] = []
        self.batches: list[int] = []
        self.out_of_memory = False
        self.other = ""

    def read(self, line: str) -> None:
        """Read a line, or several that ranks wrote into one."""
        for number, milliseconds, batch in ITERATION.findall(line):
            self.seconds.setdefault(int(number), []).append(float(milliseconds) / 1000)
            self.batches += [int(batch)] if batch else []
        for number, gib, rate in TITAN.findall(line):
            self.rates.setdefault(int(number), []).append(float(rate.replace(",", "")))
            self.reserved.append(float(gib) * GIB)
        for allocated, reserved in MEGABYTES.findall(line):
            self.allocated.append(float(allocated) * MIB)
            self.reserved.append(float(reserved) * MIB)
        for kind, gigabytes in GIGABYTES.findall(line):
            (self.allocated if kind == "allocated" else self.reserved).append(float(gigabytes) * GB)
        self.out_of_memory = self.out_of_memory or OUT_OF_MEMORY.search(line) is not None
        self.other = self.other or next((name for name, mark in OTHERS.items() if mark.search(line)), "")

    def sum_up(self) -> Logged:
        """Return the measurements."""
        seconds, rates = _steady(self.seconds), _steady(self.rates)
        chosen = seconds or rates
        return Logged(
            step_seconds=median(seconds[0]) if seconds else None,
            tokens_per_second_per_device=median(rates[0]) if rates and not seconds else None,
            num_steps=len(chosen[0]) if chosen else 0,
            allocated_bytes=max(self.allocated, default=None),
            reserved_bytes=max(self.reserved, default=None),
            global_batch_size=self.batches[-1] if self.batches else None,
            is_out_of_memory=self.out_of_memory and not chosen,
            is_warm=chosen is None or chosen[1],
        )


def _steady(known: dict[int, list[float]]) -> tuple[list[float], bool] | None:
    """
    Return a value for each logged iteration behind the first ones, and True; of a short run the last one alone.

    A line holds the mean since the line before, so that one may be behind the first steps and hold some of them.
    """
    numbers = sorted(known)
    values = [median(known[number]) for before, number in pairwise(numbers) if before >= WARM_UP]
    if values:
        return values, True
    return ([median(known[numbers[-1]])], False) if numbers else None


def read_logs(paths: Iterable[Path]) -> Logged:
    """
    Read the logs of one run, of one or several ranks.

    Parameters
    ----------
    paths
        Text, or text packed by gzip.

    Raises
    ------
    SpecError
        If a file cannot be read, or no line has a step of a framework that is known here.
    """
    lines, names = _Lines(), []
    for path in paths:
        names.append(str(path))
        for line in _lines_of(path):
            lines.read(line)
    found = lines.sum_up()
    if not found.num_steps and not found.is_out_of_memory:
        known = "Steps of Megatron-LM, Megatron-Bridge and torchtitan are known."
        other = f"has steps of {lines.other}, which are not read" if lines.other else "has no whole line of a step"
        raise SpecError(shown(", ".join(names)), f"{other}.", f"{known} Enter step_seconds into the table by hand.")
    return found


def _lines_of(path: Path) -> Iterator[str]:
    """Yield lines without colours; what is no text is replaced."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for line in _pieces(cast(BinaryIO, stream)):
                yield COLOUR.sub("", line.decode("utf-8", "replace").rstrip("\r\n"))
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, EOFError):  # a log that is still being packed: all before counts
            return
        raise SpecError(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    size = 0
    while (line := stream.readline(LONGEST_LINE)) and size < MOST_BYTES:
        size += len(line)
        yield line
