"""A page put together: sections and plots in reading order, with their data, style and scripts in one file."""

from __future__ import annotations

from typing import Any

from planner.report.html import content
from planner.report.html.charts import (
    bindings_chart,
    checkpoint_charts,
    memory_chart,
    pareto_chart,
    steps_chart,
)
from planner.report.html.frame import asset, page_text
from planner.report.html.study import Study
from planner.report.html.timeline import timeline_of
from planner.report.records.record import finite
from planner.report.records.reports import PlanReportRecord
from planner.report.sections import heading_section

MOST_TIMELINES = 4
"""Plans whose time line is in the page: each takes up to a megabyte, and people compare the first ones."""


def page_html(study: Study) -> str:
    """A whole page."""
    return page_text(
        title=heading_section(study.report, study.whole).title,
        subject=study.whole.job.name,
        body=content.body(study),
        data=page_data(study),
        scripts=[asset("timeline.js")],
    )


def page_data(study: Study) -> dict[str, Any]:
    """What the plots of a page show, and the report as programs read it."""
    report, whole = study.report, study.whole
    charts: dict[str, Any] = {}
    if whole.plans:
        charts["steps"] = steps_chart(whole.plans)
        for plan, own in zip(report.plans, whole.plans, strict=True):
            ettr, days = checkpoint_charts(report, plan)
            of_plan = {"memory": memory_chart(whole, own), "ettr": ettr, "days": days}
            charts |= {f"{name} {own.number}": chart for name, chart in of_plan.items()}
    if isinstance(whole, PlanReportRecord) and whole.conflict and whole.conflict.closest:
        charts["memory closest"] = memory_chart(whole, whole.conflict.closest)
    if study.explanation and study.bindings:
        charts["bindings"] = bindings_chart(study.explanation, study.bindings)
    if study.pareto_front and study.pareto_front.points:
        charts["front"] = pareto_chart(whole, study.pareto_front)
    shown = report.plans[:MOST_TIMELINES]
    timelines = {str(n): timeline_of(one.problem.facts, one.estimate) for n, one in enumerate(shown, start=1)}
    drawn = {number: one for number, one in timelines.items() if one}
    data: dict[str, Any] = finite({"report": whole.model_dump(), "charts": charts, "timelines": drawn})
    return data
