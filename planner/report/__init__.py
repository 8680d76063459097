"""Reports: the same content as console text, Markdown, JSON, CSV and an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.section import PLAIN, Asked, Screen

if TYPE_CHECKING:
    from planner.report.records.reports import AnyReport
    from planner.results import EstimateReport, PlanReport
    from planner.verbs.study_points import StudyReport

FORMATS = ("short", "table", "json", "csv", "markdown", "html")

STUDY_FORMATS = ("table", "json", "csv", "markdown", "html")
"""Formats of a study."""

OF_PLANS = {"short": "short answer", "csv": "rows for 'csv'"}
"""Formats that explanations lack; comparisons have ``csv`` alone."""


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

    match format:
        case "table":
            from planner.report.console import console_text

            return console_text(report, screen)
        case "markdown":
            from planner.report.markdown import markdown_text

            return markdown_text(report)
        case "json":
            from planner.report.records.reports import json_text

            return json_text(report)
        case "html":
            from planner.report.html.page import html_text
            from planner.verbs.explain import Explanation

            if isinstance(report, Explanation):
                raise SpecError("format", "explanations have no page.", "Use table, markdown or json.")
            return html_text(report)
        case "short" | "csv":
            from planner.results import EstimateReport, PlanReport

            if isinstance(report, PlanReport | EstimateReport):
                return _plan_text(report, format, screen, asked)
            from planner.verbs.compare import Comparison

            if isinstance(report, Comparison) and format == "csv":
                from planner.report.table_csv import comparison_csv_text

                return comparison_csv_text(report)
            problem = f"explanations and comparisons have no {OF_PLANS[format]}."
            raise SpecError("format", problem, "Use table, markdown or json.")
    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, FORMATS))


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

    whole = StudyRecord.build(report)
    match format:
        case "table":
            from planner.report.console import sections_text

            return sections_text(study_sections(whole), screen)
        case "markdown":
            from planner.report.markdown import sections_markdown

            return sections_markdown(study_sections(whole))
        case "json":
            return whole.json_text()
        case "csv":
            return study_csv(whole)
        case "html":
            from planner.report.html.study_page import study_page

            return study_page(whole)
    from costmodel.errors import SpecError, did_you_mean

    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, STUDY_FORMATS))


def _plan_text(report: PlanReport | EstimateReport, format: str, screen: Screen, asked: Asked | None) -> str:
    """Format a plan or an estimate as ``short`` or ``csv``."""
    if format == "csv":
        from planner.report.table_csv import csv_text

        return csv_text(report)
    from planner.report.console import sections_text
    from planner.report.short import short_sections

    return sections_text(short_sections(report, asked), screen)
