"""Prediction of the whole job from small runs, with the measured share of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate
from costmodel.strategy import DECISIONS, Strategy
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import StrategyFile
from planner.measure.project.anchor import Anchor, AnchorRun, anchor
from planner.measure.project.comparison import covered_fraction
from planner.measure.runs.predictions import Case
from planner.results import EstimateReport, Plan
from planner.uncertainty.intervals import NORMAL_80, Interval
from planner.verbs.plan import estimate, judge_strategy

OF_LAYERS = ("compute", "recompute", "host", "offload")
"""Lines of a breakdown that every run with layers of one kind measures."""

OF_GROUPS = ("tp", "cp", "ep")
"""Lines that only a run with an equal number of ranks measures: others use other links, or other messages."""


@record(frozen=True, kw_only=True, slots=True)
class ProjectedPart:
    """
    One line of the job's step.

    Parameters
    ----------
    name
        As in :class:`costmodel.step.estimate.Part`.
    model_seconds
        Exposed seconds without the small runs.
    seconds
        Exposed seconds with them.
    measured_fraction
        Share of it that a small run measured directly.
    """

    name: str
    model_seconds: float
    seconds: float
    measured_fraction: float


@record(frozen=True, kw_only=True, slots=True)
class Projection:
    """
    Prediction of the whole job from small runs.

    Parameters
    ----------
    anchor
        Device and constants from the small runs.
    model, report
        The job's estimate without and with them.
    parts
        Its step, line by line.
    open_deviation
        Standard deviation of the logarithm of the directly measured seconds, from constants that the small runs leave
        uncertain.
    interval
        Interval of its measured step, with a probability of ``COVERAGE``.
    most_peak_bytes
        Upper bound of the peak of the fullest device, which ``STARTS`` of the jobs stay below; None where no peak was
        measured.
    """

    anchor: Anchor
    model: EstimateReport
    report: EstimateReport
    parts: tuple[ProjectedPart, ...]
    open_deviation: float
    interval: Interval
    most_peak_bytes: float | None

    @property
    def step_seconds(self) -> float:
        """The projected step."""
        return self.report.plan.step_seconds

    @property
    def peak_bytes(self) -> float:
        """The projected peak of the fullest device."""
        return self.report.plan.estimate.device_bytes

    @property
    def measured_fraction(self) -> float:
        """Share of the step's seconds that was measured."""
        return measured_seconds(self.parts) / self.step_seconds


@record(frozen=True, kw_only=True, slots=True)
class ProjectedShare:
    """
    Share of a plan that small runs measured.

    Parameters
    ----------
    measured_fraction
        Share of its step that they measured directly.
    differences
        Differences from it beyond size.
    most_peak_bytes
        Upper bound of its peak; None where no peak was measured.
    """

    measured_fraction: float
    differences: tuple[str, ...]
    most_peak_bytes: float | None


def project(
    problem: Problem, decisions: Mapping[str, object] | str | StrategyFile, smalls: Sequence[Case]
) -> Projection:
    """
    Predict a job from small runs of it.

    Parameters
    ----------
    problem
        The whole job.
    decisions
        Its strategy, as in :func:`planner.verbs.plan.estimate`; open decisions follow the recipes, which
        small runs follow, too.
    smalls
        Small runs of it.

    Raises
    ------
    SpecError
        As :func:`planner.verbs.plan.estimate` and :func:`planner.measure.project.anchor.anchor` do.
    """
    model = estimate(problem, decisions, searched=False)
    found = anchor(model.problem, smalls, model.plan.strategy)
    given = [name for name in DECISIONS if name not in model.assumed]
    report = judge_strategy(found.apply_to(model.problem), model.plan.strategy, given, model.completed_by)
    parts = project_parts(found.timed, model.plan.estimate, report.plan.estimate, report.plan.facts.model)
    open_deviation = deviation_of_constants(found, parts, model.problem, report.plan.strategy)
    deviation = math.hypot(found.noise, open_deviation)
    return Projection(
        anchor=found,
        model=model,
        report=report,
        parts=parts,
        open_deviation=open_deviation,
        interval=project_interval(parts, deviation, report.plan.interval, report.plan.step_seconds),
        most_peak_bytes=most_peak_bytes(found, model.problem, model.plan.strategy),
    )


def project_parts(
    runs: Iterable[AnchorRun], before: Estimate, after: Estimate, model: Model
) -> tuple[ProjectedPart, ...]:
    """
    Return the lines of a job's step, with the share of each that a small run measured directly.

    Derivation: layers are measured where a run has layers of the same kind; communication inside a layer, where a run's
    group has equally many ranks. A run that differs in more than size has other kernels: it moves constants, but
    measures no part of the job itself. Transfers and bubble of a pipeline, replicas, and the update of sharded states
    come from the model.
    """
    cases = [one.case for one in runs if not one.differences]
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
    """Sum the seconds of a step that small runs measured directly."""
    return sum(part.seconds * part.measured_fraction for part in parts)


def deviation_of_constants(
    found: Anchor, parts: Sequence[ProjectedPart], problem: Problem, strategy: Strategy
) -> float:
    """
    Return the standard deviation of the logarithm of measured seconds, from the uncertainty of the constants.

    Derivation: :meth:`planner.measure.project.posterior.Posterior.deviation` of the directly measured seconds. The
    other seconds have the errors of the model on comparable jobs. These include the same constants, which count once.

    Parameters
    ----------
    found
        Constants from the small runs.
    parts
        Lines of the step.
    problem, strategy
        The whole job.
    """
    shares = {part.name: part.measured_fraction for part in parts}
    if not measured_seconds(parts):
        return 0.0

    def seconds(values: Mapping[str, float]) -> float:
        step = detail.estimate(found.posterior.way.facts(problem, values), strategy)
        return sum(part.exposed_seconds * shares[part.name] for part in step.breakdown)

    return found.posterior.deviation(seconds)


def project_interval(
    parts: Sequence[ProjectedPart], deviation: float, of_model: Interval, step_seconds: float
) -> Interval:
    r"""
    Return the interval of a projected step: measured seconds with the runs' errors, the others with the model's.

    .. math:: [M e^{-z \sigma} + R e^{-l}, M e^{z \sigma} + R e^{u}]

    Derivation: M seconds were measured directly. Two independent errors of their logarithm add in squares to sigma: the
    noise of the job's own step, and the uncertainty of constants (:func:`deviation_of_constants`). The remaining R
    seconds have the errors of the model's steps of comparable jobs, between exp(-l) and exp(u). Both ends are taken at
    once, since errors may go together. Where nothing was measured directly, the runs only moved constants, and their
    own error adds to the model's in squares.

    Parameters
    ----------
    parts
        Lines of the step.
    deviation
        Standard deviation of the logarithm of the measured seconds; where there are none, of the runs' own error.
    of_model
        The model's own interval of the step.
    step_seconds
        The projected step.
    """
    measured = measured_seconds(parts)
    rest, reach = max(0.0, step_seconds - measured), math.exp(NORMAL_80 * deviation)
    beside = 0.0 if measured else NORMAL_80 * deviation
    low, high = (math.log(end / step_seconds) for end in (of_model.low_seconds, of_model.high_seconds))
    return Interval(
        low_seconds=measured / reach + rest * math.exp(-math.hypot(min(low, 0.0), beside) if beside else low),
        high_seconds=measured * reach + rest * math.exp(math.hypot(max(high, 0.0), beside) if beside else high),
        basis=f"{_small_runs_text(measured / step_seconds, reach - 1)} and on {of_model.basis}",
    )


def _small_runs_text(share: float, error: float) -> str:
    what = f"which measured {share:.0%} of it directly" if share else "which differ"
    return f"small runs, {what} (+- {error:.1%}),"


def most_peak_bytes(found: Anchor, problem: Problem, strategy: Strategy) -> float | None:
    """
    Return the upper bound in bytes of a job's peak; None where no peak was measured.

    Parameters
    ----------
    found
        Constants from the small runs, compared with the strategy.
    problem, strategy
        The whole job.
    """
    if found.peaks is None:
        return None
    is_alike = any(not one.differences for one in found.runs if one.measured_bytes is not None)
    facts = found.posterior.way.facts(problem, {})
    return found.peaks.most_bytes(detail.estimate(facts, strategy).device_bytes, facts.cluster, is_alike=is_alike)


def project_plan(found: Anchor, problem: Problem, plan: Plan) -> tuple[Plan, ProjectedShare]:
    """
    Return a plan on the device of the small runs with the interval of a projection, and its measured share.

    Parameters
    ----------
    found
        Constants from the small runs, without any strategy.
    problem
        The job.
    plan
        One of its plans.
    """
    own, strategy = found.beside(problem, plan.strategy), plan.strategy
    parts = project_parts(own.timed, plan.estimate, plan.estimate, plan.facts.model)
    deviation = math.hypot(own.noise, deviation_of_constants(own, parts, problem, strategy))
    interval = project_interval(parts, deviation, plan.interval, plan.step_seconds)
    share = ProjectedShare(
        measured_fraction=measured_seconds(parts) / plan.step_seconds,
        differences=tuple(dict.fromkeys(text for one in own.timed for text in one.differences)),
        most_peak_bytes=most_peak_bytes(own, problem, strategy),
    )
    return replace(plan, projected=interval), share
