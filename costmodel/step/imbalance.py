"""Waiting of ranks for others whose packed sequences are longer: the expected excess of the slowest, not simulated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload, largest_normal
from costmodel.lowering import layer_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.pipelines.stages import layers_of_each_kind
from costmodel.record import record
from costmodel.strategy import CudaGraphs, Sharding
from costmodel.tables import Array, Decisions, Facts, Record, lookup, microbatches, sum_last
from costmodel.timing.source import OperatorTimes, operator_times
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
