"""Runs whose passes alternate: what the catalog bounds their launches by."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.launches import TOLERANCE, alternating_runs, most_beyond
from costmodel import catalog
from tests.builders_runs import project_results

pytestmark = pytest.mark.slow  # all measured runs are predicted


@pytest.fixture(scope="module")
def runs():
    """The eight runs with expert-parallel overlap and without CUDA graphs."""
    return list(alternating_runs(project_results()))


def test_the_catalog_has_the_largest_effect_that_was_measured(runs):
    """Qwen3-30B on 16 H100 and Qwen3-235B on 256 B300; a refit of other constants moves it, and asks for a new one."""
    largest: dict[str, float] = {}
    for one in runs:
        largest[one.architecture] = max(largest.get(one.architecture, 0.0), one.fraction)

    known = {name: catalog.calibration(name).constants.overlap_launches_most_fraction for name in largest}

    assert len(runs) == 8
    assert known == pytest.approx(largest, abs=TOLERANCE)


def test_the_bound_hardly_acts_in_the_runs_that_it_comes_from(runs):
    """In Qwen3-30B on 16 H100 alone, which gives Hopper's bound; launches stay slower than by turns, half as fast."""
    assert all(one.beyond <= most_beyond(one.architecture) for one in runs)
    assert [one.id for one in runs if one.beyond > 1] == ["mb-26.02.01-0190"]
