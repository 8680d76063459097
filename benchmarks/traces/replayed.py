"""Real traces replayed beside what was recorded, a sum of their kernels, and a replay without events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.measure.traces.breakdown import break_down, replay_without_events
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import ON_STREAMS, Trace, length, union
from planner.measure.traces.graph import Kind
from planner.measure.traces.iterations import iterations
from planner.measure.traces.reading import read_trace
from planner.measure.traces.replay import replay, take_recorded_times

MOST_ERROR = 0.03
"""Largest error of an iteration's replayed time."""

DEEPSEEK = "deepseek_h800_ep64_rank0.json.gz"
DEEPSEEK_SPAN, DEEPSEEK_EXPERTS = 129.0e6, 113.4e6
"""Nanoseconds from the first to the last kernel of DeepSeek's trace, and of its expert-parallel communication."""

WITHIN = 0.001
"""Difference up to which these two are the same."""


def report(folder: Path) -> Iterator[str | bool]:
    """Lines of a table, and whether each of the checks holds."""
    yield f"{'trace':46}{'iteration':>18}{'recorded, ms':>14}{'replay':>9}{'no events':>11}{'kernels':>10}"
    for path in sorted(folder.glob("*.json.gz")):
        trace = read_trace(path)
        for number, one in enumerate(iterations(trace)):
            graph = execution_graph([trace], number)
            times, recorded = replay(graph), take_recorded_times(graph).iteration
            error, kernels = (
                times.iteration / recorded - 1,
                int(graph.tasks.duration[graph.tasks.kind != Kind.HOST].sum()),
            )
            is_complete = one.found == "steps" or one.followed
            yield (
                f"{path.name:46}{one.name:>18}{recorded / 1e6:>14.3f}{error:>+9.2%}"
                f"{replay_without_events(graph).iteration / recorded - 1:>+11.2%}{kernels / recorded - 1:>+10.1%}"
                + ("" if is_complete else "  incomplete: not counted")
            )
            yield not is_complete or abs(error) <= MOST_ERROR
            yield break_down(graph, times)[graph.ranks[0]].total == times.iteration
        if path.name == DEEPSEEK:
            yield from _deepseek(trace)


def _deepseek(trace: Trace) -> Iterator[str | bool]:
    rows = trace.find_rows(*ON_STREAMS)
    start, end = trace.events.start[rows], trace.events.end[rows]
    span = int(end.max() - start.min())
    talks = trace.events.message[rows] >= 0
    own = int((end - start)[talks].sum())
    exposed = length(union(start, end)) - length(union(start[~talks], end[~talks]))
    graph = execution_graph([trace])
    replayed = break_down(graph, replay(graph))[graph.ranks[0]].communication
    yield (
        f"{'':46}span {span / 1e6:.1f} ms, expert-parallel communication {own / 1e6:.1f} ms, of which exposed "
        f"{exposed / 1e6:.1f} ms (replayed {replayed / 1e6:.1f} ms)"
    )
    yield abs(span / DEEPSEEK_SPAN - 1) <= WITHIN
    yield abs(own / DEEPSEEK_EXPERTS - 1) <= WITHIN
