"""Published collectives and token exchanges as samples, what is left out of them, and what they are compared with."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.operators import baselines, dispatch
from benchmarks.operators.communication import EVERY, by_ranks, by_size, collectives, fabric_of, small_collectives
from costmodel.network.link_law import calls_of
from planner.measure.fit.law import Measured


@pytest.fixture(scope="module")
def systems():
    """Systems of ``collectives.csv`` by name."""
    return {system.name: system for system in collectives()}


def unseen(system, errors, covered):
    """Errors of one law."""
    outside = np.nan if system == "one" else 0.0
    return pd.DataFrame(
        {"system": system, "group": "send", "nbytes": 1e6, "outside": outside, "learned": errors, "covered": covered}
    )


class TestSystems:
    def test_every_row_with_bytes_belongs_to_one_system_but_two(self, systems):
        assert sum(len(system.samples) for system in systems.values()) == 545 - 2  # of MI300X
        assert sum(len(system.samples) for system in small_collectives()) == 22368

    def test_rows_that_state_bandwidths_alone_have_the_seconds_of_their_bytes(self, systems):
        samples = systems["B200 P6, rings"].samples
        eight = samples[samples.calls.ranks == 8]
        bus = eight.calls.sent_bytes / eight.seconds

        assert bus / 1e9 == pytest.approx([682.2])

    def test_switches_sum_where_notes_say_so(self, systems):
        assert systems["H200 node"].fabric.sums_in_switch
        assert not systems["H200 node, rings"].fabric.sums_in_switch
        assert systems["Perlmutter A100"].fabric.is_mesh

    def test_facts_are_in_bytes_and_seconds(self):
        fabric = fabric_of({"bandwidth": 300, "network": 12.5, "launch_us": 20})

        assert (fabric.bandwidth, fabric.network_bandwidth, fabric.launch_seconds) == (
            3e11,
            12.5e9,
            pytest.approx(2e-5),
        )
        assert fabric.slow_bandwidth is None

    def test_all_token_exchanges_are_read(self):
        samples = dispatch.exchanges()

        assert len(samples) == 189
        assert set(samples.calls.nodes[samples.calls.leaves]) == {2.0, 4.0, 8.0}
        assert set(samples.calls.token_bytes) == {7392.0, 14336.0}


class TestLeftOut:
    def test_sizes_are_dealt_in_turn_on_each_curve(self, systems):
        samples = systems["Galvatron"].samples
        folds = by_size(samples)
        for curve in set(samples.calls.curves):
            rows = np.array([one == curve for one in samples.calls.curves])
            order = folds[rows][np.argsort(samples.calls.nbytes[rows])]
            assert order.tolist() == [place % EVERY for place in range(len(order))]

    def test_a_number_of_ranks_is_left_out_whole(self, systems):
        samples = systems["Perlmutter A100"].samples

        assert by_ranks(samples).tolist() == samples.calls.ranks.tolist()


class TestBaselines:
    def test_latency_and_bandwidth_of_their_own_law_are_found(self):
        calls = calls_of(
            "all_gather", nbytes=np.repeat(2.0 ** np.arange(10, 31), 2), ranks=np.tile([4, 8], 21), nodes=1
        )
        seconds = 7e-6 + 2e-6 * (calls.ranks - 1) + calls.nbytes * (calls.ranks - 1) / calls.ranks / 90e9
        wanted = calls_of("all_gather", nbytes=2.0 ** np.arange(12, 31, 3), ranks=6, nodes=1)

        expected = 7e-6 + 10e-6 + wanted.nbytes * 5 / 6 / 90e9
        np.testing.assert_allclose(
            baselines.alpha_beta_seconds(Measured(calls=calls, seconds=seconds), wanted), expected, rtol=0.03
        )

    def test_interpolation_is_exact_on_powers_of_bytes_and_ranks(self):
        calls = calls_of("send", nbytes=np.tile(4.0 ** np.arange(5, 12), 2), ranks=np.repeat([2, 8], 7), nodes=1)
        known = Measured(calls=calls, seconds=1e-9 * calls.nbytes**0.8 * calls.ranks**0.5)
        wanted = calls_of("send", nbytes=np.array([3000.0, 1e5, 1e9]), ranks=np.array([2, 4, 2]), nodes=1)

        expected = 1e-9 * wanted.nbytes**0.8 * wanted.ranks**0.5
        np.testing.assert_allclose(baselines.interpolated_seconds(known, wanted), expected)

    def test_datasheet_takes_the_slowest_link(self):
        fabric = fabric_of({"bandwidth": 300, "slow_bandwidth": 32, "fast_peers": 2, "network": 12, "node_network": 20})
        calls = calls_of("send", nbytes=1e9, ranks=np.array([2, 4, 8]), nodes=np.array([1, 1, 4]))

        expected = [7e-6 + 1 / 300, 7e-6 + 1 / 32, 10e-6 + 1 / 20]
        np.testing.assert_allclose(baselines.datasheet_seconds(fabric, calls), expected)


class TestTable:
    def test_rows_of_systems_and_of_all_together(self):
        both = baselines.joined([unseen("one", [0.1, 0.2, 0.3], [True, True, False]), unseen("two", [0.5], [True])])
        head, one, two, total = baselines.lines(both)

        assert head.split()[:2] == ["system", "errors"]
        assert one.split() == ["one", "send", "3", "20.0%", "/", "28.0%", "67%", "-"]
        assert two.split() == ["two", "send", "1", "50.0%", "/", "50.0%", "100%", "0.0%"]
        assert total.split() == ["all", "4", "25.0%", "/", "44.0%", "75%", "-"]
