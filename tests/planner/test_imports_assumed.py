"""What decides the cost and no line says: asked for, or stated with its value."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job
from tests.cases import read_table

CASES = read_table("imports_assumed")

HERE = ["cluster.device=h100-80gb-sxm"]
OVERRIDES = (
    "model.tensor_model_parallel_size=8\nmodel.pipeline_model_parallel_size=1\nmodel.expert_model_parallel_size=8\n"
    "train.micro_batch_size=1\ntrain.global_batch_size=1024\nmodel.seq_length=4096\n"
)
PERFORMANCE = "python setup_experiment.py --model_recipe_name kimi_k2 --gpu h100 --num_gpus 512 --compute_dtype fp8_ds "
NEMO = """
trainer: {devices: 8, num_nodes: 4, accelerator: gpu, precision: bf16, max_steps: 500}
model:
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  tokenizer: {library: huggingface, type: meta-llama/Llama-2-7b}
"""


def imported(tmp_path, name, text, *entries):
    """The job of a file of this name."""
    (tmp_path / name).write_text(text)
    return import_job(tmp_path / name, [*HERE, *entries])


def assumed(job):
    """The sentence of what nothing says."""
    (note,) = (note for note in job.notes if note.startswith("Assumed, as nothing says it"))
    return note


def test_overrides_of_a_model_state_the_rest(tmp_path):
    """Degrees of Kimi K2 without a recipe: no recomputation, all-to-all, no graphs, nothing sharded or overlapped."""
    job = imported(tmp_path, "overrides.txt", OVERRIDES, "model=kimi-k2", "cluster.num_devices=256")

    note = assumed(job)
    for value in ("recompute=none", "token_dispatcher=alltoall", "cuda_graphs=none", "sharding=none", "cp=1"):
        assert f"strategy.{value}" in note
    assert "settings.loss=unfused" in note
    assert "strategy.ep=" not in note
    assert any(text.startswith("Nothing says the release: megatron-bridge-") for text in job.notes)


def test_what_overrides_say_is_not_assumed(tmp_path):
    """A field that is off says it as well; so does an entry of the command."""
    more = "model.recompute_granularity=null\nmodel.cuda_graph_impl=none\nmodel.sequence_parallel=false\n"
    entries = ("model=kimi-k2", "cluster.num_devices=256", "strategy.cp=1", "cluster.framework=megatron-bridge-26.04")

    job = imported(tmp_path, "overrides.txt", OVERRIDES + more, *entries)

    for name in ("recompute=", "cuda_graphs", "sequence_parallel", "strategy.cp=", "release"):
        assert name not in assumed(job)
    assert not any("Nothing says the release" in note for note in job.notes)


def test_a_performance_recipe_that_is_not_known_asks(tmp_path):
    """The layout, its experts, recomputation and the sequence are the recipe's: none is made up."""
    with pytest.raises(SpecError) as refused:
        imported(tmp_path, "launch.sh", f"{PERFORMANCE} -tp 8 -pp 4 -mb 1 -gb 1024")

    said = "Say it: strategy.cp=N strategy.recompute=none strategy.ep=N training.sequence_length=N."
    assert said in str(refused.value)


def test_and_states_what_it_does_not_ask_for(tmp_path):
    """61 layers on 4 stages are 16, 16, 16 and 13, as Megatron-Bridge deals them."""
    entries = ("strategy.recompute=full", "training.sequence_length=4096")

    job = imported(tmp_path, "launch.sh", f"{PERFORMANCE} -tp 8 -pp 4 -cp 1 -ep 32 -mb 1 -gb 1024", *entries)

    note = assumed(job)
    assert "strategy.token_dispatcher=alltoall" in note
    assert "strategy.cuda_graphs=none" in note
    assert "strategy.recompute" not in note
    assert "Layers on stages: 16, 16, 16, 13; strategy.layout says others." in job.notes


def test_a_named_recipe_of_experts_must_say_their_parallelism(tmp_path):
    """Beside context parallelism and recomputation."""
    line = "torchrun --nproc-per-node 8 run_recipe.py --recipe mixtral_8x7b model.tensor_model_parallel_size=2 "
    line += "model.pipeline_model_parallel_size=1 train.micro_batch_size=1 train.global_batch_size=64 "
    line += "model.seq_length=4096 model.context_parallel_size=1 model.recompute_granularity=null"

    with pytest.raises(SpecError, match=r"not known here: model.expert_model_parallel_size"):
        imported(tmp_path, "launch.sh", line)


def test_a_configuration_of_nemo_states_its_defaults(tmp_path):
    """Nothing recomputed, sharded or overlapped; its tensor parallelism is said."""
    job = imported(tmp_path, "nemo.yaml", NEMO)

    note = assumed(job)
    assert "(NeMo's defaults)" in note
    for name in ("recompute=none", "sharding=none", "sequence_parallel=false", "vpp=1"):
        assert f"strategy.{name}" in note
    assert "strategy.tp=" not in note


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zero.json", '{"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'),
        ("fsdp.yaml", "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"),
    ],
)
def test_recomputation_that_the_script_decides_is_stated(name, text, tmp_path):
    """DeepSpeed's and Accelerate's files leave it to the code of the model."""
    entries = ("model=llama3-8b", "cluster.num_devices=8", "training.sequence_length=4096", "strategy.mbs=1")

    job = imported(tmp_path, name, text, *entries)
    said = imported(tmp_path, name, text, *entries, "strategy.recompute=full")

    assert any(note.startswith("Recomputation is assumed to be none") for note in job.notes)
    assert not any("Recomputation is assumed" in note for note in said.notes)
    assert any(note.startswith("Nothing says the release: ") for note in job.notes)


SMALL = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --bf16 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --max-position-embeddings 4096 --vocab-size 32000 --train-iters 10 --disable-bias-linear "
)


@pytest.mark.parametrize(("options", "note"), CASES["open"])
def test_arguments_state_what_they_leave_open(options, note, tmp_path):
    """Uneven stages in layers; kernels, processors and threads that no option says."""
    job = imported(tmp_path, "arguments.txt", SMALL + options, "cluster.num_devices=8")

    assert note in job.notes


def test_short_options_of_performance_scripts_end_each_other(tmp_path):
    """``-mb 1 -c bf16`` says a micro-batch of 1, also where ``-z`` is not known here."""
    degrees = "-tp 8 -pp 1 -cp 1 -ep 8 -gb 1024"
    words = f"python setup_experiment.py -m kimi -mr kimi_k2 -g h100 -ng 512 -z 3 -mb 1 -c bf16 {degrees}"
    entries = ["training.sequence_length=4096", "strategy.recompute=none", "training.tokens=1e12"]

    document = imported(tmp_path, "launch.sh", words, *entries).document

    assert (document["strategy"]["mbs"], document["training"]["precision"]) == (1, "bf16")
    assert document["cluster"]["num_devices"] == 512


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --bf16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --train-iters 100 "
    "--vocab-size 50257 "
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.sh", f"{SCRIPT} --eval-interval 500 --eval-iters 20", (500, 20)),
        ("run.sh", f"{SCRIPT} --eval-iters 20 --eval-interval $EVERY", (None, 20)),
        ("run.sh", f"{SCRIPT} --eval-interval 500 --eval-iters 0", (None, None)),
        ("run.sh", SCRIPT, (None, None)),
        ("nemo.yaml", NEMO.replace("max_steps: 500", "val_check_interval: 50, limit_val_batches: 32"), (50, 32)),
        ("nemo.yaml", NEMO.replace("max_steps: 500", "val_check_interval: 50, limit_val_batches: 0"), (None, None)),
        ("overrides.txt", f"{OVERRIDES}train.eval_interval=2000\ntrain.eval_iters=32\n", (2000, 32)),
        ("overrides.txt", f"{OVERRIDES}validation.eval_interval=50\nvalidation.eval_iters=4\n", (50, 4)),
    ],
)
def test_evaluations_are_those_that_the_file_says(tmp_path, name, text, expected):
    """Steps between evaluations and steps of each; no steps are no evaluation, and a default is not written."""
    entries = ("model=kimi-k2", "cluster.num_devices=256") if name == "overrides.txt" else ()

    training = imported(tmp_path, name, text, *entries).document["training"]

    assert (training.get("evaluation_interval_steps"), training.get("evaluation_steps")) == expected


def test_options_behind_a_comment_are_no_command_of_their_own(tmp_path):
    """A comment ends the command that goes on over lines, and what follows is lost to it."""
    lost = imported(tmp_path, "run.sh", f"{SCRIPT}\\\n  # --bf16 \\\n  --tensor-model-parallel-size 2\n")

    assert lost.document["strategy"]["tp"] == 1
    assert any("Line 3: --tensor-model-parallel-size is no option of a command" in note for note in lost.notes)


def test_a_micro_batch_that_only_the_script_knows_is_stated(tmp_path):
    """Accelerate's file has neither micro-batch nor accumulation: one step of 256 sequences on 64 ranks has 4 each."""
    text = "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 8\nnum_processes: 64\n"
    entries = ("model=llama3-8b", "training.global_batch_size=256", "training.sequence_length=4k", "training.tokens=1T")
    given = imported(tmp_path, "accelerate.yaml", text, *entries)
    said = imported(tmp_path, "accelerate.yaml", text, *entries, "strategy.mbs=2")

    assert "strategy.mbs=4" in assumed(given)
    assert "strategy.mbs" not in " ".join(said.notes)


def test_a_recipe_that_begins_with_ones_own_asks_for_the_model(tmp_path):
    """The file names no model at all."""
    text = "[training]\nlocal_batch_size = 1\nseq_len = 4096\nsteps = 10\n[parallelism]\ntensor_parallel_degree = 1\n"

    with pytest.raises(SpecError, match=r"model: is not said\. Add model=NAME"):
        imported(tmp_path, "train.toml", text, "cluster.num_devices=8", "training.tokens=1T")
