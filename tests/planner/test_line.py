"""A strategy in one line of the field's words: written, read, completed, refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from benchmarks.round_trips.jobs import random_jobs
from costmodel.errors import PlanningError, SpecError
from costmodel.pipelines.stages import settle_layout
from costmodel.strategy import DECISIONS, CudaGraphs, Recompute, Schedule, Sharding, StageLayout, TokenDispatcher
from planner import cli, compare, estimate, explain, load, plan
from planner.jobs.line import WORDS, read_strategy, read_words, write_line
from planner.jobs.strategy_file import LAYOUT
from planner.report.records.plan import PlanRecord
from planner.search.complete import CompletedBy
from tests.builders_job import a_document
from tests.cases import read_table
from tests.schemas import valid

DENSE = a_document("llama3-8b", "16xh100-80gb-sxm", batch=128, sequence=8192)
EXPERTS = {**DENSE, "model": "qwen3-30b-a3b", "training": {**DENSE["training"], "sequence_length": 4096}}
WHOLE = "TP2 DP8 MBS1 ZeRO1 graphs=none recompute=none overlap=tp,dp"
"""A whole line for the dense job."""


def figures(one):
    """Step and peak."""
    return one.step_seconds, one.estimate.device_bytes


def line_of(one):
    """The line that a report prints of a plan."""
    return PlanRecord.build_from_plan(one).line


# --- the table -------------------------------------------------------------------------------------------------


def test_every_decision_has_one_word():
    """And stages have one, too."""
    said = [name for word in WORDS for name in word.decisions.values()]

    assert sorted(said) == sorted((*DECISIONS, LAYOUT))


def test_words_of_megatron_and_of_job_files_are_one_decision():
    """``--recompute-modules``, ``--moe-token-dispatcher-type``, ZeRO's levels; mixed, in any case."""
    ours = read_strategy(
        "tp=4 sharding=weights recompute=norms+expert_activation tp_overlap=true token_dispatcher=hybridep"
    )
    fields = read_strategy("tp4 zero-3 recompute=layernorm,moe_act tp_overlap=on Dispatcher=HybridEP")

    assert ours == fields
    assert fields.decisions["sharding"] is Sharding.WEIGHTS
    assert fields.decisions["recompute"] == Recompute.of("norms", "expert_activation")
    assert fields.decisions["token_dispatcher"] is TokenDispatcher.HYBRIDEP


def test_a_word_of_flags_says_all_of_them():
    """What it does not list is off."""
    assert read_words(["overlap=tp,dp"]).decisions == {
        "tp_overlap": 1,
        "cp_overlap": 0,
        "ep_overlap": 0,
        "pp_overlap": 0,
        "dp_overlap": 1,
    }


# --- back to the same plan -------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("job", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_line_is_read_back_whatever_it_says(job, seed):
    """10 random whole strategies each: every decision, unlike stages, recomputation of each rank."""
    chooser = random.Random(seed)
    problem = load({**job, "search": {"framework_rules": False}})
    for _ in range(10):
        strategy = random_strategy(chooser, problem)
        line = write_line(problem.facts, strategy, {})
        found = estimate(problem, line)
        assert found.plan.strategy == strategy, line
        assert found.completed_by is CompletedBy.GIVEN


def random_strategy(chooser, problem):
    """Every decision drawn; degrees that multiply to 16."""
    base = estimate(problem, WHOLE, searched=False).plan.strategy
    tp, pp = chooser.choice([(1, 1), (2, 1), (2, 2), (4, 2), (1, 4)])
    vpp = chooser.choice([1, 2]) if pp > 1 else 1
    ep = chooser.choice([1, 2]) if problem.facts.model.has_experts else 1
    strategy = replace(
        base,
        tp=tp,
        pp=pp,
        dp=16 // (tp * pp),
        ep=ep,
        etp=chooser.choice([1, tp]) if ep > 1 else 1,
        vpp=vpp,
        group=chooser.choice([pp, 2 * pp]) if vpp > 1 else 1,
        mbs=chooser.choice([1, 2]),
        sequence_parallel=chooser.random() < 0.5,
        sharding=chooser.choice(list(Sharding)),
        recompute=chooser.choice([*Recompute, Recompute.of("norms"), Recompute.of("core_attention", "qkv", "mlp")]),
        cuda_graphs=chooser.choice([*CudaGraphs, CudaGraphs.of("attn")]),
        token_dispatcher=chooser.choice(list(TokenDispatcher)) if ep > 1 else TokenDispatcher.ALLTOALL,
        **{f"{name}_overlap": chooser.random() < 0.5 for name in ("tp", "cp", "pp", "dp")},
        **{f"{name}_offload": chooser.random() < 0.3 for name in ("activation", "optimizer")},
        schedule=chooser.choice([Schedule.ONE_F_ONE_B, Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1]),
        layout=None,
    )
    if pp == 1 or strategy.schedule != Schedule.ONE_F_ONE_B or chooser.random() < 0.4:
        return strategy
    num_layers, stages = problem.facts.model.num_layers, pp * vpp
    layers = [num_layers // stages] * stages
    layers[0], layers[-1] = layers[0] + 1, layers[-1] - 1
    contents = [chooser.choice([Recompute.NONE, strategy.recompute]) for _ in range(pp)]
    layout = StageLayout(
        layers=tuple(layers),
        recompute=tuple(sorted(contents, reverse=True)),
        full_layers=tuple(chooser.choice([0, 1]) for _ in range(pp)),
        activation_offload=(strategy.activation_offload,) * pp,
    )
    return settle_layout(strategy, problem.facts.model, layout)


@pytest.mark.slow
def test_lines_of_random_plans_cost_the_same():
    """Of several targets, frameworks and devices, with settings of several values; exactly."""
    compared = 0
    for job in random_jobs(48, 5, 3.0):
        try:
            report = plan(load(job), certified=False)
        except PlanningError:
            continue
        for one in report.plans:
            back = estimate(load(job), line_of(one))
            assert figures(back.plan) == pytest.approx(figures(one), rel=1e-9), line_of(one)
            compared += 1

    assert compared >= 4


@pytest.mark.slow
def test_every_verb_takes_the_line_of_a_plan():
    """As an argument, as ``strategy`` and as ``search.pin``; compared with itself it gains 0.0 %."""
    found = plan(load(EXPERTS), certified=False)
    best, line = found.fastest, line_of(found.fastest)
    pinned = plan(load({**EXPERTS, "search": {"pin": line}}), certified=False)

    assert figures(estimate(load(EXPERTS), line).plan) == figures(best)
    assert figures(explain(load(EXPERTS), line).given) == figures(best)
    assert figures(estimate(load({**EXPERTS, "strategy": line}), {}).plan) == figures(best)
    assert [figures(one) for one in pinned.plans] == [figures(best)]
    assert f"{compare(load(EXPERTS), line_of(found.plans[0])).saved_fraction:.1%}" == "0.0%"
    valid("job", {**EXPERTS, "strategy": line, "search": {"pin": line}})


def test_a_line_chooses_among_the_settings_of_the_job():
    """The job gives two; the line says one of them, and no other."""
    job = {**DENSE, "settings": {"gradient_dtype": ["fp32", "bf16"]}}

    of_line = [estimate(load(job), f"{WHOLE} gradient_dtype={own}", searched=False).plan for own in ("fp32", "bf16")]
    of_job = [
        estimate(load({**DENSE, "settings": {"gradient_dtype": own}}), WHOLE, searched=False).plan
        for own in ("fp32", "bf16")
    ]

    assert [figures(one) for one in of_line] == [figures(one) for one in of_job]
    assert line_of(of_line[1]).endswith("gradient_dtype=bf16")
    with pytest.raises(
        SpecError, match=r"strategy.gradient_dtype: is 'fp16', but settings.gradient_dtype of the job is fp32 or bf16"
    ):
        estimate(load(job), f"{WHOLE} gradient_dtype=fp16", searched=False)


# --- completed -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_verbs_complete_a_part_of_a_strategy_alike():
    """By the plan that has it, which ``plan`` recommends with it pinned."""
    pinned = plan(load({**EXPERTS, "search": {"pin": "EP4 tp=2"}}), certified=False).plans[0]
    costed, asked, compared = (verb(load(EXPERTS), "TP2 EP4") for verb in (estimate, explain, compare))

    assert figures(costed.plan) == figures(asked.given) == figures(compared.given.plan) == figures(pinned)
    assert (costed.completed_by, "TP2" in costed.completed) == (CompletedBy.SEARCH, False)
    assert "dispatcher=" in costed.completed


@pytest.mark.slow
def test_a_completion_gives_up_free_memory_before_evidence():
    """NVIDIA's degrees for 70B leave 6 % of the memory free; the rest stays among what runs have shown."""
    training = {"global_batch_size": 1024, "sequence_length": 8192, "tokens": 1e12}
    job = load({"model": "llama3-70b", "cluster": {"device": "h100", "num_devices": 512}, "training": training})

    found = estimate(job, "TP4 PP4 VPP5 CP1 MBS1 recompute=none")

    assert found.completed_by is CompletedBy.BOLD
    assert found.plan.unproven == ()


def test_what_no_search_finds_is_completed_by_recipes():
    """Full weights and states of 8 billion parameters on each GPU need 18 bytes each, 144 GB: that is said."""
    found = estimate(load(DENSE), "TP1 PP1 CP1 ZeRO0 offload=none")

    assert found.completed_by is CompletedBy.NO_PLAN
    assert "Model states, activations and headroom fit in the memory of every GPU." in found.broken_rules


def test_offloaded_stages_are_read_back():
    """Words without a value are those of Megatron-LM's options."""
    line = f"{WHOLE.replace('DP8', 'PP2 sp DP4')} layout=16x2/activation_offload:true,false"
    chosen = estimate(load(DENSE), line, searched=False).plan

    assert chosen.strategy.layout.activation_offload == (True, False)
    assert chosen.strategy.sequence_parallel
    assert line_of(chosen).endswith(" layout=16x2/activation_offload:true,false")


def test_a_whole_line_is_not_searched(monkeypatch):
    """The rest is as the recipes have it, whatever the strategy and the pins of the job say."""
    monkeypatch.setattr("planner.search.complete.fastest_of", None)

    assert estimate(load(DENSE), WHOLE).completed_by is CompletedBy.GIVEN
    job = {**DENSE, "strategy": {"pp": 4, "recompute": "full"}, "search": {"pin": {"cp": 2}}}

    assert figures(estimate(load(job), WHOLE).plan) == figures(estimate(load(DENSE), WHOLE).plan)


# --- the command line ------------------------------------------------------------------------------------------

JOB = ["llama3-8b", "16xh100", "--batch", "128", "--sequence", "8k", "--tokens", "1T", "-q"]


@pytest.mark.slow
def test_a_plan_takes_decisions(capsys):
    """In either spelling, one by one or in quotation marks."""
    found = []
    for words in (["TP2", "mbs=1"], ["tp=2", "MBS1"], ["TP2 MBS1"]):
        assert cli.main(["plan", *JOB, *words, "--format", "json", "top=1"]) == 0
        found.append(json.loads(capsys.readouterr().out)["plans"][0]["line"])

    assert found[0].startswith("TP2 ")
    assert "MBS1" in found[0]
    assert len(set(found)) == 1


@pytest.mark.parametrize("command", ["estimate", "explain"])
def test_a_report_begins_with_the_line(capsys, command):
    """On one line however long it is."""
    assert cli.main([command, *JOB, *WHOLE.split()]) == 0

    assert capsys.readouterr().out.splitlines()[2].split(None, 1) == ["line", WHOLE]


@pytest.mark.parametrize(("words", "message"), read_table("line")["a_wrong_line_is_wrong_input"])
@pytest.mark.parametrize("command", ["plan", "estimate", "explain"])
def test_a_wrong_line_is_wrong_input(capsys, command, words, message):
    """Exit code 2, with place, value and what is allowed."""
    assert cli.main([command, *JOB, *words.split()]) == 2

    assert message in capsys.readouterr().err


def test_a_decision_pinned_beside_its_word_is_wrong_input(capsys):
    """Exit code 2: one of both would be ignored."""
    assert cli.main(["plan", *JOB, "TP4", "search.pin.tp=2"]) == 2

    assert "search.pin.tp: is given twice, by TP4 and search.pin.tp=2; keep one." in capsys.readouterr().err


def test_a_wrong_line_of_a_job_file_has_its_place(tmp_path, capsys):
    """Line and column of the entry."""
    job = {**EXPERTS, "model": "llama3-8b"}
    text = "\n".join(f"{name}: {json.dumps(own)}" for name, own in job.items())
    (tmp_path / "job.yaml").write_text(f"{text}\nstrategy: TP2 EP4\n")

    assert cli.main(["estimate", str(tmp_path / "job.yaml"), "-q"]) == 2

    assert "strategy.ep: is 4, but llama3-8b has no experts." in capsys.readouterr().err
