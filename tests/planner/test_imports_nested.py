"""Nested YAML: Megatron-LM's own, NeMo's, and sections of Megatron-Bridge's configuration."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job, load
from tests.cases import read_table

DEVICE = "cluster.device=h100-80gb-sxm"

MEGATRON, NEMO, BRIDGE, NEMO_2 = read_table("imports_nested").values()


def job_of(tmp_path, text, *entries, launch=""):
    """The job of a configuration, alone or with the script that names it."""
    path = tmp_path / "conf.yaml"
    path.write_text(text)
    if launch:
        path = tmp_path / "run.sh"
        path.write_text(launch)
    return import_job(path, [DEVICE, *entries]).document


def figures(job):
    """What is compared."""
    strategy, training = job["strategy"], job["training"]
    degrees = [strategy[name] for name in ("tp", "cp", "pp", "dp", "vpp", "mbs")]
    return (
        degrees,
        training["global_batch_size"],
        training["sequence_length"],
        training["precision"],
        strategy["recompute"],
    )


@pytest.mark.parametrize(
    "launch", ["", "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --yaml-cfg a/conf.yaml"]
)
def test_megatrons_own(tmp_path, launch):
    """16 GPUs: tp 2 x pp 4 x dp 2, alone and by the script that names it."""
    job = job_of(tmp_path, MEGATRON, *([] if launch else ["cluster.num_devices=16"]), launch=launch)

    assert figures(job) == ([2, 1, 4, 2, 1, 2], 128, 4096, "bf16", "full")
    assert job["strategy"]["sequence_parallel"] is True
    assert job["training"]["tokens"] == 1000 * 128 * 4096
    model = load(job).facts.model
    assert (model.num_layers, model.layers[0].attention.num_kv_heads, model.tied_embeddings) == (24, 4, False)


def test_nemos_first_version(tmp_path):
    """4 nodes of 8: tp 4 x pp 2 x dp 4; selective recomputation is that of attention; a reference is followed."""
    job = job_of(tmp_path, NEMO)

    assert figures(job) == ([4, 1, 2, 4, 1, 2], 256, 2048, "bf16", "core_attention")
    assert (job["cluster"]["num_devices"], job["strategy"]["sharding"]) == (32, "optimizer")
    assert job["cluster"]["framework"].startswith("nemo-")
    assert job["training"]["tokens"] == 500 * 256 * 2048


def test_sections_stand_on_a_recipe(tmp_path):
    """The recipe's pp 4 in 5 chunks, the file's tp, cp and batch, the command's micro-batch of 2."""
    launch = (
        "torchrun --nproc-per-node 8 --nnodes 8 run_recipe.py --recipe llama3_70b_pretrain --config-file conf.yaml "
        "train.micro_batch_size=2"
    )
    job = job_of(tmp_path, BRIDGE, launch=launch)

    assert figures(job) == ([2, 4, 4, 2, 5, 2], 64, 8192, "fp8_current", "none")


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (MEGATRON, ("tensor_model_parallel_size: 2", "tensor_modle_parallel_size: 2"), "Did you mean"),
        (MEGATRON, ("micro_batch_size: 2", "micro_batch_sizes: 2"), "micro.batch.size"),
        (NEMO, ("micro_batch_size: 2", "micro_batch_size: ???"), "model.micro_batch_size: is left open"),
        (NEMO, ("precision: bf16", "precision: 32"), "FP32 is not costed"),
        (NEMO, ("${model.encoder_seq_length}", "${model.max_position_embeddings}"), "refers to"),
        (
            NEMO,
            ("activations_checkpoint_num_layers: null", "activations_checkpoint_layers_per_pipeline: 2"),
            "some layers",
        ),
        (BRIDGE, ("context_parallel_size", "context_parallel_sizes"), "may say what matters"),
        (BRIDGE, ("  tensor", "  _tensor"), "leave to the recipe|may say what matters|model: is not said"),
    ],
)
def test_what_decides_is_not_guessed(tmp_path, text, change, message):
    """A typing error, something left open, a name that nobody knows."""
    with pytest.raises(SpecError, match=message):
        job_of(tmp_path, text.replace(*change), "model=llama3-8b" if text is BRIDGE else "cluster.num_devices=32")


def test_a_factory_of_nemo_says_what_its_recipe_may(tmp_path):
    """Its own degrees and recomputation are not known: what no override says is asked for."""
    launch = (
        "nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8 data.micro_batch_size=1 "
        "trainer.strategy.tensor_model_parallel_size=2 trainer.strategy.pipeline_model_parallel_size=1 "
        "data.global_batch_size=128 data.seq_length=8192 {more}"
    )
    with pytest.raises(SpecError, match=r"model.context_parallel_size.*strategy.cp=N here"):
        job_of(tmp_path, "", launch=launch.format(more=""))

    more = "trainer.strategy.context_parallel_size=2 model.config.recompute_granularity=null"
    job = job_of(tmp_path, "", launch=launch.format(more=more))

    assert figures(job) == ([2, 2, 1, 4, 1, 1], 128, 8192, "bf16", "none")


def test_a_mark_without_a_line_is_a_message(tmp_path):
    """PyYAML points behind the last line where a key is not finished."""
    with pytest.raises(SpecError, match="is not YAML in line"):
        job_of(tmp_path, "a: 1\nb\n")


def test_nemos_second_version_as_nemo_run_writes_it(tmp_path):
    """
    The class names the model; plugin, callback and optimizer say precision, overlap and dtypes.

    64 GPUs: tp 4 x cp 2 x pp 4 x dp 2. DDP takes the optimizer's use_distributed_optimizer, and the plugin's dtypes.
    """
    job = job_of(tmp_path, NEMO_2)

    assert figures(job) == ([4, 2, 4, 2, 5, 1], 512, 8192, "fp8", "none")
    assert (job["model"], job["cluster"]["num_devices"]) == ("llama3-70b", 64)
    assert [job["settings"][name] for name in ("gradient_dtype", "moments_dtype")] == ["bf16", "bf16"]
    assert job["settings"]["fp8_param_gather"] is True
    assert [job["strategy"][name] for name in ("sharding", "tp_overlap", "dp_overlap")] == ["optimizer", True, True]


def test_a_callback_of_nemo_overlaps_what_nothing_else_says(tmp_path):
    """MegatronCommOverlapCallback overlaps a distributed optimizer, and tensor parallelism of split sequences alone."""
    silent = NEMO_2.replace("overlap_grad_reduce: true", "").replace("overlap_param_gather: true", "")
    whole = silent.replace("sequence_parallel: true", "sequence_parallel: false")
    alone = silent.replace("callbacks.megatron_comm_overlap.MegatronCommOverlapCallback", "callbacks.Timer")

    assert job_of(tmp_path, silent)["strategy"]["dp_overlap"] is True
    assert job_of(tmp_path, whole)["strategy"]["tp_overlap"] is False
    assert job_of(tmp_path, alone)["strategy"]["dp_overlap"] is False


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Llama3Config70B", "LlamaConfig", "'LlamaConfig' is no model that is known here"),
        ("Llama3Config70B", "Llama3Config70B\n    hidden_size: 4096", "hidden_size: is 4096, the model .* has 8192"),
        ("MegatronStrategy", "FSDP2Strategy", "trainer.strategy: is FSDP2Strategy"),
        ("TimingCallback", "DeepEPCallback", "trainer.callbacks: has 'DeepEPCallback', which is not read"),
        ("mixed_precision.MegatronMixedPrecision", "x.MyPlugin", "trainer.plugins: has 'MyPlugin', which is not read"),
        ("exp_avg_dtype", "some_dtype", "optimizer.some_dtype: is no field that is known here"),
        ("precision: bf16-mixed", "precision: 32", "trainer.plugins.precision: is 32"),
    ],
)
def test_parts_of_nemo_that_are_not_read_are_named(tmp_path, old, new, message):
    """A class without its size, a size of another model, another strategy, callback, dtype or precision."""
    with pytest.raises(SpecError, match=message):
        job_of(tmp_path, NEMO_2.replace(old, new, 1))


def test_a_run_of_nemo_without_its_plugin_has_the_trainers_precision(tmp_path):
    """NeMo 2 saves ``trainer.precision`` where no MegatronMixedPrecision is given; else bf16-mixed is assumed."""
    before, _, after = NEMO_2.partition("  plugins:")
    rest = f"  strategy:{after.partition('  strategy:')[2]}"

    jobs = [job_of(tmp_path, f"{before}{said}{rest}") for said in ("", "  precision: 16-mixed\n")]

    assert [job["training"]["precision"] for job in jobs] == ["bf16", "fp16"]
    assert {job["settings"]["gradient_dtype"] for job in jobs} == {"fp32"}  # grad_reduce_in_fp32 of the strategy's ddp
