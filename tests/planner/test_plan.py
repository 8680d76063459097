"""The verbs: what a plan holds, what an estimate assumes, and which strategies have no cost."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from costmodel.errors import SpecError
from costmodel.facts.model import Experts
from costmodel.models.flops import recomputation_flops_per_token
from costmodel.strategy import DEGREES, ENUMS, FLAGS, Recompute, Sharding
from planner.jobs.checkpoints import schedule_checkpoints
from planner.jobs.problem import load
from planner.jobs.strategy_file import StrategyFile, complete_strategy
from planner.report import FORMATS, render
from planner.search.branch_and_bound import Status
from planner.verbs.plan import estimate, plan
from tests.builders_job import a_document
from tests.oracle import in_step
from tests.planner.test_job import JOBS, a_job

SMALL = {"cluster__num_devices": 8, "training__global_batch_size": 128, "training__tokens": 1e11}

LAYER_MATMULS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
"""Parameters in the layers' matmuls of Llama-3-8B: Q, K and V; output; gate, up and down."""

HEAD_MATMUL = 128256 * 4096

CAUSAL_SCORES = 32 * 2 * 4096 * 8192
"""FLOPs per token of scores and values over half of 8,192 tokens: 4 h s / 2 per layer."""


def a_problem(**entries):
    """Llama-3-8B on eight H100, 8,192 tokens per sequence."""
    return load(a_job(**(SMALL | entries)))


@pytest.fixture(scope="module")
def report():
    """The two fastest plans of the small job."""
    return plan(a_problem(top=2, search__fastest=True))


# --- plans ---------------------------------------------------------------------------------------------------


def test_plans_come_best_first_with_what_the_search_found(report):
    """Strategies of the outcome are estimated again; the closed form is what the search compared."""
    compared = dict(zip(report.outcome.strategies, report.outcome.step_seconds, strict=True))
    assert len(report.plans) == 2
    for one in report.plans:
        assert one.closed_form_seconds == pytest.approx(compared[one.strategy], rel=1e-9)
    assert report.plans[0].step_seconds <= report.plans[1].step_seconds


@pytest.mark.slow
def test_the_best_plan_does_not_depend_on_how_many_are_reported():
    """Of 144 GB200 the fifth by the closed form is the first as simulated."""
    job = a_document("glm-4.5-air", "144xgb200", batch=1152, sequence=4096, training={"precision": "fp8"})

    one, five = (plan(load({**job, "top": top})).plans for top in (1, 5))

    assert (len(one), len(five)) == (1, 5)
    assert one[0] == five[0]


def test_breakdown_and_ranks_agree_with_the_whole(report):
    """Exposed parts are the step; the fullest rank is the peak; what it leaves free is the headroom."""
    best = report.plans[0]

    assert sum(part.exposed_seconds for part in best.estimate.breakdown) == pytest.approx(best.step_seconds)
    assert max(rank.device_bytes for rank in best.estimate.ranks) == best.estimate.device_bytes
    assert min(best.memory_bytes - rank.device_bytes for rank in best.estimate.ranks) == best.headroom_bytes
    # 128 sequences of 8,192 tokens on 8 devices, 6 FLOPs per parameter and token and 3 times the scores
    flops_per_token = 6 * (LAYER_MATMULS + HEAD_MATMUL) + 3 * CAUSAL_SCORES

    assert best.tokens_per_second_per_device == pytest.approx(128 * 8192 / 8 / best.step_seconds)
    assert report.model.flops_per_token == flops_per_token
    assert best.mfu == pytest.approx(best.tokens_per_second_per_device * flops_per_token / 989e12)


@pytest.mark.parametrize(
    ("recompute", "flops"),
    [
        (Recompute.NONE, 0),
        (Recompute.SELECTIVE, 2 * 32 * 4096 * 6144 + CAUSAL_SCORES),
        (Recompute.FULL, 2 * LAYER_MATMULS + CAUSAL_SCORES),
    ],
)
def test_recomputed_flops(recompute, flops):
    """Selective: Q, K, V and the attention core; full: all layers, but never the head."""
    model = a_problem().facts.model

    assert recomputation_flops_per_token(model, 8192, "causal", recompute=recompute) == flops


def test_hfu_adds_what_is_recomputed():
    """Without recomputation both are one figure; with it HFU is larger by the recomputed FLOPs."""
    plain, full = (
        estimate(a_problem(), {"recompute": recompute}, searched=False).plan for recompute in ("none", "full")
    )
    needed = 6 * (LAYER_MATMULS + HEAD_MATMUL) + 3 * CAUSAL_SCORES

    assert plain.hfu == plain.mfu
    assert full.hfu / full.mfu == pytest.approx(1 + (2 * LAYER_MATMULS + CAUSAL_SCORES) / needed)


def test_schedule_is_that_of_the_plan(report):
    """The interval is chosen afterwards, for the plan's own step."""
    problem, best = report.problem, report.plans[0]

    assert best.schedule == schedule_checkpoints(
        problem.facts.cluster, problem.facts.workload, problem.reliability, step_seconds=best.step_seconds
    )


def test_conventions_name_every_operator(report):
    """Peak, attention and the source of times are stated; the profile of the H100 times causal kernels."""
    conventions = report.conventions

    assert (conventions.peak_dtype, conventions.peak_flops, conventions.attention) == ("bf16", 989e12, "causal")
    assert conventions.operator_times["core_attention"] == "modified roofline of h100-80gb-sxm"
    assert {"embedding", "qkv", "up", "down", "head"} <= set(conventions.operator_times)


@pytest.mark.slow
def test_model_summary_counts_experts_and_mtp():
    """DeepSeek-V3: 671 billion parameters (param_counts.csv), 37.6 active, multi-token prediction apart."""
    problem = load(a_job(model="deepseek-v3"))
    summary = estimate(problem, {"ep": 64}).model

    assert isinstance(problem.facts.model.layers[-1].feed_forward, Experts)
    assert (summary.parameters, round(summary.active_parameters / 1e9, 1)) == (671_026_404_352, 37.6)
    assert summary.mtp_parameters > 11e9


@pytest.mark.parametrize(
    ("status", "exit_code"), [(Status.OPTIMAL, 0), (Status.INFEASIBLE, 1), (Status.FEASIBLE, 3), (Status.UNKNOWN, 3)]
)
def test_exit_code_follows_the_status(report, status, exit_code):
    """0 proven, 1 nothing fits, 3 no proof within the time limit."""
    assert replace(report, outcome=replace(report.outcome, status=status)).exit_code == exit_code


@pytest.mark.slow
def test_nothing_fits_is_an_answer():
    """405 billion parameters do not fit into 640 GB: no plan, a conflict, and what the closest strategy lacks."""
    report = plan(a_problem(model="llama3-405b"))

    assert (report.exit_code, report.plans) == (1, ())
    assert report.outcome.conflict.shortage_bytes > 0
    assert report.closest.strategy == report.outcome.conflict.closest


@pytest.mark.slow
def test_objectives_have_one_order():
    """The total time grows with the step time."""
    step, total = (plan(a_problem(objective=objective)) for objective in ("step_time", "total_time"))

    assert step.plans == total.plans


def test_standstill_is_told():
    """No plan helps where failures outrun progress."""
    with pytest.raises(SpecError, match="reliability: failures outrun progress"):
        plan(a_problem(reliability__failures_per_node_day=1000))


# --- estimates -----------------------------------------------------------------------------------------------


def test_defaults_of_an_estimate():
    """The devices that are left go to dp; the rest is as Megatron-Bridge's recipes have it, where it has work to do."""
    given = StrategyFile(decisions={"tp": 2, "recompute": Recompute.FULL})
    strategy = complete_strategy(a_problem().facts, given)

    assert (strategy.tp, strategy.dp, strategy.sequence_parallel) == (2, 4, True)
    assert (strategy.sharding, strategy.recompute) == (Sharding.OPTIMIZER, Recompute.FULL)
    assert (strategy.cp, strategy.pp, strategy.ep, strategy.etp, strategy.vpp, strategy.mbs) == (1,) * 6
    assert (strategy.tp_overlap, strategy.dp_overlap) == (True, True)
    assert not any((strategy.cp_overlap, strategy.ep_overlap, strategy.pp_overlap, strategy.activation_offload))
    alone = complete_strategy(a_problem().facts, StrategyFile(decisions={"tp": 8}))
    assert (alone.dp, alone.sharding) == (1, Sharding.NONE)


def test_pins_are_defaults_and_decisions_win():
    """A pin is what the job has decided already; what contradicts it is told."""
    problem = a_problem(search__pin={"tp": 4, "recompute": "full"})

    kept, changed = estimate(problem, {}, searched=False), estimate(problem, {"tp": 2}, searched=False)

    assert (kept.plan.strategy.tp, kept.broken_rules) == (4, ())
    assert changed.plan.strategy.tp == 2
    assert changed.broken_rules == ("search.pin: tp is 4.",)


def test_values_as_job_files_and_programs_spell_them():
    """``"full"`` and ``Recompute.FULL`` are the same decision."""
    spelled, typed = (
        estimate(a_problem(), {"tp": 2, "recompute": recompute, "tp_overlap": on}, searched=False)
        for recompute, on in (("full", True), (Recompute.FULL, 1))
    )

    assert spelled == typed


def test_the_planned_strategy_breaks_no_rule():
    """Its estimate is the plan, where its decisions say all of it."""
    report = plan(a_problem(search__stages="even"))
    again = estimate(report.problem, report.plans[0].strategy.decisions())

    assert (again.broken_rules, again.exit_code) == ((), 0)
    assert again.plan == report.plans[0]


@pytest.mark.parametrize(
    ("decisions", "sentence"),
    [
        (
            {"tp": 3},
            "Each tensor-parallel rank owns equally many whole attention heads, and whole groups of a grouped output.",
        ),
        ({"tp": 2, "dp": 2}, "The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs."),
        ({"tp": 2, "dp": 8}, "The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs."),
        ({"mbs": 3}, "The global batch divides evenly into micro-batches of mbs sequences on dp ranks."),
        ({"ep": 2}, "Only a model with experts has expert-parallel degrees (ep, etp) above 1."),
        ({}, "Model states, activations and headroom fit in the memory of every GPU."),
        ({"pp": 2, "pp_overlap": True}, "Only the interleaved schedule (vpp above 1) overlaps pipeline communication."),
    ],
)
def test_a_forbidden_strategy_is_estimated_and_told(decisions, sentence):
    """The figures are there, and the rule in its own words; an estimate is an answer, so the exit code is 0."""
    report = estimate(a_problem(), decisions, searched=False)

    assert sentence in report.broken_rules
    assert report.plan.step_seconds > 0
    assert report.exit_code == 0


def test_framework_rules_are_asked_only_where_the_job_wants_them():
    """As in the search."""
    problem = a_problem(search__framework_rules=False)

    report = estimate(problem, {"tp": 2, "pp": 2, "recompute": "full", "pp_overlap": True})

    assert report.broken_rules == ()


def test_a_bubble_beyond_the_jobs_bound_is_named():
    """Two ranks and few micro-batches idle; without a pipeline nothing does."""
    problem = a_problem(search__max_bubble_fraction=0.001)

    says = "search.max_bubble_fraction: the pipeline idles for at most 0.1 % of the step."
    assert says in estimate(problem, {"pp": 2, "mbs": 16}, searched=False).broken_rules
    assert says not in estimate(problem, {"tp": 2}, searched=False).broken_rules


def test_devices_that_a_plan_leaves_free_are_not_counted():
    """Four of eight devices as if there were no others: speed, nodes, GPU-hours, and the checkpoint that they write."""
    given = "TP2 DP2 MBS1 ZeRO1 graphs=none recompute=none overlap=tp,dp"
    of_eight = estimate(a_problem(objective="step_time", search__max_devices=8), given).plan
    of_four = estimate(a_problem(objective="step_time", cluster__num_devices=4), given).plan

    assert of_eight.cluster.num_devices == 4
    assert of_eight.tokens_per_second_per_device == of_four.tokens_per_second_per_device
    assert of_eight.checkpoint_seconds == pytest.approx(of_four.checkpoint_seconds)
    assert of_eight.schedule.gpu_hours == pytest.approx(of_four.schedule.gpu_hours)


def test_more_devices_than_there_are_count_as_devices():
    """Twice the devices do not look twice as fast per device."""
    half = estimate(a_problem(), {"tp": 8, "dp": 1}, searched=False)
    twice = estimate(a_problem(), {"tp": 8, "dp": 2}, searched=False)

    assert twice.plan.tokens_per_second_per_device < 1.01 * half.plan.tokens_per_second_per_device


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ({"tpp": 8}, "strategy: 'tpp' is no decision. Did you mean 'tp'?"),
        ({7: 8}, "strategy: 7 is no decision."),
        ({"tp": "8"}, "strategy.tp: expected a whole number, got '8'."),
        ({"tp": 0}, "strategy.tp: must be from 1 to 1000000000, got 0."),
        ({"tp": float("nan")}, "strategy.tp: expected a whole number, got nan."),
        ({"recompute": "ful"}, "Did you mean 'full'?"),
        ({"tp_overlap": "sometimes"}, "strategy.tp_overlap: expected true or false"),
        ({"tp": 16}, "strategy.dp: nothing is left for it: tp * cp * pp = 16 of 8 devices."),
        ({"dp": 129}, "strategy.mbs: dp * mbs = 129 sequences are more than the global batch of 128."),
        ({"pp": 8, "vpp": 5}, "strategy.pp: pp * vpp = 40 virtual stages are more than 32 layers, embedding and head"),
        ({"ep": 16}, "strategy.ep: ep * etp = 16 ranks share experts"),
        ({"tp": 10**9, "cp": 10**9, "dp": 1}, "strategy: takes 1e+18 devices"),
    ],
)
def test_what_has_no_cost_is_wrong_input(decisions, message):
    """A wrong name, a wrong value, or a strategy that no formula covers."""
    with pytest.raises(SpecError, match=re.escape(message)):
        estimate(a_problem(), decisions, searched=False)


DEGREE = st.sampled_from([1, 2, 3, 8, 33, 64, 4096, 10**9])

DECISIONS_OF_ANY_KIND = st.fixed_dictionaries(
    {},
    optional={name: DEGREE for name in DEGREES}
    | {name: st.booleans() for name in FLAGS}
    | {name: st.sampled_from(list(members)) for name, members in ENUMS.items()},
)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b"])
@given(decisions=DECISIONS_OF_ANY_KIND)
@settings(max_examples=in_step(24), deadline=None)
def test_any_decisions_have_a_finite_report_or_a_message(model, decisions):
    """Rules may forbid what they like: nothing fails but for the project's own errors."""
    try:
        report = estimate(_problem_of(model), decisions, searched=False)
    except SpecError:
        return
    assert 0 < report.plan.step_seconds < float("inf")
    assert min(part.exposed_seconds for part in report.plan.estimate.breakdown) > -1e-9
    assert all(render(report, form) for form in FORMATS)


@cache
def _problem_of(model):
    return load(a_job(model=model))


@pytest.mark.slow
def test_shapes_that_nobody_measured_are_wrong_input():
    """MoFa's device B knows operators at tp 4 and 8 only."""
    problem = load(a_job(model="mofa-llama3-405b", cluster__device="mofa-b", cluster__num_devices=2048))

    with pytest.raises(
        SpecError, match=r"times of mofa-b do not cover its shapes.* cluster\.device\.calibration\.times"
    ):
        estimate(problem, {"tp": 2, "pp": 16})


# --- the package ---------------------------------------------------------------------------------------------


def test_public_names_exist():
    """``from planner import load, plan, estimate`` and the records that they speak."""
    assert all(getattr(planner, name) is not None for name in planner.__all__)
    assert set(planner.__all__) <= set(dir(planner))
    with pytest.raises(AttributeError, match="plann"):
        _ = planner.plann


ORDERS = (
    "from planner import plan",
    "from planner.verbs.plan import estimate; from planner import plan",
    "import planner; planner.PlanReport; plan = planner.plan",
)


@pytest.mark.slow
def test_plan_is_the_verb_in_whatever_order_it_is_imported():
    """A package's attribute that is named like its module is the module once that is imported, unless prevented."""
    check = """
for order in orders:
    for name in [name for name in sys.modules if name.partition(".")[0] == "planner"]:
        del sys.modules[name]
    found = {}
    exec(order, found)
    assert callable(found["plan"]) and found["plan"].__name__ == "plan", order
"""

    subprocess.run([sys.executable, "-c", f"import sys\norders = {ORDERS}{check}"], check=True)


def test_importing_the_package_imports_nothing_heavy():
    """Neither does its command line: ``planner --help`` answers at once."""
    program = (
        "import sys, planner, planner.cli, planner.report; "
        "print([name for name in ('numpy', 'pydantic', 'ortools', 'yaml', 'pandas') if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_an_estimate_loads_no_solver_and_a_plan_no_pandas():
    """OR-Tools takes longer than an estimate, and imports pandas for series of variables, which scripts still have."""
    program = (
        "import sys, planner.notebooks; from planner import estimate, load, plan; "
        f"job = load({str(JOBS / 'llama3-8b-8xh100.yaml')!r}); "
        "estimate(job, 'DP8 MBS1 ZeRO1 graphs=none recompute=full overlap=dp'); print('ortools' in sys.modules); "
        "plan(job); print('pandas' in sys.modules); "
        "import pandas; from ortools.sat.python.cp_model import CpModel; "
        "print(len(CpModel().new_int_var_series('x', pandas.Index([1, 2]), 0, 3)))"
    )

    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert result.stdout.split() == ["False", "False", "2"]
