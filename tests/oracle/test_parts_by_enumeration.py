"""Open settings and idle nodes against enumeration: plans of different groups, and the recommended one."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from constraints.cp_sat import seconds_to_ticks
from costmodel.step.step import cost
from planner.jobs.problem import Alternative, Problem
from planner.search.alternatives import FewerDevices, JointOutcome, search_numbers
from planner.search.branch_and_bound import GROUP_DECISIONS, ROUNDING_BOUND_SECONDS, Status
from planner.search.domains import limit_nodes, smaller_nodes
from planner.search.recommendation import ORDER, recommend
from planner.search.solver import Clock
from tests.builders_cluster import achieved
from tests.oracle import blocks, in_step, name_of
from tests.oracle.test_enumeration import HALF_A_BYTE, a_random_problem, columns, enumerate_strategies, fits

SEEDS = blocks(in_step(60), 15, few=range(10, 11))

TOLERANCE = 0.03
"""Share of the fastest step up to which strategies are compared for the recommended one."""


class One(NamedTuple):
    """A strategy that fits, with its combination of settings."""

    seconds: float
    part: int
    strategy: dict[str, Any]
    mebibytes: int

    @property
    def group(self) -> tuple[int, ...]:
        """Its degrees."""
        return tuple(int(self.strategy[name]) for name in GROUP_DECISIONS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", SEEDS, ids=name_of)
def test_settings_and_nodes_are_chosen_as_enumeration_chooses(seeds):
    """Steps of the wanted plans, idle nodes, and the recommended strategy agree with all that is possible."""
    found = []
    for seed in seeds:
        problem = a_job_with_parts(random.Random(seed))
        whole, fewer = (enumerate_parts(problem, are_fewer=one) for one in (False, True))

        joint, outcome = search_numbers(problem)

        expected, are_faster = expected_plans(problem, whole, fewer)
        assert joint.outcome.status == (Status.OPTIMAL if expected else Status.INFEASIBLE), seed
        assert outcome is None or outcome.are_faster is are_faster, seed
        steps = [one.seconds for one in expected]
        np.testing.assert_allclose(
            joint.outcome.step_seconds, steps, rtol=0, atol=ROUNDING_BOUND_SECONDS, err_msg=str(seed)
        )
        if expected:
            assert_recommended(problem, joint, outcome, fewer if are_faster else whole, seed)
        found.append((bool(expected), are_faster, len({tuple(job.settings.values()) for job, _ in joint.ranked}) > 1))
    assert any(is_feasible for is_feasible, *_ in found), "else the comparison would prove little"


def a_job_with_parts(chooser: random.Random) -> Problem:
    """A small random job on few devices, with two or four combinations of settings, of whose strategies few fit."""
    problem = a_random_problem(chooser)
    limits = replace(problem.search, candidates=None, max_devices=None, max_bubble_fraction=None)
    limits = replace(limits, simplest=True, tolerance=TOLERANCE)
    workload = replace(problem.facts.workload, global_batch_size=chooser.choice([6, 8, 12, 16]))
    device = replace(problem.facts.cluster.device, devices_per_node=chooser.choice([2, 4]))
    cluster = replace(problem.facts.cluster, device=device, num_devices=chooser.choice([6, 8, 10, 12]))
    facts = replace(problem.facts, workload=workload, cluster=cluster)
    problem = replace(problem, facts=facts, search=limits, top=chooser.choice([1, 3, 3]), variants="groups")
    problem = make_tight(problem, chooser)
    values = {"gradient_dtype": ["fp32", "bf16"], "cp_comm_type": ["p2p", "all_gather"]}
    names = chooser.choice([["gradient_dtype"], ["cp_comm_type"], [*values]])
    each = [dict(zip(names, chosen, strict=True)) for chosen in product(*(values[name] for name in names))]
    parts = tuple(a_part(problem, settings) for settings in each)
    return replace(problem, alternatives=parts, facts=parts[0].facts)


def make_tight(problem: Problem, chooser: random.Random) -> Problem:
    """Return the job on devices in which a share of the strategies on all of them fits."""
    listed = enumerate_strategies(problem)
    if not listed:
        return problem
    costs = cost(problem.facts, columns(listed))
    device = replace(
        problem.facts.cluster.device,
        memory_bytes=float(np.quantile(costs.device_bytes, chooser.choice([0.05, 0.3, 0.7]))) + HALF_A_BYTE,
        host_memory_bytes=float(np.max(costs.host_bytes)) + HALF_A_BYTE,
    )
    limits = replace(problem.search, memory_headroom_bytes=0.0)
    cluster = replace(problem.facts.cluster, device=device)
    return replace(problem, search=limits, facts=replace(problem.facts, cluster=cluster))


def a_part(problem: Problem, settings: dict[str, str]) -> Alternative:
    """One combination of settings, with its facts."""
    facts, device = problem.facts, problem.facts.cluster.device
    device = replace(device, **achieved(device, cp_comm_type=settings.get("cp_comm_type", "p2p"), cp_a2a_ranks=None))
    gradient_bytes = 2 if settings.get("gradient_dtype") == "bf16" else 4
    precision = replace(facts.workload.precision, gradient_bytes=gradient_bytes)
    facts = replace(
        facts,
        cluster=replace(facts.cluster, device=device),
        workload=replace(facts.workload, precision=precision),
    )
    return Alternative(settings=settings, facts=facts, reliability=problem.reliability, machine=None)


def enumerate_parts(problem: Problem, *, are_fewer: bool) -> list[One]:
    """Every strategy that fits with any settings, on all devices or on fewer whole nodes."""
    node, found = problem.facts.cluster.device.devices_per_node, []
    if are_fewer and not smaller_nodes(problem):
        return []
    for part, one in enumerate(problem.each):
        job = limit_nodes(one, 1, smaller_nodes(one)) if are_fewer else one
        listed = [s for s in enumerate_strategies(job) if not are_fewer or num_devices(s) % node == 0]
        costs = cost(job.facts, columns(listed)) if listed else None
        for index, strategy in enumerate(listed):
            if not fits(job, costs, index):
                continue
            room = int(job.facts.cluster.device.memory_bytes // 2**20)
            mebibytes = min(math.ceil(costs.device_bytes[index] / 2**20), room)
            found.append(One(float(costs.step_seconds[index]), part, strategy, mebibytes))
    return found


def amounts_of(problem: Problem, one: One) -> tuple[float, ...]:
    """Amounts of the criteria that order strategies."""
    given = {**one.strategy, "device_mebibytes": one.mebibytes, "is_uneven": False}
    return tuple(float(criterion.amount(problem.each[one.part], given)) for criterion in ORDER)


def num_devices(strategy: dict[str, Any]) -> int:
    """Devices that a strategy uses."""
    return math.prod(int(strategy[name]) for name in ("tp", "cp", "pp", "dp"))


def expected_plans(problem: Problem, whole: list[One], fewer: list[One]) -> tuple[list[One], bool]:
    """The best of each group: on all devices, and on fewer where that is faster than all of these."""
    limit = min((one.seconds for one in whole), default=math.inf)
    faster = [one for one in fewer if ticks(one.seconds) < ticks(limit)]
    best: dict[tuple[int, ...], One] = {}
    for one in sorted((*whole, *faster), key=lambda one: one.seconds):
        best.setdefault(one.group, one)
    return list(best.values())[: problem.top], bool(faster)


def ticks(seconds: float) -> int:
    """A step in the solver's ticks."""
    return int(seconds_to_ticks(np.asarray(seconds))) if math.isfinite(seconds) else 2**60


def assert_recommended(problem: Problem, joint: JointOutcome, fewer: FewerDevices | None, listed: list[One], seed: int):
    """The first of all strategies within the tolerance is recommended, on as many nodes as the best."""
    parts = (*joint.of_each, *(fewer.parts if fewer and not fewer.are_faster else ()))
    best = (*joint.ranked[0], joint.outcome.step_seconds[0])

    found = recommend(problem, best, parts, joint.ranked, (), Clock(seconds=600))

    node, nodes = problem.facts.cluster.device.devices_per_node, best[0].search.num_nodes
    listed = [one for one in listed if nodes is None or num_devices(one.strategy) // node in nodes]
    cut = ticks(best[2] * (1 + TOLERANCE))
    amounts, least = min((amounts_of(problem, one), ticks(one.seconds)) for one in listed if ticks(one.seconds) <= cut)
    own = next(
        one
        for one in listed
        if one.strategy == found.strategy.decisions() and problem.each[one.part].settings == found.problem.settings
    )
    assert found.is_complete, seed
    assert amounts_of(problem, own) == amounts, seed
    assert abs(ticks(own.seconds) - least) <= 1, seed
