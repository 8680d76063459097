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


def log_sum_exp(sizes: Sizes) -> int:
    """4 bytes per query and head of this rank."""
    return 4 * TOKENS * sizes.heads // sizes.tp


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


@pytest.mark.parametrize("tp", [1, 2])
def test_unfused_attention_with_dropout(tp):
    """Korthikanti et al., equations (1) and (2): softmax's output, dropout's mask and output, two residual masks."""
    sizes = Sizes(attention="scores", dropout=True, tp=tp)

    assert theirs(sizes) - NORM_BYTES == ours(the_layer(sizes), the_shape(sizes))


def test_sequence_parallelism_splits_everything():
    """Norms, linears' inputs and masks too (equation (4)); the reciprocal roots with them."""
    sizes = Sizes(attention="scores", dropout=True, tp=2, sequence_parallel=True)

    assert theirs(sizes) - NORM_BYTES // 2 == ours(the_layer(sizes), the_shape(sizes))


def test_pytorchs_own_fused_attention():
    """Q, K, V, the output that the projection keeps anyway, and the log-sum-exp."""
    sizes = Sizes(attention="sdpa")

    assert theirs(sizes) - NORM_BYTES - log_sum_exp(sizes) == ours(the_layer(sizes), the_shape(sizes))


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_grouped_queries_in_one_kernel(kv_heads, tp):
    """With SwiGLU as Megatron-LM fuses it."""
    sizes = Sizes(kv_heads=kv_heads, gated=True, tp=tp)

    assert theirs(sizes) - NORM_BYTES - log_sum_exp(sizes) == ours(the_layer(sizes), the_shape(sizes))


def test_eager_norms_and_activations():
    """transformers' Llama: fp32 copies of the norms' inputs, the normalised ones, the gate's activation."""
    sizes = Sizes(gated=True, eager=True)

    assert theirs(sizes) - NORM_BYTES - log_sum_exp(sizes) == ours(the_layer(sizes), the_shape(sizes))


@pytest.mark.parametrize(
    ("sizes", "recompute", "small"),
    [
        (Sizes(attention="scores", dropout=True, again=("core",)), Recompute.of("core_attention"), NORM_BYTES),
        (Sizes(gated=True, again=("mlp",)), Recompute.of("mlp"), NORM_BYTES // 2 + 4 * 4 * TOKENS),
        (Sizes(attention="scores", dropout=True, again=("layer",)), Recompute.FULL, 0),
    ],
    ids=["core", "mlp", "layer"],
)
def test_checkpointed_modules(sizes, recompute, small):
    """The attention core, the feed-forward with its norm (beside a log-sum-exp), the whole layer, checkpointed."""
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

    assert kept - 2 * NORM_BYTES - log_sum_exp(sizes) == ours(layer, the_shape(sizes))


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

    assert kept - NORM_BYTES - log_sum_exp(sizes) - 8 * TOKENS * 2 == ours(layer, shape)
