"""The process of support points against scikit-learn's exact one, and in blocks and threads against itself."""

import numpy as np
import pytest

from costmodel.timing.gaussian_process import BLOCK, fit_sparse_process, spread_out

LENGTHS = np.array([0.7, 2.0, 5.0])


@pytest.fixture(scope="module")
def samples():
    """Noisy values of a known function."""
    draw = np.random.default_rng(3)
    features = draw.uniform(-2, 2, (120, 3))
    values = 1.5 + np.sin(2 * features[:, 0]) + 0.3 * features[:, 1] + 0.05 * draw.normal(size=120)
    return features, values


@pytest.fixture(scope="module")
def process(samples):
    """What is learned of them with every sample as a support point."""
    return fit_sparse_process(*samples, lengths=LENGTHS, variance=0.8, noise=0.01, num_points=len(samples[0]))


class TestProjected:
    @pytest.mark.slow
    def test_all_samples_as_support_points_are_the_exact_process(self, samples, process):
        gaussian = pytest.importorskip("sklearn.gaussian_process", reason="the oracle is scikit-learn")
        kernels = gaussian.kernels
        kernel = kernels.ConstantKernel(0.8) * kernels.Matern(LENGTHS, nu=1.5) + kernels.WhiteKernel(0.01)
        features, values = samples
        exact = gaussian.GaussianProcessRegressor(kernel, optimizer=None).fit(features, values - np.median(values))
        unseen = np.random.default_rng(4).uniform(-3, 3, (200, 3))
        mean, deviation = exact.predict(unseen, return_std=True)

        np.testing.assert_allclose(process.mean(unseen), mean + np.median(values), atol=2e-3)
        np.testing.assert_allclose(process.deviation(unseen), deviation, rtol=2e-3)

    def test_fewer_support_points_say_nearly_the_same(self, samples, process):
        fewer = fit_sparse_process(*samples, lengths=LENGTHS, variance=0.8, noise=0.01, num_points=60)

        assert fewer.points.shape == (60, 3)
        apart = np.abs(fewer.mean(samples[0]) - process.mean(samples[0]))
        assert np.mean(apart) < 0.05 < np.std(samples[1]) / 10

    def test_far_from_all_samples_nothing_is_known(self, samples, process):
        far = np.full((1, 3), 1000.0)

        assert process.mean(far) == pytest.approx(np.median(samples[1]), abs=1e-6)
        assert process.deviation(far) == pytest.approx(np.sqrt(0.8 + 0.01))
        assert np.max(process.deviation(samples[0])) < 0.2

    def test_far_from_all_samples_a_given_value_holds(self, samples):
        about_nought = fit_sparse_process(
            *samples, lengths=LENGTHS, variance=0.8, noise=0.01, num_points=60, offset=0.0
        )

        assert about_nought.mean(np.full((1, 3), 1000.0)) == pytest.approx(0.0, abs=1e-6)
        assert np.mean(np.abs(about_nought.mean(samples[0]) - samples[1])) < 0.1

    def test_blocks_and_threads_change_nothing(self, process):
        many = np.random.default_rng(5).uniform(-2, 2, (3 * BLOCK + 7, 3))

        each = np.concatenate([process.mean(many[start : start + 100]) for start in range(0, len(many), 100)])
        np.testing.assert_allclose(process.mean(many), each, atol=1e-5)
        assert process.mean(many[:0]).shape == (0,)

    def test_support_points_are_different_rows_that_reach_the_corners(self):
        rows = np.array([[0.0, 0.0], [0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [-9.0, 9.0]])

        chosen = rows[spread_out(rows, 3)]
        assert {tuple(row) for row in chosen} >= {(9.0, 9.0), (-9.0, 9.0)}
        assert len(spread_out(rows, 10)) == 4
