"""What each rank of a pipeline holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from costmodel.catalog.releases import allocator
from costmodel.facts.framework import MemoryModel
from costmodel.facts.model import Model
from costmodel.memory import (
    RankBytes,
    RankParameters,
    layer_footprint,
    least_rank_bytes,
    microbatches_in_flight,
    rank_bytes,
    rank_host_bytes,
    rank_parameters,
    rank_port_bytes,
    seen_bytes,
)
from costmodel.pipelines.stages import every_stage
from costmodel.strategy import Recompute, Sharding
from costmodel.tables import Facts, lookup
from tests.builders import a_model
from tests.builders_cluster import GB, a_strategy, achieved
from tests.cases import in_one_case
from tests.costmodel.strategies import DENSE, LATENT_MOE, MODELS, MOE, TIED, random_strategies, the_facts, with_profile

LAYER = 2048 * (2 * 2048 + 2 * 1024) + 3 * 2048 * 6144 + 2 * 2048
"""Q and output 2 h^2, K and V 2 h 1,024, gated feed-forward 3 h g, two norms."""

EMBEDDING = 64000 * 2048

EXPERT = 3 * 2048 * 1536


def parameters_of(model: Model, **changes: Any) -> RankParameters:
    """Parameters of every rank."""
    strategy = a_strategy(**changes)
    held = every_stage(model, pp=strategy.pp, vpp=strategy.vpp)
    return rank_parameters(the_facts(model), strategy.decisions(), held)


def bytes_of(given: Facts, **changes: Any) -> RankBytes:
    """Bytes of every rank."""
    strategy = a_strategy(**changes)
    return rank_bytes(given, strategy.decisions(), every_stage(given.model, pp=strategy.pp, vpp=strategy.vpp))


def host_bytes_of(given: Facts, **changes: Any) -> np.ndarray:
    """Host bytes of every rank."""
    strategy = a_strategy(**changes)
    return rank_host_bytes(given, strategy.decisions(), every_stage(given.model, pp=strategy.pp, vpp=strategy.vpp))


def saved(given: Facts, **changes: Any) -> float:
    """Activations of one dense layer and micro-batch."""
    return float(lookup(layer_footprint, given, a_strategy(**changes).decisions()).saved_bytes[0])


# --- parameters --------------------------------------------------------------------------------------------


def test_embedding_first_head_and_final_norm_last():
    """14 layers on two ranks, seven each."""
    parameters = parameters_of(DENSE, pp=2)

    assert parameters.layers.tolist() == [7 * LAYER, 7 * LAYER]
    assert parameters.edges.tolist() == [EMBEDDING, EMBEDDING + 2048]


def test_tensor_parallel_ranks_share_all_but_norms():
    """Two norms per layer and the final one are whole on each of four ranks."""
    parameters = parameters_of(DENSE, tp=4)

    assert parameters.dense.tolist() == [14 * (LAYER - 4096) / 4 + 2 * EMBEDDING / 4 + 14 * 4096 + 2048]


def test_a_tied_head_is_a_copy_on_the_last_rank():
    """One rank shares the embedding; the last of two holds another."""
    assert parameters_of(TIED).edges.tolist() == [EMBEDDING + 2048]
    assert parameters_of(TIED, pp=2).edges.tolist() == [EMBEDDING, EMBEDDING + 2048]


def test_multi_token_prediction_has_a_copy_of_the_embedding_on_the_last_rank():
    """
    It embeds the next tokens there (megatron-core 0.16.1, models/gpt/gpt_model.py:149: pre_process or mtp_process).

    Without a pipeline the rank has it anyway.
    """
    without = a_model(hidden_size=64, vocab_size=5000, num_layers=4)
    given = a_model(hidden_size=64, vocab_size=5000, num_layers=4, mtp_layers=1)
    block = parameters_of(given).dense[0] - parameters_of(without).dense[0]

    difference = parameters_of(given, pp=2).dense - parameters_of(without, pp=2).dense

    assert difference.tolist() == [0, block + 5000 * 64]


@in_one_case(("ep", "etp"), [(1, 1), (4, 1), (16, 1), (4, 2), (1, 2)])
def test_experts_are_split_over_both_their_degrees(ep, etp):
    """Twelve layers of 16 experts on one rank, each expert 3 h g_e."""
    parameters = parameters_of(MOE, dp=16, ep=ep, etp=etp)

    assert parameters.experts.tolist() == [12 * 16 * EXPERT / (ep * etp)]


def test_experts_do_not_change_what_is_dense():
    """Attention, norms, router and shared expert are on every rank."""
    dense = [parameters_of(MOE, dp=16, ep=ep).dense.tolist() for ep in (1, 4, 16)]

    assert dense[0] == dense[1] == dense[2]


# --- device memory -----------------------------------------------------------------------------------------


@in_one_case(
    ("sharding", "bytes_per_parameter"),
    [
        (Sharding.NONE, 2 + 4 + 12),
        (Sharding.OPTIMIZER, 2 + 4 + 12 / 8),
        (Sharding.GRADIENTS, 2 + (4 + 12) / 8),
        (Sharding.WEIGHTS, 18 / 8),
    ],
)
def test_model_states_of_a_dense_model(sharding, bytes_per_parameter):
    """Four data- and two context-parallel ranks are eight shards (Megatron-LM: 18, or 6 + 12 / d bytes)."""
    held = bytes_of(the_facts(DENSE), dp=4, cp=2, sharding=sharding)

    states = held.weights + held.gradients + held.optimizer
    assert states == pytest.approx([bytes_per_parameter * (14 * LAYER + 2 * EMBEDDING + 2048)])


@pytest.mark.parametrize(("pp", "bytes_per_parameter"), [(1, 18 / 8), (2, 2 + 4 + 12 / 8)])
def test_states_may_stay_whole_in_pipelines(pp, bytes_per_parameter):
    """torchtitan's FSDP with a pipeline: weights stay gathered and gradients whole between micro-batches."""
    given = with_profile(the_facts(DENSE), memory=MemoryModel(whole_in_pipelines=True))
    held = bytes_of(given, dp=8, pp=pp, sharding=Sharding.WEIGHTS)

    states = held.weights + held.gradients + held.optimizer
    assert states.sum() == pytest.approx(bytes_per_parameter * (14 * LAYER + 2 * EMBEDDING + 2048))


def test_experts_are_sharded_over_their_own_replicas():
    """16 ranks, eight-way experts: their states have two shards, all others sixteen."""
    parameters = parameters_of(MOE, dp=16, ep=8)

    held = bytes_of(the_facts(MOE), dp=16, ep=8, sharding=Sharding.OPTIMIZER)

    assert held.optimizer == pytest.approx(12 * (parameters.dense / 16 + parameters.experts / 2))


def test_experts_without_replicas_shard_nothing():
    """16 ranks, sixteen-way experts: each is the only owner."""
    parameters = parameters_of(MOE, dp=16, ep=16)

    held = bytes_of(the_facts(MOE), dp=16, ep=16, sharding=Sharding.WEIGHTS)

    assert held.weights == pytest.approx(2 * (parameters.dense / 16 + parameters.experts))


@pytest.mark.parametrize("pp", [1, 2, 7])
def test_the_first_rank_holds_all_layers_activations_whatever_the_pipeline(pp):
    """There are p micro-batches of L / p layers (Korthikanti et al., section 4.2.3)."""
    given = the_facts(DENSE)

    assert bytes_of(given, pp=pp).activations[0] == pytest.approx(14 * saved(given))


def test_interleaving_costs_activations():
    """L (1 + (p - 1) / (p v)): two ranks, seven chunks, 15 / 14 of them (Korthikanti et al., section 4.2.3)."""
    given = the_facts(DENSE)

    assert bytes_of(given, pp=2, vpp=7).activations[0] == pytest.approx(15 * saved(given))


def test_later_ranks_hold_fewer_microbatches():
    """Seven ranks of two layers: 7, 6, ... 1 micro-batches."""
    given = the_facts(DENSE)

    assert bytes_of(given, pp=7).activations == pytest.approx([2 * n * saved(given) for n in (7, 6, 5, 4, 3, 2, 1)])


def test_microbatches_in_flight():
    """Chunks over chunks per rank: two ranks of seven chunks hold 15 and 13 sevenths."""
    strategy = a_strategy(pp=2, vpp=7)
    held = every_stage(DENSE, pp=2, vpp=7)

    assert microbatches_in_flight(the_facts(DENSE), strategy.decisions(), held) == pytest.approx([15 / 7, 13 / 7])


def test_overlapped_expert_parallelism_has_one_more_chunk_in_flight():
    """
    A forward chunk is ahead, so that it and the backward chunk beside it are of two micro-batches.

    References
    ----------
    megatron-core 0.16.1, megatron/core/pipeline_parallel/schedules.py:778.
    """
    held = every_stage(MOE, pp=2, vpp=7)
    plain, overlapped = (
        microbatches_in_flight(the_facts(MOE), a_strategy(pp=2, vpp=7, dp=8, ep=8, ep_overlap=on).decisions(), held)
        for on in (False, True)
    )

    assert overlapped - plain == pytest.approx([1 / 7, 1 / 7])


def test_multi_token_prediction_keeps_one_microbatch():
    """Its backward pass follows its forward pass at once, however many earlier chunks of the last rank are alive."""
    with_mtp = the_facts(a_model(num_layers=14, mtp_layers=1))
    without = the_facts(a_model(num_layers=14))
    last, last_without = (bytes_of(given, pp=2, vpp=7).activations[-1] for given in (with_mtp, without))

    assert last - last_without == pytest.approx(saved(without))


def test_full_recomputation_keeps_inputs_and_one_layer():
    """14 inputs of s h 2 bytes, and the layer at work."""
    given = the_facts(DENSE)
    held = bytes_of(given, recompute=Recompute.FULL)

    assert held.activations == pytest.approx([14 * 4096 * 2048 * 2])
    assert held.working == pytest.approx([saved(given)])


def test_logits_are_on_the_last_rank():
    """Input of final norm and head, and fp32 logits: s (2 * 2 h + 4 V) bytes."""
    assert bytes_of(the_facts(DENSE), pp=2).logits == pytest.approx([0, 4096 * (4 * 2048 + 4 * 64000)])


def with_retention(given: Facts, **changes: Any) -> Facts:
    """The same facts on other software."""
    device = given.cluster.device
    profile = achieved(device, memory=MemoryModel(**changes))
    return replace(given, cluster=replace(given.cluster, device=replace(device, **profile)))


def test_a_gradient_of_every_shape_is_handed_on():
    """
    Transformer Engine's get_dummy_wgrad: 2 bytes for each weight of one layer, and for the head on the last rank.

    Q, K and V, output, gate and up, down of 2,048 x (4,096, 2,048, 12,288, 6,144); head of 64,000 x 2,048.
    """
    given = with_retention(the_facts(DENSE), weight_gradient_bytes=2.0, workspace_bytes=1000.0)

    layer, head = 2 * 2048 * (4096 + 2048 + 12288 + 6144), 2 * 64000 * 2048
    assert bytes_of(given, pp=2).buffers == pytest.approx([layer + 1000, layer + head + 1000])


def test_the_loss_is_over_when_the_first_layer_is_recomputed():
    """
    Along the backward pass the last rank needs the logits or the layer at work, the first rank gradients with it.

    Those of SwiGLU: s (2 g + g) 2 bytes with g = 6,144, beside the recomputed layer.
    """
    given = with_retention(the_facts(DENSE), follows_the_backward_pass=True)
    held = bytes_of(given, pp=2, recompute=Recompute.FULL)

    gradients = 4096 * 3 * 6144 * 2
    assert held.working[0] == pytest.approx(saved(given) + gradients)
    assert held.working[1] == pytest.approx(max(saved(given) + gradients - held.logits[1], 0))


def test_fragments_are_a_share_of_what_is_allocated():
    """A tenth of all but the runtime, beside its gigabyte."""
    held = bytes_of(with_retention(the_facts(DENSE), fragmentation=0.1))

    runtime = held.part_bytes()["runtime"]
    assert runtime == pytest.approx(1 * GB + 0.1 * (held.total - runtime))


def test_sharded_weights_gather_two_layers():
    """The one at work and the next, 2 bytes each."""
    held = bytes_of(the_facts(DENSE), dp=8, sharding=Sharding.WEIGHTS)

    assert held.gathered.max() >= 2 * 2 * LAYER


def test_sharded_weights_gather_the_embedding_too():
    """64,000 * 2,048 weights of embedding or head are more than two layers, and whole when they are at work."""
    held = bytes_of(the_facts(DENSE), dp=8, sharding=Sharding.WEIGHTS)

    assert 2 * EMBEDDING > 2 * 2 * LAYER
    assert held.gathered.max() >= 2 * EMBEDDING


def test_the_least_of_all_shardings_gathers_nothing():
    """Eight replicas share 18 bytes per parameter, and with a fifth of fragments each byte that is gathered is 1.2."""
    given = with_profile(the_facts(DENSE), memory=MemoryModel(fragmentation=0.2))
    strategy = a_strategy(dp=8, sharding=Sharding.WEIGHTS)
    held = every_stage(DENSE, pp=1, vpp=1)

    least = least_rank_bytes(given, strategy.decisions(), held)

    peak = bytes_of(given, dp=8, sharding=Sharding.WEIGHTS)
    np.testing.assert_allclose(least, peak.total - 1.2 * peak.gathered)
    assert peak.gathered.max() > 0
    for sharding in Sharding:
        assert (least <= bytes_of(given, dp=8, sharding=sharding).total).all()


def test_embedding_buffers_and_runtime():
    """Two 16-bit copies on the first rank; 1 GB everywhere."""
    held = bytes_of(with_profile(the_facts(DENSE), embedding_buffers=2.0), pp=2)

    assert held.buffers == pytest.approx([2 * 2 * EMBEDDING, 0])
    assert held.runtime == pytest.approx([GB, GB])


def test_the_total_is_the_sum():
    """Every part counts."""
    held = bytes_of(with_profile(the_facts(LATENT_MOE), embedding_buffers=1.0), pp=2, dp=2, ep=4, recompute=1)

    assert held.total == pytest.approx(np.sum(list(held.part_bytes().values()), axis=0))


# --- host memory -------------------------------------------------------------------------------------------


def test_offloaded_states_move_to_the_host():
    """12 bytes per parameter, or its shard, and 4 of its gradient."""
    given = the_facts(DENSE)
    parameters = 14 * LAYER + 2 * EMBEDDING + 2048

    assert bytes_of(given, dp=8, optimizer_offload=True).optimizer == [0]
    assert host_bytes_of(given, dp=8, optimizer_offload=True) == pytest.approx([16 * parameters])
    sharded = host_bytes_of(given, dp=8, optimizer_offload=True, sharding=Sharding.OPTIMIZER)
    assert sharded == pytest.approx([16 * parameters / 8])


@in_one_case(
    ("settings", "device_bytes", "host_bytes"),
    [
        ({"offloaded_states": 0.25}, 9, 4),
        ({"offloaded_states": 0.0}, 12, 0),
        ({"offloaded_masters": False}, 4, 16),
        ({"offloaded_masters": False, "offloaded_states": 0.5}, 8, 8),
    ],
)
def test_some_states_stay_on_the_device(settings, device_bytes, host_bytes):
    """Of 12 bytes per parameter a part, or the FP32 weights' 4, of which the host needs a copy then."""
    given = the_facts(DENSE, **settings)
    parameters = 14 * LAYER + 2 * EMBEDDING + 2048

    on_device = bytes_of(given, dp=8, optimizer_offload=True).optimizer
    assert on_device == pytest.approx([device_bytes * parameters])
    assert host_bytes_of(given, dp=8, optimizer_offload=True) == pytest.approx([host_bytes * parameters])


def test_offloaded_activations_move_to_the_host():
    """All in flight on the host, the inputs of one micro-batch on the device."""
    given = the_facts(DENSE)

    assert host_bytes_of(given, pp=2, activation_offload=True) == pytest.approx([14 * saved(given), 7 * saved(given)])
    assert bytes_of(given, pp=2, activation_offload=True).activations == pytest.approx([7 * 4096 * 2048 * 2] * 2)


@in_one_case(
    ("settings", "decisions", "nbytes"),
    [
        ({}, {"dp": 8}, lambda layers, _: 0),
        ({}, {"dp": 8, "optimizer_offload": True}, lambda layers, _: 4 * layers),
        ({"offloaded_states": 0.25}, {"dp": 8, "optimizer_offload": True}, lambda layers, _: layers),
        ({}, {"dp": 8, "optimizer_offload": True, "sharding": Sharding.OPTIMIZER}, lambda layers, _: layers / 2),
        ({}, {"dp": 8, "activation_offload": True}, lambda _, kept: 32 * kept),
        ({"offloaded_fraction": 0.5}, {"dp": 8, "activation_offload": True}, lambda _, kept: 16 * kept),
    ],
)
def test_what_crosses_the_port(settings, decisions, nbytes):
    """4 bytes of each gradient whose state is offloaded; the activations of 256 / 8 micro-batches of 14 layers."""
    given = the_facts(DENSE, **settings)
    held = every_stage(DENSE, pp=1, vpp=1)
    parameters = 14 * LAYER + 2 * EMBEDDING + 2048

    crossing = rank_port_bytes(given, a_strategy(**decisions).decisions(), held)

    assert crossing == pytest.approx([nbytes(parameters, 14 * saved(given))])


def test_nothing_offloaded_needs_no_host():
    """Without offloading the host is free."""
    assert host_bytes_of(the_facts(DENSE), pp=2).tolist() == [0, 0]


# --- monotony ----------------------------------------------------------------------------------------------


def totals(model: Model, **changes: Any) -> np.ndarray:
    """Peak bytes of random strategies with some decisions fixed, without the layer at work and gathered weights."""
    given, strategies = the_facts(model), random_strategies(model, 50, seed=11)
    decisions = strategies | {name: np.full(50, value) for name, value in changes.items()}
    found = np.full(50, np.nan)
    for pp, vpp in {*zip(decisions["pp"].tolist(), decisions["vpp"].tolist(), strict=True)}:
        rows = (decisions["pp"] == pp) & (decisions["vpp"] == vpp)
        same = {name: values[rows] for name, values in decisions.items()}
        held = rank_bytes(given, same | {"pp": pp, "vpp": vpp}, every_stage(model, pp=pp, vpp=vpp))
        found[rows] = (held.total - held.working - held.gathered).max(axis=-1)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_more_recomputation_keeps_less(model):
    """Full at most selective at most none, the layer at work apart."""
    none, selective, full = (totals(model, recompute=recompute, activation_offload=0) for recompute in Recompute)

    assert (full <= selective).all()
    assert (selective <= none).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_more_sharding_keeps_less(model):
    """Each level at most the one before, gathered weights apart."""
    by_level = [totals(model, sharding=sharding) for sharding in Sharding]

    assert all((more <= less * (1 + 1e-12)).all() for less, more in pairwise(by_level))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("feature", ["activation_offload", "optimizer_offload"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_offloading_keeps_less(model, feature):
    """On the device, the layers in transit apart."""
    assert (totals(model, **{feature: 1}) <= totals(model, **{feature: 0})).all()


def test_reserved_memory_follows_what_comes_and_goes():
    """Whole weights: the software's own fragments; gathered ones: the catalog's shares, more with recomputed layers."""
    device = with_retention(the_facts(DENSE), fragmentation=0.05).cluster.device
    known = allocator("segments").reserved
    allocated = 50e9
    peak = device.runtime_bytes + 1.05 * allocated

    found = [
        seen_bytes(device, peak, "reserved", a_strategy(dp=8, **changes)) / allocated - 1
        for changes in ({}, {"sharding": Sharding.WEIGHTS}, {"sharding": Sharding.WEIGHTS, "recompute": Recompute.FULL})
    ]

    assert found == pytest.approx([0.05, known.gathered.middle, known.gathered_recomputed.middle])
    assert seen_bytes(device, peak, "allocated") == pytest.approx(allocated)


def test_shared_logits_may_take_more():
    """16 bytes per logit of a rank's 32,000 where two share the vocabulary, 12 where one has all of it."""
    given = with_retention(the_facts(DENSE), logit_bytes=12.0, shared_logit_bytes=16.0)

    alone, shared = (bytes_of(given, tp=tp).logits.max() for tp in (1, 2))
    plain = [bytes_of(with_retention(the_facts(DENSE), logit_bytes=12.0), tp=tp).logits.max() for tp in (1, 2)]

    assert alone == plain[0]
    assert shared - plain[1] == pytest.approx(4 * 4096 * 32000)
