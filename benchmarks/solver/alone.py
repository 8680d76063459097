"""
Rules of the model that decide alone: without one of them CP-SAT finds strategies of a job that only this rule forbids.

The model has all rules of a job but one, whose negation it asks for; costs and memory are left out. Jobs are small and
lift the search's own bounds, so that models, frameworks and targets with rules of their own each have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from math import inf
from typing import Any, TypeAlias

import numpy as np

from constraints import MEMORY_RULES, RULES, TARGET_RULES, Rule
from constraints.cp_sat import cp_model
from constraints.joint import Part, joint_model
from constraints.relations import narrow
from planner import load
from planner.jobs.problem import Problem
from planner.search.domains import all_values, problem_rules
from planner.search.solver import new_solver

LEAST_ALONE = 130
"""Rules that must decide alone in some job."""

GRAPHS = ["none", "full_iteration", "attn", "moe_router", "moe_preprocess", "moe_router+moe_preprocess", "mlp", "moe"]

Entries: TypeAlias = Mapping[str, Any]

WIDE: Entries = {
    "schedule": ["1f1b", "gpipe", "zb_h1", "zb_h2", "zb_2p", "zb_v", "v_half", "dualpipe", "dualpipev"],
    "vocabulary": ["ends", "redistributed", "vocab_1", "vocab_2", "interlaced"],
    "group": [1, 2, 3, 4, 6, 8, 12, 16],
    "sequence_parallel": [False, True],
    "cuda_graphs": [*GRAPHS, "mamba", "attn+moe_router+moe_preprocess"],
    "mbs": [1, 2, 3, 4, 5, 8],
    "token_dispatcher": ["alltoall", "deepep", "hybridep"],
}
"""Values that a search tries only where a job allows them."""

WIDER: Entries = {
    **WIDE,
    "tp": [1, 2, 3, 4, 6, 8, 12, 16, 24],
    "cp": [1, 2, 3, 4, 6, 8],
    "ep": [1, 2, 3, 4, 5, 8],
    "etp": [1, 2, 3, 4],
    "recompute": ["none", "full", "core_attention", "norms", "mlp", "experts", "moe", "expert_activation"],
}
"""Degrees that divide nothing, and sets of modules of other models as well."""


def a_job(
    model: str,
    *,
    num_devices: int = 48,
    device: str = "h100-80gb-sxm",
    batch: int = 96,
    length: int = 4096,
    precision: str = "bf16",
    framework: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **search: Any,
) -> Problem:
    """A job with unproven features."""
    cluster = {"device": device, "num_devices": num_devices, **({"framework": framework} if framework else {})}
    training = {"global_batch_size": batch, "sequence_length": length, "tokens": 1e12, "precision": precision}
    entries = {"model": model, "cluster": cluster, "training": training, "settings": settings or {}}
    return load({**entries, "search": {"evidence": "any", **search}})


OF_FRAMEWORKS = (
    ("qwen3-30b-a3b", "megatron-lm-0.17", "h100-80gb-sxm"),
    ("deepseek-v2", "megatron-core-0.14", "h100-80gb-sxm"),
    ("llama2-7b", "megatron-core-0.8", "a100-80gb-sxm"),
    ("llama2-7b", "v-half-2024", "h100-80gb-sxm"),
)
"""Model, framework and device of jobs of other frameworks."""


def named_jobs() -> Iterator[tuple[str, Problem]]:
    """Jobs by name: as they come, then wide ones, those of targets, and those with settings."""
    for model in ("llama3-8b", "qwen3-30b-a3b", "qwen3-next-80b-a3b", "gpt-oss-20b", "nemotron-3-nano-30b-a3b"):
        yield model, a_job(model, num_devices=16, batch=32, length=8192 if model == "gpt-oss-20b" else 4096)
    for model, framework, device in OF_FRAMEWORKS:
        yield f"{model} {framework}", a_job(model, num_devices=16, batch=32, framework=framework, device=device)
    for model, target in (
        ("llama3-8b", "torchtitan"),
        ("deepseek-v3", "torchtitan"),
        ("llama3-8b", "deepspeed"),
        ("llama3-8b", "accelerate"),
    ):
        yield f"{model} {target}", a_job(model, num_devices=16, batch=32, target=target)
    free: Entries = {"allow": WIDE, "preferences": False}
    for model, release, device in (
        ("llama3-8b", "", "h100-80gb-sxm"),
        ("deepseek-v3", "", "h100-80gb-sxm"),
        ("llama2-7b", "v-half-2024", "h100-80gb-sxm"),
        ("nemotron-h-8b", "megatron-lm-0.18", "h100-80gb-sxm"),
        ("nemotron-h-8b", "megatron-lm-0.12", "h100-80gb-sxm"),
        ("qwen3-30b-a3b", "megatron-lm-0.12", "h100-80gb-sxm"),
        ("mixtral-8x7b", "megatron-lm-0.8", "h100-80gb-sxm"),
        ("gpt3-175b", "megatron-lm-2021", "a100-80gb-sxm"),
        ("gpt3-175b", "megatron-deepspeed-2021", "a100-80gb-sxm"),
    ):
        yield f"{model} {release}, wide", a_job(model, framework=release or None, device=device, **free)
    for model in ("gpt2-xl", "qwen3-30b-a3b"):
        yield f"{model}, physics", a_job(model, batch=48, length=1024, framework_rules=False, **free)
    for model, target in (
        ("nemotron-3-nano-30b-a3b", "megatron-lm"),
        ("nemotron-3-nano-30b-a3b", "megatron-bridge"),
        ("llama3-8b", "torchtitan"),
        ("gemma-2-27b", "torchtitan"),
        ("mixtral-8x7b", "deepspeed"),
        ("mixtral-8x7b", "accelerate"),
    ):
        yield f"{model} {target}, wide", a_job(model, target=target, **free)
    wider: Entries = {"allow": WIDER, "preferences": False}
    for model, length, target in (
        ("llama3-8b", 4100, ""),
        ("qwen3-30b-a3b", 4096, ""),
        ("qwen3-30b-a3b", 4100, "torchtitan"),
        ("mixtral-8x7b", 4096, "deepspeed"),
        ("mixtral-8x7b", 4096, "megatron-lm"),
    ):
        yield f"{model} {target}, wider", a_job(model, length=length, target=target or None, **wider)
    yield "llama3-8b, preferences", a_job("llama3-8b", allow=WIDER)
    for model, settings, search in _settings(free, wider):
        yield f"{model}, {settings}", a_job(model, settings=settings, **search)


def _settings(free: Entries, wider: Entries) -> Iterator[tuple[str, Entries, Entries]]:
    """Models with settings that have rules of their own."""
    yield "moonlight-16b-a3b", {"optimizer": "muon"}, {}
    yield "glm-4.5-air", {"shared_expert_overlap": True}, {}
    yield "qwen3-30b-a3b", {"delay_wgrad": True}, {}
    yield "llama3-8b", {"moments_dtype": "bf16", "optimizer_group": 3}, {}
    yield "llama3-8b", {"fp8_param_gather": True, "optimizer_group": 6}, {"precision": "fp8"}
    yield "qwen3-30b-a3b", {"optimizer_group": 3}, {}
    yield "llama3-8b", {"gradient_dtype": "fp32"}, {**free, "target": "deepspeed"}
    yield "llama3-8b", {"cp_comm_type": "a2a"}, {**free, "length": 12000}
    yield "llama3-8b", {"cp_comm_type": "a2a+p2p", "cp_a2a_ranks": 2}, {**free, "length": 12288}
    yield "qwen3-30b-a3b", {"offloaded_layers": 4}, dict(free)
    yield "deepseek-v3", {"cp_comm_type": "all_gather"}, {**wider, "length": 12288}
    yield "llama3-8b", {"offloaded_states": 0.5, "offloaded_masters": False}, {**wider, "target": "deepspeed"}
    yield "llama3-8b", {"offloaded_masters": False}, {**wider, "target": "megatron-lm"}


def find_alone(problem: Problem, asked: Sequence[Rule]) -> Iterator[Rule]:
    """Yield the rules of a job among some that alone exclude a strategy."""
    rules, values = problem_rules(problem), all_values(problem)
    every = (*rules.rows, *rules.mixed)
    for rule in every:
        if rule in asked and narrow(problem.facts, [rule], values, 0)[1]:
            others = [one for one in every if one is not rule]
            made = joint_model([Part(facts=problem.facts, rules=[*others, negate(rule)])], values)
            if new_solver(inf, of_tables=False).solve(made.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                yield rule


def negate(rule: Rule) -> Rule:
    """Return the rule that holds where another does not."""

    @wraps(rule)
    def holds(*facts: Any, **decisions: Any) -> Any:
        return np.logical_not(rule(*facts, **decisions))

    return holds


def run_alone() -> Iterator[str]:
    """Print which job shows each rule, and rules that decide alone in none; a sentence if these are too many."""
    left = {rule: rule.__name__ for rule in (*RULES, *(one for own in TARGET_RULES.values() for one in own))}
    left = {rule: name for rule, name in left.items() if rule not in MEMORY_RULES}
    number = len(left)
    for name, problem in named_jobs():
        found = list(find_alone(problem, [*left]))
        if found:
            print(f"{name}: {', '.join(left.pop(rule) for rule in found)}")
    print(
        f"{number - len(left)} of {number} rules each change the solutions of a job above, left out alone. Elsewhere "
        f"other rules or the values that are tried exclude as much: {', '.join(left.values())}."
    )
    if number - len(left) < LEAST_ALONE:
        yield f"only {number - len(left)} rules decide alone in a job."
