"""torchtitan from 0.3.0 on, whose configurations are Python, and stages of pipelines in tables of older releases."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import estimate, import_job, load, to_torchtitan
from planner.frameworks.imports.tools.readers import read_python
from tests.cases import in_one_case

DEVICE = "cluster.device=h100-80gb-sxm"

REGISTRY = """
import os
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

os.system("touch {mark}")


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="Interleaved1F1B"),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_70b() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    spec = model_registry("70B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    config = Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )
    config.training.local_batch_size //= 2
    return config
"""


def toml(**parallelism):
    """Eight layers' worth of a pipeline, as a table."""
    entries = "\n".join(f"{name} = {value!r}".replace("'", '"') for name, value in parallelism.items())
    return (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 4096\n'
        f'[activation_checkpoint]\nmode = "full"\n[parallelism]\npipeline_parallel_degree = 2\n{entries}\n'
    )


def imported(tmp_path, text, name="recipe.py", number=16):
    """The job of a file on so many devices."""
    path = tmp_path / name
    path.write_text(text)
    return import_job(path, [DEVICE, f"cluster.num_devices={number}"]).document


def test_a_configuration_is_read_and_not_run(tmp_path):
    """The last function: tp 8 leaves 2 replicas of 4 sequences; FP8 by rows, whole layers recomputed."""
    mark = tmp_path / "ran"

    job = imported(tmp_path, REGISTRY.format(mark=mark))

    strategy, training = job["strategy"], job["training"]
    assert [strategy[name] for name in ("tp", "pp", "dp", "mbs", "recompute", "tp_overlap")] == [
        8,
        1,
        2,
        4,
        "full",
        True,
    ]
    assert (training["global_batch_size"], training["precision"]) == (8, "fp8_rowwise")
    assert (job["model"], job["cluster"]["framework"]) == ("llama3-70b", "torchtitan-0.3")
    assert not mark.exists()


def test_a_configuration_by_its_name():
    """Operations of a layer chosen one by one; a name that is nearly one is hinted at."""
    tables = read_python(REGISTRY, "config_registry.py", "llama3_8b")

    assert tables["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    assert tables["training"]["seq_len"] == 8192
    with pytest.raises(SpecError, match="Did you mean 'llama3_70b'"):
        read_python(REGISTRY, "config_registry.py", "llama3_7b")


def test_an_export_comes_back(tmp_path):
    """What is planned for torchtitan is what is read of the recipe."""
    job = load(
        {
            "model": "llama3-8b",
            "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": "torchtitan-0.3"},
            "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
            "settings": {"loss_chunks": 4},
        }
    )
    given = {"tp": 2, "dp": 8, "mbs": 2, "sequence_parallel": True, "sharding": "weights", "recompute": "full"}
    plan = estimate(job, {**given, "tp_overlap": True}).plan
    exported = to_torchtitan(plan)
    ((_, text),) = exported.files.items()
    assert not any("chunks" in note for note in exported.notes)

    read = imported(tmp_path, text)
    back = estimate(load(read), {}).plan.strategy

    names = ("tp", "cp", "pp", "dp", "ep", "mbs", "sequence_parallel", "sharding", "recompute", "tp_overlap")
    assert {one: getattr(back, one) for one in names} == {one: getattr(plan.strategy, one) for one in names}
    assert read["settings"]["loss_chunks"] == 4


WHOLE_LOSS = "loss=CrossEntropyLoss.Config(global_vocab_size=128256)"


@pytest.mark.parametrize(
    ("loss", "chunks"),
    [
        ("loss=ChunkedLossWrapper.Config(num_chunks=4)", 4),
        ("loss=ChunkedLossWrapper.Config()", 8),
        (WHOLE_LOSS, 1),
        ("loss=chosen()", None),
    ],
)
def test_a_loss_in_chunks_is_read(tmp_path, loss, chunks):
    """Eight are torchtitan's default; a loss that only running says is the release's."""
    text = REGISTRY.replace("        compile=compile_config,", f"        compile=compile_config,\n        {loss},")

    assert imported(tmp_path, text)["settings"].get("loss_chunks") == chunks


def test_a_compiled_loss_of_eager_layers_is_read(tmp_path):
    """torchtitan's recipes with experts compile the loss alone; its logits then take 4 bytes, not 12."""
    text = REGISTRY.replace("CompileConfig(enable=True,", "CompileConfig(enable=True, components=['loss'],")

    assert imported(tmp_path, text)["settings"].items() >= {"kernels": "eager", "loss": "compiled"}.items()


@in_one_case(
    ("old", "new", "message"),
    [
        ("tensor_parallel_degree=8", "tensor_parallel_degree=int(os.environ['TP'])", "only running it would say"),
        ("FullAC.Config()", "choose()", "only running it would say"),
        ("Float8LinearConverter.Config", "NVFP4LinearConverter.Config", "whose precision"),
        ("Float8LinearConverter.Config", "MXFP8LinearConverter.Config", "model.converters: 'mxfp8' computes in mxfp8"),
        ('model_registry("70B"', 'model_registry("71B"', "is no model that is known here"),
        ("    return config", "    return 3", "holds no function|model: 'llama3"),
        ("Trainer.Config(\n        model_spec=spec", "replace(llama3_70b_base(), \n        spec=spec", "model"),
    ],
)
def test_what_only_running_says_is_refused(tmp_path, old, new, message):
    """Degrees, recomputation, precision, the model."""
    text = REGISTRY.replace(old, new)
    text = text.replace("def llama3_8b()", "def _other()")

    with pytest.raises(SpecError, match=message):
        imported(tmp_path, text)


def test_a_configuration_of_a_module_is_read_beside_the_script(tmp_path):
    """A launch names the module and the function; its file is read and not imported."""
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b\n")

    with pytest.raises(SpecError, match=r"names the configuration 'config_registry.py', which is not in its folder"):
        import_job(path, [DEVICE])
    (tmp_path / "config_registry.py").write_text(REGISTRY)
    assert import_job(path, [DEVICE]).document["model"] == "llama3-8b"


@pytest.mark.parametrize(
    ("entries", "chunks"),
    [
        ({"pipeline_parallel_schedule": "1F1B"}, 1),
        ({"pipeline_parallel_schedule": "Interleaved1F1B"}, 2),
        # 32 layers, and one less in the first and last stage: 34 / 6 is 6 stages, three for each of two ranks
        ({"pipeline_parallel_schedule": "Interleaved1F1B", "pipeline_parallel_layers_per_stage": 6}, 3),
        ({"pipeline_parallel_schedule": "1F1B", "pipeline_parallel_layers_per_stage": 17}, 1),
        ({"pipeline_parallel_schedule": "Interleaved1F1B", "pipeline_parallel_split_points": ["a", "b", "c"]}, 2),
    ],
)  # fmt: skip
def test_stages_are_those_of_torchtitan(tmp_path, entries, chunks):
    """By the number of layers of each, by where they are split, else one or two for each rank."""
    job = imported(tmp_path, toml(**entries), "a.toml")

    assert (job["strategy"]["pp"], job["strategy"]["vpp"], job["strategy"]["mbs"]) == (2, chunks, 1)


@pytest.mark.parametrize(
    "entries",
    [
        {"pipeline_parallel_schedule": "Interleaved1F1B", "pipeline_parallel_layers_per_stage": 4},
        {"pipeline_parallel_schedule": "1F1B", "pipeline_parallel_layers_per_stage": 6},
    ],
)
def test_stages_that_ranks_cannot_share(tmp_path, entries):
    """As torchtitan refuses them: nine stages for two ranks, three for each in a schedule of one."""
    with pytest.raises(SpecError, match="pipeline ranks of this schedule cannot share"):
        imported(tmp_path, toml(**entries), "a.toml")


@pytest.mark.parametrize(
    ("section", "entries", "mbs"),
    [
        ("experimental", "pipeline_parallel_microbatches = 4", 2),
        ("experimental", "", 4),
        ("parallelism", "pipeline_parallel_microbatches = 4", 2),
        ("parallelism", "pipeline_parallel_microbatch_size = 4", 4),
        ("parallelism", "", 1),
    ],
)
def test_number_of_micro_batches_of_early_2025(section, entries, mbs, tmp_path):
    """8 sequences in 4 parts, in one for each of 2 pipeline ranks, or in parts of a size, which is 1 later on."""
    text = toml().replace("local_batch_size", "batch_size").replace("[parallelism]", f"[{section}]") + entries

    (tmp_path / "old.toml").write_text(text)

    job = import_job(tmp_path / "old.toml", [DEVICE, "cluster.num_devices=16"])

    assert (job.document["strategy"]["pp"], job.document["strategy"]["mbs"]) == (2, mbs)
    assert not any(section in note for note in job.notes)
    with pytest.raises(SpecError, match=r"pipeline_parallel_microbatches: is 3, which does not divide 8 sequences"):
        imported(tmp_path, toml(pipeline_parallel_microbatches=3), "odd.toml")


def test_options_of_early_2025_are_not_left_open(tmp_path):
    """A degree that the script does not say is asked for, in every section that is read."""
    (tmp_path / "old.toml").write_text(toml())
    script = tmp_path / "run.sh"
    script.write_text("torchrun train.py --job.config_file old.toml --experimental.context_parallel_degree=$CP\n")

    with pytest.raises(SpecError, match=r"experimental.context_parallel_degree: is \$CP"):
        import_job(script, [DEVICE, "cluster.num_devices=16"])


def test_a_step_within_the_backward_pass_is_no_number_of_the_optimizer(tmp_path):
    """It frees gradients, and another optimizer has other states: the notes say it."""
    text = f"{toml()}\n[optimizer]\nname = 'Adafactor'\nearly_step_in_backward = true\n"
    (tmp_path / "a.toml").write_text(text)
    notes = " ".join(import_job(tmp_path / "a.toml", [DEVICE, "cluster.num_devices=16"]).notes)

    assert "early_step_in_backward: gradients are freed within the backward pass, costed as kept" in notes
    assert "optimizer.name: costed as Adam" in notes
