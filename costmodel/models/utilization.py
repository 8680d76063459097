"""How well a step uses the devices: MoFa (15), MFU and HFU."""

from __future__ import annotations

from costmodel.facts.cluster import Cluster
from costmodel.facts.workload import Workload
from costmodel.operators.work import Numbers


def tokens_per_second_per_device(cluster: Cluster, workload: Workload, *, step_seconds: Numbers) -> Numbers:
    """Tokens that one device trains per second."""
    tokens = workload.global_batch_size * workload.sequence_length
    return tokens / step_seconds / cluster.num_devices


def flops_per_second_per_device(
    cluster: Cluster, workload: Workload, *, flops_per_token: Numbers, step_seconds: Numbers
) -> Numbers:
    r"""
    Model FLOP/s of one device.

    .. math:: F_{step} / (T_{step} \cdot n_{gpu})

    Parameters
    ----------
    cluster, workload
        Devices; tokens of a step.
    flops_per_token
        Forward and backward; the attention convention and recomputation are the caller's choice.
    step_seconds
        One step.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (15).
    """
    rate = tokens_per_second_per_device(cluster, workload, step_seconds=step_seconds)
    return rate * flops_per_token


def utilization_fraction(flops_per_second: Numbers, *, peak_flops: float) -> Numbers:
    """Achieved over peak: MFU with the model's FLOPs, HFU with the recomputed ones added."""
    return flops_per_second / peak_flops
