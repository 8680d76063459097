"""Measured rows for a fit: groups, weights, predicted logarithms and their derivatives by the constants."""

from __future__ import annotations

import multiprocessing
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel import catalog
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from planner.jobs.run_jobs import References
from planner.measure.calibrate.constants import Constant, replace_constants
from planner.measure.runs.predictions import Case

Result = TypeVar("Result")


def share_work(work: Callable[[int], Result], count: int, num_processes: int) -> list[Result]:
    """
    Return the results of ``work(0)`` to ``work(count - 1)``, in order.

    Processes are forked, so that nothing is copied to them; where they cannot be forked, one process does all work.

    Parameters
    ----------
    work
        Free of side effects; its results can be pickled.
    count
        Number of pieces.
    num_processes
        Number of processes, which take the pieces in turns.
    """
    num_processes = min(num_processes, count)
    if num_processes <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [work(index) for index in range(count)]
    context = multiprocessing.get_context("fork")
    parts: dict[int, Result] = {}
    channels = [context.Pipe(duplex=False) for _ in range(num_processes)]
    workers = [
        context.Process(target=_serve, args=(work, range(first, count, num_processes), sender))
        for first, (_, sender) in enumerate(channels)
    ]
    for worker in workers:
        worker.start()
    for first, (receiver, sender) in enumerate(channels):
        sender.close()
        done = receiver.recv()
        if isinstance(done, Exception):
            raise done
        parts.update(zip(range(first, count, num_processes), done, strict=True))
    for worker in workers:
        worker.join()
    return [parts[index] for index in range(count)]


def _serve(work: Callable[[int], Result], indices: range, sender: Connection) -> None:
    try:
        sender.send([work(index) for index in indices])
    except Exception as error:  # It is raised in the process that waits for the results.
        sender.send(error)
    sender.close()


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


UNEXPLAINED = 2.0
"""
Error that formulas leave of a published step, over :data:`planner.measure.calibrate.fit.NOISE`: 4 %.

After a fit the median row is 3 % off, as with a normal error of 5 %. Of 2, 3, 4 and 5 % in turn, 4 % predicts
left-out groups best.
"""


def source_weights(cases: Sequence[Case], *, without: Collection[str] = ()) -> Array:
    """
    Return square roots of the rows' weights: a source weighs as the square root of its rows.

    Rows of one source share its site, its software and its habits. So a hundred of them carry less information than a
    hundred from different sources, but more than three. The rows of one alone weigh as an error of ``UNEXPLAINED``.

    Parameters
    ----------
    cases
        The rows.
    without
        Ids of rows with weight 0.
    """
    rows = Counter(case.run.source for case in cases if case.run.id not in without)
    roots = [rows[case.run.source] ** -0.25 if case.run.id not in without else 0.0 for case in cases]
    return np.array(roots) / UNEXPLAINED


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
    num_processes
        Processes that share the work.
    offsets
        Logarithms of simulated over closed-form seconds, once they are computed.
    """

    cases: Sequence[Case]
    constants: Sequence[Constant]
    known: References
    num_processes: int = 1
    offsets: list[Array] = field(default_factory=list, compare=False)

    def logarithms(self, logs: Array) -> Array:
        """
        Return logarithms of the predicted seconds of every row for logarithms of the constants.

        They are those of the closed form, plus the difference of simulated pipelines at the first constants. That
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
        share = -(-len(chosen) // self.num_processes)

        def part(index: int) -> list[float]:
            return [seconds(case, known) for case in chosen[index * share : (index + 1) * share]]

        return np.asarray(np.log(np.concatenate(share_work(part, self.num_processes, self.num_processes))))

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
        columns = share_work(column, len(self.constants), self.num_processes)
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.cases), 0))

    def _column(self, logs: Array, before: Array | None) -> Callable[[int], Array]:
        base = replace_constants(self.known, self.constants, np.exp(logs))
        settings = [setting_of(case) for case in self.cases]
        closed = np.log([_closed_form_seconds(case, base) for case in self.cases])

        def column(index: int) -> Array:
            constant = self.constants[index]
            step = DIFFERENCE if np.exp(logs[index] + DIFFERENCE) <= constant.upper else -DIFFERENCE
            moved = replace_constants(base, [constant], [float(np.exp(logs[index] + step))])
            change = np.zeros(len(self.cases)) if before is None else before[:, index].copy()
            for row, (case, setting) in enumerate(zip(self.cases, settings, strict=True)):
                if constant.touches(**setting) and (before is None or abs(change[row]) > LEAST_SENSITIVITY):
                    change[row] = (np.log(_closed_form_seconds(case, moved)) - closed[row]) / step
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
    """Return it by the closed form, which is much faster and has equal derivatives by the constants."""
    return strategy_seconds(known.facts(case.problem), case.strategy)


def log_measured_seconds(cases: Sequence[Case]) -> Array:
    """Return logarithms of the measured seconds; every row must have some."""
    return np.log([case.run.step_seconds or np.nan for case in cases])
