"""Seconds of pipeline ranks for a micro-batch: transfers, waiting for the slowest and for longer packed sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload, largest_normal
from costmodel.lowering import layer_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import (
    Group,
    collective_seconds,
    copying_seconds,
    leaves_scale_up_domain,
    pipeline_group,
)
from costmodel.pipelines.graph import spans_seconds
from costmodel.pipelines.orders import has_order
from costmodel.pipelines.schedules import (
    WHOLE_BACKWARD,
    Passes,
    bubble_seconds,
    busy_seconds,
    chunks_waiting_seconds,
    interleaved_bubble_seconds,
    p2p_exposed_seconds,
    plain_seconds,
    unequal_chunks_seconds,
    vocabulary_delay,
)
from costmodel.pipelines.stages import Stages, layers_of_each_kind, virtual_stage_layers
from costmodel.record import record
from costmodel.step.compute import layer_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.step.layer import FORWARD_FRACTION, LayerParts, layer_parts
from costmodel.step.overlap import exposed_overlapped_seconds, taken_seconds
from costmodel.strategy import CudaGraphs, Schedule, Sharding, Vocabulary, default_microbatch_group, is_one_of
from costmodel.tables import (
    Array,
    Decisions,
    Facts,
    Record,
    add_layer_axis,
    any_of,
    largest,
    lookup,
    microbatches,
    sum_last,
)
from costmodel.timing.source import OperatorTimes, operator_times, slowest_of
from costmodel.timing.work import AttentionSize, Numbers, Operator


@record(frozen=True, kw_only=True, slots=True)
class LengthSpread(Record):
    """
    Spread of the time of one layer and micro-batch by the lengths of its sequences: shape (..., K).

    Parameters
    ----------
    forward, backward
        Standard deviation of the seconds of its attention in either pass.
    most_forward, most_backward
        Seconds by which its attention takes longer than the mean if all sequences are the longest ones.
    attention
        Seconds of its attention in both passes.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    most_forward: NDArray[np.float64]
    most_backward: NDArray[np.float64]
    attention: NDArray[np.float64]


def length_spread_seconds(
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
    dp: Numbers,
) -> LengthSpread:
    r"""
    Spread of a layer's time by the lengths of the sequences in a micro-batch of b samples of s tokens.

    .. math:: \sigma = T_{attn} \sqrt{v / (b s)} / k, \qquad M = T_{attn} (k_{max} / k - 1)

    Derivation: attention takes as long as it has pairs of tokens; all other operators work on equally many tokens. k
    and v are those of :meth:`costmodel.facts.workload.SequenceLengths.keys`.
    """
    degrees = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "mbs": mbs, "sequence_parallel": sequence_parallel}
    shape = layer_shape(model, cluster, workload, **degrees)
    times = operator_times(
        cluster.device,
        workload.precision.compute,
        num_devices=np.asarray(tp) * cp * dp,
        cuda_graphs=CudaGraphs.FULL_ITERATION,
    )
    layers = [_one_layer(layer_operators(layer, shape), shape, times) for layer in model.kinds]
    return LengthSpread(**{name: shape.stack([one[name] for one in layers]) for name in layers[0]})


def _one_layer(operators: Iterable[Operator], shape: Shape, times: OperatorTimes) -> dict[str, Numbers]:
    found: dict[str, Numbers] = dict.fromkeys(
        ("forward", "backward", "most_forward", "most_backward", "attention"), 0.0
    )
    for operator in operators:
        packed = operator.size.packed if isinstance(operator.size, AttentionSize) else None
        if packed is None:
            continue
        share = np.sqrt(packed.variance / (np.asarray(shape.mbs) * shape.sequence_length)) / packed.mean
        passes = {"forward": times.forward_seconds(operator), "backward": times.backward_seconds(operator)}
        for name, seconds in passes.items():
            found[name] = found[name] + seconds * share
            found["attention"] = found["attention"] + seconds
            found[f"most_{name}"] = found[f"most_{name}"] + seconds * (packed.most / packed.mean - 1)
    return found


def imbalance_seconds(facts: Facts, decisions: Decisions) -> Array:
    r"""
    Expected seconds in which a step's slowest pipeline waits for unequal micro-batches, or the others for it: (...).

    .. math::

        T = m e_g \sigma + \sqrt{m} s_g \sigma e_{d / g} + \frac{p - 1}{v} e_m \sigma

    with the mean e and the deviation s of the largest of several normal values
    (:func:`costmodel.facts.workload.largest_normal`). Derivation: g data-parallel ranks wait for each other in every
    micro-batch: those that exchange tokens for experts, and all with FSDP / ZeRO-3. The others meet once per step,
    after m micro-batches. A pipeline passes each micro-batch through p equal ranks, a proportionate flow shop: it takes
    all micro-batches on one rank, and p - 1 times the longest. No micro-batch exceeds one of the longest sequences. All
    ranks of tp and cp share their tokens. Recomputed attention is left out: ranks of a layout may differ in it.

    References
    ----------
    Pinedo, "Scheduling: Theory, Algorithms, and Systems", chapter 6.1: proportionate flow shops.
    """
    if facts.workload.lengths is None:
        return np.zeros(())
    if facts.workload.lengths.dynamic_ranks is not None:
        return _slack_seconds(facts, decisions)
    seconds = lookup(length_spread_seconds, facts, decisions)
    tp, cp, pp, dp, ep, etp = (np.asarray(decisions[name]) for name in ("tp", "cp", "pp", "dp", "ep", "etp"))
    layers = layers_of_each_kind(facts.model)[0]
    deviation, most = (
        sum_last(layers * (forward + backward)) / pp
        for forward, backward in ((seconds.forward, seconds.backward), (seconds.most_forward, seconds.most_backward))
    )
    m = np.asarray(microbatches(facts, decisions))
    together = np.where(
        np.asarray(decisions["sharding"]) == int(Sharding.WEIGHTS), dp, np.clip(ep * etp / (tp * cp), 1, dp)
    )
    mean, spread = largest_normal(together)
    each = np.minimum(mean * deviation, most)
    apart = np.minimum(np.sqrt(m) * spread * deviation * largest_normal(dp / together)[0], m * (most - each))
    longest = np.minimum(largest_normal(m)[0] * deviation, most)
    return np.asarray(m * each + apart + (pp - 1) / np.asarray(decisions["vpp"]) * longest)


SLACK = 0.05
"""Share of the work by which ranks of a balanced group may differ: ``delta`` of ``next_hdp_group``."""


def _slack_seconds(facts: Facts, decisions: Decisions) -> Array:
    r"""
    Seconds in which ranks wait for each other although their sequences are dealt by work: (...).

    .. math:: T = \delta m T_{attn}

    Derivation: dynamic context parallelism deals sequences to the ranks of dp and cp until their attention differs by
    at most a share. It has no pipeline. Equal sequences are dealt equally.

    References
    ----------
    megatron-core 0.16.1, pipeline_parallel/hybrid_cp_schedule.py, ``BalancedCPScheduler.next_hdp_group``.
    """
    spread = lookup(length_spread_seconds, facts, decisions)
    layers = layers_of_each_kind(facts.model)[0]
    several = np.asarray(decisions["dp"]) * decisions["cp"] > 1
    attention = sum_last(layers * spread.attention * (spread.forward > 0))
    return np.asarray(SLACK * microbatches(facts, decisions) * attention * several)


def least_imbalance_seconds(facts: Facts, decisions: Decisions) -> Array:
    """Lower bound, in seconds, of :func:`imbalance_seconds` over all sharding, of which FSDP / ZeRO-3 adds to it."""
    return imbalance_seconds(facts, {**decisions, "sharding": Sharding.NONE})


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


SCALAR_BYTES = 4.0
"""Bytes of a token's maximum, sum or logit in the loss, FP32."""


def pipeline_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array, waiting: Array
) -> Array:
    """
    Seconds of a step's pipeline: busy time, bubble, and the additions of its edges.

    Derivation: MoFa's equation (12) without the transfers between ranks, of unequal ranks: :func:`busy_seconds` of the
    slowest one, its waiting, and the all-to-alls that only warm-up and cool-down expose.
    """
    slowest = largest(ranks)
    return np.asarray(
        busy_seconds(slowest, num_microbatches=microbatches(facts, decisions))
        + waiting
        + ep_fill_seconds(decisions, stages, parts)
    )


def rank_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, layer: Array, full_layer: Array | None = None
) -> Array:
    """
    Seconds of one micro-batch on each different rank, forward and backward: R, shape (..., U).

    In a plain pipeline a rank sends its result before it continues (:func:`whole_p2p_seconds`).

    Derivation: the sum of its layers (MoFa's equations (7) and (8)), of embedding and head if it holds them, of its
    transfers and of the host's time per micro-batch.

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    full_layer
        Seconds of one fully recomputed layer of each kind, if a rank has such layers.
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    edges = stages.first * add_layer_axis(edge.first) + stages.last * add_layer_axis(edge.last)
    edges = edges + add_layer_axis(lookup(slices_seconds, facts, decisions))
    edges = edges + sent_seconds(facts, decisions, stages)
    always = facts.cluster.device.constants.microbatch_seconds
    layers = stages.sum_over_layers(layer)
    if full_layer is not None:
        layers = layers + sum_last(stages.full_layers * (full_layer - layer)[..., None, :])
    return np.asarray(layers + edges + always)


def all_ranks_seconds(facts: Facts, decisions: Decisions, stages: Stages, layer: Array) -> Array:
    """
    Seconds of one micro-batch on all ranks together: the whole model once, shape (...).

    Derivation: the sum of :func:`rank_seconds` over the ranks; p ranks have 2 (p - 1) transfers.
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    layers = sum_last(stages.all_layers * layer)
    of_each_rank = lookup(slices_seconds, facts, decisions) + facts.cluster.device.constants.microbatch_seconds
    pp = np.asarray(decisions["pp"])
    hops = 2 * (pp - 1) * whole_p2p_seconds(facts, decisions)
    return np.asarray(layers + edge.first + edge.last + hops + pp * of_each_rank)


def way_through_seconds(facts: Facts, decisions: Decisions, stages: Stages, layer: Array, ranks: Array) -> Array:
    r"""
    Seconds of the longest path through all passes of one interleaved rank, shape (...): no order takes less.

    .. math:: T \ge \max_r \Big[m R_r + \sum_{i < r} C_i\Big]

    with the seconds C of the ranks' first chunks. Derivation: rank r's first pass waits for a forward pass of the first
    chunk of each rank before it. Their backward passes of the last micro-batch wait for its last one. Both passes of
    those chunks, embedding and host included, are C.

    Parameters
    ----------
    facts, decisions, stages, layer
        As in :func:`rank_seconds`.
    ranks
        Seconds of a micro-batch on each rank, shape (..., U).
    """
    edge, constants = lookup(embedding_head_seconds, facts, decisions), facts.cluster.device.constants
    num_in_front = stages.rank + stages.num_ranks - 1
    first = add_layer_axis(edge.first) * (num_in_front > 0)
    always = np.maximum(num_in_front, 0) * constants.microbatch_seconds / add_layer_axis(decisions["vpp"])
    chunks = sum_last(stages.in_front * layer[..., None, :]) + first + always
    way = add_layer_axis(microbatches(facts, decisions)) * ranks + chunks
    return largest(np.where(stages.num_ranks > 0, way, 0.0))


def waiting_seconds(
    facts: Facts,
    decisions: Decisions,
    stages: Stages,
    parts: LayerParts,
    ranks: Array,
    matters: NDArray[np.bool_] | None = None,
) -> Array:
    """
    Seconds in which the slowest rank waits for others in one step: shape (...).

    Pipelines outside of ``matters`` are not simulated; they get the time of their schedule's formula.

    Derivation: the seconds of the pipeline's order minus the slowest rank's own work, by the law of plain pipelines
    (:mod:`costmodel.pipelines.schedules`) or by simulation (:func:`simulated_waiting_seconds`). Schedules without an
    order wait for their idle time (:func:`costmodel.pipelines.schedules.bubble_seconds`) and for each barrier of a
    vocabulary in slices. The measured fill of the head's slot is added.
    """
    waiting = idle_waiting_seconds(facts, decisions, stages, parts, ranks)
    plain = has_plain_law(facts, decisions)
    if plain.any():
        waiting = np.where(plain, plain_waiting_seconds(facts, decisions, stages, parts, ranks), waiting)
    if is_simulated(facts, decisions).any():
        waiting = simulated_waiting_seconds(facts, decisions, parts, ranks, waiting, matters)
    return np.asarray(waiting + edge_seconds(facts, decisions))


def idle_waiting_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Array:
    """
    Seconds in which the slowest rank waits, by the formula of its schedule for the mean of the others: shape (...).

    In 1F1B it is a sum over the ranks, in any order.

    Derivation: :func:`costmodel.pipelines.schedules.bubble_seconds` (MoFa's equation (12) for 1F1B), a micro-batch for
    each barrier of a vocabulary in slices, and the waiting of unequal chunks
    (:func:`costmodel.pipelines.schedules.unequal_chunks_seconds`).
    """
    slowest, every = largest(ranks), all_ranks_seconds(facts, decisions, stages, parts.total)
    if is_one_of(decisions["schedule"], WHOLE_BACKWARD).all():
        idle = interleaved_bubble_seconds(slowest, every, vpp=decisions["vpp"])
    else:
        idle = bubble_seconds(
            slowest_passes(facts, decisions, stages, parts, ranks),
            all_passes(facts, decisions, stages, parts),
            pp=decisions["pp"],
            vpp=decisions["vpp"],
            num_microbatches=microbatches(facts, decisions),
            schedule=decisions["schedule"],
        )
    waiting = idle + vocabulary_delay(vocabulary=decisions["vocabulary"]) * slowest
    if np.any(np.asarray(decisions["vpp"]) > 1):
        others = mean_of_others_seconds(ranks, every, stages, pp=np.asarray(decisions["pp"]))
        pace = largest(steady_state_seconds(facts, decisions, stages, parts.total, ranks, others))
        waiting = waiting + unequal_chunks_seconds(
            slowest, pace, vpp=decisions["vpp"], num_microbatches=microbatches(facts, decisions)
        )
    return np.asarray(waiting)


def has_plain_law(facts: Facts, decisions: Decisions) -> NDArray[np.bool_]:
    """Return True where a full pipeline runs 1F1B with one chunk per rank, for which there is an exact law."""
    full = np.asarray(microbatches(facts, decisions)) >= decisions["pp"]
    return np.asarray(is_plain(decisions) & full)


def is_simulated(facts: Facts, decisions: Decisions) -> NDArray[np.bool_]:
    """Return True where a pipeline is simulated, if its schedule has an order for it."""
    many = (np.asarray(decisions["pp"]) > 1) & ~has_plain_law(facts, decisions)
    return np.asarray(many & has_own_order(decisions))


def has_own_order(decisions: Decisions) -> NDArray[np.bool_]:
    """
    Return True where the order of passes does not depend on their seconds; :mod:`costmodel.pipelines` has them.

    The authors of V-Half order the passes anew for the times of each model. In the order for equal stages a rank with
    both ends of the model would wait longer than measured (up to 8 % of a step, arXiv:2411.05288, Table 6). The orders
    with a vocabulary in slices are not published.
    """
    fixed = np.asarray(decisions["schedule"]) != Schedule.V_HALF
    return np.asarray(fixed & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED))


def is_plain(decisions: Decisions) -> NDArray[np.bool_]:
    """Return True where pipelines run 1F1B with one chunk per rank, for which unequal ranks have their own law."""
    one_chunk = (np.asarray(decisions["vpp"]) == 1) & (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B)
    return np.asarray(one_chunk & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED))


def plain_waiting_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Array:
    """
    Seconds in which the slowest rank of a plain pipeline waits for others in one step: shape (...).

    Derivation: the pipeline's seconds by :mod:`costmodel.pipelines.schedules` less the slowest rank's own work.
    """
    m = microbatches(facts, decisions)
    edge = lookup(embedding_head_seconds, facts, decisions)
    edges = stages.first * add_layer_axis(edge.first_forward) + stages.last * add_layer_axis(edge.last_forward)
    forward = stages.sum_over_layers(parts.forward) + edges
    seconds = plain_seconds(forward, ranks - forward, stages.num_ranks, num_microbatches=m)
    return np.asarray(seconds - busy_seconds(largest(ranks), num_microbatches=m))


def mean_of_others_seconds(ranks: Array, every: Array, stages: Stages, *, pp: Array) -> Array:
    """
    Seconds of one micro-batch on the average rank except the last one, shape (...).

    Derivation: the last rank's additional work, the head and multi-token prediction, lengthens its own chunk, not those
    for which it waits. Ranks that hold the head in part are all equal.
    """
    is_last = (stages.last == 1) & (stages.num_ranks > 0)
    last = sum_last(np.where(is_last, ranks, 0.0))
    alone = (pp == 1) | ~is_last.any(axis=-1)
    return np.asarray(np.where(alone, every / pp, (every - last) / np.maximum(pp - 1, 1)))


def steady_state_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, layer: Array, ranks: Array, average: Array
) -> Array:
    """
    Seconds of one micro-batch on each rank, with its waiting for others chunk by chunk: P, (..., U).

    Derivation: R and :func:`costmodel.pipelines.schedules.chunks_waiting_seconds`, if 1F1B interleaves; the last
    chunk has the head and multi-token prediction in addition to its layers.

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    ranks
        Seconds of each rank's own work, shape (..., U).
    average
        Seconds of the work of the average among the other ranks, shape (...).
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    of_layer = add_layer_axis(sum_last(stages.all_layers * layer) / stages.all_layers.sum(axis=-1))
    beside = stages.last * add_layer_axis(edge.last) + sum_last(stages.mtp_layers * layer[..., None, :])
    waiting = chunks_waiting_seconds(
        ranks,
        stages.last_chunk * of_layer + beside,
        add_layer_axis(average),
        vpp=add_layer_axis(decisions["vpp"]),
        group=add_layer_axis(decisions["group"]),
    )
    in_chunks = (np.asarray(decisions["vpp"]) > 1) & (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B)
    in_chunks = in_chunks & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED)
    return np.asarray(ranks + np.where(add_layer_axis(in_chunks), waiting, 0.0))


def slowest_passes(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Passes:
    """Return the passes of the rank that takes longest."""
    edge = lookup(embedding_head_seconds, facts, decisions)
    slowest = ranks.argmax(axis=-1)[..., None]

    def select_slowest(layer: Array, first: Array | float, last: Array | float) -> Array:
        edges = stages.first * add_layer_axis(first) + stages.last * add_layer_axis(last)
        seconds = np.asarray(stages.sum_over_layers(layer) + edges)
        return np.take_along_axis(np.broadcast_to(seconds, ranks.shape), slowest, axis=-1)[..., 0]

    forward = select_slowest(parts.forward, edge.first_forward, edge.last_forward)
    weight = select_slowest(parts.weight, 0.0, edge.last_weight)
    return Passes(forward=forward, backward=largest(ranks) - forward - weight, weight=weight)


def all_passes(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts) -> Passes:
    """Return the passes of all ranks together: the whole model once."""
    edge = lookup(embedding_head_seconds, facts, decisions)
    forward = sum_last(stages.all_layers * parts.forward) + edge.first_forward + edge.last_forward
    weight = sum_last(stages.all_layers * parts.weight) + edge.last_weight
    every = all_ranks_seconds(facts, decisions, stages, parts.total)
    return Passes(forward=forward, backward=every - forward - weight, weight=weight)


def stage_passes(facts: Facts, decisions: Decisions) -> Passes:
    """
    Return the passes of every virtual stage of one strategy in model order, shape (pp * vpp,).

    Embedding and head are on the first and the last one. The work of a rank per micro-batch besides its layers is part
    of the backward passes of its chunks, in equal shares.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Scalars; without a vocabulary in slices.
    """
    layers, parts = _stage_layers(facts.model, decisions), layer_parts(facts, decisions)
    of_layers = Passes(
        forward=layers @ parts.forward,
        weight=layers @ parts.weight,
        backward=layers @ (parts.total - parts.forward - parts.weight),
    )
    return stage_ends(facts, decisions).add_to(of_layers)


def _stage_layers(model: Model, decisions: Decisions) -> Array:
    return virtual_stage_layers(model, **{name: int(decisions[name]) for name in LAID_OUT_BY})


LAID_OUT_BY = ("pp", "vpp", "schedule", "vocabulary")
"""Decisions that determine the layers of each virtual stage."""


@record(frozen=True, kw_only=True, slots=True)
class StageEnds:
    """
    Seconds per micro-batch of virtual stages besides their layers; each of the shape of the decisions.

    Parameters
    ----------
    first_forward, first_backward
        Seconds of the first stage: the embedding.
    last_forward, last_backward, last_weight
        Seconds of the last one: the head with its loss, multi-token prediction.
    always
        Seconds of each stage.
    hop
        Seconds of a transfer that blocks its sender.
    """

    first_forward: Array
    first_backward: Array
    last_forward: Array
    last_backward: Array
    last_weight: Array
    always: Array
    hop: Array

    def take(self, shape: tuple[int, ...], which: Any) -> StageEnds:
        """Return those of some strategies, with the decisions broadcast to a shape."""
        return StageEnds(**{one.name: np.broadcast_to(getattr(self, one.name), shape)[which] for one in fields(self)})

    def add_to(self, layers: Passes) -> Passes:
        """Return the passes of stages from the seconds of their layers, with stages on the last axis."""
        forward, backward, weight = (np.array(one) for one in (layers.forward, layers.backward, layers.weight))
        forward[..., 0] += self.first_forward  # one after the other: the first stage may be the last one too
        forward[..., -1] += self.last_forward
        weight[..., -1] += self.last_weight
        backward[..., 0] += self.first_backward
        backward[..., -1] += self.last_backward
        backward[..., 1:] += add_layer_axis(self.hop)
        backward[..., :-1] += add_layer_axis(self.hop)
        return Passes(forward=forward, backward=backward + add_layer_axis(self.always), weight=weight)


def stage_ends(facts: Facts, decisions: Decisions) -> StageEnds:
    """Return the work of virtual stages besides their layers; a rank's chunks share the host's time per micro-batch."""
    edge = lookup(embedding_head_seconds, facts, decisions)
    beside = lookup(slices_seconds, facts, decisions) + facts.cluster.device.constants.microbatch_seconds
    return StageEnds(
        first_forward=edge.first_forward,
        first_backward=edge.first - edge.first_forward,
        last_forward=edge.last_forward,
        last_backward=edge.last - edge.last_forward - edge.last_weight,
        last_weight=edge.last_weight,
        always=beside / np.asarray(decisions["vpp"]),
        hop=whole_p2p_seconds(facts, decisions),
    )


def simulated_waiting_seconds(
    facts: Facts,
    decisions: Decisions,
    parts: LayerParts,
    ranks: Array,
    otherwise: Array,
    matters: NDArray[np.bool_] | None,
) -> Array:
    """
    Seconds in which the slowest rank waits, for pipelines simulated pass by pass: shape (...).

    Derivation: pipelines of one order are simulated together (:func:`costmodel.pipelines.graph.spans_seconds`),
    each with the seconds of its virtual stages (:func:`stage_passes`), minus the slowest rank's own work.

    Parameters
    ----------
    facts, decisions
        As in :func:`waiting_seconds`.
    parts, ranks
        Seconds of the layers, and of the ranks of each strategy.
    otherwise
        Seconds of pipelines that are not simulated.
    matters
        True for pipelines that are worth a simulation; default: all.
    """
    m, ends = microbatches(facts, decisions), stage_ends(facts, decisions)
    columns = {name: decisions[name] for name in (*LAID_OUT_BY, "group")} | {"num_microbatches": m}
    every = [otherwise, is_simulated(facts, decisions), *columns.values(), ends.first_forward, ends.last_forward]
    whole = np.broadcast_shapes(*(np.shape(one) for one in every), ranks.shape[:-1], parts.total.shape[:-1])
    shape = whole or (1,)
    simulated = np.broadcast_to(is_simulated(facts, decisions), shape)
    where = np.nonzero(simulated if matters is None else simulated & any_of(matters, shape))
    waiting = np.array(np.broadcast_to(otherwise, shape))
    slowest, of_ends = np.broadcast_to(largest(ranks), shape)[where], ends.take(shape, where)
    forward, weight, total = (
        np.broadcast_to(one, (*shape, one.shape[-1]))[where] for one in (parts.forward, parts.weight, parts.total)
    )
    orders = np.stack([np.broadcast_to(column, shape)[where] for column in columns.values()])
    different, of_each = np.unique(orders, axis=1, return_inverse=True)
    for index, values in enumerate(different.T.tolist()):
        one = dict(zip(columns, values, strict=True))
        plan = pipeline_order(one)
        if plan is None:
            continue
        which = np.flatnonzero(of_each.ravel() == index)
        layers = _stage_layers(facts.model, one).T
        passes = of_ends.take(of_each.shape, which).add_to(
            Passes(
                forward=forward[which] @ layers,
                weight=weight[which] @ layers,
                backward=(total - forward - weight)[which] @ layers,
            )
        )
        spans = spans_seconds(
            forward=np.asarray(passes.forward),
            backward=np.asarray(passes.backward),
            weight=np.asarray(passes.weight),
            **plan,
        )
        waiting[tuple(axis[which] for axis in where)] = spans - one["num_microbatches"] * slowest[which]
    return waiting.reshape(whole)


def pipeline_order(decisions: Decisions) -> dict[str, Any] | None:
    """
    Return the inputs of :mod:`costmodel.pipelines` besides the passes of one strategy; None without an order.

    Parameters
    ----------
    decisions
        Scalars, the number of micro-batches among them.
    """
    plan = {name: int(decisions[name]) for name in ("pp", "vpp", "num_microbatches")}
    schedule = Schedule(int(decisions["schedule"]))
    own = int(decisions["group"]) if schedule == Schedule.ONE_F_ONE_B else None
    if not has_own_order(decisions) or not has_order(schedule, **plan, group=own):
        return None
    return {"schedule": schedule, "group": own or int(default_microbatch_group(pp=plan["pp"], vpp=plan["vpp"])), **plan}


def order_seconds(passes: Passes, order: dict[str, Any]) -> float:
    """
    Seconds of one pipeline by the law of plain ones if it is full, otherwise by simulation.

    Derivation: :func:`costmodel.pipelines.schedules.plain_seconds` and
    :func:`costmodel.pipelines.graph.spans_seconds`.

    Parameters
    ----------
    passes
        Seconds of every virtual stage in model order, shape (pp * vpp,).
    order
        Result of :func:`pipeline_order`; of 1F1B.
    """
    forward, backward, weight = (np.asarray(one) for one in (passes.forward, passes.backward, passes.weight))
    m = order["num_microbatches"]
    if order["vpp"] == 1 and m >= order["pp"]:
        return float(plain_seconds(forward, backward + weight, np.ones(order["pp"], np.int64), num_microbatches=m))
    return float(spans_seconds(forward=forward[None], backward=backward[None], weight=weight[None], **order)[0])


def fill_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Seconds that all ranks add once per step because the head's slot is longer than the others.

    Derivation: a measured fraction of the head's time for each of p ranks. MoFa's computation columns (Tables 6 and 8)
    need a term p E besides m E, E being the head's time beyond a layer's.
    """
    head = lookup(embedding_head_seconds, facts, decisions).head
    return np.asarray(facts.cluster.device.constants.measured.head_pipeline_fill_fraction * head * decisions["pp"])


def edge_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Seconds that warm-up and cool-down add to the waiting of a pipeline of mean passes, shape (...).

    Derivation: :func:`fill_seconds`, and the host's part of :func:`alone_seconds`. It is below 0 where hosts are less
    late for passes that run alone.
    """
    fill = fill_seconds(facts, decisions)
    if not np.any(decisions["ep_overlap"]):
        return fill
    every, _ = layers_of_each_kind(facts.model)
    return np.asarray(fill + alone_seconds(decisions, every, layer_parts(facts, decisions).host_edges))


def once_seconds(facts: Facts, decisions: Decisions) -> Array:
    r"""
    Seconds of the hosts' work once per step, shape (...): none in one graph of the whole iteration.

    .. math:: T = \tau (1 + \ln n)

    Derivation: after the norm of the gradients and the loss, which hosts read, each of n hosts has nothing launched and
    begins anew. All ranks wait for the last of them. If its work has an exponential tail of mean tau, the last one
    takes H_n tails (:func:`costmodel.timing.source.slowest_of`).

    References
    ----------
    MLPerf Training v3.1 and v5.0: with whole-iteration graphs, 256 and 2,496 GB200 take as long for the same passes.
    Without them 8,192 H100 take 0.1 to 0.3 s longer than 512.
    """
    num_devices = np.prod(np.broadcast_arrays(*(decisions[name] for name in ("tp", "cp", "pp", "dp"))), axis=0)
    launches = np.asarray(decisions["cuda_graphs"]) != int(CudaGraphs.FULL_ITERATION)
    seconds = facts.cluster.device.constants.step_seconds
    return np.asarray(seconds * slowest_of(num_devices, spread=1.0) * launches)


def ep_fill_seconds(decisions: Decisions, stages: Stages, parts: LayerParts) -> Array:
    """Seconds of expert-parallel communication that a pipeline's idle time exposes: :func:`alone_seconds` of it."""
    return alone_seconds(decisions, stages.all_layers, parts.ep_edges)


def alone_seconds(decisions: Decisions, all_layers: Array, edges: Array) -> Array:
    r"""
    Seconds by which the pipeline's idle time is longer than with passes of mean length: (...).

    .. math:: T = \frac{p - 1}{p v} \sum_k L_k E_k

    Derivation: the slowest rank waits for p - 1 chunks of others, the first and last passes of a step. Nothing runs
    beside those, nor beside some of its own passes (:func:`costmodel.step.layer.layer_parts`). With groups of p
    micro-batches the whole model's all-to-alls are exposed once. In MoFa's Table 8 the EP column depends on neither
    the number of micro-batches nor of ranks. ``tests/oracle`` simulates such pipelines.
    """
    pp = np.asarray(decisions["pp"])
    return np.asarray((pp - 1) / (pp * decisions["vpp"]) * sum_last(all_layers * edges))


def slices_seconds(
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
    vocabulary: Numbers,
) -> Array:
    r"""
    Seconds of exposed communication of one micro-batch among the slices of a vocabulary.

    .. math:: T = 2 T_{broadcast} + 2 T_{all-reduce} + 3 T_{scalars}

    The last layer's output goes to every slice and the sum of its gradients returns. The sum of the embeddings goes to
    the first layer and its gradient returns. Three values of 4 bytes per token are reduced: the softmax's maximum and
    sum, and the label's logit. An interlaced pipeline waits for all of them. With barriers they are hidden by the
    passes of other micro-batches, which lose the processors that the collectives take (:mod:`costmodel.step.overlap`).

    References
    ----------
    Yeung et al., arXiv:2411.05288, sections 4 and 6; Megatron-LM, ``vocab_parallel_cross_entropy``: three all-reduces.
    """
    sliced = (np.asarray(vocabulary) > Vocabulary.REDISTRIBUTED) & (np.asarray(pp) > 1)
    if not sliced.any():
        return np.zeros(sliced.shape)
    group = pipeline_group(tp=tp, cp=cp, dp=dp, pp=pp)
    nbytes = micro_batch_bytes(model, workload, tp=tp, cp=cp, mbs=mbs, sequence_parallel=sequence_parallel)
    call = partial(collective_seconds, cluster, "pp", ranks=group.ranks, stride=group.stride)
    rows = 2 * call(kind="broadcast", nbytes=nbytes) + 2 * call(kind="all_reduce", nbytes=nbytes)
    scalars = 3 * call(kind="all_reduce", nbytes=SCALAR_BYTES * mbs * workload.sequence_length / cp)
    beside = taken_seconds(rows, {**cluster.device.slowdowns, "slowdown_compute": 1.0})
    waits = np.asarray(vocabulary) == Vocabulary.INTERLACED
    return np.asarray(np.where(waits, rows + scalars, beside) * sliced)
