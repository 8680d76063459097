"""
Plans as the YAML of ``accelerate launch --config_file``, for Hugging Face Accelerate with FSDP2.

Keys and lines are those of Accelerate 1.15.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import yaml

from costmodel.strategy import Recompute, Sharding
from planner.frameworks.target import (
    TODO,
    Entries,
    Export,
    Program,
    Write,
    checkpoints,
    model_line,
    model_notes,
    num_microbatches,
    num_sharing_groups,
    require_version,
    subject,
    variables,
    write_comments,
    write_entries,
)
from planner.jobs.document import nest_entries

if TYPE_CHECKING:
    from planner.results import Plan

TARGET = "Accelerate"
VERSIONS = ("1.15.0",)
FILE = "accelerate.yaml"
ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Variable that ``Accelerator`` reads, whatever its arguments (accelerate/accelerator.py:547)."""

PROGRAM = Program(
    words=("train.py", "--per_device_train_batch_size", "{mbs}"),
    launcher="accelerate",
    todo="train.py is your own script, with the batch size as an argument",
)
"""Program of every process."""


def to_accelerate(plan: Plan, version: str | None = None) -> Export:
    """
    Write a plan as the configuration of Accelerate, with FSDP2.

    Raises
    ------
    SpecError
        If Accelerate cannot express it, or if the version is another one.
    """
    require_version(version, TARGET, VERSIONS)
    common, entries = _common(plan), write_entries(plan, "accelerate", TABLE)
    accumulation = entries.pop(ACCUMULATION)
    text = yaml.safe_dump(nest_entries(common | entries), sort_keys=False)
    header = (
        f"# {subject(plan)}; keys of Accelerate {VERSIONS[-1]}.\n"
        f"# Sequences per GPU and micro-batch, for the training script: {plan.strategy.mbs}.\n"
        f"# Micro-batches per step, for the environment: {ACCUMULATION}={accumulation}.\n"
        f"{write_comments([TODO.format(model_line(plan.facts.model))])}"
    )
    return Export(
        target=TARGET,
        files={FILE: header + text},
        environment={ACCUMULATION: str(accumulation), **variables(plan)},
        notes=_notes(plan),
    )


def _common(plan: Plan) -> Entries:
    devices = plan.strategy.num_devices
    machines = -(-devices // plan.cluster.device.devices_per_node)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": plan.facts.workload.precision.name,
        "num_machines": machines,
        "num_processes": devices,
        **({"rdzv_backend": "c10d"} if machines > 1 else {}),
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


# --- decisions ---------------------------------------------------------------------------------------------


def _dp(plan: Plan, dp: int) -> Entries:
    copies = num_sharing_groups(plan)
    return {
        "parallelism_config.parallelism_config_dp_replicate_size": copies,
        "parallelism_config.parallelism_config_dp_shard_size": dp // copies,
    }


TABLE: Mapping[str, Write] = {
    "tp": "parallelism_config.parallelism_config_tp_size",
    "cp": "parallelism_config.parallelism_config_cp_size",
    "dp": _dp,
    "mbs": lambda plan, mbs: {ACCUMULATION: num_microbatches(plan)},
    "sharding": {
        Sharding.GRADIENTS: {"fsdp_config.fsdp_reshard_after_forward": False},
        Sharding.WEIGHTS: {"fsdp_config.fsdp_reshard_after_forward": True},
    },
    "recompute": {
        Recompute.NONE: {"fsdp_config.fsdp_activation_checkpointing": False},
        Recompute.FULL: {"fsdp_config.fsdp_activation_checkpointing": True},
    },
    "activation_offload": "fsdp_config.fsdp_activation_checkpointing_offload",
    "optimizer_offload": "fsdp_config.fsdp_offload_params",
    # A ring overlaps its sends with attention, an all-gather comes before it.
    "cp_overlap": lambda plan, overlaps: (
        {"parallelism_config.parallelism_config_cp_comm_strategy": "alltoall" if overlaps else "allgather"}
        if plan.strategy.cp > 1
        else {}
    ),
}
"""Accelerate's options for each field of a plan; :mod:`constraints.rules.exports` has the refusals."""


def _notes(plan: Plan) -> tuple[str, ...]:
    strategy, total = plan.strategy, num_microbatches(plan)
    notes = [
        f"Keys of Accelerate {VERSIONS[-1]}.",
        f"The training script must take sequences of {plan.facts.workload.sequence_length} tokens, per GPU and "
        f"micro-batch {strategy.mbs} of them; the YAML has no key for it.",
        f"{checkpoints(plan)} The YAML has no key for it.",
        "Gradients are reduced in 16 bits, as the plan counts them; FSDP2 then keeps their shards in FP32.",
        *model_notes(plan, TARGET),
    ]
    if total > 1:
        notes.append(
            "Gradients stay whole while they accumulate (accelerate/accelerator.py:1166) unless the script passes "
            f"GradientAccumulationPlugin(num_steps={total}, sync_each_batch=True), which the plan's memory needs."
        )
    if strategy.sharding == Sharding.GRADIENTS and total > 1:
        notes.append("FSDP2 gathers the weights again for each micro-batch; the estimate gathers them once per step.")
    if strategy.tp > 1:
        notes.append("Tensor parallelism is that of transformers: load the model with its tensor-parallel plan.")
    return tuple(notes)
