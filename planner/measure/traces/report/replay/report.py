"""Report of a replay: measured and replayed times, their breakdown, and the critical path."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from planner.measure.traces.events import Trace, Track
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.iterations import Iteration, choose_iteration, iterations
from planner.measure.traces.replay import Replayed, replay, take_recorded_times
from planner.report.records import Figure, Record, entry

NUM_PARTS = 6000

"""Parts of an iteration with a share of processors: more than a screen has columns, for zooming."""


@record(frozen=True, kw_only=True, slots=True)
class Side:
    """
    One rank's iteration, measured or replayed.

    Parameters
    ----------
    nanoseconds
        Length of the iteration.
    breakdown
        Breakdown of the iteration.
    streams
        Use of each stream and thread.
    processors
        Share of processors that kernels occupy; None where no kernel's blocks were recorded.
    """

    nanoseconds: int
    breakdown: Breakdown
    streams: tuple[StreamUse, ...]
    processors: ProcessorUse | None


@record(frozen=True, kw_only=True, slots=True)
class RankReplay:
    """
    One rank, measured and replayed.

    Parameters
    ----------
    rank
        Its number.
    iteration, iterations
        The replayed iteration, and all iterations of its trace.
    measured, replayed
        Both sides.
    sum_of_tasks, without_events
        Nanoseconds of simpler predictions: the sum of all tasks on its device; a replay in which no stream waits for
        another.
    """

    rank: int
    iteration: Iteration
    iterations: tuple[Iteration, ...]
    measured: Side
    replayed: Side
    sum_of_tasks: int
    without_events: int


@record(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """
    An iteration, measured and replayed.

    Parameters
    ----------
    graph
        The replayed graph.
    measured, replayed
        Times of its tasks.
    ranks
        Figures of each rank.
    path, path_parts
        Critical path of the replay, and its parts.
    wrong_waits
        Waits that make an unusable replay too long, or too short.
    doubts
        Sentences on missing information in the traces, and on inferred dependencies.
    """

    graph: ExecutionGraph
    measured: Replayed
    replayed: Replayed
    ranks: tuple[RankReplay, ...]
    path: tuple[Step, ...]
    path_parts: tuple[PathPart, ...]
    wrong_waits: tuple[WrongWait, ...]
    doubts: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """True if the replay of every rank is close enough to the recording."""
        return is_usable(self.measured, self.replayed)

    @property
    def sources(self) -> tuple[str, ...]:
        """Files of the traces."""
        return tuple(trace.source for trace in self.graph.traces)

    @property
    def slowest(self) -> RankReplay:
        """Rank with the longest replayed iteration, on which the critical path ends."""
        return max(self.ranks, key=lambda one: one.replayed.nanoseconds)

    @property
    def path_rank(self) -> int:
        """Number of that rank."""
        return self.slowest.rank

    @property
    def difference(self) -> float:
        """Replayed less measured iteration, as a fraction of the measured one."""
        return difference(self.measured.iteration, self.replayed.iteration)


def replay_report(traces: Sequence[Trace], iteration: int | None = None) -> ReplayReport:
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
    sides = [_sides(graph, one) for one in (times, simulated)]
    sums, without = sums_of_tasks(graph, times), replay_without_events(graph).iterations
    chosen = dict(zip(ranks_of(traces), traces, strict=True))
    return ReplayReport(
        graph=graph,
        measured=times,
        replayed=simulated,
        ranks=tuple(
            RankReplay(
                rank=rank,
                iteration=choose_iteration(chosen[rank], iteration),
                iterations=iterations(chosen[rank]),
                measured=sides[0][rank],
                replayed=sides[1][rank],
                sum_of_tasks=sums[rank],
                without_events=without[rank],
            )
            for rank in graph.ranks
        ),
        path=path,
        path_parts=path_parts(graph, simulated, path),
        wrong_waits=wrong_waits(graph, times, simulated),
        doubts=tuple(dict.fromkeys((*(doubt for trace in traces for doubt in trace.doubts), *graph.doubts))),
    )


def _sides(graph: ExecutionGraph, times: Replayed) -> dict[int, Side]:
    parts = break_down(graph, times)
    return {
        rank: Side(
            nanoseconds=times.iterations[rank],
            breakdown=parts[rank],
            streams=stream_uses(graph, times, rank),
            processors=_processors(graph, times, rank),
        )
        for rank in graph.ranks
    }


def _processors(graph: ExecutionGraph, times: Replayed, rank: int) -> ProcessorUse | None:
    begin, nanoseconds = times.begins[rank], times.iterations[rank]
    if nanoseconds <= 0:
        return None
    return processor_use(graph, times, rank, window=(begin, begin + nanoseconds), num_parts=NUM_PARTS)


NUM_SHARES = 100

"""Parts of an iteration for which JSON has the share of processors."""


class PartsRecord(Record):
    """Nanoseconds of a window; the parts do not overlap."""

    computation: int = entry("Computation alone.")
    communication: int = entry("Communication alone.")
    overlapped: int = entry("Both at once.")
    idle: int = entry("Neither.")


class TrackRecord(Record):
    """A thread of the host, or a stream of a device."""

    kind: str = entry("thread or stream.", "track.kind")
    process: str = entry("The process of a thread, the device of a stream.", "track.process")
    number: str = entry("Its number in the profiler's output.", "track.number")
    num_tasks: int = entry("Tasks on it.")
    computation_nanoseconds: int = entry("Nanoseconds in which it computes or copies.", "computation")
    communication_nanoseconds: int = entry("Nanoseconds in which it communicates; 0 for a thread.", "communication")


class ProcessorsRecord(Record):
    """Share of the device's processors that kernels occupy."""

    mean_fraction: Figure = entry("Mean over the iteration.", "mean")
    num_kernels: int = entry("Number of kernels.")
    num_kernels_left_out: int = entry("Kernels whose blocks or device were not recorded.", "num_unknown")
    nanoseconds_left_out: int = entry("Total time of the latter.", "unknown_nanoseconds")
    fractions: list[Figure] = entry("The share in each of equal parts of the iteration.")

    @classmethod
    def build(cls, use: ProcessorUse) -> ProcessorsRecord:
        """Build the record of a use."""
        shares = use.shares.reshape(NUM_SHARES, -1).mean(axis=1).tolist()
        return cls.read(use, fractions=[round(share, 4) for share in shares])


class SideRecord(Record):
    """A rank's iteration, measured or replayed."""

    nanoseconds: int = entry("From its begin to its end.")
    breakdown_nanoseconds: PartsRecord = entry("Breakdown of the iteration.", "breakdown")
    tracks: list[TrackRecord] = entry("Use of each thread and stream.")
    processors: ProcessorsRecord | None = entry("null where no kernel's blocks were recorded.")

    @classmethod
    def build(cls, side: Side) -> SideRecord:
        """Build the record of a side."""
        return cls.read(
            side,
            tracks=[TrackRecord.read(use) for use in side.streams],
            processors=None if side.processors is None else ProcessorsRecord.build(side.processors),
        )


class IterationRecord(Record):
    """An iteration of a trace."""

    name: str = entry("The profiler's name of it, or its number.")
    host_nanoseconds: int = entry("Its length on the host.", "duration")
    found: str = entry("Source of its begin and end: steps, optimizer, repetition or whole.")


class RankReplayRecord(Record):
    """One rank, measured and replayed."""

    rank: int = entry("Its number.")
    iteration: int = entry("Number of the replayed iteration, from 0.")
    iterations: list[IterationRecord] = entry("All iterations of its trace.")
    difference_fraction: Figure = entry("Replayed over measured, less 1.")
    without_events_nanoseconds: int = entry("A replay in which no stream waits for another.", "without_events")
    sum_of_tasks_nanoseconds: int = entry("Sum of all tasks on its device.", "sum_of_tasks")
    measured: SideRecord = entry("As it was recorded.")
    replayed: SideRecord = entry("As it was replayed.")

    @classmethod
    def build(cls, one: RankReplay) -> RankReplayRecord:
        """Build the record of a rank."""
        return cls.read(
            one,
            iteration=one.iterations.index(one.iteration),
            iterations=list(one.iterations),
            difference_fraction=difference(one.measured.nanoseconds, one.replayed.nanoseconds),
            measured=SideRecord.build(one.measured),
            replayed=SideRecord.build(one.replayed),
        )


class PathPartRecord(Record):
    """All pieces of the critical path with one name."""

    name: str = entry("Name of the tasks, or of the time between them.")
    kind: str = entry("Kind of the tasks.")
    num_tasks: int = entry("Number of pieces.")
    nanoseconds: int = entry("Time of the iteration that they take.")
    fraction: Figure = entry("Their share of it.")


class CriticalPathRecord(Record):
    """The critical path, which determines the length of the replayed iteration."""

    rank: int = entry("Rank on which it ends.")
    nanoseconds: int = entry("Its length: the iteration's.")
    parts: list[PathPartRecord] = entry("Its parts, the longest first.")

    @classmethod
    def build(cls, report: ReplayReport) -> CriticalPathRecord:
        """Build the record of a report's path."""
        whole = report.replayed.iteration
        parts = [
            PathPartRecord.read(part, fraction=part.nanoseconds / whole if whole else 0.0) for part in report.path_parts
        ]
        return cls(rank=report.path_rank, nanoseconds=whole, parts=parts)


class WrongWaitRecord(Record):
    """A wait whose replayed time differs from the recorded one."""

    name: str = entry("The task that waits.")
    track: str = entry("Its thread or stream.")
    awaited: str = entry("The task that releases it.")
    awaited_track: str = entry("Its thread or stream.")
    reason: str = entry("host wait, launch, event, thread, added, processors, order or collective.")
    number: int = entry("Number of waits between tasks of these names.")
    nanoseconds: int = entry("Nanoseconds that the replay takes longer there; negative: a wait is missing.")

    @classmethod
    def build(cls, one: WrongWait) -> WrongWaitRecord:
        """Build the record of a wait."""
        tracks = {name: f"{track.kind} {track.number}" for name, track in _tracks(one)}
        return cls.read(one, **tracks)


def _tracks(one: WrongWait) -> tuple[tuple[str, Track], ...]:
    return ("track", one.track), ("awaited_track", one.awaited_track)


class ReplayRecord(Record):
    """The answer of planner trace replay."""

    sources: list[str] = entry("Files of the traces.")
    num_tasks: int = entry("Tasks of the graph.")
    num_dependencies: int = entry("Its dependencies.")
    measured_nanoseconds: int = entry("The recorded iteration.", "measured.iteration")
    replayed_nanoseconds: int = entry("The replayed iteration.", "replayed.iteration")
    difference_fraction: Figure = entry("Replayed over measured, less 1.", "difference")
    usable: bool = entry("True if the replay of every rank is at most 5 % off; else it must not be used.")
    wrong_waits: list[WrongWaitRecord] = entry("Waits that make an unusable replay too long or too short.")
    ranks: list[RankReplayRecord] = entry("Figures of each rank.")
    critical_path: CriticalPathRecord = entry("The critical path of the iteration.")
    doubts: list[str] = entry("Sentences on missing information in the traces, and on inferred dependencies.")

    @classmethod
    def build(cls, report: ReplayReport) -> ReplayRecord:
        """Build the record of a report."""
        return cls.read(
            report,
            sources=list(report.sources),
            num_tasks=len(report.graph.tasks),
            num_dependencies=len(report.graph.edges),
            wrong_waits=[WrongWaitRecord.build(one) for one in report.wrong_waits],
            ranks=[RankReplayRecord.build(one) for one in report.ranks],
            critical_path=CriticalPathRecord.build(report),
            doubts=list(report.doubts),
        )


def replay_json(report: ReplayReport) -> str:
    """Write the document as strict JSON."""
    return json.dumps(replay_document(report), indent=2, ensure_ascii=False, allow_nan=False)


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """Return a replay as plain data."""
    return ReplayRecord.build(report).plain()
