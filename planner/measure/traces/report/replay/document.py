"""A replay as JSON: whole nanoseconds, so that parts sum exactly to their whole."""

from __future__ import annotations

import json
from typing import Any

from planner.measure.traces.events import Track
from planner.measure.traces.processors import ProcessorUse
from planner.measure.traces.report.replay.report import RankReplay, ReplayReport, Side
from planner.measure.traces.verdict import WrongWait, difference
from planner.report.records.record import Figure, Record, entry

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
    def of(cls, use: ProcessorUse) -> ProcessorsRecord:
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
    def of(cls, side: Side) -> SideRecord:
        """Build the record of a side."""
        return cls.read(
            side,
            tracks=[TrackRecord.read(use) for use in side.streams],
            processors=None if side.processors is None else ProcessorsRecord.of(side.processors),
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
    def of(cls, one: RankReplay) -> RankReplayRecord:
        """Build the record of a rank."""
        return cls.read(
            one,
            iteration=one.iterations.index(one.iteration),
            iterations=list(one.iterations),
            difference_fraction=difference(one.measured.nanoseconds, one.replayed.nanoseconds),
            measured=SideRecord.of(one.measured),
            replayed=SideRecord.of(one.replayed),
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
    def of(cls, report: ReplayReport) -> CriticalPathRecord:
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
    def of(cls, one: WrongWait) -> WrongWaitRecord:
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
    def of(cls, report: ReplayReport) -> ReplayRecord:
        """Build the record of a report."""
        return cls.read(
            report,
            sources=list(report.sources),
            num_tasks=len(report.graph.tasks),
            num_dependencies=len(report.graph.edges),
            wrong_waits=[WrongWaitRecord.of(one) for one in report.wrong_waits],
            ranks=[RankReplayRecord.of(one) for one in report.ranks],
            critical_path=CriticalPathRecord.of(report),
            doubts=list(report.doubts),
        )


def replay_json(report: ReplayReport) -> str:
    """Write the document as strict JSON."""
    return json.dumps(replay_document(report), indent=2, ensure_ascii=False, allow_nan=False)


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """Return a replay as plain data."""
    return ReplayRecord.of(report).plain()
