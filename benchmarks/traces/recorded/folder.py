"""What was recorded, as a folder: ``index.json`` and the traces that it names."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pydantic.dataclasses import dataclass

from benchmarks.traces.recorded.configurations import TracedConfiguration
from costmodel.errors import SpecError
from costmodel.facts.fields import STRICT, Count, NotNegative, Positive
from costmodel.validation import build

INDEX = "index.json"

HINT = "Record one with python -m benchmarks.traces --record FOLDER."


LEAST_STEPS = 3
"""Steps of which a median is taken."""

QUIETEST = 0.25
"""
Share of the steps that count: those during which other processes had the least of the machine.

What is chosen by what others did, not by how long steps took, has no bias towards fast ones but what is physics.
"""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Steps:
    """
    Some steps, one after the other.

    Parameters
    ----------
    seconds, processor
        Wall seconds of each step, and how long its process was on processors, by rank.
    others
        Processor seconds that processes other than the ranks took during each step, over its wall seconds.
    """

    seconds: tuple[tuple[Positive, ...], ...]
    processor: tuple[tuple[NotNegative, ...], ...]
    others: tuple[float, ...]

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


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
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


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Recording:
    """
    A configuration and all times that it ran.

    Parameters
    ----------
    configuration
        What ran.
    stays
        One of each round.
    """

    configuration: TracedConfiguration
    stays: tuple[Stay, ...]

    @property
    def quiet(self) -> tuple[float, ...]:
        """Wall seconds of the steps without the profiler that count."""
        return _quietest(stay.plain for stay in self.stays)

    @property
    def seconds(self) -> float:
        """Median of the steps without the profiler that count."""
        return statistics.median(self.quiet)

    @property
    def spread(self) -> float:
        """Half the interquartile range of these steps, as a fraction of the median."""
        quiet = self.quiet
        low, median, high = statistics.quantiles(quiet * (2 if len(quiet) == 1 else 1), n=4, method="inclusive")
        return (high - low) / 2 / median

    @property
    def others(self) -> float:
        """Cores that other processes had during these steps, on average."""
        others = sorted(share for stay in self.stays for share in stay.plain.others)
        return statistics.fmean(others[: len(self.quiet)])

    @property
    def profiled_seconds(self) -> float:
        """Median of the steps with the profiler that count."""
        return statistics.median(_quietest(stay.profiled for stay in self.stays))

    @property
    def quietest(self) -> Stay:
        """The round whose traces were disturbed least."""
        return min(self.stays, key=lambda stay: statistics.fmean(stay.profiled.others))

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Resident memory of each rank's process at most; median over rounds."""
        by_rank = zip(*(stay.peak_bytes for stay in self.stays), strict=True)
        return tuple(int(statistics.median(values)) for values in by_rank)


def _quietest(several: Iterable[Steps]) -> tuple[float, ...]:
    """Wall seconds of those steps during which others had the least of the machine."""
    pairs = sorted(pair for steps in several for pair in zip(steps.others, steps.over_ranks, strict=True))
    return tuple(seconds for _, seconds in pairs[: max(LEAST_STEPS, round(QUIETEST * len(pairs)))])


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Index:
    """
    What ``index.json`` has.

    Parameters
    ----------
    device, software
        The processor, and what computed.
    num_cores
        Of the machine; each rank has one thread.
    recordings
        By the name of their configuration.
    """

    device: str
    software: str
    num_cores: Count
    recordings: dict[str, Recording]


def read_recorded(folder: str | os.PathLike[str]) -> Index:
    """
    What a folder has.

    Parameters
    ----------
    folder
        What ``--record`` wrote. Names of traces are relative to it.

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
        timed = [each for steps in (stay.plain, stay.profiled) for each in (steps.seconds, steps.processor)]
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
