"""
The end of a step: data-parallel communication and parameter updates, MoFa (13), (24)-(28).

"Parameters" here are those on one device of a pipeline rank, dense and expert separately, as their groups differ.
"""

from __future__ import annotations

import numpy as np

from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.network.collectives import collective_seconds
from costmodel.network.groups import Group
from costmodel.timing.work import Numbers


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
        Bytes of all parameters together, S; number of collectives for them, M.
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

    A sampled update replaces the formula, times the bytes that the framework moves over those of the sample.

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
    moved = device.behaviour.optimizer.optimizer_bytes_per_parameter
    if device.samples_used is not None:
        from costmodel.timing.sampled_source import ADAM_BYTES, load_update_times

        sampled = load_update_times(device.samples_used, device)
        if sampled is not None:
            return sampled.seconds({"n": np.maximum(local_parameters, 1.0)}) * moved / ADAM_BYTES
    return local_parameters * moved / device.achieved_memory_bandwidth


def host_update_seconds(device: EquippedDevice, *, local_parameters: Numbers) -> Numbers:
    r"""
    Seconds of an update of which the host does a fraction f: gradients down, update, weights up, rest on the device.

    .. math::

        T_{D2H} = f P b / B_{D2H} \qquad T_{cpu} = f P u / B_{host} \qquad T_{H2D} = f P b / B_{H2D}

        T = T_{D2H} + \max(T_{cpu}, T_{upd}((1 - f) P)) + T_{H2D}

    With overlap, host, device and both directions of the port work on different tensors:
    :math:`T = \max(T_{D2H}, T_{cpu}, T_{H2D}, T_{upd})`. The first tensor's copy down and the last one's copy up, of
    hundreds, are left out. Copies take no host memory bandwidth from the update, which reaches 0.7 of the datasheet's.

    Parameters
    ----------
    device
        The accelerator: its port, its share of the host, and its framework's offloading
        (:class:`costmodel.facts.framework.OptimizerOffload`: f, b and u bytes per parameter, overlap).
    local_parameters
        Number of parameters whose states belong to this device, P.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (28), is the sum with f = 1. megatron-core 0.16.1,
    ``megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:150`` (``step``): copies to the host, the device's
    optimizer, the host's, copies back. They share a stream, or with overlap have two and an optimizer per tensor
    (lines 220 and 227). Gradients arrive in the FP32 of the host's weights (line 114); the copies back do not wait
    (line 124), so that the device narrows them.
    """
    offload = device.behaviour.offload
    offloaded = offload.offloaded_states * local_parameters
    down = offloaded * offload.host_transfer_bytes / device.device_to_host_bandwidth
    up = offloaded * offload.host_transfer_bytes / device.host_to_device_bandwidth
    on_host = offloaded * offload.host_update_bytes / device.host_stream_bandwidth
    updates = np.maximum(on_host, device_update_seconds(device, local_parameters=local_parameters - offloaded))
    return np.maximum(updates, np.maximum(down, up)) if offload.offload_overlap else down + updates + up


def accumulation_seconds(
    device: EquippedDevice, *, parameters: Numbers, gradient_bytes: float, num_microbatches: Numbers
) -> Numbers:
    r"""
    Seconds in which PyTorch's autograd adds the gradients of each micro-batch after the first to the earlier ones.

    .. math:: T = (m - 1) \frac{3 P g}{B}

    Derivation: two tensors of P gradients of g bytes are read, one is written; those of the first micro-batch are kept
    as they are (``torch/csrc/autograd/functions/accumulate_grad.h``). Frameworks with kernels other than PyTorch's add
    them in the matmul, or their calibration includes it.

    Parameters
    ----------
    device
        The accelerator with its framework.
    parameters, gradient_bytes
        Parameters whose gradients it holds; bytes of each.
    num_microbatches
        Micro-batches of a step.
    """
    if not device.behaviour.kernels.torch_functions:
        return 0.0 * parameters
    once = 3 * parameters * gradient_bytes / device.achieved_memory_bandwidth
    seconds: Numbers = np.maximum(np.asarray(num_microbatches) - 1, 0) * once
    return seconds


def parameter_pass_seconds(device: EquippedDevice, *, parameters: Numbers) -> Numbers:
    """
    Seconds of passes over all parameters of a rank that sharding does not shorten: zeroing, copies.

    Derivation: T = n b / B for n parameters, b bytes of memory traffic per parameter in these passes and the achieved
    memory bandwidth B. MoFa prints such a floor under the update of equation (26); its Table 6 has 0.02 s for 6.7e9
    parameters.
    """
    return parameters * device.constants.parameter_pass_bytes / device.achieved_memory_bandwidth
