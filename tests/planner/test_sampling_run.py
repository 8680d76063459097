"""Runs with a measurer and a clock of the test's: the budget, the order, resuming, what is skipped and why."""

from __future__ import annotations

import subprocess
import sys

import pytest

from costmodel.errors import SpecError
from planner.measure.sample.run import NO_TIME, TOO_LONG, Counts, Sampler, measure_points
from planner.measure.sample.samples import Machine, Point, Sizes, Timing
from planner.measure.sample.table import read_samples
from planner.measure.sample.timing import Limits

MACHINE = Machine(device="Test GPU", driver="", software="torch")


class FakeMeasurer:
    """Every point takes ten seconds of the test's clock; rates are those of 1 GFLOP/s."""

    machine = MACHINE

    def __init__(self, *, reasons: dict[Point, str] | None = None, dies_at: int = 0) -> None:
        self.time = 0.0
        self.asked: list[Point] = []
        self.allowed: list[float] = []
        self.reasons = reasons or {}
        self.dies_at = dies_at

    def measure(self, point: Point, limits: Limits | None = None) -> Timing | str:
        """As the test wants it."""
        self.asked.append(point)
        self.allowed.append(limits.seconds)
        if len(self.asked) == self.dies_at:
            raise KeyboardInterrupt
        self.time += 10
        if point in self.reasons:
            return self.reasons[point]
        sizes = point.sizes
        return Timing(seconds=max(1e-6, 2e-9 * (sizes.m or 0) * (sizes.n or 0) * (sizes.k or 0)), spread=0, repeats=3)

    def now(self) -> float:
        """Seconds of the test's clock."""
        return self.time


def points(number: int) -> list[Point]:
    """Small matmuls."""
    return [
        Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=8 * index, n=8, k=8))
        for index in range(1, number + 1)
    ]


def run(path, wanted, measurer: FakeMeasurer, seconds: float = 1000, progress=lambda _: None) -> Counts:
    """By the measurer's clock."""
    return measure_points(wanted, path, measurer, budget_seconds=seconds, progress=progress, now=measurer.now)


def test_a_budget_cuts_the_order(tmp_path):
    """In 25 s three points of 10 s begin; the others are counted as not measured for want of time."""
    measurer = FakeMeasurer()

    counts = run(tmp_path / "samples.csv", points(5), measurer, seconds=25)

    assert counts == Counts(measured=3, known=0, skipped={NO_TIME: 2}, seconds=30)
    assert measurer.asked == points(3)
    assert [sample.point for sample in read_samples(tmp_path / "samples.csv")] == points(3)


def test_the_last_point_has_what_is_left(tmp_path):
    """Of 10.25 s the second point may take a quarter, not the half that points have."""
    measurer = FakeMeasurer()

    run(tmp_path / "samples.csv", points(2), measurer, seconds=10.25)

    assert measurer.allowed == [0.5, 0.25]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_second_run_goes_on(tmp_path, suffix):
    """What is in the table is not measured again."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the extra 'sample' is not installed")
    path = tmp_path / f"samples{suffix}"
    run(path, points(2), FakeMeasurer())
    measurer = FakeMeasurer()

    counts = run(path, points(5), measurer)

    assert [sample.point for sample in read_samples(path)] == points(5)
    assert measurer.asked == points(5)[2:]
    assert (counts.measured, counts.known, counts.total) == (3, 2, 5)


def test_a_killed_run_keeps_what_it_measured(tmp_path):
    """Interrupted in its third point, it has two."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "samples.csv", points(5), FakeMeasurer(dies_at=3))

    assert [sample.point for sample in read_samples(tmp_path / "samples.csv")] == points(2)


def test_points_that_differ_in_anything_are_others(tmp_path):
    """Operator, pass, dtype, sizes and what runs beside are the key; a point that is asked for twice is one."""
    (one,) = points(1)
    changes = ({"pass_": "dgrad"}, {"dtype": "fp16"}, {"beside": "copy"}, {"operator": "matmul"})
    others = [Point(**{name: getattr(one, name) for name in Point.__slots__} | change) for change in changes]

    counts = run(tmp_path / "samples.csv", [one, *others, one], FakeMeasurer())

    assert counts.measured == 4


def test_reasons_are_counted_and_said(tmp_path):
    """A line for each point, with its reason where it was skipped."""
    first, second, third = points(3)
    lines: list[str] = []
    measurer = FakeMeasurer(reasons={first: "out of memory", third: "out of memory"})

    counts = run(tmp_path / "samples.csv", points(3), measurer, progress=lines.append)

    assert counts.skipped == {"out of memory": 2}
    assert lines == [
        f"1/3 {first}: skipped: out of memory",
        f"2/3 {second}: 2.0 us +- 0.0 % of 3",
        f"3/3 {third}: skipped: out of memory",
    ]


def test_what_takes_too_long_is_left_out(tmp_path):
    """
    At 1 GFLOP/s 2,000 GFLOP take 2,000 s, five times, of which 1,000 s are not left.

    The first matmul has 0.27 GFLOP, enough to say the rate; the small one behind the large one is measured.
    """
    shapes = (Sizes(m=512, n=512, k=512), Sizes(m=10_000, n=10_000, k=10_000), Sizes(m=8, n=8, k=8))
    wanted = [Point(operator="matmul", pass_="forward", dtype="bf16", sizes=one) for one in shapes]
    measurer = FakeMeasurer()

    counts = run(tmp_path / "samples.csv", wanted, measurer)

    assert measurer.asked == [wanted[0], wanted[2]]
    assert counts.skipped == {TOO_LONG: 1}


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_a_time(tmp_path, seconds):
    """Nothing is written for one that is none."""
    with pytest.raises(SpecError, match="budget_seconds: is"):
        run(tmp_path / "samples.csv", points(1), FakeMeasurer(), seconds=seconds)

    assert not (tmp_path / "samples.csv").exists()


def test_without_torch_the_extra_is_named(monkeypatch):
    """Not a traceback, but what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(SpecError, match=r"pip install '\.\[sample\]'"):
        Sampler()


@pytest.mark.slow
def test_nobody_imports_torch_who_does_not_measure():
    """Choosing shapes and reading tables are for machines without it."""
    code = "import sys, planner.measure.sample.run, planner.measure.sample.run; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
