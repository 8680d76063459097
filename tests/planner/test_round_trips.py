"""A plan that is given back as it was printed is the same plan: its layers per stage are in each form of it."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from benchmarks.round_trips.ways import WAYS, Printed, difference, printed
from costmodel.errors import SpecError
from planner import cli
from planner.frameworks.imports.job import import_job
from planner.jobs.line import read_decisions
from planner.jobs.problem import load, split_overrides
from planner.report import FORMATS, render
from planner.verbs.explain import explain
from planner.verbs.plan import estimate, plan
from tests.builders_job import a_document

ISSUE = a_document("llama3-8b", "48xl40s", batch=192, sequence=8192, search={"stages": "even", "pin": {"pp": 6}})
"""32 layers on 6 stages, which Megatron-Bridge fills with 6, 6, 6, 6, 6 and 2."""


def a_job(search=None, settings=None, strategy=None, framework=None, top=1, **entries):
    """The job above with some entries changed."""
    job = {**ISSUE, "top": top, **entries}
    job["cluster"] = job["cluster"] | ({"framework": framework} if framework else {})
    job["search"] = {"stages": "even", "time_limit_seconds": 20, **(search or {"pin": {"pp": 6}})}
    return job | ({"settings": settings} if settings else {}) | ({"strategy": strategy} if strategy else {})


SMALL = {"base": "deepseek-v3", "num_layers": 13}
"""Three dense layers, ten with experts, and one of multi-token prediction."""

JOBS = {
    "filled stages": a_job(),
    "several chunks": a_job(search={"pin": {"pp": 6, "vpp": 2}, "preferences": False}),
    "fewer layers beside the head": a_job(search={"pin": {"pp": 6, "vocabulary": "redistributed"}}),
    "dense layers in front, and MTP": a_job(
        model=SMALL, search={"pin": {"pp": 4, "tp": 1, "cp": 1}, "stages": "layers", "evidence": "any"}
    ),
    "ranks that recompute": a_job(search={"pin": {"pp": 4, "tp": 1, "cp": 1, "vpp": 1}, "stages": "free"}),
    "modules of GPT-NeoX": a_job(
        framework="gpt-neox-2.0", cluster={"device": "a100-80gb-sxm", "num_devices": 16}, search={"pin": {"pp": 4}}
    ),
    "several settings": a_job(settings={"moments_dtype": ["fp32", "bf16"], "gradient_dtype": ["fp32", "bf16"]}),
    "a strategy of the job": a_job(
        strategy={"tp": 2, "recompute": "full", "cuda_graphs": "attn", "layout": 32}, search={"pin": {"pp": 6, "cp": 1}}
    ),
    "megatron-bridge": a_job(search={"pin": {"pp": 6, "vpp": 2}, "target": "megatron-bridge", "preferences": False}),
    "torchtitan": a_job(search={"pin": {"pp": 6}, "target": "torchtitan"}),
    "idle nodes": a_job(search={"pin": {"pp": 5}}, cluster={"device": "l40s", "num_devices": 48}),
}
"""A job of each kind."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", JOBS)
def test_a_plan_that_is_given_back_costs_the_same(kind, tmp_path):
    """As words, strategy, report, candidate and an export imported again: step and peak to the last digit."""
    found = list(printed(JOBS[kind], tmp_path))

    assert found
    ways = [way for way in WAYS if way != "explain"]
    assert [text for one in found for way in ways if (text := difference(way, one))] == []


@pytest.mark.slow
def test_even_stages_are_reported_with_their_layers():
    """32 layers, embedding and head are 34 slots: 6, 6, 6, 6, 5, 5 without one at each end. Every format says so."""
    report = plan(load(a_job()))

    for form in FORMATS:
        text = " ".join(render(report, form).split())
        assert "[5, 6, 6, 6, 5, 4]" in text or "[ 5, 6, 6, 6, 5, 4 ]" in text or "layout=5+6x3+5+4" in text, form


@pytest.mark.slow
def test_the_printed_line_is_the_plan(capsys, tmp_path, monkeypatch):
    """The line of the short answer, pasted behind ``planner estimate``; JSON of both has one step and one peak."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(json.dumps(a_job()))

    def told(*words):
        assert cli.main([*words, "-q", "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert cli.main(["plan", "job.yaml", "-q"]) == 0
    text = capsys.readouterr().out
    begin = text.index("\nline ") + len("\nline ")
    words = shlex.split(text[begin : text.index("\nstep ")])
    best, back = told("plan", "job.yaml")["plans"][0], told("estimate", "job.yaml", *words)

    assert "layout=5+6x3+5+4" in words
    for name in ("step_time_seconds", "peak_memory_bytes"):
        assert back[name] == best[name]


@pytest.mark.slow
def test_an_explanation_of_a_printed_plan_is_about_that_plan():
    """``planner explain`` with stages asks about one strategy, whatever else the search would choose."""
    problem = load(a_job())
    best = plan(problem).plans[0]
    _, words = split_overrides(["pp=6", "tp=1", f"cp={best.strategy.cp}", "layout=6+6+5+5+5+5"])

    found = explain(problem, read_decisions(words))

    assert found.question is None
    assert found.given.strategy.layout.layers == (6, 6, 5, 5, 5, 5)
    assert json.loads(render(found, "json"))["asked"]["layout"] == "6x2+5x4"


# --- what is said of stages ----------------------------------------------------------------------------------


def test_layers_that_nobody_gives_are_the_frameworks():
    """Megatron-Bridge's recipes fill stage after stage; ``layout: null``, as in older reports, says even ones."""
    problem = load(a_job())

    assert estimate(problem, {"pp": 6}, searched=False).plan.strategy.layout.layers == (6, 6, 6, 6, 6, 2)
    assert estimate(problem, {"pp": 6, "layout": None}, searched=False).plan.strategy.layout is None


def test_a_layout_has_one_spelling():
    """Even stages that are written out are no layout: they have one price, whoever gives them."""
    problem = load(a_job())
    written = {"layers": [5, 6, 6, 6, 5, 4], "recompute": ["none"] * 6, "full_layers": [0] * 6}

    plain, other = (estimate(problem, {"pp": 6, "layout": one}, searched=False).plan for one in (None, written))

    assert other.strategy == plain.strategy
    assert other.step_seconds == plain.step_seconds


def test_another_pipeline_drops_the_layout_of_the_job():
    """It is one of 6 stages; of words that keep them the job's own stays."""
    problem = load(a_job(strategy={"pp": 6, "layout": "6x4+5+3"}))

    assert estimate(problem, {"mbs": 2}, searched=False).plan.strategy.layout.layers == (6, 6, 6, 6, 5, 3)
    assert estimate(problem, {"pp": 4}, searched=False).plan.strategy.layout is None


def test_a_layout_that_is_given_is_none_that_a_target_changes():
    """No option recomputes unlike numbers of layers on each rank: that is refused, not dealt anew."""
    job = a_job(search={"target": "megatron-lm"})
    given = {"pp": 6, "layout": {"layers": [6, 6, 6, 6, 5, 3], "full_layers": [0, 1, 2, 3, 0, 0]}}

    with pytest.raises(SpecError, match="cannot run this strategy"):
        estimate(load(job), given)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("5+6y3", "strategy.layout: expected layers such as 3+4x2+3, got '5+6y3'."),
        ("5+6x9999", "strategy.layout: has no stage or more than 4096: '5+6x9999'."),
        ("5+6x3+5", "strategy.layout.layers: has 5 virtual stages, pp * vpp = 6."),
        ("5+6x3+5+5", "strategy.layout.layers: holds 33 layers, llama3-8b has 32."),
        ({"layers": "5+6x3+5+4", "full_layers": "1x5"}, "strategy.layout.full_layers: has 5 values"),
        ({"layers": [5, 6, 6, 6, 5, 4], "full_layers": [0, 9, 0, 0, 0, 0]}, "full_layers.1: is 9, more than the 6"),
        (
            True,
            "strategy.layout: expected a mapping such as {layers: [3, 4, 4, 3]} or layers such as 3+4x2+3, got true.",
        ),
    ],
)
def test_a_wrong_layout_is_refused(layout, message):
    """With its place, its value and what is allowed."""
    with pytest.raises(SpecError, match=re.escape(message)):
        estimate(load(a_job()), {"pp": 6, "layout": layout}, searched=False)


# --- imports that lost something of a strategy ---------------------------------------------------------------

DEVICES = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=48"]
BRIDGE = """
train.micro_batch_size=1
train.global_batch_size=96
model.seq_length=4096
model.tensor_model_parallel_size=1
model.pipeline_model_parallel_size=6
model.context_parallel_size=1
model.recompute_granularity=null
"""


def strategy_of(tmp_path, name, text, *entries):
    """The job that an import of a file gives."""
    (tmp_path / name).write_text(text)
    return import_job(tmp_path / name, [*DEVICES, *entries]).document


def test_vpp_may_stand_beside_a_layout_of_bridge(tmp_path):
    """Our exports say both; VPP of another number of stages is refused."""
    layout = "model.pipeline_model_parallel_layout='Et*2|(t*3|)*10L'\n"
    vpp = "model.virtual_pipeline_model_parallel_size"

    found = strategy_of(tmp_path, "bridge.txt", f"{BRIDGE}{layout}{vpp}=2\n", "model=llama3-8b")["strategy"]

    assert (found["vpp"], found["layout"]["layers"]) == (2, [2, *[3] * 10, 0])
    with pytest.raises(SpecError, match=f"{vpp}: is 3, the stages of model.pipeline_model_parallel_layout are 2"):
        strategy_of(tmp_path, "wrong.txt", f"{BRIDGE}{layout}{vpp}=3\n", "model=llama3-8b")


def test_bridge_decides_overlaps_that_nobody_says(tmp_path):
    """``overlap_p2p_comm: null`` overlaps where chunks interleave (comm_overlap.py:453); ``false`` does not."""
    text = f"{BRIDGE}model.num_layers=24\nmodel.virtual_pipeline_model_parallel_size=2\ncomm_overlap.overlap_p2p_comm="

    open_, off = (strategy_of(tmp_path, "bridge.txt", f"{text}{one}\n", "model=llama3-8b") for one in ("null", "false"))

    assert open_["model"] == {"base": "llama3-8b", "num_layers": 24}
    assert (open_["strategy"]["pp_overlap"], off["strategy"]["pp_overlap"]) == (True, False)


def test_gradients_of_fp16_are_what_the_precision_says(tmp_path):
    """``fp16_mixed`` reduces in FP16, an object with ``grad_reduce_in_fp32`` in FP32 (mixed_precision.py:42, 199)."""
    start = f"{BRIDGE}model.num_layers=24\n"
    by_object = f"{start}mixed_precision.fp16=true\nmixed_precision.grad_reduce_in_fp32=true\n"

    named = strategy_of(tmp_path, "named.txt", f"{start}mixed_precision=fp16_mixed\n", "model=llama3-8b")
    whole = strategy_of(tmp_path, "whole.txt", by_object, "model=llama3-8b")

    assert (named["settings"]["gradient_dtype"], whole["settings"]["gradient_dtype"]) == ("fp16", "fp32")


def test_stages_of_torchtitan_keep_their_layers(tmp_path):
    """Three cuts of 32 layers."""
    text = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 4096
global_batch_size = 96
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_split_points = ["layers.7", "layers.16", "layers.25"]
"""
    found = strategy_of(tmp_path, "titan.toml", text)["strategy"]

    assert found["layout"]["layers"] == [7, 9, 9, 7]


def test_overlapped_tensor_parallelism_of_deepspeed_is_read(tmp_path):
    """``tp_overlap_comm`` beside AutoTP."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 24,
        "bf16": {"enabled": True},
        "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True},
    }
    entries = ["model=llama3-8b", "training.sequence_length=4096"]

    assert strategy_of(tmp_path, "deepspeed.json", json.dumps(config), *entries)["strategy"]["tp_overlap"] is True


@pytest.mark.parametrize(("way", "overlaps"), [("allgather", False), ("alltoall", True)])
def test_context_parallelism_of_accelerate_is_read(tmp_path, way, overlaps):
    """Gathered keys and values come before attention, a ring sends them while it computes."""
    config = {
        "distributed_type": "FSDP",
        "num_processes": 48,
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_version": 2},
        "parallelism_config": {
            "parallelism_config_cp_size": 2,
            "parallelism_config_dp_shard_size": 24,
            "parallelism_config_cp_comm_strategy": way,
        },
    }
    entries = ["model=llama3-8b", "training.sequence_length=4096", "training.global_batch_size=96", "strategy.mbs=1"]

    strategy = strategy_of(tmp_path, "accelerate.yaml", json.dumps(config), *entries)["strategy"]

    assert (strategy["cp"], strategy["cp_overlap"]) == (2, overlaps)


# --- whole strategies in a list ------------------------------------------------------------------------------


def planned(tmp_path, text, **search):
    """The plan for a job with a list of strategies."""
    (tmp_path / "mine.csv").write_text(text)
    return plan(load(a_job(search={**search, "candidates": str(tmp_path / "mine.csv")})))


def test_a_row_with_a_layout_is_one_strategy(tmp_path):
    """Stages of a list are costed as they are given, where a search would find faster ones."""
    report = planned(tmp_path, "cp,pp,layout\n2,6,6+6+5+5+5+5\n", stages="layers")

    assert report.exit_code == 0
    assert [one.strategy.layout.layers for one in report.plans] == [(6, 6, 5, 5, 5, 5)]
    assert (report.listed.num_rows, report.listed.num_impossible) == (1, 0)


def test_a_row_whose_stages_the_job_excludes_is_counted(tmp_path):
    """``search.stages: even`` holds for the list, too; the row is named with the rule."""
    report = planned(tmp_path, "cp,pp,layout\n2,6,6+6+5+5+5+5\n2,6,5+6x3+5+4\n")

    assert [one.strategy.layout for one in report.plans] == [None]
    (found,) = report.listed.impossible
    assert found.place == "line 2"
    assert found.rules[0].startswith("search.stages: even")


def test_a_layout_of_another_pipeline_is_refused_with_its_line(tmp_path):
    """Before anything is searched."""
    with pytest.raises(
        SpecError, match=r"mine.csv, line 3: strategy.layout.layers: has 6 virtual stages, pp \* vpp = 4"
    ):
        planned(tmp_path, "pp,layout\n6,5+6x3+5+4\n4,5+6x3+5+4\n")


def test_what_is_not_given_back_as_printed_is_told():
    """The benchmark's own check: another plan's figures are a difference."""
    one, other = (estimate(load(a_job()), {"pp": 6, "layout": layout}).plan for layout in (None, "6x4+5+3"))
    given = Printed(job=a_job(), plan=one, number=1, line="pp=6 layout=6x4+5+3", entries={}, row={}, folder=None)

    assert f"{other.step_seconds!r} s" in difference("line", given)
