"""Constants between what is known before and what samples say; lengths of a process that made its own samples."""

import numpy as np
import pytest

from costmodel.timing.gaussian_process import matern
from planner.measure.fit.law import Known, estimate_constants, likeliest_smoothness

pytest.importorskip("scipy", reason="learning needs SciPy")


def constant(constants):
    """A law of one constant and three samples."""
    return np.full(3, constants["seconds"])


class TestEstimated:
    def test_a_constant_lies_between_what_is_known_and_what_is_measured(self):
        found = estimate_constants(
            constant, np.exp([0.01, 0.01, 0.01]), {"seconds": Known(value=1.0, width=0.1)}, related=1.0
        )

        # three samples of precision 1 / 0.1^2 beside one of what is known
        assert found.logarithms[0] == pytest.approx(3 / 4 * 0.01, rel=0.01)
        assert found.deviation("seconds") == pytest.approx(0.1 / 2)

    def test_a_sample_far_off_says_little(self):
        found = estimate_constants(constant, np.exp([0.0, 0.0, 3.0]), {"seconds": Known(value=1.0, width=1.0)})

        assert abs(found.logarithms[0]) < 0.02

    def test_weights_say_whom_to_believe(self):
        measured, known = np.exp([0.0, 0.0, 0.05]), {"seconds": Known(value=1.0, width=1.0)}
        last = estimate_constants(constant, measured, known, weights=np.array([0.01, 0.01, 1.0])).logarithms[0]

        assert last == pytest.approx(0.05, abs=0.005)

    def test_what_samples_say_nothing_of_stays_as_it_was(self):
        known = {"seconds": Known(value=1.0, width=1.0), "other": Known(value=7.0, width=0.3)}
        found = estimate_constants(constant, np.exp([0.1, 0.1, 0.1]), known)

        assert found.values["other"] == pytest.approx(7.0)
        assert found.deviation("other") == pytest.approx(0.3)

    def test_of_two_limits_that_are_equal_both_can_move(self):
        def slower(constants):
            return np.maximum(constants["one"], constants["other"]) * np.ones(5)

        known = {name: Known(value=1.0, width=1.0) for name in ("one", "other")}

        assert slower(estimate_constants(slower, np.full(5, 2.0), known).values)[0] == pytest.approx(2.0, rel=0.02)


class TestSmoothness:
    def test_noise_and_length_of_a_process_are_found(self):
        draw = np.random.default_rng(0)
        places = draw.uniform(0, 40, (180, 1))
        covariance = 0.04 * matern(places / 3.0, places / 3.0) + 1e-9 * np.eye(180)
        values = np.linalg.cholesky(covariance) @ draw.normal(size=180) + 0.02 * draw.normal(size=180)
        found = likeliest_smoothness(places, values, lengths=np.array([2.0]))

        assert found.noise == pytest.approx(4e-4, rel=0.5)
        assert found.lengths[0] == pytest.approx(3.0, rel=0.6)
        assert found.variance == pytest.approx(0.04, rel=0.6)

    def test_lengths_that_are_fixed_and_features_that_do_not_vary_stay(self):
        places = np.column_stack([np.linspace(0, 9, 40), np.tile([0.0, 1.0], 20), np.zeros(40)])
        lengths = np.array([2.0, 0.01, 5.0])
        found = likeliest_smoothness(
            places, np.sin(places[:, 0]), lengths=lengths, fixed=np.array([False, True, False])
        )

        assert found.lengths[1:].tolist() == [0.01, 5.0]
        assert found.lengths[0] != 2.0
