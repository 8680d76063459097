"""Time of a call: warm-up, repeats until the median is known to 1 % or the time is over, the device's clock."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, pairwise
from typing import Any, TypeAlias

from costmodel.record import record
from planner.measure.sample.samples import NOTHING, Timing

Call: TypeAlias = Callable[[], object]

ERROR_OF_MEDIAN = 1.2533 / 1.349
"""Standard error of a median times the root of the repeats, over the interquartile range, of normal errors."""

LEAD_SECONDS = 0.02
"""Longest time that the device waits so that the host can launch ahead of it."""

CYCLES_PER_SECOND = 2e9
"""Assumed cycles per second of a device, to wait for some seconds."""


@record(frozen=True, kw_only=True, slots=True)
class Limits:
    """
    Limits on the time and repeats of one point.

    Parameters
    ----------
    seconds
        Seconds of one point after which only ``least_repeats`` are completed.
    relative_error
        Standard error of the median, as a fraction of it, at which repeats stop.
    least_repeats, enough_repeats, most_repeats
        Repeats in any case; repeats before the error is used; most repeats.
    window_seconds
        Seconds below which several calls are timed together.
    most_calls
        Most calls that are timed together.
    """

    seconds: float = 0.5
    relative_error: float = 0.01
    least_repeats: int = 3
    enough_repeats: int = 10
    most_repeats: int = 1000
    window_seconds: float = 200e-6
    most_calls: int = 64


class UnavailableError(Exception):
    """The device, the library, its memory or the clock cannot measure a point; a sentence without its full stop."""


def measure_call(calls: Sequence[Call], clock: HostClock, limits: Limits | None) -> Timing:
    """
    Measure the median time of a call.

    Parameters
    ----------
    calls
        Equal calls with different inputs, used in turn so that no cache holds those of the next call.
    clock
        Times the calls.
    limits
        Limits on time and repeats.
    """
    limits = limits or Limits()
    rotation = cycle(calls)
    clock.windows(rotation, size=1, number=1)
    started = clock.now()  # libraries choose among kernels in the first call
    first = clock.windows(rotation, size=1, number=1)
    size = min(limits.most_calls, max(1, math.ceil(limits.window_seconds / max(first[0], NOTHING))))
    seconds = first if size == 1 else clock.windows(rotation, size=size, number=1)
    while not _is_enough(seconds, clock.now() - started, limits):
        left = (limits.seconds - (clock.now() - started)) / max(size * statistics.median(seconds), NOTHING)
        number = max(1, min(limits.enough_repeats, int(left), limits.most_repeats - len(seconds)))
        seconds = seconds + clock.windows(rotation, size=size, number=number)
    return Timing.summarize(seconds)


def _is_enough(seconds: Sequence[float], spent: float, limits: Limits) -> bool:
    if len(seconds) < max(2, limits.least_repeats):
        return False
    if spent >= limits.seconds or len(seconds) >= limits.most_repeats:
        return True
    return len(seconds) >= limits.enough_repeats and median_error(seconds) < limits.relative_error


def median_error(seconds: Sequence[float]) -> float:
    """
    Return the standard error of a median, as a fraction of it.

    >>> round(median_error([1.0, 1.1] * 8), 4)
    0.0221
    """
    return ERROR_OF_MEDIAN * 2 * Timing.summarize(seconds).spread / math.sqrt(len(seconds))


class Lockstep:
    """
    Processes that time equal calls together; here a single one.

    Collectives end only where all take part, so no process may call more often than another. Therefore the number of
    calls follows from the largest values of all processes.
    """

    def barrier(self) -> None:
        """Begin together: later work on the device follows the arrival of the last process."""

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Return the largest value over the processes, entry by entry; equal in every process."""
        return list(values)


ALONE = Lockstep()


class HostClock:
    """
    Clock of the host.

    Parameters
    ----------
    synchronize
        Waits until the device is idle; does nothing on a CPU.
    lockstep
        Processes that time together; each window counts with the slowest one.
    """

    def __init__(self, synchronize: Call = lambda: None, lockstep: Lockstep = ALONE) -> None:
        self._synchronize = synchronize
        self._lockstep = lockstep

    def now(self) -> float:
        """Return seconds, once the device is idle; limits are measured with them."""
        self._synchronize()
        return self._lockstep.maximum([time.perf_counter()])[0]

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """Return seconds per call of ``number`` windows, each of the next ``size`` calls, from idle to idle device."""
        found = []
        for _ in range(number):
            self._synchronize()
            self._lockstep.barrier()
            started = time.perf_counter()
            for _ in range(size):
                next(calls)()
            self._synchronize()
            found.append((time.perf_counter() - started) / size)
        return self._lockstep.maximum(found)


class DeviceClock(HostClock):
    """
    Clock of events on a GPU's stream: the host launches ahead, so that its own time does not count.

    Parameters
    ----------
    torch
        The library.
    lockstep
        Processes that time together; each window counts with the slowest one.
    """

    _launch_seconds = 1e-3

    def __init__(self, torch: Any, lockstep: Lockstep = ALONE) -> None:
        super().__init__(torch.cuda.synchronize, lockstep)
        self._torch = torch

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """Time windows one after the other without a gap; as many together as the host can launch within its lead."""
        cuda = self._torch.cuda
        at_once = max(1, int(LEAD_SECONDS / max(size * self._launch_seconds, NOTHING)))
        found: list[float] = []
        while len(found) < number:
            some = min(at_once, number - len(found))
            marks = [cuda.Event(enable_timing=True) for _ in range(some + 1)]
            cuda.synchronize()
            cuda._sleep(int(CYCLES_PER_SECOND * min(LEAD_SECONDS, 1.5 * some * size * self._launch_seconds)))
            self._lockstep.barrier()
            started = time.perf_counter()
            marks[0].record()
            for mark in marks[1:]:
                for _ in range(size):
                    next(calls)()
                mark.record()
            (self._launch_seconds,) = self._lockstep.maximum([(time.perf_counter() - started) / (some * size)])
            cuda.synchronize()
            found += [one.elapsed_time(other) / 1e3 / size for one, other in pairwise(marks)]
        return self._lockstep.maximum(found)


class BesideClock(DeviceClock):
    """
    Clock of events on a GPU's stream, while another stream is busy.

    Parameters
    ----------
    torch
        The library.
    beside
        Calls of the other stream, repeated.
    lockstep
        Processes that time together; each window counts with the slowest one.

    Attributes
    ----------
    number
        Calls of the other stream during a window.
    """

    MOST_CALLS = 4096
    """Most calls of the other stream during one window."""

    def __init__(self, torch: Any, beside: Sequence[Call], lockstep: Lockstep = ALONE) -> None:
        super().__init__(torch, lockstep)
        self._beside, self._stream = cycle(beside), torch.cuda.Stream()
        self.number = 4

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """
        Time each window alone; repeat one that outlasts the other stream with more calls there.

        Raises
        ------
        UnavailableError
            If even the most calls are too short.
        """
        found: list[float] = []
        while len(found) < number:
            seconds, is_covered = self._window(calls, size)
            if is_covered:
                found.append(seconds)
            elif self.number >= self.MOST_CALLS:
                raise UnavailableError("the work that it should overlap with ended before it")
            else:
                self.number *= 2
        return self._lockstep.maximum(found)

    def _window(self, calls: Iterator[Call], size: int) -> tuple[float, bool]:
        cuda = self._torch.cuda
        begin, end, covered = (cuda.Event(enable_timing=True) for _ in range(3))
        cuda.synchronize()
        with cuda.stream(self._stream):
            for _ in range(self.number):
                next(self._beside)()
            covered.record()
        self._lockstep.barrier()
        begin.record()
        for _ in range(size):
            next(calls)()
        end.record()
        cuda.synchronize()
        (uncovered,) = self._lockstep.maximum([float(end.elapsed_time(covered) <= 0)])
        return begin.elapsed_time(end) / 1e3 / size, not uncovered
