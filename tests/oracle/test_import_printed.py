"""
Printed configurations, of the parsers that print them: random settings come back.

Megatron-LM's sources are in no package: ``MEGATRON_LM_SOURCES`` names folders of unpacked ones, by ``:``.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from planner import import_job

SOURCES = [folder for folder in os.environ.get("MEGATRON_LM_SOURCES", "").split(":") if folder]
NUM_CASES = 25
DEVICE = "cluster.device=h100-80gb-sxm"

SWITCHES = (
    "--swiglu",
    "--untie-embeddings-and-output-weights",
    "--no-gradient-accumulation-fusion",
    "--cross-entropy-loss-fusion",
    "--position-embedding-type rope",
    "--normalization RMSNorm",
    "--group-query-attention --num-query-groups 8",
    "--use-distributed-optimizer",
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
)
RECOMPUTED = {
    "": "none",
    "--recompute-activations": "core_attention",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": "full",
    "--recompute-granularity selective --recompute-modules layernorm mlp": "norms+mlp",
}
NARROW = {
    "": "",
    "--fp8-format hybrid --fp8-recipe delayed": "fp8",
    "--fp8-format e4m3 --fp8-recipe blockwise": "fp8_blockwise",
}


def case(rnd: random.Random) -> tuple[dict[str, object], dict[str, object]]:
    """Arguments of a random training, and the decisions that they say."""
    tp, pp, cp, dp = rnd.choice((1, 2, 4)), rnd.choice((1, 2, 4)), rnd.choice((1, 1, 2)), rnd.choice((1, 2, 4, 8))
    vpp, mbs, heads = rnd.choice((1, 2)) if pp > 1 else 1, rnd.choice((1, 2)), rnd.choice((16, 32))
    experts = rnd.random() < 0.5
    ep = rnd.choice([one for one in (1, 2, 4, 8) if cp * dp % one == 0]) if experts else 1
    half = rnd.choice(("bf16", "bf16", "fp16"))
    narrow, recompute = rnd.choice(list(NARROW) if half == "bf16" else [""]), rnd.choice(list(RECOMPUTED))
    sizes = {
        "--num-layers": pp * vpp * rnd.choice((1, 2, 3)),
        "--hidden-size": heads * 64,
        "--num-attention-heads": heads,
        "--seq-length": 2048,
        "--max-position-embeddings": 2048,
        "--micro-batch-size": mbs,
        "--global-batch-size": mbs * dp * pp * rnd.choice((1, 2, 4)),
        "--train-iters": 100,
        "--tensor-model-parallel-size": tp,
        "--pipeline-model-parallel-size": pp,
        "--context-parallel-size": cp,
    }
    words = [word for name, value in sizes.items() for word in (name, str(value))]
    words += [f"--{half}", "--disable-bias-linear", *narrow.split(), *recompute.split()]
    switches = " ".join(rnd.sample(SWITCHES, 4))
    words += switches.split()
    words += ["--num-virtual-stages-per-pipeline-rank", str(vpp)] if vpp > 1 else []
    words += ["--sequence-parallel"] if tp > 1 else []
    if experts:
        words += f"--num-experts 8 --expert-model-parallel-size {ep} --expert-tensor-parallel-size {tp}".split()
        words += ["--moe-grouped-gemm", "--moe-token-dispatcher-type", "alltoall"]
    wanted = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": ep,
        "vpp": vpp,
        "mbs": mbs,
        "recompute": RECOMPUTED[recompute],
    }
    given = {
        "world_size": tp * pp * cp * dp,
        "architecture": "hopper",
        "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        "arguments": words,
    }
    is_shared = "--use-distributed-optimizer" in switches and dp * cp > 1
    wanted |= {"sharding": "optimizer" if is_shared else "none", "sequence_parallel": tp > 1}
    wanted |= {"dp_overlap": is_shared and "--overlap-grad-reduce" in switches}
    return given, {**wanted, "batch": sizes["--global-batch-size"], "precision": NARROW[narrow] or half}


@pytest.mark.parametrize("folder", SOURCES)
def test_arguments_of_megatron_come_back(folder, tmp_path):
    """Every degree, batch, precision and recomputation of what its own parser takes and prints."""
    pytest.importorskip("torch", reason="torch is not installed")
    rnd = random.Random(52)
    cases = [case(rnd) for _ in range(NUM_CASES)]
    lines = "".join(json.dumps(given) + "\n" for given, _ in cases)
    command = [sys.executable, "-m", "benchmarks.exports.parse_arguments", folder]
    answers = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.splitlines()[1:]

    verdicts = [json.loads(answer) for answer in answers]
    taken = [
        (wanted, verdict["printed"])
        for (_, wanted), verdict in zip(cases, verdicts, strict=True)
        if not verdict["error"]
    ]
    assert len(taken) > NUM_CASES * 0.9, [verdict["error"] for verdict in verdicts if verdict["error"]]
    for wanted, printed in taken:
        (tmp_path / "train.log").write_text(printed)
        job = import_job(tmp_path / "train.log", [DEVICE]).document
        got = {
            **job["strategy"],
            "batch": job["training"]["global_batch_size"],
            "precision": job["training"]["precision"],
        }
        assert {name: got[name] for name in wanted} == wanted


def test_sources_of_megatron_are_named():
    """Say why nothing was compared."""
    if not SOURCES:
        pytest.skip("MEGATRON_LM_SOURCES names no sources of Megatron-LM")


def test_configurations_of_torchtitan_come_back(tmp_path, monkeypatch):
    """Degrees, batch, length and what is recomputed, of what it prints."""
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    from tests.oracle.test_export_torchtitan import Kernels

    kernels = "torchtitan.distributed.minimal_async_ep.kernels"
    monkeypatch.setitem(sys.modules, kernels, Kernels(kernels))
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.models.deepseek_v3 import config_registry as with_experts
    from torchtitan.models.llama3 import config_registry

    rnd, modes = random.Random(52), {"full": FullAC, "every_other_matmul": SelectiveAC, "none": None}
    for _ in range(NUM_CASES):
        tp, cp, pp, dp = (rnd.choice(choices) for choices in ((1, 2, 4, 8), (1, 2), (1, 2, 4), (1, 2, 4)))
        mbs, recompute = rnd.choice((1, 2)), rnd.choice(list(modes))
        batch = mbs if pp == 1 else 2 * pp * mbs
        has_experts = pp == 1 and rnd.random() < 0.5
        config = with_experts.deepseek_v3_16b() if has_experts else config_registry.llama3_8b()
        ep = rnd.choice([one for one in (1, 2, 4) if dp * cp % one == 0]) if has_experts else 1
        copies = rnd.choice((1, 2)) if ep == 1 else 1
        degrees = {"tensor_parallel_degree": tp, "context_parallel_degree": cp, "pipeline_parallel_degree": pp}
        degrees |= {"expert_parallel_degree": ep, "data_parallel_replicate_degree": copies}
        parallelism = replace(
            config.parallelism, **degrees, data_parallel_shard_degree=dp, pipeline_parallel_microbatch_size=mbs
        )
        training = replace(config.training, local_batch_size=batch, seq_len=4096, disable_cuda_graphs=True)
        kind = modes[recompute]
        checkpoint = None if kind is None else kind.Config()
        config = replace(config, parallelism=parallelism, training=training, activation_checkpoint=checkpoint)
        text = json.dumps(config.to_dict(), indent=2, ensure_ascii=False, default=str)
        (tmp_path / "train.log").write_text(
            f"[titan] 2026-01-02 03:04:05,678 - root - INFO - Running with configs: {text}\n"
        )

        job = import_job(tmp_path / "train.log", [DEVICE, f"cluster.num_devices={tp * cp * pp * dp * copies}"]).document

        got = tuple(job["strategy"][name] for name in ("tp", "cp", "pp", "dp", "ep", "mbs", "recompute"))
        assert got == (tp, cp, pp, dp * copies, ep, mbs if pp > 1 else batch, recompute)
        assert copies * dp * cp == 1 or (job["strategy"]["sharding"] == "none") == (dp * cp == 1)
        assert copies == 1 or job["settings"].get("optimizer_group", 1) == dp * cp
        assert (job["training"]["global_batch_size"], job["training"]["sequence_length"]) == (batch * dp * copies, 4096)


def test_configurations_of_deepspeed_come_back(tmp_path):
    """Replicas, batch, stage, offloading and precision, of what its engine prints."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    rnd = random.Random(52)
    for number in range(NUM_CASES):
        stage, mbs, steps, half = (
            rnd.choice((0, 1, 2, 3)),
            rnd.choice((1, 2, 4)),
            rnd.choice((1, 2, 8)),
            rnd.choice(("bf16", "fp16")),
        )
        config = {
            "train_micro_batch_size_per_gpu": mbs,
            "gradient_accumulation_steps": steps,
            half: {"enabled": True},
            "zero_optimization": {"stage": stage, "overlap_comm": rnd.random() < 0.5, "reduce_bucket_size": 5e8},
        }
        path = tmp_path / f"{number}.log"
        handler = logging.FileHandler(path)
        handler.setFormatter(
            logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s")
        )
        logger.addHandler(handler)
        level = logger.level
        logger.setLevel(logging.INFO)
        DeepSpeedConfig(config).print("DeepSpeedEngine configuration")
        logger.setLevel(level)
        logger.removeHandler(handler)

        job = import_job(
            path, [DEVICE, "model=llama3-8b", "training.sequence_length=4096", "cluster.num_devices=8"]
        ).document

        sharding = ("none", "optimizer", "gradients", "weights")[stage]
        assert (job["strategy"]["sharding"], job["strategy"]["mbs"]) == (sharding, mbs)
        assert (job["training"]["global_batch_size"], job["training"]["precision"]) == (8 * mbs * steps, half)
