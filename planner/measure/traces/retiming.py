"""Operators and kernels of a trace, timed at other sizes of their job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from itertools import combinations, product
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    LinearAttention,
    Mixer,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.facts.workload import Workload
from costmodel.models.flops import parameters
from costmodel.record import record
from costmodel.strategy import Strategy
from costmodel.timing.sampled_source import LearnedTimes
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Message, Operands, Trace, look_up
from planner.measure.traces.graph import ExecutionGraph, Kind, Waiting
from planner.measure.traces.iterations import UPDATE_KERNEL, UPDATE_OPERATOR
from planner.measure.traces.reading.messages import element_bytes
from planner.measure.traces.structure.records import PHASES, Phase, find_launchers, find_parents, inherit_values

VOCABULARY_MULTIPLE = 128

"""Megatron-LM pads a tensor-parallel rank's part of the vocabulary to a multiple (``make_vocab_size_divisible_by``)."""


@record(frozen=True, kw_only=True, slots=True)
class Sizes:
    """
    Sizes of a training job on one rank.

    Parameters
    ----------
    sequence_length, microbatch_size
        Tokens of a sequence, sequences of a micro-batch.
    tp, cp
        Tensor- and context-parallel degrees.
    sequence_parallel
        True where norms and residuals are split over the tensor-parallel ranks.
    top_k
        Experts of a rank per token, as balanced as they can be; 1 for a dense model.
    num_parameters
        Parameters of a rank, the mean over pipeline ranks.
    widths, whole
        Sizes of weights by name, on one rank and before they are split: hidden size, heads, feed-forward, vocabulary
        ...
    """

    sequence_length: int
    microbatch_size: int
    tp: int
    cp: int
    sequence_parallel: bool
    top_k: float
    num_parameters: float
    widths: Mapping[str, int]
    whole: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.microbatch_size * self.sequence_length / self.cp


def sizes_of(model: Model, workload: Workload, strategy: Strategy) -> Sizes:
    """
    Return the sizes of a job on one rank.

    Parameters
    ----------
    model, workload, strategy
        The job.
    """
    experts = [kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts)]
    return Sizes(
        sequence_length=workload.sequence_length,
        microbatch_size=strategy.mbs,
        tp=strategy.tp,
        cp=strategy.cp,
        sequence_parallel=strategy.sequence_parallel,
        top_k=max((block.top_k * strategy.etp / strategy.tp for block in experts), default=1),
        num_parameters=parameters(model) / (strategy.tp * strategy.pp),
        widths=_widths(model, strategy.tp, strategy.etp, strategy.ep, padded_for=strategy.tp),
        whole=_widths(model, 1, 1, 1, padded_for=strategy.tp),
    )


def _widths(model: Model, tp: int, etp: int, ep: int, *, padded_for: int) -> dict[str, int]:
    """Return the sizes of weights by name, the most common first."""
    found = {"hidden size": model.hidden_size}
    for place, kind in enumerate(model.kinds):
        for block in kind.blocks:
            own = _block_sizes(block, tp, etp)
            if isinstance(block, Experts):
                own["experts"] = max(1, block.num_experts // ep)
            found |= {f"{name} of layers of kind {place}": value for name, value in own.items()}
    padded = _ceiling(model.vocab_size, VOCABULARY_MULTIPLE * padded_for)
    return found | {"vocabulary": _ceiling(model.vocab_size, tp) // tp, "padded vocabulary": padded // tp}


def _ceiling(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _block_sizes(block: Mixer | Mlp | Experts, tp: int, etp: int) -> dict[str, int]:
    own = _feed_forward_sizes(block, tp, etp) if isinstance(block, Mlp | Experts) else _mixer_sizes(block, tp)
    indexer = getattr(block, "indexer", None)
    if indexer is not None:  # each rank has all of it
        heads, width = indexer.num_heads, indexer.head_dim
        own |= {"head of an index": width, "index heads": heads, "index queries": heads * width}
    return {name: value for name, value in own.items() if value}


def _feed_forward_sizes(block: Mlp | Experts, tp: int, etp: int) -> dict[str, int]:
    doubled = 2 if block.gated else 1
    width = block.ffn_hidden_size // (etp if isinstance(block, Experts) else tp)
    found = {"feed-forward": width, "up": doubled * width}
    if isinstance(block, Experts):
        shared = block.shared_ffn_hidden_size // tp
        found |= {"shared feed-forward": shared, "shared up": doubled * shared, "latent": block.latent_size or 0}
    return found


def _mixer_sizes(block: Mixer, split: int) -> dict[str, int]:
    if isinstance(block, Attention):
        return _attention_sizes(block, split)
    if isinstance(block, SelectiveScan | ShortConvolution):
        channels = block.channels // split
        return {"channels": channels, "input projection": channels * (2 if isinstance(block, SelectiveScan) else 3)}
    if isinstance(block, LinearAttention):
        return _linear_attention_sizes(block, split)
    heads = _split(block.num_heads, split)
    if isinstance(block, LatentAttention):
        keys = block.qk_nope_head_dim + block.qk_rope_head_dim
        both = block.qk_nope_head_dim + block.v_head_dim
        return {
            "heads": heads,
            "query latent": block.q_lora_rank or block.kv_lora_rank,
            "key-value latent": block.kv_lora_rank,
            "latent and rotary": block.kv_lora_rank + block.qk_rope_head_dim,
            "head of a query": keys,
            "head of a value": block.v_head_dim,
            "rotary": block.qk_rope_head_dim,
            "queries": heads * keys,
            "keys and values": heads * both,
            "values": heads * block.v_head_dim,
        }
    if isinstance(block, CompressedAttention):
        return {
            "heads": heads,
            "head": block.head_dim,
            "query latent": block.q_lora_rank,
            "queries": heads * block.head_dim,
            "latent and key": block.q_lora_rank + block.head_dim,
            "output latent": block.output_rank,
            "output latents": _split(block.num_groups, split) * block.output_rank,
        }
    inner, groups = heads * block.head_dim, 2 * _split(block.num_groups, split) * block.state_size
    return {
        "heads": heads,
        "head": block.head_dim,
        "state": block.state_size,
        "inner": inner,
        "convolution": inner + groups,
        "input projection": 2 * inner + groups + heads,
    }


def _linear_attention_sizes(block: LinearAttention, split: int) -> dict[str, int]:
    key_heads, heads = _split(block.num_key_heads, split), _split(block.num_value_heads, split)
    keys, values = key_heads * block.key_head_dim, heads * block.value_head_dim
    return {
        "key heads": key_heads,
        "value heads": heads,
        "head of a key": block.key_head_dim,
        "head of a value": block.value_head_dim,
        "keys": keys,
        "values": values,
        "queries, keys and values": 2 * keys + values,
        "queries, keys, values and gate": 2 * (keys + values),
        "decay and step heads": 2 * heads,
        "decay latent": block.decay_rank,
        "gate latent": block.gate_rank,
    }


def _attention_sizes(block: Attention, split: int) -> dict[str, int]:
    heads, kv_heads, width = _split(block.num_heads, split), _split(block.num_kv_heads, split), block.head_dim
    values = block.value_width
    counts = {
        "query": heads,
        "key": kv_heads,
        "query and key": heads + kv_heads,
        "key and value": 2 * kv_heads,
        "query, key and value": heads + 2 * kv_heads,
        "queries of a key": heads // kv_heads,
    }
    return {
        **{f"{name} widths": number * width for name, number in counts.items()},
        **{f"{name} heads": number for name, number in counts.items()},
        "head": width,
        "half of a head": width // 2,
        "head of a value": values,
        "values": kv_heads * values,
        "keys and values": kv_heads * (width + values),
        "queries, keys and values": heads * width + kv_heads * (width + values),
        "queries, gate, keys and values": block.output_gate * (2 * heads * width + kv_heads * (width + values)),
        "outputs": heads * values,
    }


def _split(number: int, split: int) -> int:
    """Return the heads of a rank: at least one, which several ranks then share."""
    return max(1, number // split)


HIDDEN = "hidden size"

"""Name of the hidden size among the widths of :class:`Sizes`."""


def message_factors(graph: ExecutionGraph, before: Sizes, after: Sizes, *, weights: float) -> NDArray[np.float64]:
    """
    Return the time after over the time before of every task; 1 for all but communication.

    Sends and receives carry a rank's share of activations. Collectives whose elements are a multiple of that share
    carry activations; all others carry weights or their gradients. Large messages take time in proportion to their
    bytes.

    Parameters
    ----------
    graph
        Any graph.
    before, after
        Sizes of the recorded job, and of the other one.
    weights
        Weights of a layer after over before.

    Returns
    -------
    array
        Shape (tasks,).
    """
    activations = after.tokens * after.widths[HIDDEN] / (before.tokens * before.widths[HIDDEN])
    shares = [one.tp if one.sequence_parallel else 1 for one in (before, after)]
    of_rank = before.tokens * before.widths[HIDDEN] / shares[0]

    def factor(message: Message) -> float:
        if message.operation in ("send", "recv"):
            return activations * shares[0] / shares[1]
        whole = message.elements_in and max(message.elements_in, message.elements_out) % of_rank == 0
        return activations if whole else weights

    by_message = np.array([*(factor(message) for message in graph.messages), 1.0])
    talks = (graph.tasks.kind == Kind.COMMUNICATION) & (graph.tasks.message != UNKNOWN)
    found: NDArray[np.float64] = np.where(talks, by_message[graph.tasks.message], 1.0)
    return found


Expected: TypeAlias = Literal["activation", "weight", "matmul", "batched matmul", "attention"]

"""Object that is explained: the tensor of an operator, or all sizes of a matmul or attention."""

COSTS: Mapping[Expected, Mapping[tuple[int, int], float]] = {
    "activation": {(1, 1): 0, (1, 2): 1, (0, 1): 2, (0, 0): 3, (1, 0): 4},
    "weight": {(0, 0): 0, (1, 1): 1},
    "matmul": {(1, 1): 0, (0, 0): 1},
    "batched matmul": {(1, 2): 0, (1, 1): 1, (0, 2): 2, (0, 0): 3},
    "attention": {(1, 2): 0, (0, 2): 1, (1, 1): 2},
}

"""
Cost of a reading by the number of times that its sizes contain the micro-batch and the sequence as factors.

An activation has each of them once, or the sequence twice where it is scores; a weight has neither. One of the three
sizes of a linear's matmul is tokens in each of its passes: rows of the input (m), or the sum for the weight's gradient
(k).
"""

UNLIKELY = 9.0

"""Cost of all other counts."""

MOST_READINGS = 4096

"""Readings of a tensor's sizes that are considered."""


class Quantity(NamedTuple):
    """
    A size of a job.

    Parameters
    ----------
    after
        Its value in the other job.
    microbatches, sequences
        Number of times that the micro-batch and the sequence are factors of it.
    is_hidden
        True if it is the hidden size.
    """

    after: float
    microbatches: int
    sequences: int
    is_hidden: bool = False


class Explained(NamedTuple):
    """
    Explanation of a tensor's sizes.

    Parameters
    ----------
    after
        Their values in the other job.
    is_sure
        True where all equally likely readings give one number of elements.
    unknown
        Sizes that the job does not have; they are kept.
    """

    after: tuple[float, ...]
    is_sure: bool
    unknown: tuple[int, ...]


Explain: TypeAlias = Callable[[tuple[int, ...], Expected], Explained]

"""
Function that returns the values in the other job of sizes that belong together.

By the sizes of one tensor, or of one matmul or attention, each once; and the object that has them.
"""


def build_explainer(before: Sizes, after: Sizes) -> Explain:
    """
    Return a function that explains sizes of tensors by those of two jobs.

    Parameters
    ----------
    before, after
        The recorded job, and the other one.

    Raises
    ------
    SpecError
        If the jobs' models have different parts.
    """
    return cache(partial(_explain, _quantities(before, after)))


def _explain(known: Mapping[int, tuple[Quantity, ...]], sizes: tuple[int, ...], expected: Expected) -> Explained:
    readings = [known.get(size, ()) + ((Quantity(1, 0, 0),) if size == 1 else ()) for size in sizes]
    unknown = tuple(size for size, found in zip(sizes, readings, strict=True) if not found)
    readings = [found or (Quantity(size, 0, 0),) for size, found in zip(sizes, readings, strict=True)]
    if prod(map(len, readings)) > MOST_READINGS:
        readings = [found[:2] for found in readings]
    every = list(product(*readings))[:MOST_READINGS]
    costs = [_cost(one, sizes, expected) for one in every]
    likely = [one for one, cost in zip(every, costs, strict=True) if cost == min(costs)]
    elements = {round(prod(quantity.after for quantity in one), 6) for one in likely}
    return Explained(tuple(quantity.after for quantity in likely[0]), len(elements) == 1, unknown)


def _cost(reading: Sequence[Quantity], sizes: tuple[int, ...], expected: Expected) -> tuple[float, bool]:
    """Return the cost by factors, then by sides: a square linear is between the hidden size and another one."""
    factors = sum(one.microbatches for one in reading), sum(one.sequences for one in reading)
    is_square = expected == "matmul" and len(set(sizes)) < len(sizes)
    return COSTS[expected].get(factors, UNLIKELY), is_square and sum(one.is_hidden for one in reading) != 1


def _quantities(before: Sizes, after: Sizes) -> dict[int, tuple[Quantity, ...]]:
    """
    Return the quantities of a job by their value, the most common first; 1 is the micro-batch, or is kept.

    Sizes before they are split count only where no rank has a part of that size.
    """
    for names in (before.widths.keys() ^ after.widths.keys(), before.whole.keys() ^ after.whole.keys()):
        if names:
            raise SpecError("model", f"has other parts than the recorded model: only one has {min(names)!r}.")
    found: dict[int, dict[Quantity, None]] = {}
    for (value, microbatches, sequences, is_hidden), (other, *_) in zip(
        _sizes_of_rank(before), _sizes_of_rank(after), strict=True
    ):
        if value == int(value) and (value > 1 or microbatches):
            found.setdefault(int(value), {})[Quantity(other, microbatches, sequences, is_hidden)] = None
    for name, width in before.whole.items():
        if width > 1 and width not in before.widths.values():
            found.setdefault(width, {})[Quantity(after.whole[name], 0, 0)] = None
    return {value: tuple(quantities) for value, quantities in found.items()}


def _sizes_of_rank(sizes: Sizes) -> Iterator[tuple[float, int, int, bool]]:
    """Yield a rank's sizes, the powers of micro-batch and sequence in each, and True for the hidden size."""
    microbatch, length, own = sizes.microbatch_size, sizes.sequence_length, sizes.sequence_length / sizes.cp
    split = sizes.tp if sizes.sequence_parallel else 1
    for tokens in (own, own / split, length):
        yield microbatch * tokens, 1, 1, False
    yield sizes.tokens * sizes.top_k, 1, 1, False
    for tokens in (own, own / split, length):
        yield tokens, 0, 1, False
    yield microbatch, 1, 0, False
    for name, width in sizes.widths.items():
        yield width, 0, 0, name == HIDDEN
    for name, width in sizes.widths.items():
        if "heads" in name:
            yield microbatch * width, 1, 0, False


# --- work of an operator -------------------------------------------------------------------------------------
Formula: TypeAlias = Literal["matmul", "grouped matmul", "attention", "streaming"]

Numbers: TypeAlias = tuple[float, ...]

USUAL_BYTES = 4

"""Bytes of an element of other types: lists of tensors do not name theirs."""

MATMUL = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|_addmm_activation)(\.out)?$")

"""PyTorch's matmuls; those that begin with ``add`` or ``badd`` add their first input."""

GROUPED = re.compile(r"(?i)grouped_(mm|gemm|matmul)|gmm")

"""Grouped GEMM of MoE: rows of all experts one after the other, and a weight for each."""

ATTENTION = re.compile(r"(?i)attention|flash_?attn|fmha|AttnFunc|fused_attn")

"""Attention, of PyTorch, flash attention, Transformer Engine, xFormers."""

LOOK_UP = re.compile(r"^aten::(embedding|index_select|gather|take)$")

"""Operators that read only the rows of their first input that another input selects."""

VIEWS = re.compile(
    r"^aten::(t|transpose|permute|view|_unsafe_view|_reshape_alias|expand|expand_as|detach_?|alias|as_strided|slice"
    r"|select|narrow|chunk|split|split_with_sizes|unbind|squeeze|unsqueeze|unflatten|resize_|empty.*)$"
)

"""Operators that move no data."""

GEMM_KERNEL = re.compile(r"(?i)gemm|nvjet|cutlass.*(gemm|tensorop)|Cijk|xmma|wgmma")

"""Kernels that multiply, whatever operator launches them, except attention."""

MULTIPLY_AND_ADD = 2.0

"""Floating-point operations of each term of a matmul's sums."""

PACKED = 3

"""Sizes of attention's queries where the sequences are packed."""


class Shape(NamedTuple):
    """
    Properties of an operator that determine its work.

    Parameters
    ----------
    kind
        Formula of its work.
    sizes
        m, n, k and the batch of a matmul; sequences, heads and so on of attention's queries, and the length of its
        keys; for others the sizes of each tensor.
    expected
        Object that has these sizes.
    element_bytes
        Bytes per element of each tensor; one value for matmuls and attention.
    dtype
        Type of the first tensor, as the profiler names it.
    """

    kind: Formula
    sizes: tuple[tuple[int, ...], ...]
    expected: Expected
    element_bytes: Numbers
    dtype: str


class Work(NamedTuple):
    """
    FLOPs and bytes of an operator.

    Parameters
    ----------
    flops, nbytes
        Floating-point operations; least bytes that it reads and writes.
    """

    flops: float
    nbytes: float


def shape_of(
    name: str, operands: Operands, *, sequence_length: int, weights: bool = False, kernel: str = ""
) -> Shape | None:
    """
    Return the shape of an operator; None where it has no tensor, or is a view.

    Parameters
    ----------
    name, operands
        Name and inputs of the operator.
    sequence_length
        Sequence length of the job: packed attention does not record it.
    weights
        True where it works on weights or their gradients: in an optimizer, or in gradient accumulation.
    kernel
        Name of the kernel that it launches; empty on the host.
    """
    tensors = [
        (sizes, dtype) for sizes, dtype in zip(operands.sizes, operands.dtypes, strict=True) if sizes and all(sizes)
    ]
    if not tensors or (VIEWS.match(name) and not kernel):
        return None
    sizes, dtype = tuple(one for one, _ in tensors), tensors[0][1]
    bytes_of_each = tuple(float(_element_bytes(each)) for _, each in tensors)
    for applies, kind, found in _RULES:
        if applies(name, kernel) and (dims := found(name, sizes)) is not None:
            if kind == "attention" and len(dims) == PACKED:
                dims = (*dims, sequence_length)
            return Shape(kind, (dims,), _name_expected(kind, dims), bytes_of_each[:1], dtype)
    if LOOK_UP.match(name) and len(sizes) > 1:
        looked_up = ((*sizes[-1], sizes[0][-1]),)
        return Shape("streaming", looked_up, "activation", bytes_of_each[:1], dtype)
    return Shape("streaming", sizes, "weight" if weights else "activation", bytes_of_each, dtype)


def work(shape: Shape, sizes: tuple[Numbers, ...]) -> Work:
    r"""
    Return the work of an operator of a shape, at these sizes or others.

    For matmuls

    .. math:: F = 2 B m n k, \qquad Q = e B (m k + k n + m n)

    and for attention

    .. math:: F = 4 b a s_q d s_k, \qquad Q = 4 e b a s_q d

    All others have no FLOPs that count: they move their inputs, and a result as large as the largest input. Factors of
    attention's FLOPs, such as those of a causal mask or the backward pass, cancel in ratios and are left out.

    Parameters
    ----------
    shape
        Shape of the operator.
    sizes
        Sizes in the order of ``shape.sizes``.
    """
    if shape.kind == "streaming":
        elements = [prod(tensor) for tensor in sizes]
        moved = [number * each for number, each in zip(elements, shape.element_bytes, strict=True)]
        return Work(0.0, sum(moved) + max(moved))
    (dims,), (each,) = sizes, shape.element_bytes
    if shape.kind == "attention":
        queries = prod(dims[:-1])
        return Work(2 * MULTIPLY_AND_ADD * queries * dims[-1], 4 * each * queries)
    m, n, k, *rest = dims
    batch = prod(rest)
    flops = MULTIPLY_AND_ADD * m * n * k
    if shape.kind == "grouped matmul":
        return Work(flops, each * (m * k + batch * k * n + m * n))
    return Work(batch * flops, each * batch * (m * k + k * n + m * n))


def _name_expected(kind: Formula, dims: tuple[int, ...]) -> Expected:
    if kind == "attention":
        return "attention"
    return "batched matmul" if kind == "matmul" and len(dims) > len("mnk") else "matmul"


def _element_bytes(dtype: str) -> int:
    return 1 if "Float8" in dtype or "Float4" in dtype else element_bytes(dtype) or USUAL_BYTES


# --- sizes that are multiplied ---------------------------------------------------------------------------------------
Tensors: TypeAlias = tuple[tuple[int, ...], ...]


def _matmul(name: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the rows, columns, inner size and batch of PyTorch's matmul."""
    skipped = 1 if "::add" in name or "::_add" in name or "::badd" in name else 0
    if len(sizes) < 2 + skipped or min(map(len, sizes[skipped : 2 + skipped])) < 2:
        return None
    left, right = sizes[skipped : 2 + skipped]
    if "linear" in name:
        return (prod(left[:-1]), right[0], left[-1]) if right[-1] == left[-1] else None
    if left[-1] != right[-2]:
        return None
    if len(right) == 2:
        return prod(left[:-1]), right[-1], left[-1]
    return left[-2], right[-1], left[-1], prod(right[:-2])


def _read_grouped_matmul(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the rows of all groups, the columns, the inner size, and the number of groups."""
    weight = next((one for one in sizes if len(one) == 3), None)
    rows = next((one for one in sizes if len(one) == 2 and weight and one[-1] in weight[1:]), None)
    if weight is None or rows is None:
        return None
    other = weight[2] if rows[-1] == weight[1] else weight[1]
    return rows[0], other, rows[-1], weight[0]


def _attention(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """
    Return the sizes of the queries, and the length of the keys.

    PyTorch has heads before the sequence, flash attention after it: the larger of both counts as the sequence. Queries
    of three sizes are packed sequences, which do not record the length of a sequence.
    """
    tensors = [one for one in sizes if len(one) >= 3]
    if len(tensors) < 2:
        return None
    queries, keys = tensors[:2]
    return queries if len(queries) == PACKED else (*queries, max(keys[1:3]))


def _linear_of_any(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the sizes of an operator outside of PyTorch: an input and the first weight that fits it."""
    for left in sizes:
        for right in sizes:
            if left is not right and len(left) > 1 and len(right) == 2 and left[-1] == right[-1]:
                return prod(left[:-1]), right[0], left[-1]
    return None


_RULES: tuple[tuple[Callable[[str, str], bool], Formula, Callable[[str, Tensors], tuple[int, ...] | None]], ...] = (
    (lambda name, kernel: bool(MATMUL.match(name)), "matmul", _matmul),
    (lambda name, kernel: bool(GROUPED.search(name)), "grouped matmul", _read_grouped_matmul),
    (lambda name, kernel: bool(ATTENTION.search(name) or ATTENTION.search(kernel)), "attention", _attention),
    (lambda name, kernel: bool(GEMM_KERNEL.search(kernel)), "matmul", _linear_of_any),
)

"""Operators that multiply: a test of their names, their kind, and the function that reads their sizes."""

GOOD = 0.9

"""Quantile of rates that counts as the achieved rate of large operators; single operators are mismeasured."""

LARGE = 0.1

"""Share of the largest work above which an operator counts as large."""

LEAST = 0.05

"""Quantile of times that counts as the overhead of an operator."""

FIXED = 5_000.0

"""
Upper bound of a kernel's fixed time in nanoseconds, where no shorter kernel lowers it.

The smallest kernels of public traces, 5 % of all, take up to 2.0 us on H800 (DeepSeek-V3) and A100, and 1.7 us on
MI300X. Matmuls also fill and drain their pipelines. Vidur's times of linear layers at other numbers of tokens and ranks
follow equally well with 2 and 5 us on A100. On H100 those at twice the tokens follow better with 5 us.
"""

APART = 4.0

"""Ratio of two works above which a line through their times gives the overhead."""


@record(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    Rates and overhead that a machine achieved in a trace.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators that multiply, and of those that only move data; infinite where there are none.
    overhead
        Nanoseconds of an operator with almost no work: on threads the least time of an operator, on devices the
        shortest kernel, at most :data:`FIXED`.
    largest_flops
        FLOPs of the largest operator.
    """

    flops_per_second: float
    bytes_per_second: float
    overhead: float
    largest_flops: float

    def seconds(self, work: Work) -> float:
        r"""
        Roofline time, :math:`\max(F / R, Q / B)`; a term whose rate was not recorded is left out.

        Parameters
        ----------
        work
            Work of an operator.
        """
        return max(work.flops / self.flops_per_second, work.nbytes / self.bytes_per_second)


def machine(
    works: Sequence[Work],
    durations: NDArray[np.float64],
    everything: NDArray[np.float64],
    *,
    on_device: bool = False,
) -> Machine:
    """
    Derive the rates and the overhead of a trace's machine.

    Parameters
    ----------
    works, durations
        Work of operators, and their nanoseconds; shape (operators,).
    everything
        Nanoseconds of all operators, including those without work.
    on_device
        True where they are kernels.
    """
    flops = np.array([work.flops for work in works])
    nbytes = np.array([work.nbytes for work in works])
    return Machine(
        flops_per_second=_rate(flops, durations),
        bytes_per_second=_rate(np.where(flops > 0, 0.0, nbytes), durations),
        overhead=_overhead(everything, on_device=on_device),
        largest_flops=float(flops.max(initial=0.0)),
    )


def _overhead(everything: NDArray[np.float64], *, on_device: bool) -> float:
    """Return the time of an operator with almost no work."""
    return min(float(everything.min()), FIXED) if on_device else float(np.quantile(everything, LEAST))


def _rate(amounts: NDArray[np.float64], durations: NDArray[np.float64]) -> float:
    """Return the rate per second that large operators achieve."""
    large = (amounts > LARGE * amounts.max(initial=0.0)) & (durations > 0)
    if not large.any():
        return np.inf
    return float(np.quantile(amounts[large] / durations[large], GOOD)) * 1e9


def overhead_of(seconds: NDArray[np.float64], durations: NDArray[np.float64], *, least: float) -> float:
    r"""
    Return the overhead in nanoseconds of operators of one name, from those that differ in size.

    .. math:: t = t_0 + c \cdot w

    The median of t_0 over all pairs whose work differs enough (after Theil and Sen); at least the overhead of any
    operator, at most the time of the smallest one.

    Parameters
    ----------
    seconds
        Roofline time of the work of each size, w; shape (sizes,).
    durations
        Nanoseconds of each, t.
    least
        Overhead of any operator, in nanoseconds.

    >>> overhead_of(np.array([1.0, 2.0, 8.0]), np.array([7.0, 9.0, 21.0]), least=1.0)
    5.0
    """
    found = [
        low_time - low * (high_time - low_time) / (high - low)
        for (low, low_time), (high, high_time) in combinations(sorted(zip(seconds, durations, strict=True)), 2)
        if high >= APART * low > 0
    ]
    if not found:
        return min(least, float(durations.min()))
    return float(np.clip(np.median(found), min(least, durations.min()), durations.min()))


# --- operators behind kernels, and own times -----------------------------------------------------------------
ACCUMULATES = "AccumulateGrad"

"""Node of autograd that accumulates a weight's gradient."""

UPDATES = next(pattern for phase, pattern in PHASES if phase is Phase.OPTIMIZER)

"""Names of operators that update parameters."""


def pieces_of(trace: Trace, rows: NDArray[np.intp]) -> pd.DataFrame:
    """
    Take events apart into pieces: a kernel is one piece, on threads each nested operator is one.

    Parameters
    ----------
    trace
        Trace of one rank.
    rows
        Events that are not nested in each other.

    Returns
    -------
    DataFrame
        ``place`` of a piece's event among ``rows``, and ``event``, its row. ``operator``, the row of its operator: on
        threads itself, for a kernel the innermost operator with tensors that launched it. Without one, it is
        the forward operator of autograd's node, else ``UNKNOWN``. ``nanoseconds`` of its own, without those of
        operators within it. ``works``, True where these are most of its time. ``on_weights``, True in optimizers and
        where gradients of weights accumulate.
    """
    events, parents = trace.events, find_parents(trace)
    roots = np.full(len(events), UNKNOWN)
    roots[rows] = np.arange(len(rows))
    place = inherit_values(parents, roots, unknown=UNKNOWN)
    inside = parents != UNKNOWN
    within = np.bincount(parents[inside], weights=events.duration[inside], minlength=len(events))
    operator, on_weights = _find_operators(trace, parents)
    every = pd.DataFrame(
        {
            "place": place,
            "event": np.arange(len(events)),
            "operator": operator,
            "nanoseconds": events.duration - within.astype(np.int64),
            "on_weights": on_weights,
        }
    )
    every["works"] = 2 * every.nanoseconds >= events.duration
    return every[place != UNKNOWN]


def _find_operators(trace: Trace, parents: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the operator of each event, and True where it works on weights."""
    events = trace.events
    has_tensors = np.array([any(map(len, one.sizes)) for one in trace.operands] + [False])
    with_tensors = has_tensors[events.operands] & (events.category == Category.OPERATOR)
    rows = np.arange(len(events))
    innermost = inherit_values(parents, np.where(with_tensors, rows, UNKNOWN), unknown=UNKNOWN)
    forward = inherit_values(parents, _find_forward(trace, with_tensors), unknown=UNKNOWN)
    named = trace.match_name(ACCUMULATES) | trace.match_name(UPDATES) | trace.match_name(UPDATE_OPERATOR)
    of_host = np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION))
    on_weights = inherit_values(parents, np.where(named & of_host, 1, UNKNOWN), unknown=UNKNOWN) == 1
    launch = find_launchers(trace)
    launched = launch != UNKNOWN
    operator = np.where(with_tensors, rows, UNKNOWN)
    operator[launched] = np.where(innermost == UNKNOWN, forward, innermost)[launch[launched]]
    on_weights[launched] = on_weights[launch[launched]]
    return operator, on_weights | trace.match_name(UPDATE_KERNEL)


def _find_forward(trace: Trace, with_tensors: NDArray[np.bool_]) -> Integers:
    """Return the operator of the forward pass with the sequence number of each event in the backward pass."""
    events = trace.events
    found = np.full(len(events), UNKNOWN)
    forward = np.flatnonzero(with_tensors & (events.sequence > 0) & (events.forward_thread <= 0))
    backward = np.flatnonzero((events.sequence > 0) & (events.forward_thread > 0))
    found[backward] = look_up(events.sequence[backward], events.sequence[forward], forward)
    return found


SHORT = 60

"""Letters of a kernel's name in messages."""


@record(frozen=True, kw_only=True, slots=True)
class Alike:
    """
    Pieces of one operator with equal sizes, and kernels of one name.

    Parameters
    ----------
    operator, kernel
        Names; the kernel's is empty on threads.
    shape
        Shape of the operator; None where it has no tensors.
    explained
        Sizes in the other job.
    before, after
        Work in both jobs.
    works
        True where most of their time is their own, not that of nested operators.
    on_weights
        True where they work on weights or their gradients.
    nanoseconds, total
        Median time of a piece, and total time.
    """

    operator: str
    kernel: str
    shape: Shape | None
    explained: tuple[Explained, ...]
    before: Work
    after: Work
    works: bool
    on_weights: bool
    nanoseconds: float
    total: int

    @property
    def changes(self) -> bool:
        """True where the work differs in the other job."""
        return self.before != self.after

    @property
    def text(self) -> str:
        """Name and sizes, shortened."""
        sizes = ", ".join("x".join(map(str, one)) for one in self.shape.sizes[:3]) if self.shape else ""
        return f"{self.operator or self.kernel:.{SHORT}}{' of ' if sizes else ''}{sizes}"


def alike(
    trace: Trace, pieces: pd.DataFrame, explain: Explain, *, sequence_length: int
) -> tuple[tuple[Alike, ...], NDArray[np.intp]]:
    """
    Group equal pieces, and derive their work in the other job.

    Parameters
    ----------
    trace, pieces
        A trace, and its pieces.
    explain
        Explanations of sizes in the other job.
    sequence_length
        Sequence length of the recorded job.

    Returns
    -------
    kinds, array
        Kinds of pieces, and the kind of each piece; shape (pieces,).
    """
    events, event, operator = trace.events, pieces.event.to_numpy(), pieces.operator.to_numpy()
    known, on_stream = operator != UNKNOWN, np.isin(events.category[event], ON_STREAMS)
    groups = pieces.assign(on_stream=on_stream).groupby(
        [
            np.where(known, events.name[operator], UNKNOWN),
            np.where(known, events.operands[operator], UNKNOWN),
            np.where(on_stream | ~known, events.name[event], UNKNOWN),
            pieces.on_weights.to_numpy(),
        ]
    )
    first, own = groups.first(), groups.nanoseconds
    several = zip(first.itertuples(), groups.works.mean(), own.median(), own.sum(), strict=True)
    found = (_alike(trace, one, explain, sequence_length, *figures) for one, *figures in several)
    return tuple(found), groups.ngroup().to_numpy()


def _alike(
    trace: Trace,
    first: Any,
    explain: Explain,
    sequence_length: int,
    works: float,
    nanoseconds: float,
    total: int,
) -> Alike:
    event, weights = trace.name_of(first.event), bool(first.on_weights)
    name, kernel = event, event if first.on_stream else ""
    shape = None
    if first.operator != UNKNOWN:
        name, operands = trace.name_of(first.operator), trace.operands[int(trace.events.operands[first.operator])]
        shape = shape_of(name, operands, sequence_length=sequence_length, weights=weights, kernel=kernel)
    elif first.on_stream:
        name = ""
    explained = tuple(explain(sizes, shape.expected) for sizes in shape.sizes) if shape else ()
    return Alike(
        operator=name,
        kernel=kernel,
        shape=shape,
        explained=explained,
        before=work(shape, shape.sizes) if shape else Work(0.0, 0.0),
        after=work(shape, tuple(each.after for each in explained)) if shape else Work(0.0, 0.0),
        works=works >= 0.5,
        on_weights=weights,
        nanoseconds=float(nanoseconds),
        total=int(total),
    )


# --- times at other sizes ------------------------------------------------------------------------------------
DTYPES: Mapping[str, str] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}

"""Names of types in samples."""


def find_sampled_ratio(one: Alike, samples: LearnedTimes) -> float | None:
    """
    Return the sampled time of an operator in the other job over that in the recorded one; None where none is sampled.

    Each matmul of a trace counts as a forward matmul of its sizes, and attention as causal.

    Parameters
    ----------
    one
        The operator.
    samples
        Samples of the same machine.
    """
    shape = one.shape
    if shape is None or shape.kind not in ("matmul", "attention") or shape.dtype not in DTYPES:
        return None
    is_backward = shape.kind == "attention" and "backward" in one.operator
    is_batched = shape.expected == "batched matmul"
    name = "batched_matmul" if is_batched else shape.kind
    known = samples(name, "backward" if is_backward else "forward", DTYPES[shape.dtype])
    if known is None:
        return None
    (before,), (after,) = shape.sizes, one.explained
    columns = _attention_columns if shape.kind == "attention" else _matmul_columns
    seconds = [float(known.seconds(columns(sizes))) for sizes in (before, after.after)]
    return seconds[1] / seconds[0]


def _matmul_columns(sizes: tuple[float, ...]) -> dict[str, float]:
    m, n, k, *batch = sizes
    return {"m": m, "n": n, "k": k} | ({"batch": batch[0]} if batch else {})


def _attention_columns(sizes: tuple[float, ...]) -> dict[str, float]:
    """Name the sizes of PyTorch's queries: sequences, heads, tokens, width; keys are assumed to have as many heads."""
    *_, heads, queries, width, keys = (1.0, *sizes)
    sequences = sizes[0] if len(sizes) > 4 else 1.0
    return {
        "sequences": sequences,
        "queries": queries,
        "keys": keys,
        "heads": heads,
        "kv_heads": heads,
        "qk_head_dim": width,
        "v_head_dim": width,
        "causal": 1.0,
    }


SHARE = 0.01

"""Share of the total time above which a doubt is reported."""

BEYOND = 4.0

"""Ratio to the largest recorded operator of its kind above which a time is reported as extrapolated."""

MOST_EXAMPLES = 3

"""Examples in a sentence."""

Notes: TypeAlias = tuple[tuple[Alike, ...], Machine]

"""Kinds of operators and kernels of a rank's trace; rates and overhead that its machine achieved."""


def unsized_fraction(ranks: Sequence[Notes]) -> float:
    """Share of the total time that is in kernels without a recorded operator with sizes."""
    kinds = [one for own, _ in ranks for one in own]
    return sum(one.total for one in _find_unsized(kinds)) / max(sum(one.total for one in kinds), 1)


def _find_unsized(kinds: Sequence[Alike]) -> list[Alike]:
    return [one for one in kinds if one.works and one.shape is None and one.kernel and not one.on_weights]


def sentences(ranks: Sequence[Notes]) -> tuple[str, ...]:
    """
    Describe uncertain times, with their share of the total time.

    Parameters
    ----------
    ranks
        Notes of each trace.
    """
    kinds = [one for own, _ in ranks for one in own]
    total = sum(one.total for one in kinds)
    working = [one for one in kinds if one.works]
    unnamed = _find_unsized(kinds)
    unknown = [one for one in working if any(each.unknown for each in one.explained)]
    several = [one for one in working if not all(each.is_sure for each in one.explained)]
    beyond = [one for own, here in ranks for one in own if one.works and one.after.flops > BEYOND * here.largest_flops]
    cases = (
        (unnamed, "kernels without an operator with recorded sizes: they are kept. Record with record_shapes=True"),
        (unknown, "operators with sizes that the job does not have: these sizes are kept"),
        (several, "operators whose sizes fit several quantities of the job: the most common was taken"),
        (beyond, f"operators that would compute more than {BEYOND:.0f} times the largest recorded FLOPs: extrapolated"),
    )
    found = ((sum(one.total for one in some) / max(total, 1), text, some) for some, text in cases)
    return tuple(_sentence(share, text, some) for share, text, some in found if share > SHARE)


def _sentence(share: float, text: str, some: Sequence[Alike]) -> str:
    longest = sorted(some, key=lambda one: -one.total)
    examples = list(dict.fromkeys(one.text for one in longest))[:MOST_EXAMPLES]
    return f"{share:.0%} of the time are {text} ({'; '.join(examples)})."


def retime_tasks(
    graph: ExecutionGraph, before: Sizes, after: Sizes, *, samples: LearnedTimes | None = None
) -> tuple[Integers, tuple[str, ...], float]:
    r"""
    Time the tasks of a graph at other sizes.

    The time of an operator is a fixed part and a part in proportion to its work. The fixed part is on threads the time
    of the smallest operator of its name, on devices at most the shortest kernel.

    .. math:: t' = t_0 + (t - t_0) \frac{w(\text{after})}{w(\text{before})}, \qquad w = \max(F / R, Q / B)

    F and Q are its FLOPs and bytes by the sizes of its inputs, R and B the rates of large operators in this trace. On
    threads each operator inside a task is timed by itself; its own time is work only where it is most of its time.
    Collectives and gaps between tasks are kept.

    Parameters
    ----------
    graph
        As recorded, or with other passes and messages.
    before, after
        Sizes of the recorded job, and of the other one.
    samples
        Samples of the same machine: sampled matmuls and attention use the ratio of their sampled times instead.

    Returns
    -------
    duration, doubts, unsized_fraction
        Nanoseconds of each task; shape (tasks,). Sentences on sizes that are unexplained or ambiguous, on kept times,
        and on extrapolated ones. Share of the total time that is kept because its operators have no sizes.

    Raises
    ------
    SpecError
        If the models of both jobs have different parts.
    """
    explain = build_explainer(before, after)
    tasks, notes = graph.tasks, list[Notes]()
    duration = tasks.duration.copy()
    for number, trace in enumerate(graph.traces):
        timed = _find_timed(graph, number)
        if not len(timed):
            continue
        rows, place = np.unique(tasks.event[timed], return_inverse=True)
        found, note = _time_rows(trace, rows, explain, before, after, samples)
        notes.append(note)
        measured = trace.events.duration[rows]
        same = tasks.duration[timed] == measured[place]
        share = found / np.maximum(measured, 1)
        duration[timed] = np.where(same, found[place], np.rint(tasks.duration[timed] * share[place]))
    return duration, sentences(notes), unsized_fraction(notes)


def _find_timed(graph: ExecutionGraph, number: int) -> NDArray[np.intp]:
    """Return tasks of a trace that neither communicate nor wait; tasks of threads only where there is no device."""
    tasks = graph.tasks
    works = (tasks.message == UNKNOWN) & (tasks.collective == UNKNOWN) & (tasks.waiting == Waiting.NOTHING)
    if graph.traces[number].has_device:
        works &= np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
    has_event = (tasks.trace == number) & (tasks.event != UNKNOWN)
    found: NDArray[np.intp] = np.flatnonzero(works & has_event)
    return found


def _time_rows(
    trace: Trace,
    rows: NDArray[np.intp],
    explain: Explain,
    before: Sizes,
    after: Sizes,
    samples: LearnedTimes | None,
) -> tuple[Integers, Notes]:
    """Time events that are not nested in each other, and note uncertain times."""
    pieces = pieces_of(trace, rows)
    kinds, kind = alike(trace, pieces, explain, sequence_length=before.sequence_length)
    here = _machine(kinds, on_device=trace.has_device)
    overheads = [here.overhead] * len(kinds) if trace.has_device else _overheads(kinds, here)
    parameters = after.num_parameters / before.num_parameters
    changes = [_change(one, each, here, parameters, samples) for one, each in zip(kinds, overheads, strict=True)]
    overhead, factor = np.array(changes).T
    own, total = pieces.nanoseconds.to_numpy(), np.zeros(len(rows), dtype=np.int64)
    taken = np.minimum(overhead[kind], own)
    np.add.at(total, pieces.place, np.rint(taken + (own - taken) * factor[kind]).astype(np.int64))
    return total, (kinds, here)


def _change(
    one: Alike, overhead: float, here: Machine, parameters: float, samples: LearnedTimes | None
) -> tuple[float, float]:
    """Return the overhead of an operator, and the factor of the rest of its time: 1 where nothing tells another."""
    if one.shape is None and one.on_weights and one.kernel:
        return overhead, parameters
    if one.shape is None or not one.changes or not one.works:
        return 0.0, 1.0
    sampled = find_sampled_ratio(one, samples) if samples else None
    if sampled is not None:
        return 0.0, sampled
    before, after = here.seconds(one.before), here.seconds(one.after)
    return overhead, after / before if before else 1.0


def _machine(kinds: Sequence[Alike], *, on_device: bool) -> Machine:
    working = [one for one in kinds if one.shape is not None and one.works]
    return machine(
        [one.before for one in working],
        np.array([one.nanoseconds for one in working]),
        np.array([one.nanoseconds for one in kinds]),
        on_device=on_device,
    )


def _overheads(kinds: Sequence[Alike], here: Machine) -> list[float]:
    """Return the overhead of each operator of threads, from operators of the same name."""
    by_name: dict[str, list[Alike]] = {}
    for one in kinds:
        by_name.setdefault(one.kernel or one.operator, []).append(one)
    found = {
        name: overhead_of(
            np.array([here.seconds(one.before) for one in several]),
            np.array([one.nanoseconds for one in several]),
            least=here.overhead,
        )
        for name, several in by_name.items()
    }
    return [found[one.kernel or one.operator] for one in kinds]
