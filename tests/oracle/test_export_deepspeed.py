"""DeepSpeed takes exported JSON: it makes engines on real processes, and its parser reads random plans."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice, product
from unittest import mock

import pytest

from costmodel.facts.framework import Settings
from costmodel.strategy import CudaGraphs, Recompute, Sharding, TokenDispatcher
from planner.frameworks.target import Export, num_microbatches
from planner.results import Plan
from tests.builders_plan import planned_exports, random_exports
from tests.oracle import in_step
from tests.oracle.deepspeed_engine import engines

os.environ.setdefault("DS_ACCELERATOR", "cpu")
config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed")

NUM_PLANS = in_step(100)

WITHIN = {
    "cp": (1,),
    "pp": (1,),
    "sequence_parallel": (False,),
    "activation_offload": (False, True),
    "ep_overlap": (False,),
    "recompute": (Recompute.NONE, Recompute.FULL),
    "token_dispatcher": (TokenDispatcher.ALLTOALL,),
    "cuda_graphs": (CudaGraphs.NONE,),
}
"""What DeepSpeed's JSON can say at all; the rest it may still refuse."""


def read(plan: Plan, text: str):
    """DeepSpeed's configuration, which counts the processes of the plan."""
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    strategy = plan.strategy
    with mock.patch.multiple(config.dist, get_rank=lambda: 0, get_world_size=lambda: strategy.tp * strategy.dp):
        read = config.DeepSpeedConfig(json.loads(text))
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
    ranks = read.train_batch_size // (read.train_micro_batch_size_per_gpu * read.gradient_accumulation_steps)
    dp = ranks // max(1, tp.autotp_size)
    whole_layers = read.activation_checkpointing_config.number_checkpoints is not None
    return {
        "tp": max(1, tp.autotp_size),
        "dp": dp,
        "ep": read.expert_parallel_config.autoep_size if read.expert_parallel_config.enabled else 1,
        "mbs": read.train_micro_batch_size_per_gpu,
        "sharding": Sharding(int(zero.stage)) if dp > 1 else Sharding.NONE,
        "recompute": Recompute.FULL if whole_layers else Recompute.NONE,
        "activation_offload": read.activation_checkpointing_config.cpu_checkpointing,
        "optimizer_offload": zero.offload_optimizer is not None,
        "tp_overlap": tp.tp_overlap_comm,
        "dp_overlap": zero.overlap_comm,
    }


def small_exports(tp: int, dp: int) -> Iterator[tuple[Plan, Export]]:
    """
    Plans of so many processes with every stage of ZeRO, gradients in FP32 and in BF16.

    Experts and optimizer states stay where they are: AutoEP patches other releases of transformers, an optimizer on the
    host is compiled.
    """
    shardings = (Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.WEIGHTS) if dp > 1 else (Sharding.NONE,)
    for gradient_dtype, sharding in product(("fp32", "bf16"), shardings):
        within = {"tp": (tp,), "dp": (dp,), "ep": (1,), "optimizer_offload": (False,), "sharding": (sharding,)}
        settings = Settings(gradient_dtype=gradient_dtype)
        yield from random_exports("deepspeed", 1, within=WITHIN | within, settings=settings, seed=tp)


@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 1), (2, 2)])
def test_engines_are_the_strategies(tp, dp):
    """``deepspeed.initialize`` without an ``mpu`` on tp * dp processes takes the plan, and trains a step of it."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    plans = [*small_exports(tp, dp)]

    found = engines([json.loads(*exported.files.values()) for _, exported in plans], tp * dp)

    assert found == [taken(plan) for plan, _ in plans]


def taken(plan: Plan) -> dict[str, object]:
    """What an engine has of a plan's strategy."""
    strategy, dtypes = plan.strategy, {"fp32": "float32", "bf16": "bfloat16"}
    return {
        "tp": strategy.tp,
        "dp": strategy.dp,
        "mbs": strategy.mbs,
        "num_microbatches": num_microbatches(plan),
        "accumulation": num_microbatches(plan),
        "sharding": int(strategy.sharding) if strategy.dp > 1 else 1,
        "precision": "bfloat16",
        "gradients": dtypes[str(plan.cluster.settings.gradient_dtype)],
        "overlap": strategy.dp_overlap,
    }


@pytest.mark.parametrize("gradient_dtype", ["fp32", "bf16"])
def test_what_deepspeed_reads_is_the_strategy(gradient_dtype):
    """All: dense, with experts and with latent attention; gradients accumulate in the plan's dtype."""
    wrong = []
    settings = Settings(gradient_dtype=gradient_dtype)
    for plan, exported in random_exports("deepspeed", NUM_PLANS // 2, within=WITHIN, settings=settings):
        (text,) = exported.files.values()
        configuration = read(plan, text)

        found = decisions(configuration)

        same = all(getattr(plan.strategy, name) == value for name, value in found.items())
        wrong += [] if same and configuration.grad_accum_dtype == gradient_dtype else [plan.strategy]

    assert wrong == []


def test_plans_for_deepspeed_are_read():
    """Those of plain jobs, as ``--target deepspeed`` makes them."""
    planned = [*islice(planned_exports("deepspeed"), 5)]
    assert len(planned) == 5
    for plan, exported in planned:
        found = decisions(read(plan, *exported.files.values()))
        assert found == {name: getattr(plan.strategy, name) for name in found}


def test_deepspeed_refuses_a_wrong_key():
    """The parser is one that looks: an unknown key inside zero_optimization is an error."""
    text = {"train_batch_size": 1, "zero_optimization": {"stage": 1, "offload_optimiser": {}}}

    with pytest.raises(ValueError, match="offload_optimiser"):
        config.DeepSpeedConfig(text)
