"""Tasks on streams that the threads of a graph wait for: those launched before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Integers
from planner.measure.traces.graph import Dependency, ExecutionGraph, Waiting

Awaited: TypeAlias = Mapping[int, tuple[tuple[int, int], ...]]
"""For each host task, the tracks that it waits for, and the last task there that it may wait for."""


def find_awaited(graph: ExecutionGraph) -> Awaited:
    """
    Find the last task on each stream for which each synchronising call may wait.

    A call waits for everything launched before it runs. In a replay an unblocked thread may run ahead of another, so
    that more has been launched by then than in the recording; the recorded call never waited for it. Therefore a replay
    waits for these tasks at most, whatever its times.

    Parameters
    ----------
    graph
        Any graph.
    """
    tasks = graph.tasks
    waits = np.flatnonzero(np.isin(tasks.waiting, (Waiting.DEVICE, Waiting.STREAM)))
    if not len(waits):
        return {}
    streams, launched = _streams(graph), _launch_times(graph)
    found = {}
    for task in waits.tolist():
        is_stream = tasks.waiting[task] == Waiting.STREAM
        tracks = [int(tasks.waits_for[task])] if is_stream else streams.get(int(tasks.track[task]), [])
        last = (
            (track, _last_before(*launched[track], int(tasks.start[task]))) for track in tracks if track in launched
        )
        found[task] = tuple((track, place) for track, place in last if place != UNKNOWN)
    return found


def _last_before(places: NDArray[np.intp], when: Integers, moment: int) -> int:
    """Return the last task launched, with all before it, no later than a moment: a call may launch and wait."""
    number = int(np.searchsorted(when, moment, side="right"))
    return int(places[number - 1]) if number else UNKNOWN


def _launch_times(graph: ExecutionGraph) -> dict[int, tuple[NDArray[np.intp], Integers]]:
    """Return for each stream its tasks, and the times by which each of them and all before it had been launched."""
    tasks, edges = graph.tasks, graph.edges
    when = np.full(len(tasks), np.iinfo(np.int64).min)
    launches = edges.dependency == Dependency.LAUNCH
    np.maximum.at(when, edges.after[launches], tasks.start[edges.before[launches]])
    order = np.flatnonzero(graph.is_on_stream)
    order = order[np.argsort(tasks.track[order], kind="stable")]
    tracks, first = np.unique(tasks.track[order], return_index=True)
    stop = np.append(first, len(order))[1:]
    found = {}
    for track, begin, end in zip(tracks.tolist(), first.tolist(), stop.tolist(), strict=True):
        places = order[begin:end]
        found[track] = places, np.maximum.accumulate(when[places])
    return found


def _streams(graph: ExecutionGraph) -> dict[int, list[int]]:
    """Return the streams on the rank of each thread."""
    of_rank: dict[int, list[int]] = {}
    for number, one in enumerate(graph.tracks):
        if one.track.kind == "stream":
            of_rank.setdefault(one.rank, []).append(number)
    return {number: of_rank.get(one.rank, []) for number, one in enumerate(graph.tracks) if one.track.kind == "thread"}
