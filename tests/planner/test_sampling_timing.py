"""Timing with clocks that a test sets: how often, what the median is, what an event's clock and a neighbour need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import cycle
from types import SimpleNamespace

import pytest

from planner.measure.sample.timing import BesideClock, DeviceClock, HostClock, Limits, UnavailableError, measure_call


class FakeClock:
    """Calls take what the list says, one after the other, and then again."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = cycle(seconds)
        self.time = 0.0
        self.sizes: list[int] = []

    def now(self) -> float:
        """Seconds so far."""
        return self.time

    def windows(self, calls: Iterator, *, size: int, number: int) -> list[float]:
        """As many as asked for."""
        found = []
        for _ in range(number):
            for _ in range(size):
                next(calls)()
            self.sizes.append(size)
            found.append(next(self.seconds))
            self.time += size * found[-1]
        return found


def test_the_median_is_not_moved_by_an_outlier():
    """Of 1, 1, 1, 1 and 50 ms it is 1 ms, and the quartiles are the same."""
    timing = measure_call([lambda: None], FakeClock([1e-3, 1e-3, 1e-3, 50e-3, 1e-3]), Limits(seconds=10))

    assert timing.seconds == 1e-3
    assert timing.spread == 0


def test_spread_is_half_the_interquartile_range():
    """The quartiles of 8, 9, 10, 11 and 12 ms are 9 and 11 ms: 1 of 10 ms."""
    clock = FakeClock([99, 10e-3, 8e-3, 9e-3, 11e-3, 12e-3])  # the first one warms up

    timing = measure_call([lambda: None], clock, Limits(seconds=1, enough_repeats=5, most_repeats=5))

    assert (timing.seconds, timing.repeats) == (10e-3, 5)
    assert timing.spread == pytest.approx(0.1)


def test_a_quiet_device_needs_few_repeats():
    """With no spread at all the error is none after those that are enough."""
    assert measure_call([lambda: None], FakeClock([1e-3]), Limits(seconds=10, enough_repeats=10)).repeats <= 20


def test_a_noisy_one_is_repeated_until_the_median_is_known():
    """
    Of times from 8 to 12 ms the interquartile range is 2 ms, a fifth.

    The error of the median falls below 1 % when 0.929 * 0.2 / sqrt(n) does: after 345 repeats.
    """
    noisy = [8e-3, 9e-3, 10e-3, 11e-3, 12e-3]

    timing = measure_call([lambda: None], FakeClock(noisy), Limits(seconds=60, most_repeats=2000))

    assert 300 <= timing.repeats <= 400


def test_time_for_one_point_ends():
    """Noise that never ends is cut off by the time of the point: 0.1 s of some 10 ms."""
    timing = measure_call([lambda: None], FakeClock([5e-3, 15e-3]), Limits(seconds=0.1))

    assert 3 <= timing.repeats <= 12


def test_slow_calls_are_repeated_three_times():
    """A call of 2 s is beyond its time at once, but one number is no median."""
    clock = FakeClock([2.0])

    assert measure_call([lambda: None], clock, Limits(seconds=0.5)).repeats == 3
    assert clock.time == 8.0  # one more warms up


def test_short_calls_are_timed_together():
    """A window of 200 us has 20 calls of 10 us."""
    clock = FakeClock([10e-6])

    assert measure_call([lambda: None], clock, Limits(seconds=0.01)).seconds == pytest.approx(10e-6)
    assert clock.sizes[-1] == 20


def test_inputs_are_taken_in_turn():
    """Each set is used as often as the others, give or take one."""
    counts = [0, 0, 0]

    def counted(index: int) -> None:
        counts[index] += 1

    measure_call([lambda index=index: counted(index) for index in range(3)], FakeClock([1e-3]), Limits(seconds=0.1))

    assert min(counts) > 0
    assert max(counts) - min(counts) <= 1


def test_the_hosts_clock_waits_for_the_device():
    """Before and behind each window."""
    events: list[str] = []
    clock = HostClock(lambda: events.append("wait"))

    seconds = clock.windows(cycle([lambda: events.append("call")]), size=2, number=1)

    assert events == ["wait", "call", "call", "wait"]
    assert seconds[0] > 0


class FakeGpu:
    """A GPU whose kernels take a millisecond; a neighbour's take what the test says."""

    def __init__(self, beside_seconds: float = 1e-3) -> None:
        self.time = 0.0
        self.beside_time = 0.0
        self.beside_seconds = beside_seconds
        self.is_beside = False
        self.slept = 0
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.beside_time if gpu.is_beside else gpu.time

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at - self.at)

        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                Event=Event, synchronize=self.synchronize, _sleep=self.sleep, Stream=object, stream=self.stream
            )
        )

    def synchronize(self) -> None:
        """Both streams are idle."""
        self.time = self.beside_time = max(self.time, self.beside_time)

    def sleep(self, cycles: int) -> None:
        """Waits before what is timed."""
        self.slept += cycles
        self.time += 1.0

    @contextlib.contextmanager
    def stream(self, _: object) -> Iterator[None]:
        """What follows is the neighbour's."""
        self.is_beside = True
        yield
        self.is_beside = False

    def kernel(self) -> None:
        """A millisecond of this stream."""
        self.time += 1e-3

    def beside(self) -> None:
        """The neighbour's kernel."""
        self.beside_time += self.beside_seconds


def test_events_time_calls_alone():
    """Three windows of four kernels of 1 ms each; the device's wait for the host is not in them."""
    gpu = FakeGpu()

    seconds = DeviceClock(gpu.torch).windows(cycle([gpu.kernel]), size=4, number=3)

    assert seconds == pytest.approx([1e-3] * 3)
    assert gpu.slept > 0


def test_what_runs_beside_lasts_longer():
    """Ten kernels of 1 ms are covered by sixteen of 1 ms, not by the four or eight that are tried before."""
    gpu = FakeGpu()
    clock = BesideClock(gpu.torch, [gpu.beside])

    assert clock.windows(cycle([gpu.kernel]), size=10, number=2) == pytest.approx([1e-3] * 2)
    assert clock.number == 16


def test_what_never_lasts_long_enough_is_said():
    """Neighbours that take no time run beside nothing."""
    gpu = FakeGpu(beside_seconds=0.0)

    with pytest.raises(UnavailableError):
        BesideClock(gpu.torch, [gpu.beside]).windows(cycle([gpu.kernel]), size=1, number=1)
