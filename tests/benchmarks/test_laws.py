"""Laws of measured peaks: those of random runs are found again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.plans.laws import Use, chances_without_groups, fit_laws, fit_laws_without_groups
from planner.uncertainty.counts import ANY
from planner.uncertainty.peaks import OWN_ROWS

MEAN, DEVIATION = 0.03, 0.02


def measured(stack, count, mean, deviation, seed=0):
    """Runs whose peaks were measured, in groups of two."""
    draw = random.Random(seed)
    return [
        Use(stack=stack, group=(stack, n // 2), log_peak=draw.gauss(mean, deviation), log_use=-0.5, has_run=True)
        for n in range(count)
    ]


def tried(stack, count, mean, deviation, seed=1):
    """Runs of which is known only whether they fitted, as they do where the peak is below the device's memory."""
    draw = random.Random(seed)
    uses = [draw.uniform(-0.15, 0.1) for _ in range(count)]
    return [
        Use(
            stack=stack,
            group=(stack, "tried", n),
            log_peak=None,
            log_use=use,
            has_run=use + draw.gauss(mean, deviation) <= 0,
        )
        for n, use in enumerate(uses)
    ]


def found(uses, stack):
    """The law of one stack."""
    (law,) = (one for one in fit_laws(uses) if one.stack == stack)
    return law


@pytest.mark.parametrize("runs", [measured, tried])
def test_a_law_is_found_again(runs):
    """300 random runs with peaks, or 300 that are only known to have fitted or not."""
    law = found(runs("a", 300, MEAN, DEVIATION), "a")

    assert law.mean == pytest.approx(MEAN, abs=0.0051)
    assert law.deviation == pytest.approx(DEVIATION, abs=0.0101)


def test_a_stack_without_runs_of_its_own_peaks_follows_the_others():
    """A run that fitted with much room tells nothing: its stack has the others' law, and counts its runs."""
    roomy = Use(stack="b", group="b", log_peak=None, log_use=-0.7, has_run=True)

    law, everything = (found([*measured("a", 100, MEAN, DEVIATION), roomy], stack) for stack in ("b", ANY))

    assert (law.mean, law.deviation) == (everything.mean, everything.deviation)
    assert (law.peaks, law.fits, law.failures) == (0, 1, 0)
    assert (everything.peaks, everything.fits) == (100, 1)


@pytest.mark.slow
def test_many_runs_of_a_stack_decide_its_law():
    """Ten times as many as the others count for outweigh them; a tenth does not."""
    others = measured("a", 200, MEAN, DEVIATION)

    many, few = (
        found([*others, *measured("b", count, -0.03, 0.01, seed=2)], "b") for count in (10 * OWN_ROWS, OWN_ROWS // 10)
    )

    assert many.mean == pytest.approx(-0.03, abs=0.006)
    assert few.mean > 0.01


def test_a_run_is_not_judged_by_its_own_group():
    """An odd group is no excuse for itself: its chance is that of the others' law."""
    odd = [Use(stack="a", group="odd", log_peak=None, log_use=0.06, has_run=True)] * 40
    usual = measured("a", 60, 0.0, 0.01)

    chances = chances_without_groups([*usual, *odd])

    assert max(chances[60:]) < 0.5
    assert found([*usual, *odd], "a").share_below(-0.06) > max(chances[60:])


def test_a_run_that_leaves_out_its_recomputation_tells_nothing_unless_measured():
    """A hundred that ran far above the memory leave the law as it is; with peaks they would not."""
    known = measured("a", 60, 0.0, 0.01)
    silent = [
        Use(stack="a", group="b", log_peak=None, log_use=0.5, has_run=True, is_silent=True, source=n)
        for n in range(100)
    ]

    assert found([*known, *silent], "a") == found(known, "a")
    assert found([*known, *(replace(one, log_peak=0.03) for one in silent)], "a").mean == pytest.approx(0.02, abs=0.011)


def test_left_out_by_source():
    """Runs of a source are judged by the others', whatever their groups."""
    own = [replace(one, source="own") for one in measured("a", 40, 0.08, 0.01)]
    others = [replace(one, source="other", group=("other", n)) for n, one in enumerate(measured("a", 40, 0.0, 0.01))]

    of_own, *_ = fit_laws_without_groups([*own, *others], key=lambda use: use.source)

    assert of_own.mean == pytest.approx(0.0, abs=0.006)
