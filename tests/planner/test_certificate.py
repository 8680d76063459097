"""The certificate: a model that holds the rules finds nothing faster than the answer, but what beats a wrong one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model

from constraints import find_violations
from constraints.cp_sat import TICK_SECONDS, seconds_to_ticks
from constraints.rules import frameworks, physics
from costmodel.step import step
from costmodel.strategy import FLAGS
from planner import load, plan, render
from planner.cli import main
from planner.search import branch_and_bound, candidates, margin, space
from planner.search import certificate as module
from planner.search.branch_and_bound import GROUP_DECISIONS, Status
from planner.search.candidates import Formulas, Memory, fits
from planner.search.certificate import build_model_for_export, certify
from planner.search.questions import search
from planner.search.solver import Clock
from planner.search.space import build_space, strategy_of
from planner.verbs.repairs import search_or_explain
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device


@dataclass(frozen=True, kw_only=True)
class Made:
    """A cost made up by a test."""

    step_seconds: object = 0.0
    device_bytes: object = 0.0
    host_bytes: object = 0.0
    bubble_seconds: object = 0.0


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(module, "LONGEST_SECONDS", 600.0)


def asked(problem, outcome, formulas=candidates.OWN):
    """The certificate of an outcome, with time enough for it."""
    return certify([(problem, outcome)], outcome, Clock(seconds=600), formulas)


@cache
def a_random_problem(seed):
    """Small dense or MoE models on devices with much or little memory."""
    chooser = random.Random(seed)
    make = chooser.choice([a_model, a_moe_model])
    return a_problem(
        make(num_layers=chooser.choice([2, 4, 6])),
        num_devices=chooser.choice([4, 8, 16]),
        device=a_timed_device(memory_bytes=chooser.choice([0.12, 0.15, 0.3, 2]) * GB),
        workload={"global_batch_size": chooser.choice([8, 16, 24])},
        framework_rules=chooser.random() < 0.6,
    )


@cache
def found_in(seed):
    """Search such a problem, once for all tests."""
    return search(a_random_problem(seed))


@cache
def report_of(seed):
    """Plan such a problem, with a certificate, once for all tests."""
    return plan(a_random_problem(seed))


def enumerated_ticks(problem):
    """The fastest strategy that fits, of all that the rules leave, by arrays alone; None where none fits."""
    of_problem = build_space(problem)
    block = of_problem.block(np.arange(of_problem.num_rows))
    costs = step.cost(problem.facts, block.decisions)
    device, host = fits(problem.facts, of_problem.rules, costs, problem.search.memory_headroom_bytes)
    possible = block.allowed & device & host
    return int(seconds_to_ticks(np.where(possible, costs.step_seconds, np.inf)).min()) if possible.any() else None


# Seeds 5, 7 and 9 are the largest spaces, and each takes as long as all of these.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 6, 8, 10])
def test_answers_that_enumeration_confirms_are_certified(seed):
    """What enumeration finds is certified; one tick more is refuted, with a strategy as fast as that."""
    problem = a_random_problem(seed)
    outcome, ticks = found_in(seed), enumerated_ticks(problem)

    certificate = asked(problem, outcome)

    if ticks is None:
        assert certificate is None
        assert not outcome.strategies
        return
    assert outcome.ticks == ticks
    assert certificate.verdict == "certified"
    assert certificate.below_seconds == ticks * TICK_SECONDS
    assert certificate.num_rules == len(outcome.space.rules.every) > 30
    wrong = asked(problem, replace(outcome, ticks=ticks + 1))
    assert wrong.verdict == "refuted"
    assert seconds_to_ticks(step.cost(problem.facts, wrong.better.decisions()).step_seconds) == ticks


@pytest.mark.parametrize("cells", [0, 2**16])
@pytest.mark.parametrize("seed", [1, 3])
def test_a_wrong_answer_is_refuted_by_the_best_one(seed, cells, monkeypatch):
    """Whether or not arrays leave out what rules forbid, the solver returns a strategy as fast as the optimum."""
    monkeypatch.setattr(module, "THOROUGH_CELLS", cells)
    problem, outcome = a_random_problem(seed), found_in(seed)

    right, wrong = asked(problem, outcome), asked(problem, replace(outcome, ticks=int(outcome.ticks * 1.1)))

    assert right.verdict == "certified"
    assert right.is_thorough is bool(cells)
    assert wrong.verdict == "refuted"
    assert seconds_to_ticks(step.cost(problem.facts, wrong.better.decisions()).step_seconds) == outcome.ticks


@pytest.mark.slow
def test_a_search_that_loses_its_best_candidates_is_refuted(monkeypatch):
    """Costs that the search keeps are not believed."""
    problem, best = a_random_problem(0), found_in(0).ticks
    original = candidates.CostedBlock.take

    def loses_the_fastest(self, chosen):
        return original(self, chosen & (self.ticks > best))

    with monkeypatch.context() as patch:
        patch.setattr(candidates.CostedBlock, "take", loses_the_fastest)
        outcome = search(problem)

    assert outcome.status == Status.OPTIMAL
    assert outcome.ticks > best
    certificate = asked(problem, outcome)
    assert certificate.verdict == "refuted"
    assert seconds_to_ticks(step.cost(problem.facts, certificate.better.decisions()).step_seconds) == best


def test_a_space_that_lost_its_best_rows_is_refuted(monkeypatch):
    """The certificate grows its rows anew, so that it finds what the search's space lacks."""
    problem, best = a_random_problem(0), found_in(0)
    lost = [getattr(best.strategies[0], name) for name in GROUP_DECISIONS]
    original = space.build_space

    def loses_rows(asked):
        whole = original(asked)
        columns = np.stack([whole.rows[name] for name in GROUP_DECISIONS])
        kept = (columns != np.array(lost)[:, None]).any(axis=0)
        rows = {name: values[kept] for name, values in whole.rows.items()}
        return replace(whole, rows=rows, feature_class=whole.feature_class[kept])

    with monkeypatch.context() as patch:
        patch.setattr(branch_and_bound, "build_space", loses_rows)
        outcome = search(problem)

    assert outcome.status == Status.OPTIMAL
    assert outcome.ticks > best.ticks
    certificate = asked(problem, outcome)
    assert certificate.verdict == "refuted"
    assert [getattr(certificate.better, name) for name in GROUP_DECISIONS] == lost


def test_a_search_with_a_wrong_bound_is_refuted(monkeypatch):
    """A lower bound that is a hundred times too long cuts the best rows; the certificate has bounds of its own."""
    monkeypatch.setattr(branch_and_bound, "FIRST_BATCH_ROWS", 8)
    problem, best = a_random_problem(0), found_in(0)
    tp = best.strategies[0].tp

    def wrong(facts, decisions):
        right = np.asarray(step.lower_bound_seconds(facts, decisions))
        return np.where(np.asarray(decisions["tp"]) == tp, 100.0 * right, right)

    formulas = Formulas(lower_bound=wrong)
    outcome = search(problem, formulas)

    assert outcome.status == Status.OPTIMAL
    assert outcome.ticks > best.ticks
    certificate = asked(problem, outcome, formulas)
    assert certificate.verdict == "refuted"
    assert seconds_to_ticks(step.cost(problem.facts, certificate.better.decisions()).step_seconds) == best.ticks


@cache
def dense_search(model="llama3-70b"):
    """Search a large job with even stages, once for all tests."""
    problem = a_job(model, "h100-80gb-sxm", 512, 1024, 4096, memory_headroom_gib=None, evidence="proven")
    return problem, search(problem)


@pytest.mark.parametrize(
    "wrong",
    [{"device_bytes": lambda own: 0.5 * own.device_bytes}, {"step_seconds": lambda own: 0.9 * own.step_seconds}],
)
def test_an_answer_that_is_no_strategy_is_refuted(wrong):
    """A search with too little memory or time finds what no strategy reaches, which is no reason to believe it."""
    problem, right = dense_search()

    def cost(facts, decisions, *given, **named):
        own = step.cost(facts, decisions, *given, **named)
        return replace(own, **{name: change(own) for name, change in wrong.items()})

    formulas = Formulas(cost=cost, memory=cost, least_memory=lambda *_: Memory(device_bytes=0.0, host_bytes=0.0))
    outcome = search(problem, formulas)

    assert 0 < outcome.ticks < right.ticks
    certificate = asked(problem, outcome)
    assert (certificate.verdict, certificate.better) == ("refuted", None)


@pytest.mark.slow
def test_memory_and_rules_decide_the_model():
    """Without its memory limits, and without its rules, a certificate's model has a faster optimum."""
    searches = (dense_search(), {"with_memory": False}), (dense_search("qwen3-30b-a3b"), {"with_rules": False})

    for (problem, best), left_out in searches:
        ticks = best.ticks
        found, _ = module.tabulate_anew(problem, ticks, Clock(seconds=600))
        optima = []
        for settings in ({}, left_out):
            solver = cp_model.CpSolver()
            assert solver.solve(margin.build_model([found], **settings).model) == cp_model.OPTIMAL
            optima.append(round(solver.objective_value))
        assert optima[0] == ticks
        assert optima[1] < ticks


def test_entries_beyond_the_memory_are_strategies():
    """Entries of a model's tables that do not fit have the steps and the memory of their own decisions."""
    problem, best = dense_search()
    found, _ = module.tabulate_anew(problem, best.ticks, Clock(seconds=600))
    entries = found.candidates
    decisions = {name: values.astype(bool) if name in FLAGS else values for name, values in entries.decisions.items()}
    costs = step.cost(problem.facts, decisions)

    assert (entries.allowed & found.is_unfit).any()
    assert (seconds_to_ticks(costs.step_seconds) == entries.ticks).all()
    mebibytes = np.asarray(costs.device_bytes) / 2**20
    assert (np.abs(np.broadcast_to(mebibytes, entries.ticks.shape) - entries.device_mebibytes) <= 1).all()


# --- rules left out ------------------------------------------------------------------------------------------


def a_job(model, device, num_devices, batch, sequence, **limits):
    """A job of the catalog's models and devices."""
    return load(
        {
            "model": model,
            "cluster": {"device": device, "num_devices": num_devices},
            "training": {"global_batch_size": batch, "sequence_length": sequence, "tokens": 1e12},
            "search": {"stages": "even", "memory_headroom_gib": 0, "evidence": "any", **limits},
        }
    )


H200 = ("llama3-70b", "h200", 64, 64, 4096)
H200_FREE_TP = ("llama3-70b", "h200", 32, 96, 2048)
A100 = ("llama3-70b", "a100-40gb-sxm", 32, 64, 16384)

BINDING = {
    physics.degrees_multiply_to_the_devices: (
        ("llama3-8b", "h100-80gb-sxm", 4, 8, 4096),
        {"pin": {"cp": 1, "sharding": "none", "recompute": "none", "activation_offload": False, "cuda_graphs": "none"}},
    ),
    physics.interleaving_needs_a_pipeline: (H200, {}),
    physics.global_batch_splits_over_ranks: (H200_FREE_TP, {}),
    physics.microbatches_fill_the_pipeline: (("llama3-70b", "h200", 32, 4, 4096), {"framework_rules": False}),
    frameworks.offloading_in_pipelines_is_for_experts: (A100, {}),
    physics.expert_groups_tile_a_stage: (
        ("deepseek-v2", "b200", 64, 192, 4096),
        {"framework_rules": False, "pin": {"cp": 1, "mbs": 1}},
    ),
    physics.gradient_sharding_excludes_pipelines: (
        ("llama3-70b", "h100-80gb-sxm", 32, 96, 8192),
        {"framework_rules": False},
    ),
    frameworks.graphs_exclude_offloaded_layers: (A100, {}),
    physics.fits_in_device_memory: (H200_FREE_TP, {}),
    physics.fits_in_host_memory: (A100, {}),
}
"""Rules that are all that keeps something faster from a job."""


def without(problem, rule, monkeypatch):
    """The outcome of a job, which a certificate is about to check with all rules but one."""
    outcome = search(problem)
    rules = outcome.space.rules
    fewer = {
        name: tuple(one for one in getattr(rules, name) if one is not rule)
        for name in ("rows", "mixed", "memory", "timed")
    }
    monkeypatch.setattr(module, "problem_rules", lambda _: replace(rules, **fewer))
    return outcome


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", BINDING, ids=lambda rule: rule.__name__)
def test_a_rule_that_is_left_out_is_noticed(rule, monkeypatch):
    """Without it the model finds something faster than the answer, which this rule alone forbids."""
    job, limits = BINDING[rule]
    problem = a_job(*job, **limits)

    certificate = asked(problem, without(problem, rule, monkeypatch))
    monkeypatch.undo()

    assert certificate.verdict == "refuted"
    cost = step.cost(problem.facts, certificate.better.decisions())
    assert cost.step_seconds < certificate.below_seconds
    assert broken_by(problem, certificate.better, cost) == [rule.__name__]


def broken_by(problem, strategy, cost):
    """The rules that forbid a strategy."""
    rules = build_space(problem).rules.every
    resources = {
        "device_bytes": cost.device_bytes,
        "host_bytes": cost.host_bytes,
        "memory_headroom_bytes": problem.search.memory_headroom_bytes,
    }
    return [rule.__name__ for rule in find_violations(problem.facts, strategy.decisions() | resources, rules=rules)]


# --- what cannot be asked ------------------------------------------------------------------------------------


def test_without_a_strategy_there_is_no_certificate():
    """Nothing fits into a thousandth of a gigabyte."""
    problem = a_problem(device=a_timed_device(memory_bytes=0.001 * GB))

    assert asked(problem, search_or_explain(problem)) is None


def test_what_cannot_be_asked_is_not_certified(monkeypatch):
    """Because the search did not end, time or memory is short, or the tables are too large; the reason is said."""
    problem, outcome = a_random_problem(1), found_in(1)
    wrong = replace(outcome, ticks=2 * outcome.ticks)

    unfinished = asked(problem, replace(outcome, status=Status.FEASIBLE))
    late = certify([(problem, outcome)], outcome, Clock(seconds=0))
    with monkeypatch.context() as patch:
        patch.setattr(margin, "MAX_ENTRIES", 1)
        large = asked(problem, wrong)
    with monkeypatch.context() as patch:
        patch.setattr(margin, "JointModel", lambda *_, **__: np.empty(2**59))  # NumPy's own error speaks of an array
        heavy = asked(problem, outcome)

    assert {one.verdict for one in (unfinished, late, large, heavy)} == {"not certified"}
    assert "own proof" in unfinished.reason
    assert "--time-limit S" in late.reason
    assert "more than 1 rows" in large.reason
    assert heavy.reason == "the model does not fit into memory"


def test_memory_may_depend_on_any_overlap():
    """Where an overlap costs memory, it is a column of the memory's table: only without it does the fast one fit."""

    def cost(facts, decisions):
        overlapped = decisions["dp_overlap"] & (decisions["dp"] > 1)
        return Made(
            step_seconds=np.where(overlapped, 1.0, 2.0) * np.where(decisions["tp"] > 1, 2.0, 1.0),
            device_bytes=np.where(overlapped, 3 * GB, 1 * GB),
            host_bytes=np.float64(0),
        )

    formulas = Formulas(
        cost=lambda facts, decisions, **_: cost(facts, decisions),
        memory=cost,
        lower_bound=lambda facts, decisions: np.zeros(np.shape(decisions["tp"])),
        least_seconds=lambda facts, decisions, **_: np.zeros(np.shape(decisions["tp"])),
        least_memory=lambda facts, decisions: Made(device_bytes=np.float64(0), host_bytes=np.float64(0)),
    )
    few = dict.fromkeys(("recompute", "activation_offload", "optimizer_offload", "cuda_graphs"), 0)
    problem = a_problem(device=a_timed_device(memory_bytes=2 * GB), pin=few)
    outcome = search(problem, formulas)

    assert outcome.step_seconds == (2.0,)
    assert asked(problem, outcome, formulas).verdict == "certified"
    assert asked(problem, replace(outcome, ticks=outcome.ticks + 1), formulas).verdict == "refuted"


# --- reports -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report_says_what_is_certified():
    """In a table, in JSON, and on the page."""
    report = report_of(1)
    flat = " ".join(render(report, "table").split())

    assert "certificate certified by CP-SAT: no strategy is faster than" in flat
    assert f"in 23 decisions, {report.certificate.num_rules} rules and" in flat
    assert '"verdict": "certified"' in render(report, "json")
    assert "certified by CP-SAT" in render(report, "html")
    assert plan(a_random_problem(1), certified=False).certificate is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"verdict": "not certified", "reason": "time was short"},
            "not certified: time was short; what is known",
        ),
        ({"verdict": "refuted"}, "refuted: CP-SAT found a strategy that is faster than"),
        (
            {"verdict": "refuted", "better": None},
            "refuted: no strategy that rules and memory allow is as fast as",
        ),
    ],
)
def test_the_report_says_what_is_not(changes, words):
    """Why not, and what is known all the same; or what is faster."""
    report = report_of(1)
    changed = replace(report.certificate, **{"better": report.plans[0].strategy} | changes)

    assert words in " ".join(render(replace(report, certificate=changed), "table").split())


@pytest.mark.slow
def test_of_uneven_stages_other_models_say_the_same():
    """The certificate is about even stages, to be faster than the uneven answer; it says so."""
    problem = a_job("llama3-8b", "h100-80gb-sxm", 8, 64, 8192, stages="free", pin={"pp": 4})
    report = plan(problem)

    assert report.outcome.strategies[0].layout is not None
    assert report.certificate.verdict == "certified"
    flat = " ".join(render(report, "table").split())
    assert "proven faster than any even stages in the cost model" in flat
    assert "no strategy of even stages that is as fast" in flat
    assert "uneven stages have bounds and models of their own" in flat
    made = build_model_for_export(problem, report.outcome)  # No even strategy is as fast as the answer.
    assert cp_model.CpSolver().solve(made.model) == cp_model.INFEASIBLE


# --- the model in a file -------------------------------------------------------------------------------------

JOB = """
model: llama3-8b
cluster: {device: h100-80gb-sxm, num_devices: 16}
training: {global_batch_size: 32, sequence_length: 4096, tokens: 1e12}
search: {stages: even}
"""


@cache
def found_in_file():
    """Search the job of the file, once for all tests."""
    return search(load(yaml.safe_load(JOB)))


@pytest.fixture
def job(tmp_path):
    """A small job's file."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


def read_again(path):
    """Status, objective and values of a model that OR-Tools reads from a file."""
    proto, model = cp_model_pb2.CpModelProto(), cp_model.CpModel()
    if path.suffix == ".txt":
        text_format.Parse(path.read_text(encoding="utf-8"), proto)
    else:
        proto.ParseFromString(path.read_bytes())
    model.proto.parse_text_format(text_format.MessageToString(proto))
    solver = cp_model.CpSolver()
    status = solver.solve(model)
    names = [variable.name for variable in proto.variables]
    values = dict(zip(names, solver.response_proto.solution, strict=True)) if status == cp_model.OPTIMAL else {}
    return status, values


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["model.txt", "model.pb"])
def test_a_written_model_has_the_answer_as_its_optimum(name, job, tmp_path, capsys):
    """OR-Tools reads it, text or binary, and finds the strategy of the report and its step."""
    path = tmp_path / name

    assert main(["plan", str(job), "--write-model", str(path), "--format", "json"]) == 0

    outcome = found_in_file()
    status, values = read_again(path)
    assert status == cp_model.OPTIMAL
    assert values["ticks"] == outcome.ticks
    found = strategy_of(values)
    assert seconds_to_ticks(step.cost(load(job).facts, found.decisions()).step_seconds) == outcome.ticks
    assert [getattr(found, name) for name in GROUP_DECISIONS] == [
        getattr(outcome.strategies[0], name) for name in GROUP_DECISIONS
    ]
    assert not list(tmp_path.glob(".*"))


def test_a_model_s_file_is_not_the_report_s(job, tmp_path, capsys):
    """One would overwrite the other."""
    path = tmp_path / "model.pb"

    assert main(["plan", str(job), "--write-model", str(path), "-o", str(path)]) == 2
    assert "--write-model" in capsys.readouterr().err
    assert not path.exists()


def test_without_a_plan_no_model_is_written(job, tmp_path, capsys):
    """The report says why there is none; the file does not appear."""
    path = tmp_path / "model.pb"

    assert main(["plan", str(job), "search.memory_headroom_gib=79.5", "--write-model", str(path)]) == 1

    assert not path.exists()
    assert "was not written" in capsys.readouterr().err
