"""Which layers live where."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.models.flops import head_layers
from costmodel.pipelines.stages import every_stage, layers_per_chunk, layers_with_lighter_last_stage, stages
from costmodel.strategy import Schedule, Vocabulary
from tests.builders import a_model, a_moe_model
from tests.cases import in_one_case


def test_layers_that_divide_are_dealt_evenly():
    """80 layers over 16 chunks are five each."""
    assert layers_per_chunk(80, num_chunks=16) == (5,) * 16


def test_deepseek_v3_over_32_chunks():
    """Megatron-LM's own layout of DeepSeek-V3, ``Et|(tt|)*30mL``: one layer, 30 times two, none beside the loss."""
    assert layers_per_chunk(61, num_chunks=32) == (1, *(2,) * 30, 0)


def test_llama_405b_over_16_chunks():
    """Embedding and head count as a layer each: 7, then eights, 7 (The Llama 3 Herd of Models, section 3.3.2)."""
    assert layers_per_chunk(126, num_chunks=16) == (7, *(8,) * 14, 7)


def test_llama_405b_over_128_chunks():
    """128 slots: the first holds the embedding alone, the last the head alone."""
    assert layers_per_chunk(126, num_chunks=128) == (0, *(1,) * 126, 0)


def test_the_front_gets_the_remainder():
    """62 + 2 slots over 6 chunks: four of 11, two of 10, less embedding and head."""
    assert layers_per_chunk(62, num_chunks=6) == (10, 11, 11, 11, 10, 9)


@in_one_case("num_layers", [1, 2, 12, 61, 62, 80, 94, 126])
def test_no_layer_is_lost(num_layers):
    """Whatever the number of chunks, up to two more than layers, all layers are there and none is negative."""
    for num_chunks in range(1, num_layers + 3):
        sizes = layers_per_chunk(num_layers, num_chunks=num_chunks)

        assert len(sizes) == num_chunks
        assert sum(sizes) == num_layers
        assert min(sizes) >= 0


def test_chunks_go_round_the_ranks():
    """Eight layers, two ranks, two chunks: rank 0 has layers 0, 1, 4, 5; its first layer is dense."""
    model = a_moe_model(num_layers=8, first_dense_layers=3)

    held = every_stage(model, pp=2, vpp=2)

    assert held.layers.tolist() == [[2, 2], [1, 3]]
    assert held.first.tolist() == [1, 0]
    assert held.last.tolist() == [0, 1]
    assert held.all_layers.tolist() == [3, 5]
    assert held.largest_chunk.max() == 2


def test_equal_ranks_are_kept_once():
    """Four ranks with four dense layers each, embedding and head: first, second (like the third), last."""
    held = stages(a_model(num_layers=16), pp=4, vpp=1)

    assert held.rank.tolist() == [0, 1, 3]


def test_one_rank_is_first_and_last():
    """Without a pipeline one rank holds everything."""
    held = stages(a_model(num_layers=16), pp=1, vpp=1)

    assert (held.first.tolist(), held.last.tolist(), held.layers.tolist()) == ([1], [1], [[16]])


def test_multi_token_prediction_is_a_layer_of_the_last_rank():
    """Two and two layers, and one more in front of the head; the layout of the others does not change."""
    held = every_stage(a_model(num_layers=4, mtp_layers=1), pp=2, vpp=1)

    assert held.layers.tolist() == [[2], [3]]
    assert held.all_layers.tolist() == [5]


def test_arrays_of_degrees_share_one_table():
    """Pipelines with fewer different ranks repeat the first one, which changes no maximum."""
    model = a_moe_model(num_layers=14, first_dense_layers=3)
    pp, vpp = np.array([[1, 2], [4, 8]]), np.array([[1, 2], [2, 1]])

    held = stages(model, pp=pp, vpp=vpp)

    for index in np.ndindex(pp.shape):
        alone = stages(model, pp=int(pp[index]), vpp=int(vpp[index]))
        num_ranks = alone.rank.size
        assert held.layers[index][:num_ranks].tolist() == alone.layers.tolist()
        assert (held.layers[index][num_ranks:] == alone.layers[0]).all()
        assert held.rank[index][:num_ranks].tolist() == alone.rank.tolist()
        assert held.largest_chunk[index][:num_ranks].tolist() == alone.largest_chunk.tolist()


def test_different_ranks_hold_what_all_ranks_hold():
    """Every rank equals one of the different ones that comes no later."""
    model = a_moe_model(num_layers=61, first_dense_layers=3)
    different, every = stages(model, pp=16, vpp=2), every_stage(model, pp=16, vpp=2)
    contents = [(*layers, first) for layers, first in zip(different.layers.tolist(), different.first, strict=True)]

    for rank, (layers, first) in enumerate(zip(every.layers.tolist(), every.first, strict=True)):
        assert different.rank[contents.index((*layers, first))] <= rank


def test_a_v_brings_both_ends_to_the_first_rank():
    """Eight layers, four ranks in a V: chunk 0 goes down, chunk 1 comes back up."""
    model = a_moe_model(num_layers=8, first_dense_layers=1)

    held = every_stage(model, pp=4, vpp=2, schedule=Schedule.V_HALF)

    assert held.layers.tolist() == [[1, 1], [0, 2], [0, 2], [0, 2]]
    assert held.first.tolist() == [1, 0, 0, 0]
    assert held.last.tolist() == [1, 0, 0, 0]


def test_slices_of_the_vocabulary_are_equal():
    """Four ranks hold a quarter of embedding and head each, and as many layers."""
    held = every_stage(a_model(num_layers=8), pp=4, vpp=1, vocabulary=Vocabulary.VOCAB_1)

    assert held.first.tolist() == held.last.tolist() == [0.25] * 4
    assert held.layers.tolist() == [[2]] * 4


def test_layers_make_room_for_the_head():
    """
    Figure 3 of arXiv 2411.05288: 32 layers on 16 ranks, a head worth 2.4 of them stays alone.

    Two of the others then have three. With a head of 0.6 nothing is gained by moving one: 2 + 1 is more than 2.6.
    """
    assert layers_with_lighter_last_stage(32, num_stages=16, head_layers=2.4) == (*(2,) * 13, 3, 3, 0)
    assert layers_with_lighter_last_stage(32, num_stages=16, head_layers=0.6) == (2,) * 16


def test_the_head_is_worth_its_matmul():
    """V / 12 h layers of GPT: 128k / (12 * 4096) = 2.67 without scores."""
    sizes = {"hidden_size": 4096, "ffn_hidden_size": 16384, "num_heads": 32, "num_kv_heads": 32, "gated": False}
    model = a_model(**sizes, vocab_size=131072)

    assert head_layers(model) == pytest.approx(131072 / (12 * 4096))
