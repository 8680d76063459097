"""A run within a budget: the most useful points first, each measured, written to the table at once, and none twice."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from costmodel.errors import SpecError
from costmodel.record import record
from planner.jobs.problem import Problem
from planner.measure.sample import kernels
from planner.measure.sample.bench import Bench, Work, least_flops, moved_bytes, needed_bytes
from planner.measure.sample.ranks import Group, LostRankError, Ranks, joined_ranks, members_of
from planner.measure.sample.samples import (
    COLLECTIVES,
    NOTHING,
    OPERATORS,
    Machine,
    Point,
    Sizes,
    Timing,
    device_of,
    free_bytes,
    machine_of,
    require_torch,
)
from planner.measure.sample.shapes import job_shapes, points_to_measure
from planner.measure.sample.table import SamplesFile, ignore
from planner.measure.sample.timing import (
    ALONE,
    BesideClock,
    DeviceClock,
    HostClock,
    Limits,
    UnavailableError,
    measure_call,
)

MEASURED: Mapping[str, Callable[[Bench, Point], Work]] = {
    name: getattr(kernels, name) for name in OPERATORS if name not in COLLECTIVES
}
MEASURED_TOGETHER: Mapping[str, Callable[[Bench, Point, Group], Work]] = {
    name: getattr(kernels, name) for name in COLLECTIVES
}
"""Functions that make the calls of each operator: alone, and of collectives with a group of processes."""

BESIDE: Mapping[str, Point] = {
    "matmul": Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=4096, n=4096, k=4096)),
    "copy": Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28)),
    "host_to_device": Point(operator="host_to_device", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**26)),
    "device_to_host": Point(operator="device_to_host", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**26)),
}
"""Points that may overlap with another one."""


T = TypeVar("T")


class Sampler:
    """
    Measures points on this machine.

    Parameters
    ----------
    device
        ``cuda`` or ``cpu``; "" chooses the GPU if there is one.
    ranks
        Processes that measure collectives together; None if there are no others, and no collectives.

    Raises
    ------
    SpecError
        If torch is not installed, or the device is not there.
    """

    def __init__(self, device: str = "", ranks: Ranks | None = None) -> None:
        torch = require_torch()
        self.device = device_of(torch, device)
        self.bench = Bench(torch, self.device)
        self._ranks = ranks
        self._clock = DeviceClock(torch) if self.bench.is_gpu else HostClock()

    @cached_property
    def machine(self) -> Machine:
        """The machine of the samples."""
        found = machine_of(self.bench.torch, self.device)
        grouped = "in one kernel" if kernels.has_grouped_kernel(self.bench) else "in a loop"
        here = self._ranks.hosts.count(self._ranks.place.host) if self._ranks else 1
        return replace(
            found,
            software=f"{found.software}, grouped matmuls {grouped}",
            devices_per_node=max(found.devices_per_node or 1, here),
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that are free on the device."""
        return free_bytes(self.bench.torch, self.device)

    @property
    def group_sizes(self) -> tuple[tuple[int, int], ...]:
        """Ranks and nodes of the groups whose collectives can be measured."""
        return self._ranks.group_sizes if self._ranks else ()

    def measure(self, point: Point, limits: Limits | None = None) -> Timing | str:
        """
        Measure a point; return its time, or the reason that it was skipped: a sentence without its full stop.

        Raises
        ------
        LostRankError
            If another process failed in a collective.
        """
        if point.operator in MEASURED_TOGETHER:
            return self._lead(point, limits)
        try:
            return self._attempt(lambda: self._time(*self._prepare(point), limits))
        finally:
            self._free()

    def follow(self) -> None:
        """
        Take part in the measurements of the first process until it is done.

        Raises
        ------
        LostRankError
            If another process failed.
        """
        assert self._ranks, "a process that is alone follows nobody"
        try:
            while (message := self._ranks.listen()) is not None:
                self._measure_in_lockstep(self._ranks, *message)
        except RuntimeError as error:
            raise LostRankError(self._ranks.place.rank, str(error)) from None

    def _lead(self, point: Point, limits: Limits | None) -> Timing | str:
        """Measure a collective with all processes of its group."""
        ranks, nodes = point.sizes.ranks or 0, point.sizes.nodes or 1
        if self._ranks is None or not members_of(self._ranks.hosts, ranks=ranks, nodes=nodes):
            here = len(self._ranks.hosts) if self._ranks else 1
            return f"needs {ranks} processes on {nodes} hosts, and there are {here}"
        try:
            self._ranks.say((point, limits))
            found = self._measure_in_lockstep(self._ranks, point, limits)
        except RuntimeError as error:
            raise LostRankError(self._ranks.place.rank, str(error)) from None
        assert found, "the first process is in every group"
        return found

    def _measure_in_lockstep(self, ranks: Ranks, point: Point, limits: Limits | None) -> Timing | str | None:
        """
        Measure a collective in step with the group; None in processes outside of it.

        All make their inputs before one of them communicates, and all skip the point if one of them cannot. A later
        failure leaves the others waiting for a call that does not come, and ends the run.
        """
        group = ranks.group(ranks=point.sizes.ranks or 0, nodes=point.sizes.nodes or 1)
        if group is None:
            return None
        try:
            prepared = self._attempt(lambda: self._prepare(point, group))
            reason = group.first_reason(prepared if isinstance(prepared, str) else "")
            if isinstance(prepared, str) or reason:
                return reason
            work, clock = prepared
            called = self._attempt(work.calls[0])
            reason = group.first_reason(called if isinstance(called, str) else "")
            if reason:
                return reason
            return self._time(work, clock, limits)
        except UnavailableError as error:
            return str(error)
        finally:
            self._free()

    def _prepare(self, point: Point, group: Group | None = None) -> tuple[Work, HostClock]:
        """Make the inputs and calls of a point, and choose a clock."""
        self.bench.dtype(point.dtype)
        self.bench.require_memory(needed_bytes(point))
        if group:
            work = MEASURED_TOGETHER[point.operator](self.bench, point, group)
        else:
            work = MEASURED[point.operator](self.bench, point)
        return work, self._clock_for(point, work, group)

    def _time(self, work: Work, clock: HostClock, limits: Limits | None) -> Timing:
        timing = measure_call(work.calls, clock, limits)
        if timing.seconds <= NOTHING:
            raise UnavailableError("is too short for the clock")
        return replace(timing, seconds=timing.seconds / work.share)

    def _clock_for(self, point: Point, work: Work, group: Group | None) -> HostClock:
        torch, lockstep = self.bench.torch, group or ALONE
        if point.beside:
            if not self.bench.is_gpu:
                raise UnavailableError("overlapped points are measured only on a GPU")
            beside = BESIDE[point.beside]
            return BesideClock(torch, MEASURED[beside.operator](self.bench, beside).calls, lockstep)
        if work.on_host:
            return HostClock(torch.cuda.synchronize) if self.bench.is_gpu else HostClock()
        if group:  # learned launch times are equal within a group, but not between groups
            return DeviceClock(torch, lockstep) if self.bench.is_gpu else HostClock(lockstep=lockstep)
        return self._clock

    def _attempt(self, function: Callable[[], T]) -> T | str:
        """Call a function; return its result, or the reason that it failed."""
        try:
            return function()
        except (
            UnavailableError,
            MemoryError,
            RuntimeError,  # includes the library's out-of-memory and not-implemented errors
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            return self._reason(error)

    def _reason(self, error: Exception) -> str:
        """Return the reason on one line."""
        if isinstance(error, UnavailableError):
            return str(error)
        text: Any = str(error)
        first = (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(error, MemoryError) or "allocate memory" in first or "out of memory" in text:
            return "out of memory"
        return f"torch {self.bench.torch.__version__} does not run it: {first[:160]}"

    def _free(self) -> None:
        if self.bench.is_gpu:
            with suppress(RuntimeError):  # a failed device does not answer
                self.bench.torch.cuda.empty_cache()


# --- the budget ----------------------------------------------------------------------------------------------
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
