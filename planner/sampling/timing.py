"""How long a call takes: warm-up, repeats until the median is known to 1 % or its time is over, the device's clock."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, Protocol, TypeAlias

from planner.sampling.samples import Timing

Call: TypeAlias = Callable[[], object]

ERROR_OF_MEDIAN = 1.2533 / 1.349
"""Standard error of a median times the root of the repeats, over the interquartile range, of normal errors."""

LEAD_SECONDS = 0.02
"""Longest time that the device waits so that the host can launch ahead of it."""

NOTHING = 1e-9
"""Seconds that no clock here tells from none."""

CYCLES_PER_SECOND = 2e9
"""Cycles of a device's clock, to turn that time into cycles; a matter of waiting only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """
    How long and how often one point is repeated.

    Parameters
    ----------
    seconds
        Time for one point, from which on nothing is repeated but for ``least_repeats``.
    relative_error
        Standard error of the median, as a fraction of it, that is small enough.
    least_repeats, enough_repeats, most_repeats
        Repeats whatever they cost; before the error is believed; at most.
    window_seconds
        Calls that are shorter are timed several at once.
    most_calls
        How many at most.
    """

    seconds: float = 0.5
    relative_error: float = 0.01
    least_repeats: int = 3
    enough_repeats: int = 10
    most_repeats: int = 1000
    window_seconds: float = 200e-6
    most_calls: int = 64


class Clock(Protocol):
    """What times calls."""

    def now(self) -> float:
        """Seconds of the host's clock, by which time is spent."""
        ...

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """Seconds per call of ``number`` windows, each of the next ``size`` calls."""
        ...


def timed(calls: Sequence[Call], clock: Clock, limits: Limits | None = None) -> Timing:
    """
    Median time of a call.

    Parameters
    ----------
    calls
        Equal calls on inputs of their own, taken in turn so that no cache holds the next one's.
    clock
        What times them.
    limits
        How long and how often.
    """
    limits = limits or Limits()
    rotation = cycle(calls)
    clock.windows(rotation, size=1, number=1)
    started = clock.now()  # libraries that choose among kernels do so in the first call
    first = clock.windows(rotation, size=1, number=1)
    size = min(limits.most_calls, max(1, math.ceil(limits.window_seconds / max(first[0], NOTHING))))
    seconds = first if size == 1 else clock.windows(rotation, size=size, number=1)
    while not _is_enough(seconds, clock.now() - started, limits):
        left = (limits.seconds - (clock.now() - started)) / max(size * statistics.median(seconds), NOTHING)
        number = max(1, min(limits.enough_repeats, int(left), limits.most_repeats - len(seconds)))
        seconds = seconds + clock.windows(rotation, size=size, number=number)
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(seconds=median, spread=(high - low) / 2 / max(median, NOTHING), repeats=len(seconds))


def _is_enough(seconds: Sequence[float], spent: float, limits: Limits) -> bool:
    if len(seconds) < max(2, limits.least_repeats):
        return False
    if spent >= limits.seconds or len(seconds) >= limits.most_repeats:
        return True
    return len(seconds) >= limits.enough_repeats and median_error(seconds) < limits.relative_error


def median_error(seconds: Sequence[float]) -> float:
    """
    Standard error of a median, as a fraction of it.

    >>> round(median_error([1.0, 1.1] * 8), 4)
    0.0221
    """
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return ERROR_OF_MEDIAN * (high - low) / math.sqrt(len(seconds)) / max(median, NOTHING)


class Lockstep(Protocol):
    """
    The processes that time the same calls together.

    Collectives end only where all take part, so that no process may call more often than another. Whatever decides how
    often is therefore the largest value of all.
    """

    def barrier(self) -> None:
        """Begin together: what follows on the device follows the last one's arrival."""
        ...

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Each value as it is where it is largest; every process gets the same."""
        ...


class Alone:
    """A single process."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Its own."""
        return list(values)


ALONE: Lockstep = Alone()


class HostClock:
    """
    The host's clock.

    Parameters
    ----------
    synchronize
        Waits until the device has done everything; nothing to wait for on a CPU.
    lockstep
        The processes that time together; of each window the slowest one counts.
    """

    def __init__(self, synchronize: Call = lambda: None, lockstep: Lockstep = ALONE) -> None:
        self._synchronize = synchronize
        self._lockstep = lockstep

    def now(self) -> float:
        """Seconds."""
        return self._lockstep.maximum([time.perf_counter()])[0]

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """Each from an idle device to an idle device."""
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


class DeviceClock:
    """
    Events on a GPU's stream: the host launches ahead, so that its own time is not in between.

    Parameters
    ----------
    torch
        The library.
    lockstep
        The processes that time together; of each window the slowest one counts.
    """

    def __init__(self, torch: Any, lockstep: Lockstep = ALONE) -> None:
        self._torch = torch
        self._lockstep = lockstep
        self._launch_seconds = 1e-3

    def now(self) -> float:
        """Seconds, once the device has done everything."""
        self._torch.cuda.synchronize()
        return self._lockstep.maximum([time.perf_counter()])[0]

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """One after the other without a gap; as many at once as the host can launch in the time of its lead."""
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


class BesideClock:
    """
    Events on a GPU's stream, while another stream works all the time.

    Parameters
    ----------
    torch
        The library.
    beside
        What the other stream does, again and again.
    lockstep
        The processes that time together; of each window the slowest one counts.

    Attributes
    ----------
    number
        Calls of it beside a window.
    """

    MOST_CALLS = 4096
    """Calls beside one window."""

    def __init__(self, torch: Any, beside: Sequence[Call], lockstep: Lockstep = ALONE) -> None:
        self._torch = torch
        self._beside = cycle(beside)
        self._lockstep = lockstep
        self._stream = torch.cuda.Stream()
        self.number = 4

    def now(self) -> float:
        """Seconds, once the device has done everything."""
        self._torch.cuda.synchronize()
        return self._lockstep.maximum([time.perf_counter()])[0]

    def windows(self, calls: Iterator[Call], *, size: int, number: int) -> list[float]:
        """
        Each alone; one that outlasts what runs beside it is timed again with more of that.

        Raises
        ------
        NotCoveredError
            If nothing helps.
        """
        found: list[float] = []
        while len(found) < number:
            seconds, is_covered = self._window(calls, size)
            if is_covered:
                found.append(seconds)
            elif self.number >= self.MOST_CALLS:
                raise NotCoveredError
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


class NotCoveredError(Exception):
    """What should run beside a call ends before it."""
