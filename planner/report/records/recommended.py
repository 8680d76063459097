"""The recommendation of a report: why its first plan is the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from planner.results import PlanReport


class PreferenceRecord(Record):
    """A criterion by which the recommended plan is better than the fastest one."""

    name: str = entry(
        "The criterion: unproven, unmeasured, offload, wide_ep, tp, cp, pp, vpp, stages, recompute or memory."
    )
    text: str = entry("Its amount in the recommended plan, in words.")
    instead_of: str = entry("Its amount in the fastest plan, in words.")
    reason: str = entry("Why less of it is better.")


class RecommendationRecord(Record):
    """The recommended plan beside the fastest one."""

    is_fastest: bool = entry("True if the recommended plan is the fastest one.")
    fastest_number: int | None = entry("The number of the fastest plan; null where the report does not have it.")
    fastest_strategy: StrategyRecord = entry("Its decisions.")
    fastest_step_time_seconds: Figure = entry("Its step.")
    fastest_closed_form_step_time_seconds: Figure = entry("Its step by the closed form, which the proof is about.")
    gain_fraction: Figure = entry(
        "Time by which the fastest step is shorter, as a fraction of the recommended plan's step."
    )
    tolerance_fraction: Figure = entry(
        "Largest slowdown against the fastest plan that the recommended one may have, as a fraction."
    )
    preferred: list[PreferenceRecord] = entry("Criteria by which the recommended plan is better, in their order.")
    complete: bool = entry("True if the search for plans that the order prefers was completed in time.", "is_complete")

    @classmethod
    def build(cls, report: PlanReport) -> RecommendationRecord | None:
        """Build the record of a report's recommendation, if it has one."""
        advice, fastest = report.recommendation, report.fastest
        if advice is None or fastest is None or not report.plans:
            return None
        strategies = [plan.strategy for plan in report.plans]
        number = strategies.index(fastest.strategy) + 1 if fastest.strategy in strategies else None
        return cls.read(
            advice,
            fastest_number=number,
            fastest_strategy=StrategyRecord.build(fastest.problem, fastest.strategy),
            fastest_step_time_seconds=fastest.step_seconds,
            fastest_closed_form_step_time_seconds=fastest.estimate.closed_form_seconds,
            gain_fraction=1 - fastest.step_seconds / report.plans[0].step_seconds,
        )
