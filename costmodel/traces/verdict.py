"""The verdict on a replay: its difference from what was recorded, and the waits that make it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from costmodel.traces.critical_path import Step, chain, last_task
from costmodel.traces.events import UNKNOWN, Track
from costmodel.traces.graph import Dependency, ExecutionGraph, Kind
from costmodel.traces.replay import Replayed

MOST_OFF = 0.05
"""Part of the recorded iteration by which a replay may be off: beyond, it is not usable."""

MOST_WAITS = 3
"""Waits that are named."""

LEAST_SHARE = 0.05
"""Share of the difference that a wait must make to be named beside the worst."""

BEGIN = "begin of the iteration"
"""Name of what the first task of a chain waits for."""

Reason: TypeAlias = Literal["host wait", "launch", "event", "thread", "added", "processors", "order", "collective"]
"""
Cause of a wait.

A thread waits for a stream, a stream for a launch or an event, a thread for a thread. Others are by request, of a
kernel for free processors, behind the task before on the same track, and of a collective for its last rank.
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
    A wait that does not take what it took when it was recorded.

    Parameters
    ----------
    name, track
        The task that waits, and where.
    awaited, awaited_track
        The task that lets it go.
    reason
        Why it waits.
    number
        How often both names follow each other so.
    nanoseconds
        By which the replay is longer than the recording there; negative: shorter, so that a wait is missing.
    """

    name: str
    track: Track
    awaited: str
    awaited_track: Track
    reason: Reason
    number: int
    nanoseconds: int


def difference(measured: int, predicted: int) -> float:
    """Time by which something takes longer than what was measured, as a fraction of that; 1 of nothing."""
    return (predicted - measured) / measured if measured else float(predicted > 0)


def worst_rank(measured: Replayed, times: Replayed) -> int:
    """The rank whose replay is farthest off."""
    return max(times.iterations, key=lambda rank: abs(difference(measured.iterations[rank], times.iterations[rank])))


def is_usable(measured: Replayed, times: Replayed) -> bool:
    """Return true if a replay is close enough to what was recorded on each rank."""
    rank = worst_rank(measured, times)
    return abs(difference(measured.iterations[rank], times.iterations[rank])) <= MOST_OFF


def wrong_waits(graph: ExecutionGraph, measured: Replayed, times: Replayed) -> tuple[WrongWait, ...]:
    r"""
    The waits that make a replay longer or shorter than the recording, the worst first; () only of one that is usable.

    .. math:: r_k - m_k = \sum_{i \le k} (r_i - r_{i-1}) - (m_i - m_{i-1})

    with :math:`r_i` and :math:`m_i` the moments along the chain of waits to what ends last on the worst rank, replayed
    and recorded: each term is what one wait adds to the difference. One that is too long is wrong, or for the wrong
    task: the task that waits went on before. One that is too short lacks something else that it waited for. The terms
    add up to at least the whole difference, since the chain leads to what ends the longer of both iterations.

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
    """When a step lets the next one go; 0 of the begin of all."""
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
