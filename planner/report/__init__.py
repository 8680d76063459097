"""Reports: the same content as console text, Markdown, JSON, CSV and an HTML page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from planner.report.section import PLAIN, Asked, Screen, Section

if TYPE_CHECKING:
    from planner.report.records.reports import AnyReport
    from planner.report.sections import AnyRecord
    from planner.verbs.study import StudyReport

FORMATS = ("short", "table", "json", "csv", "markdown", "html")

STUDY_FORMATS = ("table", "json", "csv", "markdown", "html")
"""Formats of a study."""

LACKED = {
    "short": "explanations and comparisons have no short answer.",
    "csv": "explanations and comparisons have no rows for 'csv'.",
    "html": "explanations have no page.",
}
"""Formats that explanations lack; comparisons lack the short answer alone."""


def render(
    report: AnyReport,
    format: str = "table",
    *,
    screen: Screen = PLAIN,
    asked: Asked | None = None,
) -> str:
    """
    Format a report as text.

    Parameters
    ----------
    report
        The result of :func:`planner.verbs.plan.plan`, :func:`planner.verbs.plan.estimate`,
        :func:`planner.verbs.explain.explain` or :func:`planner.verbs.compare.compare`.
    format
        ``table``, ``markdown`` and ``json`` hold the whole report. Plans and estimates also have ``short``, one screen
        with the next commands. Plans, estimates and comparisons have ``csv``, one row per plan, and ``html``, a page.
        The page of a plan uses the rest of the time limit to search further around the best plan.
    screen
        Width of the console and its colours; by default 100 columns without colours.
    asked
        The command and its words for the job, which a short answer repeats; by default ``JOB.yaml`` stands for the job.

    Raises
    ------
    SpecError
        If there is no such format.
    """
    from costmodel.errors import SpecError, did_you_mean

    if format not in FORMATS:
        raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, FORMATS))
    whole = record_of(report)
    match format:
        case "short" if whole.kind in ("plan", "estimate"):
            from planner.report.short import short_sections

            return lay_out(short_sections(whole, asked), screen=screen)
        case "json":
            return whole.json_text()
        case "csv" if whole.kind != "explanation":
            from planner.report.table_csv import csv_text

            return csv_text(whole)
        case "html" if whole.kind != "explanation":
            from planner.report.html.page import html_text

            return html_text(whole)
        case "table" | "markdown":
            from planner.report.sections import all_sections

            return lay_out(all_sections(whole), format, screen=screen)
    raise SpecError("format", LACKED[format], "Use table, markdown or json.")


def record_of(report: AnyReport) -> AnyRecord:
    """Build the record of any report."""
    from planner.report.records.reports import report_record
    from planner.results import EstimateReport, PlanReport

    if isinstance(report, PlanReport | EstimateReport):
        return report_record(report)
    from planner.report.records.explained import ComparisonRecord, ExplanationRecord
    from planner.verbs.compare import Comparison

    return ComparisonRecord.build(report) if isinstance(report, Comparison) else ExplanationRecord.build(report)


def lay_out(sections: Iterable[Section], format: str = "table", *, screen: Screen, title: str = "#") -> str:
    """Format sections for a console, or as Markdown, the first one's heading as the title."""
    if format == "markdown":
        from planner.report.console import sections_markdown

        return sections_markdown(sections, title)
    from planner.report.console import sections_text

    return sections_text(sections, screen)


def render_study(report: StudyReport, format: str = "table", *, screen: Screen = PLAIN) -> str:
    """
    Format a study as text.

    Parameters
    ----------
    report
        The result of :func:`planner.verbs.study.study`.
    format
        ``table`` and ``markdown`` for people, ``json``, ``csv`` with a row per point or feature, or ``html``, a page
        with plots.
    screen
        Width of the console and its colours.

    Raises
    ------
    SpecError
        If there is no such format.
    """
    from planner.report.records.study import StudyRecord
    from planner.report.study import study_csv, study_sections

    whole = StudyRecord.read(report)
    match format:
        case "table" | "markdown":
            return lay_out(study_sections(whole), format, screen=screen)
        case "json":
            return whole.json_text()
        case "csv":
            return study_csv(whole)
        case "html":
            from planner.report.html.study_page import study_page

            return study_page(whole)
    from costmodel.errors import SpecError, did_you_mean

    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, STUDY_FORMATS))
