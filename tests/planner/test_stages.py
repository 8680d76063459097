"""Stages that differ, from the job to the report."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO

import pytest

from costmodel.errors import SpecError
from costmodel.strategy import Recompute
from planner import load, plan, render
from planner.search.branch_and_bound import Status
from planner.search.domains import cheap_recompute
from planner.search.questions import search
from tests.builders import a_model
from tests.builders_job import a_document
from tests.builders_problem import a_problem, a_timed_device, limits_of

JOB = a_document(
    "llama3-405b",
    "64xh100-80gb-sxm",
    batch=64,
    sequence=8192,
    tokens=1e9,
    search={"stages": "free", "evidence": "any", "pin": {"activation_offload": False, "tp": 8, "pp": 8, "vpp": 1}},
)
"""Llama-3-405B on so few devices that even stages must recompute every layer."""


@pytest.fixture(scope="module")
def report():
    """The best plan of the job."""
    return plan(load(JOB))


@pytest.mark.slow
def test_the_first_ranks_recompute_and_hold_less(report):
    """They have more micro-batches in flight: 126 layers in ascending numbers, fewer of them in full on later ranks."""
    layout = report.plans[0].strategy.layout

    assert sum(layout.layers) == 126
    assert list(layout.layers[:-1]) == sorted(layout.layers[:-1])
    assert layout.full_layers[0] > layout.full_layers[-1] == 0


@pytest.mark.slow
def test_uneven_stages_are_faster_than_even_ones(report):
    """By the closed form and as played; each rank fits into its own memory."""
    even = plan(load({**JOB, "search": {**JOB["search"], "stages": "even"}}))

    assert report.outcome.status == Status.OPTIMAL
    assert report.outcome.step_seconds[0] < even.outcome.step_seconds[0]
    assert report.plans[0].step_seconds < even.plans[0].step_seconds
    assert all(rank.device_bytes <= report.plans[0].memory_bytes for rank in report.plans[0].estimate.ranks)


@pytest.mark.slow
def test_uneven_stages_of_all_degrees_are_proven():
    """Nothing pinned: CP-SAT proves the few pipelines that bounds leave, long before time is up."""
    outcome = search(load({**JOB, "search": {"stages": "free", "evidence": "any", "time_limit_seconds": 30}}))

    assert outcome.effort.num_pipelines_solved > 0
    assert (outcome.status, outcome.gap) == (Status.OPTIMAL, 0)


@pytest.mark.slow
def test_every_format_tells_the_stages(report):
    """The table has a row per rank or run of alike ones, JSON and CSV the whole layout."""
    layout = report.plans[0].strategy.layout
    [row] = csv.DictReader(StringIO(render(report, "csv")))
    [told] = json.loads(render(report, "json"))["plans"]

    assert told["strategy"]["layout"] == json.loads(row["layout"])
    assert tuple(told["strategy"]["layout"]["layers"]) == layout.layers
    assert told["strategy"]["layout"]["recompute"] == [one.text for one in layout.recompute]
    assert "Stages" in render(report, "table")
    assert json.loads(render(report, "json"))["search"]["num_pipelines"] > 0


def test_uneven_layers_alone_keep_one_decision_for_all_ranks():
    """``layers``: what is recomputed is the strategy's own on every rank."""
    problem = a_problem(a_model(num_layers=7, vocab_size=20000), num_devices=2, **{"pin": {"pp": 2, "vpp": 1}})
    limits = replace(problem.search, stages="layers")

    (strategy,) = search(replace(problem, search=limits)).strategies

    # A head as long as many layers: it is moved away from, and even stages have four and three layers.
    assert strategy.layout.layers[0] > 4
    assert set(strategy.layout.recompute) == {strategy.recompute}
    assert strategy.layout.full_layers == (0, 0)


@pytest.mark.slow
def test_where_nothing_even_fits_uneven_stages_may():
    """Memory for what the best uneven layout takes, and not for any even one: found, and infeasible without."""
    problem = a_problem(a_model(num_layers=7, vocab_size=20000), num_devices=2, pin={"pp": 2, "vpp": 1, "tp": 1})
    limits = limits_of(pin={**problem.search.pin, "recompute": 0, "activation_offload": 0, "optimizer_offload": 0})
    found = []
    for gigabytes in (value / 1000 for value in range(100, 120)):
        device = a_timed_device(memory_bytes=gigabytes * 1e9)
        facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=device))
        outcomes = [
            search(replace(problem, facts=facts, search=replace(limits, stages=stages)))
            for stages in ("even", "layers")
        ]
        found.append(tuple(outcome.status for outcome in outcomes))

    assert (Status.INFEASIBLE, Status.OPTIMAL) in found
    assert (Status.OPTIMAL, Status.INFEASIBLE) not in found


def test_a_choice_of_stages_that_is_none():
    """What is allowed is named."""
    with pytest.raises(SpecError, match=r"search\.stages") as caught:
        load({**JOB, "search": {"stages": "uneven"}})

    assert "layers" in str(caught.value)


def test_uneven_stages_recompute_what_the_best_even_ones_do():
    """On devices between the peaks of whole layers recomputed and of none: in layers 2, 3, 2, 1 mlp alone wins."""
    sizes = {"hidden_size": 1024, "num_layers": 8, "num_heads": 8, "head_dim": 128, "num_kv_heads": 8}
    model = a_model(**sizes, ffn_hidden_size=4096, vocab_size=20000)
    degrees = {"tp": 1, "cp": 1, "pp": 4, "vpp": 1, "mbs": 1}
    off = dict.fromkeys(("activation_offload", "optimizer_offload", "cuda_graphs"), 0)
    problem = a_problem(
        model,
        num_devices=4,
        device=a_timed_device(devices_per_node=4),
        workload={"global_batch_size": 16, "sequence_length": 1024},
        pin=degrees | off,
    )
    problem = replace(problem, search=replace(problem.search, stages="layers"))
    device = replace(problem.facts.cluster.device, memory_bytes=1.3e9)

    outcome = search(problem.change_cluster(device=device))

    (strategy,) = outcome.strategies
    assert strategy.layout is not None
    assert len(set(strategy.layout.layers)) > 1
    assert strategy.recompute == Recompute.of("mlp")
    assert strategy.recompute not in cheap_recompute(model, None)
    assert "Uneven stages recompute" in outcome.effort.bounds[-1]


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize(("stages", "proven_of"), [("free", "even stages"), ("even", "all strategies")])
def test_reports_say_what_is_proven(stages, proven_of):
    """Uneven stages are compared by the sum over their ranks, so the bound is of even ones where they are tried."""
    text = render(plan(load({**JOB, "search": {**JOB["search"], "stages": stages}})), "json")

    assert json.loads(text)["bound_of"] == proven_of
