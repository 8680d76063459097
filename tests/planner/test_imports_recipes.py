"""Launches of Megatron-Bridge's performance scripts, which leave the layout to a published recipe."""

from __future__ import annotations

import re

import pytest

from costmodel.errors import SpecError
from planner import import_job

DEGREES = ("tp", "cp", "pp", "ep", "vpp", "mbs")


def imported(tmp_path, options, before="FW_VERSION=26.04.01", entries=()):
    """A launch by its options."""
    path = tmp_path / "launch.sh"
    path.write_text(f"{before}\npython scripts/performance/setup_experiment.py {options}\n")
    return import_job(path, entries)


@pytest.mark.parametrize(
    ("release", "options", "expected"),
    [
        ("26.04.01", "--gpu gb200 --num_gpus 256 --compute_dtype bf16 -mr llama31_405b", (4, 1, 16, 1, 8, 1, 1536)),
        (
            "26.04.01",
            "--gpu gb200 --num_gpus 256 --compute_dtype bf16 -mr llama31_405b --config_variant v1",
            (4, 2, 8, 1, 8, 1, 128),
        ),
        ("26.02.00", "--gpu b200 --num_gpus 8 --compute_dtype bf16 -mr qwen3_30b_a3b", (1, 1, 1, 8, 1, 1, 512)),
        ("26.02.01", "--gpu b200 --num_gpus 8 --compute_dtype bf16 -mr qwen3_30b_a3b", (1, 1, 1, 8, 1, 4, 512)),
        (
            "26.04.01",
            "--gpu h100 --num_gpus 1024 --compute_dtype fp8_sc -mr deepseek_v3 -ep 32",
            (2, 1, 8, 32, 2, 1, 16384),
        ),
    ],
)
def test_a_launch_has_the_layout_of_its_release_and_variant(release, options, expected, tmp_path):
    """
    The release decides, then the variant, then the number of devices; options of the command count more.

    References
    ----------
    Megatron-Bridge v0.3.0 to v0.4.2, scripts/performance/configs, ``*_workload_base_configs.py``.
    """
    job = imported(tmp_path, options, f"FW_VERSION={release}").document

    got = (*(job["strategy"][name] for name in DEGREES), job["training"]["global_batch_size"])
    assert got == expected
    assert job["cluster"]["framework"] == f"megatron-bridge-{release.removesuffix('.00')}"


def test_a_proxy_is_a_model_of_its_own(tmp_path):
    """A smaller hidden size and fewer layers are the configuration's, with everything else of the model."""
    options = "--gpu gb300 --num_gpus 8 --compute_dtype bf16 -mr deepseek_v3 --hidden_size 1024 --num_layers 24 "

    job = imported(tmp_path, options + "-tp 1 -pp 1 -vp None -ep 8 -mb 4").document

    assert (job["model"]["hidden_size"], job["model"]["num_hidden_layers"]) == (1024, 24)
    assert job["model"]["n_routed_experts"] == 256
    assert (job["strategy"]["pp"], job["strategy"]["vpp"], job["strategy"]["ep"]) == (1, 1, 8)


def test_a_size_that_the_model_does_not_have_is_refused(tmp_path):
    """Of a dense model no number of experts."""
    with pytest.raises(SpecError, match=r"--num_moe_experts: is '8', which llama3-70b cannot be changed to"):
        imported(tmp_path, "--gpu h100 --num_gpus 64 --compute_dtype bf16 -mr llama3_70b --num_moe_experts 8")


def test_a_precision_that_the_device_lacks_is_the_reason(tmp_path):
    """Hopper has no tensor cores for NVFP4, so nobody publishes a recipe for it."""
    with pytest.raises(SpecError, match=r"--compute_dtype: says nvfp4, in which h100-80gb-sxm does not compute"):
        imported(tmp_path, "--gpu h100 --num_gpus 256 --compute_dtype nvfp4 -mr gpt_oss_120b")


@pytest.mark.parametrize(("said", "ours"), [("mla_up_proj", "qkv"), ("core_attn,mla_up_proj", "core_attention+qkv")])
def test_modules_that_a_command_recomputes_have_the_names_of_a_job(tmp_path, said, ours):
    """Megatron-LM's names; several others are written in the job's own words."""
    options = "--gpu gb300 --num_gpus 256 --compute_dtype bf16 -mr deepseek_v3 --recompute_modules"

    assert imported(tmp_path, f"{options} {said}").document["strategy"]["recompute"] == ours
    with pytest.raises(SpecError, match="--recompute_modules: is 'mlp,moe': several modules or one that is not known"):
        imported(tmp_path, f"{options} mlp,moe")


def test_recipes_of_scripts_of_dgxc_count_in_them_alone(tmp_path):
    """Its scripts of October 2025 pin a commit that has GB300, which the release of that month has not."""
    options = "--gpu gb300 --num_gpus 128 --compute_dtype bf16 -mr deepseek_v3 --container_image "

    job = imported(tmp_path, options + "$LLMB_INSTALL/nemo.sqsh", "FW_VERSION=25.09.00").document

    assert tuple(job["strategy"][name] for name in ("pp", "ep")) == (4, 32)
    notes = imported(tmp_path, f"{options.replace('128', '256')} nemo.sqsh", "FW_VERSION=25.09.00").notes
    assert any(
        "megatron-bridge-25.09 has no recipe of this: taken is that of megatron-bridge-25.11" in one for one in notes
    )


@pytest.mark.parametrize(
    ("release", "precision", "nearest"),
    # gpt-oss in MXFP8 is there since v0.4.0 (26.04), llama3 405B in delayed FP8 up to v0.1.0rc4 (25.09)
    [
        ("26.02.01", "gb300 -c fp8_mx -mr gpt_oss_120b", "26.04"),
        ("26.04.01", "gb200 -c fp8_ds -mr llama31_405b", "25.09"),
    ],
)
def test_a_release_without_a_recipe_takes_the_nearest_ones(release, precision, nearest, tmp_path):
    """The first one behind it, else the last one before it, and a note says that its own may differ."""
    job = imported(tmp_path, f"--num_gpus 64 -g {precision}", f"FW_VERSION={release}")

    assert job.document["cluster"]["framework"] == f"megatron-bridge-{release}"
    note = f"has no recipe of this: taken is that of megatron-bridge-{nearest}, which may have another layout."
    assert any(one.endswith(note) for one in job.notes)


def test_a_commit_of_dgxc_is_no_release_of_its_month(tmp_path):
    """Its 26.04.01 has llama3 405B on 256 B200 by pp 16 and vpp 4 (v26.06.01 llama3.1/launch.sh), Bridge's by pp 8."""
    options = "--gpu b200 --num_gpus 256 --compute_dtype fp8_cs -mr llama31_405b --container_image $LLMB_INSTALL/x.sqsh"

    strategy = imported(tmp_path, options).document["strategy"]

    assert tuple(strategy[name] for name in ("tp", "cp", "pp", "vpp", "mbs")) == (4, 1, 16, 4, 1)


def test_a_layer_of_each_chunk_in_full_is_every_layer(tmp_path):
    """126 layers, the embedding and the loss are 128 chunks of one: the first and last rank have a layer less."""
    strategy = imported(tmp_path, "-g b200 -ng 128 -c nvfp4 -mr llama31_405b", "FW_VERSION=26.02.00").document[
        "strategy"
    ]

    assert strategy["layout"]["full_layers"] == [7, *[8] * 14, 7]


def test_a_recipe_is_known_by_its_name(tmp_path):
    """Of 64 devices, unless the command says more: the batch grows with them."""
    path = tmp_path / "launch.sh"
    path.write_text("python run_recipe.py --recipe llama3_70b_pretrain_64gpu_b200_nvfp4_config\n")

    job = import_job(path)

    assert (job.document["model"], job.document["cluster"]["num_devices"]) == ("llama3-70b", 64)
    assert re.match(r"Layout and settings are those of the recipe llama3_70b_pretrain_64gpu", job.notes[0])
    more = import_job(path, ["cluster.num_devices=128"]).document
    assert more["training"]["global_batch_size"] == 2 * job.document["training"]["global_batch_size"]


def test_a_recipe_that_cannot_run_is_refused_with_its_reason(tmp_path):
    """DeepSeek-V3 on 64 H100 of v0.6.0: ep 64 does not divide 64 / pp 8 ranks."""
    with pytest.raises(SpecError, match=r"recipe: deepseek-v3-.*cannot run as published: .* does not divide"):
        imported(tmp_path, "--gpu h100 --num_gpus 64 --compute_dtype bf16 -mr deepseek_v3", "FW_VERSION=26.08")
