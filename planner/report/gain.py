"""The gain of one strategy over another, with its ground."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.report.section import Section, group_rows, seconds

if TYPE_CHECKING:
    from planner.verbs.compare import Gain, MeasuredSide

GIVEN, BEST = "given", "best"


def verdict(gain: Gain, other: str) -> str:
    """
    Word the gain over another strategy as a predicate, with its interval.

    Examples
    --------
    ``gains 7.4% (80%: 2.1% to 12.8%)``; ``is within the error of the first: 7.4% (80%: -3.1% to 16.9%)``.
    """
    low, high = gain.low_fraction, gain.high_fraction
    if low == high == 0:
        return f"is the same as {other}: 0.0%"
    if not gain.is_sure:
        return f"is within the error of {other}: {gain.fraction:.1%} {_interval(gain, low, high)}"
    if gain.fraction < 0:
        return f"loses {-gain.fraction:.1%} {_interval(gain, -high, -low)}"
    return f"gains {gain.fraction:.1%} {_interval(gain, low, high)}"


def _interval(gain: Gain, low: float, high: float) -> str:
    return f"({gain.probability:.0%}: {low:.1%} to {high:.1%})"


def gain_section(gain: Gain, names: tuple[str, str]) -> Section:
    """
    Build the section on the ground of a gain: errors of its interval, unproven features, measured runs.

    Parameters
    ----------
    gain
        The gain.
    names
        Names of the given strategy and of the other one.
    """
    return Section(title="Ground of the gain", rows=tuple(_rows(gain, dict(zip((GIVEN, BEST), names, strict=True)))))


def _rows(gain: Gain, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield "interval", f"{gain.low_fraction:.1%} to {gain.high_fraction:.1%}: {gain.basis}"
    if gain.fraction > 0:
        yield "unproven", unproven_text(gain)
    yield from group_rows("measured", (run_text(one, names[one.side]) for one in gain.measured))
    if not gain.measured:
        yield "measured", "no run of either with these degrees, devices and batch is known"
    elif gain.measured_fraction is not None:
        yield (
            "",
            f"with {'these steps' if gain.measured[1:] else 'this step'} as measured: {gain.measured_fraction:.1%}",
        )


def unproven_text(gain: Gain) -> str:
    """
    Word the part of a gain that rests on features that no measured run shows, in one sentence.

    Examples
    --------
    ``3.1 of 7.4% rest on features that no measured run shows: ep_overlap=true (3.1%)``
    """
    if not gain.unproven:
        return f"nothing of the {gain.fraction:.1%} rests on features that no measured run shows"
    parts = ", ".join(
        f"{one.text} ({'the plan needs it' if one.is_needed else f'{one.fraction:.1%}'})" for one in gain.unproven
    )
    lost = f"{100 * gain.unproven_fraction:.1f} of {gain.fraction:.1%}"
    return f"{lost} rest on features that no measured run shows: {parts}"


def run_text(run: MeasuredSide, name: str) -> str:
    """Describe a measured run with the degrees of a strategy, and the model's error on it."""
    error = run.error_fraction
    off = f"{abs(error):.0%} too {'slow' if error > 0 else 'fast'}" if abs(error) >= 0.005 else "within 0.5%"
    unlike = f", with {', '.join(run.unlike)}" if run.unlike else ""
    return (
        f"{name}: {seconds(run.step_time_seconds)} s ({run.source}, {run.id}{unlike}), predicted "
        f"{seconds(run.predicted_seconds)} s: {off}"
    )
