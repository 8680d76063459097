"""
One optimizer step of any strategy: MoFa (14), (16), with the slowest rank's pace and the fullest rank's memory.

Decisions may be scalars or arrays that broadcast against each other. Each part is computed at the broadcast shape of
the decisions that it depends on; only the last sums have the shape of all decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costmodel.memory import (
    different_ranks,
    rank_bytes,
    rank_host_bytes,
)
from costmodel.models.flops import layers_parameters
from costmodel.pipelines.schedules import (
    WHOLE_BACKWARD,
    busy_seconds,
    interleaved_bubble_seconds,
    least_plain_seconds,
)
from costmodel.pipelines.stages import Stages
from costmodel.record import record
from costmodel.step.compute import least_layer_seconds
from costmodel.step.data_parallel import (
    device_update_seconds,
    dp_seconds,
    host_update_seconds,
    least_ending_seconds,
    least_update_seconds,
    parameter_pass_seconds,
    update_seconds,
)
from costmodel.step.layer import IDEAL, NOTHING_OPEN, LayerParts, layer_parts, least_layer
from costmodel.step.rank_time import (
    all_ranks_seconds,
    edge_seconds,
    ep_fill_seconds,
    fill_seconds,
    has_own_order,
    idle_waiting_seconds,
    imbalance_seconds,
    is_plain,
    least_imbalance_seconds,
    once_seconds,
    pipeline_seconds,
    pp_seconds,
    rank_seconds,
    waiting_seconds,
    way_through_seconds,
)
from costmodel.strategy import Schedule, is_one_of
from costmodel.tables import Array, Decisions, Facts, either, largest, lookup, microbatches


@record(frozen=True, kw_only=True, slots=True)
class Cost:
    """
    Cost of a strategy; every field has the broadcast shape of the decisions.

    Parameters
    ----------
    step_seconds
        Seconds of one optimizer step.
    bubble_seconds
        Seconds of it in which the slowest pipeline rank waits for others.
    device_bytes
        Bytes of peak memory of the fullest device.
    host_bytes
        Bytes of host memory that one device needs.
    """

    step_seconds: Array
    bubble_seconds: Array
    device_bytes: Array
    host_bytes: Array


def cost(facts: Facts, decisions: Decisions, at_most: Array | None = None) -> Cost:
    """
    Return the step time and the memory of the strategies that the decisions span.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision of :class:`costmodel.strategy.Strategy` by name; scalars, or arrays that broadcast.
    at_most
        Seconds above which a lower bound of the step time is returned instead; those pipelines are not simulated.
    """
    stages = different_ranks(facts, decisions)
    seconds, bubble = step_and_bubble_seconds(facts, decisions, stages, at_most)
    return Cost(
        step_seconds=seconds,
        bubble_seconds=np.asarray(bubble + imbalance_seconds(facts, decisions)),
        device_bytes=largest(rank_bytes(facts, decisions, stages).total),
        host_bytes=largest(rank_host_bytes(facts, decisions, stages)),
    )


def step_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    r"""
    Seconds of one optimizer step, shape of the decisions.

    .. math:: T_{step} = T_{warmup} + T_{steady} + T_{cooldown} + T_{opt}

    written as the time of the slowest rank, which is the same sum. It computes, and it waits while the pipeline fills
    and drains. Exposed transfers between ranks and the exposed time of the optimizer are added.

    Parameters
    ----------
    facts, decisions
        As in :func:`cost`.
    stages
        Different ranks with their layers: :func:`costmodel.memory.different_ranks`.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (14).
    """
    return step_and_bubble_seconds(facts, decisions, stages)[0]


def step_and_bubble_seconds(
    facts: Facts, decisions: Decisions, stages: Stages, at_most: Array | None = None
) -> tuple[Array, Array]:
    """
    Seconds of one optimizer step as in :func:`step_seconds`, and of the waiting in it; ``at_most`` as in :func:`cost`.

    Derivation: MoFa's equation (14): the pipeline by :func:`costmodel.step.rank_time.pipeline_seconds`, exposed
    transfers, the host's time per step, and the end of the rank that finishes last.
    """
    parts = layer_parts(facts, decisions)
    ranks = rank_seconds(facts, decisions, stages, parts.total)
    beside = _other_seconds(facts, decisions, stages, parts)
    if at_most is None:
        waiting = waiting_seconds(facts, decisions, stages, parts, ranks)
        return np.asarray(pipeline_seconds(facts, decisions, stages, parts, ranks, waiting) + beside), waiting
    pipeline = least_pipeline_seconds(facts, decisions, stages, parts.total)
    least = pipeline + ep_fill_seconds(decisions, stages, parts) + edge_seconds(facts, decisions) + beside
    matters = least * (1 - FLOAT_NOISE) <= at_most
    waiting = waiting_seconds(facts, decisions, stages, parts, ranks, matters)
    seconds = pipeline_seconds(facts, decisions, stages, parts, ranks, waiting) + beside
    return np.where(matters, seconds, least), waiting


def _other_seconds(facts: Facts, decisions: Decisions, stages: Stages, parts: LayerParts) -> Array:
    """Seconds of a step outside of its pipeline's passes."""
    ending = dp_seconds(facts, decisions, stages, parts) + update_seconds(facts, decisions, stages)
    sent = pp_seconds(facts, decisions, stages, parts)
    once = once_seconds(facts, decisions) + imbalance_seconds(facts, decisions)
    return np.asarray(sent + once + largest(ending))


FLOAT_NOISE = 1e-12
"""Largest relative difference between two sums of equal terms in another order: a bound, a table, a scalar."""


def summed_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Seconds of one optimizer step by the sum over the ranks, in which pipelines of any layout are compared.

    Derivation: :func:`step_seconds` with :func:`costmodel.step.rank_time.idle_waiting_seconds` in 1F1B: ranks may be
    added up in any order. For plain pipelines it is an upper bound.
    """
    stages, parts = different_ranks(facts, decisions), layer_parts(facts, decisions)
    ranks = rank_seconds(facts, decisions, stages, parts.total)
    in_turn = (np.asarray(decisions["schedule"]) == Schedule.ONE_F_ONE_B) & has_own_order(decisions)
    waiting = waiting_seconds(facts, decisions, stages, parts, ranks, ~in_turn)
    summed = idle_waiting_seconds(facts, decisions, stages, parts, ranks) + edge_seconds(facts, decisions)
    pipeline = pipeline_seconds(facts, decisions, stages, parts, ranks, np.where(in_turn, summed, waiting))
    return np.asarray(pipeline + _other_seconds(facts, decisions, stages, parts))


# --- bounds ------------------------------------------------------------------------------------------------


def lower_bound_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Lower bound in seconds of a step over all choices of features, from the degrees alone.

    Nothing is recomputed or offloaded, and each communication takes the faster of its two ways with the fastest
    dispatcher. Data-parallel communication is hidden, states are updated on the faster of device and host, and no
    kernel is launched alone.

    Derivation: each term of :func:`step_seconds` is replaced by its least value over all features.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        The degrees, ``sequence_parallel``, ``schedule`` and ``vocabulary``; features are ignored. Schedules with
        separate weights' gradients are assumed not to wait.
    """
    ideal = {**decisions, **IDEAL}
    layer, stages = lookup(least_layer_seconds, facts, ideal), different_ranks(facts, ideal)
    pipeline = least_pipeline_seconds(facts, ideal, stages, layer)
    return ideal_seconds(facts, ideal, stages, pipeline)


def least_seconds(
    facts: Facts,
    decisions: Decisions,
    *,
    among: Mapping[str, Sequence[int]] = NOTHING_OPEN,
    most_recompute: int | None = None,
    may_offload: bool = False,
    at_most: Array | None = None,
) -> Array:
    """
    Lower bound in seconds of a step over all choices of overlaps and over less sharding.

    Derivation: each layer and transfer takes the fastest of its overlaps, and the end of the step the least of them
    (:func:`costmodel.step.data_parallel.least_ending_seconds`). Less sharding leaves each rank more to update.
    Recomputed modules, and copies of activations, lengthen a layer, which may hide more data-parallel communication
    (:func:`costmodel.step.layer.least_layer`).

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        All but the overlaps, which are ignored.
    among
        Values of ``token_dispatcher`` and ``cuda_graphs``, for either, both or neither: the bound holds for each value,
        and the decisions' own values are ignored.
    most_recompute
        A set of modules: the bound holds for every subset; the decisions have neither recomputation nor offload.
    may_offload
        True if the bound also holds with activation offload.
    at_most
        Seconds above which a lower bound without data-parallel communication may be returned.
    """
    layer = least_layer(facts, decisions, among=among, most_recompute=most_recompute, may_offload=may_offload)
    chosen = {**decisions, **{name: IDEAL[name] for name in among}}
    stages = different_ranks(facts, chosen)
    pipeline = least_pipeline_seconds(facts, chosen, stages, layer.seconds)
    sent = pp_seconds(facts, {**chosen, "pp_overlap": either(chosen)}, stages).min(axis=0)
    if at_most is not None:
        least = _least_step(facts, chosen, pipeline, sent + least_update_seconds(facts, chosen, stages))
        cells = np.nonzero(least <= at_most)
        if not len(cells[0]):
            return least
        if len(cells[0]) <= FEW_CELLS_FRACTION * least.size and least.size > MANY_CELLS:
            some = {name: np.broadcast_to(values, least.shape)[cells] for name, values in decisions.items()}
            least[cells] = least_seconds(
                facts, some, among=among, most_recompute=most_recompute, may_offload=may_offload
            )
            return least
    return _least_step(facts, chosen, pipeline, sent + least_ending_seconds(facts, chosen, stages, layer))


FEW_CELLS_FRACTION, MANY_CELLS = 1 / 2, 512
"""Share of strategies, of more than so many, up to which a bound is computed in two steps; affects only speed."""


def least_layer_device_seconds(facts: Facts, *, tp: Array, cp: Array, ep: Sequence[int], mbs: int) -> Array:
    r"""
    Least seconds of a layer for one sequence, summed over its devices: shape of tp and cp, then kinds.

    .. math:: w_k = \min_e t c T(k; t, c, e, b) / b

    Derivation: :func:`costmodel.step.compute.least_layer_seconds` with the largest micro-batch of any strategy, whole
    experts, and no device slower than others. Fewer sequences, split experts and the slowest of several devices take
    more in sum.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    tp, cp
        Degrees that split a layer; without a split the sum is least.
    ep
        Expert-parallel degrees that a strategy may have.
    mbs
        Largest micro-batch that a strategy may have.
    """
    tp, cp = np.broadcast_arrays(tp, cp)
    seconds = least_layer_seconds(
        facts.model,
        facts.cluster,
        facts.workload,
        tp=tp,
        cp=cp,
        ep=np.reshape(ep, (-1, *(1,) * tp.ndim)),
        etp=1,
        mbs=mbs,
        sequence_parallel=(tp > 1).astype(np.float64),
        dp=1,
    )
    return np.asarray(seconds.min(axis=0) * (tp * cp)[..., None] / mbs)


def least_layers_seconds(facts: Facts, of_layer: Array, decisions: Decisions) -> Array:
    r"""
    Lower bound in seconds of a step from its layers alone, shape of the degrees.

    .. math:: T_{step} \ge \frac{B}{d t c} \max\left(\frac{1}{p} \sum_k n_k w_k, \max_k \lceil n_k / p \rceil w_k\right)

    with n layers of each kind. Derivation: some rank holds at least the mean number of layers, and some rank at least
    the mean number of layers of a kind, rounded up.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    of_layer
        Result of :func:`least_layer_device_seconds`: w, shape (..., K).
    decisions
        tp, cp, pp and dp.
    """
    tp, cp, pp, dp = (np.asarray(decisions[name]) for name in ("tp", "cp", "pp", "dp"))
    counts = np.array([facts.model.layer_counts.get(kind, 0) for kind in facts.model.kinds])
    mean = (of_layer @ counts) / pp
    fullest = (-(-counts // pp[..., None]) * of_layer).max(axis=-1)
    return np.asarray(facts.workload.global_batch_size / (dp * tp * cp) * np.maximum(mean, fullest))


def least_pipeline_seconds(facts: Facts, decisions: Decisions, stages: Stages, layer: Array) -> Array:
    """
    Lower bound in seconds of a step's pipeline from the least seconds of its layers, shape (..., K).

    Derivation: busy time and bubble of the slowest rank; for interleaved pipelines at most
    :func:`costmodel.step.rank_time.way_through_seconds`; for plain pipelines two of the paths through their order
    (:func:`costmodel.pipelines.schedules.least_plain_seconds`). GPipe of unequal ranks takes longer:
    (m - 1)(max F + max B) and all ranks once. Schedules with separate weights' gradients are assumed not to wait.
    """
    ranks, m = rank_seconds(facts, decisions, stages, layer), microbatches(facts, decisions)
    slowest, every = largest(ranks), all_ranks_seconds(facts, decisions, stages, layer)
    bubble = interleaved_bubble_seconds(slowest, every, vpp=decisions["vpp"])
    bubble = np.where(is_one_of(decisions["schedule"], WHOLE_BACKWARD), bubble, 0.0)
    seconds, plain = busy_seconds(slowest, num_microbatches=m) + bubble, is_plain(decisions)
    if (np.asarray(decisions["vpp"]) > 1).any():
        way = way_through_seconds(facts, decisions, stages, layer, ranks)
        seconds = np.where(np.asarray(decisions["vpp"]) > 1, np.minimum(seconds, way), seconds)
    if plain.any():
        seconds = np.where(plain, least_plain_seconds(ranks, stages.num_ranks, num_microbatches=m), seconds)
    return np.asarray(seconds)


def ideal_seconds(facts: Facts, ideal: Decisions, stages: Stages, pipeline: Array) -> Array:
    """
    Lower bound in seconds of a step from the least seconds of its pipeline.

    Derivation: the pipeline, transfers hidden as far as possible, and :func:`ideal_update_seconds`.
    """
    sent = pp_seconds(facts, {**ideal, "pp_overlap": either(ideal)}, stages).min(axis=0)
    return _least_step(facts, ideal, pipeline, sent + ideal_update_seconds(facts, ideal))


def ideal_update_seconds(facts: Facts, decisions: Decisions) -> Array:
    """
    Lower bound in seconds of the update, for any sharding and any place of the states.

    Derivation: T = min(T_host(s), T_device(s)) + T_pass(s), with the share s = N / (tp cp pp dp) of the N parameters of
    all layers. Some device updates at least s parameters, no faster than the faster of device and host. It also passes
    over them (:func:`costmodel.step.data_parallel.parameter_pass_seconds`).
    """
    device = facts.cluster.device
    num_devices = np.asarray(decisions["tp"]) * decisions["cp"] * decisions["pp"] * decisions["dp"]
    share = lookup(layers_parameters, facts, {}) / num_devices
    update = np.minimum(
        host_update_seconds(device, local_parameters=share),
        device_update_seconds(device, local_parameters=share),
    )
    return np.asarray(update + parameter_pass_seconds(device, parameters=share))


def _least_step(facts: Facts, decisions: Decisions, pipeline: Array, beside: Array) -> Array:
    """Seconds of a step without data-parallel communication, from the least of pipeline, transfers and update."""
    once = once_seconds(facts, decisions) + least_imbalance_seconds(facts, decisions)
    return np.asarray(pipeline + fill_seconds(facts, decisions) + beside + once)
