r"""
One law of learning, for operators and collectives.

.. math:: T = T_{law}(c) \cdot e^{g(x)}

Constants c of a law are likeliest given samples and priors; then a Gaussian process g learns the remaining error; then
held-out samples calibrate the width of intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, optional_library
from costmodel.network.link_law import Estimates, Law, jacobian
from costmodel.record import record
from costmodel.tables import Table
from costmodel.timing.gaussian_process import GaussianProcess, Rows, fit_samples, fit_sparse_process, matern
from costmodel.timing.sampled_source import NORMAL_90

FURTHEST = 6.0

"""Standard deviations of the prior within which a constant must lie."""

NUM_TUNED = 200

"""Samples that are used to choose lengths and variances."""

NUM_POINTS = 300

"""Support points of a process."""

Places: TypeAlias = NDArray[np.bool_] | NDArray[np.intp]


Called = TypeVar("Called", bound=Table)


@record(frozen=True, kw_only=True, slots=True)
class Measured(Generic[Called]):
    """
    Calls and their measured times.

    Parameters
    ----------
    calls
        Collectives, or token exchanges.
    seconds
        Seconds of each, for token exchanges of each byte; shape (rows,).

    Raises
    ------
    SpecError
        If a time is not a positive number.
    """

    calls: Called
    seconds: Rows

    def __post_init__(self) -> None:
        if not np.all((self.seconds > 0) & np.isfinite(self.seconds)):
            raise SpecError("samples", "some times are not positive numbers.")

    def __getitem__(self, rows: Places) -> Measured[Called]:
        """Return some of the rows."""
        return Measured(calls=self.calls[rows], seconds=self.seconds[rows])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seconds)


def require_samples(number: int, kind: str, fewest: int) -> None:
    """
    Refuse too few samples.

    Raises
    ------
    SpecError
        If there are fewer than ``fewest``.
    """
    if number < fewest:
        raise SpecError("samples", f"{number} of {kind} are too few.", f"At least {fewest} are needed.")


# --- constants ---------------------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
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


def estimate_constants(
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
    least_squares = import_library("scipy.optimize").least_squares
    names = tuple(known)
    centres, widths = np.log([known[name].value for name in names]), np.array([known[name].width for name in names])
    measured = np.log(seconds)
    roots = np.sqrt(weights / np.mean(weights)) if weights is not None else np.ones(len(seconds))

    def seconds_at(logarithms: Rows) -> Rows:
        return law(dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    free = _mattering(seconds_at, start.logarithms if start else centres, widths)

    def logarithms_at(position: Rows) -> Rows:
        logarithms = centres.copy()
        logarithms[free] += widths[free] * position
        return logarithms

    def errors(position: Rows, loss: str) -> Rows:
        squares = ((np.log(seconds_at(logarithms_at(position))) - measured) / scale) ** 2
        lost = np.log1p(squares) if loss == "cauchy" else 2 * (np.sqrt(1 + squares) - 1)
        return np.concatenate([roots * np.sqrt(lost), position])

    bounds = (-FURTHEST, FURTHEST)
    if start:
        position = (start.logarithms - centres)[free] / widths[free]
    else:
        position = least_squares(errors, np.zeros(len(free)), args=("convex",), bounds=bounds, max_nfev=40).x
    within = np.clip(position, -0.99 * FURTHEST, 0.99 * FURTHEST)
    found = logarithms_at(least_squares(errors, within, args=("cauchy",), bounds=bounds, max_nfev=60).x)
    slopes = jacobian(seconds_at, found)
    spread = max(scale, 1.48 * float(np.median(np.abs(np.log(seconds_at(found)) - measured))))
    information = slopes.T @ slopes / (related * spread**2) + np.diag(1 / widths**2)
    covariance = np.asarray(np.linalg.inv(information), dtype=float)
    return Estimates(names=names, logarithms=found, covariance=covariance)


def _mattering(seconds_at: Callable[[Rows], Rows], logarithms: Rows, widths: Rows) -> NDArray[np.intp]:
    """Return the places of constants that affect samples: some seconds change if they are far smaller or larger."""
    here, far = seconds_at(logarithms), 0.5 * FURTHEST * np.diag(widths)
    moves = [np.any((seconds_at(logarithms - move) != here) | (seconds_at(logarithms + move) != here)) for move in far]
    return np.flatnonzero(moves)


# --- the remaining error -----------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
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

    def fit_process(
        self, features: Rows, values: Rows, *, num_points: int = NUM_POINTS, offset: float | None = 0.0
    ) -> GaussianProcess:
        """Fit a process of this smoothness to samples, with at most ``num_points`` support points."""
        fit = partial(fit_sparse_process, num_points=num_points, offset=offset)
        if not len(values):
            fit = partial(fit_samples, offset=0.0)
        return fit(features, values, lengths=self.lengths, variance=self.variance, noise=self.noise)


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
    minimize = import_library("scipy.optimize").minimize
    solve_triangular = import_library("scipy.linalg").solve_triangular
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


def import_library(name: str) -> Any:
    """Import a part of SciPy or scikit-learn, or raise with the command to install it."""
    library = name.partition(".")[0]
    return optional_library(name, "samples", f"Learning needs {library}, which is not installed.", extra="fit")


# --- the width of intervals --------------------------------------------------------------------------------
Errors: TypeAlias = tuple[Rows, Rows]

"""Features of samples, shape (rows, features), and logarithms of measured over computed seconds, shape (rows,)."""


@record(frozen=True, kw_only=True, slots=True)
class HeldOutSamples:
    """
    Held-out samples, and those that are known without them.

    Parameters
    ----------
    known, unseen
        Errors of the law on either.
    variance
        Variance of the unseen logarithms due to the law's constants; shape (rows,).
    """

    known: Errors
    unseen: Errors
    variance: Rows | float = 0.0

    def predict(self, fit_process: Callable[[Rows, Rows], GaussianProcess]) -> tuple[Rows, Rows]:
        """Return absolute errors of a process on the unseen samples, and their predicted standard deviations."""
        process, (features, values) = fit_process(*self.known), self.unseen
        deviations: Rows = np.sqrt(process.deviation(features) ** 2 + self.variance)
        return np.abs(values - process.mean(features)), deviations


def widen_by_folds(folds: Sequence[HeldOutSamples], fit_process: Callable[[Rows, Rows], GaussianProcess]) -> float:
    """Return the widening of folds; 1 without any."""
    scores = [np.divide(*fold.predict(fit_process)) for fold in folds]
    return widening(np.concatenate(scores)) if scores else 1.0


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
