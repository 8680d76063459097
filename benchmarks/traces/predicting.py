"""A recorded small transformer's step of another configuration: its traces changed, and replayed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_job_of
from costmodel.traces.building import execution_graph
from costmodel.traces.change import Layout, rebuilt
from costmodel.traces.events import UNKNOWN, Message, Trace
from costmodel.traces.graph import ExecutionGraph, Kind
from costmodel.traces.iterations import iterations
from costmodel.traces.reading import read_traces
from costmodel.traces.replay import replay
from costmodel.traces.shapes import Sizes, message_factors, retimed, sizes_of
from costmodel.traces.structure import parts
from planner.jobs.problem import load
from planner.plan import estimate


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


def traced_network(of_two_ranks: dict[str, Sequence[Path]]) -> TracedNetwork:
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
