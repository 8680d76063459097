"""Whole reports: what planner plan and planner estimate answer."""

from __future__ import annotations

from typing import Literal, TypeAlias

from planner.explanation.recipes import nearest_recipe
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
from planner.report.records.strategy import spelled
from planner.results import EstimateReport, PlanReport


class PlanReportRecord(OutcomeRecord, SettingRecord):
    """The report of planner plan."""

    kind: Literal["plan"] = entry("Of which kind the report is.")
    plans: list[NumberedPlanRecord] = entry("The recommended one first, then by their steps.")
    published: PublishedLayoutRecord | None = entry(
        "The nearest published layout, costed for the job; null where none is for it, or no plan was found."
    )
    small_runs: list[str] = entry("What small runs say, whose constants the device has; empty without any.")
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
    def of_report(cls, report: PlanReport) -> PlanReportRecord:
        """The record of a report."""
        outcome = report.outcome
        return cls.read(
            outcome,
            **dict(SettingRecord.of_job(report, "plan")),
            lower_bound_seconds=finite(outcome.lower_bound_seconds),
            bound_of=EVEN if outcome.stages_differ else "all strategies",
            gap=finite(outcome.gap),
            certificate=CertificateRecord.of(report.certificate, report.chosen) if report.certificate else None,
            search=EffortRecord.read(outcome.effort, num_excluded=ExcludedRecord.of(outcome.effort)),
            candidates=CandidatesRecord.of(report.listed) if report.listed else None,
            conflict=ConflictRecord.of(report, outcome.conflict) if outcome.conflict else None,
            plans=NumberedPlanRecord.of_all(report.plans),
            published=_published(report),
            small_runs=list(report.small_runs),
            recommendation=RecommendationRecord.of(report),
            alternatives=[AlternativeRecord.read(one) for one in report.alternatives],
            idle=IdleDevicesRecord.of(report),
            nearby_batches=NearbyBatchRecord.of_report(report),
        )


class GivenRecord(Record):
    """A strategy that was given."""

    allowed: bool = entry("Whether the rules allow the strategy.")
    broken_rules: list[str] = entry("Sentences of the rules that do not.")
    broken_preferences: list[str] = entry("Sentences of the preferences for which the search leaves it out.")
    assumed: dict[str, int | bool | str] = entry("Decisions that were not given, with the values that they got.")
    completed: str = entry("Those of them that a line says, as its words.")
    completed_by: str = entry(
        "Who chose these values: search, recipes (of the framework), no_plan (recipes, as nothing with what was given "
        "is allowed); given: nothing was left open."
    )


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """The report of planner estimate."""

    kind: Literal["estimate"] = entry("Of which kind the report is.")
    published: PublishedLayoutRecord | None = entry(
        "The nearest published layout, costed for the job; null where none is for it."
    )

    @classmethod
    def of_report(cls, report: EstimateReport) -> EstimateReportRecord:
        """The record of a report."""
        return cls(
            **dict(SettingRecord.of_job(report, "estimate")),
            **dict(PlanRecord.of_plan(report.plan)),
            published=_published(report),
            allowed=not report.broken_rules,
            broken_rules=list(report.broken_rules),
            broken_preferences=list(report.broken_preferences),
            assumed={name: spelled(value) for name, value in report.assumed.items()},
            completed=report.completed,
            completed_by=report.completed_by,
        )

    @property
    def plans(self) -> list[NumberedPlanRecord]:
        """The one plan, as a :class:`PlanReportRecord` holds them; it is compared with itself."""
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


def _published(report: PlanReport | EstimateReport) -> PublishedLayoutRecord | None:
    """The nearest published layout beside the first plan of a report."""
    if not report.plans:
        return None
    return PublishedLayoutRecord.of(nearest_recipe(report.chosen), report.plans[0].step_seconds)


def report_record(report: PlanReport | EstimateReport) -> ReportRecord:
    """The record of a report."""
    if isinstance(report, EstimateReport):
        return EstimateReportRecord.of_report(report)
    return PlanReportRecord.of_report(report)
