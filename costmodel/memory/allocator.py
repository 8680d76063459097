"""Memory that PyTorch's allocator reserves beyond tensors: where there is room, and to run without retries."""

from __future__ import annotations

from dataclasses import replace

from costmodel.catalog.allocators import Share, Shares, allocator
from costmodel.facts.framework import MemoryModel
from costmodel.strategy import Recompute, Sharding, Strategy


def held_share(memory_model: MemoryModel, strategy: Strategy) -> Share:
    """
    Reserved bytes over those of tensors, minus 1, at their peaks, where the device has room.

    Parameters
    ----------
    memory_model
        Which allocator, and what it needs at least.
    strategy
        Whether weights are gathered and layers recomputed.

    References
    ----------
    The catalog's ``allocators.yaml``: simulations of ``benchmarks.allocator``.
    """
    return _of_strategy(allocator(memory_model.allocator).reserved, memory_model, strategy)


def share_without_retries(memory_model: MemoryModel, strategy: Strategy | None = None) -> Share:
    """
    Reserved bytes over those of tensors, minus 1, that a device needs so that the allocator never retries.

    With less, ``cudaMalloc`` fails in every step: the allocator waits for the device, frees its cached segments and
    asks again. Arguments and references as in :func:`held_share`; without a strategy weights are whole.
    """
    return _of_strategy(allocator(memory_model.allocator).without_retries, memory_model, strategy)


def _of_strategy(shares: Shares, memory_model: MemoryModel, strategy: Strategy | None) -> Share:
    """
    The share of a strategy.

    Tensors of many sizes come and go where sharded weights are gathered, and most of all where layers are recomputed
    between them. Where weights stay whole, it is what the software's own runs measured, within the simulated shares.
    """
    if strategy is not None and strategy.sharding == Sharding.WEIGHTS:
        return shares.gathered_recomputed if strategy.recompute == Recompute.FULL else shares.gathered
    own = memory_model.fragmentation
    return replace(shares.whole, low=min(shares.whole.low, own), middle=own, high=max(shares.whole.high, own))
