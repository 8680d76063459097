"""Bytes per parameter under ZeRO, and activations that are kept, recomputed or offloaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.facts.framework import MemoryModel
from costmodel.facts.workload import Precision
from costmodel.lowering.layer import sum_over_modules
from costmodel.memory import (
    activation_bytes,
    gathered_bytes,
    gradient_bytes,
    kept_bytes,
    layer_footprint,
    offloaded_bytes,
    optimizer_bytes,
    weight_bytes,
    working_bytes,
)
from costmodel.strategy import Recompute, Sharding
from tests.builders import a_model
from tests.builders_cluster import a_cluster, a_workload
from tests.cases import in_one_case

SIXTEEN = Precision(
    name="2+2+12", compute="bf16", weight_bytes=2, gradient_bytes=2, optimizer_bytes=12, parameter_gather_bytes=2
)
"""Rajbhandari et al., section 3.1: 16-bit weights and gradients, fp32 weights, momentum and variance."""

LAYERS = (100.0, np.array([5.0, 25.0, 8.0, 40.0, 0.0, 0.0, 0.0, 0.0]), 10.0)
"""Saved bytes, shares of the modules (attention core 5, Q, K and V 25, norms 8, feed-forward 40), input."""

KEEPS = MemoryModel()


def states(sharding: Sharding, *, parameters: float, ranks: int) -> float:
    """Weights, gradients and optimizer states."""
    return sum(
        float(state(SIXTEEN, parameters=parameters, group_ranks=ranks, sharding=sharding))
        for state in (weight_bytes, gradient_bytes, optimizer_bytes)
    )


@in_one_case(
    ("sharding", "bytes_per_parameter"),
    [
        (Sharding.NONE, 2 + 2 + 12),
        (Sharding.OPTIMIZER, 2 + 2 + 12 / 64),
        (Sharding.GRADIENTS, 2 + (2 + 12) / 64),
        (Sharding.WEIGHTS, 16 / 64),
    ],
)
def test_bytes_per_parameter(sharding, bytes_per_parameter):
    """ZeRO's Figure 1: 7.5e9 parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    assert states(sharding, parameters=1.0, ranks=64) == pytest.approx(bytes_per_parameter)
    assert states(sharding, parameters=7.5e9, ranks=64) == pytest.approx(bytes_per_parameter * 7.5e9)


@in_one_case(
    ("sharding", "nbytes"),
    [
        (Sharding.NONE, 4),
        (Sharding.OPTIMIZER, 2 + 4 / 64),
        (Sharding.GRADIENTS, 2 + 4 / 64),
        (Sharding.WEIGHTS, 4 / 64),
    ],
)
def test_weights_in_fp32_are_cast_before_they_are_gathered(sharding, nbytes):
    """FSDP2: an FP32 shard on each of 64 ranks, and whole weights in 16 bits unless they are sharded again."""
    mixed = replace(SIXTEEN, weight_bytes=4)

    assert weight_bytes(mixed, parameters=1.0, group_ranks=64, sharding=sharding) == pytest.approx(nbytes)


def test_figure_1_of_zero():
    """The figure's numbers themselves, to their last digit."""
    gigabytes = [states(sharding, parameters=7.5e9, ranks=64) / 1e9 for sharding in Sharding]

    assert gigabytes == pytest.approx([120, 31.4, 16.6, 1.88], abs=0.05)


def test_one_replica_shards_nothing():
    """Sharding over one rank is the whole."""
    assert {states(sharding, parameters=1.0, ranks=1) for sharding in Sharding} == {16}


def test_kept_activations():
    """All, all but attention's, the input alone."""
    assert [float(kept_bytes(*LAYERS, recompute=recompute)) for recompute in Recompute] == [100, 70, 10]


def test_sets_of_modules_drop_their_shares():
    """Megatron-LM's core_attn and layernorm together: 100 - 5 - 8."""
    assert kept_bytes(*LAYERS, recompute=Recompute.of("core_attention", "norms")) == 87


@pytest.mark.parametrize("recompute", list(Recompute))
def test_every_microbatch_in_flight_keeps_its_activations(recompute):
    """Equation (5): four of them, four times as much."""
    kept = kept_bytes(*LAYERS, recompute=recompute)

    assert activation_bytes(KEEPS, kept, 10.0, microbatches_in_flight=4.0, activation_offload=False) == 4 * kept


def test_offloading_leaves_the_inputs_of_one_microbatch():
    """Equation (33), and never more than there are: half a micro-batch leaves half of its inputs."""
    assert activation_bytes(KEEPS, 100.0, 10.0, microbatches_in_flight=4.0, activation_offload=True) == 10
    assert activation_bytes(KEEPS, 100.0, 10.0, microbatches_in_flight=0.5, activation_offload=True) == 5


def test_offloading_a_quarter_of_the_layers():
    """Megatron-LM's cpu_offloading_num_layers, 20 of 80: three quarters of 400 stay, and a quarter of the inputs."""
    quarter = MemoryModel(offloaded_fraction=0.25)

    assert activation_bytes(quarter, 100.0, 10.0, microbatches_in_flight=4.0, activation_offload=True) == 302.5
    assert offloaded_bytes(quarter, 100.0, microbatches_in_flight=4.0, activation_offload=True) == 100


def test_the_host_holds_what_the_device_gave():
    """Four micro-batches of what is kept; nothing without offloading."""
    assert offloaded_bytes(KEEPS, 70.0, microbatches_in_flight=4.0, activation_offload=True) == 280
    assert offloaded_bytes(KEEPS, 70.0, microbatches_in_flight=4.0, activation_offload=False) == 0


@in_one_case(
    ("recompute", "offload", "nbytes"),
    [
        (Recompute.NONE, False, 0),
        (Recompute.SELECTIVE, False, 30),
        (Recompute.FULL, False, 100),
        (Recompute.NONE, True, 200),
        (Recompute.FULL, True, 100),
    ],
)
def test_the_layer_at_work(recompute, offload, nbytes):
    """What is recomputed is there once; offloading has a layer at work and one in transit."""
    assert working_bytes(KEEPS, *LAYERS[:2], recompute=recompute, activation_offload=offload) == nbytes


def test_gathered_weights():
    """ZeRO-3 gathers the layer at work and the next one, and from ZeRO-2 on two gradients are whole; 2 bytes each."""
    gathered = [
        float(gathered_bytes(SIXTEEN, largest_layer_parameters=1e9, sharding=sharding)) for sharding in Sharding
    ]

    assert gathered == [0, 0, 4e9, 8e9]


def test_decisions_may_be_arrays():
    """A table of every recomputation and offloading at once."""
    recompute, offload = np.array([0, 1, 2])[:, None], np.array([0, 1])[None, :]

    kept = kept_bytes(*LAYERS, recompute=recompute)
    table = activation_bytes(KEEPS, kept, 10.0, microbatches_in_flight=2.0, activation_offload=offload)

    assert table.tolist() == [[200, 10], [140, 10], [20, 10]]


@in_one_case(("tp", "sequence_parallel", "sbh"), [(1, 0, 32), (8, 0, 8 + 24 / 8), (8, 1, 32 / 8), (4, 1, 32 / 4)])
def test_activations_of_a_gpt_layer(tp, sequence_parallel, sbh):
    """
    Korthikanti et al. (arXiv 2205.05198), Table 2, without dropout masks and with flash attention.

    34 s b h less two masks of one byte is 32; with tensor parallelism 8 + 24 / t (10 + 24 / t less the masks); with
    sequence parallelism all of it over t. Selective recomputation drops Q, K and V: 6 s b h / t.
    """
    model = a_model(hidden_size=1024, num_heads=16, num_kv_heads=16, ffn_hidden_size=4096, gated=False)
    workload = a_workload(sequence_length=2048)

    footprint = layer_footprint(
        model, a_cluster(), workload, tp=tp, cp=1, ep=1, etp=1, mbs=2, sequence_parallel=sequence_parallel
    )

    assert footprint.saved_bytes == pytest.approx([sbh * 2048 * 2 * 1024])
    dropped = sum_over_modules(footprint.module_bytes, recompute=Recompute.SELECTIVE)
    assert dropped == pytest.approx([6 / tp * 2048 * 2 * 1024])
    assert footprint.input_bytes == pytest.approx([2 * 2048 * 2 * 1024 / (tp if sequence_parallel else 1)])
