"""Parameters and bytes of each different rank of a pipeline, on a trailing axis of ranks, shape (..., U)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import EquippedDevice
from costmodel.facts.workload import Precision
from costmodel.lowering.framework import limit_sharding, moment_bytes
from costmodel.memory.parts import (
    EmbeddingHeadFootprint,
    LayerFootprint,
    activation_bytes,
    dealt_share,
    embedding_head_footprint,
    gathered_bytes,
    gradient_bytes,
    held_share,
    host_state_bytes_per_byte,
    kept_bytes,
    layer_footprint,
    matrix_footprint,
    offloaded_bytes,
    offloaded_state_fraction,
    optimizer_bytes,
    state_shards,
    weight_bytes,
    working_bytes,
)
from costmodel.network.groups import Group, dense_data_group, expert_data_group, sharding_group
from costmodel.pipelines.schedules import chunks_alive, parameter_copies
from costmodel.pipelines.stages import Stages, stages
from costmodel.record import record
from costmodel.strategy import Sharding, Strategy
from costmodel.tables import (
    Array,
    Decisions,
    Facts,
    add_layer_axis,
    largest,
    lookup,
    memoize_last,
    microbatches,
    sum_last,
)
from costmodel.timing.work import Numbers

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
    Where gradients are all-reduced, there is no distributed optimizer for the others: one replica also has all of the
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
    precision = facts.workload.precision.on(device.silicon)
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
        buffers=_buffer_bytes(device, edge, whole),
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


def _buffer_bytes(device: EquippedDevice, edge: EmbeddingHeadFootprint, stages: Stages) -> Array:
    """Bytes of copies of the embedding, of held gradients, and of workspaces."""
    embedding = (
        stages.first
        * device.behaviour.memory.embedding_buffers
        * BUFFER_BYTES
        * add_layer_axis(edge.embedding_parameters)
    )
    shapes = add_layer_axis(edge.layer_shapes_parameters) + stages.last * add_layer_axis(edge.head_shape_parameters)
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
