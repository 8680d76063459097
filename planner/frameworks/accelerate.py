"""
Plans as the YAML of ``accelerate launch --config_file``, for Hugging Face Accelerate with FSDP2.

Keys and lines are those of Accelerate 1.15.0.
"""

from __future__ import annotations

import yaml

from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from planner.frameworks.target import (
    MODELS_OWN,
    NO_STEP,
    OFFLOADS_WHOLE,
    TODO,
    Answers,
    Choice,
    Entries,
    Export,
    FieldOptions,
    Plan,
    Program,
    Unsupported,
    checkpoints,
    effective_settings,
    entries_of,
    hybrid_sharding,
    model_line,
    model_notes,
    no_options,
    num_microbatches,
    num_sharing_groups,
    only,
    require_precision,
    require_version,
    subject,
    variables,
    write_comments,
)
from planner.jobs.document import nest_entries

TARGET = "Accelerate"
VERSIONS = ("1.15.0",)
FILE = "accelerate.yaml"
PRECISIONS = ("bf16", "fp16")
ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Variable that ``Accelerator`` reads, whatever its arguments (accelerate/accelerator.py:547)."""

NO_PIPELINE = "FSDP2 has no pipeline (accelerate/parallelism_config.py has dp, tp, cp and sp)."
NO_EXPERTS = "There is no expert parallelism (accelerate/parallelism_config.py has dp, tp, cp and sp)."


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
    common = _common(plan)
    entries = entries_of(plan, TARGET, DECISION_OPTIONS, SETTINGS)
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


def _precision(plan: Plan) -> str:
    problem = (
        f"{TARGET} needs a policy of the script or another library for {{name}}{{own}} (fp8_config), which this export "
        "does not write."
    )
    return require_precision(plan, PRECISIONS, problem)


def _common(plan: Plan) -> Entries:
    name = _precision(plan)
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


def _dp(plan: Plan) -> Entries:
    copies = num_sharing_groups(plan) or 1
    return {
        "parallelism_config.parallelism_config_dp_replicate_size": copies,
        "parallelism_config.parallelism_config_dp_shard_size": plan.strategy.dp // copies,
    }


def _etp(plan: Plan) -> Entries | Unsupported:
    if plan.facts.model.has_experts and plan.strategy.tp > 1:
        return Unsupported(
            "Experts are split by the tensor-parallel plan of the model in transformers, not by a key of the YAML."
        )
    return {}


def _mbs(plan: Plan) -> Entries | Unsupported:
    total = num_microbatches(plan)
    if total is None:
        return Unsupported("The global batch is no multiple of dp * mbs, whole micro-batches are accumulated.")
    return {ACCUMULATION: total}


def _sequence_parallel(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.tp > 1 and plan.strategy.sequence_parallel:
        return Unsupported(
            "Tensor parallelism is the plan of the model in transformers, whose norms and residuals are whole; its sp "
            "is another one (accelerate/parallelism_config.py, sp_backend deepspeed)."
        )
    return {}


def _cp_overlap(plan: Plan) -> Entries:
    """Return the rotation method: a ring overlaps its sends with attention, an all-gather comes before it."""
    if plan.strategy.cp == 1:
        return {}
    way = "alltoall" if plan.strategy.cp_overlap else "allgather"
    return {"parallelism_config.parallelism_config_cp_comm_strategy": way}


def _activation_offload(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.activation_offload and plan.strategy.recompute != Recompute.FULL:
        return Unsupported(
            "Only the inputs of recomputed layers go to the host (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac)."
        )
    return {"fsdp_config.fsdp_activation_checkpointing_offload": plan.strategy.activation_offload}


def _gradient_dtype(plan: Plan) -> Entries | Unsupported:
    if effective_settings(plan).gradient_dtype == plan.facts.workload.precision.name:
        return {}
    return Unsupported(
        f"Gradients are reduced in {plan.facts.workload.precision.name}, as mixed_precision says; another dtype is an "
        "argument of the training script's plugin (set_mixed_precision, accelerate/utils/dataclasses.py:2137)."
    )


DECISION_OPTIONS: dict[str, FieldOptions] = {
    "tp": "parallelism_config.parallelism_config_tp_size",
    "cp": "parallelism_config.parallelism_config_cp_size",
    "pp": only(1, NO_PIPELINE),
    "dp": _dp,
    "ep": only(1, NO_EXPERTS),
    "etp": _etp,
    "vpp": only(1, NO_PIPELINE),
    "group": only(1, NO_PIPELINE),
    "mbs": _mbs,
    "sequence_parallel": _sequence_parallel,
    "schedule": only(Schedule.ONE_F_ONE_B, NO_PIPELINE),
    "vocabulary": only(Vocabulary.ENDS, NO_PIPELINE),
    "sharding": Choice(
        {
            Sharding.GRADIENTS: {"fsdp_config.fsdp_reshard_after_forward": False},
            Sharding.WEIGHTS: {"fsdp_config.fsdp_reshard_after_forward": True},
        },
        "FSDP2 shards gradients and optimizer states, with or without the weights, over two ranks at least "
        "(accelerate/parallelism_config.py:383).",
    ),
    "recompute": Choice(
        {
            Recompute.NONE: {"fsdp_config.fsdp_activation_checkpointing": False},
            Recompute.FULL: {"fsdp_config.fsdp_activation_checkpointing": True},
        },
        "Whole layers are recomputed or none (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac).",
    ),
    "activation_offload": _activation_offload,
    "optimizer_offload": Choice(
        {False: {"fsdp_config.fsdp_offload_params": False}},
        "Its fsdp_offload_params moves weights and gradients to the host too.",
    ),
    "token_dispatcher": only(TokenDispatcher.ALLTOALL, NO_EXPERTS),
    "cuda_graphs": only(
        CudaGraphs.NONE, "The YAML has no key for them; those of torch.compile are the compiler's choice."
    ),
    "tp_overlap": only(False, "Asynchronous tensor parallelism is ignored (accelerate/utils/dataclasses.py:2331)."),
    "cp_overlap": _cp_overlap,
    "ep_overlap": only(False, NO_EXPERTS),
    "pp_overlap": only(False, NO_PIPELINE),
    "dp_overlap": only(
        True, "FSDP2 gathers and reduces behind computation, always (torch/distributed/fsdp/_fully_shard)."
    ),
    "layout": only(None, NO_PIPELINE),
}
"""Accelerate's options for each field of a strategy."""

NO_FP8 = "FP8 is another library's, not written here."

SETTINGS: dict[str, FieldOptions] = {
    "gradient_dtype": _gradient_dtype,
    "weight_dtype": only(
        "fp32",
        "Ranks hold shards of FP32 weights, which are cast before they are gathered "
        "(accelerate/utils/fsdp_utils.py:814).",
    ),
    "moments_dtype": only("fp32", "Adam's moments are of the dtype of its weights, FP32 (torch/optim/adam.py)."),
    "fp8_param_gather": only(False, NO_FP8),
    "first_layers_bf16": only(0, NO_FP8),
    "last_layers_bf16": only(0, NO_FP8),
    "fp8_attention": only(False, NO_FP8),
    "shared_expert_overlap": only(False, NO_EXPERTS),
    "delay_wgrad": only(False, "Weight gradients come with the backward pass, always."),
    "communication_sms": only(None, NO_EXPERTS),
    "cp_comm_type": Choice(
        {None: {}, "p2p": {}, "all_gather": {}},
        "PyTorch's context parallelism rotates or gathers keys and values (accelerate/parallelism_config.py).",
    ),
    "cp_a2a_ranks": only(None, "Context parallelism has no all-to-alls."),
    "offloaded_layers": only(None, "Inputs of all recomputed layers go to the host, or of none."),
    "offloaded_states": only(1.0, OFFLOADS_WHOLE),
    "offloaded_masters": only(True, OFFLOADS_WHOLE),
    "offload_overlap": only(False, OFFLOADS_WHOLE),
    "host_threads": only(None, OFFLOADS_WHOLE),
    "optimizer_group": hybrid_sharding,
    "optimizer": only("adam", "The optimizer is the training script's; the plan counts another one."),
    "muon_tp_mode": no_options,  # refused with Muon
    "muon_num_ns_steps": no_options,
    **MODELS_OWN,
    "allocator": no_options,  # a variable of the environment
    "launches": no_options,  # a variable of the environment
    "composition": only("step", NO_STEP),
}
"""Accelerate's options for each setting."""

ANSWERS = Answers(target=TARGET, decisions=DECISION_OPTIONS, settings=SETTINGS, require_job=_precision)
"""Accelerate's answers for decisions, settings and the job."""


def _notes(plan: Plan) -> tuple[str, ...]:
    strategy, total = plan.strategy, num_microbatches(plan) or 1
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
