"""Formats of an advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.errors import SpecError, did_you_mean
from planner.report import lay_out
from planner.report.section import PLAIN, Screen

if TYPE_CHECKING:
    from planner.advice.advise import Advice

FORMATS = ("table", "json", "csv", "markdown", "html")


def render_advice(advice: Advice, format: str = "table", *, screen: Screen = PLAIN, job: str = "JOB.yaml") -> str:
    """
    Format an advice as text.

    Parameters
    ----------
    advice
        The advice.
    format
        ``table``, ``markdown``, ``json``, ``csv``, one row per planned cell, or ``html``, a page with the front.
    screen
        Width of the console and its colours.
    job
        Words that name the job in the next commands.

    Raises
    ------
    SpecError
        If there is no such format.
    """
    match format:
        case "table" | "markdown":
            from planner.advice.sections import sections_of

            return lay_out(sections_of(advice, job), format, screen=screen, title="##")
        case "json":
            from planner.advice.records import AdviceRecord

            return AdviceRecord.build(advice).json_text()
        case "csv":
            from planner.advice.records import csv_text

            return csv_text(advice)
        case "html":
            from planner.advice.page import html_text

            return html_text(advice, job)
    raise SpecError("format", f"there is no format '{format}'.", did_you_mean(format, FORMATS))
