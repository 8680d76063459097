"""What pipeline ranks take for a micro-batch, and what the slowest one waits for others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.axes import Array, Decisions, added, largest, with_layer_axis
from costmodel.facts.cluster import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.network.collectives import collective_seconds
from costmodel.network.groups import pipeline_group
from costmodel.operators.work import Numbers
from costmodel.pipelines.interleaved import bubble_seconds, busy_seconds, chunks_waiting_seconds, in_step_seconds
from costmodel.pipelines.orders import has_order
from costmodel.pipelines.plain import plain_seconds
from costmodel.pipelines.schedules import WHOLE_BACKWARD, Passes, idle_seconds, vocabulary_delay
from costmodel.pipelines.simulator import span_seconds
from costmodel.pipelines.stages import Stages, virtual_stage_layers
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.step.layer import LayerParts, layer_parts
from costmodel.step.overlap import taken_seconds
from costmodel.step.p2p import micro_batch_bytes, sent_seconds, whole_p2p_seconds
from costmodel.strategy import Schedule, Vocabulary, is_one_of
from costmodel.tables import Facts, lookup, microbatches

SCALAR_BYTES = 4.0
"""Bytes of a token's maximum, sum or logit in the loss, FP32."""


def pipeline_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array, waiting: Array
) -> Array:
    """
    Seconds of a step's pipeline: busy time, bubble, and what its edges add.

    Derivation: MoFa's equation (12) without the transfers between ranks, of unequal ranks: :func:`busy_seconds` of the
    slowest one, its waiting, and the all-to-alls that only warm-up and cool-down expose.
    """
    slowest = largest(ranks)
    return np.asarray(
        busy_seconds(slowest, num_microbatches=microbatches(facts, decisions))
        + waiting
        + ep_fill_seconds(stages, parts)
    )


def rank_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, layer: Array, full_layer: Array | None = None
) -> Array:
    """
    Seconds of one micro-batch on each different rank, forward and backward: R, shape (..., U).

    In a plain pipeline a rank sends what it computed before it goes on (:func:`whole_p2p_seconds`).

    Derivation: the sum of its layers (MoFa's equations (7) and (8)), of embedding and head where it holds them, of its
    transfers and of the host's time per micro-batch.

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    full_layer
        Seconds of one layer that is recomputed in full, of each kind, where a rank has some.
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    edges = stages.first * with_layer_axis(edge.first) + stages.last * with_layer_axis(edge.last)
    edges = edges + with_layer_axis(lookup(slices_seconds, facts, decisions))
    edges = edges + sent_seconds(facts, decisions, stages)
    always = facts.cluster.device.constants.microbatch_seconds
    layers = added(stages.layers * layer[..., None, :])
    if full_layer is not None:
        layers = layers + added(stages.full_layers * (full_layer - layer)[..., None, :])
    return np.asarray(layers + edges + always)


def all_ranks_seconds(facts: Facts, decisions: Decisions, stages: Stages, layer: Array) -> Array:
    """
    Seconds of one micro-batch on all ranks together: the whole model once, shape (...).

    Derivation: the sum of :func:`rank_seconds` over the ranks; p ranks have 2 (p - 1) transfers.
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    layers = added(stages.all_layers * layer)
    of_each_rank = lookup(slices_seconds, facts, decisions) + facts.cluster.device.constants.microbatch_seconds
    pp = np.asarray(decisions["pp"])
    hops = 2 * (pp - 1) * whole_p2p_seconds(facts, decisions)
    return np.asarray(layers + edge.first + edge.last + hops + pp * of_each_rank)


def waiting_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Array:
    """
    Seconds in which the slowest rank waits for others in one step: shape (...).

    Derivation: the schedule's idle time (MoFa's equation (12) for interleaved 1F1B; exact for the plain one). A
    micro-batch for each barrier of a vocabulary in slices, the waiting of unequal chunks, and the measured fill of the
    head's slot are added.
    """
    slowest, every = largest(ranks), all_ranks_seconds(facts, decisions, stages, parts.total)
    if is_one_of(decisions["schedule"], WHOLE_BACKWARD).all():
        idle = bubble_seconds(slowest, every, vpp=decisions["vpp"])
    else:
        idle = idle_seconds(
            slowest_passes(facts, decisions, stages, parts, ranks),
            all_passes(facts, decisions, stages, parts),
            pp=decisions["pp"],
            vpp=decisions["vpp"],
            num_microbatches=microbatches(facts, decisions),
            schedule=decisions["schedule"],
        )
    delay = vocabulary_delay(vocabulary=decisions["vocabulary"]) * slowest
    if np.any(np.asarray(decisions["vpp"]) > 1):
        others = mean_of_others_seconds(ranks, every, stages, pp=np.asarray(decisions["pp"]))
        pace = largest(steady_state_seconds(facts, decisions, stages, parts.total, ranks, others))
        delay = delay + in_step_seconds(
            slowest, pace, vpp=decisions["vpp"], num_microbatches=microbatches(facts, decisions)
        )
    waiting = idle + delay
    plain = is_plain(decisions)
    if plain.any():
        waiting = np.where(plain, plain_waiting_seconds(facts, decisions, stages, parts, ranks), waiting)
    return np.asarray(waiting + fill_seconds(facts, decisions))


def is_plain(decisions: Decisions) -> NDArray[np.bool_]:
    """Whether pipelines run 1F1B with one chunk per rank, for which unequal ranks have a law of their own."""
    one_chunk = (np.asarray(decisions["vpp"]) == 1) & (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B)
    return np.asarray(one_chunk & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED))


def plain_waiting_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Array:
    """
    Seconds in which the slowest rank of a plain pipeline waits for others in one step: shape (...).

    Derivation: the pipeline's seconds by :mod:`costmodel.pipelines.plain` less the slowest rank's own work.
    """
    m = microbatches(facts, decisions)
    edge = lookup(embedding_head_seconds, facts, decisions)
    edges = stages.first * with_layer_axis(edge.first_forward) + stages.last * with_layer_axis(edge.last_forward)
    forward = added(stages.layers * parts.forward[..., None, :]) + edges
    seconds = plain_seconds(forward, ranks - forward, stages.num_ranks, num_microbatches=m)
    return np.asarray(seconds - busy_seconds(largest(ranks), num_microbatches=m))


def mean_of_others_seconds(ranks: Array, every: Array, stages: Stages, *, pp: Array) -> Array:
    """
    Seconds of one micro-batch on the average rank but the last one, shape (...).

    Derivation: what the last rank has beside its layers, the head and multi-token prediction, makes its own chunk long,
    not those for which it waits. Ranks that hold the head in part are all alike.
    """
    is_last = (stages.last == 1) & (stages.num_ranks > 0)
    last = added(np.where(is_last, ranks, 0.0))
    alone = (pp == 1) | ~is_last.any(axis=-1)
    return np.asarray(np.where(alone, every / pp, (every - last) / np.maximum(pp - 1, 1)))


def steady_state_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, layer: Array, ranks: Array, average: Array
) -> Array:
    """
    Seconds of one micro-batch on each rank, with its waiting for others chunk by chunk: P, (..., U).

    Derivation: R and :func:`costmodel.pipelines.interleaved.chunks_waiting_seconds`, where 1F1B interleaves; the last
    chunk has the head and multi-token prediction beside its layers.

    Parameters
    ----------
    facts, decisions, stages
        As in :func:`costmodel.step.step.step_seconds`.
    layer
        Seconds of one layer of each kind, shape (..., K).
    ranks
        Seconds of each rank's own work, shape (..., U).
    average
        Seconds of the work of an average rank of the others, shape (...).
    """
    edge = lookup(embedding_head_seconds, facts, decisions)
    of_layer = with_layer_axis(added(stages.all_layers * layer) / stages.all_layers.sum(axis=-1))
    beside = stages.last * with_layer_axis(edge.last) + added(stages.mtp_layers * layer[..., None, :])
    waiting = chunks_waiting_seconds(
        ranks,
        stages.last_chunk * of_layer + beside,
        with_layer_axis(average),
        vpp=with_layer_axis(decisions["vpp"]),
        group=with_layer_axis(decisions["group"]),
    )
    in_chunks = (np.asarray(decisions["vpp"]) > 1) & (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B)
    in_chunks = in_chunks & (np.asarray(decisions["vocabulary"]) <= Vocabulary.REDISTRIBUTED)
    return np.asarray(ranks + np.where(with_layer_axis(in_chunks), waiting, 0.0))


def slowest_passes(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts, ranks: Array) -> Passes:
    """The passes of the rank that takes longest."""
    edge = lookup(embedding_head_seconds, facts, decisions)
    slowest = ranks.argmax(axis=-1)[..., None]

    def of_slowest(layer: Array, first: Array | float, last: Array | float) -> Array:
        edges = stages.first * with_layer_axis(first) + stages.last * with_layer_axis(last)
        seconds = np.asarray(added(stages.layers * layer[..., None, :]) + edges)
        return np.take_along_axis(np.broadcast_to(seconds, ranks.shape), slowest, axis=-1)[..., 0]

    forward = of_slowest(parts.forward, edge.first_forward, edge.last_forward)
    weight = of_slowest(parts.weight, 0.0, edge.last_weight)
    return Passes(forward=forward, backward=largest(ranks) - forward - weight, weight=weight)


def all_passes(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts) -> Passes:
    """The passes of all ranks together: the whole model once."""
    edge = lookup(embedding_head_seconds, facts, decisions)
    forward = added(stages.all_layers * parts.forward) + edge.first_forward + edge.last_forward
    weight = added(stages.all_layers * parts.weight) + edge.last_weight
    every = all_ranks_seconds(facts, decisions, stages, parts.total)
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
    edge = lookup(embedding_head_seconds, facts, decisions)
    forward[0] += edge.first_forward  # one after the other: the first stage may be the last one too
    forward[-1] += edge.last_forward
    weight[-1] += edge.last_weight
    total[0] += edge.first
    total[-1] += edge.last
    beside = lookup(slices_seconds, facts, decisions) + facts.cluster.device.constants.microbatch_seconds
    hop = whole_p2p_seconds(facts, decisions)
    total[1:] += hop
    total[:-1] += hop
    backward = total + beside / decisions["vpp"] - forward - weight
    return Passes(forward=forward, backward=backward, weight=weight)


def simulated_waiting_seconds(
    facts: Facts, decisions: Decisions, passes: Passes, slowest: float, *, closed_form: float
) -> float:
    """
    :func:`waiting_seconds` of one strategy, its pipeline simulated pass by pass: seconds.

    Both agree for equal stages. The formula counts the other ranks by their mean and a rank's chunks but its last one
    as equal, which a solver's table can hold. Simulated, a plain pipeline takes up to 9 % less time. An interleaved one
    whose chunks divide the layers takes from 6 % less to 6 % more, and more than that where they hold different kinds
    of layers. The other schedules take from 8 % less to 15 % more (``tests`` have the bounds). The formula is kept for
    slices of the vocabulary, for decisions for which a schedule has no order, and for V-Half. The authors of V-Half
    order the passes anew for the times of each model. In equal stages' order a rank with both ends of the model would
    wait longer than measured (up to 8 % of a step, arXiv:2411.05288, Table 6).

    Parameters
    ----------
    facts, decisions
        As in :func:`waiting_seconds`; scalars.
    passes
        Seconds of every virtual stage, as :func:`stage_passes` makes them.
    slowest
        Seconds of one micro-batch on the slowest rank.
    closed_form
        Seconds by :func:`waiting_seconds`.
    """
    order = simulated_order(facts, decisions)
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


def simulated_order(facts: Facts, decisions: Decisions) -> dict[str, Any] | None:
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
    """
    Seconds that all ranks add once per step because the head's slot is longer than the others.

    Derivation: a measured fraction of the head's time for each of p ranks. MoFa's computation columns (Tables 6 and 8)
    need a term p E beside m E, E being the head's time beyond a layer's.
    """
    head = lookup(embedding_head_seconds, facts, decisions).head
    return np.asarray(facts.cluster.device.constants.measured.head_pipeline_fill_fraction * head * decisions["pp"])


def ep_fill_seconds(stages: Stages, parts: LayerParts) -> Array:
    """
    Seconds of expert-parallel communication that only warm-up and cool-down expose, shape (...).

    Each passes all chunks once, so that the whole model's all-to-alls are exposed once (MoFa, Table 8: the EP column
    depends on neither the number of micro-batches nor of ranks).
    """
    return np.asarray(added(stages.all_layers * parts.ep_edges))


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

    The last layer's output goes to every slice and the sum of its gradients back, the sum of the embeddings to the
    first layer and its gradient back. Three values of 4 bytes per token are reduced: the softmax's maximum and sum, and
    the label's logit. An interlaced pipeline waits for all of them. The barriers of the other ways hide them behind the
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
