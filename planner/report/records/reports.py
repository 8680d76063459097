"""Whole reports: what planner plan and planner estimate answer."""

from __future__ import annotations

from typing import Literal

from planner.plan import EstimateReport, PlanReport
from planner.report.records.outcome import OutcomeRecord
from planner.report.records.plan import NumberedPlanRecord, PlanRecord
from planner.report.records.record import Record
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import spelled


class PlanReportRecord(OutcomeRecord, SettingRecord):
    """
    What planner plan answers.

    Parameters
    ----------
    plans
        Best first.
    """

    kind: Literal["plan"]
    plans: list[NumberedPlanRecord]

    @classmethod
    def of_report(cls, report: PlanReport) -> PlanReportRecord:
        """The record of a report."""
        return cls(
            **dict(SettingRecord.of_job(report, "plan")),
            **dict(OutcomeRecord.of_report(report)),
            plans=NumberedPlanRecord.of_all(report.plans),
        )


class GivenRecord(Record):
    """
    A strategy that was given.

    Parameters
    ----------
    allowed, broken_rules
        Whether the rules allow the strategy, and the sentences of those that do not.
    assumed
        Decisions that were not given, with the values that they got.
    """

    allowed: bool
    broken_rules: list[str]
    assumed: dict[str, int | bool | str]


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """What planner estimate answers."""

    kind: Literal["estimate"]

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
