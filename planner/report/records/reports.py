"""Whole reports of planner plan and planner estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, cast

from planner.report.records.outcome import (
    EVEN,
    AlternativeRecord,
    CandidatesRecord,
    CertificateRecord,
    ConflictRecord,
    EffortRecord,
    IdleDevicesRecord,
    NearbyBatchRecord,
    OutcomeRecord,
    RecommendationRecord,
)
from planner.report.records.plan import NumberedPlanRecord, PlanRecord, PublishedLayoutRecord
from planner.report.records.record import Plain, Record, finite
from planner.report.records.setting import SettingRecord
from planner.results import EstimateReport, Plan, PlanReport
from planner.verbs.recipes import nearest_recipe

if TYPE_CHECKING:
    from planner.report.records.explained import ComparisonRecord, ExplanationRecord
    from planner.verbs.compare import Comparison
    from planner.verbs.explain import Explanation


class PlanReportRecord(OutcomeRecord, SettingRecord):
    """
    The report of planner plan.

    Parameters
    ----------
    kind
        Kind of the report.
    plans
        The recommended one first, then by their steps.
    published
        The nearest published layout, costed for the job; null where none is for it, or no plan was found.
    small_runs
        Notes on the small runs that the device's constants come from; empty without any.
    recommendation
        Why the first plan is the first; null where the fastest one was asked for, or none was found.
    idle
        Whole nodes that stay idle where that is faster; null where the job says how many devices are used.
    nearby_batches
        Near-by batches with which all devices train more tokens per second, the nearest first, each faster than those
        before it. They are looked for where devices stay idle or share a small divisor with the batch.
    """

    kind: Literal["plan"]
    plans: list[NumberedPlanRecord]
    published: PublishedLayoutRecord | None
    small_runs: list[str]
    recommendation: RecommendationRecord | None
    idle: IdleDevicesRecord | None
    nearby_batches: list[NearbyBatchRecord]

    broken_rules: ClassVar[tuple[str, ...]] = ()
    broken_preferences: ClassVar[tuple[str, ...]] = ()

    @property
    def report(self) -> PlanReport:
        """The report itself."""
        return cast("PlanReport", self._sources[0])

    @classmethod
    def build_from_report(cls, report: PlanReport) -> PlanReportRecord:
        """Build the record of a report."""
        outcome = report.outcome
        return cls.read(
            report,
            outcome,
            **SettingRecord.read_entries(report, "plan"),
            lower_bound_seconds=finite(outcome.lower_bound_seconds),
            bound_of=EVEN if outcome.stages_differ else "all strategies",
            gap=finite(outcome.gap),
            certificate=CertificateRecord.build(report.certificate, report.chosen) if report.certificate else None,
            search=EffortRecord.build(outcome.effort),
            candidates=CandidatesRecord.build(report.listed) if report.listed else None,
            conflict=ConflictRecord.build(report, outcome.conflict) if outcome.conflict else None,
            plans=NumberedPlanRecord.build_all(report.plans),
            published=_nearest_published(report),
            small_runs=list(report.small_runs),
            recommendation=RecommendationRecord.build(report),
            alternatives=[AlternativeRecord.build(one) for one in report.alternatives],
            idle=IdleDevicesRecord.build(report),
            nearby_batches=NearbyBatchRecord.build_from_report(report),
        )


class GivenRecord(Record):
    """
    A strategy that was given.

    Parameters
    ----------
    allowed
        True if the rules allow the strategy.
    broken_rules
        Sentences of the rules that forbid it.
    broken_preferences
        Sentences of the preferences for which the search leaves it out.
    assumed
        Decisions that were not given, with the values that they got.
    completed
        Completed decisions, as words of the strategy's line.
    completed_by
        Origin of these values: search, recipes (of the framework), no_plan (recipes, as nothing with what was given is
        allowed); given: nothing was left open.
    """

    allowed: bool
    broken_rules: list[str]
    broken_preferences: list[str]
    assumed: dict[str, int | bool | str]
    completed: str
    completed_by: str


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """
    The report of planner estimate.

    Parameters
    ----------
    kind
        Kind of the report.
    published
        The nearest published layout, costed for the job; null where none is for it.
    """

    kind: Literal["estimate"]
    published: PublishedLayoutRecord | None

    @classmethod
    def build_from_report(cls, report: EstimateReport) -> EstimateReportRecord:
        """Build the record of a report."""
        (plan,) = NumberedPlanRecord.build_all(report.plans)
        return cls.read(
            report,
            plan,
            **SettingRecord.read_entries(report, "estimate"),
            published=_nearest_published(report),
            allowed=not report.broken_rules,
            costs=lambda: plan.costs,
            assumed=finite(report.assumed),
        )

    recommendation: ClassVar[None] = None
    idle: ClassVar[None] = None
    conflict: ClassVar[None] = None
    small_runs: ClassVar[tuple[str, ...]] = ()
    nearby_batches: ClassVar[tuple[NearbyBatchRecord, ...]] = ()

    @property
    def report(self) -> EstimateReport:
        """The report itself."""
        return cast("EstimateReport", self._sources[0])

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.report.plan

    @property
    def plans(self) -> list[NumberedPlanRecord]:
        """The one plan, as a :class:`PlanReportRecord` holds its plans; it is compared with itself."""
        return [self._sources[1]]


ReportRecord: TypeAlias = PlanReportRecord | EstimateReportRecord


def _nearest_published(report: PlanReport | EstimateReport) -> PublishedLayoutRecord | None:
    """Find the published layout nearest to a report's job, and compare it with the first plan."""
    if not report.plans:
        return None
    return PublishedLayoutRecord.build(nearest_recipe(report.chosen), report.plans[0].step_seconds)


def report_record(report: PlanReport | EstimateReport | ReportRecord) -> ReportRecord:
    """Build the record of a report; one that is built already is returned."""
    if isinstance(report, PlanReportRecord | EstimateReportRecord):
        return report
    if isinstance(report, EstimateReport):
        return EstimateReportRecord.build_from_report(report)
    return PlanReportRecord.build_from_report(report)


AnyReport: TypeAlias = "PlanReport | EstimateReport | Explanation | Comparison"

AnyRecord: TypeAlias = "ReportRecord | ExplanationRecord | ComparisonRecord"


def record_of(report: AnyReport) -> AnyRecord:
    """Build the record of any report."""
    if isinstance(report, PlanReport | EstimateReport):
        return report_record(report)
    from planner.report.records.explained import ComparisonRecord, ExplanationRecord
    from planner.verbs.compare import Comparison

    return ComparisonRecord.build(report) if isinstance(report, Comparison) else ExplanationRecord.build(report)


def document(report: AnyReport) -> Plain:
    """Return the whole report as plain data; infinite and undefined figures are None."""
    return record_of(report).plain()


def json_text(report: AnyReport) -> str:
    """Return the document as strict JSON."""
    return record_of(report).json_text()
