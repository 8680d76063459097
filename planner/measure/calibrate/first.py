"""Runs to measure first: planned runs, in the order in which they reduce the uncertainty of all others most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.jobs.run_jobs import References
from planner.measure.calibrate.cases import Array, Predictor
from planner.measure.calibrate.constants import Constant
from planner.measure.calibrate.discrepancy import PUBLISHED
from planner.measure.calibrate.fit import priors_of
from planner.measure.runs.predictions import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class First:
    """
    Planned runs, the most informative first.

    Parameters
    ----------
    order
        The runs.
    errors
        Expected error of the planned runs' step times, as a standard deviation: before any of them is measured, then
        after each; one more than runs.
    """

    order: tuple[Case, ...]
    errors: tuple[float, ...]


def measure_first(
    planned: Sequence[Case], timed: Sequence[Case], constants: Sequence[Constant], known: References
) -> First:
    """
    Order planned runs by their information.

    Parameters
    ----------
    planned
        At least one run that was not measured.
    timed
        Measured runs.
    constants, known
        Constants of a fit, with priors; references of the runs.
    """
    runs = [*timed, *planned]
    logs = priors_of(constants).mean
    slopes = Predictor(cases=runs, constants=constants, known=known).jacobian(logs)
    whole = joint_covariance(runs, slopes, priors_of(constants).sigma)
    for row in range(len(timed)):
        whole = measure_run(whole, row)
    order, errors = greedy(whole[len(timed) :, len(timed) :])
    return First(order=tuple(planned[index] for index in order), errors=errors)


def joint_covariance(runs: Sequence[Case], slopes: Array, sigma: Array) -> Array:
    r"""
    Return the covariance of the logarithms of runs on an unseen stack.

    .. math:: K = J S J^T + D

    J: slopes by the constants; S: their prior variances; D: errors of the formulas
    (:meth:`planner.measure.calibrate.discrepancy.Discrepancy.covariance`).
    """
    reach = slopes * sigma
    return np.asarray(reach @ reach.T + PUBLISHED.covariance(runs))


def unexplained_covariance(runs: Sequence[Case], timed: Sequence[Case]) -> Array:
    """Return the covariance that constants do not explain, after other runs were measured; shape (runs, runs)."""
    whole = PUBLISHED.covariance([*timed, *runs])
    for row in range(len(timed)):
        whole = measure_run(whole, row)
    return whole[len(timed) :, len(timed) :]


def measure_run(whole: Array, row: int) -> Array:
    """Return the covariance after one run is measured."""
    column = whole[:, row]
    return np.asarray(whole - np.outer(column, column) / (whole[row, row] + PUBLISHED.repeat**2))


def greedy(whole: Array) -> tuple[list[int], tuple[float, ...]]:
    """
    Order runs so that each lowers the sum of all variances most; return the order, and the deviation after each.

    References
    ----------
    I-optimal design, one run after the other: Sacks et al., "Design and Analysis of Computer Experiments", 1989.
    """
    left, order = list(range(len(whole))), []
    errors = [_deviation(whole)]
    while left:
        gains = (whole[:, left] ** 2).sum(axis=0) / (whole[left, left] + PUBLISHED.repeat**2)
        best = left.pop(int(gains.argmax()))
        order.append(best)
        whole = measure_run(whole, best)
        errors.append(_deviation(whole))
    return order, tuple(errors)


def _deviation(whole: Array) -> float:
    """Return the root of the mean variance, including the noise of a measurement."""
    return float(np.sqrt(np.diag(whole).mean() + PUBLISHED.repeat**2))
