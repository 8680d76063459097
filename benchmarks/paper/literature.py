"""
MoFa's formulas beside numbers of the literature, where the paper's tables do not decide them.

Each number is a sum by hand of the equation in the source that the check names; no constant is fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.paper import rows
from benchmarks.paper.checks import Basis, Check, compare
from costmodel import catalog
from costmodel.facts.device import Cluster, Slowdowns
from costmodel.facts.reliability import RecoveryLevel
from costmodel.lowering import Shape, layer_operators
from costmodel.lowering.layer import sum_over_modules
from costmodel.memory import gradient_bytes, kept_bytes, layer_footprint, optimizer_bytes, weight_bytes
from costmodel.models.flops import model_flops_per_token
from costmodel.network.collectives import all_gather, all_reduce, all_to_all, reduce_scatter, ring, send
from costmodel.pipelines.schedules import (
    busy_seconds,
    chunks_in_flight,
    interleaved_bubble_seconds,
    p2p_exposed_seconds,
    plain_seconds,
)
from costmodel.reliability import mttr_seconds
from costmodel.step.data_parallel import device_update_seconds
from costmodel.step.layer import layer_parts
from costmodel.step.overlap import (
    exposed_cp_seconds,
    exposed_dp_seconds,
    exposed_overlapped_seconds,
    exposed_tp_seconds,
)
from costmodel.strategy import Recompute, Sharding
from costmodel.timing.roofline import theoretical_roofline
from costmodel.timing.work import Operator

Numbers = Iterator[tuple[str, float, Any]]
"""Label, number of the source, ours."""

PRECISION = 1e-4
"""Relative distance that is allowed: digits of the constants of the paper's profiles."""

NONE = Slowdowns(slowdown_communication=1.0, slowdown_compute=1.0, processors_taken=0.0)

HIDDEN, KEY_VALUE, FFN, TOKENS = 16384, 2048, 53248, 2 * 8192
"""Widths of LLaMA3-405B with 16 groups of keys and values, and tokens of a micro-batch of 2 sequences."""

LAYER_SECONDS = 0.11727
"""Forward and backward seconds of its layer on GPU B at (tp, mbs) = (8, 2), the forward pass a third."""


def literature_checks() -> Iterator[Check]:
    """Every formula with numbers of its own."""
    for name, unit, numbers in (
        ("(1), (19): roofline, F / P (Williams 2009)", "s", _roofline()),
        ("(2), (3): (n - 1) / n of the bytes, decaying links (Patarasuk 2009)", "s", _collectives()),
        ("(4), (25): 2 + 2 + 16 bytes and their shards (Rajbhandari 2020)", "bytes", _states()),
        ("(5): chunks in flight (Korthikanti 2022, 4.2.3)", "chunks", _chunks()),
        ("(5), (29), (31): activations (Korthikanti 2022, table 2)", "s b h / t", _activations()),
        ("(9)-(12): bubble (p - 1) / (v m), hops (Narayanan 2021, 2.2)", "s", _pipeline()),
        ("(15): FLOPs of GPT-3 175B (Narayanan 2021, (3))", "FLOPs", _flops()),
        ("(17), (18): scaled rates and bandwidths", "s", _scaling()),
        ("(20): TP in pieces", "s", _tp()),
        ("(21): ring attention, hidden below its computation (Liu 2023)", "s", _cp()),
        ("(22), (24): overlapped EP and DP", "s", _ep_and_dp()),
        ("(26): mixed-precision Adam, 28 bytes per parameter (Rajbhandari 2020)", "s", _update()),
        ("(30), (32): recomputed forward passes (Korthikanti 2022, 5)", "s", _recompute()),
        ("(34), (35): a layer copied to the host", "s", _offload()),
        ("(41): MTTR of thousands of devices", "s", _mttr()),
    ):
        yield compare(name, unit, Basis.LITERATURE, numbers, lambda printed: abs(printed) * PRECISION)


def _roofline() -> Numbers:
    """A large matmul takes its FLOPs over the peak, 989 TFLOP/s; the backward pass is two of them."""
    roofline, qkv = theoretical_roofline(catalog.equip_device("h100-80gb-sxm"), "bf16"), _qkv()
    seconds = 2 * TOKENS * HIDDEN * (HIDDEN + 2 * KEY_VALUE) / 8 / 989e12
    yield "QKV forward", seconds, float(roofline.forward_seconds(qkv))
    yield "QKV backward", 2 * seconds, float(roofline.backward_seconds(qkv))


def _qkv() -> Operator:
    """Return the projection of queries, keys and values at (tp, mbs) = (8, 2)."""
    shape = Shape(hidden_size=HIDDEN, sequence_length=8192, activation_bytes=2, causal=False, mbs=2, tp=8)
    operators = layer_operators(catalog.model("mofa-llama3-405b").layers[0], shape)
    return next(operator for operator in operators if operator.name == "qkv")


def _collectives() -> Numbers:
    """On GPU A: 298.8 GB/s in a node; 20.505 GB/s times 0.93 per doubling beyond. Differences drop latencies."""
    cluster, gib = Cluster(device=catalog.equip_device("mofa-a"), num_devices=1024), float(2**30)

    def added(collective: Callable[..., Any], ranks: int) -> float:
        one, two = (collective(cluster, nbytes=nbytes, ranks=ranks, stride=1) for nbytes in (gib, 2 * gib))
        return float(two) - float(one)

    for name, collective, volume in (
        ("all-gather", all_gather, 7 / 8),
        ("reduce-scatter", reduce_scatter, 7 / 8),
        ("all-reduce", all_reduce, 2 * 7 / 8),
        ("all-to-all", all_to_all, 7 / 8),
        ("send", send, 1),
        ("ring pass", ring, 1),
    ):
        yield f"{name} of 8", volume * gib / 2.988e11, added(collective, 8)
    for ranks, doublings in ((16, 4), (32, 5)):
        across = gib * (ranks - 1) / ranks / (2.0505484524e10 * 0.93**doublings)
        yield f"all-gather of {ranks}", across, added(all_gather, ranks)


def _scaling() -> Numbers:
    """Twice the rate halves the time of a matmul, twice the bandwidth that of an all-gather without latencies."""
    device = catalog.equip_device("h100-80gb-sxm")
    measured = replace(device.constants.measured, compute_scaling=2.0, communication_scaling=2.0)
    faster = replace(device, constants=replace(device.constants, measured=measured))
    seconds = 2 * TOKENS * HIDDEN * (HIDDEN + 2 * KEY_VALUE) / 8 / 989e12
    yield "QKV", seconds / 2, float(theoretical_roofline(faster, "bf16").forward_seconds(_qkv()))
    once, twice = (
        float(all_gather(Cluster(device=one, num_devices=8), nbytes=2.0**36, ranks=8, stride=1))
        - float(all_gather(Cluster(device=one, num_devices=8), nbytes=2.0**35, ranks=8, stride=1))
        for one in (device, faster)
    )
    yield "all-gather, share of the time", 0.5, twice / once


def _states() -> Numbers:
    """A billion parameters in the paper's precision, whole and of 16 replicas."""
    precision = catalog.precision("mofa")
    of = {"parameters": 1e9, "group_ranks": 16}
    yield "weights", 2e9, weight_bytes(precision, **of, sharding=Sharding.NONE)
    yield "gradients", 2e9, gradient_bytes(precision, **of, sharding=Sharding.NONE)
    yield "optimizer", 16e9, optimizer_bytes(precision, **of, sharding=Sharding.NONE)
    yield "optimizer, ZeRO-1", 1e9, optimizer_bytes(precision, **of, sharding=Sharding.OPTIMIZER)
    yield "gradients, ZeRO-2", 0.125e9, gradient_bytes(precision, **of, sharding=Sharding.GRADIENTS)
    yield "weights, ZeRO-3", 0.125e9, weight_bytes(precision, **of, sharding=Sharding.WEIGHTS)


def _chunks() -> Numbers:
    """Interleaving keeps 1 + (p - 1) / (p v) as many: 11 of 8 chunks' worth; plain 1F1B keeps p - r."""
    for vpp, rank, alive in ((1, 0, 4), (1, 3, 1), (2, 0, 11), (2, 3, 5)):
        label = f"p 4, v {vpp}, rank {rank}"
        yield label, alive, float(chunks_in_flight(pp=4, vpp=vpp, num_microbatches=8, rank=rank))


def _activations() -> Numbers:
    """34 s b h / t less two masks, of GPT-3; Q, K and V are 6 of them; full recomputation keeps the input, 2."""
    shape = {"tp": 8, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "sequence_parallel": 1}
    device = Cluster(device=catalog.equip_device("mofa-b"), num_devices=64)
    workload = rows.workload(16, sequence_length=2048)
    gpt = layer_footprint(catalog.model("gpt3-175b"), device, workload, **shape)
    unit = 2048 * 12288 / 8
    for name, recompute, factor in (("none", Recompute.NONE, 32), ("full", Recompute.FULL, 2)):
        kept = kept_bytes(gpt.saved_bytes, gpt.module_bytes, gpt.input_bytes, recompute=recompute)
        yield f"recompute {name}", factor, np.asarray(kept)[0] / unit
    dropped = sum_over_modules(gpt.module_bytes, recompute=Recompute.SELECTIVE)
    yield "dropped by selective", 6, float(dropped[0]) / unit


def _pipeline() -> Numbers:
    """Four ranks of 2 s, 8 micro-batches, 2 chunks: 16 s busy, 3 / 16 of it idle; 2 (p v - 1) hops of 10 ms."""
    yield "busy", 16.0, busy_seconds(2.0, num_microbatches=8)
    yield "bubble", 3.0, interleaved_bubble_seconds(2.0, 8.0, vpp=2)
    hops = p2p_exposed_seconds(0.01, 0.0, pp=4, vpp=2, num_microbatches=8)
    yield "hops", 0.14, hops
    whole = plain_seconds(np.array([2.0]), np.array([4.0]), np.array([4]), num_microbatches=8)
    yield "plain 1F1B, 8 + 4 - 1 slots of 6 s", 66.0, float(whole)


def _flops() -> Numbers:
    """72 l h^2 (1 + s / 6h + V / 12lh) per token, without recomputation."""
    layers, hidden, sequence, vocabulary = 96, 12288, 2048, 51200
    flops = 72 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden))
    yield "GPT-3 175B", flops, model_flops_per_token(catalog.model("gpt3-175b"), sequence, "full")


def _tp() -> Numbers:
    """The first of four pieces of 4 s shows; beside pieces of 0.5 s each later one shows half."""
    yield "hidden", 1.0, exposed_tp_seconds(4.0, 40.0, NONE, splits=4)
    yield "half hidden", 2.5, exposed_tp_seconds(4.0, 2.0, NONE, splits=4)


def _cp() -> Numbers:
    """Three sends of 16 s behind pieces of 10 s show 6 s each."""
    yield "three sends", 18.0, exposed_cp_seconds(48.0, 40.0, NONE, cp=4)


def _ep_and_dp() -> Numbers:
    """max(c T, C) - C; of data-parallel pieces the first has nothing beside it."""
    yield "EP, 3 s beside 2 s", 1.0, exposed_overlapped_seconds(3.0, 2.0, NONE)
    yield "DP, hidden", 1.0, exposed_dp_seconds(4.0, 40.0, NONE, num_pieces=4)
    yield "DP, 3 s beside 2 s", 2.0, exposed_dp_seconds(4.0, 2.0, NONE, num_pieces=4)


def _update() -> Numbers:
    """Master weight and both moments read and written, gradient read, weight written: 24 + 2 + 2, at 1.6 TB/s."""
    device = catalog.equip_device("mofa-b-deepseek")
    optimizer = replace(device.behaviour.optimizer, optimizer_bytes_per_parameter=28.0)
    adam = replace(device, behaviour=replace(device.behaviour, optimizer=optimizer))
    yield "1e9 parameters", 1e9 * 28 / 1.6e12, device_update_seconds(adam, local_parameters=1e9)


def _recompute() -> Numbers:
    """Full: a forward pass, a third of the layer. Selective: QKV and attention, N h (4 h + 4 h_kv + 4 s) of it."""
    row = next(rows.table(6).itertuples())
    facts, strategy = rows.llama_facts(64, 16), rows.table6_strategy(row)
    forward = LAYER_SECONDS / 3
    attention = 2 * HIDDEN * (HIDDEN + 2 * KEY_VALUE) + 4 * 8192 * HIDDEN
    whole = attention + 2 * HIDDEN**2 + 6 * HIDDEN * FFN
    # The last forward pass has its communication again: half of the plain one, which slows computation by 2.33 %.
    for name, recompute, seconds in (
        ("full, computation", Recompute.FULL, forward),
        ("selective", Recompute.SELECTIVE, forward * attention / whole),
    ):
        parts = layer_parts(facts, replace(strategy, recompute=recompute, tp_overlap=False).decisions())
        yield name, seconds, float(parts.again[0])
    full = layer_parts(facts, replace(strategy, recompute=Recompute.FULL, tp_overlap=False).decisions())
    yield "full, with TP", forward + 1.0233 * float(full.tp[0]) / 2, float(full.recompute[0])


def _offload() -> Numbers:
    """Table 2 sums to N (6 h + 2 h_kv + 3 g) 2 / t = 1 GiB: 67 ms at 16 GB/s, more than the forward pass."""
    facts = rows.llama_facts(64, 16)
    device = replace(facts.cluster.device, device_to_host_bandwidth=16e9, host_to_device_bandwidth=8e9)
    slow = replace(facts, cluster=replace(facts.cluster, device=device))
    parts = layer_parts(slow, rows.table6_strategy(next(rows.table(6).itertuples())).decisions())
    copied = TOKENS * (6 * HIDDEN + 2 * KEY_VALUE + 3 * FFN) * 2 / 8
    yield "forward pass", copied / 16e9, float(parts.forward[0])
    yield "both passes", copied / 16e9 + copied / 8e9, float(parts.total[0])


def _mttr() -> Numbers:
    """0.3 of 141 s, 0.6 of 262 s, 0.1 of 307 s: 230.2 s, as printed."""
    levels = (("process", 0.3, 141), ("pod", 0.6, 262), ("job", 0.1, 307))
    yield "MTTR", 230.2, mttr_seconds(RecoveryLevel(name=name, probability=p, seconds=s) for name, p, s in levels)
