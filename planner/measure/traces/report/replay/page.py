"""HTML page of a replay: breakdown bars, time lines, the critical path; one file that loads no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.measure.traces.report.replay.report import RankReplay, ReplayReport, Side
from planner.measure.traces.report.replay.text import (
    breakdown_section,
    difference_text,
    doubts_sections,
    iterations_sections,
    kinds_section,
    milliseconds,
    names_section,
    processors_section,
    setting_section,
    sides,
    streams_section,
    times_section,
    title,
    wrong_waits_sections,
)
from planner.measure.traces.report.replay.timeline import timeline_of
from planner.report.html.frame import (
    Chapter,
    Tile,
    asset,
    body_html,
    choice_html,
    header_html,
    page_text,
    pair,
    plot,
    switch_html,
    timeline,
)
from planner.report.html.markup import section_html
from planner.report.wording import share

PARTS = ("computation", "overlapped", "communication", "idle")

CLOSE = 0.033
"""Mean error of Lumos's replays (arXiv 2504.09307, abstract): a smaller difference is marked as good."""

MOST_NAMES = 50
"""Parts of the critical path in the table."""

LONGEST_NAME = 110
"""Characters of a kernel's name in the table; the tooltip shows more."""


def replay_page(report: ReplayReport) -> str:
    """
    Write a page.

    Parameters
    ----------
    report
        Report of a replay.
    """
    ranks = [one.rank for one in report.ranks]
    return page_text(
        title=title(report),
        subject=", ".join(report.sources),
        body=body_html(_header(report), _chapters(report), switch_html("Rank", ranks)),
        data={
            "charts": {"breakdown": breakdown_chart(report)},
            "timelines": {str(number): timeline_of(report, one) for number, one in enumerate(report.ranks, start=1)},
        },
        scripts=[asset("tasks.js", "planner.measure.traces.report.replay")],
    )


def breakdown_chart(report: ReplayReport) -> dict[str, Any]:
    """Return the chart of each rank's breakdown, measured above replayed."""
    rows = [_bar(one, name, side) for one in report.ranks for name, side in sides(one)]
    return {"type": "bars", "axis": "milliseconds per iteration", "order": list(PARTS), "rows": rows}


def _bar(one: RankReplay, name: str, side: Side) -> dict[str, Any]:
    parts = {part: getattr(side.breakdown, part) for part in PARTS}
    return {
        "label": f"Rank {one.rank}, {name}",
        "text": f"{milliseconds(side.nanoseconds)} ms",
        "parts": [
            {
                "name": part,
                "label": part,
                "value": spent / 1e6,
                "text": f"{milliseconds(spent)} ms, {share(spent, side.nanoseconds)} of the iteration",
            }
            for part, spent in parts.items()
            if spent
        ],
    }


# --- content -----------------------------------------------------------------------------------------------


def _header(report: ReplayReport) -> str:
    facts = {row[0]: row[1] for row in setting_section(report).rows}
    return header_html(
        subject=facts.pop("files"),
        title=title(report),
        answer=facts.pop("answer"),
        verdict="good" if abs(report.difference) <= CLOSE else "bad",
        tiles=_tiles(report.slowest),
        facts=facts,
    )


def _tiles(one: RankReplay) -> list[Tile]:
    """Return tiles with the main figures of the slowest rank."""
    parts, whole = one.measured.breakdown, one.measured.nanoseconds or 1
    tiles = {
        "measured, ms": milliseconds(one.measured.nanoseconds),
        "replayed, ms": milliseconds(one.replayed.nanoseconds),
        "difference": difference_text(one, one.replayed.nanoseconds),
        "exposed communication": share(parts.communication, whole),
        "idle": share(parts.idle, whole),
    }
    if one.measured.processors is not None:
        tiles["processors busy"] = f"{one.measured.processors.mean:.1%}"
    return [Tile(name, text) for name, text in tiles.items()]


def _chapters(report: ReplayReport) -> Iterator[Chapter]:
    yield Chapter("breakdown", "Breakdown", "Breakdown of an iteration's time", _breakdown(report))
    yield Chapter("timeline", "Time line", "Every task, measured above replayed", _timelines(report))
    yield Chapter("path", "Critical path", "Tasks that determine the length of the iteration", _path_parts(report))
    yield Chapter("streams", "Streams", "Streams, threads, processors", _streams(report))
    yield Chapter("iterations", "Iterations", "Other iterations", map(section_html, iterations_sections(report)))
    yield Chapter("doubts", "Doubts", "Missing information and assumptions", map(section_html, doubts_sections(report)))


def _breakdown(report: ReplayReport) -> Iterator[str]:
    yield from map(section_html, wrong_waits_sections(report))
    yield plot("breakdown", _BREAKDOWN)
    yield pair(section_html(breakdown_section(report)), section_html(times_section(report)))


_BREAKDOWN = "Exposed computation, both at once, exposed communication, and neither; together they are the iteration"


def _timelines(report: ReplayReport) -> Iterator[str]:
    for number, one in enumerate(report.ranks, start=1):
        yield choice_html(number, timeline(number, f"Rank {one.rank}: {_TIMELINE}", _NO_TIMELINE))


_TIMELINE = "tasks on each stream and thread"

_NO_TIMELINE = "The time line needs JavaScript."


def _path_parts(report: ReplayReport) -> Iterator[str]:
    yield section_html(kinds_section(report))
    yield section_html(names_section(report, most_rows=MOST_NAMES, longest=LONGEST_NAME))


def _streams(report: ReplayReport) -> Iterator[str]:
    for number, one in enumerate(report.ranks, start=1):
        yield choice_html(number, section_html(streams_section(one)))
    yield section_html(processors_section(report))
