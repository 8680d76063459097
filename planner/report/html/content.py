"""The content of a page from top to bottom, as HTML with places for the plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from planner.plan import EstimateReport, PlanReport
from planner.report.conflicts import nothing_sections
from planner.report.devices import nearby_sections
from planner.report.html.charts import schedule_text, schedules_of
from planner.report.html.frame import (
    Chapter,
    body_html,
    chosen_html,
    header_html,
    pair,
    plot,
    side_by_side,
    switch_html,
    timeline,
)
from planner.report.html.inputs import input_sections
from planner.report.html.markup import section_html
from planner.report.memory import memory_section
from planner.report.proof import alternatives_sections, listed_sections, search_section
from planner.report.reasons import binding_sections
from planner.report.recommended import recommendation_sections
from planner.report.records.reports import PlanReportRecord
from planner.report.results import breakdown_section, loss_sections, results_section, run_section
from planner.report.section import Section, numbered
from planner.report.sections import chosen_section, forbidden_sections, heading_section, recommendation_of
from planner.report.setting import conventions_section
from planner.report.strategies import settings_sections, stages_sections
from planner.report.wording import gib, seconds

if TYPE_CHECKING:
    from planner.report.html.study import Study
    from planner.report.records.plan import NumberedPlanRecord
    from planner.studies.pareto import ParetoFront

TILES = ("step, s", "tokens/s/GPU", "MFU", "peak GiB", "ETTR", "days")
"""Columns of the results that stand large at the top."""

ALL_ROWS = 10**6


def body(study: Study) -> Iterator[str]:
    """Header, navigation and chapters."""
    numbers = range(1, len(study.report.plans) + 1)
    return body_html(_header(study), _chapters(study), switch_html("Strategy", numbers))


def _chapters(study: Study) -> Iterator[Chapter]:
    """Every chapter that the study may have."""
    report, whole = study.report, study.whole
    yield Chapter(
        "forbidden", "Forbidden", "Rules that forbid the strategy", map(section_html, forbidden_sections(whole))
    )
    if isinstance(whole, PlanReportRecord) and not whole.plans:
        yield Chapter("nothing", "Infeasible", "Why nothing fits", _nothing(whole))
    if whole.plans:
        yield Chapter(
            "plans", "Strategies", "The strategies" if len(whole.plans) > 1 else "The strategy", _plans(study)
        )
        yield Chapter("step", "Step", "Where the time of a step goes", _step(study))
        yield Chapter("memory", "Memory", "Memory of each pipeline rank", _each(study, _memory))
        yield Chapter("pipeline", "Pipeline", "The pipeline, pass by pass", _each(study, _timeline))
    if study.explanation:
        yield Chapter("binds", "Constraints", "Binding constraints of the fastest strategy", _bindings(study))
    if study.pareto_front and study.pareto_front.points:
        yield Chapter("front", "Pareto front", "Step time against memory", _pareto_front(study.pareto_front))
    if whole.plans:
        yield Chapter("checkpoints", "Checkpoints", "Checkpoint interval", _each(study, _checkpoints))
    if isinstance(report, PlanReport) and isinstance(whole, PlanReportRecord):
        sections = (*listed_sections(whole), *alternatives_sections(whole), search_section(report, whole))
        yield Chapter("proof", "Proof", "The proof", map(section_html, sections))
    yield Chapter("inputs", "Inputs", "Inputs and sources", _inputs(study))


# --- the top -----------------------------------------------------------------------------------------------


def _header(study: Study) -> str:
    setting = heading_section(study.report, study.whole)
    facts = {row[0]: row[1] for row in setting.rows}
    answer, job = facts.pop("answer"), facts.pop("job")
    return header_html(
        subject=job,
        title=setting.title,
        answer=answer,
        verdict=_verdict(study.report),
        tiles=_tiles(study),
        facts=facts,
    )


def _verdict(report: PlanReport | EstimateReport) -> str:
    """The class of the page's style for the status of the report."""
    if isinstance(report, EstimateReport):
        return "bad" if report.broken_rules else "plain"
    return "good" if report.exit_code == 0 else "bad" if report.exit_code == 1 else "plain"


def _tiles(study: Study) -> dict[str, str]:
    if not study.whole.plans:
        return {}
    results = results_section(study.report, study.whole.plans)
    cells = dict(zip(results.header, results.rows[0], strict=True))
    return {name: cells[name] for name in TILES}


# --- chapters ----------------------------------------------------------------------------------------------


def _nothing(whole: PlanReportRecord) -> Iterator[str]:
    yield from map(section_html, nothing_sections(whole, whole.conflict))
    if whole.conflict and whole.conflict.closest:
        yield plot("memory closest", "Memory of the closest strategy by pipeline rank")


def _plans(study: Study) -> Iterator[str]:
    plans = study.whole.plans
    yield section_html(chosen_section(study.whole), compare=True)
    yield from map(section_html, recommendation_sections(recommendation_of(study.whole)))
    yield from map(section_html, settings_sections(plans))
    yield section_html(results_section(study.report, plans))
    if isinstance(study.whole, PlanReportRecord):
        yield from map(section_html, nearby_sections(study.whole))
    yield from map(section_html, loss_sections(plans))
    for plan in plans:
        made = "".join(map(section_html, stages_sections(plan.strategy, _of(study, plan.number))))
        yield chosen_html(plan.number, made) if made else ""


def _step(study: Study) -> Iterator[str]:
    tables = (
        chosen_html(plan.number, section_html(breakdown_section(plan, _of(study, plan.number))))
        for plan in study.whole.plans
    )
    yield side_by_side(plot("steps", _STEP), "".join(tables))


_STEP = (
    "The parts that make up a step; hatched: communication hidden behind computation; the line at the end: the 80% "
    "interval of a measured step"
)


def _memory(study: Study, plan: NumberedPlanRecord) -> Iterator[str]:
    of_plan = _of(study, plan.number)
    section = memory_section(study.whole, plan, of_plan, most_rows=ALL_ROWS)
    yield side_by_side(plot(f"memory {plan.number}", f"Peak memory{of_plan}"), section_html(section))


def _timeline(study: Study, plan: NumberedPlanRecord) -> Iterator[str]:
    yield timeline(plan.number, f"{_TIMELINE}{_of(study, plan.number)}", _NO_TIMELINE)


_TIMELINE = "Which chunk of which micro-batch runs when on each rank"

_NO_TIMELINE = (
    "No timeline: the step of this strategy is known by its closed form only, it has too many passes to simulate, or "
    "only plans before it have a timeline."
)


def _checkpoints(study: Study, plan: NumberedPlanRecord) -> Iterator[str]:
    yield pair(
        plot(f"ettr {plan.number}", "Effective training time ratio"),
        plot(f"days {plan.number}", "Time of the whole training"),
    )
    own = study.report.plans[plan.number - 1]
    schedules = schedules_of(study.report, own)
    chosen = sorted({*schedules[:: max(1, len(schedules) // 8)], own.schedule}, key=lambda one: one.interval_steps)
    rows = [schedule_text(one).partition(": ")[::2] for one in chosen]
    others = Section(title="Other checkpoint intervals", header=("interval", "result"), rows=tuple(rows))
    run = run_section(study.whole, plan, _of(study, plan.number))
    yield pair(section_html(run), section_html(others))


def _bindings(study: Study) -> Iterator[str]:
    assert study.explanation is not None
    explanation = study.explanation
    blocks = list(map(section_html, binding_sections(explanation, study.bindings)))
    if explanation.bindings:
        yield side_by_side(plot("bindings", "Time that a step would save without each constraint"), blocks.pop(0))
    yield from blocks
    if explanation.left_out:
        yield section_html(Section(title="What is not known", rows=numbered(explanation.left_out)))


def _pareto_front(pareto_front: ParetoFront) -> Iterator[str]:
    rows = [
        (
            gib(point.allowed_bytes),
            gib(point.estimate.device_bytes),
            seconds(point.estimate.step_seconds),
            seconds(point.estimate.closed_form_seconds),
            "proven" if point.is_proven else "not proven",
        )
        for point in pareto_front.points
    ]
    notes = [_PARETO_NOTE]
    if pareto_front.least_bytes:
        notes.append(f"No strategy fits below {gib(pareto_front.least_bytes)} GiB.")
    if pareto_front.left_out:
        notes.append(f"Not searched before the time limit: {', '.join(map(gib, pareto_front.left_out))} GiB.")
    table = Section(
        title="Pareto front of memory and step time",
        header=("limit, GiB", "used, GiB", "step, s", "closed form, s", "proof"),
        rows=tuple(dict.fromkeys(rows)),
        notes=tuple(notes),
    )
    yield side_by_side(
        plot("front", "The fastest strategy within each amount of memory; filled: proven"), section_html(table)
    )


_PARETO_NOTE = (
    "Each row is the fastest strategy with even stages within a memory limit, under the job's other rules; the proof "
    "is about the closed form, the step is simulated."
)


def _inputs(study: Study) -> Iterator[str]:
    yield section_html(conventions_section(study.whole))
    for section in input_sections(study.report.chosen, study.whole):
        yield section_html(section, folded=True)


# --- pieces ------------------------------------------------------------------------------------------------


def _each(study: Study, chapter: Callable[[Study, NumberedPlanRecord], Iterable[str]]) -> Iterator[str]:
    """One chapter repeated for every plan; the page shows one at a time."""
    return (chosen_html(plan.number, "".join(chapter(study, plan))) for plan in study.whole.plans)


def _of(study: Study, number: int) -> str:
    return f" of strategy {number}" if len(study.report.plans) > 1 else ""
