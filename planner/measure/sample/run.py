"""A run within a budget: the most useful points first, each written to the table once it is measured, none twice."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from costmodel.errors import SpecError
from costmodel.record import record
from planner.jobs.problem import Problem
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.job_shapes import job_shapes
from planner.measure.sample.measure import Sampler
from planner.measure.sample.ranks import joined_ranks
from planner.measure.sample.samples import Point, Timing, device_of, require_torch
from planner.measure.sample.shapes import points_to_measure
from planner.measure.sample.table import SamplesFile, ignore
from planner.measure.sample.timing import Limits

LARGE_FLOPS, LARGE_BYTES = 1e8, 1e7
"""Work of a point from which on its rate predicts the time of others."""

LEAST_CALLS = 5
"""Fewest calls of a point: two that warm up, three that count."""

TOO_LONG = "would take longer than the rest of the budget"
NO_TIME = "the budget was over"


@record(frozen=True, kw_only=True, slots=True)
class Counts:
    """
    Counts of measured, known and skipped points.

    Parameters
    ----------
    measured, known
        Points that this run measured, and points that the table already had.
    skipped
        Number of skipped points, by reason.
    seconds
        Duration of the run.
    """

    measured: int
    known: int
    skipped: dict[str, int] = field(hash=False)
    seconds: float

    @property
    def total(self) -> int:
        """Total."""
        return self.measured + self.known + sum(self.skipped.values())


def sample_operators(
    path: str | os.PathLike[str],
    problem: Problem | None = None,
    *,
    budget_seconds: float,
    device: str = "",
    dtype: str = "",
    ranks: int | None = None,
    first: Sequence[Point] = (),
    notify: Callable[[str], None] = ignore,
    progress: Callable[[str], None] = ignore,
) -> Counts | None:
    """
    Measure operators on this machine into a table, which an earlier run may have begun.

    With several processes it also measures collectives: processes of torchrun, which all call this, or processes
    started here.

    Parameters
    ----------
    path
        The table, a CSV or Parquet file.
    problem
        Job whose operators come first; None for no particular job.
    budget_seconds
        Seconds after which the run stops.
    device
        ``cuda`` or ``cpu``; "" chooses the GPU if there is one.
    dtype
        Dtype of points outside of the job; "" chooses bf16 on a GPU, fp32 on a CPU, since few CPUs multiply 16 bits.
    ranks
        Processes to start on this host; None starts one for each GPU, one on a CPU. Must be None under torchrun.
    first
        Points to measure before all others.
    notify
        Receives sentences: unmeasured operators of the job, a truncated row.
    progress
        Receives a line for each point.

    Returns
    -------
    Counts or None
        None in all processes but the first, which alone writes the table.

    Raises
    ------
    SpecError
        If torch is not installed, the device is not there, or the table belongs to another machine.
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
            notify(f"These operators of the job are not measured: {', '.join(job.unknown)}.")
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
    measurer: Sampler,
    *,
    budget_seconds: float,
    notify: Callable[[str], None] = ignore,
    progress: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
) -> Counts:
    """
    Measure points in their order until the budget is over.

    Parameters
    ----------
    points
        Points to measure, the most useful first.
    path, budget_seconds, notify, progress
        As in :func:`sample_operators`.
    measurer
        Measures the points.
    now
        Clock of the budget, in seconds.

    Raises
    ------
    SpecError
        If the budget is not positive, or the table belongs to another machine.
    """
    _require_budget(budget_seconds)
    started, limits = now(), Limits()
    table = SamplesFile(path, measurer.machine, notify=notify)
    wanted = tuple(dict.fromkeys(points))
    skipped: Counter[str] = Counter()
    measured = known = 0
    rates: BestRates = {least_flops: 0.0, moved_bytes: 0.0}
    for number, point in enumerate(wanted, start=1):
        left = budget_seconds - (now() - started)
        if point in table.known:
            known += 1
            continue
        if left <= 0:
            skipped[NO_TIME] += 1
            continue
        if LEAST_CALLS * _least_seconds(point, rates) > left:
            skipped[TOO_LONG] += 1
            progress(_line(number, len(wanted), point, TOO_LONG))
            continue
        found = measurer.measure(point, replace(limits, seconds=min(limits.seconds, left)))
        if isinstance(found, str):
            skipped[found] += 1
            progress(_line(number, len(wanted), point, f"skipped: {found}"))
            continue
        table.add(point, found)
        measured += 1
        _learn(rates, point, found.seconds)
        progress(_line(number, len(wanted), point, _timing_text(found)))
    return Counts(measured=measured, known=known, skipped=dict(skipped), seconds=now() - started)


BestRates: TypeAlias = dict[Callable[[Point], float], float]
"""Best rates so far of FLOPs and bytes, which bound the time of a point from below; zero at first."""


def _learn(rates: BestRates, point: Point, seconds: float) -> None:
    for amount, large in ((least_flops, LARGE_FLOPS), (moved_bytes, LARGE_BYTES)):
        if amount(point) > large:
            rates[amount] = max(rates[amount], amount(point) / seconds)


def _least_seconds(point: Point, rates: BestRates) -> float:
    return max(amount(point) / rate if rate else 0.0 for amount, rate in rates.items())


def _line(number: int, total: int, point: Point, said: str) -> str:
    return f"{number}/{total} {point}: {said}"


def _timing_text(timing: Timing) -> str:
    return f"{timing.seconds * 1e6:,.1f} us +- {100 * timing.spread:.1f} % of {timing.repeats}"
