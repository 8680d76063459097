"""Transfers between pipeline ranks."""

from __future__ import annotations

from functools import partial

import numpy as np

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.network.collectives import collective_seconds, copying_seconds, leaves_scale_up_domain
from costmodel.network.groups import Group, pipeline_group
from costmodel.pipelines.interleaved import p2p_exposed_seconds
from costmodel.pipelines.stages import Stages
from costmodel.step.compute import layer_seconds
from costmodel.step.layer import FORWARD_FRACTION, LayerParts
from costmodel.step.overlap import exposed_overlapped_seconds, taken_seconds
from costmodel.tables import Array, Decisions, Facts, add_layer_axis, lookup, microbatches, sum_last
from costmodel.timing.work import Numbers


def p2p_seconds(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    pp: Numbers,
    dp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> Array:
    r"""
    Seconds of one transfer of a micro-batch's activations between pipeline ranks; zero without a pipeline.

    .. math:: T_{pp} = b s h D / (t c B)

    Each tensor-parallel rank sends its share of the sequence. Without sequence parallelism each sends all of it
    (Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``, ``get_tensor_shapes``), or a share that the
    receivers gather, if the framework does so.
    """
    group = pipeline_group(tp=tp, cp=cp, dp=dp, pp=pp)
    nbytes = micro_batch_bytes(model, workload, tp=tp, cp=cp, mbs=mbs, sequence_parallel=sequence_parallel)
    device, send = cluster.device, partial(collective_seconds, cluster, "pp", "send")
    if not device.behaviour.communication.scatter_gather_p2p:
        seconds = send(nbytes=nbytes, ranks=group.ranks, stride=group.stride)
    else:
        scattered = 1 + (1 - np.asarray(sequence_parallel)) * (np.asarray(tp) - 1)
        gathered = nbytes * (scattered > 1)
        seconds = send(nbytes=nbytes / scattered, ranks=group.ranks, stride=group.stride)
        seconds = seconds + collective_seconds(cluster, "tp", "all_gather", nbytes=gathered, ranks=tp, stride=1)
    return np.asarray((seconds + device.constants.p2p_overhead_seconds) * (np.asarray(pp) > 1))


def p2p_copying_seconds(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    pp: Numbers,
    dp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> Array:
    """
    Seconds in which processors copy the bytes of one transfer between pipeline ranks.

    Derivation: :func:`costmodel.network.collectives.copying_seconds` of :func:`p2p_seconds` without its overhead.
    """
    degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    group = pipeline_group(tp=tp, cp=cp, dp=dp, pp=pp)

    def seconds_on(other: Cluster) -> Array:
        hop = p2p_seconds(model, other, workload, **degrees, mbs=mbs, sequence_parallel=sequence_parallel)
        return _bare_seconds(other, hop)

    leaves = leaves_scale_up_domain(cluster, ranks=group.ranks, stride=group.stride)
    return np.asarray(copying_seconds(cluster, seconds_on(cluster), seconds_on, leaves=leaves))


def _bare_seconds(cluster: Cluster, hop: Array) -> Array:
    """Seconds of a transfer's bytes, without the waiting of both sides."""
    return np.maximum(hop - cluster.device.constants.p2p_overhead_seconds, 0.0)


def whole_p2p_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Seconds of a transfer that blocks its sender: :func:`p2p_seconds` without interleaving, otherwise zero.

    References
    ----------
    Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``,
    ``forward_backward_pipelining_without_interleaving``.
    """
    return np.where(np.asarray(decisions["vpp"]) > 1, 0.0, lookup(p2p_seconds, facts, decisions))


def sent_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    """
    Seconds per micro-batch in which a plain pipeline's rank waits for its own transfers, shape (..., U).

    Interleaved ranks do not wait for theirs.

    Derivation: each rank sends activations to the next rank and gradients to the previous one, two transfers; the ends
    of the pipeline have one neighbour.
    """
    return np.asarray((2 - stages.first - stages.last) * add_layer_axis(whole_p2p_seconds(facts, decisions)))


def micro_batch_bytes(
    model: Model, workload: Workload, *, tp: Numbers, cp: Numbers, mbs: Numbers, sequence_parallel: Numbers
) -> Numbers:
    """
    Bytes of a rank's activations of a micro-batch between two layers.

    Derivation: b s h D / c, the P2P volume of MoFa, of each tensor of the residual; with sequence parallelism a
    tensor-parallel rank has 1 / t of it.
    """
    shards = cp * (1 + sequence_parallel * (tp - 1))
    tensors = max(kind.residual_tensors for kind in model.kinds)
    elements = mbs * workload.sequence_length * model.hidden_size * tensors / shards
    return workload.precision.activation_bytes * elements


def pp_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts | None = None) -> Array:
    """
    Seconds of exposed transfers of an interleaved pipeline in one step, shape (...); zero for a plain one.

    Warm-up and cool-down expose all transfers, the steady phase those of (23). Only interleaved chunks have other
    work to hide a transfer. Transfers of the plain schedule, which waits for each, are part of :func:`rank_seconds`.
    A hidden transfer takes the time of its bytes, without synchronisation (``p2p_overhead_seconds`` of the device).

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    parts
        Seconds of one layer, with which transfers overlap; None: enough to hide as much as possible.

    References
    ----------
    MoFa, arXiv:2511.09837, the terms in T_pp of (9)-(11), and (23) with the forward pass of an average chunk. It is
    a third of the chunk's time, as a backward pass is twice a forward pass.
    """
    cluster = facts.cluster
    hop, group = lookup(p2p_seconds, facts, decisions), pipeline_ranks(decisions)
    bare, copying = _bare_seconds(cluster, hop), lookup(p2p_copying_seconds, facts, decisions)
    leaves = leaves_scale_up_domain(cluster, ranks=group.ranks, stride=group.stride)
    hidden: Numbers
    if parts is None:
        hidden = np.asarray(np.minimum(bare, taken_seconds(copying, cluster.device.slowdowns)))
    else:
        seconds = lookup(layer_seconds, facts, decisions)
        chunk = partial(_forward_chunk_seconds, decisions, stages)
        hidden = exposed_overlapped_seconds(
            bare,
            chunk(parts.compute),
            cluster.device.slowdowns,
            copying_seconds=copying,
            adapter_seconds=leaves * chunk(seconds.adapter.total),
            scale_up_seconds=chunk(seconds.scale_up.total),
            waiting_seconds=chunk(parts.waiting),
        )
    steady = np.where(decisions["pp_overlap"], hidden, hop)
    m = microbatches(facts, decisions)
    exposed = p2p_exposed_seconds(hop, steady, pp=decisions["pp"], vpp=decisions["vpp"], num_microbatches=m)
    return np.where(np.asarray(decisions["vpp"]) > 1, exposed, 0.0)


def _forward_chunk_seconds(decisions: Decisions, stages: Stages, layer: Array) -> Array:
    """Seconds of the forward pass of an average chunk, from seconds of a layer of each kind in both passes."""
    num_chunks = np.asarray(decisions["pp"]) * decisions["vpp"]
    return np.asarray(FORWARD_FRACTION * sum_last(stages.all_layers * layer) / num_chunks)


def pipeline_ranks(decisions: Decisions) -> Group:
    """Return the ranks of one pipeline, a group per replica."""
    return pipeline_group(**{name: np.asarray(decisions[name]) for name in ("tp", "cp", "dp", "pp")})
