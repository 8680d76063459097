"""Devices stay idle where that is faster: the same answers as planning every smaller number of whole nodes alone."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.errors import SpecError
from costmodel.step.step import least_layer_device_seconds, least_layers_seconds, lower_bound_seconds
from planner import estimate, load, plan
from planner.report import render
from planner.search.alternatives import search_each, search_numbers
from planner.search.candidates import NO_RIVALS
from planner.search.certificate import certify
from planner.search.domains import limit_nodes, row_domains, smaller_nodes
from planner.search.questions import search
from planner.search.solver import Clock
from planner.search.space import build_space
from planner.verbs.plan import divides_poorly, promising_sizes, read_plan
from tests.cases import in_one_case

NODE = 8

FEW = "search.pin={mbs: 1, cp: 1}"
"""Fewer strategies, for tests that search many times."""


def a_job(num_nodes=9, batch=64, **entries):
    """A dense model on a number of nodes that does not divide its batch."""
    return {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": NODE * num_nodes},
        "training": {"global_batch_size": batch, "sequence_length": 4096, "tokens": 1e12},
        "search": {"stages": "even"},
        **entries,
    }


def planned(*overrides, **given):
    """The plan of such a job, without a certificate."""
    return plan(load(a_job(**given), overrides), certified=False)


@cache
def plan_of(num_nodes=9):
    """The plan of the job on a number of nodes, for whoever reads it."""
    return plan(load(a_job(num_nodes=num_nodes)))


def alone(num_nodes, *overrides, **given):
    """The plan on so many nodes that must all be used, without reasons or certificate."""
    job = load(a_job(num_nodes=num_nodes, **given), ["search.idle_devices=false", *overrides])
    return plan(job, certified=False, explained=False)


# --- the answer --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("num_nodes", "batch"), [(9, 64), (7, 100)])
def test_no_smaller_number_of_nodes_is_faster(num_nodes, batch):
    """Each number alone, all of its devices used."""
    best = planned(FEW, num_nodes=num_nodes, batch=batch).plans[0]

    plans = {number: alone(number, FEW, batch=batch).plans for number in range(1, num_nodes + 1)}
    steps = {number: some[0].step_seconds for number, some in plans.items() if some}
    assert best.step_seconds == pytest.approx(min(steps.values()), rel=1e-9)
    assert steps[best.cluster.num_nodes] == pytest.approx(best.step_seconds, rel=1e-9)


def test_where_all_devices_are_fastest_none_is_idle():
    """64 devices and a batch of 64; what was searched of fewer is said to be proven."""
    report = plan_of(8)

    assert (report.num_idle_devices, report.all_devices, report.nearby) == (0, None, ())
    assert report.fewer.is_proven
    assert report.plans[0].cluster.num_devices == 64
    assert "proven: " in render(report, "table").partition("fewer GPUs")[2].partition("\n")[0]


@pytest.mark.slow
def test_the_report_says_how_many_are_idle_and_why():
    """The best plan on all devices stands beside the answer; figures count what is used."""
    report = plan_of()
    text, record = render(report, "table"), json.loads(render(report, "json"))
    every = alone(9).plans[0]

    best = report.plans[0]
    assert report.num_idle_devices == 72 - best.cluster.num_devices > 0
    assert record["idle"]["num_idle_devices"] == report.num_idle_devices
    assert record["idle"]["all_devices"]["step_time_seconds"] == pytest.approx(every.step_seconds)
    assert f"with all 72 GPUs a step takes {every.step_seconds:,.3f} s" in " ".join(text.split())
    tokens = 64 * 4096 / best.step_seconds
    assert record["plans"][0]["tokens_per_second_per_gpu"] == pytest.approx(tokens / best.cluster.num_devices)
    hours = record["plans"][0]["training_run"]["total_seconds"] / 3600
    assert record["plans"][0]["training_run"]["gpu_hours"] == pytest.approx(hours * best.cluster.num_devices)
    assert record["plans"][0]["num_nodes"] == best.cluster.num_nodes < 9


@pytest.mark.slow
def test_plans_after_the_first_are_the_best_of_all_numbers():
    """Those on all devices, and those on fewer that are faster than the best of them."""
    report = planned("top=8", num_nodes=5, batch=32)
    every = alone(5, "top=8", batch=32).plans
    fewer = [one for number in range(1, 5) for one in alone(number, "top=8", batch=32).plans]

    faster = [one for one in fewer if one.step_seconds < every[0].step_seconds]
    steps = sorted(one.step_seconds for one in (*every, *faster))[:8]
    assert [one.step_seconds for one in report.plans] == pytest.approx(steps, rel=1e-9)


@pytest.mark.slow
def test_seven_sequences_on_many_devices_use_fewer():
    """7 sequences leave most of 64 nodes nothing to do but to wait for each other; no run divides them so finely."""
    report = planned(num_nodes=64, batch=7)

    best, every = report.plans[0], alone(64, "search.evidence=any", batch=7).plans[0]
    assert best.step_seconds < every.step_seconds
    assert best.cluster.num_devices < 512
    assert best.mfu > every.mfu


@pytest.mark.slow
def test_a_number_that_no_strategy_divides_still_has_a_plan():
    """97 nodes are a prime number; on all of them pipelines would be longer than the model."""
    assert not alone(97, batch=96).plans
    report = planned(num_nodes=97, batch=96)

    assert report.exit_code == 0
    assert report.all_devices is None
    assert "no strategy for all GPUs satisfies the rules" in " ".join(render(report, "table").split())


@pytest.mark.slow
def test_where_no_number_fits_the_conflict_is_that_of_all_devices():
    """Three ranks cannot share 32 heads, however few nodes are used."""
    report = planned("search.pin.tp=3")

    assert (report.exit_code, report.plans) == (1, ())
    assert report.outcome.conflict is not None
    assert report.outcome.conflict == planned("search.idle_devices=false", "search.pin.tp=3").outcome.conflict


@pytest.mark.slow
def test_total_time_takes_the_shorter_step_on_fewer_devices():
    """Fewer nodes fail less often, and the report says that numbers are compared by the step."""
    report = planned("objective=total_time")
    every = alone(9, "objective=total_time").plans[0]

    assert report.num_idle_devices > 0
    assert report.plans[0].schedule.total_seconds < every.schedule.total_seconds
    assert "numbers are compared by the step" in " ".join(render(report, "table").split())


@pytest.mark.slow
def test_settings_are_chosen_together_with_the_number():
    """Each setting on each number of nodes: the best of both."""
    settings = {"gradient_dtype": ["fp32", "bf16"]}
    report = planned(settings=settings)
    best = report.plans[0]

    steps = [
        alone(number, settings={"gradient_dtype": dtype}).plans[0].step_seconds
        for number in (7, 8, 9)
        for dtype in ("fp32", "bf16")
    ]
    assert best.step_seconds == pytest.approx(min(steps), rel=1e-9)
    assert [one.problem.settings["gradient_dtype"] for one in report.alternatives] == ["fp32", "bf16"]
    assert {one.answer for one in report.alternatives} <= {"found", "nothing faster"}
    answers = {one.problem.settings["gradient_dtype"]: one.answer for one in report.alternatives}
    assert answers[best.problem.settings["gradient_dtype"]] == "found"


# --- who decides -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_may_say_how_many_devices_are_used():
    """``max_devices`` allows any number up to it, not whole nodes alone: no other number is searched then."""
    report = planned("search.max_devices=72")

    assert report.fewer is None
    assert json.loads(render(report, "json"))["idle"] is None
    assert alone(9).fewer is None


def test_pins_hold_on_every_number():
    """dp 8 with tp 8 are 64 devices."""
    best = planned("search.pin.dp=8", "search.pin.tp=8", "search.pin.pp=1", "search.pin.cp=1").plans[0]

    assert (best.cluster.num_devices, best.strategy.dp) == (64, 8)


def test_listed_strategies_say_their_numbers(tmp_path):
    """A list of candidates is taken as it is."""
    (tmp_path / "list.csv").write_text("tp,pp,dp\n8,1,8\n8,9,1\n")

    report = plan(load(a_job(search={"candidates": "list.csv", "stages": "even"}), folder=tmp_path))

    assert report.fewer is None
    assert report.listed.num_impossible >= 1


def test_a_given_strategy_on_whole_nodes_is_allowed_and_counted():
    """tp 8 and dp 8 are 64 of 72 devices; without idle devices the rule of all devices forbids it."""
    job, decisions = load(a_job()), {"tp": 8, "dp": 8}

    report = estimate(job, decisions, searched=False)
    forbidden = estimate(job.change_limits(idle_devices=False), decisions, searched=False)

    assert report.broken_rules == ()
    assert report.plan.cluster.num_devices == 64
    assert forbidden.broken_rules == ("The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs.",)
    assert forbidden.plan.cluster.num_devices == 72
    assert "64 of 72 GPUs on 8 nodes" in render(report, "table")


def test_a_part_of_a_node_is_not_left_idle():
    """4 * 17 are 68 of 72 devices: eight and a half nodes."""
    report = estimate(load(a_job(batch=68)), {"tp": 4, "dp": 17}, searched=False)

    assert "The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs." in report.broken_rules


def test_a_saved_plan_uses_as_many_devices(tmp_path):
    """Read back from its report it has the same step, devices and training."""
    report = plan_of()
    (tmp_path / "plan.json").write_text(render(report, "json"))

    saved = read_plan(tmp_path / "plan.json")

    assert saved.drift_fraction == pytest.approx(0)
    assert saved.plan.cluster == report.plans[0].cluster
    assert saved.plan.schedule == report.plans[0].schedule


# --- the proof ---------------------------------------------------------------------------------------------


def test_the_certificate_is_of_every_number():
    """The second model finds nothing faster either; told of a slower plan, it finds the one on fewer devices."""
    report = plan_of()
    found, fewer = search_numbers(load(a_job()))
    searched = [(one.searched, one.outcome) for one in fewer.parts]
    slower = replace(found.outcome, ticks=round(1.005 * found.outcome.ticks))

    refuted = certify(searched, slower, Clock(seconds=60))

    assert report.certificate.verdict == "certified"
    assert refuted.verdict == "refuted"
    assert refuted.better.num_devices < 72


def test_what_is_left_out_of_fewer_devices_is_slower():
    """With and without the bound by the layers a search finds the same, in fewer rows."""
    problem = limit_nodes(load(a_job(num_nodes=13, batch=100)), 1, 12)
    best = search(problem)

    narrowed = problem.change_limits(faster_than_seconds=best.step_seconds[0] * 1.001)

    assert search(narrowed).step_seconds[0] == best.step_seconds[0]
    assert build_space(narrowed).num_rows < build_space(problem).num_rows


def test_time_that_runs_out_is_said():
    """Where the search on all devices is cut, nothing is known of fewer."""
    report = plan(load(a_job(), ["search.time_limit_seconds=1e-3"]))

    assert not report.fewer.is_proven
    assert report.exit_code == 3


@pytest.mark.slow
def test_a_proof_of_all_devices_alone_says_so(monkeypatch):
    """Where time is left for them and not for fewer, the answer is not said to be the best of all numbers."""

    def cut(problem, formulas, rivals=NO_RIVALS, clock=None):
        return search_each(problem, formulas, rivals, Clock(seconds=1e-9) if problem.search.num_nodes else clock)

    monkeypatch.setattr("planner.search.alternatives.search_each", cut)

    text = " ".join(render(planned(), "table").split())

    assert "among plans that use all GPUs" in text
    assert "time ran out before it was proven that no plan on fewer whole nodes is faster" in text


MODELS = ("llama3-8b", "qwen3-30b-a3b", "nemotron-h-8b", "deepseek-v3", "gpt-oss-120b", "minimax-text-01")
DEVICES = ("h100-80gb-sxm", "a100-80gb-sxm", "b200", "gb200", "v100-32gb-sxm")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", MODELS)
def test_no_row_undercuts_the_bound_by_its_layers(model):
    """Splitting a layer takes more in sum: the bound of one device against that of every row of degrees."""
    chooser = random.Random(model)
    job = a_job(num_nodes=chooser.randrange(5, 40), batch=chooser.randrange(24, 1024), model=model)
    job["cluster"]["device"] = chooser.choice(DEVICES)
    job["training"]["precision"] = "fp16" if job["cluster"]["device"].startswith("v100") else "bf16"
    job["search"] = {"preferences": False}
    problem = load(job)
    space = build_space(limit_nodes(problem, 1, smaller_nodes(problem)))
    rows = space.degrees(np.sort(np.random.default_rng(0).permutation(space.num_rows)[:20_000]))
    domains = row_domains(problem)
    (tp, cp), where = np.unique(np.stack([rows["tp"], rows["cp"]]), axis=1, return_inverse=True)

    most = {"ep": domains["ep"].tolist(), "mbs": int(domains["mbs"].max())}
    of_layer = least_layer_device_seconds(problem.facts, tp=tp, cp=cp, **most)
    least = least_layers_seconds(problem.facts, of_layer[where], rows)
    whole = least_layer_device_seconds(problem.facts, tp=np.array([1]), cp=np.array([1]), **most)

    assert (least <= lower_bound_seconds(problem.facts, rows) * (1 + 1e-9)).all()
    assert (whole <= of_layer * (1 + 1e-9)).all()
    assert (least > 0).all()


def test_without_a_plan_on_all_devices_nothing_is_left_out():
    """No step is known that others must undercut: half the nodes and more come first, then what can be as fast."""
    whole = search_each(load(a_job(num_nodes=97, batch=96)))
    _, fewer = search_numbers(load(a_job(num_nodes=97, batch=96)))

    assert not whole.ranked
    assert fewer.parts[0].problem.search.num_nodes == range(49, 97)
    assert fewer.is_proven


# --- near-by batches ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_near_by_batches_keep_all_devices_busy():
    """72 devices share 72 sequences, not 70; a plan for them trains more tokens per second."""
    report = plan(load(a_job(batch=70), [FEW]))
    [*nearby] = report.nearby
    records = json.loads(render(report, "json"))["nearby_batches"]

    assert nearby
    assert all(one.cluster.num_devices == 72 for one in nearby)
    assert [one.facts.workload.global_batch_size for one in nearby] == [r["global_batch_size"] for r in records]
    for one, record in zip(nearby, records, strict=True):
        size = record["global_batch_size"]
        assert abs(size / 70 - 1) <= 0.05
        assert record["change_fraction"] == pytest.approx(size / 70 - 1)
        own = alone(9, FEW, batch=size).plans[0]
        assert one.step_seconds == pytest.approx(own.step_seconds, rel=1e-9)
        gain = size / own.step_seconds / (70 / report.plans[0].step_seconds) - 1
        assert record["gain_fraction"] == pytest.approx(gain)
        assert record["gain_fraction"] > 0.01
    assert "Near-by batch sizes" in render(report, "table")
    assert "Near-by batch sizes" in render(report, "html")


def test_a_batch_that_divides_well_has_no_advice():
    """Nothing is searched for it."""
    assert plan_of(8).nearby == ()
    assert not divides_poorly(64, 64)


@in_one_case(("batch", "num_devices"), [(1024, 504), (7, 512), (1000, 776), (96, 72)])
def test_promising_sizes_share_a_larger_divisor(batch, num_devices):
    """Within 5 %, more than the batch itself, the largest first."""
    sizes = promising_sizes(batch, num_devices)

    shared = [math.gcd(size, num_devices) for size in sizes]
    assert shared == sorted(shared, reverse=True)
    assert all(one > math.gcd(batch, num_devices) for one in shared)
    assert all(abs(size / batch - 1) <= 0.05 for size in sizes)


# --- spare nodes -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_spare_nodes_are_kept_out():
    """Nine nodes with one spare are planned as eight."""
    spared, eight = planned("cluster.spare_nodes=1"), plan_of(8)

    assert spared.plans[0].step_seconds == eight.plans[0].step_seconds
    assert spared.plans[0].schedule == eight.plans[0].schedule
    assert "8 nodes of 8 GPUs, 1 more node kept as spares" in render(spared, "table")
    assert json.loads(render(spared, "json"))["cluster"]["num_spare_nodes"] == 1


@in_one_case(
    ("overrides", "message"),
    [
        (["cluster.spare_nodes=9"], "is 9, of 9 nodes with 8 devices each: none would train. Allowed: 0 to 8"),
        (["cluster.spare_nodes=-1"], "must be at least 0"),
        (["cluster.spare_nodes=1.5"], "cluster.spare_nodes"),
        (["cluster.spare_nodes=1", "cluster.num_devices=70"], "do not fill nodes of 8"),
        (["cluster.spare_nodes=1", "search.max_devices=72"], "more than the 64"),
        (["search.idle_devices=perhaps"], "search.idle_devices"),
    ],
)
def test_wrong_numbers_are_refused(overrides, message):
    """Negative, all nodes, half a node, nodes that are not whole."""
    with pytest.raises(SpecError, match=message):
        load(a_job(), overrides)


def test_a_node_alone_has_no_smaller_number():
    """Of one node no whole node can be left idle."""
    report = plan(replace(load(a_job(num_nodes=1)), top=1))

    assert report.fewer is None
