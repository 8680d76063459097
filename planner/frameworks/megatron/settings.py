"""The precision and the settings of the framework as options of Megatron-LM, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.errors import SpecError
from costmodel.facts.device import Cluster
from costmodel.lowering.framework import MUON
from costmodel.lowering.layer import recomputes
from costmodel.strategy import Recompute, Sharding, Strategy, TokenDispatcher
from planner.frameworks.megatron.options import WHERE, Arguments
from planner.frameworks.target import (
    NO_STEP,
    Choice,
    Entries,
    Entry,
    FieldOptions,
    Known,
    Plan,
    Reader,
    Unsupported,
    effective_settings,
    no_options,
    only,
    reads_switch,
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

OFFLOAD, FRACTION = "--optimizer-cpu-offload", "--optimizer-offload-fraction"
OFFLOAD_OVERLAP = "--overlap-cpu-optimizer-d2h-h2d"

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
    return effective_settings(plan).optimizer in MUON


def offloads_whole_layers(plan: Plan) -> bool:
    """Tell whether Megatron-LM can offload activations by layers: without pipeline and without recomputation."""
    return plan.strategy.pp == 1 and plan.strategy.recompute == Recompute.NONE


def num_offloaded_layers(plan: Plan) -> int:
    """Value of ``--cpu-offloading-num-layers``: at most all layers but the last, whose backward pass comes first."""
    num_layers = plan.facts.model.num_layers
    return min(effective_settings(plan).offloaded_layers or num_layers, num_layers - 1)


def context_exchange(cluster: Cluster) -> str:
    """Value of ``--cp-comm-type`` that is costed: the setting's, else an all-to-all if output is kept twice."""
    behaviour = cluster.device.behaviour
    return behaviour.communication.cp_comm_type or ("a2a" if behaviour.memory.context_output else "p2p")


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


def _read_gradient_dtype(arguments: Arguments, known: Known, notes: list[str]) -> str:
    """
    Return the dtype of gradients.

    The default is FP32 for BF16 weights and FP16 for FP16 weights; Megatron-FSDP has an option of its own.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: ``accumulate_allreduce_grads_in_fp32``.
    """
    own = arguments.get("--megatron-fsdp-main-grads-dtype", "auto")
    if own != "auto":
        return str(own)
    if "--accumulate-allreduce-grads-in-fp32" in arguments:
        return "fp32"
    if "--fp16" in arguments:
        return "fp16"
    narrow = "--grad-reduce-in-bf16" in arguments or arguments.get("--main-grads-dtype") == "bf16"
    return "bf16" if narrow else "fp32"


def _moments_dtype_options(plan: Plan) -> Entries | Unsupported:
    moments = effective_settings(plan).moments_dtype
    if moments == "fp32":
        return {}
    if plan.strategy.optimizer_offload:
        return Unsupported(
            "moments in host memory are FP32 (megatron/core/optimizer/cpu_offloading has no option for them)."
        )
    options: Entries = {"--use-precision-aware-optimizer": True, **dict.fromkeys(MOMENTS, moments)}
    return _add_distributed_optimizer(plan, options, "megatron/core/optimizer/optimizer_config.py:381")


MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")


def _read_moments_dtype(arguments: Arguments, known: Known, notes: list[str]) -> str:
    given = [arguments.get(name, "fp32") for name in MOMENTS]
    if given in (["fp32"] * 2, ["bf16"] * 2):
        return str(given[0])
    costed = "fp32" if "fp32" in given else "bf16"
    notes.append(f"Moments are {' and '.join(given)}: costed as {costed}.")
    return costed


def _fp8_param_gather_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of gathering 8-bit weights; MXFP8 reuses the gradient buffer, which Megatron-FSDP lacks."""
    if not effective_settings(plan).fp8_param_gather:
        return {}
    reuses = plan.facts.workload.precision.name == "mxfp8" and plan.strategy.sharding < Sharding.GRADIENTS
    options: Entries = {"--fp8-param-gather": True, **({"--reuse-grad-buf-for-mxfp8-param-ag": True} if reuses else {})}
    return _add_distributed_optimizer(plan, options, "megatron/training/arguments.py, validate_args")


WIDE = "--first-last-layers-bf16"
WIDE_NUMBERS = {
    "first_layers_bf16": "--num-layers-at-start-in-bf16",
    "last_layers_bf16": "--num-layers-at-end-in-bf16",
}
"""Options of the number of layers in BF16 at either end of a model in 8 or 4 bits, by setting."""


def _wide_layers_options(plan: Plan) -> Entries | Unsupported:
    settings = effective_settings(plan)
    numbers: Entries = {option: getattr(settings, name) for name, option in WIDE_NUMBERS.items()}
    if not any(numbers.values()):
        return {}
    if plan.facts.workload.precision.name == "fp8":
        return Unsupported("delayed scaling has none (megatron/core/transformer/transformer_config.py:990).")
    return {WIDE: True, **numbers}


def _reads_wide_layers(name: str) -> Reader:
    """Return a reader of the layers at one end, 1 unless an option says otherwise; None without the switch."""

    def read(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
        option = WIDE_NUMBERS[name]
        if WIDE in arguments:
            return int(arguments.get(option, 1))
        if arguments.get(option, 1) != 1:
            notes.append(f"{option} is not used without {WIDE}.")
        return None

    return read


# --- the optimizer -----------------------------------------------------------------------------------------


def _optimizer_options(plan: Plan) -> Entries | Unsupported:
    """
    Return the option of the optimizer; Muon excludes all other options of the distributed optimizer.

    Its placement is that of the optimizer states, which releases before core 0.18 call ``dist_muon``.

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
    if settings.optimizer == "dist_muon" and strategy.sharding == Sharding.NONE and _replicas(plan) > 1:
        return Unsupported("it shares optimizer states (sharding: optimizer), always (layer_wise_optimizer.py:29).")
    if plan.facts.workload.precision.compute == "fp16":
        return Unsupported("muon with fp16 is not supported (megatron/core/optimizer/muon.py:196).")
    is_alone = settings.optimizer == "muon" and strategy.sharding == Sharding.NONE
    excluding = {
        "dp_overlap": strategy.dp_overlap and is_alone,
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
    return {"--optimizer": settings.optimizer, **(DISTRIBUTED if settings.optimizer == "muon" and not is_alone else {})}


def _read_optimizer(arguments: Arguments, known: Known, notes: list[str]) -> str:
    """Return the optimizer, whose placement is read as sharding."""
    given = str(arguments.get("--optimizer", "adam"))
    if given == "adaptive_muon":
        notes.append("--optimizer adaptive_muon: costed as muon, without its second moment.")
    given = given.removeprefix("adaptive_")
    if given in MUON:
        notes.extend(f"{name}: {note}" for name, note in NOT_COSTED.items() if _is_unusual(arguments, name))
        return given
    if given != "adam":
        notes.append(f"--optimizer {given}: costed as Adam, with two moments.")
    options = [name for name in (*NOT_COSTED, *USUAL) if _is_unusual(arguments, name)]
    notes.extend(f"{name} is not used: --optimizer is {given}." for name in dict.fromkeys(options))
    return "adam"


NOT_COSTED = {
    "--muon-no-split-qkv": "queries, keys and values are costed as matrices of their own.",
    "--muon-fp32-matmul-prec": "costed as medium, whose Newton-Schulz steps are in BF16.",
    "--muon-use-syrk": "costed without it: with it, symmetric products of Newton-Schulz steps take about half.",
    "--muon-scalar-optimizer": "costed as adam, with two moments.",
}
"""Options of Muon that change its cost, and how they are costed."""

USUAL_STEPS = 5

USUAL = {
    "--muon-fp32-matmul-prec": "medium",
    "--muon-scalar-optimizer": "adam",
    "--muon-tp-mode": "blockwise",
    "--muon-num-ns-steps": USUAL_STEPS,
}
"""Defaults of options of Muon, which a block of printed arguments holds."""


def _is_unusual(arguments: Arguments, name: str) -> bool:
    return name in arguments and arguments[name] != USUAL.get(name)


def _muon_tp_mode_options(plan: Plan) -> Entries | Unsupported:
    """Return the mode, whose default differs between releases: ``duplicated`` since main of 2026-08-22."""
    mode = effective_settings(plan).muon_tp_mode
    if mode == "layer_sharded":
        return Unsupported("--muon-tp-mode has blockwise, duplicated and distributed (megatron/training/arguments.py).")
    return {"--muon-tp-mode": mode} if mode else {}


def _muon_steps_options(plan: Plan) -> Entries:
    steps = effective_settings(plan).muon_num_ns_steps
    return {} if steps in (None, USUAL_STEPS) else {"--muon-num-ns-steps": steps}


def _read_muon_tp_mode(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    if "muon" not in arguments.get("--optimizer", "adam"):
        return None
    if "--muon-tp-mode" not in arguments and arguments.get("--tensor-model-parallel-size", 1) > 1:
        notes.append("--muon-tp-mode is not said: blockwise, the default up to 0.19 (main: duplicated).")
    return str(arguments.get("--muon-tp-mode", "blockwise"))


def _read_muon_steps(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    return arguments.get("--muon-num-ns-steps") if "muon" in arguments.get("--optimizer", "adam") else None


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


def read_group(arguments: Arguments, strategy: Strategy) -> int | str:
    """
    Number of data-parallel ranks of one distributed optimizer instance; ``all`` with one instance or no sharding.

    Raises
    ------
    SpecError
        If the ranks are no multiple of the instances (megatron/core/parallel_state.py:833, megatron-core 0.16.1).
    """
    name = "--num-distributed-optimizer-instances"
    instances: int = arguments.get(name, 1)
    ranks = strategy.dp * strategy.cp
    if strategy.sharding == Sharding.NONE or instances == 1:
        return "all"
    if ranks % instances:
        raise SpecError(f"{WHERE}.{name}", f"is {instances}; {ranks} replicas are no multiple of it.")
    return ranks // instances


# --- layers ------------------------------------------------------------------------------------------------


def _write_shared_expert_overlap(plan: Plan) -> Entries | Unsupported:
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


def _read_communication_sms(arguments: Arguments, known: Known, notes: list[str]) -> Any:
    """Return the number of SMs of the dispatcher's kernels; without an option it is the framework's, with a note."""
    if arguments.get("--moe-token-dispatcher-type") != "flex":
        return None
    backend = arguments.get("--moe-flex-dispatcher-backend", "deepep")
    number = arguments.get(NUM_SMS.get(backend, ""), arguments.get("--moe-flex-dispatcher-num-sms"))
    if number is None and arguments.get("--expert-model-parallel-size", 1) > 1:
        notes.append(
            f"No option says the SMs of {backend}'s kernels: as many as cluster.framework has; "
            "settings.communication_sms=N says it."
        )
    return number


def _read_cp_comm_type(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    """Return the communication of context-parallel ranks if it is said, and of all layers the same."""
    given = {*arguments.get("--cp-comm-type", [])} if arguments.get("--context-parallel-size", 1) > 1 else set()
    return given.pop().replace("allgather", "all_gather") if len(given) == 1 else None


def _read_cp_a2a_ranks(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    """Return the near ranks of the hierarchical sizes, which come first."""
    sizes = arguments.get("--hierarchical-context-parallel-sizes")
    is_used = _read_cp_comm_type(arguments, known, notes) == "a2a+p2p"
    return int(sizes[0]) if sizes and is_used else None


def _write_offloaded_layers(plan: Plan) -> Entries | Unsupported:
    """Refuse a number of offloaded layers where modules are offloaded; the option comes with the decision itself."""
    if effective_settings(plan).offloaded_layers is None or offloads_whole_layers(plan):
        return {}
    return Unsupported(
        "only whole layers are counted, without pipeline and recomputation; --offload-modules are those of every layer "
        "(transformer_config.py:1144,1149,1268)."
    )


def _read_offloaded_layers(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    """Return the number of offloaded layers; all but the last is the maximum, which a job does not write."""
    layers: int = arguments.get("--cpu-offloading-num-layers", 0)
    return layers if 0 < layers < known["num_layers"] - 1 else None


def _write_offloaded_states(plan: Plan) -> Entries:
    """Return the share of offloaded states; Bridge's default is 0 (megatron/core/optimizer/optimizer_config.py)."""
    if not plan.strategy.optimizer_offload:
        return {}
    return {FRACTION: effective_settings(plan).offloaded_states}


def _read_offloaded_states(arguments: Arguments, known: Known, notes: list[str]) -> Any:
    """Return the share of offloaded states; the parser's default is all of them."""
    return arguments.get(FRACTION, 1.0) if OFFLOAD in arguments else None


def _read_offload_overlap(arguments: Arguments, known: Known, notes: list[str]) -> bool | None:
    return OFFLOAD_OVERLAP in arguments if OFFLOAD in arguments else None


def _read_host_threads(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    """Return the threads that the environment gives to offloaded states; each rank's share of the cores without."""
    threads = known["variables"].get("OMP_NUM_THREADS", "")
    if OFFLOAD not in arguments:
        return None
    if not threads.isdecimal():
        notes.append("OMP_NUM_THREADS is not said: each rank's share of the host's cores; settings.host_threads=N.")
        return None
    return int(threads) or None


def _mtp_layers_options(plan: Plan) -> Entries | Unsupported:
    """Refuse multi-token prediction with learned positions; the number of layers is an option of the model."""
    if effective_settings(plan).mtp_layers and plan.facts.model.learned_positions:
        return Unsupported("with learned positions there is none (megatron/training/arguments.py, validate_args).")
    return {}


def _read_attention(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    backend = arguments.get("--attention-backend")
    return None if backend is None else "unfused" if backend in ("unfused", "local") else "flash"


def _read_allocator(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    """Return the allocator, where the environment has it."""
    variables = known["variables"]
    value = variables.get("PYTORCH_CUDA_ALLOC_CONF", variables.get("PYTORCH_ALLOC_CONF"))
    if value is None:
        return None
    return "expandable" if "expandable_segments:true" in value.lower() else "segments"


def _read_launches(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    return "blocking" if known["variables"].get("CUDA_LAUNCH_BLOCKING") == "1" else None


def _read_loss(arguments: Arguments, known: Known, notes: list[str]) -> str:
    """Return the loss; the kind of fusion counts only with its switch, and ``native`` is the default."""
    implementation = arguments.get("--cross-entropy-fusion-impl", "native")
    if "--cross-entropy-loss-fusion" not in arguments:
        return "unfused"
    if implementation != "te":
        notes.append("--cross-entropy-loss-fusion, native: costed as the unfused loss, in FP32 as well.")
    return "fused" if implementation == "te" else "unfused"


ENTRIES: Mapping[str, Entry] = {
    "gradient_dtype": Entry(_gradient_dtype_options, _read_gradient_dtype),
    "weight_dtype": Entry(
        only(
            "recipe",
            "ranks hold weights in the recipe's bits; those in FP32 are the optimizer's "
            "(megatron/core/optimizer/distrib_optimizer.py).",
        )
    ),
    "moments_dtype": Entry(_moments_dtype_options, _read_moments_dtype),
    "fp8_param_gather": Entry(_fp8_param_gather_options, reads_switch("--fp8-param-gather")),
    **{name: Entry(_wide_layers_options, _reads_wide_layers(name)) for name in WIDE_NUMBERS},
    "fp8_attention": Entry(
        only(
            False, "it has no option (fp8_dot_product_attention, megatron/core/transformer/transformer_config.py:477)."
        )
    ),
    "mtp_layers": Entry(_mtp_layers_options, lambda arguments, known, _: arguments.get("--mtp-num-layers", 0)),
    "shared_expert_overlap": Entry(_write_shared_expert_overlap, reads_switch("--moe-shared-expert-overlap")),
    "delay_wgrad": Entry(_delay_wgrad_options, reads_switch("--delay-wgrad-compute")),
    "optimizer": Entry(_optimizer_options, _read_optimizer),
    "muon_tp_mode": Entry(_muon_tp_mode_options, _read_muon_tp_mode),
    "muon_num_ns_steps": Entry(_muon_steps_options, _read_muon_steps),
    # The other fusion, ``native``, works in FP32 as the unfused loss does, and is costed as that.
    "loss": Entry(
        Choice({"fused": {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}, "unfused": {}}),
        _read_loss,
    ),
    "loss_chunks": Entry(only(1, "all logits of a micro-batch exist at once (megatron/core/models/gpt/gpt_model.py).")),
    "communication_sms": Entry(_communication_sms_options, _read_communication_sms),
    "cp_comm_type": Entry(no_options, _read_cp_comm_type),  # written with cp_overlap
    "cp_a2a_ranks": Entry(no_options, _read_cp_a2a_ranks),
    "offloaded_layers": Entry(_write_offloaded_layers, _read_offloaded_layers),
    "offloaded_states": Entry(_write_offloaded_states, _read_offloaded_states),
    "offloaded_masters": Entry(
        only(
            True,
            "--optimizer-cpu-offload needs --use-precision-aware-optimizer, whose FP32 weights are the optimizer's "
            "(megatron/training/arguments.py, validate_args).",
        )
    ),
    "offload_overlap": Entry(switch(OFFLOAD_OVERLAP), _read_offload_overlap),
    "host_threads": Entry(no_options, _read_host_threads),  # a variable of the environment
    "attention": Entry(Choice({"flash": {}, "unfused": {"--attention-backend": "unfused"}}), _read_attention),
    "allocator": Entry(no_options, _read_allocator),  # a variable of the environment
    "launches": Entry(no_options, _read_launches),  # a variable of the environment
    "optimizer_group": Entry(_optimizer_group_options),  # read with the strategy, by read_group
    "kernels": Entry(
        only(
            "fused",
            "norms, rotations and gated activations are fused kernels of Transformer Engine; each has a switch of its "
            "own.",
        )
    ),
    "composition": Entry(only("step", NO_STEP)),
}
"""Megatron-LM's options for each setting, written and read."""

SETTINGS: Mapping[str, FieldOptions] = {name: entry.write for name, entry in ENTRIES.items()}
"""Megatron-LM's options for each setting."""


def read_settings(
    arguments: Arguments, variables: Mapping[str, str], num_layers: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Return the settings of a job and notes on assumptions; optimizer groups are read by :func:`read_group`.

    Parameters
    ----------
    arguments
        Values by option.
    variables
        Environment variables.
    num_layers
        Layers of the model; all but one may be offloaded.
    """
    notes: list[str] = []
    known = {"variables": variables, "num_layers": num_layers}
    found = {name: entry.value(arguments, known, notes) for name, entry in ENTRIES.items()}
    return {name: value for name, value in found.items() if value is not None}, tuple(notes)
