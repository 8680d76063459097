"""The recommended plan: the simplest within the noise of the fastest, by searches that know nothing of each other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodel.strategy import Recompute, Sharding
from planner.cli import main
from planner.jobs.limits import StageChoice
from planner.jobs.problem import load
from planner.plan import plan
from planner.recommendation import OFFLOAD, OFFLOAD_FRACTION, SIMPLE, features, without
from planner.report import render
from planner.uncertainty.shown import FEWEST_RUNS, MATTERS_ABOVE, features_of_runs, shown_features, unshown
from tests.planner.test_job import a_job

ROUNDING = 1e-9


def a_large_job(**entries):
    """70 billion parameters on 512 devices: the fastest plan has virtual stages, a plain one is nearly as fast."""
    job = a_job(model="llama3-70b", cluster__num_devices=512, training__global_batch_size=1024, **entries)
    return load(job)


def a_tight_job(**entries):
    """8 billion parameters on four devices of 32 GB: nothing fits without recomputation."""
    job = a_job(cluster__device="v100-32gb-sxm", cluster__num_devices=32, training__precision="fp16", **entries)
    return load({**job, "training": {**job["training"], "sequence_length": 2048}})


def an_odd_job(**entries):
    """Layers that divide over no pipeline."""
    return load(a_job(model="llama3-405b", cluster__num_devices=512, training__global_batch_size=512, **entries))


@pytest.mark.parametrize("make", [a_large_job, a_tight_job, an_odd_job])
def test_nothing_that_is_kept_could_be_left_out(make):
    """Without any feature of the recommended plan the fastest strategy is beyond what simplicity may cost."""
    problem = make()
    report = plan(problem, certified=False)
    advice, best = report.recommendation, report.plans[0]
    limit = report.fastest.step_seconds * (1 + advice.tolerance_fraction)

    for feature in features(problem, best.strategy):
        simpler = without(problem, feature, best.strategy).with_limits(simplest=False, stages=StageChoice.EVEN)
        lacks = [name for name in SIMPLE if getattr(best.strategy, name) == SIMPLE[name]]
        held = {name: SIMPLE[name] for name in lacks}
        alone = plan(simpler.with_limits(pin={**simpler.search.pin, **held}), certified=False)
        assert not alone.plans or alone.plans[0].step_seconds > limit

    assert advice.is_complete
    assert best.step_seconds <= limit * (1 + ROUNDING)


def test_the_simplest_is_a_plain_strategy_where_one_is_as_fast():
    """Virtual stages gain less than the noise here; the fastest plan stands second, with what it gains."""
    report = plan(a_large_job(), certified=False)
    advice = report.recommendation

    assert [one.name for one in features(report.chosen, report.fastest.strategy)] == ["vpp"]
    assert [one.name for one in advice.given_up] == ["vpp"]
    assert advice.kept == ()
    assert report.plans[0].strategy.vpp == 1
    assert report.plans[1].strategy == report.fastest.strategy
    assert report.plans[1].slower_fraction(report.plans[0]) < 0
    assert len(report.plans) == report.problem.top == 3


def test_the_fastest_comes_first_where_it_is_asked_for():
    """In the job, or on the command line; then nothing is recommended."""
    asked = plan(a_large_job(search__fastest=True), certified=False)
    simple = plan(a_large_job(), certified=False)

    assert asked.recommendation is None
    assert asked.plans[0].strategy == asked.fastest.strategy == simple.fastest.strategy != simple.plans[0].strategy


def test_what_the_job_asks_for_stays():
    """A pinned feature is no question; neither is one whose simple value the job does not allow."""
    pinned = plan(a_large_job(search__pin={"vpp": 10, "pp": 4}), certified=False)
    allowed = plan(a_large_job(search__allow={"recompute": ["full"]}), certified=False)

    assert pinned.plans[0].strategy.vpp == 10
    assert allowed.plans[0].strategy.recompute == Recompute.FULL
    assert "recompute" in {one.name for one in allowed.recommendation.kept}


def test_offload_must_gain_more_than_a_tenth():
    """On 192 devices the fastest plan offloads for 2 %; where nothing else fits, the recommended one offloads, too."""
    job = a_job(model="llama3-70b", cluster__num_devices=192, training__global_batch_size=1024)
    report = plan(load(job), certified=False)
    fastest, best = report.fastest, report.plans[0]

    assert any(getattr(fastest.strategy, name) for name in OFFLOAD)
    assert not any(getattr(best.strategy, name) for name in OFFLOAD)
    assert best.step_seconds <= (1 + OFFLOAD_FRACTION) * fastest.step_seconds

    little = load(a_job(cluster__num_devices=1, training__global_batch_size=8, search__memory_headroom_gib=4))
    forced = plan(little, certified=False)
    held = little.with_limits(pin=dict.fromkeys(OFFLOAD, 0), simplest=False)
    assert plan(held, certified=False).plans == ()
    assert any(getattr(forced.plans[0].strategy, name) for name in OFFLOAD)


@pytest.mark.parametrize(("num_devices", "batch"), [(32, 256), (16, 128)])
def test_nothing_riskier_takes_the_place_of_what_is_left_out(num_devices, batch):
    """On small devices the fastest plan recomputes; offload instead of that is no simpler, and 5 % stay 5 %."""
    job = a_job(
        model="llama2-13b",
        cluster__device="a100-40gb-pcie",
        cluster__num_devices=num_devices,
        training__global_batch_size=batch,
        training__sequence_length=4096,
    )
    report = plan(load(job), certified=False)
    best, fastest, advice = report.plans[0], report.fastest, report.recommendation

    assert not any(getattr(fastest.strategy, name) for name in OFFLOAD)
    assert not any(getattr(best.strategy, name) for name in OFFLOAD)
    assert best.step_seconds <= fastest.step_seconds * (1 + advice.tolerance_fraction) * (1 + ROUNDING)


def test_reports_say_what_the_fastest_would_gain_and_risk():
    """In the answer, in a section of its own, in the JSON; also where the list has no room for the fastest."""
    report = plan(a_large_job(), certified=False)
    alone = plan(replace(a_large_job(), top=1), certified=False)

    text = " ".join(render(report, "table").split())
    whole, lonely = (json.loads(render(one, "json"))["recommendation"] for one in (report, alone))

    assert "the simplest plan near the fastest" in text
    assert "more messages between pipeline ranks" in text
    assert (whole["fastest_number"], lonely["fastest_number"]) == (2, None)
    assert whole["gain_fraction"] == pytest.approx(1 - report.fastest.step_seconds / report.plans[0].step_seconds)
    assert "vpp=10" in " ".join(render(alone, "table").split())


def test_the_command_puts_the_fastest_first(tmp_path, capsys):
    """``--fastest``."""
    job = a_job(model="llama3-70b", cluster__num_devices=512, training__global_batch_size=1024)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))
    firsts = []
    for words in ([], ["--fastest"]):
        assert main(["plan", str(path), "--format", "json", *words]) == 0
        firsts.append(json.loads(capsys.readouterr().out))

    assert firsts[0]["plans"][0]["strategy"]["vpp"] == 1
    assert firsts[1]["plans"][0]["strategy"]["vpp"] == 10
    assert firsts[1]["recommendation"] is None


# --- what runs have shown ----------------------------------------------------------------------------------


def test_what_no_run_has_is_found():
    """By stack where it has runs enough; off, none and what makes no difference is nothing new."""
    report = plan(a_large_job(), certified=False)
    cluster, strategy = report.problem.facts.cluster, report.plans[1].strategy

    names = [one.name for one in unshown(cluster, replace(strategy, optimizer_offload=True))]
    plain = unshown(cluster, replace(strategy, dp_overlap=False, pp_overlap=False))

    assert (names, plain) == (["optimizer_offload"], [])


def test_related_software_counts_where_a_stack_has_few_runs():
    """Megatron-LM's own runs have no overlap, those of Megatron-Bridge have; of neither ZeRO-2 is known."""
    problem = load(a_job(cluster__framework="megatron-lm-0.17"))
    strategy = plan(problem, certified=False).fastest.strategy
    known, new = (replace(strategy, tp=2, dp=32, tp_overlap=True, sharding=one) for one in (1, Sharding.GRADIENTS))

    found = [[one.name for one in unshown(problem.facts.cluster, each)] for each in (known, new)]

    assert "tp_overlap" not in found[0]
    assert "sharding" in found[1]
    assert "sharding" not in found[0]


def test_runs_are_counted_where_a_decision_matters():
    """A pipeline's schedule says nothing of runs without one."""
    report = plan(a_large_job(), certified=False)
    flat, piped = report.plans[0].strategy, report.plans[1].strategy

    counted = {one.stack: one.runs for one in features_of_runs([("a", flat), ("a", piped), ("b", piped)])}

    assert (flat.pp, piped.pp > 1) == (1, True)
    assert counted["a"]["schedule"] == {"1f1b": 1}
    assert counted["any"]["schedule"] == {"1f1b": 2}
    assert sum(counted["any"]["cuda_graphs"].values()) == 3


def test_shipped_features_are_of_many_runs():
    """Every decision in every stack; all of them together are more than are asked for."""
    everything = shown_features()["any"].runs

    assert all(one.runs.keys() == MATTERS_ABOVE.keys() for one in shown_features().values())
    assert all(sum(counts.values()) >= FEWEST_RUNS for counts in everything.values())
    assert "true" not in everything["optimizer_offload"]
