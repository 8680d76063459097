"""Exports of plans: what each target says of each decision, what it refuses, and the command that writes them."""

from __future__ import annotations

import ast
import json
import shlex
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import planner
from benchmarks.round_trips.ways import MAIN_FILES
from constraints.rule import FieldValues
from constraints.rules import targets
from constraints.rules.exports import EXPORTS, Target
from costmodel.errors import SpecError
from costmodel.strategy import Sharding
from planner import cli, export, load, render
from planner.frameworks import LAUNCHERS, TARGETS, accelerate, deepspeed, torchtitan
from planner.frameworks.accelerate import to_accelerate
from planner.frameworks.deepspeed import to_deepspeed
from planner.frameworks.imports.job import import_job
from planner.frameworks.launch import WRITERS, write_files
from planner.frameworks.target import FIELDS, Program, write_entries
from planner.frameworks.torchtitan import to_torchtitan
from planner.results import Plan
from planner.verbs.plan import FORMAT_VERSION
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.cases import in_one_case, read_table
from tests.documents import page
from tests.planner.test_job import JOBS

CASES = read_table("export")

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": {"name": "any"}},
    "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e11},
}
"""A framework of no recipes, which has every feature: gradients in FP32, weights as the recipe of BF16 has them."""

TORCHTITAN = {**JOB, "settings": {"weight_dtype": "fp32"}}
ACCELERATE = {**JOB, "settings": {"weight_dtype": "fp32", "gradient_dtype": "bf16"}}
"""What FSDP2 does of itself, and with Accelerate's policy."""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
FLAT = {"dp": 16, "mbs": 2, "sharding": "weights", "dp_overlap": True}
"""Two micro-batches of two sequences on each of 16 GPUs, weights sharded."""

PIPELINE = {"pp": 2, "dp": 8, "vpp": 2, "mbs": 2, "pp_overlap": True, "sharding": "optimizer"}
"""Four micro-batches through two ranks with two chunks each."""


def a_plan(given: dict | None = None, **job) -> Plan:
    """What ``estimate`` makes of some decisions for 16 GPUs."""
    return estimate(load({**JOB, **job}), given or FLAT).plan


def for_torchtitan(given: dict | None = None, **job) -> Plan:
    """The same with weights that torchtitan can hold."""
    return a_plan(given, **{**TORCHTITAN, **job})


def for_accelerate(given: dict | None = None, **job) -> Plan:
    """The same with weights and gradients as Accelerate has them."""
    return a_plan(given, **{**ACCELERATE, **job})


def deepspeed_of(given: dict, **job) -> dict:
    """The JSON of some decisions."""
    (text,) = to_deepspeed(a_plan(given, **job)).files.values()
    return json.loads(text)


def accelerate_of(given: dict) -> dict:
    """The YAML of some decisions."""
    (text,) = to_accelerate(for_accelerate(given)).files.values()
    return yaml.safe_load(text)


def recipe_of(plan: Plan) -> str:
    """The recipe of a plan."""
    (text,) = to_torchtitan(plan).files.values()
    return text


def refused(make, plan: Plan) -> list[str]:
    """Decisions that a target refuses, in the order of its message."""
    with pytest.raises(SpecError) as error:
        make(plan)
    return [line[4:].split(" ")[0] for line in str(error.value).splitlines() if line.startswith("  - ")]


# --- every target ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [FLAT, PIPELINE, {"tp": 2}], ids=["flat", "pipeline", "tensors"])
def test_every_target_has_an_answer_for_every_decision(given):
    """A field that is neither mapped nor refused by name is an assertion of ``write_entries``, never a silence."""
    plan = a_plan(given)
    for target in TARGETS:
        with suppress(SpecError):
            assert export(plan, target).target.lower() == target


WAYS = CASES["ways"]
"""Decisions that no other field implies: each option of a table is written with two of its values."""

TABLES = {"torchtitan": torchtitan.TABLE, "deepspeed": deepspeed.TABLE, "accelerate": accelerate.TABLE}
ONE_VALUE = {"ep", "cuda_graphs", "optimizer_offload"}
"""Fields that dense models do not have, or the release of torchtitan, or Accelerate, which writes that it is off."""


@pytest.mark.slow
@pytest.mark.parametrize("target", WAYS)
def test_tables_are_read_as_they_are_written(target, tmp_path):
    """Files of a target are read back as the strategy: every decision, and stages of their own."""
    written = []
    for number, given in enumerate(WAYS[target]):
        plan = estimate(load({**JOB, "cluster": {**DEVICES}, "search": {"target": target}}), given).plan
        said = {
            "model": JOB["model"],
            "strategy.mbs": plan.strategy.mbs,
            "cluster.framework": plan.cluster.framework.name,
        }
        said |= {f"cluster.{name}": value for name, value in DEVICES.items()}
        said |= {f"training.{name}": value for name, value in JOB["training"].items()}
        folder = tmp_path / str(number)
        write_files(folder, export(plan, target).files, force=False)

        found = import_job(folder / MAIN_FILES[target], [f"{name}={value}" for name, value in said.items()])

        assert estimate(load(found.document), {}).plan.strategy == plan.strategy, given
        written.append(plan.strategy)
    fields = {name for name in TABLES.get(target, {}) if "." not in name}
    assert {name for name in fields if len({getattr(one, name) for one in written}) == 1} <= ONE_VALUE


DEVICES = {"device": "h100-80gb-sxm", "num_devices": 16}


def test_a_forgotten_decision_is_noticed(monkeypatch):
    """A field that is added to Strategy or to Settings turns every target red."""
    monkeypatch.setitem(EXPORTS, "test", Target(name="Test", fields={}, precisions=("bf16",), other_precision=""))
    for forgotten in ("tp", "settings.gradient_dtype"):
        table = {name: {} for name in FIELDS if name != forgotten}

        with pytest.raises(AssertionError, match=forgotten):
            write_entries(a_plan({"cp": 2}), "test", table)


def test_all_refusals_are_named_with_value_and_reason(monkeypatch):
    """One message has them all, so that one change of the job is enough."""
    refused = {
        "dp": (FieldValues((1,), "Too many."),),
        "sharding": (FieldValues((Sharding.NONE,), "Whole."), targets.norms_are_whole),
        "settings.optimizer": (FieldValues(("sgd",), "Another."),),
    }
    monkeypatch.setitem(EXPORTS, "test", Target(name="Test", fields=refused, precisions=("bf16",), other_precision=""))

    with pytest.raises(SpecError) as error:
        write_entries(a_plan(), "test", {name: {} for name in FIELDS})

    lines = str(error.value).splitlines()
    assert lines[0] == "strategy: Test cannot express this plan:"
    assert {*lines[1:4]} == {
        "  - dp = 16: Too many.",
        "  - sharding = weights: Whole.",
        "  - settings.optimizer = adam: Another.",
    }


def test_an_unknown_target_is_told_the_known_ones():
    """With the nearest one first."""
    with pytest.raises(SpecError) as error:
        export(a_plan(), "torchtitn")

    assert str(error.value).startswith("target: 'torchtitn' is unknown. Did you mean 'torchtitan'? Known: accelerate, ")


# --- torchtitan --------------------------------------------------------------------------------------------


def test_torchtitan_accumulates_without_a_pipeline():
    """2 sequences per GPU of 16 GPUs: 32 of 64 sequences at a time."""
    text = recipe_of(for_torchtitan())

    assert "local_batch_size=2," in text
    assert "global_batch_size=64," in text
    assert 'fsdp_reshard_after_forward="always",' in text
    assert "disable_cuda_graphs=True," in text
    assert "disable_cuda_graphs=False," in recipe_of(for_torchtitan({**FLAT, "cuda_graphs": "full_iteration"}))


def test_torchtitan_hands_the_whole_batch_to_a_pipeline():
    """8 replicas have 8 sequences each, in micro-batches of 2; CUDA graphs exclude pipelines."""
    text = recipe_of(for_torchtitan(PIPELINE))

    assert "local_batch_size=8," in text
    assert "pipeline_parallel_microbatch_size=2," in text
    assert 'pipeline_parallel_schedule="Interleaved1F1B",' in text
    assert "disable_cuda_graphs=True," in text


def test_torchtitan_gets_uneven_stages_by_the_names_of_modules():
    """32 layers as 7, 9, 9, 7; the recipe makes the names, here executed alone."""
    job = {"strategy": {**PIPELINE, "layout": {"layers": [7, 9, 9, 7]}}}
    text = recipe_of(estimate(load({**TORCHTITAN, **job}), {}).plan)
    tree = ast.parse(text)
    parts = [node for node in tree.body if getattr(node, "name", "") == "stages" or isinstance(node, ast.Assign)]
    names: dict = {}
    exec("from itertools import accumulate\n" + "\n".join(map(ast.unparse, parts)), names)

    stages = names["stages"]()

    assert stages[0] == ["tok_embeddings", *(f"layers.{i}" for i in range(7))]
    assert stages[1] == [f"layers.{i}" for i in range(7, 16)]
    assert stages[3] == [*(f"layers.{i}" for i in range(25, 32)), "norm", "lm_head"]


def test_torchtitan_saves_beside_the_training_where_the_plan_does():
    """A checkpoint that is on storage later than training goes on; else training waits for it."""
    beside = recipe_of(for_torchtitan(reliability={"asynchronous_checkpoints": True}))
    waiting = recipe_of(for_torchtitan(reliability={"checkpoint_seconds": 10}))

    assert 'async_mode="async_with_pinned_mem",' in beside
    assert "keep_latest_k=3," in beside
    assert "keep_latest_k=7," in recipe_of(for_torchtitan(reliability={"keep_checkpoints": 7}))
    assert "async_mode" not in waiting


def test_torchtitan_knows_its_own_models():
    """Llama-3-8B is a flavor; with another width it is nobody's, and the recipe to start from is the user's."""
    other = {**json.loads(json.dumps(CONFIG)), "intermediate_size": 14080}

    assert 'model_registry("8B")' in recipe_of(for_torchtitan())
    assert "from your_recipes import your_model as base" in recipe_of(for_torchtitan(model=other))
    assert any(note.startswith("TODO: let 'base'") for note in to_torchtitan(for_torchtitan(model=other)).notes)


@pytest.mark.parametrize(("changes", "names"), CASES["torchtitan"])
def test_torchtitan_refuses_by_name(changes, names):
    """What it does otherwise or not at all."""
    given = changes if "pp" in changes else {**FLAT, **changes}

    assert refused(to_torchtitan, for_torchtitan(given)) == names


def test_torchtitan_refuses_tied_embeddings_in_a_pipeline():
    """They would be on two ranks."""
    tied = {**CONFIG, "intermediate_size": 14336, "tie_word_embeddings": True}

    assert refused(to_torchtitan, for_torchtitan(PIPELINE, model=tied)) == ["pp"]


def test_torchtitan_refuses_stages_that_recompute_differently():
    """One policy is passed to all stages."""
    layout = {"layers": [7, 9, 9, 7], "recompute": ["full", "none"]}
    plan = estimate(load({**TORCHTITAN, "strategy": {**PIPELINE, "layout": layout}}), {}).plan

    assert refused(to_torchtitan, plan) == ["layout"]


def test_no_target_writes_another_precision():
    """FP8 is a plan of another speed; the exports that cannot write it say so."""
    training = {**JOB["training"], "precision": "fp8"}
    plans = {to_torchtitan: for_torchtitan, to_deepspeed: a_plan, to_accelerate: for_accelerate}

    for make, plan_of in plans.items():
        with pytest.raises(SpecError, match=r"training\.precision: .*fp8"):
            make(plan_of(training=training))


# --- DeepSpeed ---------------------------------------------------------------------------------------------


def test_deepspeed_has_stage_batches_and_overlap():
    """64 sequences = 2 per GPU, twice, on 16 GPUs."""
    assert deepspeed_of(FLAT) == {
        "TODO": "build the model in the training script: rms_norm_eps = 1e-05, initializer_range = 0.02, "
        "attention_dropout = 0, hidden_dropout = 0, rope_theta = 500000.",
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3, "overlap_comm": True},
    }


def test_deepspeed_offloads_splits_and_recomputes():
    """Tensor parallelism over 2 leaves 8 replicas: 4 micro-batches of 2."""
    given = {"tp": 2, "dp": 8, "mbs": 2, "sequence_parallel": False, "tp_overlap": True, "recompute": "full"}
    found = deepspeed_of({**given, "sharding": "optimizer", "optimizer_offload": True, "dp_overlap": True})

    assert found["tensor_parallel"] == {"autotp_size": 2, "tp_overlap_comm": True}
    assert found["gradient_accumulation_steps"] == 4
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert found["activation_checkpointing"]["number_checkpoints"] == 32


def test_deepspeed_spreads_experts():
    """AutoEP of 8 over 16 GPUs of Mixtral."""
    given = {**FLAT, "ep": 8, "sharding": "gradients"}

    assert deepspeed_of(given, model="mixtral-8x7b")["expert_parallel"] == {"enabled": True, "autoep_size": 8}


@pytest.mark.parametrize(("changes", "names"), CASES["deepspeed"])
def test_deepspeed_refuses_by_name(changes, names):
    """What its JSON has no key for, and what it does otherwise."""
    assert refused(to_deepspeed, a_plan(changes)) == names


# --- Accelerate --------------------------------------------------------------------------------------------


def test_accelerate_has_fsdp_and_degrees():
    """16 ranks shard weights; two micro-batches are accumulated through the environment."""
    found = accelerate_of(FLAT)

    assert found["fsdp_config"]["fsdp_version"] == 2
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert found["parallelism_config"]["parallelism_config_dp_shard_size"] == 16
    assert (found["num_machines"], found["num_processes"]) == (2, 16)
    assert to_accelerate(for_accelerate()).environment == {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}


def test_accelerate_rings_or_gathers():
    """Sends behind attention are a ring, others come before it."""
    ring = accelerate_of({**FLAT, "cp": 2, "dp": 8, "cp_overlap": True})
    gather = accelerate_of({**FLAT, "cp": 2, "dp": 8, "cp_overlap": False})

    ways = [one["parallelism_config"]["parallelism_config_cp_comm_strategy"] for one in (ring, gather)]
    assert ways == ["alltoall", "allgather"]


@pytest.mark.parametrize(("changes", "names"), CASES["accelerate"])
def test_accelerate_refuses_by_name(changes, names):
    """What FSDP2 does otherwise or not at all."""
    assert refused(to_accelerate, for_accelerate(changes)) == names


def test_accelerate_refuses_experts_on_tensor_parallel_ranks():
    """And experts that are spread."""
    given = {**FLAT, "tp": 2, "dp": 8, "sequence_parallel": False}

    assert refused(to_accelerate, for_accelerate(given, model="mixtral-8x7b")) == ["etp"]
    assert refused(to_accelerate, for_accelerate({**FLAT, "ep": 2}, model="mixtral-8x7b")) == ["ep"]


# --- from job to file --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_documents_commands_from_plan_to_launch_work(tmp_path, monkeypatch):
    """Each of them, one after the other, in a folder with nothing but the example jobs."""
    block = page("guides/other_frameworks").split("```sh\n")[1].partition("```")[0]
    (tmp_path / "benchmarks").symlink_to(JOBS.parent)
    monkeypatch.chdir(tmp_path)

    commands = [shlex.split(line)[1:] for line in block.splitlines() if line]

    assert [cli.main(command) for command in commands] == [0] * len(commands)
    assert {"job.sbatch", "megatron-args.txt"} <= {path.name for path in (tmp_path / "job").iterdir()}


# --- the command -------------------------------------------------------------------------------------------


@cache
def rendered() -> str:
    """Write a report with one strategy that DeepSpeed can express, once for all tests."""
    return render(estimate(load(JOB), {**FLAT, "sharding": "gradients"}), "json")


@pytest.fixture
def report(tmp_path):
    """Its file."""
    path = tmp_path / "plan.json"
    path.write_text(rendered(), encoding="utf-8")
    return path


@in_one_case("target", TARGETS)
def test_a_target_is_one_line_and_its_file(target):
    """``TARGETS`` names the file; what it lacks, and the public name of its function, is missed here."""
    module, function = import_module(TARGETS[target]), f"to_{target.replace('-', '_')}"

    assert isinstance(module.PROGRAM, Program)
    assert getattr(planner, function) is getattr(module, function)
    assert function in planner.__all__


def test_every_launcher_is_written():
    """The names, which the help shows without an import, and what writes the files."""
    assert WRITERS.keys() == LAUNCHERS.keys()


def test_the_main_file_goes_to_stdout(report, capsys):
    """And nothing else: notes are on stderr."""
    assert cli.main(["export", str(report), "--target", "deepspeed"]) == 0

    out, err = capsys.readouterr()
    assert json.loads(out)["zero_optimization"]["stage"] == 2
    assert "planner: Keys of DeepSpeed 0.19.8 for 16 processes" in err


def test_all_files_go_to_a_folder(report, tmp_path, capsys):
    """A new one, with the launch file; stdout names them."""
    folder = tmp_path / "new" / "job"

    code = cli.main(["export", str(report), "--target", "deepspeed", "--launch", "slurm", "-o", str(folder)])

    assert code == 0
    assert {path.name for path in folder.iterdir()} == {"deepspeed.json", "job.sbatch"}
    assert capsys.readouterr().out.splitlines() == [str(folder / "deepspeed.json"), str(folder / "job.sbatch")]


def test_nothing_is_overwritten_unasked(report, tmp_path, capsys):
    """Not even the other files are written; with --force all are."""
    command = ["export", str(report), "--target", "deepspeed", "--launch", "torchrun", "-o", str(tmp_path)]
    (tmp_path / "launch.sh").write_text("mine")

    assert cli.main(command) == 2
    assert (tmp_path / "launch.sh").read_text() == "mine"
    assert not (tmp_path / "deepspeed.json").exists()
    assert "launch.sh: exists already; nothing was written. Name another folder, or add --force." in (
        capsys.readouterr().err
    )

    (tmp_path / "deepspeed.json").mkdir()
    assert cli.main([*command, "--force"]) == 2
    assert "deepspeed.json: is a directory, expected a file to write to." in capsys.readouterr().err
    (tmp_path / "deepspeed.json").rmdir()

    assert cli.main([*command, "--force"]) == 0
    assert (tmp_path / "launch.sh").read_text().startswith("#!/usr/bin/env bash")
    assert (tmp_path / "deepspeed.json").exists()


def test_a_full_disk_leaves_nothing_behind(report, tmp_path, capsys, monkeypatch):
    """Files come to their places when all are complete."""
    write = Path.write_text

    def fill(path, text, **options):
        if path.name == "launch.sh":
            raise OSError(28, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", fill)
    folder = tmp_path / "job"

    code = cli.main(["export", str(report), "--target", "deepspeed", "--launch", "torchrun", "-o", str(folder)])

    assert code == 2
    assert list(folder.iterdir()) == []
    assert "cannot be written: No space left on device." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--target", "deepsped"], "--target: 'deepsped' is unknown. Did you mean 'deepspeed'?"),
        (["--target", "deepspeed", "--launch", "slrum"], "--launch: 'slrum' is unknown. Did you mean 'slurm'?"),
        (
            ["--target", "deepspeed", "--framework-version", "0.4"],
            "--framework-version: '0.4' is no version of DeepSpeed",
        ),
        (["--target", "deepspeed", "--number", "2"], "has plans 1 to 1, not 2."),
        (["--target", "deepspeed", "--number", "first"], "--number: expected a whole number from 1, got 'first'."),
        (["--target", "deepspeed", "-o", "{report}"], "is a file, expected a folder to write to."),
    ],
)
def test_wrong_words_are_told(report, words, complaint, capsys):
    """A message, exit code 2, nothing on stdout."""
    assert cli.main(["export", str(report), *(word.format(report=report) for word in words)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err


def test_a_report_of_another_version_is_refused(report, capsys):
    """It may mean something else by the same names."""
    report.write_text(json.dumps(json.loads(report.read_text()) | {"format_version": FORMAT_VERSION + 1}))

    assert cli.main(["export", str(report), "--target", "deepspeed"]) == 2
    assert f"has format version {FORMAT_VERSION + 1}; this planner reads {FORMAT_VERSION}." in capsys.readouterr().err


def test_a_step_that_is_predicted_differently_now_is_told(report, capsys):
    """Half the time in the report: the same plan takes twice as long now."""
    document = json.loads(report.read_text())
    report.write_text(json.dumps(document | {"step_time_seconds": document["step_time_seconds"] / 2}))

    assert cli.main(["export", str(report), "--target", "deepspeed"]) == 0
    assert "planner: this version predicts another step than the report has: +100.0%." in capsys.readouterr().err


def test_refusals_reach_the_user(tmp_path, capsys):
    """Every refused decision by name, exit code 2."""
    path = tmp_path / "plan.json"
    path.write_text(render(estimate(load(JOB), PIPELINE), "json"), encoding="utf-8")

    assert cli.main(["export", str(path), "--target", "deepspeed"]) == 2
    err = capsys.readouterr().err
    assert "planner: strategy: DeepSpeed cannot express this plan:" in err
    assert "  - pp = 2: A pipeline is a PipelineModule" in err
