"""
The plan against everything enumerated and simulated: 60 random small problems, hybrid models among them.

The enumeration is that of ``test_enumeration``, the simulator the naive one beside it. Of the project they share the
seconds of single passes and what a step has beside its pipeline.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.step.estimate import estimate, simulated_seconds
from costmodel.step.rank_time import edge_seconds, stage_passes
from costmodel.step.step import cost
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import GROUP_DECISIONS, Status
from planner.search.questions import search
from planner.search.space import strategy_of
from tests.builders import a_model, a_moe_model
from tests.builders_problem import a_problem, a_timed_device
from tests.oracle import blocks, in_step, name_of
from tests.oracle.pipeline_simulator import BACKWARD, FORWARD, order, play
from tests.oracle.test_enumeration import FEATURE_VALUES, HALF_A_BYTE, columns, enumerate_strategies, fits

SEEDS = blocks(in_step(60), 6, few=range(4))

PATTERNS = ("*-*-E-*-", "*E--*E--", "*-E*-E*-E", "E-E-*-", "***---EE")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", SEEDS, ids=name_of)
def test_the_plan_is_the_best_of_everything_simulated(seeds):
    """The best of each group, or the best one alone: no strategy that fits is faster once both are simulated."""
    pipelines = 0
    for seed in seeds:
        problem, listed = a_tight_problem(random.Random(seed))

        outcome = search(problem)

        expected = best_of_each_group(problem, listed)
        assert (outcome.status == Status.INFEASIBLE) == (not expected), seed
        if expected:
            np.testing.assert_allclose(outcome.step_seconds, expected, rtol=1e-9, atol=outcome.rounding_bound_seconds)
            best = outcome.strategies[0]
            assert played_seconds(problem.facts, best.decisions(), {}) == pytest.approx(
                outcome.step_seconds[0], rel=1e-9
            )
            pipelines += best.pp > 1
    assert pipelines


def test_simulated_seconds_are_those_of_an_estimate():
    """The step alone, without its breakdown: the same figure for every strategy of some problems."""
    for seed in range(4):
        problem, listed = a_tight_problem(random.Random(seed))
        for decisions in listed[:: max(1, len(listed) // 20)]:
            strategy = strategy_of(decisions)
            assert simulated_seconds(problem.facts, strategy) == pytest.approx(
                estimate(problem.facts, strategy).step_seconds, rel=1e-12
            )


def best_of_each_group(problem: Problem, listed: list[dict[str, Any]]) -> list[float]:
    """Simulated steps of the best strategies that fit, one of each group, best first."""
    best: dict[tuple[int, ...], float] = {}
    known: dict[Any, float] = {}
    costs = cost(problem.facts, columns(listed)) if listed else None
    for index, decisions in enumerate(listed):
        if not fits(problem, costs, index):
            continue
        group = tuple(decisions[name] for name in GROUP_DECISIONS)
        best[group] = min(played_seconds(problem.facts, decisions, known), best.get(group, np.inf))
    return sorted(best.values())[: problem.top]


def played_seconds(facts: Facts, decisions: dict[str, Any], known: dict[Any, float]) -> float:
    """The closed form of a step with its waiting replaced by that of the naive simulator; equal pipelines once."""
    whole, m = cost(facts, decisions), int(microbatches(facts, decisions))
    passes = stage_passes(facts, decisions)
    seconds = {FORWARD: np.asarray(passes.forward).tolist(), BACKWARD: (passes.backward + passes.weight).tolist()}
    pp, vpp, group = (int(decisions[name]) for name in ("pp", "vpp", "group"))
    if vpp > 1 and m % group:
        return float(whole.step_seconds)  # interleaved ranks have an order for whole groups alone
    key = (pp, vpp, group, m, *map(tuple, seconds.values()))
    if key not in known:
        degrees = {"pp": pp, "vpp": vpp, "num_microbatches": m, "group": group}
        known[key] = play([order(rank, **degrees) for rank in range(pp)], seconds).seconds
    slowest = np.asarray(passes.total).reshape(vpp, pp).sum(axis=0).max()
    waiting = known[key] - m * slowest + float(edge_seconds(facts, decisions))
    return float(whole.step_seconds - whole.bubble_seconds + waiting)


def a_tight_problem(chooser: random.Random) -> tuple[Problem, list[dict[str, Any]]]:
    """A random problem on devices in which only a random share of the strategies fits, and its strategies."""
    problem = a_random_problem(chooser)
    listed = enumerate_strategies(problem)
    if not listed:
        return problem, listed
    costs = cost(problem.facts, columns(listed))
    share = chooser.choice([0.02, 0.1, 0.3, 0.7, 1.0, 1.0])
    device = replace(
        problem.facts.cluster.device,
        memory_bytes=float(np.quantile(costs.device_bytes, share)) + HALF_A_BYTE,
        host_memory_bytes=float(np.max(costs.host_bytes)) * chooser.choice([0.5, 1.0]) + HALF_A_BYTE,
    )
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=device))
    return replace(problem, facts=facts), listed


def a_random_problem(chooser: random.Random) -> Problem:
    """A small model of equal layers, of experts behind a dense one, or of single blocks; pipelines of 2 to 4 ranks."""
    sizes = {
        "hidden_size": chooser.choice([256, 512]),
        "num_layers": chooser.choice([4, 5, 6, 8]),
        "num_heads": 8,
        "head_dim": 64,
        "num_kv_heads": chooser.choice([2, 8]),
        "ffn_hidden_size": chooser.choice([512, 2048]),
        "vocab_size": chooser.choice([500, 32000]),
    }
    experts = {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": chooser.choice([256, 1024])}
    kind = chooser.choice(["dense", "experts", "hybrid", "hybrid"])
    if kind == "hybrid":
        pattern = chooser.choice(PATTERNS)
        model = a_model(**sizes | {"num_layers": len(pattern)}, **experts, pattern=pattern)
    else:
        model = a_moe_model(**sizes, **experts) if kind == "experts" else a_model(**sizes)
    free = {"recompute", *chooser.sample(list(FEATURE_VALUES), 2)}
    allow: dict[str, tuple[int, ...]] = {"pp": chooser.choice([(2, 4), (1, 2, 3, 4)]), "vpp": (1, 2, 3), "mbs": (1, 2)}
    allow["recompute"] = chooser.choice([(0, 2), (0, 1, 2)])
    return a_problem(
        model,
        num_devices=chooser.choice([4, 6, 8]),
        device=a_timed_device(devices_per_node=8),
        workload={"global_batch_size": chooser.choice([8, 12, 16, 32]), "sequence_length": chooser.choice([128, 512])},
        top=chooser.choice([1, 1, 3]),
        pin={name: 0 for name in FEATURE_VALUES if name not in free} | {"cp": 1, "etp": 1},
        allow=allow | {name: FEATURE_VALUES[name] for name in ("token_dispatcher", "cuda_graphs") if name in free},
        framework_rules=False,
    )
