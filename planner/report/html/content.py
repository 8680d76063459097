"""The content of the page of a plan or an estimate from top to bottom, as HTML with places for the plots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.report.conflicts import nothing_sections
from planner.report.devices import nearby_sections
from planner.report.html.chapters import each, inputs_chapter, launch_chapter, plan_chapters, tiles, training_chapter
from planner.report.html.charts import strategy_interval
from planner.report.html.costs import costs_chapter
from planner.report.html.frame import (
    Chapter,
    body_html,
    choice_html,
    details_html,
    header_html,
    pair,
    plot,
    side_by_side,
    switch_html,
)
from planner.report.html.launch import BESIDE_BEST, BESIDE_TODAY, launch_blocks
from planner.report.html.markup import section_html, transpose
from planner.report.proof import alternatives_sections, candidates_sections, search_section
from planner.report.reasons import binding_sections
from planner.report.recommended import recommendation_sections
from planner.report.results import loss_sections, results_section
from planner.report.section import Section, number_rows
from planner.report.sections import decisions_section, forbidden_sections, heading_section
from planner.report.strategies import settings_sections, stages_sections
from planner.report.wording import gib, seconds

if TYPE_CHECKING:
    from costmodel.tables import Facts
    from planner.report.html.study import Study
    from planner.report.records.reports import PlanReportRecord, ReportRecord
    from planner.verbs.pareto import ParetoFront


def body(study: Study) -> Iterator[str]:
    """Build header, navigation and chapters."""
    return body_html(_header(study), _chapters(study), switch_html("Strategy", [one.number for one in study.plans]))


def _chapters(study: Study) -> Iterator[Chapter]:
    """Build every chapter that the study may have."""
    whole, every, searched = study.whole, study.plans, study.whole.kind == "plan"
    forbidden = map(section_html, forbidden_sections(whole))
    yield Chapter("forbidden", "Forbidden", "Rules that forbid the strategy", forbidden)
    yield Chapter("nothing", "Infeasible", "Why nothing fits", _nothing(whole))
    if every:
        title = "The strategies" if len(every) > 1 else "The strategy"
        yield Chapter("plans", "Strategies" if len(every) > 1 else "Strategy", title, _plans(study))
        further = BESIDE_TODAY if searched else BESIDE_BEST
        yield launch_chapter(each(every, lambda one: launch_blocks(one, searched=searched, further=further)))
        yield from plan_chapters(every)
    if study.explanation:
        yield Chapter("binds", "Constraints", "Binding constraints of the fastest strategy", _bindings(study))
    if study.pareto_front and study.pareto_front.points:
        points = _pareto_front(study.pareto_front, whole.report.chosen.facts)
        yield Chapter("front", "Pareto front", "Step time against memory", points)
    if every:
        yield training_chapter(every)
        yield costs_chapter(every)
    if whole.kind == "plan":
        yield Chapter("proof", "Proof", "The proof", proof(whole))
    yield inputs_chapter([(whole.report.chosen, whole, "")])


# --- the top -----------------------------------------------------------------------------------------------


def _header(study: Study) -> str:
    setting = heading_section(study.whole)
    facts = {row[0]: row[1] for row in setting.rows}
    answer, job = facts.pop("answer"), facts.pop("job")
    return header_html(
        subject=job,
        title=setting.title,
        answer=answer,
        verdict=_verdict(study.whole),
        tiles=tuple(tiles(study.plans[0])) if study.plans else (),
        facts=facts,
    )


def _verdict(whole: ReportRecord) -> str:
    """Return the class of the page's style for the status of the report."""
    if whole.kind == "estimate":
        return "bad" if whole.broken_rules else "plain"
    return {0: "good", 1: "bad"}.get(whole.report.exit_code, "plain")


# --- chapters ----------------------------------------------------------------------------------------------


def _nothing(whole: ReportRecord) -> Iterator[str]:
    yield from map(section_html, nothing_sections(whole, whole.conflict))
    if whole.conflict and whole.conflict.closest:
        yield plot(
            "memory closest", "Memory of the closest strategy by pipeline rank, with intervals of measured peaks"
        )


def _plans(study: Study) -> Iterator[str]:
    whole, plans = study.whole, study.whole.plans
    decisions, results = decisions_section(whole), results_section(whole)
    if len(plans) <= MOST_TURNED:
        yield pair(
            section_html(transpose(decisions, "decision"), compare=True, across=True),
            section_html(transpose(results, "figure"), across=True),
        )
    else:
        yield section_html(decisions, compare=True)
        yield section_html(results)
    yield from map(section_html, recommendation_sections(whole.recommendation))
    yield from map(section_html, settings_sections(plans))
    yield from map(section_html, nearby_sections(whole))
    yield from map(section_html, loss_sections(plans))
    for one in study.plans:
        made = "".join(map(section_html, stages_sections(one.record.strategy, one.of)))
        yield choice_html(one.number, made) if made else ""


MOST_TURNED = 4
"""Strategies that stand side by side, a decision in each row; more have a row each."""


def _bindings(study: Study) -> Iterator[str]:
    assert study.explanation is not None
    explanation = study.explanation
    blocks = list(map(section_html, binding_sections(explanation, study.bindings)))
    if explanation.bindings:
        yield side_by_side(plot("bindings", _BINDINGS), blocks.pop(0))
    yield from blocks
    if explanation.left_out:
        yield section_html(Section(title="Not known", rows=number_rows(explanation.left_out)), folded=True)


_BINDINGS = (
    "Time that a step would save without each constraint; the line at the end: the 80% interval of the difference of "
    "measured steps, which holds zero where it begins at the left edge"
)


def _pareto_front(pareto_front: ParetoFront, facts: Facts) -> Iterator[str]:
    rows = []
    for point in pareto_front.points:
        step = strategy_interval(facts, point.estimate)
        cells = (
            gib(point.allowed_bytes),
            gib(point.estimate.device_bytes),
            seconds(point.estimate.step_seconds),
            f"{seconds(step.low_seconds)} to {seconds(step.high_seconds)}",
            seconds(point.estimate.closed_form_seconds),
            "proven" if point.is_proven else "not proven",
        )
        rows.append(cells)
    notes = [_PARETO_NOTE]
    if pareto_front.least_bytes:
        notes.append(f"No strategy fits below {gib(pareto_front.least_bytes)} GiB.")
    if pareto_front.left_out:
        notes.append(f"Not searched before the time limit: {', '.join(map(gib, pareto_front.left_out))} GiB.")
    table = Section(
        title="Pareto front of memory and step time",
        header=("limit, GiB", "used, GiB", "step, s", "80%, s", "closed form, s", "proof"),
        rows=tuple(dict.fromkeys(rows)),
        notes=tuple(notes),
    )
    yield side_by_side(plot("front", _FRONT), section_html(table))


_FRONT = (
    "The fastest strategy within each amount of memory; filled: proven; thin lines: the 80% intervals of measured "
    "steps and peaks"
)

_PARETO_NOTE = (
    "Each row is the fastest strategy with even stages within a memory limit, under the job's other rules; the proof "
    "is about the closed form, the step is simulated."
)


def proof(whole: PlanReportRecord) -> Iterator[str]:
    """Build the section on the result of the search; the details of the proof are folded."""
    search = search_section(whole)
    kept = [row for row in search.rows if row[0] in ("status", "lower bound")]
    yield section_html(Section(title="Result of the search", rows=tuple(kept)))
    sections = (*candidates_sections(whole), *alternatives_sections(whole), search)
    yield details_html("Search space and proof in detail", "".join(map(section_html, sections)))
