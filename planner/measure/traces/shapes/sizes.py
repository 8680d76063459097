"""Sizes of a training job on one rank, which explain sizes of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.facts.model import Attention, Experts, LatentAttention, LinearAttention, Mixer, Mlp, Model
from costmodel.facts.workload import Workload
from costmodel.models.parameters import parameters
from costmodel.strategy import Strategy

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads a tensor-parallel rank's part of the vocabulary to a multiple (``make_vocab_size_divisible_by``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
