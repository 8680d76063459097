"""A measured iteration and its replay as one trace for Perfetto, with the critical path."""

from __future__ import annotations

import numpy as np

from planner.measure.traces.events import UNKNOWN, Category, Events, Trace, Track
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed
from planner.measure.traces.report.replay.report import ReplayReport

CATEGORY_OF_KIND = {
    Kind.HOST: Category.CALL,
    Kind.COMPUTE: Category.KERNEL,
    Kind.COPY: Category.COPY,
    Kind.COMMUNICATION: Category.KERNEL,
}


def side_by_side(report: ReplayReport) -> Trace:
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
        tracks += [_track(name, rank, track) for rank, track in graph.tracks]
    sides.append(_path_events(report, track=len(tracks)))
    tracks.append(Track(kind="thread", process=f"replayed rank {report.path_rank}", number="critical path"))
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


def _track(side: str, rank: int, track: Track) -> Track:
    where = f" {track.process}" if track.kind == "stream" else ""
    kind = " device" if track.kind == "stream" else ""
    return Track(kind=track.kind, process=f"{side} rank {rank}{kind}{where}", number=track.number)


def _side_events(graph: ExecutionGraph, times: Replayed, number: int, *, first_track: int) -> Events:
    tasks = graph.tasks
    own = graph.take_event_column([trace.events.category for trace in graph.traces])
    launches = graph.take_event_column([trace.events.correlation for trace in graph.traces])
    of_kind = np.array([CATEGORY_OF_KIND[kind] for kind in sorted(CATEGORY_OF_KIND)])[tasks.kind]
    known, places = np.unique(launches, return_inverse=True)
    side = 2 * tasks.trace.astype(np.int64) + number
    distinct = np.where(launches == UNKNOWN, UNKNOWN, places + len(known) * side)
    return Events.build(
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


def _path_events(report: ReplayReport, *, track: int) -> Events:
    steps = [one for one in report.path if one.end > one.begin]
    tasks = np.array([one.task for one in steps], dtype=np.int64)
    return Events.build(
        len(steps),
        category=Category.ANNOTATION,
        name=report.graph.tasks.name[tasks],
        track=track,
        start=np.array([one.begin for one in steps], dtype=np.int64),
        duration=np.array([one.end - one.begin for one in steps], dtype=np.int64),
        nbytes=0,
    )
