"""The content of the page of a plan or an estimate from top to bottom, as HTML with places for the plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.step.layouts import strategy_seconds
from planner.report.conflicts import nothing_sections
from planner.report.html.chapters import (
    DAYS_CAPTION,
    ETTR_CAPTION,
    each,
    inputs_chapter,
    intervals_section,
    launch_chapter,
    memory_blocks,
    plan_chapters,
    tiles,
    timeline_blocks,
    training_chapter,
)
from planner.report.html.charts import strategy_interval
from planner.report.html.costs import costs_chapter
from planner.report.html.frame import (
    Chapter,
    Tile,
    body_html,
    choice_html,
    details_html,
    header_html,
    pair,
    plot,
    section_html,
    side_by_side,
    switch_html,
    transpose,
)
from planner.report.html.launch import BESIDE_BEST, BESIDE_TODAY, launch_blocks
from planner.report.proof import alternatives_sections, candidates_sections, recommendation_sections, search_section
from planner.report.reasons import binding_sections
from planner.report.records.reports import PlanReportRecord
from planner.report.results import loss_sections, nearby_sections, results_section, run_section
from planner.report.section import Section, gib, number_rows, seconds
from planner.report.sections import decisions_section, forbidden_sections, heading_section
from planner.report.strategies import settings_sections, stages_sections
from planner.results import PlanReport
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from costmodel.tables import Facts
    from planner.report.html.shown import Shown, ShownReport
    from planner.report.records.explained import ComparisonRecord
    from planner.report.records.reports import ReportRecord
    from planner.verbs.pareto import ParetoFront


def body(shown: ShownReport) -> Iterator[str]:
    """Build header, navigation and chapters."""
    return body_html(_header(shown), _chapters(shown), switch_html("Strategy", [one.number for one in shown.plans]))


def _chapters(shown: ShownReport) -> Iterator[Chapter]:
    """Build every chapter that the report may have."""
    whole, every, searched = shown.whole, shown.plans, shown.whole.kind == "plan"
    forbidden = map(section_html, forbidden_sections(whole))
    yield Chapter("forbidden", "Forbidden", "Rules that forbid the strategy", forbidden)
    yield Chapter("nothing", "Infeasible", "Why nothing fits", _nothing(whole))
    if every:
        title = "The strategies" if len(every) > 1 else "The strategy"
        yield Chapter("plans", "Strategies" if len(every) > 1 else "Strategy", title, _plans(shown))
        further = BESIDE_TODAY if searched else BESIDE_BEST
        yield launch_chapter(each(every, lambda one: launch_blocks(one, searched=searched, further=further)))
        yield from plan_chapters(every)
    if shown.explanation:
        yield Chapter("binds", "Constraints", "Binding constraints of the fastest strategy", _bindings(shown))
    if shown.pareto_front and shown.pareto_front.points:
        points = _pareto_front(shown.pareto_front, whole.report.chosen.facts)
        yield Chapter("front", "Pareto front", "Step time against memory", points)
    if every:
        yield training_chapter(every)
        yield costs_chapter(every)
    if whole.kind == "plan":
        yield Chapter("proof", "Proof", "The proof", proof(whole))
    yield inputs_chapter([(whole.report.chosen, whole, "")])


# --- the top -----------------------------------------------------------------------------------------------
def _header(shown: ShownReport) -> str:
    setting = heading_section(shown.whole)
    facts = {row[0]: row[1] for row in setting.rows}
    answer, job = facts.pop("answer"), facts.pop("job")
    return header_html(
        subject=job,
        title=setting.title,
        answer=answer,
        verdict=_verdict(shown.whole),
        tiles=tuple(tiles(shown.plans[0])) if shown.plans else (),
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


def _plans(shown: ShownReport) -> Iterator[str]:
    whole, plans = shown.whole, shown.whole.plans
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
    for one in shown.plans:
        made = "".join(map(section_html, stages_sections(one.record.strategy, one.of)))
        yield choice_html(one.number, made) if made else ""


MOST_TURNED = 4

"""Strategies that stand side by side, a decision in each row; more have a row each."""


def _bindings(shown: ShownReport) -> Iterator[str]:
    assert shown.explanation is not None
    explanation = shown.explanation
    blocks = list(map(section_html, binding_sections(explanation, shown.bindings)))
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
            seconds(strategy_seconds(facts, point.estimate.strategy)),
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
        header=("limit, GiB", "used, GiB", "step, s", "80%, s", "compared step, s", "proof"),
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
    "is about the step time that the search compares, the step is simulated."
)


def proof(whole: PlanReportRecord) -> Iterator[str]:
    """Build the section on the result of the search; the details of the proof are folded."""
    search = search_section(whole)
    kept = [row for row in search.rows if row[0] in ("status", "lower bound")]
    yield section_html(Section(title="Result of the search", rows=tuple(kept)))
    sections = (*candidates_sections(whole), *alternatives_sections(whole), search)
    yield details_html("Search space and proof in detail", "".join(map(section_html, sections)))


def comparison_body(whole: ComparisonRecord, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[str]:
    """Build header, navigation and chapters from the sections of the text report, the first of which is its heading."""
    return body_html(_comparison_header(whole, every, sections[0]), _chapter_list(whole, every, sections[1:]))


def _comparison_header(whole: ComparisonRecord, every: Sequence[Shown], heading: Section) -> str:
    facts = {row[0]: row[1] for row in heading.rows}
    return header_html(
        subject=facts.pop("job", "") or whole.problem.name,
        title=heading.title,
        answer=facts.pop("answer"),
        verdict={0: "good", 1: "bad"}.get(whole.comparison.exit_code, "plain"),
        tiles=tuple(_tiles(every)),
        facts=facts,
    )


def _tiles(every: Sequence[Shown]) -> Iterator[Tile]:
    """Build the large figures of the plan, with those of the given strategy below."""
    given = {tile.name: tile.text for tile in tiles(every[0])}
    for tile in tiles(every[-1]):
        beside = f"{every[0].name.lower()}: {given.get(tile.name, 'not known')}"
        yield tile._replace(below=beside) if every[1:] else tile


def _chapter_list(whole: ComparisonRecord, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[Chapter]:
    yield Chapter("beside", "Side by side", _title(every), _table_pairs(sections))
    yield Chapter("step", "Step", "Time of a step by part", _steps(every, alike=whole.comparison.same_step))
    yield Chapter("memory", "Memory", "Memory of each pipeline rank", _together(every, memory_blocks))
    yield Chapter("pipeline", "Pipeline", "The pipeline, pass by pass", _together(every, timeline_blocks, stacked=True))
    yield Chapter("training", "Training", "The whole training and its checkpoints", _training(every))
    yield costs_chapter(every, together=True)
    yield launch_chapter(block for one in every[1:] for block in launch_blocks(one, searched=False))
    report, sides = whole.comparison.report, whole.apart.sides
    if isinstance(report, PlanReport):
        yield Chapter("proof", "Proof", "The proof", proof(PlanReportRecord.read(report)))
    jobs = [(one.plan.problem, one.setting, one.of if sides else "") for one in every]
    yield inputs_chapter(jobs if sides else jobs[:1])


def _title(every: Sequence[Shown]) -> str:
    return f"The {' and the '.join(one.name.lower() for one in every)}"


def _table_pairs(sections: Sequence[Section]) -> Iterator[str]:
    """Build the tables of decisions and figures side by side, the others below."""
    blocks = [
        section_html(transpose(section, "decision"), compare=True, across=True)
        if section.header[:1] == ("#",)
        else section_html(section)
        for section in sections
    ]
    tables = [block for section, block in zip(sections, blocks, strict=True) if section.header]
    yield from (block for section, block in zip(sections, blocks, strict=True) if not section.header)
    for place in range(0, len(tables), 2):
        yield pair(*tables[place : place + 2])


def _steps(every: Sequence[Shown], *, alike: bool) -> Iterator[str]:
    own = plot("steps", f"The parts of each step; the lines: the {COVERAGE:.0%} intervals of measured steps")
    if every[1:] and alike:
        names = " takes longer than the ".join(one.name.lower() for one in every)
        lost = f"Time that the {names}; the line: the {COVERAGE:.0%} interval of such differences"
        yield pair(own, plot("differences", lost))
    else:
        yield own


def _together(every: Sequence[Shown], blocks: Callable[[Shown], Iterable[str]], *, stacked: bool = False) -> list[str]:
    """Build the blocks of all plans, side by side where the page is wide enough."""
    made = ["".join(blocks(one)) for one in every]
    return made if stacked else [pair(*made)]


def _training(every: Sequence[Shown]) -> Iterator[str]:
    yield pair(*(section_html(run_section(one.setting, one.record, one.of)) for one in every))
    yield pair(plot("ettr", ETTR_CAPTION), plot("days", DAYS_CAPTION))
    yield pair(*(section_html(intervals_section(one), folded=True) for one in every))
