"""A run within a budget: the most useful points first, each into the table as it is measured, none twice."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from costmodel.errors import SpecError
from planner.jobs.problem import Problem
from planner.sampling.job_shapes import job_shapes
from planner.sampling.machine import device_of, require_torch
from planner.sampling.measure import Sampler, Skipped
from planner.sampling.ranks import joined_ranks
from planner.sampling.samples import Machine, Point, Timing
from planner.sampling.shapes import points_to_measure
from planner.sampling.table import SamplesFile
from planner.sampling.timing import Limits
from planner.sampling.work import least_flops, moved_bytes

LARGE_FLOPS, LARGE_BYTES = 1e8, 1e7
"""What a point computes or moves from which on its rate says how long others take."""

LEAST_CALLS = 5
"""Calls that a point takes at least: two that warm up, three that count."""

TOO_LONG = "would take longer than what is left of the budget"
NO_TIME = "the budget was over"


class Measurer(Protocol):
    """What measures points; :class:`planner.sampling.measure.Sampler` does."""

    @property
    def machine(self) -> Machine:
        """On what."""
        ...

    def measure(self, point: Point, limits: Limits | None = None) -> Timing | Skipped:
        """How long a point takes, or why nobody knows."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """
    What became of the points.

    Parameters
    ----------
    measured, known
        Points that this run measured; that the table had before.
    skipped
        Number of points that were not measured, by the reason.
    seconds
        What the run took.
    """

    measured: int
    known: int
    skipped: dict[str, int] = field(hash=False)
    seconds: float

    @property
    def total(self) -> int:
        """All points."""
        return self.measured + self.known + sum(self.skipped.values())


def _ignore(_: str) -> None:
    """Nobody wants to know."""


def sample_operators(
    path: str | os.PathLike[str],
    problem: Problem | None = None,
    *,
    budget_seconds: float,
    device: str = "",
    dtype: str = "",
    ranks: int | None = None,
    first: Sequence[Point] = (),
    notify: Callable[[str], None] = _ignore,
    progress: Callable[[str], None] = _ignore,
) -> Counts | None:
    """
    Measure operators on this machine into a table, which an earlier run may have begun.

    Several processes measure collectives, too: those of torchrun, which all call this, or those that are started here.

    Parameters
    ----------
    path
        The table, a CSV or Parquet file.
    problem
        The job whose operators come first; None: no job in particular.
    budget_seconds
        When to stop.
    device
        ``cuda`` or ``cpu``; empty: the GPU if there is one.
    dtype
        Dtype of the points that are no job's; empty: bf16 on a GPU, fp32 on a CPU, few of which multiply 16 bits.
    ranks
        Processes to start on this host; None: one for each GPU, one on a CPU. Not where torchrun has started them.
    first
        Points that go before all others.
    notify
        Gets sentences: what of the job nothing measures, a row that was cut short.
    progress
        Gets a line for each point.

    Returns
    -------
    Counts or None
        None of all processes but the first one, which alone writes the table.

    Raises
    ------
    SpecError
        If torch is not installed, the device is not there, or the table is of something or somewhere else.
    LostRankError
        If another process failed.
    """
    _require_budget(budget_seconds)
    torch = require_torch()
    device = device_of(torch, device)
    follower = (sys.executable, "-m", "planner", "sample", "--device", device, "--budget", f"{budget_seconds:g}")
    others = joined_ranks(torch, device, ranks, seconds=budget_seconds, command=(*follower, "-o", os.fspath(path)))
    with others as joined:
        sampler = Sampler(device, joined)
        if joined and not joined.is_first:
            sampler.follow()
            return None
        job = job_shapes(problem) if problem else None
        if job and job.unknown:
            notify(f"Nothing measures these operators of the job: {', '.join(job.unknown)}.")
        usual = "fp32" if device == "cpu" else "bf16"
        points = points_to_measure(
            job, sampler.memory_bytes, device=device, dtype=dtype or usual, group_sizes=sampler.group_sizes
        )
        points = tuple(dict.fromkeys((*first, *points)))
        return measure_points(points, path, sampler, budget_seconds=budget_seconds, notify=notify, progress=progress)


def _require_budget(seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise SpecError("budget_seconds", f"is {seconds:g}; expected a finite number above 0.")


def measure_points(
    points: Iterable[Point],
    path: str | os.PathLike[str],
    measurer: Measurer,
    *,
    budget_seconds: float,
    limits: Limits | None = None,
    notify: Callable[[str], None] = _ignore,
    progress: Callable[[str], None] = _ignore,
    now: Callable[[], float] = time.monotonic,
) -> Counts:
    """
    Measure points in their order until the budget is over.

    Parameters
    ----------
    points
        What to measure, the most useful first.
    path, budget_seconds, notify, progress
        As in :func:`sample_operators`.
    measurer
        What measures them.
    limits
        How long and how often each is repeated.
    now
        Seconds of a clock, by which the budget is spent.

    Raises
    ------
    SpecError
        If the budget is none, or the table is of something or somewhere else.
    """
    _require_budget(budget_seconds)
    started, limits = now(), limits or Limits()
    table = SamplesFile(path, measurer.machine, notify=notify)
    wanted = tuple(dict.fromkeys(points))
    skipped: Counter[str] = Counter()
    measured = known = 0
    pace = _Pace()
    for number, point in enumerate(wanted, start=1):
        left = budget_seconds - (now() - started)
        if point in table.known:
            known += 1
            continue
        if left <= 0:
            skipped[NO_TIME] += 1
            continue
        if LEAST_CALLS * pace.least_seconds(point) > left:
            skipped[TOO_LONG] += 1
            progress(_line(number, len(wanted), point, TOO_LONG))
            continue
        found = measurer.measure(point, replace(limits, seconds=min(limits.seconds, left)))
        if isinstance(found, Skipped):
            skipped[found.reason] += 1
            progress(_line(number, len(wanted), point, f"skipped: {found.reason}"))
            continue
        table.add(point, found)
        measured += 1
        pace.learn(point, found.seconds)
        progress(_line(number, len(wanted), point, _said(found)))
    return Counts(measured=measured, known=known, skipped=dict(skipped), seconds=now() - started)


class _Pace:
    """The best rates seen, by which a point takes at least so long; nothing is known at first."""

    def __init__(self) -> None:
        self._rates = {least_flops: 0.0, moved_bytes: 0.0}

    def learn(self, point: Point, seconds: float) -> None:
        for amount, large in ((least_flops, LARGE_FLOPS), (moved_bytes, LARGE_BYTES)):
            if amount(point) > large:
                self._rates[amount] = max(self._rates[amount], amount(point) / seconds)

    def least_seconds(self, point: Point) -> float:
        return max(amount(point) / rate if rate else 0.0 for amount, rate in self._rates.items())


def _line(number: int, total: int, point: Point, said: str) -> str:
    return f"{number}/{total} {point}: {said}"


def _said(timing: Timing) -> str:
    return f"{timing.seconds * 1e6:,.1f} us +- {100 * timing.spread:.1f} % of {timing.repeats}"
