"""The planner's step of one pipeline rank, by part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from costmodel.lowering import embedding_operators, head_operators, layer_operators
from costmodel.lowering.layer import mtp_projection_operators
from costmodel.step.estimate import Part, stages_of
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.source import operator_times
from costmodel.timing.work import Operator
from planner.measure.traces.report.comparison.kinds import MODEL_PARTS, kind_of
from planner.uncertainty.operators import strategy_shape

PlannedParts: TypeAlias = tuple[dict[str, float], dict[str, float]]
"""Seconds that each part adds to a rank's step, and seconds of each part that are overlapped with computation."""


def split_planned_step(facts: Facts, strategy: Strategy, breakdown: Sequence[Part], stage: int) -> PlannedParts:
    """
    Split the breakdown of a pipeline rank; its computation is divided among its operators by their own times.

    Parameters
    ----------
    facts, strategy
        The job.
    breakdown
        Breakdown of the step on that rank: :func:`costmodel.step.estimate.rank_breakdowns`.
    stage
        Number of the pipeline rank.
    """
    times = operator_times(
        facts.cluster.device,
        facts.workload.precision.compute,
        num_devices=strategy.tp * strategy.cp * strategy.dp,
        cuda_graphs=strategy.cuda_graphs,
    )
    alone: dict[str, float] = defaultdict(float)
    for operator, count in stage_operators(facts, strategy, stage):
        seconds = float(times.forward_seconds(operator)) + float(times.backward_seconds(operator))
        alone[kind_of(operator.name)] += count * seconds
    total = sum(alone.values())
    exposed: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    for part in breakdown:
        if part.name == "compute":
            for kind, seconds in alone.items():
                exposed[kind] += part.exposed_seconds * seconds / total
        else:
            exposed[MODEL_PARTS[part.name]] += part.exposed_seconds
            hidden[MODEL_PARTS[part.name]] += part.hidden_seconds
    return dict(exposed), dict(hidden)


def stage_operators(facts: Facts, strategy: Strategy, stage: int) -> Iterator[tuple[Operator, float]]:
    """
    Yield the operators of a pipeline rank's micro-batch: of its layers, and of the embedding and head it has.

    Yields
    ------
    operator, count
        Layers of the rank with this operator; for embedding and head the share that the rank has.
    """
    ranks, shape = stages_of(facts, strategy), strategy_shape(facts, strategy)
    layers = ranks.layers.reshape(strategy.pp, -1)[stage].tolist()
    for layer, count in zip(facts.model.kinds, layers, strict=True):
        if count:
            yield from ((operator, count) for operator in layer_operators(layer, shape))
    first, last = float(ranks.first.ravel()[stage]), float(ranks.last.ravel()[stage])
    if first:
        yield from ((operator, first) for operator in embedding_operators(facts.model, shape))
    if last:
        ends = (*head_operators(facts.model, shape), *mtp_projection_operators(facts.model, shape))
        yield from ((operator, last) for operator in ends)
