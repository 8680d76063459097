"""One strategy in detail: the parts are those of the step, the ranks those of the memory."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.estimate import PARTS, Estimate, estimate
from costmodel.spec import Model
from costmodel.step import cost
from costmodel.strategy import Recompute, Sharding
from tests.builders import a_model
from tests.builders_cluster import a_strategy
from tests.costmodel.strategies import DENSE, LATENT_MOE, MODELS, MOE, one_of, random_strategies, the_facts

PROFILES: tuple[dict[str, Any], ...] = (
    {},
    {"overlap_slowdown_communication": 1.5, "overlap_slowdown_compute": 1.3, "tp_contention": 0.0233},
    {"dp_overlap": {"unhidden": 0.303, "slowdown": 1.64, "window": 0.216}, "head_fill_fraction": 0.3},
)


def parts_of(one: Estimate) -> dict[str, float]:
    """Exposed seconds by name."""
    return {part.name: part.exposed_seconds for part in one.breakdown}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("profile", PROFILES, ids=("plain", "slow-downs", "measured"))
def test_an_estimate_is_the_cost(model: Model, profile: dict[str, Any]):
    """The parts add up to the step, the fullest rank is the memory, for random strategies."""
    given, strategies = the_facts(model, **profile), random_strategies(model, 40, seed=51)
    table = cost(given, strategies)

    for row in range(40):
        one = estimate(given, one_of(strategies, row))

        assert one.step_seconds == pytest.approx(table.step_seconds[row], rel=1e-12)
        assert sum(parts_of(one).values()) == pytest.approx(table.step_seconds[row], rel=1e-12)
        assert one.device_bytes == pytest.approx(table.device_bytes[row], rel=1e-12)
        assert one.host_bytes == pytest.approx(table.host_bytes[row], rel=1e-12)
        assert one.num_microbatches == 256 // (strategies["dp"][row] * strategies["mbs"][row])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_part_is_a_time(model: Model):
    """Nothing is exposed or hidden for less than no time, where nothing slows anything down."""
    given, strategies = the_facts(model), random_strategies(model, 30, seed=52)

    for row in range(30):
        for part in estimate(given, one_of(strategies, row)).breakdown:
            assert part.exposed_seconds >= -1e-12, part.name
            assert part.hidden_seconds >= 0, part.name


def test_parts_are_in_the_order_of_a_step():
    """Every line is there, also where it is zero."""
    assert tuple(part.name for part in estimate(the_facts(DENSE), a_strategy()).breakdown) == PARTS


def test_one_device_computes_and_updates():
    """Nothing else takes time."""
    parts = parts_of(estimate(the_facts(DENSE), a_strategy()))

    assert {name for name, seconds in parts.items() if seconds} == {"compute", "optimizer"}


def test_every_feature_has_its_line():
    """What a decision adds is in the line of its name."""
    given = the_facts(MOE)
    strategy = a_strategy(
        tp=2, cp=2, pp=2, dp=4, ep=4, sequence_parallel=True, recompute=Recompute.FULL, sharding=Sharding.OPTIMIZER
    )

    parts = parts_of(estimate(given, strategy))

    assert {name for name, seconds in parts.items() if not seconds} == {"offload", "host"}


def test_hidden_communication_is_reported():
    """Overlapped data parallelism: exposed and hidden are together what it takes alone."""
    given = the_facts(DENSE)
    plain, hidden = (
        next(
            part for part in estimate(given, a_strategy(dp=8, sharding=1, dp_overlap=on)).breakdown if part.name == "dp"
        )
        for on in (False, True)
    )

    assert plain.hidden_seconds == 0
    assert hidden.hidden_seconds > 0
    assert hidden.exposed_seconds + hidden.hidden_seconds == pytest.approx(plain.exposed_seconds)


def test_every_rank_is_there():
    """Seven ranks of two layers; the first holds most micro-batches, the last the head."""
    one = estimate(the_facts(DENSE), a_strategy(pp=7))

    assert [rank.rank for rank in one.ranks] == list(range(7))
    assert [rank.num_layers for rank in one.ranks] == [2] * 7
    assert len({rank.microbatch_seconds for rank in one.ranks[1:-1]}) == 1
    assert one.ranks[-1].microbatch_seconds > one.ranks[1].microbatch_seconds
    assert all(rank.bytes_by_part["logits"] == 0 for rank in one.ranks[:-1])
    assert one.ranks[-1].bytes_by_part["logits"] > 0


def test_layers_of_uneven_ranks():
    """14 layers and slots of embedding, head and one MTP layer over four ranks: 17 slots, the first has one more."""
    one = estimate(the_facts(LATENT_MOE), a_strategy(pp=4))

    assert [rank.num_layers for rank in one.ranks] == [4, 4, 4, 3]


def test_an_estimate_of_a_forbidden_strategy():
    """More ranks than micro-batches: allowed by no rule, estimated all the same."""
    model = a_model(num_layers=8)

    one = estimate(the_facts(model), a_strategy(pp=8, dp=128))

    assert one.num_microbatches == 2
    assert one.step_seconds > 0
