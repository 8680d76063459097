"""What measured runs have shown: counted, left out of default plans, named where it is asked for."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel import catalog
from costmodel.strategy import CudaGraphs, Sharding, TokenDispatcher
from planner.jobs.problem import load
from planner.report import render
from planner.search.space import build_space, strategy_of
from planner.uncertainty.counts import Counts, read_counts
from planner.uncertainty.features import FEWEST_RUNS, evidence_for, feature_entries, line_of, unproven_of
from planner.verbs.plan import estimate, plan
from tests.builders_cluster import a_strategy
from tests.planner.test_job import a_job

JUDGED = 400
"""Strategies outside of the default space that are judged one by one."""

EXPERTS = {"model": "qwen3-30b-a3b", "cluster__num_devices": 16}

SPACES = {
    "dense on Hopper": {"search__pin": {"mbs": 1, "recompute": "none"}},
    "experts on Hopper": {**EXPERTS, "search__pin": {"mbs": 1, "recompute": "full", "pp": 2, "cp": 1}},
    "experts on Blackwell": {
        **EXPERTS,
        "cluster__device": "b200",
        "search__pin": {"mbs": 1, "recompute": "none", "pp": 2, "cp": 1},
    },
    "unmeasured devices": {
        "search__target": None,
        "cluster__device": "mi300x",
        "search__pin": {"mbs": 1, "recompute": "none"},
    },
}


def strategies(problem):
    """Every strategy of a space, as the values of its decisions."""
    space = build_space(problem)
    values = [*space.features.values()]
    features = [
        [tuple(int(one[at]) for one, at in zip(values, index, strict=True)) for index in np.argwhere(allowed).tolist()]
        for allowed in space.allowed
    ]
    rows = zip(*(degrees.tolist() for degrees in space.rows.values()), strict=True)
    names = (*space.rows, *space.features)
    return names, {(*row, *one) for row, kind in zip(rows, space.feature_class, strict=True) for one in features[kind]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", SPACES)
def test_the_default_space_is_what_runs_have_shown(kind):
    """It has nothing unproven; of the other strategies of the whole space, a sample is unproven without exception."""
    job = {"cluster__num_devices": 8, "training__global_batch_size": 32, "search__target": "megatron-bridge"}
    job |= SPACES[kind]
    (names, proven), (_, every) = (strategies(load(a_job(**job, search__evidence=one))) for one in ("proven", "any"))
    facts = load(a_job(**job)).facts

    others = sorted(every - proven)
    judged = {*random.Random(1).sample(others, min(JUDGED, len(others)))}

    unproven = {one for one in proven | judged if unproven_of(facts, strategy_of(dict(zip(names, one, strict=True))))}
    assert proven
    assert proven & unproven == set()
    assert judged == unproven


def test_runs_are_counted_by_feature_and_pair():
    """Two runs of the same generation, family and line: FSDP in both, with tp in one; a third stands elsewhere."""
    hopper, ampere = (load(a_job(cluster__device=one)).facts for one in ("h100-80gb-sxm", "a100-80gb-sxm"))
    flat = a_strategy(dp=8, sharding=Sharding.WEIGHTS)
    split = a_strategy(tp=2, dp=4, sharding=Sharding.WEIGHTS, sequence_parallel=True)

    runs = ((hopper, flat), (hopper, split), (ampere, flat))
    counts = Counts.count(entry for run in runs for entry in feature_entries(*run))

    dense = "megatron hopper dense"
    assert counts.values("feature", dense) == {"sharding=weights": 2, "sharding=weights with tp": 1}
    assert counts.total("vpp", dense) == 2
    assert counts.runs("feature", "sharding=weights", "megatron any dense") == 3


def test_features_without_effect_are_none():
    """A dispatcher without experts on other devices, shards of one replica."""
    facts = load(a_job(**EXPERTS)).facts
    strategy = a_strategy(pp=16, token_dispatcher=TokenDispatcher.DEEPEP, sharding=Sharding.WEIGHTS)

    assert unproven_of(facts, strategy) == ()


def test_frameworks_of_megatron_core_are_one_line():
    """Megatron-LM, Megatron-Bridge and NeMo; torchtitan is another one."""
    names = ("megatron-lm-0.17", "megatron-bridge-26.06", "nemo-25.07", "torchtitan-0.3")

    assert [line_of(catalog.framework(name)) for name in names] == ["megatron"] * 3 + ["torchtitan"]


def test_pairs_of_proven_features_may_be_unproven():
    """FSDP has run on Blackwell with dense models, not three times with tp."""
    facts = load(a_job(model="llama3-70b", cluster__device="gb200", cluster__num_devices=64)).facts
    flat, split = (a_strategy(tp=tp, dp=64 // tp, sharding=Sharding.WEIGHTS) for tp in (1, 2))

    assert unproven_of(facts, flat) == ()
    (pair,) = unproven_of(facts, split)
    assert pair.names == ("sharding", "tp")
    assert pair.runs < FEWEST_RUNS <= pair.among


def test_devices_without_runs_have_no_features_of_their_own():
    """Of their relatives they have degrees, ZeRO and recomputation."""
    facts = load(a_job(cluster__device="mi300x")).facts
    known = evidence_for(facts.model, facts.cluster, facts.workload)

    assert known.own is None
    assert unproven_of(facts, a_strategy(tp=8, pp=2, dp=4, sharding=Sharding.OPTIMIZER)) == ()
    names = {
        one.names for one in unproven_of(facts, a_strategy(dp=8, tp_overlap=True, cuda_graphs=CudaGraphs.of("attn")))
    }
    assert names == {("cuda_graphs",), ("tp_overlap",), ("cuda_graphs", "tp_overlap")}


@pytest.mark.slow
def test_what_the_job_pins_is_planned_and_said():
    """A pinned graph of the whole iteration on Hopper; FSDP with tp where both are pinned."""
    graph = load(a_job(search__pin={"cuda_graphs": "full_iteration"}))
    pair = load(a_job(search__pin={"sharding": "weights", "tp": 2}))

    graphs, shards = plan(graph, certified=False), plan(pair, certified=False)

    assert ("cuda_graphs",) in [one.names for one in graphs.plans[0].unproven]
    assert all("cuda_graphs" in one.names for one in graphs.plans[0].unproven)
    assert (shards.plans[0].strategy.sharding, shards.plans[0].strategy.tp) == (Sharding.WEIGHTS, 2)
    assert "one CUDA graph of the whole iteration" in " ".join(render(graphs, "table").split())
    written = json.loads(render(graphs, "json"))["plans"][0]["unproven"]
    assert (written[0]["names"], written[0]["among"]) == (["cuda_graphs"], graphs.plans[0].unproven[0].among)


def test_a_given_strategy_is_told_what_the_search_leaves_out():
    """As a preference, with the number of runs."""
    report = estimate(load(a_job()), {"tp": 2, "dp": 32, "sharding": "weights", "cuda_graphs": "full_iteration"})

    assert not report.broken_rules
    assert any("FSDP" in one or "sharding" in one for one in report.broken_preferences)
    assert any("search.evidence: any" in one for one in report.broken_preferences)


def test_virtual_stages_stay_within_what_ran():
    """As many as three runs reach."""
    problem = load(a_job(model="llama3-70b", cluster__device="gb300", training__global_batch_size=256))
    most = evidence_for(problem.facts.model, problem.facts.cluster, problem.facts.workload).most_vpp
    bold = problem.change_limits(is_bold=True)

    assert max(build_space(problem).rows["vpp"]) <= most < max(build_space(bold).rows["vpp"])


def test_every_entry_of_the_table_is_of_runs():
    """No feature has more runs than there are."""
    counts = read_counts()
    shown = [(among, runs) for (name, among), runs in counts.by_value.items() if name == "feature"]

    assert len(shown) > 30
    for among, runs in shown:
        assert all(0 < number <= counts.total("vpp", among) for number in runs.values())


def test_strategies_that_a_job_lists_need_no_evidence(tmp_path):
    """They say themselves what they have."""
    listed = tmp_path / "list.csv"
    listed.write_text("tp,dp,sharding\n2,32,weights\n")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(a_job(search__candidates="list.csv")))

    found = plan(replace(load(path), top=1), certified=False).plans[0]

    assert (found.strategy.tp, found.strategy.sharding) == (2, Sharding.WEIGHTS)


def test_experts_are_divided_as_in_runs():
    """Of Megatron's runs on Hopper with experts none has ep 2 or 4; where 4 devices allow no more, 4 is searched."""
    problem = load(a_job(model="qwen3-30b-a3b", training__global_batch_size=256))
    few = load(a_job(model="qwen3-30b-a3b", cluster__num_devices=4, training__global_batch_size=256))

    jobs = (problem, problem.change_limits(is_bold=True), few)
    searched, bold, least = (set(build_space(one).rows["ep"]) for one in jobs)

    assert {2, 4} & bold
    assert not {2, 4} & searched
    assert 8 in searched
    assert 4 in least


def test_experts_are_divided_no_wider_than_in_runs():
    """Two of Megatron's runs on Hopper have ep 128, which is too few; four have 64 or more."""
    problem = load(a_job(model="deepseek-v3", cluster__num_devices=1024, training__global_batch_size=8192))

    searched = set(build_space(problem).rows["ep"])

    assert max(searched) == 64 < max(build_space(problem.change_limits(is_bold=True)).rows["ep"])


def test_context_parallel_ranks_have_as_many_tokens_as_in_runs():
    """Of Megatron's runs on Hopper with experts none has ep 2 or 4; four devices allow no more than 4."""
    short, long = (load(a_job(model="llama3-70b", training__sequence_length=one)) for one in (4096, 16384))

    assert set(build_space(short).rows["cp"]) == {1}
    assert max(build_space(long).rows["cp"]) == 4


def test_a_narrow_ep_is_unproven():
    """It is named, with the number of runs."""
    problem = load(a_job(model="qwen3-30b-a3b", training__global_batch_size=256))
    strategy = estimate(problem, {"ep": 2, "tp": 2}, searched=False).plan.strategy

    narrow = [one for one in unproven_of(problem.facts, strategy) if one.names == ("ep",)]

    assert [(one.text, one.runs) for one in narrow] == [("ep of 2 or less", 0)]
