"""Constants of a device after small runs: the likeliest values, and their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel import catalog
from costmodel.catalog.files import merge_mappings
from costmodel.facts.calibration import Constants
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.document import nest_entries
from planner.jobs.entries import Reference
from planner.jobs.problem import Problem
from planner.measure.calibrate.cases import DIFFERENCE, LEAST_SENSITIVITY, Array, log_measured_seconds
from planner.measure.calibrate.constants import Constant, around, constants, read
from planner.measure.calibrate.fit import NOISE, REACH, Fit, covariance, fit, priors_of
from planner.measure.runs.predictions import Case

SUFFIX = ", anchored"

"""Suffix of the name of a device whose constants come from small runs."""

UNFITTED_WIDTH = 0.5

"""
Standard deviation of the logarithm of rates that were not fitted to training runs: a datasheet's peak is twice the rate
of some kernels.
"""


def _general(field: str, prior: float, sigma: float) -> Constant:
    source = "small runs on a device without calibration on training runs"
    return Constant(
        name=field, fields=(field,), prior=prior, lower=prior / 50, upper=prior * 50, sigma=sigma, source=source
    )


GENERAL = (
    _general("measured.compute_scaling", 1.0, UNFITTED_WIDTH),
    _general("measured.communication_scaling", 1.0, UNFITTED_WIDTH),
    _general("step_seconds", 1e-2, 1.0),
    _general("microbatch_seconds", 1e-3, 1.0),
)

"""
Constants of a device whose calibration has no fitted ones, such as a sampled device.

All kernels share one factor, all messages another; seconds per step and micro-batch vary where the calibration has any.
"""


@record(frozen=True, kw_only=True, slots=True)
class Road:
    """
    Mapping from values of constants to a device, for a job's ``cluster.device``.

    Parameters
    ----------
    entry
        The job's device.
    constants
        Constants that vary, each around the device's own value.
    fitted
        Constants instead of the catalog's.
    """

    entry: Reference
    constants: tuple[Constant, ...]
    fitted: Fitted = CATALOG

    def device(self, values: Mapping[str, float], **more: Any) -> dict[str, Any]:
        """Return the device with constants by dotted field, and other entries; its sources name their origin."""
        whole = {"base": self.entry} if isinstance(self.entry, str) else dict(self.entry)
        calibration = merge_mappings(_calibration(whole), nest_entries(values))
        name = f"{device_of(self.entry, self.fitted).name}{SUFFIX}"
        return {**whole, **more, "name": name, "calibration": {**calibration, "name": name}}

    def facts(self, problem: Problem, values: Mapping[str, float]) -> Facts:
        """Return a job's facts, with other constants of its cluster."""
        machine = problem.machine
        assert machine is not None, "a job is loaded, not made by hand"
        cluster = replace(machine, device=self.device(values)).cluster(self.fitted)
        return Facts(model=problem.facts.model, cluster=cluster, workload=problem.facts.workload)

    def fields(self, chosen: Sequence[Constant], values: Sequence[float]) -> dict[str, float]:
        """Return values by the dotted fields that the device's calibration has."""
        known = device_of(self.entry, self.fitted).calibration.constants
        return {
            field: float(f"{value:.6g}")
            for one, value in zip(chosen, values, strict=True)
            for field in one.fields
            if read(known, field) is not None
        }


def road(entry: Reference, fitted: Fitted = CATALOG) -> Road:
    """Choose the constants of a device that vary: those that its calibration has fitted, else ``GENERAL``."""
    known = device_of(entry, fitted).calibration.constants
    chain = _chain(entry) if known.times == "modified_roofline" else ()
    chosen = [around(one, known) for one in constants() if one.calibration in chain and _value(known, one)]
    general = [around(one, known) for one in GENERAL if _value(known, one)]
    return Road(entry=entry, constants=tuple(chosen or general), fitted=fitted)


def _value(known: Constants, one: Constant) -> float | None:
    return next((value for field in one.fields if (value := read(known, field))), None)


def _calibration(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calibration of a device as constants on a base."""
    base = device.get("base")
    of_base = {"base": catalog.device_entry(base)["calibration"]} if base else {}
    own = device.get("calibration", {})
    return {"base": own} if isinstance(own, str) else {**of_base, **own}


def _chain(entry: Reference) -> tuple[str, ...]:
    """Return the catalog's calibration on which a device's is based, and those that it extends; () for none."""
    calibration: Any = {"base": entry} if isinstance(entry, str) else entry
    calibration = _calibration(calibration)
    while isinstance(calibration, Mapping):
        calibration = calibration.get("base", "")
    return catalog.calibration_chain(calibration) if calibration in catalog.calibrations() else ()


Seconds = Callable[[Facts, Strategy], float]


@record(frozen=True, kw_only=True, slots=True)
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
    """Return a function of derivatives, by differences of the compared step time; it changes like the simulated one."""
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
