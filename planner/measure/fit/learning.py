"""Times of operators, learned from samples: rates, then the remaining error, then the width of intervals."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, optional_library
from costmodel.timing.gaussian_process import GaussianProcess, Rows, projected
from costmodel.timing.sampled import NORMAL_90, Rates, SampledTimes
from costmodel.timing.sampled_shapes import Shapes

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


def learned(
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
    if len(seconds) < fewest:
        problem = f"{len(seconds)} of one kind of operator are too few."
        raise SpecError("samples", problem, f"At least {fewest} are needed.")
    rates = estimated_rates(shapes, seconds)
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
    process = tuned(shapes.features, differences)
    if len(seconds) < FEWEST:
        assumed = float(np.sqrt(process.variance))
        return assumed, replace(start, processes=(*start.processes, process), left_out_error=assumed)
    errors, deviations = left_out(process, shapes.features, differences, families)
    times = replace(
        start,
        processes=(*start.processes, process),
        widening=widening(errors / deviations),
        left_out_error=float(np.median(errors)),
    )
    return float(np.mean(errors)), times


def estimated_rates(shapes: Shapes, seconds: Rows) -> Rates:
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
    optimize = _import_library("scipy.optimize")
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

    found = optimize.least_squares(errors, start, loss="soft_l1", f_scale=0.1, bounds=(lowest, highest))
    return _rates(found.x, computes)


def _rates(logarithms: Rows, computes: bool) -> Rates:
    flops, nbytes, kernel = (float(one) for one in np.exp(logarithms))
    return Rates(flops_per_second=flops if computes else np.inf, bytes_per_second=nbytes, smallest_seconds=kernel)


def tuned(features: Rows, values: Rows) -> GaussianProcess:
    """
    Fit a process with the likeliest lengths and variances for some of the samples.

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
        return projected(
            features,
            values,
            lengths=lengths,
            variance=ASSUMED_VARIANCE,
            noise=ASSUMED_NOISE,
            num_points=len(values),
        )
    kernels = _import_library("sklearn.gaussian_process.kernels")
    regressor = _import_library("sklearn.gaussian_process").GaussianProcessRegressor
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
    return projected(
        features,
        values,
        lengths=spread * scaled.k2.length_scale,
        variance=float(scaled.k1.constant_value),
        noise=float(noise.noise_level),
        num_points=NUM_POINTS,
    )


def left_out(process: GaussianProcess, features: Rows, values: Rows, families: Sequence[Hashable]) -> tuple[Rows, Rows]:
    """
    Return errors on held-out families of samples, and their predicted standard deviations.

    With few samples lengths and variances are chosen anew for each fold, since those of all samples would be
    overconfident. A single family is not held out.

    Parameters
    ----------
    process
        Process of all samples; with many samples its lengths and variances are reused.
    features, values, families
        The samples.

    Returns
    -------
    tuple
        Absolute errors and standard deviations; shape (rows,).
    """
    folds = dealt(families, NUM_FOLDS)
    numbers = np.unique(folds)
    errors, deviations = np.empty(len(values)), np.empty(len(values))
    for number in numbers:
        out = folds == number
        part = process if len(numbers) < 2 else _fit_part(process, features[~out], values[~out], len(values))
        errors[out] = np.abs(values[out] - part.mean(features[out]))
        deviations[out] = part.deviation(features[out])
    return errors, deviations


def _fit_part(process: GaussianProcess, features: Rows, values: Rows, num_all: int) -> GaussianProcess:
    if num_all <= NUM_TUNED:
        return tuned(features, values)
    return projected(
        features,
        values,
        lengths=process.lengths,
        variance=process.variance,
        noise=process.noise,
        num_points=NUM_POINTS,
    )


def widening(scores: Rows) -> float:
    """
    Return the factor on standard deviations with which a 90 % interval holds 90 % of held-out families.

    Parameters
    ----------
    scores
        Errors of held-out samples, in standard deviations; shape (rows,).

    References
    ----------
    Split conformal prediction with a scaled score: Lei et al., Distribution-Free Predictive Inference for Regression,
    JASA 2018, section 5.2.
    """
    rank = int(np.ceil(0.9 * (len(scores) + 1)))  # with few samples the next one may be the worst
    return float(np.sort(scores)[min(rank, len(scores)) - 1]) / NORMAL_90


def dealt(families: Sequence[Hashable], num_folds: int) -> NDArray[np.intp]:
    """Return the fold of each sample: families stay whole, in a fixed random order; shape (rows,)."""
    distinct = list(dict.fromkeys(families))
    order = np.random.default_rng(0).permutation(len(distinct))
    number = {family: int(place) % num_folds for family, place in zip(distinct, order, strict=True)}
    return np.asarray([number[family] for family in families], dtype=np.intp)


def unadapted(base: SampledTimes, shapes: Shapes, seconds: Rows) -> SampledTimes:
    """Return another device's times with only the new device's rates."""
    return replace(base, rates=estimated_rates(shapes, seconds))


def _import_library(name: str) -> Any:
    library = name.partition(".")[0]
    return optional_library(name, "samples", f"Learning needs {library}, which is not installed.", extra="fit")
