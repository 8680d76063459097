"""Measured rows for a fit: groups, weights, predicted logarithms and their derivatives by the constants."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel import catalog
from costmodel.memory import different_ranks
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from costmodel.step.step import step_seconds
from planner.jobs.run_jobs import References
from planner.measure.calibrate.constants import Constant, replace_constants
from planner.measure.runs.predictions import Case

Array: TypeAlias = NDArray[np.float64]

Group: TypeAlias = tuple[str, str, str, int]

DIFFERENCE = 0.01

"""Step in the logarithm of a constant over which a derivative is taken; only a matter of numerics."""

LEAST_SENSITIVITY = 1e-3

"""Derivative of a step time by a constant, both in logarithms, below which it is not computed again."""


def group_of(case: Case) -> Group:
    """Return the key of a row's group, which is held out as a whole: source, model, device, number of devices."""
    run = case.run
    return (run.source, run.model, run.device, run.num_devices)


def folds_of(cases: Sequence[Case], num_folds: int) -> NDArray[np.int64]:
    """
    Return the fold in which each row is held out: whole groups, with those of each source spread over all folds.

    The order of groups follows only from their names, so that it never changes.
    """
    groups = sorted({group_of(case) for case in cases}, key=lambda group: (group[0], zlib.crc32(repr(group).encode())))
    fold = {group: index % num_folds for index, group in enumerate(groups)}
    return np.array([fold[group_of(case)] for case in cases], dtype=np.int64)


Share: TypeAlias = Callable[[Callable[[int], Any], int], list[Any]]
"""Function that calls another one with each of some numbers, and returns its results in order."""


def work_alone(work: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results of ``work(0)`` to ``work(count - 1)``."""
    return [work(index) for index in range(count)]


@record(frozen=True, kw_only=True, slots=True)
class Predictor:
    """
    Step times of rows as a function of constants.

    Parameters
    ----------
    cases
        The rows.
    constants
        Constants that vary.
    known
        References of the rows.
    share_work
        Function that shares independent pieces of work among processes.
    is_at_once
        True: derivatives of the rows of a job are by arrays, many times as fast, and equal but for rounding.
    offsets
        Logarithms of simulated over compared seconds, once they are computed.
    """

    cases: Sequence[Case]
    constants: Sequence[Constant]
    known: References
    share_work: Share = work_alone
    is_at_once: bool = False
    offsets: list[Array] = field(default_factory=list, compare=False)

    def logarithms(self, logs: Array) -> Array:
        """
        Return logarithms of the predicted seconds of every row for logarithms of the constants.

        They are the compared step times, plus the difference of simulated pipelines at the first constants. That
        difference hardly changes with the constants, and a fit evaluates often. :meth:`estimated` is exact.
        """
        closed = self._all_rows(logs, _closed_form_seconds)
        if not self.offsets:
            self.offsets.append(self.estimate_logarithms(logs) - closed)
        return np.asarray(closed + self.offsets[0])

    def estimate_logarithms(self, logs: Array, rows: NDArray[np.bool_] | None = None) -> Array:
        """Return them for all or some rows, as ``planner estimate`` predicts them."""
        return self._all_rows(logs, seconds_of, rows)

    def _all_rows(
        self, logs: Array, seconds: Callable[[Case, References], float], rows: NDArray[np.bool_] | None = None
    ) -> Array:
        known = replace_constants(self.known, self.constants, np.exp(logs))
        chosen = [case for index, case in enumerate(self.cases) if rows is None or rows[index]]
        return np.log(self.share_work(lambda index: seconds(chosen[index], known), len(chosen)))

    def jacobian(self, logs: Array, before: Array | None = None) -> Array:
        """
        Return derivatives of :meth:`logarithms` by differences, shape (rows, constants).

        Parameters
        ----------
        logs
            Logarithms of the constants.
        before
            Derivatives at another place; those below ``LEAST_SENSITIVITY`` are kept.
        """
        column = self._column(logs, before)
        columns = self.share_work(column, len(self.constants))
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.cases), 0))

    def _column(self, logs: Array, before: Array | None) -> Callable[[int], Array]:
        seconds = _seconds_at_once if self.is_at_once else _seconds_one_by_one
        base = replace_constants(self.known, self.constants, np.exp(logs))
        settings = [setting_of(case) for case in self.cases]
        closed = np.log(seconds(self.cases, base))

        def column(index: int) -> Array:
            constant = self.constants[index]
            step = DIFFERENCE if np.exp(logs[index] + DIFFERENCE) <= constant.upper else -DIFFERENCE
            moved = replace_constants(base, [constant], [float(np.exp(logs[index] + step))])
            change = np.zeros(len(self.cases)) if before is None else before[:, index].copy()
            rows = [
                row
                for row, setting in enumerate(settings)
                if constant.touches(**setting) and (before is None or abs(change[row]) > LEAST_SENSITIVITY)
            ]
            change[rows] = (np.log(seconds([self.cases[row] for row in rows], moved)) - closed[rows]) / step
            return change

        return column


def setting_of(case: Case) -> dict[str, Any]:
    """Return the properties of a row that decide on which constants it can depend, for :meth:`Constant.touches`."""
    cluster, framework = case.facts.cluster, case.facts.cluster.framework
    return {
        "calibrations": calibrations_of(case),
        "kernels": (framework.kernels_of or framework.name) if framework else "",
        "architecture": cluster.device.architecture,
        "dtype": case.facts.workload.precision.compute,
        "size": case.facts.model.size,
    }


def calibrations_of(case: Case) -> tuple[str, ...]:
    """Return the calibration of a row's device, and those that it extends."""
    name = case.facts.cluster.device.calibration.name.removesuffix(", changed")
    return catalog.calibration_chain(name) if name in catalog.calibrations() else ()


def seconds_of(case: Case, known: References) -> float:
    """Return a row's step time with the constants of some references, as ``planner estimate`` predicts it."""
    return estimate(known.facts(case.problem), case.strategy).step_seconds


def _closed_form_seconds(case: Case, known: References) -> float:
    """Return the step time that the search compares: much faster, with equal derivatives by the constants."""
    return strategy_seconds(known.facts(case.problem), case.strategy)


def _seconds_one_by_one(cases: Sequence[Case], known: References) -> Array:
    """Return the compared step time of each row."""
    return np.array([_closed_form_seconds(case, known) for case in cases])


def _seconds_at_once(cases: Sequence[Case], known: References) -> Array:
    """Return the compared step time of each row, those of a job by arrays of their decisions."""
    seconds, jobs = np.zeros(len(cases)), defaultdict[int, list[int]](list)
    for row, case in enumerate(cases):
        if case.strategy.layout:
            seconds[row] = _closed_form_seconds(case, known)
        else:
            jobs[id(case.problem)].append(row)
    for rows in jobs.values():
        facts, every = known.facts(cases[rows[0]].problem), [cases[row].strategy.decisions() for row in rows]
        decisions = {name: np.array([one[name] for one in every]) for name in every[0]}
        seconds[rows] = step_seconds(facts, decisions, different_ranks(facts, decisions))
    return seconds


def log_measured_seconds(cases: Sequence[Case]) -> Array:
    """Return logarithms of the measured seconds; every row must have some."""
    return np.log([case.run.step_seconds or np.nan for case in cases])
