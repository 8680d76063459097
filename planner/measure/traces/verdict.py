"""Verdict on a replay: its difference from the recording, and the waits that cause it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from planner.measure.traces.critical_path import Step, chain, last_task
from planner.measure.traces.events import UNKNOWN, Track
from planner.measure.traces.graph import Dependency, ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed

MOST_OFF = 0.05
"""Largest difference of a usable replay, as a fraction of the recorded iteration."""

MOST_WAITS = 3
"""Waits that are named."""

LEAST_SHARE = 0.05
"""Share of the difference that a wait must cause to be named beside the worst."""

BEGIN = "begin of the iteration"
"""Name of the object that the first task of a chain waits for."""

Reason: TypeAlias = Literal["host wait", "launch", "event", "thread", "added", "processors", "order", "collective"]
"""
Cause of a wait.

A thread waits for a stream, a stream for a launch or an event, a thread for a thread. A wait may also be added by a
change, or be for free processors, for the task before on the track, or for the last rank of a collective.
"""

REASONS: Mapping[int, Reason] = {
    Dependency.LAUNCH: "launch",
    Dependency.EVENT: "event",
    Dependency.THREAD: "thread",
    Dependency.ADDED: "added",
    Dependency.PROCESSORS: "processors",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongWait:
    """
    A wait whose replayed time differs from the recorded one.

    Parameters
    ----------
    name, track
        The task that waits, and its track.
    awaited, awaited_track
        The task that releases it.
    reason
        Cause of the wait.
    number
        Number of waits between tasks of these names.
    nanoseconds
        Nanoseconds that the replay takes longer there than the recording; negative if shorter, so that a wait is
        missing.
    """

    name: str
    track: Track
    awaited: str
    awaited_track: Track
    reason: Reason
    number: int
    nanoseconds: int


def difference(measured: int, predicted: int) -> float:
    """Return the relative difference from the measured time; 1 if that is zero and the prediction is not."""
    return (predicted - measured) / measured if measured else float(predicted > 0)


def worst_rank(measured: Replayed, times: Replayed) -> int:
    """Return the rank with the largest difference between replay and recording."""
    return max(times.iterations, key=lambda rank: abs(difference(measured.iterations[rank], times.iterations[rank])))


def is_usable(measured: Replayed, times: Replayed) -> bool:
    """Return True if a replay is close enough to the recording on each rank."""
    rank = worst_rank(measured, times)
    return abs(difference(measured.iterations[rank], times.iterations[rank])) <= MOST_OFF


def wrong_waits(graph: ExecutionGraph, measured: Replayed, times: Replayed) -> tuple[WrongWait, ...]:
    r"""
    Return the waits that make a replay longer or shorter than the recording, worst first; () only if it is usable.

    .. math:: r_k - m_k = \sum_{i \le k} (r_i - r_{i-1}) - (m_i - m_{i-1})

    with :math:`r_i` and :math:`m_i` the replayed and recorded moments along the chain of waits to the last task of the
    worst rank. Each term is the contribution of one wait to the difference. A wait that is too long is wrong, or for
    the wrong task: the waiting task went on earlier. A wait that is too short lacks another dependency. The terms sum
    to at least the whole difference, since the chain leads to the end of the longer iteration.

    Parameters
    ----------
    graph, measured, times
        A graph, its recorded times, and its replay.
    """
    if is_usable(measured, times):
        return ()
    rank = worst_rank(measured, times)
    is_long = times.iterations[rank] > measured.iterations[rank]
    counts: dict[tuple[str, Track, str, Track, Reason], list[int]] = defaultdict(list)
    last = last_task(graph, times if is_long else measured, rank)
    path = chain(graph, times, last)
    reasons = _reasons(graph)
    for before, after in pairwise((None, *path)):
        assert after is not None
        more = _moment(times, after) - _moment(times, before) - (_moment(measured, after) - _moment(measured, before))
        if more and (more > 0) == is_long:
            ends = [(_name(graph, one), _track(graph, one or after)) for one in (after, before)]
            counts[*ends[0], *ends[1], _reason(graph, times, before, after, reasons)].append(more)
    found = [
        WrongWait(
            name=name,
            track=track,
            awaited=awaited,
            awaited_track=other,
            reason=reason,
            number=len(those),
            nanoseconds=sum(those),
        )
        for (name, track, awaited, other, reason), those in counts.items()
    ]
    found.sort(key=lambda one: -abs(one.nanoseconds))
    least = LEAST_SHARE * abs(times.iterations[rank] - measured.iterations[rank])
    return tuple(one for one in found[:MOST_WAITS] if one is found[0] or abs(one.nanoseconds) >= least)


def _moment(times: Replayed, step: Step | None) -> int:
    """Return the moment at which a step releases the next one; 0 before the first step."""
    return int((times.end if step.ends else times.start)[step.task]) if step is not None else 0


def _name(graph: ExecutionGraph, step: Step | None) -> str:
    return graph.names[int(graph.tasks.name[step.task])] if step is not None else BEGIN


def _track(graph: ExecutionGraph, step: Step) -> Track:
    return graph.tracks[int(graph.tasks.track[step.task])].track


def _reasons(graph: ExecutionGraph) -> Mapping[tuple[int, int], Reason]:
    edges = graph.edges
    columns = (edges.before.tolist(), edges.after.tolist(), edges.dependency.tolist())
    return {(before, after): REASONS[why] for before, after, why in zip(*columns, strict=True)}


def _reason(
    graph: ExecutionGraph,
    times: Replayed,
    before: Step | None,
    after: Step,
    reasons: Mapping[tuple[int, int], Reason],
) -> Reason:
    if before is None:
        return "order"
    if after.ends and times.held_by[after.task] == before.task != UNKNOWN:
        return "host wait" if graph.tasks.kind[after.task] == Kind.HOST else "collective"
    return reasons.get((before.task, after.task), "order")
