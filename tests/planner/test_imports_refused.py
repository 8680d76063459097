"""Trainings that are no pretraining of a decoder: refused with what they are, whatever file says it."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job
from tests.cases import in_one_case, read_table

CASES = read_table("imports_refused")

HERE = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=8"]
SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --max-position-embeddings 4096 --vocab-size 32000 --train-iters 10"
)
TORCHRUN = "torchrun --nproc-per-node 8"


def refusal(folder, name, text):
    """Return what is said of a file."""
    (folder / name).write_text(text.replace("@TORCHRUN@", TORCHRUN).replace("@SIZES@", SIZES))
    with pytest.raises(SpecError) as refused:
        import_job(folder / name, HERE)
    return str(refused.value)


@in_one_case("name", CASES["trainings"])
def test_trainings_after_pretraining_say_what_they_are(name, tmp_path):
    """And what would be accepted, before anything of theirs is asked for."""
    text, kind = CASES["trainings"][name]
    said = refusal(tmp_path, name, text)

    assert kind in said
    assert "the planner plans pretraining of decoders of text. Import what starts" in said


@in_one_case("name", CASES["models"])
def test_models_that_are_no_decoders_say_what_they_are(name, tmp_path):
    """Not which of their options has no cost, nor which variable is open."""
    text, kind = CASES["models"][name]

    assert kind in refusal(tmp_path, name, text)


BRIDGE = (
    "peft: null\nmodel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, seq_length: 4096}\n"
    "train: {global_batch_size: 128, micro_batch_size: 1}\n"
)


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("loads.txt", f"--finetune {SIZES}", []),
        ("latent.txt", f"--multi-latent-attention --q-lora-rank 1536 --disable-bias-linear {SIZES}", []),
        ("paths.sh", f"{TORCHRUN} /data/sft/pretrain_gpt.py --data-path /data/dpo --wandb-exp-name grpo {SIZES}", []),
        ("off.yaml", BRIDGE, ["model=llama3-8b"]),
    ],
)
def test_words_that_mean_nothing_of_it_are_left_alone(name, text, entries, tmp_path):
    """What of a checkpoint is loaded, ranks of latent attention, names of files and runs, entries that are off."""
    (tmp_path / name).write_text(text)

    assert import_job(tmp_path / name, [*HERE, *entries]).document["cluster"]["num_devices"] == 8
