"""Text of a projection."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from planner.jobs.problem import Problem
from planner.measure.project.anchor import Anchor, AnchorRun, Moved
from planner.measure.project.projected import ProjectedPart, ProjectedShare, Projection, project_plan
from planner.report.records import Figure, Record, entry
from planner.report.section import count, gib, part_label, seconds
from planner.results import Plan, PlanReport
from planner.uncertainty.intervals import COVERAGE, NORMAL_80
from planner.uncertainty.peaks import STARTS


class ProjectedIntervalRecord(Record):
    """Interval of the measured step."""

    low_seconds: Figure = entry("Its lower end.")
    high_seconds: Figure = entry("Its upper end.")
    basis: str = entry("Measured runs that the interval comes from.")
    probability: Figure = entry("Share of measured steps that lie between the ends.")


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
    doubts: list[str] = entry("Doubts about the run.")

    @classmethod
    def build(cls, one: AnchorRun) -> SmallRunRecord:
        """Build the record of a run."""
        return cls.read(one, differences=list(one.differences), doubts=list(one.case.run.doubts))


class ProjectionRecord(Record):
    """Answer of ``planner trace project``."""

    step_seconds: Figure = entry("The projected step.")
    step_seconds_of_model: Figure = entry("The step without the small runs.", "model.plan.step_seconds")
    interval: ProjectedIntervalRecord = entry("Interval of the measured step.")
    measured_fraction: Figure = entry("Share of the step's seconds that was measured directly.")
    noise: Figure = entry("Standard deviation of the logarithm of repeated runs.", "anchor.noise")
    open_deviation: Figure = entry("Standard deviation of the logarithm from uncertain constants.")
    peak_bytes: Figure = entry("The projected peak of the fullest device.")
    peak_bytes_of_model: Figure = entry("The peak without the small runs.", "model.plan.estimate.device_bytes")
    most_peak_bytes: Figure | None = entry("Upper bound of the peak; null where no peak was measured.")
    memory_bytes: Figure = entry("Memory of a device.", "report.plan.memory_bytes")
    parts: list[ProjectedPart] = entry("The job's step, line by line.")
    small_runs: list[SmallRunRecord] = entry("The small runs.")
    constants: list[Moved] = entry("The constants that changed.")
    advice: list[str] = entry("Advice on further small runs.")

    @classmethod
    def build(cls, found: Projection) -> ProjectionRecord:
        """Build the record of a projection."""
        return cls.read(
            found,
            interval=ProjectedIntervalRecord.read(found.interval, probability=COVERAGE),
            parts=list(found.parts),
            small_runs=[SmallRunRecord.build(one) for one in found.anchor.runs],
            constants=list(found.anchor.moved),
            advice=list(advice_lines(found.anchor)),
        )


def advice_lines(found: Anchor) -> Iterator[str]:
    """Advise a run with another number of layers if all have the same: it separates a layer's seconds from a step's."""
    counts = {one.case.facts.model.num_layers for one in found.timed}
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
    sentences = (*_anchor_sentences(found), *(_plan_sentence(*one) for one in projected[:1]))
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


def _plan_sentence(plan: Plan, share: ProjectedShare) -> str:
    text = f"they measured {share.measured_fraction:.0%} of strategy 1 directly"
    if share.differences:
        text += f"; some differ from it: {', '.join(share.differences)}"
    if share.most_peak_bytes is not None:
        most = f"; its peak is at most {gib(share.most_peak_bytes)} GiB (in {STARTS:.0%} of jobs)"
        text += most + (", which is more than a device has" if share.most_peak_bytes > plan.memory_bytes else "")
    return text


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
