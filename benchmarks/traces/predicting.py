"""
Recorded steps of small transformers predicted from the trace of another configuration, beside what was measured.

A prediction is scaled by how the base's own step, measured without the profiler, compares with the replay of its trace:
whoever has a trace knows that time, too. That takes out what the profiler costs, and the pace of the machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_job_of
from benchmarks.traces.recorded.folder import Index, Measured, read_recorded
from costmodel.errors import SpecError, did_you_mean
from planner.jobs.problem import load
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import Layout, Network, rebuild_graph
from planner.measure.traces.events import UNKNOWN, Message, Trace
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.iterations import iterations
from planner.measure.traces.reading import read_traces
from planner.measure.traces.replay import replay
from planner.measure.traces.retiming import Sizes, message_factors, retime_tasks, sizes_of
from planner.measure.traces.structure import parts
from planner.verbs.plan import estimate


def traced_network(of_two_ranks: Mapping[str, Sequence[Path]]) -> Network:
    """
    Times of messages by what they took in traces of two ranks, in proportion to their elements.

    Parameters
    ----------
    of_two_ranks
        Traces whose all-reduces (``dp``) or sends (``pp``) have the median time for each element.
    """
    found = {}
    for purpose, files in of_two_ranks.items():
        graph = execution_graph(read_traces(files))
        tasks = graph.tasks
        rows = np.flatnonzero((tasks.kind == Kind.COMMUNICATION) & (tasks.collective != UNKNOWN)).tolist()
        paces = [tasks.duration[row] / graph.messages[int(tasks.message[row])].elements_in for row in rows]
        found[purpose] = statistics.median(paces)
    return lambda message, purpose, ranks: round(found[purpose] * message.elements_in) if ranks > 1 else 0


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
    files: tuple[Path, ...], base: TracedConfiguration, target: TracedConfiguration, network: Network
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
        Latency and bandwidth of messages.
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
            duration = np.rint(retime_tasks(graph, before, after)[0] * factors).astype(np.int64)
            graph = replace(graph, tasks=replace(graph.tasks, duration=duration))
        changed = rebuild_graph(
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


# --- all targets of a base ---------------------------------------------------------------------------------

Predict: TypeAlias = Callable[[tuple[Path, ...], TracedConfiguration, TracedConfiguration], float]
"""Seconds of a step: from the traces of all ranks of a base, the base's configuration, and that of the target."""

CHANGES = {
    "num_layers": "layers",
    "hidden_size": "width",
    "sequence_length": "sequence",
    "mbs": "micro-batch",
    "num_microbatches": "micro-batches",
    "dp": "data parallelism",
    "pp": "pipeline",
}
"""Facts that a target may change, and their names in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """
    A target beside its prediction.

    Parameters
    ----------
    target
        Its name.
    changed
        Differences from its base, as in ``CHANGES``.
    measured
        Its steps without the profiler.
    seconds
        Predicted.
    """

    target: str
    changed: tuple[str, ...]
    measured: Measured
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.seconds / self.measured.seconds - 1


def changed(base: TracedConfiguration, target: TracedConfiguration) -> tuple[str, ...]:
    """List the differences of a target from its base."""
    return tuple(word for name, word in CHANGES.items() if getattr(base, name) != getattr(target, name))


def predictions(index: Index, folder: str | os.PathLike[str], base: str, predict: Predict) -> tuple[Prediction, ...]:
    """
    All targets that differ from a base in something that can be changed.

    Parameters
    ----------
    index, folder
        Index of the recordings, and their folder.
    base
        Name of the configuration whose traces are changed.
    predict
        Function that predicts. It also gets the base as its own target.

    Raises
    ------
    SpecError
        If the folder has no such base.
    """
    if base not in index.recordings:
        raise SpecError(base, "was not recorded.", did_you_mean(base, index.recordings))
    own = index.recordings[base]
    traces = tuple(Path(folder) / trace for trace in own.quietest.traces)
    scale = index.plain(base).seconds / predict(traces, own.configuration, own.configuration)
    return tuple(
        Prediction(
            target=name,
            changed=changed(own.configuration, one.configuration),
            measured=index.plain(name),
            seconds=scale * predict(traces, own.configuration, one.configuration),
        )
        for name, one in index.recordings.items()
        if changed(own.configuration, one.configuration) and one.configuration.optimizer == own.configuration.optimizer
    )


def lines(rows: Sequence[Prediction]) -> Iterator[str]:
    """A table in text: a row for each target, and errors by what was changed."""
    yield f"{'target':32}{'measured, ms':>14}{'spread':>8}{'predicted, ms':>15}{'error':>8}  changed"
    for row in rows:
        yield (
            f"{row.target:32}{1e3 * row.measured.seconds:>14.1f}{row.measured.spread:>8.1%}"
            f"{1e3 * row.seconds:>15.1f}{row.error:>+8.1%}  {', '.join(row.changed)}"
        )
    yield f"{'changed':32}{'targets':>8}{'mean':>8}{'median':>8}{'p90':>8}{'signed':>8}"
    for word in CHANGES.values():
        yield from _summary(word, [row.error for row in rows if word in row.changed])
    yield from _summary("one thing", [row.error for row in rows if len(row.changed) == 1])
    yield from _summary("several things", [row.error for row in rows if len(row.changed) > 1])
    yield from _summary("all", [row.error for row in rows])


def _summary(word: str, errors: Sequence[float]) -> Iterator[str]:
    if errors:
        sizes = np.abs(errors)
        yield (
            f"{word:32}{len(errors):>8}{sizes.mean():>8.1%}{np.median(sizes):>8.1%}{np.quantile(sizes, 0.9):>8.1%}"
            f"{statistics.fmean(errors):>+8.1%}"
        )


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
"""Configurations whose traces are changed."""

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
