"""
Seconds of one layer and of the pipeline's edges for one micro-batch, each part alone: MoFa (1), (2), (7), (8), (30).

Exposed communication depends on the same decisions as the computation that hides it, so both are computed here. Other
modules (``layer``, ``step``) decide if they overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster, EquippedDevice, Slowdowns
from costmodel.facts.model import Layer, Model
from costmodel.facts.workload import Workload
from costmodel.lowering import (
    layer_communications,
    layer_operators,
)
from costmodel.lowering.layer import FEED_FORWARD_PROJECTIONS, PROJECTIONS, early_stop_saving, sum_repeated
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import (
    LAUNCHES_AFTER_COLLECTIVE,
    TENSOR_PARALLEL,
    TimedCall,
    copy_seconds,
    gap_seconds,
    is_called,
    time_call,
)
from costmodel.record import record
from costmodel.step.overlap import (
    excess_seconds,
    exposed_cp_seconds,
    exposed_overlapped_seconds,
    exposed_tp_seconds,
    taken_seconds,
)
from costmodel.strategy import CudaGraphs, TokenDispatcher
from costmodel.tables import Record
from costmodel.timing.roofline import BACKWARD_KERNELS
from costmodel.timing.source import OperatorTimes, operator_times
from costmodel.timing.work import Communication, Numbers, Operator

CORE_OPERATORS = frozenset({"core_attention", "softmax"})
"""Operators of the attention core: scores, softmax, weighted values."""

COLUMN_PARALLEL = (
    frozenset({*PROJECTIONS, "q_up", "kv_up", "in_projection"}),
    frozenset({*FEED_FORWARD_PROJECTIONS, "shared_up"}),
)
"""Linears whose input gradients tensor-parallel ranks sum, of a layer's first and of its second block."""

ANY_COLUMN = COLUMN_PARALLEL[0] | COLUMN_PARALLEL[1]

ROW_PARALLEL = frozenset({"output_projection", "down", "shared_down"})
"""Linears whose results tensor-parallel ranks sum."""


PASSES = ("forward", "backward")

SUMS = ("all_reduce", "reduce_scatter")
"""
Collectives that sum over tensor-parallel ranks in the backward pass: a block has both and uses one of them.
"""


@record(frozen=True, kw_only=True, slots=True)
class LayerCommunication(Record):
    """
    Seconds of one layer's communication for one micro-batch, per kind of layer on the last axis: shape (..., K).

    Parameters
    ----------
    tp_forward, tp_backward, cp_forward, cp_backward, ep_forward, ep_backward
        Seconds of tensor-, context- and expert-parallel communication in either pass.
    """

    tp_forward: NDArray[np.float64]
    tp_backward: NDArray[np.float64]
    cp_forward: NDArray[np.float64]
    cp_backward: NDArray[np.float64]
    ep_forward: NDArray[np.float64]
    ep_backward: NDArray[np.float64]

    def pass_seconds(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return the seconds of each group's communication in the forward or the backward pass, by the group's name."""
        return {group: getattr(self, f"{group}_{name}") for group in LAYER_GROUPS}

    @property
    def total(self) -> NDArray[np.float64]:
        """Seconds of all communication."""
        return np.asarray(sum(sum(self.pass_seconds(name).values()) for name in PASSES))


@record(frozen=True, kw_only=True, slots=True)
class OverlappedSeconds(Record):
    """
    Exposed seconds of one layer's communication if it overlaps: shape (..., K).

    Parameters
    ----------
    tp_forward, tp_backward, cp_forward, cp_backward
        Exposed seconds of tensor- and context-parallel communication in either pass.
    ep_forward_taken, ep_backward_taken
        Least exposed seconds, in either pass, of the expert-parallel all-to-alls of another micro-batch's opposite pass
        that overlap with it: the computation that they displace.
    ep_forward_excess, ep_backward_excess
        Seconds by which these all-to-alls outlast the computation of the pass; negative if they do not.
    """

    tp_forward: NDArray[np.float64]
    tp_backward: NDArray[np.float64]
    cp_forward: NDArray[np.float64]
    cp_backward: NDArray[np.float64]
    ep_forward_taken: NDArray[np.float64]
    ep_backward_taken: NDArray[np.float64]
    ep_forward_excess: NDArray[np.float64]
    ep_backward_excess: NDArray[np.float64]


LAYER_GROUPS = ("tp", "cp", "ep")
"""Groups whose ranks communicate inside a layer."""


@record(frozen=True, kw_only=True, slots=True)
class LayerSeconds(LayerCommunication):
    """
    Seconds of one layer and micro-batch on one device, with each communication alone: shape (..., K).

    Parameters
    ----------
    forward, backward
        Seconds of computation.
    weight
        Seconds of the weights' gradients in ``backward``, which a zero-bubble schedule separates.
    again
        Seconds of ``forward`` that full recomputation repeats.
    exposed_tp_backward
        ``tp_backward`` minus the part hidden by weights' gradients, plus the exposed part of gathering inputs again.
    module_forward
        Seconds of ``forward`` that recomputation of each module repeats, on one more axis in the order of ``MODULES``.
    overlapped
        Exposed seconds of the communication if it overlaps.
    scale_up, adapter
        Seconds in which all communication uses the scale-up network, and the network adapter.
    least_communication
        Least exposed seconds of all communication, overlapped or not.
    host_forward, host_backward
        Seconds in which the host launches the kernels of either pass.
    module_host
        Seconds in which the host launches the recomputed kernels of each module, on one more axis.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    weight: NDArray[np.float64]
    again: NDArray[np.float64]
    exposed_tp_backward: NDArray[np.float64]
    module_forward: NDArray[np.float64]
    overlapped: OverlappedSeconds
    scale_up: LayerCommunication
    adapter: LayerCommunication
    least_communication: NDArray[np.float64]
    host_forward: NDArray[np.float64]
    host_backward: NDArray[np.float64]
    module_host: NDArray[np.float64]


def layer_seconds(
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
    token_dispatcher: Numbers,
    cuda_graphs: Numbers,
) -> LayerSeconds:
    r"""
    Return every part of a layer's time, each alone.

    .. math:: T_{comp} = \sum_i S_i / P_i, \qquad T_{comm} = \sum_j S_j / B_j

    References
    ----------
    MoFa, arXiv:2511.09837, equations (1), (2), and the terms of (7), (8), (30).
    """
    shape = layer_shape(
        model,
        cluster,
        workload,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        mbs=mbs,
        sequence_parallel=sequence_parallel,
        token_dispatcher=token_dispatcher,
        cuda_graphs=cuda_graphs,
    )
    times = operator_times(
        cluster.device, workload.precision.compute, num_devices=np.asarray(tp) * cp * dp, cuda_graphs=cuda_graphs
    )
    layers = [_one_layer(cluster, layer, shape, times) for layer in model.kinds]
    parts = {name: shape.stack([own[name] for own, _, _ in layers]) for name in layers[0][0]}
    windows = {name: shape.stack([own[name] for _, own, _ in layers]) for name in layers[0][1]}
    modules = {name: np.stack([shape.stack(own[name]) for *_, own in layers], axis=-2) for name in layers[0][2]}
    overlapped = _overlap_seconds(parts, windows, cluster, shape)
    if cluster.device.behaviour.communication.shared_expert_overlap:
        parts |= _overlap_with_shared_experts(parts, windows, cluster, shape)
    return LayerSeconds(
        overlapped=overlapped,
        scale_up=_link_loads(windows, "copying"),
        adapter=_link_loads(windows, "leaving"),
        least_communication=_least_communication(parts, overlapped),
        **parts,
        **modules,
    )


def _link_loads(windows: Mapping[str, NDArray[np.float64]], link: str) -> LayerCommunication:
    names = [(group, name) for group in LAYER_GROUPS for name in PASSES]
    return LayerCommunication(
        **{f"{group}_{name}": np.asarray(windows[f"{group}_{link}_{name}"]) for group, name in names}
    )


def _least_communication(parts: Mapping[str, NDArray[np.float64]], overlapped: OverlappedSeconds) -> Any:
    """
    Least exposed seconds of communication in both passes, shape (..., K).

    Derivation: overlap, or less waiting meanwhile, never lengthens a pass; so all communication overlaps, except for
    the loss in pieces of matmuls.
    """
    tp_backward = np.minimum(overlapped.tp_backward, parts["exposed_tp_backward"])
    waiting = {
        "forward": np.minimum(overlapped.tp_forward, parts["tp_forward"]) + overlapped.cp_forward,
        "backward": tp_backward + overlapped.cp_backward,
    }
    exchanges = exposed_alltoall_seconds(parts, overlapped, waiting)
    return sum(waiting.values()) + sum(exchanges.values())


def exposed_alltoall_seconds(
    parts: Mapping[str, NDArray[np.float64]],
    overlapped: OverlappedSeconds,
    waiting: Mapping[str, NDArray[np.float64]],
) -> dict[str, NDArray[np.float64]]:
    """
    Exposed seconds of overlapped expert-parallel all-to-alls, by the name of the pass: shape (..., K).

    Derivation: :func:`costmodel.step.overlap.exposed_overlapped_seconds` with the opposite pass of another
    micro-batch, which waits for its own tensor- and context-parallel communication.

    Parameters
    ----------
    parts
        ``ep_forward`` and ``ep_backward``, seconds of the all-to-alls alone.
    overlapped
        Least exposed seconds of the all-to-alls, and their excess over the computation.
    waiting
        Exposed seconds of other communication in each pass.
    """
    exposed = {}
    for own, opposite in OPPOSITE:
        taken, beyond = getattr(overlapped, f"ep_{own}_taken"), getattr(overlapped, f"ep_{own}_excess")
        exposed[own] = np.minimum(parts[f"ep_{opposite}"], np.maximum(taken, beyond - waiting[own]))
    return exposed


OPPOSITE = (("forward", "backward"), ("backward", "forward"))
"""Each pass, and the pass of another micro-batch whose all-to-alls overlap with it."""


def least_layer_seconds(
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
) -> NDArray[np.float64]:
    r"""
    Lower bound in seconds of a layer, over dispatchers, CUDA graphs and overlaps: shape (..., K).

    .. math:: T \ge T_{comp} + T_{exp}

    with all computation in one graph, no recomputation and no late host. Derivation: kernels outside of graphs take no
    less time, and collectives outside of them wait for launches. Longer computation and longer communication never make
    a pass shorter (:mod:`costmodel.step.overlap`).
    """
    given = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "mbs": mbs, "sequence_parallel": sequence_parallel, "dp": dp}
    axes = (1,) * max(np.ndim(value) for value in given.values())
    dispatchers = (TokenDispatcher.ALLTOALL, *([TokenDispatcher.HYBRIDEP] if model.has_experts else []))
    seconds = layer_seconds(
        model,
        cluster,
        workload,
        **given,
        token_dispatcher=np.array(dispatchers).reshape(-1, *axes),
        cuda_graphs=CudaGraphs.FULL_ITERATION,
    )
    least = seconds.forward + seconds.backward + seconds.least_communication
    return np.asarray(least.min(axis=0))


def _overlap_seconds(
    parts: Mapping[str, NDArray[np.float64]],
    windows: Mapping[str, NDArray[np.float64]],
    cluster: Cluster,
    shape: Shape,
) -> OverlappedSeconds:
    """Return the exposed seconds of overlapped communication: (20), (21), and (22) with the opposite pass."""
    device, dynamic = cluster.device, shape.dynamic_ranks
    cp = np.asarray(shape.cp / shape.a2a_ranks if dynamic is None else dynamic.most)[..., None]
    slowdowns, of_experts = device.slowdowns, _exchange_slowdowns(cluster, shape)
    splits = device.behaviour.communication.tp_overlap_splits
    exposed: dict[str, Numbers] = {}
    for own, opposite in OPPOSITE:
        core, pipelined = windows[f"core_{own}"], windows[f"pipelined_{own}"]
        of_matmuls, waits = windows[f"pipelined_copying_{own}"], windows[f"cp_shown_{own}"]
        of_ring = windows[f"cp_copying_{own}"] - windows[f"cp_shown_copying_{own}"]
        matmuls, ring = parts[own] - core, parts[f"cp_{own}"] - waits
        tp = exposed_tp_seconds(pipelined, matmuls, slowdowns, splits=splits, copying_seconds=of_matmuls)
        exposed[f"tp_{own}"] = windows[f"shown_{own}"] + tp
        exposed[f"cp_{own}"] = waits + exposed_cp_seconds(ring, core, slowdowns, cp=cp, copying_seconds=of_ring)
        exchange, copying = parts[f"ep_{opposite}"], windows[f"ep_copying_{opposite}"]
        adapter = windows[f"tp_leaving_{own}"] + windows[f"cp_leaving_{own}"]
        exposed[f"ep_{own}_taken"] = taken_seconds(copying, of_experts)
        exposed[f"ep_{own}_excess"] = excess_seconds(
            exchange,
            parts[own],
            of_experts,
            copying_seconds=copying,
            adapter_seconds=np.where(windows[f"ep_leaving_{opposite}"] > 0, adapter, 0.0),
            scale_up_seconds=windows[f"tp_copying_{own}"] + windows[f"cp_copying_{own}"],
        )
    return OverlappedSeconds(**{name: np.asarray(seconds) for name, seconds in exposed.items()})


def _overlap_with_shared_experts(
    parts: Mapping[str, NDArray[np.float64]],
    windows: Mapping[str, NDArray[np.float64]],
    cluster: Cluster,
    shape: Shape,
) -> dict[str, NDArray[np.float64]]:
    """
    Exposed seconds of the all-to-alls overlapped with shared experts; all of them in layers without shared experts.

    References
    ----------
    Megatron-LM, ``megatron/core/transformer/moe/shared_experts.py`` (``moe_shared_expert_overlap``): a separate stream
    from before the dispatch until after the combination; not together with ``ep_overlap``.
    """
    slowdowns = _exchange_slowdowns(cluster, shape)
    exposed: dict[str, NDArray[np.float64]] = {}
    for own in PASSES:
        exchange, shared, copying = parts[f"ep_{own}"], windows[f"shared_{own}"], windows[f"ep_copying_{own}"]
        beside = exposed_overlapped_seconds(exchange, shared, slowdowns, copying_seconds=copying)
        exposed[f"ep_{own}"] = np.where(shared > 0, beside, exchange)
    return exposed


def _exchange_slowdowns(cluster: Cluster, shape: Shape) -> Slowdowns:
    """Slow-downs of all-to-alls to experts: dispatchers may set their number of processors."""
    device = cluster.device
    sms = device.behaviour.communication.communication_sms
    if sms is None or device.num_processors is None:
        return device.slowdowns
    is_own = np.asarray(shape.token_dispatcher)[..., None] != TokenDispatcher.ALLTOALL
    taken = np.where(is_own, min(sms / device.num_processors, 1.0), device.constants.communication_sm_fraction)
    return {**device.slowdowns, "processors_taken": taken}


def _one_layer(
    cluster: Cluster, layer: Layer, shape: Shape, times: OperatorTimes
) -> tuple[dict[str, Numbers], dict[str, Numbers], dict[str, list[Numbers]]]:
    """
    Return the seconds of one kind of layer, by name.

    Returns
    -------
    parts
        Fields of :class:`LayerSeconds`.
    windows
        Seconds of compute time available for overlap, and of the exposed part of each collective, by pass. For
        overlapping tensor-parallel communication: the part that matmuls may hide (``pipelined``), and the part that is
        always exposed (``shown``; of context parallelism ``cp_shown``). For rings: the attention core; for the token
        dispatch: shared experts. For each group's communication: seconds in which processors copy it (``copying``) and
        in which it uses the network adapter (``leaving``).
    modules
        Fields of :class:`LayerSeconds` that hold seconds of each module.
    """
    operators = layer_operators(layer, shape)
    forward = [times.forward_seconds(operator) for operator in operators]
    backward = [times.backward_seconds(operator) for operator in operators]
    core = [operator.name in CORE_OPERATORS for operator in operators]
    parts: dict[str, Numbers] = {
        "forward": sum(forward, start=0.0),
        "backward": sum(backward, start=0.0),
        "weight": weight_gradient_seconds(operators, backward),
    }
    communications = layer_communications(layer, shape)
    device = cluster.device
    calls = [time_call(cluster, one, shape) for one in communications]
    launches = [times.launch_seconds(operator) for operator in operators]
    parts |= _host(launches, calls, shape, device)
    alone, windows = _tensor_parallel(operators, calls, shape, cluster.device)
    parts |= alone
    windows["core_forward"], windows["core_backward"] = (
        sum(compress(seconds, core), start=0.0) for seconds in (forward, backward)
    )
    shared = [operator.name.startswith("shared_") for operator in operators]
    windows["shared_forward"], windows["shared_backward"] = (
        sum(compress(seconds, shared), start=0.0) for seconds in (forward, backward)
    )
    windows |= _link_windows(calls) | _waiting_windows(calls)
    for name in ("cp", "ep"):
        ours = [call for call in calls if call.one.group.partition("_")[0] == name]
        parts[f"{name}_forward"] = sum((call.one.forward * call.seconds for call in ours), start=0.0)
        parts[f"{name}_backward"] = sum((call.one.backward * call.seconds for call in ours), start=0.0)
    if device.behaviour.host.blocking_collectives:
        for name in ("forward", "backward"):
            parts[name] = parts[name] + LAUNCHES_AFTER_COLLECTIVE * device.constants.launch_overhead_seconds
    parts["again"] = parts["forward"] - (
        early_stop_saving(operators, forward) if device.behaviour.kernels.recompute_stops_early else 0.0
    )
    gradients = (
        _overlap_with_gradients(operators, backward, calls, device)
        if device.behaviour.communication.async_tp_allreduce
        else 0.0
    )
    parts["exposed_tp_backward"] = parts["tp_backward"] + gradients
    repeated = {"module_forward": forward, "module_host": launches}
    return parts, windows, {name: sum_repeated(operators, seconds) for name, seconds in repeated.items()}


def _link_windows(calls: Iterable[TimedCall]) -> dict[str, Numbers]:
    """Return ``windows`` of :func:`_one_layer` for the use of links by each group's communication."""
    names = [f"{group}_{link}_{own}" for group in LAYER_GROUPS for link in ("copying", "leaving") for own in PASSES]
    sums: dict[str, Numbers] = dict.fromkeys(names, 0.0)
    for call in calls:
        group = "tp" if call.one.group in TENSOR_PARALLEL else call.one.group.partition("_")[0]
        for own, number in zip(PASSES, (call.one.forward, call.one.backward), strict=True):
            if not number:
                continue
            sums[f"{group}_copying_{own}"] = sums[f"{group}_copying_{own}"] + number * call.copying
            sums[f"{group}_leaving_{own}"] = sums[f"{group}_leaving_{own}"] + number * call.leaving
    return sums


def _waiting_windows(calls: Iterable[TimedCall]) -> dict[str, Numbers]:
    """Return the seconds of context-parallel communication that is always exposed, and of its copying, by pass."""
    waiting = [call for call in calls if call.one.waits]
    sums: dict[str, Numbers] = {}
    for index, own in enumerate(PASSES):
        numbers = [(call, (call.one.forward, call.one.backward)[index]) for call in waiting]
        sums[f"cp_shown_{own}"] = sum((number * call.seconds for call, number in numbers), start=0.0)
        sums[f"cp_shown_copying_{own}"] = sum((number * call.copying for call, number in numbers), start=0.0)
    return sums


def _tensor_parallel(
    operators: Iterable[Operator], calls: Iterable[TimedCall], shape: Shape, device: EquippedDevice
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Return the tensor-parallel communication of both passes alone, and ``windows`` of :func:`_one_layer`."""
    ours = [call for call in calls if call.one.group in TENSOR_PARALLEL]
    names = ("tp", "pipelined", "pipelined_copying")
    sums: dict[str, Numbers] = dict.fromkeys((f"{name}_{own}" for name in names for own in PASSES), 0.0)
    pieces = _piece_seconds(operators, (call.one for call in ours), shape, device)
    sums |= dict(zip(("shown_forward", "shown_backward"), pieces, strict=True))
    for call in ours:
        one = call.one
        counts = (one.forward, one.hides_forward), (one.backward, one.hides_backward)
        copies = copy_seconds(one, device, called=call.called)
        for name, (number, hides), copy in zip(PASSES, counts, copies, strict=True):
            if not number:
                continue
            alone = number * (call.seconds + copy)
            of_pass = {"tp": alone, "pipelined" if hides else "shown": alone}
            if hides:
                of_pass["pipelined_copying"] = number * (call.copying + (0.0 if one.in_pieces else copy))
            if hides and one.in_pieces:
                of_pass["pipelined"] = number * call.seconds
            sums |= {f"{key}_{name}": sums[f"{key}_{name}"] + seconds for key, seconds in of_pass.items()}
    return {name: sums.pop(name) for name in ("tp_forward", "tp_backward")}, sums


def _piece_seconds(
    operators: Iterable[Operator], ours: Iterable[Communication], shape: Shape, device: EquippedDevice
) -> tuple[Numbers, Numbers]:
    """
    Seconds that overlap in pieces of single matmuls adds to either pass.

    Each rank launches each such matmul once per rank, and adds up the pieces that all ranks send to it.

    References
    ----------
    PyTorch, ``torch/distributed/_symmetric_memory/__init__.py`` (``_pipelined_produce_and_all2all``).
    """
    in_pieces = [one for one in ours if one.in_pieces]
    if not in_pieces:
        return 0.0, 0.0
    gathers = [one for one in in_pieces if one.kind == "all_gather"]
    scatters = [one for one in in_pieces if one.kind == "reduce_scatter" and one.forward and one.hides_forward]
    forward = any(one.forward and one.hides_forward for one in gathers)
    backward = any(one.backward and one.hides_backward for one in gathers)
    column, row = (sum(one.kernels for one in operators if one.name in names) for names in (ANY_COLUMN, ROW_PARALLEL))
    piece = (np.asarray(shape.tp) - 1) * device.constants.kernel_gap_seconds
    added = [one.forward * one.nbytes * is_called(one, shape) for one in scatters]
    return (
        piece * (column * forward + row * bool(scatters)) + sum(added, start=0.0) / device.achieved_memory_bandwidth,
        piece * row * backward,
    )


def _overlap_with_gradients(
    operators: Iterable[Operator],
    backward: Iterable[Numbers],
    calls: Iterable[TimedCall],
    device: EquippedDevice,
) -> Numbers:
    """
    Exposed seconds of communication overlapped with column-parallel linears' gradients, minus its seconds alone.

    In each block the weight's gradient hides the sum of the input's gradient. The input's gradient hides the second
    gather of the input, of which each rank kept its share of the sequence.

    References
    ----------
    Korthikanti et al., arXiv:2205.05198, section 4.2.2; Megatron-LM, ``megatron/core/tensor_parallel/layers.py``,
    ``LinearWithGradAccumulationAndAsyncCommunication``.
    """
    timed = list(zip(operators, backward, strict=True))
    blocks = ([seconds for one, seconds in timed if one.name in names] for names in COLUMN_PARALLEL)
    windows = [sum(block, start=0.0) / 2 for block in blocks if block]
    ours = [call for call in calls if call.one.group == "tp"]
    of_kinds = ([call for call in ours if call.one.kind == kind and call.one.backward] for kind in SUMS)
    gathers = [call for call in ours if call.one.kind == "all_gather" and call.one.forward]
    difference: Numbers = 0.0
    for window, summing, gather in zip(windows, zip(*of_kinds, strict=True), gathers, strict=False):
        alone = sum((call.one.backward * call.seconds for call in summing), start=0.0)
        copying = sum((call.one.backward * call.copying for call in summing), start=0.0)
        exposed = partial(exposed_overlapped_seconds, compute_seconds=window, slowdowns=device.slowdowns)
        shown = exposed(alone, copying_seconds=copying) + exposed(
            gather.one.forward * gather.seconds, copying_seconds=gather.one.forward * gather.copying
        )
        difference = difference + shown - alone
    return difference


def _host(
    launches: Iterable[Numbers], calls: Iterable[TimedCall], shape: Shape, device: EquippedDevice
) -> dict[str, Numbers]:
    """
    Seconds of launches in both passes, from those of each operator in the forward pass; a collective is one kernel.

    The host runs ahead of the device until its queue is full, so only the sum over both passes counts. A host that
    waits for collectives launches nothing meanwhile: they add to its time as to the device's.
    """
    forward = np.asarray(sum(launches, start=np.float64(0.0)))
    backward = np.asarray(BACKWARD_KERNELS * forward)
    for call in calls:
        one = call.one
        waited = call.seconds - gap_seconds(one, device, shape) if device.behaviour.host.blocking_collectives else 0.0
        seconds = (device.constants.launch_overhead_seconds * one.launches + waited) * call.called
        forward = np.asarray(forward + one.forward * seconds)
        backward = np.asarray(backward + one.backward * seconds)
    launches_any = np.asarray(shape.cuda_graphs) != int(CudaGraphs.FULL_ITERATION)
    return {"host_forward": forward * launches_any, "host_backward": backward * launches_any}


def weight_gradient_seconds(operators: Iterable[Operator], backward: Iterable[Numbers]) -> Numbers:
    """
    Seconds of the weights' gradients in the backward pass of the given operators.

    Derivation: the backward pass of a matmul is two products of equal FLOPs, the input's and the weight's gradient, so
    half of it counts. Attention cores and element-wise operators have no separate weights' gradients.
    """
    matmuls = (operator.kind in ("matmul", "grouped_matmul") for operator in operators)
    return sum(compress(backward, matmuls), start=0.0) / 2
