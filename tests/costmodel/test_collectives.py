"""Collectives on a small cluster: 8 devices at 400 GB/s and 1 us inside, 50 GB/s and 10 us per device outside."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel import catalog
from costmodel.facts.calibration import MeasuredCollective
from costmodel.facts.device import Cluster, Network
from costmodel.lowering.shape import distinct_ranks_fraction
from costmodel.network.collectives import (
    COLLECTIVES,
    MOST_KEPT,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    collective_seconds,
    communication_seconds,
    copying_seconds,
    dispatch,
    leaves_scale_up_domain,
    reduce_scatter,
    ring,
    send,
)
from costmodel.strategy import TokenDispatcher
from costmodel.timing.work import Communication
from tests.builders_cluster import a_cluster, achieved
from tests.cases import in_one_case

GB = 10**9
ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "tests" / "data" / "nccl_collectives.csv"


def a_profile(**changes) -> dict:
    """A profile without measured collectives."""
    facts = {"attention_efficiency": 0.5, "memory_efficiency": 0.8}
    return achieved(**(facts | changes))


def test_all_gather_inside_a_node():
    """Each of 8 devices receives 7/8 of 3.2 GB at 400 GB/s in 7 steps: 7 ms + 7 us."""
    assert all_gather(a_cluster(), nbytes=3.2 * GB, ranks=8, stride=1) == pytest.approx(7.007e-3)


def test_all_gather_over_two_nodes_uses_eight_adapters():
    """16 ranks, 6.4 GB: 6 GB by eight adapters of 50 GB/s are 15 ms (as by NVLink), 14 hops of 1 us and 1 of 10 us."""
    assert all_gather(a_cluster(), nbytes=6.4 * GB, ranks=16, stride=1) == pytest.approx(15.024e-3)


def test_further_steps_of_a_ring_cost_a_hop():
    """
    256 ranks on 32 nodes of B200, 9.2 us per step of the measured eight: 7 such steps, 217 hops of 3.4 us, 31 of 10.

    64 ranks in one domain of a GB200: 7 steps and 56 hops.
    """
    b200, gb200 = (replace(a_cluster(), device=catalog.equip_device(name)) for name in ("b200", "gb200"))

    several = all_gather(b200, nbytes=1e-9, ranks=256, stride=1)
    domain = all_gather(gb200, nbytes=1e-9, ranks=64, stride=1)

    assert several == pytest.approx(7 * 9.2e-6 + 217 * 3.4e-6 + 31 * 1e-5, rel=1e-3)
    assert domain == pytest.approx(7 * 9.2e-6 + 56 * 3.4e-6, rel=1e-3)


def test_all_gather_of_strangers_uses_one_adapter():
    """With one rank per node, half of 1 GB leaves by one adapter: 10 ms + 10 us."""
    assert all_gather(a_cluster(), nbytes=1 * GB, ranks=2, stride=8) == pytest.approx(10.01e-3)


def test_between_nodes_bytes_are_copied_as_fast_as_within_one():
    """1.6 GB of 16 ranks take 30 ms by one adapter each, 3.75 ms of which processors copy at 400 GB/s."""
    cluster, gathered = a_cluster(), {"nbytes": 1.6 * GB, "ranks": 16}

    def copying(stride: int) -> float:
        group = gathered | {"stride": stride}
        leaves = leaves_scale_up_domain(cluster, ranks=16, stride=stride)
        seconds = all_gather(cluster, **group)
        return float(copying_seconds(cluster, seconds, lambda other: all_gather(other, **group), leaves=leaves))

    assert all_gather(cluster, **gathered, stride=8) == pytest.approx(30e-3 + 15 * 10e-6)
    assert copying(8) == pytest.approx(3.75e-3 + 15 * 1e-6)
    assert copying(4) == copying(1) == copying(8)


@in_one_case(("ranks", "stride", "leaves"), [(8, 1, False), (16, 1, True), (2, 4, False), (2, 8, True)])
def test_groups_leave_a_node_of_eight(ranks, stride, leaves):
    """As soon as their members are not all in it."""
    assert leaves_scale_up_domain(a_cluster(), ranks=ranks, stride=stride) == leaves


def test_stride_decides_how_many_members_share_a_node():
    """4 ranks at stride 4 are two per node: 3/4 of 0.8 GB by two adapters, 6 ms; two hops of 1 us and one of 10 us."""
    assert all_gather(a_cluster(), nbytes=0.8 * GB, ranks=4, stride=4) == pytest.approx(6.012e-3)


@in_one_case(
    ("ranks", "stride", "seconds"),
    [
        (4, 4, 0.6 / 4 + 12e-6),  # two members of each of two nodes: four rings share 16 GB/s
        (8, 2, 0.7 / 8 + 16e-6),  # four of each: two rings
        (16, 1, 0.75 / 400 + 24e-6),  # all of each: both neighbours of an adapter
        (4, 8, 0.6 / 50 + 30e-6),  # one of each of four: its own adapter
        (2, 4, 0.4 / 400 + 1e-6),  # within a node
    ],
)
def test_rings_of_a_part_of_a_node_cross_its_sockets(ranks, stride, seconds):
    """0.8 GB before NCCL 2.12: a ring of some of a node's devices leaves by the adapter by which it came."""
    profile = achieved(a_cluster().device, cross_socket_rings=True)
    cluster = a_cluster(**profile, socket_bandwidth=16 * GB)

    assert all_gather(cluster, nbytes=0.8 * GB, ranks=ranks, stride=stride) == pytest.approx(seconds)


def test_rings_that_need_not_cross_sockets_do_not():
    """With NCCL from 2.12 on, or nodes of one processor, two members per node have two adapters."""
    profile = achieved(a_cluster().device, cross_socket_rings=True)
    plain = all_gather(a_cluster(), nbytes=0.8 * GB, ranks=4, stride=4)

    for cluster in (a_cluster(socket_bandwidth=16 * GB), a_cluster(**profile)):
        assert all_gather(cluster, nbytes=0.8 * GB, ranks=4, stride=4) == plain


def test_shared_adapter():
    """The same group where a node's two members share one link takes twice as long; so does its all-to-all."""
    networks = (
        Network(name="nvlink", num_peers=8, bandwidth=400 * GB, latency=0),
        Network(name="node", num_peers=10**6, bandwidth=50 * GB, latency=0, parallel_links=1),
    )

    cluster = a_cluster(networks=networks)

    assert all_gather(cluster, nbytes=0.8 * GB, ranks=4, stride=4) == pytest.approx(12e-3)
    assert all_to_all(cluster, nbytes=0.8 * GB, ranks=4, stride=4) == pytest.approx(16e-3)


def test_all_reduce_is_scatter_and_gather():
    """Either phase takes the 7.007 ms of the all-gather above."""
    case = {"nbytes": 3.2 * GB, "ranks": 8, "stride": 1}

    assert reduce_scatter(a_cluster(), **case) == pytest.approx(7.007e-3)
    assert all_reduce(a_cluster(), **case) == pytest.approx(2 * 7.007e-3)


def test_broadcast_passes_through_all_ranks():
    """16 ranks in two nodes, 4 GB: once by 8 adapters of 50 GB/s, as by NVLink, 10 ms; 14 hops of 1 us, 1 of 10 us."""
    assert broadcast(a_cluster(), nbytes=4 * GB, ranks=16, stride=1) == pytest.approx(10.024e-3)


def test_all_to_all_keeps_its_own_part():
    """Of 1.6 GB, 8 ranks in a node send 7/8 at 400 GB/s; of 16 ranks in two nodes, each sends half at 50 GB/s."""
    assert all_to_all(a_cluster(), nbytes=1.6 * GB, ranks=8, stride=1) == pytest.approx(3.5e-3 + 1e-6)
    assert all_to_all(a_cluster(), nbytes=1.6 * GB, ranks=16, stride=1) == pytest.approx(16e-3 + 11e-6)


def test_an_exchange_beyond_the_rail_still_leaves_by_the_adapter():
    """32 ranks in two rails of 16: 8/32 of 1.6 GB stay in a rail, 16/32 leave it, 24/32 leave the node at 50 GB/s."""
    rail = Network(name="rail", num_peers=16, bandwidth=50 * GB, latency=0)
    inner, outer = a_cluster().device.networks
    cluster = a_cluster(networks=(inner, rail, outer))
    case = {"nbytes": 1.6 * GB, "ranks": 32, "stride": 1}

    assert all_to_all(cluster, **case) == pytest.approx(24e-3 + 11e-6)
    assert dispatch(cluster, **case, num_experts=32, top_k=32) <= all_to_all(cluster, **case)


def test_dispatch_sends_a_token_once_per_node():
    """
    Two nodes of 8, 2 of 4 experts per token (2 experts per node).

    Both are in one node in 2 of 6 draws, so that a token visits 5/3 of 2 nodes instead of 2: of 1.6 GB of (token,
    expert) pairs half would leave by the adapters, 5/6 of that does; 0.667 GB at 50 GB/s are 13.33 ms, and 11 us.
    """
    case = {"nbytes": 1.6 * GB, "ranks": 16, "stride": 1}

    assert dispatch(a_cluster(), **case, num_experts=4, top_k=2) == pytest.approx(13.344e-3, abs=1e-6)


def test_dispatch_of_one_expert_per_token_is_an_all_to_all():
    """A token that visits one expert has nothing to send twice."""
    case = {"nbytes": 1.6 * GB, "ranks": 16, "stride": 1}

    assert dispatch(a_cluster(), **case, num_experts=64, top_k=1) == pytest.approx(all_to_all(a_cluster(), **case))


def test_a_dispatcher_sends_pairs_or_tokens():
    """The half of 1.6 GB that leaves a node takes 16 ms as pairs, 13.33 ms where tokens are sent once."""
    pairs = Communication(group="ep", kind="all_to_all", nbytes=1.6 * GB, forward=2, backward=2, num_experts=4, top_k=2)
    dispatchers = np.array([TokenDispatcher.ALLTOALL, TokenDispatcher.DEEPEP, TokenDispatcher.HYBRIDEP])

    seconds = communication_seconds(a_cluster(), pairs, ranks=16, stride=1, token_dispatcher=dispatchers)

    assert seconds == pytest.approx([16.011e-3, 13.344e-3, 13.344e-3], abs=1e-6)


def test_deepseek_tokens_visit_few_nodes():
    """8 of 256 experts on 8 nodes: 8 (1 - (7/8)^8) = 5.25 nodes with replacement, a little more without: 5.29 of 8."""
    assert 8 * distinct_ranks_fraction(8, num_experts=256, top_k=8) == pytest.approx(5.29, abs=0.01)


def test_send_is_the_average_hop():
    """Two stages of 4 devices share a node; of four, one hop in three crosses nodes: 0.1 GB at 400 and at 50 GB/s."""
    assert send(a_cluster(), nbytes=0.1 * GB, ranks=2, stride=4) == pytest.approx(0.251e-3)
    assert send(a_cluster(), nbytes=0.1 * GB, ranks=4, stride=4) == pytest.approx((2 * 0.251e-3 + 2.01e-3) / 3)


def test_a_ring_over_nodes_waits_for_its_slowest_hop():
    """Four ranks on two nodes: three steps of 0.1 GB, each as slow as the send at 50 GB/s."""
    assert ring(a_cluster(), nbytes=0.3 * GB, ranks=4, stride=4) == pytest.approx(3 * 2.01e-3)


def with_network(index, **changes) -> Cluster:
    """The small cluster with one of its networks changed."""
    networks = list(a_cluster().device.networks)
    networks[index] = replace(networks[index], **changes)
    return replace(a_cluster(), device=replace(a_cluster().device, networks=tuple(networks)))


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 3), (8, 7)])
def test_a_group_of_a_mesh_uses_the_links_between_its_members(ranks, links):
    """Of 400 GB/s a seventh leads to each of seven others."""
    seconds = all_gather(with_network(0, is_mesh=True), nbytes=GB, ranks=ranks, stride=1)
    assert seconds == pytest.approx((ranks - 1) / ranks / (400 * links / 7) + (ranks - 1) * 1e-6)


def test_a_send_in_a_mesh_uses_the_links_between_two():
    """1 GB at a seventh of 400 GB/s."""
    assert send(with_network(0, is_mesh=True), nbytes=GB, ranks=4, stride=1) == pytest.approx(7 / 400 + 1e-6)


def test_sums_in_a_switch_have_a_latency_of_their_own():
    """Seven steps there and back of 3 us instead of 1, seven of 2 us in a scatter; gathers as before."""
    given, summing = a_cluster(), with_network(0, all_reduce_latency=3e-6, reduce_scatter_latency=2e-6)
    case = {"nbytes": GB, "ranks": 8, "stride": 1}
    assert all_reduce(summing, **case) - all_reduce(given, **case) == pytest.approx(2 * 7 * 2e-6)
    assert reduce_scatter(summing, **case) - reduce_scatter(given, **case) == pytest.approx(7 * 1e-6)
    assert all_gather(summing, **case) == all_gather(given, **case)


def test_sends_alone_have_a_half_duplex_network_to_themselves():
    """1 GB at twice 50 GB/s; collectives, which receive meanwhile, as before."""
    cluster = with_network(1, is_half_duplex=True)
    assert send(cluster, nbytes=GB, ranks=2, stride=8) == pytest.approx(0.01 + 10e-6)
    assert all_gather(cluster, nbytes=GB, ranks=2, stride=8) == pytest.approx(0.01 + 10e-6)


def test_ring_sends_one_part_per_step():
    """3 steps that carry 1.2 GB together: 3 ms at 400 GB/s, and 3 us."""
    assert ring(a_cluster(), nbytes=1.2 * GB, ranks=4, stride=1) == pytest.approx(3.003e-3)


def test_bandwidth_decays_per_doubling():
    """Equation (3): 0.9 per doubling beyond 8 ranks is 0.81 at 32, and nothing is gained below 8."""
    networks = (Network(name="node", num_peers=1000, bandwidth=GB, latency=0, decay=0.9, reference_peers=8),)
    cluster = a_cluster(networks=networks)

    assert all_gather(cluster, nbytes=GB, ranks=32, stride=1) == pytest.approx(31 / 32 / 0.81)
    assert all_gather(cluster, nbytes=GB, ranks=2, stride=1) == pytest.approx(0.5)


def test_communication_scaling_is_a_gain_of_bandwidth():
    """Equation (18): with beta = 2 the 7 ms of the first test are 3.5 ms, latencies stay."""
    cluster = a_cluster(**a_profile(communication_scaling=2))

    assert all_gather(cluster, nbytes=3.2 * GB, ranks=8, stride=1) == pytest.approx(3.507e-3)


@in_one_case("kind", COLLECTIVES)
def test_nobody_to_talk_to_costs_nothing(kind):
    """One rank, or no bytes: no latency either."""
    assert COLLECTIVES[kind](a_cluster(), nbytes=GB, ranks=1, stride=1) == 0
    assert collective_seconds(a_cluster(), "tp", kind, nbytes=0, ranks=8, stride=1) == 0


@in_one_case("kind", COLLECTIVES)
def test_arrays_equal_scalars(kind):
    """One formula for one strategy and for a table of them."""
    profile = a_profile(measured_collectives=(MeasuredCollective(group="tp", kind=kind, seconds=1, ranks=4),))
    cluster = a_cluster(**profile)
    nbytes, ranks, stride = np.meshgrid([0.0, 1e6, 1e9], [1, 2, 4, 8, 16, 64], [1, 2, 8, 16])

    table = collective_seconds(cluster, "tp", kind, nbytes=nbytes, ranks=ranks, stride=stride)
    cases = zip(nbytes.flat, ranks.flat, stride.flat, strict=True)
    scalars = [collective_seconds(cluster, "tp", kind, nbytes=b, ranks=n, stride=s) for b, n, s in cases]

    np.testing.assert_allclose(np.broadcast_to(table, nbytes.shape).ravel(), scalars)


def test_measured_collective_goes_first_where_it_matches():
    """0.5 s was measured for 8 ranks and 1 GB of tensor parallelism: other shapes and groups are computed."""
    entry = MeasuredCollective(group="tp", kind="all_gather", seconds=0.5, ranks=8, nbytes=GB)
    cluster = a_cluster(**a_profile(measured_collectives=(entry,)))
    gathered = Communication(group="tp", kind="all_gather", nbytes=np.array([GB, 3.2 * GB]), forward=1, backward=1)
    elsewhere = Communication(group="cp", kind="all_gather", nbytes=3.2 * GB, forward=1, backward=1)

    seconds = communication_seconds(cluster, gathered, ranks=8, stride=1)

    np.testing.assert_allclose(seconds, [0.5, 7.007e-3])
    assert communication_seconds(cluster, elsewhere, ranks=8, stride=1) == pytest.approx(7.007e-3)


def test_scale_up_domain_of_72():
    """In an NVL72 rack 64 ranks talk by NVLink alone, in an 8-device node they do not."""
    case = {"nbytes": 64 * 2**20, "ranks": 64, "stride": 1}
    rack = all_to_all(Cluster(device=catalog.equip_device("gb200"), num_devices=64), **case)
    nodes = all_to_all(Cluster(device=catalog.equip_device("b200"), num_devices=64), **case)

    assert nodes > 10 * rack


def measurements() -> list[dict[str, str]]:
    """Published nccl-tests, in small."""
    with MEASURED.open() as lines:
        return list(csv.DictReader(lines))


@in_one_case("row", measurements(), ids=lambda row: "-".join(list(row.values())[:5]))
def test_catalog_agrees_with_nccl(row):
    """Published nccl-tests of 16 MiB and more are met within 16 %."""
    cluster = Cluster(device=catalog.equip_device(row["device"]), num_devices=64)
    case = {"nbytes": float(row["nbytes"]), "ranks": int(row["ranks"]), "stride": 1}

    assert COLLECTIVES[row["kind"]](cluster, **case) == pytest.approx(float(row["seconds"]), rel=0.16)


A100_NODE_MILLISECONDS = {
    16: 0.2766,
    32: 0.424,
    64: 0.6846,
    128: 1.3276,
    256: 2.4206,
    512: 4.2184,
    1024: 8.2039,
    2048: 16.24,
    4096: 32.136,
    8192: 64.074,
    16384: 127.997,
}
"""All-reduce of so many MiB on 8 A100: nccl-tests in ml-engineering, network/README.md."""


def test_catalog_agrees_with_the_median_of_an_a100_node():
    """All sizes from 16 MiB to 16 GiB: the median of measured over computed is 1 within 10 %."""
    nbytes = 2.0**20 * np.array([*A100_NODE_MILLISECONDS])
    seconds = np.array([*A100_NODE_MILLISECONDS.values()]) / 1e3
    cluster = Cluster(device=catalog.equip_device("a100-80gb-sxm"), num_devices=8)

    computed = all_reduce(cluster, nbytes=nbytes, ranks=8, stride=1)

    assert np.median(seconds / computed) == pytest.approx(1, abs=0.1)


# --- MoFa's cluster B ----------------------------------------------------------------------------------------


LAYER_PARAMETERS = 16384 * (16384 + 2 * 2048) + 16384**2 + 3 * 16384 * 53248


@in_one_case(
    ("layers_per_rank", "ranks", "seconds"),
    [(16, 32, 1.75), (16, 128, 0.63 / 0.303), (8, 16, 0.24 / 0.303), (8, 64, 0.29 / 0.303)],
)
def test_mofa_data_parallel_times(layers_per_rank, ranks, seconds):
    """Tables 6 and 9: 1.75 s plain, 0.63, 0.24 and 0.29 s overlapped, of which 0.303 of the plain time is left."""
    cluster = Cluster(device=catalog.equip_device("mofa-b"), num_devices=8192)
    case = {"nbytes": 2 * layers_per_rank * LAYER_PARAMETERS / 8, "ranks": ranks, "stride": 8}

    plain = reduce_scatter(cluster, **case) + all_gather(cluster, **case)

    assert plain == pytest.approx(seconds, abs=0.005 / 0.303)


@in_one_case(
    ("tp", "mbs", "slots_times_layers", "seconds"),
    [(8, 2, 32.875 * 16, 7.34), (8, 1, 16.875 * 16, 2.07), (4, 2, 35.75 * 8, 3.32), (4, 1, 17.875 * 8, 4 * 0.23)],
)
def test_mofa_tensor_parallel_times(tp, mbs, slots_times_layers, seconds):
    """Table 6: 8 collectives per layer; the last row is printed overlapped, a quarter of it."""
    cluster = Cluster(device=catalog.equip_device("mofa-b"), num_devices=64)
    gathered = Communication(group="tp", kind="all_gather", nbytes=mbs * 8192 * 16384 * 2, forward=4, backward=4)

    layer = 8 * communication_seconds(cluster, gathered, ranks=tp, stride=1)

    assert layer * slots_times_layers == pytest.approx(seconds, abs=0.02)


@in_one_case(("ep", "seconds"), [(8, 2.30), (16, 2.55), (32, 2.84), (64, 3.15), (128, 3.50), (256, 3.89)])
def test_mofa_expert_parallel_times(ep, seconds):
    """Table 8: warm-up and cool-down together pass the 59 MoE layers once, with 4 all-to-alls each."""
    cluster = Cluster(device=catalog.equip_device("mofa-b-deepseek"), num_devices=1024)
    dispatched = Communication(group="ep", kind="all_to_all", nbytes=2 * 4096 * 8 * 7168 * 2, forward=2, backward=2)

    assert 4 * 59 * communication_seconds(cluster, dispatched, ranks=ep, stride=1) == pytest.approx(seconds, abs=0.005)


def test_kept_coefficients_change_no_time():
    """One cluster asked about many groups, some of them twice and as other types, says what a new one says of each."""
    cluster, groups = a_cluster(num_devices=4096), [2**power for power in range(13)]
    asked = [(ranks, stride) for ranks in groups for stride in groups if ranks * stride <= 4096]
    asked += [(np.array([[ranks], [2 * ranks]]), np.array([stride, 1])) for ranks, stride in asked[::2]]
    asked += [(float(ranks), stride) for ranks, stride in asked[:5]] + asked[::3]
    assert len(asked) > MOST_KEPT
    for ranks, stride in asked:
        for seconds_of in (all_gather, reduce_scatter, all_reduce, all_to_all):
            case = {"nbytes": 3.2 * GB, "ranks": ranks, "stride": stride}
            known, anew = seconds_of(cluster, **case), seconds_of(a_cluster(num_devices=4096), **case)
            np.testing.assert_array_equal(known, anew)
    assert len(cluster.coefficients) <= MOST_KEPT
