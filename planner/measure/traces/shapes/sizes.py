"""Sizes of a training job on one rank, which explain sizes of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import product
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
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
from planner.measure.traces.events import UNKNOWN, Message
from planner.measure.traces.graph import ExecutionGraph, Kind

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
        Experts per token; 1 for a dense model.
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
    top_k: int
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
        top_k=max((block.top_k for block in experts), default=1),
        num_parameters=parameters(model) / (strategy.tp * strategy.pp),
        widths=_widths(model, strategy.tp, strategy.etp, strategy.ep, padded_for=strategy.tp),
        whole=_widths(model, 1, 1, 1, padded_for=strategy.tp),
    )


def _widths(model: Model, tp: int, etp: int, ep: int, *, padded_for: int) -> dict[str, int]:
    """Return the sizes of weights by name, the most common first."""
    found = {"hidden size": model.hidden_size}
    for place, kind in enumerate(model.kinds):
        for block in kind.blocks:
            own = _block_sizes(block, etp if isinstance(block, Experts) else tp)
            if isinstance(block, Experts):
                own["experts"] = max(1, block.num_experts // ep)
            found |= {f"{name} of layers of kind {place}": value for name, value in own.items()}
    padded = _ceiling(model.vocab_size, VOCABULARY_MULTIPLE * padded_for)
    return found | {"vocabulary": _ceiling(model.vocab_size, tp) // tp, "padded vocabulary": padded // tp}


def _ceiling(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _block_sizes(block: Mixer | Mlp | Experts, split: int) -> dict[str, int]:
    return _feed_forward_sizes(block, split) if isinstance(block, Mlp | Experts) else _mixer_sizes(block, split)


def _feed_forward_sizes(block: Mlp | Experts, split: int) -> dict[str, int]:
    doubled = 2 if block.gated else 1
    width = block.ffn_hidden_size // split
    found = {"feed-forward": width, "up": doubled * width}
    if isinstance(block, Experts):
        shared = block.shared_ffn_hidden_size // split
        found |= {"shared feed-forward": shared, "shared up": doubled * shared, "latent": block.latent_size or 0}
    return {name: value for name, value in found.items() if value}


def _mixer_sizes(block: Mixer, split: int) -> dict[str, int]:
    if isinstance(block, Attention):
        return _attention_sizes(block, split)
    if isinstance(block, SelectiveScan | ShortConvolution):
        return {"channels": block.channels // split}
    heads = _split(block.num_value_heads if isinstance(block, LinearAttention) else block.num_heads, split)
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
        }
    if isinstance(block, LinearAttention):
        key_heads = _split(block.num_key_heads, split)
        widths = key_heads * block.key_head_dim, heads * block.value_head_dim
        return {
            "key heads": key_heads,
            "value heads": heads,
            "head of a key": block.key_head_dim,
            "head of a value": block.value_head_dim,
            "keys": widths[0],
            "values": widths[1],
            "queries, keys and values": 2 * widths[0] + widths[1],
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


def _attention_sizes(block: Attention, split: int) -> dict[str, int]:
    heads, kv_heads, width = _split(block.num_heads, split), _split(block.num_kv_heads, split), block.head_dim
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

MOST = 4096

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
    """

    after: float
    microbatches: int
    sequences: int


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


class Explanations:
    """
    Sizes of two jobs, which explain sizes of tensors.

    Parameters
    ----------
    before, after
        The recorded job, and the other one.

    Raises
    ------
    SpecError
        If the jobs' models have different parts.
    """

    def __init__(self, before: Sizes, after: Sizes) -> None:
        self._known = _quantities(before, after)
        self._found: dict[tuple[Expected, tuple[int, ...]], Explained] = {}
        self.tokens = after.tokens / before.tokens
        self.parameters = after.num_parameters / before.num_parameters

    def explained(self, sizes: tuple[int, ...], expected: Expected) -> Explained:
        """
        Return the values in the other job of sizes that belong together.

        Parameters
        ----------
        sizes
            Sizes of one tensor; or of one matmul or attention, each once.
        expected
            Object that has these sizes.
        """
        key = expected, sizes
        if key not in self._found:
            self._found[key] = self._explain(sizes, expected)
        return self._found[key]

    def _explain(self, sizes: tuple[int, ...], expected: Expected) -> Explained:
        readings = [self._known.get(size, ()) + ((Quantity(1, 0, 0),) if size == 1 else ()) for size in sizes]
        unknown = tuple(size for size, found in zip(sizes, readings, strict=True) if not found)
        readings = [found or (Quantity(size, 0, 0),) for size, found in zip(sizes, readings, strict=True)]
        if prod(map(len, readings)) > MOST:
            readings = [found[:2] for found in readings]
        every = list(product(*readings))[:MOST]
        costs = [_cost(one, expected) for one in every]
        likely = [one for one, cost in zip(every, costs, strict=True) if cost == min(costs)]
        elements = {round(prod(quantity.after for quantity in one), 6) for one in likely}
        return Explained(tuple(quantity.after for quantity in likely[0]), len(elements) == 1, unknown)


def _cost(reading: Iterable[Quantity], expected: Expected) -> float:
    quantities = tuple(reading)
    factors = sum(one.microbatches for one in quantities), sum(one.sequences for one in quantities)
    return COSTS[expected].get(factors, UNLIKELY)


def _quantities(before: Sizes, after: Sizes) -> dict[int, tuple[Quantity, ...]]:
    """
    Return the quantities of a job by their value, the most common first; 1 is the micro-batch, or is kept.

    Sizes before they are split count only where no rank has a part of that size.
    """
    for names in (before.widths.keys() ^ after.widths.keys(), before.whole.keys() ^ after.whole.keys()):
        if names:
            raise SpecError("model", f"has other parts than the recorded model: only one has {min(names)!r}.")
    found: dict[int, dict[Quantity, None]] = {}
    for (value, microbatches, sequences), (other, _, _) in zip(
        _sizes_of_rank(before), _sizes_of_rank(after), strict=True
    ):
        if value == int(value) and (value > 1 or microbatches):
            found.setdefault(int(value), {})[Quantity(other, microbatches, sequences)] = None
    for name, width in before.whole.items():
        if width > 1 and width not in before.widths.values():
            found.setdefault(width, {})[Quantity(after.whole[name], 0, 0)] = None
    return {value: tuple(quantities) for value, quantities in found.items()}


def _sizes_of_rank(sizes: Sizes) -> Iterator[tuple[float, int, int]]:
    """Yield the sizes of a rank, with the powers of micro-batch and sequence in each; equally many for every job."""
    microbatch, length, own = sizes.microbatch_size, sizes.sequence_length, sizes.sequence_length / sizes.cp
    split = sizes.tp if sizes.sequence_parallel else 1
    for tokens in (own, own / split, length):
        yield microbatch * tokens, 1, 1
    yield sizes.tokens * sizes.top_k, 1, 1
    for tokens in (own, own / split, length):
        yield tokens, 0, 1
    yield microbatch, 1, 0
    for width in sizes.widths.values():
        yield width, 0, 0
    for name, width in sizes.widths.items():
        if "heads" in name:
            yield microbatch * width, 1, 0
