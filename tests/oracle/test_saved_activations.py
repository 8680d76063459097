"""
What PyTorch really keeps for the backward pass as the oracle of saved activations.

Beyond what the cost model counts are small tensors, which each test states: 4 bytes per token and norm, 4 per query
and head of an attention kernel, 8 per index of a dispatched token.
"""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.facts.framework import Kernels, MemoryModel
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mlp
from costmodel.lowering import layer_operators
from costmodel.lowering.layer import sum_dropped_bytes
from costmodel.lowering.shape import Shape
from costmodel.memory import kept_bytes
from costmodel.strategy import Recompute

reference = pytest.importorskip("tests.oracle.reference_layers", reason="the oracle needs torch")
Sizes = reference.Sizes

MBS, SEQUENCE = 2, 32
TOKENS = MBS * SEQUENCE
NORM_BYTES = 2 * 4 * TOKENS
"""Two reciprocal roots of a layer's norms."""


def ours(layer: Layer, shape: Shape, recompute: Recompute = Recompute.NONE) -> float:
    """What the cost model says that a layer keeps."""
    operators = layer_operators(layer, shape)
    saved = [float(one.saved_bytes) for one in operators]
    layer_input = 2 * TOKENS * shape.hidden_size / shape.sequence_shards
    modules = np.array(sum_dropped_bytes(operators, shape))
    return float(kept_bytes(sum(saved), modules, layer_input, recompute=recompute))


def the_layer(sizes: Sizes) -> Layer:
    """The cost model's layer of the same sizes."""
    return Layer(
        attention=Attention(num_heads=sizes.heads, num_kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, rotary=False),
        feed_forward=Mlp(ffn_hidden_size=sizes.ffn, gated=sizes.gated),
    )


def the_shape(sizes: Sizes) -> Shape:
    """The cost model's shape of the same sizes and software."""
    return Shape(
        hidden_size=sizes.hidden,
        sequence_length=SEQUENCE,
        activation_bytes=2,
        causal=False,
        mbs=MBS,
        tp=sizes.tp,
        sequence_parallel=int(sizes.sequence_parallel),
        kernels=Kernels(fused_attention=sizes.attention != "scores"),
        memory=MemoryModel(
            attention_score_bytes=5.0 if sizes.attention == "scores" else 0.0,
            dropout_mask_bytes=1.0 if sizes.dropout else 0.0,
            unfused_kernels=sizes.eager,
        ),
    )


def theirs(sizes: Sizes) -> int:
    """What PyTorch keeps of the layer."""
    tokens = SEQUENCE // sizes.tp if sizes.sequence_parallel else SEQUENCE
    return reference.saved_bytes(lambda: reference.Layer(sizes), (MBS, tokens, sizes.hidden))


DROPPING = {"attention": "scores", "dropout": True}
"""Korthikanti et al., equations (1) and (2): softmax's output, dropout's mask and output, two residual masks."""

EXP = 4 * 4 * TOKENS
"""A log-sum-exp per query and head of an attention kernel."""

KEPT = [
    (Sizes(**DROPPING), Recompute.NONE, NORM_BYTES),
    (Sizes(**DROPPING, tp=2), Recompute.NONE, NORM_BYTES),
    (Sizes(**DROPPING, tp=2, sequence_parallel=True), Recompute.NONE, NORM_BYTES // 2),  # splits all: equation (4)
    (Sizes(attention="sdpa"), Recompute.NONE, NORM_BYTES + EXP),  # PyTorch's own
    *(
        (Sizes(kv_heads=heads, gated=True), Recompute.NONE, NORM_BYTES + EXP) for heads in (4, 2)
    ),  # Megatron-LM's SwiGLU
    *((Sizes(kv_heads=heads, gated=True, tp=2), Recompute.NONE, NORM_BYTES + EXP // 2) for heads in (4, 2)),
    (Sizes(gated=True, eager=True), Recompute.NONE, NORM_BYTES + EXP),  # fp32 copies, as transformers' Llama
    (Sizes(**DROPPING, again=("core",)), Recompute.of("core_attention"), NORM_BYTES),
    (Sizes(gated=True, again=("mlp",)), Recompute.of("mlp"), NORM_BYTES // 2 + EXP),
    (Sizes(**DROPPING, again=("layer",)), Recompute.FULL, 0),
]
"""Layers, what is recomputed of them, and bytes of small tensors that PyTorch keeps as well."""


@pytest.mark.parametrize(("sizes", "recompute", "small"), KEPT)
def test_a_layer_keeps_what_is_counted(sizes, recompute, small):
    """To the byte: PyTorch's layer, and the cost model's of the same sizes."""
    assert theirs(sizes) - small == ours(the_layer(sizes), the_shape(sizes), recompute)


def test_latent_attention():
    """Latents before and after their norms (two more reciprocal roots), unfolded heads in a kernel."""
    sizes = Sizes(gated=True)
    latent = LatentAttention(
        num_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
    )
    layer = Layer(attention=latent, feed_forward=Mlp(ffn_hidden_size=sizes.ffn))

    kept = reference.saved_bytes(
        lambda: reference.Layer(sizes, attention=reference.LatentAttention(sizes, latent)), (MBS, SEQUENCE, 64)
    )

    assert kept - 2 * NORM_BYTES - EXP == ours(layer, the_shape(sizes))


def test_experts():
    """Dispatched tokens, both sides of the activation, the router's input and probabilities; one index per pair."""
    sizes = Sizes(gated=True)
    experts = Experts(num_experts=8, top_k=2, ffn_hidden_size=48)
    layer = Layer(attention=the_layer(sizes).attention, feed_forward=experts)
    shape = Shape(
        hidden_size=64,
        sequence_length=SEQUENCE,
        activation_bytes=2,
        causal=False,
        mbs=MBS,
        memory=MemoryModel(expert_output=False),
    )

    kept = reference.saved_bytes(
        lambda: reference.Layer(sizes, feed_forward=reference.Experts(sizes, experts)), (MBS, SEQUENCE, 64)
    )

    assert kept - NORM_BYTES - EXP - 8 * TOKENS * 2 == ours(layer, shape)
