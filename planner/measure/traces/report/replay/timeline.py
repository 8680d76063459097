"""The tasks of a rank, measured and replayed, packed for drawing."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Integers
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.processors import ProcessorUse
from planner.measure.traces.replay import Replayed
from planner.measure.traces.report.replay.report import RankReplay, ReplayReport, Side
from planner.measure.traces.report.replay.text import short_name, track_text

MOST_DRAWN = 120_000
"""Tasks that a page holds, 28 bytes each: some 4 MB. If there are more, the longest are kept."""

MOST_DRAWN_NAMES = 10_000
"""Names that a page holds; those with the least time are dropped."""

LONGEST_DRAWN_NAME = 200
"""Characters of a name in the tooltip."""

NO_NAME = "(one of many names)"

CRITICAL = 4
"""Bit of a task's code that marks the critical path; the bits below are its kind."""


def timeline_of(report: ReplayReport, one: RankReplay) -> dict[str, Any]:
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
    both = {"measured": (report.measured, one.measured), "replayed": (report.replayed, one.replayed)}
    end = max([1, *(int(times.end[tasks].max(initial=0)) for times, _ in both.values())])
    tick = -(-end // 2**32)
    on_path = np.zeros(len(graph.tasks), dtype=bool)
    on_path[[step.task for step in report.path if step.end > step.begin]] = True
    counts = np.bincount(place[graph.tasks.track[shown]], minlength=len(rows)).tolist()
    number, names = _names(graph, shown, report.measured)
    return {
        "tick": tick / 1e9,
        "end": end / 1e9,
        "rows": [[track_text(graph.tracks[row].track), number] for row, number in zip(rows, counts, strict=True)],
        "tasks": len(tasks),
        "left_out": [len(left_out), int((report.measured.end - report.measured.start)[left_out].sum()) / 1e9],
        **{name: _side(times, side, shown, tick, one.rank) for name, (times, side) in both.items()},
        "names": names,
        "name": _column(number, "<u2"),
        "code": _column(graph.tasks.kind[shown] + CRITICAL * on_path[shown], "<u1"),
    }


def _rows(graph: ExecutionGraph, rank: int) -> list[int]:
    """Return the tracks of a rank that have tasks: streams first, each kind by load."""
    used = np.bincount(graph.tasks.track, weights=graph.tasks.duration, minlength=len(graph.tracks))
    counts = np.bincount(graph.tasks.track, minlength=len(graph.tracks))
    own = [number for number, one in enumerate(graph.tracks) if one.rank == rank and counts[number]]
    return sorted(own, key=lambda number: (graph.tracks[number].track.kind, -used[number]))


def _longest(report: ReplayReport, tasks: Integers, most: int) -> tuple[Integers, Integers]:
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


def _side(times: Replayed, side: Side, shown: Integers, tick: int, rank: int) -> dict[str, Any]:
    begin = times.begins[rank]
    return {
        "start": _column(times.start[shown] // tick, "<u4"),
        "length": _column((times.end - times.start)[shown] // tick, "<u4"),
        "window": [begin / 1e9, (begin + side.nanoseconds) / 1e9],
        "processors": None if side.processors is None else _shares(side.processors),
    }


def _shares(use: ProcessorUse) -> str:
    """Encode shares of processors in 255ths."""
    return _column(np.rint(use.shares * 255).astype(np.int64), "<u1")


def _column(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")
