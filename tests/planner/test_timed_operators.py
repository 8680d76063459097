"""All passes of a sampled operator together: their errors are alike, and add up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from planner.uncertainty.intervals import _combine_passes

SOURCE = SimpleNamespace(origin=lambda operator: f"samples of {operator}", is_sampled=lambda operator: operator == "mm")


def test_deviations_count_by_the_seconds_of_their_passes():
    """2 s at 10 % and 6 s at 30 % of 16 s: half of the step, (0.2 + 1.8) / 8 = 25 %; one pass outside is enough."""
    found = _combine_passes("qkv", [(2.0, 0.1, False), (6.0, 0.3, True)], 16.0, SOURCE, "mm")

    assert (found.name, found.share) == ("qkv", 0.5)
    assert found.relative_deviation == pytest.approx(0.25)
    assert (found.origin, found.is_sampled, found.is_outside) == ("samples of mm", True, True)


def test_an_operator_that_takes_no_time_leaves_nothing_open():
    """Neither its own seconds nor those of all operators are divided by."""
    found = _combine_passes("empty", [(0.0, 0.3, False)], 0.0, SOURCE, "other")

    assert (found.share, found.relative_deviation, found.is_sampled, found.is_outside) == (0.0, 0.0, False, False)
