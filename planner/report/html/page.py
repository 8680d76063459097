"""A page put together: sections and plots in reading order, with their data, style and scripts in one file."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from planner.report.html import content
from planner.report.html.charts import (
    bindings_chart,
    checkpoint_charts,
    memory_chart,
    pareto_chart,
    steps_chart,
)
from planner.report.html.study import Study
from planner.report.html.timeline import timeline_of
from planner.report.records.record import finite
from planner.report.records.reports import PlanReportRecord
from planner.report.sections import heading_section

SCRIPTS = ("draw.js", "bars.js", "plots.js", "timeline.js", "page.js")
"""In the order in which they need each other."""

MOST_TIMELINES = 4
"""Plans whose time line is in the page: each takes up to a megabyte, and people compare the first ones."""


def page_html(study: Study) -> str:
    """A whole page."""
    style, scripts = _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    script = f'"use strict";(() => {{\n{scripts}\n}})();'
    setting = heading_section(study.report, study.whole)
    return Template(_asset("page.html")).substitute(
        title=escape(setting.title),
        job=escape(study.whole.job.name),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        body="\n".join(content.body(study)),
        data=_data(study),
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


def _data(study: Study) -> str:
    """The data of a page as JSON that no parser of HTML can take for markup."""
    text = json.dumps(page_data(study), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return files("planner.report.html").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    """What the page's Content-Security-Policy allows: this text and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
