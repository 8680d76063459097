"""The three phases of a step as the paper has them; the cost model sums them in another way, which this checks."""

from __future__ import annotations

from costmodel.pipelines.schedules import steady_slots
from costmodel.timing.work import Numbers


def warmup_seconds(forward_seconds: Numbers, p2p_seconds: Numbers, *, pp: Numbers, vpp: Numbers) -> Numbers:
    r"""
    Seconds of the warm-up: the first micro-batch runs through all chunks.

    .. math:: T_{warmup} = p v F + (p v - 1) T_{pp}

    References
    ----------
    MoFa, arXiv:2511.09837, equation (9).
    """
    return pp * vpp * forward_seconds + (pp * vpp - 1) * p2p_seconds


def steady_seconds(
    forward_seconds: Numbers,
    backward_seconds: Numbers,
    p2p_seconds: Numbers,
    *,
    pp: Numbers,
    vpp: Numbers,
    num_microbatches: Numbers,
) -> Numbers:
    r"""
    Seconds of the steady phase: one forward and one backward chunk per slot, and what hops leave exposed.

    .. math:: T_{steady} = (m v - p v + p - 1)(F + B + 2 T_{pp})

    References
    ----------
    MoFa, arXiv:2511.09837, equation (10).
    """
    slots = steady_slots(pp=pp, vpp=vpp, num_microbatches=num_microbatches)
    return slots * (forward_seconds + backward_seconds + 2 * p2p_seconds)


def cooldown_seconds(backward_seconds: Numbers, p2p_seconds: Numbers, *, pp: Numbers, vpp: Numbers) -> Numbers:
    r"""
    Seconds of the cool-down: the last micro-batch runs back through all chunks.

    .. math:: T_{cooldown} = p v B + (p v - 1) T_{pp}

    References
    ----------
    MoFa, arXiv:2511.09837, equation (11).
    """
    return pp * vpp * backward_seconds + (pp * vpp - 1) * p2p_seconds
