"""A folder of recordings: ``index.json`` and the traces that it names."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks.traces.recorded.configurations import TracedConfiguration
from costmodel.errors import SpecError
from costmodel.facts.fields import Count, NotNegative, Positive
from costmodel.record import strict_record
from costmodel.validation import build

INDEX = "index.json"

HINT = "Record one with python -m benchmarks.traces --record FOLDER."


DISTURBANCE = 0.1
"""Cores that other processes may have of those that the ranks need."""

LEAST_STEPS = 3
"""Steps that count in any case: those during which others had least."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Steps:
    """
    Some steps, one after the other.

    Parameters
    ----------
    seconds, processor
        Wall seconds of each step, and how long its process was on processors, by rank.
    others
        Processor seconds that processes other than the ranks took during each step, over its wall seconds.
    pace
        Seconds that the reference step took around these steps, by rank; one rank at a time.
    """

    seconds: tuple[tuple[Positive, ...], ...]
    processor: tuple[tuple[NotNegative, ...], ...]
    others: tuple[float, ...]
    pace: tuple[Positive, ...]

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.others)

    @property
    def over_ranks(self) -> tuple[float, ...]:
        """
        Wall seconds of each step, the mean over ranks.

        Ranks wait for one another, so that all need the same time in the long run.
        """
        return tuple(statistics.fmean(step) for step in zip(*self.seconds, strict=True))

    def factor(self, pace: float) -> float:
        """By what a time of these steps is multiplied to be one of a machine at another pace."""
        return pace / statistics.fmean(self.pace)


@strict_record(frozen=True, kw_only=True, slots=True)
class Stay:
    """
    One round of a configuration: steps without the profiler, then steps with it.

    Parameters
    ----------
    began
        When, in seconds since 1970.
    plain, profiled
        Steps without and with the profiler.
    traces
        Files of the latter, by rank, relative to the folder.
    peak_bytes, idle_bytes
        Resident memory of each rank's process at most, and before it had a model; without the profiler.
    """

    began: Positive
    plain: Steps
    profiled: Steps
    traces: tuple[str, ...]
    peak_bytes: tuple[NotNegative, ...]
    idle_bytes: tuple[NotNegative, ...]


@strict_record(frozen=True, kw_only=True, slots=True)
class Recording:
    """
    A configuration and all times that it ran.

    Parameters
    ----------
    configuration
        Recorded configuration.
    stays
        One of each round.
    """

    configuration: TracedConfiguration
    stays: tuple[Stay, ...]

    @property
    def quietest(self) -> Stay:
        """The round whose traces were disturbed least."""
        return min(self.stays, key=lambda stay: statistics.fmean(stay.profiled.others))

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Resident memory of each rank's process at most; median over rounds."""
        by_rank = zip(*(stay.peak_bytes for stay in self.stays), strict=True)
        return tuple(int(statistics.median(values)) for values in by_rank)


@strict_record(frozen=True, kw_only=True, slots=True)
class Measured:
    """
    Duration of steps at the pace of the index.

    Parameters
    ----------
    seconds, spread
        Median, and half the interquartile range as a fraction of it.
    unscaled_seconds
        Median of the same steps as the clock had them.
    others
        Cores that other processes had meanwhile, on average.
    num_steps
        Steps that count.
    """

    seconds: float
    spread: float
    unscaled_seconds: float
    others: float
    num_steps: int


def most_others(one: TracedConfiguration, num_cores: int) -> float:
    """Cores that other processes may have while a configuration runs: all that its ranks do not need."""
    return max(num_cores - one.num_ranks, 0) + DISTURBANCE


def measured(several: Iterable[Steps], pace: float, others: float) -> Measured:
    """
    Return the duration of the steps during which other processes used at most so many cores, at a pace of the machine.

    Steps are chosen by the load of other processes, and the pace by a reference step: neither depends on the durations.
    """
    rows = sorted(
        (share, seconds, seconds * steps.factor(pace))
        for steps in several
        for share, seconds in zip(steps.others, steps.over_ranks, strict=True)
    )
    num_quiet = sum(share <= others for share, _, _ in rows)
    shares, unscaled, scaled = zip(*rows[: max(LEAST_STEPS, num_quiet)], strict=True)
    low, median, high = statistics.quantiles(scaled * (2 if len(scaled) == 1 else 1), n=4, method="inclusive")
    return Measured(
        seconds=median,
        spread=(high - low) / 2 / median,
        unscaled_seconds=statistics.median(unscaled),
        others=statistics.fmean(shares),
        num_steps=len(scaled),
    )


@strict_record(frozen=True, kw_only=True, slots=True)
class Index:
    """
    Contents of ``index.json``.

    Parameters
    ----------
    device, software
        The processor, and what computed.
    num_cores
        Cores of the machine; each rank has one thread.
    recordings
        By the name of their configuration.
    """

    device: str
    software: str
    num_cores: Count
    recordings: dict[str, Recording]

    @property
    def pace(self) -> float:
        """
        Seconds of the reference step, the median over all rounds of all configurations.

        A virtual machine is as fast as its neighbours leave it: for minutes a third slower, without any process of its
        own. Times are compared at this pace.
        """
        every = [stay for one in self.recordings.values() for stay in one.stays]
        return statistics.median(statistics.fmean(stay.plain.pace) for stay in every)

    def plain(self, name: str) -> Measured:
        """Return the duration of a configuration's step without the profiler."""
        one = self.recordings[name]
        return measured((stay.plain for stay in one.stays), self.pace, most_others(one.configuration, self.num_cores))

    def profiled(self, name: str) -> Measured:
        """Return its duration with the profiler."""
        one = self.recordings[name]
        return measured(
            (stay.profiled for stay in one.stays), self.pace, most_others(one.configuration, self.num_cores)
        )


def read_recorded(folder: str | os.PathLike[str]) -> Index:
    """
    Read a folder.

    Parameters
    ----------
    folder
        Folder that ``--record`` wrote. Names of traces are relative to it.

    Raises
    ------
    SpecError
        If there is no such folder, its index is wrong, or a trace that it names is missing.
    """
    path = Path(folder) / INDEX
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror or error}.", HINT) from None
    except ValueError as error:
        raise SpecError(str(path), f"is no JSON: {error}.", HINT) from None
    index = build(Index, entries, str(path))
    for name, recording in index.recordings.items():
        _require_whole(Path(folder), name, recording)
    return index


def _require_whole(folder: Path, name: str, recording: Recording) -> None:
    ranks = recording.configuration.num_ranks
    if not recording.stays:
        raise SpecError(f"{folder / INDEX}.{name}", "has no rounds.", HINT)
    for stay in recording.stays:
        timed = [each for steps in (stay.plain, stay.profiled) for each in (steps.seconds, steps.processor, steps.pace)]
        if {len(each) for each in (*timed, stay.traces, stay.peak_bytes, stay.idle_bytes)} != {ranks}:
            raise SpecError(f"{folder / INDEX}.{name}", f"has not one entry for each of {ranks} ranks.", HINT)
        for steps in (stay.plain, stay.profiled):
            if {len(each) for each in (*steps.seconds, *steps.processor)} != {len(steps)} or not len(steps):
                raise SpecError(f"{folder / INDEX}.{name}", "has not as many steps of each rank.", HINT)
        for trace in stay.traces:
            if not (folder / trace).is_file():
                raise SpecError(str(folder / trace), "is named by the index, but is not there.", HINT)


def write_index(folder: str | os.PathLike[str], index: Index) -> None:
    """Write ``index.json``, whole or not at all: whoever records may be stopped at any moment."""
    path = Path(folder) / INDEX
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(index), indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
