"""Times learned from samples of an invented device, whose law is known."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.errors import SpecError
from costmodel.timing.sampled_source import Rates, matmul_shapes, streaming_shapes
from planner.measure.fit.law import widening
from planner.measure.fit.operators import deal_families, fit_rates, hold_out, learn_operator

pytest.importorskip("sklearn", reason="learning needs scikit-learn")

DEVICE = Rates(flops_per_second=2e14, bytes_per_second=1.5e12, smallest_seconds=3e-6)
OTHER = Rates(flops_per_second=5e14, bytes_per_second=2.5e12, smallest_seconds=4e-6)


def measured(rates, count, seed, *, noise=0.01, slower=0.2):
    """Matmuls of few weights at many lengths; waves cost as they would, and deep ones take longer."""
    draw = np.random.default_rng(seed)
    weights = 64 * np.round(2 ** draw.uniform(3, 7, (12, 2)))
    family = draw.integers(0, len(weights), count)
    m = np.round(2 ** draw.uniform(3, 12, count))
    n, k = weights[family].T
    shapes = matmul_shapes(m, n, k, num_processors=100)
    waves = 2 ** shapes.features[:, 6]
    seconds = rates.seconds(shapes) * (1 + 0.1 * np.minimum(waves - 1, 3)) * (1 + slower / (1 + k / 1024))
    return shapes, seconds * np.exp(noise * draw.normal(size=count)), list(family)


class TestLearned:
    def test_rates_of_a_pure_roofline_are_found(self):
        draw = np.random.default_rng(0)
        shapes = matmul_shapes(*2 ** draw.uniform(3, 13, (3, 300)), num_processors=100)
        found = fit_rates(shapes, DEVICE.seconds(shapes))

        assert found.flops_per_second == pytest.approx(2e14, rel=0.01)
        assert found.bytes_per_second == pytest.approx(1.5e12, rel=0.01)
        assert found.smallest_seconds == pytest.approx(3e-6, rel=0.02)

    def test_what_only_moves_bytes_has_no_rate_of_computing(self):
        shapes = streaming_shapes(2.0 ** np.arange(10), np.full(10, 4096.0), bytes_per_element=4.0)
        found = fit_rates(shapes, DEVICE.seconds(shapes))

        assert np.isinf(found.flops_per_second)
        assert found.bytes_per_second == pytest.approx(1.5e12, rel=0.02)
        assert found.text.startswith("1.5")

    @pytest.mark.slow
    def test_families_that_were_left_out_are_predicted_far_better_than_by_rates(self):
        shapes, seconds, families = measured(DEVICE, 500, seed=1)
        out = deal_families(families, 5) == 0
        times = learn_operator(
            shapes[~out], seconds[~out], [one for one, left in zip(families, out, strict=True) if not left]
        )
        errors = np.abs(times.seconds(shapes[out]) / seconds[out] - 1)
        by_rates = np.abs(times.rates.seconds(shapes[out]) / seconds[out] - 1)
        low, high = times.interval(shapes[out])

        assert np.median(errors) < 0.03
        assert np.median(errors) < np.median(by_rates) / 2
        assert 0.8 < np.mean((low <= seconds[out]) & (seconds[out] <= high)) <= 1

    @pytest.mark.slow
    def test_few_samples_move_another_devices_times(self):
        base = learn_operator(*measured(DEVICE, 400, seed=1))
        few = measured(OTHER, 60, seed=1, slower=0.4)
        shapes, seconds, _ = measured(OTHER, 500, seed=1, slower=0.4)
        moved = np.median(np.abs(learn_operator(*few, base=base).seconds(shapes) / seconds - 1))
        by_rates = np.median(np.abs(replace(base, rates=fit_rates(*few[:2])).seconds(shapes) / seconds - 1))

        assert moved < 0.03
        assert moved < by_rates

    @pytest.mark.slow
    def test_intervals_widen_where_families_differ_more_than_their_samples(self):
        shapes, seconds, families = measured(DEVICE, 60, seed=2, noise=0.001)
        shifts = np.random.default_rng(0).normal(size=12)[np.asarray(families)]
        alike = learn_operator(shapes, seconds, families)
        unlike = learn_operator(shapes, seconds * np.exp(0.2 * shifts), families)

        assert np.median(unlike.relative_deviation(shapes)) > 2 * np.median(alike.relative_deviation(shapes))

    def test_one_family_cannot_be_left_out(self):
        shapes, seconds, _ = measured(DEVICE, 40, seed=3)

        (fold,) = hold_out(shapes.features, np.log(seconds), ["all"] * 40)

        for known, unseen in zip(fold.known, fold.unseen, strict=True):
            np.testing.assert_array_equal(known, unseen)
        np.testing.assert_array_equal(fold.unseen[1], np.log(seconds))

    @pytest.mark.slow
    def test_a_base_that_misleads_is_left_aside(self):
        shapes, seconds, families = measured(DEVICE, 100, seed=1)
        wild = seconds * np.exp(0.5 * np.sin(5 * shapes.features[:, 0] + 7 * shapes.features[:, 2]))
        base = learn_operator(shapes, wild, families)
        few = measured(OTHER, 60, seed=5)

        assert len(learn_operator(*few, base=base).processes) == 1

    def test_nine_of_ten_scores_lie_within_the_widened_deviation(self):
        scores = np.arange(1.0, 100.0)

        assert widening(scores) * 1.6449 == pytest.approx(90.0, rel=1e-4)
        assert widening(np.array([1.0, 2.0, 5.0])) * 1.6449 == pytest.approx(5.0, rel=1e-4)

    def test_folds_keep_families_whole(self):
        families = [f"family {number % 13}" for number in range(200)]
        folds = deal_families(families, 5)

        assert set(folds) == set(range(5))
        for family in set(families):
            assert len({fold for fold, own in zip(folds, families, strict=True) if own == family}) == 1

    def test_too_few_samples_are_refused(self):
        shapes, seconds, families = measured(DEVICE, 2, seed=4)

        with pytest.raises(SpecError, match=r"2 of one kind of operator are too few. At least 3"):
            learn_operator(shapes, seconds, families)

    def test_few_samples_stay_near_their_roofline(self):
        shapes, seconds, families = measured(DEVICE, 5, seed=4)

        times = learn_operator(shapes, seconds, families)

        assert np.median(np.abs(times.seconds(shapes) / seconds - 1)) < 0.1
