"""Entries on operators in a device's file, from samples."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.events import log_progress
from costmodel.facts.calibration import SampledOperator
from costmodel.timing.gaussian_process import GaussianProcess, Rows, fit_sparse_process, spread_out
from costmodel.timing.sampled_source import (
    ELEMENT_BYTES,
    MATMULS,
    UNKNOWN_PROCESSORS,
    Rates,
    SampledTimes,
    Shapes,
    shapes_of_samples,
)
from planner.measure.fit.law import HeldOutSamples, Smoothness, import_library, require_samples, widening
from planner.measure.sample.samples import COLLECTIVES, OPERATORS, TRACED, Sample

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


NUM_SUPPORT = 160

"""Support points of an operator in a file: with 100 the error is a twentieth larger."""

DIGITS = 7

"""Digits of the numbers in a file."""

MOST_ERROR = 0.5

"""Median error on held-out families above which samples are not used: they are no better than a guess."""

FAMILY = {
    **dict.fromkeys(MATMULS, ("n", "k")),
    "attention": ("heads", "kv_heads", "qk_head_dim", "v_head_dim"),
    "rotary": ("heads", "qk_head_dim"),
    "top_k": ("experts",),
    "adam": ("n",),
    "host_adam": ("n",),
}

"""Sizes that define a family of shapes, which is held out whole; for other operators it is the width."""

NO_OPERATOR = ("launch", "graph_launch", "copy", "host_to_device", "device_to_host")

"""Samples of constants of a device, not operators of a model."""

NO_PASS = ("adam", "host_adam")

"""Optimizer updates: operators outside of a micro-batch's passes."""


Unlearned: TypeAlias = tuple[str, str]
"""Operator, pass and dtype that could not be learned, and the reason."""


def learn_operators(
    samples: Iterable[Sample], *, num_processors: int | None, host_seconds: float = 0.0
) -> tuple[tuple[SampledOperator, ...], tuple[Unlearned, ...]]:
    """
    Learn each operator, pass and dtype for a device's file, and list those that could not be learned.

    A trace has few shapes of each operator, but those of a job: one recorded sample is enough.

    Parameters
    ----------
    samples
        Samples of one machine.
    num_processors
        Number of its processors; None where it is unknown.
    host_seconds
        Time of the thread outside of each pass of an operator, which samples do not contain.

    Raises
    ------
    SpecError
        If scikit-learn is not installed.
    """
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for one in samples:
        point = one.point
        is_masked = point.sizes.window is not None  # a window is measured as a mask, which skips no work
        if not (point.beside or is_masked) and point.operator not in (*NO_OPERATOR, *COLLECTIVES):
            groups[point.operator, point.pass_, point.dtype].append(one)
    found: list[SampledOperator] = []
    unlearned: list[Unlearned] = []
    for number, (key, group) in enumerate(groups.items()):
        log_progress(__name__, "operators are learned", number, len(groups), operator=" ".join(key))
        beside = 0.0 if key[0] in NO_PASS else host_seconds
        made = _learn(key, group, num_processors or UNKNOWN_PROCESSORS, beside)
        (found if isinstance(made, SampledOperator) else unlearned).append(made)  # type: ignore[arg-type]
    return tuple(found), tuple(unlearned)


def _learn(
    key: tuple[str, str, str], group: Sequence[Sample], num_processors: int, host_seconds: float
) -> SampledOperator | Unlearned:
    operator, of_pass, dtype = key
    name = " ".join(key)
    fewest = 1 if group[0].machine.software.startswith(TRACED) else FEWEST
    if len(group) < fewest:
        return name, f"{len(group)} samples; at least {FEWEST} are needed"
    needs = OPERATORS[operator].needs
    sizes = {column: np.array([float(one.point.sizes.applicable[column]) for one in group]) for column in needs}
    shapes = shapes_of_samples(
        operator, of_pass, sizes, element_bytes=ELEMENT_BYTES[dtype], num_processors=num_processors
    )
    seconds = np.array([one.timing.seconds for one in group]) + host_seconds
    times = learn_operator(shapes, seconds, families(operator, sizes), fewest=fewest)
    if times.left_out_error > MOST_ERROR:
        return name, f"samples contradict each other: median error {times.left_out_error:.0%} on held-out families"
    return _store(key, times, shapes, seconds, sizes)


def families(operator: str, sizes: Mapping[str, np.ndarray]) -> list[Hashable]:
    """Return the family of shapes of each sample."""
    columns = [sizes[name] for name in FAMILY.get(operator, ("width",))]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _store(
    key: tuple[str, str, str],
    times: SampledTimes,
    shapes: Shapes,
    seconds: np.ndarray,
    sizes: Mapping[str, np.ndarray],
) -> SampledOperator:
    """Store learned times as few samples, from which a Gaussian process predicts the mean that all samples give."""
    process, rates = times.processes[-1], times.rates
    roofline = rates.seconds(shapes)
    chosen = spread_out(shapes.features / process.lengths, NUM_SUPPORT)
    few = fit_sparse_process(
        shapes.features,
        np.log(seconds / roofline),
        lengths=process.lengths,
        variance=process.variance,
        noise=process.noise,
        num_points=len(chosen),
    )
    smooth = roofline[chosen] * np.exp(few.build_samples()[1])
    table = np.column_stack([*(column[chosen] for column in sizes.values()), smooth])
    operator, of_pass, dtype = key
    return SampledOperator(
        operator=operator,
        of_pass=of_pass,  # type: ignore[arg-type]
        dtype=dtype,
        num_samples=len(seconds),
        error=round_digits(times.left_out_error),
        flops_per_second=round_digits(rates.flops_per_second) if np.isfinite(rates.flops_per_second) else None,
        bytes_per_second=round_digits(rates.bytes_per_second),
        smallest_seconds=round_digits(rates.smallest_seconds),
        offset=round_digits(few.offset),
        variance=round_digits(few.variance),
        noise=round_digits(few.noise),
        lengths=tuple(round_digits(one) for one in few.lengths),
        widening=round_digits(times.widening),
        lowest=tuple(round_digits(one) for one in times.lowest),
        highest=tuple(round_digits(one) for one in times.highest),
        columns=tuple(sizes),
        rows="\n".join(" ".join(f"{number:.{DIGITS}g}" for number in row) for row in table.tolist()),
    )


def round_digits(number: float) -> float:
    """Round a number to the digits of a file."""
    return float(f"{number:.{DIGITS}g}")
