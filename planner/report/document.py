"""A report as JSON: the tree of records as plain data, without NaN and infinity."""

from __future__ import annotations

import json
from typing import TypeAlias

from planner.report.records.explained import ComparisonRecord, ExplanationRecord
from planner.report.records.record import Plain
from planner.report.records.reports import ReportRecord, report_record
from planner.results import EstimateReport, PlanReport
from planner.verbs.compare import Comparison
from planner.verbs.explain import Explanation

AnyReport: TypeAlias = PlanReport | EstimateReport | Explanation | Comparison
AnyRecord: TypeAlias = ReportRecord | ExplanationRecord | ComparisonRecord


def document(report: AnyReport) -> Plain:
    """Return the whole report as plain data; infinite and undefined figures are None."""
    if isinstance(report, Explanation):
        return ExplanationRecord.build(report).plain()
    return (ComparisonRecord.build(report) if isinstance(report, Comparison) else report_record(report)).plain()


def json_text(report: AnyReport) -> str:
    """Return the document as strict JSON."""
    return json.dumps(document(report), indent=2, ensure_ascii=False, allow_nan=False)
