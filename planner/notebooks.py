"""Reports in notebooks: pages that a cell shows, and tables for pandas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from planner.advice.advise import Advice
from planner.advice.render import render_advice
from planner.batch.job_result import JobResult, line_of
from planner.batch.results import row_of
from planner.report import render, render_study
from planner.results import Displayed, EstimateReport, PlanReport
from planner.verbs.compare import Comparison
from planner.verbs.device_counts import PlansBySize
from planner.verbs.explain import Explanation
from planner.verbs.study import StudyReport

if TYPE_CHECKING:
    from pandas import DataFrame

HEIGHT = 640
"""Height of a page in a cell, in pixels: its first screen; the rest is scrolled to."""


def html_of(shown: Displayed) -> str:
    """
    Return a report for a cell: its page in a frame, which loads nothing; others as a table or text.

    The page leaves out what more searches would find, so that a cell is shown at once.
    """
    if isinstance(shown, Comparison | EstimateReport | PlanReport | StudyReport | Advice):
        page = _page(shown)
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe title="planner" sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'
    if isinstance(shown, Explanation):
        return f"<pre>{escape(render(shown, 'table'))}</pre>"
    rows = list(_rows(shown))
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(row.get(name)))}</td>' for name in names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(shown: Comparison | EstimateReport | PlanReport | StudyReport | Advice) -> str:
    """Return the page of a report."""
    from planner.report.html.page import page_html
    from planner.report.html.shown import ShownReport
    from planner.report.records.reports import report_record

    if isinstance(shown, EstimateReport | PlanReport):
        return page_html(ShownReport(whole=report_record(shown)))
    return _text(shown, "html")


def _text(shown: Comparison | EstimateReport | PlanReport | StudyReport | Advice, format: str) -> str:
    """Format a report."""
    if isinstance(shown, StudyReport):
        return render_study(shown, format)
    return render_advice(shown, format) if isinstance(shown, Advice) else render(shown, format)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def to_frame(shown: Displayed | Iterable[Displayed]) -> DataFrame:
    """
    Return reports as a DataFrame of pandas, which is imported here: a row for each plan, size or binding constraint.

    Parameters
    ----------
    shown
        A report, or several, such as the results of :func:`planner.batch.run.plan_many`.

    Raises
    ------
    SpecError
        If it is no report, or pandas is not installed.
    """
    from costmodel.errors import SpecError
    from costmodel.validation import shown as text

    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise SpecError(
            "to_frame", "the Python package 'pandas' is missing.", "Install it: pip install pandas."
        ) from None
    several = list(shown) if isinstance(shown, Iterable) and not isinstance(shown, str) else [shown]
    for one in several:
        if not isinstance(one, Displayed):
            raise SpecError("to_frame", f"expected a report or several, got {text(one)}.")
    tables = []
    for one in several:
        if isinstance(one, Comparison | EstimateReport | PlanReport | StudyReport | Advice):
            tables.append(pd.read_csv(StringIO(_text(one, "csv"))))
        else:
            tables.append(pd.DataFrame(list(_rows(one))))
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _rows(shown: Displayed) -> Iterator[Mapping[str, Any]]:
    """Yield rows of a report that has no CSV."""
    if isinstance(shown, JobResult):
        line = json.loads(line_of(shown))
        for figures in shown.plans or (None,):
            yield row_of(line, figures)
    elif isinstance(shown, PlansBySize):
        for size in shown.sizes:
            plan = size.plan
            yield {
                "num_nodes": size.num_nodes,
                "num_devices": size.num_devices,
                "num_idle": size.num_idle,
                "status": size.status.value,
                "tokens_per_second": size.tokens_per_second,
                "step_time_seconds": plan.step_seconds if plan else None,
                **(plan.strategy.decisions() if plan else {}),
            }
    elif isinstance(shown, Explanation):
        for one in shown.bindings:
            yield {"constraint": one.what, "saved_seconds": one.saved_seconds, "step_time_seconds": one.step_seconds}
        for part in shown.differences:
            yield {"part": part.name, "best_seconds": part.best_seconds, "given_seconds": part.given_seconds}
