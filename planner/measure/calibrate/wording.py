"""Text of a calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

from costmodel.facts.fields import Count, NotNegative
from costmodel.record import strict_record
from planner.measure.calibrate.advice import WELL_KNOWN, First
from planner.measure.calibrate.calibrate import Calibration, Determined
from planner.measure.runs.predictions import Case
from planner.uncertainty.counts import read_stored

TABLE = "learning_curve.json"


@strict_record(frozen=True, kw_only=True, slots=True)
class Worth:
    """
    Value of a number of own runs.

    Parameters
    ----------
    models
        Models of most of the stacks' runs.
    chosen
        Choice of the measured runs: those that ``planner calibrate`` lists first, or any.
    runs, stacks
        Number of own runs; number of stacks.
    before, after
        Mean absolute error of a stack's other runs, in the median over stacks: with the catalog, and calibrated.
    quarter, ratio, three_quarters
        Quartiles over stacks of the error after over that before.
    """

    models: Literal["all", "dense", "experts"]
    chosen: Literal["first", "any"]
    runs: Count
    stacks: Count
    before: NotNegative
    after: NotNegative
    quarter: NotNegative
    ratio: NotNegative
    three_quarters: NotNegative


@cache
def learning_curve() -> tuple[Worth, ...]:
    """Read the learning curve of the published stacks: entries by models, choice and number of runs."""
    return read_stored(tuple[Worth, ...], TABLE, "planner.measure.calibrate", "worth")


FEWEST_STACKS = 4

"""Fewest stacks of a kind; with fewer the curve of all stacks is reported."""


def models_of(runs: Sequence[Case]) -> Literal["dense", "experts"]:
    """Return the kind of model that most runs train: MoE (with hybrids), or dense."""
    others = sum(one.architecture != "dense" for one in runs)
    return "experts" if 2 * others > len(runs) else "dense"


def comparable(runs: Sequence[Case]) -> tuple[Worth, ...]:
    """Return the curve of stacks with models like those of some runs, for runs that were measured first."""
    kind = models_of(runs)
    own = _curve(kind)
    return own if own and min(one.stacks for one in own) >= FEWEST_STACKS else _curve("all")


def _curve(kind: str) -> tuple[Worth, ...]:
    return tuple(one for one in learning_curve() if (one.models, one.chosen) == (kind, "first"))


def calibration_text(found: Calibration, path: str) -> str:
    """Write the report of a calibration."""
    return "\n".join(_lines(found, path))


def _lines(found: Calibration, path: str) -> Iterator[str]:
    yield f"{found.num_runs} runs of {found.base} fitted; calibration written to {path}"
    for row in found.refused:
        yield f"  refused: {row.id}: {row.reason}"
    for reason, count in Counter(row.reason for row in found.skipped).items():
        yield f"  {count} skipped: {reason}"
    for doubt, count in Counter(found.doubts).items():
        yield f"  {count} doubtful: {doubt}"
    for name, ratio in found.far:
        yield f"  far off: {name}: measured {ratio:.2g} times the fit's prediction; little weight. Is the row right?"
    yield ""
    yield f"Mean absolute error of the step time over {found.num_runs} runs"
    yield f"  {found.error_before:>6.1%}  by the catalog's calibration"
    yield f"  {found.error_left_out:>6.1%}  of held-out runs ({found.num_groups} fits), times 1 + 1/{found.num_runs}:"
    yield f"  {found.error_to_expect:>6.1%}  to expect on other layouts of these jobs"
    yield f"  {found.error_fitted:>6.1%}  of the fitted runs: too optimistic"
    if not found.is_better:
        yield "  Held-out runs are not predicted better than by the catalog, whose constants are kept."
    yield ""
    yield f"{'constant':<48} {'catalog':>11} {'fitted':>11} {'+-':>7}  determined by"
    for one in sorted(found.determined, key=lambda one: one.width / one.constant.sigma):
        yield _constant(one)
    yield ""
    yield from _advice(found)
    if found.first is not None:
        yield ""
        yield from _first(found.first)


def _constant(one: Determined) -> str:
    bound = ", at its physical bound: another effect is missing" if one.is_at_bound else ""
    numbers = f"{one.prior_value:>11.4g} {one.value:>11.4g} {one.width:>7.1%}"
    return f"{one.constant.fields[0]:<48} {numbers}  {one.origin}{bound}"


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
    "No fit is better than the catalog on held-out runs. Either the catalog already describes this device well.",
    "Or the runs are few, or slowed by effects without a constant (software, other jobs, settings missing in the",
    "rows): measure other jobs and layouts.",
)

"""First sentences of the verdict where the error of held-out runs is not below the catalog's."""


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
        quartiles = f"{one.quarter:.2f} to {one.three_quarters:.2f}"
        yield (
            f"  {one.runs:>8} {one.stacks:>7} {one.before:>8.1%} {one.after:>11.1%} {one.ratio:>6.2f} {quartiles:>19}"
        )
    yield "Errors are of the stacks' other runs, in the median over stacks (python -m benchmarks.learning_curve)."
