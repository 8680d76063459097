"""Architecture of a model as options of Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from constraints.rules.exports import LETTERS, NORMS, linears_have_bias, qkv_has_bias
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, Mamba, Mlp, Model
from costmodel.validation import shown

MOST_LAYERS = 4096
"""Most layers of a model, as in :mod:`costmodel.models.description`."""

PATTERN, STAGED_PATTERN = "--hybrid-override-pattern", "--hybrid-layer-pattern"
"""Options for the blocks of all layers; the second, from core 0.17 on, has a bar after each stage."""

MAMBA_STACK = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
"""Value of ``--spec`` for a hybrid."""


SIZES: Mapping[type, tuple[tuple[str, str, int | None], ...]] = {
    LatentAttention: (
        ("q_lora_rank", "--q-lora-rank", None),
        ("kv_lora_rank", "--kv-lora-rank", 32),
        ("qk_nope_head_dim", "--qk-head-dim", 128),
        ("qk_rope_head_dim", "--qk-pos-emb-head-dim", 64),
        ("v_head_dim", "--v-head-dim", 128),
    ),
    Mamba: (
        ("num_heads", "--mamba-num-heads", None),
        ("head_dim", "--mamba-head-dim", 64),
        ("state_size", "--mamba-state-dim", 128),
        ("num_groups", "--mamba-num-groups", 8),
    ),
}
"""
Sizes of blocks, written and read: the block's field, the option, and its default (transformer_config.py).

A ``q_lora_rank`` of None is no low rank; heads of Mamba blocks are twice the hidden size without the option.
"""


def write_sizes(block: LatentAttention | Mamba) -> dict[str, Any]:
    """Return the options for the sizes of a block."""
    sizes = ((option, getattr(block, name)) for name, option, _ in SIZES[type(block)])
    return {option: size for option, size in sizes if size is not None}


def read_sizes(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a block by field."""
    return {name: arguments.get(option, default) for name, option, default in SIZES[kind]}


def model_entries(model: Model, sequence_length: int) -> dict[str, Any]:
    """
    Return the options of a model that Megatron-LM has options for.

    >>> from costmodel import catalog
    >>> model_entries(catalog.model("llama3-8b"), 8192)["--num-query-groups"]
    8
    """
    attention = _first_attention(model)
    return {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        **_feed_forward(model),
        **(_latent(attention) if isinstance(attention, LatentAttention) else _softmax(model)),
        **_positions(model, sequence_length),
        "--normalization": NORMS[model.final_norm],
        **_biases(model),
        "--vocab-size": model.vocab_size,
        **({} if model.tied_embeddings else {"--untie-embeddings-and-output-weights": True}),
        **_experts(model),
        **({"--mtp-num-layers": len(model.mtp_layers)} if model.mtp_layers else {}),
        **(_hybrid(model) if model.has_single_blocks else {}),
    }


def _first_attention(model: Model) -> Attention | LatentAttention:
    """Return the attention of all layers that have one; they are alike but for their windows."""
    mixers = (layer.attention for layer in model.kinds)
    return next(one for one in mixers if isinstance(one, Attention | LatentAttention))


def frequency_text(flags: Sequence[bool]) -> str:
    """
    Write a list of flags by layer in Megatron-LM's syntax.

    >>> frequency_text([False, False, False, True, True]), frequency_text([True, False, True, False])
    ('([0]*3+[1]*2)', '([1,0]*2)')
    """
    pair = list(flags[:2])
    if len(flags) % 2 == 0 and len(set(pair)) == 2 and pair * (len(flags) // 2) == list(flags):
        return f"([{int(pair[0])},{int(pair[1])}]*{len(flags) // 2})"
    runs = (f"[{int(value)}]*{len(list(run))}" for value, run in groupby(flags))
    return f"({'+'.join(runs)})"


def frequency_flags(text: str, where: str) -> tuple[bool, ...]:
    """
    Read sums and products of lists of 0 and 1, with or without parentheses.

    >>> frequency_flags("([0]*3+[1]*2)", "--moe-layer-freq")
    (False, False, False, True, True)
    >>> frequency_flags("([1]+[0]*1)*2", "--linear-attention-freq")
    (True, False, True, False)

    Raises
    ------
    SpecError
        If the text is no such list, or longer than a model can be.
    """
    pieces = re.findall(r"\[[01](?:,[01])*\]|\d{1,4}|[()+*]", text)
    problem = f"expected a number or a list such as ([0]*3+[1]*58), got {shown(text)}."
    if "".join(pieces) != text:
        raise SpecError(where, problem)
    flags, rest = _sum_of_lists(pieces, SpecError(where, problem), where)
    if rest:
        raise SpecError(where, problem)
    return flags


def _sum_of_lists(pieces: Sequence[str], error: SpecError, where: str) -> tuple[tuple[bool, ...], Sequence[str]]:
    """Read a sum at the beginning, and return it with the pieces after it."""
    flags: tuple[bool, ...] = ()
    while True:
        if not pieces:
            raise error
        first, pieces = pieces[0], pieces[1:]
        if first == "(":
            part, pieces = _sum_of_lists(pieces, error, where)
            if not pieces or pieces[0] != ")":
                raise error
            pieces = pieces[1:]
        elif first.startswith("["):
            part = tuple(flag == "1" for flag in first[1:-1].split(","))
        else:
            raise error
        while len(pieces) > 1 and pieces[0] == "*" and pieces[1].isdecimal():
            if len(part) * int(pieces[1]) > MOST_LAYERS:
                raise SpecError(where, f"is of more than {MOST_LAYERS} layers.")
            part, pieces = part * int(pieces[1]), pieces[2:]
        flags += part
        if len(flags) > MOST_LAYERS:
            raise SpecError(where, f"is of more than {MOST_LAYERS} layers.")
        if not pieces or pieces[0] != "+":
            return flags, pieces
        pieces = pieces[1:]


# --- attention ---------------------------------------------------------------------------------------------


def _softmax(model: Model) -> dict[str, Any]:
    attentions = [layer.attention for layer in model.layers if isinstance(layer.attention, Attention)]
    one, windows = attentions[0], [attention.window for attention in attentions]
    grouped = {"--group-query-attention": True, "--num-query-groups": one.num_kv_heads}
    return {
        "--num-attention-heads": one.num_heads,
        **(grouped if one.num_kv_heads != one.num_heads else {}),
        "--kv-channels": one.head_dim,
        **({"--qk-layernorm": True} if one.qk_norm == "per_head" else {}),
        **({"--attention-output-gate": True} if one.output_gate else {}),
        **({"--softmax-type": "learnable"} if one.sinks else {}),
        **_windows(windows),
    }


def _windows(windows: Sequence[int | None]) -> dict[str, Any]:
    """Return the options of a window: tokens to the left and right, and a flag of 1 for each layer that has it."""
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    flags = [window is not None for window in windows]
    some = {} if all(flags) else {"--window-attn-skip-freq": frequency_text(flags)}
    return {"--window-size": f"{sizes.pop()},0", **some}


def _latent(attention: LatentAttention) -> dict[str, Any]:
    """Return the options of latent attention; Megatron-LM has norms of the latents only with ``--qk-layernorm``."""
    return {
        "--num-attention-heads": attention.num_heads,
        "--multi-latent-attention": True,
        **write_sizes(attention),
        "--qk-layernorm": True,
    }


def _positions(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the options of positions; base and scaling of rotary ones are facts of :mod:`numerics`."""
    attention = _first_attention(model)
    rotary = isinstance(attention, LatentAttention) or (isinstance(attention, Attention) and attention.rotary)
    kind = "learned_absolute" if model.learned_positions else "rope" if rotary else "none"
    return {
        "--position-embedding-type": kind,
        "--max-position-embeddings": model.learned_positions or sequence_length,
    }


# --- feed-forward ------------------------------------------------------------------------------------------


def _feed_forwards(model: Model) -> Iterable[Mlp | Experts]:
    return (kind.feed_forward for kind in model.kinds if kind.feed_forward is not None)


def _feed_forward(model: Model) -> dict[str, Any]:
    """Return the options of feed-forwards; without dense layers ``--ffn-hidden-size`` is the width of an expert."""
    blocks = list(_feed_forwards(model))
    widths = [block.ffn_hidden_size for block in blocks if isinstance(block, Mlp)]
    return {
        "--ffn-hidden-size": (widths or [block.ffn_hidden_size for block in blocks])[0],
        **(_clamp_options(model) if model.family == "gpt_oss" else {"--swiglu": True} if blocks[0].gated else {}),
        **({"--squared-relu": True} if blocks[0].squared_relu else {}),
    }


def _clamp_options(model: Model) -> dict[str, Any]:
    """
    Return the options of gpt-oss's activation.

    It is g sigmoid(1.702 g) (u + 1) of gate g and other half u, both clamped at ``swiglu_limit``.

    References
    ----------
    transformers, GptOssExperts; megatron/core/transformer/mlp.py:217 and megatron/core/fusions/fused_bias_geglu.py:185
    (megatron-core 0.16.1).
    """
    return {
        "--quick-geglu": True,
        "--glu-linear-offset": 1.0,
        "--activation-func-clamp-value": model.numerics.activation_limit or CLAMP,
    }


CLAMP = 7.0
"""``swiglu_limit`` of gpt-oss."""


def _biases(model: Model) -> dict[str, Any]:
    """Return the options of biases: one for all linears with the router, one for queries, keys and values."""
    without = {} if True in linears_have_bias(model) else {"--disable-bias-linear": True}
    return {**without, **({"--add-qkv-bias": True} if qkv_has_bias(model) and without else {})}


def _experts(model: Model) -> dict[str, Any]:
    blocks = [block for block in _feed_forwards(model) if isinstance(block, Experts)]
    if not blocks:
        return {}
    one, routed = blocks[0], [isinstance(layer.feed_forward, Experts) for layer in model.layers]
    shared = {"--moe-shared-expert-intermediate-size": one.shared_ffn_hidden_size}
    return {
        "--num-experts": one.num_experts,
        "--moe-router-topk": one.top_k,
        "--moe-ffn-hidden-size": one.ffn_hidden_size,
        "--moe-grouped-gemm": True,
        **({} if all(routed) or model.has_single_blocks else {"--moe-layer-freq": frequency_text(routed)}),
        **(shared if one.shared_ffn_hidden_size else {}),
        **({"--moe-shared-expert-gate": True} if one.shared_gate else {}),
        **({} if one.latent_size is None else {"--moe-latent-size": one.latent_size}),
    }


# --- hybrids -----------------------------------------------------------------------------------------------


def split_pattern(pattern: str, layers: Sequence[int]) -> str:
    """
    Write a pattern with a bar after the layers of each stage but the last.

    >>> split_pattern("M-M*-M", [2, 3, 1])
    'M-|M*-|M'
    """
    ends = accumulate(layers)
    return "|".join(pattern[end - count : end] for count, end in zip(layers, ends, strict=True))


def _hybrid(model: Model) -> dict[str, Any]:
    """Return the options of a hybrid: the block of each layer, and the sizes of Mamba blocks."""
    blocks = [layer.blocks[0] for layer in model.layers]
    mamba = next(block for block in blocks if isinstance(block, Mamba))
    return {
        "--is-hybrid-model": True,
        PATTERN: "".join(LETTERS[type(block)] for block in blocks),
        **write_sizes(mamba),
        "--spec": MAMBA_STACK,
    }
