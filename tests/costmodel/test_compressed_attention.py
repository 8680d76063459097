"""DeepSeek-V4: attention to a window and compressed entries, and hyper-connections of four residual streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.errors import SpecError
from costmodel.facts.model import Indexer, Layer, Mlp
from costmodel.lowering import head_operators
from costmodel.models.flops import forward_attention_flops, layer_parameters
from costmodel.step.rank_time import micro_batch_bytes
from tests.builders import a_model, a_shape
from tests.builders_cluster import a_workload
from tests.cases import in_one_case
from tests.costmodel.test_layers import COMPRESSED, LAYERS, calls, operator, saved
from tests.costmodel.test_sparse_attention import of_family

WINDOW = Layer(attention=replace(COMPRESSED, ratio=0, num_series=1, indexer=None), feed_forward=None, num_norms=1)


def test_queries_read_a_window_and_chosen_entries():
    """
    16 tokens of 8: a window of 4 is 4 - 16 / 16 = 3 keys on average. Of 4 entries at most 3 are 3 - 9 / 8 = 1.875.

    The indexer scores 4 / 2 = 2 entries on average. On 2 ranks 2 heads of 8 take 2 N k (8 + 8) each.
    """
    shape = a_shape(causal=True, tp=2)
    core, scores = (operator(LAYERS["compressed"], shape, name) for name in ("core_attention", "index_scores"))

    assert core.flops == 2 * 16 * (3 + 1.875) * 2 * 16
    assert scores.flops == 16 * 2 * 2 * 2 * (4 + 1)
    assert core.parameters == 2  # a sink per head
    assert operator(WINDOW, shape, "core_attention").flops == 2 * 16 * 3 * 2 * 16


def test_groups_and_heads_are_split_and_the_rest_is_whole():
    """
    h = 32, a rank of 12, one key of 8, 4 heads of 8 in 2 groups of rank 6; on 2 ranks 2 heads and a group.

    The compressor has 2 x 16 outputs, and 2 x 16 biases of positions with a norm of 8; its index keys 4 x 4 outputs.
    """
    shape = a_shape(tp=2)
    expected = {
        "kv_down": 32 * (12 + 8) + 12 + 8,
        "q_up": 12 * 16,
        "output_groups": 16 * 6,
        "output_projection": 6 * 32,
        "compressor": 32 * 32,
        "compression": 2 * 16 + 8,
        "index_query": 12 * 8,
        "index_key": 32 * 16,
        "index_weights": 32 * 2,
        "index_norm": 4 + 2 * 2 * 4,
    }

    assert {name: operator(LAYERS["compressed"], shape, name).parameters for name in expected} == expected
    assert operator(LAYERS["compressed"], shape, "output_groups").flops == 2 * 16 * 16 * 6


def test_context_parallel_ranks_pass_entries_and_a_window():
    """An entry of 8 and an index key of 4 for every 2 tokens to the other rank, and 2 sequences' windows of 4 x 8."""
    assert calls(LAYERS["compressed"], a_shape(cp=2), "cp") == {"ring": (1, 2, 2 * (8 * 12 / 2 + 2 * 4 * 8))}
    assert calls(WINDOW, a_shape(cp=4), "cp") == {"ring": (1, 2, 2 * 2 * 4 * 8)}


def test_heads_and_outputs_are_kept():
    """16 tokens: 4 heads of 8 before and after their norm, the key twice; outputs of heads and both ranks of 6."""
    found = saved(LAYERS["compressed"], a_shape())

    assert found["qkv"] == 2 * 16 * (32 + 32 + 2 * 8)
    assert found["output_projection"] == 2 * 16 * (32 + 12)
    assert found["latent"] == 2 * 16 * (12 + 2 * 16)


def test_hyper_connections_keep_and_move_all_streams():
    """
    4 streams of 32 channels: a projection of 128 to 24 with 24 biases and 3 scales; 2 + 3 x 4 passes, 3 + 5 x 4 back.

    Kept are the streams and the block's output; the head sums the streams by a projection of 128 to 4.
    """
    layer = replace(WINDOW, streams=4)
    weights, mixed = (operator(layer, a_shape(), name) for name in ("stream_weights", "residuals"))
    model = a_model()
    several = replace(model, layers=(replace(model.layers[0], streams=4),))
    head = {one.name: one for one in head_operators(several, a_shape())}

    assert (weights.parameters, weights.flops) == (128 * 24 + 24 + 3, 2 * 16 * 128 * 24)
    assert (mixed.bytes, mixed.backward_bytes) == (2 * 16 * 32 * 14, 2 * 16 * 32 * 23)
    assert saved(layer, a_shape())["streams"] == 2 * 16 * 32 * 5
    assert head["stream_weights"].parameters == 128 * 4 + 4 + 1
    assert "stream_weights" not in {one.name for one in head_operators(model, a_shape())}


@pytest.mark.parametrize("changes", [{"streams": 4}, {"snapshots": 3}])
def test_pipeline_ranks_send_all_streams_and_snapshots(changes: dict[str, int]):
    """Four times the bytes of one stream."""
    model, sizes = a_model(), {"tp": 1, "cp": 1, "mbs": 1, "sequence_parallel": 0}
    several = replace(model, layers=(replace(model.layers[0], **changes),))

    assert micro_batch_bytes(several, a_workload(), **sizes) == 4 * micro_batch_bytes(model, a_workload(), **sizes)


def test_snapshots_are_weighted_in_front_of_each_block():
    """Kimi K3: 3 snapshots and the latest sum are read and a sum written; back 3 x 4 + 1; a norm and a vector of 32."""
    layer = replace(WINDOW, snapshots=3)
    summed = operator(layer, a_shape(), "snapshots")

    assert (summed.bytes, summed.backward_bytes, summed.parameters) == (2 * 16 * 32 * 5, 2 * 16 * 32 * 13, 2 * 32)
    assert saved(layer, a_shape())["streams"] == 2 * 16 * 32


def test_layers_of_deepseek_v4_flash():
    """2 window layers, 21 CSA and 20 HCA; experts of the first three by a table; MTP reads a window only."""
    model = of_family("deepseek-v4-flash")
    ratios = [layer.attention.ratio for layer in model.layers]

    assert (ratios[:4], ratios.count(4), ratios.count(128)) == ([0, 0, 4, 128], 21, 20)
    assert model.extras == "experts of 3 layers chosen by a table"
    assert model.layers[2].attention.indexer == Indexer(num_heads=64, head_dim=128, num_keys=512, ratio=4)
    assert (model.mtp_layers[0].attention.ratio, model.streams) == (0, 4)
    assert layer_parameters(model, model.layers[0]) == 6_576_416_374
    words = ["sliding_attention", "compressed_sparse_attention"]
    named = of_family("deepseek-v4-flash", num_hidden_layers=2, compress_ratios=None, layer_types=words)
    assert [layer.attention.ratio for layer in named.layers] == [0, 4]


def test_a_compression_that_is_not_listed_is_that_of_its_class():
    """Two layers of HCA, then HCA and CSA in turn; ``compress_rates`` says their tokens; 64 of 512 rotate."""
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    gone = {"compress_ratios": None, "qk_rope_head_dim": None}
    attention = [layer.attention for layer in of_family("deepseek-v4-flash", **gone, compress_rates=rates).layers[:6]]

    assert [one.ratio for one in attention] == [64, 64, 64, 8, 64, 8]
    assert {one.rotary_dim for one in attention} == {64}


def test_scores_of_a_million_tokens_grow_slower_than_their_square():
    """
    HCA reads s / 256 entries on average, CSA scores s / 8 of them by 64 heads of 128: at 2^20 tokens.

    Per token, all but windows: 20 layers of 4,096 entries, 21 of 512 chosen ones, and 21 x 2 x 64 x 129 x 131,072.
    """
    s = 2**20
    chosen = 512 - 512**2 / (2 * s / 4)
    keys = 20 * s / 256 + 21 * chosen + 44 * (128 - 128**2 / (2 * s))
    expected = s * (keys * 2 * 64 * 1024 + 21 * 2 * 64 * 129 * s / 8)

    found = forward_attention_flops(of_family("deepseek-v4-flash"), sequence_length=s, attention="causal")
    assert found == pytest.approx(expected, rel=1e-9)


@in_one_case(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 0, 8] * 15}, "compress_ratios.2: expected 4 or 128 or 0, got 8"),
        ({"compress_ratios": [0] * 12}, "compress_ratios: has 12 entries, the model 43 layers"),
        ({"num_key_value_heads": 2}, "num_key_value_heads: must be 1"),
        ({"o_groups": 7}, "o_groups: must divide the 64 attention heads, got 7"),
        ({"mlp_layer_types": ["moe"]}, "mlp_layer_types: has 1 entries, the model 43 layers"),
        ({"hc_mult": 0}, "hc_mult: must be at least 1"),
        ({"index_head_dim": 32}, "index_head_dim: must be at least the 64 rotated channels"),
        ({"qk_rope_head_dim": 513}, "qk_rope_head_dim: must be at least 0 and at most 512, got 513"),
        ({"qk_rope_head_dim": None, "partial_rotary_factor": 2}, "partial_rotary_factor: must be at least 0 and at"),
    ],
)
def test_wrong_compressions_are_refused(changes: dict[str, Any], message: str):
    """By the key and its value."""
    with pytest.raises(SpecError, match=message):
        of_family("deepseek-v4-flash", **changes)


def test_blocks_without_a_feed_forward_have_streams_too():
    """One block, one mix."""
    layer = Layer(attention=None, feed_forward=Mlp(ffn_hidden_size=48), num_norms=1, streams=2)

    assert operator(layer, a_shape(), "residuals").bytes == 2 * 16 * 32 * 8
