"""One strategy in detail: the parts are those of the step, the ranks those of the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.facts.model import Model
from costmodel.pipelines.orders import stages_of_rank
from costmodel.pipelines.simulator import fewest_passes
from costmodel.pipelines.stages import every_stage
from costmodel.step import estimate as module
from costmodel.step.estimate import PARTS, Estimate, Part, RankEstimate, estimate, rank_breakdowns, simulate_step
from costmodel.step.layer import layer_parts
from costmodel.step.layouts import strategy_seconds
from costmodel.step.rank_time import all_passes, rank_seconds, stage_passes
from costmodel.step.step import cost
from costmodel.strategy import BIDIRECTIONAL, V_SHAPED, Recompute, Schedule, Sharding
from tests.builders import a_model
from tests.builders_cluster import a_strategy
from tests.costmodel.strategies import DENSE, LATENT_MOE, MODELS, MOE, one_of, random_strategies, the_facts

PROFILES: tuple[dict[str, Any], ...] = (
    {},
    {"overlap_slowdown_communication": 1.5, "overlap_slowdown_compute": 1.3, "tp_contention": 0.0233},
    {"dp_overlap": {"unhidden": 0.303, "slowdown": 1.64, "window": 0.216}, "head_pipeline_fill_fraction": 0.3},
)


def parts_of(one: Estimate) -> dict[str, float]:
    """Exposed seconds by name."""
    return by_name(one.breakdown)


def by_name(breakdown: tuple[Part, ...]) -> dict[str, float]:
    """The same of any breakdown."""
    return {part.name: part.exposed_seconds for part in breakdown}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("profile", PROFILES, ids=("plain", "slow-downs", "measured"))
def test_an_estimate_is_the_cost(model: Model, profile: dict[str, Any]):
    """
    The closed form is the table's step, the fullest rank is the memory, for random strategies.

    The parts add up to the step as played: plain pipelines wait no longer than in the closed form and at most 9 % of
    the step less, interleaved ones at most 6 % less or more.
    """
    given, strategies = the_facts(model, **profile), random_strategies(model, 15, seed=51)
    table = cost(given, strategies)

    for row in range(15):
        one = estimate(given, one_of(strategies, row))

        assert strategy_seconds(given, one.strategy) == pytest.approx(table.step_seconds[row], rel=1e-12)
        assert sum(parts_of(one).values()) == pytest.approx(one.step_seconds, rel=1e-12)
        longest = 0.06 if one.strategy.vpp > 1 else 1e-12
        assert -0.09 < one.step_seconds / strategy_seconds(given, one.strategy) - 1 < longest
        assert one.device_bytes == pytest.approx(table.device_bytes[row], rel=1e-12)
        assert one.host_bytes == pytest.approx(table.host_bytes[row], rel=1e-12)
        assert one.num_microbatches == 256 // (strategies["dp"][row] * strategies["mbs"][row])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_rank_takes_the_same_step(model: Model):
    """What a rank does beside waiting is the length of its passes as played, what is beside them, and its ending."""
    given, strategies, num_played = the_facts(model), random_strategies(model, 15, seed=52), 0

    for row in range(15):
        strategy = one_of(strategies, row)
        one, ranks = estimate(given, strategy), [by_name(each) for each in rank_breakdowns(given, strategy)]
        slowest = max(one.ranks, key=lambda rank: rank.microbatch_seconds).rank

        assert len(ranks) == strategy.pp
        assert [sum(rank.values()) for rank in ranks] == pytest.approx([one.step_seconds] * strategy.pp, rel=1e-12)
        assert ranks[slowest]["compute"] == pytest.approx(parts_of(one)["compute"], rel=1e-12)
        played = simulate_step(given, strategy, most_passes=20_000)
        if played is not None:
            num_played += 1
            beside = sum(seconds for name, seconds in played.other_seconds.items() if name in ("ep", "host", "pp"))
            waiting = ("bubble", "dp", "optimizer")
            for number, rank in enumerate(ranks):
                own = {(each.start, each.end) for each in played.timeline.passes if each.rank == number}
                passes = sum(end - start for start, end in own)  # both halves of a backward pass share theirs
                busy = sum(seconds for name, seconds in rank.items() if name not in waiting)
                assert busy == pytest.approx(passes + beside, rel=1e-9)
    assert num_played > 2


@pytest.mark.parametrize("pp", [1, 2, 7, 14])
def test_a_pipeline_with_a_slow_head_is_played_as_computed(pp):
    """No pipeline, or equal ranks but for the last one, whose head sets the pace: the closed form is exact."""
    given, one = the_facts(DENSE), a_strategy(pp=pp)

    assert estimate(given, one).step_seconds == pytest.approx(strategy_seconds(given, one), rel=1e-12)


def test_ranks_behind_a_slow_one_answer_before_it_asks():
    """A short head, layers 4, 4, 4, 3: the second rank sets the pace, and its bubble is less than all the others."""
    given = the_facts(a_model(num_layers=15, vocab_size=8))
    one = estimate(given, a_strategy(pp=4))
    bubble = parts_of(one)["bubble"]
    paces = [rank.microbatch_seconds for rank in one.ranks]
    others = sum(paces) - max(paces)

    assert [rank.num_layers for rank in one.ranks] == [4, 4, 4, 3]
    assert paces[1] == max(paces) > paces[0]  # the first sends half as much
    assert bubble < others
    assert strategy_seconds(given, one.strategy) == pytest.approx(one.step_seconds, rel=1e-12)


@pytest.mark.parametrize("schedule", list(Schedule), ids=lambda one: one.text)
def test_virtual_stages_add_up_to_their_ranks(schedule):
    """One micro-batch: the passes of a rank's virtual stages are what the step charges the rank, and F and W too."""
    given, vpp = the_facts(MOE, microbatch_seconds=1e-3), 2 if schedule in V_SHAPED else 1
    strategy = a_strategy(pp=4, vpp=vpp, dp=2, ep=2, recompute=Recompute.FULL, schedule=schedule)
    decisions = strategy.decisions()
    passes, held = stage_passes(given, decisions), every_stage(MOE, pp=4, vpp=vpp, schedule=schedule)
    ranks = rank_seconds(given, decisions, held, layer_parts(given, decisions).total)
    stages = [list(stages_of_rank(schedule, rank, pp=4, vpp=vpp)) for rank in range(4)]
    share = 1 / 2 if schedule in BIDIRECTIONAL else 1
    everything = all_passes(given, decisions, held, layer_parts(given, decisions))

    assert [share * np.asarray(passes.total)[own].sum() for own in stages] == pytest.approx(ranks, rel=1e-12)
    for kind in ("forward", "backward", "weight"):
        assert getattr(passes, kind).sum() == pytest.approx(float(getattr(everything, kind)), rel=1e-12)


def test_both_stages_of_a_dualpipe_rank_are_in_its_memory():
    """Rank 0 holds the first and the last stage: embedding, head and 2 of 8 layers, as rank 3 does; ranks 1, 2 four."""
    given = the_facts(a_model(num_layers=8))
    plain, both = (estimate(given, a_strategy(pp=4, schedule=one)).ranks for one in (0, Schedule.DUALPIPE))

    def states(ranks: tuple[RankEstimate, ...]) -> list[float]:
        return [sum(rank.bytes_by_part[name] for name in ("weights", "gradients", "optimizer")) for rank in ranks]

    first, second, third, last = states(plain)

    assert [rank.num_layers for rank in both] == [4, 4, 4, 4]
    assert states(both) == pytest.approx([first + last, second + third, second + third, first + last])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_part_is_a_time(model: Model):
    """Nothing is exposed or hidden for less than no time, where nothing slows anything down."""
    given, strategies = the_facts(model), random_strategies(model, 12, seed=52)

    for row in range(12):
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


def test_a_pipeline_of_too_many_passes_waits_as_the_search_says(monkeypatch: pytest.MonkeyPatch):
    """Its breakdown is not simulated again; the parts add up to the closed form."""
    given, strategy = the_facts(DENSE), a_strategy(pp=4, vpp=2, dp=2)
    fewest = fewest_passes(**module._order(given, strategy.decisions()))
    monkeypatch.setattr(module, "MOST_SIMULATED_PASSES", fewest - 1)
    monkeypatch.setattr(module, "span_seconds", None)

    computed = module._estimate(given, strategy)

    assert sum(parts_of(computed).values()) == pytest.approx(strategy_seconds(given, strategy), rel=1e-12)
