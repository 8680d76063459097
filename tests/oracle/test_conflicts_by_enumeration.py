"""
Why nothing fits, against brute force over every candidate and every subset of rules.

The brute force shares no code with the explanation: a full grid of all decisions, every rule asked of every point of
it, then every subset of the rules that may be given up. Only rules and memory formulas are the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from constraints import MEMORY_RULES, PHYSICS_RULES, PREFERENCE_RULES, sentence
from constraints.conflict import Conflict
from constraints.limits import limit_rules
from constraints.rule import Rule
from costmodel.memory import different_ranks, rank_bytes, rank_host_bytes
from costmodel.strategy import DECISIONS, FLAGS, Recompute, Sharding
from costmodel.tables import tabulate
from planner.jobs.problem import Problem
from planner.verbs.repairs import search_or_explain
from tests.builders import a_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device
from tests.oracle import in_step

NUM_PROBLEMS = in_step(75)
NO_ROOM = sentence(MEMORY_RULES[0])
NUM_DEVICES, BATCH, NUM_LAYERS = 4, 4, 2

BIG = {"num_layers": NUM_LAYERS, "hidden_size": 1024, "ffn_hidden_size": 4096, "vocab_size": 16000}
"""Sixty million parameters: a gigabyte of states."""

GRID = {
    **dict.fromkeys(("tp", "cp", "pp", "dp"), (1, 2, 4)),
    "ep": (1,),
    "etp": (1,),
    "vpp": (1, 2, 3, 4),
    "group": (1,),
    "mbs": (1, 2, 4),
    "sequence_parallel": (0, 1),
    "schedule": (0,),
    "vocabulary": (0,),
    "sharding": tuple(map(int, Sharding)),
    "recompute": (Recompute.NONE, Recompute.FULL, Recompute.of("core_attention", "norms")),
    **dict.fromkeys(("activation_offload", "optimizer_offload", "tp_overlap", "dp_overlap"), (0, 1)),
    **dict.fromkeys(("token_dispatcher", "cuda_graphs", "cp_overlap", "ep_overlap", "pp_overlap"), (0,)),
}
"""
Every value that could make sense for four devices, four sequences and two dense layers.

Of the overlaps those that no limit here names stay off: on they break more rules and take more memory.
"""


@dataclass(frozen=True)
class Grid:
    """All candidates that satisfy physics but for memory, and which of the other rules each breaks."""

    rules: tuple[Rule, ...]
    broken: frozenset[frozenset[str]]

    @classmethod
    def of(cls, problem: Problem) -> Grid:
        """Ask every rule at every point."""
        limits = problem.search
        own = limit_rules(pin=limits.pin, allow=limits.allow, forbid=limits.forbid)
        soft = (*own, *PREFERENCE_RULES, *MEMORY_RULES)
        values = {name: sorted({*of, limits.pin.get(name, of[0])}) for name, of in GRID.items()}
        axes = np.meshgrid(*(np.array(values[name]) for name in DECISIONS), indexing="ij", sparse=False)
        points: dict[str, Any] = {
            name: axis.ravel().astype(bool if name in FLAGS else np.int64)
            for name, axis in zip(DECISIONS, axes, strict=True)
        }
        hard = [rule for rule in PHYSICS_RULES if rule not in MEMORY_RULES]
        points = _keep(points, points["sequence_parallel"] == (points["tp"] > 1))
        points["group"] = np.where(points["vpp"] > 1, points["pp"], 1)
        for rule in sorted(hard, key=lambda rule: "multiply" not in rule.__name__):
            points = _keep(points, tabulate(rule, problem.facts, points))
        held = different_ranks(problem.facts, points)
        resources = {
            "device_bytes": rank_bytes(problem.facts, points, held).total.max(axis=-1),
            "host_bytes": rank_host_bytes(problem.facts, points, held).max(axis=-1),
            "memory_headroom_bytes": limits.memory_headroom_bytes,
        }
        breaks = np.stack(
            [~_full(tabulate(rule, problem.facts, points | resources), len(points["tp"])) for rule in soft], axis=1
        )
        masks = {
            frozenset(sentence(rule) for rule, breaking in zip(soft, row, strict=True) if breaking)
            for row in np.unique(breaks, axis=0)
        }
        return cls(rules=soft, broken=frozenset(masks))

    def allows(self, rules: Iterable[str]) -> bool:
        """Whether a candidate satisfies some rules."""
        wanted = set(rules)
        return any(not mask & wanted for mask in self.broken)

    def smallest_conflicts(self) -> set[frozenset[str]]:
        """Every set of rules that nothing satisfies, though something satisfies each part of it."""
        names = sorted({sentence(rule) for rule in self.rules})
        found: list[frozenset[str]] = []
        for size in range(1, len(names) + 1):
            for some in combinations(names, size):
                if not any(known <= set(some) for known in found) and not self.allows(some):
                    found.append(frozenset(some))
        return set(found)


def _keep(points: dict[str, Any], holds: Any) -> dict[str, Any]:
    which = _full(holds, len(points["tp"]))
    return {name: values[which] for name, values in points.items()}


def _full(holds: Any, size: int) -> Any:
    return np.broadcast_to(np.asarray(holds, dtype=bool), (size,))


@cache
def the_case(index: int) -> tuple[Conflict, Grid]:
    """Why nothing fits in one of the first random problems without a strategy, and its brute force."""
    if index:
        the_case(index - 1)
    seed = SEEDS.get(index - 1, -1) + 1
    while (conflict := search_or_explain(problem := a_random_problem(random.Random(seed))).conflict) is None:
        seed += 1
    SEEDS[index] = seed
    return conflict, Grid.of(problem)


SEEDS: dict[int, int] = {}
"""Of the problems that were found."""


def a_random_problem(chooser: random.Random) -> Problem:
    """Several pins and forbidden combinations that are likely to contradict each other, or too little memory."""
    choices = {
        "tp": (1, 2, 4, 3),
        "cp": (1, 2, 4),
        "pp": (1, 2, 4),
        "dp": (1, 2, 4),
        "vpp": (1, 2),
        "mbs": (1, 2, 4),
        "sharding": tuple(map(int, Sharding)),
        "recompute": tuple(map(int, Recompute)),
        "activation_offload": (0, 1),
        "optimizer_offload": (0, 1),
        "tp_overlap": (0, 1),
        "dp_overlap": (0, 1),
    }
    names = chooser.sample(sorted(choices), chooser.randint(1, 5))
    forbidden = chooser.sample(sorted(choices), 2)
    return a_problem(
        a_model(**BIG),
        num_devices=NUM_DEVICES,
        device=a_timed_device(
            memory_bytes=chooser.choice((0.3, 0.5, 0.8, 1.5, 80)) * GB,
            host_memory_bytes=chooser.choice((0.02, 0.3, 100)) * GB,
        ),
        workload={"global_batch_size": BATCH, "sequence_length": 64},
        pin={name: chooser.choice(choices[name]) for name in names},
        forbid=[{name: chooser.choice(choices[name]) for name in forbidden}],
        framework_rules=False,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("index", range(NUM_PROBLEMS))
def test_conflicts_are_those_of_brute_force(index):
    """
    All of them, none else: each excludes everything, and without any one of its rules something is left.

    A set of the job's entries helps exactly where some candidate breaks these rules alone.
    """
    conflict, grid = the_case(index)
    soft = {sentence(rule) for rule in grid.rules}

    named = [frozenset(rules) & soft for rules in conflict.exclusive]

    assert not conflict.left_out
    assert len(set(named)) == len(named)
    assert set(named) == grid.smallest_conflicts()
    for rules in named:
        assert not grid.allows(rules)
        assert all(grid.allows(rules - {one}) for one in rules)
    assert [len(rules) for rules in named] == sorted(len(rules) for rules in named)
    limits = {sentence(rule) for rule in grid.rules if rule not in (*MEMORY_RULES, *PREFERENCE_RULES)}
    masks = [mask for mask in grid.broken if mask <= limits]
    smallest = {mask for mask in masks if not any(other < mask for other in masks)}
    assert {frozenset(entries) for entries in conflict.releases} == smallest
    assert set(conflict.release) == set(conflict.releases[0] if conflict.releases else ())


@pytest.mark.slow
def test_the_cases_are_worth_it():
    """Conflicts of one to several rules, several in one problem, with memory and without."""
    conflicts = [the_case(index)[1].smallest_conflicts() for index in range(NUM_PROBLEMS)]

    assert {1, 2, 3} <= {len(rules) for sets in conflicts for rules in sets}
    assert max(len(sets) for sets in conflicts) >= 3
    assert any(NO_ROOM in rules and len(rules) > 1 for sets in conflicts for rules in sets)
    assert any(len(rules) > 1 and NO_ROOM not in rules for sets in conflicts for rules in sets)
