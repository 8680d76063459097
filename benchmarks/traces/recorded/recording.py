"""
Steps measured and recorded: rounds over all configurations, of each some steps without the profiler, then some with it.

Each round runs every configuration before the next one begins: what slows a shared machine for a while slows all of
them, and none in every round.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.small_transformers.ranks import rank_processes
from benchmarks.traces.recorded.configurations import MOST_RANKS, TracedConfiguration
from benchmarks.traces.recorded.folder import INDEX, Index, Recording, Stay, Steps, read_recorded, write_index
from benchmarks.traces.recorded.training import RankTraining
from costmodel.errors import SpecError
from planner.sampling.machine import machine_of, require_torch

WARM_UP, STEPS, PROFILED = 2, 3, 3
"""Steps of a round before those that count, those that are timed, and those that are recorded."""

QUIET, LOOK_SECONDS, PATIENCE_SECONDS = 0.1, 0.2, 4.0
"""Cores that others may have as a configuration begins, for how long one looks, and how long one waits for it."""

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Where Linux says what memory a process has, and where one asks it to forget the peak (man 5 proc)."""

PEAK = "5"

PROCESSORS = Path("/proc/stat")
"""Where it says what processors have done."""


def record(
    chosen: Sequence[TracedConfiguration],
    folder: str | os.PathLike[str],
    *,
    minutes: float,
    rounds: int = 5,
    notify: Callable[[str], None] = print,
) -> None:
    """
    Measure and record steps into a folder; rounds are added to those that it has.

    Parameters
    ----------
    chosen
        What to run.
    folder
        Gets the index and the traces.
    minutes
        After which nothing new is begun.
    rounds
        Over all configurations, at most.
    notify
        Gets a line for each configuration of a round.

    Raises
    ------
    SpecError
        If torch is not installed, or the folder is of another machine.
    """
    torch, folder = require_torch(), Path(folder)
    until = time.monotonic() + 60 * minutes
    index = _begun(folder, torch)
    with ExitStack() as stack:
        # A rank alone is no part of a process group: its trace would say that another one is missing.
        numbers = sorted({one.num_ranks for one in chosen})
        processes = {number: stack.enter_context(rank_processes(number, recorded_steps)) for number in numbers}
        for number in range(1, rounds + 1):
            for one in chosen:
                if time.monotonic() > until:
                    notify(f"{minutes:g} minutes are over in round {number} of {rounds}.")
                    return
                known = index.recordings.get(one.name, Recording(configuration=one, stays=()))
                if known.configuration != one:
                    raise SpecError(str(folder), f"has another {one.name}.", "Record into an empty folder.")
                stem = folder / one.name / f"round-{len(known.stays) + 1}"
                ranks = processes[one.num_ranks]
                _wait_for_quiet()
                stay = _stay(folder, ranks(one.name, (one, stem), one.num_ranks))
                done = replace(known, stays=(*known.stays, stay))
                index = replace(index, recordings={**index.recordings, one.name: done})
                write_index(folder, index)
                notify(_line(number, rounds, done))


def _begun(folder: Path, torch: Any) -> Index:
    """What the folder has of this machine; nothing, if it is new."""
    here = Index(
        device=machine_of(torch, "cpu").device,
        software=f"torch {torch.__version__}, one thread per rank",
        num_cores=os.cpu_count() or MOST_RANKS,
        recordings={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / INDEX).exists():
        return here
    index = read_recorded(folder)
    if replace(index, recordings={}) != here:
        found = f"is of {index.device}, {index.software}; this is {here.device}, {here.software}."
        raise SpecError(str(folder), found, "Record into an empty folder.")
    return index


def _line(number: int, rounds: int, done: Recording) -> str:
    slower = done.profiled_seconds / done.seconds - 1
    return (
        f"round {number} of {rounds}: {done.configuration.name} {done.seconds:.3f} s, spread {done.spread:.1%}, "
        f"others {done.others:.0%} of a core, with the profiler {slower:+.1%}"
    )


def _wait_for_quiet() -> None:
    """Begin when others leave the machine alone, or patience is over."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        before = _busy_seconds()
        time.sleep(LOOK_SECONDS)
        if _busy_seconds() - before <= QUIET * LOOK_SECONDS:
            return


# --- in the process of a rank ------------------------------------------------------------------------------


class Moment(NamedTuple):
    """Seconds on three clocks: of the wall, of this process on processors, of all processors together at work."""

    wall: float
    processor: float
    busy: float

    @classmethod
    def now(cls) -> Moment:
        """What they show."""
        return cls(time.perf_counter(), time.process_time(), _busy_seconds())

    def since(self, other: Moment) -> Moment:
        """What has passed on each."""
        return Moment(*(own - its for own, its in zip(self, other, strict=True)))


class Answer(NamedTuple):
    """What a rank says of its stay; entries as those of :class:`Stay`."""

    began: float
    plain: list[Moment]
    profiled: list[Moment]
    trace: Path
    peak_bytes: int
    idle_bytes: int


def _stay(folder: Path, answers: Sequence[Answer]) -> Stay:
    return Stay(
        began=answers[0].began,
        plain=_steps([one.plain for one in answers]),
        profiled=_steps([one.profiled for one in answers]),
        traces=tuple(one.trace.relative_to(folder).as_posix() for one in answers),
        peak_bytes=tuple(one.peak_bytes for one in answers),
        idle_bytes=tuple(one.idle_bytes for one in answers),
    )


def _steps(by_rank: Sequence[Sequence[Moment]]) -> Steps:
    """Steps of all ranks; what the machine was at beside them is what others did."""
    return Steps(
        seconds=tuple(tuple(step.wall for step in steps) for steps in by_rank),
        processor=tuple(tuple(step.processor for step in steps) for steps in by_rank),
        others=tuple(
            (steps[0].busy - sum(step.processor for step in steps)) / steps[0].wall
            for steps in zip(*by_rank, strict=True)
        ),
    )


def recorded_steps(order: tuple[TracedConfiguration, Path], rank: int) -> Answer:
    """Run steps of a configuration in this process, and write the trace of some of them."""
    one, stem = order
    path = stem.with_name(f"{stem.name}-rank-{rank}.json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    idle_bytes = _fresh_memory()
    began = time.time()
    training = RankTraining(one, rank)
    for _ in range(WARM_UP):
        training.step()
    plain = [_timed(training.step) for _ in range(STEPS)]
    peak_bytes = _resident_bytes("VmHWM")
    with _profiler(one, path) as next_step:
        profiled = [_timed(training.step, next_step) for _ in range(_warm_up(one) + PROFILED)]
    return Answer(began, plain, profiled[_warm_up(one) :], path, peak_bytes, idle_bytes)


def _timed(step: Callable[[], None], behind: Callable[[], None] = lambda: None) -> Moment:
    """What a step takes; what follows it is not timed."""
    started = Moment.now()
    step()
    took = Moment.now().since(started)
    behind()
    return took


def _warm_up(one: TracedConfiguration) -> int:
    """Steps under the profiler that it leaves out; it needs its own steps for that."""
    return 0 if one.annotations == "none" else 1


@contextmanager
def _profiler(one: TracedConfiguration, path: Path) -> Iterator[Callable[[], None]]:
    """As a guide has it: shapes recorded, one step to warm up, steps announced; or, without annotations, none of it."""
    from torch import profiler

    settings: dict[str, Any] = {"activities": [profiler.ProfilerActivity.CPU], "record_shapes": True}
    if one.annotations == "none":
        with profiler.profile(**settings) as recorder:
            yield lambda: None
    else:
        schedule = profiler.schedule(wait=0, warmup=_warm_up(one), active=PROFILED, repeat=1)
        with profiler.profile(**settings, schedule=schedule) as recorder:
            yield recorder.step
    recorder.export_chrome_trace(str(path))


# --- memory, and processors ------------------------------------------------------------------------------------


def _fresh_memory() -> int:
    """Give freed memory back to the system, forget the peak, and say what is left; 0 where this is not Linux."""
    if not CLEAR.exists():
        return 0
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text(PEAK, encoding="ascii")
    return _resident_bytes("VmRSS")


def _resident_bytes(entry: str) -> int:
    """``VmRSS``: what the process has in memory; ``VmHWM``: what it had at most. 0 where nobody says."""
    found = re.search(rf"^{entry}:\s+(\d+) kB", STATUS.read_text(encoding="ascii") if STATUS.exists() else "", re.M)
    return 1024 * int(found[1]) if found else 0


def _busy_seconds() -> float:
    """Seconds that all processors of the machine have been at work together; 0 where nobody says (man 5 proc)."""
    if not PROCESSORS.exists():
        return 0.0
    user, nice, system, _, _, *interrupts = PROCESSORS.read_text(encoding="ascii").split(maxsplit=9)[1:9]
    ticks = sum(int(each) for each in (user, nice, system, *interrupts))
    return ticks / os.sysconf("SC_CLK_TCK")
