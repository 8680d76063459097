"""Made traces beside what is built and replayed of them, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces.synthetic.drawn import with_other_durations
from benchmarks.traces.synthetic.truth import Made, Place, make
from planner.measure.traces.breakdown import break_down
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers
from planner.measure.traces.graph import Dependency, ExecutionGraph
from planner.measure.traces.replay import replay


def differences(made: Made, step: int = 0, *, other: Made | None = None) -> dict[str, int]:
    """
    Build the graph of a step, replay it, and compare it with the true one.

    Parameters
    ----------
    made
        The traces.
    step
        Number of the iteration.
    other
        A copy of the job with other durations, of which the first step is compared: the graph of ``made`` is replayed
        with the durations of this one. Only right dependencies give its times.

    Returns
    -------
    dict
        Number of differences between the replay and the truth, without zeros: calls and kernels of the iteration that
        are no tasks of the graph; launches and waits for events that are in the graph and not true, or the other way
        round; tasks that start or end at another time; ranks whose iteration takes another time, or goes into other
        things.
    """
    graph, truth = execution_graph(made.traces, step), other or made
    rows = _rows(made, graph, truth)
    if other is not None:
        graph = _with_durations(graph, rows, other)
    times = replay(graph)
    start, end = _spans(graph, rows, truth, step)
    ranks = range(made.recipe.world_size)
    true = {rank: truth.truth.iterations[rank, step] for rank in ranks}
    parts = break_down(graph, times)
    found = {
        "missing": _num_tasks(made, step) - int((rows != UNKNOWN).sum()),
        "edges": _num_wrong_edges(made, graph),
        "starts": int((times.start != start)[rows != UNKNOWN].sum()),
        "ends": int((times.end != end)[rows != UNKNOWN].sum()),
        "iterations": sum(times.iterations[rank] != true[rank].duration for rank in ranks),
        "breakdowns": sum(
            (one.computation, one.communication, one.overlapped, one.idle) != true[rank].shares
            for rank, one in parts.items()
        ),
    }
    return {name: number for name, number in found.items() if number}


def wrong_replays(made: Made) -> tuple[dict[str, int], ...]:
    """Return the differences in any step of a job, or in its first one with other durations; () if all is exact."""
    other = make(with_other_durations(made.recipe))
    found = (*(differences(made, step) for step in range(made.recipe.num_steps)), differences(made, other=other))
    return tuple(one for one in found if one)


def _rows(made: Made, graph: ExecutionGraph, other: Made) -> Integers:
    """Row of each task in the traces of another job that does the same; ``UNKNOWN`` of tasks that nobody recorded."""
    found = np.full(len(graph.tasks), UNKNOWN)
    for number, (trace, same) in enumerate(zip(made.traces, other.traces, strict=True)):
        tasks = np.flatnonzero((graph.tasks.trace == number) & (graph.tasks.event != UNKNOWN))
        events, place = same.events, {}
        for row in same.find_rows(Category.CALL, *ON_STREAMS).tolist():
            place[int(events.correlation[row]), events.category[row] == Category.CALL] = row
        rows = graph.tasks.event[tasks]
        called = trace.events.category[rows] == Category.CALL
        keys = zip(trace.events.correlation[rows].tolist(), called.tolist(), strict=True)
        found[tasks] = [place[key] for key in keys]
    return found


def _with_durations(graph: ExecutionGraph, rows: Integers, made: Made) -> ExecutionGraph:
    duration = graph.tasks.duration.copy()
    for number in range(len(made.traces)):
        tasks = _tasks_of(graph, number)
        duration[tasks] = made.truth.durations[number][rows[tasks]]
    return replace(graph, tasks=replace(graph.tasks, duration=duration))


def _spans(graph: ExecutionGraph, rows: Integers, made: Made, step: int) -> tuple[Integers, Integers]:
    """True start and end of each task, from when the first rank begins the step."""
    truth = made.truth
    begin = min(one.begin + truth.begins[rank] for (rank, of), one in truth.iterations.items() if of == step)
    start, end = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    for number, trace in enumerate(made.traces):
        tasks = _tasks_of(graph, number)
        start[tasks] = trace.events.start[rows[tasks]] + truth.begins[number] - begin
        end[tasks] = trace.events.end[rows[tasks]] + truth.begins[number] - begin
    return start, end


def _tasks_of(graph: ExecutionGraph, trace: int) -> NDArray[np.intp]:
    return np.flatnonzero((graph.tasks.trace == trace) & (graph.tasks.event != UNKNOWN))


def _num_wrong_edges(made: Made, graph: ExecutionGraph) -> int:
    """Count the launches and the waits for events between tasks that are only true, or only in the graph."""
    ranks = [graph.tracks[track].rank for track in graph.tasks.track.tolist()]
    places = [Place(rank, row) for rank, row in zip(ranks, graph.tasks.event.tolist(), strict=True)]
    chosen = np.isin(graph.edges.dependency, (Dependency.LAUNCH, Dependency.EVENT))
    pairs = zip(graph.edges.before[chosen].tolist(), graph.edges.after[chosen].tolist(), strict=True)
    inside = set(places)
    true = {
        (one.before, one.after)
        for one in made.truth.dependences
        if one.reason in ("launch", "event") and {one.before, one.after} <= inside
    }
    return len(true ^ {(places[before], places[after]) for before, after in pairs})


def _num_tasks(made: Made, step: int) -> int:
    """Number of calls of a step, and of what they put on streams."""
    total = 0
    for rank, trace in enumerate(made.traces):
        begin = made.truth.iterations[rank, step].begin
        following = made.truth.iterations.get((rank, step + 1))
        end = following.begin if following else int(trace.events.end.max())
        calls = trace.find_rows(Category.CALL)
        called = trace.events.start[calls]
        inside = np.isin(trace.events.correlation, trace.events.correlation[calls[(called >= begin) & (called < end)]])
        total += int(np.isin(trace.events.category, (Category.CALL, *ON_STREAMS))[inside].sum())
    return total
