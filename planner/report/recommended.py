"""The section on the recommended plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.report.section import Section
from planner.report.wording import seconds

if TYPE_CHECKING:
    from planner.report.records.recommended import RecommendationRecord


def recommendation_sections(advice: RecommendationRecord | None) -> Iterator[Section]:
    """Build the section on the recommended plan and its advantages; none where the fastest plan was asked for."""
    if advice is None:
        return
    rows = [("recommended", _recommendation(advice))]
    if not advice.is_fastest:
        rows.append(("fastest", _describe_fastest(advice)))
        rows.extend(
            ("  preferred", f"{one.text} instead of {one.instead_of}: {one.reason}") for one in advice.preferred
        )
    notes = (
        ()
        if advice.complete
        else ("Time ran out before all plans that the order of preferences puts first were searched.",)
    )
    yield Section(title="Recommendation", rows=tuple(rows), notes=notes)


def _recommendation(advice: RecommendationRecord) -> str:
    within = f"within {advice.tolerance_fraction:.1%} of the fastest one"
    if advice.is_fastest:
        return f"strategy 1, the fastest plan: no plan {within} is better by the order of preferences"
    return f"strategy 1, the first in the order of preferences among all plans {within}"


def _describe_fastest(advice: RecommendationRecord) -> str:
    number = advice.fastest_number
    named = advice.fastest_strategy.line if number is None else f"strategy {number}"
    gain = f"{advice.gain_fraction:.1%} less"
    return f"{named}: {seconds(advice.fastest_step_time_seconds)} s per step, {gain} (--fastest puts it first)"
