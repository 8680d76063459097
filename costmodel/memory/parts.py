"""
Bytes on one device of a pipeline rank: MoFa (4)-(6), (25), (27), (29), (31), (33).

Every quantity is for one pipeline rank; the planner uses the fullest rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.catalog.software import Share, Shares, allocator
from costmodel.facts.device import Cluster
from costmodel.facts.framework import MemoryModel, OptimizerOffload
from costmodel.facts.model import Model
from costmodel.facts.workload import Precision, Workload
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_projection_operators
from costmodel.lowering.layer import layer_matrices, sum_dropped_bytes, sum_over_modules
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.record import record
from costmodel.strategy import Recompute, Sharding, Strategy
from costmodel.tables import Record
from costmodel.timing.work import Numbers, Operator


def weight_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of weights and their 8-bit copies on one device, :math:`D_w P`, sharded from ZeRO-3 on.

    FP32 weights are cast before they are gathered: with ZeRO-1 and 2 ranks hold their FP32 shards, and whole weights in
    the dtype of a gather (FSDP2, ``reshard_after_forward=False``).

    References
    ----------
    MoFa, arXiv:2511.09837, equation (4); Rajbhandari et al., arXiv:1910.02054.
    """
    is_cast = precision.weight_bytes == FP32_BYTES > precision.parameter_gather_bytes
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.OPTIMIZER if is_cast else Sharding.WEIGHTS)
    per_parameter: Numbers = (precision.weight_bytes + precision.copy_bytes) / shards
    if is_cast:
        gathered = np.isin(sharding, (int(Sharding.OPTIMIZER), int(Sharding.GRADIENTS))) & (np.asarray(shards) > 1)
        per_parameter = np.asarray(per_parameter + precision.parameter_gather_bytes * gathered, dtype=np.float64)
    return per_parameter * parameters


FP32_BYTES = 4.0


def gradient_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of accumulated gradients on one device, :math:`D_g P`, sharded from ZeRO-2 on.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (4); Rajbhandari et al., arXiv:1910.02054.
    """
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.GRADIENTS)
    return precision.gradient_bytes * parameters / shards


def optimizer_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of optimizer states per device, on the device or offloaded, :math:`4 D_o P / d`, sharded from ZeRO-1 on.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (4) and (25).
    """
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.OPTIMIZER)
    return precision.optimizer_bytes * parameters / shards


def offloaded_state_fraction(offload: OptimizerOffload, precision: Precision) -> float:
    r"""
    Fraction of the bytes of optimizer states that leave the device if they are offloaded.

    Derivation: all states of the offloaded parameters; only their FP32 moments, :math:`8 / D_o`, if the weights that
    the optimizer updates stay. Qwen3-30B on 16 H100 with tp 2, pp 2, ep 4 (1.9e9 parameters' states per device) frees
    15.2 GB so (Megatron-Bridge's documents of 2026-11).

    >>> from costmodel import catalog
    >>> bf16 = catalog.precision("bf16")
    >>> offloaded_state_fraction(OptimizerOffload(offloaded_states=0.5), bf16)
    0.5
    """
    moments = min(MOMENTS_BYTES / precision.optimizer_bytes, 1.0)
    return offload.offloaded_states * (1.0 if offload.offloaded_masters else moments)


MOMENTS_BYTES = 8.0

"""Bytes per parameter of Adam's two moments in host memory, FP32."""


def host_state_bytes_per_byte(offload: OptimizerOffload, precision: Precision) -> float:
    """
    Bytes of host memory per byte of optimizer states, if they are offloaded.

    Derivation: each offloaded parameter has all of its states there, and a copy of the FP32 weight if the weight stays
    on the device. A buffer for its gradient is added (megatron-core 0.16.1, ``hybrid_optimizer.py:108``).
    """
    return offload.offloaded_states * (1 + offload.host_transfer_bytes / precision.optimizer_bytes)


def activation_bytes(
    memory_model: MemoryModel,
    kept_bytes: Numbers,
    input_bytes: Numbers,
    *,
    microbatches_in_flight: Numbers,
    activation_offload: Numbers,
) -> Numbers:
    r"""
    Bytes of activations of a rank's layers that stay in device memory until their backward pass.

    .. math::

        M = n \cdot \begin{cases} A & \text{(5)} \\ A - A_{attn} & \text{selective, (29)} \\
        A_{in} & \text{full, (31)} \end{cases} \qquad M_{offload} = \min(n, 1) \cdot A_{in} \quad (33)

    Parameters
    ----------
    memory_model
        Fraction of the layers that is offloaded, and the tensors that stay.
    kept_bytes, input_bytes
        Bytes of one micro-batch in all layers of the rank: :func:`kept_bytes`, A_in.
    microbatches_in_flight
        Micro-batches alive on the rank, n (chunks in flight / chunks per rank).
    activation_offload
        Decision.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (5), (29), (31) and (33).
    """
    # Rules forbid full recomputation where inputs of offloaded layers stay.
    resident = np.minimum(microbatches_in_flight, 1.0) * input_bytes * memory_model.offload_keeps_inputs
    here, there = microbatches_in_flight * kept_bytes, memory_model.offloaded_fraction
    return np.where(np.asarray(activation_offload) > 0, there * resident + (1 - there) * here, here)


def kept_bytes(
    saved_bytes: Numbers, module_bytes: NDArray[np.float64], input_bytes: Numbers, *, recompute: Numbers
) -> Numbers:
    """
    Bytes of one micro-batch's activations that are kept, on the device or the host.

    Parameters
    ----------
    saved_bytes, input_bytes
        All tensors that the backward pass reads, A; the layer's input, A_in.
    module_bytes
        Bytes that recomputation drops, modules on the last axis.
    recompute
        Decision.

    References
    ----------
    MoFa, arXiv:2511.09837, the activations in equations (5), (29) and (31).
    """
    recompute = np.asarray(recompute)
    dropped = sum_over_modules(module_bytes, recompute=recompute)
    return np.where(recompute == int(Recompute.FULL), input_bytes, saved_bytes - dropped)


def working_bytes(
    memory_model: MemoryModel,
    saved_bytes: Numbers,
    module_bytes: NDArray[np.float64],
    *,
    recompute: Numbers,
    activation_offload: Numbers,
) -> Numbers:
    """
    Bytes of the layer at work that are not among the resident activations, per working layer.

    It is a whole layer under full recomputation, otherwise its recomputed modules. With offloading, two layers are in
    transit or at work (MoFa, arXiv:2511.09837, the term A_layer of (31), and the prose of (33)). If some layers stay on
    the device, they are the last ones: when all of them are kept, nothing is in transit any more. Under full
    recomputation only the layers' inputs are in transit, which the recomputed layer counts.

    Parameters
    ----------
    memory_model
        Fraction of the layers that is offloaded.
    saved_bytes, module_bytes
        Bytes of one layer, as in :func:`kept_bytes`.
    recompute, activation_offload
        Decisions.
    """
    recompute = np.asarray(recompute)
    dropped = sum_over_modules(module_bytes, recompute=recompute)
    recomputed = np.where(recompute == int(Recompute.FULL), saved_bytes, dropped)
    in_transit = 2 * np.asarray(saved_bytes) if memory_model.offloaded_fraction == 1 else recomputed
    in_transit = np.where(recompute == int(Recompute.FULL), recomputed, in_transit)
    return np.where(np.asarray(activation_offload) > 0, in_transit, recomputed)


def offloaded_bytes(
    memory_model: MemoryModel, kept_bytes: Numbers, *, microbatches_in_flight: Numbers, activation_offload: Numbers
) -> Numbers:
    """
    Bytes of a rank's activations in host memory.

    References
    ----------
    MoFa, arXiv:2511.09837, the capacity limit of (33)-(35).
    """
    waiting = memory_model.offloaded_fraction * np.asarray(microbatches_in_flight) * kept_bytes
    return np.where(np.asarray(activation_offload) > 0, waiting, 0.0)


def gathered_bytes(precision: Precision, *, largest_layer_parameters: Numbers, sharding: Numbers) -> Numbers:
    """
    Bytes of the whole tensors of the layers at work, if the states are sharded.

    Under ZeRO-3 the weights of the layer at work and of the next one (prefetch) are whole. From ZeRO-2 on so are the
    gradients of the layer at work and of the last one, which is being scattered. All count with the bytes of a gathered
    parameter. PyTorch's own tracker of FSDP2 agrees (``tests/oracle/test_memory_peaks.py``).
    """
    sharding = np.asarray(sharding)
    layer = precision.parameter_gather_bytes * largest_layer_parameters
    weights = np.where(sharding >= int(Sharding.WEIGHTS), 2 * layer, 0.0)
    return weights + np.where(sharding >= int(Sharding.GRADIENTS), 2 * layer, 0.0)


def state_shards(group_ranks: Numbers, *, sharding: Numbers, level: Sharding) -> Numbers:
    """
    Number of shards of a state: the ranks of its data-parallel group from ``level`` of sharding on, otherwise 1.

    References
    ----------
    Rajbhandari et al., arXiv:1910.02054: ZeRO's stages share optimizer states, then gradients, then weights.

    >>> float(state_shards(64, sharding=1, level=Sharding.OPTIMIZER))
    64.0
    """
    shards = np.where(np.asarray(sharding) >= int(level), group_ranks, 1.0)
    return np.asarray(shards, dtype=np.float64)


def held_share(memory_model: MemoryModel, strategy: Strategy) -> Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1, if the device has spare room.

    Parameters
    ----------
    memory_model
        Setting of the allocator, and its measured fragmentation.
    strategy
        Strategy, whose sharding and recomputation determine the share.

    References
    ----------
    The catalog's ``allocators.yaml``: simulations of ``benchmarks.allocator``.
    """
    return _strategy_share(allocator(memory_model.allocator).reserved, memory_model, strategy)


def share_without_retries(memory_model: MemoryModel, strategy: Strategy | None = None) -> Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1, that a device needs so that the allocator never retries.

    With less, ``cudaMalloc`` fails in every step: the allocator waits for the device, frees its cached segments and
    asks again. Arguments and references as in :func:`held_share`; without a strategy weights are whole.
    """
    return _strategy_share(allocator(memory_model.allocator).without_retries, memory_model, strategy)


def _strategy_share(shares: Shares, memory_model: MemoryModel, strategy: Strategy | None) -> Share:
    """
    Return the share of a strategy.

    With gathered weights, tensors of many sizes are allocated and freed, most of all if layers are recomputed between
    them. With whole weights it is the software's own measured fragmentation, and the simulated shares are widened to
    it.
    """
    if strategy is not None and strategy.sharding == Sharding.WEIGHTS:
        return shares.gathered_recomputed if strategy.recompute == Recompute.FULL else shares.gathered
    own = memory_model.fragmentation
    return replace(shares.whole, low=min(shares.whole.low, own), middle=own, high=max(shares.whole.high, own))


@record(frozen=True, kw_only=True, slots=True)
class LayerFootprint(Record):
    """
    Parameters and bytes of one layer of each kind on one device; kinds on the last axis, shape (..., K).

    Parameters
    ----------
    dense_parameters, expert_parameters
        Number of parameters on one device, outside and inside of routed experts.
    saved_bytes
        Activations of one micro-batch between forward and backward.
    module_bytes
        Bytes of them that recomputation of each module drops, modules on one more axis.
    input_bytes
        Bytes of the layer's input.
    gradient_bytes
        Bytes of the gradients of activations that are alive at once in its backward pass.
    """

    dense_parameters: NDArray[np.float64]
    expert_parameters: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    module_bytes: NDArray[np.float64]
    input_bytes: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]


@record(frozen=True, kw_only=True, slots=True)
class EmbeddingHeadFootprint(Record):
    """
    Parameters and bytes of embedding (first rank), head and MTP (last rank) on one device, shape (...).

    Parameters
    ----------
    embedding_parameters, head_parameters, mtp_parameters
        Number of parameters; MTP without its transformer layers, which count as layers of the last rank.
    layer_shapes_parameters, head_shape_parameters
        Parameters of one weight of each shape in the layers; of the head's weight.
    gradient_bytes
        Bytes of the embedding's gradient in the backward pass.
    last_saved_bytes
        Bytes of one micro-batch's activations in head, loss and MTP.
    """

    embedding_parameters: NDArray[np.float64]
    head_parameters: NDArray[np.float64]
    mtp_parameters: NDArray[np.float64]
    layer_shapes_parameters: NDArray[np.float64]
    head_shape_parameters: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
    last_saved_bytes: NDArray[np.float64]


def layer_footprint(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    ep: Numbers,
    etp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> LayerFootprint:
    """Parameters and saved activations of each kind of layer: S_w of (4), A of (5), A_attn of (29), A_in of (31)."""
    shape = layer_shape(
        model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs, sequence_parallel=sequence_parallel
    )
    layers = [layer_operators(layer, shape) for layer in model.kinds]
    layer_input = shape.activation_bytes * shape.tokens * shape.hidden_size / shape.sequence_shards
    return LayerFootprint(
        dense_parameters=shape.stack([_parameters(layer, expert=False) for layer in layers]),
        expert_parameters=shape.stack([_parameters(layer, expert=True) for layer in layers]),
        saved_bytes=shape.stack([_saved_bytes(layer) for layer in layers]),
        module_bytes=np.stack([shape.stack(sum_dropped_bytes(layer, shape)) for layer in layers], axis=-2),
        input_bytes=shape.stack([kind.streams * layer_input for kind in model.kinds]),
        gradient_bytes=shape.stack([_gradients(layer, shape) for layer in layers]),
    )


def has_embedding_copy(model: Model) -> bool:
    """
    Return True if a pipeline's last rank also holds the embedding: a head is tied to it, or MTP reads it.

    References
    ----------
    Megatron-LM, ``megatron/core/models/gpt/gpt_model.py``: ``pre_process or mtp_process``.
    """
    return model.tied_embeddings or bool(model.mtp_layers)


def embedding_head_footprint(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    pp: Numbers,
    ep: Numbers,
    etp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> EmbeddingHeadFootprint:
    """
    Parameters and saved activations of embedding, head and MTP.

    In a pipeline the last rank may have a copy of the embedding: :func:`has_embedding_copy`.
    """
    shape = layer_shape(
        model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs, sequence_parallel=sequence_parallel
    )
    embedding, head, mtp = (
        embedding_operators(model, shape),
        head_operators(model, shape),
        mtp_projection_operators(model, shape),
    )
    zero = shape.zeros + np.zeros(np.shape(pp))
    embedding_parameters = zero + _parameters(embedding, expert=False)
    copy = embedding_parameters * (np.asarray(pp) > 1) * has_embedding_copy(model)
    return EmbeddingHeadFootprint(
        embedding_parameters=embedding_parameters,
        head_parameters=zero + _parameters(head, expert=False) + copy,
        mtp_parameters=zero + _parameters(mtp, expert=False),
        layer_shapes_parameters=zero + _one_of_each_shape(layer_operators(layer, shape) for layer in model.kinds),
        head_shape_parameters=zero + _one_of_each_shape([head]),
        gradient_bytes=embedding_parameters * shape.activation_bytes,
        last_saved_bytes=zero + _saved_bytes(head) + _saved_bytes(mtp),
    )


@record(frozen=True, kw_only=True, slots=True)
class MatrixFootprint(Record):
    """
    Weight matrices of one layer on one device: kinds of layers and their matrices on the last axes, shape (..., K, M).

    Parameters
    ----------
    dense, expert
        Number of equal matrices, outside and inside of routed experts; 0 where a layer has fewer than M.
    parameters
        Parameters of one of them on this device.
    """

    dense: NDArray[np.float64]
    expert: NDArray[np.float64]
    parameters: NDArray[np.float64]


def matrix_footprint(
    model: Model, cluster: Cluster, workload: Workload, *, tp: Numbers, ep: Numbers, etp: Numbers
) -> MatrixFootprint:
    """Weight matrices of each kind of layer, which Muon updates one by one."""
    shape = layer_shape(model, cluster, workload, tp=tp, cp=1, ep=ep, etp=etp, mbs=1, sequence_parallel=0)
    layers = [layer_matrices(layer, shape) for layer in model.kinds]
    return MatrixFootprint(
        dense=stack_matrices(shape.axes, layers, lambda one: 0.0 if one.expert else one.count),
        expert=stack_matrices(shape.axes, layers, lambda one: one.count if one.expert else 0.0),
        parameters=stack_matrices(shape.axes, layers, lambda one: one.parameters),
    )


def stack_matrices(
    axes: tuple[int, ...], layers: Sequence[Sequence[Any]], value_of: Callable[[Any], Numbers]
) -> NDArray[np.float64]:
    """Stack a value of each matrix of each kind of layer on two new last axes; 0 where a layer has fewer matrices."""
    stacked = np.zeros((*axes, len(layers), max(map(len, layers))))
    for kind, layer in enumerate(layers):
        for index, one in enumerate(layer):
            stacked[..., kind, index] = value_of(one)
    return stacked


def dealt_share(counts: Numbers, costs: Numbers, *, owners: Numbers) -> NDArray[np.float64]:
    r"""
    Cost of the matrices of the busiest of several owners, each of whom has whole matrices.

    .. math:: T = \max\left(\frac{1}{N} \sum_i n_i t_i, \max_i \lceil n_i / N \rceil t_i\right)

    Derivation: no deal is better than an even one, nor than one that deals matrices of one shape alone. Megatron-LM
    deals them by size in turns, later releases by cost to the owner with the least (``layer_wise_optimizer.py``).

    Parameters
    ----------
    counts, costs
        Matrices of each shape, n, on the two last axes, and the cost of each, t.
    owners
        Number of owners N, with as many axes.
    """
    # The margin keeps quotients such as 3 / (1 / 3) from being rounded up.
    most = np.ceil(counts / owners - ROUNDING) * costs
    even = np.asarray(counts * costs / owners).sum(axis=(-2, -1))
    return np.asarray(np.maximum(even, most.max(axis=(-2, -1))))


ROUNDING = 1e-9


def _one_of_each_shape(layers: Iterable[Iterable[Operator]]) -> Numbers:
    """Sum the parameters of distinct matmuls: the largest shape of each name, and one expert."""
    largest: dict[str, Numbers] = {}
    for operator in (operator for layer in layers for operator in layer if "matmul" in operator.kind):
        weight = operator.parameters / operator.groups
        largest[operator.name] = np.maximum(largest.get(operator.name, 0.0), weight)
    return sum(largest.values(), start=0.0)


def _parameters(operators: Iterable[Operator], *, expert: bool) -> Numbers:
    return sum((operator.parameters for operator in operators if operator.expert == expert), start=0.0)


def _gradients(operators: Iterable[Operator], shape: Shape) -> Numbers:
    """
    The widest pair of gradients, of an operator's output and of its input, in bytes.

    It occurs at the activation, whose gradients are as large as its traffic without its kept tensors, or at the scores
    of an attention in several kernels.
    """
    gradients = 2 * shape.activation_bytes / max(shape.memory.attention_score_bytes, shape.activation_bytes)
    largest: Numbers = 0.0
    for operator in operators:
        if operator.name in ACTIVATIONS:
            largest = np.maximum(largest, operator.bytes)
        if operator.name == "softmax":
            largest = np.maximum(largest, operator.saved_bytes * gradients)
    return largest


ACTIVATIONS = ("activation", "expert_activation")


def _saved_bytes(operators: Iterable[Operator]) -> Numbers:
    return sum((operator.saved_bytes for operator in operators), start=0.0)
