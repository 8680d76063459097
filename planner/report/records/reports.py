"""Whole reports of planner plan and planner estimate."""

from __future__ import annotations

from typing import Literal, TypeAlias

from planner.report.records.devices import IdleDevicesRecord, NearbyBatchRecord
from planner.report.records.outcome import (
    EVEN,
    AlternativeRecord,
    CandidatesRecord,
    CertificateRecord,
    ConflictRecord,
    EffortRecord,
    ExcludedRecord,
    OutcomeRecord,
)
from planner.report.records.plan import NumberedPlanRecord, PlanRecord
from planner.report.records.published import PublishedLayoutRecord
from planner.report.records.recommended import RecommendationRecord
from planner.report.records.record import Record, entry, finite
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import spell
from planner.results import EstimateReport, PlanReport
from planner.verbs.recipes import nearest_recipe


class PlanReportRecord(OutcomeRecord, SettingRecord):
    """The report of planner plan."""

    kind: Literal["plan"] = entry("Kind of the report.")
    plans: list[NumberedPlanRecord] = entry("The recommended one first, then by their steps.")
    published: PublishedLayoutRecord | None = entry(
        "The nearest published layout, costed for the job; null where none is for it, or no plan was found."
    )
    small_runs: list[str] = entry("Notes on the small runs that the device's constants come from; empty without any.")
    recommendation: RecommendationRecord | None = entry(
        "Why the first plan is the first; null where the fastest one was asked for, or none was found."
    )
    idle: IdleDevicesRecord | None = entry(
        "Whole nodes that stay idle where that is faster; null where the job says how many devices are used."
    )
    nearby_batches: list[NearbyBatchRecord] = entry(
        "Near-by batches with which all devices train more tokens per second, the nearest first, each faster than "
        "those before it; looked for where devices stay idle or share a small divisor with the batch."
    )

    @classmethod
    def build_from_report(cls, report: PlanReport) -> PlanReportRecord:
        """Build the record of a report."""
        outcome = report.outcome
        return cls.read(
            outcome,
            **dict(SettingRecord.build_from_job(report, "plan")),
            lower_bound_seconds=finite(outcome.lower_bound_seconds),
            bound_of=EVEN if outcome.stages_differ else "all strategies",
            gap=finite(outcome.gap),
            certificate=CertificateRecord.build(report.certificate, report.chosen) if report.certificate else None,
            search=EffortRecord.read(outcome.effort, num_excluded=ExcludedRecord.build(outcome.effort)),
            candidates=CandidatesRecord.build(report.listed) if report.listed else None,
            conflict=ConflictRecord.build(report, outcome.conflict) if outcome.conflict else None,
            plans=NumberedPlanRecord.build_all(report.plans),
            published=_nearest_published(report),
            small_runs=list(report.small_runs),
            recommendation=RecommendationRecord.build(report),
            alternatives=[AlternativeRecord.read(one) for one in report.alternatives],
            idle=IdleDevicesRecord.build(report),
            nearby_batches=NearbyBatchRecord.build_from_report(report),
        )


class GivenRecord(Record):
    """A strategy that was given."""

    allowed: bool = entry("True if the rules allow the strategy.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.")
    broken_preferences: list[str] = entry("Sentences of the preferences for which the search leaves it out.")
    assumed: dict[str, int | bool | str] = entry("Decisions that were not given, with the values that they got.")
    completed: str = entry("Completed decisions, as words of the strategy's line.")
    completed_by: str = entry(
        "Origin of these values: search, recipes (of the framework), no_plan (recipes, as nothing with what was given "
        "is allowed); given: nothing was left open."
    )


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """The report of planner estimate."""

    kind: Literal["estimate"] = entry("Kind of the report.")
    published: PublishedLayoutRecord | None = entry(
        "The nearest published layout, costed for the job; null where none is for it."
    )

    @classmethod
    def build_from_report(cls, report: EstimateReport) -> EstimateReportRecord:
        """Build the record of a report."""
        return cls(
            **dict(SettingRecord.build_from_job(report, "estimate")),
            **dict(PlanRecord.build_from_plan(report.plan)),
            published=_nearest_published(report),
            allowed=not report.broken_rules,
            broken_rules=list(report.broken_rules),
            broken_preferences=list(report.broken_preferences),
            assumed={name: spell(value) for name, value in report.assumed.items()},
            completed=report.completed,
            completed_by=report.completed_by,
        )

    @property
    def plans(self) -> list[NumberedPlanRecord]:
        """Return the one plan, as a :class:`PlanReportRecord` holds its plans; it is compared with itself."""
        alone = NumberedPlanRecord(
            **{name: getattr(self, name) for name in PlanRecord.model_fields},
            number=1,
            slower_fraction=0.0,
            within_noise_of_best=True,
            chance_fastest=1.0,
            difference_seconds=0.0,
            difference_by_part={part.name: 0.0 for part in self.breakdown},
            difference_cost=None if self.costs.total_cost is None else 0.0,
        )
        return [alone]


ReportRecord: TypeAlias = PlanReportRecord | EstimateReportRecord


def _nearest_published(report: PlanReport | EstimateReport) -> PublishedLayoutRecord | None:
    """Find the published layout nearest to a report's job, and compare it with the first plan."""
    if not report.plans:
        return None
    return PublishedLayoutRecord.build(nearest_recipe(report.chosen), report.plans[0].step_seconds)


def report_record(report: PlanReport | EstimateReport) -> ReportRecord:
    """Build the record of a report."""
    if isinstance(report, EstimateReport):
        return EstimateReportRecord.build_from_report(report)
    return PlanReportRecord.build_from_report(report)
