"""A replay as JSON: whole nanoseconds, so that parts add up to what they are parts of."""

from __future__ import annotations

import json
from typing import Any

from costmodel.traces.events import Track
from costmodel.traces.processors import ProcessorUse
from costmodel.traces.verdict import WrongWait, difference
from planner.report.records.record import Figure, Record, entry
from planner.traces.replay.report import RankReplay, ReplayReport, Side

NUM_SHARES = 100
"""Parts of an iteration of which JSON has the share of processors."""


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
    number: str = entry("Its number, as the profiler has it.", "track.number")
    num_tasks: int = entry("Tasks on it.")
    computation_nanoseconds: int = entry("In which it computes or copies.", "computation")
    communication_nanoseconds: int = entry("In which it communicates; of a thread none.", "communication")


class ProcessorsRecord(Record):
    """Share of the device's processors that kernels occupy."""

    mean_fraction: Figure = entry("Mean over the iteration.", "mean")
    num_kernels: int = entry("Number of kernels.")
    num_kernels_left_out: int = entry("Those of them whose blocks or device were not recorded.", "num_unknown")
    nanoseconds_left_out: int = entry("That the latter take together.", "unknown_nanoseconds")
    fractions: list[Figure] = entry("The share in each of equal parts of the iteration.")

    @classmethod
    def of(cls, use: ProcessorUse) -> ProcessorsRecord:
        """The record of a use."""
        shares = use.shares.reshape(NUM_SHARES, -1).mean(axis=1).tolist()
        return cls.read(use, fractions=[round(share, 4) for share in shares])


class SideRecord(Record):
    """A rank's iteration, measured or replayed."""

    nanoseconds: int = entry("From its begin to its end.")
    breakdown_nanoseconds: PartsRecord = entry("What they go into.", "breakdown")
    tracks: list[TrackRecord] = entry("What each thread and stream does.")
    processors: ProcessorsRecord | None = entry("null where no kernel says how many blocks it has.")

    @classmethod
    def of(cls, side: Side) -> SideRecord:
        """The record of a side."""
        return cls.read(
            side,
            tracks=[TrackRecord.read(use) for use in side.streams],
            processors=None if side.processors is None else ProcessorsRecord.of(side.processors),
        )


class IterationRecord(Record):
    """An iteration of a trace."""

    name: str = entry("The profiler's name for it, or its number.")
    host_nanoseconds: int = entry("Its length on the host.", "duration")
    found: str = entry("How it was found: steps, optimizer, repetition or whole.")


class RankReplayRecord(Record):
    """One rank, measured and replayed."""

    rank: int = entry("Its number.")
    iteration: int = entry("Which of its iterations was replayed, from 0.")
    iterations: list[IterationRecord] = entry("All that its trace has.")
    difference_fraction: Figure = entry("Replayed over measured, less 1.")
    without_events_nanoseconds: int = entry("A replay in which no stream waits for another.", "without_events")
    sum_of_tasks_nanoseconds: int = entry("All that occupies its device added up.", "sum_of_tasks")
    measured: SideRecord = entry("As it was recorded.")
    replayed: SideRecord = entry("As it was replayed.")

    @classmethod
    def of(cls, one: RankReplay) -> RankReplayRecord:
        """The record of a rank."""
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

    name: str = entry("Of the tasks, or what lies between them.")
    kind: str = entry("Of the tasks.")
    num_tasks: int = entry("Number of pieces.")
    nanoseconds: int = entry("That they take of the iteration.")
    fraction: Figure = entry("Their share of it.")


class CriticalPathRecord(Record):
    """The tasks that make the replayed iteration as long as it is."""

    rank: int = entry("Where it ends.")
    nanoseconds: int = entry("Its length: the iteration's.")
    parts: list[PathPartRecord] = entry("What it consists of, the longest part first.")

    @classmethod
    def of(cls, report: ReplayReport) -> CriticalPathRecord:
        """The record of a report's path."""
        whole = report.replayed.iteration
        parts = [
            PathPartRecord.read(part, fraction=part.nanoseconds / whole if whole else 0.0) for part in report.path_parts
        ]
        return cls(rank=report.path_rank, nanoseconds=whole, parts=parts)


class WrongWaitRecord(Record):
    """A wait that does not take what it took when it was recorded."""

    name: str = entry("The task that waits.")
    track: str = entry("Its thread or stream.")
    awaited: str = entry("The task that lets it go.")
    awaited_track: str = entry("Its thread or stream.")
    reason: str = entry("host wait, launch, event, thread, added, processors, order or collective.")
    number: int = entry("How often both follow each other so.")
    nanoseconds: int = entry("By which the replay is longer there; negative: shorter, a wait is missing.")

    @classmethod
    def of(cls, one: WrongWait) -> WrongWaitRecord:
        """The record of a wait."""
        tracks = {name: f"{track.kind} {track.number}" for name, track in _tracks(one)}
        return cls.read(one, **tracks)


def _tracks(one: WrongWait) -> tuple[tuple[str, Track], ...]:
    return ("track", one.track), ("awaited_track", one.awaited_track)


class ReplayRecord(Record):
    """The answer of planner trace replay."""

    sources: list[str] = entry("The files that it was made of.")
    num_tasks: int = entry("Tasks of the graph.")
    num_dependencies: int = entry("Its dependencies.")
    measured_nanoseconds: int = entry("The iteration as it was recorded.", "measured.iteration")
    replayed_nanoseconds: int = entry("The iteration as it was replayed.", "replayed.iteration")
    difference_fraction: Figure = entry("Replayed over measured, less 1.", "difference")
    usable: bool = entry("True if the replay of every rank is at most 5 % off; else nothing follows from it.")
    wrong_waits: list[WrongWaitRecord] = entry("The waits that make a replay that is not usable too long or too short.")
    ranks: list[RankReplayRecord] = entry("What is said of each rank.")
    critical_path: CriticalPathRecord = entry("What holds the iteration up.")
    doubts: list[str] = entry("Sentences on what the traces lack, and what was inferred.")

    @classmethod
    def of(cls, report: ReplayReport) -> ReplayRecord:
        """The record of a report."""
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
    """The document as strict JSON."""
    return json.dumps(replay_document(report), indent=2, ensure_ascii=False, allow_nan=False)


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """What a replay says, as plain data."""
    return ReplayRecord.of(report).plain()
