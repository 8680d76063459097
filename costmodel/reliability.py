"""
Failures, checkpoints and the time of a whole training: MoFa, equations (36)-(41) and (44).

T_step is ``step_seconds``, K ``interval_steps``, N_step ``num_steps``; q is the job's failures per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from costmodel.facts.device import Cluster
from costmodel.facts.reliability import Checkpoint, RecoveryLevel, Reliability
from costmodel.facts.workload import Workload

DAY = 86_400.0


def num_steps(workload: Workload) -> int:
    r"""
    Number of optimizer steps of the whole training, MoFa equation (37).

    .. math:: N_{step} = \lceil D / (gbs \cdot s) \rceil
    """
    return math.ceil(workload.tokens / (workload.global_batch_size * workload.sequence_length))


def effective_seconds(*, num_steps: int, step_seconds: float) -> float:
    r"""
    Seconds of productive training, MoFa equation (37).

    .. math:: T_{eff} = N_{step} T_{step}
    """
    return num_steps * step_seconds


def failures_per_second(cluster: Cluster, reliability: Reliability) -> float:
    r"""
    Failures of any node of the job per second, the q of MoFa equation (38).

    .. math:: q = N_{node} P_f / 86400
    """
    return cluster.num_nodes * reliability.failures_per_node_day / DAY


def num_failures(cluster: Cluster, reliability: Reliability, *, total_seconds: float) -> float:
    r"""
    Mean number of failures of the whole training, MoFa equation (38); failures also occur during interruptions.

    .. math:: N_{fail} = q (T_{eff} + T_{int})
    """
    return failures_per_second(cluster, reliability) * total_seconds


def failure_seconds(reliability: Reliability, *, interval_steps: float, step_seconds: float) -> float:
    r"""
    Seconds lost to one failure, a part of MoFa equation (39): recovery and half an interval to repeat.

    .. math:: MTTR + K T_{step} / 2
    """
    return reliability.mttr_seconds + interval_steps * step_seconds / 2


FORWARD_FRACTION = 1 / 3
"""
Share of the forward pass in the FLOPs of a step.

Derivation: the backward pass takes two products for each one of the forward pass.
"""


def evaluation_fraction(*, evaluation_steps: float, interval_steps: float) -> float:
    r"""
    Time of an evaluation over that of the steps from one to the next: forward passes alone.

    .. math:: f = N_{eval} / (3 K_{eval})

    >>> evaluation_fraction(evaluation_steps=3, interval_steps=100)
    0.01
    """
    return evaluation_steps * FORWARD_FRACTION / interval_steps


def other_seconds(reliability: Reliability, *, num_steps: int, step_seconds: float) -> float:
    r"""
    Seconds of the start, of evaluations and of waits for data, with which MoFa's T_init is replaced.

    .. math:: T_{init} + N_{step} (f T_{step} + T_{load})
    """
    of_step = reliability.evaluation_fraction * step_seconds + reliability.loading_seconds
    return reliability.init_seconds + num_steps * of_step


def interruption_seconds(
    reliability: Reliability, *, failures: float, interval_steps: float, num_steps: int, step_seconds: float
) -> float:
    r"""
    Seconds without progress, MoFa equation (39): the start, the failures and the checkpoints; and evaluations.

    .. math:: T_{int} = T_{init} + N_{fail} (MTTR + K T_{step} / 2) + (N_{step} / K) T_{ckpt}
    """
    lost = failures * failure_seconds(reliability, interval_steps=interval_steps, step_seconds=step_seconds)
    saved = num_steps / interval_steps * reliability.checkpoint_seconds
    return other_seconds(reliability, num_steps=num_steps, step_seconds=step_seconds) + lost + saved


def progress_fraction(
    cluster: Cluster, reliability: Reliability, *, interval_steps: float, step_seconds: float
) -> float:
    r"""
    Fraction of the time that remains after failures, the numerator of MoFa (40); at most 0 without progress.

    .. math:: 1 - q (MTTR + K T_{step} / 2)
    """
    lost = failure_seconds(reliability, interval_steps=interval_steps, step_seconds=step_seconds)
    return 1 - failures_per_second(cluster, reliability) * lost


def total_seconds(
    cluster: Cluster, reliability: Reliability, *, interval_steps: float, num_steps: int, step_seconds: float
) -> float:
    r"""
    Seconds of the whole training, MoFa equations (38) and (39) solved for it.

    .. math:: T_{total} = \frac{N_{step} T_{step} + (N_{step} / K) T_{ckpt} + T_{init}}{1 - q (MTTR + K T_{step} / 2)}

    Defined only while failures leave progress: :func:`progress_fraction` is positive.
    """
    progress = progress_fraction(cluster, reliability, interval_steps=interval_steps, step_seconds=step_seconds)
    effective = effective_seconds(num_steps=num_steps, step_seconds=step_seconds)
    saved = num_steps / interval_steps * reliability.checkpoint_seconds
    return (effective + saved + other_seconds(reliability, num_steps=num_steps, step_seconds=step_seconds)) / progress


def ettr_fraction(*, effective_seconds: float, interruption_seconds: float) -> float:
    r"""
    Effective training time ratio, a fraction of the total time: MoFa equation (36).

    .. math:: ETTR = T_{eff} / (T_{eff} + T_{int})
    """
    return effective_seconds / (effective_seconds + interruption_seconds)


def mttr_seconds(levels: Iterable[RecoveryLevel]) -> float:
    r"""
    Mean seconds to repair, MoFa equation (41).

    .. math:: MTTR = \sum_i P_i T_i

    >>> process = RecoveryLevel(name="process", probability=0.3, seconds=141)
    >>> pod = RecoveryLevel(name="pod", probability=0.6, seconds=262)
    >>> job = RecoveryLevel(name="job", probability=0.1, seconds=307)
    >>> round(mttr_seconds([process, pod, job]), 1)
    230.2
    """
    return sum(level.probability * level.seconds for level in levels)


def optimal_interval_steps(cluster: Cluster, reliability: Reliability, *, num_steps: int, step_seconds: float) -> float:
    r"""
    Number of steps between checkpoints that minimises the total time, real valued, MoFa equation (44).

    .. math:: K^* = \frac{-T_{ckpt} + \sqrt{T_{ckpt}^2 + 2 T_{ckpt} (1 - q MTTR) e / (q T_{step})}}{e}

    with :math:`e = T_{step} + T_{other} / N_{step}`, the step and its share of :func:`other_seconds`. With T_other = 0
    this is MoFa's form; both are the zero of the derivative of :func:`total_seconds`.

    Returns
    -------
    float
        Infinite without failures. Defined only while failures leave progress: q MTTR < 1.
    """
    failure_rate = failures_per_second(cluster, reliability)
    if failure_rate == 0:
        return math.inf
    saving = reliability.checkpoint_seconds
    step = step_seconds + other_seconds(reliability, num_steps=num_steps, step_seconds=step_seconds) / num_steps
    repaired = 1 - failure_rate * reliability.mttr_seconds
    return (math.sqrt(saving * saving + 2 * saving * repaired * step / (failure_rate * step_seconds)) - saving) / step


def checkpoint_bytes(workload: Workload, *, num_parameters: float, missing_bytes: float = 0.0) -> float:
    """
    Bytes of one checkpoint: the weights and the optimizer states of the whole model, once.

    Derivation: D_w + 4 D_o bytes per parameter, the states of MoFa's equation (4) without gradients, which the next
    step recomputes. ``missing_bytes`` are those of moments that the optimizer does not have (Muon's).
    """
    precision = workload.precision
    return num_parameters * (precision.weight_bytes + precision.optimizer_bytes) - missing_bytes


LLAMA_3_STORAGE_BANDWIDTH = 2e12 / 16_384
"""
Bytes per second and device that a large cluster's storage sustains: 2 TB/s for 16,384 GPUs.

Llama 3, arXiv:2407.21783, section 3.3.1: Tectonic, 240 PB on 7,500 servers, peaks of 7 TB/s.
"""


def storage_bandwidth(cluster: Cluster, checkpoint: Checkpoint) -> float:
    """
    Bytes per second at which all devices together write a checkpoint to storage.

    Derivation: the given bandwidth, of all devices or of each. Otherwise each device has its share of a large cluster's
    storage (:data:`LLAMA_3_STORAGE_BANDWIDTH`), and together they write no slower than one node to its own disks.
    """
    if checkpoint.storage_bandwidth is not None:
        return checkpoint.storage_bandwidth
    num, device = cluster.num_devices, cluster.device
    if checkpoint.disk_write_bandwidth is not None:
        return num * checkpoint.disk_write_bandwidth
    one_node = min(num, device.devices_per_node) * device.disk_write_bandwidth
    return max(num * LLAMA_3_STORAGE_BANDWIDTH, one_node)


def scale_reliability(cluster: Cluster, reliability: Reliability) -> Reliability:
    """
    Return the reliability on a cluster of this size: costs of checkpoints follow from their bytes, if these are known.

    Derivation: every device saves an equal share of the bytes. It copies the share to the host, which then writes it
    with its part of the storage's bandwidth. A synchronous save waits for both, an asynchronous one for the copy.
    """
    saved = reliability.checkpoint
    if saved is None:
        return reliability
    copy_bandwidth = saved.device_to_host_bandwidth or cluster.device.device_to_host_bandwidth
    copying = saved.nbytes / cluster.num_devices / copy_bandwidth
    writing = saved.nbytes / storage_bandwidth(cluster, saved)
    if saved.lost_seconds is not None:
        written = saved.lost_seconds if saved.is_measured else writing
        beside = written if written > saved.lost_seconds else 0.0
        return replace(
            reliability, checkpoint_seconds=saved.lost_seconds, write_seconds=beside, storage_seconds=written
        )
    return replace(
        reliability,
        checkpoint_seconds=copying if saved.is_asynchronous else copying + writing,
        write_seconds=copying + writing if saved.is_asynchronous else 0.0,
        storage_seconds=writing,
    )


def change_checkpoint(reliability: Reliability, *, checkpoint_seconds: float) -> Reliability:
    """
    Return the reliability with another time lost per checkpoint.

    Derivation: where training waits for storage, storage is written in proportion to that time. An asynchronous save
    is written during training, so that only its copy takes another time.
    """
    changed = replace(reliability, checkpoint_seconds=checkpoint_seconds)
    if reliability.write_seconds or not reliability.checkpoint_seconds:
        return changed
    share = reliability.storage_seconds / reliability.checkpoint_seconds
    return replace(changed, storage_seconds=share * checkpoint_seconds)


def shortest_interval_steps(reliability: Reliability, *, step_seconds: float) -> int:
    r"""
    Fewest steps between two checkpoints that storage can hold.

    .. math:: K \, T_{step} \ge \max(T_{write}, T_{storage} / f - T_{ckpt})

    Derivation: a checkpoint is on storage before the next one starts. An interval takes K T_step and the training's own
    waiting; storage is written for at most the fraction f of it.
    """
    written = reliability.storage_seconds / reliability.max_write_fraction - reliability.checkpoint_seconds
    return max(math.ceil(max(reliability.write_seconds, written) / step_seconds - STEP_NOISE), 1)


STEP_NOISE = 1e-9
"""Fraction of a step that counts as rounding."""


def longest_interval_seconds(cluster: Cluster, reliability: Reliability) -> float:
    r"""
    Least interval between two checkpoints, in seconds, at which failures leave no progress; infinite without failures.

    .. math:: K T_{step} = 2 (1 / q - MTTR)

    Derivation: the zero of :func:`progress_fraction`.
    """
    failure_rate = failures_per_second(cluster, reliability)
    return 2 * (1 / failure_rate - reliability.mttr_seconds) if failure_rate else math.inf
