"""
One optimizer step of any strategy: MoFa (14), (16), with the slowest rank's pace and the fullest rank's memory.

Decisions may be scalars or arrays that broadcast against each other. Each part is computed at the broadcast shape of
the decisions that it depends on; only the last sums have the shape of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from costmodel.axes import Array, Decisions, added, either, in_front, largest, over_kinds
from costmodel.facts.cluster import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.lowering.recompute import over_modules
from costmodel.memory.footprint import edge_footprint, has_embedding_copy
from costmodel.memory.parts import state_shards
from costmodel.memory.rank import (
    RankParameters,
    data_groups,
    different_ranks,
    rank_bytes,
    rank_host_bytes,
    rank_parameters,
    sharing_groups,
)
from costmodel.models.parameters import layers_parameters
from costmodel.network.collectives import OF_RINGS, all_reduce, collective_seconds, ring_slowdowns
from costmodel.network.groups import Group, pipeline_group
from costmodel.operators.work import Numbers
from costmodel.pipelines.interleaved import (
    bubble_seconds,
    busy_seconds,
    chunks_waiting_seconds,
    hop_exposed_seconds,
    in_step_seconds,
)
from costmodel.pipelines.orders import has_order
from costmodel.pipelines.schedules import WHOLE_BACKWARD, Passes, idle_seconds, vocabulary_delay
from costmodel.pipelines.simulator import span_seconds
from costmodel.pipelines.stages import Stages, virtual_stage_layers
from costmodel.step.adapter import adapter_seconds
from costmodel.step.compute import edge_seconds, layer_seconds, least_layer_seconds
from costmodel.step.layer import IDEAL, LAYER_OVERLAPS, LONGEST, LayerParts, layer_parts
from costmodel.step.optimizer import (
    broadcast_seconds,
    device_update_seconds,
    gather_seconds,
    host_update_seconds,
    parameter_pass_seconds,
    reduce_seconds,
    replicas_seconds_measured,
)
from costmodel.step.overlap import exposed_beside_seconds, exposed_dp_seconds, exposed_dp_seconds_measured
from costmodel.strategy import Recompute, Schedule, Sharding, Vocabulary, is_one_of
from costmodel.tables import Facts, lookup, microbatches

PARAMETER_TENSORS = 9
"""Of a layer: two norms, queries with keys and values, the output, three of a gated block, two biases (InternLM)."""

BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6
"""A bucket of data-parallel communication holds the larger of the two, the second times the group's ranks (Megatron-LM,
``megatron/core/distributed/distributed_data_parallel.py``, default ``bucket_size``)."""

WIDE_BYTES = 2.0
"""Of a gradient as a layer's matmul leaves it."""

SCALAR_BYTES = 4.0
"""Of a token's maximum, sum or logit in the loss, FP32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """
    What a strategy costs; every field has the broadcast shape of the decisions.

    Parameters
    ----------
    step_seconds
        One optimizer step.
    bubble_seconds
        What of it the slowest pipeline rank waits for others.
    device_bytes
        Peak memory of the fullest device.
    host_bytes
        Host memory that one device needs.
    """

    step_seconds: Array
    bubble_seconds: Array
    device_bytes: Array
    host_bytes: Array


def cost(facts: Facts, decisions: Decisions) -> Cost:
    """
    Step time and memory of the strategies that the decisions span.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision of :class:`costmodel.strategy.Strategy` by name; scalars, or arrays that broadcast.
    """
    held = different_ranks(facts, decisions)
    seconds, bubble = step_and_bubble_seconds(facts, decisions, held)
    return Cost(
        step_seconds=seconds,
        bubble_seconds=bubble,
        device_bytes=largest(rank_bytes(facts, decisions, held).total),
        host_bytes=largest(rank_host_bytes(facts, decisions, held)),
    )


def step_seconds(facts: Facts, decisions: Decisions, held: Stages) -> Array:
    r"""
    One optimizer step.

    .. math:: T_{step} = T_{warmup} + T_{steady} + T_{cooldown} + T_{opt}

    written as what the slowest rank does in it, which is the same sum: it works, it waits for the pipeline to fill and
    to drain, and what is exposed of the transfers between ranks and of the optimizer is added.

    Parameters
    ----------
    facts, decisions
        As in :func:`cost`.
    held
        What the ranks hold.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (14).
    """
    return step_and_bubble_seconds(facts, decisions, held)[0]


def step_and_bubble_seconds(facts: Facts, decisions: Decisions, held: Stages) -> tuple[Array, Array]:
    """One optimizer step as in :func:`step_seconds`, and the waiting in it by :func:`waiting_seconds`."""
    parts = layer_parts(facts, decisions)
    ranks = rank_seconds(facts, decisions, held, parts.total)
    waiting = waiting_seconds(facts, decisions, held, parts, ranks)
    ending = dp_seconds(facts, decisions, held, parts) + update_seconds(facts, decisions, held)
    beside = pp_seconds(facts, decisions, held) + facts.cluster.device.profile.step_seconds + largest(ending)
    seconds = np.asarray(pipeline_seconds(facts, decisions, held, parts, ranks, waiting) + beside)
    return seconds, waiting


def pipeline_seconds(
    facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts, ranks: Array, waiting: Array
) -> Array:
    """Busy time, bubble, and what the pipeline's edges add: (12) without the transfers between ranks."""
    slowest = largest(ranks)
    return np.asarray(
        busy_seconds(slowest, num_microbatches=microbatches(facts, decisions)) + waiting + ep_edge_seconds(held, parts)
    )


# --- the pipeline ------------------------------------------------------------------------------------------


def rank_seconds(
    facts: Facts, decisions: Decisions, held: Stages, layer: Array, full_layer: Array | None = None
) -> Array:
    """
    One micro-batch on each different rank, forward and backward: R, shape (..., U).

    In a plain pipeline a rank sends what it computed before it goes on (:func:`plain_hop_seconds`).

    Parameters
    ----------
    facts, decisions, held
        As in :func:`step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    full_layer
        The same of layers that are recomputed in full, where a rank has some.
    """
    edge = lookup(edge_seconds, facts, decisions)
    edges = held.first * over_kinds(edge.first) + held.last * over_kinds(edge.last)
    edges = edges + over_kinds(lookup(slices_seconds, facts, decisions))
    edges = edges + sent_seconds(facts, decisions, held)
    always = facts.cluster.device.profile.microbatch_seconds
    layers = added(held.layers * layer[..., None, :])
    if full_layer is not None:
        layers = layers + added(held.full_layers * (full_layer - layer)[..., None, :])
    return np.asarray(layers + edges + always)


def all_ranks_seconds(facts: Facts, decisions: Decisions, held: Stages, layer: Array) -> Array:
    """One micro-batch on all ranks together: the whole model once, shape (...)."""
    edge = lookup(edge_seconds, facts, decisions)
    layers = added(held.all_layers * layer)
    of_each_rank = lookup(slices_seconds, facts, decisions) + facts.cluster.device.profile.microbatch_seconds
    pp = np.asarray(decisions["pp"])
    hops = 2 * (pp - 1) * plain_hop_seconds(facts, decisions)
    return np.asarray(layers + edge.first + edge.last + hops + pp * of_each_rank)


def waiting_seconds(facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts, ranks: Array) -> Array:
    """Time in which the slowest rank waits for others: the schedule's idle time, delays of a vocabulary in slices."""
    slowest, every = largest(ranks), all_ranks_seconds(facts, decisions, held, parts.total)
    if is_one_of(decisions["schedule"], WHOLE_BACKWARD).all():
        idle = bubble_seconds(slowest, every, vpp=decisions["vpp"])
    else:
        idle = idle_seconds(
            slowest_passes(facts, decisions, held, parts, ranks),
            all_passes(facts, decisions, held, parts),
            pp=decisions["pp"],
            vpp=decisions["vpp"],
            num_microbatches=microbatches(facts, decisions),
            schedule=decisions["schedule"],
        )
    delay = vocabulary_delay(vocabulary=decisions["vocabulary"]) * slowest
    if np.any(np.asarray(decisions["vpp"]) > 1):
        pace = largest(pace_seconds(facts, decisions, held, parts.total, ranks, every / decisions["pp"]))
        delay = delay + in_step_seconds(
            slowest, pace, vpp=decisions["vpp"], num_microbatches=microbatches(facts, decisions)
        )
    return np.asarray(idle + delay + fill_seconds(facts, decisions))


def pace_seconds(facts: Facts, decisions: Decisions, held: Stages, layer: Array, ranks: Array, average: Array) -> Array:
    """
    One micro-batch on each rank with what it waits for others chunk by chunk: P, shape (..., U).

    Parameters
    ----------
    facts, decisions, held
        As in :func:`step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    ranks
        Each rank's own work, shape (..., U).
    average
        The work of an average rank, shape (...).
    """
    edge = lookup(edge_seconds, facts, decisions)
    of_layer = over_kinds(added(held.all_layers * layer) / held.all_layers.sum(axis=-1))
    beside = held.last * over_kinds(edge.last) + added(held.mtp_layers * layer[..., None, :])
    waiting = chunks_waiting_seconds(
        ranks,
        held.last_chunk * of_layer + beside,
        over_kinds(average),
        vpp=over_kinds(decisions["vpp"]),
        group=over_kinds(decisions["group"]),
    )
    in_chunks = (np.asarray(decisions["vpp"]) > 1) & (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B)
    in_chunks = in_chunks & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED)
    return np.asarray(ranks + np.where(over_kinds(in_chunks), waiting, 0.0))


def slowest_passes(facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts, ranks: Array) -> Passes:
    """The passes of the rank that takes longest."""
    edge = lookup(edge_seconds, facts, decisions)
    slowest = ranks.argmax(axis=-1)[..., None]

    def of_slowest(layer: Array, first: Array | float, last: Array | float) -> Array:
        edges = held.first * over_kinds(first) + held.last * over_kinds(last)
        seconds = np.asarray(added(held.layers * layer[..., None, :]) + edges)
        return np.take_along_axis(np.broadcast_to(seconds, ranks.shape), slowest, axis=-1)[..., 0]

    forward = of_slowest(parts.forward, edge.first_forward, edge.last_forward)
    weight = of_slowest(parts.weight, 0.0, edge.last_weight)
    return Passes(forward=forward, backward=largest(ranks) - forward - weight, weight=weight)


def all_passes(facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts) -> Passes:
    """The passes of all ranks together: the whole model once."""
    edge = lookup(edge_seconds, facts, decisions)
    forward = added(held.all_layers * parts.forward) + edge.first_forward + edge.last_forward
    weight = added(held.all_layers * parts.weight) + edge.last_weight
    every = all_ranks_seconds(facts, decisions, held, parts.total)
    return Passes(forward=forward, backward=every - forward - weight, weight=weight)


def stage_passes(facts: Facts, decisions: Decisions) -> Passes:
    """
    The passes of every virtual stage of one strategy in model order, shape (pp * vpp,).

    Embedding and head are on the first and the last one. What a rank does per micro-batch beside its layers is part of
    the backward passes of its chunks, each an equal share.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Scalars; the vocabulary not in slices.
    """
    layers = virtual_stage_layers(
        facts.model, **{name: decisions[name] for name in ("pp", "vpp", "schedule", "vocabulary")}
    )
    parts = layer_parts(facts, decisions)
    return passes_of(facts, decisions, *(layers @ part for part in (parts.forward, parts.weight, parts.total)))


def passes_of(facts: Facts, decisions: Decisions, forward: Array, weight: Array, total: Array) -> Passes:
    """The passes of virtual stages whose layers take given seconds, shape (pp * vpp,)."""
    edge = lookup(edge_seconds, facts, decisions)
    forward[0] += edge.first_forward  # one after the other: the first stage may be the last one too
    forward[-1] += edge.last_forward
    weight[-1] += edge.last_weight
    total[0] += edge.first
    total[-1] += edge.last
    beside = lookup(slices_seconds, facts, decisions) + facts.cluster.device.profile.microbatch_seconds
    hop = plain_hop_seconds(facts, decisions)
    total[1:] += hop
    total[:-1] += hop
    backward = total + beside / decisions["vpp"] - forward - weight
    return Passes(forward=forward, backward=backward, weight=weight)


def played_waiting_seconds(
    facts: Facts, decisions: Decisions, passes: Passes, slowest: float, *, closed_form: float
) -> float:
    """
    :func:`waiting_seconds` of one strategy, its pipeline played through stage by stage.

    The same for equal stages. The formula counts the other ranks by their mean and a rank's chunks but its last one as
    equal, which a solver's table can hold. Played through, a plain pipeline takes up to 9 % less time, an interleaved
    one whose chunks divide the layers from 6 % less to 6 % more (more where they hold different kinds of layers), the
    other schedules from 8 % less to 15 % more (``tests`` have the bounds). The formula is kept for slices of the
    vocabulary, for decisions for which a schedule has no order, and for V-Half, whose authors order the passes anew for
    the times of each model: in equal stages' order a rank with both ends of the model would wait longer than measured
    (up to 8 % of a step, arXiv:2411.05288, Table 6).

    Parameters
    ----------
    facts, decisions
        As in :func:`waiting_seconds`; scalars.
    passes
        Of every virtual stage, as :func:`stage_passes` makes them.
    slowest
        One micro-batch on the slowest rank.
    closed_form
        What :func:`waiting_seconds` says.
    """
    order = played_order(facts, decisions)
    if order is None or order["pp"] == 1:
        return closed_form
    span = span_seconds(
        forward=np.asarray(passes.forward),
        backward=np.asarray(passes.backward),
        weight=np.asarray(passes.weight),
        **order,
    )
    busy = float(order["num_microbatches"] * slowest)
    return span - busy + float(fill_seconds(facts, decisions))


def played_order(facts: Facts, decisions: Decisions) -> dict[str, Any] | None:
    """What :mod:`costmodel.pipelines.simulator` needs beside the passes; None where the closed form is kept."""
    plan = {name: int(decisions[name]) for name in ("pp", "vpp")}
    plan["num_microbatches"] = int(microbatches(facts, decisions))
    schedule = Schedule(int(decisions["schedule"]))
    group = int(decisions["group"]) if schedule == Schedule.ONE_F_ONE_B else None
    other_order = schedule == Schedule.V_HALF or decisions["vocabulary"] > Vocabulary.REDISTRIBUTED
    if other_order or not has_order(schedule, **plan, group=group):
        return None
    return {"schedule": schedule, "group": group, **plan}


def fill_seconds(facts: Facts, decisions: Decisions) -> Array:
    """What each rank adds once per step because the head's slot is longer than the others, measured by the profile."""
    head = lookup(edge_seconds, facts, decisions).head
    return np.asarray(facts.cluster.device.profile.head_fill_fraction * head * decisions["pp"])


def ep_edge_seconds(held: Stages, parts: LayerParts) -> Array:
    """
    Expert-parallel communication that warm-up and cool-down expose though the steady phase hides it.

    Each passes all chunks once, so that the whole model's all-to-alls are exposed once (MoFa, Table 8: the EP column
    depends on neither the number of micro-batches nor of ranks).
    """
    return np.asarray(added(held.all_layers * parts.ep_edges))


def hop_seconds(
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
    One transfer of a micro-batch's activations between pipeline ranks; zero without a pipeline.

    .. math:: T_{pp} = b s h D / (t c B)

    Each tensor-parallel rank sends its share of the sequence; without sequence parallelism each sends all of it
    (Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``, ``get_tensor_shapes``), or a share that the
    receivers gather, where the profile says so.
    """
    group = pipeline_group(tp=tp, cp=cp, dp=dp, pp=pp)
    nbytes = _micro_batch_bytes(model, workload, tp=tp, cp=cp, mbs=mbs, sequence_parallel=sequence_parallel)
    profile, send = cluster.device.profile, partial(collective_seconds, cluster, "pp", "send")
    if not profile.scatters_hops:
        seconds = send(nbytes=nbytes, ranks=group.ranks, stride=group.stride)
    else:
        scattered = 1 + (1 - np.asarray(sequence_parallel)) * (np.asarray(tp) - 1)
        gathered = nbytes * (scattered > 1)
        seconds = send(nbytes=nbytes / scattered, ranks=group.ranks, stride=group.stride)
        seconds = seconds + collective_seconds(cluster, "tp", "all_gather", nbytes=gathered, ranks=tp, stride=1)
    return np.asarray((seconds + profile.hop_seconds) * (np.asarray(pp) > 1))


def plain_hop_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    A transfer that its sender waits for: :func:`hop_seconds` without interleaving, else zero.

    References
    ----------
    Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``,
    ``forward_backward_pipelining_without_interleaving``.
    """
    return np.where(np.asarray(decisions["vpp"]) > 1, 0.0, lookup(hop_seconds, facts, decisions))


def sent_seconds(facts: Facts, decisions: Decisions, held: Stages) -> Array:
    """
    What each rank of a plain pipeline waits for per micro-batch until its own transfers are done, shape (..., U).

    Each sends activations to the next rank and gradients to the one before, the ends of the pipeline half of that.
    """
    return np.asarray((2 - held.first - held.last) * over_kinds(plain_hop_seconds(facts, decisions)))


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
    Exposed communication of one micro-batch among the slices of a vocabulary.

    .. math:: T = 2 T_{broadcast} + 2 T_{all-reduce} + 3 T_{scalars}

    The last layer's output goes to every slice and the sum of its gradients back, the sum of the embeddings to the
    first layer and its gradient back; the softmax's maximum and sum and the label's logit are summed, 4 bytes per token
    each. An interlaced pipeline waits for all of them. The barriers of the other ways hide them behind the passes of
    other micro-batches, which lose the processors that the collectives take (:mod:`costmodel.step.overlap`).

    References
    ----------
    Yeung et al., arXiv:2411.05288, sections 4 and 6; Megatron-LM, ``vocab_parallel_cross_entropy``: three all-reduces.
    """
    sliced = (np.asarray(vocabulary) > Vocabulary.REDISTRIBUTED) & (np.asarray(pp) > 1)
    if not sliced.any():
        return np.zeros(sliced.shape)
    group = pipeline_group(tp=tp, cp=cp, dp=dp, pp=pp)
    nbytes = _micro_batch_bytes(model, workload, tp=tp, cp=cp, mbs=mbs, sequence_parallel=sequence_parallel)
    call = partial(collective_seconds, cluster, "pp", ranks=group.ranks, stride=group.stride)
    rows = 2 * call(kind="broadcast", nbytes=nbytes) + 2 * call(kind="all_reduce", nbytes=nbytes)
    scalars = 3 * call(kind="all_reduce", nbytes=SCALAR_BYTES * mbs * workload.sequence_length / cp)
    beside = exposed_beside_seconds(rows, np.inf, **cluster.device.profile.slowdowns | {"slowdown_compute": 1.0})
    waits = np.asarray(vocabulary) == Vocabulary.INTERLACED
    return np.asarray(np.where(waits, rows + scalars, beside) * sliced)


def _micro_batch_bytes(
    model: Model, workload: Workload, *, tp: Numbers, cp: Numbers, mbs: Numbers, sequence_parallel: Numbers
) -> Numbers:
    """A rank's activations of a micro-batch between two layers: all of its sequence, or its share of it."""
    shards = cp * (1 + sequence_parallel * (tp - 1))
    elements = mbs * workload.sequence_length * model.hidden_size / shards
    return workload.precision.activation_bytes * elements


def pp_seconds(facts: Facts, decisions: Decisions, held: Stages, *, slowdown_compute: float | None = None) -> Array:
    """
    Exposed transfers of an interleaved pipeline: all of them in warm-up and cool-down, the rest of (23) in between.

    Only interleaved chunks have other work to hide a transfer behind; those of the plain schedule, which waits for
    every one, are part of :func:`rank_seconds`. What is hidden takes the time of its bytes, nobody waits for its
    synchronisation (``hop_seconds`` of the profile).

    Parameters
    ----------
    facts, decisions, held
        As in :func:`step_seconds`.
    slowdown_compute
        k, where it is not the profile's.

    References
    ----------
    MoFa, arXiv:2511.09837, the terms in T_pp of (9)-(11), and (23) beside the forward pass of an average chunk.
    """
    profile = facts.cluster.device.profile
    hop = lookup(hop_seconds, facts, decisions)
    seconds = lookup(layer_seconds, facts, decisions)
    num_chunks = np.asarray(decisions["pp"]) * decisions["vpp"]
    chunk = added(held.all_layers * seconds.forward) / num_chunks
    group = _pipeline(decisions)
    slowdowns = ring_slowdowns(facts.cluster, ranks=group.ranks, stride=group.stride)
    slowdowns |= {} if slowdown_compute is None else {"slowdown_compute": slowdown_compute}
    hidden = exposed_beside_seconds(np.maximum(hop - profile.hop_seconds, 0.0), chunk, **slowdowns)
    steady = np.where(decisions["pp_overlap"], hidden, hop)
    m = microbatches(facts, decisions)
    exposed = hop_exposed_seconds(hop, steady, pp=decisions["pp"], vpp=decisions["vpp"], num_microbatches=m)
    return np.where(np.asarray(decisions["vpp"]) > 1, exposed, 0.0)


# --- the optimizer -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """
    Data-parallel communication of one step alone, on each different rank: shape (..., U).

    Parameters
    ----------
    reduce, gather
        All reduce-scatters of gradients; all gathers of parameters (or the second half of the all-reduces).
    pieces
        Buckets into which each of them is divided.
    slowdowns
        Theirs beside computation: :func:`costmodel.network.collectives.ring_slowdowns`.
    """

    reduce: Array
    gather: Array
    pieces: Array
    slowdowns: dict[str, Any]


def data_parallel_seconds(facts: Facts, decisions: Decisions, held: Stages) -> DataParallel:
    r"""
    Data-parallel communication alone.

    Each collective carries one bucket and has its own latency. Gradients are reduced once per step, from ZeRO-2 on once
    per micro-batch; parameters are gathered once, under ZeRO-3 twice per micro-batch (before the forward and before the
    backward pass). Without sharding the gradients are gathered instead of the parameters: together an all-reduce.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (13); Rajbhandari et al., arXiv:1910.02054, section 7.
    """
    sharding, m = over_kinds(decisions["sharding"]), over_kinds(microbatches(facts, decisions))
    cluster, precision, profile = facts.cluster, facts.workload.precision, facts.cluster.device.profile
    parameters = rank_parameters(facts, decisions, held)
    pieces = _num_buckets(decisions, held, parameters)
    reduce = pieces * _over_data_groups(
        cluster, data_groups(decisions), parameters, reduce_seconds, precision.gradient_bytes / pieces
    )
    sharers = sharing_groups(facts, decisions)
    if profile.weight_sync == "broadcast":
        tensors = PARAMETER_TENSORS * (added(held.layers) + held.first + held.last)
        send_back = partial(broadcast_seconds, num_tensors=tensors)
        gather = _over_data_groups(cluster, sharers, parameters, send_back, precision.parameter_gather_bytes)
    else:
        gathered_bytes = precision.parameter_gather_bytes / pieces
        gather = pieces * _over_data_groups(cluster, sharers, parameters, gather_seconds, gathered_bytes)
    all_reduced = profile.gradient_sync == "all_reduce"
    first_level = np.where(all_reduced & (sharding == int(Sharding.OPTIMIZER)), 2, 1)
    reduces = np.where(sharding >= int(Sharding.GRADIENTS), m, first_level)
    gathers = np.where(sharding >= int(Sharding.WEIGHTS), 2 * m, 1)
    return DataParallel(
        reduce=np.asarray(reduce * reduces),
        gather=np.where(sharding == int(Sharding.NONE), reduce, gather * gathers),
        pieces=pieces,
        slowdowns=_dp_slowdowns(cluster, data_groups(decisions), parameters),
    )


def _dp_slowdowns(cluster: Cluster, groups: tuple[Group, Group], parameters: RankParameters) -> dict[str, Any]:
    """Those of the groups of dense and of expert parameters, in the mean over parameters."""
    dense, expert = (ring_slowdowns(cluster, ranks=group.ranks, stride=group.stride) for group in groups)
    share = parameters.experts / np.maximum(parameters.dense + parameters.experts, 1.0)
    return dense | {name: dense[name] + share * (expert[name] - dense[name]) for name in OF_RINGS}


def _over_data_groups(
    cluster: Cluster,
    groups: tuple[Group, Group],
    parameters: RankParameters,
    seconds: Callable[..., Numbers],
    bytes_per_parameter: Numbers,
) -> Numbers:
    """One reduce-scatter or all-gather of all parameters of each rank, dense and expert ones in their own groups."""
    counted = parameters.layers + cluster.device.profile.edge_fraction * parameters.edges
    dense, expert = groups
    dense_bytes, expert_bytes = counted * bytes_per_parameter, parameters.experts * bytes_per_parameter
    if not cluster.device.profile.dp_bandwidths:
        of_dense = seconds(cluster, nbytes=dense_bytes, group=dense)
        return of_dense + seconds(cluster, nbytes=expert_bytes, group=expert) if expert_bytes.any() else of_dense
    return replicas_seconds_measured(
        cluster, dense_bytes=dense_bytes, expert_bytes=expert_bytes, dense=dense, expert=expert
    )


def dp_seconds(facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts | None = None) -> Array:
    """
    Exposed data-parallel communication of each different rank, by (24) or by the profile's measured law.

    Parameters
    ----------
    facts, decisions, held
        As in :func:`step_seconds`.
    parts
        Of one layer, where they are known: :func:`costmodel.step.layer.layer_parts`.
    """
    parts = parts or layer_parts(facts, decisions)
    profile = facts.cluster.device.profile
    alone = data_parallel_seconds(facts, decisions, held)
    plain = alone.reduce + alone.gather
    if profile.dp_overlap is None:
        overlapped = _dp_overlapped(facts, decisions, held, alone, parts)
    else:
        law = profile.dp_overlap
        overlapped = np.asarray(
            exposed_dp_seconds_measured(
                plain,
                rank_seconds(facts, decisions, held, parts.compute + parts.tp),
                pp=over_kinds(decisions["pp"]),
                unhidden=law.unhidden,
                slowdown=law.slowdown,
                window=law.window,
            )
        )
    exposed = np.where(over_kinds(decisions["dp_overlap"]), overlapped, plain)
    exposed = exposed + embedding_copy_seconds(facts, decisions, held)
    if profile.sharding_copies == "none":
        return exposed
    return exposed + sharding_copies_seconds(facts, decisions, held)


def _pipeline(decisions: Decisions) -> Group:
    return pipeline_group(**{name: np.asarray(decisions[name]) for name in ("tp", "cp", "dp", "pp")})


def embedding_copy_seconds(facts: Facts, decisions: Decisions, held: Stages) -> Array | float:
    """
    Sum of the embedding's gradients on the first rank of a pipeline and of its copy on the last one: (..., U).

    References
    ----------
    Megatron-LM, ``megatron/core/distributed/finalize_model_grads.py`` (``_allreduce_word_embedding_grads``): behind the
    data-parallel reduction, before the update; of multi-token prediction's copy, too.
    """
    if not has_embedding_copy(facts.model):
        return 0.0
    edge = lookup(edge_footprint, facts, decisions)
    pipeline = _pipeline(decisions)
    is_inside = pipeline.ranks * pipeline.stride <= facts.cluster.scale_up_size
    apart = np.where(is_inside, 1, np.maximum(pipeline.ranks - 1, 1))
    nbytes = edge.embedding_parameters * facts.workload.precision.gradient_bytes
    seconds = all_reduce(facts.cluster, nbytes=nbytes, ranks=2, stride=pipeline.stride * apart)
    is_copied = (held.first > 0) != (held.last > 0)
    return np.asarray(is_copied * over_kinds(seconds))


def sharding_copies_seconds(facts: Facts, decisions: Decisions, held: Stages) -> Array:
    """
    Copies between tensors and what collectives send where weights are shared, in the stream that computes: (..., U).

    Per parameter and micro-batch: gathered weights read and written before either pass; gradients read in 16 bits and
    written as they are reduced. Of weights that are views of a flat tensor, gradients alone.

    References
    ----------
    PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`` (``foreach_all_gather_copy_out``,
    ``foreach_reduce_scatter_copy_in``); ``fsdp/_flat_param.py`` (``_get_unflat_views_unaligned``: the backward pass of
    a split).
    """
    device, precision = facts.cluster.device, facts.workload.precision
    gradient = WIDE_BYTES + precision.gradient_bytes
    gathered = 2 * 2 * precision.parameter_gather_bytes
    nbytes = {"none": 0.0, "flat": gradient, "tensors": gathered + gradient}[device.profile.sharding_copies]
    parameters, (dense, expert) = rank_parameters(facts, decisions, held), sharing_groups(facts, decisions)
    shared = parameters.dense * (np.asarray(dense.ranks) > 1) + parameters.experts * (np.asarray(expert.ranks) > 1)
    per_parameter = nbytes / device.achieved_memory_bandwidth
    rounds = over_kinds(microbatches(facts, decisions))
    return np.where(over_kinds(decisions["sharding"]) == int(Sharding.WEIGHTS), rounds * per_parameter * shared, 0.0)


def _dp_overlapped(facts: Facts, decisions: Decisions, held: Stages, alone: DataParallel, parts: LayerParts) -> Array:
    """
    Equation (24), once for what runs behind forward passes and once for what runs behind backward passes.

    Without sharding that is the all-reduce behind the last micro-batches; under ZeRO-1 a gather behind the first and a
    reduce-scatter behind the last ones; from ZeRO-2 on a reduce-scatter behind every backward pass; under ZeRO-3 also
    half of the gathers behind each pass, and no micro-batch starts before the one before has reduced everything (FSDP
    waits at the end of each backward pass).

    A device that waits for its host does so in either pass alike; the network goes on.
    """
    profile = facts.cluster.device.profile
    sharding, m = over_kinds(decisions["sharding"]), over_kinds(microbatches(facts, decisions))
    forward, backward = _window_seconds(facts, decisions, held)
    busy_forward, busy_backward = adapter_seconds(facts, decisions, held)
    pieces, once = alone.pieces, _window_fraction(decisions, held)
    idle = added(held.layers * parts.host[..., None, :]) / 2
    every_reduce, every_gather = sharding >= int(Sharding.GRADIENTS), sharding >= int(Sharding.WEIGHTS)
    late = np.where(sharding == int(Sharding.NONE), alone.gather, np.where(every_gather, alone.gather / 2, 0.0))
    rounds = np.where(every_gather, m, 1)
    behind_backward = rounds * exposed_dp_seconds(
        (alone.reduce + late) / rounds,
        np.where(every_reduce, m / rounds, once) * backward,
        num_pieces=np.where(every_reduce, m / rounds, 1) * pieces,
        busy_seconds=np.where(every_reduce, m / rounds, once) * busy_backward,
        idle_seconds=np.where(every_reduce, m / rounds, once) * idle,
        **alone.slowdowns,
    )
    behind_forward = rounds * exposed_dp_seconds(
        (alone.gather - late) / rounds,
        np.where(every_gather, 1, once) * forward,
        num_pieces=pieces,
        busy_seconds=np.where(every_gather, 1, once) * busy_forward,
        idle_seconds=np.where(every_gather, 1, once) * idle,
        **alone.slowdowns,
    )
    waits = (not profile.weight_sync_overlaps) & (sharding == int(Sharding.OPTIMIZER))
    return np.asarray(behind_backward + np.where(waits, alone.gather, behind_forward))


def _window_seconds(facts: Facts, decisions: Decisions, held: Stages) -> tuple[Array, Array]:
    """Computation of one micro-batch on each rank behind which communication can hide: forward and backward."""
    seconds = lookup(layer_seconds, facts, decisions)
    recompute = over_kinds(decisions["recompute"])
    modules = over_modules(seconds.module_forward, recompute=recompute)
    again = np.where(recompute == int(Recompute.FULL), seconds.again, modules)
    forward = added(held.layers * seconds.forward[..., None, :])
    backward = added(held.layers * (seconds.backward + again)[..., None, :])
    if held.full_layers.any():
        backward = backward + added(held.full_layers * (seconds.again - again)[..., None, :])
    return np.asarray(forward), np.asarray(backward)


def _window_fraction(decisions: Decisions, held: Stages) -> Array:
    r"""
    Micro-batches' worth of a rank's computation that runs while one chunk's communication is under way.

    The other v - 1 chunks pass a group of g micro-batches each in cool-down or warm-up, and within the last chunk all
    layers but one are computed behind another's communication.

    .. math:: w = \left[(v - 1) g + 1 - 1/l\right] / v
    """
    vpp, chunk = over_kinds(decisions["vpp"]), held.largest_chunk
    return np.asarray(((vpp - 1) * over_kinds(decisions["group"]) + 1 - 1 / np.maximum(chunk, 1)) / vpp)


def _num_buckets(decisions: Decisions, held: Stages, parameters: RankParameters) -> Array:
    """
    Buckets of a rank's parameters: none spans two chunks, none is smaller than a layer or the framework's size.

    Sharded weights come and go layer by layer (FSDP's units), whatever their size.
    """
    dense, _ = data_groups(decisions)
    size = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * np.asarray(dense.ranks))
    layers = over_kinds(decisions["vpp"]) * held.largest_chunk
    by_size = np.minimum((parameters.dense + parameters.experts) / size, layers)
    buckets = np.where(over_kinds(decisions["sharding"]) == int(Sharding.WEIGHTS), layers, by_size)
    return np.asarray(np.maximum(buckets, over_kinds(decisions["vpp"])))


def update_seconds(facts: Facts, decisions: Decisions, held: Stages) -> Array:
    """
    Parameter update of each different rank, on the device or on the host, shape (..., U).

    References
    ----------
    MoFa, arXiv:2511.09837, equations (13), (26), (28).
    """
    device, profile = facts.cluster.device, facts.cluster.device.profile
    parameters = rank_parameters(facts, decisions, held)
    dense, expert = sharing_groups(facts, decisions)
    updated = parameters.layers + profile.edge_fraction * parameters.edges
    local = updated / _shards(dense, decisions, Sharding.OPTIMIZER) + parameters.experts / _shards(
        expert, decisions, Sharding.OPTIMIZER
    )
    on_host = host_update_seconds(device, facts.workload, local_parameters=local)
    on_device = device_update_seconds(device, local_parameters=local)
    whole = updated / _shards(dense, decisions, Sharding.WEIGHTS) + parameters.experts / _shards(
        expert, decisions, Sharding.WEIGHTS
    )
    passes = parameter_pass_seconds(device, parameters=whole)
    return passes + np.where(over_kinds(decisions["optimizer_offload"]), on_host, on_device)


def _shards(group: Group, decisions: Decisions, level: Sharding) -> Numbers:
    return state_shards(group.ranks, sharding=over_kinds(decisions["sharding"]), level=level)


# --- bounds ------------------------------------------------------------------------------------------------


def lower_bound_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    A step time that no choice of features undercuts, from the degrees alone.

    Nothing is recomputed or offloaded, each communication takes the faster of its two ways by the fastest dispatcher,
    data-parallel communication is hidden, states are updated where that is fastest, no kernel is launched alone.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        The degrees, ``sequence_parallel``, ``schedule`` and ``vocabulary``; features are ignored. Schedules that do
        weights' gradients apart are taken to wait for nothing.
    """
    ideal = {**decisions, **IDEAL}
    layer, held = lookup(least_layer_seconds, facts, ideal), different_ranks(facts, ideal)
    slowest = largest(rank_seconds(facts, ideal, held, layer))
    return ideal_seconds(facts, ideal, held, slowest, all_ranks_seconds(facts, ideal, held, layer))


def least_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    A step time that no choice of overlaps undercuts, nor less sharding, which leaves each rank more to update.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        All but the overlaps, which are ignored.
    """
    choices = zip(*product([False, True], repeat=len(LAYER_OVERLAPS)), strict=True)
    overlaps = {name: in_front(each, decisions) for name, each in zip(LAYER_OVERLAPS, choices, strict=True)}
    held, layer = different_ranks(facts, decisions), layer_parts(facts, {**decisions, **overlaps}).total.min(axis=0)
    slowest = largest(rank_seconds(facts, decisions, held, layer))
    every = all_ranks_seconds(facts, decisions, held, layer)
    sent = pp_seconds(facts, {**decisions, "pp_overlap": either(decisions)}, held).min(axis=0)
    return _least_step(facts, decisions, slowest, every, sent + largest(update_seconds(facts, decisions, held)))


def ideal_seconds(facts: Facts, ideal: Decisions, held: Stages, slowest: Array, every: Array) -> Array:
    """The bound of a step whose slowest rank and all of whose ranks take given seconds per micro-batch at least."""
    longest = {**ideal, **LONGEST, "pp_overlap": either(ideal)}
    sent = pp_seconds(facts, longest, held, slowdown_compute=1.0).min(axis=0)
    return _least_step(facts, ideal, slowest, every, sent + ideal_update_seconds(facts, ideal))


def ideal_update_seconds(facts: Facts, decisions: Decisions) -> Array:
    """However states are sharded, no device updates less than an equal share of the layers' on the faster processor."""
    device = facts.cluster.device
    num_devices = np.asarray(decisions["tp"]) * decisions["cp"] * decisions["pp"] * decisions["dp"]
    share = lookup(layers_parameters, facts, {}) / num_devices
    update = np.minimum(
        host_update_seconds(device, facts.workload, local_parameters=share),
        device_update_seconds(device, local_parameters=share),
    )
    return np.asarray(update + parameter_pass_seconds(device, parameters=share))


def _least_step(facts: Facts, decisions: Decisions, slowest: Array, every: Array, beside: Array) -> Array:
    """The step without data-parallel communication, with what transfers and the update take at least beside it."""
    bubble = bubble_seconds(slowest, every, vpp=decisions["vpp"])
    return np.asarray(
        busy_seconds(slowest, num_microbatches=microbatches(facts, decisions))
        + np.where(is_one_of(decisions["schedule"], WHOLE_BACKWARD), bubble, 0.0)
        + fill_seconds(facts, decisions)
        + beside
        + facts.cluster.device.profile.step_seconds
    )
