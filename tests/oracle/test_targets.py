"""Targets: their rules say what the exporters say, and no job is planned for a target that cannot take the plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from benchmarks.targets.jobs import Answer, became, random_jobs
from constraints import TARGET_RULES
from constraints.targets import find_first_refusals, find_refusals
from costmodel.errors import SpecError
from costmodel.facts.model import Experts
from costmodel.strategy import CudaGraphs, Strategy
from planner import estimate, export, load
from planner.frameworks import TARGETS
from planner.jobs.problem import Problem
from planner.results import Plan
from planner.search.runnable import require_runnable
from tests.builders_plan import RULES, VALUES, idle
from tests.builders_problem import is_allowed
from tests.cases import read_table
from tests.oracle import in_step

MODELS = ("llama3-8b", "gemma-2-27b", "mixtral-8x7b", "deepseek-v3", "gpt2-xl")
"""Few key-value heads; tied embeddings; experts; multi-token prediction and latent attention; as many heads as keys."""

CHOICES = read_table("target_choices")
FRAMEWORKS: dict[str, tuple[str | None, ...]] = {"megatron-lm": (None, None, "megatron-lm-0.14")}
"""Beside the newest one, that exchanges heads for context parallelism."""

USUALLY_OFF = (
    *("token_dispatcher", "activation_offload", "sequence_parallel"),
    *("ep_overlap", "cp_overlap", "schedule", "vocabulary"),
)
OFF = 0.8
"""Share of the strategies that have the first value of each of these."""

STRATEGIES = 1000
LEAST_ACCEPTED = 6
"""Strategies of those that a target accepts at least, so that agreement says something."""

NUM_JOBS = in_step(20)


def a_document(model: str, framework: str | None, precision: str, settings: Any, batch: int = 64) -> dict[str, Any]:
    """A job of 16 GPUs."""
    return {
        "model": model,
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": framework},
        "training": {"global_batch_size": batch, "sequence_length": 1024, "tokens": 1e11, "precision": precision},
        "settings": settings,
    }


@cache
def a_job(model: str, target: str, precision: str, number: int, batch: int, framework: str | None) -> Problem | None:
    """A job of 16 GPUs with some settings; None where the target refuses it before any strategy is asked about."""
    settings = CHOICES["settings"][target][number]
    job = load(a_document(model, framework, precision, settings, batch) | {"search": {"target": target}})
    try:
        require_runnable(job)
    except SpecError:
        return None
    return job


def strategies(target: str, count: int) -> Iterator[tuple[Problem, Strategy]]:
    """Random strategies that the mathematics allows, most decisions as the target usually has them."""
    chooser = random.Random(target)
    while count:
        number, batch = chooser.randrange(len(CHOICES["settings"][target])), chooser.choice((48, 64))
        half = chooser.choice(CHOICES["precisions"][target])
        framework = chooser.choice(FRAMEWORKS.get(target, (None,)))
        job = a_job(chooser.choice(MODELS), target, half, number, batch, framework)
        if job is None:
            continue
        drawn: dict[str, Any] = {name: chooser.choice(values) for name, values in VALUES.items()}
        drawn["cuda_graphs"] = CudaGraphs.NONE  # those of torchtitan are left out, as no run of them is known
        for name in USUALLY_OFF:
            if chooser.random() < OFF:
                drawn[name] = VALUES[name][0]
        drawn["dp"] = 16 // (drawn["tp"] * drawn["cp"] * drawn["pp"])
        has_experts = any(isinstance(kind.feed_forward, Experts) for kind in job.facts.model.kinds)
        strategy = Strategy(**drawn | idle(drawn, has_experts=has_experts)) if drawn["dp"] else None
        if strategy and is_allowed(job.facts, strategy.decisions(), RULES):
            count -= 1
            yield job, strategy


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "accelerate"])
def test_the_search_asks_all_rules_of_a_target(target):
    """On random strategies its refusals are the search's rules: else there were refusals after the search, or none."""
    accepted = 0
    for job, strategy in strategies(target, STRATEGIES):
        refused = find_refusals(job.facts, strategy, target)
        allowed = is_allowed(job.facts, strategy.decisions(), TARGET_RULES[target])

        assert bool(refused) != allowed, f"{job.facts.model.name} {job.facts.cluster.settings} {strategy}: {refused}"
        accepted += not refused
    assert accepted >= LEAST_ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_megatron_refuses_nothing_that_the_rules_allow(target):
    """Its refusals by field are among the rules that the search asks, or follow from them."""
    accepted = 0
    for job, strategy in strategies(target, in_step(2000)):  # it takes more of them
        if not is_allowed(job.facts, strategy.decisions(), TARGET_RULES[target]):
            continue
        accepted += 1

        assert find_refusals(job.facts, strategy, target) == {}, f"{job.facts.model.name} {strategy}"
    assert accepted >= LEAST_ACCEPTED


PLANS_OF_A_SEED = 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(in_step(40)))
def test_a_report_lists_the_targets_that_an_export_is_written_for(seed):
    """Whatever release was costed: reports ask rules alone, exports their options and those that a release lacks."""
    chooser, plans, decisions = random.Random(seed), 0, CHOICES["strategies"]
    while plans < PLANS_OF_A_SEED:
        drawn = {name: chooser.choice(values) for name, values in CHOICES["estimated"].items()}
        given = {name: chooser.choice(decisions[name]) for name in chooser.sample(sorted(decisions), k=3)}
        job = a_document(**drawn)
        try:
            plan = estimate(load(job), given, searched=False).plan
        except SpecError:
            continue
        plans += 1
        listed = find_first_refusals(plan.facts, plan.strategy)

        assert {target for target, reason in listed.items() if reason is None} == {*written_for(plan)}, (job, given)


def written_for(plan: Plan) -> Iterator[str]:
    """The targets that a plan is exported to."""
    for target in TARGETS:
        with suppress(SpecError):
            export(plan, target)
            yield target


@pytest.mark.slow
def test_no_job_is_planned_for_a_target_that_cannot_take_it():
    """Random jobs for every target: each plan exports, or the job is refused before, or nothing fits."""
    found: Counter[Answer] = Counter()
    for job in random_jobs(seed=1, number=NUM_JOBS, seconds=2.0):
        for target in TARGETS:
            answer = became(job, target)
            assert answer.answer is not Answer.WRONG, f"{target}: {job}: {answer.text}"
            found[answer.answer] += 1

    assert found[Answer.EXPORTED] >= NUM_JOBS
    assert found[Answer.REFUSED] >= NUM_JOBS // 2
