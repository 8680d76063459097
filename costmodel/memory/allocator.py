"""Memory that PyTorch's allocator reserves beyond tensors: with spare room, and at least, to run without retries."""

from __future__ import annotations

from dataclasses import replace

from costmodel.catalog.allocators import Share, Shares, allocator
from costmodel.facts.framework import MemoryModel
from costmodel.strategy import Recompute, Sharding, Strategy


def held_share(memory_model: MemoryModel, strategy: Strategy) -> Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1, if the device has spare room.

    Parameters
    ----------
    memory_model
        Setting of the allocator, and its measured fragmentation.
    strategy
        Strategy, whose sharding and recomputation determine the share.

    References
    ----------
    The catalog's ``allocators.yaml``: simulations of ``benchmarks.allocator``.
    """
    return _strategy_share(allocator(memory_model.allocator).reserved, memory_model, strategy)


def share_without_retries(memory_model: MemoryModel, strategy: Strategy | None = None) -> Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1, that a device needs so that the allocator never retries.

    With less, ``cudaMalloc`` fails in every step: the allocator waits for the device, frees its cached segments and
    asks again. Arguments and references as in :func:`held_share`; without a strategy weights are whole.
    """
    return _strategy_share(allocator(memory_model.allocator).without_retries, memory_model, strategy)


def _strategy_share(shares: Shares, memory_model: MemoryModel, strategy: Strategy | None) -> Share:
    """
    Return the share of a strategy.

    With gathered weights, tensors of many sizes are allocated and freed, most of all if layers are recomputed between
    them. With whole weights it is the software's own measured fragmentation, and the simulated shares are widened to
    it.
    """
    if strategy is not None and strategy.sharding == Sharding.WEIGHTS:
        return shares.gathered_recomputed if strategy.recompute == Recompute.FULL else shares.gathered
    own = memory_model.fragmentation
    return replace(shares.whole, low=min(shares.whole.low, own), middle=own, high=max(shares.whole.high, own))
