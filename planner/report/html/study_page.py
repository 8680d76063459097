"""The page of a study: a plot and a table of each entry that was changed, or of the features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.report.html.charts import range_of
from planner.report.html.frame import Chapter, asset, body_html, header_html, page_text, plot, section_html
from planner.report.records import finite
from planner.report.records.study import StudiedPlanRecord, StudyRecord
from planner.report.section import seconds
from planner.report.study import features_sections, heading_rows, title_of_study
from planner.report.study import series_section as section_of
from planner.uncertainty.intervals import COVERAGE
from planner.verbs.study import Series

MOST_SPREAD = 16
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


def study_page(whole: StudyRecord) -> str:
    """Build the page of a study."""
    facts = dict(heading_rows(whole))
    proof = facts.pop("proof")
    header = header_html(
        subject=facts.pop("job"),
        title=title_of_study(whole),
        answer=proof,
        verdict="plain" if proof.startswith("every") else "bad",
        facts={**facts, **{f"note {number}": text for number, text in enumerate(whole.notes, start=1)}},
    )
    return page_text(
        title=title_of_study(whole),
        subject=whole.job,
        body=body_html(header, _chapters(whole)),
        data=finite({"report": whole, "charts": study_charts(whole), "timelines": {}}),
        scripts=[asset("timeline.js")],
    )


def _chapters(whole: StudyRecord) -> Iterator[Chapter]:
    for one in whole.series:
        blocks = []
        if any(point.plan for point in one.points):
            blocks.append(plot(one.name, f"{_quantity(whole)[0]} by {one.label}; {_BAND}"))
        yield Chapter(one.name, one.name, one.label, [*blocks, section_html(section_of(whole, one))])
    if whole.features:
        caption = f"Share of the step of the plan changed in one feature that the plan itself saves; {_LINES}"
        blocks = [plot("features", caption), *map(section_html, features_sections(whole))]
        yield Chapter("features", "Features", "Gain of each feature", blocks)


_LINES = f"the lines: the {COVERAGE:.0%} intervals of such differences"
_BAND = f"the band: with the {COVERAGE:.0%} interval of a measured step"


def study_charts(whole: StudyRecord) -> dict[str, Any]:
    """Build the plots of a study by their names."""
    charts = {one.name: _series_chart(whole, one) for one in whole.series if any(point.plan for point in one.points)}
    if whole.features:
        charts["features"] = {
            "type": "changes",
            "axis": "% of the changed plan's step, saved by the plan (right) or lost (left)",
            "gains": True,
            "rows": [
                {
                    "label": f"{'' if one.is_in_plan else 'not '}{one.name}={one.text}",
                    "text": f"{one.last.fraction:+.1%}",
                    "value": 100 * one.last.fraction,
                    **range_of([100 * one.last.low_fraction, 100 * one.last.high_fraction], "{:+.1f}".format, "%"),
                }
                for one in whole.features
            ],
        }
    return charts


def _quantity(whole: StudyRecord) -> tuple[str, str]:
    """Return the quantity that a study plots, and its unit on the axis."""
    if whole.study == "reliability":
        return "Effective training time ratio", "ETTR, %"
    if whole.study == "schedule":
        return "Time of a step", "seconds per step"
    return "Throughput", "tokens per second and GPU"


def _ends(whole: StudyRecord, plan: StudiedPlanRecord) -> tuple[float, float, float]:
    """Return the plotted figure of a plan with the ends of its interval."""
    low, high = plan.step_time_interval_seconds
    step = plan.step_time_seconds
    if whole.study == "reliability":
        # the best interval has the highest ETTR, so that both ends may lie below it
        ends = (plan.ettr, *plan.plan.ettr_interval)
        return 100 * plan.ettr, 100 * min(ends), 100 * max(ends)
    if whole.study == "schedule":
        return step, low, high
    rate = plan.tokens_per_second_per_gpu
    return rate, rate * step / high, rate * step / low


def _series_chart(whole: StudyRecord, series: Series[StudiedPlanRecord]) -> dict[str, Any]:
    shown = [(point, point.plan) for point in series.points if point.plan]
    figures = [_ends(whole, plan) for _, plan in shown]
    values = [point.value for point, _ in shown]
    points = [
        [point.value, figure, f"{series.name} {point.text}: {_text(whole, plan)}\n{plan.line}"]
        for (point, plan), (figure, *_) in zip(shown, figures, strict=True)
    ]
    marks = [
        {"x": point.value, "y": figure, "text": "the job"}
        for (point, _), (figure, *_) in zip(shown, figures, strict=True)
        if point.value == series.own
    ]
    return {
        "type": "lines",
        "x": {"label": series.label, "log": 0 < MOST_SPREAD * min(values) <= max(values)},
        "y": {"label": _quantity(whole)[1], "log": False},
        "series": [{"name": "", "points": points, "spread": [[low, high] for _, low, high in figures]}],
        "marks": marks,
    }


def _text(whole: StudyRecord, plan: StudiedPlanRecord) -> str:
    if whole.study == "reliability":
        return f"ETTR {plan.ettr:.3%}, {plan.days:,.2f} days"
    return f"{seconds(plan.step_time_seconds)} s, {plan.tokens_per_second_per_gpu:,.1f} tokens/s/GPU"
