"""The ground of a gain: the interval of a difference, unproven features, measured runs."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from functools import cache
from io import StringIO

import pytest

from costmodel.strategy import CudaGraphs
from planner import compare, compare_two, estimate, load, render
from planner.report.compared import unproven_text
from planner.report.html.page import comparison_charts
from planner.report.html.shown import comparison_plans
from planner.report.records.explained import ComparisonRecord
from planner.uncertainty.changes import Change, ChangeErrors, Costed, Factor, changes_between, distance, ratio_interval
from planner.uncertainty.features import Unproven
from planner.uncertainty.intervals import Interval
from planner.verbs import compare as of_gain
from planner.verbs.compare import gain_of, side_of
from planner.verbs.plan import judge_strategy
from tests.cases import in_one_case

JOB = {
    "model": "llama3-70b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64},
    "training": {"global_batch_size": 128, "sequence_length": 8192, "tokens": 1e12},
}
NVIDIA = {"tp": 4, "cp": 2, "pp": 4, "vpp": 5, "mbs": 1, "tp_overlap": True}


def estimated(changes=(), **decisions):
    """A layout of the job, of which some entries may be others."""
    return (
        estimate(load({**JOB, **dict(changes)}), decisions, searched=False).plan
        if changes or decisions
        else nvidia().plan
    )


@cache
def nvidia():
    """Estimate NVIDIA's layout, once for all tests."""
    return estimate(load(JOB), NVIDIA, searched=False)


def costed(plan):
    """A plan as the law takes it."""
    exposed = {part.name: part.exposed_seconds for part in plan.estimate.breakdown}
    return Costed(facts=plan.facts, strategy=plan.strategy, step_seconds=plan.step_seconds, exposed_seconds=exposed)


@pytest.fixture(scope="module")
def comparison():
    """NVIDIA's layout of Llama-3-70B on 64 H100 against the fastest plan."""
    return compare(load(JOB), NVIDIA)


# --- the interval ------------------------------------------------------------------------------------------

LAW = ChangeErrors(
    source="",
    floor=0.03,
    rate=0.1,
    release=0.04,
    factors=(Factor(change=Change.DEGREES, factor=1.0, groups=8, pairs=8, alone=True),),
    other=2.0,
    coverage={},
)


@in_one_case(
    ("changes", "apart", "half"),
    [
        (set(), 0.0, 0.0),
        (set(), 0.16, 2.0 * 0.05),  # they differ in something that has no kind
        ({Change.DEGREES}, 0.0, 0.03),
        ({Change.DEGREES}, 0.16, math.sqrt(0.03**2 + 0.01 * 0.16)),  # 0.05
        ({Change.DEGREES, Change.RECOMPUTE}, 0.16, math.sqrt(1 + 2.0**2) * 0.05),  # unknown kinds: twice the error
        ({Change.RELEASE}, 0.0, 0.04),
        ({Change.RELEASE, Change.DEGREES}, 0.0, 0.05),  # 3, 4 and 5 are a right triangle
    ],
)
def test_errors_of_independent_changes_add_up_as_squares(changes, apart, half):
    """And grow with the share of the step that differs; nothing changed is no error."""
    assert LAW.half_width(frozenset(changes), apart) == pytest.approx(half)


def test_an_unshown_feature_is_one_more_change():
    """With the factor of all kinds, 2: the root of 1 + 4 times 3 %."""
    assert LAW.half_width(frozenset({Change.DEGREES}), 0.0, num_unshown=1) == pytest.approx(0.03 * math.sqrt(5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("decisions", "entries", "changes"),
    [
        ({"vpp": 4}, {}, {Change.DEGREES}),
        ({"vpp": 5, "recompute": "full"}, {}, {Change.RECOMPUTE}),
        ({"vpp": 5, "cuda_graphs": "attn+mlp"}, {}, {Change.GRAPHS}),
        ({"vpp": 5}, {"training": {**JOB["training"], "precision": "fp8_current"}}, {Change.PRECISION}),
        ({"vpp": 5}, {"cluster": {**JOB["cluster"], "framework": "megatron-bridge-25.11"}}, {Change.RELEASE}),
        ({"vpp": 5}, {"cluster": {**JOB["cluster"], "num_devices": 128}}, {Change.DEVICES}),
        ({"vpp": 5}, {"model": "llama3-8b"}, {Change.MODEL}),
        ({"vpp": 5, "ep_overlap": True}, {}, set()),  # nothing to overlap without experts
    ],
)
def test_kinds_of_change(decisions, entries, changes):
    """Decisions that matter in neither strategy are none; the default sharding and settings follow the release."""
    given, other = estimated(), estimated(entries, **{**NVIDIA, **decisions})

    found = changes_between(costed(given), costed(other))

    if Change.MODEL in changes:
        assert Change.MODEL in found
    else:
        assert found - {Change.SETTINGS} == changes


def test_distance_is_of_lines_that_differ():
    """One second of ten moves from one line to another: two seconds of ten differ, though the steps are equal."""
    one = costed(estimated())
    first = replace(one, step_seconds=10.0, exposed_seconds={"compute": 9.0, "tp": 1.0})
    second = replace(one, step_seconds=10.0, exposed_seconds={"compute": 9.0, "bubble": 1.0})

    assert distance(first, second) == pytest.approx(0.2)
    assert distance(first, first) == 0


def test_the_interval_is_never_wider_than_that_of_independent_steps():
    """Steps known to 1 % each: their ratio to the root of two of that, whatever changes; other models always so."""
    first, second = costed(estimated()), costed(estimated(vpp=4, tp=8, pp=8, mbs=1))
    own = tuple(
        Interval(low_seconds=one.step_seconds / 1.01, high_seconds=one.step_seconds * 1.01, basis="")
        for one in (first, second)
    )

    low, high, _ = ratio_interval(first, second, own)

    assert math.log(high) == pytest.approx(math.sqrt(2) * math.log(1.01))
    assert math.log(low) == pytest.approx(-math.sqrt(2) * math.log(1.01))


def test_a_strategy_against_itself():
    """Gains nothing, and nothing about that is open."""
    side = side_of(nvidia(), "mine")

    same = compare_two(side, side)

    assert (same.gain.fraction, same.gain.low_fraction, same.gain.high_fraction) == (0, 0, 0)
    assert "the second is the same as the first: 0.0%" in " ".join(render(same).split())


@pytest.mark.slow
def test_a_small_gain_is_no_verdict(comparison):
    """The interval of the plan over NVIDIA's layout holds zero; full recomputation loses for sure."""
    slow = compare(load(JOB), {**NVIDIA, "recompute": "full"})

    assert comparison.gain.low_fraction < 0 < comparison.gain.high_fraction
    assert comparison.is_within_noise
    assert "is within the error of the given one" in " ".join(render(comparison).split())
    assert slow.gain.low_fraction > 0
    assert not slow.is_within_noise
    assert f"gains {slow.gain.fraction:.1%} (80%: {slow.gain.low_fraction:.1%} to" in " ".join(render(slow).split())


def test_a_slower_strategy_loses():
    """With the ends of its interval as losses, the smaller one first."""
    sides = [
        side_of(estimate(load(JOB), each, searched=False), "it") for each in (NVIDIA, {**NVIDIA, "recompute": "full"})
    ]

    gain = compare_two(*sides).gain

    text = f"loses {-gain.fraction:.1%} (80%: {-gain.high_fraction:.1%} to {-gain.low_fraction:.1%})"
    assert gain.high_fraction < 0
    assert text in " ".join(render(compare_two(*sides)).split())


def test_other_batches_are_compared_by_token():
    """Twice the batch takes twice as long: that is no loss."""
    training = {**JOB["training"], "global_batch_size": 256}
    given, other = estimated(), estimated({"training": training}, **NVIDIA)

    by_token = 1 - given.tokens_per_second_per_device / other.tokens_per_second_per_device
    assert gain_of(given, other).fraction == pytest.approx(by_token)


# --- unproven features -------------------------------------------------------------------------------------


def unproven(text, name):
    """A feature of one decision that none of ten runs has."""
    return (Unproven(text=text, names=(name,), runs=0, among=10, where="measured runs"),)


def graphs_unproven(_facts, strategy):
    """Graphs of the whole iteration as the unproven feature."""
    has = strategy.cuda_graphs == CudaGraphs.FULL_ITERATION
    return unproven("graphs of the whole iteration", "cuda_graphs") if has else ()


def test_an_unproven_feature_is_worth_what_the_plan_loses_without_it(monkeypatch):
    """The same plan is costed with the given strategy's value."""
    monkeypatch.setattr(of_gain, "unproven_of", graphs_unproven)
    given = estimated(**{**NVIDIA, "recompute": "full"})
    best = estimated(**NVIDIA, cuda_graphs="full_iteration")
    without = judge_strategy(best.problem, replace(best.strategy, cuda_graphs=CudaGraphs.NONE)).plan

    gain = gain_of(given, best)

    lost = (without.step_seconds - best.step_seconds) / given.step_seconds
    assert [one.text for one in gain.unproven] == ["graphs of the whole iteration"]
    assert gain.unproven_fraction == gain.unproven[0].fraction == pytest.approx(lost)
    said = f"{100 * lost:.1f} of {gain.fraction:.1%} rest on features that no measured run shows: "
    assert unproven_text(gain) == f"{said}graphs of the whole iteration ({lost:.1%})"
    assert 0 < lost < gain.fraction
    assert gain_of(best, best).unproven == ()


def test_a_plan_that_needs_a_feature_rests_on_it_whole(monkeypatch):
    """70B on 8 GPUs does not fit without sharded weights."""
    monkeypatch.setattr(of_gain, "unproven_of", sharded)
    given = estimated(tp=8, pp=8, mbs=1, recompute="full", sharding="optimizer")
    best = estimated(tp=1, pp=1, mbs=1, recompute="full", sharding="weights")

    gain = gain_of(given, best)

    assert gain.fraction > 0
    assert gain.unproven[0].is_needed
    assert unproven_text(gain).endswith(" (the plan needs it)")
    assert gain.unproven_fraction == gain.fraction


def sharded(_facts, strategy):
    """FSDP as the unproven feature."""
    return unproven("FSDP", "sharding") if strategy.sharding == 3 else ()


def test_what_no_decision_of_the_given_strategy_changes_is_needed(monkeypatch):
    """A feature of settings, or of a decision that both have: the whole gain rests on it."""
    monkeypatch.setattr(of_gain, "unproven_of", settings_unproven)
    gain = gain_of(estimated(**{**NVIDIA, "recompute": "full"}), estimated())

    assert gain.unproven[0].is_needed
    assert unproven_text(gain).endswith(" (the plan needs it)")
    assert gain.unproven_fraction == gain.fraction > 0


def settings_unproven(_facts, strategy):
    """A setting as the unproven feature of what does not recompute."""
    return () if strategy.recompute else unproven("8-bit gathers", "fp8_param_gather")


# --- measured runs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_measured_run_of_a_layout_and_the_error_on_it(comparison):
    """NVIDIA's dgxc-benchmarking measured 14.66 s (release 25.04) with these degrees on 64 H100."""
    (given,) = comparison.gain.measured
    error = given.predicted_seconds / 14.66 - 1

    assert (given.id, given.step_time_seconds, given.unlike) == ("dgxc-25.04-0231", 14.66, ("nemo-25.04",))
    assert given.error_fraction == pytest.approx(error)
    assert given.corrected_seconds == pytest.approx(comparison.given.plan.step_seconds / (1 + error))
    left = 1 - comparison.best.step_seconds / given.corrected_seconds
    assert comparison.gain.measured_fraction == pytest.approx(left)
    text = " ".join(render(comparison).split())
    assert "given: 14.660 s (NVIDIA dgxc-benchmarking README, dgxc-25.04-0231, with nemo-25.04), predicted " in text
    assert f"with this step as measured: {left:.1%}" in text


def test_a_run_that_differs_in_nothing_is_the_measured_step():
    """The release that was measured, with the settings that it ran with."""
    plan = estimated({"cluster": {**JOB["cluster"], "framework": "nemo-25.04"}}, **NVIDIA)

    (found, _) = gain_of(plan, plan).measured[:2]

    assert found.unlike == ()
    assert found.corrected_seconds == 14.66


HALF = {
    "hidden_size": 8192,
    "num_layers": 40,
    "vocab_size": 128256,
    "num_heads": 64,
    "num_kv_heads": 8,
    "ffn_hidden_size": 28672,
}
"""Half of Llama-3-70B's layers."""


def test_no_run_of_another_job_is_named():
    """Twice the batch was not measured with these degrees, nor a model with half the layers."""
    batch = {**JOB["training"], "global_batch_size": 192}
    larger, half = estimated({"training": batch}, **NVIDIA), estimated({"model": HALF}, **NVIDIA)

    assert gain_of(larger, larger).measured == ()
    assert gain_of(half, half).measured == ()


# --- formats -----------------------------------------------------------------------------------------------


def test_json_and_csv_hold_the_ground(comparison):
    """Fractions by name; a row for either side, the gain in the best plan's."""
    document = json.loads(render(comparison, "json"))["apart"]["gain"]
    given, best = csv.DictReader(StringIO(render(comparison, "csv")))

    assert document["measured"][0]["source"] == "NVIDIA dgxc-benchmarking README"
    assert document["low_fraction"] == comparison.gain.low_fraction
    assert (given["side"], best["side"]) == ("given", "best")
    assert float(given["measured_step_time_seconds"]) == 14.66
    assert float(best["gain_high_fraction"]) == pytest.approx(comparison.gain.high_fraction)
    assert (given["gain_fraction"], best["measured_id"]) == ("", "")
    assert float(best["step_time_seconds"]) == pytest.approx(comparison.best.step_seconds)


def test_the_page_draws_the_interval(comparison):
    """In seconds of the given step."""
    whole = ComparisonRecord.build(comparison)
    row = comparison_charts(whole, comparison_plans(whole))["differences"]["rows"][0]

    low, high = comparison.gain.low_fraction, comparison.gain.high_fraction
    assert row["range"] == pytest.approx([end * comparison.given.plan.step_seconds for end in (low, high)])
