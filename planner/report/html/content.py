"""What stands on a page, from top to bottom, as HTML with places for the plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from planner.plan import EstimateReport, PlanReport
from planner.report.html.charts import schedule_text, schedules_of
from planner.report.html.inputs import input_sections
from planner.report.html.markup import section_html
from planner.report.reasons import binding_sections
from planner.report.section import Section
from planner.report.sections import (
    breakdown_section,
    broken_sections,
    conventions_section,
    listed_sections,
    loss_sections,
    memory_section,
    nothing_sections,
    results_section,
    run_section,
    search_section,
    setting_section,
    strategies_section,
)
from planner.report.stages import stages_sections
from planner.report.wording import gib, seconds

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.report.html.study import Study
    from planner.studies.pareto import Front

TILES = ("step, s", "tokens/s/GPU", "MFU", "peak GiB", "ETTR", "days")
"""Columns of the results that stand large at the top."""

ALL_ROWS = 10**6


def heading(report: PlanReport | EstimateReport) -> Section:
    """What was asked, and the answer in a line."""
    return setting_section(report)


def body(study: Study) -> Iterator[str]:
    """Header, navigation and chapters."""
    chapters = list(_chapters(study))
    yield _header(study.report)
    yield _navigation(study.report, [(anchor, title) for anchor, title, _ in chapters])
    yield "<main>"
    yield "<noscript><p class=note>The plots need scripts; the tables hold all of their numbers.</p></noscript>"
    for anchor, title, blocks in chapters:
        yield f'<section id="{anchor}"><h2>{escape(title)}</h2>{"".join(blocks)}</section>'
    yield "</main>"


def _chapters(study: Study) -> Iterator[tuple[str, str, Iterable[str]]]:
    report = study.report
    if isinstance(report, EstimateReport):
        yield from _optional("forbidden", "What forbids it", map(section_html, broken_sections(report)))
    elif not report.plans:
        yield from _optional("nothing", "Why nothing fits", _nothing(report))
    if report.plans:
        yield "plans", "The strategies" if len(report.plans) > 1 else "The strategy", _plans(report)
        yield "step", "Where the time of a step goes", _step(report)
        yield "memory", "What each pipeline rank holds", _each(report, _memory)
        yield "pipeline", "The pipeline, pass by pass", _each(report, _timeline)
    if study.explanation:
        yield "binds", "What holds strategy 1 back", _bindings(study)
    if study.front and study.front.points:
        yield "front", "Step time against memory", _front(study.front)
    if report.plans:
        yield "checkpoints", "How often to save a checkpoint", _each(report, _checkpoints)
    if isinstance(report, PlanReport):
        sections = (*listed_sections(report), search_section(report))
        yield "proof", "The proof", map(section_html, sections)
    yield "inputs", "What it rests on", _inputs(report)


def _optional(anchor: str, title: str, blocks: Iterable[str]) -> Iterator[tuple[str, str, Iterable[str]]]:
    made = list(blocks)
    if made:
        yield anchor, title, made


# --- the top -----------------------------------------------------------------------------------------------


def _header(report: PlanReport | EstimateReport) -> str:
    setting = heading(report)
    facts = {row[0]: row[1] for row in setting.rows}
    answer, job = facts.pop("answer"), facts.pop("job")
    rest = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())
    return (
        f'<header><p class=job>{escape(job)}</p><h1>{escape(setting.title)}</h1><p class="answer {_verdict(report)}">'
        f"{escape(answer)}</p>{_tiles(report)}<dl class=setting>{rest}</dl></header>"
    )


def _verdict(report: PlanReport | EstimateReport) -> str:
    """Whether the answer is good news: a class of the page's style."""
    if isinstance(report, EstimateReport):
        return "bad" if report.broken_rules else "plain"
    return "good" if report.exit_code == 0 else "bad" if report.exit_code == 1 else "plain"


def _tiles(report: PlanReport | EstimateReport) -> str:
    if not report.plans:
        return ""
    results = results_section(report)
    cells = dict(zip(results.header, results.rows[0], strict=True))
    tiles = "".join(f"<div class=tile><span>{escape(name)}</span><b>{escape(cells[name])}</b></div>" for name in TILES)
    return f"<div class=tiles>{tiles}</div>"


def _navigation(report: PlanReport | EstimateReport, chapters: Iterable[tuple[str, str]]) -> str:
    links = "".join(f'<a href="#{anchor}">{escape(_SHORT.get(anchor, title))}</a>' for anchor, title in chapters)
    return f"<nav aria-label=Chapters><div class=links>{links}</div>{_switch(report)}</nav>"


_SHORT = {
    "forbidden": "Forbidden",
    "nothing": "Why not",
    "plans": "Strategies",
    "step": "Step",
    "memory": "Memory",
    "pipeline": "Pipeline",
    "binds": "What binds",
    "front": "Front",
    "checkpoints": "Checkpoints",
    "proof": "Proof",
    "inputs": "Inputs",
}
"""Chapters as the navigation calls them."""


def _switch(report: PlanReport | EstimateReport) -> str:
    """Which plan the plots of one plan show."""
    if len(report.plans) < 2:
        return ""
    options = "".join(f"<option value={number}>{number}</option>" for number in range(1, len(report.plans) + 1))
    return f"<label class=switch>Strategy <select id=plan>{options}</select></label>"


# --- chapters ----------------------------------------------------------------------------------------------


def _nothing(report: PlanReport) -> Iterator[str]:
    yield from map(section_html, nothing_sections(report))
    if report.closest:
        yield _plot("memory closest", "Memory of the closest strategy by pipeline rank")


def _plans(report: PlanReport | EstimateReport) -> Iterator[str]:
    strategies = strategies_section([plan.estimate for plan in report.plans], variants=report.problem.variants)
    yield section_html(strategies, compare=True)
    yield section_html(results_section(report))
    yield from map(section_html, loss_sections(report))
    for number, plan in enumerate(report.plans, start=1):
        made = "".join(map(section_html, stages_sections(plan.strategy, _of(report, number))))
        yield _of_plan(number, made) if made else ""


def _step(report: PlanReport | EstimateReport) -> Iterator[str]:
    tables = (
        _of_plan(number, section_html(breakdown_section(plan.estimate, _of(report, number))))
        for number, plan in enumerate(report.plans, start=1)
    )
    yield _beside(_plot("steps", _STEP), "".join(tables))


_STEP = (
    "The parts that make up a step; hatched, what is hidden behind computation; the line at the end is the interval in "
    "which a measured step lies"
)


def _memory(report: PlanReport | EstimateReport, plan: Plan, number: int) -> Iterator[str]:
    section = memory_section(report, plan.estimate, most_rows=ALL_ROWS)
    named = replace(section, title=f"Memory{_of(report, number)} by pipeline rank, GiB per GPU")
    yield _beside(_plot(f"memory {number}", f"Peak memory{_of(report, number)}"), section_html(named))


def _timeline(report: PlanReport | EstimateReport, plan: Plan, number: int) -> Iterator[str]:
    yield (
        f'<figure class=timeline data-timeline="{number}"><figcaption>{escape(_TIMELINE)}{_of(report, number)}'
        "</figcaption><p class=note>No time line: the step of this strategy is known by its closed form, it has too "
        "many passes, or it is too far down the list.</p></figure>"
    )


_TIMELINE = "Which chunk of which micro-batch runs when on each rank"


def _checkpoints(report: PlanReport | EstimateReport, plan: Plan, number: int) -> Iterator[str]:
    yield _pair(
        _plot(f"ettr {number}", "Effective training time ratio"),
        _plot(f"days {number}", "Time of the whole training"),
    )
    schedules = schedules_of(report, plan)
    chosen = sorted({*schedules[:: max(1, len(schedules) // 8)], plan.schedule}, key=lambda one: one.interval_steps)
    rows = [schedule_text(one).partition(": ")[::2] for one in chosen]
    others = Section(title="Other intervals", header=("interval", "what follows"), rows=tuple(rows))
    yield _pair(section_html(run_section(report, plan, _of(report, number))), section_html(others))


def _bindings(study: Study) -> Iterator[str]:
    assert study.explanation is not None
    explanation = study.explanation
    blocks = list(map(section_html, binding_sections(explanation)))
    if explanation.bindings:
        yield _beside(_plot("bindings", "What a step would save without each constraint alone"), blocks.pop(0))
    yield from blocks
    if explanation.left_out:
        rows = tuple((str(number), text) for number, text in enumerate(explanation.left_out, start=1))
        yield section_html(Section(title="What is not known", rows=rows))


def _front(front: Front) -> Iterator[str]:
    rows = [
        (
            gib(point.allowed_bytes),
            gib(point.estimate.device_bytes),
            seconds(point.estimate.step_seconds),
            seconds(point.estimate.closed_form_seconds),
            "proven" if point.is_proven else "not proven",
        )
        for point in front.points
    ]
    notes = [_FRONT, f"Nothing fits below {gib(front.least_bytes)} GiB."] if front.least_bytes else [_FRONT]
    if front.left_out:
        notes.append(f"Not searched for want of time: {', '.join(map(gib, front.left_out))} GiB.")
    table = Section(
        title="The front",
        header=("may use, GiB", "uses", "step, s", "closed form", "proof"),
        rows=tuple(dict.fromkeys(rows)),
        notes=tuple(notes),
    )
    yield _beside(
        _plot("front", "The fastest strategy within each amount of memory; filled: proven"), section_html(table)
    )


_FRONT = (
    "Each row is a search of its own, among even stages, with the job's other rules and all of that memory; the "
    "fastest closed form is proven, the step is played through."
)


def _inputs(report: PlanReport | EstimateReport) -> Iterator[str]:
    yield section_html(conventions_section(report))
    for section in input_sections(report):
        yield section_html(section, folded=True)


# --- pieces ------------------------------------------------------------------------------------------------


def _each(report: PlanReport | EstimateReport, chapter: object) -> Iterator[str]:
    """The same chapter for every plan; the page shows one at a time."""
    assert callable(chapter)
    for number, plan in enumerate(report.plans, start=1):
        yield _of_plan(number, "".join(chapter(report, plan, number)))


def _of_plan(number: int, blocks: str) -> str:
    return f'<div data-plan="{number}">{blocks}</div>'


def _of(report: PlanReport | EstimateReport, number: int) -> str:
    return f" of strategy {number}" if len(report.plans) > 1 else ""


def _beside(plot: str, table: str) -> str:
    """A plot and the table of its numbers."""
    return f"<div class=beside><div>{plot}</div><div>{table}</div></div>"


def _pair(first: str, second: str) -> str:
    return f"<div class=pair><div>{first}</div><div>{second}</div></div>"


def _plot(name: str, caption: str) -> str:
    return f'<figure class=plot data-chart="{escape(name)}"><figcaption>{escape(caption)}.</figcaption></figure>'
