"""A report as JSON: the tree of records as plain data, without NaN and infinity."""

from __future__ import annotations

import json
from typing import TypeAlias

from planner.explanation.compare import Comparison
from planner.explanation.explain import Explanation
from planner.report.records.explained import ComparisonRecord, ExplanationRecord
from planner.report.records.record import Plain
from planner.report.records.reports import ReportRecord, report_record
from planner.results import EstimateReport, PlanReport

AnyReport: TypeAlias = PlanReport | EstimateReport | Explanation | Comparison
AnyRecord: TypeAlias = ReportRecord | ExplanationRecord | ComparisonRecord


def document(report: AnyReport) -> Plain:
    """The whole report as plain data; what is infinite or undefined is None."""
    if isinstance(report, Explanation):
        return ExplanationRecord.of(report).plain()
    return (ComparisonRecord.of(report) if isinstance(report, Comparison) else report_record(report)).plain()


def json_text(report: AnyReport) -> str:
    """The document as strict JSON."""
    return json.dumps(document(report), indent=2, ensure_ascii=False, allow_nan=False)
