"""
Hugging Face Accelerate with FSDP2: the YAML of ``accelerate launch --config_file``.

Keys and lines are those of Accelerate 1.15.0.
"""

from __future__ import annotations

import yaml

from costmodel.errors import SpecError
from costmodel.strategy import Recompute, Schedule, Sharding, Vocabulary
from planner.export.target import (
    Entries,
    Export,
    Refusal,
    Say,
    checkpoints,
    entries_of,
    nested,
    num_microbatches,
    only,
    subject,
)
from planner.plan import Plan

TARGET = "Accelerate"
FILE = "accelerate.yaml"
PRECISIONS = ("bf16", "fp16")
ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Read by ``Accelerator``, whatever it is called with (accelerate/accelerator.py:547)."""

NO_PIPELINE = "FSDP2 has no pipeline (accelerate/parallelism_config.py has dp, tp, cp and sp)."
NO_EXPERTS = "There is no expert parallelism (accelerate/parallelism_config.py has dp, tp, cp and sp)."


def to_accelerate(plan: Plan) -> Export:
    """
    A plan as the configuration of Accelerate, with FSDP2.

    Parameters
    ----------
    plan
        The plan.

    Raises
    ------
    SpecError
        If Accelerate cannot express it.
    """
    entries = entries_of(plan, TARGET, SAYS)
    accumulation = entries.pop(ACCUMULATION)
    text = yaml.safe_dump(nested(_setting(plan) | entries), sort_keys=False)
    header = (
        f"# {subject(plan)}; keys of Accelerate 1.15.0.\n"
        f"# Sequences per GPU and micro-batch, for the training script: {plan.strategy.mbs}.\n"
        f"# Micro-batches per step, for the environment: {ACCUMULATION}={accumulation}.\n"
    )
    return Export(
        target=TARGET,
        files={FILE: header + text},
        environment={ACCUMULATION: str(accumulation)},
        notes=_notes(plan),
    )


def _setting(plan: Plan) -> Entries:
    name = plan.facts.workload.precision.name
    if name not in PRECISIONS:
        raise SpecError(
            "training.precision",
            f"{TARGET} needs recipes of another library for {name} (fp8_config), which this export does not write.",
            f"Plan with {' or '.join(PRECISIONS)}.",
        )
    devices = plan.strategy.num_devices
    machines = -(-devices // plan.cluster.device.devices_per_node)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": name,
        "num_machines": machines,
        "num_processes": devices,
        **({"rdzv_backend": "c10d"} if machines > 1 else {}),
        "fsdp_config.fsdp_version": 2,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


# --- decisions ---------------------------------------------------------------------------------------------


def _tp(plan: Plan) -> Entries:
    return {"parallelism_config.parallelism_config_tp_size": plan.strategy.tp}


def _cp(plan: Plan) -> Entries:
    return {"parallelism_config.parallelism_config_cp_size": plan.strategy.cp}


def _dp(plan: Plan) -> Entries:
    return {
        "parallelism_config.parallelism_config_dp_replicate_size": 1,
        "parallelism_config.parallelism_config_dp_shard_size": plan.strategy.dp,
    }


def _etp(plan: Plan) -> Entries | Refusal:
    if plan.facts.model.has_experts and plan.strategy.tp > 1:
        return Refusal(
            "How experts are split is the tensor-parallel plan of the model in transformers, not a key of the YAML."
        )
    return {}


def _mbs(plan: Plan) -> Entries | Refusal:
    total = num_microbatches(plan)
    if total is None:
        return Refusal("The global batch is no multiple of dp * mbs, whole micro-batches are accumulated.")
    return {ACCUMULATION: total}


def _sequence_parallel(plan: Plan) -> Entries | Refusal:
    if plan.strategy.tp > 1 and plan.strategy.sequence_parallel:
        return Refusal(
            "Tensor parallelism is the plan of the model in transformers, whose norms and residuals are whole; its sp "
            "is another one (accelerate/parallelism_config.py, sp_backend deepspeed)."
        )
    return {}


def _sharding(plan: Plan) -> Entries | Refusal:
    if plan.strategy.sharding < Sharding.GRADIENTS:
        return Refusal(
            "FSDP2 shards gradients and optimizer states, with or without the weights, over two ranks at least "
            "(accelerate/parallelism_config.py:383)."
        )
    return {"fsdp_config.fsdp_reshard_after_forward": plan.strategy.sharding == Sharding.WEIGHTS}


def _recompute(plan: Plan) -> Entries | Refusal:
    if plan.strategy.recompute not in (Recompute.NONE, Recompute.FULL):
        return Refusal("Whole layers are recomputed or none (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac).")
    return {"fsdp_config.fsdp_activation_checkpointing": plan.strategy.recompute == Recompute.FULL}


def _optimizer_offload(plan: Plan) -> Entries | Refusal:
    if plan.strategy.optimizer_offload:
        return Refusal("Its fsdp_offload_params moves weights and gradients to the host too.")
    return {"fsdp_config.fsdp_offload_params": False}


def _cp_overlap(plan: Plan) -> Entries:
    """The ring sends the next keys and values while attention computes; a gather comes before it."""
    if plan.strategy.cp == 1:
        return {}
    way = "alltoall" if plan.strategy.cp_overlap else "allgather"
    return {"parallelism_config.parallelism_config_cp_comm_strategy": way}


def _dp_overlap(plan: Plan) -> Entries | Refusal:
    if plan.strategy.dp_overlap:
        return {}
    return Refusal("FSDP2 gathers and reduces behind computation, always (torch/distributed/fsdp/_fully_shard).")


SAYS: dict[str, Say] = {
    "tp": _tp,
    "cp": _cp,
    "pp": only("pp", 1, NO_PIPELINE),
    "dp": _dp,
    "ep": only("ep", 1, NO_EXPERTS),
    "etp": _etp,
    "vpp": only("vpp", 1, NO_PIPELINE),
    "group": only("group", 1, NO_PIPELINE),
    "mbs": _mbs,
    "sequence_parallel": _sequence_parallel,
    "schedule": only("schedule", Schedule.ONE_F_ONE_B, NO_PIPELINE),
    "vocabulary": only("vocabulary", Vocabulary.ENDS, NO_PIPELINE),
    "sharding": _sharding,
    "recompute": _recompute,
    "activation_offload": only(
        "activation_offload",
        False,
        "Only the inputs of recomputed layers go to the host (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac).",
    ),
    "optimizer_offload": _optimizer_offload,
    "tp_overlap": only(
        "tp_overlap",
        False,
        "Asynchronous tensor parallelism is ignored (accelerate/utils/dataclasses.py:2331).",
    ),
    "cp_overlap": _cp_overlap,
    "ep_overlap": only("ep_overlap", False, NO_EXPERTS),
    "pp_overlap": only("pp_overlap", False, NO_PIPELINE),
    "dp_overlap": _dp_overlap,
    "layout": only("layout", None, NO_PIPELINE),
}
"""What Accelerate says for each field of a strategy."""


def _notes(plan: Plan) -> tuple[str, ...]:
    strategy, total = plan.strategy, num_microbatches(plan) or 1
    notes = [
        f"The training script must take sequences of {plan.facts.workload.sequence_length} tokens, per GPU and "
        f"micro-batch {strategy.mbs} of them; the YAML has no key for it.",
        f"{checkpoints(plan)} The YAML has no key for it.",
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
