"""Small runs measured -> the whole job predicted, with how much of the answer was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.facts.model import Model
from costmodel.step.estimate import Estimate
from planner.jobs.problem import Problem
from planner.plan import EstimateReport, estimate
from planner.projection.anchor import Anchor, AnchorRun, anchor
from planner.projection.comparison import covered_fraction
from planner.runs.predictions import Case
from planner.uncertainty.intervals import NORMAL_80, Interval

OF_LAYERS = ("compute", "recompute", "host", "offload")
"""Lines of a breakdown that every run with layers of the same kind measures."""

OF_GROUPS = ("tp", "cp", "ep")
"""Lines that a run measures whose group has as many ranks: fewer or more use other links, or other messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedPart:
    """
    One line of the job's step.

    Parameters
    ----------
    name
        As :class:`costmodel.step.estimate.Part` has it.
    model_seconds, seconds
        Exposed seconds without and with the small runs.
    measured_fraction
        Share of it that a small run measured in kind.
    """

    name: str
    model_seconds: float
    seconds: float
    measured_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """
    The whole job, predicted from small runs.

    Parameters
    ----------
    anchor
        What the small runs say of the device.
    model, report
        The job's estimate without and with them.
    parts
        Its step, line by line.
    interval
        Where its measured step lies, with a probability of ``COVERAGE``.
    peak_bytes, most_peak_bytes
        Peak of the fullest device, and its upper bound; the latter is None where no peak was measured.
    """

    anchor: Anchor
    model: EstimateReport
    report: EstimateReport
    parts: tuple[ProjectedPart, ...]
    interval: Interval
    peak_bytes: float
    most_peak_bytes: float | None

    @property
    def step_seconds(self) -> float:
        """The projected step."""
        return self.report.plan.step_seconds

    @property
    def measured_fraction(self) -> float:
        """Share of the step's seconds that was measured."""
        return measured_seconds(self.parts) / self.step_seconds


def project(problem: Problem, decisions: Mapping[str, object], smalls: Sequence[Case]) -> Projection:
    """
    Predict a job from small runs of it.

    Parameters
    ----------
    problem
        The whole job.
    decisions
        Its strategy, as :func:`planner.plan.estimate` takes it.
    smalls
        Runs of it, cut down.

    Raises
    ------
    SpecError
        As :func:`planner.plan.estimate` and :func:`planner.projection.anchor.anchor` do.
    """
    model = estimate(problem, decisions)
    found = anchor(model.problem, smalls, model.plan.strategy)
    report = estimate(found.applied(model.problem), decisions)
    parts = projected_parts(found.timed, model.plan.estimate, report.plan.estimate, report.plan.facts.model)
    return Projection(
        anchor=found,
        model=model,
        report=report,
        parts=parts,
        interval=projected_interval(parts, found.noise, report.plan.interval, report.plan.step_seconds),
        peak_bytes=report.plan.estimate.device_bytes,
        most_peak_bytes=most_peak_bytes(found, model.plan.estimate, report.plan.estimate),
    )


def projected_parts(
    runs: Iterable[AnchorRun], before: Estimate, after: Estimate, model: Model
) -> tuple[ProjectedPart, ...]:
    """
    The lines of a job's step, and which share of each a small run measured in kind.

    Derivation: layers, where a run has layers of the same kind; communication inside a layer, where a run's group has
    as many ranks. Transfers and bubble of a pipeline, replicas and the update of shared states are the model's.
    """
    cases = [one.case for one in runs]
    covered = covered_fraction(cases, model)
    strategy = after.strategy
    same = {name for name in OF_GROUPS for one in cases if getattr(one.strategy, name) == getattr(strategy, name)}
    of_model = {part.name: part.exposed_seconds for part in before.breakdown}
    return tuple(
        ProjectedPart(
            name=part.name,
            model_seconds=of_model[part.name],
            seconds=part.exposed_seconds,
            measured_fraction=covered if part.name in {*OF_LAYERS, *same} else 0.0,
        )
        for part in after.breakdown
    )


def measured_seconds(parts: Iterable[ProjectedPart]) -> float:
    """Seconds of a step that small runs measured in kind."""
    return sum(part.seconds * part.measured_fraction for part in parts)


def projected_interval(
    parts: Sequence[ProjectedPart], noise: float, of_model: Interval, step_seconds: float
) -> Interval:
    r"""
    The interval of a projected step: measured seconds with the runs' noise, the others with the model's errors.

    .. math:: [M e^{-z \sigma} + R e^{-l}, M e^{z \sigma} + R e^{u}]

    Derivation: M seconds were measured in kind, with a noise of sigma. The remaining R are as far off as the model's
    steps of comparable jobs, between exp(-l) and exp(u). Both ends at once: errors may go together.

    Parameters
    ----------
    parts
        The lines of the step.
    noise
        Standard deviation of the logarithm of what was measured.
    of_model
        The model's own interval of the step.
    step_seconds
        The projected step.
    """
    measured = measured_seconds(parts)
    rest, reach = max(0.0, step_seconds - measured), math.exp(NORMAL_80 * noise)
    return Interval(
        low_seconds=measured / reach + rest * of_model.low_seconds / step_seconds,
        high_seconds=measured * reach + rest * of_model.high_seconds / step_seconds,
        basis=f"{measured / step_seconds:.0%} measured (+- {reach - 1:.1%}), the rest by {of_model.basis}",
    )


def most_peak_bytes(found: Anchor, model: Estimate, projected: Estimate) -> float | None:
    """
    Upper bound of the job's peak in bytes: what no formula has stays as it is, or grows with all else.

    Derivation: the larger of predicted plus the small runs' offset, and predicted times their largest ratio.
    """
    if found.memory_ratio is None:
        return None
    return max(projected.device_bytes, model.device_bytes * found.memory_ratio)
