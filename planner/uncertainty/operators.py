"""Uncertainty of the times of a strategy's operators and collectives, and of its step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from costmodel.facts.device import Cluster
from costmodel.lowering import embedding_operators, head_operators, layer_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import dense_data_group, layer_group, pipeline_group
from costmodel.record import record
from costmodel.step.estimate import Part
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.source import build_sampled_source
from costmodel.timing.work import Operator

if TYPE_CHECKING:
    from costmodel.timing.sampled_source import SampledSource

ROOFLINE_DEVIATION = 0.25
"""
Standard deviation of the logarithm of a roofline time with sampled rates: medians of 12 to 20 % on measured operators
(``python -m benchmarks.operators``, modified roofline).
"""


@record(frozen=True, kw_only=True, slots=True)
class TimedOperator:
    """
    One operator of a strategy in all of its layers, or the collectives of a group of ranks.

    Parameters
    ----------
    name
        Name in the cost model.
    share
        Its share of the step: for operators the share of the computation, for collectives the exposed share.
    relative_deviation
        Standard deviation of the logarithm of its time.
    origin
        Source of its time.
    is_sampled, is_outside
        True where samples timed it; True where its shape is outside of their range, so that their roofline is used.
    """

    name: str
    share: float
    relative_deviation: float
    origin: str
    is_sampled: bool
    is_outside: bool

    @property
    def doubt(self) -> float:
        """Its contribution to the error of a step, in logarithms: share times deviation."""
        return self.share * self.relative_deviation


Pass: TypeAlias = tuple[float, float, bool]
"""Seconds of a pass, the relative deviation of that time, and a flag: its sizes are outside the samples."""

COMMUNICATION = {"tp": "all_gather", "cp": "send", "ep": "all_to_all", "pp": "send", "dp": "all_gather"}
"""Groups of ranks with collectives in a step, and a kind that they use."""

USUAL_BYTES = 2.0**26
"""Bytes of a message at which the deviation of collectives' samples is taken."""


def list_timed_operators(facts: Facts, strategy: Strategy, breakdown: Sequence[Part]) -> tuple[TimedOperator, ...]:
    """
    Return operators and collectives of a strategy on a sampled device, the most uncertain first; () on others.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    strategy
        Strategy of the step.
    breakdown
        Breakdown of its step.
    """
    device = facts.cluster.device
    if device.constants.times != "sampled":
        return ()
    source = build_sampled_source(device, facts.workload.precision.compute, cuda_graphs=strategy.cuda_graphs)
    passes: dict[str, list[Pass]] = defaultdict(list)
    origins: dict[str, Operator] = {}
    for operator, count in strategy_operators(facts, strategy):
        origins.setdefault(operator.name, operator)
        passes[operator.name] += [
            (count * seconds, deviation, is_outside) for seconds, deviation, is_outside in _passes(source, operator)
        ]
    total = sum(seconds for of_name in passes.values() for seconds, _, _ in of_name)
    groups = list(_groups(facts.cluster, strategy, breakdown))
    alone = 1.0 - sum(one.share for one in groups)
    operators = [
        _combine_passes(name, of_name, total / alone, source, origins[name]) for name, of_name in passes.items()
    ]
    found = [*operators, *groups]
    return tuple(sorted((one for one in found if one.share > 0), key=lambda one: -one.doubt))


def _groups(cluster: Cluster, strategy: Strategy, breakdown: Sequence[Part]) -> Iterator[TimedOperator]:
    """Yield the groups of ranks whose collectives are exposed in the step."""
    from costmodel.network.sampled_fabric import learn_collectives, members_and_nodes

    degrees = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep, "etp": strategy.etp}
    sizes = {"tp": strategy.tp, "cp": strategy.cp, "dp": strategy.dp}
    groups = {
        **{name: layer_group(name, **degrees) for name in ("tp", "cp", "ep")},
        "dp": dense_data_group(**sizes),
        "pp": pipeline_group(**sizes, pp=strategy.pp),
    }
    times = learn_collectives(cluster)
    step = sum(one.exposed_seconds for one in breakdown)
    for part in breakdown:
        if part.name not in COMMUNICATION or part.exposed_seconds <= 0:
            continue
        group = groups[part.name]
        members, nodes = members_and_nodes(cluster, ranks=group.ranks, stride=group.stride)
        case = {"nbytes": USUAL_BYTES, "ranks": members * nodes, "nodes": nodes}
        known = times is not None and (times.inside if nodes == 1 else times.between) is not None
        kind = COMMUNICATION[part.name]
        yield TimedOperator(
            name=f"{part.name} communication",
            share=part.exposed_seconds / step,
            relative_deviation=float(times.relative_deviation(kind, **case)) if times and known else ROOFLINE_DEVIATION,
            origin=f"{_samples_name(cluster) if known else 'networks'} of {cluster.device.name}",
            is_sampled=known,
            is_outside=bool(times.is_outside(kind, **case)) if times and known else False,
        )


def _samples_name(cluster: Cluster) -> str:
    samples = cluster.device.calibration.samples
    return samples.origin if samples else "samples"


def strategy_operators(facts: Facts, strategy: Strategy) -> Iterator[tuple[Operator, int]]:
    """Yield every operator of a strategy's micro-batch, with the number of layers that have it."""
    shape = strategy_shape(facts, strategy)
    for layer, count in facts.model.layer_counts.items():
        yield from ((operator, count) for operator in layer_operators(layer, shape))
    for operator in (*embedding_operators(facts.model, shape), *head_operators(facts.model, shape)):
        yield operator, 1


def strategy_shape(facts: Facts, strategy: Strategy) -> Shape:
    """Return the common shape of the operators of a strategy's micro-batch."""
    return layer_shape(
        facts.model,
        facts.cluster,
        facts.workload,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.ep,
        etp=strategy.etp,
        mbs=strategy.mbs,
        sequence_parallel=strategy.sequence_parallel,
        token_dispatcher=strategy.token_dispatcher,
        cuda_graphs=strategy.cuda_graphs,
    )


def _passes(source: SampledSource, operator: Operator) -> Iterator[Pass]:
    """Yield seconds, deviation, and True if outside of the samples, of each pass of an operator."""
    from costmodel.timing.sampled_source import backward_passes, forward_passes

    for of_passes, seconds in (
        (forward_passes(operator), source.forward_seconds(operator)),
        (backward_passes(operator), source.backward_seconds(operator)),
    ):
        known = [source.found(operator, of_pass) for of_pass in of_passes]
        if not all(known):
            yield float(seconds), ROOFLINE_DEVIATION, False
            continue
        laws = [one for one in known if one]
        parts = [float(law.seconds(sizes)) for law, sizes in laws]
        deviations = [law.relative_deviation(sizes) for law, sizes in laws]
        whole = sum(part * deviation for part, deviation in zip(parts, deviations, strict=True)) / sum(parts)
        yield float(seconds), whole, any(law.is_outside(sizes) for law, sizes in laws)


def _combine_passes(
    name: str, passes: list[Pass], total: float, source: SampledSource, operator: Operator
) -> TimedOperator:
    """Combine all passes of an operator: their errors are equal, and add up."""
    seconds = sum(seconds for seconds, _, _ in passes)
    doubt = sum(seconds * deviation for seconds, deviation, _ in passes)
    return TimedOperator(
        name=name,
        share=seconds / total if total else 0.0,
        relative_deviation=doubt / seconds if seconds else 0.0,
        origin=source.origin(operator),
        is_sampled=source.is_sampled(operator),
        is_outside=any(is_outside for _, _, is_outside in passes),
    )


def operators_deviation(operators: tuple[TimedOperator, ...]) -> float:
    r"""
    Return the standard deviation of the logarithm of a step's computation from the errors of operator times.

    .. math:: \sigma = \sqrt{\sum_i (w_i \sigma_i)^2}

    for operators of share w: errors of one operator are equal in all layers, those of different operators independent.
    """
    return math.sqrt(sum(one.doubt**2 for one in operators))
