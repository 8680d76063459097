"""A whole page: sections and plots in reading order, with their data, style and scripts in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.report.compared import comparison_sections
from planner.report.html import content
from planner.report.html.charts import (
    bindings_chart,
    checkpoint_charts,
    differences_chart,
    memory_chart,
    pareto_chart,
    step_range,
    steps_chart,
)
from planner.report.html.costs import cost_charts
from planner.report.html.frame import asset, page_text
from planner.report.html.shown import Shown, ShownReport, comparison_plans, show_report
from planner.report.html.timeline import timeline_of
from planner.report.records import finite
from planner.report.records.explained import ComparisonRecord
from planner.report.records.reports import ReportRecord
from planner.report.results import title_of

MOST_TIMELINES = 4
"""Plans whose timeline is in the page: each takes up to a megabyte, and people compare the first ones."""


def html_text(whole: ReportRecord | ComparisonRecord) -> str:
    """Build the page of any report that has one."""
    return comparison_page(whole) if whole.kind == "comparison" else page_html(show_report(whole))


def page_html(shown: ShownReport) -> str:
    """Build the page of a plan or an estimate."""
    return page_text(
        title=title_of(shown.whole),
        subject=shown.whole.job.name,
        body=content.body(shown),
        data=page_data(shown),
        scripts=[asset("timeline.js")],
    )


def comparison_page(whole: ComparisonRecord) -> str:
    """Build the page of a comparison: the given strategy compared with the fastest plan."""
    shown, sections = comparison_plans(whole), tuple(comparison_sections(whole))
    charts, timelines = comparison_charts(whole, shown), timelines_of(shown)
    return page_text(
        title=sections[0].title,
        subject=whole.problem.name,
        body=content.comparison_body(whole, shown, sections),
        data=finite({"report": whole, "charts": charts, "timelines": timelines}),
        scripts=[asset("timeline.js")],
    )


def page_data(shown: ShownReport) -> dict[str, Any]:
    """Return the data of the plots of a page, and the report as JSON."""
    whole, chosen = shown.whole, shown.whole.report.chosen
    charts = plan_charts(shown.plans)
    if whole.conflict and whole.conflict.closest:
        room = chosen.search.memory_headroom_bytes
        charts["memory closest"] = memory_chart(chosen.facts.cluster, whole.conflict.closest, headroom_bytes=room)
    if shown.explanation and shown.bindings:
        noise = whole.plans[0].plan.noise_fraction
        charts["bindings"] = bindings_chart(shown.explanation, shown.bindings, noise)
    if shown.pareto_front and shown.pareto_front.points:
        charts["front"] = pareto_chart(whole, shown.pareto_front, chosen)
    data: dict[str, Any] = finite({"report": whole, "charts": charts, "timelines": timelines_of(shown.plans)})
    return data


def plan_charts(every: Sequence[Shown]) -> dict[str, Any]:
    """Build the plots of each plan."""
    charts: dict[str, Any] = {"steps": steps_chart(every), **cost_charts(every)} if every else {}
    for one in every:
        charts[f"memory {one.number}"] = memory_of(one)
        charts |= {f"{name} {one.number}": chart for name, chart in checkpoint_charts([("", one.plan)]).items()}
    return charts


def memory_of(one: Shown) -> dict[str, Any]:
    """Build the plot of the memory of a plan."""
    return memory_chart(one.plan.cluster, one.record, headroom_bytes=one.plan.problem.search.memory_headroom_bytes)


def comparison_charts(whole: ComparisonRecord, every: Sequence[Shown]) -> dict[str, Any]:
    """Build the plots of the given strategy and the fastest plan, on the same axes."""
    memory = [memory_of(one) for one in every]
    most = max(column["range"][1] for chart in memory for column in chart["columns"])
    charts: dict[str, Any] = {"steps": steps_chart(every), **cost_charts(every)}
    charts |= {f"memory {one.number}": {**chart, "most": most} for one, chart in zip(every, memory, strict=True)}
    charts |= checkpoint_charts([(one.name if every[1:] else "", one.plan) for one in every])
    if whole.best and whole.apart.gain and whole.comparison.same_step:
        ends = (whole.apart.gain.low_fraction, whole.apart.gain.high_fraction)
        charts["differences"] = differences_chart(whole.differences, whole.given.plan, whole.best.plan, ends)
    return charts


def timelines_of(every: Sequence[Shown]) -> dict[str, Any]:
    """Build the timelines of the first plans that have one, with the interval of a measured step."""
    found = [(one, timeline_of(one.plan.facts, one.plan.estimate)) for one in every[:MOST_TIMELINES]]
    return {str(one.number): {**packed, **step_range(one.record)} for one, packed in found if packed}
