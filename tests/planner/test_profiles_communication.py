"""Collective times learned from samples of invented fabrics, whose law is known."""

import dataclasses

import numpy as np
import pytest

from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric
from costmodel.network.link_law import CONSTANTS, calls_of, law_seconds
from planner.measure.fit.communication import collective_samples, curve_medians, learn_collectives
from planner.measure.fit.law import Measured
from planner.measure.sample.samples import Machine, Point, Sample, Sizes, Timing

pytest.importorskip("scipy", reason="learning needs SciPy")

GB, US = 1e9, 1e-6
TRUE = {
    **{name: 1.0 for name in CONSTANTS if "share" in name},
    **{name: 14 * US for name in CONSTANTS if name.startswith("launch")},
    **{name: 30 * US for name in CONSTANTS if name.startswith("network_launch")},
    "share.all_gather": 0.9,
    "bandwidth": 260 * GB,
    "slow_bandwidth": 20 * GB,
    "summing_bandwidth": 300 * GB,
    "step_seconds": 1.2 * US,
    "segment_seconds": 0.2 * US,
    "network_bandwidth": 15 * GB,
    "node_network_bandwidth": 100 * GB,
    "node_seconds": 6 * US,
    "network_segment_seconds": 0.8 * US,
}
DATASHEET = Fabric(
    bandwidth=300 * GB, network_bandwidth=25 * GB, node_network_bandwidth=200 * GB, launch_seconds=20 * US
)
LAYOUTS = ((2, 1), (4, 1), (8, 1), (8, 4), (16, 2), (16, 8))


def measured(kinds=("all_reduce", "all_gather"), layouts=LAYOUTS, *, noise=0.02, slower=1.0, seed=0, sizes=None):
    """Samples of a fabric; ``slower`` divides its bandwidths and multiplies its latencies."""
    sizes = 2.0 ** np.arange(10, 31, 2) if sizes is None else sizes
    rows = [(kind, size, *layout) for kind in kinds for layout in layouts for size in sizes]
    names, nbytes, ranks, nodes = (np.array(column) for column in zip(*rows, strict=True))
    calls = calls_of(names, nbytes=nbytes, ranks=ranks, nodes=nodes)
    draw = np.random.default_rng(seed)
    seconds = slower * law_seconds(TRUE, calls, Fabric()) * np.exp(noise * draw.normal(size=len(calls)))
    return Measured(calls=calls, seconds=seconds)


def errors(times, samples):
    """Relative errors of learned times."""
    return np.abs(times.seconds_of(samples.calls) / samples.seconds - 1)


class TestLearnedCollectives:
    @pytest.mark.slow
    def test_constants_are_found_within_the_noise(self):
        found = learn_collectives(measured(), DATASHEET).estimates

        for name, tolerance in (
            ("bandwidth", 0.04),
            ("network_bandwidth", 0.04),
            ("launch_seconds.all_gather", 0.15),
            ("share.all_gather", 0.04),
        ):
            assert found.values[name] == pytest.approx(TRUE[name], rel=tolerance), name
            assert found.deviation(name) < 0.3

    def test_constants_that_no_sample_knows_stay_at_the_datasheet(self):
        found = learn_collectives(measured(layouts=((2, 1), (4, 1), (8, 1))), DATASHEET).estimates

        assert found.values["network_bandwidth"] == pytest.approx(0.8 * 25 * GB)
        assert found.deviation("network_bandwidth") == pytest.approx(0.7)

    @pytest.mark.slow
    def test_a_number_of_ranks_that_was_left_out_is_predicted_and_in_its_interval(self):
        samples = measured()
        out = (samples.calls.ranks == 8) & (samples.calls.nodes == 1)
        times = learn_collectives(samples[~out], DATASHEET)
        low, high = times.interval("all_reduce", nbytes=samples.calls.nbytes[out], ranks=8, nodes=1)
        inside = (low < samples.seconds[out]) & (samples.seconds[out] < high)

        assert np.median(errors(times, samples[out])) < 0.05
        assert np.mean(inside[samples.calls.kinds[out] == 0]) > 0.8
        assert not times.is_outside("all_reduce", nbytes=2.0**20, ranks=8, nodes=1)

    def test_an_unknown_fabric_of_slow_loopback_is_learned_as_well(self):
        layouts = ((2, 1), (4, 1))
        samples = measured(layouts=layouts, slower=100.0)
        times = learn_collectives(samples, Fabric())

        assert np.median(errors(times, measured(layouts=layouts, slower=100.0, seed=1))) < 0.04
        assert times.estimates.values["bandwidth"] == pytest.approx(2.6 * GB, rel=0.1)
        assert times.networks(devices_per_node=4, num_devices=4)[0].bandwidth == pytest.approx(2.6 * GB, rel=0.1)

    @pytest.mark.slow
    def test_a_fabric_whose_times_are_twice_as_long_gets_times_twice_as_long(self):
        sizes = 2.0 ** np.arange(10, 31, 4)
        once, twice = (learn_collectives(measured(slower=slower, sizes=sizes), Fabric()) for slower in (1.0, 2.0))
        calls = measured().calls

        np.testing.assert_allclose(twice.seconds_of(calls), 2 * once.seconds_of(calls), rtol=0.05)

    @pytest.mark.parametrize("kind", ["send", "all_to_all"])
    def test_one_kind_on_one_layout_is_enough_for_itself(self, kind):
        samples = measured((kind,), ((2, 1),))
        times = learn_collectives(samples, Fabric())

        assert np.median(errors(times, measured((kind,), ((2, 1),), seed=1))) < 0.05
        assert times.is_outside("all_reduce", nbytes=2.0**20, ranks=2, nodes=1)
        assert times.is_outside(kind, nbytes=2.0**20, ranks=4, nodes=2)

    def test_five_samples_are_enough_and_four_are_not(self):
        few = measured(("all_reduce",), ((2, 1),), sizes=2.0 ** np.array([14, 18, 22, 26, 30]))

        assert np.median(errors(learn_collectives(few, DATASHEET), few)) < 0.1
        with pytest.raises(SpecError, match=r"4 of a fabric are too few. At least 5"):
            learn_collectives(few[np.arange(4)], DATASHEET)

    @pytest.mark.slow
    def test_a_bump_of_the_curves_is_learned_where_the_law_has_none(self):
        def bent(samples):
            bump = 0.4 * np.exp(-(((np.log2(samples.calls.nbytes) - 22) / 3) ** 2))
            return dataclasses.replace(samples, seconds=samples.seconds * np.exp(bump))

        sizes = 2.0 ** np.arange(10, 30.1, 1)
        times = learn_collectives(bent(measured(sizes=sizes)), DATASHEET)
        unseen = bent(measured(sizes=sizes * 2**0.5, seed=1))
        by_law = np.abs(times.law(unseen.calls) / unseen.seconds - 1)

        assert np.quantile(errors(times, unseen), 0.9) < np.quantile(by_law, 0.9) / 2
        low, high = np.exp(np.multiply.outer((-1, 1), 1.6449 * times.deviation_of(unseen.calls)))
        ratio = unseen.seconds / times.seconds_of(unseen.calls)
        assert np.mean((low < ratio) & (ratio < high)) > 0.8

    @pytest.mark.slow
    def test_cold_starts_move_nothing_much(self):
        samples = measured()
        cold = samples.seconds * np.where(samples.calls.nbytes == 2.0**10, 20.0, 1.0)
        times = learn_collectives(dataclasses.replace(samples, seconds=cold), DATASHEET)

        large = samples[samples.calls.nbytes > 2.0**20]
        assert np.median(errors(times, large)) < 0.04

    def test_times_that_are_none_are_refused(self):
        samples = measured()

        with pytest.raises(SpecError, match="not positive numbers"):
            learn_collectives(dataclasses.replace(samples, seconds=samples.seconds * np.nan), DATASHEET)


class TestSamples:
    def test_near_sizes_become_their_median(self):
        calls = calls_of("send", nbytes=np.array([1000, 1001, 1002, 4000]), ranks=2, nodes=np.array([1, 1, 1, 2]))
        medians = curve_medians(Measured(calls=calls, seconds=np.array([1.0, 9.0, 2.0, 5.0])))

        assert sorted(medians.seconds) == [2.0, 5.0]
        assert sorted(medians.calls.nbytes) == pytest.approx([(1000 * 1001 * 1002) ** (1 / 3), 4000])

    def test_collectives_of_a_table_that_ran_alone(self):
        machine, timing = Machine(device="d", driver="", software=""), Timing(seconds=2e-3, spread=0.0, repeats=5)
        sizes = Sizes(nbytes=4096, ranks=8, nodes=2)
        points = [
            Point(operator="all_reduce", pass_="forward", dtype="bf16", sizes=sizes),
            Point(operator="all_reduce", pass_="forward", dtype="bf16", sizes=sizes, beside="matmul"),
            Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=4096)),
        ]
        samples = [Sample(point=point, timing=timing, machine=machine) for point in points]
        found = collective_samples(samples)

        assert (len(found), found.seconds[0], found.calls.curves[0]) == (1, 2e-3, (0, 8, 2))
        with pytest.raises(SpecError, match="none is a collective"):
            collective_samples(samples[2:])
