"""Predicted beside measured steps: errors, their mean, and how far the measurements themselves spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.small_transformers.configurations import Configuration, job_of
from benchmarks.small_transformers.measure import Step
from planner.jobs.problem import load
from planner.verbs.plan import estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """
    One configuration.

    Parameters
    ----------
    configuration
        The model and its step.
    measured
        What it takes.
    predicted_seconds
        What it should take; NaN: nobody knows.
    """

    configuration: Configuration
    measured: Step
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured.seconds - 1


def compared(
    chosen: Iterable[Configuration], steps: Mapping[str, Step], predicted: Mapping[str, float]
) -> tuple[Compared, ...]:
    """The configurations that were measured, in their order."""
    return tuple(
        Compared(configuration=one, measured=steps[one.name], predicted_seconds=predicted[one.name])
        for one in chosen
        if one.name in steps
    )


def mean_error(rows: Sequence[Compared]) -> float:
    """Mean of the absolute relative errors; NaN as soon as one of them is, or if there are none."""
    return statistics.fmean(abs(row.error) for row in rows) if rows else math.nan


def lines(rows: Sequence[Compared]) -> Iterator[str]:
    """A table in text, a row for each configuration, and the means."""
    heads = f"{'measured, s':>12}{'spread':>8}{'steps':>7}{'on CPU':>8}{'predicted, s':>14}{'error':>8}"
    yield f"{'configuration':28}{heads}"
    for row in rows:
        step = row.measured
        yield (
            f"{row.configuration.name:28}{step.seconds:>12.3f}{step.spread:>8.1%}{step.repeats:>7}"
            f"{step.processor_seconds / step.seconds:>8.0%}{row.predicted_seconds:>14.3f}{row.error:>+8.1%}"
        )
    known = [row for row in rows if not math.isnan(row.error)]
    unknown = len(rows) - len(known)
    if known:
        signed = statistics.fmean(row.error for row in known)
        spread = statistics.fmean(row.measured.spread for row in known)
        yield (
            f"{len(known)} configurations: mean error {mean_error(known):.1%}, largest "
            f"{max(abs(row.error) for row in known):.1%}, mean with sign {signed:+.1%}; "
            f"steps spread by {spread:.1%} in the mean."
        )
    if unknown:
        yield f"{unknown} configurations have operators that nobody knows."


# --- predictions -------------------------------------------------------------------------------------------


def planned(one: Configuration, device: str, *, precision: str | Mapping[str, Any]) -> float:
    """
    Seconds of a step as ``planner estimate`` has them.

    Parameters
    ----------
    one
        The configuration.
    device
        Path of a device file, or a name of the catalog.
    precision
        What it computes in, as a job says it.

    Raises
    ------
    SpecError
        If the job cannot be read.
    """
    problem = load(job_of(one, device, precision=precision), name=one.name, folder=Path.cwd())
    return estimate(problem, {}).plan.step_seconds
