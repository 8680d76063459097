"""What PyTorch's allocator reserves beyond tensors where there is room: more than it needs where there is none."""

from __future__ import annotations

from dataclasses import replace

from costmodel.catalog.allocators import HeldShare, allocator
from costmodel.facts.framework import MemoryModel
from costmodel.strategy import Recompute, Sharding, Strategy


def held_share(memory_model: MemoryModel, strategy: Strategy) -> HeldShare:
    """
    Reserved bytes over those of tensors, minus 1, at their peaks.

    Tensors of many sizes come and go where sharded weights are gathered, and most of all where layers are recomputed
    between them. Where weights stay whole, it is what the software's own runs measured, within the simulated shares.

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
    known, own = allocator(memory_model.allocator), memory_model.fragmentation
    if strategy.sharding == Sharding.WEIGHTS:
        return known.gathered_recomputed if strategy.recompute == Recompute.FULL else known.gathered
    return replace(known.whole, low=min(known.whole.low, own), middle=own, high=max(known.whole.high, own))
