"""Models whose numbers make the rules' arithmetic easy to follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)

ATTENTION = Attention(num_heads=32, num_kv_heads=8, head_dim=128)
LATENT = LatentAttention(
    num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
DENSE_LAYER = Layer(attention=ATTENTION, feed_forward=Mlp(ffn_hidden_size=96))
EXPERT_LAYER = Layer(
    attention=ATTENTION, feed_forward=Experts(num_experts=16, top_k=2, ffn_hidden_size=48, shared_ffn_hidden_size=40)
)
GATED_DELTA_LAYER = Layer(
    attention=LinearAttention(
        variant="gated_delta", num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128
    ),
    feed_forward=Mlp(ffn_hidden_size=96),
)

MAMBA_LAYER = Layer(
    attention=Mamba(num_heads=32, head_dim=64, state_size=128, num_groups=8), feed_forward=None, num_norms=1
)


def a_stack(*layers: Layer, **changes: Any) -> Model:
    """A model of these layers."""
    return Model(**({"name": "test", "hidden_size": 4096, "vocab_size": 32000, "layers": layers} | changes))


DENSE = a_stack(*[DENSE_LAYER] * 8)
SPARSE = a_stack(DENSE_LAYER, *[EXPERT_LAYER] * 7)
ONE_MTP = a_stack(*[EXPERT_LAYER] * 8, mtp_layers=(EXPERT_LAYER,))
TWO_MTP = a_stack(*[EXPERT_LAYER] * 8, mtp_layers=(EXPERT_LAYER, EXPERT_LAYER))
HYBRID = a_stack(*[GATED_DELTA_LAYER] * 3, DENSE_LAYER)
INDEXED = a_stack(
    Layer(
        attention=replace(LATENT, indexer=Indexer(num_heads=64, head_dim=128, num_keys=2048)),
        feed_forward=Mlp(ffn_hidden_size=96),
    )
)
COMPRESSED = a_stack(
    Layer(
        attention=CompressedAttention(
            num_heads=64, head_dim=512, rotary_dim=64, q_lora_rank=1024, num_groups=8, output_rank=1024, window=128,
            ratio=128,
        ),
        feed_forward=Mlp(ffn_hidden_size=96),
    )
)  # fmt: skip
STATE_SPACE = a_stack(
    MAMBA_LAYER, Layer(attention=None, feed_forward=Mlp(ffn_hidden_size=96), num_norms=1), MAMBA_LAYER
)
SELECTIVE = a_stack(
    Layer(attention=SelectiveScan(channels=96, state_size=16, step_rank=8), feed_forward=None, num_norms=1)
)
CONVOLUTION = a_stack(
    Layer(attention=ShortConvolution(channels=96, conv_kernel=3), feed_forward=Mlp(ffn_hidden_size=96))
)
SNAPSHOTS = a_stack(replace(DENSE_LAYER, snapshots=2))
BIASED = a_stack(replace(DENSE_LAYER, attention=replace(ATTENTION, qkv_bias=True)))
WINDOWED = a_stack(replace(DENSE_LAYER, attention=replace(ATTENTION, window=128)))
LATENT_STACK = a_stack(replace(DENSE_LAYER, attention=LATENT))
BIASED_EXPERTS = a_stack(replace(EXPERT_LAYER, feed_forward=replace(EXPERT_LAYER.feed_forward, bias=True)))
TIED = a_stack(*[DENSE_LAYER] * 8, tied_embeddings=True)
