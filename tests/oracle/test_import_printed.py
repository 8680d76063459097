"""Printed configurations, of the parsers that print them: random settings come back."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from dataclasses import replace

import pytest

from planner import import_job

NUM_CASES = 25
DEVICE = "cluster.device=h100-80gb-sxm"


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
