"""Models that Megatron-LM has no options for, so that it would train another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mamba, Mlp, Model

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
"""Values of ``--normalization``."""

LETTERS: dict[type, str] = {Mamba: "M", Attention: "*", Mlp: "-", Experts: "E"}
"""Letter of each block in the pattern of a hybrid (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""

PLAIN_MAMBA = Mamba(num_heads=1, head_dim=1, state_size=1, num_groups=1)
"""Convolution, chunks and biases of a Mamba block, which have no options (megatron/core/ssm/mamba_mixer.py:149)."""

WITHOUT_OPTIONS = {
    "activation_weights": "a non-linearity with weights of its own (xIELU)",
    "chunk": "attention inside chunks",
    "head_gate": "a gate per head behind the attention",
    "indexer": "keys that an indexer chooses for each query (sparse attention)",
    "key_is_value": "values that are keys",
    "latent_norm": "a norm of the experts' latent",
    "router_scales": "a router that norms and scales its input",
}
"""Entries of blocks of which Megatron-LM's releases here know nothing, and their meaning."""


def require_options(model: Model, sequence_length: int) -> None:
    """
    Refuse a model that Megatron-LM has no options for.

    Raises
    ------
    SpecError
        With the entry of the model, its value, and the values that have options.
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
    if not any(isinstance(layer.attention, Attention | LatentAttention) for layer in model.kinds):
        raise SpecError("model.layers", "have no attention, of which Megatron-LM must know the heads.")
    feed_forwards = [kind.feed_forward for kind in model.kinds if kind.feed_forward is not None]
    if len({(block.gated, block.squared_relu) for block in feed_forwards}) > 1:
        raise SpecError("model.gated", "feed-forwards differ in gate or non-linearity; one option says it for all.")
    spans = (layer.attention.window for layer in model.kinds if isinstance(layer.attention, Attention))
    windows = {window for window in spans if window is not None}
    if len(windows) > 1:
        raise SpecError("model.window", f"is {sorted(windows)} in different layers; one option says it for all.")
    if 0 < model.learned_positions < sequence_length:
        problem = f"is {model.learned_positions}, fewer than the {sequence_length} tokens of a sequence."
        raise SpecError("model.learned_positions", problem)
    _require_biases(model)
    if hybrid and not any(isinstance(layer.attention, Mamba) for layer in model.kinds):
        raise SpecError("model.layers", "are single blocks without Mamba, which Megatron-LM's hybrid model has.")


def _require_biases(model: Model) -> None:
    """Refuse biases of some linears only; one option gives them to all, another one to queries, keys and values."""
    has_bias, qkv = linears_have_bias(model), qkv_has_bias(model)
    has_attention = any(isinstance(kind.attention, Attention) for kind in model.kinds)
    if len(has_bias) > 1 or (True in has_bias and has_attention and not qkv):
        raise SpecError("model.bias", "some linears have a bias, others none; Megatron-LM gives it to all or none.")


def linears_have_bias(model: Model) -> set[bool]:
    """Return True or False or both, for the linears of all blocks but queries, keys and values."""
    blocks = [kind.feed_forward for kind in model.kinds if kind.feed_forward is not None]
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    return {
        *(block.bias for block in blocks),
        *(block.router_bias for block in blocks if isinstance(block, Experts)),
        *(attention.output_bias for attention in attentions),
    }


def qkv_has_bias(model: Model) -> bool:
    """Return True where queries, keys and values of some layer have biases."""
    return any(isinstance(kind.attention, Attention) and kind.attention.qkv_bias for kind in model.kinds)


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
