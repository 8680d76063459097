"""A whole step: one strategy, a table of strategies, and what no strategy may do."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from costmodel.facts.device import HostProcessors, Network
from costmodel.facts.model import Model
from costmodel.memory import rank_parameters
from costmodel.pipelines.stages import every_stage
from costmodel.step import rank_time
from costmodel.step.compute import layer_seconds
from costmodel.step.data_parallel import data_parallel_seconds, dp_seconds, update_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.step.estimate import estimate
from costmodel.step.layer import steady_parts
from costmodel.step.layouts import strategy_seconds
from costmodel.step.rank_time import ep_fill_seconds, once_seconds, p2p_seconds, pp_seconds, sent_seconds
from costmodel.step.step import cost, different_ranks, layer_parts, least_seconds, lower_bound_seconds
from costmodel.strategy import (
    DECISIONS,
    V_SHAPED,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    Vocabulary,
    default_microbatch_group,
)
from costmodel.tables import Facts, lookup, microbatches
from tests.builders import a_model
from tests.builders_cluster import GB, a_strategy
from tests.builders_problem import a_problem
from tests.cases import in_one_case
from tests.costmodel.strategies import (
    DENSE,
    FEATURE_OVERLAPS,
    MODELS,
    MOE,
    PAIRS,
    PROFILES,
    models,
    models_by_profiles,
    one_of,
    random_degrees,
    random_strategies,
    the_facts,
    with_device,
    with_networks,
    with_profile,
)


def one_switch(given: Facts, *, bandwidth: float = 50 * GB) -> Facts:
    """Every device on one network without latency."""
    return with_device(given, networks=(Network(name="switch", num_peers=10**6, bandwidth=bandwidth, latency=0.0),))


def test_a_stage_waits_for_the_slowest_of_its_devices():
    """Layers on 4 x 8 devices of a stage take 1 + 2 % of ln(32); other stages do not count."""

    def computing(spread: float, **degrees: int) -> float:
        given = with_profile(the_facts(DENSE), straggler_spread=spread)
        return float(layer_parts(given, a_strategy(**degrees).decisions()).compute[0])

    usual = computing(0.0, tp=4, dp=8)

    assert computing(0.02, tp=4, dp=8) == pytest.approx((1 + 0.02 * np.log(32)) * usual)
    assert computing(0.02, tp=4, dp=8, pp=2) == computing(0.02, tp=4, dp=8)


@pytest.mark.parametrize(("num_devices", "tails"), [(1, 1.0), (64, 1 + np.log(64))])
def test_all_ranks_wait_for_the_last_host(num_devices: int, tails: float):
    """The longest of n exponential tails of 10 ms; a graph of the whole iteration needs no host."""
    given = with_profile(the_facts(DENSE), step_seconds=0.01)

    def seconds(graphs: CudaGraphs | int) -> float:
        return float(once_seconds(given, a_strategy(dp=num_devices, cuda_graphs=graphs).decisions()))

    assert seconds(CudaGraphs.NONE) == pytest.approx(0.01 * tails)
    assert seconds(CudaGraphs.of("attn")) == pytest.approx(0.01 * tails)
    assert seconds(CudaGraphs.FULL_ITERATION) == 0.0


# --- scalars and arrays ------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@models
@pytest.mark.parametrize("profile", ["both slow", "measured overlap", "all constants"])
def test_a_table_is_its_strategies(model: Model, profile: str):
    """120 random strategies at once, looked up, and some of them one by one."""
    given, strategies = the_facts(model, **PROFILES[profile]), random_strategies(model, 120, seed=21)

    table = cost(given, strategies)

    for row in range(0, 120, 12):
        alone = cost(given, one_of(strategies, row).decisions())
        assert table.step_seconds[row] == pytest.approx(float(alone.step_seconds), rel=1e-12)
        assert table.device_bytes[row] == pytest.approx(float(alone.device_bytes), rel=1e-12)
        assert table.host_bytes[row] == pytest.approx(float(alone.host_bytes), rel=1e-12)


@pytest.mark.sampled(1)
@models
def test_features_on_axes_of_their_own(model: Model):
    """Ten degrees by every combination of the features: an outer product with values of the flat table, every 13th."""
    given, degrees = the_facts(model, **PROFILES["both slow"]), random_degrees(model, 10, seed=22)
    sizes = {"sharding": 4, "recompute": 3} | dict.fromkeys(
        ("activation_offload", "optimizer_offload", "token_dispatcher", "cuda_graphs", *FEATURE_OVERLAPS), 2
    )
    grid = np.meshgrid(*(np.arange(size) for size in sizes.values()), indexing="ij", sparse=True)
    outer = {name: values.reshape(10, *[1] * len(sizes)) for name, values in degrees.items()}
    outer |= dict(zip(sizes, grid, strict=True))
    shape = (10, *sizes.values())
    flat = {name: np.broadcast_to(values, shape).ravel()[::13] for name, values in outer.items()}

    seen, expected = cost(given, outer), cost(given, flat)

    for name in ("step_seconds", "device_bytes", "host_bytes"):
        table = np.broadcast_to(getattr(seen, name), shape)
        assert table.ravel()[::13] == pytest.approx(getattr(expected, name), rel=1e-12)


def test_every_value_is_finite_and_positive():
    """No strategy takes no time or no memory."""
    for model in MODELS.values():
        table = cost(the_facts(model), random_strategies(model, 500, seed=23))

        assert np.isfinite(table.step_seconds).all()
        assert (table.step_seconds > 0).all()
        assert (table.device_bytes > 1 * GB).all()
        assert (table.host_bytes >= 0).all()


# --- parts by hand -----------------------------------------------------------------------------------------


def test_a_hop_is_a_share_of_the_hidden_state():
    """1 * 4,096 * 2,048 * 2 bytes over tp 2 and cp 4 at 50 GB/s."""
    given = one_switch(the_facts(DENSE))
    facts = (given.model, given.cluster, given.workload)

    seconds = p2p_seconds(*facts, tp=2, cp=4, pp=2, dp=1, mbs=1, sequence_parallel=True)

    assert seconds == pytest.approx(4096 * 2048 * 2 / 8 / (50 * GB))


def test_a_hop_can_be_scattered_and_gathered_again():
    """Without sequence parallelism both ranks send all 16.8 MB; or a half each, and get the other from each other."""
    given = one_switch(the_facts(DENSE))
    scattering = with_profile(given, scatter_gather_p2p=True)
    degrees = {"tp": 2, "cp": 1, "pp": 2, "dp": 1, "mbs": 1, "sequence_parallel": False}
    whole = 4096 * 2048 * 2 / (50 * GB)

    plain, halves = (p2p_seconds(one.model, one.cluster, one.workload, **degrees) for one in (given, scattering))

    assert plain == pytest.approx(whole)
    assert halves == pytest.approx(whole / 2 + whole / 2)
    assert p2p_seconds(given.model, scattering.cluster, given.workload, **{**degrees, "sequence_parallel": True}) == (
        pytest.approx(whole / 2)
    )


def test_no_pipeline_no_hop():
    """One rank sends nothing."""
    given = one_switch(the_facts(DENSE))
    facts = (given.model, given.cluster, given.workload)

    assert p2p_seconds(*facts, tp=1, cp=1, pp=1, dp=1, mbs=1, sequence_parallel=False) == 0


def test_hops_of_a_step():
    """With p = 2, v = 7, m = 256: 2 (14 - 1) of them always, 2 (256 * 7 - 14 + 1) more where nothing hides them."""
    given = one_switch(the_facts(DENSE))
    held = every_stage(DENSE, pp=2, vpp=7)
    hop = 4096 * 2048 * 2 / (50 * GB)

    plain, hidden = (
        pp_seconds(given, a_strategy(pp=2, vpp=7, pp_overlap=on).decisions(), held) for on in (False, True)
    )

    assert plain == pytest.approx((26 + 2 * 1779) * hop)
    assert hidden == pytest.approx(26 * hop)


def test_ranks_of_a_plain_pipeline_wait_for_what_they_send():
    """Activations on, gradients back: two hops per micro-batch, one at the ends, none of an interleaved rank."""
    given, hop = one_switch(the_facts(DENSE)), 4096 * 2048 * 2 / (50 * GB)
    plain, interleaved = (a_strategy(pp=4, vpp=vpp).decisions() for vpp in (1, 2))
    whole, halves = (every_stage(DENSE, pp=4, vpp=vpp) for vpp in (1, 2))

    assert sent_seconds(given, plain, whole) == pytest.approx([hop, 2 * hop, 2 * hop, hop])
    assert pp_seconds(given, plain, whole) == 0
    assert not sent_seconds(given, interleaved, halves).any()
    assert pp_seconds(given, interleaved, halves) > 0


@in_one_case(
    ("sharding", "reduces", "gathers"),
    [(Sharding.NONE, 1, 2), (Sharding.OPTIMIZER, 1, 1), (Sharding.GRADIENTS, 32, 1), (Sharding.WEIGHTS, 32, 64)],
)
def test_data_parallel_traffic(sharding, reduces, gathers):
    """
    Eight ranks, 32 micro-batches: 4-byte gradients, 2-byte weights, 7 / 8 of them at 50 GB/s.

    All-reduce: gradients twice, as gathering the 4 bytes is like gathering the weights twice. ZeRO-2 reduces every
    micro-batch, ZeRO-3 gathers twice per micro-batch as well (Rajbhandari et al., section 7).
    """
    given = one_switch(the_facts(DENSE))
    decisions = a_strategy(dp=8, sharding=sharding).decisions()
    held = every_stage(DENSE, pp=1, vpp=1)
    parameters = float(rank_parameters(given, decisions, held).dense[0])

    alone = data_parallel_seconds(given, decisions, held)

    assert alone.reduce.seconds == pytest.approx([reduces * 4 * parameters * 7 / 8 / (50 * GB)])
    assert alone.gather.seconds == pytest.approx([gathers * 2 * parameters * 7 / 8 / (50 * GB)])


def test_experts_are_reduced_among_their_replicas():
    """Eight ranks, eight-way experts: nobody shares them; four-way experts: half of the ranks' pairs."""
    given = one_switch(the_facts(MOE))
    held = every_stage(MOE, pp=1, vpp=1)
    decisions = {ep: a_strategy(dp=8, ep=ep, sharding=Sharding.OPTIMIZER).decisions() for ep in (4, 8)}
    parameters = {ep: rank_parameters(given, decisions[ep], held) for ep in (4, 8)}
    dense = 2 * parameters[8].dense * 7 / 8 / (50 * GB)

    assert data_parallel_seconds(given, decisions[8], held).gather.seconds == pytest.approx(dense)
    assert data_parallel_seconds(given, decisions[4], held).gather.seconds == pytest.approx(
        dense + 2 * parameters[4].experts * 1 / 2 / (50 * GB)
    )


def test_all_reduced_gradients_are_sent_twice():
    """ZeRO-1 that all-reduces (DeepSpeed's BF16 optimizer, InternEvo) scatters and gathers 4 bytes per parameter."""
    given = with_profile(one_switch(the_facts(DENSE)), gradient_sync="all_reduce")
    decisions = a_strategy(dp=8, sharding=Sharding.OPTIMIZER).decisions()
    held = every_stage(DENSE, pp=1, vpp=1)
    parameters = float(rank_parameters(given, decisions, held).dense[0])

    alone = data_parallel_seconds(given, decisions, held)

    assert alone.reduce.seconds == pytest.approx([2 * 4 * parameters * 7 / 8 / (50 * GB)])


def test_states_shared_by_fewer_ranks_are_gathered_among_them():
    """Eight ranks share states in pairs: half of 2 bytes per parameter is gathered, half of the states is updated."""
    given = with_profile(one_switch(the_facts(DENSE)), sharding_ranks=2, parameter_pass_bytes=0.0)
    decisions = a_strategy(dp=8, sharding=Sharding.OPTIMIZER).decisions()
    held = every_stage(DENSE, pp=1, vpp=1)
    parameters = float(rank_parameters(given, decisions, held).dense[0])

    assert data_parallel_seconds(given, decisions, held).gather.seconds == pytest.approx([parameters / (50 * GB)])
    assert update_seconds(given, decisions, held) == pytest.approx([30 * parameters / 2 / (2400 * GB)])


def test_weights_that_nothing_overlaps_are_waited_for():
    """All of the gathering is left, and the first piece of gradients that hide behind slow computation."""
    given = with_device(one_switch(the_facts(DENSE), bandwidth=1e15), peak_flops={"bf16": 1e12})
    given = with_profile(given, weight_sync_overlaps=False)
    held = every_stage(DENSE, pp=1, vpp=1)
    decisions = a_strategy(dp=8, sharding=Sharding.OPTIMIZER).decisions()
    alone = data_parallel_seconds(given, decisions, held)

    left = dp_seconds(given, {**decisions, "dp_overlap": True}, held)

    assert left == pytest.approx(alone.gather.seconds + alone.reduce.seconds / alone.pieces)


def test_gradients_that_nothing_overlaps_are_waited_for():
    """All of the reduction is left; without sharding it hides as before, but for its first piece."""
    given = with_device(one_switch(the_facts(DENSE), bandwidth=1e15), peak_flops={"bf16": 1e12})
    given = with_profile(given, weight_sync_overlaps=False, gradient_sync_overlaps=False)
    held = every_stage(DENSE, pp=1, vpp=1)
    decisions = {**a_strategy(dp=8, sharding=Sharding.OPTIMIZER).decisions(), "dp_overlap": True}
    alone = data_parallel_seconds(given, decisions, held)

    assert dp_seconds(given, decisions, held) == pytest.approx(alone.gather.seconds + alone.reduce.seconds)
    whole = {**decisions, "sharding": Sharding.NONE}
    assert dp_seconds(given, whole, held) < 0.9 * dp_seconds(given, {**whole, "dp_overlap": False}, held)


def test_slices_of_gathered_weights_are_copied_by_the_host():
    """Under ZeRO-1 alone: 8 ranks times 6 tensors of each layer, embedding and head, at 0.08 of a launch of 50 us."""
    plain, sliced = (
        with_profile(one_switch(the_facts(DENSE)), sliced_tensors=count, launch_overhead_seconds=5e-5)
        for count in (0, 6)
    )
    held = every_stage(DENSE, pp=1, vpp=1)

    def copies(sharding: Sharding) -> float:
        decisions = {**a_strategy(dp=8, sharding=sharding).decisions(), "dp_overlap": False}
        return float((dp_seconds(sliced, decisions, held) - dp_seconds(plain, decisions, held))[0])

    assert copies(Sharding.OPTIMIZER) == pytest.approx(8 * (6 * DENSE.num_layers + 2) * 0.08 * 5e-5)
    assert copies(Sharding.NONE) == 0.0


def test_weights_come_while_a_device_waits_for_its_host():
    """Nothing else hides them where devices compute in no time."""
    given = one_switch(the_facts(DENSE), bandwidth=1e9)
    held = every_stage(DENSE, pp=1, vpp=1)
    decisions = a_strategy(dp=8, mbs=1, sharding=Sharding.WEIGHTS, dp_overlap=True).decisions()

    alone, late = (with_profile(given, launch_overhead_seconds=seconds) for seconds in (0.0, 1.0))

    assert dp_seconds(late, decisions, held) < dp_seconds(alone, decisions, held)


def test_offloaded_activations_share_a_pcie_port_with_what_comes_from_other_nodes():
    """Copies that fill both passes leave no time to gather or reduce across nodes; inside a node NVLink does that."""
    held = every_stage(DENSE, pp=1, vpp=1)

    def hidden_fraction(*, dp: int, host_link: str) -> float:
        slow_copies = {"device_to_host_bandwidth": 1e6, "host_to_device_bandwidth": 1e6}
        given = with_device(the_facts(DENSE), host_link=host_link, peak_flops={"bf16": 1e12}, **slow_copies)
        decisions = a_strategy(dp=dp, sharding=Sharding.WEIGHTS, activation_offload=True).decisions()
        alone = data_parallel_seconds(given, decisions, held)
        left = dp_seconds(given, {**decisions, "dp_overlap": True}, held)
        return 1 - float((left / (alone.reduce.seconds + alone.gather.seconds))[0])

    assert hidden_fraction(dp=16, host_link="pcie") == pytest.approx(0.0, abs=1e-9)
    assert hidden_fraction(dp=16, host_link="nvlink_c2c") > 0.5
    assert hidden_fraction(dp=8, host_link="pcie") > 0.5


def test_sharded_weights_wait_for_each_micro_batch():
    """
    FSDP gathers and reduces layer by layer, and each micro-batch shows its first gather and its last reduction.

    Behind slow computation a layer's part of either remains, m times what one micro-batch shows.
    """
    given = with_device(one_switch(the_facts(DENSE), bandwidth=1e15), peak_flops={"bf16": 1e12})
    held = every_stage(DENSE, pp=1, vpp=1)
    decisions = a_strategy(dp=8, mbs=1, sharding=Sharding.WEIGHTS).decisions()
    alone = data_parallel_seconds(given, decisions, held)

    left = dp_seconds(given, {**decisions, "dp_overlap": True}, held)

    assert alone.pieces == pytest.approx([DENSE.num_layers])
    assert left == pytest.approx((alone.reduce.seconds + alone.gather.seconds) / DENSE.num_layers)


@pytest.mark.parametrize(("copies", "nbytes"), [("flat", 2 + 4), ("tensors", 2 * (2 + 2) + 2 + 4)])
def test_shared_weights_are_copied_for_each_micro_batch(copies: str, nbytes: int):
    """Gathered weights twice, gradients into the reduction's precision; nothing where nobody shares weights."""
    plain, given = (the_facts(DENSE, sharding_copies=one) for one in ("none", copies))
    held = every_stage(DENSE, pp=1, vpp=1)
    device = given.cluster.device
    rate = device.memory_bandwidth * device.constants.memory_efficiency

    def added(sharding: Sharding) -> Any:
        decisions = a_strategy(dp=8, mbs=1, sharding=sharding).decisions()
        return dp_seconds(given, decisions, held) - dp_seconds(plain, decisions, held)

    decisions = a_strategy(dp=8, mbs=1, sharding=Sharding.WEIGHTS).decisions()
    parameters = rank_parameters(given, decisions, held).dense
    assert added(Sharding.GRADIENTS) == pytest.approx([0])
    assert added(Sharding.WEIGHTS) == pytest.approx(microbatches(given, decisions) * nbytes * parameters / rate)


def test_overlapped_data_parallelism_hides_behind_the_other_chunks():
    """Slow computation, fast network: one bucket of each direction is left, the first of at least vpp."""
    given = with_device(one_switch(the_facts(DENSE), bandwidth=1e15), peak_flops={"bf16": 1e12})
    held = every_stage(DENSE, pp=2, vpp=7)
    decisions = a_strategy(pp=2, vpp=7, dp=8, sharding=Sharding.OPTIMIZER).decisions()
    alone = data_parallel_seconds(given, decisions, held)

    left = dp_seconds(given, {**decisions, "dp_overlap": True}, held)

    assert (left <= (alone.reduce.seconds + alone.gather.seconds) / 7 * (1 + 1e-9)).all()
    assert (left > 0).all()


def test_the_update_is_of_a_rank_s_shard():
    """30 bytes per parameter at 2,400 GB/s; an eighth of it with eight shards; on the host 4 / 32 + 1 / 4 + 4 / 32."""
    given = the_facts(DENSE)
    held = every_stage(DENSE, pp=1, vpp=1)
    parameters = rank_parameters(given, a_strategy(dp=8).decisions(), held).dense

    def update(**changes: Any) -> np.ndarray:
        return update_seconds(given, a_strategy(dp=8, **changes).decisions(), held)

    assert update() == pytest.approx(parameters * 30 / (2400 * GB))
    assert update(sharding=Sharding.OPTIMIZER) == pytest.approx(parameters / 8 * 30 / (2400 * GB))
    assert update(optimizer_offload=True) == pytest.approx(parameters * (4 / 32 + 1 / 4 + 4 / 32) / GB)


def test_edges_of_overlapped_expert_parallelism_do_not_depend_on_the_pipeline():
    """MoFa's Table 8: the exposed all-to-alls are those of the whole model once."""
    given = the_facts(MOE)

    def edges(pp: int, vpp: int = 1, group: int = 1) -> float:
        decisions = a_strategy(pp=pp, vpp=vpp, dp=8, ep=8, ep_overlap=True, group=group).decisions()
        held, parts = every_stage(MOE, pp=pp, vpp=vpp), layer_parts(given, decisions)
        alone = float((held.all_layers * (parts.ep - steady_parts(given, decisions).ep)).sum()) / pp
        m = given.workload.global_batch_size / (8 * decisions["mbs"])
        return (m + (pp - 1) / vpp) * alone + float(ep_fill_seconds(decisions, held, parts))

    whole = edges(1)

    assert whole > 0
    assert [edges(2), edges(2, 7, 2), edges(7)] == pytest.approx([whole] * 3)
    assert edges(2, 7, 4) == pytest.approx((6 * 4 + 2) / (2 * 7) * whole)


def test_the_step_of_one_device_is_its_work():
    """No degree: m times forward and backward, and the update."""
    given = the_facts(DENSE)
    decisions = a_strategy().decisions()
    held = every_stage(DENSE, pp=1, vpp=1)
    twice = replace(given, workload=replace(given.workload, global_batch_size=512))

    update = update_seconds(given, decisions, held)[0]
    once_seconds, twice_seconds = (cost(one, decisions).step_seconds - update for one in (given, twice))

    assert twice_seconds == pytest.approx(2 * once_seconds)


# --- monotony ----------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "profile", "start"),
    [(MODELS[model], PROFILES[profile], start) for (model, profile), start in zip(PAIRS, cycle((0.02, 1.0, 10.0)))],
)
def test_faster_links_never_make_a_step_slower(model: Model, profile: dict[str, Any], start: float):
    """
    Twice the bandwidth of either network, of either direction to the host, of the host's CPU.

    The measured law of data-parallel overlap is left without offloading: its window is computation and exposed
    tensor-parallel communication, and a transfer to the host may fill what the latter leaves. Transfers between
    interleaved ranks hide behind an average rank, which may wait less for its copies while the slowest one does not.
    """
    given = with_networks(the_facts(model, **profile), inside=start, outside=start)
    strategies = random_strategies(model, 150, seed=41)
    strategies["activation_offload"] = strategies["activation_offload"] * (1 - strategies["pp_overlap"])
    if "dp_overlap" in profile:
        strategies["activation_offload"] = np.zeros(150, dtype=int)
    device, before = given.cluster.device, cost(given, strategies).step_seconds
    faster = (
        with_networks(given, inside=2.0),
        with_networks(given, outside=2.0),
        with_device(given, device_to_host_bandwidth=2 * device.device_to_host_bandwidth),
        with_device(given, host_to_device_bandwidth=2 * device.host_to_device_bandwidth),
        with_device(given, host_processors=HostProcessors(memory_bandwidth=640 * GB)),
    )

    for one in faster:
        assert (cost(one, strategies).step_seconds <= before * (1 + 1e-12)).all()


def without_hiding(strategies: dict[str, Any]) -> dict[str, Any]:
    """The same strategies, no communication or transfer behind computation."""
    return strategies | {name: 0 * strategies["tp"] for name in ("activation_offload", *FEATURE_OVERLAPS)}


@pytest.mark.sampled(3)
@models_by_profiles
def test_faster_devices_never_make_a_step_without_overlaps_slower(model: Model, profile: dict[str, Any]):
    """Twice the peak, twice the memory's bandwidth."""
    given, strategies = the_facts(model, **profile), without_hiding(random_strategies(model, 150, seed=42))
    before = cost(given, strategies).step_seconds
    device = given.cluster.device

    for faster in (
        with_device(given, peak_flops={"bf16": 2e15}),
        with_device(given, memory_bandwidth=2 * device.memory_bandwidth),
    ):
        assert (cost(faster, strategies).step_seconds <= before * (1 + 1e-12)).all()


@models
def test_faster_devices_never_make_a_step_with_overlaps_slower(model: Model):
    """Twice the peak, any communication behind computation, states sharded as far as a pipeline allows."""
    given, strategies = the_facts(model), random_strategies(model, 150, seed=42)
    strategies["sharding"] = np.minimum(strategies["sharding"], int(Sharding.OPTIMIZER))
    strategies["activation_offload"] = np.zeros(150, dtype=int)
    before = cost(given, strategies).step_seconds

    after = cost(with_device(given, peak_flops={"bf16": 2e15}), strategies).step_seconds

    assert (after <= before * (1 + 1e-12)).all()


def test_faster_devices_never_make_a_step_with_offloaded_activations_slower():
    """
    A layer's transfer to the host hides behind the whole layer, also behind what its collectives expose.

    Equation (34) has T_FWD there, which is (7), computation and communication. Where the transfer hides behind the
    computation alone, both it and the collectives are exposed beyond the same computation, one after the other.
    """
    given, strategies = the_facts(DENSE), random_strategies(DENSE, 150, seed=42)
    strategies |= {name: 0 * strategies["tp"] for name in ("sharding", "dp_overlap", "pp_overlap")}
    strategies["activation_offload"] = np.ones(150, dtype=int)
    before = cost(given, strategies).step_seconds

    after = cost(with_device(given, peak_flops={"bf16": 2e15}), strategies).step_seconds

    assert (after <= before * (1 + 1e-12)).all()


@models
def test_steps_take_as_long_as_their_data_parallel_traffic(model: Model):
    """
    However well it overlaps, a step takes at least as long as its own data-parallel traffic.

    Gradients and weights of ZeRO-3 share their links in the backward pass, which hides one or the other.
    """
    given, strategies = the_facts(model), random_strategies(model, 250, seed=43)
    for sharding in Sharding:
        strategies |= {"sharding": np.full(250, int(sharding)), "dp_overlap": np.ones(250, dtype=int)}
        alone = data_parallel_seconds(given, strategies, different_ranks(given, strategies))
        traffic = (alone.reduce.seconds + alone.gather.seconds).max(axis=-1)

        assert (traffic <= cost(given, strategies).step_seconds * (1 + 1e-9)).all(), sharding


def test_replicated_gradients_are_summed_before_the_update():
    """An all-reduce without sharding hides behind the backward pass alone: the next forward pass comes too late."""
    given = with_networks(the_facts(DENSE), inside=0.01, outside=0.01)
    decisions = a_strategy(dp=8).decisions()
    held = every_stage(DENSE, pp=1, vpp=1)
    backward = 14 * float(lookup(layer_seconds, given, decisions).backward[0])

    plain, overlapped = (dp_seconds(given, {**decisions, "dp_overlap": on}, held) for on in (False, True))

    assert plain - overlapped > 0
    assert plain - overlapped <= backward


@pytest.mark.sampled(4)
@models_by_profiles
def test_more_microbatches_take_longer(model: Model, profile: dict[str, Any]):
    """Twice the batch on the same ranks, less than twice as long where bubble and traffic are once per step."""
    given, strategies = the_facts(model, **profile), random_strategies(model, 150, seed=45)
    twice = replace(given, workload=replace(given.workload, global_batch_size=512))
    before, after = (cost(one, strategies).step_seconds for one in (given, twice))

    assert (after > before).all()
    assert (after < 2 * before)[strategies["sharding"] <= Sharding.OPTIMIZER].all()


@models
def test_recomputation_takes_time(model: Model):
    """
    Full more than selective, selective more than none, where no transfer to the host becomes shorter by it.

    Work that nobody needs is no place to hide communication of sharded gradients and weights, either.
    """
    given, strategies = the_facts(model), random_strategies(model, 150, seed=46)
    strategies["activation_offload"] = np.zeros(150, dtype=int)
    none, selective, full = (
        cost(given, strategies | {"recompute": np.full(150, int(recompute))}).step_seconds for recompute in Recompute
    )

    assert (none <= selective * (1 + 1e-12)).all()
    assert (selective <= full * (1 + 1e-12))[strategies["sharding"] <= Sharding.OPTIMIZER].all()


def test_every_decision_is_drawn():
    """The random strategies of these tests leave out no decision."""
    assert set(random_strategies(DENSE, 10, seed=1)) == set(DECISIONS)


# --- schedules ---------------------------------------------------------------------------------------------


def random_schedules(model: Model, num: int, *, seed: int) -> dict[str, Any]:
    """Random strategies with every schedule and every place of the vocabulary, V-shaped ones with two chunks."""
    rng = np.random.default_rng(seed)
    strategies = random_strategies(model, num, seed=seed)
    strategies["schedule"] = rng.integers(0, len(Schedule), num)
    strategies["vocabulary"] = rng.integers(0, len(Vocabulary), num)
    strategies["vpp"] = np.where(np.isin(strategies["schedule"], V_SHAPED), 2, 1)
    strategies["group"] = default_microbatch_group(pp=strategies["pp"], vpp=strategies["vpp"])
    return strategies


@pytest.mark.slow
def test_schedules_in_tables_cost_what_each_alone_costs():
    """100 strategies in one table, and their breakdowns; no schedule undercuts the lower bound."""
    given = the_facts(DENSE)
    strategies = random_schedules(DENSE, 100, seed=5)
    table = cost(given, strategies)
    alone = [one_of(strategies, index) for index in range(100)]

    assert table.step_seconds == pytest.approx([strategy_seconds(given, one) for one in alone], rel=1e-12)
    assert table.device_bytes == pytest.approx([estimate(given, one).device_bytes for one in alone], rel=1e-12)
    assert (lower_bound_seconds(given, strategies) <= table.step_seconds * (1 + 1e-12)).all()
    assert (least_seconds(given, strategies) <= table.step_seconds * (1 + 1e-12)).all()


def test_every_slice_of_the_vocabulary_launches_every_kernel():
    """A gap of 10 us on 4 ranks: that of the head's matmul and its two gradients, once per slice."""

    def heads(vocabulary: Vocabulary, gap: float) -> float:
        given = with_profile(the_facts(DENSE), kernel_gap_seconds=gap)
        return float(lookup(embedding_head_seconds, given, a_strategy(pp=4, vocabulary=vocabulary).decisions()).head)

    (ends, slices) = (heads(one, 1e-5) - heads(one, 0.0) for one in (Vocabulary.ENDS, Vocabulary.VOCAB_1))

    assert ends > 0
    assert slices == pytest.approx(4 * ends)


def test_slices_of_the_vocabulary_wait_for_their_barriers():
    """Two barriers cost one micro-batch more than one; an interlaced pipeline waits for its collectives instead."""
    given = the_facts(DENSE)
    strategies = [a_strategy(pp=2, mbs=2, vocabulary=one) for one in (Vocabulary.VOCAB_1, Vocabulary.VOCAB_2)]
    two, one = (estimate(given, strategy) for strategy in strategies)
    slowest = max(rank.microbatch_seconds for rank in two.ranks)

    assert two.step_seconds - one.step_seconds == pytest.approx(slowest)


@pytest.mark.parametrize(("num_microbatches", "has_order"), [(6, False), (8, True)])
def test_micro_batches_that_fill_no_group_wait_by_the_formula(num_microbatches, has_order, monkeypatch):
    """Six on four interleaved ranks have no order to be simulated in; eight have one, in which a long head delays."""
    problem = a_problem(a_model(num_layers=8), num_devices=4, workload={"global_batch_size": num_microbatches})
    decisions = a_strategy(pp=4, vpp=2).decisions()

    found = float(cost(problem.facts, decisions).bubble_seconds)
    monkeypatch.setattr(rank_time, "is_simulated", lambda *_: np.False_)
    by_formula = float(cost(replace(problem.facts), decisions).bubble_seconds)

    assert (found != pytest.approx(by_formula, rel=1e-9)) is has_order
