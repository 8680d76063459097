"""A recorded small transformer's step of another configuration: its traces changed, and replayed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.traces.predicted import Prediction, lines, predictions
from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_job_of
from benchmarks.traces.recorded.folder import read_recorded
from planner.jobs.problem import load
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import Layout, rebuilt
from planner.measure.traces.events import UNKNOWN, Message, Trace
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.iterations import iterations
from planner.measure.traces.reading import read_traces
from planner.measure.traces.replay import replay
from planner.measure.traces.shapes import Sizes, message_factors, retimed, sizes_of
from planner.measure.traces.structure import parts
from planner.verbs.plan import estimate


@dataclass(frozen=True, slots=True)
class TracedNetwork:
    """
    What messages take by what they took in traces of two ranks, in proportion to their elements.

    Parameters
    ----------
    nanoseconds_per_element
        Of all-reduces (``dp``) and sends (``pp``): medians.
    """

    nanoseconds_per_element: dict[str, float]

    def nanoseconds(self, message: Message, *, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """Nanoseconds of a message between two ranks."""
        return round(self.nanoseconds_per_element[purpose] * message.elements_in) if ranks > 1 else 0


def traced_network(of_two_ranks: Mapping[str, Sequence[Path]]) -> TracedNetwork:
    """The network of traces of two ranks, by what it is for."""
    found = {}
    for purpose, files in of_two_ranks.items():
        graph = execution_graph(read_traces(files))
        tasks = graph.tasks
        rows = np.flatnonzero((tasks.kind == Kind.COMMUNICATION) & (tasks.collective != UNKNOWN)).tolist()
        paces = [tasks.duration[row] / graph.messages[int(tasks.message[row])].elements_in for row in rows]
        found[purpose] = statistics.median(paces)
    return TracedNetwork(found)


@cache
def _base(files: tuple[Path, ...]) -> tuple[tuple[Trace, ...], tuple[ExecutionGraph, ...]]:
    traces = read_traces(files)
    number = min(len(iterations(trace)) for trace in traces)
    return traces, tuple(execution_graph(traces, one) for one in range(number))


def layout(one: TracedConfiguration) -> Layout:
    """The layout of a configuration."""
    return Layout(num_layers=one.num_layers, num_microbatches=one.num_microbatches, pp=one.pp, dp=one.dp)


@cache
def _sizes(one: TracedConfiguration) -> Sizes:
    """Sizes of operators, as the planner has them of the same job; without the number of layers and ranks."""
    alone = replace(one, num_layers=2, num_microbatches=1, dp=1, pp=1)
    plan = estimate(load(traced_job_of(alone, "h100-80gb-sxm", precision="bf16")), {}).plan
    return sizes_of(plan.facts.model, plan.facts.workload, plan.strategy)


def layer_weights(one: TracedConfiguration) -> int:
    """Weights of a layer: attention's four matrices, the gated MLP's three, two norms."""
    hidden, keys = one.hidden_size, one.hidden_size * one.num_kv_heads // one.num_heads
    return 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * one.ffn_hidden_size + 2 * hidden


def rank_weights(one: TracedConfiguration) -> float:
    """Weights of a rank, the mean of all: layers, embedding and head."""
    return (one.num_layers * layer_weights(one) + 2 * one.vocab_size * one.hidden_size) / one.pp


def predicted_seconds(
    files: tuple[Path, ...], base: TracedConfiguration, target: TracedConfiguration, network: TracedNetwork
) -> float:
    """
    Seconds of a target's step: the median over the recorded steps, each changed and replayed.

    Parameters
    ----------
    files
        Traces of all ranks of the base.
    base, target
        Configurations.
    network
        What messages take.
    """
    traces, graphs = _base(files)
    before, after = _sizes(base), _sizes(target)
    new_weights = layer_weights(target) / layer_weights(base)
    share = rank_weights(target) / rank_weights(replace(target, num_layers=base.num_layers, pp=base.pp))
    found = [parts(trace) for trace in traces]
    weights, activations = layer_weights(target), target.mbs * target.sequence_length * target.hidden_size
    seconds = []
    for graph in graphs:
        if before != after:
            factors = message_factors(graph, before, after, weights=new_weights)
            duration = np.rint(retimed(graph, before, after).duration * factors).astype(np.int64)
            graph = replace(graph, tasks=replace(graph.tasks, duration=duration))
        changed = rebuilt(
            graph,
            found,
            layout(base),
            layout(target),
            network=network,
            parameters=share,
            layer_gradients=Message(operation="all_reduce", elements_in=weights, elements_out=weights, dtype="float"),
            activations=Message(operation="send", elements_in=activations, elements_out=activations, dtype="float"),
        )
        seconds.append(replay(changed).iteration / 1e9)
    return statistics.median(seconds)


# --- the table ---------------------------------------------------------------------------------------------

MOST_ERROR, FEWEST = 0.10, 16
"""Mean error that is reached, over so many targets at least."""

BASES = (
    "one-w256-l2-s256-b1-m4",
    "one-w256-l4-s256-b2-m1",
    "one-w384-l2-s256-b2-m1",
    "one-w256-l4-s512-b1-m1",
    "dp2-w256-l4-s256-b2-m1",
    "pp2-w256-l4-s256-b1-m4",
)
"""Whose traces are changed."""

NETWORK = {"dp": "dp2-w256-l2-s256-b2-m1", "pp": "pp2-w256-l2-s256-b1-m4"}
"""Recordings of two ranks from which a message's time is taken; as targets they do not count."""


def report(folder: Path) -> Iterator[str | bool]:
    """Every target from every base that differs in one thing, or in what the base has not: and the mean error."""
    index = read_recorded(folder)
    missing = [name for name in (*BASES, *NETWORK.values()) if name not in index.recordings]
    if missing:
        yield f"{folder} lacks {', '.join(missing)}: --record records them."
        yield False
        return
    files = {
        purpose: [folder / trace for trace in index.recordings[name].quietest.traces]
        for purpose, name in NETWORK.items()
    }
    network = traced_network(files)
    rows: list[Prediction] = []
    for base in BASES:
        yield f"from {base}"
        found = tuple(
            row
            for row in predictions(index, folder, base, partial(predicted_seconds, network=network))
            if row.target not in NETWORK.values()
        )
        yield from lines(found)
        rows += found
    yield f"all {len(rows)} predictions"
    yield from lines(rows)
    yield len(rows) >= FEWEST
    yield statistics.fmean(abs(row.error) for row in rows) <= MOST_ERROR
