"""Operators and messages of a job with their true sizes, over the degrees that a search would try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from costmodel.facts.model import Experts
from costmodel.lowering.embedding import embedding_operators, head_operators
from costmodel.lowering.layer import layer_communications, layer_operators, mtp_projection_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.record import record
from costmodel.step.rank_time import micro_batch_bytes
from costmodel.timing.sampled_source import size_of_operator
from costmodel.timing.work import Operator
from planner.jobs.problem import Problem
from planner.measure.sample.samples import OPERATORS, Point, Sizes
from planner.search.domains import divisors, job_choices

MICRO_BATCH_SIZES = (1, 2, 4)
"""Sequences of a micro-batch, unless the job fixes them."""

WIDE_GRADIENT_BYTES = 4
"""Bytes of a gradient from which on it is reduced in fp32."""


class Message(NamedTuple):
    """A collective of the table, its dtype, the bytes of its whole tensor, and the ranks that take part."""

    operator: str
    dtype: str
    nbytes: int
    ranks: int


@record(frozen=True, kw_only=True, slots=True)
class JobShapes:
    """
    Operators and messages of a job.

    Parameters
    ----------
    groups
        Points by the operator's name in the model and its pass. Each has a weight: FLOPs, or bytes where there are
        none, times the layers with it.
    unknown
        Names of operators that no sample measures: recurrences, attention in a window, kernels of a framework's own.
    messages
        Messages between tensor-, expert-, pipeline- and data-parallel ranks.
    """

    groups: Mapping[tuple[str, str], Mapping[Point, float]] = field(hash=False)
    unknown: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def points(self) -> frozenset[Point]:
        """All points."""
        return frozenset(point for group in self.groups.values() for point in group)


def job_shapes(problem: Problem) -> JobShapes:
    """
    List the distinct sizes of a job's operators.

    They cover tp up to the devices of a node, and micro-batches of 1, 2 and 4 sequences, with and without sequence
    parallelism. Experts have each ep that divides their number, and are whole or split over tp. Decisions that the job
    fixes have only its values. Sizes that are not whole numbers are left out.
    """
    groups: dict[tuple[str, str], dict[Point, float]] = {}
    unknown: dict[str, None] = {}
    messages: dict[Message, None] = {}
    for shape in _shapes(problem):
        messages |= dict.fromkeys(_messages(problem, shape))
        for operator, number in _operators(problem, shape):
            if size_of_operator(operator) is None:
                unknown[operator.name] = None
            for point in points_of(operator):
                group = groups.setdefault((operator.name, point.pass_), {})
                weight = float(operator.flops or operator.bytes)
                group[point] = max(group.get(point, 0.0), weight * number)
    return JobShapes(groups=groups, unknown=tuple(unknown), messages=tuple(messages))


def _shapes(problem: Problem) -> Iterator[Shape]:
    facts = problem.facts
    chosen = job_choices(problem)
    node = facts.cluster.device.devices_per_node
    devices = facts.cluster.num_devices
    blocks = (one.feed_forward for one in facts.model.kinds)
    experts = gcd(*(one.num_experts for one in blocks if isinstance(one, Experts)))
    for tp in _values(chosen, "tp", (one for one in divisors(devices) if one <= node)):
        split = _values(chosen, "sequence_parallel", (0, 1)) if tp > 1 else (0,)
        ep = _values(chosen, "ep", (one for one in divisors(experts) if one <= devices)) if experts else (1,)
        etp = _values(chosen, "etp", dict.fromkeys((1, tp))) if experts else (1,)
        for mbs, sequence_parallel, ranks, parts in product(_values(chosen, "mbs", MICRO_BATCH_SIZES), split, ep, etp):
            yield layer_shape(
                facts.model,
                facts.cluster,
                facts.workload,
                tp=tp,
                cp=1,
                ep=ranks,
                etp=parts,
                mbs=mbs,
                sequence_parallel=int(sequence_parallel),
            )


def _values(chosen: Mapping[str, tuple[int, ...]], name: str, otherwise: Iterable[int]) -> Sequence[int]:
    return chosen[name] if name in chosen else tuple(otherwise)


def _messages(problem: Problem, shape: Shape) -> Iterator[Message]:
    """Yield the messages of layers and pipeline ranks, and the buckets of gradients and weights."""
    model, workload, dtype = problem.facts.model, problem.facts.workload, shape.wide_dtype
    degrees = {"tp": shape.tp, "ep": shape.ep, "etp": shape.etp}
    for layer in model.kinds:
        for one in layer_communications(layer, shape):
            ranks = int(degrees.get(one.group, 1))
            if ranks > 1 and one.nbytes > 0 and one.kind in OPERATORS:
                yield Message(one.kind, dtype, int(one.nbytes), ranks)
        parameters = sum(float(one.parameters) for one in layer_operators(layer, shape) if not one.expert)
        yield from _buckets(problem, shape, parameters)
    sent = micro_batch_bytes(
        model, workload, tp=shape.tp, cp=1, mbs=shape.mbs, sequence_parallel=shape.sequence_parallel
    )
    yield Message("send", dtype, int(sent), 2)


def _buckets(problem: Problem, shape: Shape, parameters: float) -> Iterator[Message]:
    """Yield the gradients and weights of a layer, or of as many layers as the framework puts into one bucket."""
    facts, precision = problem.facts, problem.facts.workload.precision
    style = facts.cluster.device.behaviour.optimizer
    summed = "fp32" if precision.gradient_bytes >= WIDE_GRADIENT_BYTES else shape.wide_dtype
    for dp in divisors(facts.cluster.num_devices // int(shape.tp)):
        at_once = max(parameters, style.bucket_parameters, style.bucket_parameters_per_rank * dp)
        number = min(at_once, parameters * facts.model.num_layers)
        if dp > 1:
            yield Message(style.gradient_sync, summed, int(number * precision.gradient_bytes), dp)
            yield Message(style.weight_sync, shape.wide_dtype, int(number * precision.parameter_gather_bytes), dp)


def _operators(problem: Problem, shape: Shape) -> Iterator[tuple[Operator, int]]:
    """Yield every operator of the model that takes time, and the number of layers with it."""
    model = problem.facts.model
    counts = dict.fromkeys(model.kinds, 0) | model.layer_counts
    for layer in model.kinds:
        for operator in layer_operators(layer, shape):
            if operator.kernels:
                yield operator, max(counts[layer], 1)
    around = (embedding_operators, head_operators, mtp_projection_operators)
    for operator in (one for function in around for one in function(model, shape)):
        yield operator, 1


def points_of(operator: Operator) -> Iterator[Point]:
    """Yield the points that measure an operator, one per pass; none where samples have no such operator."""
    size = size_of_operator(operator)
    if size is None:
        return
    counts = {name: value for name, value in size.sizes.items() if name != "causal"}
    if all(value is not None and float(value).is_integer() and value >= 1 for value in counts.values()):
        whole: dict[str, Any] = {name: int(value or 0) for name, value in counts.items()}
        sizes = Sizes(causal=bool(size.sizes["causal"]) if "causal" in size.sizes else None, **whole)
        for of_pass in OPERATORS[size.kernel].passes:
            yield Point(size.kernel, of_pass, size.dtype, sizes)
