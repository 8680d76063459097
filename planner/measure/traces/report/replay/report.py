"""Report of a replay: measured and replayed times, their breakdown, and the critical path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from costmodel.events import log_event
from costmodel.record import record
from planner.measure.traces.breakdown import (
    Breakdown,
    ProcessorUse,
    StreamUse,
    break_down,
    processor_use,
    replay_without_events,
    stream_uses,
    sums_of_tasks,
)
from planner.measure.traces.building import execution_graph
from planner.measure.traces.building.all_ranks import ranks_of
from planner.measure.traces.critical_path import (
    PathPart,
    Step,
    WrongWait,
    critical_path,
    difference,
    is_usable,
    path_parts,
    wrong_waits,
)
from planner.measure.traces.events import Trace
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.iterations import choose_iteration, iterations
from planner.measure.traces.replay import Replayed, replay, take_recorded_times
from planner.report.records import finite


@record(frozen=True, kw_only=True, slots=True)
class Side:
    """
    One rank's iteration, measured or replayed.

    Parameters
    ----------
    nanoseconds
        Length of the iteration.
    breakdown_nanoseconds
        Breakdown of the iteration.
    tracks
        Use of each stream and thread.
    processors
        Share of processors that kernels occupy; null where no kernel's blocks were recorded.
    """

    nanoseconds: int
    breakdown_nanoseconds: Breakdown
    tracks: tuple[StreamUse, ...]
    processors: ProcessorUse | None


@record(frozen=True, slots=True)
class HostIteration:
    """
    An iteration of a trace.

    Parameters
    ----------
    name
        The profiler's name of it, or its number.
    host_nanoseconds
        Its length on the host.
    found
        Source of its begin and end: steps, optimizer, repetition or whole.
    """

    name: str
    host_nanoseconds: int
    found: str


@record(frozen=True, kw_only=True, slots=True)
class RankReplay:
    """
    One rank, measured and replayed.

    Parameters
    ----------
    rank
        Its number.
    iteration
        Number of the replayed iteration, from 0.
    iterations
        All iterations of its trace.
    difference_fraction
        Replayed over measured, less 1.
    without_events_nanoseconds
        A replay in which no stream waits for another.
    sum_of_tasks_nanoseconds
        Sum of all tasks on its device.
    measured
        As it was recorded.
    replayed
        As it was replayed.
    """

    rank: int
    iteration: int
    iterations: tuple[HostIteration, ...]
    difference_fraction: float
    without_events_nanoseconds: int
    sum_of_tasks_nanoseconds: int
    measured: Side
    replayed: Side


@record(frozen=True, slots=True)
class CriticalPath:
    """
    The critical path, which determines the length of the replayed iteration.

    Parameters
    ----------
    rank
        Rank on which it ends.
    nanoseconds
        Its length: the iteration's.
    parts
        Its parts, the longest first.
    """

    rank: int
    nanoseconds: int
    parts: tuple[PathPart, ...]


@record(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """
    The answer of ``planner trace replay``.

    Parameters
    ----------
    sources
        Files of the traces.
    num_tasks
        Tasks of the graph.
    num_dependencies
        Its dependencies.
    measured_nanoseconds
        The recorded iteration.
    replayed_nanoseconds
        The replayed iteration.
    difference_fraction
        Replayed over measured, less 1.
    usable
        True if the replay of every rank is at most 5 % off; else it must not be used.
    wrong_waits
        Waits that make an unusable replay too long or too short.
    ranks
        Figures of each rank.
    critical_path
        The critical path of the iteration.
    doubts
        Sentences on missing information in the traces, and on inferred dependencies.
    """

    sources: tuple[str, ...]
    num_tasks: int
    num_dependencies: int
    measured_nanoseconds: int
    replayed_nanoseconds: int
    difference_fraction: float
    usable: bool
    wrong_waits: tuple[WrongWait, ...]
    ranks: tuple[RankReplay, ...]
    critical_path: CriticalPath
    doubts: tuple[str, ...]

    @property
    def slowest(self) -> RankReplay:
        """Rank with the longest replayed iteration, on which the critical path ends."""
        return max(self.ranks, key=lambda one: one.replayed.nanoseconds)


@record(frozen=True, kw_only=True, slots=True)
class Replay(ReplayReport):
    """
    The answer with its tasks, for pages and traces.

    Parameters
    ----------
    graph
        The replayed graph.
    measured, replayed
        Times of its tasks.
    path
        Critical path of the replay.
    """

    graph: ExecutionGraph
    measured: Replayed
    replayed: Replayed
    path: tuple[Step, ...]


def replay_report(traces: Sequence[Trace], iteration: int | None = None) -> Replay:
    """
    Replay an iteration and compare it with the measured one.

    Parameters
    ----------
    traces
        One of each rank.
    iteration
        Number of the iteration, from 0; by default the last one that is followed by another, else the last.

    Raises
    ------
    SpecError
        If a trace has no such iteration.
    """
    graph = execution_graph(traces, iteration)
    log_event(__name__, "graph built", ranks=len(graph.ranks))
    times, simulated = take_recorded_times(graph), replay(graph)
    log_event(__name__, "iteration replayed")
    path = critical_path(graph, simulated)
    slowest = max(graph.ranks, key=lambda rank: simulated.iterations[rank])
    return Replay(
        graph=graph,
        measured=times,
        replayed=simulated,
        path=path,
        sources=tuple(trace.source for trace in graph.traces),
        num_tasks=len(graph.tasks),
        num_dependencies=len(graph.edges),
        measured_nanoseconds=times.iteration,
        replayed_nanoseconds=simulated.iteration,
        difference_fraction=difference(times.iteration, simulated.iteration),
        usable=is_usable(times, simulated),
        wrong_waits=wrong_waits(graph, times, simulated),
        ranks=tuple(_rank_replays(graph, times, simulated, traces, iteration)),
        critical_path=CriticalPath(slowest, simulated.iteration, path_parts(graph, simulated, path)),
        doubts=tuple(dict.fromkeys((*(doubt for trace in traces for doubt in trace.doubts), *graph.doubts))),
    )


def _rank_replays(
    graph: ExecutionGraph, times: Replayed, simulated: Replayed, traces: Sequence[Trace], iteration: int | None
) -> Iterator[RankReplay]:
    of_rank = dict(zip(ranks_of(traces), traces, strict=True))
    sides = [_sides(graph, one) for one in (times, simulated)]
    sums, without = sums_of_tasks(graph, times), replay_without_events(graph).iterations
    for rank in graph.ranks:
        found = iterations(of_rank[rank])
        yield RankReplay(
            rank=rank,
            iteration=found.index(choose_iteration(of_rank[rank], iteration)),
            iterations=tuple(HostIteration(one.name, one.duration, one.found) for one in found),
            difference_fraction=difference(times.iterations[rank], simulated.iterations[rank]),
            without_events_nanoseconds=without[rank],
            sum_of_tasks_nanoseconds=sums[rank],
            measured=sides[0][rank],
            replayed=sides[1][rank],
        )


def _sides(graph: ExecutionGraph, times: Replayed) -> dict[int, Side]:
    parts = break_down(graph, times)
    return {
        rank: Side(
            nanoseconds=times.iterations[rank],
            breakdown_nanoseconds=parts[rank],
            tracks=stream_uses(graph, times, rank),
            processors=processor_use(graph, times, rank),
        )
        for rank in graph.ranks
    }


def replay_json(report: ReplayReport) -> str:
    """Write the answer as strict JSON."""
    return json.dumps(document_of(report, ReplayReport), indent=2, ensure_ascii=False, allow_nan=False)


def document_of(found: object, record_type: Any) -> dict[str, Any]:
    """Return the entries of a record that a result has, as plain data."""
    return {one.name: finite(getattr(found, one.name)) for one in fields(record_type)}
