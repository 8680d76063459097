"""Text of a calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.measure.calibrate.advice import WELL_KNOWN, First
from planner.measure.calibrate.calibrate import Calibration, Determined
from planner.measure.calibrate.published import Worth, comparable
from planner.measure.runs.predictions import Case
from planner.report.section import count


def calibration_text(found: Calibration, path: str) -> str:
    """Write the report of a calibration."""
    return "\n".join(_lines(found, path))


def _lines(found: Calibration, path: str) -> Iterator[str]:
    runs = count(found.num_runs, "run")
    yield f"{runs} of {found.base} fitted; calibration written to {path}"
    for row in found.refused:
        yield f"  refused: {row.id}: {row.reason}"
    for reason, number in Counter(row.reason for row in found.skipped).items():
        yield f"  {number} skipped: {reason}"
    for doubt, number in Counter(found.doubts).items():
        yield f"  {number} doubtful: {doubt}"
    yield ""
    yield f"Mean absolute error of the step time over {runs}"
    yield f"  {found.error_before:>6.1%}  by the catalog's calibration"
    if found.error_left_out is None:
        yield from _one_run(found.worth_of_one, found.error_fitted)
    else:
        held_out = f"to expect on other layouts of these jobs, as on held-out runs ({found.num_groups} fits)"
        yield f"  {found.error_left_out:>6.1%}  {held_out}"
    yield f"  {found.error_fitted:>6.1%}  of the fitted runs themselves; on new ones it is larger"
    if not found.is_better:
        yield "  Held-out runs do not clearly gain: the catalog's constants are kept."
    yield ""
    yield f"{'constant':<48} {'catalog':>11} {'fitted':>11} {'+-':>7}  determined by"
    for one in sorted(found.determined, key=lambda one: one.width / one.constant.sigma):
        yield _constant(one)
    yield ""
    yield from _advice(found)
    if found.first is not None:
        yield ""
        yield from _first(found.first)


def _one_run(worth: Worth, fitted: float) -> Iterator[str]:
    """Yield the error to expect after one run, which nothing can be held out of: no less than what the fit leaves."""
    of_this = f"the fit leaves of this one; {worth.after:.1%} on" if fitted > worth.after else "on"
    expected = f"{max(worth.after, fitted):>6.1%}  to expect on other runs of this model"
    yield f"  {expected}, as {of_this} {worth.stacks} published stacks"
    yield f"          (catalog {worth.before:.1%}; {worth.ratio:.2f} of it, half of the stacks {_quartiles(worth)}):"
    yield "          one run is not checked by any other, and other models may get worse. Measure a second layout."


def _quartiles(worth: Worth) -> str:
    return f"{worth.quarter:.2f} to {worth.three_quarters:.2f}"


def _constant(one: Determined) -> str:
    bound = "; at its physical bound: the runs have an effect that no constant describes" if one.is_at_bound else ""
    numbers = f"{one.constant.prior:>11.4g} {one.value:>11.4g} {one.width:>7.1%}"
    name = one.constant.fields[0]
    return f"{CALLED.get(name, name):<48} {numbers}  {one.origin}{bound}"


CALLED = {"step_seconds": "step_seconds (of a step, by no operator)"}

"""Constants that are easily taken for a measured figure, and how the table writes them."""


def _advice(found: Calibration) -> Iterator[str]:
    advice = found.advice
    left_open = f"The remaining uncertainty of the constants is {advice.spread:.1%} of a step time"
    if not found.is_better:
        yield from _NO_BETTER
    if advice.num_more == 0 and found.num_runs < ENOUGH_RUNS:
        yield f"{left_open}. Single layouts still differ: on published stacks up to {ENOUGH_RUNS} runs helped."
    elif advice.num_more == 0 and found.is_better:
        yield f"The runs are enough. {left_open}."
    elif advice.num_more == 0:
        yield f"{left_open}: more runs like these hardly help."
    elif advice.num_more is None:
        yield f"{left_open}; more runs of the same jobs alone do not lower it below {WELL_KNOWN:.0%}."
    else:
        yield f"{left_open}; {advice.num_more} more runs like these lower it below {WELL_KNOWN:.0%}."
    if advice.suggestions:
        yield "Worth measuring next"
    for one in advice.suggestions:
        widths = f"from +- {one.width_before:.0%} to +- {one.width_after:.0%}"
        yield f"  {one.run.id}: narrows {one.constant} {widths}"


ENOUGH_RUNS = 8

"""Own runs above which more hardly lowered the error of published stacks (``learning_curve.json``)."""

_NO_BETTER = (
    "No fit clearly beats the catalog on held-out runs. The catalog may describe this device well already. Or the runs",
    "are few, or slowed by effects without a constant (software, other jobs, settings missing in the rows): measure",
    "other jobs and layouts.",
)

"""First sentences of the verdict where the catalog's constants are kept."""


# --- before anything is measured ---------------------------------------------------------------------------
MOST_SHOWN = 16

"""Planned runs that are listed."""


def first_text(first: First) -> str:
    """Write the order in which to measure planned runs, and the expected error."""
    return "\n".join(_first(first))


def _first(first: First) -> Iterator[str]:
    order, errors = first
    yield f"Measure first: {len(order)} planned runs, the most informative about the others first"
    yield f"  {'run':<48} {'expected error of the planned runs':>36}"
    yield f"  {'(none of them)':<48} {errors[0]:>36.1%}"
    for one, error in list(zip(order, errors[1:], strict=True))[:MOST_SHOWN]:
        yield f"  {one.run.id:<48} {error:>36.1%}"
    if len(order) > MOST_SHOWN:
        yield f"  ... and {len(order) - MOST_SHOWN} more, less informative"
    yield "The expected error is a standard deviation, from the constants' priors and published runs."
    yield ""
    yield from _worth(order)


def _worth(order: Sequence[Case]) -> Iterator[str]:
    """Yield the learning curve of stacks like the planned runs."""
    curve = comparable(order)
    kinds = {"all": "all kinds of models", "dense": "dense models", "experts": "MoE models, or hybrids"}
    yield f"Value on published stacks ({kinds[curve[0].models]}) left out of the fits"
    yield f"  {'own runs':>8} {'stacks':>7} {'catalog':>8} {'calibrated':>11} {'ratio':>6} {'half of the stacks':>19}"
    for one in curve:
        numbers = f"{one.before:>8.1%} {one.after:>11.1%} {one.ratio:>6.2f} {_quartiles(one):>19}"
        yield f"  {one.runs:>8} {one.stacks:>7} {numbers}"
    yield "Errors are of the stacks' other runs, in the median over stacks (python -m benchmarks.learning_curve)."
