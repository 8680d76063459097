"""Stages that differ: ranks alone are the ranks of the whole, and no layout undercuts what is shared evenly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.pipelines.stages import activation_imbalance, layers_per_chunk
from costmodel.step.estimate import estimate
from costmodel.step.layouts import balance_of, even_chunks, full_by_chunk, last_rank_chunks, layout_cost, least_memory
from costmodel.step.step import cost
from costmodel.strategy import Recompute, StageLayout, Strategy
from tests.builders_cluster import a_strategy
from tests.costmodel.strategies import DENSE, MOE, the_facts


def laid_out(strategy: Strategy, layers: tuple[int, ...], **own: object) -> Strategy:
    """A strategy with a layout; every rank does what the strategy says, or what is given."""
    layout = StageLayout(
        layers=layers,
        recompute=(strategy.recompute,) * strategy.pp,
        full_layers=(0,) * strategy.pp,
        activation_offload=(strategy.activation_offload,) * strategy.pp,
    )
    return replace(strategy, layout=replace(layout, **own))


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_even_stages_cost_the_same_written_down(model, recompute, pp, vpp):
    """The layout that would be dealt anyway: same step, same memory, rank by rank and line by line."""
    facts, strategy = the_facts(model), a_strategy(pp=pp, vpp=vpp, dp=2, recompute=recompute)
    dealt = layers_per_chunk(model.num_layers, num_chunks=pp * vpp, mtp_layers=len(model.mtp_layers))
    written = laid_out(strategy, dealt)

    table, own = cost(facts, strategy.decisions()), layout_cost(facts, written)

    assert own.step_seconds == pytest.approx(float(table.step_seconds), rel=1e-12)
    assert own.device_bytes == pytest.approx(float(table.device_bytes), rel=1e-12)
    assert own.bubble_seconds == pytest.approx(float(table.bubble_seconds), rel=1e-12)
    one, other = estimate(facts, strategy), estimate(facts, written)
    assert other.step_seconds == pytest.approx(one.step_seconds, rel=1e-12)
    for part, same in zip(one.breakdown, other.breakdown, strict=True):
        assert (same.exposed_seconds, same.hidden_seconds) == pytest.approx((part.exposed_seconds, part.hidden_seconds))
    for rank, same in zip(one.ranks, other.ranks, strict=True):
        assert same.bytes_by_part == pytest.approx(rank.bytes_by_part)


def test_layers_in_full_lie_between_none_and_all():
    """Each further layer of a rank that is recomputed takes time and frees the same memory, until all of them are."""
    facts, strategy = the_facts(DENSE), a_strategy(pp=2)
    half = DENSE.num_layers // 2
    some = [estimate(facts, laid_out(strategy, (half, half), full_layers=(num, 0))).ranks[0] for num in range(half + 1)]
    every = estimate(facts, laid_out(strategy, (half, half), recompute=(Recompute.FULL, Recompute.NONE))).ranks[0]

    seconds = np.diff([rank.microbatch_seconds for rank in some])
    kept = np.diff([rank.bytes_by_part["activations"] for rank in some])
    assert seconds == pytest.approx(seconds[0])
    assert kept == pytest.approx(kept[0])
    assert seconds[0] > 0 > kept[0]
    assert some[-1].microbatch_seconds == pytest.approx(every.microbatch_seconds)
    assert some[-1].bytes_by_part == pytest.approx(every.bytes_by_part)


@pytest.mark.slow
def test_no_layout_undercuts_even_shares():
    """Half of the ways to share 14 layers out over three ranks, with and without recomputation."""
    facts, strategy = the_facts(DENSE), a_strategy(pp=3, dp=2)
    decisions = strategy.decisions()
    shapes = [(a, b, 14 - a - b) for a in range(1, 12, 2) for b in range(1, 13 - a)]

    costs = [
        layout_cost(facts, laid_out(strategy, shape, recompute=(again,) * 3))
        for shape in shapes
        for again in (Recompute.NONE, Recompute.FULL)
    ]

    assert DENSE.num_layers == 14
    assert float(balance_of(facts, decisions).seconds) <= min(one.step_seconds for one in costs)
    device, host = least_memory(facts, {**decisions, "recompute": Recompute.FULL})
    assert float(device) <= min(one.device_bytes for one in costs)
    assert float(host) <= min(one.host_bytes for one in costs)


@pytest.mark.parametrize(("sizes", "most"), [((2, 1), 9), ((1, 2), 7), ((2, 2), 10)])
def test_unequal_chunks_hold_what_they_hold_when_most_is_alive(sizes, most):
    """Two ranks: rank 0 holds four of its first chunk and one of its second, or three and two: 2 * 4 + 1, 3 + 2 * 2."""
    average = 5 * sum(sizes) / 2

    assert activation_imbalance(sizes, rank=0, pp=2) * average == pytest.approx(max(most, average))


def test_chunks_are_even():
    """Seven layers in three chunks; beside a head of 1.3 layers the last one gets one, one less or up to two more."""
    assert even_chunks(7, vpp=3) == (2, 2, 3)
    assert last_rank_chunks(7, vpp=3, beside_layers=1.3) == ((3, 4, 0), (3, 3, 1), (2, 3, 2), (2, 2, 3))
    assert last_rank_chunks(9, vpp=3, beside_layers=0.0) == ((3, 4, 2), (3, 3, 3))
    assert last_rank_chunks(7, vpp=1, beside_layers=1.3) == ((7,),)
    assert full_by_chunk(4, (2, 2, 3)) == (2, 1, 1)
