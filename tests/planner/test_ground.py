"""What measured runs have not shown: counted on made grounds, said in sentences, and what the project's runs have."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from benchmarks.plans.features import count_runs
from planner import load, render
from planner.uncertainty.counts import (
    FEW_RUNS,
    MOST_TOLD,
    ORDER,
    TABLE,
    Counts,
    Gap,
    gaps_to_runs,
    list_gaps,
    read_counts,
    read_stored_rows,
    traits_of,
)
from planner.uncertainty.intervals import ANY, intervals
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.cases import read_table

CASES = read_table("ground")

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": "nemo-25.02"},
    "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e11},
}


def a_run(*overrides: str, **decisions):
    """What a strategy of a small job shows."""
    report = estimate(load(JOB, list(overrides)), {"tp": 2, **decisions})
    return traits_of(report.problem.facts, report.plans[0].strategy)


def count(*runs) -> Counts:
    """Count the traits of runs."""
    return Counts.count(entry for run in runs for entry in run.entries())


def told(run, *grounds) -> dict[str, Gap]:
    """The gaps of a run to runs that are measured ten times each, by dimension."""
    return {gap.dimension: gap for gap in gaps_to_runs(run, count(*grounds * 10))}


@pytest.mark.parametrize(("overrides", "decisions", "sentence"), CASES["gaps"].values(), ids=CASES["gaps"])
def test_each_thing_that_no_run_has_is_a_sentence(overrides, decisions, sentence):
    """On a ground of one run, measured ten times; a run that is that one has no gap."""
    plain = a_run()

    found = gaps_to_runs(a_run(*overrides, **decisions), count(*[plain] * 10))

    assert sentence in [gap.sentence for gap in found]
    assert gaps_to_runs(plain, count(*[plain] * 10)) == []


def test_a_framework_of_the_job_was_never_measured():
    """Runs are of releases that others have, too."""
    cluster = JOB["cluster"] | {"framework": {"since": "2026-01"}}
    report = estimate(load(JOB | {"cluster": cluster}), {"tp": 2})

    found = gaps_to_runs(traits_of(report.problem.facts, report.plans[0].strategy), count(*[a_run()] * 10))

    assert "no measured run of the job's own framework" in [gap.sentence for gap in found]


def test_counts_are_written_as_they_are_stored():
    """By dimension, kind and value, numbers by their size: a run more changes its own lines."""
    stored = [(*list(row.values())[:3], int(row["runs"])) for row in read_stored_rows(TABLE)]

    assert [(dimension, among, str(value), runs) for dimension, among, value, runs in read_counts().rows()] == stored


def test_what_few_runs_have_says_how_many():
    """Once, twice; of three it is measured."""
    usual, odd = a_run(), a_run(tp=8)
    found = [gaps_to_runs(odd, count(*[usual] * 10, *[odd] * number)) for number in range(4)]

    sentences = [[gap.sentence for gap in each if gap.dimension == "tp"] for each in found]

    assert sentences[1:] == [
        ["tp 8 of dense models was measured once"],
        ["tp 8 of dense models was measured twice"],
        [],
    ]
    assert [gap.runs for each in found for gap in each if gap.dimension == "tp"] == [0, 1, 2]
    assert FEW_RUNS == 3


def test_a_feature_that_its_stack_has_may_be_new_on_a_generation_of_devices():
    """Sixty runs offload the optimizer, all on another generation: on this one none does."""
    elsewhere, here = a_run("cluster.device=b200", optimizer_offload=True), a_run()

    ground = count(*[elsewhere, here] * 60)
    found = {gap.dimension: gap.sentence for gap in gaps_to_runs(a_run(optimizer_offload=True), ground)}
    few = {gap.dimension for gap in gaps_to_runs(a_run(optimizer_offload=True), count(*[elsewhere] * 60, *[here] * 10))}

    assert found["optimizer_offload"] == "no measured run on hopper offloads the optimizer"
    assert "optimizer_offload" not in {gap.dimension for gap in gaps_to_runs(elsewhere, ground)}
    assert "optimizer_offload" not in few  # ten runs are too few to tell


def test_between_two_measured_degrees_nothing_is_extrapolated():
    """Runs with more of it vouch for less; where they are few, that is what is said."""
    usual, more = a_run(), a_run(tp=8)
    found = [gaps_to_runs(a_run(tp=4), count(*[usual] * 10, *[more] * number)) for number in (3, 2)]

    assert [[gap.sentence for gap in each] for each in found] == [
        [],
        ["tp of 4 or more of dense models was measured twice"],
    ]


def test_how_far_beyond_a_number_is_counts():
    """Four times the devices; a degree beyond none is that many times 1."""
    found = told(a_run("cluster.num_devices=64", pp=4), a_run())

    assert found["num_devices"].beyond == 4.0
    assert found["pp"].beyond == 4.0


def test_gaps_that_no_run_fills_come_first_in_the_order_of_what_they_change():
    """A device before a degree; once measured behind never measured."""
    odd = a_run("cluster.device=h200", "cluster.framework=nemo-25.04", tp=8)
    ground = count(*[a_run()] * 10, a_run(tp=8))

    found = [(gap.runs, gap.dimension) for gap in gaps_to_runs(odd, ground)]

    assert found[0][1] == "device"
    assert found == sorted(found, key=lambda one: (one[0] > 0, ORDER.index(one[1])))


def test_a_device_that_was_calibrated_on_its_own_runs_is_measured():
    """The interval's basis says so; a gap would contradict it."""
    run = replace(a_run("cluster.device=h200"), is_own_device=True)

    assert not told(run, a_run()).keys() & {"device", "software on device", "num_devices"}


def test_launches_that_the_measured_ones_bound_are_a_gap():
    """
    A host ten times as slow: by turns 2 times as long, where layers were measured 1.146 times as long: 1.75 times.

    A host that hides behind the device, a graph of the whole iteration, or passes one after the other have no such gap.
    """
    job = {**JOB, "model": "qwen3-30b-a3b", "cluster": {**JOB["cluster"], "framework": "megatron-bridge-26.04"}}
    own = {"tp": 1, "ep": 8, "token_dispatcher": "alltoall", "ep_overlap": True, "cuda_graphs": "none"}
    slow = {"cluster.device": {"base": "h100-80gb-sxm", "calibration": {"launch_overhead_seconds": 5e-4}}}

    def found(more: dict, **decisions) -> list[Gap]:
        cluster = {**job["cluster"], **({"device": slow["cluster.device"]} if more else {})}
        report = estimate(load({**job, "cluster": cluster}), {**own, **decisions})
        every = list_gaps(report.problem.facts, report.plans[0].strategy)
        return [gap for gap in every if gap.dimension == "launches"]

    bound = found(slow)

    assert [gap.sentence for gap in bound] == [
        "EP overlap with so much CPU launch overhead was never measured: "
        "costed with the longest launches that were measured, computed ones take 2.09 times as long"
    ]
    assert (bound[0].runs, bound[0].beyond) == (0, pytest.approx(2.385 / 1.1424, rel=1e-3))
    assert found(slow, ep_overlap=False) == found({}, mbs=4) == []


# --- the project's runs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_table_counts_the_rows():
    """``python -m benchmarks.plans.features --write`` writes the table of the rows of today."""
    assert read_counts() == count_runs()


def test_no_gap_contradicts_the_basis_of_an_interval():
    """Kinds whose errors make an interval of their own have at least as many runs on the ground."""
    ground = read_counts()
    for spread in intervals().steps:
        if ANY not in (spread.kind.device, spread.kind.model) and spread.kind.unseen == "nothing":
            assert ground.runs("kind", spread.kind.model, spread.kind.device) >= spread.rows


@pytest.mark.slow
def test_a_report_says_what_is_extrapolated():
    """Behind the interval in the text, in every other format too; the JSON has all gaps, the text the first few."""
    job = {**JOB, "cluster": {**JOB["cluster"], "device": "h200", "num_devices": 65_536}}
    report = estimate(load(job, ["training.global_batch_size=8192"]), {"tp": 8, "cp": 16, "optimizer_offload": True})

    whole = json.loads(render(report, "json"))
    texts = [" ".join(render(report, name).split()) for name in ("table", "markdown", "html")]

    sentences = [gap["sentence"] for gap in whole["gaps"]]
    assert "no measured run offloads the optimizer" in sentences
    assert any(
        re.match(r"the largest measured number of devices of dense models on h200 is 1,024 ", one) for one in sentences
    )
    assert any(one.startswith("the largest measured cp of dense models is 8 ") for one in sentences)
    for text in texts:
        assert f"Extrapolated: {'; '.join(sentences[:MOST_TOLD])}" in text.replace("&#x27;", "'")
    assert sentences == [gap.sentence for gap in list_gaps(report.problem.facts, report.plans[0].strategy)]


def test_a_job_like_hundreds_of_runs_is_not_extrapolated():
    """Llama 3 8B on eight H100, as NeMo's guides run it."""
    report = estimate(load({**JOB, "cluster": {**JOB["cluster"], "num_devices": 8}}), {"tp": 2})

    assert json.loads(render(report, "json"))["gaps"] == []
    assert "Extrapolated" not in render(report, "table")
