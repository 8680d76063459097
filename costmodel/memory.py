"""
Bytes on one device of a pipeline rank, and on each different rank: MoFa (4)-(6), (25), (27), (29), (31), (33).

Every quantity of a part is for one pipeline rank; the planner uses the fullest one. Ranks are a trailing axis (..., U).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.catalog.releases import Share, Shares, allocator
from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.facts.framework import MemoryModel, OptimizerOffload
from costmodel.facts.model import Model
from costmodel.facts.workload import Precision, Workload
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_projection_operators
from costmodel.lowering.framework import limit_sharding, moment_bytes
from costmodel.lowering.layer import layer_matrices, sum_dropped_bytes, sum_over_modules
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import Group, dense_data_group, expert_data_group, sharding_group
from costmodel.pipelines.schedules import chunks_alive, parameter_copies
from costmodel.pipelines.stages import Stages, stages
from costmodel.record import record
from costmodel.strategy import Recompute, Sharding, Strategy
from costmodel.tables import (
    Array,
    Decisions,
    Facts,
    Record,
    add_layer_axis,
    largest,
    lookup,
    memoize_last,
    microbatches,
    sum_last,
)
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
    shapes_parameters
        Parameters of one weight of each shape in layers of all kinds, shape (...).
    """

    dense_parameters: NDArray[np.float64]
    expert_parameters: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    module_bytes: NDArray[np.float64]
    input_bytes: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
    shapes_parameters: NDArray[np.float64]


@record(frozen=True, kw_only=True, slots=True)
class EmbeddingHeadFootprint(Record):
    """
    Parameters and bytes of embedding (first rank), head and MTP (last rank) on one device, shape (...).

    Parameters
    ----------
    embedding_parameters, head_parameters, mtp_parameters
        Number of parameters; MTP without its transformer layers, which count as layers of the last rank.
    head_shape_parameters
        Parameters of the head's weight.
    gradient_bytes
        Bytes of the embedding's gradient in the backward pass.
    last_saved_bytes
        Bytes of one micro-batch's activations in head, loss and MTP.
    """

    embedding_parameters: NDArray[np.float64]
    head_parameters: NDArray[np.float64]
    mtp_parameters: NDArray[np.float64]
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
        shapes_parameters=shape.zeros + _one_of_each_shape(layers),
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
    """Sizes and numbers of the weight matrices of each kind of layer, which Muon updates one by one."""
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


StateBytes: TypeAlias = Callable[..., Numbers]
"""Bytes of weights, gradients or optimizer states: functions of ``memory.parts`` with one signature."""

BUFFER_BYTES = 2.0
"""Bytes per parameter of a buffered embedding: 16 bits (MoFa, Table 6's memory column)."""


@record(frozen=True, kw_only=True, slots=True)
class RankParameters:
    """
    Parameters on one device of each rank, shape (..., U).

    Parameters
    ----------
    layers
        Dense parameters of the layers.
    edges
        Parameters of embedding, head and MTP.
    experts
        Parameters of routed experts.
    wide_layers, wide_experts
        Share of ``layers`` and of ``experts`` in layers that compute in 16 bits among narrower ones.
    """

    layers: Array
    edges: Array
    experts: Array
    wide_layers: Array
    wide_experts: Array

    def weigh(self, wide: float, narrow: float) -> RankParameters:
        """Return counts in which a parameter of a layer in 16 bits counts as one with ``wide / narrow`` the bytes."""
        if wide == narrow or not (self.wide_layers.any() or self.wide_experts.any()):
            return self
        more = wide / narrow - 1
        return replace(
            self, layers=self.layers + more * self.wide_layers, experts=self.experts + more * self.wide_experts
        )

    @property
    def dense(self) -> Array:
        """All parameters that are not in routed experts."""
        return self.layers + self.edges


@record(frozen=True, kw_only=True, slots=True)
class RankBytes:
    """
    Peak memory of one device of each rank by its contents, shape (..., U).

    Parameters
    ----------
    weights, gradients, optimizer
        Bytes of the model states.
    activations
        Activations of all micro-batches in flight.
    logits
        Activations saved by head, loss and MTP.
    working
        Activations and gradients of the layer at work: its own activations count if the others' are recomputed or
        offloaded.
    gathered
        Whole weights and gradients of the layers at work, if states are sharded.
    buffers
        Copies of the embedding, held gradients, and workspaces that the framework keeps.
    runtime
        Memory of driver and communication library.
    fragmentation
        Memory that the allocator holds beyond the allocated bytes, as a fraction of them.
    """

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    working: Array
    gathered: Array
    buffers: Array
    runtime: Array
    fragmentation: float

    @property
    def total(self) -> Array:
        """Peak bytes, equation (6); terms of equal decisions are added first, since tables are large."""
        return np.asarray(self.runtime + (1 + self.fragmentation) * self._allocated_bytes)

    def part_bytes(self) -> dict[str, Array]:
        """Return the peak bytes by their contents; fragmentation is counted in ``runtime``."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "fragmentation"}
        return {**parts, "runtime": self.runtime + self.fragmentation * self._allocated_bytes}

    @property
    def _allocated_bytes(self) -> Array:
        states = self.weights + self.gradients + self.optimizer + self.gathered
        return states + (self.activations + self.logits + self.working + self.buffers)


def different_ranks(facts: Facts, decisions: Decisions) -> Stages:
    """Return the different ranks of each strategy's pipeline, with their layers."""
    return lookup(stages, facts, decisions)


def data_groups(facts: Facts, decisions: Decisions) -> tuple[Group, Group]:
    """Return the groups that share dense and expert parameters, with an axis for the ranks."""
    given = [decisions[name] for name in ("tp", "cp", "dp", "ep", "etp")]

    def make() -> tuple[Group, Group]:
        tp, cp, dp, ep, etp = map(add_layer_axis, given)
        return dense_data_group(tp=tp, cp=cp, dp=dp), expert_data_group(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp)

    return memoize_last(facts, data_groups, given, make)


def reducing_groups(facts: Facts, decisions: Decisions) -> tuple[Group, Group]:
    """
    Return the groups that reduce gradients of dense and expert parameters in every step, with an axis for the ranks.

    With local steps each site is on its own until the next synchronization.
    """
    dense, expert = data_groups(facts, decisions)
    sites = facts.cluster.sites
    if sites is None or sites.local_steps == 1:
        return dense, expert
    return replace(dense, ranks=dense.ranks / sites.count), replace(expert, ranks=expert.ranks / sites.count)


def sharing_groups(facts: Facts, decisions: Decisions) -> tuple[Group, Group]:
    """Return the groups that share states of dense and expert parameters, with an axis for the ranks."""
    dense, expert = reducing_groups(facts, decisions)
    most = facts.cluster.device.behaviour.optimizer.sharding_ranks
    return sharding_group(dense, sharding_ranks=most), sharding_group(expert, sharding_ranks=most)


def whole_stages(decisions: Decisions, stages: Stages) -> Stages:
    """Return the stages with all layers of a rank, which has one stage per direction under DualPipe."""
    copies = add_layer_axis(parameter_copies(schedule=decisions["schedule"]))
    if (copies == 1).all():
        return stages
    return replace(
        stages,
        layers=stages.layers * copies[..., None],
        mtp_layers=stages.mtp_layers * copies[..., None],
        first=stages.first * copies,
        last=stages.last * copies,
    )


def sharding_of_states(facts: Facts, decisions: Decisions) -> NDArray[Any]:
    """Sharding of the states that ranks hold, with an axis for the ranks."""
    asked, pp = add_layer_axis(decisions["sharding"]), add_layer_axis(decisions["pp"])
    return limit_sharding(facts.cluster.device.behaviour.memory, sharding=asked, pp=pp)


def rank_parameters(facts: Facts, decisions: Decisions, stages: Stages) -> RankParameters:
    """Parameters on one device of each rank, every copy counted: the sum of S_w in (4)."""
    layer, edge = lookup(layer_footprint, facts, decisions), lookup(embedding_head_footprint, facts, decisions)
    given = (layer, edge, stages, decisions["schedule"])
    return memoize_last(
        facts, rank_parameters, given, lambda: _rank_parameters(facts, layer, edge, whole_stages(decisions, stages))
    )


def _rank_parameters(
    facts: Facts, layer: LayerFootprint, edge: EmbeddingHeadFootprint, stages: Stages
) -> RankParameters:
    last = add_layer_axis(edge.head_parameters) + add_layer_axis(edge.mtp_parameters)
    is_wide = np.array([kind.is_wide for kind in facts.model.kinds])
    wide = stages.layers * is_wide if is_wide.any() else None
    nothing = np.zeros(1)
    return RankParameters(
        wide_layers=nothing if wide is None else _sum_over_layers(wide, layer.dense_parameters),
        wide_experts=nothing if wide is None else _sum_over_layers(wide, layer.expert_parameters),
        layers=_sum_over_layers(stages.layers, layer.dense_parameters),
        edges=stages.first * add_layer_axis(edge.embedding_parameters) + stages.last * last,
        experts=_sum_over_layers(stages.layers, layer.expert_parameters),
    )


def rank_matrices(facts: Facts, decisions: Decisions, stages: Stages) -> tuple[Array, Array]:
    """Number of weight matrices on one device of each rank, dense ones and those of experts: shape (..., U, K, M)."""
    matrices, whole = lookup(matrix_footprint, facts, decisions), whole_stages(decisions, stages)
    layers = whole.layers[..., None]
    return layers * matrices.dense[..., None, :, :], layers * matrices.expert[..., None, :, :]


def muon_state_bytes(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    r"""
    Bytes of optimizer states that Muon has beyond Adam's, on each rank: shape (..., U). Below 0, as it has one moment.

    .. math:: M = D (P_{dealt} - P / s) - D_m P_{dealt}

    Derivation: the P parameters of matrices have the D bytes of Adam's states, without its second moment, D_m. Replicas
    that share only states own whole matrices, so that the fullest one has P_dealt parameters instead of P / s of them.
    If gradients are all-reduced, there is no distributed optimizer for the others: one replica also has all of the
    embedding or of the head.
    """
    precision, sharding = facts.workload.precision, sharding_of_states(facts, decisions)
    moment = moment_bytes(precision, facts.cluster.settings)
    sizes = lookup(matrix_footprint, facts, decisions).parameters[..., None, :, :]
    nbytes: Numbers = 0.0
    for counts, group in zip(rank_matrices(facts, decisions, stages), sharing_groups(facts, decisions), strict=True):
        shards = state_shards(group.ranks, sharding=sharding, level=Sharding.OPTIMIZER)
        even = (counts * sizes).sum(axis=(-2, -1)) / shards
        dealt = dealt_share(counts, sizes, owners=np.asarray(shards)[..., None, None])
        dealt = np.where(sharding == int(Sharding.OPTIMIZER), dealt, even)
        nbytes = nbytes + precision.optimizer_bytes * (dealt - even) - moment * dealt
    if facts.cluster.device.behaviour.optimizer.muon_gradient_sync == "all_reduce":
        edge, whole = lookup(embedding_head_footprint, facts, decisions), whole_stages(decisions, stages)
        dense, _ = sharing_groups(facts, decisions)
        ends = np.maximum(
            whole.first * add_layer_axis(edge.embedding_parameters), whole.last * add_layer_axis(edge.head_parameters)
        )
        others = np.where(sharding == int(Sharding.OPTIMIZER), 1 - 1 / np.asarray(dense.ranks), 0.0)
        nbytes = nbytes + precision.optimizer_bytes * others * ends
    return np.asarray(nbytes)


def updated_parameters(facts: Facts, decisions: Decisions, *, pp_rank: int) -> float:
    r"""
    Number of parameters that the optimizer of one device updates in a step.

    .. math:: n = S_{dense} / s_{dense} + S_{experts} / s_{experts}

    Parameters
    ----------
    facts, decisions
        A job and one strategy: S are its parameters on a device, s the ranks that share the optimizer states.
    pp_rank
        Its pipeline rank.
    """
    own = different_ranks(facts, decisions)
    parameters = rank_parameters(facts, decisions, own)
    sharding = sharding_of_states(facts, decisions)
    dense, expert = (
        state_shards(group.ranks, sharding=sharding, level=Sharding.OPTIMIZER)
        for group in sharing_groups(facts, decisions)
    )
    updated = parameters.dense / dense + parameters.experts / expert
    (stretch,) = np.flatnonzero((own.num_ranks > 0) & (own.rank <= pp_rank))[-1:]
    return float(updated[stretch])


def rank_bytes(facts: Facts, decisions: Decisions, stages: Stages) -> RankBytes:
    """
    Peak device memory of each rank.

    .. math:: M_{peak} = M_{static} + M_{act} + M_{const}

    References
    ----------
    MoFa, arXiv:2511.09837, equations (4)-(6), (25), (27), (29), (31), (33).
    """
    device = facts.cluster.device
    precision = facts.workload.precision.adapt_to(device.silicon)
    layer = lookup(layer_footprint, facts, decisions)
    edge = lookup(embedding_head_footprint, facts, decisions)
    parameters = rank_parameters(facts, decisions, stages)
    whole = whole_stages(decisions, stages)
    recompute, offload = add_layer_axis(decisions["recompute"]), add_layer_axis(decisions["activation_offload"])
    sharding, in_flight = sharding_of_states(facts, decisions), microbatches_in_flight(facts, decisions, stages)
    groups = sharing_groups(facts, decisions)
    states = partial(_state_bytes, precision, parameters, *groups, sharding=sharding)
    stored = parameters.weigh(precision.wide_weight_bytes, precision.weight_bytes + precision.copy_bytes)
    offloaded = offloaded_state_fraction(device.behaviour.offload, precision)
    kept = kept_bytes(layer.saved_bytes, layer.module_bytes, layer.input_bytes, recompute=recompute)
    alive = partial(activation_bytes, device.behaviour.memory, activation_offload=offload)
    at_once = working_bytes(
        device.behaviour.memory, layer.saved_bytes, layer.module_bytes, recompute=recompute, activation_offload=offload
    )
    working = largest((stages.layers > 0) * np.asarray(at_once)[..., None, :])
    if stages.full_layers.any():
        in_full = (stages.full_layers > 0) * layer.saved_bytes[..., None, :]
        working = np.maximum(working, largest(in_full))
    largest_layer = np.maximum(
        _largest(_gathered_parameters(facts, layer)),
        np.maximum(
            whole.first * add_layer_axis(edge.embedding_parameters), whole.last * add_layer_axis(edge.head_parameters)
        ),
    )
    optimizer = states(optimizer_bytes) * np.where(add_layer_axis(decisions["optimizer_offload"]), 1 - offloaded, 1.0)
    if device.behaviour.optimizer.is_muon:
        beyond = muon_state_bytes(facts, decisions, stages)
        optimizer = optimizer + np.where(add_layer_axis(decisions["optimizer_offload"]), 0.0, beyond)
    ones, logits = np.ones_like(stages.rank), whole.last * add_layer_axis(edge.last_saved_bytes)
    at_work = ones * device.behaviour.memory.working_layers * working
    if device.behaviour.memory.follows_the_backward_pass:
        microbatch = _rank_kept_bytes(stages, stages.layers, np.asarray(kept), layer.input_bytes)
        at_work = _backward_peak_bytes(at_work, logits, layer, edge, whole, microbatch)
    return RankBytes(
        weights=_state_bytes(precision, stored, *groups, weight_bytes, sharding=sharding),
        gradients=states(gradient_bytes),
        optimizer=optimizer,
        activations=_alive_bytes(alive, stages, in_flight, np.asarray(kept), layer.input_bytes),
        logits=logits,
        working=at_work,
        gathered=ones * gathered_bytes(precision, largest_layer_parameters=largest_layer, sharding=sharding),
        buffers=_buffer_bytes(device, layer, edge, whole),
        runtime=ones * device.runtime_bytes,
        fragmentation=device.behaviour.memory.fragmentation,
    )


def _gathered_parameters(facts: Facts, layer: LayerFootprint) -> Array:
    """Parameters of each kind of layer, counted as those with the bytes of the recipe's gathers."""
    precision, parameters = facts.workload.precision, layer.dense_parameters + layer.expert_parameters
    wide = precision.wide_gather_bytes / precision.parameter_gather_bytes
    return np.asarray(parameters * np.array([wide if kind.is_wide else 1.0 for kind in facts.model.kinds]))


def least_rank_bytes(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Lower bound in bytes of each rank's peak over all shardings up to the given one, shape (..., U).

    Derivation: :func:`rank_bytes` with states sharded as far as the decisions say, minus the tensors that sharding
    makes whole for the layer at work. Less sharding makes the states larger and may need no whole tensors. Fragments
    are a fraction of the allocated bytes, so those of the subtracted tensors are subtracted, too.
    """
    peak, share = rank_bytes(facts, decisions, stages), facts.cluster.device.behaviour.memory.fragmentation
    return np.asarray(peak.total - (1 + share) * peak.gathered)


def rank_host_bytes(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Bytes of host memory that one device of each rank needs: offloaded activations, optimizer states and gradients.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (27), (33)-(35) and the limit M_CPU in (42).
    """
    layer = lookup(layer_footprint, facts, decisions)
    parameters = rank_parameters(facts, decisions, stages)
    precision, sharding = facts.workload.precision, sharding_of_states(facts, decisions)
    states = _state_bytes(precision, parameters, *sharing_groups(facts, decisions), optimizer_bytes, sharding=sharding)
    offloaded = partial(
        offloaded_bytes,
        facts.cluster.device.behaviour.memory,
        activation_offload=add_layer_axis(decisions["activation_offload"]),
    )
    recompute, in_flight = add_layer_axis(decisions["recompute"]), microbatches_in_flight(facts, decisions, stages)
    kept = kept_bytes(layer.saved_bytes, layer.module_bytes, layer.input_bytes, recompute=recompute)
    activations = _alive_bytes(
        lambda waiting, _, **alive: offloaded(waiting, **alive), stages, in_flight, np.asarray(kept), layer.input_bytes
    )
    on_host = states * host_state_bytes_per_byte(facts.cluster.device.behaviour.offload, precision)
    return np.asarray(np.where(add_layer_axis(decisions["optimizer_offload"]), on_host, 0.0) + activations)


def rank_port_bytes(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    r"""
    Bytes that one device of each rank copies to its host in a step, and as many back: shape (..., U).

    .. math:: Q = m f_a A + f P b

    Derivation: A are the offloaded activations of all m micro-batches, f_a the fraction of the layers that is
    offloaded. The host updates f P parameters; b bytes of the gradient, then of the weight, are copied for each.
    """
    device, sharding = facts.cluster.device, sharding_of_states(facts, decisions)
    layer, parameters = lookup(layer_footprint, facts, decisions), rank_parameters(facts, decisions, stages)
    recompute = add_layer_axis(decisions["recompute"])
    kept = np.asarray(kept_bytes(layer.saved_bytes, layer.module_bytes, layer.input_bytes, recompute=recompute))
    activations = offloaded_bytes(
        device.behaviour.memory,
        _rank_kept_bytes(stages, stages.layers, kept, layer.input_bytes),
        microbatches_in_flight=add_layer_axis(microbatches(facts, decisions)),
        activation_offload=add_layer_axis(decisions["activation_offload"]),
    )
    precision, offload = facts.workload.precision, device.behaviour.offload
    states = _state_bytes(precision, parameters, *sharing_groups(facts, decisions), optimizer_bytes, sharding=sharding)
    crossing = states / precision.optimizer_bytes * offload.offloaded_states * offload.host_transfer_bytes
    return np.asarray(activations + np.where(add_layer_axis(decisions["optimizer_offload"]), crossing, 0.0))


def microbatches_in_flight(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Number of micro-batches whose activations a rank holds at the peak, in units of all its layers.

    Overlapped expert parallelism runs a forward chunk along with a backward chunk, layer by layer. One chunk fills as
    the other one empties, so that one more layer is alive (Megatron-LM, ``megatron/core/models/common/``,
    ``model_chunk_schedule_plan.py``, ``TransformerLayerSchedulePlan.run``). Warm-up has one more chunk, with which the
    steady phase begins (``get_pp_rank_microbatches``). The chunks are those of
    :func:`costmodel.pipelines.schedules.chunks_alive`.
    """
    names = ("pp", "vpp", "dp", "mbs", "schedule", "vocabulary", "group", "ep_overlap")
    given = (stages, *(decisions[name] for name in names))
    return memoize_last(facts, microbatches_in_flight, given, lambda: _count_in_flight(facts, decisions, stages))


def _count_in_flight(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    vpp, m = add_layer_axis(decisions["vpp"]), add_layer_axis(microbatches(facts, decisions))
    chunks = stages.in_flight_imbalance * chunks_alive(
        pp=add_layer_axis(decisions["pp"]),
        vpp=vpp,
        num_microbatches=m,
        rank=stages.rank,
        schedule=add_layer_axis(decisions["schedule"]),
        vocabulary=add_layer_axis(decisions["vocabulary"]),
        group=add_layer_axis(decisions["group"]),
    )
    overlapped = add_layer_axis(decisions["ep_overlap"]) / np.maximum(stages.largest_chunk, 1)
    return np.asarray(np.minimum(chunks + overlapped, m * vpp) / vpp)


def _state_bytes(
    precision: Precision,
    parameters: RankParameters,
    dense: Group,
    expert: Group,
    state: StateBytes,
    *,
    sharding: NDArray[np.int64],
) -> Array:
    """Bytes of one state of all parameters of a rank, dense and expert ones sharded over their own groups."""
    nbytes = state(precision, parameters=parameters.dense, group_ranks=dense.ranks, sharding=sharding)
    if parameters.experts.any():
        nbytes = nbytes + state(precision, parameters=parameters.experts, group_ranks=expert.ranks, sharding=sharding)
    return np.asarray(nbytes)


def _alive_bytes(
    nbytes: Callable[..., Numbers], stages: Stages, in_flight: Array, kept: Array, layer_input: Array
) -> Array:
    """Bytes of a rank's layers in all micro-batches in flight; MTP, in the last chunk, holds one at most."""
    others = stages.layers - stages.mtp_layers
    alive = nbytes(
        _rank_kept_bytes(stages, others, kept, layer_input),
        _sum_over_layers(others, layer_input),
        microbatches_in_flight=in_flight,
    )
    if stages.mtp_layers.any():
        alive = alive + nbytes(
            _sum_over_layers(stages.mtp_layers, kept),
            _sum_over_layers(stages.mtp_layers, layer_input),
            microbatches_in_flight=np.minimum(in_flight, 1.0),
        )
    return np.asarray(alive)


def _rank_kept_bytes(stages: Stages, layers: Array, kept: Array, layer_input: Array) -> Array:
    """Bytes that a rank's layers keep of one micro-batch; fully recomputed layers keep only their input."""
    whole = _sum_over_layers(layers, kept)
    return whole + _sum_over_layers(stages.full_layers, layer_input - kept) if stages.full_layers.any() else whole


def _backward_peak_bytes(
    recomputed: Array,
    logits: Array,
    layer: LayerFootprint,
    edge: EmbeddingHeadFootprint,
    stages: Stages,
    microbatch: Array,
) -> Array:
    """
    Bytes that the backward pass needs besides kept activations and logits, at its peak.

    In the first layers these are the recomputed activations with their gradients, after the logits are freed. At the
    end it is the whole gradient of the embedding, after the layers of its micro-batch are freed too.
    """
    in_layers = recomputed + _largest(layer.gradient_bytes) - logits
    in_embedding = stages.first * add_layer_axis(edge.gradient_bytes) - microbatch - logits
    return np.asarray(np.maximum(np.maximum(in_layers, in_embedding), 0.0))


def _buffer_bytes(device: EquippedDevice, layer: LayerFootprint, edge: EmbeddingHeadFootprint, stages: Stages) -> Array:
    """Bytes of copies of the embedding, of held gradients, and of workspaces."""
    embedding = (
        stages.first
        * device.behaviour.memory.embedding_buffers
        * BUFFER_BYTES
        * add_layer_axis(edge.embedding_parameters)
    )
    shapes = add_layer_axis(layer.shapes_parameters) + stages.last * add_layer_axis(edge.head_shape_parameters)
    memory_model = device.behaviour.memory
    return np.asarray(embedding + memory_model.weight_gradient_bytes * shapes + memory_model.workspace_bytes)


def _sum_over_layers(layers: Array, per_kind: Array) -> Array:
    """Sum a quantity per kind of layer over the layers, shape (..., U)."""
    return np.asarray(sum_last(layers * per_kind[..., None, :]))


def _largest(per_kind: Array) -> Array:
    """Return the largest value over the kinds of layers, with an axis for the ranks."""
    return np.asarray(per_kind.max(axis=-1, keepdims=True))


WITHOUT_DRIVER = ("reserved",)
"""Memory kinds that count only the framework's allocator."""

WITHOUT_RUNTIME = ("allocated", "unspecified")
"""Memory kinds that do not count the driver, the communication library and the allocator's overhead."""


def seen_bytes(
    device: EquippedDevice, device_bytes: float, memory_kind: str, strategy: Strategy | None = None
) -> float:
    """
    Peak bytes as a kind of measurement reports them: ``allocated``, ``reserved``, or all of the device.

    Derivation: the peak is (1 + fragmentation) times the allocated bytes, plus the runtime's. A counter of the
    allocator's reserved memory misses the runtime; a counter of allocated tensors also misses the fragments. The missed
    bytes are subtracted. With a strategy, reserved memory is the memory that the allocator holds with spare room.

    >>> from costmodel import catalog
    >>> h100 = catalog.equip_device("h100-80gb-sxm")
    >>> seen_bytes(h100, 6e10, "reserved") - 6e10
    -5000000000.0
    """
    if memory_kind in WITHOUT_DRIVER and strategy is not None:
        found = held_share(device.behaviour.memory, strategy)
        return seen_bytes(device, device_bytes, "allocated") * (1 + found.middle)
    if memory_kind in WITHOUT_RUNTIME:
        return (device_bytes - device.runtime_bytes) / (1 + device.behaviour.memory.fragmentation)
    return device_bytes - device.runtime_bytes if memory_kind in WITHOUT_DRIVER else device_bytes
