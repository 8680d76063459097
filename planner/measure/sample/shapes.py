"""Points to measure, a job's own sizes among them, the most useful first, so that a run may stop at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, product, zip_longest
from math import exp, gcd, log
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
from planner.measure.sample.bench import least_flops, needed_bytes
from planner.measure.sample.samples import COLLECTIVES, OPERATORS, Point, Sizes
from planner.results import Plan
from planner.search.domains import divisors, job_choices
from planner.uncertainty.intervals import strategy_operators

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


# --- the order -----------------------------------------------------------------------------------------------
BASES = (2, 3, 5, 7, 11, 13)

"""One prime per dimension of a Halton sequence (Halton, Numerische Mathematik 2, 1960)."""

MULTIPLE, ODD_EVERY = 64, 8

"""Most sizes are multiples of this; one in so many points has odd sizes."""

MOST_OF_MEMORY = 0.5

"""Fraction of the device's memory that a point may take."""


EDGE = {"cuda": 4096, "cpu": 1024}
"""Edge of the matmul that overlaps with others, by device."""

COPIES = {"cuda": (2**28, 2**24, 2**20), "cpu": (2**26, 2**23, 2**20)}
PARAMETERS = {"cuda": (2**26, 2**22, 2**28, 2**24), "cpu": (2**24, 2**22)}
"""Bytes of copies and parameters of updates; those that are large enough for a steady rate first."""

MOST_FLOPS, MOST_BYTES = {"cuda": 5e13, "cpu": 1e11}, {"cuda": 2**28, "cpu": 2**25}
"""
Largest FLOPs of a point, and largest bytes of a message, so that many fit into a budget.

The largest matmul takes a tenth of a second on a GPU, and up to some seconds on a CPU.
"""

ROUNDS = 64

"""Rounds of points that fill the space of sizes."""

TOKENS = (64, 65536)

WIDTHS = (64, 32768)

HEAD_DIMS = (64, 80, 96, 128, 192, 256)

CHAIN = 1000

"""Kernels of a chain of launches."""

LEAST_MESSAGE = 2**10

"""Bytes of a message whose time is only latency."""

SEND_RANKS = 2

"""Ranks of a point-to-point message."""

WIDEST_BYTES = 4

"""Bytes of an element of the widest dtype: messages divide into such elements."""


def points_to_measure(
    job: JobShapes | None,
    memory_bytes: float,
    *,
    device: str = "cuda",
    dtype: str = "bf16",
    group_sizes: Sequence[tuple[int, int]] = (),
) -> tuple[Point, ...]:
    """
    List the points to measure, the most useful first.

    Constants of the device come first, then the job's own sizes, then sizes between and beyond them. With several
    processes every other point is a collective: the job's messages first, then sizes between and beyond them.

    Parameters
    ----------
    job
        Sizes of the job; None for no particular job.
    memory_bytes
        Memory of the device, of which a point takes at most ``MOST_OF_MEMORY``.
    device, dtype
        ``cuda`` or ``cpu``, and the dtype of points outside of the job.
    group_sizes
        Ranks and nodes of the groups in which collectives can be measured.
    """
    alone = chain(device_points(device, dtype), job_points(job) if job else (), filling_points(device, dtype))
    together = chain(message_points(job, group_sizes) if job else (), filling_messages(group_sizes, device, dtype))
    found = _deal((dict.fromkeys(alone), dict.fromkeys(together)))
    return tuple(point for point in found if needed_bytes(point) <= MOST_OF_MEMORY * memory_bytes)


def device_points(device: str = "cuda", dtype: str = "bf16") -> tuple[Point, ...]:
    """Return points for constants of a device: launches, matmuls, copies (also overlapped with a matmul), updates."""
    is_gpu = device == "cuda"
    copies = ("copy", *_OVER_THE_LINK) if is_gpu else ("copy",)
    updates, launches = (("adam", "host_adam"), ("launch", "graph_launch")) if is_gpu else (("adam",), ("launch",))
    (large, *others), (many, *fewer) = COPIES[device], PARAMETERS[device]
    edge = Sizes(m=EDGE[device], n=EDGE[device], k=EDGE[device])
    alone = [
        *(_forward(name, Sizes(n=CHAIN), "fp32") for name in launches),
        _forward("matmul", Sizes(m=512, n=512, k=512), dtype),
        *(_forward(name, Sizes(nbytes=large), dtype) for name in copies),
        *(_forward(name, Sizes(n=many), "fp32") for name in updates),
    ]
    beside = [
        *(_forward(name, Sizes(nbytes=large), dtype, "matmul") for name in copies if is_gpu),
        *(_forward("matmul", edge, dtype, one) for one in (("", *copies) if is_gpu else ("",))),
    ]
    smaller = [
        *(_forward(name, Sizes(nbytes=nbytes), dtype) for nbytes in others for name in copies),
        *(_forward(name, Sizes(n=number), "fp32") for number in fewer for name in updates),
    ]
    return (*alone, *beside, *smaller)


_OVER_THE_LINK = ("host_to_device", "device_to_host")


def _forward(operator: str, sizes: Sizes, dtype: str, beside: str = "") -> Point:
    return Point(operator, "forward", dtype, sizes, beside)


def job_points(shapes: JobShapes) -> tuple[Point, ...]:
    """
    Order a job's points in rounds: one of each operator and pass, those with most work first.

    The middle size of each operator comes first, then those between it and the ends, and so on.
    """
    heavy = sorted(shapes.groups.values(), key=lambda group: -max(group.values(), default=0.0))
    columns = [spread_out(sorted(group, key=lambda point: (group[point], str(point)))) for group in heavy]
    return _deal(columns)


def _deal(columns: Iterable[Iterable[Point]]) -> tuple[Point, ...]:
    """Return the points of columns in rounds, each once: the first of each column, then the second ones."""
    rounds = zip_longest(*columns)
    return tuple(dict.fromkeys(point for one in rounds for point in one if point is not None))


def message_points(shapes: JobShapes, group_sizes: Sequence[tuple[int, int]]) -> tuple[Point, ...]:
    """Order a job's messages in rounds: one of each collective, dtype and group with their number of ranks."""
    columns: dict[tuple[str, str, int, int], list[Point]] = {}
    for message in sorted(shapes.messages):
        for ranks, nodes in group_sizes:
            if ranks == message.ranks:
                column = columns.setdefault((message.operator, message.dtype, ranks, nodes), [])
                column.append(_message(message.operator, message.nbytes, message.dtype, (ranks, nodes)))
    return _deal(map(spread_out, columns.values()))


def filling_messages(
    group_sizes: Sequence[tuple[int, int]], device: str = "cuda", dtype: str = "bf16", *, rounds: int = ROUNDS
) -> Iterator[Point]:
    """
    Yield every collective in every group, alone, and on a GPU also overlapped with a matmul, size by size.

    The smallest and the largest message come first, then a Halton sequence in the logarithm of the bytes.
    """
    for index in range(rounds):
        fraction = radical_inverse(index - 1, BASES[0]) if index > 1 else float(index)
        nbytes = _interpolate_size(fraction, (LEAST_MESSAGE, MOST_BYTES[device]), MULTIPLE)
        for beside in ("", "matmul") if device == "cuda" else ("",):
            for size in group_sizes:
                for operator in COLLECTIVES:
                    if operator != "send" or size[0] == SEND_RANKS:
                        yield _message(operator, nbytes, dtype, size, beside)


def _message(operator: str, nbytes: int, dtype: str, group_size: tuple[int, int], beside: str = "") -> Point:
    """Return a message of at least some bytes, rounded up so that all ranks have equal parts."""
    ranks, nodes = group_size
    unit = ranks * WIDEST_BYTES
    return _forward(operator, Sizes(nbytes=-(-nbytes // unit) * unit, ranks=ranks, nodes=nodes), dtype, beside)


def spread_out(sorted_points: Sequence[Point]) -> list[Point]:
    """Reorder sorted points so that each beginning of the order covers the whole range."""
    number = len(sorted_points)
    steps = 2 ** max(number - 1, 1).bit_length()
    order = dict.fromkeys(int(number * radical_inverse(index, 2)) for index in range(1, steps + 1))
    return [sorted_points[index] for index in order]


def radical_inverse(index: int, base: int) -> float:
    """
    Mirror the digits of an index at the point.

    >>> [radical_inverse(index, 2) for index in range(5)]
    [0.0, 0.5, 0.25, 0.75, 0.125]
    """
    found, scale = 0.0, 1.0
    while index:
        scale /= base
        index, digit = divmod(index, base)
        found += digit * scale
    return found


def filling_points(device: str = "cuda", dtype: str = "bf16") -> Iterator[Point]:
    """
    Yield points of a Halton sequence in the logarithms of the sizes.

    Each round has a matmul, a batched and a grouped one, an attention, and one operator that only moves bytes, with all
    of their passes.
    """
    for index in range(1, ROUNDS + 1):
        at = [radical_inverse(index, base) for base in BASES]
        round_to = 1 if index % ODD_EVERY == 0 else MULTIPLE
        moving = _MOVING[index % len(_MOVING)]
        shapes = {
            "matmul": _matmul(at, round_to),
            "attention": _attention(at, round_to),
            moving: _moving(moving, at, round_to),
            "grouped_matmul": _expert_points(at, round_to),
            "batched_matmul": _batch_points(at, round_to),
        }
        yield from _points(shapes.items(), dtype, MOST_FLOPS[device])


_MOVING = tuple(name for name, kind in OPERATORS.items() if "rows" in kind.needs)


def _points(shapes: Iterable[tuple[str, Sizes]], dtype: str, most_flops: float) -> Iterator[Point]:
    for operator, sizes in shapes:
        for pass_ in OPERATORS[operator].passes:
            if least_flops(point := Point(operator, pass_, dtype, sizes)) <= most_flops:
                yield point


def _interpolate_size(fraction: float, ends: tuple[int, int], round_to: int) -> int:
    """Return a size between two ends, by a fraction in logarithms: a multiple, or an odd number."""
    low, high = ends
    size = exp(log(low) + fraction * (log(high) - log(low)))
    return max(1, round(size)) | 1 if round_to == 1 else max(round_to, round(size / round_to) * round_to)


def _power(fraction: float, ends: tuple[int, int]) -> int:
    """Return a power of two between two powers of two."""
    low, high = (one.bit_length() - 1 for one in ends)
    return 1 << min(high, low + int(fraction * (high - low + 1)))


def _matmul(at: Sequence[float], round_to: int) -> Sizes:
    return Sizes(
        m=_interpolate_size(at[0], TOKENS, round_to),
        n=_interpolate_size(at[1], WIDTHS, round_to),
        k=_interpolate_size(at[2], WIDTHS, round_to),
    )


def _expert_points(at: Sequence[float], round_to: int) -> Sizes:
    groups = _power(at[3], (2, 64))
    rows = _interpolate_size(at[2], (64, 8192), round_to)
    widths = (256, 8192)
    return Sizes(
        batch=groups,
        m=groups * rows,
        n=_interpolate_size(at[1], widths, MULTIPLE),
        k=_interpolate_size(at[0], widths, MULTIPLE),
    )


def _batch_points(at: Sequence[float], round_to: int) -> Sizes:
    tokens = _interpolate_size(at[1], (64, 8192), round_to)
    return Sizes(batch=_power(at[3], (4, 128)), m=tokens, n=tokens, k=_one_of(at[2], HEAD_DIMS))


def _attention(at: Sequence[float], round_to: int) -> Sizes:
    """Return sizes of attention: 1, 4 or 8 queries per key-value head; one in three not causal, one in eight MLA."""
    tokens = _interpolate_size(at[0], (128, 131072), round_to)
    heads = _power(at[1], (4, 64))
    width = _one_of(at[2], HEAD_DIMS)
    is_latent = at[4] > 7 / 8
    return Sizes(
        sequences=_power(at[3], (1, 8)),
        queries=tokens,
        keys=tokens,
        heads=heads,
        kv_heads=heads if is_latent else max(1, heads // _one_of(at[5], (1, 4, 8))),
        qk_head_dim=192 if is_latent else width,
        v_head_dim=128 if is_latent else width,
        causal=at[4] > 1 / 3,
    )


def _moving(operator: str, at: Sequence[float], round_to: int) -> Sizes:
    rows = _interpolate_size(at[0], TOKENS, round_to)
    width = _interpolate_size(at[1], WIDTHS, round_to)
    experts = _power(at[3], (8, 256))
    values: dict[str, Any] = {
        "rows": rows,
        "width": _interpolate_size(at[1], (512, 8192), MULTIPLE) if operator in ("embedding", "permutation") else width,
        "n": _interpolate_size(at[2], (1024, 262144), MULTIPLE),
        "heads": _power(at[2], (1, 64)),
        "qk_head_dim": _one_of(at[3], HEAD_DIMS),
        "experts": experts,
        "top_k": min(experts, _power(at[4], (1, 8))),
    }
    return Sizes(**{name: values[name] for name in OPERATORS[operator].needs})


def _one_of(fraction: float, values: Sequence[int]) -> int:
    return values[min(len(values) - 1, int(fraction * len(values)))]


MOST_NEIGHBOURS = 24

"""Other sizes of an operator and pass that are measured in addition to a plan's own."""


def doubtful_points(plans: Sequence[Plan], job: JobShapes) -> tuple[Point, ...]:
    """
    List points of the plans' operators, those first that leave most of the first plan's step uncertain.

    For each operator the plans' own sizes come first, then others that the job may have. Operators that cannot be
    measured are left out.

    Parameters
    ----------
    plans
        Plans on a sampled device, the best first.
    job
        Sizes of the job.
    """
    names = [one.name for one in plans[0].operators]
    own: dict[str, list[Point]] = {name: [] for name in names}
    for plan in plans:
        for operator, _ in strategy_operators(plan.facts, plan.strategy):
            own.setdefault(operator.name, []).extend(points_of(operator))
    found: dict[Point, None] = {}
    for name in own:
        found |= dict.fromkeys(own[name])
        groups = (group for (operator, _), group in job.groups.items() if operator == name)
        for group in groups:
            found |= dict.fromkeys(spread_out(sorted(group, key=lambda one: (group[one], str(one))))[:MOST_NEIGHBOURS])
    return tuple(found)
