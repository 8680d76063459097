"""Attention that reads few keys of a sequence: chosen by an indexer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.catalog.files import read
from costmodel.errors import SpecError
from costmodel.facts.model import Indexer, Layer, Model
from costmodel.models.flops import forward_attention_flops, layer_parameters
from costmodel.models.huggingface import model_from_config
from costmodel.models.patterns import shape_of
from tests.builders import a_latent_model, a_model, a_shape
from tests.cases import in_one_case
from tests.costmodel.test_layers import INDEXER, calls, operator, saved

FAMILIES = read("families.yaml")


DSA_KEYS = ("index_n_heads", "index_head_dim", "index_topk")


def of_family(name: str, **changes: Any) -> Model:
    """A model of ``families.yaml``, changed."""
    return model_from_config({**FAMILIES[name]["config"], **changes})


def indexed(indexer: Indexer) -> Layer:
    """A layer of latent attention, 4 heads of 12 and 8 on latents of 12 and 10, whose keys an indexer chooses."""
    layer = a_latent_model().layers[0]
    return replace(layer, attention=replace(layer.attention, indexer=indexer))


def test_every_pair_is_scored_and_three_keys_are_read():
    """
    16 tokens score s / 2 = 4 keys each: 2 x 2 heads x (4 + 1) per pair. They read 3 - 9 / 16 = 2.4375 keys on average.

    The backward pass takes twice the scores of these, and the core's again (2 x 4 heads x 12) for the indexer's loss.
    """
    shape = a_shape(causal=True)
    scores, core = (operator(indexed(INDEXER), shape, name) for name in ("index_scores", "core_attention"))

    assert scores.flops == 16 * 4 * 20
    assert scores.backward_flops == pytest.approx(16 * 2.4375 * (2 * 20 + 2 * 4 * 12))
    assert core.flops == 2 * 16 * 2.4375 * 4 * (12 + 8)
    assert (scores.kind, core.size.keys, core.size.is_window) == ("batched_matmul", 3, True)


def test_a_model_with_chosen_keys_is_another_one():
    """DeepSeek-V3.2 has V3's layers, heads and experts, and 0.1 % more parameters; runs of V3 are none of its."""
    dense = of_family("deepseek-v3.2", model_type="deepseek_v3", **dict.fromkeys(DSA_KEYS))

    assert not shape_of(of_family("deepseek-v3.2")).is_like(shape_of(dense))
    assert shape_of(dense).is_like(shape_of(dense))


def test_short_sequences_read_all_keys():
    """With 8 keys of 8 tokens the core is that of dense latent attention, and the indexer comes on top."""
    dense, chosen = a_latent_model().layers[0], indexed(replace(INDEXER, num_keys=8))

    assert operator(chosen, a_shape(), "core_attention") == operator(dense, a_shape(), "core_attention")


def test_every_tensor_parallel_rank_has_the_whole_indexer():
    """Queries 12 x 8, a key of 32 x 4, weights 32 x 2, norm 2 x 4; without gradients of their inputs."""
    names = {"index_query": 12 * 8, "index_key": 32 * 4, "index_weights": 32 * 2, "index_norm": 2 * 4}
    found = {name: operator(indexed(INDEXER), a_shape(tp=2, sequence_parallel=1), name) for name in names}

    assert {name: one.parameters for name, one in found.items()} == names
    assert found["index_query"].backward_flops == found["index_query"].flops == 2 * 16 * 12 * 8


def test_an_indexer_keeps_its_queries_and_choices():
    """16 tokens: 3 heads' worth of 4 channels before and after their norm; 3 indices and scores of 4 bytes."""
    assert saved(indexed(INDEXER), a_shape())["index"] == 2 * 2 * 16 * 3 * 4 + 2 * 4 * 16 * 3


def test_sequence_parallel_ranks_gather_the_input_and_context_parallel_ones_pass_latents():
    """The input of 32 once more, forward only; a ring of 10 + 4 and the index key of 4 instead of 4 heads of 20."""
    latent, chosen = a_latent_model().layers[0], indexed(INDEXER)
    forward = {one: calls(one, a_shape(tp=2, sequence_parallel=1), "tp")["all_gather"][:2] for one in (latent, chosen)}

    assert forward[chosen] == (forward[latent][0] + 1, forward[latent][1])
    assert calls(chosen, a_shape(cp=2), "cp") == {"ring": (1, 2, 2 * 8 * (14 + 4))}
    assert calls(latent, a_shape(cp=2), "cp") == {"ring": (1, 2, 2 * 8 * 4 * 20)}


def test_a_shared_choice_has_no_indexer():
    """GLM-5.2: layers 0, 1, 2, 6, ... choose, 21 of 78; the others have 2048 x 4096 + (128 + 32) x 6144 + 256 less."""
    model = of_family("glm-5", index_topk_freq=4, index_skip_topk_offset=3)
    choosing = [n for n, layer in enumerate(model.layers) if not layer.attention.indexer.is_shared]
    own, shared = model.layers[74], model.layers[75]

    assert choosing == [0, 1, *range(2, 78, 4)]
    assert layer_parameters(model, own) - layer_parameters(model, shared) == 2048 * 4096 + 160 * 6144 + 256
    assert operator(shared, a_shape(), "core_attention").size.keys == 8


def test_scores_of_a_long_sequence_grow_with_its_square_and_the_core_does_not():
    """DeepSeek-V3.2 at s = 32,768: 61 layers of s^2 / 2 x 2 x 64 x 129, and s x 1,984 keys x 128 heads x 2 x 320."""
    s = 32768
    keys = 2048 - 2048**2 / (2 * s)
    expected = 62 * (s * s / 2 * 2 * 64 * 129 + s * keys * 128 * 2 * 320)  # the layer of MTP has one, too

    assert forward_attention_flops(
        of_family("deepseek-v3.2", num_nextn_predict_layers=1), sequence_length=s, attention="causal"
    ) == pytest.approx(expected, rel=1e-9)


@in_one_case(
    ("changes", "message"),
    [
        ({"index_head_dim": 32}, "index_head_dim: must be at least the 64 rotated channels, got 32"),
        ({"index_topk": 0}, "index_topk: must be at least 1"),
        ({"index_n_heads": None}, "index_n_heads: expected a whole number, got null"),
        ({"indexer_types": ["full"] * 60}, "indexer_types: has 60 entries, the model 61 layers"),
        ({"indexer_types": ["shared"] * 61}, "indexer_types.0: is shared, but no earlier layer has an indexer"),
        ({"index_topk_pattern": "FS"}, "index_topk_pattern: is not read. Write 'indexer_types'"),
        ({"layer_types": ["full_attention"] * 61}, "layer_types.0: unknown kind 'full_attention'"),
    ],
)
def test_wrong_indexers_are_refused(changes: dict[str, Any], message: str):
    """By the key and its value."""
    with pytest.raises(SpecError, match=message):
        of_family("deepseek-v3.2", **changes)


MAKERS = {
    "sparse_attention_freq": [0, 0, 0, *[1] * 57],
    "sparse_num_index_heads": 4,
    "sparse_index_dim": 128,
    "sparse_block_size": 128,
    "sparse_topk_blocks": 16,
}
"""MiniMax's own spelling of its block-sparse attention."""

OWN_KEYS = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "layer_types")


def test_blocks_are_chosen_by_a_head_for_each_key_head():
    """16 blocks of 128 keys in 57 of 60 layers; the maker's mapping says the same, and counts MTP's layers once."""
    model = of_family("minimax-m3")
    spelled = of_family(
        "minimax-m3",
        **dict.fromkeys(OWN_KEYS),
        sparse_attention_config=MAKERS,
        mlp_layer_types=None,
        moe_layer_freq=MAKERS["sparse_attention_freq"],
        num_mtp_modules=7,
        num_nextn_predict_layers=1,
    )

    assert model.layers[3].attention.indexer == Indexer(
        num_heads=4, head_dim=128, num_keys=2048, block_size=128, sums_heads=False
    )
    assert (model.layers[2].attention.indexer, len(spelled.mtp_layers)) == (None, 1)
    assert spelled.layers == model.layers


def test_tensor_parallel_ranks_choose_blocks_for_their_own_keys():
    """
    2 of 4 index heads of 4 on each of 2 ranks: queries 32 x 8, scores 2 x 2 x 4 of 8 keys for 16 tokens.

    Of each 2 keys one score is written, and of each head 2 blocks of 2 keys are kept: 16 x 2 x 2 indices and scores.
    """
    blocks = Indexer(num_heads=4, head_dim=4, num_keys=4, block_size=2, sums_heads=False)
    layer = a_model(num_kv_heads=4).layers[0]
    layer, shape = replace(layer, attention=replace(layer.attention, indexer=blocks)), a_shape(tp=2)
    scores = operator(layer, shape, "index_scores")

    assert operator(layer, shape, "index_query").parameters == 32 * 8
    assert scores.flops == 16 * 8 * 2 * 2 * 4
    assert scores.bytes == 2 * 16 * (2 + 1) * 4 + 4 * 16 * 8 * 2 / 2
    assert operator(layer, shape, "index_top_k").saved_bytes == 2 * 4 * 16 * 2 * 2
    assert calls(layer, a_shape(cp=2), "cp") == {"ring": (1, 2, 2 * 8 * (2 * 4 * 8 + 4))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_n_heads": 8}, "index_n_heads: must be the 4 key heads, one for each, got 8"),
        ({"layer_types": ["minimax_m3_sparse"]}, "layer_types: has 1 entries, the model 60 layers"),
        ({"sparse_attention_config": [1], "index_n_heads": None}, "sparse_attention_config: expected a mapping"),
    ],
)
def test_wrong_blocks_are_refused(changes: dict[str, Any], message: str):
    """By the key and its value."""
    with pytest.raises(SpecError, match=message):
        of_family("minimax-m3", **changes)
