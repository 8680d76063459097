"""A report as one HTML file that needs nothing else: plots, tables and the pipeline's time line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.plan import EstimateReport, PlanReport


def html_text(report: PlanReport | EstimateReport) -> str:
    """The page of a report; what it needs beside the report is searched for in what the job's time limit leaves."""
    from planner.report.html.page import page_html
    from planner.report.html.study import study

    return page_html(study(report))
