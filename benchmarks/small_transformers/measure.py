"""
Steps measured on this machine: a process per rank, a thread each, rounds over all configurations.

A rank has one core, whether it is alone or one of two, so that samples of one thread are of the device that each has.
On a GPU there is one rank. Each round times every configuration before the next round begins: what slows a shared
machine for a while slows all of them, and none in every round.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.inputs import read_rows
from benchmarks.small_transformers.configurations import Configuration
from benchmarks.small_transformers.transformer import Training
from costmodel.errors import SpecError
from planner.measure.sample.samples import machine_of, require_torch

ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_TOP_PAD_": str(2**26),
}

"""
Environment of processes that measure: one thread, and an allocator that keeps what is freed, as that of GPUs does.

By default the GNU C library hands large blocks back to the system, and the next step pays for each page of them again:
3 to 10 % of its time. PyTorch's Performance Tuning Guide recommends allocators that keep them.
"""

Work: TypeAlias = Callable[[Any, int], Any]

"""Function of a rank, from an order and its number to an answer; one that processes can hand over."""

Answered: TypeAlias = Callable[[str, Any, int], list[Any]]

"""Function that returns the answers of the first so many ranks to an order; messages call the order by the text."""

PATIENCE_SECONDS = 10

"""Seconds that a process may take to end."""


@contextmanager
def rank_processes(number: int, work: Work) -> Iterator[Answered]:
    """
    Processes that do what they are handed; more than one are a process group of torch over gloo.

    Parameters
    ----------
    number
        Number of ranks.
    work
        Function that each applies to an order.

    Raises
    ------
    SpecError
        If one of them dies.
    """
    os.environ.update(ENVIRONMENT)  # read by the library as a process begins
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pipes = []
        for rank in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, number, f"{folder}/store", work, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, PATIENCE_SECONDS)
            pipes.append(stack.enter_context(ours))

        def answered(name: str, order: Any, ranks: int) -> list[Any]:
            for pipe in pipes[:ranks]:
                pipe.send(order)
            try:
                return [pipe.recv() for pipe in pipes[:ranks]]
            except EOFError:
                raise SpecError(name, "the process of a rank has died; its last words are above.") from None

        yield answered


def _rank(rank: int, number: int, store: str, work: Work, pipe: Any) -> None:
    """The life of a process: an order, its answer, the next one."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if number > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=number, store=distributed.FileStore(store, number))
    try:
        while True:
            pipe.send(work(pipe.recv(), rank))
    except EOFError:
        pass
    finally:
        if number > 1:
            distributed.destroy_process_group()


COLUMNS = ("round", "name", "seconds", "processor_seconds", "device", "software")

"""Columns of the table of steps: a row for each step that was timed."""

DTYPES = {"cpu": "float32", "cuda": "bfloat16"}

WARM_UP = 1

"""Steps of each round before those that are timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """
    A measured step.

    Parameters
    ----------
    seconds
        Median over all rounds.
    spread
        Half the interquartile range, as a fraction of the median.
    processor_seconds
        Median of what the rank's process was on a processor: less than ``seconds`` where others were on it, or where a
        rank waited.
    repeats
        Number of steps that were timed.
    """

    seconds: float
    spread: float
    processor_seconds: float
    repeats: int


# --- the table ---------------------------------------------------------------------------------------------
def read_steps(path: str | os.PathLike[str]) -> dict[str, Step]:
    """
    Measured steps by the name of their configuration.

    Raises
    ------
    SpecError
        If the file is no table of steps.
    """
    seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in _rows(Path(path)):
        seconds[row["name"]].append((float(row["seconds"]), float(row["processor_seconds"])))
    return {name: _step(*zip(*pairs, strict=True)) for name, pairs in seconds.items()}


def _step(seconds: Sequence[float], processor_seconds: Sequence[float]) -> Step:
    several = list(seconds) * (2 if len(seconds) == 1 else 1)
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    return Step(
        seconds=median,
        spread=(high - low) / 2 / median,
        processor_seconds=statistics.median(processor_seconds),
        repeats=len(seconds),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    rows = read_rows(path, COLUMNS)
    if rows and tuple(rows[0]) != COLUMNS:
        raise SpecError(str(path), f"is no table of steps, whose columns are {', '.join(COLUMNS)}.")
    for number, row in enumerate(rows, start=2):
        for name in ("seconds", "processor_seconds"):
            if not _is_positive(row[name]):
                raise SpecError(f"{path}, row {number}, {name}", f"is {row[name]!r}; expected a number above 0.")
    return rows


def _is_positive(text: str | None) -> bool:
    try:
        return 0 < float(text or "") < float("inf")
    except ValueError:
        return False


# --- measuring ---------------------------------------------------------------------------------------------
def measure(
    chosen: Sequence[Configuration],
    path: str | os.PathLike[str],
    *,
    rounds: int,
    steps: int = 3,
    device: str = "cpu",
    notify: Callable[[str], None] = print,
) -> None:
    """
    Time steps into a table, which an earlier run may have begun.

    Parameters
    ----------
    chosen
        Configurations to measure.
    path
        The table, a CSV file; rounds that it has are not measured again.
    rounds, steps
        Rounds over all of them; steps of each that are timed in a round.
    device
        ``cpu`` or ``cuda``.
    notify
        Gets a line for each configuration of a round.

    Raises
    ------
    SpecError
        If torch is not installed, or the table is another one, or of another machine.
    """
    torch, path = require_torch(), Path(path)
    machine = replace(machine_of(torch, device), clock_mhz=None)
    software = f"torch {torch.__version__}, one thread per rank"
    known = _known(path, machine.device, software)
    ranks = max(one.dp for one in chosen)
    work = partial(_timed_steps, device=device)
    with rank_processes(ranks, work) as timed, path.open("a", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        for number in range(1, rounds + 1):
            for one in chosen:
                if (str(number), one.name) in known:
                    continue
                by_rank = timed(one.name, (one, steps), one.dp)
                found = [max(pairs) for pairs in zip(*by_rank, strict=True)]
                table.writerows((number, one.name, *pair, machine.device, software) for pair in found)
                stream.flush()
                median = statistics.median(seconds for seconds, _ in found)
                notify(f"round {number} of {rounds}: {one.name} {median:.3f} s")


def _known(path: Path, device: str, software: str) -> set[tuple[str, str]]:
    """Rounds and configurations that a table has; a new one gets its columns."""
    if not path.exists() or not path.stat().st_size:
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    rows = _rows(path)
    for row in rows:
        if (row["device"], row["software"]) != (device, software):
            raise SpecError(str(path), f"is of {row['device']}, {row['software']}; this is {device}, {software}.")
    return {(row["round"], row["name"]) for row in rows}


def _timed_steps(order: tuple[Configuration, int], rank: int, *, device: str) -> list[tuple[float, float]]:
    return step_seconds(*order, rank=rank, device=device)


def step_seconds(one: Configuration, steps: int, *, rank: int = 0, device: str = "cpu") -> list[tuple[float, float]]:
    """Wall seconds and processor seconds of each of some steps, in this process."""
    import torch

    def now() -> tuple[float, float]:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    training = Training(one, rank=rank, device=device, dtype=DTYPES[device])
    found = []
    for number in range(WARM_UP + steps):
        started = now()
        training.step()
        ended = now()
        if number >= WARM_UP:
            found.append((ended[0] - started[0], ended[1] - started[1]))
    return found
