"""Stacks of the measured runs, each with the constants of a fit that has not seen it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.fit import chosen_constants, timed_cases
from benchmarks.accuracy.left_out.folds import NEWEST, fitted_without, is_newest, release_text
from benchmarks.accuracy.metrics import RUNS, read_table
from benchmarks.accuracy.rows import share_work, source_weights
from costmodel import catalog
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References
from planner.measure.calibrate.calibrate import base_name
from planner.measure.calibrate.cases import Array, Predictor, log_measured_seconds
from planner.measure.calibrate.constants import Constant, around, prior_factors, replace_constants
from planner.measure.calibrate.fit import Fit, priors_of
from planner.measure.runs.predictions import Case, find_unreported_recompute

FEWEST_ROWS = 12
"""Of a stack: 8 own runs and as many others as half of that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """
    All rows with a step time, linear in the logarithms of the constants around the catalog's.

    Parameters
    ----------
    rows, constants, known
        Rows; what is fitted; what rows refer to, with no factor of a framework beyond its prior.
    logs
        Logarithms of the catalog's constants.
    predicted, jacobian, times
        Logarithms of the rows' seconds there, as ``planner estimate`` predicts them; derivatives, shape (rows,
        constants); logarithms of the measured seconds.
    is_fitted
        Rows that say what they recomputed.
    """

    rows: Sequence[Case]
    constants: tuple[Constant, ...]
    known: References
    logs: Array
    predicted: Array
    jacobian: Array
    times: Array
    is_fitted: NDArray[np.bool_]


def measured(derivatives: Path | None, num_processes: int) -> Measured:
    """
    The rows of the project's table.

    Parameters
    ----------
    derivatives
        File (npz) that keeps predictions and derivatives, which take minutes; None: they are computed.
    num_processes
        Processes that share the work.
    """
    table, references = read_table(RUNS)
    rows = timed_cases(table, references)
    known = references.refit(Fitted(factors=prior_factors()))
    chosen = tuple(_around_catalog(one) for one in chosen_constants(rows, frameworks=True))
    logs = np.log([one.prior for one in chosen])
    shared = partial(share_work, num_processes=num_processes)
    predictor = Predictor(cases=rows, constants=chosen, known=known, share_work=shared)
    if derivatives is not None and derivatives.exists():
        with np.load(derivatives) as stored:
            predicted, jacobian = stored["predicted"], stored["jacobian"]
    else:
        predicted, jacobian = predictor.estimate_logarithms(logs), predictor.jacobian(logs)
        if derivatives is not None:
            with derivatives.open("wb") as stream:  # by its path it would end in .npz, and never be found again
                np.savez(stream, predicted=predicted, jacobian=jacobian)
    return Measured(
        rows=rows,
        constants=chosen,
        known=known,
        logs=logs,
        predicted=predicted,
        jacobian=jacobian,
        times=log_measured_seconds(rows),
        is_fitted=np.array([find_unreported_recompute(one) is None for one in rows]),
    )


def _around_catalog(one: Constant) -> Constant:
    """A constant at the value that the catalog ships."""
    if not one.framework:
        return around(one, catalog.calibration(one.calibration).constants)
    return _at(one, catalog.framework(one.framework).factors.get(one.fields[0], one.prior))


def _at(one: Constant, value: float) -> Constant:
    return replace(one, prior=min(max(value, one.lower), one.upper))


@dataclass(frozen=True, kw_only=True)
class Stack:
    """
    Runs of one site and its software on one device, predicted by a fit that has seen none of them.

    Parameters
    ----------
    name, source, base
        Of the stack; its source of runs; its device in the catalog.
    rows
        Its runs that say what they recomputed.
    known
        What they refer to, with the constants of the fit.
    constants
        What runs of its device determine, with those constants as priors.
    slopes
        Derivatives of the rows' logarithms by these constants, shape (rows, constants).
    surprise
        Logarithms of measured over predicted seconds.
    """

    name: str
    source: str
    base: str
    rows: tuple[Case, ...]
    known: References
    constants: tuple[Constant, ...]
    slopes: Array
    surprise: Array

    @cached_property
    def configurations(self) -> tuple[tuple[object, ...], ...]:
        """What repeats of a run share, whatever the release."""
        return tuple(_configuration(one) for one in self.rows)

    def others(self, own: Sequence[int]) -> list[int]:
        """Rows that are no repeats of own runs."""
        seen = {self.configurations[index] for index in own}
        return [index for index in range(len(self.rows)) if self.configurations[index] not in seen]


def _configuration(one: Case) -> tuple[object, ...]:
    workload = one.facts.workload
    return (
        one.run.model,
        workload.precision.name,
        workload.sequence_length,
        workload.global_batch_size,
        one.run.num_devices,
        one.strategy,
    )


def stacks(known: Measured) -> Iterator[Stack]:
    """Each source on each of its devices, left out with all of that source; the newest releases on each of theirs."""
    sources = np.array([one.run.source for one in known.rows])
    devices = np.array([base_name(one) for one in known.rows])
    newest = np.array([is_newest(one) for one in known.rows])
    for name in sorted(set(sources.tolist())):
        yield from _of_devices(known, name, sources == name, devices)
    yield from _of_devices(known, f"{release_text(NEWEST)} and later", newest, devices)


def _of_devices(known: Measured, name: str, is_out: NDArray[np.bool_], devices: NDArray[np.str_]) -> Iterator[Stack]:
    large = [
        device
        for device in sorted(set(devices[is_out].tolist()))
        if (is_out & known.is_fitted & (devices == device)).sum() >= FEWEST_ROWS
    ]
    if not large:
        return
    logs = without(known, is_out)
    residuals = known.times - known.predicted - known.jacobian @ (logs - known.logs)
    references = replace_constants(known.known, known.constants, np.exp(logs))
    for device in large:
        chosen = is_out & known.is_fitted & (devices == device)
        chain = catalog.calibration_chain(catalog.device(device).calibration.name)
        columns = [index for index, one in enumerate(known.constants) if one.calibration in chain]
        yield Stack(
            name=f"{name}, {device}",
            source=name,
            base=device,
            rows=tuple(one for one, is_chosen in zip(known.rows, chosen, strict=True) if is_chosen),
            known=references,
            constants=tuple(_at(known.constants[index], float(np.exp(logs[index]))) for index in columns),
            slopes=known.jacobian[np.ix_(chosen, columns)],
            surprise=residuals[chosen],
        )


def without(known: Measured, is_out: NDArray[np.bool_]) -> Array:
    """Logarithms of the constants of a fit to all other rows, linear around the catalog's."""
    priors = priors_of(chosen_constants(known.rows, frameworks=True))
    return fitted_without(
        known.rows,
        Fit(logs=known.logs, jacobian=known.jacobian, residuals=known.predicted - known.times),
        known.times,
        source_weights,
        priors,
        unseen=is_out | ~known.is_fitted,
    )
