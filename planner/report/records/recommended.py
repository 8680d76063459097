"""The recommendation of a report: why its first plan is the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord
from planner.search.recommendation import Preference

if TYPE_CHECKING:
    from planner.results import PlanReport


class RecommendationRecord(Record):
    """
    The recommended plan beside the fastest one.

    Parameters
    ----------
    is_fastest
        True if the recommended plan is the fastest one.
    fastest_number
        The number of the fastest plan; null where the report does not have it.
    fastest_strategy
        Its decisions.
    fastest_step_time_seconds
        Its step.
    fastest_closed_form_step_time_seconds
        Its step by the closed form, which the proof is about.
    gain_fraction
        Time by which the fastest step is shorter, as a fraction of the recommended plan's step.
    tolerance_fraction
        Largest slowdown against the fastest plan that the recommended one may have, as a fraction.
    preferred
        Criteria by which the recommended plan is better, in their order.
    complete
        True if the search for plans that the order prefers was completed in time.
    """

    is_fastest: bool
    fastest_number: int | None
    fastest_strategy: StrategyRecord
    fastest_step_time_seconds: Figure
    fastest_closed_form_step_time_seconds: Figure
    gain_fraction: Figure
    tolerance_fraction: Figure
    preferred: list[Preference]
    complete: bool

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
            complete=advice.is_complete,
            fastest_number=number,
            fastest_strategy=StrategyRecord.build(fastest.problem, fastest.strategy),
            fastest_step_time_seconds=fastest.step_seconds,
            fastest_closed_form_step_time_seconds=fastest.estimate.closed_form_seconds,
            gain_fraction=1 - fastest.step_seconds / report.plans[0].step_seconds,
        )
