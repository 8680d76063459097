"""Constants of a device after small runs: the likeliest values, and their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.measure.calibrate.cases import DIFFERENCE, LEAST_SENSITIVITY, Array, log_measured_seconds
from planner.measure.calibrate.constants import Constant
from planner.measure.calibrate.fit import NOISE, REACH, Fit, covariance, fit, priors_of
from planner.measure.project.measured_device import Road
from planner.measure.runs.predictions import Case

Seconds = Callable[[Facts, Strategy], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """
    Posterior of a device's constants after small runs.

    Parameters
    ----------
    way
        Mapping from constants to the device.
    logs
        Logarithms of all of its constants, at their likeliest values.
    covariance
        Covariance of these logarithms, shape (constants, constants).
    values
        Values of the constants on which a small run depends, by dotted field.
    """

    way: Road
    logs: Array
    covariance: Array
    values: Mapping[str, float]

    def deviation(self, seconds: Callable[[Mapping[str, float]], float]) -> float:
        r"""
        Return the standard deviation of the logarithm of some seconds, from the uncertainty of the constants.

        .. math:: \sqrt{g^T \Sigma g}, \quad g_j = \partial \log t / \partial x_j

        Derivation: first order around the likeliest constants. Two constants that small runs cannot separate have
        errors of opposite sign, which cancel in a time that depends on both alike. They remain where a job depends on
        one more than the small runs do.

        Parameters
        ----------
        seconds
            Seconds for values of constants by dotted field.
        """
        before, upper = self._logarithm(seconds, self.logs), priors_of(self.way.constants).upper
        slopes = np.zeros(len(self.logs))
        for index in range(len(self.logs)):
            there, step = _move(self.logs, index, upper)
            slopes[index] = (self._logarithm(seconds, there) - before) / step
        return float(np.sqrt(slopes @ self.covariance @ slopes))

    def _logarithm(self, seconds: Callable[[Mapping[str, float]], float], logs: Array) -> float:
        return float(np.log(seconds(self.way.fields(self.way.constants, np.exp(logs).tolist()))))


def posterior(way: Road, timed: Sequence[Case], noises: Array) -> Posterior:
    r"""
    Fit the constants on which small runs depend, and return the covariance of all.

    .. math:: \Sigma = (S^{-1} + J^T N^{-1} J)^{-1} = S - S J^T (J S J^T + N)^{-1} J S

    Derivation: normal priors of variances S, logarithms of the runs' steps that are linear in the constants' logarithms
    with slopes J, and normal noise of variances N. Constants on which no run depends keep their priors.

    Parameters
    ----------
    way
        Mapping from constants to the device.
    timed
        Runs with a step time.
    noises
        Standard deviation of the logarithm of each run's time.
    """
    measured, jacobian = log_measured_seconds(timed), _jacobian(way, timed, way.constants)
    priors, weights = priors_of(way.constants), NOISE / noises
    sensitive = np.abs(jacobian(priors.mean, None)).max(axis=0) > LEAST_SENSITIVITY
    chosen = tuple(one for one, is_sensitive in zip(way.constants, sensitive, strict=True) if is_sensitive)
    found = fit(
        lambda logs: _logarithms(way, timed, chosen, logs, simulated_seconds),
        _jacobian(way, timed, chosen),
        measured,
        weights=weights,
        priors=priors_of(chosen),
        start=_find_start(way, timed, chosen, measured, noises),
    )
    logs = priors.mean.copy()
    logs[sensitive] = found.logs
    return Posterior(
        way=way,
        logs=logs,
        covariance=covariance(jacobian(logs, None), weights, priors),
        values=way.fields(chosen, np.exp(found.logs).tolist()),
    )


def simulated_seconds(facts: Facts, strategy: Strategy) -> float:
    """Return the step that ``planner estimate`` predicts."""
    return estimate(facts, strategy).step_seconds


def _find_start(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], measured: Array, noises: Array) -> Fit:
    r"""
    Return the start of a fit, close to measured times, since the robust loss ignores distant ones.

    .. math:: x = p + S J^T (J S J^T + N)^{-1} (y - f(p)), \quad S = \mathrm{diag}(s^2), N = \mathrm{diag}(\sigma^2)

    Derivation: least squares without robustness, a few Gauss-Newton steps.
    """
    priors, jacobian = priors_of(chosen), _jacobian(way, timed, chosen)
    logs = priors.mean
    for number in range(MOST_STEPS + 1):
        residuals = _logarithms(way, timed, chosen, logs, simulated_seconds) - measured
        slopes = jacobian(logs, None)
        if np.abs(residuals).max() <= REACH or number == MOST_STEPS:
            break
        reach = slopes * priors.sigma**2
        missing = slopes @ (logs - priors.mean) - residuals
        step = reach.T @ np.linalg.solve(reach @ slopes.T + np.diag(noises**2), missing)
        logs = np.clip(priors.mean + step, priors.lower, priors.upper)
    return Fit(logs=logs, jacobian=slopes, residuals=residuals)


MOST_STEPS = 6
"""Most Gauss-Newton steps: a factor of ten takes four."""


def _logarithms(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], logs: Array, seconds: Seconds) -> Array:
    values = way.fields(chosen, np.exp(logs).tolist())
    return np.log([seconds(way.facts(one.problem, values), one.strategy) for one in timed])


def _jacobian(way: Road, timed: Sequence[Case], chosen: Sequence[Constant]) -> Callable[[Array, Array | None], Array]:
    """Return a function of derivatives by differences of the closed form, which changes like the simulated step."""
    upper = priors_of(chosen).upper

    def jacobian(logs: Array, _: Array | None) -> Array:
        columns, before = [], _logarithms(way, timed, chosen, logs, strategy_seconds)
        for index in range(len(chosen)):
            there, step = _move(logs, index, upper)
            columns.append((_logarithms(way, timed, chosen, there, strategy_seconds) - before) / step)
        return np.stack(columns, axis=1)

    return jacobian


def _move(logs: Array, index: int, upper: Array) -> tuple[Array, float]:
    """Move one logarithm by a step for a derivative, downwards at its upper bound; return the step, too."""
    step = DIFFERENCE if logs[index] + DIFFERENCE <= upper[index] else -DIFFERENCE
    return logs + step * (np.arange(len(logs)) == index), step
