"""Jobs on which one set of modules wins, found by enumerating every set: the plan has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints import MEMORY_RULES, find_violations
from costmodel.step.step import cost
from costmodel.strategy import DECISIONS, FLAGS, Recompute
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Status
from planner.search.domains import cheap_recompute
from planner.search.questions import search
from planner.search.space import build_space
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_problem import a_problem, a_timed_device

SIZES = {"hidden_size": 1024, "num_layers": 8, "num_heads": 8, "head_dim": 128, "num_kv_heads": 8}
MODELS = {
    "dense": a_model(**SIZES, ffn_hidden_size=4096),
    "narrow": a_model(**SIZES, ffn_hidden_size=1024),
    "experts": a_moe_model(**SIZES, num_experts=8, top_k=2, expert_ffn_hidden_size=2048),
    "latent": a_latent_model(num_layers=8),
}
PINNED = dict.fromkeys(
    ("activation_offload", "optimizer_offload", "token_dispatcher", "cuda_graphs", "cp_overlap", "ep_overlap"), 0
)
"""Features that would make the enumeration longer and have no part in recomputation."""


def a_job(name: str, share: float) -> tuple[Problem, float, Recompute]:
    """
    A job on devices as large as a share of the way from the smallest peak to that of the fastest strategy.

    With it the step time and the set of modules of its fastest strategy, by enumeration: every strategy that the rules
    allow is costed in one flat list.
    """
    pin = {**PINNED, "cp": 1, "etp": 1, "mbs": 1, "vpp": 1}
    problem = a_problem(
        MODELS[name],
        num_devices=8,
        device=a_timed_device(devices_per_node=8),
        workload={"global_batch_size": 16, "sequence_length": 1024},
        pin=pin,
    )
    listed = every_strategy(problem)
    costs = cost(problem.facts, listed)
    seconds, device = np.broadcast_arrays(costs.step_seconds, costs.device_bytes)
    room = device.min() + share * (device[seconds.argmin()] - device.min()) + 0.5
    silicon = replace(problem.facts.cluster.device, memory_bytes=float(room))
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=silicon))
    fits = [
        not find_violations(
            facts, {"device_bytes": one, "host_bytes": 0.0, "memory_headroom_bytes": 0.0}, rules=MEMORY_RULES
        )
        for one in device
    ]
    best = np.where(fits, seconds, np.inf).argmin()
    return replace(problem, facts=facts), float(seconds[best]), Recompute(int(listed["recompute"][best]))


def every_strategy(problem: Problem) -> dict[str, np.ndarray]:
    """All strategies that the rules but those of memory allow, one array per decision."""
    space = build_space(problem)
    block = space.block(np.arange(space.num_rows))
    row, *features = np.nonzero(block.allowed)
    columns = {name: values[row] for name, values in block.degrees.items()}
    columns |= {name: block.features[name][at] for name, at in zip(block.features, features, strict=True)}
    return {name: columns[name].astype(bool if name in FLAGS else np.int64) for name in DECISIONS}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "num_winners"), [("dense", 1), ("narrow", 1), ("experts", 2), ("latent", 3)])
def test_sets_that_win_by_enumeration_are_planned(name, num_winners):
    """Of each model on ever larger devices: the same step time; seven sets in all win that are not the usual ones."""
    winners = set()
    for share in (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9):
        problem, seconds, recompute = a_job(name, share)

        outcome = search(problem)

        assert outcome.status == Status.OPTIMAL
        assert outcome.step_seconds[0] == pytest.approx(seconds, abs=outcome.rounding_bound_seconds)
        winners.add(recompute)
    assert len(winners - {*cheap_recompute(MODELS[name], None)}) >= num_winners
