"""
Process groups: their number of ranks, and the distance of neighbours in the order of devices.

Ranks are numbered as Megatron-LM does by default: tp fastest, then cp, dp, pp; inside experts etp, ep, expert data
parallel, pp.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.lowering.shape import Shape
from costmodel.network.collectives import communication_seconds, copying_seconds, leaves_scale_up_domain
from costmodel.record import record
from costmodel.strategy import CudaGraphs
from costmodel.timing.roofline import STREAMING_SECONDS
from costmodel.timing.work import Communication, Numbers


@record(frozen=True, kw_only=True, slots=True)
class Group:
    """
    One process group.

    Parameters
    ----------
    ranks
        Devices in the group.
    stride
        Distance between neighbours in the order of devices.
    """

    ranks: Numbers
    stride: Numbers


def layer_group(name: str, *, tp: Numbers, cp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    """Return the group of a layer's collective: ``tp``, ``cp``, ``ep`` or ``etp``."""
    ranks, stride = {"tp": (tp, 1), "cp": (cp, tp), "ep": (ep, etp), "etp": (etp, 1)}[name]
    return Group(ranks=ranks, stride=stride)


def dense_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers) -> Group:
    """Return the ranks that hold equal dense parameters: they reduce gradients and shard states among themselves."""
    return Group(ranks=dp * cp, stride=tp)


def expert_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    r"""
    Return the ranks that hold the same experts.

    .. math:: d_e = t c d / (e \cdot t_e)
    """
    return Group(ranks=tp * cp * dp / (ep * etp), stride=ep * etp)


def sharding_group(group: Group, *, sharding_ranks: int | None) -> Group:
    """Return the ranks of a data-parallel group that share states: all, or the nearest ``sharding_ranks``."""
    if sharding_ranks is None:
        return group
    return Group(ranks=np.minimum(group.ranks, sharding_ranks), stride=group.stride)


def pipeline_group(*, tp: Numbers, cp: Numbers, dp: Numbers, pp: Numbers) -> Group:
    """Return the ranks that hold the stages of one pipeline."""
    return Group(ranks=pp, stride=tp * cp * dp)


TENSOR_PARALLEL = ("tp", "etp")

"""Groups whose ranks split matmuls."""

LAUNCHES_AFTER_COLLECTIVE = 3

"""
Number of launches until an idle device runs a long kernel again: after a collective come a residual's addition, a norm,
a linear.
"""


def copy_seconds(
    communication: Communication, device: EquippedDevice, *, called: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """
    Seconds of the copies of a collective's whole tensor into or out of the order of ranks, in either pass.

    Derivation: the tensor is read and written once at the achieved memory bandwidth, and one kernel's gap passes.
    """
    copies = communication.forward_copies, communication.backward_copies
    if not any(np.any(number) for number in copies):
        return 0.0, 0.0
    once = 2 * communication.nbytes / device.achieved_memory_bandwidth + STREAMING_SECONDS
    forward, backward = (np.asarray(number * once * called) for number in copies)
    return forward, backward


def call_group(name: str, shape: Shape) -> Group:
    """Return the group of ranks in a layer's collective, as in :class:`costmodel.timing.work.Communication`."""
    if name == "cp_dynamic" and shape.dynamic_ranks is not None:
        return Group(ranks=shape.dynamic_ranks.most, stride=shape.tp)
    if name in ("cp_a2a", "cp_p2p"):
        near = shape.a2a_ranks
        return (
            Group(ranks=near, stride=shape.tp)
            if name == "cp_a2a"
            else Group(ranks=shape.cp / near, stride=shape.tp * near)
        )
    return layer_group(name, tp=shape.tp, cp=shape.cp, ep=shape.ep, etp=shape.etp)


def is_called(communication: Communication, shape: Shape) -> NDArray[np.bool_]:
    """Return True where the collective has bytes to send and more than one rank."""
    return (np.asarray(communication.nbytes) > 0) & (np.asarray(call_group(communication.group, shape).ranks) > 1)


def call_seconds(cluster: Cluster, communication: Communication, shape: Shape) -> Numbers:
    """
    Seconds of a collective and its gap; 0 without bytes or other ranks.

    Derivation: the transfer of MoFa's equation (2) by :func:`communication_seconds`, plus :func:`gap_seconds`, in which
    nothing is sent yet.
    """
    called = is_called(communication, shape)
    if not called.ndim and not called:
        return 0.0
    group = call_group(communication.group, shape)
    dispatcher = shape.token_dispatcher
    seconds = communication_seconds(
        cluster, communication, ranks=group.ranks, stride=group.stride, token_dispatcher=dispatcher
    )
    gap = gap_seconds(communication, cluster.device, shape)
    return np.asarray((seconds + gap) * called)


@record(frozen=True, kw_only=True, slots=True)
class TimedCall:
    """
    A collective of a layer with its time.

    Parameters
    ----------
    one
        The collective.
    called
        Result of :func:`is_called`.
    seconds
        Seconds of one call alone: :func:`call_seconds`.
    copying, leaving
        Seconds of it in which processors copy bytes, and in which it uses the network adapter.
    """

    one: Communication
    called: NDArray[np.bool_]
    seconds: Numbers
    copying: Numbers
    leaving: Numbers


def time_call(cluster: Cluster, communication: Communication, shape: Shape) -> TimedCall:
    """Return a collective with its seconds alone and on the links, by :func:`copying_seconds`."""
    seconds, group = call_seconds(cluster, communication, shape), call_group(communication.group, shape)
    leaves = leaves_scale_up_domain(cluster, ranks=group.ranks, stride=group.stride)
    return TimedCall(
        one=communication,
        called=is_called(communication, shape),
        seconds=seconds,
        copying=copying_seconds(
            cluster, seconds, lambda other: call_seconds(other, communication, shape), leaves=leaves
        ),
        leaving=np.where(leaves, seconds, 0.0),
    )


def gap_seconds(communication: Communication, device: EquippedDevice, shape: Shape) -> Numbers:
    """
    Seconds of gaps overlapped with a collective: the gap of its kernel, and launches that the device waits for.

    Derivation: a tensor-parallel collective is a kernel between others and has their gap. A host that waits for the
    collective launches :data:`LAUNCHES_AFTER_COLLECTIVE` kernels after it. With blocking launches, the host also starts
    the collective only then. Only graphs of a whole iteration hold collectives; the host does not launch those.
    """
    host = device.behaviour.host
    launches: Numbers = LAUNCHES_AFTER_COLLECTIVE * host.blocking_collectives
    if host.launch_blocking:
        launches = launches + (np.asarray(shape.cuda_graphs) != int(CudaGraphs.FULL_ITERATION))
    gap = device.constants.kernel_gap_seconds if communication.group in TENSOR_PARALLEL else 0.0
    seconds: Numbers = gap + launches * device.constants.launch_overhead_seconds
    return seconds
