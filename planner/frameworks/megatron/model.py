"""Architecture of a model as options of Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any

from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mamba, Mlp, Model
from costmodel.validation import shown

MOST_LAYERS = 4096
"""Most layers of a model, as in :mod:`costmodel.models.description`."""

LETTERS: dict[type, str] = {Mamba: "M", Attention: "*", Mlp: "-", Experts: "E"}
"""Letter of each block in the pattern of a hybrid (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""

PATTERN, STAGED_PATTERN = "--hybrid-override-pattern", "--hybrid-layer-pattern"
"""Options for the blocks of all layers; the second, from core 0.17 on, has a bar after each stage."""

MAMBA_STACK = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
"""Value of ``--spec`` for a hybrid."""

PLAIN_MAMBA = Mamba(num_heads=1, head_dim=1, state_size=1, num_groups=1)
"""Convolution, chunks and biases of a Mamba block, which have no options (megatron/core/ssm/mamba_mixer.py:149)."""

WITHOUT_OPTIONS = {
    "chunk": "attention inside chunks",
    "head_gate": "a gate per head behind the attention",
    "indexer": "keys that an indexer chooses for each query (sparse attention)",
    "key_is_value": "values that are keys",
    "latent_norm": "a norm of the experts' latent",
    "router_scales": "a router that norms and scales its input",
}
"""Entries of blocks of which Megatron-LM's releases here know nothing, and their meaning."""

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}


def model_entries(model: Model, sequence_length: int) -> dict[str, Any]:
    """
    Return a model's options.

    Raises
    ------
    SpecError
        If Megatron-LM has no options for the model, so that it would train another one.
    """
    hybrid = model.has_single_blocks
    if hybrid and model.mtp_layers:
        raise SpecError(
            "model.mtp_layers",
            "hybrids have them in another pattern, which exports do not write.",
            "Plan with settings.mtp_layers=0.",
        )
    for layer in model.kinds:
        (_require_block if hybrid else _require_gpt)(layer)
    _require_alike(model)
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
        **(_hybrid(model) if hybrid else {}),
    }


def _first_attention(model: Model) -> Attention | LatentAttention:
    """Return the attention of all layers that have one; :func:`_require_alike` has checked that they are alike."""
    mixers = (layer.attention for layer in model.kinds)
    found = next((one for one in mixers if isinstance(one, Attention | LatentAttention)), None)
    if found is None:
        raise SpecError("model.layers", "have no attention, of which Megatron-LM must know the heads.")
    return found


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
    """Read a sum at the beginning, and return it with the pieces behind it."""
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


# --- what cannot be said -----------------------------------------------------------------------------------


def _require_gpt(layer: Layer) -> None:
    attention = layer.attention
    if layer.streams > 1:
        raise SpecError("model.streams", f"is {layer.streams} (hyper-connections), for which exports write no options.")
    if layer.snapshots:
        raise SpecError("model.snapshots", "are attention residuals, for which exports write no options.")
    if not isinstance(attention, Attention | LatentAttention) or layer.feed_forward is None or layer.beside:
        blocks = " and ".join(type(block).__name__ for block in layer.blocks)
        raise SpecError(
            "model.layers",
            f"a layer is {blocks}; only GPT models are exported, whose layers are an attention and a feed-forward.",
        )
    if layer.parallel_blocks or layer.num_norms != 2:
        what = "blocks side by side" if layer.parallel_blocks else f"{layer.num_norms} norms"
        raise SpecError(
            "model.layers", f"a layer has {what}; Megatron-LM's GPT layer is two blocks, a norm before each."
        )
    if layer.norm not in NORMS:
        raise SpecError("model.norm", f"is {layer.norm}; Megatron-LM has {' and '.join(NORMS.values())}.")
    if isinstance(attention, Attention) and attention.qk_norm == "full":
        raise SpecError("model.qk_norm", "is over all heads; Megatron-LM's --qk-layernorm is per head.")
    for block in layer.blocks:
        for name, what in WITHOUT_OPTIONS.items():
            if getattr(block, name, None):
                raise SpecError(f"model.{name}", f"means {what}, for which exports write no options.")
    if isinstance(attention, Attention) and attention.v_head_dim is not None:
        raise SpecError(
            "model.v_head_dim", f"is {attention.v_head_dim}; Megatron-LM has it with latent attention alone."
        )
    if isinstance(attention, LatentAttention) and (attention.output_gate or not attention.rotary):
        what = "is gated" if attention.output_gate else "does not rotate"
        raise SpecError("model.layers", f"latent attention {what}, which Megatron-LM's options do not say.")
    if isinstance(attention, LatentAttention) and attention.bias:
        raise SpecError("model.bias", "latent attention has biases, which Megatron-LM's has not.")


def _require_block(layer: Layer) -> None:
    """Refuse a layer of a hybrid that is not one block with a letter and a norm before it."""
    (block, *more), kinds = layer.blocks, tuple(LETTERS)
    if more or not isinstance(block, kinds) or layer.num_norms != 1:
        blocks = " and ".join(type(one).__name__ for one in layer.blocks)
        problem = f"a layer is {blocks} with {layer.num_norms} norms; a hybrid's are one block each, a norm before it."
        raise SpecError("model.layers", problem)
    if layer.norm not in NORMS:
        raise SpecError("model.norm", f"is {layer.norm}; Megatron-LM has {' and '.join(NORMS.values())}.")
    if isinstance(block, Mamba) and replace(block, num_heads=1, head_dim=1, state_size=1, num_groups=1) != PLAIN_MAMBA:
        raise SpecError("model.layers", "convolution, chunks or biases of Mamba are others than Megatron-LM's.")
    if isinstance(block, Attention) and (block.rotary or block.qk_norm == "full"):
        raise SpecError("model.layers", "attention has rotary positions or norms over all heads, a hybrid's neither.")


def _require_alike(model: Model) -> None:
    """Refuse layers that differ in more than experts and window, or in hybrids in more than their block."""
    if model.extras or model.embedding_norm:
        what = model.extras or "a norm behind the embedding"
        raise SpecError("model.extras", f"has {what}, which Megatron-LM's options do not say.")
    if model.head_bias:
        raise SpecError("model.head_bias", "is true; Megatron-LM's head has no bias.")
    mixers = [kind.attention for kind in model.kinds if kind.attention is not None]
    differing = {
        "attention": {_drop_window(one) for one in mixers if not isinstance(one, Mamba)},
        "mamba": {one for one in mixers if isinstance(one, Mamba)},
        "norm": {*(kind.norm for kind in model.kinds), model.final_norm},
        "ffn_hidden_size": {kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Mlp)},
        "expert_ffn_hidden_size": {kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts)},
    }
    for name, values in differing.items():
        if len(values) > 1:
            raise SpecError(f"model.{name}", f"{len(values)} kinds of layers differ in it; one option says it for all.")
    if any(layer != replace(model.layers[-1], is_wide=False) for layer in model.mtp_layers):
        raise SpecError("model.mtp_layers", "differ from the last layer, of which Megatron-LM makes them.")


def _drop_window(attention: Any) -> Any:
    return replace(attention, window=None) if isinstance(attention, Attention) else attention


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
    if len(sizes) > 1:
        raise SpecError("model.window", f"is {sorted(sizes)} in different layers; one option says it for all.")
    flags = [window is not None for window in windows]
    some = {} if all(flags) else {"--window-attn-skip-freq": frequency_text(flags)}
    return {"--window-size": f"{sizes.pop()},0", **some}


def _latent(attention: LatentAttention) -> dict[str, Any]:
    """Return the options of latent attention; Megatron-LM has norms of the latents only with ``--qk-layernorm``."""
    return {
        "--num-attention-heads": attention.num_heads,
        "--multi-latent-attention": True,
        **({} if attention.q_lora_rank is None else {"--q-lora-rank": attention.q_lora_rank}),
        "--kv-lora-rank": attention.kv_lora_rank,
        "--qk-head-dim": attention.qk_nope_head_dim,
        "--qk-pos-emb-head-dim": attention.qk_rope_head_dim,
        "--v-head-dim": attention.v_head_dim,
        "--qk-layernorm": True,
    }


def _positions(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the options of positions; base and scaling of rotary ones are facts of :mod:`numerics`."""
    attention = _first_attention(model)
    rotary = isinstance(attention, LatentAttention) or (isinstance(attention, Attention) and attention.rotary)
    if 0 < model.learned_positions < sequence_length:
        problem = f"is {model.learned_positions}, fewer than the {sequence_length} tokens of a sequence."
        raise SpecError("model.learned_positions", problem)
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
    if len({(block.gated, block.squared_relu) for block in blocks}) > 1:
        raise SpecError("model.gated", "feed-forwards differ in gate or non-linearity; one option says it for all.")
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
    linears = {block.bias for block in _feed_forwards(model)}
    linears |= {block.router_bias for block in _feed_forwards(model) if isinstance(block, Experts)}
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    linears |= {attention.output_bias for attention in attentions}
    qkv = any(attention.qkv_bias for attention in attentions)
    if len(linears) > 1 or (True in linears and attentions and not qkv):
        raise SpecError("model.bias", "some linears have a bias, others none; Megatron-LM gives it to all or none.")
    without = {} if True in linears else {"--disable-bias-linear": True}
    return {**without, **({"--add-qkv-bias": True} if qkv and without else {})}


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
    mamba = next((block for block in blocks if isinstance(block, Mamba)), None)
    if mamba is None:
        raise SpecError("model.layers", "are single blocks without Mamba, which Megatron-LM's hybrid model has.")
    return {
        "--is-hybrid-model": True,
        PATTERN: "".join(LETTERS[type(block)] for block in blocks),
        "--mamba-num-heads": mamba.num_heads,
        "--mamba-head-dim": mamba.head_dim,
        "--mamba-state-dim": mamba.state_size,
        "--mamba-num-groups": mamba.num_groups,
        "--spec": MAMBA_STACK,
    }
