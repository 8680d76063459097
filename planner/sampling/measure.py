"""One point measured: its operator on the bench, a clock that fits, and a reason where it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from planner.sampling.bench import Bench, UnavailableError, Work
from planner.sampling.machine import device_of, free_bytes, machine_of, require_torch
from planner.sampling.operators import attention, matmuls, rowwise, transfers
from planner.sampling.samples import Point, Sizes, Timing
from planner.sampling.timing import (
    NOTHING,
    BesideClock,
    Clock,
    DeviceClock,
    HostClock,
    Limits,
    NotCoveredError,
    timed,
)
from planner.sampling.work import needed_bytes

MEASURED: Mapping[str, Callable[[Bench, Point], Work]] = {
    "matmul": matmuls.matmul,
    "batched_matmul": matmuls.batched_matmul,
    "grouped_matmul": matmuls.grouped_matmul,
    "attention": attention.attention,
    "rms_norm": rowwise.rms_norm,
    "layer_norm": rowwise.layer_norm,
    "rotary": rowwise.rotary,
    "swiglu": rowwise.swiglu,
    "gelu": rowwise.gelu,
    "squared_relu": rowwise.squared_relu,
    "softmax": rowwise.softmax,
    "cross_entropy": rowwise.cross_entropy,
    "embedding": rowwise.embedding,
    "top_k": rowwise.top_k,
    "permutation": rowwise.permutation,
    "residual": rowwise.residual,
    "adam": transfers.adam,
    "host_adam": transfers.host_adam,
    "copy": transfers.copy,
    "host_to_device": transfers.host_to_device,
    "device_to_host": transfers.device_to_host,
    "launch": transfers.launch,
    "graph_launch": transfers.graph_launch,
}
"""What runs each operator."""

BESIDE: Mapping[str, Point] = {
    "matmul": Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=4096, n=4096, k=4096)),
    "copy": Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28)),
    "host_to_device": Point(operator="host_to_device", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**26)),
    "device_to_host": Point(operator="device_to_host", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**26)),
}
"""What may run beside a point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """
    A point that was not measured.

    Parameters
    ----------
    reason
        A sentence without its full stop.
    """

    reason: str


class Sampler:
    """
    Measures points on this machine.

    Parameters
    ----------
    device
        ``cuda`` or ``cpu``; empty: the GPU if there is one.

    Raises
    ------
    SpecError
        If torch is not installed, or the device is not there.
    """

    def __init__(self, device: str = "") -> None:
        torch = require_torch()
        self.device = device_of(torch, device)
        self.bench = Bench(torch, self.device)
        machine = machine_of(torch, self.device)
        grouped = "in one kernel" if matmuls.has_grouped_kernel(self.bench) else "in a loop"
        self.machine = replace(machine, software=f"{machine.software}, grouped matmuls {grouped}")
        self._clock = DeviceClock(torch) if self.bench.is_gpu else HostClock()

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that are free on the device."""
        return free_bytes(self.bench.torch, self.device)

    def measure(self, point: Point, limits: Limits | None = None) -> Timing | Skipped:
        """How long a point takes, or why nobody knows."""
        torch = self.bench.torch
        try:
            return self._measure(point, limits)
        except UnavailableError as error:
            return Skipped(reason=error.reason)
        except NotCoveredError:
            return Skipped(reason=f"{point.beside} ended before what it should run beside")
        except (torch.OutOfMemoryError, MemoryError):
            return Skipped(reason="out of memory")
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            return Skipped(reason=self._said(error))
        finally:
            if self.bench.is_gpu:
                with suppress(RuntimeError):  # a device that has failed answers nothing any more
                    torch.cuda.empty_cache()

    def _measure(self, point: Point, limits: Limits | None) -> Timing:
        if point.operator not in MEASURED:
            raise UnavailableError(f"{point.operator} is not measured here")
        self.bench.dtype(point.dtype)
        self.bench.require_memory(needed_bytes(point))
        work = MEASURED[point.operator](self.bench, point)
        timing = timed(work.calls, self._clock_for(point, work), limits)
        if timing.seconds <= NOTHING:
            raise UnavailableError("is too short for the clock")
        return replace(timing, seconds=timing.seconds / work.share)

    def _clock_for(self, point: Point, work: Work) -> Clock:
        torch = self.bench.torch
        if point.beside:
            if not self.bench.is_gpu:
                raise UnavailableError("what runs beside something else is measured on a GPU")
            if point.beside not in BESIDE:
                raise UnavailableError(f"{point.beside} is not measured beside something else")
            beside = BESIDE[point.beside]
            return BesideClock(torch, MEASURED[beside.operator](self.bench, beside).calls)
        if work.on_host:
            return HostClock(torch.cuda.synchronize) if self.bench.is_gpu else HostClock()
        return self._clock

    def _said(self, error: Exception) -> str:
        """What the library says, on one line."""
        text: Any = str(error)
        first = (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if "allocate memory" in first or "out of memory" in text:
            return "out of memory"
        return f"torch {self.bench.torch.__version__} does not run it: {first[:160]}"
