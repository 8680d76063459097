"""Jobs from what starts a training; the scripts of ``tests/data/launches`` are made up."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner import estimate, import_job, load
from planner.cli import main
from planner.frameworks.accelerate import to_accelerate
from planner.frameworks.deepspeed import to_deepspeed
from planner.frameworks.imports import arguments, documents
from planner.frameworks.imports.job import read_variables
from planner.frameworks.megatron.bridge import to_megatron_bridge
from planner.frameworks.megatron.options import options
from planner.frameworks.shell.words import unknown
from tests.cases import in_one_case, read_table

CASES = read_table("imports")

ROOT = Path(__file__).parents[2]
LAUNCHES = ROOT / "tests/data/launches"
DEVICE = "cluster.device=h100-80gb-sxm"


def imported(name, entries=(), **variables):
    """A launch on H100 unless the entries say otherwise."""
    device = () if any("cluster.device" in entry for entry in entries) else (DEVICE,)
    return import_job(LAUNCHES / name, [*device, *entries], variables)


@pytest.mark.parametrize("name", CASES["launches"])
def test_a_launch_is_a_job(name):
    """Its degrees, batch, precision and recomputation."""
    entries, variables, model, devices, degrees, recompute, sharding, training = CASES["launches"][name]

    job = imported(name, entries, **variables).document

    strategy = job["strategy"]
    assert job["model"] == model
    assert job["cluster"]["num_devices"] == devices
    assert [strategy[name] for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "mbs")] == degrees
    assert (strategy["recompute"], strategy["sharding"]) == (recompute, sharding)
    assert [job["training"][name] for name in ("global_batch_size", "sequence_length", "precision")] == training
    assert estimate(load(job), {}, searched=False).plan.step_seconds > 0


def test_a_list_of_arguments_in_yaml():
    """Lists in brackets, an entry that is there twice, variables in paths, GPT-2's vocabulary by its files."""
    result = imported("model_args.yaml", ["cluster.num_devices=8"])

    assert result.document["model"]["vocab_size"] == 50257
    assert result.document["strategy"]["recompute"] == "core_attention+mlp"
    assert (result.document["strategy"]["tp"], result.document["strategy"]["dp"]) == (2, 2)
    assert any("50,257 entries" in note for note in result.notes)


def test_what_is_passed_over_is_said():
    """Options without meaning for planning with their reason, unknown ones by name."""
    notes = imported("dense.sh").notes

    assert "Ignored (inference sampling): --temperature." in notes
    assert "Not understood, no options that are known here: --my-own-switch." in notes
    assert any(note.startswith("The script starts 16 processes (8 on each of 2 nodes)") for note in notes)


def test_variables_of_the_command_change_the_script():
    """As if they were in its environment, or written into it; arguments by their number."""
    changed = imported("dense.sh", NNODES="4", DTYPE="fp8", RECOMPUTE="1", TP="4", **{"1": "/data"}).document

    assert changed["training"]["precision"] == "fp8"
    assert (changed["strategy"]["tp"], changed["strategy"]["dp"]) == (4, 4)
    assert changed["strategy"]["recompute"] == "full"
    assert changed["training"]["global_batch_size"] == 256


def test_a_variable_that_the_script_does_not_have_is_named():
    """It may be a typing error; what is left open is asked for anyway."""
    notes = imported("experts.sh", GBS="256", MSB="2").notes

    assert "--set MSB: the script neither reads nor sets such a variable. Did you mean 'MBS'?" in notes


def test_what_comes_before_a_training_is_passed_over(tmp_path):
    """Data are prepared first; of two trainings the first one is read."""
    path = tmp_path / "run.sh"
    options = (LAUNCHES / "model_args.yaml").read_text().split("MODEL_ARGS:\n")[1].split("TEST_TYPE")[0]
    words = " ".join(line.strip().replace(": true", "").replace(": ", " ") for line in options.splitlines())
    words = words.replace('"[', "").replace(']"', "")
    path.write_text(
        f"python preprocess_data.py --input x\ntorchrun pretrain_gpt.py {words}\ntorchrun pretrain_gpt.py {words} --x\n"
    )

    result = import_job(path, [DEVICE, "cluster.num_devices=8"])

    assert result.document["strategy"]["tp"] == 2
    assert "The script starts 2 trainings: the first one is read, 'pretrain_gpt.py'." in result.notes


def test_every_second_layer_in_full_is_a_layout():
    """torchtitan's selective recomputation by a number."""
    assert imported("llama3_8b.toml").document["strategy"]["layout"] == {"layers": [32], "full_layers": [16]}


def test_replicas_of_shards_are_groups():
    """Of 16 ranks in two replicas eight share states."""
    assert imported("llama3_8b.toml").document["settings"]["optimizer_group"] == 8


@pytest.mark.parametrize("device", ["h100-80gb-sxm", "h100"])
def test_hybrid_sharding_is_over_a_node(device):
    """Eight H100 of a node share weights, by whichever name the device is given."""
    entries = ["model=qwen3-8b", "strategy.mbs=2", "training.sequence_length=4096", f"cluster.device={device}"]

    job = imported("fsdp.yaml", entries).document

    assert (job["settings"]["optimizer_group"], job["training"]["global_batch_size"]) == (8, 64)


@pytest.mark.parametrize(("name", "entries", "variables", "message"), CASES["refused"])
def test_what_cannot_be_imported_says_why(name, entries, variables, message):
    """Where, what is missing, what to write."""
    with pytest.raises(SpecError, match=message):
        imported(name, entries, **variables)


@in_one_case(
    ("text", "message"),
    [
        ("--tensor-model-paralel-size 2", "Did you mean '--tensor-model-parallel-size'?"),
        ("--encoder-num-layers 12", "describes an encoder with a decoder"),
        ("--vocab-file vocab.txt", "is given without --merge-file"),
        ("--model-parallel-size 2", "write --tensor-model-parallel-size"),
    ],
)
def test_what_may_decide_is_never_passed_over(text, message):
    """A typing error would change a degree, another model is no GPT."""
    with pytest.raises(SpecError, match=message):
        arguments.megatron_job(f"--num-layers 12 {text}".split(), [DEVICE, "cluster.num_devices=8"], {})


def test_the_last_of_several_counts():
    """As for Megatron-LM's own parser; what is not set and not needed is left out."""
    found = arguments.understand(
        ["--num-layers", "12", "--lr", unknown("LR"), "--num-layers", "24", "--bf16", unknown("EXTRA")]
    )

    assert found.values == {"--num-layers": ["24"], "--bf16": []}
    assert any("--num-layers is given several times: '24', the last one, counts." in note for note in found.notes)


@in_one_case(("name", "content", "message"), CASES["files"])
def test_files_of_another_kind_are_refused(tmp_path, name, content, message):
    """Nobody gets a traceback."""
    path = tmp_path / name
    path.write_text(content)

    with pytest.raises(SpecError, match=message):
        import_job(path, [DEVICE, "cluster.num_devices=8", "training.sequence_length=4096"])


def test_the_command_takes_variables(tmp_path, capsys):
    """``--set`` may come several times; a wrong one is refused."""
    job = tmp_path / "job.yaml"
    command = ["import", str(LAUNCHES / "experts.sh"), DEVICE]

    assert main([*command, "--set", "GBS=512", "--set", "MBS=2", "-o", str(job)]) == 0
    assert "mbs: 2" in job.read_text()
    assert main([*command, "--set", "GBS"]) == 2
    assert "--set: expected NAME=VALUE such as WORLD_SIZE=64, got 'GBS'." in capsys.readouterr().err
    assert read_variables(["A=b=c"]) == {"A": "b=c"}


# --- data --------------------------------------------------------------------------------------------------


def rows(path):
    """Of a table, by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_other_options_are_well_formed():
    """Each has a reason; what it means instead are options that are read."""
    for row in rows(documents.ROOM / "others.csv"):
        assert row["option"].startswith("--"), row
        assert row["meaning"] in ("ignored", "means", "refused"), row
        assert row["values"] in ("0", "1", "+"), row
        assert row["why"], row
        if row["meaning"] == "means":
            assert all(
                options()[name].in_import == "read" for name, _ in arguments.split_options(row["why"].split())
            ), row


def test_programs_that_are_refused_say_why():
    """A sentence that goes on after the name."""
    for row in rows(documents.ROOM / "programs.csv"):
        assert row["kind"] in ("megatron", "bridge", "torchtitan", "deepspeed", "accelerate", "refused"), row
        assert row["why"] or row["kind"] != "refused", row


@pytest.mark.slow
def test_named_models_are_models():
    """Of the catalog, or descriptions that a job takes."""
    for row in rows(documents.ROOM / "models.csv"):
        model = documents.model_named(row["name"])
        training = {"global_batch_size": 8, "sequence_length": 4096, "tokens": 1e9}

        load({"model": model, "cluster": {"device": "h200", "num_devices": 8}, "training": training})


def test_vocabularies_have_sources():
    """And are sizes of vocabularies."""
    assert all(1000 < int(row["entries"]) < 10**6 and row["source"] for row in rows(documents.ROOM / "tokenizers.csv"))


# --- what exports write ------------------------------------------------------------------------------------

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 16},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
}
FLAT = {"tp": 1, "cp": 1, "pp": 1, "dp": 16, "mbs": 2, "sharding": "weights", "recompute": "full", "dp_overlap": True}
DECISIONS = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mbs", "sequence_parallel", "sharding", "recompute")

ROUNDS = {
    "deepspeed zero 3": (to_deepspeed, "deepspeed-0.19", FLAT),
    "deepspeed zero 2": (to_deepspeed, "deepspeed-0.19", {**FLAT, "sharding": "gradients", "recompute": "none"}),
    "deepspeed tensors": (to_deepspeed, "deepspeed-0.19", {**FLAT, "tp": 2, "dp": 8, "sequence_parallel": False}),
    "deepspeed offload": (to_deepspeed, "deepspeed-0.19", {**FLAT, "optimizer_offload": True}),
    "accelerate weights": (to_accelerate, "accelerate-1.15", FLAT),
    "accelerate gradients": (to_accelerate, "accelerate-1.15", {**FLAT, "sharding": "gradients", "recompute": "none"}),
    "accelerate context": (to_accelerate, "accelerate-1.15", {**FLAT, "cp": 2, "dp": 8, "cp_overlap": True}),
    "bridge pipeline": (
        to_megatron_bridge,
        "megatron-bridge-26.04",
        {"tp": 2, "pp": 4, "vpp": 2, "dp": 2, "mbs": 1, "sharding": "optimizer", "recompute": "core_attention+mlp"},
    ),
    "bridge full": (
        to_megatron_bridge,
        "megatron-bridge-26.04",
        {"tp": 4, "cp": 2, "pp": 1, "dp": 2, "mbs": 1, "sharding": "optimizer", "recompute": "full"},
    ),
}
"""Exports, the framework that the job names, and decisions."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ROUNDS)
def test_an_export_comes_back(name, tmp_path):
    """Exported and imported, a strategy is the same, and so is its batch."""
    make, framework, given = ROUNDS[name]
    plan = estimate(load({**JOB, "cluster": {**JOB["cluster"], "framework": framework}}), given, searched=False).plan
    ((file, text),) = make(plan).files.items()
    path = tmp_path / file
    path.write_text(text)
    entries = ["model=llama3-8b", DEVICE, "cluster.num_devices=16", "training.sequence_length=4096", "strategy.mbs=2"]
    said = entries[:4] if make is to_megatron_bridge else entries

    back = import_job(path, [*said, "training.global_batch_size=64"]).document

    strategy = estimate(load(back), {}, searched=False).plan.strategy
    assert {one: getattr(strategy, one) for one in DECISIONS} == {one: getattr(plan.strategy, one) for one in DECISIONS}
    assert back["training"]["precision"] == "bf16"


def test_another_gpt_oss_is_its_configuration():
    """Windows in every second layer and sinks, which descriptions have no words for."""
    words = (
        "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --group-query-attention --num-query-groups 2 --bf16 "
        "--kv-channels 64 --quick-geglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 256 "
        "--softmax-type learnable --window-size 128,0 --window-attn-skip-freq 2 --seq-length 1024 --vocab-size 32000 "
        "--micro-batch-size 1 --max-position-embeddings 1024"
    )

    job = arguments.megatron_job(words.split(), [DEVICE, "cluster.num_devices=8"], {}).document

    assert (job["model"]["model_type"], job["model"]["num_local_experts"]) == ("gpt_oss", 4)
    assert job["model"]["layer_types"] == ["sliding_attention", "full_attention"] * 2
