"""Which plan is the fastest: chances by the errors of differences, beside many draws of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.uncertainty.intervals import chances_fastest


def drawn(step_seconds: list[float], noise_fraction: float) -> np.ndarray:
    """Shares of 400,000 draws in which each plan is the fastest."""
    deviation = math.log1p(noise_fraction) / 1.2816 / math.sqrt(2)
    errors = np.random.default_rng(7).normal(0.0, deviation, (400_000, len(step_seconds)))
    fastest = (np.log(step_seconds) + errors).argmin(axis=1)
    return np.bincount(fastest, minlength=len(step_seconds)) / len(fastest)


@pytest.mark.parametrize(
    ("steps", "noise"),
    [([10.0], 0.05), ([10.0, 10.1, 10.3], 0.048), ([10.0, 9.0, 30.0, 10.0], 0.1), ([1.0, 1.0, 1.0, 1.0, 1.0], 0.02)],
)
def test_chances_are_those_of_many_draws(steps, noise):
    """Each plan with an error of its own; they add up to one."""
    chances = chances_fastest(steps, noise)

    assert sum(chances) == pytest.approx(1.0)
    np.testing.assert_allclose(chances, drawn(steps, noise), atol=0.004)


def test_two_plans_that_are_the_noise_apart():
    """80 % of all errors are below the noise on either side, so that nine of ten leave the order as it is."""
    assert chances_fastest([1.0, 1.05], 0.05)[0] == pytest.approx(0.9, abs=1e-3)


def test_exact_predictions_leave_no_doubt():
    """The fastest is the fastest; equals share."""
    assert chances_fastest([3.0, 2.0, 4.0], 0.0) == [0.0, 1.0, 0.0]
    assert chances_fastest([2.0, 2.0, 4.0], 0.0) == [0.5, 0.5, 0.0]
