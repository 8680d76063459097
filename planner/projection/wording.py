"""What a projection says to its user."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.projection.anchor import Anchor, AnchorRun
from planner.projection.projected import ProjectedPart, Projection
from planner.report.wording import gib, part_label, seconds
from planner.uncertainty.intervals import COVERAGE

LEAST_MOVED = 0.005
"""Change of a constant, relative to itself, from which on it is worth a line."""

LEAST_SHARE = 0.0005
"""Share of a step from which on a part has a line."""


def projection_text(found: Projection) -> str:
    """The report of a projection."""
    return "\n".join(_lines(found))


def _lines(found: Projection) -> Iterator[str]:
    yield from anchor_lines(found.anchor)
    yield ""
    model = found.model.plan.step_seconds
    low, high = found.interval.low_seconds, found.interval.high_seconds
    yield f"Step of the whole job: {found.step_seconds:,.3f} s, {found.measured_fraction:.0%} of it measured in kind"
    yield f"  without the small runs {model:,.3f} s"
    yield f"  {COVERAGE:.0%} of measured steps between {low:,.3f} and {high:,.3f} s: {found.interval.basis}"
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
    yield f"{peak}, at most {gib(found.most_peak_bytes)} GiB; without the small runs {before} GiB"


def anchor_lines(found: Anchor) -> Iterator[str]:
    """What small runs say of a device."""
    for run in found.runs:
        yield from _run(run)
    moved = [one for one in found.moved if abs(math.log(one.after / one.before)) > LEAST_MOVED]
    if moved:
        yield "Constants that follow"
    for one in moved:
        yield f"  {one.field:<44} {one.before:>10.4g} -> {one.after:.4g}"


def _run(one: AnchorRun) -> Iterator[str]:
    measured = []
    if one.measured_seconds is not None:
        predicted = f"model {one.model_seconds:,.3f}, with all small runs {one.anchored_seconds:,.3f}"
        measured.append(f"{one.measured_seconds:,.3f} s measured ({predicted})")
    if one.measured_bytes is not None:
        measured.append(f"{gib(one.measured_bytes)} GiB measured (model {gib(one.model_bytes)})")
    yield f"{one.case.run.id}: {'; '.join(measured)}"
    if one.differences:
        reason = f"it is taken with +- {math.expm1(one.noise):.0%}, as layouts of one job differ"
        yield f"  beyond its size it differs: {', '.join(one.differences)}; {reason}"
