"""Chance that a strategy is fast, without retries of PyTorch's allocator; and the headroom of a search."""

from __future__ import annotations

import math

from costmodel.catalog.allocators import Share
from costmodel.facts.cluster import Cluster
from costmodel.facts.model import Experts, Model
from costmodel.memory.allocator import share_without_retries
from costmodel.memory.rank import seen_bytes
from costmodel.strategy import Recompute, Sharding, Strategy
from planner.uncertainty.peaks import LEAST_HEADROOM_BYTES, STARTS, Chance, chance_to_fit, law_of

RUNS_FAST = 0.95
"""Least chance to be fast with the default headroom."""

ROUTED = 0.04
r"""
Share of the memory for routed tokens beyond those of an even router; peaks are predicted for an even router.

A rank saves the tokens of e local experts in each of its L layers. With independent loads of deviation s the fullest
rank has :math:`3 s / \sqrt{L e}` more than the mean. Routers with an auxiliary loss load the fullest of 64 experts
0.5 to 0.7 above the mean (MaxVio, Wang et al., arXiv 2408.15664, Table 2). The largest of 64 normal deviates is 2.4
deviations, so s is 0.25. For 8 layers and 4 experts that is 13 % of the experts' saved activations, which take up to a
third of a full device.
"""

TAIL, MIDDLE = 0.3, 0.4
"""
Weights of the low and the high share, and of the middle one: a distribution's mean from its 10th, 50th and 90th
percentiles (Swanson's rule).
"""


def chance_fast(cluster: Cluster, strategy: Strategy, *, device_bytes: float) -> Chance:
    r"""
    Return the chance that PyTorch's allocator never retries on the fullest rank, so that kernels determine a step.

    .. math:: P(e^x \, (M_{tensors} (1 + s) + M_{runtime}) \le M_{device})

    With less memory ``cudaMalloc`` fails in every step: the allocator waits for the device, frees its cached segments
    and asks again. Measured, such steps take 1.5 to 15 times as long (``benchmarks.grid``). x is the error of predicted
    peaks, s the share that is reserved beyond tensors, each a distribution. A strategy that does not fit is not fast.

    Parameters
    ----------
    cluster
        Devices and software.
    strategy
        Strategy, which determines temporary memory during a step.
    device_bytes
        Predicted peak of the fullest rank.
    """
    share = share_without_retries(cluster.device.behaviour.memory, strategy)
    return Chance(share=_share_fast(cluster, share, device_bytes), basis=_reservation_text(cluster, strategy, share))


def usual_headroom_bytes(cluster: Cluster, model: Model | None = None) -> float:
    """
    Return the device memory that a search leaves free by default, in bytes: chances of ``STARTS`` and ``RUNS_FAST``.

    These are the chances to fit, and to be fast with unsharded weights. With FSDP / ZeRO-3 retries begin earlier, and
    each strategy's own chance accounts for it. For an MoE model ``ROUTED`` of the memory is added.
    """
    memory_bytes, share = cluster.device.memory_bytes, share_without_retries(cluster.device.behaviour.memory)

    def is_enough(headroom_bytes: float) -> bool:
        peak = memory_bytes - headroom_bytes
        fits = chance_to_fit(cluster, device_bytes=peak).share >= STARTS
        return fits and _share_fast(cluster, share, peak) >= RUNS_FAST

    low, high = 0.0, memory_bytes
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    has_experts = model is not None and any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    return max(high + ROUTED * memory_bytes * has_experts, LEAST_HEADROOM_BYTES)


def _share_fast(cluster: Cluster, share: Share, device_bytes: float) -> float:
    """Return the chance for a share of reserved memory: the mean of its percentiles' chances."""
    device, law = cluster.device, law_of(cluster)
    tensors = seen_bytes(device, device_bytes, "allocated")

    def chance(reserved: float) -> float:
        needed = max(device_bytes, device.runtime_bytes + (1 + reserved) * tensors)
        return law.share_below(math.log(device.memory_bytes / needed)) if needed > 0 else 1.0

    return TAIL * chance(share.low) + MIDDLE * chance(share.middle) + TAIL * chance(share.high)


def _reservation_text(cluster: Cluster, strategy: Strategy, share: Share) -> str:
    kind = "sharded weights that are gathered" if strategy.sharding == Sharding.WEIGHTS else "whole weights"
    recomputed = ", full recomputation" if strategy.recompute == Recompute.FULL else ""
    segments = "expandable segments" if cluster.device.behaviour.memory.allocator == "expandable" else "segments"
    return f"it reserves {share.low:.1%} to {share.high:.1%} beyond tensors then ({segments}, {kind}{recomputed})"
