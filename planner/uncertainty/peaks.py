"""Chance that a strategy fits: errors of predicted peaks of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from costmodel import GIB_BYTES
from costmodel.catalog.releases import Share
from costmodel.facts.device import Cluster, EquippedDevice
from costmodel.facts.model import Experts, Model
from costmodel.memory import held_share, seen_bytes, share_without_retries
from costmodel.record import record, strict_record
from costmodel.strategy import Recompute, Sharding, Strategy
from planner.uncertainty.counts import ANY, read_stored, stack_of

TABLE = "peaks.json"

STARTS = 0.95

"""Chance to fit with the default headroom."""

LEAST_HEADROOM_BYTES = 2 * GIB_BYTES

"""Least default headroom: memory of other processes and of the next release does not shrink with the device."""

COVERAGE = 0.8

"""Share of the measured peaks that lie within a peak's interval."""

OWN_ROWS = 20

"""
Weight of all other stacks together, in rows of the stack itself that have a peak or ran out of memory.

Each of the others weighs the same, and none of its rows more than an own one.
"""

ODD_SHARE, ODD_DEVIATION = 0.05, 0.3

"""
Share of runs whose record omits a setting that determines their memory, and the standard deviation of their logarithms.
"""


@strict_record(frozen=True, kw_only=True, slots=True)
class Law:
    """
    Distribution of measured over predicted peaks: a normal law of the ratio's logarithm, mixed with odd runs.

    Parameters
    ----------
    stack
        Software without its release, such as ``megatron-lm``; ``any`` for all software.
    mean, deviation
        Mean and deviation of the logarithm of measured over predicted.
    peaks, fits, failures
        Its own runs: with a measured peak; that ran, with a peak below the device's memory; that ran out of memory.
    """

    stack: str
    mean: float
    deviation: float
    peaks: int
    fits: int
    failures: int

    def share_below(self, log_ratio: float) -> float:
        """
        Return the share of runs whose measured peak is at most ``exp(log_ratio)`` times the predicted one.

        >>> Law(stack="any", mean=0.0, deviation=0.02, peaks=1, fits=0, failures=0).share_below(0.0)
        0.5
        """
        return share_below(log_ratio, self.mean, self.deviation)

    def log_ratio_of(self, share: float) -> float:
        """Return the logarithm of measured over predicted below which a share of the runs lies, by bisection."""
        low, high = -2.0, 2.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if self.share_below(middle) < share else (low, middle)
        return high


@cache
def laws() -> Mapping[str, Law]:
    """Return the laws that give all chances to fit: one for each stack with runs, and one for ``any``."""
    return {law.stack: law for law in read_stored(tuple[Law, ...], TABLE, "planner.uncertainty", "laws")}


def law_of(cluster: Cluster) -> Law:
    """Return the law of the stack that a cluster runs, or that of all stacks where it has no measured run."""
    stack = ANY if cluster.framework is None else stack_of(cluster.framework.name)
    return laws().get(stack, laws()[ANY])


# --- chances of predictions ---------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
class Chance:
    """
    Chance that a strategy fits, or that it is fast.

    Parameters
    ----------
    share
        From 0 to 1.
    basis
        Runs or figures that it comes from.
    """

    share: float
    basis: str


def chance_to_fit(cluster: Cluster, *, device_bytes: float) -> Chance:
    """
    Return the chance that a predicted peak fits in the memory of a device.

    Parameters
    ----------
    cluster
        Devices and software.
    device_bytes
        Predicted peak of the fullest rank.
    """
    law = law_of(cluster)
    return Chance(share=_share_that_fits(law, cluster.device, device_bytes), basis=_basis(law))


def _share_that_fits(law: Law, device: EquippedDevice, device_bytes: float) -> float:
    return law.share_below(math.log(device.memory_bytes / device_bytes)) if device_bytes > 0 else 1.0


def peak_interval(cluster: Cluster, *, device_bytes: float) -> tuple[float, float]:
    """
    Return the bytes between which a measured peak lies with a probability of ``COVERAGE``, by any software's count.

    Parameters
    ----------
    cluster
        Devices and software.
    device_bytes
        Predicted peak.
    """
    low, high = interval_of(law_of(cluster))
    return device_bytes * math.exp(low), device_bytes * math.exp(high)


def interval_of(law: Law) -> tuple[float, float]:
    r"""
    Return logarithms of measured over predicted peaks between which ``COVERAGE`` of them lie.

    If a stack has no measured peak, the ratio scatters from stack to stack as much as within one. Errors add in
    squares: :math:`\sqrt 2` times as far from the mean.
    """
    tail, wider = (1 - COVERAGE) / 2, 1.0 if law.peaks else math.sqrt(2)
    low, high = (law.mean + wider * (law.log_ratio_of(share) - law.mean) for share in (tail, 1 - tail))
    return low, high


def allocator_interval(cluster: Cluster, strategy: Strategy, *, device_bytes: float) -> tuple[float, float]:
    """
    Return the bytes between which a peak of reserved memory lies: the interval of tensors and of memory beyond them.

    Parameters
    ----------
    cluster
        Devices and software.
    strategy
        Strategy, which affects the memory that the allocator holds when it has room.
    device_bytes
        Predicted peak.
    """
    device = cluster.device
    found = held_share(device.behaviour.memory, strategy)
    low, high = peak_interval(cluster, device_bytes=seen_bytes(device, device_bytes, "allocated"))
    return low * (1 + found.low), high * (1 + found.high)


def _basis(law: Law) -> str:
    own = f"{law.peaks:,} measured peaks, {law.fits:,} runs that fitted and {law.failures:,} that did not"
    everything = "of all stacks" if law.stack == ANY else f"of {law.stack}"
    leaning = "" if law.stack == ANY else f"; those of other stacks count as {OWN_ROWS}"
    return f"{own}, {everything}{leaning}"


def share_below(log_ratio: float, mean: float, deviation: float) -> float:
    """Return the share of a law below a logarithm of measured over predicted, including odd runs."""
    usual, odd = normal_share(log_ratio, mean, deviation), normal_share(log_ratio, 0.0, ODD_DEVIATION)
    return (1 - ODD_SHARE) * usual + ODD_SHARE * odd


def normal_share(value: float, mean: float, deviation: float) -> float:
    """Return the share of a normal law below a value."""
    return math.erfc((mean - value) / (deviation * math.sqrt(2))) / 2


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
    device = cluster.device
    share = share_without_retries(device.behaviour.memory, strategy)
    return Chance(
        share=_share_fast(law_of(cluster), device, share, device_bytes),
        basis=_reservation_text(cluster, strategy, share),
    )


def usual_headroom_bytes(cluster: Cluster, model: Model | None = None) -> float:
    """
    Return the device memory that a search leaves free by default, in bytes: chances of ``STARTS`` and ``RUNS_FAST``.

    These are the chances to fit, and to be fast with unsharded weights. With FSDP / ZeRO-3 retries begin earlier, and
    each strategy's own chance accounts for it. For an MoE model ``ROUTED`` of the memory is added.
    """
    law, device = law_of(cluster), cluster.device
    memory_bytes, share = device.memory_bytes, share_without_retries(device.behaviour.memory)

    def is_enough(headroom_bytes: float) -> bool:
        peak = memory_bytes - headroom_bytes
        return _share_that_fits(law, device, peak) >= STARTS and _share_fast(law, device, share, peak) >= RUNS_FAST

    low, high = 0.0, memory_bytes
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    has_experts = model is not None and any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    return max(high + ROUTED * memory_bytes * has_experts, LEAST_HEADROOM_BYTES)


def _share_fast(law: Law, device: EquippedDevice, share: Share, device_bytes: float) -> float:
    """Return the chance for a share of reserved memory: the mean of its percentiles' chances."""
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
