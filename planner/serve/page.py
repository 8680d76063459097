"""The page of the application as HTML: its form, its answer, plans side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any, TypeAlias

from costmodel import catalog
from planner.batch.job_result import JobOutcome
from planner.frameworks import TARGETS
from planner.report.html.frame import asset, section_html
from planner.report.section import Section
from planner.serve.question import FIELDS, KEPT, MAX_KEPT, Field, Question

HOME = "planner.serve"


Answered: TypeAlias = tuple[Question, JobOutcome]
"""A question with its answer, whose report has parts of the page."""


def _script() -> str:
    library = "\n".join(map(asset, ("draw.js", "bars.js")))
    return f'"use strict";(() => {{\n{library}\n{asset("serve.js", HOME)}\n}})();'


ASSETS: Mapping[str, Callable[[], str]] = {
    "serve.js": _script,
    "serve.css": lambda: f"{asset('page.css')}\n{asset('serve.css', HOME)}",
}
"""Files that the page loads, by name."""


def page_html(shown: Question, kept: Sequence[Question], found: Sequence[Answered]) -> str:
    """Build the whole page: the form as a question fills it, and the answers."""
    data = json.dumps(chart_of(found)).replace("<", r"\u003c")
    return Template(asset("serve.html", HOME)).substitute(
        form=form_html(shown, kept), answer=answer_html(found) if found else "", data=data
    )


def mistake_page(message: str) -> str:
    """Build the page of a request that cannot be read."""
    form = f'{mistake_html(message)}<p><a href="/">Begin anew</a></p>'
    return Template(asset("serve.html", HOME)).substitute(form=form, answer="", data="null")


def mistake_html(message: str) -> str:
    """Build the text of a mistake."""
    return f'<p class="answer bad" role=alert>{escape(message)}</p>'


# --- the form ----------------------------------------------------------------------------------------------


def form_html(shown: Question, kept: Sequence[Question]) -> str:
    """Build the form; it works without scripts, as a link that holds the job."""
    fields = "".join(_field(field, shown[field.name]) for field in FIELDS)
    names = {
        "model": (*catalog.model_names(), *sorted(catalog.hub_names())),
        "device": catalog.devices(),
        "target": TARGETS,
    }
    lists = "".join(f"<datalist id=list-{name}>{_options(values)}</datalist>" for name, values in names.items())
    beside = "".join(
        f'<li><label><input type=checkbox name={KEPT} value="{escape(one.query)}" checked> '
        f"{escape(one.title)}</label></li>"
        for one in kept
    )
    return (
        f'<form id=job method=get action="/" data-most="{MAX_KEPT}">{fields}{lists}'
        f"<fieldset id=kept{'' if kept else ' hidden'}><legend>Side by side with</legend><ul>{beside}</ul></fieldset>"
        "<p class=buttons><button type=submit>Plan</button>"
        "<button type=button id=keep hidden>Keep to compare</button></p></form>"
    )


def _options(values: Iterable[str]) -> str:
    return "".join(f'<option value="{escape(one)}">' for one in values)


def _field(field: Field, text: str) -> str:
    name = field.name
    lists = f" list=list-{name}" if name in ("model", "device", "target") else ""
    below = f"<small id=hint-{name}>{escape(field.hint)}</small>" if field.hint else ""
    described = f" aria-describedby=hint-{name}" if field.hint else ""
    slider = ""
    if field.scale:
        least, most = field.scale
        slider = (
            f"<input type=range id=slide-{name} min={least} max={most} step=1 hidden "
            f'aria-label="{escape(field.label)}, powers of two">'
        )
    return (
        f"<div class=field><label for={name}>{escape(field.label)}</label>"
        f'<input id={name} name={name} value="{escape(text)}" autocomplete=off spellcheck=false{lists}{described}>'
        f"{slider}{below}</div>"
    )


# --- the answer --------------------------------------------------------------------------------------------


def answer_html(found: Sequence[Answered]) -> str:
    """Build the answers: one whole, several as a table side by side with each below."""
    first, *others = found
    beside = _side_by_side(found) if others else ""
    bars = "<figure class=plot id=steps><figcaption>Seconds per step.</figcaption></figure>" if chart_of(found) else ""
    rest = "".join(f"<details><summary>{escape(one[0].title)}</summary>{_one(*one)}</details>" for one in others)
    return f"{beside}{_one(*first)}{bars}{rest}"


def _one(question: Question, outcome: JobOutcome) -> str:
    if outcome.report is None:
        return mistake_html(outcome.message or str(outcome.status))
    query = escape(question.query)
    links = {"page": "Whole page", "report.json": "Report as JSON", "export.zip": "Files that start it"}
    more = " ".join(f'<a href="/{name}?{query}">{text}</a>' for name, text in links.items())
    return f"{outcome.report['html']}<p class=links-of>{more}</p>"


def _side_by_side(found: Sequence[Answered]) -> str:
    """Build a table with a column for each plan; figures that differ from the first plan's are marked."""
    figures = [(outcome.report or {}).get("figures", {}) for _, outcome in found]
    names = list(dict.fromkeys(name for own in figures for name in own))
    if not names:
        return ""
    rows = tuple((name, *(own.get(name, "no plan") for own in figures)) for name in names)
    header = ("Figure", *(question.title for question, _ in found))
    section = Section(title="Side by side", header=header, rows=rows)
    return f"<div id=beside>{section_html(section, compare=True, across=True, level=2)}</div>"


def chart_of(found: Sequence[Answered]) -> dict[str, Any] | None:
    """Return the bars of the steps of all plans; None without a plan."""
    parts = [(question.title, outcome.report or {}) for question, outcome in found]
    charts = [(title, own["chart"]) for title, own in parts if own.get("chart")]
    if not charts:
        return None
    rows = [{**row, "label": title} for title, chart in charts for row in chart["rows"]]
    return {**charts[0][1], "rows": rows}
