"""
The search against plain enumeration: 500 random small problems, no difference in value beyond the rounding bound.

The enumeration shares no code with the search: loops over values, rules asked one strategy at a time, no folding, no
bound, no solver. Only the formulas are the same, called with one flat list of strategies instead of a table of axes.
"""

from __future__ import annotations

import inspect
import math
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES, PREFERENCE_RULES, find_violations
from constraints.cp_sat import seconds_to_ticks
from constraints.limits import Bound, CandidateList
from constraints.rule import Rule
from constraints.rules.physics import degrees_multiply_to_the_devices
from costmodel import catalog
from costmodel.facts.framework import Settings
from costmodel.facts.workload import SequenceLengths
from costmodel.lowering.framework import keep_wide_layers
from costmodel.step.step import Cost, cost
from costmodel.strategy import DECISIONS, FLAGS, OVERLAPS, CudaGraphs, Recompute, Schedule, Sharding, Vocabulary
from costmodel.tables import Facts
from planner.jobs.limits import SearchLimits
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import GROUP_DECISIONS, Outcome, Status
from planner.search.questions import answer
from planner.search.recommendation import ORDER, choose_first
from planner.search.solver import Clock
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import GB, achieved
from tests.builders_problem import a_problem, a_timed_device, limits_of
from tests.oracle import NUM_PROBLEMS, blocks, name_of

SEEDS = blocks(NUM_PROBLEMS, 25, few=range(9, 14))

TOLERANCE = 0.03
"""Share of the fastest step up to which strategies are compared for the recommended one."""

HALF_A_BYTE = 0.5
"""More than the noise of summing in another order, less than any difference between strategies."""

FEATURE_VALUES = {
    "sharding": tuple(map(int, Sharding)),
    "recompute": (
        *map(int, Recompute),
        *(int(Recompute.of(*own)) for own in (["norms"], ["mlp"], ["norms", "mlp"], ["experts"])),
        *(int(Recompute.of(*own)) for own in (["core_attention", "norms"], ["expert_activation"])),
    ),
    **dict.fromkeys(("activation_offload", "optimizer_offload", *OVERLAPS), (0, 1)),
    "token_dispatcher": (0, 2),
    "cuda_graphs": (0, 1, int(CudaGraphs.of("attn"))),
}

NAMES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "group", "mbs", "sequence_parallel", "schedule", "vocabulary")
NAMES += (*FEATURE_VALUES,)
"""Decisions in the order in which they get values: that of loops inside each other."""

Rows = list[dict[str, Any]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", SEEDS, ids=name_of)
def test_the_search_finds_what_enumeration_finds(seeds, monkeypatch):
    """
    Status and step times agree; so do the best of each group, or of all, when several strategies are wanted.

    The recommended strategy is the first in the order among all that fit and are within the tolerance.
    """
    monkeypatch.setattr("planner.search.branch_and_bound.FIRST_BATCH_ROWS", 2)
    statuses = []
    for seed in seeds:
        problem, candidate_list, costs = a_tight_problem(random.Random(seed))

        (outcome,) = answer([problem], tolerance=TOLERANCE)

        assert_same(outcome, expected_seconds(problem, candidate_list, costs), seed)
        assert_recommended(problem, outcome, candidate_list, costs, seed)
        statuses.append(outcome.status)
    assert {Status.OPTIMAL, Status.INFEASIBLE} <= set(statuses), "else the comparison would prove little"


# --- the enumeration ---------------------------------------------------------------------------------------


def enumerate_strategies(problem: Problem) -> Rows:
    """Every strategy that satisfies every rule but those of memory: each is asked once its decisions have values."""
    search_limits = problem.search
    rules = [*PHYSICS_RULES, *(PREFERENCE_RULES if search_limits.preferences else ())]
    rules += FRAMEWORK_RULES if search_limits.framework_rules else ()
    replaced = [degrees_multiply_to_the_devices] if search_limits.max_devices else []
    rules = [rule for rule in rules if rule not in (*MEMORY_RULES, *replaced)]
    strategies: Rows = [{}]
    for place, name in enumerate(NAMES):
        now = [asked(rule) for rule in rules if name in named(rule) <= {*NAMES[: place + 1]}]
        longer = ({**one, name: value} for one in strategies for value in values_of(problem, name, one))
        strategies = [one for one in longer if within_limits(problem, one, name) and satisfied(problem, one, now)]
    return strategies


Asked = tuple[Rule, Callable[[dict[str, Any]], Any], dict[Any, bool]]
"""A rule, the values of its decisions, and its answers to them."""


def asked(rule: Rule) -> Asked:
    """A rule that has answered nothing yet."""
    return rule, operator.itemgetter(*named(rule)), {}


def satisfied(problem: Problem, strategy: dict[str, Any], rules: list[Asked]) -> bool:
    """Whether one strategy breaks none of the rules; each rule is asked once for each value of its decisions."""
    for rule, decisions_of, answers in rules:
        values = decisions_of(strategy)
        if values not in answers:
            answers[values] = not find_violations(problem.facts, strategy, rules=[rule])
        if not answers[values]:
            return False
    return True


def values_of(problem: Problem, name: str, strategy: dict[str, Any]) -> list[Any]:
    """Every value of a decision that could make sense for a small cluster, behind the decisions in front of it."""
    facts, most = problem.facts, problem.search.max_devices
    num_devices, batch = facts.cluster.num_devices, facts.workload.global_batch_size
    group = math.prod(strategy[one] for one in ("tp", "cp", "pp") if one in strategy)
    if name == "dp" and most:
        return [dp for dp in chosen(problem, name, range(1, batch + 1)) if group * dp <= most]
    if name == "dp":
        return [] if num_devices % group else chosen(problem, name, [num_devices // group])
    values: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("tp", "cp", "pp"), lambda: range(1, num_devices + 1)),
        "ep": lambda: range(1, 9),
        "etp": lambda: {1, strategy["tp"]},
        "vpp": lambda: range(1, facts.model.num_layers + 3),
        "group": lambda: {1, strategy["pp"]},
        "mbs": lambda: range(1, min(batch, 16) + 1),
        "sequence_parallel": lambda: (strategy["tp"] > 1,),
        "schedule": lambda: (Schedule.ONE_F_ONE_B,),
        "vocabulary": lambda: (Vocabulary.ENDS,),
    }
    return chosen(problem, name, FEATURE_VALUES[name] if name in FEATURE_VALUES else values[name]())


def chosen(problem: Problem, name: str, values: Any) -> list[Any]:
    """The job's values of a decision, or else the given ones: of flags bools."""
    limits = problem.search
    found = [limits.pin[name]] if name in limits.pin else limits.allow.get(name, values)
    return [bool(value) if name in FLAGS else int(value) for value in found]


def within_limits(problem: Problem, strategy: dict[str, Any], last: str) -> bool:
    """True if allow, limits and forbid, which have what is decided last, accept what is decided so far."""
    limits = problem.search
    return (
        (last not in limits.allow or strategy[last] in limits.allow[last])
        and not any(all(meets(problem, strategy, *one) for one in those.items()) for those in limits.forbid)
        and all(meets(problem, strategy, "", bound) is not False for bound in limits.limits)
        and (limits.candidates is None or any(is_listed(strategy, row) for row in limits.candidates.rows))
    )


def is_listed(strategy: dict[str, Any], row: Mapping[str, int]) -> bool:
    """Return True if the decisions so far are those of a row."""
    return all(strategy[name] == value for name, value in row.items() if name in strategy)


COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}


def meets(problem: Problem, strategy: dict[str, Any], name: str, condition: Any) -> bool | None:
    """Whether a strategy has a value or keeps a bound; None where that is not yet decided."""
    if isinstance(condition, int):
        return strategy[name] == condition if name in strategy else None
    values, names, relation, number = strategy, condition.names, condition.relation, condition.number
    if "num_microbatches" in names and "dp" in strategy and "mbs" in strategy:
        batch = problem.facts.workload.global_batch_size
        values = {**strategy, "num_microbatches": batch // (strategy["dp"] * strategy["mbs"])}
    if not set(names) <= values.keys():
        return None
    product_of_values = math.prod(int(values[one]) for one in names)
    if relation == "!=":
        return product_of_values != number
    return COMPARE[relation](product_of_values, number)


def fits(problem: Problem, costs: Cost, index: int) -> bool:
    """True where one strategy of a list satisfies the rules of memory."""
    held = {"device_bytes": costs.device_bytes[index], "host_bytes": costs.host_bytes[index]}
    memory = held | {"memory_headroom_bytes": problem.search.memory_headroom_bytes}
    return not find_violations(problem.facts, memory, rules=MEMORY_RULES)


def idles_little(problem: Problem, costs: Cost, index: int) -> bool:
    """True where the bubble of one strategy of a list is as short as the job wants it."""
    idles = np.broadcast_to(costs.bubble_seconds, costs.step_seconds.shape)[index]
    return bool(idles <= (problem.search.max_bubble_fraction or 1.0) * costs.step_seconds[index])


def expected_seconds(problem: Problem, candidate_list: Rows, costs: Cost | None) -> list[float]:
    """Step times of what fits into memory, fastest first: of all strategies, or of the best one of each group."""
    if costs is None:
        return []
    best: dict[tuple[int, ...], float] = {}
    for index, strategy in enumerate(candidate_list):
        if fits(problem, costs, index) and idles_little(problem, costs, index):
            names = DECISIONS if problem.variants == "all" else GROUP_DECISIONS
            group = tuple(strategy[name] for name in names)
            best[group] = min(float(costs.step_seconds[index]), best.get(group, np.inf))
    return sorted(best.values())[: problem.top]


def assert_same(outcome: Outcome, expected: list[float], seed: int) -> None:
    """The outcome claims what the enumeration expects, and proves it."""
    assert outcome.status == (Status.OPTIMAL if expected else Status.INFEASIBLE), seed
    assert len(outcome.step_seconds) == len(expected) == len(set(outcome.strategies)), seed
    np.testing.assert_allclose(
        sorted(outcome.step_seconds), expected, rtol=0, atol=outcome.rounding_bound_seconds, err_msg=f"seed {seed}"
    )
    if expected:
        assert outcome.gap == 0
        assert outcome.lower_bound_seconds <= expected[0] + outcome.rounding_bound_seconds


def assert_recommended(problem: Problem, outcome: Outcome, listed: Rows, costs: Cost | None, seed: int) -> None:
    """The model's recommended strategy is as good by each criterion, and as fast, as the first enumerated one."""
    if outcome.margin is None or costs is None:
        return
    cut = int(outcome.ticks * (1 + TOLERANCE))
    room = int((problem.facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes) // 2**20)
    found = choose_first([(problem, outcome.margin.limit(cut))], Clock(seconds=600))
    ticks = seconds_to_ticks(costs.step_seconds)
    best: tuple[tuple[float, ...], int] | None = None
    for index in np.flatnonzero(ticks <= cut):
        if not fits(problem, costs, index) or not idles_little(problem, costs, index):
            continue
        mebibytes = min(math.ceil(costs.device_bytes[index] / 2**20), room)  # whole ones, as in the model
        given = {**listed[index], "device_mebibytes": mebibytes, "is_uneven": False}
        key = tuple(float(one.amount(problem, given)) for one in ORDER), int(ticks[index])
        best = key if best is None else min(best, key)
    assert best is not None, seed
    assert found is not None, seed
    assert found.key[0] == best[0], (seed, found, best)
    assert abs(found.key[1] - best[1]) <= 1, (seed, found, best)


def columns(candidate_list: Rows) -> dict[str, Any]:
    """A list of strategies as one array per decision."""
    return {name: np.array([strategy[name] for strategy in candidate_list]) for name in DECISIONS}


@cache
def named(rule: Rule) -> frozenset[str]:
    """The decisions that a rule asks for; the first one of a rule that asks for none."""
    parameters = inspect.signature(rule).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    return frozenset(names - {"num_microbatches"} | {"dp", "mbs"} if "num_microbatches" in names else names or {"tp"})


# --- random problems ---------------------------------------------------------------------------------------


def a_random_problem(chooser: random.Random) -> Problem:
    """A small model on 4 to 32 devices, with enough features pinned that the enumeration stays short."""
    sizes = {
        "hidden_size": chooser.choice([256, 512, 1024]),
        "num_layers": chooser.choice([2, 3, 4, 6, 8]),
        "num_heads": chooser.choice([4, 8, 12]),
        "head_dim": 64,
        "num_kv_heads": chooser.choice([2, 4]),
        "ffn_hidden_size": chooser.choice([1024, 1536]),
        "vocab_size": chooser.choice([1000, 32000]),
    }
    experts = {"num_experts": chooser.choice([4, 8]), "top_k": 2, "expert_ffn_hidden_size": 512}
    model = a_moe_model(**sizes, **experts) if chooser.random() < 0.4 else a_model(**sizes)
    devices_per_node = chooser.choice([2, 4, 8])
    problem = a_problem(
        model,
        num_devices=chooser.choice([4, 6, 8, 12, 16, 24, 32]),
        device=a_timed_device(devices_per_node=devices_per_node),
        workload={
            "global_batch_size": chooser.choice([8, 12, 16, 24, 32, 64]),
            "sequence_length": chooser.choice([128, 256, 512]),
        },
        top=chooser.choice([1, 1, 1, 3, 10]),
    )
    variants = chooser.choice(["groups", "groups", "all"])
    problem = replace(problem, search=random_limits(chooser), variants=variants)
    problem = replace(problem, facts=widen_ends(make_long(problem.facts, chooser), chooser))
    return with_muon(problem, chooser.choice(MODES)) if chooser.random() < 0.2 else problem


MODES = ("blockwise", "duplicated", "distributed", "layer_sharded")


def with_muon(problem: Problem, mode: str) -> Problem:
    """Return the problem with Muon, whose placement is that of the optimizer states."""
    cluster = problem.facts.cluster
    device = replace(cluster.device, **achieved(cluster.device, is_muon=True, muon_tp_mode=mode))
    return replace(problem, facts=replace(problem.facts, cluster=replace(cluster, device=device)))


def make_long(facts: Facts, chooser: random.Random) -> Facts:
    """Sometimes packed sequences, on as many ranks as each needs or on all, and context parallelism of some kind."""
    kind = chooser.choice([None, "p2p", "all_gather", "a2a", "a2a+p2p"])
    device = facts.cluster.device
    near = 2 if kind == "a2a+p2p" else None
    device = replace(device, **achieved(device, cp_comm_type=kind, cp_a2a_ranks=near))
    counts = (chooser.choice([1.0, 8.0]), 2.0, 1.0)
    lengths = SequenceLengths(lengths=(32, 64, 128), counts=counts, rank_tokens=chooser.choice([None, 64, 128]))
    workload = replace(facts.workload, lengths=chooser.choice([None, lengths]))
    return replace(facts, cluster=replace(facts.cluster, device=device), workload=workload)


def widen_ends(facts: Facts, chooser: random.Random) -> Facts:
    """Sometimes 8 bits, where a few layers at either end stay in 16."""
    first, last = chooser.choice([(0, 0), (0, 0), (0, 0), (1, 0), (0, 1), (2, 1)])
    if not first + last:
        return facts
    cluster, fp8 = facts.cluster, catalog.precision("fp8")
    device = replace(cluster.device, **achieved(cluster.device, matmul_efficiency={"bf16": 0.7, "fp8": 0.6}))
    device = replace(device, peak_flops={**device.peak_flops, "fp8": 2 * device.peak_flops["bf16"]})
    settings = Settings(first_layers_bf16=first, last_layers_bf16=last)
    return replace(
        facts,
        model=keep_wide_layers(facts.model, settings, fp8),
        cluster=replace(cluster, device=device, settings=settings),
        workload=replace(facts.workload, precision=fp8),
    )


LIMITS = [
    "tp <= 2",
    "pp >= 2",
    "vpp < 3",
    "mbs != 1",
    "tp * cp <= 4",
    "num_microbatches >= 4",
    "recompute != 2",
    "dp > 1",
    "tp >= 4",
    "dp * mbs == 4",
    "sharding == 1",
]


def random_limits(chooser: random.Random) -> SearchLimits:
    """Most features pinned, sometimes degrees, sometimes combinations forbidden."""
    offloads = ["activation_offload", "optimizer_offload"] if chooser.random() < 0.6 else []
    free = {*chooser.sample(list(FEATURE_VALUES), 3 - len(offloads)), *offloads}
    pinned = [name for name in FEATURE_VALUES if name not in free and chooser.random() < 0.9]
    pin = {name: chooser.choice(FEATURE_VALUES[name]) if chooser.random() < 0.1 else 0 for name in pinned}
    allow: dict[str, tuple[int, ...]] = {"vpp": (1, 2, 3), "mbs": (1, 2)}
    if chooser.random() < 0.3:
        allow["pp"] = chooser.choice([(1, 2), (2, 4), (4,)])
    if chooser.random() < 0.2:
        pin["tp"] = chooser.choice([1, 2, 4, 3])
    if chooser.random() < 0.1:
        pin["dp"] = chooser.choice([1, 2, 4])
    if chooser.random() < 0.1:
        allow["sequence_parallel"] = (0, 1)
    if chooser.random() < 0.2:
        allow["schedule"] = tuple(Schedule)
    if chooser.random() < 0.1:
        allow["vocabulary"] = tuple(Vocabulary)
    if chooser.random() < 0.2:
        allow["group"] = (1, 2, 3, 4)
    for name in ("recompute", "token_dispatcher", "cuda_graphs"):
        if name not in pin:
            allow[name] = FEATURE_VALUES[name]
    return limits_of(
        pin=pin,
        allow=allow,
        forbid=chooser.sample(FORBID, chooser.choice([0, 0, 1, 2])),
        limits=tuple(map(a_bound, chooser.sample(LIMITS, chooser.choice([0, 0, 0, 1, 2])))),
        framework_rules=chooser.random() < 0.7,
        memory_headroom_bytes=chooser.choice([0, 0, 0.05 * GB]),
        candidates=a_random_listing(chooser, pin) if chooser.random() < 0.15 else None,
        max_bubble_fraction=chooser.choice([None, None, None, 0.02, 0.1, 0.3]),
        max_devices=chooser.choice([None] * 9 + [3, 4, 4]),
        preferences=chooser.random() < 0.7,
    )


def a_random_listing(chooser: random.Random, pin: dict[str, int]) -> CandidateList:
    """A few rows with some decisions each, not all of them possible."""
    values: dict[str, tuple[int, ...]] = {"tp": (1, 2, 3, 4), "pp": (1, 2, 4), "dp": (1, 2, 4, 8)}
    values |= {"mbs": (1, 2), "vpp": (1, 2)}
    values |= {name: FEATURE_VALUES[name] for name in ("recompute", "tp_overlap") if name not in pin}
    names = chooser.sample(list(values), chooser.randint(1, 4))
    rows = []
    for _ in range(chooser.randint(1, 8)):
        given = [name for name in names if chooser.random() < 0.9] or names[:1]
        rows.append({name: chooser.choice(values[name]) for name in given})
    return CandidateList(source="random.csv", rows=tuple(rows), places=tuple(map(str, range(len(rows)))))


def a_bound(text: str) -> Bound:
    """A bound of its three parts."""
    *names, relation, number = text.replace("*", "").split()
    return Bound(names=tuple(names), relation=relation, number=int(number))


def a_tight_problem(chooser: random.Random) -> tuple[Problem, Rows, Cost | None]:
    """A random problem on devices in which only a random share of the strategies fits, its strategies, their costs."""
    problem = a_random_problem(chooser)
    candidate_list = enumerate_strategies(problem)
    if not candidate_list:
        return problem, [], None
    costs = cost(problem.facts, columns(candidate_list))
    share = chooser.choice([-1.0, 0.02, 0.1, 0.3, 0.7, 1.0])
    device_bytes = np.quantile(costs.device_bytes, max(share, 0.0)) * (1 if share > 0 else 0.9)
    offloaded = costs.host_bytes[costs.host_bytes > 0]
    host_bytes = np.quantile(offloaded, chooser.choice([0.05, 0.2, 0.5, 1.0])) if len(offloaded) else 1.0
    device = replace(
        problem.facts.cluster.device,
        memory_bytes=float(device_bytes) + problem.search.memory_headroom_bytes + HALF_A_BYTE,
        host_memory_bytes=float(host_bytes) + HALF_A_BYTE,
    )
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=device))
    return replace(problem, facts=facts), candidate_list, costs


FORBID: list[dict[str, Any]] = [
    {"mbs": 1},
    {"pp": 2, "recompute": 0},
    {"tp": 2, "cp": 2},
    {"sharding": 1, "optimizer_offload": 1},
    {"tp": a_bound("tp >= 2"), "recompute": a_bound("recompute != 0")},
    {"dp": a_bound("dp < 4"), "mbs": 2},
]
