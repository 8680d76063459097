"""Report of a replay: measured and replayed times, their breakdown, and the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.events import log_event
from planner.measure.traces.breakdown import Breakdown, StreamUse, break_down, stream_uses
from planner.measure.traces.building import execution_graph
from planner.measure.traces.building.all_ranks import ranks_of
from planner.measure.traces.comparisons import replay_without_events, sums_of_tasks
from planner.measure.traces.critical_path import PathPart, Step, critical_path, path_parts
from planner.measure.traces.events import Trace
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.iterations import Iteration, choose_iteration, iterations
from planner.measure.traces.processors import ProcessorUse, processor_use
from planner.measure.traces.replay import Replayed, replay, take_recorded_times
from planner.measure.traces.verdict import WrongWait, difference, is_usable, wrong_waits

NUM_PARTS = 6000
"""Parts of an iteration with a share of processors: more than a screen has columns, for zooming."""


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
