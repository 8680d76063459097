"""The recommended plan: the first in the order among all that are nearly as fast, by an enumeration of them all."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import pytest

from costmodel.step.estimate import estimate
from costmodel.strategy import Recompute
from planner.jobs.problem import load
from planner.report import render
from planner.search.recommendation import MEMORY_STEP, ORDER
from planner.search.space import build_space, strategy_of
from planner.uncertainty.features import unproven_of
from planner.verbs.plan import plan
from tests.planner.test_job import a_job

ROUNDING = 1e-9

SMALL = {
    "dense": {"model": "llama3-8b", "search__pin": {"mbs": 1, "recompute": "none"}, "search__limits": ["vpp <= 4"]},
    "recomputed": {
        "model": "llama3-8b",
        "cluster__device": "a100-40gb-sxm",
        "search__pin": {"mbs": 1, "cp": 1, "tp_overlap": True, "dp_overlap": True},
    },
    "experts": {
        "model": "qwen3-30b-a3b",
        "search__pin": {"mbs": 1, "recompute": "full", "cp": 1, "etp": 1},
        "search__limits": ["vpp <= 4"],
        "search__memory_headroom_gib": 0,
    },
    "wide": {
        "model": "qwen3-30b-a3b",
        "cluster__num_devices": 16,
        "search__pin": {"mbs": 1, "recompute": "full", "cp": 1, "vpp": 1},
        "search__memory_headroom_gib": 0,
    },
}


def a_small_job(kind, **entries):
    """A job whose strategies can be counted."""
    given = {"cluster__num_devices": 8, "training__global_batch_size": 64, "search__idle_devices": False}
    return load(a_job(**(given | SMALL[kind] | entries)))


@lru_cache(maxsize=1)
def every_strategy(kind):
    """Each strategy of a job that the rules allow and that fits, with its step, costed one by one."""
    problem, every = a_small_job(kind), []
    space = build_space(problem)
    names = list(space.features)
    room = problem.facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes
    for row in range(space.num_rows):
        degrees = {name: int(values[row]) for name, values in space.rows.items()}
        allowed = space.allowed[space.feature_class[row]]
        for index in itertools.product(*(range(len(space.features[name])) for name in names)):
            if allowed[index]:
                features = {name: int(space.features[name][at]) for name, at in zip(names, index, strict=True)}
                found = estimate(problem.facts, strategy_of(degrees | features))
                if found.device_bytes <= room:
                    every.append(found)
    return every


def amounts(problem, found):
    """Amounts of an estimated strategy with even stages, by the criteria before memory."""
    given = found.strategy.decisions() | {"device_mebibytes": found.device_bytes / 2**20, "is_uneven": False}
    return tuple(float(one.amount(problem, given)) for one in ORDER if one.name != "memory")


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("kind", SMALL)
def test_the_first_in_the_order_is_recommended(kind, tolerance):
    """Of all strategies within the tolerance none is better by the first criterion that tells them apart."""
    problem = a_small_job(kind, search__tolerance=tolerance)
    report = plan(problem, certified=False)
    every = every_strategy(kind)
    least = min(one.step_seconds for one in every)
    near = [one for one in every if one.step_seconds <= least * (1 + tolerance) * (1 + ROUNDING)]
    best = min(amounts(problem, one) for one in near)
    found = report.plans[0]

    assert report.fastest.step_seconds == pytest.approx(least)
    assert found.step_seconds <= least * (1 + tolerance) * (1 + ROUNDING)
    if tolerance:  # of equally fast ones any may be found
        assert amounts(problem, found.estimate) == best
        alike = [one.device_bytes for one in near if amounts(problem, one) == best]
        step = MEMORY_STEP * problem.facts.cluster.device.memory_bytes
        assert found.estimate.device_bytes <= min(alike) + step
    assert report.recommendation.is_complete


LARGE = {
    "model": "llama3-70b",
    "cluster__device": "h200",
    "cluster__num_devices": 512,
    "training__global_batch_size": 1024,
}


def a_large_job(**entries):
    """70 billion parameters on 512 devices: the fastest plan has more virtual stages than one needs."""
    return load(a_job(**(LARGE | entries)))


@cache
def usual_report():
    """The plan of that job, which puts another one first."""
    return plan(a_large_job(), certified=False)


def test_the_fastest_comes_first_where_it_is_asked_for():
    """In the job; then nothing is recommended. Else it stands behind, with what it gains."""
    asked = plan(a_large_job(search__fastest=True), certified=False)
    usual = usual_report()

    assert asked.recommendation is json.loads(render(asked, "json"))["recommendation"] is None
    assert usual.plans[0].strategy.vpp < asked.plans[0].strategy.vpp
    assert asked.plans[0].strategy == asked.fastest.strategy == usual.fastest.strategy != usual.plans[0].strategy
    assert usual.plans[1].strategy == usual.fastest.strategy
    assert usual.plans[1].slower_fraction(usual.plans[0]) < 0
    assert len(usual.plans) == usual.problem.top == 3


@pytest.mark.slow
def test_what_the_job_asks_for_stays():
    """A pinned degree is no question; neither is a feature whose plain value the job does not allow."""
    pinned = plan(a_large_job(search__pin={"vpp": 10, "pp": 4}, search__tolerance=0.5), certified=False)
    allowed = plan(a_large_job(search__allow={"recompute": ["full"]}), certified=False)

    assert (pinned.plans[0].strategy.vpp, pinned.plans[0].strategy.pp) == (10, 4)
    assert allowed.plans[0].strategy.recompute == Recompute.FULL


@pytest.mark.slow
def test_a_bold_job_gets_a_proven_plan_where_that_is_nearly_as_fast(monkeypatch):
    """
    Least unproven is the first criterion: with half of the step to spend nothing unproven is left.

    The model holds the first 64 of the 1,399 strategies that are nearly as fast.
    """
    monkeypatch.setattr("planner.search.recommendation.MOST_ASKED", 64)
    smaller = {"cluster__num_devices": 16, "training__global_batch_size": 32, "search__pin": {"cp": 1, "mbs": 1}}
    bold = a_large_job(**smaller, search__evidence="any", search__tolerance=0.5)
    report = plan(bold, certified=False)

    assert unproven_of(bold.facts, report.fastest.strategy)
    assert unproven_of(bold.facts, report.plans[0].strategy) == ()
    assert report.recommendation.preferred[0].name == "unproven"


@pytest.mark.slow
def test_reports_say_what_the_fastest_would_gain_and_risk():
    """In the answer, in a section of its own, in the JSON; also where the list has no room for the fastest."""
    report = usual_report()
    alone = plan(replace(a_large_job(), top=1), certified=False)

    text = " ".join(render(report, "table").split())
    whole, lonely = (json.loads(render(one, "json"))["recommendation"] for one in (report, alone))

    assert "preferred to the fastest plan" in text
    assert "more messages between pipeline ranks" in text
    assert (whole["fastest_number"], lonely["fastest_number"]) == (2, None)
    assert whole["gain_fraction"] == pytest.approx(1 - report.fastest.step_seconds / report.plans[0].step_seconds)
    assert [one["name"] for one in whole["preferred"]] == ["vpp"]


def test_the_documents_have_the_order():
    """One table, each criterion once, in the order in which they count."""
    page = (Path(__file__).parents[2] / "docs" / "reading_a_report.md").read_text(encoding="utf-8")
    names = re.findall(r"^  \| `(\w+)` \|", page, flags=re.MULTILINE)

    assert names == [one.name for one in ORDER]


@pytest.mark.slow
def test_a_published_layout_may_be_recommended():
    """
    DeepSeek-V3 on 1,024 GB200: NVIDIA's layout of 26.06 deals its layers by hand, which the search itself does not try.

    It is within the tolerance and leaves a third of the memory free, where the fastest plan fills nine tenths.
    """
    training = {"global_batch_size": 8192, "sequence_length": 4096, "tokens": 1e12, "precision": "mxfp8"}
    cluster, search = {"device": "gb200", "num_devices": 1024}, {"memory_headroom_gib": 14}
    job = load({"model": "deepseek-v3", "cluster": cluster, "training": training, "search": search})

    report = plan(job, certified=False)
    best = report.plans[0]

    assert "tight" in [one.name for one in report.recommendation.preferred]
    assert (best.strategy.pp, best.strategy.vpp, best.strategy.ep) == (4, 4, 64)
    assert best.strategy.layout is not None
    assert best.step_seconds <= report.fastest.step_seconds * (1 + job.search.tolerance)
