"""Reports: the same content as console text, Markdown, JSON, CSV and an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.explanation.compare import Comparison
    from planner.explanation.explain import Explanation
    from planner.plan import EstimateReport, PlanReport

FORMATS = ("table", "json", "csv", "markdown", "html")


def render(report: PlanReport | EstimateReport | Explanation | Comparison, format: str = "table") -> str:
    """
    A report as text.

    Parameters
    ----------
    report
        What :func:`planner.plan.plan`, :func:`planner.plan.estimate`, :func:`planner.explanation.explain.explain` or
        :func:`planner.explanation.compare.compare` returned.
    format
        ``table`` for a console of 100 columns, ``markdown``, ``json``. Plans and estimates also have ``csv`` with one
        row per plan, and ``html``, a page that searches further around the best plan in what the time limit leaves.

    Raises
    ------
    SpecError
        If there is no such format.
    """
    from costmodel.errors import SpecError, did_you_mean

    match format:
        case "table":
            from planner.report.console import console_text

            return console_text(report)
        case "markdown":
            from planner.report.markdown import markdown_text

            return markdown_text(report)
        case "json":
            from planner.report.document import json_text

            return json_text(report)
        case "csv" | "html":
            from planner.plan import EstimateReport, PlanReport

            if not isinstance(report, PlanReport | EstimateReport):
                lacking = {"csv": "rows for 'csv'", "html": "page"}[format]
                problem = f"explanations and comparisons have no {lacking}."
                raise SpecError("format", problem, "Use table, markdown or json.")
            if format == "csv":
                from planner.report.table_csv import csv_text

                return csv_text(report)
            from planner.report.html.page import page_html
            from planner.report.html.study import study

            return page_html(study(report))
    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, FORMATS))
