"""The operators and messages of a job with their true sizes, over the degrees that a search would try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mlp
from costmodel.lowering.attention import kv_heads_per_device
from costmodel.lowering.embedding import embedding_operators, head_operators, rank_vocabulary
from costmodel.lowering.experts import sent_width
from costmodel.lowering.layer import layer_communications, layer_operators, mtp_projection_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.operators.work import AttentionSize, MatmulSize, Numbers, Operator
from costmodel.step.p2p import micro_batch_bytes
from planner.jobs.problem import Problem
from planner.sampling.samples import OPERATORS, Point, Sizes
from planner.search.domains import chosen_values, divisors

MICRO_BATCH_SIZES = (1, 2, 4)
"""Sequences of a micro-batch, unless the job says which."""

WIDE_GRADIENT_BYTES = 4
"""Bytes of a gradient from which on it is summed in fp32."""

NORMS = {"rms": "rms_norm", "layer": "layer_norm"}


class Message(NamedTuple):
    """A collective of the table, its dtype, the bytes of its whole tensor, and the ranks that take part."""

    operator: str
    dtype: str
    nbytes: int
    ranks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShapes:
    """
    What a job computes and sends.

    Parameters
    ----------
    groups
        Points by the operator's name in the model and its pass, each with its weight: FLOPs, or bytes of what has none,
        times the layers that have it.
    unknown
        Names of operators that no sample measures.
    messages
        What tensor-, expert-, pipeline- and data-parallel ranks send each other.
    """

    groups: Mapping[tuple[str, str], Mapping[Point, float]] = field(hash=False)
    unknown: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def points(self) -> frozenset[Point]:
        """All of them."""
        return frozenset(point for group in self.groups.values() for point in group)


def job_shapes(problem: Problem) -> JobShapes:
    """
    Distinct sizes of a job's operators.

    Over tp up to the devices of a node, micro-batches of 1, 2 and 4 sequences, with and without sequence parallelism,
    each ep that divides the experts, and experts whole or split over tp. What the job pins has those values alone.
    Sizes that do not come out whole are none.
    """
    groups: dict[tuple[str, str], dict[Point, float]] = {}
    unknown: dict[str, None] = {}
    messages: dict[Message, None] = {}
    for shape in _shapes(problem):
        messages |= dict.fromkeys(_messages(problem, shape))
        for operator, sampled, number in _operators(problem, shape):
            if sampled is None:
                unknown[operator.name] = None
                continue
            name, dtype, sizes = sampled
            for pass_ in OPERATORS[name].passes if _is_whole(sizes) else ():
                point = Point(operator=name, pass_=pass_, dtype=dtype, sizes=_rounded(sizes))
                group = groups.setdefault((operator.name, pass_), {})
                weight = float(operator.flops or operator.bytes)
                group[point] = max(group.get(point, 0.0), weight * number)
    return JobShapes(groups=groups, unknown=tuple(unknown), messages=tuple(messages))


def _shapes(problem: Problem) -> Iterator[Shape]:
    facts = problem.facts
    chosen = chosen_values(problem)
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
    """Of layers, of pipeline ranks, and buckets of gradients and weights."""
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
    """Gradients and weights of a layer, or of as many layers as the framework sends at once."""
    facts, precision = problem.facts, problem.facts.workload.precision
    style = facts.cluster.device.behaviour.optimizer
    summed = "fp32" if precision.gradient_bytes >= WIDE_GRADIENT_BYTES else shape.wide_dtype
    for dp in divisors(facts.cluster.num_devices // int(shape.tp)):
        at_once = max(parameters, style.bucket_parameters, style.bucket_parameters_per_rank * dp)
        number = min(at_once, parameters * facts.model.num_layers)
        if dp > 1:
            yield Message(style.gradient_sync, summed, int(number * precision.gradient_bytes), dp)
            yield Message(style.weight_sync, shape.wide_dtype, int(number * precision.parameter_gather_bytes), dp)


class Sampled(NamedTuple):
    """An operator of the table, its dtype and its sizes, which need not be whole."""

    operator: str
    dtype: str
    sizes: Mapping[str, Numbers | None]


def _of(operator: str, dtype: str, **sizes: Numbers | None) -> Sampled:
    return Sampled(operator, dtype, sizes)


def _operators(problem: Problem, shape: Shape) -> Iterator[tuple[Operator, Sampled | None, int]]:
    """Every operator of the model that takes time, what measures it, and the layers that have it."""
    model = problem.facts.model
    counts = dict.fromkeys(model.kinds, 0) | model.layer_counts
    for layer in model.kinds:
        operators = layer_operators(layer, shape)
        for operator in operators:
            if operator.kernels:
                yield operator, _sampled(operator, operators, layer, shape), max(counts[layer], 1)
    vocabulary = rank_vocabulary(model, shape)
    rows, dtype = shape.tokens, shape.wide_dtype
    ends = {
        "embedding": _of("embedding", dtype, rows=rows, width=shape.hidden_size, n=vocabulary),
        "loss": _of("cross_entropy", dtype, rows=rows, width=vocabulary),
        "final_norm": _norm(model.final_norm, shape),
        "mtp_norms": _norm(model.final_norm, shape),
    }
    around = (embedding_operators, head_operators, mtp_projection_operators)
    for operator in (one for function in around for one in function(model, shape)):
        yield operator, ends.get(operator.name) or _multiplied(operator, shape), 1


def _sampled(operator: Operator, layer: Sequence[Operator], kind: Layer, shape: Shape) -> Sampled | None:
    """An operator of a layer as one of the table; None if there is none."""
    multiplied = _multiplied(operator, shape)
    if multiplied:
        return multiplied
    name, dtype, rows = operator.name, shape.wide_dtype, shape.tokens / shape.sequence_shards
    if name == "norms":
        return _norm(kind.norm, shape)
    if name == "residuals":
        return _of("residual", dtype, rows=rows, width=shape.hidden_size)
    if name.endswith("activation"):
        return _activation(operator, layer, kind, dtype)
    if name == "softmax":
        size = next(one.size for one in layer if one.name == "core_attention")
        assert isinstance(size, MatmulSize), "unfused scores are matmuls"
        return _of("softmax", dtype, rows=size.m * size.batch / 2, width=size.n)
    return _routed(name, kind, shape) or _of_heads(name, kind, shape)


def _multiplied(operator: Operator, shape: Shape) -> Sampled | None:
    """Matmuls and fused attention, which know their own sizes."""
    size, dtype = operator.size, str(operator.dtype)
    if isinstance(size, MatmulSize):
        batch = {} if operator.kind == "matmul" else {"batch": size.batch}
        return _of(operator.kind, dtype, m=size.m, n=size.n, k=size.k, **batch)
    if not isinstance(size, AttentionSize):
        return None
    names = ("sequences", "queries", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal")
    window = size.keys if size.keys < shape.sequence_length else None
    given = {name: getattr(size, name) for name in names} | ({} if window is None else {"window": window})
    return _of("attention", dtype, keys=shape.sequence_length, **given)


def _norm(norm: str, shape: Shape) -> Sampled | None:
    rows = shape.tokens / shape.sequence_shards
    return _of(NORMS[norm], shape.wide_dtype, rows=rows, width=shape.hidden_size) if norm in NORMS else None


def _activation(operator: Operator, layer: Sequence[Operator], kind: Layer, dtype: str) -> Sampled | None:
    """Of what the linear behind it reads."""
    behind = operator.name.replace("activation", "down")
    size = next((one.size for one in layer if one.name == behind), None)
    block = kind.feed_forward
    if not isinstance(size, MatmulSize) or not isinstance(block, Mlp | Experts):
        return None
    plain = "squared_relu" if block.squared_relu else "gelu"
    return _of("swiglu" if block.gated else plain, dtype, rows=size.m, width=size.k)


def _routed(name: str, kind: Layer, shape: Shape) -> Sampled | None:
    """The router's choice, and tokens in the order of their experts."""
    experts, dtype, rows = kind.feed_forward, shape.wide_dtype, shape.tokens / shape.sequence_shards
    if not isinstance(experts, Experts):
        return None
    number, best = experts.num_experts, experts.top_k
    if name == "top_k":
        return _of("top_k", dtype, rows=rows, experts=number, top_k=best)
    if name in ("dispatch", "sort", "combine"):
        return _of("permutation", dtype, rows=rows, width=sent_width(experts, shape), experts=number, top_k=best)
    return None


def _of_heads(name: str, kind: Layer, shape: Shape) -> Sampled | None:
    """Rotary position and norms inside of attention."""
    attention, rows, dtype = kind.attention, shape.tokens, shape.wide_dtype
    if isinstance(attention, Attention):
        heads = attention.num_heads / shape.tp + kv_heads_per_device(attention, shape)
        if name == "rotary":
            return _of("rotary", dtype, rows=rows, heads=heads, qk_head_dim=attention.head_dim)
        if name == "qk_norm" and attention.qk_norm == "per_head":
            return _of("rms_norm", dtype, rows=rows * heads, width=attention.head_dim)
        if name == "qk_norm":
            return _of("rms_norm", dtype, rows=rows, width=attention.num_heads * attention.head_dim / shape.tp)
    if isinstance(attention, LatentAttention):
        ranks = {"q_norm": attention.q_lora_rank, "kv_norm": attention.kv_lora_rank}
        if name == "rotary":
            heads = attention.num_heads / shape.tp + 1
            return _of("rotary", dtype, rows=rows, heads=heads, qk_head_dim=attention.qk_rope_head_dim)
        if name in ranks:
            return _of("rms_norm", dtype, rows=rows / shape.sequence_shards, width=ranks[name])
    return None


def _is_whole(sizes: Mapping[str, Numbers | None]) -> bool:
    return all(value is not None and float(value).is_integer() and value >= 1 for name, value in _counts(sizes))


def _counts(sizes: Mapping[str, Numbers | None]) -> Iterator[tuple[str, Numbers | None]]:
    return ((name, value) for name, value in sizes.items() if name != "causal")


def _rounded(sizes: Mapping[str, Numbers | None]) -> Sizes:
    counts: dict[str, Any] = {name: int(value) for name, value in _counts(sizes) if value is not None}
    return Sizes(causal=bool(sizes["causal"]) if "causal" in sizes else None, **counts)
