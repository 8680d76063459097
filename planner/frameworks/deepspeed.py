"""
Plans as DeepSpeed's JSON configuration.

Keys and lines are those of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from constraints.targets import effective_settings
from costmodel.strategy import Recompute, Sharding
from planner.frameworks.target import (
    Entries,
    Export,
    Program,
    Write,
    checkpoints,
    model_line,
    model_notes,
    num_microbatches,
    require_version,
    variables,
    write_entries,
)
from planner.jobs.document import nest_entries

if TYPE_CHECKING:
    from planner.results import Plan

TARGET = "DeepSpeed"
VERSIONS = ("0.19.8",)
FILE = "deepspeed.json"

PROGRAM = Program(
    words=("train.py", "--deepspeed", "--deepspeed_config", "{file}"),
    todo="train.py is your own script, with deepspeed.add_config_arguments",
)
"""Program of every process."""


def to_deepspeed(plan: Plan, version: str | None = None) -> Export:
    """
    Write a plan as the JSON that ``deepspeed.initialize`` takes.

    Raises
    ------
    SpecError
        If DeepSpeed's JSON cannot express it, or if the version is another one.
    """
    require_version(version, TARGET, VERSIONS)
    precision = plan.facts.workload.precision.name
    entries = {f"{precision}.enabled": True} | write_entries(plan, "deepspeed", TABLE)
    # JSON has no comments, and DeepSpeed passes over a key that it does not know (deepspeed/runtime/config.py).
    text = json.dumps({"TODO": f"{model_line(plan.facts.model)}.", **nest_entries(entries)}, indent=2)
    return Export(target=TARGET, files={FILE: f"{text}\n"}, environment=variables(plan), notes=_notes(plan))


# --- decisions ---------------------------------------------------------------------------------------------


def _stage(plan: Plan) -> int:
    """ZeRO stage; stage 1 for one replica in bf16, as stage 0 keeps no FP32 master weights."""
    is_unsharded = plan.strategy.dp == 1 and plan.strategy.sharding == Sharding.NONE
    return int(Sharding.OPTIMIZER if is_unsharded else plan.strategy.sharding)


def _dp(plan: Plan, dp: int) -> Entries:
    """
    Return the batch sizes of the JSON.

    Replicas are the GPUs divided by tp; the three batch sizes agree with no other number. With AutoTP, DeepSpeed
    compares ``train_batch_size`` with a product that counts every process, unless the script passes an ``mpu``. The
    engine's groups, its micro-batches and their number are right without it.

    References
    ----------
    DeepSpeed 0.19.8, deepspeed/runtime/config.py:472,602, deepspeed/runtime/engine.py:958.
    """
    return {} if plan.strategy.tp > 1 else {"train_batch_size": plan.facts.workload.global_batch_size}


def _recompute(plan: Plan, recompute: Recompute) -> Entries:
    if recompute == Recompute.NONE:
        return {}
    return {
        "activation_checkpointing.number_checkpoints": plan.facts.model.num_layers,
        "activation_checkpointing.partition_activations": False,
        "activation_checkpointing.cpu_checkpointing": plan.strategy.activation_offload,
    }


def _dp_overlap(plan: Plan, overlaps: bool) -> Entries:
    prefetches = overlaps or _stage(plan) < Sharding.WEIGHTS
    ahead = {} if prefetches else {"zero_optimization.stage3_prefetch_bucket_size": 0}
    return {"zero_optimization.overlap_comm": overlaps, **ahead}


# --- settings ----------------------------------------------------------------------------------------------


def _has_bf16_optimizer(plan: Plan) -> bool:
    """Tell whether DeepSpeed uses BF16_Optimizer: stage 1, bf16, FP32 gradients (deepspeed/runtime/engine.py:2305)."""
    is_bf16 = plan.facts.workload.precision.name == "bf16"
    in_fp32 = effective_settings(plan.facts, plan.strategy).gradient_dtype in ("fp32", "bf16+fp32")
    return is_bf16 and in_fp32 and _stage(plan) == Sharding.OPTIMIZER and not plan.strategy.optimizer_offload


def _gradient_dtype(plan: Plan, given: str) -> Entries:
    """
    Return the options of the gradients' dtype.

    BF16_Optimizer reduces its FP32 gradients; it also keeps 16-bit ones unless they are accumulated immediately.
    """
    in_fp32 = given == "fp32"
    if _has_bf16_optimizer(plan):
        return {"data_types.grad_accum_dtype": "fp32", **({"bf16.immediate_grad_update": True} if in_fp32 else {})}
    if _stage(plan) == Sharding.NONE:
        return {}
    return {"data_types.grad_accum_dtype": given, **({"communication_data_type": "fp32"} if in_fp32 else {})}


TABLE: Mapping[str, Write] = {
    "tp": lambda plan, tp: {"tensor_parallel.autotp_size": tp} if tp > 1 else {},
    "dp": _dp,
    "ep": lambda plan, ep: {"expert_parallel.enabled": True, "expert_parallel.autoep_size": ep} if ep > 1 else {},
    "mbs": lambda plan, mbs: {
        "train_micro_batch_size_per_gpu": mbs,
        "gradient_accumulation_steps": num_microbatches(plan),
    },
    "sharding": lambda plan, sharding: {"zero_optimization.stage": _stage(plan)},
    "recompute": _recompute,
    "optimizer_offload": {
        True: {
            "zero_optimization.offload_optimizer.device": "cpu",
            "zero_optimization.offload_optimizer.pin_memory": True,
        },
        False: {},
    },
    "tp_overlap": lambda plan, overlaps: {"tensor_parallel.tp_overlap_comm": overlaps} if plan.strategy.tp > 1 else {},
    "dp_overlap": _dp_overlap,
    "settings.gradient_dtype": _gradient_dtype,
    "settings.offloaded_states": lambda plan, share: (
        {} if share == 1 else {"zero_optimization.offload_optimizer.ratio": share}
    ),
}
"""DeepSpeed's options for each field of a plan; :mod:`constraints.rules.exports` has the refusals."""


def _notes(plan: Plan) -> tuple[str, ...]:
    strategy = plan.strategy
    notes = [
        f"Keys of DeepSpeed {VERSIONS[-1]} for {strategy.tp * strategy.dp} processes; the optimizer, its schedule and "
        "gradient clipping are the training script's.",
        f"{checkpoints(plan)} The JSON has no key for it.",
        *model_notes(plan, TARGET),
    ]
    if strategy.tp > 1:
        notes.append(
            f"A step has {plan.facts.workload.global_batch_size} sequences on {strategy.tp * strategy.dp} processes; "
            "DeepSpeed counts each of them as a replica, so that its own train_batch_size and samples per second are "
            f"{strategy.tp} times too high. Ranks of a tensor-parallel group must read the same sequences."
        )
    if strategy.recompute == Recompute.FULL:
        notes.append(
            "Recomputation: the model must call deepspeed.checkpointing.checkpoint on each of its layers, or switch on "
            "its own gradient checkpointing; the JSON alone does not."
        )
    if strategy.optimizer_offload:
        notes.append("The optimizer must be deepspeed.ops.adam.DeepSpeedCPUAdam.")
    if strategy.ep > 1:
        notes.append("Expert parallelism is AutoEP's, for models of transformers that it has a preset for.")
    if strategy.sharding == Sharding.NONE and strategy.dp == 1:
        notes.append("One replica: ZeRO stage 1 shards nothing and keeps FP32 master weights, as the plan counts.")
    return tuple(notes)
