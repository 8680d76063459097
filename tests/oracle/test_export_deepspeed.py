"""What DeepSpeed reads out of exported JSON: 500 random plans, each with the strategy that it was made of."""

from __future__ import annotations

import json
import os
from unittest import mock

import pytest

from costmodel.facts.framework import Settings
from costmodel.strategy import CudaGraphs, Recompute, Sharding, TokenDispatcher
from planner.plan import Plan
from tests.builders_plan import random_exports

os.environ.setdefault("DS_ACCELERATOR", "cpu")
config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed")

NUM_PLANS = 500

WITHIN = {
    "cp": (1,),
    "pp": (1,),
    "sequence_parallel": (False,),
    "activation_offload": (False,),
    "ep_overlap": (False,),
    "recompute": (Recompute.NONE, Recompute.FULL),
    "token_dispatcher": (TokenDispatcher.ALLTOALL,),
    "cuda_graphs": (CudaGraphs.NONE,),
}
"""What DeepSpeed's JSON can say at all; the rest it may still refuse."""


def read(plan: Plan, text: str):
    """DeepSpeed's configuration, as its engine makes it on as many processes as the plan has."""
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    strategy = plan.strategy
    replicas = mock.Mock(
        **{"get_data_parallel_world_size.return_value": strategy.dp}, spec=["get_data_parallel_world_size"]
    )
    with mock.patch.object(config.dist, "get_rank", return_value=0):
        read = config.DeepSpeedConfig(json.loads(text), mpu=replicas)
    validate_autoep_config(
        read.expert_parallel_config,
        strategy.tp * strategy.dp,
        1,
        max(1, read.tensor_parallel_config.autotp_size),
        1,
        zero_stage=read.zero_optimization_stage,
        zero_offload_optimizer=read.zero_config.offload_optimizer is not None,
    )
    return read


def decisions(read) -> dict[str, object]:
    """The strategy that a configuration means."""
    zero, tp = read.zero_config, read.tensor_parallel_config
    dp = read.train_batch_size // (read.train_micro_batch_size_per_gpu * read.gradient_accumulation_steps)
    whole_layers = read.activation_checkpointing_config.number_checkpoints is not None
    return {
        "tp": max(1, tp.autotp_size),
        "dp": dp,
        "ep": read.expert_parallel_config.autoep_size if read.expert_parallel_config.enabled else 1,
        "mbs": read.train_micro_batch_size_per_gpu,
        "sharding": Sharding(int(zero.stage)) if dp > 1 else Sharding.NONE,
        "recompute": Recompute.FULL if whole_layers else Recompute.NONE,
        "optimizer_offload": zero.offload_optimizer is not None,
        "tp_overlap": tp.tp_overlap_comm,
        "dp_overlap": zero.overlap_comm,
    }


@pytest.mark.parametrize("gradient_dtype", ["fp32", "bf16"])
def test_what_deepspeed_reads_is_the_strategy(gradient_dtype):
    """500 of 500: dense, with experts and with latent attention; gradients accumulate in the plan's dtype."""
    wrong = []
    settings = Settings(gradient_dtype=gradient_dtype)
    for plan, exported in random_exports("deepspeed", NUM_PLANS // 2, within=WITHIN, settings=settings):
        (text,) = exported.files.values()
        configuration = read(plan, text)

        found = decisions(configuration)

        same = all(getattr(plan.strategy, name) == value for name, value in found.items())
        wrong += [] if same and configuration.grad_accum_dtype == gradient_dtype else [plan.strategy]

    assert wrong == []


def test_deepspeed_refuses_a_wrong_key():
    """The parser is one that looks: an unknown key inside zero_optimization is an error."""
    text = {"train_batch_size": 1, "zero_optimization": {"stage": 1, "offload_optimiser": {}}}

    with pytest.raises(ValueError, match="offload_optimiser"):
        config.DeepSpeedConfig(text)
