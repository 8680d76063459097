"""
Custom pipeline layouts: costs of single ranks, and the step of ranks with different layers, recomputation and offload.

A rank is costed by the formulas of a strategy, as a strategy of one rank. Its layers are on the axis of the ranks, its
decisions on a separate axis. The formula or simulation of the schedule then combines the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.model import Model
from costmodel.memory import (
    different_ranks,
    kept_bytes,
    layer_footprint,
    microbatches_in_flight,
    rank_bytes,
    rank_host_bytes,
)
from costmodel.models.flops import head_layers
from costmodel.pipelines.schedules import Passes, busy_seconds, interleaved_bubble_seconds, unequal_chunks_seconds
from costmodel.pipelines.stages import Stages, activation_imbalance, layers_between, layers_of_each_kind
from costmodel.record import record
from costmodel.step.compute import least_layer_seconds
from costmodel.step.data_parallel import dp_seconds, update_seconds
from costmodel.step.layer import IDEAL, layer_parts
from costmodel.step.rank_time import (
    edge_seconds,
    ep_fill_seconds,
    imbalance_seconds,
    once_seconds,
    order_seconds,
    pipeline_order,
    pp_seconds,
    rank_seconds,
    stage_ends,
    steady_state_seconds,
)
from costmodel.step.step import Cost, cost, ideal_seconds, step_seconds, summed_seconds
from costmodel.strategy import Recompute, StageLayout, Strategy
from costmodel.tables import Array, Decisions, Facts, lookup, microbatches

Ints = NDArray[np.int64]


@record(frozen=True, kw_only=True, slots=True)
class Contents:
    """
    Layers of pipeline ranks, one of A ranks (or of the possible contents of ranks) per entry.

    Parameters
    ----------
    rank
        Pipeline rank, shape (A,).
    layers, mtp_layers, full_layers
        Layers of each kind, those of multi-token prediction included; layers of multi-token prediction; layers
        recomputed in full; (A, K).
    largest_chunk, last_chunk, in_flight_imbalance
        As in :class:`costmodel.pipelines.stages.Stages`, shape (A,).
    """

    rank: Ints
    layers: Array
    mtp_layers: Array
    full_layers: Array
    largest_chunk: Array
    last_chunk: Array
    in_flight_imbalance: Array

    def take(self, which: Ints) -> Contents:
        """Return the contents of some ranks."""
        return Contents(**{field.name: getattr(self, field.name)[which] for field in fields(Contents)})

    def stages(self, facts: Facts, *, pp: int) -> Stages:
        """Return the contents as strategies of one rank: U = 1."""
        every, _ = layers_of_each_kind(facts.model)
        return Stages(
            rank=self.rank[:, None].astype(np.float64),
            num_ranks=np.ones((len(self.rank), 1), dtype=np.int64),
            layers=self.layers[:, None, :],
            mtp_layers=self.mtp_layers[:, None, :],
            first=(self.rank == 0)[:, None].astype(np.float64),
            last=(self.rank == pp - 1)[:, None].astype(np.float64),
            full_layers=self.full_layers[:, None, :],
            largest_chunk=self.largest_chunk[:, None],
            last_chunk=self.last_chunk[:, None],
            in_flight_imbalance=self.in_flight_imbalance[:, None],
            all_layers=np.broadcast_to(every, self.layers.shape),
            in_front=np.zeros_like(self.layers[:, None, :]),
        )


@record(frozen=True, kw_only=True, slots=True)
class RankCosts:
    """
    Costs of ranks, each alone: shape (..., A).

    Parameters
    ----------
    seconds
        Seconds of one micro-batch, forward and backward.
    steady_state_seconds
        Seconds of it with the rank's waiting: :func:`costmodel.step.rank_time.steady_state_seconds`.
    ending_seconds
        Seconds of exposed data-parallel communication and of the update of the parameters.
    device_bytes, host_bytes
        Bytes of peak memory of one of its devices, and of its share of the host.
    """

    seconds: Array
    steady_state_seconds: Array
    ending_seconds: Array
    device_bytes: Array
    host_bytes: Array


# --- contents ----------------------------------------------------------------------------------------------


def even_chunks(num_layers: int, *, vpp: int) -> tuple[int, ...]:
    """
    Number of layers of each of a rank's chunks, as even as possible; later chunks get the remainder.

    Derivation: a later chunk has fewer micro-batches in flight, so an additional layer there costs the least memory.

    >>> even_chunks(7, vpp=3)
    (2, 2, 3)
    """
    base, remainder = divmod(num_layers, vpp)
    return (base,) * (vpp - remainder) + (base + 1,) * remainder


def layers_equal_to_head(model: Model) -> float:
    """
    Number of layers with as much work as the last chunk has besides its own layers: head and MTP.

    Derivation: the head counts by its FLOPs over a layer's (:func:`costmodel.models.flops.head_layers`). Each layer of
    multi-token prediction (MTP) is one layer and one more head.
    """
    num_mtp = len(model.mtp_layers)
    return head_layers(model) * (1 + num_mtp) + num_mtp


BESIDE_THE_HEAD = range(-1, 3)
"""
Additional layers of the last chunk that are tried, beyond the number that makes the last rank's chunks equal in FLOPs.

Equal FLOPs are not equal time: MoE layers wait for all-to-alls, and layers in 8 bits are faster than the head.
"""


def last_rank_chunks(num_layers: int, *, vpp: int, beside_layers: float) -> tuple[tuple[int, ...], ...]:
    """
    Number of layers of the last rank's chunks, in several ways: its last chunk also holds the head.

    Derivation: chunks are equal in work if the last one has (n + b) / v - b of n layers, b for the head. A few
    layers more or less are tried (:data:`BESIDE_THE_HEAD`); :func:`even_chunks` divides the others.

    >>> last_rank_chunks(7, vpp=3, beside_layers=1.3)
    ((3, 4, 0), (3, 3, 1), (2, 3, 2), (2, 2, 3))
    """
    if vpp == 1:
        return ((num_layers,),)
    equal = round((num_layers + beside_layers) / vpp - beside_layers)
    most = -(-num_layers // vpp)
    tried = sorted({min(max(equal + more, 0), most) for more in BESIDE_THE_HEAD})
    return tuple((*even_chunks(num_layers - last, vpp=vpp - 1), last) for last in tried)


def full_by_chunk(num_full: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """
    Number of fully recomputed layers of each chunk: equally many, the first chunks one more.

    Derivation: layers are taken from each chunk in turn. Early chunks have more micro-batches in flight, so this keeps
    no more than the average chunk would.

    >>> full_by_chunk(5, (2, 2, 2)), full_by_chunk(5, (1, 2, 3))
    ((2, 2, 1), (1, 2, 2))
    """
    taken = _layer_turns(sizes)[:num_full]
    return tuple(taken.count(chunk) for chunk in range(len(sizes)))


@lru_cache(maxsize=2**11)
def _layer_turns(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the chunk of each layer if one layer of every chunk is taken in turn."""
    return tuple(
        chunk for _, chunk in sorted((turn, chunk) for chunk, size in enumerate(sizes) for turn in range(size))
    )


def contents_of(strategy: Strategy, model: Model) -> Contents:
    """Return the contents of the ranks of a strategy with a layout: A = pp."""
    layers, full = (each.reshape(strategy.vpp, strategy.pp, -1).sum(axis=0) for each in _stage_layers(strategy, model))
    sizes = np.array(_layout(strategy).layers).reshape(strategy.vpp, strategy.pp).T
    mtp = np.zeros_like(layers)
    mtp[-1] = layers_of_each_kind(model)[1]
    return Contents(
        rank=np.arange(strategy.pp),
        layers=layers + mtp,
        mtp_layers=mtp,
        full_layers=full,
        largest_chunk=sizes.max(axis=1).astype(np.float64),
        last_chunk=sizes[:, -1].astype(np.float64),
        in_flight_imbalance=np.array(
            [activation_imbalance(tuple(own), rank=rank, pp=strategy.pp) for rank, own in enumerate(sizes.tolist())]
        ),
    )


def _stage_layers(strategy: Strategy, model: Model) -> tuple[Array, Array]:
    """Return layers of each kind of every virtual stage, and those recomputed in full: (pp * vpp, K)."""
    layout, pp = _layout(strategy), strategy.pp
    sizes = np.array(layout.layers)
    ends = sizes.cumsum()
    in_full = [full_by_chunk(layout.full_layers[rank], layout.layers[rank::pp]) for rank in range(pp)]
    starts = ends - sizes
    return layers_between(model, starts, ends), layers_between(model, starts, starts + np.array(in_full).T.ravel())


def _layout(strategy: Strategy) -> StageLayout:
    assert strategy.layout is not None
    return strategy.layout


# --- costs -------------------------------------------------------------------------------------------------


def rank_costs(facts: Facts, decisions: Decisions, contents: Contents) -> RankCosts:
    """
    Return the costs of ranks, each alone.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Decisions of the pipeline; ``recompute`` and ``activation_offload`` may be arrays of shape (A,), others of shape
        (..., 1).
    contents
        Layers that the ranks hold.
    """
    device, host = contents_bytes(facts, decisions, contents)
    seconds, pace = contents_seconds(facts, decisions, contents)
    return RankCosts(
        seconds=seconds,
        steady_state_seconds=pace,
        ending_seconds=contents_ending_seconds(facts, decisions, contents),
        device_bytes=device,
        host_bytes=host,
    )


def contents_seconds(facts: Facts, decisions: Decisions, contents: Contents) -> tuple[Array, Array]:
    """
    Seconds of one micro-batch on each rank, without and with its waiting: shape (..., A).

    Derivation: :func:`costmodel.step.rank_time.rank_seconds` and :func:`costmodel.step.rank_time.steady_state_seconds`
    of strategies of one rank. Parameters as in :func:`rank_costs`.
    """
    stages = contents.stages(facts, pp=int(decisions["pp"]))
    modes, of_mode = _modes(decisions)
    layer = layer_parts(facts, modes).total[..., of_mode, :]
    full = layer_parts(facts, {**modes, "recompute": Recompute.FULL}).total if stages.full_layers.any() else None
    seconds = rank_seconds(facts, decisions, stages, layer, None if full is None else full[..., of_mode, :])
    if int(decisions["vpp"]) == 1:
        return seconds[..., 0], seconds[..., 0]
    average = rank_seconds(facts, decisions, average_rank(facts, decisions), layer)[..., 0]
    return seconds[..., 0], steady_state_seconds(facts, decisions, stages, layer, seconds, average)[..., 0]


def _modes(decisions: Decisions) -> tuple[dict[str, Any], Any]:
    """Return the decisions with each distinct pair of recomputation and offload, and the index of each rank's pair."""
    pairs = np.stack([np.asarray(decisions[name], dtype=np.int64) for name in PER_RANK])
    if pairs.ndim == 1:
        return dict(decisions), ...
    different, index = np.unique(pairs, axis=1, return_inverse=True)
    return {**decisions, **dict(zip(PER_RANK, different, strict=True))}, index.ravel()


PER_RANK = ("recompute", "activation_offload")
"""Decisions that may differ between ranks."""


def contents_ending_seconds(facts: Facts, decisions: Decisions, contents: Contents) -> Array:
    """
    Seconds after the last micro-batch on each rank: shape (..., A).

    Derivation: the exposed data-parallel communication and the update, the T_opt of MoFa's equation (13), one after the
    other. Parameters as in :func:`rank_costs`.
    """
    stages = contents.stages(facts, pp=int(decisions["pp"]))
    return (dp_seconds(facts, decisions, stages) + update_seconds(facts, decisions, stages))[..., 0]


def contents_update_seconds(facts: Facts, decisions: Decisions, contents: Contents) -> Array:
    """
    Seconds of the update of each rank's parameters: shape (..., A).

    Derivation: :func:`costmodel.step.data_parallel.update_seconds` of strategies of one rank. Parameters as in
    :func:`rank_costs`.
    """
    return update_seconds(facts, decisions, contents.stages(facts, pp=int(decisions["pp"])))[..., 0]


def contents_bytes(facts: Facts, decisions: Decisions, contents: Contents) -> tuple[Array, Array]:
    """
    Bytes of device memory and of host memory of each rank: shape (..., A).

    Derivation: each content is costed as the only rank of a strategy. A device holds static memory, activations and the
    constant part, as in MoFa's equation (6) (:func:`costmodel.memory.rank_bytes`). The host holds the offloaded
    tensors (:func:`costmodel.memory.rank_host_bytes`). Parameters as in :func:`rank_costs`.
    """
    stages = contents.stages(facts, pp=int(decisions["pp"]))
    return rank_bytes(facts, decisions, stages).total[..., 0], rank_host_bytes(facts, decisions, stages)[..., 0]


def constant_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Seconds of a step that do not depend on the layers of its ranks: transfers, edges, the host.

    Derivation: the terms of :func:`costmodel.step.step.step_seconds` that depend only on the whole model. They are
    pipeline fill, all-to-alls of warm-up and cool-down, transfers of an interleaved pipeline, the time per step of the
    host.
    """
    stages = average_rank(facts, decisions)
    parts = layer_parts(facts, decisions)
    return np.asarray(
        edge_seconds(facts, decisions)
        + ep_fill_seconds(decisions, stages, parts)
        + pp_seconds(facts, decisions, stages, parts)
        + once_seconds(facts, decisions)
        + imbalance_seconds(facts, decisions)
    )


def joined_seconds(ranks: RankCosts, *, vpp: int, num_microbatches: int) -> tuple[float, float]:
    r"""
    Seconds of a step without :func:`constant_seconds`, and the slowest rank's waiting in it.

    .. math:: T = (m - 1/v) \max_i P_i + \sum_i R_i / v + \max_i E_i

    with R and P of a micro-batch on rank i, without and with its waiting, and E the seconds after the last micro-batch.

    Derivation: the slowest rank works m max R (:func:`costmodel.pipelines.schedules.busy_seconds`). It waits (sum R -
    max R) / v while the pipeline fills and drains
    (:func:`costmodel.pipelines.schedules.interleaved_bubble_seconds`). It waits (m - 1/v)(max P - max R) for unequal
    chunks (:func:`costmodel.pipelines.schedules.unequal_chunks_seconds`). The sum of these and of the longest E is T.
    """
    slowest, pace = ranks.seconds.max(), ranks.steady_state_seconds.max()
    waiting = interleaved_bubble_seconds(slowest, ranks.seconds.sum(), vpp=vpp)
    waiting = waiting + unequal_chunks_seconds(slowest, pace, vpp=vpp, num_microbatches=num_microbatches)
    busy = busy_seconds(slowest, num_microbatches=num_microbatches)
    return float(busy + waiting + ranks.ending_seconds.max()), float(waiting)


def layout_cost(facts: Facts, strategy: Strategy) -> Cost:
    """Return the cost of a strategy with a layout, by the law of plain 1F1B or by simulation; scalars."""
    decisions = strategy.decisions() | {"num_microbatches": int(microbatches(facts, strategy.decisions()))}
    m = decisions["num_microbatches"]
    ranks = rank_costs(facts, rank_decisions(strategy), contents_of(strategy, facts.model))
    joined, waiting = joined_seconds(ranks, vpp=strategy.vpp, num_microbatches=m)
    order = pipeline_order(decisions)
    if order is not None:
        pipeline = order_seconds(layout_passes(facts, strategy), order)
        waiting = float(pipeline - busy_seconds(ranks.seconds.max(), num_microbatches=m))
        joined = float(pipeline + ranks.ending_seconds.max())
    waiting = waiting + float(imbalance_seconds(facts, decisions))
    return Cost(
        bubble_seconds=np.asarray(waiting + edge_seconds(facts, strategy.decisions())),
        step_seconds=joined + constant_seconds(facts, strategy.decisions()),
        device_bytes=np.asarray(ranks.device_bytes.max()),
        host_bytes=np.asarray(ranks.host_bytes.max()),
    )


def summed_strategy_seconds(facts: Facts, strategy: Strategy) -> float:
    """
    Seconds of one strategy's step by the sum over its ranks, with or without a layout.

    Derivation: with a layout, :func:`joined_seconds` and :func:`constant_seconds`; otherwise
    :func:`costmodel.step.step.summed_seconds`.
    """
    decisions = strategy.decisions()
    if not strategy.layout:
        return float(summed_seconds(facts, decisions))
    ranks = rank_costs(facts, rank_decisions(strategy), contents_of(strategy, facts.model))
    joined, _ = joined_seconds(ranks, vpp=strategy.vpp, num_microbatches=int(microbatches(facts, decisions)))
    return joined + float(constant_seconds(facts, decisions))


def strategy_cost(facts: Facts, strategy: Strategy) -> Cost:
    """Return the cost of one strategy, with or without a layout, as the search compares it; scalars."""
    return layout_cost(facts, strategy) if strategy.layout else cost(facts, strategy.decisions())


def strategy_bytes(facts: Facts, strategy: Strategy) -> tuple[float, float]:
    """
    Bytes on the fullest device and on its host of one strategy, with or without a layout.

    Derivation: those of :func:`strategy_cost`, without the seconds.
    """
    decisions = strategy.decisions()
    if strategy.layout:
        found = contents_bytes(facts, rank_decisions(strategy), contents_of(strategy, facts.model))
    else:
        stages = different_ranks(facts, decisions)
        found = rank_bytes(facts, decisions, stages).total, rank_host_bytes(facts, decisions, stages)
    device_bytes, host_bytes = (float(np.max(one)) for one in found)
    return device_bytes, host_bytes


def strategy_seconds(facts: Facts, strategy: Strategy) -> float:
    """
    Seconds of one strategy's step as the search compares it, see :func:`strategy_cost`.

    Derivation: :func:`layout_cost` with a layout, :func:`costmodel.step.step.step_seconds` without.
    """
    if strategy.layout:
        return float(layout_cost(facts, strategy).step_seconds)
    decisions = strategy.decisions()
    return float(step_seconds(facts, decisions, different_ranks(facts, decisions)))


def rank_decisions(strategy: Strategy) -> dict[str, Any]:
    """Return the decisions of a strategy with a layout, with arrays for those that differ between ranks."""
    layout = _layout(strategy)
    own = {
        "recompute": np.array(layout.recompute, dtype=np.int64),
        "activation_offload": np.array(layout.activation_offload, dtype=bool),
    }
    return strategy.decisions() | own


def layout_passes(facts: Facts, strategy: Strategy) -> Passes:
    """Return the passes of every virtual stage of a strategy with a layout, shape (pp * vpp,)."""
    return _passes(facts, strategy, *_stage_layers(strategy, facts.model))


def passes_by_layer_counts(facts: Facts, strategy: Strategy, sizes: NDArray[np.int64]) -> Passes:
    """Return the passes for other numbers of layers per virtual stage, (N, pp * vpp), without full recomputation."""
    ends = sizes.cumsum(axis=-1)
    layers = layers_between(facts.model, ends - sizes, ends)
    return _passes(facts, strategy, layers, np.zeros_like(layers))


def _passes(facts: Facts, strategy: Strategy, layers: Array, full: Array) -> Passes:
    decisions = strategy.decisions()
    plain, of_ranks = layer_parts(facts, decisions), layer_parts(facts, rank_decisions(strategy))
    whole, forward = (np.tile(each, (strategy.vpp, 1)) for each in (of_ranks.total, of_ranks.forward))
    full_layer = layer_parts(facts, decisions | dict(zip(PER_RANK, IN_FULL, strict=True))).total
    layers[..., -1, :] += layers_of_each_kind(facts.model)[1]
    total = ((layers - full) * whole).sum(axis=-1) + full @ full_layer
    of_forward, of_weight = (layers * forward).sum(axis=-1), layers @ plain.weight
    of_layers = Passes(forward=of_forward, backward=total - of_forward - of_weight, weight=of_weight)
    return stage_ends(facts, decisions).add_to(of_layers)


IN_FULL = (Recompute.FULL, False)


# --- the average rank --------------------------------------------------------------------------------------


def average_rank(facts: Facts, decisions: Mapping[str, Any]) -> Stages:
    """Return a rank that holds an equal share of everything: no layout has a faster slowest rank."""
    pp = np.asarray(decisions["pp"])
    share = (1.0 / pp)[..., None]
    every, mtp = layers_of_each_kind(facts.model)
    layers = share[..., None] * every
    chunk = share * facts.model.num_layers / np.asarray(decisions["vpp"])[..., None]
    return Stages(
        rank=np.zeros_like(share),
        num_ranks=pp[..., None],
        layers=layers,
        mtp_layers=share[..., None] * mtp,
        first=share,
        last=share,
        full_layers=np.zeros_like(layers),
        largest_chunk=chunk,
        last_chunk=chunk,
        in_flight_imbalance=np.ones_like(share),
        all_layers=np.broadcast_to(every, (*pp.shape, len(every))),
        in_front=np.zeros_like(layers),
    )


@record(frozen=True, kw_only=True, slots=True)
class Balance:
    """
    Bounds of any layout, from ranks that share the model evenly with hidden data-parallel communication.

    Parameters
    ----------
    seconds
        Seconds of one optimizer step.
    constant_seconds
        Seconds of it that do not depend on the layers of the ranks.
    mean_seconds, layer_seconds
        Seconds of one micro-batch on the average rank, and in the fastest kind of layer.
    """

    seconds: Array
    constant_seconds: Array
    mean_seconds: Array
    layer_seconds: Array


def balance_of(facts: Facts, decisions: Decisions, extra_seconds: Array | float = 0.0) -> Balance:
    """
    Return the balance of the strategies that the decisions span.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision, as in :func:`costmodel.step.step.cost`.
    extra_seconds
        Least additional seconds of the average rank for one micro-batch besides these decisions.
    """
    parts, average = layer_parts(facts, decisions), average_rank(facts, decisions)
    mean, slowest = _mean_and_slowest(facts, decisions, average, parts.total)
    mean = mean + extra_seconds
    slowest = np.maximum(slowest, mean)
    constant = constant_seconds(facts, decisions)
    step = (
        busy_seconds(slowest, num_microbatches=microbatches(facts, decisions))
        + interleaved_bubble_seconds(slowest, np.asarray(decisions["pp"]) * mean, vpp=decisions["vpp"])
        + update_seconds(facts, decisions, average)[..., 0]
        + constant
    )
    return Balance(
        seconds=np.asarray(step),
        constant_seconds=constant,
        mean_seconds=mean,
        layer_seconds=parts.total.min(axis=-1),
    )


def balanced_bound_seconds(facts: Facts, degrees: Decisions) -> Array:
    """
    Lower bound in seconds of a step over all features, with ranks that share the model evenly.

    Derivation: :func:`costmodel.step.step.lower_bound_seconds` with the average rank instead of those of a layout. No
    layout's slowest rank is faster than the mean, nor than its whole layers.
    """
    ideal = {**degrees, **IDEAL}
    average, layer = average_rank(facts, ideal), lookup(least_layer_seconds, facts, ideal)
    mean, slowest = _mean_and_slowest(facts, ideal, average, layer)
    pipeline = busy_seconds(slowest, num_microbatches=microbatches(facts, ideal)) + interleaved_bubble_seconds(
        slowest, np.asarray(ideal["pp"]) * mean, vpp=ideal["vpp"]
    )
    return ideal_seconds(facts, ideal, average, np.asarray(pipeline))


def _mean_and_slowest(facts: Facts, decisions: Decisions, average: Stages, layer: Array) -> tuple[Array, Array]:
    """Return the seconds of the average rank, and the least of the slowest one: that mean, or its whole layers."""
    mean = rank_seconds(facts, decisions, average, layer)[..., 0]
    fewest = np.ceil(facts.model.num_layers / np.asarray(decisions["pp"]))
    return mean, np.maximum(mean, fewest * layer.min(axis=-1))


def least_recompute_seconds(
    facts: Facts, decisions: Decisions, modes: Sequence[tuple[int, bool]], room_bytes: float
) -> Array:
    r"""
    Least seconds per micro-batch that the average rank spends on recomputation to fit into memory.

    .. math:: \Delta R = \frac{M - M_{max}}{n} \min_s \frac{\Delta t_s}{\Delta A_s}

    M is the memory of the average rank with the micro-batches in flight n of the last one, which has fewest. Every mode
    s that keeps less lengthens a layer and shrinks its activations. Derivation: the missing bytes over n must be
    saved per micro-batch, at no less than the best ratio of time to bytes.

    Parameters
    ----------
    facts, decisions
        As in :func:`balance_of`; nothing is recomputed or offloaded.
    modes
        Pairs of recomputation and offload that a rank may have.
    room_bytes
        Memory of a device without the headroom.
    """
    last = _place_last(average_rank(facts, decisions), decisions)
    lacking = np.maximum(rank_bytes(facts, decisions, last).total[..., 0] - room_bytes, 0.0)
    alive = microbatches_in_flight(facts, decisions, last)[..., 0]
    alive = alive * (1 + facts.cluster.device.behaviour.memory.fragmentation)
    layer, plain = lookup(layer_footprint, facts, decisions), layer_parts(facts, decisions).total
    price: Array = np.full(np.shape(lacking), np.inf)
    for recompute, offload in modes:
        if not recompute and not offload:
            continue
        own = {**decisions, "recompute": np.int64(recompute), "activation_offload": np.bool_(offload)}
        kept = kept_bytes(layer.saved_bytes, layer.module_bytes, layer.input_bytes, recompute=np.array([recompute]))
        saved = np.asarray(layer.saved_bytes - (0.0 if offload else kept))
        longer = layer_parts(facts, own).total - plain
        ratio = np.where(saved > 0, longer / np.where(saved > 0, saved, 1.0), np.inf).min(axis=-1)
        price = np.minimum(price, ratio)
    return np.where(lacking > 0, lacking / alive * np.where(np.isfinite(price), price, 0.0), 0.0)


def _place_last(average: Stages, decisions: Decisions) -> Stages:
    """Return the average rank, with as few micro-batches in flight as the last one."""
    last = np.broadcast_to(np.asarray(decisions["pp"]) - 1.0, average.rank.shape[:-1])
    return replace(average, rank=last[..., None])


def least_memory(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Lower bound in bytes of device and host memory of a layout's fullest rank: shape (...).

    Derivation: the fullest rank holds no less than the average share. With as few micro-batches in flight as the last
    rank, which has fewest, that share needs least.
    """
    last = _place_last(average_rank(facts, decisions), decisions)
    return rank_bytes(facts, decisions, last).total[..., 0], rank_host_bytes(facts, decisions, last)[..., 0]
