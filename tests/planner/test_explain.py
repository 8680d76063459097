"""Why this plan, why nothing fits, why not another strategy."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

import planner
from constraints.rule import sentence
from constraints.rules import physics
from costmodel.errors import SpecError
from costmodel.step.step import cost
from costmodel.strategy import DECISIONS, CudaGraphs
from planner import cli
from planner.jobs.problem import load
from planner.report import render
from planner.search.domains import problem_rules
from planner.search.solver import Clock
from planner.verbs.explain import explain, release_limits
from planner.verbs.plan import estimate
from planner.verbs.repairs import search_or_explain
from tests.builders import a_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device, limits_of
from tests.cases import in_one_case
from tests.oracle.test_enumeration import columns, enumerate_strategies
from tests.planner.test_job import JOBS
from tests.planner.test_report import load_strictly

BIG = {"num_layers": 4, "hidden_size": 1024, "ffn_hidden_size": 4096, "vocab_size": 16000}
TICK = 2e-6

FEW_FEATURES = {"tp_overlap": 0, "dp_overlap": 0, "cp_overlap": 0, "pp_overlap": 0, "activation_offload": 0}


def a_tight_problem(memory_bytes=0.6 * GB, **limits):
    """More than a gigabyte of states on four devices of 0.6 GB, which is just enough for all of them."""
    return a_problem(
        a_model(**BIG),
        num_devices=4,
        device=a_timed_device(memory_bytes=memory_bytes),
        workload={"global_batch_size": 8},
        **limits,
    )


def binding(explanation, kind, what=""):
    """The one constraint of a kind."""
    (one,) = [one for one in explanation.bindings if one.kind == kind and one.what.startswith(what)]
    return one


def seconds_of(problem):
    """The step time of the best plan, from its search."""
    return search_or_explain(problem).step_seconds[0]


# --- what holds a plan back ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_faster_strategy_is_that_of_enumeration():
    """Of all strategies that are faster than the best one, the one that takes least memory, and what it lacks."""
    problem = a_tight_problem(0.4 * GB, pin=FEW_FEATURES)
    every = enumerate_strategies(problem)
    costs = cost(problem.facts, columns(every))
    best = seconds_of(problem)
    faster = [
        (float(nbytes), float(seconds))
        for nbytes, host, seconds in zip(costs.device_bytes, costs.host_bytes, costs.step_seconds, strict=True)
        if seconds < best - TICK and host <= problem.facts.cluster.device.host_memory_bytes
    ]

    found = binding(explain(problem), "memory")

    assert found.missing_bytes == pytest.approx(min(faster)[0] - 0.4 * GB, abs=2**20)  # the solver counts in MiB
    assert found.missing_bytes > 0
    assert found.step_seconds == pytest.approx(min(seconds for _, seconds in faster), abs=TICK)
    assert found.saved_seconds == pytest.approx(best - found.step_seconds, abs=TICK)


@pytest.mark.slow
def test_a_pin_that_costs_time_binds_and_one_that_does_not_is_idle():
    """Full recomputation is slower than none where memory is plenty; one rank of context is what is best anyway."""
    problem = a_problem(pin={"recompute": 2, "cp": 1})

    explanation = explain(problem)

    pin = binding(explanation, "entry", "search.pin: recompute")
    without = replace(problem, search=limits_of(pin={"cp": 1}))
    assert pin.step_seconds == pytest.approx(seconds_of(without), abs=TICK)
    assert pin.saved_seconds > 0
    assert "search.pin: cp is 1." in explanation.idle
    assert explanation.exit_code == 0


@pytest.mark.slow
def test_every_kind_of_constraint_is_relaxed():
    """Memory, the headroom, each entry, frameworks, each bound of the search: all bind or are idle."""
    limits = {"pin": {"recompute": 2}, "allow": {"pp": (1, 2)}, "forbid": [{"tp": 2}, {"tp": 4}]}
    problem = a_tight_problem(**limits, memory_headroom_bytes=0.05 * GB)

    explanation = explain(problem)

    named = {*explanation.idle, *(one.what for one in explanation.bindings)}
    assert {sentence(rule) for rule in problem_rules(problem).limits} <= named
    assert {"device memory", "host memory", "search.memory_headroom_gib", "search.framework_rules"} <= named
    assert set(problem_rules(problem).bound_sentences) <= named
    assert [one.saved_seconds for one in explanation.bindings] == sorted(
        (one.saved_seconds for one in explanation.bindings), reverse=True
    )


@pytest.mark.slow
def test_the_headroom_binds_where_it_makes_the_plan_slower():
    """Without the headroom the search finds something faster; the report says with which chances."""
    problem = a_tight_problem(pin=FEW_FEATURES, memory_headroom_bytes=0.1 * GB)

    explanation = explain(problem)
    found = binding(explanation, "headroom")

    (told,) = [one for one in json.loads(render(explanation, "json"))["bindings"] if one["kind"] == "headroom"]
    assert told["chance_fast"] <= told["chance_to_fit"] < 1
    chances = f"fits with a chance of {told['chance_to_fit']:.0%} and is fast with one of {told['chance_fast']:.0%}"
    assert chances in " ".join(render(explanation).split())

    without = replace(problem, search=limits_of(pin=FEW_FEATURES))
    assert found.step_seconds == pytest.approx(seconds_of(without), abs=TICK)
    assert found.saved_seconds > 0


@pytest.mark.slow
def test_evidence_is_one_constraint():
    """Llama-3-8B on 8 H100: graphs of the whole iteration were measured once there, of which three are wanted."""
    explanation = explain(load(str(JOBS / "llama3-8b-8xh100.yaml")))
    found = binding(explanation, "evidence")
    shown = [line for line in render(explanation).splitlines() if "the evidence of measured runs" in line]

    assert (found.what, len(shown)) == ("search.evidence", 1)
    assert found.strategy.cuda_graphs == CudaGraphs.FULL_ITERATION
    assert not [one for one in explanation.bindings if one.kind == "entry"]
    assert not any("search.evidence" in one for one in explanation.idle)


@pytest.mark.slow
def test_what_is_asked_is_not_mixed_with_the_jobs_own_strategy():
    """The plan does not follow that either: TP8 of TP2 PP2 DP4 on 16 GPUs would be 64."""
    entries = {"model": "llama3-8b", "cluster": {"device": "h100-80gb-sxm", "num_devices": 16}}
    work = {"global_batch_size": 128, "sequence_length": 8192, "tokens": 1e12}
    job = load(
        {**entries, "training": work, "strategy": "TP2 PP2 DP4 MBS1 ZeRO1 graphs=none recompute=none overlap=none"}
    )

    found = explain(job, "TP8")

    assert found.given.strategy.num_devices == 16
    assert found.broken_rules == ()
    assert found.given == explain(load({**entries, "training": work}), "TP8").given
    assert estimate(job, "TP8").plan.strategy.decisions().items() >= {"tp": 8, "pp": 2, "dp": 1}.items()


def test_one_entry_is_released_at_a_time():
    """A pin, a list and a combination; of an entry that is there twice none is released alone."""
    forbid = [{"cp": 2}, {"cp": 4}, {"mbs": 1}, {"mbs": 1}]
    problem = a_problem(pin={"tp": 2, "pp": 1}, allow={"dp": (2, 4)}, forbid=forbid)

    released = release_limits(problem)

    assert set(released) == {
        "search.pin: tp is 2.",
        "search.pin: pp is 1.",
        "search.allow: dp is 2 or 4.",
        "search.forbid: not cp is 2.",
        "search.forbid: not cp is 4.",
    }
    assert released["search.pin: tp is 2."].search.pin == {"pp": 1}
    assert released["search.allow: dp is 2 or 4."].search.allow == {}
    assert released["search.forbid: not cp is 2."].search.forbid == ({"cp": 4}, {"mbs": 1}, {"mbs": 1})


def test_without_time_the_explanation_says_what_it_leaves_out():
    """What was not relaxed is named, and the exit code is 3."""
    explanation = explain(a_problem(time_limit_seconds=1e-9))

    assert explanation.exit_code == 3
    assert "none within the time limit" in render(explanation)


def test_time_that_runs_out_between_searches_is_no_proof(monkeypatch):
    """The plan is there, and nothing was relaxed: which constraint binds is not known, rather than none."""
    ended = replace(Clock(seconds=60), seconds=0)
    monkeypatch.setitem(explain.__globals__, "Clock", lambda **_: ended)

    explanation = explain(a_problem())

    assert explanation.best is not None
    assert (explanation.bindings, explanation.idle) == ((), ())
    assert len(explanation.left_out) >= 4
    assert explanation.exit_code == 3
    assert "time ran out before it was known which constraint binds" in " ".join(render(explanation).split())


# --- why nothing fits ------------------------------------------------------------------------------------------


def test_nothing_fits_is_explained_like_a_plan_does():
    """Four devices of 0.2 GB: how much is missing, on which rank, and how many devices would do."""
    problem = a_problem(a_model(**BIG), num_devices=4, device=a_timed_device(memory_bytes=0.2 * GB))

    explanation = explain(problem)

    conflict = explanation.conflict
    assert sentence(physics.fits_in_device_memory) in conflict.exclusive[0]
    assert conflict.needed_bytes == pytest.approx(0.2 * GB + conflict.shortage_bytes)
    assert conflict.size.num_devices > 4
    shown = " ".join(render(explanation).split())
    assert f"the smallest cluster that fits has {conflict.size.num_devices} GPUs" in shown
    assert "Memory is missing on" in shown
    assert explanation.exit_code == 0


@pytest.mark.slow
def test_a_smaller_headroom_is_offered_where_it_is_enough():
    """What the closest strategy lacks is taken from the headroom: with as much of it it fits, with a byte more not."""
    roomy = a_tight_problem(pin=FEW_FEATURES, memory_headroom_bytes=0.4 * GB)

    conflict = explain(roomy).conflict

    assert 0 < conflict.headroom_bytes < 0.4 * GB
    for change, fits in ((-1, True), (1, False)):
        limits = limits_of(pin=FEW_FEATURES, memory_headroom_bytes=conflict.headroom_bytes + change)
        assert bool(search_or_explain(replace(roomy, search=limits)).strategies) == fits


# --- why not this strategy -------------------------------------------------------------------------------------


def test_a_part_of_a_strategy_is_completed_by_the_search():
    """The best strategy with pp of 2 against the best of all; the lines of the breakdown make up the difference."""
    explanation = explained(pp=2)

    assert explanation.given.strategy.pp == 2
    assert explanation.given.closed_form_seconds == pytest.approx(seconds_of(a_problem(pin={"pp": 2})), abs=TICK)
    slower = explanation.given.step_seconds - explanation.best.step_seconds
    assert slower > 0
    assert sum(one.difference_seconds for one in explanation.differences) == pytest.approx(slower)
    sizes = [abs(one.difference_seconds) for one in explanation.differences]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_the_best_plan_is_its_own_answer():
    """Asked about the decisions of the plan itself, nothing is slower."""
    best = explained().best

    explanation = explain(a_problem(), {"tp": best.strategy.tp, "pp": best.strategy.pp})

    assert explanation.given.step_seconds == pytest.approx(explanation.best.step_seconds, abs=TICK)
    assert "is as fast as the fastest plan" in render(explanation)


def test_what_excludes_a_part_of_a_strategy_is_named():
    """Three ranks do not share four heads; the job's own pins are no part of the conflict."""
    explanation = explain(a_problem(pin={"cp": 1}, num_devices=4), {"tp": 3})

    assert explanation.given is None
    assert ("asked: tp is 3.",) in explanation.conflict.releases
    for rules in explanation.conflict.exclusive:
        assert "asked: tp is 3." in rules
        assert not any("cp" in rule for rule in rules if rule.startswith("search"))
    assert "no strategy with these decisions fits" in render(explanation)


def test_entries_that_name_other_values_are_said_to():
    """The pin of the job forbids it; without the pin it can be compared."""
    explanation = explain(a_problem(pin={"tp": 2}, allow={"pp": (2, 4)}), {"tp": 1, "pp": 1})

    assert explanation.opposed == ("search.pin: tp is 2.", "search.allow: pp is 2 or 4.")
    assert (explanation.given.strategy.tp, explanation.given.strategy.pp) == (1, 1)
    assert "Entries of the job that forbid it" in render(explanation)


def complete(problem, **changes):
    """Every decision of the best strategy but for changes."""
    return {**search_or_explain(problem).strategies[0].decisions(), **changes}


def test_a_complete_strategy_is_costed_even_if_rules_forbid_it():
    """All decisions are given: the broken rules are those of ``planner estimate``, and where memory is missing."""
    problem = a_tight_problem(pin=FEW_FEATURES)
    asked = complete(
        problem, sharding="none", recompute="none", optimizer_offload=0, tp=1, pp=1, cp=1, dp=4, vpp=1, mbs=1
    )
    asked["sequence_parallel"] = 0

    explanation = explain(problem, asked)

    assert explanation.question is None
    assert explanation.broken_rules == estimate(problem, asked).broken_rules
    assert sentence(physics.fits_in_device_memory) in explanation.broken_rules
    shown = " ".join(render(explanation).split())
    assert "rules forbid it" in shown
    assert "Memory is missing on the only pipeline rank" in shown


def test_a_complete_strategy_that_is_allowed_is_compared():
    """Recomputation in full where none is needed: the line of recomputation is what it loses."""
    problem = a_problem(pin={"dp_overlap": 0})
    explanation = explain(problem, complete(problem, recompute="full"))

    assert explanation.broken_rules == ()
    assert explanation.differences[0].name == "recompute"
    assert explanation.given.step_seconds > explanation.best.step_seconds


@in_one_case(
    ("decisions", "message"),
    [
        ({"tpp": 8}, "strategy: 'tpp' is no decision. Did you mean 'tp'?"),
        ({"tp": 0}, "strategy.tp: must be from 1 to 1000000000, got 0."),
        ({"recompute": "ful"}, "Did you mean 'full'?"),
        ({"dp_overlap": "maybe"}, "strategy.dp_overlap: expected true or false, got 'maybe'."),
    ],
)
def test_wrong_decisions_are_refused(decisions, message):
    """Where, what was seen, what is allowed."""
    with pytest.raises(SpecError) as error:
        explain(a_problem(), decisions)

    assert message in str(error.value)


def test_a_complete_strategy_without_a_cost_is_refused():
    """More sequences at once than the batch has: there is nothing to compare."""
    problem = a_problem()
    with pytest.raises(SpecError, match=r"strategy\.mbs: dp \* mbs"):
        explain(problem, complete(problem, dp=8, tp=1, cp=1, pp=1, vpp=1, mbs=16))


# --- reports and the command -----------------------------------------------------------------------------------


@cache
def explained(**decisions):
    """The answer to a question about the small problem."""
    return explain(a_problem(), decisions)


@pytest.mark.parametrize("decisions", [pytest.param({}, marks=pytest.mark.slow), {"pp": 2}, {"tp": 3}])
@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_every_explanation_renders(decisions, form):
    """No line beyond a hundred columns but in tables, strict JSON."""
    text = render(explained(**decisions), form)

    if form == "json":
        whole = load_strictly(text)
        assert whole["kind"] == "explanation"
        assert whole["asked"] == {name: str(value) for name, value in decisions.items()}
    if form == "table":
        assert max(len(line) for line in text.splitlines()) <= 110


def test_an_explanation_has_no_rows():
    """CSV is for plans."""
    with pytest.raises(SpecError, match="no rows for 'csv'"):
        render(explained(pp=2), "csv")


def test_json_has_every_line_of_the_difference():
    """What the table leaves out as too small is there, and adds up."""
    whole = load_strictly(render(explained(pp=2), "json"))

    assert sum(line["difference_seconds"] for line in whole["differences"]) == pytest.approx(whole["slower_seconds"])
    assert set(whole["given"]["strategy"]) == {*DECISIONS, "layout", "num_microbatches"}


def test_the_verb_is_the_packages(tmp_path):
    """``from planner import explain, Explanation``."""
    assert planner.explain is explain
    assert isinstance(explained(pp=2), planner.Explanation)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param([], 0, marks=pytest.mark.slow),
        (["tp=2"], 0),
        (["tp=16"], 0),
        (["tpp=2"], 2),
        (["--time-limit", "1e-6"], 3),
    ],
)
def test_explain_command(words, code, capsys):
    """Explained is 0 whatever the answer; wrong input is 2; without time 3."""
    job = str(JOBS / "llama3-8b-8xh100.yaml")

    assert cli.main(["explain", job, *words]) == code

    out, err = capsys.readouterr()
    assert bool(out) == (code != 2)
    assert "Traceback" not in err


@pytest.mark.slow
def test_explain_command_writes_json(capsys):
    """Llama-3-405B on 8 GPUs: nothing fits, and 40 are needed."""
    job = str(JOBS / "llama3-405b-2048xh100.yaml")

    assert cli.main(["explain", job, "cluster.num_devices=8", "--format", "json"]) == 0

    whole = json.loads(capsys.readouterr().out)
    assert whole["best"] is None
    assert whole["conflict"]["smallest_cluster"]["num_devices"] > 8
