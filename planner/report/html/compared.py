"""The content of a comparison's page: what is run today beside the fastest plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from planner.plan import PlanReport
from planner.report.compared import compared_sections
from planner.report.html.chapters import (
    TILES,
    figure_text,
    inputs_chapter,
    launch_chapter,
    plan_chapters,
    tiles,
    training_chapter,
)
from planner.report.html.content import proof
from planner.report.html.frame import Chapter, Tile, body_html, header_html, plot, switch_html
from planner.report.html.markup import section_html, turned
from planner.report.records.reports import PlanReportRecord

if TYPE_CHECKING:
    from planner.explanation.compare import Comparison
    from planner.report.html.study import Shown
    from planner.report.section import Section


def sections_of(comparison: Comparison) -> tuple[Section, ...]:
    """The sections of the text report; the first one is its heading."""
    return tuple(compared_sections(comparison))


def title_of(sections: Sequence[Section]) -> str:
    """The title of the page."""
    return sections[0].title


def body(comparison: Comparison, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[str]:
    """Header, navigation and chapters."""
    chapters = _chapters(comparison, every, sections[1:])
    return body_html(_header(comparison, every, sections[0]), chapters, switch_html("Details of", _names(every)))


def _names(every: Iterable[Shown]) -> list[str]:
    return [one.name for one in every]


def _header(comparison: Comparison, every: Sequence[Shown], heading: Section) -> str:
    facts = {row[0]: row[1] for row in heading.rows}
    return header_html(
        subject=facts.pop("job", comparison.problem.name),
        title=heading.title,
        answer=facts.pop("answer"),
        verdict={0: "good", 1: "bad"}.get(comparison.exit_code, "plain"),
        tiles=tuple(_tiles(every)),
        facts=facts,
    )


def _tiles(every: Sequence[Shown]) -> Iterator[Tile]:
    """The figures of the plan, with those of what is run today below."""
    given, *best = every
    for tile in tiles(best[0] if best else given):
        yield tile._replace(below=f"given: {figure_text(given, tile.name)}") if best and tile.name in TILES else tile


def _chapters(comparison: Comparison, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[Chapter]:
    yield Chapter("beside", "Side by side", "What you run beside the fastest plan", _beside(every, sections))
    yield from plan_chapters(every)
    yield training_chapter(every)
    yield launch_chapter(every[1:], searched=True)
    report = comparison.report
    if isinstance(report, PlanReport):
        yield Chapter("proof", "Proof", "The proof", proof(report, PlanReportRecord.of_report(report)))
    yield inputs_chapter(comparison.problem, every[0].setting)


def _beside(every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        if section.header[:1] == ("#",):
            yield section_html(turned(section, "decision"), compare=True, across=True)
        else:
            yield section_html(section)
    if len(every) > 1:
        yield plot("differences", "Where the given strategy loses time; of the whole step with its 80% interval")
