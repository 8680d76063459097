"""The section on why the first plan is the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.recommendation import OFFLOAD
from planner.report.section import Section
from planner.report.wording import seconds

if TYPE_CHECKING:
    from planner.report.records.recommended import FeatureRecord, RecommendationRecord


def recommendation_sections(advice: RecommendationRecord | None) -> Iterator[Section]:
    """What is recommended, what the fastest plan would gain and risk; nothing where the fastest one was asked for."""
    if advice is None:
        return
    rows = [("recommended", _recommended(advice))]
    if advice.kept:
        rows.append(("it keeps", f"{_listed(advice.kept)}: without, no plan is near enough to the fastest"))
    if not advice.is_fastest:
        rows.append(("fastest", _fastest(advice)))
        rows.extend(("  its risk", f"{one.text}: {one.risk}") for one in advice.given_up)
    notes = () if advice.complete else ("Time ran out before every simpler plan was looked for.",)
    yield Section(title="Recommendation", rows=tuple(rows), notes=notes)


def _recommended(advice: RecommendationRecord) -> str:
    if advice.is_fastest:
        simple = "nothing of it could be left out" if advice.kept else "nothing about it is uncommon"
        return f"strategy 1, the fastest plan: {simple}"
    near = f"strategy 1, the simplest plan within {advice.tolerance_fraction:.1%} of the fastest one"
    if any(one.name in OFFLOAD for one in advice.given_up):
        return f"{near}, which offloads: that must gain more"
    return f"{near}, which predictions cannot tell apart"


def _fastest(advice: RecommendationRecord) -> str:
    number = advice.fastest_number
    what = advice.fastest_strategy.line if number is None else f"strategy {number}"
    return (
        f"{what}: {seconds(advice.fastest_step_time_seconds)} s per step, {advice.gain_fraction:.1%} less, with "
        f"{_listed(advice.given_up) or 'other choices of the same kind'} (--fastest puts it first)"
    )


def _listed(features: Sequence[FeatureRecord]) -> str:
    return ", ".join(one.text for one in features)
