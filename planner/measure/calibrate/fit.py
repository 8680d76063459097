"""Robust least squares in logarithms with priors and bounds: Gauss-Newton, few evaluations, no dependency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.events import log_progress
from costmodel.record import record
from planner.measure.calibrate.cases import Array, Predictor, log_measured_seconds
from planner.measure.calibrate.constants import Constant
from planner.measure.calibrate.published import Gain
from planner.measure.runs.predictions import Case

NOISE = 0.02

"""
Relative error of a step time that no constants remove: one configuration in different containers differs by 2 % in the
median (NVIDIA's repeated H100 rows in benchmarks/measured_runs).
"""

REACH = 0.20

"""
Error s of the robust loss r^2 / (1 + (r / s)^2) (Geman and McClure, 1987): rows pull most at 0.58 s, and less and less
beyond. There a formula is missing, which no constant should compensate, or the row is wrong.
"""

MOST_ROUNDS = 40

LONGEST_STEP = 0.5

"""Largest change of a logarithm in one round."""

REFRESH = 0.2

"""Change of a logarithm above which derivatives are computed again before a fit counts as done."""

CONVERGED = 5e-4

"""Share of the cost that a round must remove; with less the fit is done."""


@record(frozen=True, kw_only=True, slots=True)
class Priors:
    """
    Priors of constants, in logarithms.

    Parameters
    ----------
    mean, sigma, lower, upper
        Expected value, standard deviation, physical bounds.
    """

    mean: Array
    sigma: Array
    lower: Array
    upper: Array


@record(frozen=True, kw_only=True, slots=True)
class Fit:
    """
    Constants fitted to rows.

    Parameters
    ----------
    logs
        Logarithms of the constants.
    jacobian
        Derivatives of the rows' logarithms there (or very near), shape (rows, constants).
    residuals
        Logarithms of predicted over measured time.
    """

    logs: Array
    jacobian: Array
    residuals: Array


def priors_of(constants: Sequence[Constant]) -> Priors:
    """Return the priors of constants."""
    return Priors(
        mean=np.log([constant.prior for constant in constants]),
        sigma=np.array([constant.sigma for constant in constants]),
        lower=np.log([constant.lower for constant in constants]),
        upper=np.log([constant.upper for constant in constants]),
    )


def fit(
    logarithms: Callable[[Array], Array],
    jacobian: Callable[[Array, Array | None], Array],
    measured: Array,
    *,
    weights: Array,
    priors: Priors,
    start: Fit | None = None,
    num_refreshes: int = 3,
    reach: float = REACH,
) -> Fit:
    r"""
    Minimise the weighted, robust misfit and the distance to the priors.

    .. math:: \sum_i \rho(w_i r_i) / \sigma^2 + \sum_j ((x_j - p_j) / s_j)^2

    The cost of derivatives grows with the number of constants. So between the rounds they are updated from the last
    step (Broyden's rule, row by row and only where a row depends on a constant: Schubert, Math. Comp. 24, 1970).

    Parameters
    ----------
    logarithms, jacobian
        Functions of the constants' logarithms: logarithms of the rows, and their derivatives; the second also takes
        derivatives at another place.
    measured
        Logarithms of the measured times.
    weights
        Square roots of the rows' weights.
    priors
        Priors of the constants.
    start
        Start, with its derivatives; None starts at the priors.
    num_refreshes
        Number of times that derivatives may be computed again after the constants moved far.
    reach
        Error s of the robust loss.
    """
    logs = priors.mean if start is None else start.logs
    derivatives, at = (jacobian(logs, None) if start is None else start.jacobian), logs
    residuals = logarithms(logs) - measured
    for _ in range(MOST_ROUNDS):
        before = _cost(logs, residuals, weights, priors, reach)
        step = _step(logs, residuals, derivatives, weights, priors, reach)
        # The longest of the step, its half and its quarter that lowers the cost; else no step.
        places = (logs + share * step for share in (1.0, 0.5, 0.25))
        tried = ((there, logarithms(there) - measured) for there in places)
        there, new = next((one for one in tried if _cost(*one, weights, priors, reach) < before), (logs, residuals))
        derivatives = _update_derivatives(derivatives, there - logs, new - residuals)
        logs, residuals = there, new
        if before - _cost(logs, residuals, weights, priors, reach) <= CONVERGED * before:
            if not num_refreshes or np.abs(logs - at).max(initial=0.0) <= REFRESH:
                break
            derivatives, at, num_refreshes = jacobian(logs, derivatives), logs, num_refreshes - 1
    return Fit(logs=logs, jacobian=derivatives, residuals=residuals)


def _cost(logs: Array, residuals: Array, weights: Array, priors: Priors, reach: float) -> float:
    """Return the cost that :func:`fit` minimises."""
    misfit = residuals**2 / (1 + (residuals / reach) ** 2)
    return float((weights**2 * misfit).sum() / NOISE**2 + (((logs - priors.mean) / priors.sigma) ** 2).sum())


def covariance(jacobian: Array, weights: Array, priors: Priors, noise: float = NOISE) -> Array:
    """Return the covariance of the constants after the rows, for a linear model with normal errors and priors."""
    information = (jacobian * (weights / noise)[:, None]).T @ (jacobian * (weights / noise)[:, None])
    return np.asarray(np.linalg.inv(information + np.diag(priors.sigma**-2.0)))


def _step(logs: Array, residuals: Array, jacobian: Array, weights: Array, priors: Priors, reach: float) -> Array:
    """Return the Gauss-Newton step; constants at a bound that it would leave are fixed."""
    robust = weights / NOISE / (1 + (residuals / reach) ** 2)
    left = np.vstack([jacobian * robust[:, None], np.diag(1 / priors.sigma)])
    right = np.concatenate([-residuals * robust, (priors.mean - logs) / priors.sigma])
    free = np.ones(len(logs), dtype=bool)
    step = np.zeros(len(logs))
    for _ in logs:
        step = np.zeros(len(logs))
        step[free] = np.linalg.lstsq(left[:, free], right, rcond=None)[0]
        outside = (logs + step < priors.lower) | (logs + step > priors.upper)
        at_bound = np.isclose(logs, priors.lower) | np.isclose(logs, priors.upper)
        if not (free & outside & at_bound).any():
            break
        free &= ~(outside & at_bound)
    there = logs + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
    return np.asarray(np.clip(there, priors.lower, priors.upper) - logs)


def _update_derivatives(jacobian: Array, step: Array, change: Array) -> Array:
    """Update derivatives to explain the change after a step, each row along the constants that it depends on."""
    steps = step * (jacobian != 0)
    length = (steps**2).sum(axis=1)
    surprise = change - jacobian @ step
    correction = np.divide(surprise, length, out=np.zeros_like(length), where=length > 0)
    return np.asarray(jacobian + correction[:, None] * steps)


SHARES = (0.25, 0.5, 1.0)

"""Shares of the priors' widths by which constants may move."""


Candidates: TypeAlias = Mapping[float, tuple[Fit, Array]]

"""
Fits with a share of the priors' widths, by the share.

Beside each the logarithms of predicted over measured seconds of every row, by fits to the other folds.
"""


def fit_share(predictor: Predictor, start: Fit, weights: Weights, share: float) -> Fit:
    """Fit constants with a share of their priors' widths, from the prediction before it."""
    return fit(
        predictor.logarithms,
        predictor.jacobian,
        log_measured_seconds(predictor.cases),
        weights=weights(predictor.cases),
        priors=_narrow(predictor, share),
        start=start,
        reach=find_reach(start),
    )


def find_reach(start: Fit) -> float:
    """Return the error of the robust loss for one cluster's rows: at least their median, which is no outlier."""
    return max(REACH, float(np.median(np.abs(start.residuals))))


def _narrow(predictor: Predictor, share: float) -> Priors:
    priors = priors_of(predictor.constants)
    return replace(priors, sigma=share * priors.sigma)


def candidates(predictor: Predictor, start: Fit, weights: Weights, *, folds: NDArray[np.int64]) -> Candidates:
    """Fit constants with each share of their priors' widths, and predict held-out rows with it."""
    measured, reach = log_measured_seconds(predictor.cases), find_reach(start)
    found = {}
    for share in SHARES:
        fitted, priors = fit_share(predictor, start, weights, share), _narrow(predictor, share)
        left_out = predict_left_out(predictor, fitted, weights, priors, folds=folds, reach=reach)
        found[share] = fitted, left_out - measured
    return found


def choose_useful(
    found: Candidates, start: Fit, *, folds: NDArray[np.int64], gains: Mapping[float, Gain]
) -> tuple[Fit, Array]:
    """
    Choose the fit with the largest gain on rows not fitted, less its standard deviation; else the catalog's constants.

    Few rows of mixed layouts move constants for effects that no constant describes, and other layouts suffer. The gain
    of held-out rows is that of few folds, so it counts by its standard error beside that of published stacks.

    Returns
    -------
    tuple
        The fit; logarithms of predicted over measured seconds of held-out rows.

    References
    ----------
    Efron and Morris, "Stein's estimation rule and its competitors", 1973: means of many groups as prior of one. Breiman
    et al., "Classification and Regression Trees", 1984: a model must gain more than a standard error.
    """
    best, left_out, most = start, start.residuals, 0.0
    for share, (fitted, errors) in found.items():
        gain, error = gain_of(start.residuals, errors, folds)
        useful = gains[share].narrow(gain, error)
        if gain > 0 and useful > most:
            best, left_out, most = fitted, errors, useful
    return best, left_out


def gain_of(before: Array, left_out: Array, folds: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of the error that held-out rows lose, and its standard error, from that of folds."""
    gains = np.abs(np.expm1(before)) - np.abs(np.expm1(left_out))
    means = np.array([gains[folds == fold].mean() for fold in np.unique(folds)])
    error = mean_error(before) or 1.0  # An error of 0 cannot fall.
    return float(gains.mean()) / error, float(means.std(ddof=1) / np.sqrt(len(means))) / error


def mean_error(logs: Array) -> float:
    """Return the mean absolute error of predictions whose logarithms are off by this much."""
    return float(np.abs(np.expm1(logs)).mean())


Weights: TypeAlias = Callable[[Sequence[Case]], Array]


def predict_left_out(
    predictor: Predictor,
    whole: Fit,
    weights: Weights,
    priors: Priors,
    *,
    folds: NDArray[np.int64],
    reach: float = REACH,
) -> Array:
    """
    Return logarithms of the seconds of every row, predicted by a fit to the other folds.

    Parameters
    ----------
    predictor
        The rows and the constants.
    whole
        A fit to all rows, where each fit starts, which saves its first derivatives. It does not leak held-out rows:
        their weight is zero, and the search continues until it converges.
    weights
        Function that returns square roots of the weights of fitted rows.
    priors
        As in :func:`planner.measure.calibrate.fit.fit`.
    folds
        Fold of every row.
    reach
        Error of the robust loss.
    """
    measured = log_measured_seconds(predictor.cases)
    left_out = np.zeros(len(measured))
    numbers = sorted(set(folds.tolist()))
    for fold in numbers:
        log_progress(__name__, "fits without a group", numbers.index(fold), len(numbers))
        is_out = folds == fold
        row_weights = np.zeros(len(measured))
        row_weights[~is_out] = weights([case for case, out in zip(predictor.cases, is_out, strict=True) if not out])
        fitted = fit(
            predictor.logarithms,
            predictor.jacobian,
            measured,
            weights=row_weights,
            priors=priors,
            start=whole,
            num_refreshes=0,
            reach=reach,
        )
        left_out[is_out] = predictor.estimate_logarithms(fitted.logs, is_out)
    return left_out
