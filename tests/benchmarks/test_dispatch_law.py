"""Token exchanges learned from samples of an invented library, whose law is known; the law by other arithmetic."""

import dataclasses

import numpy as np
import pytest

from benchmarks.operators import dispatch_law
from costmodel.errors import SpecError
from planner.measure.fit.law import Measured
from tests.cases import read_table

pytest.importorskip("scipy", reason="learning needs SciPy")

GB = 1e9
LAW = read_table("dispatch_law")
TRUE = LAW["anywhere"] | {
    f"{name}.ours.{tier}": value
    for name, pair in LAW["by_tier"].items()
    for tier, value in zip(("links", "network"), pair, strict=True)
}


def exchanges(ranks, processors, *, leaves, payload=0, call=False, name="ours"):
    """Rows of one payload; nodes have eight devices where they exchange tokens."""
    ranks, processors, leaves, payload, call = np.broadcast_arrays(ranks, processors, leaves, payload, call)
    full = np.ones(ranks.shape)
    return dispatch_law.Exchanges(
        implementations=np.full(ranks.shape, name),
        devices=np.full(ranks.shape, "device"),
        payloads=payload.astype(int),
        ranks=ranks.astype(float),
        nodes=np.where(leaves, ranks / 8, 1.0),
        processors=processors.astype(float),
        token_bytes=np.where(payload == 0, 7392.0, 14336.0),
        top_k=8 * full,
        includes_call=call.astype(bool),
        link_bandwidth=450 * GB * full,
        network_bandwidth=50 * GB * full,
    )


def measured(*, noise=0.02, seed=0):
    """Samples of all payloads and timings, on links and on a network."""
    rows = [
        (ranks, processors, leaves, payload, call)
        for leaves, all_ranks in ((False, (4, 8, 16, 32)), (True, (16, 32, 64)))
        for ranks in all_ranks
        for processors in (4, 8, 16)
        for payload in range(3)
        for call in (False, True)
    ]
    ranks, processors, leaves, payload, call = (np.array(column) for column in zip(*rows, strict=True))
    of = exchanges(ranks, processors, leaves=leaves, payload=payload, call=call)
    draw = np.random.default_rng(seed)
    return Measured(
        calls=of, seconds=dispatch_law.seconds_per_byte(TRUE, of) * np.exp(noise * draw.normal(size=len(of)))
    )


class TestLaw:
    def test_the_constants_are_those_of_the_names(self):
        assert set(dispatch_law.constant_names(("ours",))) == set(TRUE)

    def test_different_nodes_of_random_choices(self):
        draw = np.random.default_rng(0).integers(0, 4, (20000, 8))
        seen = np.mean([len(set(row)) for row in draw.tolist()])

        assert dispatch_law.num_visited_places(np.array([4.0]), np.array([8.0]))[0] == pytest.approx(seen, rel=0.01)

    def test_with_many_processors_a_network_passes_what_is_for_other_nodes(self):
        found = dispatch_law.seconds_per_byte(TRUE, exchanges(np.array([64]), 10**6, leaves=True))
        link, fan = 7 / 8 / (0.9 * 50e9), 64 * (1 - (63 / 64) ** 8) / (8 * (1 - (7 / 8) ** 8)) / (0.7 * 450e9)

        assert found[0] == pytest.approx((link**4 + fan**4) ** 0.25)

    def test_with_one_processor_copies_take_the_time(self):
        found = dispatch_law.seconds_per_byte(TRUE, exchanges(np.array([8]), 0.01, leaves=False))

        assert found[0] == pytest.approx((1 / 60e9 + (0.2e-6 + 8 * 2e-9) / 7392) / 0.01, rel=1e-3)

    def test_a_call_adds_what_is_around_the_exchange(self):
        kernel, call = (
            dispatch_law.seconds_per_byte(TRUE, exchanges(np.array([8]), 16, leaves=False, call=call))
            for call in (0, 1)
        )

        assert call - kernel == pytest.approx(3e-9 / 7392 + 0.3e-12)


class TestLearnedDispatch:
    @pytest.mark.slow
    def test_ranks_that_were_left_out_are_predicted_and_in_their_interval(self):
        samples = measured()
        out = samples.calls.ranks == 32
        times = dispatch_law.learn_dispatch(samples[~out])
        unseen = samples[out]
        seconds = times.seconds(unseen.calls, 1.0)
        low, high = times.interval(unseen.calls, 1.0)

        assert np.median(np.abs(seconds / unseen.seconds - 1)) < 0.05
        assert np.mean((low < unseen.seconds) & (unseen.seconds < high)) > 0.8
        np.testing.assert_allclose(times.seconds(unseen.calls, 1e6), 1e6 * seconds)
        with pytest.raises(SpecError, match=r"'our' was not sampled\. Did you mean 'ours'"):
            times.seconds(exchanges(np.array([8]), 8, leaves=False, name="our"), 1.0)

    @pytest.mark.slow
    def test_efficiencies_are_found_and_where_calls_alone_were_timed_times_are_taken_as_they_are(self):
        samples = measured()
        learned = dispatch_law.learn_dispatch(samples)
        calls = samples[samples.calls.includes_call]

        assert learned.estimates.values["network_efficiency"] == pytest.approx(0.9, rel=0.1)
        assert learned.estimates.values["link_efficiency"] == pytest.approx(0.7, rel=0.15)
        assert learned.with_calls == {"ours"}
        times = dispatch_law.learn_dispatch(calls)
        attach_kernel = dataclasses.replace(calls.calls, includes_call=np.zeros(len(calls), dtype=bool))
        assert times.with_calls == frozenset()
        np.testing.assert_allclose(times.law(attach_kernel), times.law(calls.calls))

    def test_too_few_samples_and_times_that_are_none_are_refused(self):
        samples = measured()

        with pytest.raises(SpecError, match=r"4 of token exchanges are too few"):
            dispatch_law.learn_dispatch(samples[np.arange(4)])
        with pytest.raises(SpecError, match="not positive numbers"):
            dispatch_law.learn_dispatch(dataclasses.replace(samples, seconds=-samples.seconds))
