"""The precision and the settings of the framework as options of Megatron-LM, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from constraints.targets import effective_settings
from costmodel.errors import SpecError
from costmodel.facts.device import Cluster
from costmodel.lowering.framework import MUON
from costmodel.strategy import Recompute, Sharding, Strategy
from planner.frameworks.megatron.options import WHERE, Arguments
from planner.frameworks.target import (
    Entries,
    Entry,
    Known,
    Reader,
    num_sharing_groups,
    reads_switch,
    switch,
)

if TYPE_CHECKING:
    from planner.results import Plan

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

SHARED_OVERLAP = "--moe-shared-expert-overlap"

NUM_SMS = {"deepep": "--moe-deepep-num-sms", "hybridep": "--moe-hybridep-num-sms"}
"""Option for the SMs of each dispatcher's kernels."""


def offloadable(*, experts_recomputed: bool) -> list[str]:
    """Return the modules whose activations are kept, and so can be offloaded."""
    dropped = ("expert_fc1", "moe_act") if experts_recomputed else ()
    return [name for name in OFFLOADED if name not in dropped]


def shares_by_layers(plan: Plan) -> bool:
    """Tell whether ranks that share optimizer states hold whole matrices, not slices of a flat buffer."""
    return effective_settings(plan.facts, plan.strategy).optimizer in MUON


def offloads_whole_layers(plan: Plan) -> bool:
    """Tell whether Megatron-LM can offload activations by layers: without pipeline and without recomputation."""
    return plan.strategy.pp == 1 and plan.strategy.recompute == Recompute.NONE


def num_offloaded_layers(plan: Plan) -> int:
    """Value of ``--cpu-offloading-num-layers``: at most all layers but the last, whose backward pass comes first."""
    num_layers = plan.facts.model.num_layers
    return min(effective_settings(plan.facts, plan.strategy).offloaded_layers or num_layers, num_layers - 1)


def context_exchange(cluster: Cluster) -> str:
    """Value of ``--cp-comm-type`` that is costed: the setting's, else an all-to-all if output is kept twice."""
    behaviour = cluster.device.behaviour
    return behaviour.communication.cp_comm_type or ("a2a" if behaviour.memory.context_output else "p2p")


def _add_distributed_optimizer(plan: Plan, entries: Entries) -> Entries:
    """Return options with the distributed optimizer that they need; with one replica it has no costs."""
    return entries if plan.strategy.sharding > Sharding.NONE else {**DISTRIBUTED, **entries}


# --- numbers -----------------------------------------------------------------------------------------------


def _gradient_dtype_options(plan: Plan, given: str) -> Entries:
    """Return the options of gradients; the default is FP32 for BF16, FP16 for FP16 (arguments.py, validate_args)."""
    if plan.facts.workload.precision.compute == "fp16":
        return {"--accumulate-allreduce-grads-in-fp32": True} if given == "fp32" else {}
    return {} if given == "fp32" else {"--grad-reduce-in-bf16": True}


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


def _moments_dtype_options(plan: Plan, moments: str) -> Entries:
    options: Entries = {"--use-precision-aware-optimizer": True, **dict.fromkeys(MOMENTS, moments)}
    return {} if moments == "fp32" else _add_distributed_optimizer(plan, options)


MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")


def _read_moments_dtype(arguments: Arguments, known: Known, notes: list[str]) -> str:
    given = [arguments.get(name, "fp32") for name in MOMENTS]
    if given in (["fp32"] * 2, ["bf16"] * 2):
        return str(given[0])
    costed = "fp32" if "fp32" in given else "bf16"
    notes.append(f"Moments are {' and '.join(given)}: costed as {costed}.")
    return costed


def _fp8_param_gather_options(plan: Plan, gathers: bool) -> Entries:
    """Return the options of gathering 8-bit weights; MXFP8 reuses the gradient buffer, which Megatron-FSDP lacks."""
    if not gathers:
        return {}
    reuses = plan.facts.workload.precision.name == "mxfp8" and plan.strategy.sharding < Sharding.GRADIENTS
    options: Entries = {"--fp8-param-gather": True, **({"--reuse-grad-buf-for-mxfp8-param-ag": True} if reuses else {})}
    return _add_distributed_optimizer(plan, options)


WIDE = "--first-last-layers-bf16"
WIDE_NUMBERS = {
    "first_layers_bf16": "--num-layers-at-start-in-bf16",
    "last_layers_bf16": "--num-layers-at-end-in-bf16",
}
"""Options of the number of layers in BF16 at either end of a model in 8 or 4 bits, by setting."""


def _wide_layers_options(plan: Plan, number: int) -> Entries:
    settings = effective_settings(plan.facts, plan.strategy)
    numbers: Entries = {option: getattr(settings, name) for name, option in WIDE_NUMBERS.items()}
    return {WIDE: True, **numbers} if any(numbers.values()) else {}


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


def _optimizer_options(plan: Plan, optimizer: str) -> Entries:
    """
    Return the option of the optimizer; Muon excludes all other options of the distributed optimizer.

    Its placement is that of the optimizer states, which releases before core 0.18 call ``dist_muon``.

    References
    ----------
    megatron-core 0.16.1, optimizer/layer_wise_optimizer.py:25, optimizer/muon.py:190.
    """
    if optimizer == "adam":
        return {}
    is_alone = optimizer == "muon" and plan.strategy.sharding == Sharding.NONE
    return {"--optimizer": optimizer, **(DISTRIBUTED if optimizer == "muon" and not is_alone else {})}


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
    "--muon-no-split-qkv": "queries, keys and values are costed as separate matrices.",
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


def _read_muon_tp_mode(arguments: Arguments, known: Known, notes: list[str]) -> str | None:
    if "muon" not in arguments.get("--optimizer", "adam"):
        return None
    if "--muon-tp-mode" not in arguments and arguments.get("--tensor-model-parallel-size", 1) > 1:
        notes.append("--muon-tp-mode is not said: blockwise, the default up to 0.19 (main: duplicated).")
    return str(arguments.get("--muon-tp-mode", "blockwise"))


def _read_muon_steps(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    return arguments.get("--muon-num-ns-steps") if "muon" in arguments.get("--optimizer", "adam") else None


def _optimizer_group_options(plan: Plan, group: int | str) -> Entries:
    """Return the number of optimizer instances, which is one option for dense weights and experts."""
    instances = num_sharing_groups(plan)
    return {"--num-distributed-optimizer-instances": instances} if instances > 1 else {}


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


def _communication_sms_options(plan: Plan, number: int | None) -> Entries:
    """Return the option for the SMs of a dispatcher's kernels; without it they use their release's default."""
    return {} if number is None else {NUM_SMS[plan.strategy.token_dispatcher.text]: number}


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


def _read_offloaded_layers(arguments: Arguments, known: Known, notes: list[str]) -> int | None:
    """Return the number of offloaded layers; all but the last is the maximum, which a job does not write."""
    layers: int = arguments.get("--cpu-offloading-num-layers", 0)
    return layers if 0 < layers < known["num_layers"] - 1 else None


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
    "moments_dtype": Entry(_moments_dtype_options, _read_moments_dtype),
    "fp8_param_gather": Entry(_fp8_param_gather_options, reads_switch("--fp8-param-gather")),
    **{name: Entry(_wide_layers_options, _reads_wide_layers(name)) for name in WIDE_NUMBERS},
    "mtp_layers": Entry({}, lambda arguments, known, _: arguments.get("--mtp-num-layers", 0)),  # written with the model
    "shared_expert_overlap": Entry(switch(SHARED_OVERLAP), reads_switch(SHARED_OVERLAP)),
    "delay_wgrad": Entry(switch("--delay-wgrad-compute"), reads_switch("--delay-wgrad-compute")),
    "optimizer": Entry(_optimizer_options, _read_optimizer),
    "muon_tp_mode": Entry(
        # Its default differs between releases: duplicated since main of 2026-08-22.
        lambda plan, mode: {"--muon-tp-mode": mode} if mode else {},
        _read_muon_tp_mode,
    ),
    "muon_num_ns_steps": Entry(
        lambda plan, steps: {} if steps in (None, USUAL_STEPS) else {"--muon-num-ns-steps": steps}, _read_muon_steps
    ),
    # The other fusion, ``native``, works in FP32 as the unfused loss does, and is costed as that.
    "loss": Entry(
        {"fused": {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}, "unfused": {}},
        _read_loss,
    ),
    "communication_sms": Entry(_communication_sms_options, _read_communication_sms),
    "cp_comm_type": Entry({}, _read_cp_comm_type),  # written with cp_overlap
    "cp_a2a_ranks": Entry({}, _read_cp_a2a_ranks),
    "offloaded_layers": Entry({}, _read_offloaded_layers),  # written with activation_offload
    "offloaded_states": Entry(
        # Written always: Megatron-Bridge's default is 0 (megatron/core/optimizer/optimizer_config.py).
        lambda plan, share: {FRACTION: share} if plan.strategy.optimizer_offload else {},
        _read_offloaded_states,
    ),
    "offload_overlap": Entry(switch(OFFLOAD_OVERLAP), _read_offload_overlap),
    "host_threads": Entry({}, _read_host_threads),  # a variable of the environment
    "attention": Entry({"flash": {}, "unfused": {"--attention-backend": "unfused"}}, _read_attention),
    "allocator": Entry({}, _read_allocator),  # a variable of the environment
    "launches": Entry({}, _read_launches),  # a variable of the environment
    "optimizer_group": Entry(_optimizer_group_options),  # read with the strategy, by read_group
}
"""Megatron-LM's options for each setting, written and read."""


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
