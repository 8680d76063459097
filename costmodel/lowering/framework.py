"""Combine a device's calibration with a framework's behaviour and settings, and with the bytes of the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Constants
from costmodel.facts.device import Device, EquippedDevice, Network
from costmodel.facts.fields import NARROW
from costmodel.facts.framework import Behaviour, Framework, MemoryModel, Settings
from costmodel.facts.model import Model
from costmodel.facts.workload import Precision
from costmodel.record import replace
from costmodel.strategy import Sharding

FACTORS = "cluster.framework.factors"

"""Entry of a job that holds a framework's factors."""

CAPPED = 1.0

"""Upper bound of a fraction of a peak after a factor is applied."""

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "bf16+fp32": 6.0}

NUM_MOMENTS = 2

NARROW_WEIGHTS = ("fp8", "mxfp8")

"""Dtypes of recipes whose weights can be held and gathered in 8 bits."""

NARROW_GATHERS = {"fp8": 1.0, "fp8_current": 1.0}

"""
Bytes per parameter that ``fp8_param_gather`` gathers, by recipe.

Weights of MXFP8, whose two copies have scales along different axes, are gathered in 16 bits and then cast (Megatron-LM,
``reuse_grad_buf_for_mxfp8_param_ag``).
"""

Loss: TypeAlias = Literal["fused", "compiled", "unfused"]

LOSS_BYTES: dict[Loss, dict[str, float]] = {
    "fused": {"loss_forward_bytes": 6.0, "loss_backward_bytes": 4.0},
    "compiled": {},
    "unfused": {"loss_forward_bytes": 38.0, "loss_backward_bytes": 14.0},
}

"""
Bytes per logit that a loss reads and writes. Fused: Transformer Engine 2.11, ``triton/cross_entropy.py``, which reads
logits twice and writes their gradient over them, then multiplies it in place. Compiled: as the framework's.
Unfused: Megatron-LM's own in FP32, ``vocab_parallel_cross_entropy``, its passes counted in
:mod:`costmodel.lowering.embedding`.
"""

LOGIT_BYTES: dict[Loss, float] = {"fused": 2.0, "compiled": 4.0, "unfused": 6.0}

"""
Bytes per logit that each loss keeps. Fused: 16 bits. Compiled: also their gradient. Unfused: also
Megatron-LM's FP32 copy, on which all operations are in place since 2023
(``megatron/core/tensor_parallel/cross_entropy.py``).
"""

PARTS_LOSS_BYTES = {"loss_forward_bytes": 16.0, "loss_backward_bytes": 4.0}

"""
Bytes per logit of Megatron-LM's loss on 16-bit logits (``fp16_lm_cross_entropy``, ``vocab_parallel_cross_entropy``):
maximum 2, difference, exponential and quotient in place 4 each, sum 2; backward a product in place. Sums of parts leave
no time for FP32 (``benchmarks/measured_runs/README.md``).
"""

PARTS_DROPOUT: dict[str, Any] = {"attention_score_bytes": 5.0, "dropout_mask_bytes": 1.0}

"""Dropout of parts that are timed alone, Megatron-LM's default (Korthikanti et al., arXiv:2205.05198, eq. 1)."""

MUON = ("muon", "dist_muon")

"""Values of the setting ``optimizer`` that are Muon."""

OF_MUON = ("muon_tp_mode", "muon_num_ns_steps")

"""Settings that are entries of :class:`costmodel.facts.framework.OptimizerStyle` with equal names."""

CP_A2A_RANKS = 2
"""Near ranks of hierarchical context parallelism unless a job says them: pairs, which every even cp has."""

OF_OFFLOAD = ("offloaded_states", "offloaded_masters", "offload_overlap", "host_threads")

"""Settings that are entries of :class:`costmodel.facts.framework.OptimizerOffload` with equal names."""


NO_GRAPHS: Mapping[str, tuple[str, ...]] = {"cuda_graphs": ("none",)}
NO_OFFLOAD: Mapping[str, tuple[str, ...]] = {"activation_offload": ("false",), "optimizer_offload": ("false",)}
"""Values that are left on devices without CUDA graphs, and on the host's own processors."""


def find_absent_features(device: Device) -> Mapping[str, tuple[str, ...]]:
    """Return the decisions that a device decides, with the values that are left."""
    if device.host_link == "none":
        return {**NO_GRAPHS, **NO_OFFLOAD}
    return {} if device.silicon.captures_graphs else NO_GRAPHS


def apply_framework(
    device: Device, framework: Framework, settings: Settings | None = None, model: Model | None = None
) -> EquippedDevice:
    """
    Build a device as a framework with its settings uses it.

    Parameters
    ----------
    device
        The accelerator, bandwidths of its networks nominal.
    framework
        Framework: the behaviour of its code, and factors on the constants of the device's calibration.
    settings
        Settings of the framework, defaults included; None: the settings of its recipes.
    model
        Trained model: some settings count its layers, and some sizes have a scale of their own.

    Raises
    ------
    SpecError
        If a factor names no constant, or makes a constant impossible.
    """
    settings = framework.settings if settings is None else settings
    constants = _scale_model(_constants(device, framework), framework, model)
    if settings.composition == "parts":
        constants = replace(constants, step_seconds=0.0)
    known = {one.name: getattr(device, one.name) for one in fields(Device)}
    networks = tuple(_apply_efficiency(network, constants) for network in device.networks)
    behaviour = _behaviour(framework.behaviour, settings, model)
    return EquippedDevice(**{**known, "networks": networks}, constants=constants, behaviour=behaviour)


def _apply_efficiency(network: Network, constants: Constants) -> Network:
    efficiency = constants.link_efficiency.get(network.name, 1.0)
    return network if efficiency == 1 else replace(network, bandwidth=network.bandwidth * efficiency)


# --- constants ---------------------------------------------------------------------------------------------
def _constants(device: Device, framework: Framework) -> Constants:
    """Return the calibration's constants at the clock of the device's power limit, times the framework's factors."""
    constants = device.calibration.constants
    if device.power_clock != 1:
        constants = replace(constants, throttled_clock=constants.throttled_clock * device.power_clock)
    for key, factor in framework.factors.items():
        name, _, architecture = key.partition("@")
        before = getattr(constants, _constant(framework, name))
        if architecture in ("", device.architecture):
            constants = _replace_constant(constants, name, _scale(before, factor, framework, name), framework)
    return constants


SCALED_LINE = ("megatron-lm", "megatron-bridge")
"""Own targets of the frameworks whose runs tell the scales of models: both run Megatron Core's layers."""


def _scale_model(constants: Constants, framework: Framework, model: Model | None) -> Constants:
    """Return constants with which computation and communication take the time that runs of such a model take."""
    scale = constants.model_scales.get(model.size, 1.0) if model is not None else 1.0
    is_known = constants.times == "modified_roofline" and next(iter(framework.targets), "") in SCALED_LINE
    if scale == 1 or not is_known:
        return constants
    measured = constants.measured
    scaled = replace(
        measured,
        compute_scaling=measured.compute_scaling / scale,
        communication_scaling=measured.communication_scaling / scale,
    )
    return replace(constants, measured=scaled)


def _replace_constant(constants: Constants, name: str, value: Any, framework: Framework) -> Constants:
    try:
        return replace(constants, **{name: value})
    except ValidationError as error:
        problem = f"of {framework.name} makes the constant impossible: {error.errors()[0]['msg']}."
        raise SpecError(f"{FACTORS}.{name}", problem) from None


def _constant(framework: Framework, name: str) -> str:
    known = [field.name for field in fields(Constants)]
    if name not in known:
        problem = f"of {framework.name} is no constant of a calibration."
        raise SpecError(f"{FACTORS}.{name}", problem, did_you_mean(name, known))
    return name


def _scale(value: Any, factor: float, framework: Framework, name: str) -> Any:
    """Multiply a number that is not a count, or every number of a mapping, by the factor; fractions stay fractions."""
    if isinstance(value, dict):
        return {key: min(part * factor, CAPPED) for key, part in value.items()}
    if not isinstance(value, float):
        raise SpecError(f"{FACTORS}.{name}", f"of {framework.name} is not a number that a factor can multiply.")
    return min(value * factor, CAPPED) if name.endswith("_efficiency") else value * factor


# --- behaviour ---------------------------------------------------------------------------------------------
def _behaviour(behaviour: Behaviour, settings: Settings, model: Model | None) -> Behaviour:
    """Apply settings to the behaviour of the code."""
    changes: dict[str, dict[str, Any]] = {one.name: {} for one in fields(Behaviour)}
    kernels, host, memory = changes["kernels"], changes["host"], changes["memory"]
    communication, optimizer, offload = changes["communication"], changes["optimizer"], changes["offload"]
    if settings.kernels is not None:
        kernels["fused_kernels"] = settings.kernels == "fused"
        kernels["torch_functions"] = settings.kernels == "eager"
        memory["unfused_kernels"] = settings.kernels == "eager"
    if settings.attention is not None:
        kernels["fused_attention"] = settings.attention == "flash"
    if settings.fp8_attention is not None:
        kernels["fp8_attention"] = settings.fp8_attention
    if settings.launches is not None:
        host["launch_blocking"] = settings.launches == "blocking"
    if settings.optimizer_group is not None:
        optimizer["sharding_ranks"] = None if settings.optimizer_group == "all" else settings.optimizer_group
    if settings.optimizer in MUON:
        optimizer.update(is_muon=True, gradient_sync=behaviour.optimizer.muon_gradient_sync)
        if (
            optimizer["gradient_sync"] == "all_reduce"
        ):  # no optimizer is distributed, which gathers weights as it computes
            optimizer["weight_sync_overlaps"] = False
        optimizer.update({name: value for name in OF_MUON if (value := getattr(settings, name)) is not None})
    if settings.shared_expert_overlap is not None:
        communication["shared_expert_overlap"] = settings.shared_expert_overlap
    if settings.cp_comm_type is not None:
        ranks = (settings.cp_a2a_ranks or CP_A2A_RANKS) if settings.cp_comm_type == "a2a+p2p" else None
        communication |= {"cp_comm_type": settings.cp_comm_type, "cp_a2a_ranks": ranks}
        memory["context_output"] = settings.cp_comm_type.startswith("a2a")
    if settings.communication_sms is not None:
        communication["communication_sms"] = settings.communication_sms
    if settings.kernels == "eager" and behaviour.memory.eager_logit_bytes is not None:
        memory["logit_bytes"] = behaviour.memory.eager_logit_bytes
    if settings.loss not in (None, loss_of(behaviour.memory)):
        memory["logit_bytes"] = LOGIT_BYTES[settings.loss]
        kernels.update(LOSS_BYTES[settings.loss])
    if settings.loss_chunks is not None and not (model and model.mtp_layers):
        memory["loss_chunks"] = settings.loss_chunks
    if settings.allocator not in (None, behaviour.memory.allocator):
        memory["allocator"] = settings.allocator
        memory["fragmentation"] = behaviour.memory.expandable_fragmentation
    if settings.offloaded_layers is not None and model is not None:
        memory["offloaded_fraction"] = min(settings.offloaded_layers / model.num_layers, 1.0)
    offload.update({name: value for name in OF_OFFLOAD if (value := getattr(settings, name)) is not None})
    if settings.composition == "parts":
        memory.update(PARTS_DROPOUT)
        host["blocking_collectives"] = True
        kernels.update(PARTS_LOSS_BYTES)
    changed = {name: replace(getattr(behaviour, name), **entries) for name, entries in changes.items() if entries}
    return replace(behaviour, **changed)


def unfuse_loss(device: EquippedDevice) -> EquippedDevice:
    """Return a device whose framework keeps the logits of the loss."""
    return replace(device, behaviour=_behaviour(device.behaviour, Settings(loss="unfused"), None))


def loss_of(memory_model: MemoryModel) -> Loss:
    """Return the loss of a memory model: ``fused`` if it keeps at most 16-bit logits."""
    return "fused" if memory_model.logit_bytes <= LOGIT_BYTES["fused"] else "unfused"


def limit_sharding(memory_model: MemoryModel, *, sharding: NDArray[Any], pp: NDArray[Any]) -> NDArray[Any]:
    """
    Return the sharding that ranks hold: at most the optimizer's in pipelines that keep weights and gradients whole.

    References
    ----------
    PyTorch 2.13, ``torch/distributed/pipelining/stage.py:845``: neither is resharded between micro-batches of a stage.
    """
    return np.where((pp > 1) & memory_model.whole_in_pipelines, np.minimum(sharding, int(Sharding.OPTIMIZER)), sharding)


# --- bytes of the recipe, and the model that is trained ----------------------------------------------------
def storage_precision(precision: Precision, settings: Settings) -> Precision:
    """
    Return a recipe with the bytes that a framework with its settings stores and sends.

    References
    ----------
    Megatron-LM: ``grad_reduce_in_fp32``, ``fp8_param_gather``, ``exp_avg_dtype``; FSDP: shards in FP32, cast when they
    are gathered (PyTorch, ``MixedPrecisionPolicy``).
    """
    has_copy = precision.compute in NARROW_WEIGHTS and precision.copy_bytes > precision.transposed_bytes
    if settings.fp8_param_gather and has_copy:
        precision = _narrow_weights(precision)
    if settings.weight_dtype in ("fp32", "bf16"):
        nbytes = DTYPE_BYTES[settings.weight_dtype]
        precision = replace(precision, weight_bytes=nbytes, copy_bytes=0.0, optimizer_bytes=NUM_MOMENTS * nbytes)
    if settings.gradient_dtype is not None:
        precision = replace(precision, gradient_bytes=DTYPE_BYTES[settings.gradient_dtype])
    if settings.moments_dtype is not None:
        before = precision.optimizer_bytes - NUM_MOMENTS * DTYPE_BYTES["fp32"]
        narrower = before + NUM_MOMENTS * DTYPE_BYTES[settings.moments_dtype]
        precision = replace(precision, optimizer_bytes=narrower)
    return precision


def moment_bytes(precision: Precision, settings: Settings) -> float:
    """Bytes per parameter of one moment: of the weights' dtype if no other copy is kept, else of the moments' own."""
    if settings.moments_dtype is None and settings.weight_dtype in ("fp32", "bf16"):
        return precision.optimizer_bytes / NUM_MOMENTS
    return DTYPE_BYTES[settings.moments_dtype or "fp32"]


def _narrow_weights(precision: Precision) -> Precision:
    """Apply ``fp8_param_gather``: the copy by rows, or the one by rows and columns, becomes the weight."""
    return replace(
        precision,
        weight_bytes=precision.copy_bytes - precision.transposed_bytes,
        copy_bytes=precision.transposed_bytes,
        parameter_gather_bytes=NARROW_GATHERS.get(precision.name, precision.parameter_gather_bytes),
    )


def keep_wide_layers(model: Model, settings: Settings, precision: Precision) -> Model:
    """
    Return a model whose first and last layers compute in 16 bits, if the recipe has fewer.

    References
    ----------
    megatron-core 0.16.1, ``core/fp8_utils.py``, ``is_first_last_bf16_layer``; ``core/fp4_utils.py``,
    ``get_fp4_context``: layers of multi-token prediction have no number there.
    """
    start, end = settings.first_layers_bf16 or 0, settings.last_layers_bf16 or 0
    if precision.compute not in NARROW or not start + end:
        return model
    number = model.num_layers
    wide = {layer: replace(layer, is_wide=True) for layer in model.kinds}
    layers = (
        wide[layer] if index < start or index >= number - end else layer for index, layer in enumerate(model.layers)
    )
    return replace(model, layers=tuple(layers))


def limit_mtp_layers(model: Model, settings: Settings) -> Model:
    """Return a model with as many layers of multi-token prediction as are trained."""
    if settings.mtp_layers is None or settings.mtp_layers == len(model.mtp_layers):
        return model
    kind = model.mtp_layers[-1:] or model.layers[-1:]
    return replace(model, mtp_layers=kind * settings.mtp_layers)


SLOTS_AT_ENDS = 2

"""
Slots of embedding and head if layers do not divide evenly (Megatron-LM: ``account_for_*_in_pipeline_split``).
"""


def framework_stages(framework: Framework, num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage as a framework assigns them; None: as the planner does.

    Derivation: the framework's ``stages`` names the rule. ``filled``: each stage but the last has L / p layers, rounded
    up, the last one the rest, unless p divides L or L + 2 (:func:`recipe_stages`). ``modules``: equally many modules
    per stage, embedding and head among them (:func:`module_stages`). Otherwise None, and
    :func:`costmodel.pipelines.stages.layers_per_chunk` assigns the layers.
    """
    deal = {"filled": recipe_stages, "modules": module_stages}.get(framework.stages)
    return deal(num_layers, num_stages) if deal else None


def recipe_stages(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage in Megatron-Bridge's recipes, if Megatron-LM cannot split them evenly.

    Megatron-LM splits layers evenly with or without embedding and head as a layer each. Recipes of other models
    (DeepSeek-V3, Kimi-K2: 61 layers) print a layout that fills one stage after the other.

    References
    ----------
    Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``, ``set_deepseek_v3_pipeline_model_parallel_layout``.

    >>> recipe_stages(61, 8), recipe_stages(126, 16)
    ((8, 8, 8, 8, 8, 8, 8, 5), None)
    """
    if num_layers % num_stages == 0 or (num_layers + SLOTS_AT_ENDS) % num_stages == 0:
        return None
    full = -(-num_layers // num_stages)
    rest = num_layers - full * (num_stages - 1)
    return (*(full,) * (num_stages - 1), rest) if rest >= 0 else None


MODULES_AT_ENDS = (1, 3)

"""
Number of layers that GPT-NeoX's list of modules counts before its layers, and after them.

With 44, 40 and 32 layers the first, the middle and the last of four stages have 11/12/9, 10/11/8 and 8/9/6 (the tables
of arXiv 2509.22832's predictor).
"""


def module_stages(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage if DeepSpeed splits modules evenly, with the remainder on later stages.

    None if a stage is too short for its end of the model.

    References
    ----------
    DeepSpeed, ``runtime/utils.py``, ``partition_uniform``.

    >>> module_stages(44, 4), module_stages(7, 8)
    ((11, 12, 12, 9), None)
    """
    ahead, behind = MODULES_AT_ENDS
    base, remainder = divmod(num_layers + ahead + behind, num_stages)
    sizes = [base] * (num_stages - remainder) + [base + 1] * remainder
    sizes[0] -= ahead
    sizes[-1] -= behind
    return tuple(sizes) if min(sizes) >= 0 else None


def balance_stages(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """
    First module of each stage, and the end, if the heaviest and the lightest stage differ least.

    Parameters
    ----------
    weights
        Weight of each module: 1 for those that DeepSpeed's ``type:`` names, and 0 for others.
    num_stages
        Stages of the pipeline.

    References
    ----------
    DeepSpeed since 0.12 at the latest, ``runtime/utils.py``, ``partition_balanced``: of equal cuts the last one. Before
    it filled one stage after the other up to the least bottleneck (:data:`MODULES_AT_ENDS`).

    >>> balance_stages([0, 1, 1, 1, 1, 1, 0], 2), balance_stages([1, 1], 3)
    ((0, 4, 7), (0, 1, 2, 2))
    """
    count = len(weights)
    if count <= num_stages:
        return tuple(min(stage, count) for stage in range(num_stages + 1))
    sums = np.concatenate([[0], np.cumsum(weights)])
    most, least = np.full(count + 1, np.inf), np.full(count + 1, np.inf)
    most[0] = 0
    cuts = []
    for _ in range(num_stages):
        before, other = most, least
        most, least, cut = np.full(count + 1, np.inf), np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for end in range(1, count + 1):
            own = sums[end] - sums[:end]
            high, low = np.maximum(before[:end], own), np.minimum(other[:end], own)
            cut[end] = end - 1 - int(np.argmin((high - low)[::-1]))
            most[end], least[end] = high[cut[end]], low[cut[end]]
        cuts.append(cut)
    bounds = [count]
    for cut in reversed(cuts):
        bounds.append(int(cut[bounds[-1]]))
    return tuple(reversed(bounds))
