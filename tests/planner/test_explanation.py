"""Why nothing fits: every conflict and every repair that is named is real."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from constraints.limits import Bound
from constraints.rule import sentence
from constraints.rules import physics
from costmodel.step import step
from costmodel.strategy import Sharding
from planner.jobs.document import decision_value
from planner.jobs.problem import load
from planner.search.branch_and_bound import Status
from planner.search.candidates import memory_only
from planner.search.domains import sequence_is_split_where_it_can_be
from planner.search.questions import search
from planner.search.space import build_space
from planner.verbs import repairs
from planner.verbs.repairs import explain, search_or_explain
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device, limits_of

NO_ROOM = sentence(physics.fits_in_device_memory)

BIG = {"num_layers": 8, "hidden_size": 2048, "ffn_hidden_size": 8192, "vocab_size": 32000}
"""Half a billion parameters: 1 GB of weights."""


def entries(search_limits):
    """The job's limits one by one, each with its sentence's beginning."""
    pins = [(f"search.pin: {name} is", {"pin": {name: value}}) for name, value in search_limits.pin.items()]
    allows = [(f"search.allow: {name} is", {"allow": {name: value}}) for name, value in search_limits.allow.items()]
    bounds = [(f"search.limits: {bound.text}.", {"limits": (bound,)}) for bound in search_limits.limits]
    return [*pins, *allows, *bounds]


def without(problem, sentences):
    """The problem without the limits that some sentences name."""
    search_limits = problem.search
    kept = [entry for start, entry in entries(search_limits) if not any(s.startswith(start) for s in sentences)]
    return replace(
        problem,
        search=limits_of(
            pin={name: value for entry in kept for name, value in entry.get("pin", {}).items()},
            allow={name: value for entry in kept for name, value in entry.get("allow", {}).items()},
            limits=tuple(bound for entry in kept for bound in entry.get("limits", ())),
            framework_rules=search_limits.framework_rules,
            memory_headroom_bytes=search_limits.memory_headroom_bytes,
        ),
    )


def bound(names, relation, number):
    """A bound of a product."""
    return Bound(names=tuple(names.split(" * ")), relation=relation, number=number)


CONTRADICTIONS = {
    "tp beyond the scale-up domain": {"pin": {"tp": 16}},
    "a degree that does not divide": {"pin": {"pp": 7, "vpp": 3}},
    "degrees that do not multiply": {"pin": {"tp": 2, "cp": 2, "pp": 1, "dp": 1}},
    "a feature without its degree": {"pin": {"tp": 1, "tp_overlap": 1, "mbs": 2}},
    "two features": {"pin": {"recompute": 2, "activation_offload": 1}, "allow": {"pp": (1, 2)}},
    "a rule of frameworks": {"pin": {"pp": 2, "sharding": Sharding.WEIGHTS}},
    "experts of a dense model": {"allow": {"ep": (2, 4)}},
    "two bounds": {"limits": (bound("tp", "<=", 2), bound("tp", ">=", 4))},
    "a bound and a pin": {"pin": {"tp": 4}, "limits": (bound("tp * cp", "<", 4),)},
    "a bound beyond the layers": {"limits": (bound("pp", ">=", 7),)},
    "a bound of micro-batches": {"pin": {"pp": 4}, "limits": (bound("num_microbatches", "<", 4),)},
    "a bound below everything": {"limits": (bound("tp", "<", 1),)},
    "an overlap that another pin excludes": {"pin": {"dp_overlap": 1, "sharding": 0, "cp": 1}},
}


@cache
def contradiction(name):
    """A job that contradicts itself, and why nothing fits."""
    problem = a_problem(a_model(num_layers=4), **CONTRADICTIONS[name])
    return problem, search_or_explain(problem).conflict


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_is_released_makes_room(name):
    """Without the named entries there is a strategy, without fewer there is none."""
    problem, conflict = contradiction(name)

    assert conflict.release
    assert search(without(problem, conflict.release)).status == Status.OPTIMAL
    for one in conflict.release:
        others = [other for other in conflict.release if other != one]
        assert search(without(problem, others)).status == Status.INFEASIBLE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_rules_that_are_said_to_exclude_each_other_do(name):
    """With the limits of one conflict alone nothing is left; with one of them fewer something is."""
    problem, conflict = contradiction(name)
    every = {start for start, _ in entries(problem.search)}

    for rules in conflict.exclusive:
        named = {start for start in every if any(rule.startswith(start) for rule in rules)}
        assert search(without(problem, every - named)).status == Status.INFEASIBLE
        for one in named:
            assert search(without(problem, every - named | {one})).status == Status.OPTIMAL


def test_a_conflict_names_the_rule_of_physics_behind_it():
    """The pin alone would not tell why."""
    conflict = search_or_explain(a_problem(pin={"tp": 16})).conflict

    assert conflict.release == ("search.pin: tp is 16.",)
    (rules,) = conflict.exclusive
    assert "search.pin: tp is 16." in rules
    assert len(rules) == 2


def test_degrees_that_do_not_multiply_are_said_to():
    """2 * 2 * 1 * 1 is not 8."""
    conflict = search_or_explain(a_problem(pin={"tp": 2, "cp": 2, "pp": 1, "dp": 1})).conflict

    assert sentence(physics.degrees_multiply_to_the_devices) in conflict.exclusive[0]
    assert len(conflict.exclusive[0]) == 5
    assert {repair for repair in conflict.repairs if len(repair) == 1}


def test_a_bound_of_the_search_is_named_where_it_matters():
    """63 tokens are not split over 2 ranks, which the search would do; without the bound they could stay whole."""
    problem = a_problem(pin={"tp": 2}, workload={"sequence_length": 63})

    conflict = search_or_explain(problem).conflict

    assert sentence(sequence_is_split_where_it_can_be) in conflict.exclusive[0]
    assert len(conflict.exclusive[0]) == 3
    assert search(replace(problem, search=limits_of(pin={"tp": 2, "sequence_parallel": 0}))).status == Status.OPTIMAL


def test_a_contradiction_without_any_limit_is_explained_by_physics():
    """Eleven devices share neither eight sequences nor 64 tokens nor two layers."""
    problem = a_problem(
        a_model(num_layers=2, num_heads=4), num_devices=11, workload={"global_batch_size": 8, "sequence_length": 64}
    )

    conflict = search_or_explain(problem).conflict

    (rules,) = conflict.exclusive
    assert sentence(physics.degrees_multiply_to_the_devices) in rules
    assert conflict.release == ()
    assert conflict.shortage_bytes is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [a_model(**BIG), a_moe_model(**BIG, expert_ffn_hidden_size=2048)])
def test_the_shortage_is_what_is_missing_to_the_byte(model):
    """With so much more memory there is a strategy, with a byte less there is none."""
    problem = a_problem(model, num_devices=2, device=a_timed_device(memory_bytes=0.3 * GB, host_memory_bytes=0.1 * GB))

    conflict = search_or_explain(problem).conflict

    assert NO_ROOM in conflict.exclusive[0]
    needed = problem.facts.cluster.device.memory_bytes + conflict.shortage_bytes
    assert needed == pytest.approx(float(step.cost(problem.facts, conflict.closest.decisions()).device_bytes))
    assert conflict.host_shortage_bytes == 0
    assert search(with_memory(problem, needed + 1)).status == Status.OPTIMAL
    assert search(with_memory(problem, needed - 1)).status == Status.INFEASIBLE


def test_pins_that_cost_too_much_memory_stand_beside_it():
    """Nothing sharded, nothing recomputed, one rank: releasing the pin helps, and so would memory."""
    problem = a_problem(a_model(**BIG), device=a_timed_device(memory_bytes=4 * GB), pin={"dp": 8, "sharding": 0})

    conflict = search_or_explain(problem).conflict

    assert any(NO_ROOM in rules and len(rules) > 1 for rules in conflict.exclusive)
    assert len(conflict.release) == 1
    assert search(without(problem, conflict.release)).status == Status.OPTIMAL
    assert search(with_memory(problem, 4 * GB + conflict.shortage_bytes + 1)).status == Status.OPTIMAL


def test_released_bounds_of_the_search_return():
    """63 tokens are not split over 2 ranks; whole on 2 ranks they are only where a pin says so, and none is left."""
    problem = a_problem(pin={"tp": 2, "sequence_parallel": 1}, workload={"sequence_length": 63})

    conflict = search_or_explain(problem).conflict

    assert conflict.releases == (("search.pin: sequence_parallel is true.", "search.pin: tp is 2."),)
    assert search(without(problem, conflict.release)).status == Status.OPTIMAL
    assert search(without(problem, conflict.release[:1])).status == Status.INFEASIBLE


def test_recomputation_by_module_is_no_reason_to_release_it():
    """A value that the search does not try by itself is possible all the same where the job pins it."""
    pin = {"recompute": decision_value("recompute", "mlp", "recompute"), "tp": 3}

    conflict = search_or_explain(a_problem(pin=pin)).conflict

    assert conflict.releases == (("search.pin: tp is 3.",),)


@pytest.mark.slow
def test_the_host_memory_that_would_do_is_exact_to_the_byte():
    """Devices too small for optimizer states, hosts too small for them, too: more of either would do."""
    device = a_timed_device(memory_bytes=0.9 * GB, host_memory_bytes=0.001 * GB)
    problem = a_problem(a_model(**BIG), num_devices=8, device=device, workload={"global_batch_size": 8})

    conflict = search_or_explain(problem).conflict

    assert set(conflict.repairs) == {(NO_ROOM,), (sentence(physics.fits_in_host_memory),)}
    for change, fits in ((1, True), (-1, False)):
        changed = replace(device, host_memory_bytes=conflict.needed_host_bytes + change)
        facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=changed))
        assert bool(search_or_explain(replace(problem, facts=facts)).strategies) == fits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a rule of frameworks", "two bounds"])
def test_in_a_large_space_one_preference_or_rule_of_frameworks_is_broken(name, monkeypatch):
    """The sets are those of a small space with one such rule at most; what excludes each other breaks none."""
    problem, in_a_small_space = contradiction(name)
    rules = build_space(problem).rules
    one_of = {sentence(rule) for rule in (*rules.preferences, *rules.frameworks)}

    monkeypatch.setattr(repairs, "WIDE_ROWS", 0)
    conflict = search_or_explain(problem).conflict

    assert conflict.repairs == tuple(rules for rules in in_a_small_space.repairs if len(one_of & {*rules}) < 2)
    assert conflict.releases == in_a_small_space.releases


def test_without_time_a_conflict_says_so():
    """The rules, the closest strategy and the sizes that were not looked at are named, not claimed."""
    problem = a_problem(a_model(**BIG), num_devices=2, device=a_timed_device(memory_bytes=0.3 * GB))

    conflict = explain(problem, build_space(problem), memory_only, seconds_left=0)

    assert (conflict.exclusive, conflict.repairs, conflict.releases) == ((), (), ())
    assert conflict.is_cut
    assert conflict.left_out == (
        "Time ran out before it was known which rules exclude each other.",
        "Time ran out before it was known which strategy lacks least memory.",
    )
    assert conflict.size.time_ran_out


def test_lists_that_are_cut_say_so():
    """Five sizes of a micro-batch are forbidden, and where only two lines are listed, five are counted."""
    model = a_model(num_layers=1)
    sizes = [{"mbs": value} for value in (1, 2, 4, 8, 16)]
    problem = a_problem(model, num_devices=1, workload={"global_batch_size": 16}, forbid=sizes)

    conflict = search_or_explain(problem).conflict

    # One device: mbs is any divisor of 16, each forbidden by one entry; each entry released alone leaves a strategy.
    assert {entries for entries in conflict.releases} == {
        (f"search.forbid: not mbs is {value}.",) for value in (1, 2, 4, 8, 16)
    }
    assert conflict.left_out == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.verbs.repairs.MAX_LISTED", 2)
        cut = search_or_explain(problem).conflict
    assert len(cut.releases) == 2
    assert cut.left_out == ("Only 2 of 5 smallest repairs are listed.",)


def with_memory(problem, memory_bytes):
    """The problem on devices with another memory."""
    device = replace(problem.facts.cluster.device, memory_bytes=memory_bytes)
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=device))
    return replace(problem, facts=facts)


@pytest.mark.slow
def test_the_memory_that_is_named_leaves_the_usual_headroom():
    """The headroom of a search is a share of the memory: devices of the named size are enough, smaller ones are not."""
    job = {
        "model": "llama3-70b",
        "cluster": {"device": "h100", "num_devices": 8},
        "training": {"global_batch_size": 8, "sequence_length": 4096, "tokens": "1B"},
    }
    needed = search_or_explain(load(job)).conflict.needed_bytes

    for change, status in ((1e6, Status.OPTIMAL), (-1e6, Status.INFEASIBLE)):
        device = {"base": "h100", "memory_bytes": needed + change}
        larger = load(job | {"cluster": {"device": device, "num_devices": 8}})
        assert search(larger).status == status
