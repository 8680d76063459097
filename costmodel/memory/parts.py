"""
Bytes on one device of a pipeline rank: MoFa (4)-(6), (25), (27), (29), (31), (33).

Every quantity is for one pipeline rank; the planner uses the fullest rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.framework import MemoryModel, OptimizerOffload
from costmodel.facts.workload import Precision
from costmodel.lowering.recompute import sum_over_modules
from costmodel.strategy import Recompute, Sharding
from costmodel.timing.work import Numbers


def weight_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of weights and their 8-bit copies on one device, :math:`D_w P`, sharded from ZeRO-3 on.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (4); Rajbhandari et al., arXiv:1910.02054.
    """
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.WEIGHTS)
    return (precision.weight_bytes + precision.copy_bytes) * parameters / shards


def gradient_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of accumulated gradients on one device, :math:`D_g P`, sharded from ZeRO-2 on.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (4); Rajbhandari et al., arXiv:1910.02054.
    """
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.GRADIENTS)
    return precision.gradient_bytes * parameters / shards


def optimizer_bytes(precision: Precision, *, parameters: Numbers, group_ranks: Numbers, sharding: Numbers) -> Numbers:
    r"""
    Bytes of optimizer states per device, on the device or offloaded, :math:`4 D_o P / d`, sharded from ZeRO-1 on.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (4) and (25).
    """
    shards = state_shards(group_ranks, sharding=sharding, level=Sharding.OPTIMIZER)
    return precision.optimizer_bytes * parameters / shards


def offloaded_state_fraction(offload: OptimizerOffload, precision: Precision) -> float:
    r"""
    Fraction of the bytes of optimizer states that leave the device if they are offloaded.

    Derivation: all states of the offloaded parameters; only their FP32 moments, :math:`8 / D_o`, if the weights that
    the optimizer updates stay. Qwen3-30B on 16 H100 with tp 2, pp 2, ep 4 (1.9e9 parameters' states per device) frees
    15.2 GB so (Megatron-Bridge's documents of 2026-11).

    >>> from costmodel import catalog
    >>> bf16 = catalog.precision("bf16")
    >>> offloaded_state_fraction(OptimizerOffload(offloaded_states=0.5), bf16)
    0.5
    """
    moments = min(MOMENTS_BYTES / precision.optimizer_bytes, 1.0)
    return offload.offloaded_states * (1.0 if offload.offloaded_masters else moments)


MOMENTS_BYTES = 8.0
"""Bytes per parameter of Adam's two moments in host memory, FP32."""


def host_state_bytes_per_byte(offload: OptimizerOffload, precision: Precision) -> float:
    """
    Bytes of host memory per byte of optimizer states, if they are offloaded.

    Derivation: each offloaded parameter has all of its states there, and a copy of the FP32 weight if the weight stays
    on the device. A buffer for its gradient is added (megatron-core 0.16.1, ``hybrid_optimizer.py:108``).
    """
    return offload.offloaded_states * (1 + offload.host_transfer_bytes / precision.optimizer_bytes)


def activation_bytes(
    memory_model: MemoryModel,
    kept_bytes: Numbers,
    input_bytes: Numbers,
    *,
    microbatches_in_flight: Numbers,
    activation_offload: Numbers,
) -> Numbers:
    r"""
    Bytes of activations of a rank's layers that stay in device memory until their backward pass.

    .. math::

        M = n \cdot \begin{cases} A & \text{(5)} \\ A - A_{attn} & \text{selective, (29)} \\
        A_{in} & \text{full, (31)} \end{cases} \qquad M_{offload} = \min(n, 1) \cdot A_{in} \quad (33)

    Parameters
    ----------
    memory_model
        Fraction of the layers that is offloaded, and the tensors that stay.
    kept_bytes, input_bytes
        Bytes of one micro-batch in all layers of the rank: :func:`kept_bytes`, A_in.
    microbatches_in_flight
        Micro-batches alive on the rank, n (chunks in flight / chunks per rank).
    activation_offload
        Decision.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (5), (29), (31) and (33).
    """
    resident = np.minimum(microbatches_in_flight, 1.0) * input_bytes * memory_model.offload_keeps_inputs
    here, there = microbatches_in_flight * kept_bytes, memory_model.offloaded_fraction
    return np.where(np.asarray(activation_offload) > 0, there * resident + (1 - there) * here, here)


def kept_bytes(
    saved_bytes: Numbers, module_bytes: NDArray[np.float64], input_bytes: Numbers, *, recompute: Numbers
) -> Numbers:
    """
    Bytes of one micro-batch's activations that are kept, on the device or the host.

    Parameters
    ----------
    saved_bytes, input_bytes
        All tensors that the backward pass reads, A; the layer's input, A_in.
    module_bytes
        Bytes that recomputation drops, modules on the last axis.
    recompute
        Decision.

    References
    ----------
    MoFa, arXiv:2511.09837, the activations in equations (5), (29) and (31).
    """
    recompute = np.asarray(recompute)
    dropped = sum_over_modules(module_bytes, recompute=recompute)
    return np.where(recompute == int(Recompute.FULL), input_bytes, saved_bytes - dropped)


def working_bytes(
    memory_model: MemoryModel,
    saved_bytes: Numbers,
    module_bytes: NDArray[np.float64],
    *,
    recompute: Numbers,
    activation_offload: Numbers,
) -> Numbers:
    """
    Bytes of the layer at work that are not among the resident activations, per working layer.

    It is a whole layer under full recomputation, otherwise its recomputed modules. With offloading, two layers are in
    transit or at work (MoFa, arXiv:2511.09837, the term A_layer of (31), and the prose of (33)). If some layers stay on
    the device, they are the last ones: when all of them are kept, nothing is in transit any more.

    Parameters
    ----------
    memory_model
        Fraction of the layers that is offloaded.
    saved_bytes, module_bytes
        Bytes of one layer, as in :func:`kept_bytes`.
    recompute, activation_offload
        Decisions.
    """
    recompute = np.asarray(recompute)
    dropped = sum_over_modules(module_bytes, recompute=recompute)
    recomputed = np.where(recompute == int(Recompute.FULL), saved_bytes, dropped)
    in_transit = 2 * np.asarray(saved_bytes) if memory_model.offloaded_fraction == 1 else recomputed
    return np.where(np.asarray(activation_offload) > 0, in_transit, recomputed)


def offloaded_bytes(
    memory_model: MemoryModel, kept_bytes: Numbers, *, microbatches_in_flight: Numbers, activation_offload: Numbers
) -> Numbers:
    """
    Bytes of a rank's activations in host memory.

    References
    ----------
    MoFa, arXiv:2511.09837, the capacity limit of (33)-(35).
    """
    waiting = memory_model.offloaded_fraction * np.asarray(microbatches_in_flight) * kept_bytes
    return np.where(np.asarray(activation_offload) > 0, waiting, 0.0)


def gathered_bytes(precision: Precision, *, largest_layer_parameters: Numbers, sharding: Numbers) -> Numbers:
    """
    Bytes of the whole tensors of the layers at work, if the states are sharded.

    Under ZeRO-3 the weights of the layer at work and of the next one (prefetch) are whole. From ZeRO-2 on so are the
    gradients of the layer at work and of the last one, which is being scattered. All count with the bytes of a gathered
    parameter. PyTorch's own tracker of FSDP2 agrees (``tests/oracle/test_memory_peaks.py``).
    """
    sharding = np.asarray(sharding)
    layer = precision.parameter_gather_bytes * largest_layer_parameters
    weights = np.where(sharding >= int(Sharding.WEIGHTS), 2 * layer, 0.0)
    return weights + np.where(sharding >= int(Sharding.GRADIENTS), 2 * layer, 0.0)


def state_shards(group_ranks: Numbers, *, sharding: Numbers, level: Sharding) -> Numbers:
    """
    Number of shards of a state: the ranks of its data-parallel group from ``level`` of sharding on, otherwise 1.

    References
    ----------
    Rajbhandari et al., arXiv:1910.02054: ZeRO's stages share optimizer states, then gradients, then weights.

    >>> float(state_shards(64, sharding=1, level=Sharding.OPTIMIZER))
    64.0
    """
    shards = np.where(np.asarray(sharding) >= int(level), group_ranks, 1.0)
    return np.asarray(shards, dtype=np.float64)
