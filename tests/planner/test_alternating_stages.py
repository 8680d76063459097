"""Stages of models whose kinds of layers alternate: Gemma 2 against its other dealings, bounds, what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from constraints.stages import Pipeline
from costmodel.models.patterns import layer_pattern
from costmodel.pipelines.stages import layers_between
from costmodel.step.estimate import estimate
from costmodel.step.layouts import PER_RANK, Contents, constant_seconds, layout_cost, rank_costs
from costmodel.strategy import StageLayout, Strategy
from costmodel.tables import microbatches
from planner import load
from planner.frameworks.megatron.stages import read_stages, stage_entries
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Status
from planner.search.questions import search
from planner.search.space import build_space
from planner.search.uneven import RankChoices, can_improve_incumbent, rank_choices, stage_restrictions
from tests.builders import a_model

GEMMA = {
    "model": "gemma-2-27b",
    "cluster": {"device": "h800", "num_devices": 256},
    "training": {"global_batch_size": 1024, "sequence_length": 8192, "tokens": 1e12},
    "search": {"evidence": "any", "pin": {"tp": 2, "pp": 4}},
    "top": 1,
}
"""Layers with a window of 4,096 tokens and without one, in turn; the fastest plan of all has no pipeline."""


def with_layers(strategy: Strategy, layers: tuple[int, ...]) -> Strategy:
    """A strategy with other layers per virtual stage."""
    pp = strategy.pp
    layout = StageLayout(
        layers=layers,
        recompute=(strategy.recompute,) * pp,
        full_layers=(0,) * pp,
        activation_offload=(strategy.activation_offload,) * pp,
    )
    return replace(strategy, layout=layout)


def moved(layers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """A dealing with one layer moved from any virtual stage to any other one."""
    for one, other in permutations(range(len(layers)), 2):
        if layers[one]:
            sizes = list(layers)
            sizes[one] -= 1
            sizes[other] += 1
            yield tuple(sizes)


def fits(problem: Problem, device_bytes: Any) -> Any:
    """Whether a peak fits into a device's memory."""
    return device_bytes <= problem.facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes


@pytest.mark.parametrize("sequence_length", [pytest.param(4096, marks=pytest.mark.slow), 8192])
def test_no_dealing_of_gemmas_layers_to_four_plain_stages_is_faster(sequence_length):
    """All 14,190 ways to share 46 layers out to four stages that hold some, each rank under its own memory."""
    training = {**GEMMA["training"], "sequence_length": sequence_length}
    problem = load({**GEMMA, "training": training, "search": {"evidence": "any", "pin": {"pp": 4, "vpp": 1}}})

    outcome = search(problem)

    (best,) = outcome.strategies
    dealings, seconds = dealt_seconds(problem, best)
    near = [dealings[index] for index in np.flatnonzero(seconds < 1.01 * seconds.min())]
    exact = [float(layout_cost(problem.facts, with_layers(best, layers)).step_seconds) for layers in near]
    assert outcome.status == Status.OPTIMAL
    assert best.layout is not None
    assert len(dealings) == 45 * 44 * 43 // 6
    assert outcome.step_seconds[0] <= min(*seconds, *exact) + outcome.rounding_bound_seconds
    assert best.layout.layers in near
    # Even, with embedding and head as a layer each.
    assert seconds[dealings.index((11, 12, 12, 11))] > 1.02 * outcome.step_seconds[0]


def dealt_seconds(problem: Problem, strategy: Strategy) -> tuple[list[tuple[int, ...]], Any]:
    """Dealings of the layers to plain stages, and a step with each by the sum of its ranks; infinite if too large."""
    facts, pp, num_layers = problem.facts, strategy.pp, problem.facts.model.num_layers
    stretches = list(combinations(range(num_layers + 1), 2))
    starts, ends = np.array(stretches * pp).T
    length, layers = (ends - starts).astype(float), layers_between(facts.model, starts, ends)
    none = np.zeros_like(layers)
    contents = Contents(
        rank=np.repeat(np.arange(pp), len(stretches)),
        layers=layers,
        mtp_layers=none,
        full_layers=none,
        largest_chunk=length,
        last_chunk=length,
        in_flight_imbalance=np.ones_like(length),
    )
    modes = {name: np.full(len(length), strategy.decisions()[name]) for name in PER_RANK}
    costs = rank_costs(facts, strategy.decisions() | modes, contents)
    seconds = np.where(fits(problem, costs.device_bytes), costs.seconds, np.inf)
    cuts = np.array([(0, *some, num_layers) for some in combinations(range(1, num_layers), pp - 1)])
    position = np.zeros((num_layers + 1, num_layers + 1), dtype=int)
    position[tuple(np.array(stretches).T)] = np.arange(len(stretches))
    chosen = position[cuts[:, :-1], cuts[:, 1:]] + len(stretches) * np.arange(pp)
    ranks, m = seconds[chosen], int(microbatches(facts, strategy.decisions()))
    steps = (m - 1) * ranks.max(axis=1) + ranks.sum(axis=1) + costs.ending_seconds[chosen].max(axis=1)
    dealings = [tuple(sizes) for sizes in np.diff(cuts, axis=1).tolist()]
    return dealings, steps + float(constant_seconds(facts, strategy.decisions()))


@pytest.mark.slow
def test_no_layer_of_gemmas_plan_is_better_elsewhere():
    """The plan as played against every other place of every layer."""
    problem = load(GEMMA)

    outcome = search(problem)

    (best,) = outcome.strategies
    assert outcome.status == Status.OPTIMAL
    assert best.layout is not None
    played = estimate(problem.facts, best).step_seconds
    for layers in moved(best.layout.layers):
        other = estimate(problem.facts, with_layers(best, layers))
        assert other.step_seconds >= played or not fits(problem, other.device_bytes)


@pytest.mark.slow
def test_stages_of_gpt_oss_are_written_as_megatron_lm_reads_them():
    """Windows and full attention in turn, in stages of which the first and the last hold fewer layers."""
    cluster = {"device": "a100-80gb-sxm", "num_devices": 64}
    training = {"global_batch_size": 256, "sequence_length": 4096, "tokens": 1e12}
    problem = load(
        {
            "model": "gpt-oss-120b",
            "cluster": cluster,
            "training": training,
            "search": {"evidence": "any", "pin": {"pp": 4, "vpp": 1}},
            "top": 1,
        }
    )

    (best,) = search(problem).strategies

    entries = stage_entries(best, problem.facts.model)
    assert best.layout is not None
    assert len(set(best.layout.layers)) > 1
    assert read_stages(entries, problem.facts.model, 4) == (1, best.layout.layers)


def test_what_stages_of_alternating_layers_leave_out_is_said():
    """Nemotron's layers repeat no short pattern, Gemma's repeat two."""
    cluster = {"device": "h800", "num_devices": 64}
    told = {}
    for model in ("nemotron-h-8b", "gemma-2-27b", "llama3-8b"):
        pins = {"tp": 8, "cp": 1, "pp": 2, "mbs": 1}
        search_section = {"stages": "free", "evidence": "any", "pin": pins}
        problem = load({**GEMMA, "model": model, "cluster": cluster, "search": search_section})
        told[model] = " ".join(stage_restrictions(problem, build_space(problem)))

    assert "repeat no short pattern" in told["nemotron-h-8b"]
    assert "recompute all of their layers alike" in told["gemma-2-27b"]
    assert "pattern" not in told["llama3-8b"]
    assert "alternate" not in told["llama3-8b"]


ORDERS = ("M*M*M*M*", "MM*MM*MM", "M-M*-M-M", "*MMM-M-M")
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 8, "mamba_state_size": 8, "mamba_num_groups": 2}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_bounds_are_below_every_dealing_of_alternating_layers(order, pp, vpp):
    """Random seconds for every content: a limit above the least step of all dealings is never called too low."""
    model = a_model(num_layers=8, pattern=order, **MAMBA)
    pattern = layer_pattern(model)
    pipeline = Pipeline(pp=pp, vpp=vpp, num_microbatches=8, num_layers=8, num_leading=0, pattern=pattern)
    choices = rank_choices(model, pp, vpp, 8, ((0, False),), False)
    chosen, weight, called_too_low = np.array(dealings(order, choices, pp, vpp)), 8 * vpp - 1, 0
    for seed in range(10):
        chooser = np.random.default_rng(seed)
        of_kinds = chooser.uniform(1.0, 10.0, pattern.num_kinds)
        own = choices.kinds @ of_kinds + chooser.uniform(0.0, 3.0, len(choices.sizes))
        least = ((weight * own[chosen].max(axis=1) + own[chosen].sum(axis=1)) / vpp).min()

        above, below = (
            can_improve_incumbent(
                choices,
                *np.minimum.reduceat([[own], [own], [0.0 * own]], choices.starts, axis=-1),
                pipeline,
                num_microbatches=np.array([8]),
                limits=np.array([limit]),
                of_kinds=of_kinds[None] * chooser.uniform(0.5, 1.5),
            )[0]
            for limit in (least * 1.0001, least * 0.8)
        )

        assert above, seed
        called_too_low += not below
    assert called_too_low


def dealings(order: str, choices: RankChoices, pp: int, vpp: int) -> list[list[int]]:
    """One content per rank, in every way that holds what its chunks meet, by walking along the letters."""
    kinds = list(dict.fromkeys(order))
    of_rank = [np.flatnonzero(choices.contents.rank == rank).tolist() for rank in range(pp)]
    found = []
    for chosen in product(*of_rank):
        if sum(sum(choices.sizes[one]) for one in chosen) != len(order):
            continue
        rest, held = order, [""] * pp
        for chunk, (rank, one) in product(range(vpp), enumerate(chosen)):
            size = choices.sizes[one][chunk]
            held[rank], rest = held[rank] + rest[:size], rest[size:]
        if [[own.count(kind) for kind in kinds] for own in held] == choices.kinds[list(chosen)].tolist():
            found.append(list(chosen))
    return found
