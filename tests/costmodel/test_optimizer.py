"""The end of a step: what data-parallel ranks exchange, and the update."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel import catalog
from costmodel.facts.calibration import DpBandwidth
from costmodel.facts.device import Cluster, EquippedDevice, HostProcessors, Network
from costmodel.memory import state_shards
from costmodel.network.collectives import Group
from costmodel.step.data_parallel import (
    data_parallel_collective_seconds,
    device_update_seconds,
    host_update_seconds,
    parameter_pass_seconds,
    replicas_seconds_measured,
)
from costmodel.strategy import Sharding
from tests.builders_cluster import GB, a_cluster, a_device, achieved
from tests.cases import in_one_case

ONE_SWITCH = (Network(name="switch", num_peers=10**6, bandwidth=50 * GB, latency=0.0),)


def test_gradients_are_reduced_once_over_the_ring():
    """4 GB over 8 ranks of one switch: each sends 7 / 8 of it at 50 GB/s, 70 ms."""
    cluster = a_cluster(networks=ONE_SWITCH)

    assert data_parallel_collective_seconds(
        cluster, "reduce_scatter", nbytes=4 * GB, group=Group(ranks=8, stride=1)
    ) == pytest.approx(0.07)
    assert data_parallel_collective_seconds(
        cluster, "all_gather", nbytes=4 * GB, group=Group(ranks=8, stride=1)
    ) == pytest.approx(0.07)


def test_rings_use_every_link_of_a_node():
    """64 ranks on eight nodes: eight rings share 4 GB, 4 * 63 / 64 / (8 * 50) = 9.84 ms; NVLink would take 9.84 too."""
    cluster = a_cluster(64)
    latency = 56 * 1e-6 + 7 * 1e-5

    seconds = data_parallel_collective_seconds(
        cluster, "reduce_scatter", nbytes=4 * GB, group=Group(ranks=64, stride=1)
    )

    assert seconds == pytest.approx(4 * 63 / 64 / 400 + latency)


def test_owners_broadcast_whole_tensors():
    """4 GB of 4 tensors to 8 ranks of one switch: 4 owners send 1 GB each, 20 ms and 7 hops of 1 ms."""
    network = Network(name="switch", num_peers=10**6, bandwidth=50 * GB, latency=1e-3)
    case = {"nbytes": 4 * GB, "group": Group(ranks=8, stride=1)}
    cluster = a_cluster(networks=(network,))

    assert data_parallel_collective_seconds(cluster, "broadcast", **case, pieces=4) == pytest.approx(4 * 0.027)
    assert data_parallel_collective_seconds(cluster, "broadcast", **case, pieces=8) == pytest.approx(8 * 0.017)


@in_one_case(("ranks", "more"), [(64, 0.29), (128, 0.42), (256, 0.93), (512, 1.46), (1024, 2.69)])
def test_broadcasts_of_internevo(ranks, more):
    """
    InternLM 7B on A100 with 4 x 100 Gbit/s per node: ZeRO-1 over all ranks takes longer than within nodes of 8.

    InternEvo's train_performance.md: 4.44 against 4.15 s, 4.59 against 4.17, 5.11 against 4.18, 5.73 against 4.27, 7.21
    against 4.52; 7.3e9 parameters of 2 bytes, 32 layers of 9 tensors, 3 others.
    """
    device = catalog.equip_device("a100-80gb-sxm")
    networks = (device.networks[0], *(replace(one, bandwidth=0.95 * 6.25 * GB) for one in device.networks[1:]))
    cluster = Cluster(device=replace(device, networks=networks), num_devices=ranks)

    apart, within = (
        data_parallel_collective_seconds(
            cluster, "broadcast", nbytes=14.6 * GB, group=Group(ranks=sharers, stride=1), pieces=min(sharers, 291)
        )
        for sharers in (ranks, 8)
    )

    assert apart - within == pytest.approx(more, rel=0.2)


def test_one_replica_exchanges_nothing():
    """A group of one rank has nobody to talk to."""
    assert (
        data_parallel_collective_seconds(a_cluster(), "reduce_scatter", nbytes=4 * GB, group=Group(ranks=1, stride=8))
        == 0
    )


def test_states_are_split_from_their_level_on():
    """Gradients from ZeRO-2 on."""
    shards = state_shards(64, sharding=np.arange(4), level=Sharding.GRADIENTS)

    assert shards.tolist() == [1, 1, 64, 64]


def test_update_on_the_device_is_bound_by_its_memory():
    """1e9 parameters of 30 bytes at 0.8 * 3,000 GB/s: 12.5 ms, over 8 shards an eighth (26)."""
    assert device_update_seconds(a_device(), local_parameters=1e9) == pytest.approx(0.0125)
    assert device_update_seconds(a_device(), local_parameters=1e9 / 8) == pytest.approx(0.0125 / 8)


def doing(device: EquippedDevice, **entries: Any) -> EquippedDevice:
    """The device with another behaviour of its framework."""
    return replace(device, **achieved(device, **entries))


def test_update_on_the_host():
    """MoFa's Table 6: 2 bytes each way at 32 GB/s and 4.46e9 parameters per second, 3.49e-10 s each (28)."""
    host = HostProcessors(memory_bandwidth=28 * 4.46e9)
    device = doing(a_device(host_processors=host), host_update_bytes=28.0, host_transfer_bytes=2.0)

    assert host_update_seconds(device, local_parameters=1.0) == pytest.approx(3.49e-10, rel=1e-3)


@in_one_case(
    ("entries", "seconds"),
    [
        ({}, 1.75),
        ({"offload_overlap": True}, 1.5),
        ({"offloaded_states": 0.5}, 0.875),
        ({"host_update_bytes": 4.0}, 0.325),
        ({"host_update_bytes": 4.0, "offload_overlap": True}, 0.125),
        ({"host_threads": 1}, 6.25),
        ({"host_threads": 4}, 1.75),
        ({"host_threads": 64}, 1.75),
    ],
)
def test_what_a_framework_does_on_the_host(entries, seconds):
    """
    4 bytes each way at 32 GB/s, 0.125 s per 1e9 parameters, and the host's passes at 53.3 GB/s.

    80 bytes at 53.3 GB/s are 1.5 s, at the 13.3 GB/s of one thread 6. 4 bytes are 0.075 s, which the copies exceed.
    """
    host = HostProcessors(memory_bandwidth=160 * GB / 3, threads=14, thread_memory_bandwidth=40 * GB / 3)
    device = doing(a_device(host_processors=host), **entries)

    assert host_update_seconds(device, local_parameters=1e9) == pytest.approx(seconds)


def test_the_device_updates_its_part_beside_the_host():
    """Of 1e9 parameters 99 % take 12.4 ms at 30 bytes and 2,400 GB/s; the host's 1 % takes 2.5, each copy 1.25."""
    device = doing(a_device(), offloaded_states=0.01)

    assert host_update_seconds(device, local_parameters=1e9) == pytest.approx(0.012375 + 2 * 0.00125)


@pytest.mark.parametrize("faster", ["to_host", "from_host", "memory", "core", "threads", "overlap", "device"])
def test_a_faster_host_never_updates_slower(faster):
    """60 random hosts and frameworks, then one of their rates twice as high, or copies beside the update."""
    chooser = random.Random(7)

    for _ in range(60):
        rates = {name: chooser.uniform(1, 400) * GB for name in ("to_host", "from_host", "memory", "core")}
        cores, threads = chooser.randint(1, 72), chooser.randint(1, 100)
        entries = {
            "host_update_bytes": chooser.uniform(1, 100),
            "offloaded_states": chooser.random(),
            "offload_overlap": chooser.random() < 0.5,
        }
        twice = rates | ({faster: 2 * rates[faster]} if faster in rates else {})
        changed = entries | ({"offload_overlap": True} if faster == "overlap" else {})

        before = a_host(rates, cores, threads, **entries)
        after = a_host(twice, cores, threads * (1 + (faster == "threads")), **changed)
        after = replace(after, memory_bandwidth=after.memory_bandwidth * (1 + (faster == "device")))

        seconds = [host_update_seconds(one, local_parameters=1e9) for one in (before, after)]
        assert seconds[1] <= seconds[0] * (1 + 1e-12)


def a_host(rates: dict[str, float], cores: int, threads: int, **entries: Any) -> EquippedDevice:
    """A device with ports, host memory and cores of some rates."""
    host = HostProcessors(memory_bandwidth=rates["memory"], threads=cores, thread_memory_bandwidth=rates["core"])
    device = a_device(
        host_processors=host, device_to_host_bandwidth=rates["to_host"], host_to_device_bandwidth=rates["from_host"]
    )
    return doing(device, host_threads=threads, **entries)


def test_passes_over_all_parameters():
    """1e9 parameters of 24 bytes at 0.8 * 3,000 GB/s: 1e-11 s each."""
    device = a_device()
    device = replace(device, **achieved(device, parameter_pass_bytes=24.0))

    assert parameter_pass_seconds(device, parameters=1e9) == pytest.approx(0.01)


def a_measured_cluster():
    """Three placements with bandwidths of 10, 20 and 30 GB/s, experts at half of them, no decay."""
    laws = tuple(
        DpBandwidth(placement=placement, dense=speed * GB, expert=speed * GB / 2, decay=1.0, reference_ranks=1)
        for placement, speed in {"inside_node": 10, "more_replicas": 20, "fewer_replicas": 30}.items()
    )
    cluster = a_cluster()
    device = replace(cluster.device, **achieved(cluster.device, dp_bandwidths=laws))
    return replace(cluster, device=device)


@pytest.mark.parametrize(
    ("dense", "expert", "seconds"),
    [(8, 2, 1 / 10 + 1 / 2 / 5), (64, 16, 1 / 20 + 15 / 16 / 10), (64, 2, 1 / 30 + 1 / 2 / 15)],
)
def test_measured_bandwidths(dense, expert, seconds):
    """1 GB of dense and of expert parameters: 8 ranks are in a node; 16 replicas of 4 parts; 2 of 32."""
    measured = replicas_seconds_measured(
        a_measured_cluster(),
        dense_bytes=1 * GB,
        expert_bytes=1 * GB,
        dense=Group(ranks=dense, stride=1),
        expert=Group(ranks=expert, stride=1),
    )

    assert measured == pytest.approx(seconds)


def test_one_replica_exchanges_nothing_at_measured_bandwidths_either():
    """With dp = cp = 1 the measured law, like the computed one, has nothing to time."""
    alone = Group(ranks=1, stride=1)

    measured = replicas_seconds_measured(
        a_measured_cluster(), dense_bytes=1 * GB, expert_bytes=1 * GB, dense=alone, expert=alone
    )

    assert measured == 0
