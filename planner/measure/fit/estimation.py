"""Constants of a law, and lengths of a process, that are likeliest given samples and priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import optional_library
from costmodel.network.estimates import Estimates, Law, jacobian
from costmodel.timing.gaussian_process import Rows, matern

FURTHEST = 6.0
"""Standard deviations of the prior within which a constant must lie."""

NUM_TUNED = 200
"""Samples that are used to choose lengths and variances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """
    Prior of a constant.

    Parameters
    ----------
    value
        Median.
    width
        Standard deviation of the logarithm.
    """

    value: float
    width: float


def estimated(
    law: Law,
    seconds: Rows,
    known: Mapping[str, Known],
    *,
    weights: Rows | None = None,
    start: Estimates | None = None,
    scale: float = 0.1,
    related: float = 5.0,
) -> Estimates:
    r"""
    Estimate the constants that are likeliest given samples and priors.

    .. math:: \min_c \sum_i w_i \log(1 + (\log T_i(c) - \log t_i)^2 / s^2)
              + \sum_j (\log c_j - \log \mu_j)^2 / \sigma_j^2

    Distant samples have little weight (Cauchy's loss); a first pass with a convex loss chooses the basin. The
    covariance is Laplace's.

    Parameters
    ----------
    law
        Function that returns the seconds of each sample for constants.
    seconds
        Measured seconds; shape (rows,).
    known
        Priors of all constants.
    weights
        Weights of samples; only their ratios count; shape (rows,).
    start
        Constants to begin with instead of the first pass.
    scale
        s: relative error beyond which a sample has less weight.
    related
        Number of samples that count as one, since those of a curve have a common error.

    Raises
    ------
    SpecError
        If SciPy is not installed.
    """
    least_squares = scipy("optimize").least_squares
    names = tuple(known)
    centres, widths = np.log([known[name].value for name in names]), np.array([known[name].width for name in names])
    measured = np.log(seconds)
    roots = np.sqrt(weights / np.mean(weights)) if weights is not None else np.ones(len(seconds))

    def computed(logarithms: Rows) -> Rows:
        return law(dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    free = _mattering(computed, start.logarithms if start else centres, widths)

    def logarithms_at(position: Rows) -> Rows:
        logarithms = centres.copy()
        logarithms[free] += widths[free] * position
        return logarithms

    def errors(position: Rows, loss: str) -> Rows:
        squares = ((np.log(computed(logarithms_at(position))) - measured) / scale) ** 2
        lost = np.log1p(squares) if loss == "cauchy" else 2 * (np.sqrt(1 + squares) - 1)
        return np.concatenate([roots * np.sqrt(lost), position])

    bounds = (-FURTHEST, FURTHEST)
    if start:
        position = (start.logarithms - centres)[free] / widths[free]
    else:
        position = least_squares(errors, np.zeros(len(free)), args=("convex",), bounds=bounds, max_nfev=40).x
    within = np.clip(position, -0.99 * FURTHEST, 0.99 * FURTHEST)
    found = logarithms_at(least_squares(errors, within, args=("cauchy",), bounds=bounds, max_nfev=60).x)
    slopes = jacobian(computed, found)
    spread = max(scale, 1.48 * float(np.median(np.abs(np.log(computed(found)) - measured))))
    information = slopes.T @ slopes / (related * spread**2) + np.diag(1 / widths**2)
    covariance = np.asarray(np.linalg.inv(information), dtype=float)
    return Estimates(names=names, logarithms=found, covariance=covariance)


def _mattering(computed: Callable[[Rows], Rows], logarithms: Rows, widths: Rows) -> NDArray[np.intp]:
    """Return the places of constants that affect samples: some seconds change if they are far smaller or larger."""
    here, far = computed(logarithms), 0.5 * FURTHEST * np.diag(widths)
    moves = [np.any((computed(logarithms - move) != here) | (computed(logarithms + move) != here)) for move in far]
    return np.flatnonzero(moves)


@dataclass(frozen=True, kw_only=True, slots=True)
class Smoothness:
    """
    Smoothness of a process, as in :class:`costmodel.timing.gaussian_process.GaussianProcess`.

    Parameters
    ----------
    lengths
        Length of each feature; shape (features,).
    variance, noise
        Variance of the process, and of a sample about it.
    """

    lengths: Rows
    variance: float
    noise: float


def likeliest_smoothness(
    features: Rows, values: Rows, *, lengths: Rows, fixed: NDArray[np.bool_] | None = None
) -> Smoothness:
    """
    Choose the likeliest lengths, variance and noise for values about zero, given priors.

    Lengths have priors within a factor of two (log-normal), variance and noise within a factor of seven of the values'
    own.

    Parameters
    ----------
    features, values
        Samples; shapes (rows, features) and (rows,).
    lengths
        Prior lengths; shape (features,).
    fixed
        True for lengths that are not changed; shape (features,).

    References
    ----------
    Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, section 5.4.1.
    """
    minimize, solve_triangular = scipy("optimize").minimize, scipy("linalg").solve_triangular
    free = ~(np.zeros(len(lengths), dtype=bool) if fixed is None else fixed) & (np.ptp(features, axis=0) > 0)
    some = np.random.default_rng(0).permutation(len(values))[:NUM_TUNED]
    rows, own = features[some], values[some]
    total = max(float(np.mean(own**2)), 1e-5)
    start = np.log([*lengths[free], total, 0.05 * total])
    widths = np.array([*np.full(int(free.sum()), 0.7), 2.0, 2.0])

    def smoothness(logarithms: Rows) -> Smoothness:
        moved = lengths.astype(float).copy()
        moved[free] = np.exp(logarithms[:-2])
        variance, noise = np.exp(logarithms[-2:]).tolist()
        return Smoothness(lengths=moved, variance=variance, noise=noise)

    def unlikelihood(logarithms: Rows) -> float:
        tried = smoothness(logarithms)
        scaled = rows / tried.lengths
        covariance = tried.variance * matern(scaled, scaled) + (tried.noise + 1e-8) * np.eye(len(own))
        root = np.linalg.cholesky(covariance)
        whitened = solve_triangular(root, own, lower=True)
        fits = 0.5 * float(whitened @ whitened) + float(np.sum(np.log(np.diag(root))))
        return fits + 0.5 * float(np.sum(((logarithms - start) / widths) ** 2))

    bounds = [(one - 3 * width, one + 3 * width) for one, width in zip(start, widths, strict=True)]
    found = minimize(unlikelihood, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 25})
    return smoothness(found.x)


def scipy(name: str) -> Any:
    """Import a part of SciPy, or raise with the command to install it."""
    return optional_library(f"scipy.{name}", "samples", "Learning needs scipy, which is not installed.", extra="fit")
