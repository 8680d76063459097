"""Times of operators, learned from samples: rates, then the remaining error, then the width of intervals."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.gaussian_process import GaussianProcess, Rows
from costmodel.timing.sampled import Rates, SampledTimes
from costmodel.timing.sampled_shapes import Shapes
from planner.measure.fit.estimation import HeldOutSamples, Smoothness, import_library, require_samples, widening

NUM_POINTS = 500
"""Support points of a process: with 300 the error is a tenth larger."""

NUM_TUNED = 300
"""Samples that are used to choose lengths and variances."""

NUM_FOLDS = 5
"""Folds of families, each held out once."""

LENGTHS = (0.1, 100.0)
"""Least and greatest length, in standard deviations of a feature."""

FEWEST = 3
"""Fewest samples to learn from: a rate and a least time are two unknowns."""

LEAST_SHARE = 1e-3
"""Fixed time of a kernel as a share of the least time of few samples: it is unknown, and assumed to be small."""

FEW = 8
"""Samples below which lengths and variances are assumed, not chosen."""

ASSUMED_LENGTH, ASSUMED_VARIANCE, ASSUMED_NOISE = 3.0, 0.05, 1e-3
"""Assumed doublings over which errors of a roofline change, their variance, and that of a measurement (3 %)."""


def learn_operator(
    shapes: Shapes,
    seconds: Rows,
    families: Sequence[Hashable],
    *,
    base: SampledTimes | None = None,
    fewest: int = FEWEST,
) -> SampledTimes:
    """
    Learn times from samples of one kind of operator on one device.

    Parameters
    ----------
    shapes, seconds
        Measured shapes and their times; shape (rows,).
    families
        Family of shapes of each sample. Whole families are held out to calibrate the width of intervals.
    base
        Times of another device; the difference from them is learned if that is closer on held-out families than
        learning from the samples alone.
    fewest
        Fewest samples to learn from. Fewer than ``FEWEST`` samples give one rate: times scale with the work, and the
        error on other shapes is assumed.

    Raises
    ------
    SpecError
        If there are fewer than ``fewest`` samples, or scikit-learn is not installed.
    """
    require_samples(len(seconds), "one kind of operator", fewest)
    rates = fit_rates(shapes, seconds)
    alone = SampledTimes(
        rates=rates, processes=(), lowest=np.min(shapes.features, axis=0), highest=np.max(shapes.features, axis=0)
    )
    starts = [alone]
    if base:
        lowest, highest = np.minimum(alone.lowest, base.lowest), np.maximum(alone.highest, base.highest)
        starts.append(replace(base, rates=rates, lowest=lowest, highest=highest))
    found = [_learn_difference(start, shapes, seconds, families) for start in starts]
    return min(found, key=lambda one: one[0])[1]


def _learn_difference(
    start: SampledTimes, shapes: Shapes, seconds: Rows, families: Sequence[Hashable]
) -> tuple[float, SampledTimes]:
    """Learn the difference of samples from a start; return the mean error on held-out families, and the times."""
    differences = np.log(seconds / start.seconds(shapes))
    smoothness = choose_smoothness(shapes.features, differences)
    process = _fit_process(shapes.features, differences, smoothness)
    if len(seconds) < FEWEST:
        assumed = float(np.sqrt(process.variance))
        return assumed, replace(start, processes=(*start.processes, process), left_out_error=assumed)
    # with few samples each fold chooses its own smoothness: that of all samples would be overconfident
    known = smoothness if len(seconds) > NUM_TUNED else None
    folds = hold_out(shapes.features, differences, families)
    errors, deviations = np.hstack([fold.predict(partial(_fit_process, smoothness=known)) for fold in folds])
    times = replace(
        start,
        processes=(*start.processes, process),
        widening=widening(errors / deviations),
        left_out_error=float(np.median(errors)),
    )
    return float(np.mean(errors)), times


def _fit_process(features: Rows, values: Rows, smoothness: Smoothness | None) -> GaussianProcess:
    chosen = smoothness or choose_smoothness(features, values)
    return chosen.fit_process(features, values, num_points=NUM_POINTS, offset=None)


def fit_rates(shapes: Shapes, seconds: Rows) -> Rates:
    """
    Fit rates and least time of a roofline to samples, in logarithms and robustly.

    Raises
    ------
    SpecError
        If SciPy is not installed.
    """
    computes = bool(np.any(shapes.flops > 0))
    smallest = float(np.min(seconds))
    if len(seconds) < FEWEST:
        fastest = [float(np.max(amount / seconds)) for amount in (shapes.flops if computes else 1.0, shapes.nbytes)]
        return _rates(np.log([*fastest, LEAST_SHARE * smallest]), computes)
    start = np.log(
        [
            float(np.quantile(shapes.flops / seconds, 0.95)) if computes else 1.0,
            float(np.quantile(shapes.nbytes / seconds, 0.95)),
            smallest / 2,
        ]
    )
    lowest, highest = start - np.log([4, 4, 1e3]), start + np.log([4, 4, 2])

    def errors(logarithms: Rows) -> Rows:
        return np.log(_rates(logarithms, computes).seconds(shapes) / seconds)

    found = import_library("scipy.optimize").least_squares(
        errors, start, loss="soft_l1", f_scale=0.1, bounds=(lowest, highest)
    )
    return _rates(found.x, computes)


def _rates(logarithms: Rows, computes: bool) -> Rates:
    flops, nbytes, kernel = (float(one) for one in np.exp(logarithms))
    return Rates(flops_per_second=flops if computes else np.inf, bytes_per_second=nbytes, smallest_seconds=kernel)


def choose_smoothness(features: Rows, values: Rows) -> Smoothness:
    """
    Choose the likeliest lengths, variance and noise for some of the samples.

    Parameters
    ----------
    features, values
        Samples; shapes (rows, features) and (rows,).

    Raises
    ------
    SpecError
        If scikit-learn is not installed.
    """
    if len(values) < FEW:
        lengths = np.full(features.shape[1], ASSUMED_LENGTH)
        return Smoothness(lengths=lengths, variance=ASSUMED_VARIANCE, noise=ASSUMED_NOISE)
    kernels = import_library("sklearn.gaussian_process.kernels")
    regressor = import_library("sklearn.gaussian_process").GaussianProcessRegressor
    spread = np.std(features, axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    some = np.random.default_rng(0).permutation(len(values))[:NUM_TUNED]
    centred = values - np.median(values)
    kernel = kernels.ConstantKernel(0.05, (1e-5, 10.0)) * kernels.Matern(
        np.full(features.shape[1], 2.0), LENGTHS, nu=1.5
    ) + kernels.WhiteKernel(1e-3, (1e-6, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound means an irrelevant feature
        fitted = regressor(kernel).fit(features[some] / spread, centred[some]).kernel_
    scaled, noise = fitted.k1, fitted.k2
    return Smoothness(
        lengths=spread * scaled.k2.length_scale,
        variance=float(scaled.k1.constant_value),
        noise=float(noise.noise_level),
    )


def hold_out(features: Rows, values: Rows, families: Sequence[Hashable]) -> list[HeldOutSamples]:
    """Hold out each fold of families once; a single family is known and unseen at once."""
    folds = deal_families(families, NUM_FOLDS)
    numbers, held_out = np.unique(folds), []
    for number in numbers:
        unseen = folds == number
        known = ~unseen if len(numbers) > 1 else unseen
        held_out.append(
            HeldOutSamples(known=(features[known], values[known]), unseen=(features[unseen], values[unseen]))
        )
    return held_out


def deal_families(families: Sequence[Hashable], num_folds: int) -> NDArray[np.intp]:
    """Return the fold of each sample: families stay whole, in a fixed random order; shape (rows,)."""
    distinct = list(dict.fromkeys(families))
    order = np.random.default_rng(0).permutation(len(distinct))
    number = {family: int(place) % num_folds for family, place in zip(distinct, order, strict=True)}
    return np.asarray([number[family] for family in families], dtype=np.intp)


def replace_rates(base: SampledTimes, shapes: Shapes, seconds: Rows) -> SampledTimes:
    """Return another device's times with only the new device's rates."""
    return replace(base, rates=fit_rates(shapes, seconds))
