"""MoFa's Table 2 (arXiv 2511.09837) by hand, and what it leaves to the physics of the layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from costmodel.facts.framework import Kernels, MemoryModel
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    Indexer,
    Layer,
    LinearAttention,
    Mamba,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.lowering import (
    Shape,
    embedding_operators,
    head_operators,
    layer_communications,
    layer_operators,
    mtp_operators,
)
from costmodel.lowering.layer import find_repeated_shares, sum_dropped_bytes, sum_repeated
from costmodel.strategy import MODULES, CudaGraphs
from costmodel.timing.work import Operator
from tests.builders import a_latent_model, a_model, a_moe_model, a_shape
from tests.cases import in_one_case

LIGHTNING = LinearAttention(variant="lightning", num_key_heads=4, num_value_heads=4, key_head_dim=8, value_head_dim=8)
GATED_DELTA = LinearAttention(
    variant="gated_delta", num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=8, conv_kernel=4
)
KDA = replace(GATED_DELTA, variant="kda", num_key_heads=4, decay_rank=6, gate_rank=6)
EVERYTHING_ON = Attention(
    num_heads=4, num_kv_heads=2, head_dim=8, qkv_bias=True, output_bias=True, qk_norm="full", output_gate=True,
    sinks=True, window=4,
)  # fmt: skip
TWO_WIDTHS = Attention(num_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=6, head_gate=True)
SHARED = Experts(
    num_experts=4, top_k=2, ffn_hidden_size=24, shared_ffn_hidden_size=12, shared_gate=True, router_bias=True, bias=True
)
MAMBA = Mamba(num_heads=4, head_dim=8, state_size=6, num_groups=2, chunk_size=4)
SCAN = SelectiveScan(channels=64, state_size=6, step_rank=2, norms="weighted")
CONVOLUTION = ShortConvolution(channels=32, conv_kernel=3)
ON_A_LATENT = Experts(num_experts=4, top_k=2, ffn_hidden_size=24, shared_ffn_hidden_size=12, gated=False, latent_size=8)

LATENT = a_latent_model().layers[0]
INDEXER = Indexer(num_heads=2, head_dim=4, num_keys=3)

COMPRESSED = CompressedAttention(
    num_heads=4, head_dim=8, rotary_dim=4, q_lora_rank=12, num_groups=2, output_rank=6, window=4, ratio=2, num_series=2,
    indexer=replace(INDEXER, ratio=2),
)  # fmt: skip

DROPOUT = MemoryModel(attention_score_bytes=5, dropout_mask_bytes=1)

LAYERS = {
    "dense": a_model().layers[0],
    "experts": a_moe_model().layers[1],
    "latent": LATENT,
    "latent-direct-query": a_latent_model(q_lora_rank=None).layers[0],
    "indexed": replace(LATENT, attention=replace(LATENT.attention, indexer=INDEXER)),
    "compressed": Layer(attention=COMPRESSED, feed_forward=SHARED, streams=4),
    "lightning": Layer(attention=LIGHTNING, feed_forward=SHARED),
    "gated-delta": Layer(attention=GATED_DELTA, feed_forward=SHARED, norm="layer"),
    "kda": Layer(attention=KDA, feed_forward=replace(SHARED, latent_size=8, latent_norm=True)),
    "gated-latent": replace(LATENT, attention=replace(LATENT.attention, rotary=False, output_gate=True)),
    "everything": Layer(attention=EVERYTHING_ON, feed_forward=Mlp(ffn_hidden_size=48, gated=False), num_norms=4),
    "two-widths": Layer(attention=TWO_WIDTHS, feed_forward=replace(SHARED, router_scales=True)),
    "mamba": Layer(attention=MAMBA, feed_forward=None, num_norms=1),
    "latent-experts": Layer(attention=None, feed_forward=ON_A_LATENT, num_norms=1),
    "selective scan": Layer(attention=SCAN, feed_forward=None, num_norms=1),
    "convolution": Layer(attention=CONVOLUTION, feed_forward=None, num_norms=1),
    "beside": replace(a_model().layers[0], beside=replace(MAMBA, norm=False)),
    "mamba-and-mlp": Layer(attention=replace(MAMBA, bias=True), feed_forward=Mlp(ffn_hidden_size=48)),
}


def operator(layer: Layer, shape: Shape, name: str) -> Operator:
    """The one operator of a layer that has this name."""
    (found,) = (one for one in layer_operators(layer, shape) if one.name == name)
    return found


def test_recomputed_experts_are_all_between_router_and_sum():
    """Megatron-LM checkpoints the whole MoE layer; what it keeps is its input."""
    shape = a_shape()
    operators = layer_operators(LAYERS["latent-experts"], shape)
    kept = sum(operator.saved_bytes for operator in operators if operator.saved_as not in ("norm", "norm_output"))
    chosen = [MODULES.index(name) for name in ("experts", "shared_experts", "expert_activation")]
    forward = [operator.flops for operator in operators]

    dropped = sum_dropped_bytes(operators, shape)
    repeated = sum_repeated(operators, forward)

    assert sum(dropped[module] for module in chosen) == pytest.approx(kept)
    assert sum(repeated[module] for module in chosen) == pytest.approx(sum(forward))


def saved(layer: Layer, shape: Shape) -> dict[str, float]:
    """Saved bytes of a layer by module."""
    bytes_by_module: dict[str, float] = defaultdict(float)
    for one in layer_operators(layer, shape):
        bytes_by_module[one.saved_as] += float(one.saved_bytes)
    return {module: nbytes for module, nbytes in bytes_by_module.items() if nbytes}


def calls(layer: Layer, shape: Shape, group: str) -> dict[str, tuple[int, int, float]]:
    """Collectives that move something: kind to forward calls, backward calls and bytes of a call."""
    found: dict[str, tuple[int, int, float]] = {}
    for one in layer_communications(layer, shape):
        if one.group == group and one.nbytes:
            forward, backward, _ = found.get(one.kind, (0, 0, 0.0))
            found[one.kind] = (forward + one.forward, backward + one.backward, float(one.nbytes))
    return found


# --- Table 2: FLOPs --------------------------------------------------------------------------------------------


@in_one_case(
    ("name", "flops"),
    [
        ("qkv", 2 * 16 * 32 * (32 + 2 * 16) / 2),
        ("core_attention", 2 * (2 * 16 * 8 * 32) / 2),
        ("output_projection", 2 * 16 * 32 * 32 / 2),
        ("up", 2 * 16 * 32 * 2 * 48 / 2),
        ("down", 2 * 16 * 48 * 32 / 2),
    ],
)
def test_flops_of_a_dense_layer(name: str, flops: float):
    """N = 16 tokens, s = 8, h = 32, H_kv = 16, g = 48 on t = 2 ranks; the backward pass takes twice that."""
    found = operator(LAYERS["dense"], a_shape(tp=2, sequence_parallel=1), name)

    assert (found.flops, found.backward_flops) == (flops, 2 * flops)


def test_multi_head_attention_projects_three_hidden_sizes():
    """MHA: 6 N h^2 / t = 6 * 16 * 32 * 32 / 2."""
    layer = a_model(num_kv_heads=4).layers[0]

    assert operator(layer, a_shape(tp=2), "qkv").flops == 49152


def test_values_have_a_width_of_their_own():
    """
    On 2 ranks 2 heads: queries 2 x 8, keys 8, values 6, outputs 2 x 6; a gate of 2, whose 2 numbers scale 12 channels.

    Scores take 2 N s (8 + 6) per head; the ring passes 8 + 6; without projections of values 2 N h (16 + 8) are left.
    """
    layer, shape = LAYERS["two-widths"], a_shape(tp=2)

    assert operator(layer, shape, "qkv").flops == 2 * 16 * 32 * (16 + 8 + 6)
    assert operator(layer, shape, "core_attention").flops == 2 * 16 * 8 * 2 * (8 + 6)
    assert operator(layer, shape, "output_projection").flops == 2 * 16 * 32 * 12
    assert (operator(layer, shape, "head_gate").parameters, saved(layer, shape)["core_attention"]) == (64, 2 * 16 * 14)
    assert calls(layer, a_shape(tp=2, cp=2), "cp") == {"ring": (1, 2, 2 * 8 * (8 + 6))}
    keys = replace(layer, attention=replace(TWO_WIDTHS, v_head_dim=None, key_is_value=True))
    assert operator(keys, shape, "qkv").flops == 2 * 16 * 32 * (16 + 8)


def test_a_router_may_scale_its_input():
    """Gemma 4: 32 channels and 4 experts; the normed input of 16 tokens is kept."""
    found = operator(LAYERS["two-widths"], a_shape(), "router_norm")

    assert (found.parameters, found.saved_bytes) == (32 + 4, 2 * 16 * 32)


def test_a_decay_per_channel_has_a_low_rank():
    """
    4 heads of 8 on 2 ranks, 16 channels each: queries, keys and values 48, the step 2, decays and gate by way of 6.

    The first halves, 32 x 6, are whole on each rank; decays have a bias per channel and a number per head. Kept are
    queries, keys, values and decays (in 32 bits) before and after the convolution, and both latents of 6.
    """
    shape, layer = a_shape(tp=2), LAYERS["kda"]
    names = ("qkv", "decay", "decays_down", "decays_up", "gate_down", "gate_up", "convolution")
    weights = [operator(layer, shape, name).parameters for name in names]

    assert weights == [32 * 48, 32 * 2, 32 * 6, 6 * 16 + 16 + 2, 32 * 6, 6 * 16, 4 * 48]
    assert saved(layer, shape)["qkv"] == 2 * 2 * 16 * (48 + 2 * 16)
    assert saved(layer, shape)["latent"] == 2 * 2 * 16 * 6
    full = replace(layer, attention=replace(KDA, gate_rank=0))
    assert operator(full, shape, "qkv").parameters == 32 * 64


def test_a_gate_behind_latent_attention_and_a_norm_of_the_latent():
    """Kimi K3: 32 x 4 heads of 8; without rotation. The experts' results of 8 channels are normed."""
    names = {one.name for one in layer_operators(LAYERS["gated-latent"], a_shape())}

    assert operator(LAYERS["gated-latent"], a_shape(), "gate").parameters == 32 * 32
    assert "rotary" not in names
    assert saved(LAYERS["gated-latent"], a_shape())["core_attention"] == 2 * 2 * 16 * 32
    assert operator(LAYERS["kda"], a_shape(), "latent_norm").parameters == 8


def test_more_ranks_than_kv_heads_replicate_them():
    """One KV head of width 8 on each of 4 ranks beside one query head: 2 N h * 24."""
    layer = a_model(num_kv_heads=1).layers[0]

    assert operator(layer, a_shape(tp=4), "qkv").flops == 2 * 16 * 32 * 24
    assert operator(layer, a_shape(tp=4), "qkv").parameters == 32 * 24


def test_context_parallelism_splits_queries_and_keeps_all_keys():
    """N = b s / c = 8 tokens, each with 8 keys."""
    found = operator(LAYERS["dense"], a_shape(cp=2), "core_attention")

    assert found.flops == 2 * (2 * 8 * 8 * 32)


def test_causal_kernels_skip_half_and_recompute_scores_backward():
    """FlashAttention-2: half the scores; 5 matmuls backward against 2 forward."""
    full = operator(LAYERS["dense"], a_shape(), "core_attention")
    causal = operator(LAYERS["dense"], a_shape(causal=True), "core_attention")

    assert causal.flops == full.flops / 2
    assert causal.backward_flops == 2.5 * causal.flops


@pytest.mark.parametrize(("causal", "keys"), [(False, 4), (True, 4 - 16 / 16)])
def test_a_sliding_window_limits_the_keys(causal: bool, keys: float):
    """A window of 4 in a sequence of 8: 4 keys each, or the triangle cut off, w - w^2 / (2 s)."""
    layer = a_model(window=4).layers[0]

    assert operator(layer, a_shape(causal=causal), "core_attention").flops == 2 * 16 * keys * 32 * 2


def test_latent_attention_has_wider_keys_than_values():
    """Map 2 N s a (d_nope + d_rope), on-value 2 N s a d_v: 4 heads, 12 and 8 wide."""
    found = operator(LAYERS["latent"], a_shape(), "core_attention")

    assert found.flops == 2 * 16 * 8 * 4 * (12 + 8)


def test_parameters_of_deepseek_v3_latent_attention():
    """187.107e6 (equations.md, Table 2): 187,105,280 in projections and 1536 + 512 in norms of the latents."""
    model = a_latent_model(
        hidden_size=7168, num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, norm="none", ffn_hidden_size=1,
    )  # fmt: skip
    operators = layer_operators(model.layers[0], a_shape(hidden_size=7168))

    assert sum(float(one.parameters) for one in operators) - 3 * 7168 == 187_107_328


def test_router_and_experts():
    """Router 2 N h E; linears 2 N k h 2 g and 2 N k g h with N k = 32, h = 32, g = 24."""
    shape = a_shape()

    assert operator(LAYERS["experts"], shape, "router").flops == 2 * 16 * 32 * 4
    assert operator(LAYERS["experts"], shape, "expert_up").flops == 2 * 32 * 32 * 48
    assert operator(LAYERS["experts"], shape, "expert_down").flops == 2 * 32 * 24 * 32


@in_one_case(("tp", "ep", "etp"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 4, 2), (4, 2, 4), (1, 4, 2)])
def test_expert_work_is_conserved(tp: int, ep: int, etp: int):
    """All ranks together compute each (token, expert) pair once, however the experts are spread."""
    shape = a_shape(tp=tp, ep=ep, etp=etp, sequence_parallel=1)

    assert operator(LAYERS["experts"], shape, "expert_up").flops * tp == 2 * 32 * 32 * 48


def test_expert_parameters_split_over_ep_and_etp():
    """4 experts * 3 h g = 9216 over ep = 2 and etp = 2; tp does not split them."""
    shape = a_shape(tp=4, ep=2, etp=2)
    experts = [one for one in layer_operators(LAYERS["experts"], shape) if one.expert]

    assert sum(float(one.parameters) for one in experts) == 2304
    assert {float(one.groups) for one in experts} == {2}


GPT_OSS = Layer(
    attention=None, feed_forward=Experts(num_experts=4, top_k=2, ffn_hidden_size=24, bias=True), num_norms=1
)


def test_experts_of_gpt_oss_clamp_in_front_of_their_activation():
    """32 pairs of 2 * 24 elements of 2 bytes: 4 passes forward, 5.5 + 2 back; what is joined is kept."""
    clamps = operator(GPT_OSS, a_shape(), "expert_clamps")

    assert clamps.bytes == 4 * 2 * 32 * 48
    assert clamps.backward_bytes == (5.5 + 2) * 2 * 32 * 48
    assert (clamps.saved_bytes, clamps.saved_as) == (2 * 32 * 48, "expert_hidden")
    assert not [one for one in layer_operators(LAYERS["experts"], a_shape()) if one.name == "expert_clamps"]


@pytest.mark.parametrize("name", ["expert_clamps", "expert_activation"])
def test_fused_experts_have_nothing_between_their_matmuls(name):
    """One kernel multiplies, activates and adds: traffic and launches in between are gone in a whole graph alone."""
    shape = a_shape(cuda_graphs=np.array([CudaGraphs.NONE, CudaGraphs.FULL_ITERATION]), compute_dtype="mxfp8")
    told = (replace(shape, kernels=Kernels(fuses_experts_in_graphs=on)) for on in (False, True))
    apart, fused = (operator(GPT_OSS, one, name) for one in told)

    np.testing.assert_allclose(fused.bytes, apart.bytes * np.array([1, 0]))
    np.testing.assert_allclose(fused.backward_bytes, apart.backward_bytes * np.array([1, 0]))
    np.testing.assert_allclose(fused.kernels, apart.kernels * np.array([1, 0]))


def test_fused_experts_cast_what_goes_from_one_matmul_to_the_next_in_the_first_ones_kernel():
    """Casts of the second one's input and, backward, of the first one's gradient; not what comes from outside."""
    up, down = (operator(GPT_OSS, in_one_graph(), name) for name in ("expert_up", "expert_down"))

    assert (down.cast_bytes, up.backward_cast_bytes) == (0, 0)
    assert (up.cast_bytes, down.backward_cast_bytes) == (3 * 32 * 32, 3 * 32 * 32)
    assert (*up.group_kernels, *down.group_kernels) == (0, 0, 0, 0)


CASTING: dict[str, Any] = {"cast_bytes": 3.0, "grouped_casts": (4, 6), "compute_dtype": "mxfp8"}
"""A recipe that casts."""


def in_one_graph():
    """A micro-batch of a recipe and a framework that fuse experts."""
    return a_shape(**CASTING, cuda_graphs=CudaGraphs.FULL_ITERATION, fuses_experts_in_graphs=True)


def test_biases_of_results_stay_apart_from_fused_experts():
    """What the router's score weights is added behind the second matmul, whatever is fused."""
    assert operator(GPT_OSS, in_one_graph(), "expert_bias") == operator(GPT_OSS, a_shape(**CASTING), "expert_bias")


def test_experts_that_are_not_fused_are_cast_one_by_one():
    """Two casts and two operands' scales forward, four operands' backward, for each of 4 experts."""
    up = operator(GPT_OSS, a_shape(**CASTING), "expert_up")

    assert up.group_kernels == (4 * (2 + 2), 4 * (2 + 4))
    assert up.more_launches == pytest.approx(0.2 * 3 + 0.08 * 16)


def test_squares_of_relu_of_routed_experts_are_one_kernel_where_the_software_has_it():
    """A read and a write forward, two reads and a write backward of 32 pairs of 24; shared experts keep PyTorch's."""
    experts = Experts(
        num_experts=4, top_k=2, ffn_hidden_size=24, gated=False, squared_relu=True, shared_ffn_hidden_size=24
    )
    layer = Layer(attention=None, feed_forward=experts, num_norms=1)
    apart, fused = (a_shape(fused_squared_relu_experts=on) for on in (False, True))
    before, after = (operator(layer, shape, "expert_activation") for shape in (apart, fused))

    assert (before.bytes, before.backward_bytes, before.kind) == (4 * 2 * 32 * 24, 9 * 2 * 32 * 24, "elementwise")
    assert (after.bytes, after.backward_bytes, after.kind) == (2 * 2 * 32 * 24, 3 * 2 * 32 * 24, "copy")
    assert operator(layer, apart, "shared_activation") == operator(layer, fused, "shared_activation")


def test_only_grouped_matmuls_cast_group_by_group():
    """The casts of others are part of their gap."""
    shape = a_shape(**CASTING)
    grouped = [one.name for one in layer_operators(LAYERS["experts"], shape) if any(one.group_kernels)]

    assert grouped == ["expert_up", "expert_down"]


# --- layers of one block ------------------------------------------------------------------------------------------


def test_a_layer_of_one_block_has_one_residual():
    """A norm, what is in the block, one addition of 3 N h elements."""
    found = operator(LAYERS["mamba"], a_shape(), "residuals")

    assert (found.bytes, found.kernels) == (2 * 3 * 16 * 32, 1)
    assert [one.name for one in layer_operators(LAYERS["latent-experts"], a_shape())][:2] == ["norms", "router"]


def test_flops_of_a_mamba_layer():
    """Projection to 32 + 32 + 2 * 2 * 6 + 4 = 92; scan 2 H (2 N P + Q P) + 2 G Q N; backward 5, 3 and 3 of those."""
    projection = operator(LAYERS["mamba"], a_shape(tp=2), "in_projection")
    scan = operator(LAYERS["mamba"], a_shape(), "scan")

    assert projection.flops == 2 * 16 * 32 * 92 / 2
    assert scan.flops == 16 * (2 * 4 * (2 * 6 * 8 + 4 * 8) + 2 * 2 * 4 * 6)
    assert scan.backward_flops == 16 * (2 * 4 * (5 * 6 * 8 + 3 * 4 * 8) + 6 * 2 * 4 * 6)


def test_traffic_of_a_scan():
    """Per token 5 * 32, 4 * 12 and 2 * 48 (states) of 2 bytes, 2 * (48 + 8) (states, scores) of 4 bytes."""
    assert operator(LAYERS["mamba"], a_shape(), "scan").bytes == 16 * (2 * (160 + 48 + 96) + 4 * 2 * 56)


def test_parameters_of_a_mamba_layer():
    """32 * 92, 5 * (32 + 24), 3 per head, norms of 32 and 32, 32 * 32; two ranks share all but the layer's norm."""
    whole = [one.parameters for one in layer_operators(LAYERS["mamba"], a_shape())]
    halves = [one.parameters for one in layer_operators(LAYERS["mamba"], a_shape(tp=2))]

    assert sum(whole) == 2944 + 280 + 12 + 32 + 32 + 1024
    assert sum(halves) == (sum(whole) - 32) / 2 + 32


def test_saved_activations_of_a_mamba_layer():
    """Input and norm 32 wide; 92 from the projection, 32 before and 32 behind the gate; 32 into the output."""
    found = saved(LAYERS["mamba"], a_shape())

    assert found == {"norm": 1024, "attention_input": 1024, "mamba": 2 * 16 * (92 + 32 + 32), "output_projection": 1024}


def test_a_mamba_block_beside_attention():
    """Both read one gathered input, and their outputs are summed once; three additions of 3 N h, two norms."""
    alone, beside = LAYERS["dense"], LAYERS["beside"]
    split = a_shape(tp=2, sequence_parallel=1)
    names = [one.name for one in layer_operators(beside, a_shape())]

    assert (names.count("output_projection"), names.count("residuals"), names.count("norms")) == (2, 3, 2)
    assert "scan" in names
    assert "scan_norm" not in names
    gathers = [one.forward for one in layer_communications(beside, split) if one.kind == "all_gather"]
    assert sum(gathers) == sum(one.forward for one in layer_communications(alone, split) if one.kind == "all_gather")


def test_a_short_convolution():
    """Projections 32 x 96 and 32 x 32 with 3 taps of 32; 8 and 13 passes; B, C, x, the product and its convolution."""
    layer, shape = LAYERS["convolution"], a_shape()
    found = operator(layer, shape, "convolution")

    assert sum(one.parameters for one in layer_operators(layer, shape)) == 32 * 96 + 3 * 32 + 32 * 32 + 32
    assert (found.flops, found.bytes, found.backward_bytes) == (2 * 3 * 16 * 32, 2 * 8 * 16 * 32, 2 * 13 * 16 * 32)
    assert saved(layer, shape)["mamba"] == 2 * 5 * 16 * 32
    # 2 tokens before each of 2 pieces of 2 sequences, 32 / 2 channels of 2 bytes
    assert calls(layer, a_shape(tp=2, cp=2), "cp") == {"send": (1, 1, 2 * 2 * 2 * 2 * 16)}
    assert calls(layer, a_shape(cp=1), "cp") == {}


def test_mamba_of_the_first_generation():
    """32 x 128, 5 taps of 64, 64 x 14, norms of 14, 2 x 64 and a bias, 6 + 1 per channel, 64 x 32, a norm of 32."""
    layer, shape = LAYERS["selective scan"], a_shape()
    scan = operator(layer, shape, "scan")

    assert sum(one.parameters for one in layer_operators(layer, shape)) == (
        32 * 128 + 5 * 64 + 64 * 14 + 14 + 2 * 64 + 64 + 7 * 64 + 64 * 32 + 32
    )
    # the states' product with C; four passes: 6 exponentials take less
    assert (scan.flops, scan.bytes) == (2 * 16 * 64 * 6, 2 * 4 * 16 * 64)
    assert saved(layer, shape)["mamba"] == 2 * 16 * (64 + 14 + 3 * 64)
    # steps, B and C: 2 + 2 * 6 elements per token, beside the block's own sum of 32
    sums = [one.nbytes for one in layer_communications(layer, a_shape(tp=2)) if one.kind == "all_reduce"]
    assert sums == [2 * 16 * 32, 2 * 16 * 14]


def test_mamba_exchanges_tokens_for_heads():
    """92 elements of 8 tokens go to the other context-parallel ranks' heads, 32 come back."""
    assert calls(LAYERS["mamba"], a_shape(cp=2), "cp") == {"all_to_all": (1, 1, 2 * 8 * (92 + 32))}
    assert calls(LAYERS["mamba"], a_shape(tp=2), "tp") == {"all_reduce": (1, 1, 1024)}


def test_experts_on_a_latent():
    """Projections 2 * 32 * 8; experts 4 * 2 * 8 * 24; router, shared expert and norm as without; 8 wide messages."""
    operators = layer_operators(LAYERS["latent-experts"], a_shape())

    assert sum(one.parameters for one in operators) == 512 + 1536 + 32 * 4 + 2 * 32 * 12 + 32
    assert calls(LAYERS["latent-experts"], a_shape(ep=2), "ep") == {"all_to_all": (2, 2, 2 * 16 * 2 * 8)}


# --- Table 2: saved activations -----------------------------------------------------------------------------------


def test_saved_activations_of_a_dense_layer():
    """D N h / t = 512; Q, K, V 512 + 512; O 512; 2 D N g / t = 1536; D N g / t = 768."""
    found = saved(LAYERS["dense"], a_shape(tp=2, sequence_parallel=1))

    assert found == {
        "norm": 2 * 512,
        "attention_input": 512,
        "qkv": 512 + 512,
        "output_projection": 512,
        "mlp": 512 + 768,
        "activation": 1536,
    }


def test_without_sequence_parallelism_the_inputs_are_whole():
    """Norms and inputs of the column-split linears: D N h = 1024 each."""
    found = saved(LAYERS["dense"], a_shape(tp=2, sequence_parallel=0))

    assert (found["norm"], found["attention_input"], found["mlp"]) == (2 * 1024, 1024, 1024 + 768)


def test_gelu_layer_keeps_34_minus_2_sbh():
    """Korthikanti et al. (arXiv 2205.05198), section 4.1: 34 s b h without scores; 2 of them are dropout masks."""
    layer = a_model(num_kv_heads=4, ffn_hidden_size=128, gated=False).layers[0]

    assert sum(saved(layer, a_shape()).values()) == 32 * 16 * 32


def test_saved_activations_of_an_expert_layer():
    """N' = N k = 32: inputs D N' h = 2048, outputs to be weighted 2048, inside 2 D N' g = 3072 and 1536."""
    found = saved(LAYERS["experts"], a_shape())

    assert (found["norm_output"], found["router"]) == (2 * 16 * 32, 2 * 16 * 4)
    assert found["experts"] == 2048 + 2048
    assert (found["expert_activation"], found["expert_hidden"]) == (3072, 1536)


def test_weighted_activations_keep_no_outputs_of_experts():
    """Since Megatron-Core 0.12 the router's scores weight the inner activation, whose input is kept anyway."""
    found = saved(LAYERS["experts"], a_shape(memory=MemoryModel(expert_output=False)))

    assert found["experts"] == 2048


def test_several_kernels_keep_what_they_hand_on():
    """
    Scores, dropout's masks, and eager norms and activations.

    Korthikanti et al., equation (1): 5 a s^2 b of scores and 2 s b h of masks; an fp32 copy of a norm's input and the
    normalised input are 6 bytes per element instead of 2; SwiGLU keeps the gate's activation too.
    """
    one_kernel = saved(LAYERS["dense"], a_shape())
    several = saved(LAYERS["dense"], a_shape(fused_attention=False, memory=replace(DROPOUT, unfused_kernels=True)))

    assert several["core_attention"] == 5 * 4 * 8**2 * 2
    assert several["dropout"] == 2 * 16 * 32
    assert several["eager_norm"] == 3 * one_kernel["norm"]
    assert several["eager_activation"] == 1.5 * one_kernel["activation"]


def elements_kept(layer: Layer, shape: Shape) -> float:
    """Elements per token that recomputation by operators keeps of a layer, with 2 bytes each."""
    operators = layer_operators(layer, shape)
    dropped = sum_dropped_bytes(operators, shape)[MODULES.index("every_other_matmul")]
    return float(sum(one.saved_bytes for one in operators) - dropped) / shape.tokens / 2


APART = Kernels(fused_projections=False)
"""A framework whose projections are linears of their own."""


@pytest.mark.parametrize(("eager", "kept"), [(False, 160), (True, 192)])
def test_recomputing_every_other_matmul_keeps_results(eager: bool, kept: int):
    """Input 32, Q 32, V 16, attention 32, gate 48; eager also the last matmul's 32, which no backward pass reads."""
    shape = a_shape(kernels=APART, memory=MemoryModel(unfused_kernels=eager))

    assert elements_kept(LAYERS["dense"], shape) == kept


@pytest.mark.parametrize(("ep", "kept"), [(1, 144), (2, 272)])
def test_recomputing_every_other_matmul_keeps_tokens_that_were_sent(ep: int, kept: int):
    """
    Input 32, Q 32, V 16, attention 32; router and experts are repeated, the shared gate and down-projection count.

    Its gate is 32 wide; nothing reads its down-projection. Both all-to-alls have 2 * 32 elements for 2 experts a token.
    """
    layer = replace(LAYERS["experts"], feed_forward=replace(LAYERS["experts"].feed_forward, shared_ffn_hidden_size=32))

    assert elements_kept(layer, a_shape(kernels=APART, ep=ep)) == kept


def test_recomputing_every_other_matmul_repeats_experts():
    """K, output, up-projection, router and grouped matmuls run again, but none whose result is kept."""
    operators = layer_operators(LAYERS["experts"], a_shape(kernels=APART))
    shares = dict(
        zip((one.name for one in operators), find_repeated_shares(operators, "every_other_matmul"), strict=True)
    )

    assert {name for name, share in shares.items() if share == 0} == {
        "query_projection",
        "value_projection",
        "core_attention",
    }
    assert shares["expert_up"] == shares["router"] == shares["key_projection"] == 1


def test_all_to_all_context_parallelism_keeps_the_output_twice():
    """Transformer Engine saves it by heads, the projection behind it by tokens; one rank exchanges nothing."""
    shapes = {cp: a_shape(cp=cp, memory=MemoryModel(context_output=True)) for cp in (1, 2)}

    found = {cp: saved(LAYERS["dense"], shape) for cp, shape in shapes.items()}

    assert found[2]["core_attention"] == found[2]["output_projection"]
    assert "core_attention" not in found[1]


def test_a_gathered_input_may_be_kept():
    """Of two ranks with sequence parallelism each keeps half of 16 tokens, 32 wide, in 2 bytes, or all of them."""
    layer, sizes = LAYERS["dense"], {"tp": 2, "sequence_parallel": 1}

    own, whole = (saved(layer, a_shape(**sizes, memory=MemoryModel(gathered_inputs=kept))) for kept in (False, True))

    assert (own["attention_input"], whole["attention_input"]) == (2 * 8 * 32, 2 * 16 * 32)
    assert whole["mlp"] - own["mlp"] == 2 * 8 * 32
    assert whole["activation"] == own["activation"]


def test_8_bit_recipes_keep_their_copy_of_the_attention_output():
    """The core keeps it in 16 bits, the projection in 8: 2 + 1 bytes; the feed-forward's input only in 8."""
    wide, narrow = saved(LAYERS["dense"], a_shape()), saved(LAYERS["dense"], a_shape(linear_input_bytes=1.0))

    assert narrow["output_projection"] == 1.5 * wide["output_projection"]
    assert narrow["mlp"] == wide["mlp"] / 2


def test_shared_experts_add_their_width_for_all_tokens():
    """2 D N g + D N g with g = 12; their input is the router's."""
    layer = Layer(attention=a_model().layers[0].attention, feed_forward=replace(SHARED, shared_gate=False))

    assert saved(layer, a_shape())["shared_activation"] == 2 * 2 * 16 * 12
    assert saved(layer, a_shape())["shared_mlp"] == 2 * 16 * 12


def test_latent_attention_keeps_latents_and_unfolded_heads():
    """Q and K 12 wide, V 8, in 4 heads; latents 12 and 10 before and after their norm, and the input."""
    found = saved(LAYERS["latent"], a_shape())

    assert found["qkv"] == 2 * 16 * 4 * (12 + 12 + 8)
    assert (found["norm_output"], found["latent"]) == (2 * 16 * 32, 2 * 16 * (12 + 10))
    assert found["norm"] == 2 * 16 * (2 * 32 + 12 + 10)


# --- memory traffic -----------------------------------------------------------------------------------------------


def test_kernels_that_nothing_fuses_make_more_passes():
    """Squared ReLU: 4 and 9 instead of GELU's 2 and 3. Kernel by kernel a norm makes 18 and 25, SwiGLU 5 and 9."""
    relu = Layer(attention=None, feed_forward=Mlp(ffn_hidden_size=48, gated=False, squared_relu=True))
    gelu = Layer(attention=None, feed_forward=Mlp(ffn_hidden_size=48, gated=False))
    eager = a_shape(fused_kernels=False)
    elements = 2 * 16 * 48

    squared, smooth = (operator(layer, a_shape(), "activation") for layer in (relu, gelu))
    norms, _ = (one for one in layer_operators(LAYERS["dense"], eager) if one.name == "norms")
    gated = operator(LAYERS["dense"], eager, "activation")

    assert (squared.kind, squared.bytes, squared.backward_bytes) == ("elementwise", 4 * elements, 9 * elements)
    assert (smooth.kind, smooth.bytes, smooth.backward_bytes) == ("copy", 2 * elements, 3 * elements)
    assert (norms.bytes, norms.backward_bytes) == (18 * 2 * (16 * 32), 25 * 2 * (16 * 32))
    assert (gated.bytes, gated.backward_bytes) == (5 * elements, 9 * elements)


def test_norms_may_be_fused_where_gates_are_not():
    """Norms make 2 and 3 passes and keep their input alone; SwiGLU keeps the gate's activation."""
    eager = a_shape(fused_kernels=False, fused_norms=True, memory=MemoryModel(unfused_kernels=True))
    elements = 2 * 16 * 32

    norms, _ = (one for one in layer_operators(LAYERS["dense"], eager) if one.name == "norms")

    assert (norms.kernels, norms.bytes, norms.backward_bytes) == (1, 2 * elements, 3 * elements)
    assert (norms.saved_as, norms.saved_bytes) == ("norm", elements)
    assert operator(LAYERS["dense"], eager, "activation").saved_as == "eager_activation"


def test_heads_may_be_copied_in_front_of_attention():
    """32 elements of queries once, 16 each of keys and values three times, read and written; six more launches."""
    copied = operator(LAYERS["dense"], a_shape(permuted_heads=True), "permuted_heads")

    assert copied.bytes == copied.backward_bytes == 2 * 2 * 16 * (32 + 3 * (16 + 16))
    assert (copied.kernels, copied.more_launches) == (3, 6)


def test_the_loss_moves_what_its_software_does():
    """8,000 logits of a rank, 6 and 4 bytes each."""
    *_, loss = head_operators(
        a_model(), a_shape(tp=2, sequence_parallel=1, loss_forward_bytes=6.0, loss_backward_bytes=4.0)
    )

    assert (loss.bytes, loss.backward_bytes) == (16 * 500 * 6, 16 * 500 * 4)


def test_traffic_of_matmuls_and_element_wise_passes():
    """Down: D (m k + k n + m n); a norm reads and writes N h elements; SwiGLU reads two halves and writes one."""
    shape = a_shape()

    assert operator(LAYERS["dense"], shape, "down").bytes == 2 * (16 * 48 + 48 * 32 + 16 * 32)
    assert [one.bytes for one in layer_operators(LAYERS["dense"], shape) if one.name == "norms"] == [
        2 * 2 * 16 * 32
    ] * 2
    assert operator(LAYERS["dense"], shape, "activation").bytes == 2 * 3 * 16 * 48


def test_matmuls_write_their_results_and_add_to_gradients():
    """Down, 16 tokens, 48 to 32: 16-bit results; backward the input's gradient, and 8 bytes per weight."""
    found = operator(LAYERS["dense"], a_shape(gradient_traffic_bytes=8.0), "down")

    assert (found.written_bytes, found.backward_written_bytes) == (2 * 16 * 32, 2 * 16 * 48 + 8 * 48 * 32)


def test_separate_projections_do_the_same_work_and_sum_their_gradients():
    """Q, K, V and gate, up: 2 + 1 tensors read in their places on one rank; on two ranks written in order besides."""
    fused = a_shape(sequence_parallel=1)
    others = [a_shape(tp=tp, sequence_parallel=1, fused_projections=False) for tp in (1, 2)]
    layer = LAYERS["dense"]

    def total(shape: Shape, name: str) -> float:
        return sum(float(getattr(one, name)) for one in layer_operators(layer, shape))

    for name in ("flops", "backward_flops", "parameters", "saved_bytes"):
        assert total(others[0], name) == total(fused, name)
    for shape, passes in zip(others, (2 + 1, 4 + 3), strict=True):
        summed = [one for one in layer_operators(layer, shape) if one.name.endswith("_gradients")]
        assert sum(float(one.backward_bytes) for one in summed) == passes * 2 * 16 * 32


@pytest.mark.parametrize(("tp", "per_element"), [(1, 4), (4, 3 / 4 + 2)])
def test_ranks_cast_shards_before_they_gather_them(tp: int, per_element: float):
    """torchao: a cast of 4 bytes per element, or a quarter with 3 and a transposed copy; Q, K, V share theirs."""
    shape = a_shape(tp=tp, sequence_parallel=1, cast_bytes=4, quantizes_before_gather=True, fused_projections=False)
    cast = {one.name: one for one in layer_operators(LAYERS["dense"], shape) if one.kind == "matmul"}

    inputs = {name: float(one.cast_bytes) for name, one in cast.items() if one.cast_bytes}
    assert set(inputs) == {"key_projection", "output_projection", "up_projection", "down"}
    assert inputs["key_projection"] == inputs["up_projection"] == per_element * 16 * 32
    assert inputs["output_projection"] == 4 * 16 * 32 / tp
    assert cast["output_projection"].backward_cast_bytes == per_element * 16 * 32


# --- communication -------------------------------------------------------------------------------------------------


def test_tensor_parallel_collectives_with_sequence_parallelism():
    """2 all-gathers and 2 reduce-scatters per pass of Q = b s h D / c bytes."""
    found = calls(LAYERS["dense"], a_shape(tp=2, sequence_parallel=1), "tp")

    assert found == {"all_gather": (2, 2, 1024), "reduce_scatter": (2, 2, 1024)}


def test_8_bit_recipes_gather_narrow_tensors_and_sum_wide_ones():
    """A byte per element of inputs, 1.5 of gradients; latents, which a norm in 16 bits follows, have two."""
    shape = a_shape(tp=2, sequence_parallel=1, gathered_bytes=(1.0, 1.5))

    def moved(layer: Layer) -> list[tuple[str, float, int, int]]:
        found = [one for one in layer_communications(layer, shape) if one.group == "tp" and one.nbytes]
        return [(one.kind, one.nbytes, one.forward, one.backward) for one in found[:3]]

    gradients = ("all_gather", 768, 0, 1)

    assert moved(LAYERS["dense"]) == [("all_gather", 512, 1, 0), gradients, ("reduce_scatter", 1024, 1, 1)]
    assert moved(LAYERS["latent"]) == [("all_gather", 2 * 16 * 26, 1, 0), gradients, ("reduce_scatter", 1024, 1, 0)]


def test_tensor_parallel_collectives_without_sequence_parallelism():
    """2 all-reduces per pass."""
    found = calls(LAYERS["dense"], a_shape(tp=2, sequence_parallel=0), "tp")

    assert found == {"all_reduce": (2, 2, 1024)}


def test_parallel_blocks_are_summed_once():
    """GPT-NeoX: one all-reduce in the forward pass, two of the blocks' input gradients in the backward pass."""
    found = calls(replace(LAYERS["dense"], parallel_blocks=True), a_shape(tp=2, sequence_parallel=0), "tp")

    assert found == {"all_reduce": (1, 2, 1024)}


def test_expert_parallel_collectives():
    """Dispatch and combine per pass of b s k h D / (t c) bytes; attention alone needs tensor-parallel collectives."""
    shape = a_shape(tp=2, ep=2, sequence_parallel=1)

    assert calls(LAYERS["experts"], shape, "ep") == {"all_to_all": (2, 2, 2 * 16 * 2 * 32 / 2)}
    assert calls(LAYERS["experts"], shape, "tp") == {"all_gather": (1, 1, 1024), "reduce_scatter": (1, 1, 1024)}


def test_latent_attention_gathers_latents():
    """12 + 10 + 4 elements per token go in, 32 come out."""
    shape = a_shape(tp=2, sequence_parallel=1)
    gathered = [one for one in layer_communications(LAYERS["latent"], shape)[:6] if one.kind == "all_gather"]

    assert [(one.nbytes, one.forward, one.backward) for one in gathered] == [(2 * 16 * 26, 1, 0), (2 * 16 * 32, 0, 1)]


def test_ring_sends_keys_and_values_past_all_other_ranks():
    """N = 4 tokens of 2 KV heads * 8 * 2 elements in 3 steps."""
    assert calls(LAYERS["dense"], a_shape(cp=4), "cp") == {"ring": (1, 2, 2 * 4 * 32 * 3)}
    assert calls(LAYERS["dense"], a_shape(cp=1), "cp") == {}


# --- embedding, head, multi-token prediction -------------------------------------------------------------------------


def test_head_is_split_by_vocabulary_and_keeps_fp32_logits():
    """2 N h V / t FLOPs; D N h / t input; 4 N V / t bytes of logits (Korthikanti et al., section 4.3)."""
    norm, head, loss = head_operators(a_model(), a_shape(tp=2, sequence_parallel=1))

    assert (head.flops, head.parameters) == (2 * 16 * 32 * 500, 32 * 500)
    assert (norm.saved_bytes, head.saved_bytes, loss.saved_bytes) == (512, 512, 4 * 16 * 500)


@in_one_case(("vocab_size", "pads", "tp", "share"), [
    (50257, False, 1, 78 / 250), (50257, True, 1, 1), (50257, False, 2, 1), (50264, False, 1, 1),
])  # fmt: skip
def test_logits_of_a_vocabulary_that_nobody_pads_are_slow(vocab_size, pads, tp, share):
    """Tensor Cores want multiples of 8; several ranks share a vocabulary that was padded for them."""
    model = replace(a_model(), vocab_size=vocab_size)
    _, head, _ = head_operators(model, a_shape(tp=tp, pads_vocabulary=pads))

    assert head.flops_fraction == share


def test_tied_head_owns_no_weight():
    """The embedding's weight counts once."""
    model = a_model(tied_embeddings=True)
    (embedding,) = embedding_operators(model, a_shape(tp=2))

    assert embedding.parameters == 500 * 32
    assert [one.parameters for one in head_operators(model, a_shape(tp=2))] == [32, 0, 0]


def test_multi_token_prediction_is_a_layer_with_its_own_ends():
    """A dense layer (2*32 + 32*64 + 32*32 + 3*32*48 = 7744), 2 h h = 2048, three norms; embedding and head shared."""
    operators = mtp_operators(a_model(mtp_layers=1), a_shape())

    assert sum(float(one.parameters) for one in operators) == 7744 + 2048 + 3 * 32
    assert [one.name for one in operators].count("head") == 1


# --- scalars and arrays -------------------------------------------------------------------------------------------

DECISIONS = [
    {"mbs": 1, "tp": 1, "cp": 1, "ep": 1, "etp": 1, "sequence_parallel": 0},
    {"mbs": 2, "tp": 2, "cp": 1, "ep": 2, "etp": 1, "sequence_parallel": 1},
    {"mbs": 1, "tp": 4, "cp": 2, "ep": 4, "etp": 2, "sequence_parallel": 1},
    {"mbs": 4, "tp": 4, "cp": 4, "ep": 1, "etp": 4, "sequence_parallel": 0},
]


def numbers(layer: Layer, model: Model, shape: Shape) -> list[list[object]]:
    """Every number of everything that a shape decides, in order."""
    records = [
        *layer_operators(layer, shape),
        *layer_communications(layer, shape),
        *embedding_operators(model, shape),
        *head_operators(model, shape),
        *mtp_operators(model, shape),
    ]
    return [[*leaves_of(record)] for record in records]


def leaves_of(record: object) -> Iterator[object]:
    """The entries of a record, those of records, mappings and tuples inside it one by one."""
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            yield from leaves_of(value)
        elif isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, tuple):
            yield from value
        else:
            yield value


@pytest.mark.slow
@in_one_case("kind", LAYERS)
def test_arrays_give_what_scalars_give(kind: str):
    """A table's row is the estimate of its strategy."""
    arrays = {name: np.array([row[name] for row in DECISIONS]) for name in DECISIONS[0]}
    model = a_moe_model(mtp_layers=1)
    table = numbers(LAYERS[kind], model, a_shape(**arrays))

    for index, decisions in enumerate(DECISIONS):
        picked = [[np.ravel(v)[index] if isinstance(v, np.ndarray) and v.ndim else v for v in row] for row in table]
        assert picked == numbers(LAYERS[kind], model, a_shape(**decisions)), index


@in_one_case("kind", LAYERS)
def test_modules_of_saved_bytes_are_known(kind: str):
    """Selective recomputation drops saved bytes by these names."""
    modules = {one.saved_as for one in layer_operators(LAYERS[kind], a_shape()) if one.saved_bytes}

    assert modules <= {
        "norm", "qkv", "core_attention", "attention_input", "output_projection", "router", "mlp", "activation",
        "experts", "expert_activation", "expert_hidden", "shared_mlp", "shared_activation", "norm_output", "latent",
        "embedding", "head", "mamba", "index", "streams",
    }  # fmt: skip


# --- attention that is not fused -------------------------------------------------------------------------------


def test_unfused_scores_pass_through_memory_and_are_kept():
    """4 heads x 16 tokens x 8 keys = 512 scores; 4 + 5 bytes forward, 6 + 5 backward, 5 kept (Korthikanti et al.)."""
    softmax = operator(LAYERS["dense"], a_shape(fused_attention=False, memory=DROPOUT), "softmax")

    assert (softmax.bytes, softmax.backward_bytes, softmax.saved_bytes) == (512 * 9, 512 * 11, 512 * 5)


def test_megatrons_softmax_kernel_wants_a_multiple_of_four_heads_and_sequences():
    """One head per rank and two sequences: PyTorch's kernels in fp32, 37 + 5 bytes forward, 41 + 5 backward."""
    softmax = operator(LAYERS["dense"], a_shape(fused_attention=False, memory=DROPOUT, tp=4), "softmax")

    assert (softmax.bytes, softmax.backward_bytes) == (128 * 42, 128 * 46)


def test_unfused_attention_multiplies_what_the_mask_hides():
    """All 8 keys of each query: 2 matmuls of 16 x 8 x 32 forward, twice that backward."""
    core = operator(LAYERS["dense"], a_shape(fused_attention=False), "core_attention")

    assert core.kind == "batched_matmul"
    assert (core.flops, core.backward_flops) == (2 * 2 * 16 * 8 * 32, 4 * 2 * 16 * 8 * 32)


@in_one_case(("head_dim", "fraction"), [(64, 1 / 2), (128, 2 / 3), (8, 1 / 9), (12, 0.0625 * 12 / 76)])
def test_rate_of_batched_matmuls_by_the_width_of_a_head(head_dim, fraction):
    """Half at 64; Tensor Cores want a multiple of eight: FP32, 19.5 of 312 TFLOP/s without them (A100 datasheet)."""
    layer = replace(LAYERS["dense"], attention=Attention(num_heads=4, num_kv_heads=4, head_dim=head_dim))

    assert operator(layer, a_shape(fused_attention=False), "core_attention").flops_fraction == pytest.approx(fraction)


def test_a_loss_in_chunks_keeps_the_logits_of_one():
    """16 tokens of 64 logits with 4 bytes each, or a quarter of them beside 4 bytes for each of 32 hidden elements."""
    model = a_model()
    (whole, parts) = (
        head_operators(model, a_shape(memory=MemoryModel(loss_chunks=chunks)))[-1].saved_bytes for chunks in (1, 4)
    )

    assert whole == 16 * model.vocab_size * 4
    assert parts == whole / 4 + 4 * 16 * 32
