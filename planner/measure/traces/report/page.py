"""HTML page of a replay: breakdown bars, time lines, the critical path; one file that loads no others."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.breakdown import processor_shares
from planner.measure.traces.events import UNKNOWN, Category, Events, Integers, Trace, Track, build_table
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed
from planner.measure.traces.report.replay import (
    RankReplay,
    Replay,
    Side,
    breakdown_section,
    difference_text,
    doubts_sections,
    iterations_sections,
    kinds_section,
    milliseconds,
    names_section,
    processors_section,
    setting_section,
    short_name,
    sides,
    streams_section,
    times_section,
    title,
    track_text,
    wrong_waits_sections,
)
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
    section_html,
    switch_html,
    timeline,
)
from planner.report.section import share

MOST_DRAWN = 120_000

"""Tasks that a page holds, 28 bytes each: some 4 MB. If there are more, the longest are kept."""

MOST_DRAWN_NAMES = 10_000

"""Names that a page holds; those with the least time are dropped."""

LONGEST_DRAWN_NAME = 200

"""Characters of a name in the tooltip."""

NO_NAME = "(one of many names)"

CRITICAL = 4

"""Bit of a task's code that marks the critical path; the bits below are its kind."""


def timeline_of(report: Replay, one: RankReplay) -> dict[str, Any]:
    """
    Encode the tasks of a rank, row by row, as base64 of little-endian whole numbers.

    ``measured`` and ``replayed`` have starts and lengths in ticks, ``name`` the place in ``names``, ``code`` the kind
    and the bit of the critical path.

    Parameters
    ----------
    report, one
        The replay, and the rank.
    """
    graph = report.graph
    rows = _rows(graph, one.rank)
    tasks = np.flatnonzero(np.isin(graph.tasks.track, rows))
    shown, left_out = _longest(report, tasks, MOST_DRAWN // len(report.ranks))
    place = np.full(len(graph.tracks), len(rows))
    place[rows] = np.arange(len(rows))
    shown = shown[np.argsort(place[graph.tasks.track[shown]], kind="stable")]
    both = {"measured": report.measured, "replayed": report.replayed}
    end = max([1, *(int(times.end[tasks].max(initial=0)) for times in both.values())])
    tick = -(-end // 2**32)
    on_path = np.zeros(len(graph.tasks), dtype=bool)
    on_path[[step.task for step in report.path if step.end > step.begin]] = True
    counts = np.bincount(place[graph.tasks.track[shown]], minlength=len(rows)).tolist()
    number, names = _names(graph, shown, report.measured)
    return {
        "tick": tick / 1e9,
        "end": end / 1e9,
        "rows": [[track_text(graph.tracks[row]), number] for row, number in zip(rows, counts, strict=True)],
        "tasks": len(tasks),
        "left_out": [len(left_out), int((report.measured.end - report.measured.start)[left_out].sum()) / 1e9],
        **{name: _side(graph, times, shown, tick, one.rank) for name, times in both.items()},
        "names": names,
        "name": _column(number, "<u2"),
        "code": _column(graph.tasks.kind[shown] + CRITICAL * on_path[shown], "<u1"),
    }


def _rows(graph: ExecutionGraph, rank: int) -> list[int]:
    """Return the tracks of a rank that have tasks: streams first, each kind by load."""
    used = np.bincount(graph.tasks.track, weights=graph.tasks.duration, minlength=len(graph.tracks))
    counts = np.bincount(graph.tasks.track, minlength=len(graph.tracks))
    own = [number for number, one in enumerate(graph.tracks) if one.rank == rank and counts[number]]
    return sorted(own, key=lambda number: (graph.tracks[number].kind, -used[number]))


def _longest(report: Replay, tasks: Integers, most: int) -> tuple[Integers, Integers]:
    """Return the longest of some tasks, and the rest; both in the order of their tracks."""
    if len(tasks) <= most:
        return tasks, tasks[:0]
    lengths = np.maximum(*((times.end - times.start)[tasks] for times in (report.measured, report.replayed)))
    kept = np.zeros(len(tasks), dtype=bool)
    kept[np.argsort(-lengths, kind="stable")[:most]] = True
    return tasks[kept], tasks[~kept]


def _names(graph: ExecutionGraph, shown: Integers, times: Replayed) -> tuple[Integers, list[str]]:
    """Return the place of each task's name, and the names."""
    found, places = np.unique(graph.tasks.name[shown], return_inverse=True)
    spent = np.bincount(places, weights=(times.end - times.start)[shown], minlength=len(found))
    first = np.argsort(-spent, kind="stable")[:MOST_DRAWN_NAMES]
    place = np.full(len(found), len(first))
    place[first] = np.arange(len(first))
    names = [short_name(graph.names[found[one]], LONGEST_DRAWN_NAME) for one in first]
    return place[places], [*names, NO_NAME]


def _side(graph: ExecutionGraph, times: Replayed, shown: Integers, tick: int, rank: int) -> dict[str, Any]:
    begin, shares = times.begins[rank], processor_shares(graph, times, rank)
    return {
        "start": _column(times.start[shown] // tick, "<u4"),
        "length": _column((times.end - times.start)[shown] // tick, "<u4"),
        "window": [begin / 1e9, (begin + times.iterations[rank]) / 1e9],
        "processors": None if shares is None else _column(np.rint(shares * 255).astype(np.int64), "<u1"),
    }


def _column(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")


PARTS = ("computation", "overlapped", "communication", "idle")

CLOSE = 0.033

"""Mean error of Lumos's replays (arXiv 2504.09307, abstract): a smaller difference is marked as good."""

MOST_NAMES = 50

"""Parts of the critical path in the table."""

LONGEST_NAME = 110

"""Characters of a kernel's name in the table; the tooltip shows more."""


def replay_page(report: Replay) -> str:
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
        scripts=[asset("tasks.js", "planner.measure.traces.report")],
    )


def breakdown_chart(report: Replay) -> dict[str, Any]:
    """Return the chart of each rank's breakdown, measured above replayed."""
    rows = [_bar(one, name, side) for one in report.ranks for name, side in sides(one)]
    return {"type": "bars", "axis": "milliseconds per iteration", "order": list(PARTS), "rows": rows}


def _bar(one: RankReplay, name: str, side: Side) -> dict[str, Any]:
    parts = {part: getattr(side.breakdown_nanoseconds, part) for part in PARTS}
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
def _header(report: Replay) -> str:
    facts = {row[0]: row[1] for row in setting_section(report).rows}
    return header_html(
        subject=facts.pop("files"),
        title=title(report),
        answer=facts.pop("answer"),
        verdict="good" if abs(report.difference_fraction) <= CLOSE else "bad",
        tiles=_build_tiles(report.slowest),
        facts=facts,
    )


def _build_tiles(one: RankReplay) -> list[Tile]:
    """Return tiles with the main figures of the slowest rank."""
    parts, whole = one.measured.breakdown_nanoseconds, one.measured.nanoseconds or 1
    tiles = {
        "measured, ms": milliseconds(one.measured.nanoseconds),
        "replayed, ms": milliseconds(one.replayed.nanoseconds),
        "difference": difference_text(one, one.replayed.nanoseconds),
        "exposed communication": share(parts.communication, whole),
        "idle": share(parts.idle, whole),
    }
    if one.measured.processors is not None:
        tiles["processors busy"] = f"{one.measured.processors.mean_fraction:.1%}"
    return [Tile(name, text) for name, text in tiles.items()]


def _chapters(report: Replay) -> Iterator[Chapter]:
    yield Chapter("breakdown", "Breakdown", "Breakdown of an iteration's time", _breakdown(report))
    yield Chapter("timeline", "Time line", "Every task, measured above replayed", _timelines(report))
    yield Chapter("path", "Critical path", "Tasks that determine the length of the iteration", _path_parts(report))
    yield Chapter("streams", "Streams", "Streams, threads, processors", _streams(report))
    yield Chapter("iterations", "Iterations", "Other iterations", map(section_html, iterations_sections(report)))
    yield Chapter("doubts", "Doubts", "Missing information and assumptions", map(section_html, doubts_sections(report)))


def _breakdown(report: Replay) -> Iterator[str]:
    yield from map(section_html, wrong_waits_sections(report))
    yield plot("breakdown", _BREAKDOWN)
    yield pair(section_html(breakdown_section(report)), section_html(times_section(report)))


_BREAKDOWN = "Exposed computation, both at once, exposed communication, and neither; together they are the iteration"


def _timelines(report: Replay) -> Iterator[str]:
    for number, one in enumerate(report.ranks, start=1):
        yield choice_html(number, timeline(number, f"Rank {one.rank}: {_TIMELINE}", _NO_TIMELINE))


_TIMELINE = "tasks on each stream and thread"

_NO_TIMELINE = "The time line needs JavaScript."


def _path_parts(report: Replay) -> Iterator[str]:
    yield section_html(kinds_section(report))
    yield section_html(names_section(report, most_rows=MOST_NAMES, longest=LONGEST_NAME))


def _streams(report: Replay) -> Iterator[str]:
    for number, one in enumerate(report.ranks, start=1):
        yield choice_html(number, section_html(streams_section(one)))
    yield section_html(processors_section(report))


CATEGORY_OF_KIND = {
    Kind.HOST: Category.CALL,
    Kind.COMPUTE: Category.KERNEL,
    Kind.COPY: Category.COPY,
    Kind.COMMUNICATION: Category.KERNEL,
}


def side_by_side(report: Replay) -> Trace:
    """
    Build one trace of both sides.

    Each rank has a process for its threads and one for its streams on each side, and a track with the critical path on
    the replayed side. Arrows of launches are kept.

    Parameters
    ----------
    report
        Report of a replay.
    """
    graph = report.graph
    tracks: list[Track] = []
    sides = []
    for number, (name, times) in enumerate((("measured", report.measured), ("replayed", report.replayed))):
        sides.append(_side_events(graph, times, number, first_track=len(tracks)))
        tracks += [_track(name, track) for track in graph.tracks]
    sides.append(_path_events(report, track=len(tracks)))
    tracks.append(Track(kind="thread", process=f"replayed rank {report.critical_path.rank}", number="critical path"))
    return Trace(
        source=", ".join(report.sources),
        rank=None,
        world_size=None,
        events=Events.join(sides).sort_by_time(),
        names=graph.names,
        tracks=tuple(tracks),
        messages=graph.messages,
        devices=graph.traces[0].devices if graph.traces else (),
        doubts=report.doubts,
    )


def _track(side: str, track: Track) -> Track:
    where = f" {track.process}" if track.kind == "stream" else ""
    kind = " device" if track.kind == "stream" else ""
    return Track(kind=track.kind, process=f"{side} rank {track.rank}{kind}{where}", number=track.number)


def _side_events(graph: ExecutionGraph, times: Replayed, number: int, *, first_track: int) -> Events:
    tasks = graph.tasks
    own = graph.take_event_column([trace.events.category for trace in graph.traces])
    launches = graph.take_event_column([trace.events.correlation for trace in graph.traces])
    of_kind = np.array([CATEGORY_OF_KIND[kind] for kind in sorted(CATEGORY_OF_KIND)])[tasks.kind]
    known, places = np.unique(launches, return_inverse=True)
    side = 2 * tasks.trace.astype(np.int64) + number
    distinct = np.where(launches == UNKNOWN, UNKNOWN, places + len(known) * side)
    return build_table(
        Events,
        len(tasks),
        category=np.where(own == UNKNOWN, of_kind, own),
        name=tasks.name,
        track=tasks.track + first_track,
        start=times.start,
        duration=times.end - times.start,
        correlation=distinct,
        message=tasks.message,
        nbytes=0,
    )


def _path_events(report: Replay, *, track: int) -> Events:
    steps = [one for one in report.path if one.end > one.begin]
    tasks = np.array([one.task for one in steps], dtype=np.int64)
    return build_table(
        Events,
        len(steps),
        category=Category.ANNOTATION,
        name=report.graph.tasks.name[tasks],
        track=track,
        start=np.array([one.begin for one in steps], dtype=np.int64),
        duration=np.array([one.end - one.begin for one in steps], dtype=np.int64),
        nbytes=0,
    )
