"""The content of a comparison's page: the given strategy beside the recommended plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from planner.report.compared import comparison_sections
from planner.report.html.chapters import (
    DAYS_CAPTION,
    ETTR_CAPTION,
    inputs_chapter,
    intervals_section,
    launch_chapter,
    memory_blocks,
    tiles,
    timeline_blocks,
)
from planner.report.html.content import proof
from planner.report.html.costs import costs_chapter
from planner.report.html.frame import Chapter, Tile, body_html, header_html, pair, plot
from planner.report.html.launch import launch_blocks
from planner.report.html.markup import section_html, transpose
from planner.report.records.reports import PlanReportRecord
from planner.report.results import run_section
from planner.results import PlanReport
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from planner.report.html.study import Shown
    from planner.report.section import Section
    from planner.verbs.compare import Comparison


def sections_of(comparison: Comparison) -> tuple[Section, ...]:
    """Return the sections of the text report; the first one is its heading."""
    return tuple(comparison_sections(comparison))


def title_of(sections: Sequence[Section]) -> str:
    """Return the title of the page."""
    return sections[0].title


def body(comparison: Comparison, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[str]:
    """Build header, navigation and chapters."""
    return body_html(_header(comparison, every, sections[0]), _chapters(comparison, every, sections[1:]))


def _header(comparison: Comparison, every: Sequence[Shown], heading: Section) -> str:
    facts = {row[0]: row[1] for row in heading.rows}
    return header_html(
        subject=facts.pop("job", "") or comparison.problem.name,
        title=heading.title,
        answer=facts.pop("answer"),
        verdict={0: "good", 1: "bad"}.get(comparison.exit_code, "plain"),
        tiles=tuple(_tiles(every)),
        facts=facts,
    )


def _tiles(every: Sequence[Shown]) -> Iterator[Tile]:
    """Build the large figures of the plan, with those of the given strategy below."""
    given = {tile.name: tile.text for tile in tiles(every[0])}
    for tile in tiles(every[-1]):
        beside = f"{every[0].name.lower()}: {given.get(tile.name, 'not known')}"
        yield tile._replace(below=beside) if every[1:] else tile


def _chapters(comparison: Comparison, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[Chapter]:
    yield Chapter("beside", "Side by side", _title(every), _table_pairs(sections))
    yield Chapter("step", "Step", "Time of a step by part", _steps(every, alike=comparison.same_step))
    yield Chapter("memory", "Memory", "Memory of each pipeline rank", _together(every, memory_blocks))
    yield Chapter("pipeline", "Pipeline", "The pipeline, pass by pass", _together(every, timeline_blocks, stacked=True))
    yield Chapter("training", "Training", "The whole training and its checkpoints", _training(every))
    yield costs_chapter(every, together=True)
    yield launch_chapter(block for one in every[1:] for block in launch_blocks(one, searched=False))
    report = comparison.report
    if isinstance(report, PlanReport):
        yield Chapter("proof", "Proof", "The proof", proof(report, PlanReportRecord.build_from_report(report)))
    jobs = [(one.plan.problem, one.setting, one.of if comparison.sides else "") for one in every]
    yield inputs_chapter(jobs if comparison.sides else jobs[:1])


def _title(every: Sequence[Shown]) -> str:
    return f"The {' beside the '.join(one.name.lower() for one in every)}"


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
