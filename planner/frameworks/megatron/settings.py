"""The precision and the settings of the framework as options of Megatron-LM."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.facts.cluster import Cluster
from costmodel.lowering.recompute import recomputes
from costmodel.strategy import Recompute, Sharding, TokenDispatcher
from planner.frameworks.planned import Plan
from planner.frameworks.target import (
    NO_STEP,
    Choice,
    Entries,
    FieldOptions,
    Unsupported,
    effective_settings,
    no_options,
    only,
    require_precision,
    switch,
)

PRECISIONS: dict[str, Entries] = {
    "bf16": {"--bf16": True},
    "fp16": {"--fp16": True},
    "fp8": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "delayed"},
    "fp8_current": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "fp8_blockwise": {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "blockwise"},
    "mxfp8": {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "nvfp4": {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}
"""Options by the name of a precision in the catalog; dtypes of stored and sent tensors are settings."""

OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Every module that can be offloaded (megatron/core/transformer/transformer_config.py:1273, megatron-core 0.16.1)."""

DISTRIBUTED: Entries = {"--use-distributed-optimizer": True}

NUM_SMS = {"deepep": "--moe-deepep-num-sms", "hybridep": "--moe-hybridep-num-sms"}
"""Option for the SMs of each dispatcher's kernels."""


def precision_entries(plan: Plan, target: str) -> Entries:
    """Return the options of a precision, or refuse one without options."""
    problem = f"{target} has no options for '{{name}}'{{own}}."
    return PRECISIONS[require_precision(plan, PRECISIONS, problem, f"It has them for: {', '.join(PRECISIONS)}.")]


def offloadable(*, experts_recomputed: bool) -> list[str]:
    """Return the modules whose activations are kept, and so can be offloaded."""
    dropped = ("expert_fc1", "moe_act") if experts_recomputed else ()
    return [name for name in OFFLOADED if name not in dropped]


def shares_by_layers(plan: Plan) -> bool:
    """Tell whether ranks that share optimizer states hold whole matrices, not slices of a flat buffer."""
    return effective_settings(plan).optimizer == "dist_muon"


def offloads_whole_layers(plan: Plan) -> bool:
    """Tell whether Megatron-LM can offload activations by layers: without pipeline and without recomputation."""
    return plan.strategy.pp == 1 and plan.strategy.recompute == Recompute.NONE


def num_offloaded_layers(plan: Plan) -> int:
    """Value of ``--cpu-offloading-num-layers``: at most all layers but the last, whose backward pass comes first."""
    num_layers = plan.facts.model.num_layers
    return min(effective_settings(plan).offloaded_layers or num_layers, num_layers - 1)


def context_exchange(cluster: Cluster) -> str:
    """Value of ``--cp-comm-type`` that is costed: an all-to-all, which keeps its output twice, or a ring."""
    return "a2a" if cluster.device.behaviour.memory.context_output else "p2p"


def _replicas(plan: Plan) -> int:
    return plan.strategy.dp * plan.strategy.cp


def _add_distributed_optimizer(plan: Plan, entries: Entries, source: str) -> Entries | Unsupported:
    """Return options with the distributed optimizer that they need; with one replica it has no costs."""
    if plan.strategy.sharding > Sharding.NONE:
        return entries
    if _replicas(plan) == 1:
        return {**DISTRIBUTED, **entries}
    return Unsupported(f"it needs the distributed optimizer (sharding: optimizer) or Megatron-FSDP ({source}).")


# --- numbers -----------------------------------------------------------------------------------------------


def _gradient_dtype_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of gradients; the default is FP32 for BF16, FP16 for FP16 (arguments.py, validate_args)."""
    given, is_fp16 = effective_settings(plan).gradient_dtype, plan.facts.workload.precision.compute == "fp16"
    known: dict[str, Entries] = {
        "fp32": {"--accumulate-allreduce-grads-in-fp32": True} if is_fp16 else {},
        "fp16" if is_fp16 else "bf16": {} if is_fp16 else {"--grad-reduce-in-bf16": True},
    }
    assert given is not None
    if given in known:
        return known[given]
    return Unsupported(
        "gradients have one buffer, of the weights' dtype or of FP32 (grad_reduce_in_fp32, "
        "megatron/core/distributed/distributed_data_parallel_config.py:11)."
    )


def _moments_dtype_options(plan: Plan) -> Entries | Unsupported:
    moments = effective_settings(plan).moments_dtype
    if moments == "fp32":
        return {}
    if plan.strategy.optimizer_offload:
        return Unsupported(
            "moments in host memory are FP32 (megatron/core/optimizer/cpu_offloading has no option for them)."
        )
    options = {"--use-precision-aware-optimizer": True, "--exp-avg-dtype": moments, "--exp-avg-sq-dtype": moments}
    return _add_distributed_optimizer(plan, options, "megatron/core/optimizer/optimizer_config.py:381")


def _fp8_param_gather_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of gathering 8-bit weights; MXFP8 reuses the gradient buffer, which Megatron-FSDP lacks."""
    if not effective_settings(plan).fp8_param_gather:
        return {}
    reuses = plan.facts.workload.precision.name == "mxfp8" and plan.strategy.sharding < Sharding.GRADIENTS
    options: Entries = {"--fp8-param-gather": True, **({"--reuse-grad-buf-for-mxfp8-param-ag": True} if reuses else {})}
    return _add_distributed_optimizer(plan, options, "megatron/training/arguments.py, validate_args")


# --- the optimizer -----------------------------------------------------------------------------------------


def _optimizer_options(plan: Plan) -> Entries | Unsupported:
    """
    Return the option of the optimizer; ``dist_muon`` excludes all options of the distributed optimizer.

    References
    ----------
    megatron-core 0.16.1, optimizer/layer_wise_optimizer.py:25, optimizer/muon.py:190.
    """
    settings, strategy = effective_settings(plan), plan.strategy
    if settings.optimizer == "adam":
        return {}
    if strategy.sharding > Sharding.OPTIMIZER:
        return Unsupported(
            "it shares optimizer states only, not gradients (megatron/core/optimizer/layer_wise_optimizer.py:30)."
        )
    if strategy.sharding == Sharding.NONE and _replicas(plan) > 1:
        return Unsupported("it shares optimizer states (sharding: optimizer), always (layer_wise_optimizer.py:29).")
    if plan.facts.workload.precision.compute == "fp16":
        return Unsupported("muon with fp16 is not supported (megatron/core/optimizer/muon.py:196).")
    excluding = {
        "dp_overlap": strategy.dp_overlap,
        "optimizer_offload": strategy.optimizer_offload,
        "settings.moments_dtype": settings.moments_dtype != "fp32",
        "settings.fp8_param_gather": bool(settings.fp8_param_gather),
        "settings.optimizer_group": settings.optimizer_group != "all",
    }
    excluded = [name for name, is_on in excluding.items() if is_on]
    if excluded:
        return Unsupported(
            f"it excludes {', '.join(excluded)}, which are the distributed optimizer's "
            "(megatron/core/optimizer/muon.py:193, layer_wise_optimizer.py:30)."
        )
    return {"--optimizer": "dist_muon"}


def _optimizer_group_options(plan: Plan) -> Entries | Unsupported:
    """Return the number of optimizer instances, which is one option for dense weights and experts."""
    group, strategy, ranks = effective_settings(plan).optimizer_group, plan.strategy, _replicas(plan)
    if not isinstance(group, int):
        return {}
    if ranks % group:
        return Unsupported(f"it divides the {ranks} replicas (megatron/core/parallel_state.py:833).")
    instances = ranks // group
    if plan.facts.model.has_experts:
        experts = strategy.tp * ranks // (strategy.ep * strategy.etp)
        if experts % instances or experts // instances != min(experts, group):
            return Unsupported(
                f"experts have {experts} replicas, which are divided over as many instances, {instances}, and so not "
                f"shared by {min(experts, group)} (megatron/core/parallel_state.py:1264)."
            )
    return {"--num-distributed-optimizer-instances": instances}


# --- layers ------------------------------------------------------------------------------------------------


def _shared_expert_overlap_options(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if not effective_settings(plan).shared_expert_overlap:
        return {}
    if strategy.token_dispatcher != TokenDispatcher.ALLTOALL:
        return Unsupported("it works with the alltoall dispatcher only (transformer_config.py:1090).")
    if strategy.ep_overlap:
        return Unsupported("ep_overlap excludes it (transformer_config.py:1887).")
    if recomputes("shared_experts", recompute=strategy.recompute) and strategy.recompute != Recompute.FULL:
        return Unsupported("recomputed shared experts exclude it (transformer_config.py:1235).")
    return {"--moe-shared-expert-overlap": True}


def _delay_wgrad_options(plan: Plan) -> Entries | Unsupported:
    if not effective_settings(plan).delay_wgrad:
        return {}
    if not plan.strategy.ep_overlap:
        return Unsupported("it needs ep_overlap (transformer_config.py:1909).")
    return {"--delay-wgrad-compute": True}


def _communication_sms_options(plan: Plan) -> Entries | Unsupported:
    """Return the option for the SMs of a dispatcher's kernels; without it they use their release's default."""
    number, option = effective_settings(plan).communication_sms, NUM_SMS.get(plan.strategy.token_dispatcher.text)
    if number is None:
        return {}
    return {option: number} if option else Unsupported("there is no option for the processors of this dispatcher.")


def _offloaded_layers_options(plan: Plan) -> Entries | Unsupported:
    """Refuse a number of offloaded layers where modules are offloaded; the option comes with the decision itself."""
    if effective_settings(plan).offloaded_layers is None or offloads_whole_layers(plan):
        return {}
    return Unsupported(
        "only whole layers are counted, without pipeline and recomputation; --offload-modules are those of every layer "
        "(transformer_config.py:1144,1149,1268)."
    )


def _offloaded_states_options(plan: Plan) -> Entries:
    """Return the share of offloaded states; Bridge's default is 0 (megatron/core/optimizer/optimizer_config.py)."""
    if not plan.strategy.optimizer_offload:
        return {}
    return {"--optimizer-offload-fraction": effective_settings(plan).offloaded_states}


def _mtp_layers_options(plan: Plan) -> Entries | Unsupported:
    """Refuse multi-token prediction with learned positions; the number of layers is an option of the model."""
    if effective_settings(plan).mtp_layers and plan.facts.model.learned_positions:
        return Unsupported("with learned positions there is none (megatron/training/arguments.py, validate_args).")
    return {}


SETTINGS: Mapping[str, FieldOptions] = {
    "gradient_dtype": _gradient_dtype_options,
    "weight_dtype": only(
        "recipe",
        "ranks hold weights in the recipe's bits; those in FP32 are the optimizer's "
        "(megatron/core/optimizer/distrib_optimizer.py).",
    ),
    "moments_dtype": _moments_dtype_options,
    "fp8_param_gather": _fp8_param_gather_options,
    "mtp_layers": _mtp_layers_options,
    "shared_expert_overlap": _shared_expert_overlap_options,
    "delay_wgrad": _delay_wgrad_options,
    "communication_sms": _communication_sms_options,
    "offloaded_layers": _offloaded_layers_options,
    "offloaded_states": _offloaded_states_options,
    "offloaded_masters": only(
        True,
        "--optimizer-cpu-offload needs --use-precision-aware-optimizer, whose FP32 weights are the optimizer's "
        "(megatron/training/arguments.py, validate_args).",
    ),
    "offload_overlap": switch("--overlap-cpu-optimizer-d2h-h2d"),
    "host_threads": no_options,  # a variable of the environment
    "optimizer_group": _optimizer_group_options,
    "optimizer": _optimizer_options,
    "kernels": only(
        "fused",
        "norms, rotations and gated activations are fused kernels of Transformer Engine; each has a switch of its own.",
    ),
    "attention": Choice({"flash": {}, "unfused": {"--attention-backend": "unfused"}}),
    # The other fusion, ``native``, works in FP32 as the unfused loss does, and is costed as that.
    "loss": Choice(
        {"fused": {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}, "unfused": {}}
    ),
    "allocator": no_options,  # a variable of the environment
    "launches": no_options,  # a variable of the environment
    "composition": only("step", NO_STEP),
}
"""Megatron-LM's options for each setting."""
