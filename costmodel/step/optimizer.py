"""
The end of a step: data-parallel communication and parameter updates, MoFa (13), (24)-(28).

"Parameters" here are those of one pipeline rank's device, dense and expert apart, since different groups share them.
"""

from __future__ import annotations

import numpy as np

from costmodel.facts.cluster import Cluster
from costmodel.facts.device import EquippedDevice
from costmodel.facts.workload import Workload
from costmodel.network.collectives import collective_seconds
from costmodel.network.groups import Group
from costmodel.operators.work import Numbers


def data_parallel_collective_seconds(
    cluster: Cluster, kind: str, *, nbytes: Numbers, group: Group, pieces: Numbers = 1
) -> Numbers:
    r"""
    Seconds of one collective over all parameters of a rank, one piece after the other.

    .. math:: T = M\, T_{kind}(S / M)

    Parameters
    ----------
    cluster
        Devices and networks.
    kind
        One of :data:`costmodel.network.collectives.COLLECTIVES`: reduce-scatters of gradients, all-gathers of weights.
    nbytes, pieces
        Bytes of all parameters together, S; number of collectives that pass them, M.
    group
        The data-parallel ranks.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (13).
    """
    part = nbytes / pieces
    return pieces * collective_seconds(cluster, "dp", kind, nbytes=part, ranks=group.ranks, stride=group.stride)


def replicas_seconds_measured(
    cluster: Cluster, *, dense_bytes: Numbers, expert_bytes: Numbers, dense: Group, expert: Group
) -> Numbers:
    r"""
    Seconds of one reduce-scatter or all-gather of all parameters by measured bandwidths.

    .. math:: T = \left[Q_{dense} / B_{dense} + Q_{expert} (d - 1) / (d B_{expert})\right] / \gamma^{\log_2(e d / n_0)}

    Parameters
    ----------
    cluster
        Nodes, and the measured ``dp_bandwidths``.
    dense_bytes, expert_bytes
        Bytes of both that a rank holds.
    dense, expert
        Their groups: e d and d replicas.

    References
    ----------
    The data-parallel column of MoFa's Table 8 follows it to 0.02 s.
    """
    device, node = cluster.device, cluster.device.devices_per_node
    replicas = np.asarray(expert.ranks)
    parts = np.asarray(dense.ranks) / replicas
    inside = np.asarray(dense.ranks) <= node
    where = {
        "inside_node": inside,
        "more_replicas": ~inside & (replicas > parts),
        "fewer_replicas": ~inside & (replicas <= parts),
    }
    seconds: Numbers = np.nan
    for law in device.constants.measured.dp_bandwidths:
        scale = law.decay ** np.log2(np.asarray(dense.ranks) / law.reference_ranks)
        time = (dense_bytes / law.dense + expert_bytes * (replicas - 1) / replicas / law.expert) / scale
        seconds = np.where(where[law.placement], time, seconds)
    return np.where(np.asarray(dense.ranks) > 1, seconds, 0.0)


def device_update_seconds(device: EquippedDevice, *, local_parameters: Numbers) -> Numbers:
    r"""
    Seconds of the optimizer's update on the device: bound by its memory, on the rank's shard of the states.

    .. math:: T_{upd,dist} = T_{upd} / d

    Parameters
    ----------
    device
        The accelerator.
    local_parameters
        Number of parameters whose states this device holds.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (26).
    """
    return (
        local_parameters * device.behaviour.optimizer.optimizer_bytes_per_parameter / device.achieved_memory_bandwidth
    )


def host_update_seconds(device: EquippedDevice, workload: Workload, *, local_parameters: Numbers) -> Numbers:
    r"""
    Seconds of the optimizer's update on the host: gradients down, update, weights up.

    .. math:: T_{cpu} = D_g P / B_{D2H} + P / P_{cpu} + D_w P / B_{H2D}

    References
    ----------
    MoFa, arXiv:2511.09837, equation (28). The transfers carry 16-bit gradients and weights.
    """
    per_parameter = (
        min(workload.precision.gradient_bytes, HOST_TRANSFER_BYTES) / device.device_to_host_bandwidth
        + 1 / device.cpu_parameters_per_second
        + min(workload.precision.weight_bytes, HOST_TRANSFER_BYTES) / device.host_to_device_bandwidth
    )
    return local_parameters * per_parameter


HOST_TRANSFER_BYTES = 2.0
"""Gradients and weights cross to the host in 16 bits (MoFa, Table 6: 1.25e-10 s per parameter at 32 GB/s)."""


def parameter_pass_seconds(device: EquippedDevice, *, parameters: Numbers) -> Numbers:
    """
    Seconds of passes over all parameters of a rank that no sharding shortens: zeroing, copies.

    Derivation: T = n b / B for n parameters, b bytes of memory traffic per parameter in these passes and the achieved
    memory bandwidth B. MoFa prints such a floor under the update of equation (26); its Table 6 has 0.02 s for 6.7e9
    parameters.
    """
    return parameters * device.constants.parameter_pass_bytes / device.achieved_memory_bandwidth
