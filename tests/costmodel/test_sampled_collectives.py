"""The law of links by independent arithmetic, and times that go back to it far from samples."""

import numpy as np
import pytest

from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric
from costmodel.network.link_law import CONSTANTS, KINDS, Estimates, calls_of, law_seconds
from costmodel.network.sampled_fabric import Deviations, SampledCollectives
from costmodel.timing.gaussian_process import fit_sparse_process
from costmodel.validation import build
from tests.cases import in_one_case

US, GB = 1e-6, 1e9
PLAIN = {
    "bandwidth": 200 * GB,
    "slow_bandwidth": 20 * GB,
    "summing_bandwidth": 300 * GB,
    "step_seconds": 2 * US,
    "segment_seconds": 0.0,
    "network_bandwidth": 25 * GB,
    "node_network_bandwidth": 80 * GB,
    "node_seconds": 8 * US,
    "network_segment_seconds": 0.0,
}
VALUES = {
    **{name: 1.0 for name in CONSTANTS if "share" in name},
    **{name: 10 * US for name in CONSTANTS if "launch" in name},
    **PLAIN,
}
SEGMENTED = {**VALUES, "segment_seconds": 0.5 * US, "network_segment_seconds": 1.0 * US}
SWITCH, MESH, PAIRS = Fabric(), Fabric(is_mesh=True), Fabric(fast_peers=2)
SUMMING = Fabric(sums_in_switch=True)


def seconds(kind, nbytes, ranks, nodes, fabric=SWITCH, constants=VALUES):
    """The law's seconds of one collective."""
    return float(law_seconds(constants, calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes), fabric)[0])


def estimates(constants=VALUES, deviation=1e-3):
    """Constants that are nearly sure."""
    logarithms = np.log([constants[name] or 1e-30 for name in CONSTANTS])
    return Estimates(names=CONSTANTS, logarithms=logarithms, covariance=deviation**2 * np.eye(len(CONSTANTS)))


class TestLaw:
    @in_one_case(
        ("kind", "sent", "steps"),
        [
            ("all_reduce", 2 * 7 / 8, 14),
            ("all_gather", 7 / 8, 7),
            ("reduce_scatter", 7 / 8, 7),
            ("all_to_all", 7 / 8, 7),
            ("broadcast", 1.0, 7),
            ("send", 1.0, 1),
        ],
    )
    def test_inside_a_node_bytes_over_bandwidth_and_a_latency_for_each_step(self, kind, sent, steps):
        assert seconds(kind, 1e9, 8, 1) == pytest.approx(10e-6 + 2e-6 * steps + sent * 1e9 / 200e9)

    def test_a_pipeline_of_pieces_is_as_late_as_its_best_piece_allows(self):
        late = seconds("all_gather", 1e8, 8, 1, constants=SEGMENTED) - seconds("all_gather", 1e8, 8, 1)
        transfer, count = 7 / 8 * 1e8 / 200e9, np.arange(1, 2000)
        tried = 0.5e-6 * count + 7 * transfer / count

        assert late == pytest.approx(np.min(tried), rel=1e-3)

    def test_links_of_a_mesh_work_in_parallel(self):
        assert seconds("all_reduce", 1e9, 4, 1, MESH) == pytest.approx(10e-6 + 6 * 2e-6 + 1.5e9 / (3 * 200e9))
        assert seconds("send", 1e9, 4, 1, MESH) == pytest.approx(12e-6 + 1e9 / 200e9)

    def test_a_ring_that_leaves_the_fast_pair_has_the_slow_links_pace(self):
        assert seconds("all_gather", 1e9, 2, 1, PAIRS) == pytest.approx(12e-6 + 0.5e9 / 200e9)
        assert seconds("all_gather", 1e9, 4, 1, PAIRS) == pytest.approx(16e-6 + 0.75e9 / 20e9)

    def test_switches_sum_where_that_is_faster_than_a_ring(self):
        assert seconds("all_reduce", 1e9, 8, 1, SUMMING) == pytest.approx(14e-6 + 9 / 8 * 1e9 / 300e9)
        assert seconds("all_reduce", 1e9, 2, 1, SUMMING) == seconds("all_reduce", 1e9, 2, 1)
        assert seconds("all_gather", 1e9, 8, 1, SUMMING) == seconds("all_gather", 1e9, 8, 1)

    @pytest.mark.parametrize(("members", "outwards"), [(1, 25e9), (2, 50e9), (8, 80e9)])
    def test_between_nodes_each_rank_has_an_adapter_until_the_node_has_no_more(self, members, outwards):
        ranks = 4 * members
        fixed = 10e-6 + 3 * 8e-6 + 2e-6 * (ranks - 1)

        assert seconds("all_gather", 1e9, ranks, 4) == pytest.approx(fixed + (ranks - 1) / ranks * 1e9 / outwards)

    def test_an_all_reduce_passes_nodes_twice(self):
        assert seconds("all_reduce", 0, 8, 4) == pytest.approx(10e-6 + 2 * 3 * 8e-6 + 14 * 2e-6)

    def test_of_an_all_to_all_only_what_is_for_other_nodes_leaves(self):
        fixed = 10e-6 + 8e-6 + 7 * 2e-6

        assert seconds("all_to_all", 1e9, 8, 2) == pytest.approx(fixed + 4 * 1e9 * 4 / 8 / 80e9)

    def test_a_send_has_one_adapter(self):
        assert seconds("send", 1e9, 8, 2) == pytest.approx(10e-6 + 8e-6 + 2e-6 + 1e9 / 25e9)

    @in_one_case("fabric", [SWITCH, MESH, PAIRS, SUMMING])
    @in_one_case("kind", KINDS)
    @in_one_case(("ranks", "nodes"), [(2, 1), (8, 1), (4, 4), (32, 4)])
    def test_more_bytes_take_longer(self, fabric, kind, ranks, nodes):
        calls = calls_of(kind, nbytes=2.0 ** np.arange(0, 36, 0.5), ranks=ranks, nodes=nodes)

        assert np.all(np.diff(law_seconds(SEGMENTED, calls, fabric)) > 0)

    def test_seconds_scale_with_all_times_and_against_all_bandwidths(self):
        slow = {
            name: value * (1 if "share" in name else 1 / 50 if "bandwidth" in name else 50)
            for name, value in SEGMENTED.items()
        }

        for ranks, nodes in ((8, 1), (16, 2)):
            once = seconds("all_reduce", 1e7, ranks, nodes, constants=SEGMENTED)
            assert seconds("all_reduce", 1e7, ranks, nodes, constants=slow) == pytest.approx(50 * once)


class TestEstimates:
    def test_a_constant_that_a_time_is_proportional_to_passes_its_uncertainty_on(self):
        found = Estimates(names=("a", "b"), logarithms=np.log([3.0, 5.0]), covariance=np.diag([0.04, 0.09]))

        variance = found.variance(lambda constants: np.array([constants["a"], constants["a"] / constants["b"] ** 2]))

        np.testing.assert_allclose(variance, [0.04, 0.04 + 4 * 0.09], rtol=1e-2)
        assert found.deviation("b") == pytest.approx(0.3)
        assert found.values == pytest.approx({"a": 3.0, "b": 5.0})


class TestSampledCollectives:
    def times(self, *, error=0.2, **parameters):
        """Times of one node that all take longer than the law says."""
        calls = calls_of("all_gather", nbytes=2.0 ** np.arange(12, 28), ranks=8, nodes=1)
        process = fit_sparse_process(
            calls.features,
            np.full(len(calls), error),
            lengths=np.ones(calls.features.shape[1]),
            variance=0.04,
            noise=1e-4,
            num_points=50,
            offset=0.0,
        )
        sizes = calls.features[:, :4]
        inside = Deviations(
            process=process,
            curves=frozenset(calls.curves),
            lowest=sizes.min(axis=0),
            highest=sizes.max(axis=0),
            widening=2.0,
            widening_elsewhere=3.0,
        )
        return SampledCollectives(fabric=SWITCH, estimates=estimates(SEGMENTED), inside=inside, **parameters)

    def test_near_samples_the_laws_error_is_known_and_far_from_them_the_law_speaks(self):
        times = self.times()
        near, far = (times.seconds("all_gather", nbytes=nbytes, ranks=8, nodes=1) for nbytes in (2.0**20, 2.0**45))

        assert near == pytest.approx(np.exp(0.2) * seconds("all_gather", 2.0**20, 8, 1, constants=SEGMENTED), rel=0.01)
        assert far == pytest.approx(seconds("all_gather", 2.0**45, 8, 1, constants=SEGMENTED), rel=1e-6)

    def test_arrays_broadcast_and_scalars_stay_scalars(self):
        times = self.times()
        table = times.seconds("all_gather", nbytes=np.array([[1e6], [1e7]]), ranks=np.array([2, 4, 8]), nodes=1)

        assert table.shape == (2, 3)
        assert table[1, 2] == times.seconds("all_gather", nbytes=1e7, ranks=8, nodes=1)
        assert np.ndim(times.seconds("all_gather", nbytes=1e7, ranks=8, nodes=1)) == 0

    def test_nothing_without_bytes_or_other_ranks(self):
        assert self.times().seconds("all_reduce", nbytes=0, ranks=8, nodes=1) == 0
        assert self.times().seconds("all_reduce", nbytes=1e9, ranks=1, nodes=1) == 0

    def test_what_no_sample_is_like_is_outside(self):
        times = self.times()

        assert not times.is_outside("all_gather", nbytes=2.0**20, ranks=8, nodes=1)
        assert times.is_outside("all_gather", nbytes=2.0**30, ranks=8, nodes=1)
        assert times.is_outside("all_gather", nbytes=2.0**20, ranks=2, nodes=1)
        assert times.is_outside("all_reduce", nbytes=2.0**20, ranks=8, nodes=1)
        assert times.is_outside("all_gather", nbytes=2.0**20, ranks=8, nodes=8)

    def test_intervals_are_wider_on_other_curves_and_widest_without_samples(self):
        times = self.times()
        cases = ((8, 1), (4, 1), (8, 8))
        known, elsewhere, unknown = (
            times.relative_deviation("all_gather", nbytes=2.0**20, ranks=ranks, nodes=nodes) for ranks, nodes in cases
        )
        low, high = times.interval("all_gather", nbytes=2.0**20, ranks=8, nodes=1)

        assert known < elsewhere < unknown
        assert unknown == pytest.approx(1.0, rel=0.01)
        assert np.log(high / low) == pytest.approx(2 * 1.6449 * known)

    def test_networks_of_a_device_file_gather_nothing_as_long_as_the_law(self):
        constants = {**SEGMENTED, "network_launch_seconds.all_gather": 30e-6}
        times = SampledCollectives(fabric=SWITCH, estimates=estimates(constants))
        node, network = times.networks(devices_per_node=8, num_devices=64)

        assert (node.num_peers, node.bandwidth) == (8, pytest.approx(200e9))
        assert (network.num_peers, network.bandwidth) == (64, pytest.approx(10e9))
        assert 7 * node.latency == pytest.approx(seconds("all_gather", 0, 8, 1))
        both = 14 * node.latency + network.latency
        assert both == pytest.approx(seconds("all_gather", 0, 16, 2, constants=constants))

    def test_a_mesh_and_pairs_as_networks(self):
        values = {"estimates": estimates(SEGMENTED)}
        mesh = SampledCollectives(fabric=MESH, **values).networks(devices_per_node=4, num_devices=4)
        pairs = SampledCollectives(fabric=PAIRS, **values).networks(devices_per_node=4, num_devices=4)
        alone = SampledCollectives(fabric=SWITCH, **values).networks(devices_per_node=1, num_devices=8)

        assert [(one.is_mesh, one.bandwidth) for one in mesh] == [(True, pytest.approx(600e9))]
        assert [one.num_peers for one in pairs] == [2, 4]
        assert [one.bandwidth for one in pairs] == pytest.approx([200e9, 20e9])
        assert [one.name for one in alone] == ["network"]

    @pytest.mark.parametrize(
        ("case", "problem"),
        [
            ({"kind": "all_gathr"}, "Did you mean 'all_gather'"),
            ({"nbytes": -1}, "negative"),
            ({"ranks": 3, "nodes": 2}, "must be a multiple of nodes"),
        ],
    )
    def test_bad_input_is_refused(self, case, problem):
        whole = {"kind": "all_gather", "nbytes": 1e6, "ranks": 8, "nodes": 1, **case}

        with pytest.raises(SpecError, match=problem):
            self.times().seconds(whole.pop("kind"), **whole)

    def test_a_fabric_has_positive_numbers(self):
        with pytest.raises(SpecError, match=r"fabric\.bandwidth: must be more than 0"):
            build(Fabric, {"bandwidth": 0.0}, "fabric")
