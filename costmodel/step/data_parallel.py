"""
The end of a step: gradients to their owners, the update, weights back, MoFa (13), (24)-(28).

"Parameters" of a formula are those on one device of a pipeline rank, dense and expert separately, as their groups
differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.lowering.collectives import StepCollective, gradient_collective, sharding_copy_bytes, weight_collective
from costmodel.lowering.kernels import SMALL_LAUNCH
from costmodel.memory import (
    FP32_BYTES,
    RankParameters,
    data_groups,
    embedding_head_footprint,
    has_embedding_copy,
    rank_parameters,
    reducing_groups,
    sharing_groups,
    state_shards,
)
from costmodel.models import flops as counts
from costmodel.network.collectives import Group, collective_seconds, copying_seconds, leaves_scale_up_domain
from costmodel.pipelines.stages import Stages
from costmodel.record import record
from costmodel.step.compute import layer_seconds
from costmodel.step.layer import (
    FORWARD_FRACTION,
    FORWARD_FRACTION_RECOMPUTED,
    LayerParts,
    LeastLayer,
    Window,
    layer_parts,
    layer_window,
)
from costmodel.step.overlap import exposed_dp_seconds, measured_law_exposed_dp_seconds
from costmodel.step.rank_time import pipeline_ranks, rank_seconds
from costmodel.strategy import Recompute, Sharding
from costmodel.tables import (
    Array,
    Decisions,
    Facts,
    add_layer_axis,
    add_leading_axis,
    largest,
    lookup,
    memoize_last,
    microbatches,
    sum_last,
)
from costmodel.timing.work import Numbers


def data_parallel_collective_seconds(
    cluster: Cluster, kind: str, *, nbytes: Numbers, group: Group, pieces: Numbers = 1
) -> Numbers:
    r"""
    Seconds of one collective over all parameters of a rank, one piece after the other.

    .. math:: T = M\, T_{kind}(S / M)

    Parameters
    ----------
    cluster
        Devices and networks.
    kind
        One of :data:`costmodel.network.collectives.COLLECTIVES`: reduce-scatters of gradients, all-gathers of weights.
    nbytes, pieces
        Bytes of all parameters together, S; number of collectives for them, M.
    group
        The data-parallel ranks.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (13).
    """
    part = nbytes / pieces
    return pieces * collective_seconds(cluster, "dp", kind, nbytes=part, ranks=group.ranks, stride=group.stride)


def replicas_seconds_measured(
    cluster: Cluster, *, dense_bytes: Numbers, expert_bytes: Numbers, dense: Group, expert: Group
) -> Numbers:
    r"""
    Seconds of one reduce-scatter or all-gather of all parameters by measured bandwidths.

    .. math:: T = \left[Q_{dense} / B_{dense} + Q_{expert} (d - 1) / (d B_{expert})\right] / \gamma^{\log_2(e d / n_0)}

    Parameters
    ----------
    cluster
        Nodes, and the measured ``dp_bandwidths``.
    dense_bytes, expert_bytes
        Bytes of both that a rank holds.
    dense, expert
        Their groups: e d and d replicas.

    References
    ----------
    The data-parallel column of MoFa's Table 8 follows it to 0.02 s.
    """
    device, node = cluster.device, cluster.device.devices_per_node
    replicas = np.asarray(expert.ranks)
    parts = np.asarray(dense.ranks) / replicas
    inside = np.asarray(dense.ranks) <= node
    where = {
        "inside_node": inside,
        "more_replicas": ~inside & (replicas > parts),
        "fewer_replicas": ~inside & (replicas <= parts),
    }
    seconds: Numbers = np.nan
    for law in device.constants.measured.dp_bandwidths:
        scale = law.decay ** np.log2(np.asarray(dense.ranks) / law.reference_ranks)
        time = (dense_bytes / law.dense + expert_bytes * (replicas - 1) / replicas / law.expert) / scale
        seconds = np.where(where[law.placement], time, seconds)
    return np.where(np.asarray(dense.ranks) > 1, seconds, 0.0)


def device_update_seconds(device: EquippedDevice, *, local_parameters: Numbers) -> Numbers:
    r"""
    Seconds of the optimizer's update on the device: bound by its memory, on the rank's shard of the states.

    .. math:: T_{upd,dist} = T_{upd} / d

    A sampled update replaces the formula, times the bytes that the framework moves over those of the sample.

    Parameters
    ----------
    device
        The accelerator.
    local_parameters
        Number of parameters whose states this device holds.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (26).
    """
    moved = device.behaviour.optimizer.optimizer_bytes_per_parameter
    if device.samples_used is not None:
        from costmodel.timing.sampled_source import ADAM_BYTES, load_update_times

        sampled = load_update_times(device.samples_used, device)
        if sampled is not None:
            return sampled.seconds({"n": np.maximum(local_parameters, 1.0)}) * moved / ADAM_BYTES
    return local_parameters * moved / device.achieved_memory_bandwidth


def host_update_seconds(device: EquippedDevice, *, local_parameters: Numbers) -> Numbers:
    r"""
    Seconds of an update of which the host does a fraction f: gradients down, update, weights up, rest on the device.

    .. math::

        T_{D2H} = f P b / B_{D2H} \qquad T_{cpu} = f P u / B_{host} \qquad T_{H2D} = f P b / B_{H2D}

        T = T_{D2H} + \max(T_{cpu}, T_{upd}((1 - f) P)) + T_{H2D}

    With overlap, host, device and both directions of the port work on different tensors:
    :math:`T = \max(T_{D2H}, T_{cpu}, T_{H2D}, T_{upd})`. The first tensor's copy down and the last one's copy up, of
    hundreds, are left out. Copies take no host memory bandwidth from the update, which reaches 0.7 of the datasheet's.

    Parameters
    ----------
    device
        The accelerator: its port, its share of the host, and its framework's offloading
        (:class:`costmodel.facts.framework.OptimizerOffload`: f, b and u bytes per parameter, overlap).
    local_parameters
        Number of parameters whose states belong to this device, P.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (28), is the sum with f = 1. megatron-core 0.16.1,
    ``megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:150`` (``step``): copies to the host, the device's
    optimizer, the host's, copies back. They share a stream, or with overlap have two and an optimizer per tensor
    (lines 220 and 227). Gradients arrive in the FP32 of the host's weights (line 114); the copies back do not wait
    (line 124), so that the device narrows them.
    """
    offload = device.behaviour.offload
    offloaded = offload.offloaded_states * local_parameters
    down = offloaded * offload.host_transfer_bytes / device.device_to_host_bandwidth
    up = offloaded * offload.host_transfer_bytes / device.host_to_device_bandwidth
    on_host = offloaded * offload.host_update_bytes / device.host_stream_bandwidth
    updates = np.maximum(on_host, device_update_seconds(device, local_parameters=local_parameters - offloaded))
    return np.maximum(updates, np.maximum(down, up)) if offload.offload_overlap else down + updates + up


def accumulation_seconds(
    device: EquippedDevice, *, parameters: Numbers, gradient_bytes: float, num_microbatches: Numbers
) -> Numbers:
    r"""
    Seconds in which PyTorch's autograd adds the gradients of each micro-batch after the first to the earlier ones.

    .. math:: T = (m - 1) \frac{3 P g}{B}

    Derivation: two tensors of P gradients of g bytes are read, one is written; those of the first micro-batch are kept
    as they are (``torch/csrc/autograd/functions/accumulate_grad.h``). With 16-bit gradients beside FP32 ones, together
    of g bytes, both are read and the FP32 ones written, for every micro-batch: m P (g + 4) / B. Frameworks with kernels
    other than PyTorch's add them in the matmul, or their calibration includes it.

    Parameters
    ----------
    device
        The accelerator with its framework.
    parameters, gradient_bytes
        Parameters whose gradients it holds; bytes of each.
    num_microbatches
        Micro-batches of a step.
    """
    if not device.behaviour.kernels.torch_functions:
        return 0.0 * parameters
    has_both = gradient_bytes > FP32_BYTES
    nbytes = gradient_bytes + FP32_BYTES if has_both else 3 * gradient_bytes
    additions = np.maximum(np.asarray(num_microbatches) - (0 if has_both else 1), 0)
    seconds: Numbers = additions * parameters * nbytes / device.achieved_memory_bandwidth
    return seconds


def parameter_pass_seconds(device: EquippedDevice, *, parameters: Numbers) -> Numbers:
    """
    Seconds of passes over all parameters of a rank that sharding does not shorten: zeroing, copies.

    Derivation: T = n b / B for n parameters, b bytes of memory traffic per parameter in these passes and the achieved
    memory bandwidth B. MoFa prints such a floor under the update of equation (26); its Table 6 has 0.02 s for 6.7e9
    parameters.
    """
    return parameters * device.constants.parameter_pass_bytes / device.achieved_memory_bandwidth


@record(frozen=True, kw_only=True, slots=True)
class Traffic:
    """
    Seconds of collectives over all parameters of each different rank, shape (..., U).

    Parameters
    ----------
    seconds
        Seconds of the collectives alone.
    copying, leaving
        Seconds in which processors copy their bytes, and in which they use the network adapter.
    """

    seconds: Array
    copying: Array
    leaving: Array

    def times(self, share: Numbers) -> Traffic:
        """Return a fraction, or a multiple, of these collectives."""
        return Traffic(seconds=self.seconds * share, copying=self.copying * share, leaving=self.leaving * share)

    def plus(self, other: Traffic) -> Traffic:
        """Return both, one after the other."""
        return Traffic(
            seconds=self.seconds + other.seconds,
            copying=self.copying + other.copying,
            leaving=self.leaving + other.leaving,
        )

    def select(self, condition: Any, other: Traffic) -> Traffic:
        """Return these collectives where a condition holds, and others elsewhere."""
        return Traffic(
            seconds=np.where(condition, self.seconds, other.seconds),
            copying=np.where(condition, self.copying, other.copying),
            leaving=np.where(condition, self.leaving, other.leaving),
        )


@record(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """
    One step's data-parallel communication alone, on each different rank: shape (..., U).

    Parameters
    ----------
    reduce, gather
        All reduce-scatters of gradients; all gathers of parameters (or the second half of the all-reduces).
    pieces
        Number of buckets in each of them.
    reduce_waits, gather_waits
        True if the reduce-scatters or the gathers are exposed.
    """

    reduce: Traffic
    gather: Traffic
    pieces: Array
    reduce_waits: Numbers
    gather_waits: Numbers


def data_parallel_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> DataParallel:
    r"""
    Seconds of data-parallel communication alone.

    Each collective has one bucket and its own latency. Gradients are reduced once per step, from ZeRO-2 on once
    per micro-batch. Parameters are gathered once, under ZeRO-3 twice per micro-batch (before the forward and before the
    backward pass). Without sharding, gradients are gathered instead of parameters: together an all-reduce.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (13); Rajbhandari et al., arXiv:1910.02054, section 7.
    """
    m, parameters = microbatches(facts, decisions), rank_parameters(facts, decisions, stages)
    names = ("tp", "cp", "dp", "ep", "etp", "vpp", "sharding")
    given = (m, parameters, stages, *(decisions[name] for name in names))
    return memoize_last(
        facts, data_parallel_seconds, given, lambda: _data_parallel(facts, decisions, stages, parameters, m)
    )


def _data_parallel(
    facts: Facts, decisions: Decisions, stages: Stages, parameters: RankParameters, num_microbatches: Numbers
) -> DataParallel:
    sharding, m = add_layer_axis(decisions["sharding"]), add_layer_axis(num_microbatches)
    cluster, precision, style = facts.cluster, facts.workload.precision, facts.cluster.device.behaviour.optimizer
    gradients = gradient_collective(style, sharding=sharding, num_microbatches=m)
    weights = weight_collective(style, sharding=sharding, num_microbatches=m)
    pieces = _num_buckets(facts, decisions, stages, parameters)
    pieces_of = partial(_pieces, buckets=pieces, stages=stages)
    groups, sharers = reducing_groups(facts, decisions), sharing_groups(facts, decisions)
    reduce = _round_traffic(cluster, groups, parameters, gradients, precision.gradient_bytes, pieces_of)
    sent = parameters.weigh(precision.wide_gather_bytes, precision.parameter_gather_bytes)
    gather = _round_traffic(cluster, sharers, sent, weights, precision.parameter_gather_bytes, pieces_of)
    return DataParallel(
        reduce=reduce.times(gradients.rounds),
        gather=reduce.select(sharding == int(Sharding.NONE), gather.times(weights.rounds)),
        pieces=pieces,
        reduce_waits=gradients.waits,
        gather_waits=weights.waits,
    )


def _pieces(collective: StepCollective, group: Group, *, buckets: Array, stages: Stages) -> Numbers:
    """Number of collectives that transfer all parameters: buckets; or owners, at most as many as whole tensors."""
    if collective.tensors_per_layer is None:
        return buckets
    tensors = collective.tensors_per_layer * (sum_last(stages.layers) + stages.first + stages.last)
    return np.maximum(np.minimum(group.ranks, tensors), 1)


def _round_traffic(
    cluster: Cluster,
    groups: tuple[Group, Group],
    parameters: RankParameters,
    collective: StepCollective,
    bytes_per_parameter: Numbers,
    pieces: Callable[[StepCollective, Group], Numbers],
) -> Traffic:
    """Return one round of a collective over all parameters of each rank, dense and expert ones in their own groups."""
    counted = parameters.layers + cluster.device.constants.measured.embedding_head_fraction * parameters.edges
    dense, expert = groups
    dense_bytes, expert_bytes = counted * bytes_per_parameter, parameters.experts * bytes_per_parameter
    if cluster.device.constants.measured.dp_bandwidths:
        measured = np.asarray(
            replicas_seconds_measured(
                cluster, dense_bytes=dense_bytes, expert_bytes=expert_bytes, dense=dense, expert=expert
            )
        )
        return Traffic(seconds=measured, copying=measured, leaving=measured)
    nothing = np.zeros(1)
    traffic = Traffic(seconds=nothing, copying=nothing, leaving=nothing)
    for group, nbytes in ((dense, dense_bytes), (expert, expert_bytes)):
        if nbytes.any():
            traffic = traffic.plus(
                _group_traffic(cluster, collective.kind, group, nbytes=nbytes, pieces=pieces(collective, group))
            )
    return traffic


def _group_traffic(cluster: Cluster, kind: str, group: Group, *, nbytes: Numbers, pieces: Numbers) -> Traffic:
    def seconds_on(other: Cluster) -> Numbers:
        return data_parallel_collective_seconds(other, kind, nbytes=nbytes, group=group, pieces=pieces)

    seconds = np.asarray(seconds_on(cluster))
    leaves = leaves_scale_up_domain(cluster, ranks=group.ranks, stride=group.stride)
    copying = np.asarray(copying_seconds(cluster, seconds, seconds_on, leaves=leaves))
    return Traffic(seconds=seconds, copying=copying, leaving=leaves * seconds)


def dp_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts | None = None) -> Array:
    """
    Exposed seconds of data-parallel communication on each different rank: shape (..., U).

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    parts
        Seconds of one layer, if known: :func:`costmodel.step.layer.layer_parts`.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (24), or a law measured on its cluster (:func:`measured_law_exposed_dp_seconds`).
    """
    alone = data_parallel_seconds(facts, decisions, stages)
    exposed = plain = alone.reduce.seconds + alone.gather.seconds
    if np.any(decisions["dp_overlap"]):
        overlapped = _overlapped_seconds(facts, decisions, stages, parts or layer_parts(facts, decisions), alone)
        exposed = np.where(add_layer_axis(decisions["dp_overlap"]), overlapped, plain)
    copies = (
        embedding_copy_seconds(facts, decisions, stages)
        + sharding_copies_seconds(facts, decisions, stages)
        + slice_copies_seconds(facts, decisions, stages)
    )
    if facts.cluster.sites is not None:
        known = parts or layer_parts(facts, decisions)
        copies = copies + site_links_seconds(facts, decisions, stages.sum_over_layers(known.compute + known.again))
    return np.asarray(exposed + copies)


def _overlapped_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, alone: DataParallel
) -> Array:
    """Exposed seconds of overlapped communication: by equation (24), or by a law measured on the cluster."""
    law = facts.cluster.device.constants.measured.dp_overlap
    if law is None:
        window = layer_window(facts, decisions, parts).sum_by_rank(stages)
        again = _whole_again(facts, decisions, stages, parts)
        return _dp_overlapped(facts, decisions, stages, alone, replace(window, computing=window.computing + again))
    return np.asarray(
        measured_law_exposed_dp_seconds(
            alone.reduce.seconds + alone.gather.seconds,
            rank_seconds(facts, decisions, stages, parts.compute + parts.tp),
            pp=add_layer_axis(decisions["pp"]),
            unhidden=law.unhidden,
            slowdown=law.slowdown,
            window=law.window,
        )
    )


def site_links_seconds(facts: Facts, decisions: Decisions, computing: Array) -> Array | float:
    r"""
    Seconds of a step in which ranks wait for the links between sites: shape (..., U).

    .. math:: T = \frac{s - 1}{H} \left(\frac{P (b_g + b_w)}{s B} + 2 \lambda\right)

    Derivation: a hierarchical reduction. The ranks of a site first reduce among themselves, so that each of the P
    parameters leaves a site once. Then rings over the s sites reduce and gather the parts. All devices of a site share
    its bandwidth B. Gradients are whole only after the last micro-batch, so that nothing hides it. With streams
    (Streaming DiLoCo) it is exposed as far as it takes longer than the computation of a step.

    Parameters
    ----------
    facts, decisions
        As in :func:`dp_seconds`.
    computing
        Seconds of computation of a micro-batch on each rank.
    """
    sites, precision = facts.cluster.sites, facts.workload.precision
    if sites is None:
        return 0.0
    gathered: Numbers = sites.sent_bytes
    reduced = sites.sent_bytes
    if sites.local_steps == 1:
        reduced = precision.gradient_bytes
        is_whole = add_layer_axis(decisions["sharding"]) == int(Sharding.NONE)
        gathered = np.where(is_whole, reduced, precision.parameter_gather_bytes)
    count = counts.parameters(facts.model) + counts.mtp_parameters(facts.model)
    per_byte = 0.0 if sites.bandwidth is None else count / (sites.count * sites.bandwidth)
    seconds = (sites.count - 1) / sites.local_steps * (per_byte * (reduced + gathered) + 2 * sites.latency)
    if sites.streams > 1:
        seconds = np.maximum(seconds - add_layer_axis(microbatches(facts, decisions)) * computing, 0.0)
    return np.asarray(seconds)


def embedding_copy_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array | float:
    """
    Seconds to sum the gradients of the embedding and of its copy on the last rank: shape (..., U).

    References
    ----------
    Megatron-LM, ``megatron/core/distributed/finalize_model_grads.py`` (``_allreduce_word_embedding_grads``): after the
    data-parallel reduction, before the update; also for multi-token prediction's copy.
    """
    if not has_embedding_copy(facts.model):
        return 0.0
    edge = lookup(embedding_head_footprint, facts, decisions)
    pipeline = pipeline_ranks(decisions)
    is_inside = pipeline.ranks * pipeline.stride <= facts.cluster.scale_up_size
    apart = np.where(is_inside, 1, np.maximum(pipeline.ranks - 1, 1))
    nbytes = edge.embedding_parameters * facts.workload.precision.gradient_bytes
    stride = pipeline.stride * apart
    seconds = collective_seconds(facts.cluster, "embedding", "all_reduce", nbytes=nbytes, ranks=2, stride=stride)
    is_copied = (stages.first > 0) != (stages.last > 0)
    return np.asarray(is_copied * add_layer_axis(seconds))


def sharding_copies_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Seconds of copies between tensors and collectives' buffers if weights are sharded: (..., U).

    Derivation: :func:`costmodel.lowering.collectives.sharding_copy_bytes` of each shared parameter and micro-batch, in
    the compute stream, at the achieved memory bandwidth.
    """
    device, precision = facts.cluster.device, facts.workload.precision
    nbytes = sharding_copy_bytes(
        device.behaviour.optimizer,
        gradient_bytes=precision.gradient_bytes,
        gather_bytes=precision.parameter_gather_bytes,
    )
    if not nbytes:
        return np.zeros(1)
    parameters, (dense, expert) = rank_parameters(facts, decisions, stages), sharing_groups(facts, decisions)
    shared = parameters.dense * (np.asarray(dense.ranks) > 1) + parameters.experts * (np.asarray(expert.ranks) > 1)
    per_parameter = nbytes / device.achieved_memory_bandwidth
    rounds = add_layer_axis(microbatches(facts, decisions))
    return np.where(
        add_layer_axis(decisions["sharding"]) == int(Sharding.WEIGHTS), rounds * per_parameter * shared, 0.0
    )


def slice_copies_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Seconds in which the host copies slices of gathered weights into their tensors: shape (..., U).

    Derivation: under ZeRO-1 each of r ranks owns a slice of every tensor. Some frameworks gather one flat buffer per
    rank and copy r slices into each tensor, each by a small kernel.
    """
    device = facts.cluster.device
    count = device.behaviour.optimizer.sliced_tensors
    if not count:
        return np.zeros(1)
    ranks = np.asarray(sharing_groups(facts, decisions)[0].ranks)
    tensors = count * sum_last(stages.layers) + stages.first + stages.last
    is_sliced = (add_layer_axis(decisions["sharding"]) == int(Sharding.OPTIMIZER)) & (ranks > 1)
    return np.asarray(is_sliced * tensors * ranks * SMALL_LAUNCH * device.constants.launch_overhead_seconds)


def least_ending_seconds(facts: Facts, decisions: Decisions, stages: Stages, layer: LeastLayer) -> Array:
    """
    Lower bound in seconds of the end of a step, data-parallel communication and update: shape (...).

    Derivation: overlapped communication is exposed for no longer than alone, and for less time, the longer the rank
    computes and waits meanwhile. The bound is the least of all shardings up to the given one.

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`dp_seconds`.
    layer
        The most time that a layer of each kind may take, and its least load on the links.
    """
    if facts.cluster.device.constants.measured.dp_overlap is not None:
        return least_update_seconds(facts, decisions, stages)
    levels, each = _split_shardings(decisions)
    window = layer.window.sum_by_rank(stages)
    alone = data_parallel_seconds(facts, each, stages)
    exposed = _dp_overlapped(facts, each, stages, alone, window)
    copies = embedding_copy_seconds(facts, decisions, stages) + sharding_copies_seconds(facts, each, stages)
    copies = copies + site_links_seconds(facts, each, window.computing)
    ending = largest(exposed + copies + update_seconds(facts, each, stages))
    return np.asarray(np.where(levels <= decisions["sharding"], ending, np.inf).min(axis=0))


def least_update_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Lower bound in seconds of the parameter update, shape (...), over all shardings up to the given one.

    Derivation: less sharding leaves Adam more to update. It leaves Muon fewer ranks that gather parts of a matrix.
    """
    if not facts.cluster.device.behaviour.optimizer.is_muon:
        return largest(update_seconds(facts, decisions, stages))
    levels, each = _split_shardings(decisions)
    seconds = largest(update_seconds(facts, each, stages))
    return np.asarray(np.where(levels <= decisions["sharding"], seconds, np.inf).min(axis=0))


def _split_shardings(decisions: Decisions) -> tuple[Any, Decisions]:
    """Return all shardings up to the largest on a new first axis, and the decisions with them."""
    levels = add_leading_axis(np.arange(1 + np.max(decisions["sharding"])), decisions)
    return levels, {**decisions, "sharding": levels}


def _dp_overlapped(facts: Facts, decisions: Decisions, stages: Stages, alone: DataParallel, window: Window) -> Array:
    """
    Apply equation (24) to communication overlapped with forward passes, and with backward passes.

    Without sharding it is the all-reduce during the last micro-batches. Under ZeRO-1 it is a gather during the first
    and a reduce-scatter during the last ones, from ZeRO-2 on a reduce-scatter during every backward pass. Under ZeRO-3
    half of the gathers also run during each pass. No micro-batch starts before the previous one has reduced everything
    (FSDP waits at the end of each backward pass).

    Warm-up and cool-down pass the chunks of as many micro-batches as there are ranks, with exposed all-to-alls. Windows
    inside them wait longer by that time.
    """
    sharding, m = add_layer_axis(decisions["sharding"]), add_layer_axis(microbatches(facts, decisions))
    every_reduce, every_gather = sharding >= int(Sharding.GRADIENTS), sharding >= int(Sharding.WEIGHTS)
    once = _window_fraction(decisions, stages)
    is_full = add_layer_axis(decisions["recompute"]) == int(Recompute.FULL)
    forward = np.where(is_full, FORWARD_FRACTION_RECOMPUTED, FORWARD_FRACTION)
    nothing = alone.gather.times(0.0)
    late = alone.gather.select(sharding == int(Sharding.NONE), alone.gather.times(0.5).select(every_gather, nothing))
    rounds = np.where(every_gather, m, 1)
    most_edges = add_layer_axis(decisions["pp"]) / rounds
    exposed_backward = rounds * _exposed_seconds(
        facts,
        alone.reduce.plus(late).times(1 / rounds),
        window.times(1 - forward),
        np.where(every_reduce, m / rounds, once),
        most_edges=most_edges,
        num_pieces=np.where(every_reduce, m / rounds, 1) * alone.pieces,
    )
    exposed_forward = rounds * _exposed_seconds(
        facts,
        alone.gather.plus(late.times(-1)).times(1 / rounds),
        window.times(forward),
        np.where(every_gather, 1, once),
        most_edges=most_edges,
        num_pieces=alone.pieces,
    )
    reducing = np.where(alone.reduce_waits, alone.reduce.seconds, exposed_backward)
    return np.asarray(reducing + np.where(alone.gather_waits, alone.gather.seconds, exposed_forward))


def _whole_again(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts) -> Numbers:
    """Seconds of computation that ranks repeat in fully recomputed layers: shape (..., U)."""
    if not stages.full_layers.any():
        return 0.0
    whole = lookup(layer_seconds, facts, decisions).again
    return np.asarray(sum_last(stages.full_layers * (whole - parts.again)[..., None, :]))


def _exposed_seconds(
    facts: Facts, traffic: Traffic, window: Window, num_windows: Numbers, *, most_edges: Numbers, num_pieces: Numbers
) -> Numbers:
    """Exposed seconds of collectives in a number of windows, at most some of them in warm-up or cool-down."""
    return exposed_dp_seconds(
        traffic.seconds,
        num_windows * window.computing,
        facts.cluster.device.slowdowns,
        num_pieces=num_pieces,
        copying_seconds=traffic.copying,
        adapter_seconds=np.where(traffic.leaving > 0, num_windows * window.adapter, 0.0),
        scale_up_seconds=num_windows * window.scale_up,
        waiting_seconds=num_windows * window.waiting + np.minimum(num_windows, most_edges) * window.edges,
    )


def _window_fraction(decisions: Decisions, stages: Stages) -> Array:
    r"""
    Computation of a rank that runs while one chunk's communication is under way, in micro-batches.

    The other v - 1 chunks pass a group of g micro-batches each in cool-down or warm-up. Within the last chunk all
    layers but one overlap with another layer's communication.

    .. math:: w = \left[(v - 1) g + 1 - 1/l\right] / v
    """
    vpp, chunk = add_layer_axis(decisions["vpp"]), stages.largest_chunk
    return np.asarray(((vpp - 1) * add_layer_axis(decisions["group"]) + 1 - 1 / np.maximum(chunk, 1)) / vpp)


def _num_buckets(facts: Facts, decisions: Decisions, stages: Stages, parameters: RankParameters) -> Array:
    """
    Number of buckets of a rank's parameters: none spans two chunks; each is at least a layer and the framework's size.

    Sharded weights are gathered and freed layer by layer (FSDP's units), at any size.
    """
    style, (dense, _) = facts.cluster.device.behaviour.optimizer, data_groups(facts, decisions)
    size = np.maximum(style.bucket_parameters, style.bucket_parameters_per_rank * np.asarray(dense.ranks))
    layers = add_layer_axis(decisions["vpp"]) * stages.largest_chunk
    by_size = np.minimum((parameters.dense + parameters.experts) / size, layers)
    buckets = np.where(add_layer_axis(decisions["sharding"]) == int(Sharding.WEIGHTS), layers, by_size)
    return np.asarray(np.maximum(buckets, add_layer_axis(decisions["vpp"])))


def update_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Seconds of the parameter update of each different rank, on the device or on the host, shape (..., U).

    References
    ----------
    MoFa, arXiv:2511.09837, equations (13), (26), (28).
    """
    device = facts.cluster.device
    parameters = rank_parameters(facts, decisions, stages)
    dense, expert = sharing_groups(facts, decisions)
    updated = parameters.layers + device.constants.measured.embedding_head_fraction * parameters.edges
    local = updated / _shards(dense, decisions, Sharding.OPTIMIZER) + parameters.experts / _shards(
        expert, decisions, Sharding.OPTIMIZER
    )
    on_host = host_update_seconds(device, local_parameters=local)
    on_device = device_update_seconds(device, local_parameters=local)
    whole = updated / _shards(dense, decisions, Sharding.WEIGHTS) + parameters.experts / _shards(
        expert, decisions, Sharding.WEIGHTS
    )
    passes = parameter_pass_seconds(device, parameters=whole) + accumulation_seconds(
        device,
        parameters=whole,
        gradient_bytes=facts.workload.precision.gradient_bytes,
        num_microbatches=add_layer_axis(microbatches(facts, decisions)),
    )
    seconds = passes + np.where(add_layer_axis(decisions["optimizer_offload"]), on_host, on_device)
    if not device.behaviour.optimizer.is_muon:
        return seconds
    from costmodel.step.muon import muon_seconds

    return seconds + muon_seconds(facts, decisions, stages)


def _shards(group: Group, decisions: Decisions, level: Sharding) -> Numbers:
    return state_shards(group.ranks, sharding=add_layer_axis(decisions["sharding"]), level=level)
