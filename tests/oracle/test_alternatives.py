"""Settings as choices against each combination planned alone: the same best plans, the same bound, a proof of all."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from planner import load, plan
from planner.search.alternatives import search_each
from planner.search.certificate import certify
from planner.search.solver import Clock
from planner.verbs.plan import evaluate
from tests.oracle import in_step

DEGREES = ("tp", "cp", "pp", "dp", "ep")

VALUES = {
    "gradient_dtype": ["fp32", "bf16"],
    "moments_dtype": ["fp32", "bf16"],
    "offloaded_states": [0.25, 1.0, 0.5],
    "offload_overlap": [False, True],
    "loss": ["unfused", "fused"],
    "fp8_param_gather": [True, False],
}

SEEDS = range(in_step(15))


def a_random_job(seed):
    """A model on few devices with much or little memory, and two settings with several values."""
    chooser = random.Random(seed)
    settings = {name: VALUES[name] for name in chooser.sample(list(VALUES), 2)}
    return {
        "model": chooser.choice(["llama3-8b", "mixtral-8x7b", "gemma-2-27b", "qwen3-30b-a3b", "gpt-oss-120b"]),
        "cluster": {
            "device": chooser.choice(["h100-80gb-sxm", "b200"]),
            "num_devices": chooser.choice([8, 16, 32]),
            "memory_gib": chooser.choice([30, 80]),
        },
        "training": {
            "global_batch_size": chooser.choice([32, 64]),
            "sequence_length": chooser.choice([2048, 4096]),
            "tokens": 1e11,
            "precision": chooser.choice(["bf16", "fp8"]),
        },
        "settings": settings,
        "search": {"stages": chooser.choice(["even", "layers"]), "time_limit_seconds": 600, "fastest": True}
        | {"evidence": chooser.choice(["proven", "any"])},
        "top": 3,
    }


def planned_alone(job):
    """A report for each combination of settings, in the job's order."""
    names = list(job["settings"])
    chosen = product(*job["settings"].values())
    jobs = (load({**job, "settings": dict(zip(names, one, strict=True))}) for one in chosen)
    return [plan(one, certified=False, explained=False) for one in jobs]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_together_is_the_best_of_each_alone(seed):
    """Of each combination of degrees the fastest with any settings; the three fastest of these."""
    assert_best_of_each(a_random_job(seed))


@pytest.mark.slow
def test_the_kind_of_context_parallelism_is_the_best_of_each_alone():
    """Long packed sequences: the communication of context-parallel ranks and their near ranks are choices."""
    job = a_random_job(0)
    lengths = {"4k": 20, "64k": 1}
    training = {"global_batch_size": 16, "sequence_length": "64k", "tokens": 1e11, "sequence_lengths": lengths}
    cluster = {"device": "h100-80gb-sxm", "num_devices": 16}
    settings = {"cp_comm_type": ["p2p", "a2a", "all_gather"]}

    assert_best_of_each({**job, "model": "llama3-8b", "cluster": cluster, "training": training, "settings": settings})


def assert_best_of_each(job):
    """Plan a job with settings as choices, and each of them alone: the same plans, bound and costs."""
    together, alone = plan(load(job)), planned_alone(job)
    fastest = {}
    for report in alone:
        for one in report.plans:
            group = tuple(getattr(one.strategy, name) for name in DEGREES)
            fastest[group] = min(one.step_seconds, fastest.get(group, one.step_seconds))
    best = sorted(fastest.values())[: job["top"]]

    assert [one.step_seconds for one in together.plans] == pytest.approx(best, rel=1e-9)
    assert together.exit_code == min(report.exit_code for report in alone)
    assert together.outcome.lower_bound_seconds == min(report.outcome.lower_bound_seconds for report in alone)
    for one in together.plans:
        (own,) = [number for number, each in enumerate(load(job).each) if each.settings == one.problem.settings]
        assert one.facts.cluster.settings == alone[own].problem.facts.cluster.settings
        assert evaluate(alone[own].problem, one.strategy).step_seconds == one.step_seconds


def test_an_answer_that_is_too_slow_is_refuted_by_the_combination_that_beats_it():
    """A microsecond more than the best: one of the two models finds it."""
    job = {**a_random_job(0), "model": "llama3-8b", "settings": {"gradient_dtype": ["fp32", "bf16"]}}
    problem = load({**job, "search": {"stages": "even"}})
    joint = search_each(problem)
    searched = [(one.searched, one.outcome) for one in joint.of_each]
    wrong = replace(joint.outcome, ticks=joint.outcome.ticks + 1)

    right, refuted = (certify(searched, one, Clock(seconds=600)) for one in (joint.outcome, wrong))

    assert right.verdict == "certified"
    assert refuted.verdict == "refuted"
    assert tuple(refuted.better.decisions().values())[:5] == tuple(joint.outcome.strategies[0].decisions().values())[:5]
