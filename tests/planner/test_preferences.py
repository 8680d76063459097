"""Preferences: the search keeps them unless told otherwise; a given strategy is answered with its price."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from constraints import PREFERENCE_RULES, sentence
from constraints.rules import physics
from costmodel.step.estimate import estimate as estimate_step
from costmodel.strategy import Sharding
from planner import export
from planner.jobs.problem import load
from planner.report import render
from planner.search.branch_and_bound import Status
from planner.search.domains import problem_rules
from planner.search.space import build_space
from planner.verbs.explain import explain
from planner.verbs.plan import plan
from planner.verbs.repairs import search_or_explain
from tests.builders import a_model
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_problem import a_problem, limits_of
from tests.planner.test_job import a_job

WIDE = physics.tp_stays_inside_a_scale_up_domain
"""Broken by tp 16 on the 8 devices of an H100's NVLink domain."""

BREAKING = {
    WIDE: {"tp": 16, "dp": 4},
    physics.microbatches_fill_the_pipeline: {"tp": 2, "pp": 8, "dp": 4, "mbs": 1},
    physics.virtual_stages_hold_equally_much: {"tp": 4, "pp": 4, "dp": 4, "vpp": 3},
    physics.gradient_sharding_excludes_pipelines: {"tp": 4, "pp": 4, "dp": 4, "sharding": "weights"},
}
"""A strategy for Llama-3-8B on 64 H100 that breaks each preference; the second with a batch of 16."""


def a_wide_problem(**search):
    """Sixteen devices in two nodes, each an NVLink domain of eight; tp is 16 unless the job says otherwise."""
    problem = a_problem(a_model(num_heads=16, num_kv_heads=16), num_devices=16)
    assert problem.facts.cluster.scale_up_size == 8
    return replace(problem, search=limits_of(**{"pin": {"tp": 16}, **search}))


def text_of(report):
    """A report as a person reads it, without its line breaks."""
    return " ".join(render(report).split())


# --- a strategy that is given -----------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", PREFERENCE_RULES, ids=lambda rule: rule.__name__)
def test_an_estimate_is_answered_with_its_price(rule):
    """Not forbidden: the report has all figures, and says in one line which preference the strategy does not keep."""
    batch = 16 if rule is physics.microbatches_fill_the_pipeline else 512
    problem = load(a_job(search__framework_rules=False, search__evidence="any", training__global_batch_size=batch))

    report = estimate(problem, BREAKING[rule])

    assert report.broken_rules == ()
    assert report.broken_preferences == (sentence(rule),)
    assert 0 < report.plan.step_seconds < math.inf
    text = text_of(report)
    assert "no rule forbids it, but the search leaves it out" in text
    assert sentence(rule) in text
    one = json.loads(render(report, "json"))
    assert (one["allowed"], one["broken_preferences"]) == (True, [sentence(rule)])
    assert sentence(rule) in render(report, "html")


def test_frameworks_may_forbid_what_the_search_only_leaves_out():
    """Megatron-LM refuses sharded weights in a pipeline: that is forbidden, and the search leaves it out besides."""
    report = estimate(load(a_job(search__evidence="any")), BREAKING[physics.gradient_sharding_excludes_pipelines])

    assert any("Gradients and weights are sharded only without a pipeline" in rule for rule in report.broken_rules)
    assert report.broken_preferences == (sentence(physics.gradient_sharding_excludes_pipelines),)
    assert "; forbidden" in text_of(report)


def test_a_job_without_preferences_has_none_to_break():
    """Switched off, they are not mentioned."""
    report = estimate(load(a_job(search__preferences=False)), BREAKING[WIDE])

    assert report.broken_preferences == ()
    assert "no rule forbids it" in text_of(report)
    assert "search.preferences" not in text_of(report)


def test_few_microbatches_are_exported():
    """Megatron-LM runs 1F1B with four micro-batches on eight ranks."""
    report = estimate(load(a_job(training__global_batch_size=16)), BREAKING[physics.microbatches_fill_the_pipeline])

    assert report.plan.estimate.num_microbatches == 4
    assert "--pipeline-model-parallel-size" in "".join(export(report.plan, "megatron-lm").files.values())


# --- its price --------------------------------------------------------------------------------------------------


def test_more_microbatches_never_take_less_time():
    """From 1 on 8 ranks, where 7 always wait, to 16: each adds what the slowest rank takes for it."""
    steps = [
        estimate(load(a_job(training__global_batch_size=2 * number)), {"tp": 4, "pp": 8, "dp": 2}).plan.step_seconds
        for number in range(1, 17, 5)
    ]

    added = [later - earlier for earlier, later in pairwise(steps)]
    assert min(added) > 0
    assert max(added) == pytest.approx(min(added), abs=1e-4)


def test_wider_tensor_parallelism_takes_longer_than_what_fits_a_domain():
    """Work per device is the same for tp of 8 to 32 on 64 devices; more ranks exchange more, over a slower network."""
    steps = [estimate(load(a_job()), {"tp": tp, "dp": 64 // tp, "mbs": 1}).plan.step_seconds for tp in (8, 16, 32)]

    assert steps == sorted(steps)


def test_unequal_chunks_cost_what_a_layout_of_them_costs():
    """32 layers in 12 chunks: within the noise of predictions of the layout that a person would write for them."""
    problem = load(a_job())
    given = estimate(problem, BREAKING[physics.virtual_stages_hold_equally_much]).plan

    written = load(a_job(strategy={"layout": {"layers": [3, 3, 3, 3, 3, 3, 3, 2, 2, 3, 2, 2]}}))
    layout = estimate(written, BREAKING[physics.virtual_stages_hold_equally_much]).plan

    assert given.step_seconds == pytest.approx(layout.step_seconds, rel=0.05)
    assert given.estimate.device_bytes == pytest.approx(layout.estimate.device_bytes, rel=0.1)


# --- the search -------------------------------------------------------------------------------------------------


def test_a_search_keeps_them_by_default():
    """No strategy of the space breaks one; without them some do, and every other strategy is still there."""
    problem = load(a_job(search__framework_rules=False))
    kept, free = build_space(problem), build_space(problem.change_limits(preferences=False))

    assert int(kept.rows["tp"].max()) == 8
    assert int(free.rows["tp"].max()) > 8
    assert kept.size < free.size
    assert {*PREFERENCE_RULES} <= {*kept.rules.rows, *kept.rules.mixed}
    assert not {*PREFERENCE_RULES} & {*free.rules.rows, *free.rules.mixed}


def test_without_them_the_search_is_at_least_as_fast():
    """The wider space holds the narrower one."""
    problem = a_problem(a_model(num_layers=6), num_devices=8)
    free = problem.change_limits(preferences=False)

    fastest, anything = (search_or_explain(one).step_seconds[0] for one in (problem, free))

    assert anything <= fastest


def test_a_plan_may_break_them_where_the_job_says_so():
    """tp of 16 on domains of 8 is planned, simulated, reported, and breaks no rule of its own job."""
    problem = a_wide_problem(preferences=False)

    report = plan(problem)

    assert report.outcome.status == Status.OPTIMAL
    assert report.plans[0].strategy.tp == 16
    assert report.plans[0].step_seconds == estimate_step(problem.facts, report.plans[0].strategy).step_seconds


def test_nothing_fits_for_a_preference():
    """It is named as one, and switching it off is among the changes, which helps."""
    problem = a_wide_problem()

    report = plan(problem)

    conflict = report.outcome.conflict
    assert sentence(WIDE) in conflict.exclusive[0]
    assert (sentence(WIDE),) in conflict.repairs
    text = text_of(report)
    assert f"search.preferences false, which drops: {sentence(WIDE)}" in text
    assert plan(problem.change_limits(preferences=False)).plans


def test_preferences_and_rules_of_frameworks_may_have_to_go_together():
    """Sharded weights in a pipeline: the search leaves them out, and Megatron-LM refuses them."""
    pin = {"pp": 2, "dp": 2, "sharding": int(Sharding.WEIGHTS)}
    problem = replace(a_problem(num_devices=4), search=limits_of(pin=pin))

    text = text_of(plan(problem))

    assert "search.framework_rules and search.preferences both false, which drops:" in text
    assert plan(problem.change_limits(preferences=False, framework_rules=False)).plans


def test_an_explanation_says_what_they_cost():
    """They are one constraint among others: binding or not, by a search without them."""
    explanation = explain(a_problem(num_devices=8))

    named = {*explanation.idle, *(one.what for one in explanation.bindings)}
    assert "search.preferences" in named
    assert {one.kind for one in explanation.bindings if one.what == "search.preferences"} <= {"preferences"}


def test_why_not_a_strategy_that_they_leave_out():
    """A complete strategy is compared, and the answer says why the search did not choose it."""
    problem = a_wide_problem(pin={})
    given = plan(a_wide_problem(preferences=False)).plans[0].strategy

    explanation = explain(problem, given.decisions())

    assert explanation.broken_rules == ()
    assert explanation.broken_preferences == (sentence(WIDE),)
    assert "the search leaves it out" in text_of(explanation)


@pytest.mark.slow
def test_a_page_lists_them_among_the_rules_of_the_search():
    """Not among those of the mathematics, the hardware and the framework, which are only counted."""
    report = plan(a_problem(num_devices=2))

    assert sentence(physics.microbatches_fill_the_pipeline) in render(report, "html")
    assert problem_rules(report.problem).preferences == PREFERENCE_RULES
