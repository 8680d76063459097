"""Reports: the same content as console text, Markdown, JSON and CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.plan import EstimateReport, PlanReport

FORMATS = ("table", "json", "csv", "markdown")


def render(report: PlanReport | EstimateReport, format: str = "table") -> str:
    """
    A report as text.

    Parameters
    ----------
    report
        What :func:`planner.plan.plan` or :func:`planner.plan.estimate` returned.
    format
        ``table`` for a console of 100 columns, ``markdown``, ``json``, or ``csv`` with one row per plan.

    Raises
    ------
    SpecError
        If there is no such format.
    """
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
        case "csv":
            from planner.report.table_csv import csv_text

            return csv_text(report)
    from costmodel.errors import SpecError, did_you_mean

    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, FORMATS))
