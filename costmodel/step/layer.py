"""
One layer with its features: computation, load of links, and exposed communication, as the pipeline sees them.

Decisions may be scalars or arrays that broadcast against each other; kinds of layers are on the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.calibration import Constants
from costmodel.facts.device import EquippedDevice, Slowdowns
from costmodel.lowering.layer import module_indices, recomputes, sum_over_modules
from costmodel.memory import kept_bytes, layer_footprint
from costmodel.pipelines.schedules import passes_alone
from costmodel.pipelines.stages import Stages
from costmodel.record import record, replace
from costmodel.step.compute import (
    OPPOSITE,
    LayerCommunication,
    LayerSeconds,
    exposed_alltoall_seconds,
    layer_seconds,
)
from costmodel.step.overlap import exposed_overlapped_seconds
from costmodel.strategy import MODULES, CudaGraphs, Recompute, TokenDispatcher, asks_host
from costmodel.tables import (
    Array,
    Decisions,
    Facts,
    Record,
    add_layer_axis,
    add_leading_axis,
    lookup,
    memoize_last,
    microbatches,
    present,
)
from costmodel.timing.work import Numbers


@record(frozen=True, kw_only=True, slots=True)
class Window(Record):
    """
    Seconds of a device's work in both passes of a micro-batch, besides data-parallel communication.

    They are for one layer of each kind, shape (..., K), or for all layers of a rank, shape (..., U).

    Parameters
    ----------
    computing, waiting
        Seconds of its computation, and of its waiting for others.
    edges
        Seconds of waiting that occur only in warm-up and cool-down.
    scale_up, adapter
        Seconds in which it uses the scale-up network, and the network adapter with its port, hidden or not.
    """

    computing: Array
    waiting: Array
    edges: Array
    scale_up: Array
    adapter: Array

    def sum_by_rank(self, stages: Stages) -> Window:
        """Sum over the layers of each rank."""
        return Window(**{one.name: stages.sum_over_layers(getattr(self, one.name)) for one in fields(self)})

    def times(self, share: Array) -> Window:
        """Return a share of all seconds."""
        return Window(**{one.name: share * getattr(self, one.name) for one in fields(self)})


def layer_window(facts: Facts, decisions: Decisions, parts: LayerParts) -> Window:
    """
    Return the work of a device in a layer of each kind.

    Derivation: its links carry its communication, overlapped or not, and the part that recomputation repeats. Copies of
    offloaded activations pass the adapter's port (:func:`port_share`).
    """
    seconds, recompute = lookup(layer_seconds, facts, decisions), add_layer_axis(decisions["recompute"])
    scale_up, adapter = (
        link.total
        + repeated_communication_seconds(
            link.pass_seconds("forward"), recompute=recompute, module_forward=seconds.module_forward
        )
        for link in (seconds.scale_up, seconds.adapter)
    )
    down, up = offload_seconds(facts, decisions)
    return Window(
        computing=parts.compute + parts.again,
        waiting=parts.waiting + parts.recompute - parts.again,
        edges=parts.ep_edges + parts.host_edges,
        scale_up=np.asarray(scale_up),
        adapter=np.asarray(adapter + port_share(facts.cluster.device) * (down + up)),
    )


def adapter_seconds(decisions: Decisions, seconds: LayerSeconds) -> tuple[Array, Array]:
    """
    Seconds in which a layer uses the network adapter in its forward and its backward pass: shape (..., K) each.

    Derivation: its own collectives. With overlap, a pass has the all-to-alls of another micro-batch's opposite pass.
    """
    adapter, overlaps = seconds.adapter, add_layer_axis(decisions["ep_overlap"])
    forward = np.where(overlaps, adapter.ep_backward, adapter.ep_forward)
    backward = np.where(overlaps, adapter.ep_forward, adapter.ep_backward)
    return (
        adapter.tp_forward + adapter.cp_forward + forward,
        adapter.tp_backward + adapter.cp_backward + backward,
    )


COMMUNICATION_OF_MODULES = (
    ("core_attention", "cp", 1.0),
    ("experts", "ep", 1.0),
    ("mlp", "tp", 1 / 2),
    ("every_other_matmul", "tp", 1 / 2),
)
"""Modules that communicate, their group, and their share of that group's communication in a layer."""


def repeated_communication_seconds(
    forward: Mapping[str, Array], *, recompute: NDArray[Any], module_forward: Array
) -> Array:
    """
    Seconds of the forward pass's communication that recomputation repeats.

    Derivation: full recomputation repeats all of it, modules the communication inside them. The context-parallel ring
    belongs to the attention core, the all-to-alls to the experts. Attention and feed-forward have equal tensor-parallel
    collectives, so half of them belong to a dense feed-forward. torchtitan keeps the results of reduce-scatters and
    repeats gathers (``apply_ac``, ``_op_sac_save_list``).

    Parameters
    ----------
    forward
        Seconds of each group's communication, shape (..., K).
    recompute
        Decision.
    module_forward
        Seconds of each module, on one more axis; 0 if a kind of layer has none.
    """
    modules: Array | float = 0.0
    chosen = {index for decision in present(recompute) for index in module_indices(decision)}
    for name, group, share in COMMUNICATION_OF_MODULES:
        if MODULES.index(name) not in chosen:
            continue
        again = recomputes(name, recompute=recompute) & (module_forward[..., MODULES.index(name)] > 0)
        modules = modules + np.where(again, share * forward[group], 0.0)
    return np.where(recompute == int(Recompute.FULL), sum(forward.values()), modules)


def port_share(device: EquippedDevice) -> float:
    """
    Share of copies to and from the host that pass the port of the network adapter: 1 or 0.

    A device on PCIe has one port, behind a switch with its adapter (NVIDIA DGX H100 user guide, figure of the system
    topology). Traffic from and to other nodes passes it like copies from and to the host.
    """
    return float(device.host_link == "pcie")


def offload_seconds(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Seconds of copying an average layer's activations to the host in the forward pass, and back in the backward pass.

    Each is alone, shape (..., K), and 0 if none are offloaded. Derivation: the kept bytes of the offloaded layers over
    the bandwidth of either direction, the term A_layer / B of MoFa's equations (34) and (35).
    """
    offloads = add_layer_axis(decisions["activation_offload"])
    if not offloads.any():
        return np.zeros(offloads.shape), np.zeros(offloads.shape)
    device = facts.cluster.device
    down, up = host_copy_seconds(facts, decisions)
    share = offloads * device.behaviour.memory.offloaded_fraction
    return np.asarray(share * down), np.asarray(share * up)


def host_copy_seconds(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Seconds of copying a layer's kept bytes to the host, and back: each alone, shape (..., K).

    Derivation: the kept bytes over the bandwidth of either direction, the term A_layer / B of MoFa's equations (34) and
    (35).
    """
    device, footprint = facts.cluster.device, lookup(layer_footprint, facts, decisions)
    recompute = add_layer_axis(decisions["recompute"])
    kept = kept_bytes(footprint.saved_bytes, footprint.module_bytes, footprint.input_bytes, recompute=recompute)
    return np.asarray(kept / device.device_to_host_bandwidth), np.asarray(kept / device.host_to_device_bandwidth)


@record(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """
    Parts of the time of one layer and micro-batch, forward and backward, per kind of layer: shape (..., K).

    Parameters
    ----------
    compute, recompute
        Seconds of computation, and of recomputation (its communication included).
    again
        Seconds of computation in ``recompute``.
    tp, cp, ep, offload
        Seconds of exposed communication and transfers.
    host
        Seconds of waiting for the host to launch kernels.
    ep_edges, host_edges
        Seconds by which passes that run alone expose more expert-parallel communication (and copies beside it), and
        wait longer for the host, than the mean pass. The host may be less late for them.
    forward
        Seconds of the forward pass in ``total``, in equal shares of the layer with and without ``ep_overlap``.
    weight
        Seconds of the weights' gradients in ``compute``.
    launches_beyond
        Factor by which launches of alternating passes would exceed the longest measured ones; 1 if they do not.
    """

    compute: Array
    recompute: Array
    again: Array
    tp: Array
    cp: Array
    ep: Array
    offload: Array
    host: Array
    ep_edges: Array
    host_edges: Array
    forward: Array
    weight: Array
    launches_beyond: Array

    @property
    def total(self) -> Array:
        """Seconds of one layer: (7) + (8) with their overlaps."""
        return self.compute + self.recompute + self.waiting

    @property
    def waiting(self) -> Array:
        """Seconds of waiting for communication, copies and the host, without repeated communication."""
        return self.tp + self.cp + self.ep + self.offload + self.host


@record(frozen=True, kw_only=True, slots=True)
class Exposed(LayerCommunication):
    """
    Exposed communication of one layer of each kind, shape (..., K).

    Parameters
    ----------
    contention
        Computation lost to tensor-parallel collectives without overlap, as a fraction of their time.
    """

    contention: Array


def layer_parts(facts: Facts, decisions: Decisions) -> LayerParts:
    r"""
    Return the parts of one layer's time, with the decisions' overlaps, recomputation and offloading.

    .. math:: T = \left(1 - \frac{n}{m v}\right) T_{steady} + \frac{n}{m v} T_{alone}

    Derivation: of m v passes of a chunk, n (:func:`costmodel.pipelines.schedules.passes_alone`) have no pass of another
    micro-batch beside them and take as long as without ``ep_overlap``. A layer's mean micro-batch has both.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (7), (8) with (20)-(22), (30), (32), (34), (35).
    """
    if not np.any(decisions["ep_overlap"]):
        return steady_parts(facts, decisions)
    seconds = lookup(layer_seconds, facts, decisions)
    given = (seconds, *(decisions[name] for name in (*DECIDE_PARTS, "vpp", "group")))
    return memoize_last(facts, layer_parts, given, lambda: _mean_parts(facts, decisions))


def _mean_parts(facts: Facts, decisions: Decisions) -> LayerParts:
    steady, apart = steady_parts(facts, decisions), steady_parts(facts, {**decisions, "ep_overlap": False})
    vpp, m = np.asarray(decisions["vpp"]), microbatches(facts, decisions)
    num_alone = passes_alone(vpp=vpp, group=np.asarray(decisions["group"]), num_microbatches=m)
    share = add_layer_axis(num_alone / (m * vpp))
    mean = {
        name: (1 - share) * getattr(steady, name) + share * getattr(apart, name)
        for name in ("ep", "offload", "host", "forward")
    }
    exposed = (apart.ep - mean["ep"]) + (apart.offload - mean["offload"])
    return replace(steady, **mean, ep_edges=exposed, host_edges=apart.host - mean["host"])


def steady_parts(facts: Facts, decisions: Decisions) -> LayerParts:
    """Return the parts of a layer's time in the steady phase of a pipeline."""
    seconds = lookup(layer_seconds, facts, decisions)
    given = (seconds, *(decisions[name] for name in DECIDE_PARTS))
    return memoize_last(facts, steady_parts, given, lambda: _steady_parts(facts, decisions, seconds))


def _steady_parts(facts: Facts, decisions: Decisions, seconds: LayerSeconds) -> LayerParts:
    exposed = exposed_seconds(facts, decisions, seconds)
    again, repeated = _repeated_seconds(facts, seconds, exposed, recompute=add_layer_axis(decisions["recompute"]))
    tp, cp, ep = (_both_passes(exposed, name) for name in ("tp", "cp", "ep"))
    compute = _compute(seconds, exposed)
    down, up = _offload_exposed(facts, decisions, seconds, exposed)
    offload = down + up
    working = seconds.forward + seconds.backward + tp + cp + ep + repeated + offload
    alone = replace(exposed, ep_forward=seconds.ep_forward, ep_backward=seconds.ep_backward)
    alone_down, alone_up = _offload_exposed(facts, decisions, seconds, alone)
    apart = working - ep - offload + _both_passes(alone, "ep") + alone_down + alone_up
    launching, alternating, beyond = _launches(facts, decisions, seconds, apart_seconds=apart)
    host = host_exposed(alternating, device_seconds=working)
    forward = _forward_seconds(seconds, alone, alone_down, host=host_exposed(launching, device_seconds=apart))
    share = forward / np.maximum(apart, launching)
    return LayerParts(
        compute=compute,
        recompute=repeated,
        again=again,
        tp=tp,
        cp=cp,
        ep=ep,
        offload=offload,
        host=host,
        ep_edges=np.zeros_like(ep),
        host_edges=np.zeros_like(host),
        forward=share * (working + host),
        weight=seconds.weight,
        launches_beyond=beyond,
    )


def _forward_seconds(seconds: LayerSeconds, exposed: Exposed, down: Array, *, host: Array) -> Array:
    r"""
    Seconds of the forward pass if no all-to-alls overlap: as much waiting as its own launches are late.

    .. math:: T_F = \max(D_F, \min(H_F, D_F + W)), \qquad T'_F = T_F\, T' / T

    Derivation of T': with ``ep_overlap`` a layer's forward pass of one micro-batch runs together with the backward pass
    of another, a part of either by turns. Only the seconds T' of both are determined, and each pass keeps its share.
    Neither gets longer while the other gets shorter. A pipeline's seconds are sums and maxima of passes, so that it
    takes at most max(T' / T) times as long as without the overlap.

    Parameters
    ----------
    seconds, exposed, down
        Times of a layer whose all-to-alls do not overlap; its copies to the host.
    host
        Seconds W in which both of its passes wait for launches.

    References
    ----------
    megatron-core 0.16, ``TransformerLayerSchedulePlan.run``; ``tests/oracle/two_streams.py`` plays it kernel by kernel.
    """
    device = seconds.forward + exposed.contention * seconds.tp_forward + down
    device = device + exposed.tp_forward + exposed.cp_forward + exposed.ep_forward
    return np.asarray(device + np.clip(seconds.host_forward - device, 0.0, host))


def _repeated_seconds(
    facts: Facts, seconds: LayerSeconds, exposed: Exposed, *, recompute: NDArray[Any]
) -> tuple[Array, Array]:
    """Seconds of computation that the backward pass repeats, and with the communication inside it."""
    modules = sum_over_modules(seconds.module_forward, recompute=recompute)
    inside = {"tp": exposed.tp_forward, "cp": exposed.cp_forward, "ep": seconds.ep_forward}
    inside_modules = repeated_communication_seconds(inside, recompute=recompute, module_forward=seconds.module_forward)
    whole = _whole_again(facts.cluster.device, seconds, exposed)
    return (
        recompute_seconds(seconds.again, modules, recompute=recompute),
        recompute_seconds(whole, np.asarray(modules + inside_modules), recompute=recompute),
    )


def _launches(
    facts: Facts, decisions: Decisions, seconds: LayerSeconds, *, apart_seconds: Array
) -> tuple[Array, Array, Array]:
    """Seconds of the host's launches of both passes, without and with overlaps; ``launches_beyond``: (..., K)."""
    launching = launching_seconds(seconds, recompute=add_layer_axis(decisions["recompute"]))
    alternates, constants = add_layer_axis(decisions["ep_overlap"]), facts.cluster.device.constants
    slowed = constants.overlap_slowdown_launches * launching
    measured = alternating_launch_seconds(launching, apart_seconds=apart_seconds, constants=constants)
    beyond = np.where(alternates & (slowed > measured), slowed / np.maximum(measured, np.finfo(float).tiny), 1.0)
    return launching, np.where(alternates, measured, launching), beyond


def _both_passes(exposed: Exposed, group: str) -> Array:
    return np.asarray(getattr(exposed, f"{group}_forward") + getattr(exposed, f"{group}_backward"))


def _whole_again(device: EquippedDevice, seconds: LayerSeconds, exposed: Exposed) -> Array:
    """Seconds that full recomputation repeats: the forward pass with its exposed communication, or most of it."""
    gathers = 1 - LAST_COLLECTIVE if device.behaviour.kernels.recompute_stops_early else 1
    inside = exposed.contention * seconds.tp_forward + gathers * exposed.tp_forward + exposed.cp_forward
    return np.asarray(seconds.again + inside + seconds.ep_forward)


FORWARD_FRACTION, FORWARD_FRACTION_RECOMPUTED = 1 / 3, 1 / 4
"""
Fraction of a micro-batch's work in its forward pass; the second value is for full recomputation.

A backward pass is twice the multiplications of a forward pass, and full recomputation is one more forward pass. The
passes' own seconds are not used: a change that shortens one pass and lengthens the other, such as an overlap, would
then hide less.
"""


IDEAL: Decisions = {
    "recompute": Recompute.NONE,
    "activation_offload": False,
    "token_dispatcher": TokenDispatcher.ALLTOALL,
    "cuda_graphs": CudaGraphs.FULL_ITERATION,
}
"""
Features for bounds: the fastest ones for the ends of a pipeline, which have no experts.

Layers have their own bound, :func:`costmodel.step.compute.least_layer_seconds`.
"""


def _compute(seconds: LayerSeconds, exposed: Exposed) -> Array:
    """Seconds of computation, with the slowdown by collectives that overlap with it."""
    return seconds.forward + seconds.backward + exposed.contention * (seconds.tp_forward + seconds.tp_backward)


def exposed_seconds(facts: Facts, decisions: Decisions, seconds: LayerSeconds) -> Exposed:
    """
    Return the exposed communication of a layer with the overlaps of some decisions.

    With overlap, each pass hides the all-to-alls of another micro-batch's opposite pass. The exposed rest of the
    backward pass's all-to-alls counts in the forward pass, and the other way round.
    """
    device = facts.cluster.device
    tp_overlap, cp_overlap, ep_overlap = (add_layer_axis(decisions[name]) for name in LAYER_OVERLAPS)
    if facts.workload.lengths is not None and facts.workload.lengths.rank_tokens is not None:
        cp_overlap = np.ones_like(cp_overlap)  # dynamic rings of any ranks, also where cp is 1
    overlapped = seconds.overlapped
    tp_forward = np.where(tp_overlap, overlapped.tp_forward, seconds.tp_forward)
    tp_backward = np.where(tp_overlap, overlapped.tp_backward, seconds.exposed_tp_backward)
    cp_forward = np.where(cp_overlap, overlapped.cp_forward, seconds.cp_forward)
    cp_backward = np.where(cp_overlap, overlapped.cp_backward, seconds.cp_backward)
    alone = {"ep_forward": seconds.ep_forward, "ep_backward": seconds.ep_backward}
    waiting = {"forward": tp_forward + cp_forward, "backward": tp_backward + cp_backward}
    hidden = exposed_alltoall_seconds(alone, overlapped, waiting)
    late = late_fraction(seconds, token_dispatcher=add_layer_axis(decisions["token_dispatcher"]))
    hidden = {own: hidden[own] + late * (alone[f"ep_{opposite}"] - hidden[own]) for own, opposite in OPPOSITE}
    return Exposed(
        tp_forward=tp_forward,
        tp_backward=tp_backward,
        cp_forward=cp_forward,
        cp_backward=cp_backward,
        ep_forward=np.where(ep_overlap, hidden["forward"], seconds.ep_forward),
        ep_backward=np.where(ep_overlap, hidden["backward"], seconds.ep_backward),
        contention=np.where(tp_overlap, 0.0, device.constants.measured.tp_contention),
    )


def late_fraction(seconds: LayerSeconds, *, token_dispatcher: NDArray[Any]) -> Array:
    r"""
    Share of overlapped all-to-alls that is not hidden because the host launches late: (..., K).

    .. math:: \min\left(1, \frac{H_f + H_b}{T_f + T_b}\right)

    Derivation: a host that asks for the numbers of tokens in each pass is never ahead of the device. In the share of
    the time in which it launches one micro-batch's kernels, nothing of the other one's all-to-alls has been launched.

    Parameters
    ----------
    seconds
        Seconds of a layer: launches H and computation T of both passes.
    token_dispatcher
        Decision; of some the host knows the numbers (:func:`costmodel.strategy.asks_host`).

    References
    ----------
    Seven runs on H100 without CUDA graphs: Qwen3-235B-A22B with all-to-all and with DeepEP, DeepSeek-V3 with DeepEP.
    Hosts launch for 0.27 to 0.42 of the computation, and 0.30 to 0.43 of the other all-to-alls is not hidden.
    """
    working = seconds.forward + seconds.backward
    launching = seconds.host_forward + seconds.host_backward
    share = np.divide(launching, working, out=np.zeros(np.broadcast(launching, working).shape), where=working > 0)
    return np.where(asks_host(token_dispatcher=token_dispatcher), np.minimum(share, 1.0), 0.0)


LAST_COLLECTIVE = 1 / 4
"""
Share of the scatter after the feed-forward in a layer's tensor-parallel forward communication with sequence
parallelism.
"""

LAYER_OVERLAPS = ("tp_overlap", "cp_overlap", "ep_overlap")
DECIDE_PARTS = (*LAYER_OVERLAPS, "recompute", "activation_offload")


# --- bounds ------------------------------------------------------------------------------------------------

NOTHING_OPEN: Mapping[str, Sequence[int]] = {}


@record(frozen=True, kw_only=True, slots=True)
class LeastLayer(Record):
    """
    Bounds of one layer of each kind over all of its overlaps, shape (..., K).

    Parameters
    ----------
    seconds
        Least seconds of both passes in the steady phase.
    window
        Most time of the device in both passes, and least use of its links.
    """

    seconds: Array
    window: Window


def least_layer(
    facts: Facts,
    decisions: Decisions,
    *,
    among: Mapping[str, Sequence[int]],
    most_recompute: int | None,
    may_offload: bool,
) -> LeastLayer:
    """Return bounds of a layer over its overlaps and other open decisions, for ``step.least_seconds``."""
    values = tuple((name, tuple(values)) for name, values in among.items())
    return lookup(_least_layer(values, most_recompute, may_offload), facts, decisions)


@lru_cache(maxsize=64)
def _least_layer(
    among: tuple[tuple[str, tuple[int, ...]], ...], most_recompute: int | None, may_offload: bool
) -> Callable[..., LeastLayer]:
    """Return the quantity for a set of open choices, one function each so that it has its own table."""

    def quantity(
        facts: Facts,
        *,
        tp: Numbers,
        cp: Numbers,
        ep: Numbers,
        etp: Numbers,
        mbs: Numbers,
        sequence_parallel: Numbers,
        dp: Numbers,
        recompute: Numbers,
        activation_offload: Numbers,
        token_dispatcher: Numbers,
        cuda_graphs: Numbers,
    ) -> LeastLayer:
        """
        Return the bounds of a layer.

        Derivation: recomputed modules, and copies of activations, lengthen a layer by at most the time of all that may
        be recomputed and copied. Then each kernel is launched while the device waits.
        """
        given = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "mbs": mbs, "sequence_parallel": sequence_parallel, "dp": dp}
        given |= {"recompute": recompute, "activation_offload": activation_offload}
        given |= {"token_dispatcher": token_dispatcher, "cuda_graphs": cuda_graphs}
        every = {**given, **_open_axes(given, dict(among))}
        parts, seconds = steady_parts(facts, every), lookup(layer_seconds, facts, every)
        longest, exposed = parts, exposed_seconds(facts, every, seconds)
        if may_offload:
            down, up = _offload_exposed(facts, {**every, "activation_offload": True}, seconds, exposed)
            longest = replace(parts, offload=down + up)
        if most_recompute is not None:
            again, repeated = _repeated_seconds(facts, seconds, exposed, recompute=add_layer_axis(most_recompute))
            launched = sum_over_modules(seconds.module_host, recompute=most_recompute)
            host = launched * facts.cluster.device.constants.overlap_slowdown_launches
            edges = parts.host  # a device that works longer may wait less for its host
            longest = replace(longest, again=again, recompute=repeated + host, host_edges=edges)
        window = layer_window(facts, every, longest)
        return LeastLayer(
            seconds=_reduce_open(np.minimum, parts.total),
            window=Window(
                computing=_reduce_open(np.maximum, window.computing),
                waiting=_reduce_open(np.maximum, window.waiting),
                edges=_reduce_open(np.maximum, window.edges),
                scale_up=_reduce_open(np.minimum, window.scale_up[None]),  # overlapped or not
                adapter=_reduce_open(np.minimum, window.adapter[None]),
            ),
        )

    return quantity


def _open_axes(decisions: Decisions, among: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """
    Return the open decisions on two new leading axes: overlaps, then the rest, which determines most parts alone.

    Both have all combinations; overlaps only where a layer has such groups.
    """
    degrees = {name: decisions[name.removesuffix("_overlap")] for name in LAYER_OVERLAPS}
    overlaps = {name: (0, 1) if np.any(np.asarray(degree) > 1) else (0,) for name, degree in degrees.items()}
    every = {name: add_leading_axis(values, decisions) for name, values in _combinations(among).items()}
    num_axes = 1 + max(np.ndim(decision) for decision in decisions.values())
    for name in {"token_dispatcher", "cuda_graphs"} - set(among):
        own = np.asarray(decisions[name])
        every[name] = own.reshape((1,) * (num_axes - own.ndim) + own.shape)
    return every | {name: add_leading_axis(values, every) for name, values in _combinations(overlaps).items()}


def _combinations(choices: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return all combinations of values, by name."""
    return dict(zip(choices, zip(*product(*choices.values()), strict=True), strict=True))


def _reduce_open(function: np.ufunc, values: Array) -> Array:
    """Reduce values over the open decisions, to the least or the most."""
    return np.asarray(function.reduce(values, axis=(0, 1)))


def recompute_seconds(forward_seconds: Array, modules_seconds: Array, *, recompute: NDArray[Any]) -> Array:
    r"""
    Seconds that recomputation adds to the backward pass of a layer.

    .. math:: T_{BWD} \mathrel{+}= T_Q + T_K + T_V + T_{attn} \;\text{(selective)}, \qquad T_{FWD} \;\text{(full)}

    Parameters
    ----------
    forward_seconds
        Seconds of the whole forward pass, its exposed communication included.
    modules_seconds
        Seconds of the recomputed modules: for (30) the projections of queries, keys and values and the attention
        core.
    recompute
        Decision.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (30) and (32).
    """
    return np.where(recompute == int(Recompute.FULL), forward_seconds, modules_seconds)


def launching_seconds(seconds: LayerSeconds, *, recompute: NDArray[Any]) -> Array:
    """
    Seconds in which the host launches both passes of a layer, one after the other.

    Full recomputation launches the forward pass again; recomputed modules launch their own kernels.
    """
    modules = sum_over_modules(seconds.module_host, recompute=recompute)
    again = np.where(recompute == int(Recompute.FULL), seconds.host_forward, modules)
    return np.asarray(seconds.host_forward + seconds.host_backward + again)


def alternating_launch_seconds(launching: Array, *, apart_seconds: Array, constants: Constants) -> Array:
    r"""
    Seconds in which the host launches both passes of a layer, alternating with those of another micro-batch.

    .. math:: L_{alt} = \min\left(s L, (1 + b) \max(T_0, L)\right)

    Derivation: each launch takes s times as long. Without the overlap the device takes T_0 and the host L. No measured
    layer exceeds the longer of both by more than a fraction b; beyond that, the factor is an extrapolation.

    Parameters
    ----------
    launching
        Seconds of :func:`launching_seconds`, L.
    apart_seconds
        Seconds of both passes on the device without the overlap, T_0.
    constants
        s and b.
    """
    slowed = constants.overlap_slowdown_launches * launching
    longest = (1 + constants.overlap_launches_most_fraction) * np.maximum(apart_seconds, launching)
    return np.asarray(np.minimum(slowed, longest))


def host_exposed(launching: Array, *, device_seconds: Array) -> Array:
    r"""
    Seconds by which launching a layer's kernels takes longer than running them.

    .. math:: T = \max(0, H_f + H_b - T_f - T_b)

    Derivation: a kernel cannot run before the host has launched it. A host that is ahead after one pass stays ahead in
    the next one, of this micro-batch or another. Its queue has room for 1,024 launches, those of some ten layers, and
    nothing in between waits for the device. So only the sums over both passes count.

    Parameters
    ----------
    launching
        Seconds of the launches of both passes.
    device_seconds
        Seconds of both passes on the device, with recomputation and with all waiting except for the host.
    """
    return np.asarray(np.maximum(launching - device_seconds, 0.0))


def _offload_exposed(
    facts: Facts, decisions: Decisions, seconds: LayerSeconds, exposed: Exposed
) -> tuple[Array, Array]:
    r"""
    Seconds that copies to the host add to an average layer's forward pass, and copies back to its backward pass.

    .. math:: T_{FWD,off} = \max(T_{FWD}, A / B_{D2H} + L), \qquad T_{BWD,off} = \max(T_{BWD}, A / B_{H2D} + L)

    L is the other traffic on the port of the copies.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (34) and (35), there with slow-downs c of the copies and k of the computation.
    Here copy engines take no processors, and share none.
    """
    offloads = add_layer_axis(decisions["activation_offload"])
    if not offloads.any():
        return np.zeros(offloads.shape), np.zeros(offloads.shape)
    device = facts.cluster.device
    engines = Slowdowns(
        slowdown_communication=1.0, slowdown_compute=device.constants.overlap_slowdown_compute, processors_taken=0.0
    )
    added = []
    both = host_copy_seconds(facts, decisions), adapter_seconds(decisions, seconds)
    passes = zip(("forward", "backward"), *both, strict=True)
    for own, copies, load in passes:
        beside = exposed_overlapped_seconds(
            copies,
            getattr(seconds, own),
            engines,
            adapter_seconds=port_share(device) * load,
            waiting_seconds=sum(getattr(exposed, f"{group}_{own}") for group in ("tp", "cp", "ep")),
        )
        added.append(np.where(offloads, device.behaviour.memory.offloaded_fraction * beside, 0.0))
    return added[0], added[1]
