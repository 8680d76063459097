"""Entries of the command beside an imported file: whole sections, units, and degrees that others follow."""

from __future__ import annotations

import pytest

from planner import import_job, load
from tests.cases import in_one_case

SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --bf16 --micro-batch-size 1 --tensor-model-parallel-size 4 --sequence-parallel "
    "--pipeline-model-parallel-size 2 --global-batch-size 64 --max-position-embeddings 8192 --vocab-size 32000 "
    "--train-iters 10 --seq-length 8192"
)
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
tensor_parallel_degree = 2
"""
ZERO = '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}}'
FILES = {
    "run.sh": (SCRIPT, ["cluster.device=h100"]),
    "titan.toml": (TITAN, ["cluster.device=h100", "cluster.num_devices=64"]),
    "ds.json": (ZERO, ["model=llama3-8b", "cluster.device=h100", "cluster.num_devices=64"]),
}


def job_of(folder, name, *entries):
    """Return the job of a file with entries of the command."""
    text, own = FILES[name]
    (folder / name).write_text(text)
    return import_job(folder / name, [*own, *entries]).document


@in_one_case("name", [*FILES])
def test_a_section_is_its_entries(name, tmp_path):
    """As a line or a mapping, with units; what is not named stays the file's."""
    whole = [
        "strategy=TP8 DP4 moments_dtype=bf16" if name == "run.sh" else "strategy=TP8 moments_dtype=bf16",
        "training={sequence_length: 4k, global_batch_size: 1k, tokens: 1T}",
        "strategy={pp: 1}",
    ]
    single = [
        *("strategy.tp=8", "strategy.pp=1", "settings.moments_dtype=bf16", "training.sequence_length=4096"),
        *("training.global_batch_size=1000", "training.tokens=1000000000000"),
    ]

    job = job_of(tmp_path, name, *whole)

    assert job == job_of(tmp_path, name, *single)
    assert job["training"]["tokens"] == 10**12
    assert (job["strategy"]["tp"], job["settings"]["moments_dtype"]) == (8, "bf16")


@in_one_case("name", [*FILES])
def test_numbers_may_have_units(name, tmp_path):
    """Also where tokens follow from them: 4k is 4,096 tokens of a sequence, 1k is 1,000 sequences."""
    job = job_of(tmp_path, name, "training.sequence_length=4k", "training.global_batch_size=1k")

    training = job["training"]
    assert (training["sequence_length"], training["global_batch_size"]) == (4096, 1000)
    assert training["tokens"] % (4096 * 1000) == 0
    assert (
        training
        == job_of(tmp_path, name, "training.sequence_length=4096", "training.global_batch_size=1000")["training"]
    )


@pytest.mark.parametrize(
    ("entry", "degrees"),
    [
        ("strategy.tp=8", (8, 1, 2, 2)),
        ("strategy.tp=1", (1, 1, 2, 16)),
        ("strategy.pp=4", (4, 1, 4, 2)),
        ("strategy.cp=2", (4, 2, 2, 2)),
        ("strategy.vpp=2", (4, 1, 2, 4)),
        ("cluster.num_devices=64", (4, 1, 2, 8)),
    ],
)
def test_replicas_follow_from_the_degrees_of_the_command(entry, degrees, tmp_path):
    """The script is read with them: without tensor parallelism there is no sequence parallelism."""
    job = job_of(tmp_path, "run.sh", entry)

    strategy = job["strategy"]
    tp, cp, pp, dp = degrees
    assert tuple(strategy[name] for name in ("tp", "cp", "pp", "dp")) == degrees
    assert tp * cp * pp * dp == job["cluster"]["num_devices"]
    assert strategy["sequence_parallel"] == (tp > 1)
    assert load(job).facts.cluster.num_devices == job["cluster"]["num_devices"]


@in_one_case(
    ("batch", "note"),
    [
        (513, "no multiple of micro-batch 4 x 64 replicas: the framework does not run this as it is"),
        (512, ""),
        (256, ""),
    ],
)
def test_a_batch_that_replicas_cannot_share_is_said(batch, note, tmp_path):
    """DeepSpeed asserts that steps of accumulation are whole; the nearest batch below is named."""
    (tmp_path / "ds.json").write_text(ZERO.replace("{", f'{{"train_batch_size": {batch}, ', 1))

    notes = import_job(tmp_path / "ds.json", [*FILES["ds.json"][1], "training.sequence_length=8k"]).notes

    said = [one for one in notes if one.startswith("train_batch_size is")]
    assert len(said) == bool(note)
    assert all(note in one and one.endswith("training.global_batch_size=512 fits.") for one in said)
