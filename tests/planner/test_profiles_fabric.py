"""Sampled collectives in a device's file: what comes out is what went in, and plans ask it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric, Samples
from costmodel.network.collectives import collective_seconds
from costmodel.network.link_law import CONSTANTS
from costmodel.network.sampled_fabric import learn_collectives, sampled_seconds
from planner.measure.fit.communication import FEWEST, learn_fabric, report_unlearned_collectives
from planner.measure.fit.device import fit_device, render_fit
from planner.measure.sample.samples import Point, Sample, Sizes
from tests.builders_cluster import a_cluster, achieved
from tests.builders_samples import (
    ADAPTER_BANDWIDTH,
    BYTES_PER_SECOND,
    LINK_BANDWIDTH,
    collective_points,
    matmul_points,
    samples_of,
    true_seconds,
)

pytest.importorskip("scipy", reason="learning needs SciPy")

COPY = Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28))
LINK = Point(operator="host_to_device", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28))
UPDATE = Point(operator="host_adam", pass_="forward", dtype="fp32", sizes=Sizes(n=2**28))
KIND_GROUPS = (("all_reduce", 4, 1), ("all_gather", 8, 2), ("reduce_scatter", 2, 2))


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Collectives of a machine that nobody has, inside a node of four and between two of them."""
    return samples_of(collective_points())


@pytest.fixture(scope="module")
def learned(samples: list[Sample]) -> Any:
    """What a file says of them, and the same to be asked."""
    return learn_fabric(samples, Fabric())


def a_sampled_cluster(fabric: Any, **changes: Any) -> Any:
    """Nodes of four devices whose collectives were sampled."""
    constants = {"times": "sampled", "attention_efficiency": 0.5, "memory_efficiency": 0.5}
    cluster = a_cluster(32, devices_per_node=4, **achieved(**constants | changes))
    device = cluster.device
    inner, *others = device.networks
    samples = Samples(machine="Accelerator X", collectives=fabric)
    return replace(
        cluster,
        device=replace(
            device,
            networks=(replace(inner, num_peers=4), *others),
            calibration=replace(device.calibration, samples=samples),
        ),
    )


class TestStored:
    @pytest.mark.slow
    def test_a_file_says_what_was_learned(self, learned: Any):
        stored, times = learned
        again = learn_collectives(a_sampled_cluster(stored))
        for kind, ranks, nodes in KIND_GROUPS:
            for nbytes in (2e4, 3e6, 2e8):
                case = {"nbytes": nbytes, "ranks": ranks, "nodes": nodes}
                assert again.seconds(kind, **case) == pytest.approx(float(times.seconds(kind, **case)), rel=1e-3)
                assert again.relative_deviation(kind, **case) >= 0

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "ranks", "nodes"), KIND_GROUPS)
    def test_sizes_between_samples_take_what_they_would(self, learned: Any, kind: str, ranks: int, nodes: int):
        _, times = learned
        for nbytes in (48 * 2**10, 3 * 2**20, 96 * 2**20):
            point = Point(
                operator=kind, pass_="forward", dtype="bf16", sizes=Sizes(nbytes=nbytes, ranks=ranks, nodes=nodes)
            )
            found = float(times.seconds(kind, nbytes=nbytes, ranks=ranks, nodes=nodes))
            assert found == pytest.approx(true_seconds(point), rel=0.1)

    def test_few_collectives_are_not_learned_silently(self, samples: list[Sample]):
        few = samples[: FEWEST - 1]
        assert learn_fabric(few, Fabric()) == (None, None)
        assert [name for name, _ in report_unlearned_collectives(few)] == ["collectives"]
        assert report_unlearned_collectives(()) == ()

    @pytest.mark.slow
    def test_networks_of_the_file_are_those_of_the_machine(self, samples: list[Sample]):
        matmuls = matmul_points(rows=(256, 4096), widths=(1024, 8192))
        grouped = [replace(one, operator="grouped_matmul", sizes=replace(one.sizes, batch=4)) for one in matmuls]
        alone = samples_of([*matmuls, *grouped, COPY, LINK, UPDATE])
        beside = [
            replace(
                one,
                point=replace(one.point, beside=other),
                timing=replace(one.timing, seconds=slower * one.timing.seconds),
            )
            for one in alone
            for other, slower in (("copy", 1.3), ("matmul", 1.6))
            if (one.point.operator, other) in (("matmul", "copy"), ("copy", "matmul"))
        ]
        found = fit_device([*samples, *alone, *beside], name="mine")
        entry, constants = found.entry, found.entry["calibration"]
        assert entry["host_to_device_bandwidth"] == pytest.approx(2e10, rel=0.05)
        assert entry["host_processors"]["memory_bandwidth"] == pytest.approx(BYTES_PER_SECOND, rel=0.05)
        assert constants["grouped_matmul_efficiency"] == pytest.approx(1, abs=0.1)
        assert constants["overlap_slowdown_compute"] == pytest.approx(1.3)
        assert constants["overlap_slowdown_communication"] == pytest.approx(1.6)
        (line,) = (line for line in render_fit(found, "mine.yaml").splitlines() if line.startswith("collectives"))
        (inside,), (between,) = (re.findall(rf"([\d.]+) GB/s {place}", line) for place in ("inside", "of a device"))
        assert float(inside) == pytest.approx(LINK_BANDWIDTH / 1e9, rel=0.15)
        assert float(between) == pytest.approx(ADAPTER_BANDWIDTH / 1e9, rel=0.15)
        node, network = entry["networks"]
        assert (node["num_peers"], network["num_peers"]) == (4, 1048576)
        assert node["bandwidth"] == pytest.approx(LINK_BANDWIDTH, rel=0.15)
        assert network["bandwidth"] == pytest.approx(ADAPTER_BANDWIDTH, rel=0.15)
        assert entry["sources"]["networks"].startswith("planner calibrate")
        assert catalog.device_of(entry, "device").calibration.samples.collectives is not None

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            (
                {"constants": {"x": 1.0}, "covariance": "1"},
                "constants: lacks bandwidth, .* calibrate' writes them",
            ),
            ({"covariance": " ".join(["0"] * len(CONSTANTS))}, "covariance: expected 33 lines with as many numbers"),
            ({"inside": {"lengths": (1.0,)}}, "lengths: has 1 numbers, expected"),
            ({"inside": {"curves": "all_gathr 4 1"}}, "'all_gathr' is not a collective. Did you mean 'all_gather'"),
        ],
    )
    def test_a_file_edited_by_hand_is_refused_with_the_place(self, learned: Any, changes: Any, problem: str):
        stored, _ = learned
        if "inside" in changes:
            changes = {"inside": replace(stored.inside, **changes["inside"])}
        with pytest.raises(SpecError, match=f"samples.collectives.*{problem}"):
            learn_collectives(a_sampled_cluster(replace(stored, **changes)))


class TestClusters:
    def test_groups_inside_and_between_nodes(self, learned: Any):
        """Four ranks side by side share a node; eight fill two; two ranks four devices apart are on two nodes."""
        stored, times = learned
        cluster = a_sampled_cluster(stored)
        for ranks, stride, nodes in ((4, 1, 1), (8, 1, 2), (2, 4, 2)):
            expected = float(times.seconds("all_gather", nbytes=1e8, ranks=ranks, nodes=nodes))
            found = collective_seconds(cluster, "dp", "all_gather", nbytes=1e8, ranks=ranks, stride=stride)
            assert float(found) == pytest.approx(expected, rel=1e-3)

    def test_arrays_give_what_scalars_give(self, learned: Any):
        cluster = a_sampled_cluster(learned[0])
        nbytes, ranks = np.array([[1e6], [1e8]]), np.array([1, 2, 4, 8])
        many = collective_seconds(cluster, "tp", "all_reduce", nbytes=nbytes, ranks=ranks, stride=1)
        single = [
            [float(collective_seconds(cluster, "tp", "all_reduce", nbytes=b, ranks=n, stride=1)) for n in ranks]
            for b in nbytes.ravel()
        ]
        np.testing.assert_allclose(many, single, rtol=1e-9)
        assert np.all(many[:, 0] == 0), "a rank alone sends nothing"

    def test_a_chain_sends_mostly_inside_its_nodes(self, learned: Any):
        """Of the seven sends among eight ranks on two nodes one leaves a node."""
        stored, times = learned
        cluster = a_sampled_cluster(stored)
        inside, between = (float(times.seconds("send", nbytes=1e7, ranks=2, nodes=nodes)) for nodes in (1, 2))
        found = sampled_seconds(cluster, "send", nbytes=1e7, ranks=8, stride=1)
        assert float(found) == pytest.approx((6 * inside + between) / 7, rel=1e-3)

    def test_what_nobody_sampled_is_computed(self, samples: list[Sample]):
        """Of a table that never left a node the device's networks say what passes between nodes."""
        alone, _ = learn_fabric([one for one in samples if one.point.sizes.nodes == 1], Fabric())
        cluster = a_sampled_cluster(alone)
        computed = replace(cluster, device=replace(cluster.device, **achieved(cluster.device, times="roofline")))
        case = {"nbytes": 1e8, "stride": 1}
        found, law = (collective_seconds(one, "dp", "all_gather", ranks=8, **case) for one in (cluster, computed))
        assert float(found) == pytest.approx(float(law))
        inside, law = (collective_seconds(one, "dp", "all_gather", ranks=4, **case) for one in (cluster, computed))
        assert float(inside) != pytest.approx(float(law), rel=1e-3)

    def test_other_times_do_not_ask_samples(self, learned: Any):
        cluster = a_sampled_cluster(learned[0], times="modified_roofline")
        assert learn_collectives(cluster) is None
