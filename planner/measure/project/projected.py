"""Prediction of the whole job from small runs, with the measured share of the answer; its records and its text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate
from costmodel.strategy import DECISIONS, Strategy
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import StrategyFile
from planner.measure.project.anchor import Anchor, AnchorRun, Moved, anchor, covered_fraction
from planner.measure.runs.predictions import Case
from planner.report.records import Figure, Record, entry
from planner.report.section import count, gib, part_label, seconds
from planner.results import EstimateReport, Plan, PlanReport
from planner.uncertainty.intervals import COVERAGE, NORMAL_80, Interval
from planner.uncertainty.peaks import STARTS
from planner.verbs.plan import estimate, judge_strategy, require_strategy

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
    require_strategy(problem, decisions)
    model = estimate(problem, decisions, searched=False)
    found = anchor(model.problem, smalls, model.plan.strategy)
    given = [name for name in DECISIONS if name not in model.assumed]
    report = judge_strategy(found.apply_to(model.problem), model.plan.strategy, given, model.completed_by)
    parts = project_parts(found.runs_with_time, model.plan.estimate, report.plan.estimate, report.plan.facts.model)
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

    Derivation: :meth:`planner.measure.project.anchor.Posterior.deviation` of the directly measured seconds. The
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
    once, since errors may go together. If nothing was measured directly, the runs only moved constants, and their
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


def project_plan(found: Anchor, problem: Problem, plan: Plan) -> tuple[Plan, str]:
    """
    Return a plan on the device of small runs with the interval of a projection, and a sentence on their share in it.

    Parameters
    ----------
    found
        Constants from the small runs, without any strategy.
    problem
        The job.
    plan
        One of its plans.
    """
    own, strategy = found.compare_with(problem, plan.strategy), plan.strategy
    parts = project_parts(own.runs_with_time, plan.estimate, plan.estimate, plan.facts.model)
    deviation = math.hypot(own.noise, deviation_of_constants(own, parts, problem, strategy))
    interval = project_interval(parts, deviation, plan.interval, plan.step_seconds)
    text = f"they measured {measured_seconds(parts) / plan.step_seconds:.0%} of strategy 1 directly"
    if differing := dict.fromkeys(text for one in own.runs_with_time for text in one.differences):
        text += f"; some differ from it: {', '.join(differing)}"
    if (most := most_peak_bytes(own, problem, strategy)) is not None:
        text += f"; its peak is at most {gib(most)} GiB (in {STARTS:.0%} of jobs)"
        text += ", which is more than a device has" if most > plan.memory_bytes else ""
    return replace(plan, projected=interval), text


# --- JSON and text -------------------------------------------------------------------------------------------
class SmallRunRecord(Record):
    """One small run, measured and predicted."""

    name: str = entry("Name of the run.", "case.run.id")
    measured_seconds: Figure | None = entry("Measured step; null where only its memory was measured.")
    model_seconds: Figure = entry("Step predicted without the small runs.")
    anchored_seconds: Figure = entry("Step predicted with them.")
    measured_bytes: Figure | None = entry("Measured peak; null where it was not measured.")
    model_bytes: Figure = entry("Peak predicted without them, as the measurement would see it.")
    noise: Figure = entry("Standard deviation of the logarithm with which its time applies to the job.")
    differences: list[str] = entry("Differences from the job beyond its size.")
    doubts: list[str] = entry("Doubts about the run.", "case.run.doubts")


class ProjectionRecord(Record):
    """Answer of ``planner trace project``."""

    step_seconds: Figure = entry("The projected step.")
    step_seconds_of_model: Figure = entry("The step without the small runs.", "model.plan.step_seconds")
    interval: Interval = entry("Interval of the measured step.")
    measured_fraction: Figure = entry("Share of the step's seconds that was measured directly.")
    noise: Figure = entry("Standard deviation of the logarithm of repeated runs.", "anchor.noise")
    open_deviation: Figure = entry("Standard deviation of the logarithm from uncertain constants.")
    peak_bytes: Figure = entry("The projected peak of the fullest device.")
    peak_bytes_of_model: Figure = entry("The peak without the small runs.", "model.plan.estimate.device_bytes")
    most_peak_bytes: Figure | None = entry("Upper bound of the peak; null where no peak was measured.")
    memory_bytes: Figure = entry("Memory of a device.", "report.plan.memory_bytes")
    parts: list[ProjectedPart] = entry("The job's step, line by line.")
    small_runs: list[SmallRunRecord] = entry("The small runs.", "anchor.runs")
    constants: list[Moved] = entry("The constants that changed.", "anchor.moved")
    advice: list[str] = entry("Advice on further small runs.")

    @classmethod
    def build(cls, found: Projection) -> ProjectionRecord:
        """Build the record of a projection."""
        return cls.read(found, advice=list(advice_lines(found.anchor)))


def advice_lines(found: Anchor) -> Iterator[str]:
    """Advise a run with another number of layers if all have the same: it separates a layer's seconds from a step's."""
    counts = {one.case.facts.model.num_layers for one in found.runs_with_time}
    if len(counts) == 1:
        yield (
            f"all small runs have {count(counts.pop(), 'layer')}, so seconds of a layer cannot be separated from those "
            "of a step: add a run with another number of layers"
        )


LEAST_MOVED = 0.005

"""Relative change of a constant above which it is listed."""

LEAST_SHARE = 0.0005

"""Share of a step above which a part is listed."""


def projection_text(found: Projection) -> str:
    """Write the report of a projection."""
    return "\n".join(_lines(found))


def projection_json(found: Projection) -> str:
    """Write a projection as JSON; seconds and bytes, null where nothing was measured."""
    return json.dumps(ProjectionRecord.build(found).plain(), indent=2, ensure_ascii=False, allow_nan=False)


def _lines(found: Projection) -> Iterator[str]:
    yield from anchor_lines(found.anchor)
    yield ""
    model = found.model.plan.step_seconds
    low, high = found.interval.low_seconds, found.interval.high_seconds
    yield f"Step of the whole job: {found.step_seconds:,.3f} s, {found.measured_fraction:.0%} of it measured directly"
    yield f"  without the small runs {model:,.3f} s"
    ends = f"{COVERAGE:.0%} of measured steps between {low:,.3f} and {high:,.3f} s"
    yield f"  {ends}, by the errors on {found.interval.basis}"
    if found.measured_fraction:
        noise, left = (math.expm1(NORMAL_80 * one) for one in (found.anchor.noise, found.open_deviation))
        yield f"  measured part: +- {noise:.1%} noise of runs, +- {left:.1%} uncertainty of constants"
        yield from (f"  {line}" for line in advice_lines(found.anchor))
    yield from _memory(found)
    yield ""
    yield f"{'part of the step':<24} {'model, s':>10} {'projected, s':>13} {'measured':>9}"
    for part in found.parts:
        if part.seconds > LEAST_SHARE * found.step_seconds:
            yield _part(part)


def _part(one: ProjectedPart) -> str:
    share = f"{one.measured_fraction:.0%}" if one.measured_fraction else "-"
    return f"{part_label(one.name):<24} {seconds(one.model_seconds):>10} {seconds(one.seconds):>13} {share:>9}"


def _memory(found: Projection) -> Iterator[str]:
    peak = f"Peak of the fullest device: {gib(found.peak_bytes)} GiB"
    if found.most_peak_bytes is None:
        yield f"{peak}, by the model: no small run has peak_memory_gib"
        return
    before = gib(found.model.plan.estimate.device_bytes)
    yield (
        f"{peak}, at most {gib(found.most_peak_bytes)} GiB (in {STARTS:.0%} of jobs); without the small runs "
        f"{before} GiB"
    )
    device = found.report.plan.memory_bytes
    if found.most_peak_bytes > device:
        yield f"  that is more than the {gib(device)} GiB of a device: the job may run out of memory"


def add_small_runs(report: PlanReport, found: Anchor, problem: Problem) -> PlanReport:
    """
    Return the report of a search on the device of small runs, with their sentences and its plans' intervals.

    Parameters
    ----------
    report
        Report of the search.
    found
        Device and constants from the small runs.
    problem
        The job on its own device.
    """
    projected = [project_plan(found, problem, plan) for plan in report.plans]
    sentences = (*_anchor_sentences(found), *(sentence for _, sentence in projected[:1]))
    return replace(report, plans=tuple(plan for plan, _ in projected), small_runs=sentences)


def _anchor_sentences(found: Anchor) -> Iterator[str]:
    for one in found.runs:
        yield _measurement_text(one)
        yield from one.case.run.doubts
        if one.differences:
            yield f"{one.case.run.id} differs: {', '.join(one.differences)}"
    moved = [f"{one.field} {one.before:.4g} -> {one.after:.4g}" for one in _far(found)]
    if moved:
        yield f"fitted constants: {', '.join(moved)}"
    yield from advice_lines(found)
    if found.peaks:
        side = "above" if found.peaks.offset_bytes > 0 else "below"
        yield f"peaks: {gib(abs(found.peaks.offset_bytes))} GiB {side} the model's, as the small runs show"
    else:
        yield "peaks are the model's: no small run has peak_memory_gib"


def anchor_lines(found: Anchor) -> Iterator[str]:
    """Yield the report of small runs."""
    for run in found.runs:
        yield from _run(run)
    moved = _far(found)
    if moved:
        yield "Fitted constants"
    for one in moved:
        yield f"  {one.field:<44} {one.before:>10.4g} -> {one.after:.4g}"


def _far(found: Anchor) -> list[Moved]:
    return [one for one in found.moved if abs(math.log(one.after / one.before)) > LEAST_MOVED]


def _measurement_text(one: AnchorRun) -> str:
    """Describe the measurements of a run, with their predictions."""
    measured = []
    if one.measured_seconds is not None:
        predicted = f"model {one.model_seconds:,.3f}, with all small runs {one.anchored_seconds:,.3f}"
        measured.append(f"{one.measured_seconds:,.3f} s measured ({predicted})")
    if one.measured_bytes is not None:
        measured.append(f"{gib(one.measured_bytes)} GiB measured (model {gib(one.model_bytes)})")
    return f"{one.case.run.id}: {'; '.join(measured)}"


def _run(one: AnchorRun) -> Iterator[str]:
    yield _measurement_text(one)
    yield from (f"  {doubt}" for doubt in one.case.run.doubts)
    if one.differences:
        reason = f"it has an error of +- {math.expm1(one.noise):.0%}, as between layouts of one job"
        yield f"  beyond its size it differs: {', '.join(one.differences)}; {reason}"
    if not one.is_explained:
        yield (
            f"  no constants within physical bounds explain its step: {math.expm1(-one.residual):+.0%} remains, so "
            "that it has little weight. Is it in seconds, of this layout, and did nothing else run?"
        )
