"""
Plans as DeepSpeed's JSON configuration.

Keys and lines are those of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import json

from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from planner.frameworks.target import (
    MODELS_OWN,
    NO_STEP,
    Answers,
    Entries,
    Export,
    FieldOptions,
    Plan,
    Program,
    Unsupported,
    checkpoints,
    effective_settings,
    entries_of,
    model_line,
    model_notes,
    no_options,
    num_microbatches,
    only,
    require_precision,
    require_version,
    variables,
)
from planner.jobs.document import nest_entries

TARGET = "DeepSpeed"
VERSIONS = ("0.19.8",)
FILE = "deepspeed.json"
PRECISIONS = ("bf16", "fp16")

PIPELINES_ARE_CODE = (
    "A pipeline is a PipelineModule of the training script, not a key of the JSON (deepspeed/runtime/pipe/module.py)."
)
KEEPS_FP32 = (
    "Stage 0 in bf16 keeps neither FP32 master weights nor FP32 gradients, which the plan counts "
    "(_do_optimizer_sanity_check, deepspeed/runtime/engine.py:2294)."
)


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
    entries = _precision(plan) | entries_of(plan, TARGET, DECISION_OPTIONS, SETTINGS)
    # JSON has no comments, and DeepSpeed passes over a key that it does not know (deepspeed/runtime/config.py).
    text = json.dumps({"TODO": f"{model_line(plan.facts.model)}.", **nest_entries(entries)}, indent=2)
    return Export(target=TARGET, files={FILE: f"{text}\n"}, environment=variables(plan), notes=_notes(plan))


def _precision(plan: Plan) -> Entries:
    problem = f"{TARGET} has no key for {{name}}{{own}} (deepspeed/runtime/precision_config.py)."
    name = require_precision(plan, PRECISIONS, problem)
    return {f"{name}.enabled": True}


# --- decisions ---------------------------------------------------------------------------------------------


def _stage(plan: Plan) -> int:
    """ZeRO stage; stage 1 for one replica in bf16, as stage 0 keeps no FP32 master weights."""
    is_unsharded = plan.strategy.dp == 1 and plan.strategy.sharding == Sharding.NONE
    return int(Sharding.OPTIMIZER if is_unsharded else plan.strategy.sharding)


def _tp(plan: Plan) -> Entries:
    return {"tensor_parallel.autotp_size": plan.strategy.tp} if plan.strategy.tp > 1 else {}


def _ep(plan: Plan) -> Entries:
    ep = plan.strategy.ep
    return {"expert_parallel.enabled": True, "expert_parallel.autoep_size": ep} if ep > 1 else {}


def _etp(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    split = strategy.tp if strategy.ep == 1 else 1
    if not plan.facts.model.has_experts or strategy.etp == split:
        return {}
    return Unsupported(
        "Experts that are spread are not split (deepspeed/module_inject/auto_ep_folding.py, validate_folding_global); "
        "others are split like the rest (deepspeed/module_inject/autotp_config.py:433)."
    )


def _dp(plan: Plan) -> Entries:
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


def _mbs(plan: Plan) -> Entries | Unsupported:
    total = num_microbatches(plan)
    if total is None:
        return Unsupported(
            "The global batch is no multiple of dp * mbs (_batch_assertion, deepspeed/runtime/config.py)."
        )
    return {"train_micro_batch_size_per_gpu": plan.strategy.mbs, "gradient_accumulation_steps": total}


def _sequence_parallel(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.tp > 1 and plan.strategy.sequence_parallel:
        return Unsupported(
            "AutoTP reduces whole activations; norms and residuals are not split (deepspeed/module_inject/layers.py)."
        )
    return {}


def _sharding(plan: Plan) -> Entries | Unsupported:
    stage = _stage(plan)
    if stage == Sharding.NONE and plan.facts.workload.precision.name == "bf16":
        return Unsupported(KEEPS_FP32)
    return {"zero_optimization.stage": stage}


def _recompute(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.recompute == Recompute.NONE:
        return {}
    if plan.strategy.recompute != Recompute.FULL:
        return Unsupported(
            "The JSON knows checkpoints of whole layers only (deepspeed/runtime/activation_checkpointing/config.py)."
        )
    return {
        "activation_checkpointing.number_checkpoints": plan.facts.model.num_layers,
        "activation_checkpointing.partition_activations": False,
        "activation_checkpointing.cpu_checkpointing": plan.strategy.activation_offload,
    }


def _activation_offload(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.activation_offload and plan.strategy.recompute != Recompute.FULL:
        return Unsupported(
            "Only the inputs of recomputed layers go to the host (cpu_checkpointing, "
            "deepspeed/runtime/activation_checkpointing/config.py)."
        )
    return {}


def _optimizer_offload(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if not strategy.optimizer_offload:
        return {}
    if strategy.tp > 1 and strategy.ep > 1:
        return Unsupported(
            "Spread experts with tensor parallelism exclude it (deepspeed/module_inject/auto_ep_folding.py)."
        )
    if _stage(plan) == Sharding.NONE:
        return Unsupported("It needs ZeRO, stage 1 at least (deepspeed/runtime/zero/config.py, offload_optimizer).")
    return {
        "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.offload_optimizer.pin_memory": True,
    }


def _tp_overlap(plan: Plan) -> Entries:
    return {"tensor_parallel.tp_overlap_comm": plan.strategy.tp_overlap} if plan.strategy.tp > 1 else {}


def _dp_overlap(plan: Plan) -> Entries | Unsupported:
    strategy, stage = plan.strategy, _stage(plan)
    if not strategy.dp_overlap:
        ahead = {"zero_optimization.stage3_prefetch_bucket_size": 0} if stage == Sharding.WEIGHTS else {}
        return {"zero_optimization.overlap_comm": False, **ahead}
    if stage == Sharding.NONE:
        return Unsupported("Without ZeRO gradients are reduced after the backward pass (deepspeed/runtime/engine.py).")
    if _has_bf16_optimizer(plan):
        return Unsupported(
            "Stage 1 in bf16 with FP32 gradients is BF16_Optimizer, which reduces after the backward pass "
            "(deepspeed/runtime/engine.py:2305,2611)."
        )
    return {"zero_optimization.overlap_comm": True}


# --- settings ----------------------------------------------------------------------------------------------


def _has_bf16_optimizer(plan: Plan) -> bool:
    """Tell whether DeepSpeed uses BF16_Optimizer: stage 1, bf16, FP32 gradients (deepspeed/runtime/engine.py:2305)."""
    is_bf16 = plan.facts.workload.precision.name == "bf16"
    in_fp32 = effective_settings(plan).gradient_dtype in ("fp32", "bf16+fp32")
    return is_bf16 and in_fp32 and _stage(plan) == Sharding.OPTIMIZER and not plan.strategy.optimizer_offload


def _gradient_dtype(plan: Plan) -> Entries | Unsupported:
    """
    Return the options of the gradients' dtype.

    BF16_Optimizer reduces its FP32 gradients; it also keeps 16-bit ones unless they are accumulated immediately.
    """
    given, half = effective_settings(plan).gradient_dtype, plan.facts.workload.precision.name
    if given not in ("fp32", "bf16+fp32", half):
        return Unsupported(f"Gradients are {half}, as the weights are, or FP32 (deepspeed/runtime/engine.py:1799).")
    if _has_bf16_optimizer(plan):
        at_once = {"bf16.immediate_grad_update": True} if given == "fp32" else {}
        return {"data_types.grad_accum_dtype": "fp32", **at_once}
    if given == "bf16+fp32":
        return Unsupported(
            "Both are BF16_Optimizer's: stage 1 in bf16, optimizer states not offloaded "
            "(deepspeed/runtime/engine.py:2305)."
        )
    if given == "fp32" and _stage(plan) == Sharding.NONE:
        return Unsupported(
            "Without ZeRO gradients accumulate in the weights' dtype (deepspeed/runtime/engine.py:2323)."
        )
    reduced = {"communication_data_type": "fp32"} if given == "fp32" else {}
    return {} if _stage(plan) == Sharding.NONE else {"data_types.grad_accum_dtype": given, **reduced}


def _write_offloaded_states(plan: Plan) -> Entries | Unsupported:
    """Return the ratio of offloaded optimizer states, which stage 3 alone has."""
    fraction = effective_settings(plan).offloaded_states
    if fraction == 1:
        return {}
    if _stage(plan) != Sharding.WEIGHTS:
        return Unsupported("offload_optimizer.ratio is of stage 3 (deepspeed/runtime/zero/offload_config.py).")
    return {"zero_optimization.offload_optimizer.ratio": fraction}


DECISION_OPTIONS: dict[str, FieldOptions] = {
    "tp": _tp,
    "cp": only(
        1,
        "Context parallelism is set up by the training script (Ulysses, deepspeed/runtime/sequence_parallel), and is "
        "another one: it splits heads.",
    ),
    "pp": only(1, PIPELINES_ARE_CODE),
    "dp": _dp,
    "ep": _ep,
    "etp": _etp,
    "vpp": only(1, PIPELINES_ARE_CODE),
    "group": only(1, PIPELINES_ARE_CODE),
    "mbs": _mbs,
    "sequence_parallel": _sequence_parallel,
    "schedule": only(Schedule.ONE_F_ONE_B, PIPELINES_ARE_CODE),
    "vocabulary": only(Vocabulary.ENDS, PIPELINES_ARE_CODE),
    "sharding": _sharding,
    "recompute": _recompute,
    "activation_offload": _activation_offload,
    "optimizer_offload": _optimizer_offload,
    "token_dispatcher": only(
        TokenDispatcher.ALLTOALL,
        "Tokens go by an all-to-all (deepspeed/module_inject/auto_ep_config.py has no key for another way).",
    ),
    "cuda_graphs": only(
        CudaGraphs.NONE, "Training has none (enable_cuda_graph is inference's, deepspeed/inference/config.py)."
    ),
    "tp_overlap": _tp_overlap,
    "cp_overlap": only(False, "There is no context parallelism in the JSON."),
    "ep_overlap": only(
        False, "Tokens are sent and awaited (deepspeed/module_inject/auto_ep_config.py has no key for another order)."
    ),
    "pp_overlap": only(False, PIPELINES_ARE_CODE),
    "dp_overlap": _dp_overlap,
    "layout": only(None, PIPELINES_ARE_CODE),
}
"""DeepSpeed's options for each field of a strategy."""

NO_FP8 = "There is no FP8 (runtime/precision_config.py)."

SETTINGS: dict[str, FieldOptions] = {
    "gradient_dtype": _gradient_dtype,
    "weight_dtype": only(
        "recipe",
        "Ranks hold 16-bit weights beside the FP32 ones of the optimizer (deepspeed/runtime/zero/stage_1_and_2.py).",
    ),
    "moments_dtype": only(
        "fp32", "bf16_optimizer_states needs master weights in 16 bits too (deepspeed/runtime/config.py:714)."
    ),
    "fp8_param_gather": only(False, NO_FP8),
    "first_layers_bf16": only(0, NO_FP8),
    "last_layers_bf16": only(0, NO_FP8),
    "fp8_attention": only(False, NO_FP8),
    "shared_expert_overlap": only(
        False, "Shared experts run after the dispatch (deepspeed/module_inject/auto_ep_config.py has no key for it)."
    ),
    "delay_wgrad": only(False, "Weight gradients come with the backward pass, always."),
    "communication_sms": only(None, "Tokens go by an all-to-all of NCCL."),
    **dict.fromkeys(("cp_comm_type", "cp_a2a_ranks"), only(None, "There is no context parallelism in the JSON.")),
    "offloaded_layers": only(None, "Activations stay in device memory."),
    "offloaded_states": _write_offloaded_states,
    "offloaded_masters": only(True, "FP32 weights go with the moments (deepspeed/runtime/zero/stage_1_and_2.py)."),
    "offload_overlap": only(
        False, "Weights go back when all are updated (deepspeed/runtime/zero/stage_1_and_2.py, step)."
    ),
    "host_threads": no_options,  # a variable of the environment
    "optimizer_group": only(
        "all",
        "Groups share weights beside what all ranks share (zero_hpz_partition_size, mics_shard_size, "
        "deepspeed/runtime/zero/config.py), never optimizer states alone.",
    ),
    "optimizer": only("adam", "Its Muon is another one, in the training script (deepspeed/runtime/zero/muon)."),
    "muon_tp_mode": no_options,  # refused with Muon
    "muon_num_ns_steps": no_options,
    **MODELS_OWN,
    "allocator": no_options,  # a variable of the environment
    "launches": no_options,  # a variable of the environment
    "composition": only("step", NO_STEP),
}
"""DeepSpeed's options for each setting."""

ANSWERS = Answers(target=TARGET, decisions=DECISION_OPTIONS, settings=SETTINGS, require_job=_precision)
"""DeepSpeed's answers for decisions, settings and the job."""


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
