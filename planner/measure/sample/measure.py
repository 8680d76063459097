"""Measurement of one point, alone or in lockstep with others: its calls, a suitable clock, or the reason to skip it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from planner.measure.sample import kernels
from planner.measure.sample.bench import Bench, UnavailableError, Work, needed_bytes
from planner.measure.sample.ranks import Group, LostRankError, Ranks, members_of
from planner.measure.sample.samples import (
    COLLECTIVES,
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
from planner.measure.sample.timing import (
    ALONE,
    NOTHING,
    BesideClock,
    DeviceClock,
    HostClock,
    Limits,
    NotCoveredError,
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
            return self._attempt(point, lambda: self._time(*self._prepare(point), limits))
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
            prepared = self._attempt(point, lambda: self._prepare(point, group))
            reason = group.first_reason(prepared if isinstance(prepared, str) else "")
            if isinstance(prepared, str) or reason:
                return reason
            work, clock = prepared
            called = self._attempt(point, work.calls[0])
            reason = group.first_reason(called if isinstance(called, str) else "")
            if reason:
                return reason
            return self._time(work, clock, limits)
        except (UnavailableError, NotCoveredError) as error:
            return self._reason(point, error)
        finally:
            self._free()

    def _prepare(self, point: Point, group: Group | None = None) -> tuple[Work, HostClock]:
        """Make the inputs and calls of a point, and choose a clock."""
        self.bench.dtype(point.dtype)
        self.bench.require_memory(needed_bytes(point))
        if group:
            work = MEASURED_TOGETHER[point.operator](self.bench, point, group)
        elif point.operator in MEASURED:
            work = MEASURED[point.operator](self.bench, point)
        else:
            raise UnavailableError(f"{point.operator} is not measured here")
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
            if point.beside not in BESIDE:
                raise UnavailableError(f"{point.beside} is not measured overlapped with other work")
            beside = BESIDE[point.beside]
            return BesideClock(torch, MEASURED[beside.operator](self.bench, beside).calls, lockstep)
        if work.on_host:
            return HostClock(torch.cuda.synchronize) if self.bench.is_gpu else HostClock()
        if group:  # learned launch times are equal within a group, but not between groups
            return DeviceClock(torch, lockstep) if self.bench.is_gpu else HostClock(lockstep=lockstep)
        return self._clock

    def _attempt(self, point: Point, function: Callable[[], T]) -> T | str:
        """Call a function; return its result, or the reason that it failed."""
        try:
            return function()
        except (
            UnavailableError,
            NotCoveredError,
            MemoryError,
            RuntimeError,  # includes the library's out-of-memory and not-implemented errors
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            return self._reason(point, error)

    def _reason(self, point: Point, error: Exception) -> str:
        """Return the reason on one line."""
        if isinstance(error, UnavailableError):
            return error.reason
        if isinstance(error, NotCoveredError):
            return f"{point.beside} ended before the point that it should overlap with"
        text: Any = str(error)
        first = (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(error, MemoryError) or "allocate memory" in first or "out of memory" in text:
            return "out of memory"
        return f"torch {self.bench.torch.__version__} does not run it: {first[:160]}"

    def _free(self) -> None:
        if self.bench.is_gpu:
            with suppress(RuntimeError):  # a failed device does not answer
                self.bench.torch.cuda.empty_cache()
