"""Rules of even splits: heads, widths, tokens."""

from __future__ import annotations

from math import gcd, lcm
from typing import TypeVar

from constraints.rule import Flags, Holds, Ints, every, implies
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.facts.workload import Workload

Block = TypeVar("Block")


def heads_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns equally many whole attention heads, and whole groups of a grouped output."""
    return gcd(*(count for layer in model.kinds for count in _head_counts(layer))) % tp == 0


def kv_heads_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns whole key-value heads, or equally many ranks share each one."""
    counts = {attention.num_kv_heads for attention in _blocks(model, Attention)}
    return every((count % tp == 0) | (tp % count == 0) for count in counts)


def state_groups_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """
    Each tensor-parallel rank owns equally many whole groups of state-space heads.

    Heads are multiples of groups, so that they are split evenly too.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_mixer.py:258.
    """
    return gcd(*(mamba.num_groups for mamba in _blocks(model, Mamba))) % tp == 0


def state_heads_split_over_cp(model: Model, *, tp: Ints, cp: Ints) -> Holds:
    """
    Each context-parallel rank owns equally many whole state-space heads of its tensor-parallel rank.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_context_parallel.py:99: tokens are exchanged for heads.
    """
    return gcd(*(mamba.num_heads for mamba in _blocks(model, Mamba))) % (tp * cp) == 0


def channels_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns equally many channels of short convolutions and of first-generation Mamba."""
    first, short = _blocks(model, SelectiveScan), _blocks(model, ShortConvolution)
    return gcd(*(block.channels for block in first), *(block.channels for block in short)) % tp == 0


def dense_widths_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns an equal part of every dense feed-forward block."""
    return gcd(*(mlp.ffn_hidden_size for mlp in _blocks(model, Mlp))) % tp == 0


def shared_expert_widths_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns an equal part of every shared expert."""
    return gcd(*(experts.shared_ffn_hidden_size for experts in _blocks(model, Experts))) % tp == 0


def expert_widths_split_over_etp(model: Model, *, etp: Ints) -> Holds:
    """Each expert-tensor-parallel rank owns an equal part of every routed expert that it serves."""
    return gcd(*(experts.ffn_hidden_size for experts in _blocks(model, Experts))) % etp == 0


def sequence_splits_over_cp(workload: Workload, *, cp: Ints) -> Holds:
    """Each context-parallel rank owns two equal pieces of the sequence, an early and a late one."""
    return (cp == 1) | (workload.sequence_length % (2 * cp) == 0)


def entries_split_over_cp(model: Model, workload: Workload, *, cp: Ints) -> Holds:
    """Each context-parallel rank owns whole compressed entries of both its pieces of the sequence."""
    tokens = lcm(*(attention.ratio or 1 for attention in _blocks(model, CompressedAttention)))
    return (cp == 1) | (workload.sequence_length % (2 * cp * tokens) == 0)


def sequence_splits_over_tp(workload: Workload, *, tp: Ints, cp: Ints, sequence_parallel: Flags) -> Holds:
    """With sequence parallelism, each tensor-parallel rank owns an equal piece of its context-parallel sequence."""
    return implies(sequence_parallel, workload.sequence_length % (tp * cp) == 0)


def _head_counts(layer: Layer) -> tuple[int, ...]:
    if isinstance(layer.attention, LinearAttention):
        return layer.attention.num_key_heads, layer.attention.num_value_heads
    if isinstance(layer.attention, CompressedAttention):
        return layer.attention.num_heads, layer.attention.num_groups
    return (layer.attention.num_heads,) if isinstance(layer.attention, Attention | LatentAttention) else ()


def _blocks(model: Model, kind: type[Block]) -> list[Block]:
    return [block for layer in model.kinds for block in layer.blocks if isinstance(block, kind)]
