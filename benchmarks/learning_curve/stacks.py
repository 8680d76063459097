"""Stacks of the measured runs, each with the constants of a fit that has not seen it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.fit import chosen_constants
from benchmarks.accuracy.left_out.drawn import DERIVATIVES, read_derivatives, shipped_fit
from benchmarks.accuracy.left_out.folds import NEWEST, fitted_without, is_newest, release_text
from benchmarks.accuracy.metrics import read_fitted
from benchmarks.accuracy.rows import source_weights
from costmodel import catalog
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References
from planner.measure.calibrate.calibrate import base_name
from planner.measure.calibrate.cases import Array, log_measured_seconds
from planner.measure.calibrate.constants import Constant, prior_factors, replace_constants
from planner.measure.calibrate.fit import Fit, priors_of
from planner.measure.runs.predictions import Case, Prediction, find_unreported_recompute, predictions

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
    shipped
        The catalog's constants, with today's errors of the rows and the stored derivatives.
    is_fitted
        Rows that say what they recomputed.
    """

    rows: Sequence[Case]
    constants: tuple[Constant, ...]
    known: References
    shipped: Fit
    is_fitted: NDArray[np.bool_]


def measured() -> Measured:
    """Return the rows of the catalog's fit, predicted by today's code."""
    table, known = read_fitted()
    rows = [
        one for one in predictions(table, known) if isinstance(one, Prediction) and one.run.step_seconds is not None
    ]
    chosen = chosen_constants(rows, frameworks=True)
    return Measured(
        rows=rows,
        constants=chosen,
        known=known.refit(Fitted(factors=prior_factors())),
        shipped=shipped_fit(rows, chosen, read_derivatives(DERIVATIVES)),
        is_fitted=np.array([find_unreported_recompute(one) is None for one in rows]),
    )


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

    def others_of_model(self, own: int) -> list[int]:
        """Rows of the model of one that are no repeats of it."""
        names = [(one.facts.model.name, one.facts.model.size) for one in self.rows]
        return [index for index in self.others([own]) if names[index] == names[own]]


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
    shipped = known.shipped
    surprise = -shipped.residuals - shipped.jacobian @ (logs - shipped.logs)
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
            slopes=shipped.jacobian[np.ix_(chosen, columns)],
            surprise=surprise[chosen],
        )


def without(known: Measured, is_out: NDArray[np.bool_]) -> Array:
    """Logarithms of the constants of a fit to all other rows, linear around the catalog's."""
    return fitted_without(
        known.rows,
        known.shipped,
        log_measured_seconds(known.rows),
        source_weights,
        priors_of(known.constants),
        unseen=is_out | ~known.is_fitted,
    )
