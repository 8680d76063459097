"""The chance to fit: a law's shares and intervals, and the default headroom of a job."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import pytest

from costmodel.memory import seen_bytes
from planner.jobs.problem import load
from planner.uncertainty.counts import ANY
from planner.uncertainty.peaks import (
    COVERAGE,
    STARTS,
    Law,
    allocator_interval,
    interval_of,
    law_of,
    laws,
    peak_interval,
    usual_headroom_bytes,
)
from planner.verbs.plan import plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_job import a_document
from tests.planner.test_job import a_job


@cache
def planned():
    """Three plans of a job that asks for no headroom."""
    return plan(load(a_job(top=3)))


def test_a_share_and_its_ratio_are_inverse():
    """Whatever the law."""
    for law in laws().values():
        for share in (0.1, 0.5, STARTS, 0.99):
            assert law.share_below(law.log_ratio_of(share)) == pytest.approx(share, abs=1e-6)


def test_a_job_gets_the_default_unless_it_says_otherwise():
    """Also none at all; the default is the search's: a strategy that is given may use all of the memory."""
    default, none, own = (load(a_job(search=search)) for search in ({}, *({"memory_headroom_gib": n} for n in (0, 3))))
    peak = estimate(default, {"tp": 8}).plan.estimate.device_bytes
    tight = replace(default.facts.cluster.device, memory_bytes=peak + 1e9)
    problem = replace(default, facts=replace(default.facts, cluster=replace(default.facts.cluster, device=tight)))

    assert default.search.memory_headroom_bytes == usual_headroom_bytes(default.facts.cluster, default.facts.model)
    assert (none.search.memory_headroom_bytes, own.search.memory_headroom_bytes) == (0, 3 * 2**30)
    assert estimate(problem, {"tp": 8}).broken_rules == ()
    asked = problem.change_limits(memory_headroom_bytes=2e9, asks_headroom=True)
    assert len(estimate(asked, {"tp": 8}).broken_rules) == 1


def test_plans_of_jobs_without_headroom_start():
    """Every plan that is reported."""
    report = planned()

    assert len(report.plans) == 3
    assert all(one.chance_to_fit.share >= STARTS for one in report.plans)


def test_shipped_laws_are_of_many_runs():
    """One of all, of which those of the stacks are parts; every law is a law."""
    everything = laws()[ANY]
    parts = [law for law in laws().values() if law.stack != ANY]

    assert (everything.peaks > 150, everything.fits > 500, everything.failures >= 13) == (True, True, True)
    assert sum(law.peaks for law in parts) == everything.peaks
    assert all(math.isfinite(law.mean) and law.deviation > 0 for law in parts)


def test_software_of_ones_own_has_the_law_of_all():
    """Nothing else is known of it."""
    cluster = load(a_job()).facts.cluster

    assert law_of(replace(cluster, framework=None)) == laws()[ANY]
    assert isinstance(law_of(cluster), Law)


def test_an_interval_is_wider_where_no_peak_was_measured():
    """Four of five lie within; root two times as far from the mean where a stack has no peaks."""
    law = Law(stack="a", mean=0.01, deviation=0.03, peaks=30, fits=0, failures=0)
    unseen = replace(law, peaks=0)

    low, high = interval_of(law)
    assert law.share_below(high) - law.share_below(low) == pytest.approx(COVERAGE, abs=1e-6)
    assert interval_of(unseen) == pytest.approx([0.01 + math.sqrt(2) * (end - 0.01) for end in (low, high)])


def test_intervals_of_a_peak():
    """All of the device around its law's mean; what is reserved around tensors with the allocator's share."""
    problem = load(a_job())
    cluster, found_plan = problem.facts.cluster, estimate(problem, {"tp": 8}).plan
    peak = found_plan.estimate.device_bytes

    low, high = peak_interval(cluster, device_bytes=peak)
    reserved = allocator_interval(cluster, found_plan.strategy, device_bytes=peak)

    assert low < peak * math.exp(law_of(cluster).mean) < high
    assert reserved[0] < (peak - cluster.device.runtime_bytes) * math.exp(law_of(cluster).mean) < reserved[1]


SIXTEEN_BILLION = {
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 16),
    **{"model_type": "deepseek_v3", "hidden_size": 2048, "num_hidden_layers": 27, "first_k_dense_replace": 1},
    **{"intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2},
    **{"num_experts_per_tok": 6, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400, "hidden_act": "silu"},
}
"""torchtitan's DeepSeek-V3 of 16 billion parameters (models/deepseek_v3, 16B)."""


@pytest.mark.parametrize("loss_chunks", [1, 8])
def test_experts_recomputed_by_operators(tmp_path, loss_chunks):
    """
    torchtitan on 8 H100, its own recipe: eager layers, compiled loss, 73.3 GiB reserved.

    torchtitan's table of DeepSeek-V3-16B, 4 sequences of 4,096 tokens; with the loss on all logits and in 8 chunks.
    """
    (tmp_path / "config.json").write_text(json.dumps(SIXTEEN_BILLION))
    job = a_document(
        str(tmp_path / "config.json"),
        "8xh100",
        batch=32,
        sequence=4096,
        tokens=1e9,
        cluster={"framework": "torchtitan-0.3"},
        settings={"kernels": "eager", "loss": "compiled", "loss_chunks": loss_chunks},
    )
    strategy = {"ep": 8, "dp": 8, "mbs": 4, "sharding": "weights", "recompute": "every_other_matmul"}

    found = estimate(load(job), strategy).plan

    reserved = seen_bytes(found.cluster.device, found.estimate.device_bytes, "reserved", found.strategy)
    assert reserved / 2**30 == pytest.approx(73.3, rel=0.1)


@pytest.mark.parametrize(("model", "seconds"), [("qwen3-8b", 364), ("qwen3-30b-a3b", 483), ("qwen3-32b", 1295)])
def test_a_million_tokens_on_eight_devices(model, seconds):
    """Inputs of recomputed layers in host memory, a loss in chunks: huggingface/trl#6845; 56.2 GB for Qwen3-8B."""
    job = a_document(
        model,
        "8xh100",
        batch=1,
        sequence=2**20,
        tokens=1e9,
        cluster={"framework": "accelerate-1.15"},
        settings={"loss_chunks": 512},
        search={"framework_rules": False},
    )
    strategy = {"cp": 8, "mbs": 1, "sharding": "weights", "recompute": "full", "activation_offload": True}

    found = estimate(load(job), strategy).plan

    assert found.step_seconds == pytest.approx(seconds, rel=0.05)
    if model == "qwen3-8b":
        assert found.estimate.device_bytes == pytest.approx(56.2e9, rel=0.1)
