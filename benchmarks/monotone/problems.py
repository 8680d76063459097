"""Random jobs, devices faster or slower than the catalog's, and strategies that the rules allow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.errors import PlanningError
from costmodel.facts.device import EquippedDevice
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner import load
from planner.jobs.problem import Problem
from planner.search.domains import FEATURES
from planner.search.space import build_space, strategy_of

MODELS = (
    "llama3-8b",
    "llama3-70b",
    "gpt3-175b",
    "gemma-2-27b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v2",
    "deepseek-v3",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
    "qwen3-next-80b-a3b",
    "minimax-text-01",
)
DEVICES = ("a100-80gb-sxm", "h100-80gb-sxm", "h800", "h200", "gh200-96gb", "b200", "b300", "gb200", "gb300")
FRAMEWORKS = (None, None, "megatron-core-0.14", "megatron-lm-0.17", "nemo-25.07", "torchtitan-0.1", "automodel-26.02")
NUM_DEVICES = (8, 16, 32, 64, 128, 256, 512)
SEQUENCES = (2048, 4096, 8192, 16384)
MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences per device and step, so many at least."""

SPREAD = 0.7
"""Standard deviation of the logarithms by which a device differs from the catalog's."""

HELD = 0.5
"""Share of the jobs that keep the rules of their framework; others also have what no release has together."""

OFFLOADED = 0.6
"""Share of the strategies that offload activations where rules allow some, which they do not everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """
    One strategy of a random job.

    Parameters
    ----------
    facts, strategy
        Model, cluster and workload; the decisions.
    framework_rules
        Whether the strategy keeps the rules of its framework.
    """

    facts: Facts
    strategy: Strategy
    framework_rules: bool


def random_cases(seed: int, num_strategies: int) -> Iterator[Case]:
    """
    Strategies of one random job; none where no release runs its model on its device.

    Parameters
    ----------
    seed
        What the job and the strategies are drawn from.
    num_strategies
        Number of strategies of the job.
    """
    chooser = random.Random(seed)
    problem = a_random_problem(chooser)
    if problem is None:
        return
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=_varied(chooser, problem.facts)))
    problem = replace(problem, facts=facts)
    space = build_space(problem)
    if not len(space.feature_class):
        return
    for _ in range(num_strategies):
        row = chooser.randrange(len(space.feature_class))
        allowed = space.allowed[space.feature_class[row]]
        offloads = np.moveaxis(np.zeros_like(allowed), FEATURES.index("activation_offload"), 0)
        offloads[1:] = True
        offloading = allowed & np.moveaxis(offloads, 0, FEATURES.index("activation_offload"))
        if chooser.random() < OFFLOADED and offloading.any():
            allowed = offloading
        chosen = np.unravel_index(chooser.choice(np.flatnonzero(allowed)), allowed.shape)
        values = {name: int(column[row]) for name, column in space.rows.items()}
        values |= {name: int(space.features[name][index]) for name, index in zip(FEATURES, chosen, strict=True)}
        yield Case(facts=facts, strategy=strategy_of(values), framework_rules=problem.search.framework_rules)


def a_random_problem(chooser: random.Random) -> Problem | None:
    """A random job of the catalog's models, devices and releases; None where they do not go together."""
    num_devices = chooser.choice(NUM_DEVICES)
    framework = chooser.choice(FRAMEWORKS)
    job = {
        "model": chooser.choice(MODELS),
        "cluster": {"device": chooser.choice(DEVICES), "num_devices": num_devices}
        | ({"framework": framework} if framework else {}),
        "training": {
            "global_batch_size": num_devices * chooser.choice(MICRO_BATCHES),
            "sequence_length": chooser.choice(SEQUENCES),
            "tokens": 1e12,
        },
        "search": {"framework_rules": chooser.random() < HELD, "evidence": "any"},
    }
    try:
        return load(job)
    except PlanningError:
        return None


def _varied(chooser: random.Random, facts: Facts) -> EquippedDevice:
    """The device with other speeds: any of them may be what a step waits for."""
    device = facts.cluster.device

    def factor() -> float:
        return float(np.exp(chooser.gauss(0.0, SPREAD)))

    peak, memory, up, down = (factor() for _ in range(4))
    networks = []
    fastest = np.inf
    for network in device.networks:  # outer networks are no faster than inner ones
        fastest = min(fastest, network.bandwidth * factor())
        networks.append(replace(network, bandwidth=fastest))
    return replace(
        device,
        peak_flops={dtype: flops * peak for dtype, flops in device.peak_flops.items()},
        memory_bandwidth=device.memory_bandwidth * memory,
        host_to_device_bandwidth=device.host_to_device_bandwidth * up,
        device_to_host_bandwidth=device.device_to_host_bandwidth * down,
        networks=tuple(networks),
    )
