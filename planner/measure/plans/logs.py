"""
Steps and peaks of memory in logs of training runs.

- Megatron-LM and Megatron-Bridge, ``training_log``: ``iteration 7/ 20 | ... elapsed time per iteration (ms): 1234.5 |``
  (megatron/training/training.py; megatron/bridge/training/utils/train_utils.py), the mean since the line before.
  Megatron-DeepSpeed of BigScience writes ``(s)``, GPT-NeoX ``samples/sec: ... |`` before it.
- Their ``report_memory``: ``memory (MB) | ... | max allocated: 65432.10 | ... | max reserved: 70000.00``, of Bridge
  ``memory (GB) | ... | mem-max-allocated-gigabytes: 65.4 | ... mem-max-reserved-gigabytes``.
- torchtitan, ``MetricsProcessor.log``: ``step: 7  loss: ...  memory: 41.66GiB(52.6%)  tps: 8,012  tflops: ...``; tps
  counts tokens of one device (torchtitan/components/metrics.py); it was called wps until 2024.

A number counts only with what stands after it, or with its decimals, so that a line that was cut says nothing. Lines
of several ranks may stand among each other, also within one line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import BinaryIO, TypeAlias, cast

from costmodel import GIB_BYTES, MIB_BYTES
from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.imports.printed import COLOUR

ITERATION = re.compile(
    r"iteration +(\d+)/ *\d+ \|(?:(?!iteration +\d+/).)*?elapsed time per iteration \((ms|s)\): (\d+(?:\.\d+)?) \|"
    r"(?:(?:(?!iteration +\d+/).)*?global batch size: +(\d+) \|)?"
    r"(?:(?:(?!iteration +\d+/).)*?number of skipped iterations: +(\d+) \|)?"
    r"(?:(?:(?!iteration +\d+/).)*?number of nan iterations: +(\d+) \|)?"
)
MEGABYTES = re.compile(
    r"memory \(MB\)(?:(?!memory \().)*?max allocated: (\d+\.\d+) (?:(?!memory \().)*?max reserved: (\d+\.\d+)"
)
GIGABYTES = re.compile(r"mem-max-(allocated|reserved)-gigabytes: (\d+\.\d+)")
TITAN = re.compile(
    r"(?<!validate )step: +(\d+)  loss: +(\S+)  (?:(?!step: ).)*?memory: +([\d.]+)GiB\([\d.]+%\)  [tw]ps: ([\d,]+)  "
    r"(?=tflops|mfu)"
)
START = re.compile(
    r"before the start of training step|Starting training loop at iteration |Training starts at step "
    r"|^(?:.*[\]:] *)?training \.\.\.$"
)
"""Line before the first step of a start or restart, of Megatron-LM, Megatron-Bridge and torchtitan."""

OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory")
OTHERS = {
    "NeMo": re.compile(r"train_step_timing in s[:=]"),
    "NeMo AutoModel": re.compile(r"\bstep \d+ \| epoch \d+ \| loss "),
    "nanotron": re.compile(r"elapsed_time_per_iteration_ms: "),
    "MaxText": re.compile(r"completed step: \d+, seconds: "),
    "Composer": re.compile(r"\[batch=\d+/\d+\]|Train throughput/"),
    "DeepSpeed": re.compile(r"SamplesPerSec=|\bstep=\d+, skipped=\d+"),
    "transformers' Trainer": re.compile(r"\{'(?:loss|train_runtime)': '?[\d.]+'?, '"),
    "MLPerf": re.compile(r":::MLLOG "),
}
"""Marks of logs that have no step times in a form that is known here."""

GB = 10**9

WARM_UP = 5
"""Iterations that allocate, compile and tune; lines that hold one of them are left out."""

LEAST_RATE = 50
"""Tokens per second of a device below which a whole number of them is more than 1 % off."""

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
        Median of the steps after the first ones; None where the log has none.
    tokens_per_second_per_device
        Median of torchtitan's throughput, from which its step follows.
    num_steps
        Steps that the median is of.
    allocated_bytes, reserved_bytes
        Highest peaks of all ranks; None where they are not printed.
    global_batch_size
        Sequences per step as printed.
    is_out_of_memory
        True if the run ended for lack of memory before its first step.
    doubts
        Reasons why the measurements may not be those of the run's steady state, a sentence each.
    """

    step_seconds: float | None = None
    tokens_per_second_per_device: float | None = None
    num_steps: int = 0
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    global_batch_size: int | None = None
    is_out_of_memory: bool = False
    doubts: tuple[str, ...] = ()


Steps: TypeAlias = dict[int, list[float]]
"""Values by the number of the step, one for each line of it."""


class _Lines:
    """Lines of one run's logs, until they are summed up."""

    def __init__(self) -> None:
        self.starts: list[Steps] = []  # seconds of each start of the run
        self.rates: list[Steps] = []
        self.allocated: list[float] = []
        self.reserved: list[float] = []
        self.batches: list[int] = []
        self.num_skipped = self.num_nan = 0
        self.out_of_memory = False
        self.other = ""

    def begin(self) -> None:
        """Begin another file, or another start of the run, whose first steps are slower again."""
        self.starts.append({})
        self.rates.append({})

    def read(self, line: str) -> None:
        """Read a line, or several that ranks wrote into one."""
        if START.search(line):
            self.begin()
        for number, unit, elapsed, batch, skipped, nan in ITERATION.findall(line):
            self.num_nan += int(nan or 0) > 0
            self.batches += [int(batch)] if batch else []
            if int(skipped or 0):  # without the update of weights it is no step
                self.num_skipped += 1
                continue
            self._add(self.starts, int(number), float(elapsed) / (1000 if unit == "ms" else 1))
        for number, loss, gib, rate in TITAN.findall(line):
            self.num_nan += loss.strip("-") in ("nan", "inf")
            self._add(self.rates, int(number), float(rate.replace(",", "")))
            self.reserved.append(float(gib) * GIB_BYTES)
        for allocated, reserved in MEGABYTES.findall(line):
            self.allocated.append(float(allocated) * MIB_BYTES)
            self.reserved.append(float(reserved) * MIB_BYTES)
        for kind, gigabytes in GIGABYTES.findall(line):
            (self.allocated if kind == "allocated" else self.reserved).append(float(gigabytes) * GB)
        self.out_of_memory = self.out_of_memory or OUT_OF_MEMORY.search(line) is not None
        self.other = self.other or next((name for name, mark in OTHERS.items() if mark.search(line)), "")

    def _add(self, starts: list[Steps], number: int, value: float) -> None:
        """Add a value to the last start; a number far below the last one is of a restart whose beginning is lost."""
        if number < max(starts[-1], default=0) - 1:
            self.begin()
        starts[-1].setdefault(number, []).append(value)

    def sum_up(self) -> Logged:
        """Return the measurements."""
        chosen = self.starts if any(self.starts) else self.rates
        steady = [value for one in _merge(_steady(start) for start in chosen).values() for value in one]
        values = steady or [median(one) for start in chosen if start for one in [start[max(start)]]][-1:]
        middle = median(values) if values else None
        is_rate = chosen is self.rates
        return Logged(
            step_seconds=None if is_rate else middle,
            tokens_per_second_per_device=middle if is_rate else None,
            num_steps=len(values),
            allocated_bytes=max(self.allocated, default=None),
            reserved_bytes=max(self.reserved, default=None),
            global_batch_size=self.batches[-1] if self.batches else None,
            is_out_of_memory=self.out_of_memory and not values,
            doubts=tuple(self._doubts(bool(steady), middle if is_rate else None)) if values else (),
        )

    def _doubts(self, is_steady: bool, rate: float | None) -> Iterator[str]:
        if not is_steady:
            yield "only first steps were logged, which are slower; run some more"
        if rate is not None and rate < LEAST_RATE:
            yield f"its {rate:g} tokens/s are printed as whole numbers, up to {0.5 / rate:.0%} off"
        if self.out_of_memory:
            yield "it ran out of memory after its first step; its peak is a lower bound"
        if self.num_skipped:
            yield f"{self.num_skipped} lines with skipped steps are left out"
        if self.num_nan:
            yield f"{self.num_nan} lines have losses that are not finite; experts get other shares of tokens then"


def _merge(several: Iterable[Steps]) -> Steps:
    """Return one value for each step: the median of ranks and starts."""
    found: Steps = {}
    for steps in several:
        for number, values in steps.items():
            found.setdefault(number, []).extend(values)
    return {number: [median(values)] for number, values in found.items()}


def _steady(known: Steps) -> Steps:
    """
    Return the steps after the first ones of a start.

    A line holds the mean since the line before, so that one may be after the first steps and hold some of them.
    """
    numbers = sorted(known)
    interval = min((after - before for before, after in pairwise(numbers)), default=1)
    begin = max(0, numbers[0] - interval) if numbers else 0
    return {number: known[number] for before, number in pairwise(numbers) if before >= begin + WARM_UP}


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
        lines.begin()
        for line in _lines_of(path):
            lines.read(line)
    found = lines.sum_up()
    if not found.num_steps and not found.is_out_of_memory:
        known = "Give a log of Megatron-LM, Megatron-Bridge or torchtitan."
        other = f"has steps of {lines.other}, which are not read" if lines.other else "has no whole line of a step"
        if lines.num_skipped:
            other = f"has {lines.num_skipped} lines of steps, all with skipped ones"
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
