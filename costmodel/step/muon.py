"""
The update of weight matrices by Muon: Newton-Schulz steps, and the ranks that take them.

Muon's update is the momentum of a matrix with all singular values near 1. Several ranks may hold parts of the matrix:
tensor-parallel ones, and data-parallel ones that shard gradients. :class:`costmodel.facts.framework.Settings` names the
four ways in which they orthogonalize it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.lowering.kernels import LOOPED_LAUNCH
from costmodel.lowering.layer import Matrix, layer_matrices
from costmodel.lowering.shape import layer_shape
from costmodel.memory import (
    FP32_BYTES,
    dealt_share,
    matrix_footprint,
    rank_matrices,
    sharing_groups,
    stack_matrices,
    state_shards,
)
from costmodel.network.collectives import (
    Group,
    collective_seconds,
    dense_data_group,
    expert_data_group,
    sharding_group,
)
from costmodel.pipelines.stages import Stages
from costmodel.record import record
from costmodel.strategy import Sharding
from costmodel.tables import Array, Decisions, Facts, Record, add_layer_axis, lookup
from costmodel.timing.roofline import theoretical_roofline
from costmodel.timing.source import OperatorTimes, operator_times
from costmodel.timing.work import MatmulSize, Numbers, Operator

NARROW_BYTES = 2.0
"""
Bytes of an element in Newton-Schulz steps: BF16 (torch 2.13, ``torch/optim/_muon.py:72``; emerging_optimizers with
``--muon-fp32-matmul-prec medium``, Megatron-LM's default, recalled).
"""

AROUND_BYTES = 40.0
"""
Bytes of memory traffic per element around the steps. The norm reads 4, the scale moves 8, the casts to BF16 and back 6
each, and two factors of the result 8 each (Megatron-LM, ``optimizer/muon.py:84``; emerging_optimizers, recalled).
"""

MORE_UPDATE_BYTES = 8.0
"""
Bytes of memory traffic per parameter that Muon's update has beyond Adam's in one kernel. It reads its result (4),
decays weights in a pass of their own (8) and reads them to narrow them (4). It has no second moment (-8).
"""

KERNELS_AROUND, KERNELS_OF_STEP = 12, 3
"""Kernels of one matrix around the steps, and in each: a product and two that add (``torch.addmm``)."""


GAP_SECONDS = 2e-6
"""Seconds between two kernels that the host launches ahead of the device (DeepSeek-V3's trace on H800)."""


def newton_schulz_flops(short: Numbers, long: Numbers, *, steps: int) -> Numbers:
    r"""
    Number of floating-point operations that orthogonalize a matrix of s times l elements.

    .. math:: F = k (4 s^2 l + 2 s^3)

    Derivation: each of k steps has :math:`A = X X^T`, :math:`B = b A + c A^2` and :math:`X = a X + B X`.

    References
    ----------
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); torch 2.13,
    ``torch/optim/_muon.py:83``.

    >>> newton_schulz_flops(2.0, 3.0, steps=5)
    320.0
    """
    return steps * (4 * short**2 * long + 2 * short**3)


@record(frozen=True, kw_only=True, slots=True)
class MatrixSeconds(Record):
    """
    Seconds in which a rank orthogonalizes one matrix of a layer, and sends it: shape (..., K, M).

    Parameters
    ----------
    computing
        Newton-Schulz steps, with collectives inside and around them.
    sending
        Its way to the rank that orthogonalizes it and back, if only one of the ranks that share it does.
    sharers
        Number of ranks that share the matrix and deal such matrices among themselves; 1 where each takes part in all.
    """

    computing: NDArray[np.float64]
    sending: NDArray[np.float64]
    sharers: NDArray[np.float64]


def matrix_seconds(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    dp: Numbers,
    ep: Numbers,
    etp: Numbers,
    sharding: Numbers,
) -> MatrixSeconds:
    """Seconds of each matrix of each kind of layer."""
    shape = layer_shape(model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=1, sequence_parallel=0)
    device, most = cluster.device, cluster.device.behaviour.optimizer.sharding_ranks
    groups = (
        sharding_group(dense_data_group(tp=tp, cp=cp, dp=dp), sharding_ranks=most),
        sharding_group(expert_data_group(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp), sharding_ranks=most),
    )
    takes_part = np.asarray(sharding) >= int(Sharding.GRADIENTS)
    wide = device.wide_dtype(workload.precision.compute)
    has_own_table = device.constants.times == "measured"  # of the matmuls of layers alone
    times = theoretical_roofline(device, wide) if has_own_table else operator_times(device, wide)
    sharing = [replace(group, ranks=np.where(takes_part, group.ranks, 1)) for group in groups]
    layers = [[(one, sharing[one.expert]) for one in layer_matrices(layer, shape)] for layer in model.kinds]
    axes = np.broadcast(tp, cp, dp, ep, etp, sharding).shape

    def stack(value_of: Callable[[Matrix, Group], Numbers]) -> NDArray[np.float64]:
        return stack_matrices(axes, layers, lambda shared: value_of(*shared))

    mode = device.behaviour.optimizer.muon_tp_mode
    return MatrixSeconds(
        computing=stack(lambda one, data: MODES[mode](cluster, times, one, data)),
        sending=stack(lambda one, data: sending_seconds(cluster, one, data) if mode == "layer_sharded" else 0.0),
        sharers=np.maximum(stack(lambda one, data: one.shards * data.ranks if mode == "layer_sharded" else 1.0), 1.0),
    )


def _tensor_group(one: Matrix) -> Group:
    """Return the tensor-parallel ranks that share a matrix, which are neighbours."""
    return Group(ranks=one.shards, stride=1)


def _momentum_bytes(one: Matrix) -> Numbers:
    """Bytes of a whole matrix's momentum in FP32."""
    return FP32_BYTES * one.rows * one.columns


def _blockwise_seconds(cluster: Cluster, times: OperatorTimes, one: Matrix, data: Group) -> Numbers:
    """Seconds in which each rank takes its block for a whole matrix."""
    rows = one.rows / (one.row_shards * data.ranks)
    columns = one.columns * one.row_shards / one.shards
    return _steps_seconds(cluster.device, times, np.minimum(rows, columns), np.maximum(rows, columns))


def _whole_seconds(cluster: Cluster, times: OperatorTimes, one: Matrix, data: Group) -> Numbers:
    """Seconds in which one rank that has all of a matrix orthogonalizes it."""
    return _steps_seconds(cluster.device, times, np.minimum(one.rows, one.columns), np.maximum(one.rows, one.columns))


def _duplicated_seconds(cluster: Cluster, times: OperatorTimes, one: Matrix, data: Group) -> Numbers:
    """Seconds in which all ranks gather a matrix and do the same work (Megatron-LM, ``newton_schulz_tp``)."""
    nbytes = _momentum_bytes(one)
    gathered = _collective_seconds(cluster, "all_gather", data, nbytes / one.shards)
    gathered = gathered + _collective_seconds(cluster, "all_gather", _tensor_group(one), nbytes)
    short, long = np.minimum(one.rows, one.columns), np.maximum(one.rows, one.columns)
    return _steps_seconds(cluster.device, times, short, long, beside=gathered)


def _distributed_seconds(cluster: Cluster, times: OperatorTimes, one: Matrix, data: Group) -> Numbers:
    """
    Seconds in which ranks multiply their parts and sum the products of the norm and of each step.

    The axis that is split is the long one of the products. Tensor-parallel ranks split what they do, even if it is the
    shorter one of the matrix. Data-parallel ranks, which have rows, exchange parts before and after it if those are the
    shorter one: this is inferred from published steps. With products over all columns no larger model with experts
    takes less than ``duplicated``, which takes 1.8 times as long (Megatron-LM, issue 6676). The smaller one of two
    groups gathers its parts first.

    References
    ----------
    Megatron-LM, main of 2026-08-22, ``optimizer/emerging_optimizers.py:343``; emerging_optimizers 0.3.0,
    ``muon_utils.py:228``, which warns that products over the longer axis waste compute.
    """
    tensor, nbytes = _tensor_group(one), _momentum_bytes(one)
    by_data = np.asarray(data.ranks) >= tensor.ranks
    split, other = (
        Group(ranks=np.where(by_data, a.ranks, b.ranks), stride=np.where(by_data, a.stride, b.stride))
        for a, b in ((data, tensor), (tensor, data))
    )
    least = np.minimum(one.rows, one.columns)
    unsplit = np.where(np.asarray(one.row_shards) > 1, one.columns, one.rows)
    short = np.where(by_data | (np.asarray(split.ranks) == 1), least, unsplit)
    long = one.rows * one.columns / short / split.ranks
    turned = np.where(by_data & (np.asarray(one.rows) < one.columns), nbytes / split.ranks, 0.0)
    steps = cluster.device.behaviour.optimizer.muon_num_ns_steps
    sent = (
        _collective_seconds(cluster, "all_gather", other, nbytes / split.ranks)
        + 2 * _collective_seconds(cluster, "all_to_all", split, turned)
        + _collective_seconds(cluster, "all_reduce", split, FP32_BYTES)
        + steps * _collective_seconds(cluster, "all_reduce", split, NARROW_BYTES * short**2)
    )
    return _steps_seconds(cluster.device, times, short, long, beside=sent)


MODES = {
    "blockwise": _blockwise_seconds,
    "duplicated": _duplicated_seconds,
    "distributed": _distributed_seconds,
    "layer_sharded": _whole_seconds,
}
"""Seconds in which a rank orthogonalizes a matrix that data-parallel ranks share, by the setting ``muon_tp_mode``."""


def sending_seconds(cluster: Cluster, one: Matrix, data: Group) -> Numbers:
    """Seconds of a rank's part of a matrix on the way to the rank that orthogonalizes it, and of the result back."""
    tensor = _tensor_group(one)
    stride = np.where(np.asarray(tensor.ranks) > 1, tensor.stride, data.stride)
    sharers = Group(ranks=tensor.ranks * data.ranks, stride=stride)
    return 2 * _collective_seconds(cluster, "all_to_all", sharers, _momentum_bytes(one) / sharers.ranks)


def _collective_seconds(cluster: Cluster, kind: str, group: Group, nbytes: Numbers) -> Numbers:
    seconds = collective_seconds(cluster, "dp", kind, nbytes=nbytes, ranks=group.ranks, stride=group.stride)
    return np.where(np.asarray(group.ranks) > 1, seconds, 0.0)[()]


def _steps_seconds(
    device: EquippedDevice, times: OperatorTimes, short: Numbers, long: Numbers, *, beside: Numbers = 0.0
) -> Numbers:
    """
    Seconds of all Newton-Schulz steps of a matrix, on the device or in the loop of the host that launches them.

    The host launches ahead of collectives, too: it does not wait for them.

    Parameters
    ----------
    device, times
        The accelerator, and its times of BF16 matmuls.
    short, long
        Side of the square products, and the other side.
    beside
        Seconds of collectives between the steps and around them.
    """
    steps = device.behaviour.optimizer.muon_num_ns_steps
    step = (
        times.forward_seconds(_product(short, short, long, added=0.0))
        + times.forward_seconds(_product(short, short, short, added=short**2))
        + times.forward_seconds(_product(short, long, short, added=short * long))
    )
    kernels = KERNELS_AROUND + steps * KERNELS_OF_STEP
    passes = AROUND_BYTES * short * long / device.achieved_memory_bandwidth
    on_device = steps * step + passes + kernels * GAP_SECONDS + beside
    return np.maximum(on_device, kernels * LOOPED_LAUNCH * device.constants.launch_overhead_seconds)


def _product(m: Numbers, n: Numbers, k: Numbers, *, added: Numbers) -> Operator:
    """Return the product of two matrices, to which a third one of ``added`` elements may be added."""
    return Operator(
        name="newton_schulz",
        kind="matmul",
        size=MatmulSize(m=m, n=n, k=k),
        dtype="bf16",
        flops=2 * m * n * k,
        bytes=NARROW_BYTES * (m * k + k * n + m * n + added),
        written_bytes=NARROW_BYTES * m * n,
        kernels=0,  # their gaps are those of kernels that follow each other, unlike those of layers
        rows=m,
    )


def muon_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> Array:
    r"""
    Seconds of each different rank that Muon's update takes beyond Adam's: shape (..., U).

    .. math:: T = T_{dealt} + \sum_i n_i T_{send,i} / z + 8 P / (z B)

    Derivation: z replicas that share optimizer states, and nothing else, own whole matrices; so do the ranks that share
    matrices if each is sent to one of them (:func:`costmodel.memory.dealt_share`).
    """
    seconds, sizes = lookup(matrix_seconds, facts, decisions), lookup(matrix_footprint, facts, decisions).parameters
    sharding = add_layer_axis(decisions["sharding"])
    computing, sending = seconds.computing[..., None, :, :], seconds.sending[..., None, :, :]
    per_byte = 1 / facts.cluster.device.achieved_memory_bandwidth
    total: Numbers = 0.0
    for counts, group in zip(rank_matrices(facts, decisions, stages), sharing_groups(facts, decisions), strict=True):
        shards = np.asarray(state_shards(group.ranks, sharding=sharding, level=Sharding.OPTIMIZER))[..., None, None]
        owners = np.where(sharding[..., None, None] == int(Sharding.OPTIMIZER), shards, 1.0)
        passed = MORE_UPDATE_BYTES * per_byte * sizes[..., None, :, :] / shards
        others = (counts * (sending / owners + passed)).sum(axis=(-2, -1))
        total = total + others + dealt_share(counts, computing, owners=owners * seconds.sharers[..., None, :, :])
    return np.asarray(total)
