"""Whole reports: what planner plan and planner estimate answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.plan import EstimateReport, PlanReport
from planner.report.records.outcome import OutcomeRecord
from planner.report.records.plan import NumberedPlanRecord, PlanRecord
from planner.report.records.record import Record
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import spelled


class PlanReportRecord(OutcomeRecord, SettingRecord):
    """The report of planner plan."""

    kind: Literal["plan"] = Field(description="Of which kind the report is.")
    plans: list[NumberedPlanRecord] = Field(description="Best first.")

    @classmethod
    def of_report(cls, report: PlanReport) -> PlanReportRecord:
        """The record of a report."""
        return cls(
            **dict(SettingRecord.of_job(report, "plan")),
            **dict(OutcomeRecord.of_report(report)),
            plans=NumberedPlanRecord.of_all(report.plans),
        )


class GivenRecord(Record):
    """A strategy that was given."""

    allowed: bool = Field(description="Whether the rules allow the strategy.")
    broken_rules: list[str] = Field(description="Sentences of the rules that do not.")
    assumed: dict[str, int | bool | str] = Field(
        description="Decisions that were not given, with the values that they got."
    )


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """The report of planner estimate."""

    kind: Literal["estimate"] = Field(description="Of which kind the report is.")

    @classmethod
    def of_report(cls, report: EstimateReport) -> EstimateReportRecord:
        """The record of a report."""
        return cls(
            **dict(SettingRecord.of_job(report, "estimate")),
            allowed=not report.broken_rules,
            broken_rules=list(report.broken_rules),
            assumed={name: spelled(value) for name, value in report.assumed.items()},
            **dict(PlanRecord.of_plan(report.plan)),
        )

    @property
    def plans(self) -> list[NumberedPlanRecord]:
        """The one plan, as a :class:`PlanReportRecord` holds them."""
        return [NumberedPlanRecord.alone(self)]


def report_record(report: PlanReport | EstimateReport) -> PlanReportRecord | EstimateReportRecord:
    """The record of a report."""
    if isinstance(report, EstimateReport):
        return EstimateReportRecord.of_report(report)
    return PlanReportRecord.of_report(report)
