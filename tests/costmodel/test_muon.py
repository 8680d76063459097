"""Muon: its matrices, its states, and the seconds of its update, from sums by hand on a small model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.facts.model import Model
from costmodel.lowering.kernels import LOOPED_LAUNCH
from costmodel.lowering.layer import layer_matrices
from costmodel.lowering.shape import layer_shape
from costmodel.memory import dealt_share, different_ranks, rank_bytes
from costmodel.network.collectives import Group
from costmodel.step.data_parallel import data_parallel_seconds, update_seconds
from costmodel.step.muon import (
    AROUND_BYTES,
    GAP_SECONDS,
    MODES,
    MORE_UPDATE_BYTES,
    newton_schulz_flops,
    sending_seconds,
)
from costmodel.strategy import Sharding, Strategy
from costmodel.tables import Facts
from costmodel.timing.source import operator_times
from planner.api import load
from tests.builders import a_model, a_moe_model, a_shape
from tests.builders_cluster import a_cluster, a_strategy, achieved, facts

RATE, MEMORY = 0.5e15, 2400e9
"""FLOPs and bytes per second that the device achieves here."""


def muon_facts(model: Model, **style: Any) -> Facts:
    """64 test devices that reach half of their peak, with Muon."""
    constants = {"matmul_efficiency": {"bf16": 0.5}, "attention_efficiency": 0.5, "memory_efficiency": 0.8}
    own = achieved(**{"is_muon": True, "times": "modified_roofline", **constants, **style})
    return facts(model, cluster=a_cluster(**own))


def update(given: Facts, strategy: Strategy) -> float:
    """Seconds of the update on the slowest rank."""
    decisions = strategy.decisions()
    return float(np.max(update_seconds(given, decisions, different_ranks(given, decisions))))


def states(given: Facts, strategy: Strategy) -> float:
    """Bytes of optimizer states on the fullest rank."""
    decisions = strategy.decisions()
    return float(np.max(rank_bytes(given, decisions, different_ranks(given, decisions)).optimizer))


def a_wide_model(**changes: Any) -> Model:
    """Two layers whose matrices take longer than launches: hidden size and queries 4096, keys 1024, inner 8192."""
    sizes = {"hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 8192}
    return a_model(**{**sizes, **changes})


def matrix_seconds(short: float, long: float, *, split: int = 1) -> float:
    """Five steps of 4 s s l + 2 s s s FLOPs, 40 bytes of each element, and the gaps of 12 + 5 x 3 kernels."""
    flops = newton_schulz_flops(short, long / split, steps=5)
    return flops / RATE + AROUND_BYTES * short * long / split / MEMORY + 27 * GAP_SECONDS


def layer_of_seconds(*, ways: int = 1) -> float:
    """A layer of a wide model: queries, keys, values and output, then gate and up as one, and down."""
    pairs = ((4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (4096, 16384), (4096, 8192))
    return sum(matrix_seconds(short, long, split=ways) for short, long in pairs)


# --- matrices ----------------------------------------------------------------------------------------------


def test_matrices_are_weights_of_linears():
    """Queries 32 x 32, keys and values 16 x 32, output 32 x 32, gate and up 96 x 32, down 32 x 48; no norm."""
    found = layer_matrices(a_model().kinds[0], a_shape(tp=2))

    assert [(one.rows, one.columns) for one in found] == [(32, 32), (16, 32), (16, 32), (32, 32), (96, 32), (32, 48)]
    assert [one.row_shards for one in found] == [2, 2, 2, 1, 2, 1]
    assert [one.column_shards for one in found] == [1, 1, 1, 2, 1, 2]


def test_each_expert_is_a_matrix_of_its_own():
    """Four experts on two ranks: two each of 48 x 32 and 32 x 24, which tp does not split; and a router of 4 x 32."""
    found = layer_matrices(a_moe_model().kinds[1], a_shape(tp=2, ep=2))

    assert [(one.rows, one.columns, one.count) for one in found if one.expert] == [(48, 32, 2), (32, 24, 2)]
    assert [(one.rows, one.columns) for one in found if not one.expert][-1] == (4, 32)
    assert {(one.row_shards, one.column_shards) for one in found if one.expert} == {(1, 1)}


# --- states ------------------------------------------------------------------------------------------------


def test_matrices_have_one_moment():
    """12 bytes of everything, 4 fewer of each matrix's parameter."""
    adam, muon = facts(a_model()), muon_facts(a_model())
    matrices = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 96 * 32 + 32 * 48)

    assert states(muon, a_strategy()) == states(adam, a_strategy()) - 4 * matrices


@pytest.mark.parametrize(("style", "edge"), [("reduce_scatter", 0), ("all_reduce", 1)])
def test_owners_have_whole_matrices(style, edge):
    """
    Of 12 matrices on 8 replicas the fullest has both of 96 x 32, or two of them, at 8 bytes a parameter.

    Everything else is shared evenly. Without a distributed optimizer one replica has all of the head, 32 x 1000, here
    with the norm before it.
    """
    adam = facts(a_model(), cluster=a_cluster(8))
    muon = muon_facts(a_model(), muon_gradient_sync=style)
    matrices = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 96 * 32 + 32 * 48)
    fullest = 96 * 32
    given = a_strategy(dp=8, sharding=Sharding.OPTIMIZER)
    head = 12 * (32 * 1000 + 32) * (1 - 1 / 8) * edge

    assert states(muon, given) == states(adam, given) - 12 * matrices / 8 + 8 * fullest + head


def test_checkpoints_hold_one_moment_of_matrices():
    """Llama-3 8B: 32 layers with 2 x 4096 x 4096, 2 x 1024 x 4096 and 3 x 4096 x 14336 of matrices, 4 bytes each."""
    job = {
        "model": "llama3-8b",
        "cluster": {"device": "h100", "num_devices": 16},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": "1T"},
    }
    adam, muon = (
        load({**job, "settings": {"optimizer": name}}).reliability.checkpoint.nbytes for name in ("adam", "muon")
    )

    assert adam - muon == 4 * 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 14336)


def test_deals_are_bounds_of_the_busiest_owner():
    """3 matrices of cost 4 and 2 of cost 1: one of 2 owners has two large ones, 8; 1 owner has all, 14; of 8, one."""
    counts, costs = np.array([[3.0, 2.0]]), np.array([[4.0, 1.0]])

    assert [float(dealt_share(counts, costs, owners=owners)) for owners in (2.0, 1.0, 8.0)] == [8.0, 14.0, 4.0]


# --- seconds -----------------------------------------------------------------------------------------------


def test_every_replica_updates_all_matrices():
    """Beyond Adam's update: two layers of matrices, and 8 bytes of each of their parameters."""
    adam, muon = (
        facts(a_wide_model(), cluster=muon_facts(a_wide_model(), is_muon=False).cluster),
        muon_facts(a_wide_model()),
    )
    parameters = 2 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 8192)
    beyond = 2 * layer_of_seconds() + MORE_UPDATE_BYTES * parameters / MEMORY

    for given in (a_strategy(), a_strategy(dp=8)):
        assert update(muon, given) - update(adam, given) == pytest.approx(beyond, rel=1e-9)


def test_replicas_that_share_states_deal_matrices():
    """Two owners have half of the work; eight wait for the one with both matrices of 4096 x 16384, or one of them."""
    model = a_wide_model()
    muon, adam = muon_facts(model), muon_facts(model, is_muon=False)
    parameters = 2 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 8192)

    for replicas, dealt in ((2, layer_of_seconds()), (8, matrix_seconds(4096, 16384))):
        given = a_strategy(dp=replicas, sharding=Sharding.OPTIMIZER)
        passed = MORE_UPDATE_BYTES * parameters / replicas / MEMORY
        assert update(muon, given) - update(adam, given) == pytest.approx(dealt + passed, rel=1e-9)


def test_tensor_parallel_ranks_split_repeat_or_deal_the_work():
    """
    Blocks of 2 ranks take the least time, whole matrices on both the most; owners have half of the whole ones.

    Summed products cost the square of the unsplit side in each rank, so that they save less than half.
    """
    taken = {
        mode: update(muon_facts(a_wide_model(), muon_tp_mode=mode), a_strategy(tp=2))
        - update(muon_facts(a_wide_model(), is_muon=False), a_strategy(tp=2))
        for mode in ("blockwise", "layer_sharded", "distributed", "duplicated")
    }

    assert list(taken) == sorted(taken, key=taken.__getitem__)
    assert taken["duplicated"] > 2 * layer_of_seconds()
    assert taken["layer_sharded"] == pytest.approx(taken["duplicated"] / 2, rel=0.1)


def test_without_shared_matrices_all_modes_are_the_same():
    """One tensor-parallel rank has whole matrices."""
    seconds = {
        update(muon_facts(a_wide_model(), muon_tp_mode=mode), a_strategy(dp=4))
        for mode in ("blockwise", "layer_sharded", "distributed", "duplicated")
    }

    assert len(seconds) == 1


def test_small_matrices_wait_for_their_launches():
    """A step launches three kernels, twelve are around them: 27 of 5 microseconds each for 12 matrices."""
    muon = muon_facts(a_model(), launch_overhead_seconds=5e-6 / LOOPED_LAUNCH)
    adam = muon_facts(a_model(), is_muon=False)

    assert update(muon, a_strategy()) - update(adam, a_strategy()) == pytest.approx(12 * 27 * 5e-6, rel=1e-3)


@pytest.mark.parametrize(("framework", "rounds"), [("megatron-lm-0.17", 2), ("megatron-lm-0.18", 1)])
def test_releases_without_a_layout_of_matrices_reduce_all_gradients(framework, rounds):
    """Up to core 0.17 Muon excludes the distributed optimizer: an all-reduce is two rounds of a reduce-scatter."""
    job = {
        "model": "llama3-8b",
        "cluster": {"device": "h100", "num_devices": 16, "framework": framework},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": "1T"},
    }
    given = a_strategy(tp=2, dp=8, sharding=Sharding.OPTIMIZER).decisions()
    adam, muon = (load({**job, "settings": {"optimizer": name}}).facts for name in ("adam", "dist_muon"))
    reduce = [
        float(data_parallel_seconds(one, given, different_ranks(one, given)).reduce.seconds.max())
        for one in (adam, muon)
    ]

    assert reduce[1] == pytest.approx(rounds * reduce[0])


def test_placements_take_the_published_parts_of_a_step():
    """
    All ranks gather and repeat matrices in 632 ms, sum products in 356 ms, and deal them to owners in 157 ms.

    Published for 32 GB300 with TP2, EP8, dense weights shared by 8 ranks and experts by 2 (Megatron-LM, issue 6676), of
    a model that is not named. Experts alone would make owners 2 times as fast, all else 16 times, so that it is one
    whose dense matrices take most of the time. Of the catalog's that is this one.
    """
    job = {
        "model": "nemotron-3-ultra-550b-a55b",
        "cluster": {"device": "gb300", "num_devices": 32, "framework": "megatron-lm-0.18"},
        "training": {"global_batch_size": 256, "sequence_length": 4096, "tokens": "1T"},
        "settings": {"optimizer": "muon"},
    }
    given = load(job).facts
    device, model = given.cluster.device, given.model
    shape = layer_shape(model, given.cluster, given.workload, tp=2, cp=1, ep=8, etp=1, mbs=1, sequence_parallel=1)
    times = operator_times(device, "bf16")
    repeated = summed = owned = 0.0
    for layer, number in model.layer_counts.items():
        for one in layer_matrices(layer, shape):
            group = Group(ranks=2, stride=8) if one.expert else Group(ranks=8, stride=2)
            shared, count = (one, group), number * one.count
            repeated += count * MODES["duplicated"](given.cluster, times, *shared)
            summed += count * MODES["distributed"](given.cluster, times, *shared)
            alone = MODES["layer_sharded"](given.cluster, times, *shared) / (one.shards * group.ranks)
            owned += count * (alone + sending_seconds(given.cluster, *shared))

    assert summed / repeated == pytest.approx(356 / 632, rel=0.25)
    assert owned / repeated == pytest.approx(157 / 632, rel=0.25)
