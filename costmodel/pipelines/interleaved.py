"""
The interleaved one-forward-one-backward pipeline: MoFa (12), and its extension to unequal ranks.

F and B are the forward and backward seconds of one chunk, p pipeline ranks, v chunks per rank, m micro-batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.tables import Array, sum_last
from costmodel.timing.work import Numbers


def steady_slots(*, pp: Numbers, vpp: Numbers, num_microbatches: Numbers) -> Numbers:
    r"""
    Number of slots of the steady phase, idle ones included.

    .. math:: n = m v - p v + p - 1

    Derivation: a step has m v + p - 1 slots of one forward and one backward chunk (equation (12)), of which warm-up and
    cool-down together take p v.

    >>> steady_slots(pp=4, vpp=2, num_microbatches=8)
    11
    """
    return num_microbatches * vpp - pp * vpp + pp - 1


def busy_seconds(slowest_rank_seconds: Numbers, *, num_microbatches: Numbers) -> Numbers:
    r"""
    Seconds in which the slowest rank computes in one step.

    .. math:: T_{busy} = m \max_i R_i

    Derivation: it computes R seconds for each of m micro-batches. With equal ranks, R = v (F + B), this is the term
    m v (F + B) of MoFa's equation (12).
    """
    return num_microbatches * slowest_rank_seconds


def interleaved_bubble_seconds(slowest_rank_seconds: Numbers, all_ranks_seconds: Numbers, *, vpp: Numbers) -> Numbers:
    r"""
    Seconds in which the slowest rank waits for the others while the pipeline fills and drains.

    .. math:: T_{bubble} = \left(\sum_i R_i - \max_i R_i\right) / v

    With equal ranks R = v (F + B) this is (p - 1)(F + B). Then busy + bubble = (m v + p - 1)(F + B): equation (12)
    without hops. With unequal ranks the slowest sets the pace of every slot, and the sum counts once, to fill and
    drain.

    Parameters
    ----------
    slowest_rank_seconds
        Seconds of one micro-batch, forward and backward, on the slowest rank: max R.
    all_ranks_seconds
        Seconds of one micro-batch summed over all ranks: the whole model once.
    vpp
        Chunks per rank.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (12); Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    return np.maximum(all_ranks_seconds - slowest_rank_seconds, 0.0) / vpp


def chunks_waiting_seconds(
    rank_seconds: Numbers, last_chunk_seconds: Numbers, average_seconds: Numbers, *, vpp: Numbers, group: Numbers
) -> Numbers:
    r"""
    Seconds per micro-batch that an interleaved rank waits for others because its chunks differ.

    .. math:: W = \max\left(0,\; \max((v - 1) t - (R - C), 0) + \max(t - C, 0) - t / g\right), \qquad t = \bar{R} / v

    Neighbouring ranks wait for each other. While a group of g micro-batches passes through a chunk, no rank gets ahead
    by more than a slot, a forward and a backward chunk. The additional time of a long chunk is lost in the short ones,
    except for that slot in each group. The last chunk, with the head, differs most; the others are taken as equal.

    Parameters
    ----------
    rank_seconds, last_chunk_seconds
        Seconds of one micro-batch on the rank, and in its last chunk: R, C.
    average_seconds
        Seconds of one micro-batch on an average rank.
    vpp, group
        Chunks per rank; micro-batches that pass through a chunk before the next one begins.

    References
    ----------
    Derivation: in the order of Megatron-LM's interleaved schedule (:mod:`costmodel.pipelines.orders`), a cycle through
    two neighbours, forward to the next rank and backward from it, is one slot longer than its passes. ``tests``
    simulate such pipelines.

    >>> float(chunks_waiting_seconds(7.8, 2.8, 8.0, vpp=4, group=8))  # chunks of 1, 2, 2 and 2.8
    0.75
    """
    usual = np.asarray(average_seconds) / vpp
    in_front = np.maximum((vpp - 1) * usual - (rank_seconds - last_chunk_seconds), 0.0)
    behind = np.maximum(usual - last_chunk_seconds, 0.0)
    return np.maximum(in_front + behind - usual / group, 0.0)


def unequal_chunks_seconds(
    slowest_rank_seconds: Numbers, steady_state_seconds: Numbers, *, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Seconds that the step takes longer because ranks of unequal chunks wait for each other.

    .. math:: \Delta T = (m - 1/v) (P - \max_i R_i)

    so that with the work and the bubble :math:`T = (m - 1/v) P + \sum_i R_i / v`: P sets the pace instead of max R.

    Derivation: work and bubble are (m - 1/v) max R + sum R / v. A rank that also waits in each micro-batch takes P for
    it, so that P replaces max R in the first term.

    Parameters
    ----------
    slowest_rank_seconds
        Seconds of one micro-batch on the slowest rank: max R.
    steady_state_seconds
        Most seconds of one micro-batch on a rank with its waiting (:func:`chunks_waiting_seconds`): P.
    vpp, num_microbatches
        Chunks per rank, micro-batches.
    """
    return (num_microbatches - 1 / np.asarray(vpp)) * (steady_state_seconds - slowest_rank_seconds)


def p2p_exposed_seconds(
    p2p_seconds: Numbers, steady_p2p_seconds: Numbers, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Seconds of exposed stage-to-stage transfers in the whole step.

    .. math:: T = 2 (p v - 1) T_{pp} + 2 (m v - p v + p - 1) T_{pp}^{steady}

    Parameters
    ----------
    p2p_seconds
        Seconds of one transfer, T_pp: exposed in warm-up and cool-down.
    steady_p2p_seconds
        Seconds of it that are exposed in the steady phase: T_pp without overlap, otherwise by (23).

    References
    ----------
    MoFa, arXiv:2511.09837, equations (9)-(11), the terms in T_pp.
    """
    steady = np.maximum(steady_slots(pp=pp, vpp=vpp, num_microbatches=num_microbatches), 0)
    return 2 * (pp * vpp - 1) * p2p_seconds + 2 * steady * steady_p2p_seconds


def chunks_in_flight(
    *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers, rank: Numbers, group: Numbers | None = None
) -> Numbers:
    r"""
    Number of chunk activations alive at the peak on pipeline rank r.

    .. math:: n(r) = \min(2 (p - r - 1) + (v - 1) g + 1,\; m v) \quad (v > 1), \qquad \min(p - r,\; m) \quad (v = 1)

    for groups of g micro-batches; the default g = p gives :math:`v p + p - 2 r - 1`.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (5); Narayanan et al., arXiv:2104.04473, sections 2.2.1 and 2.2.2; for groups
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py:734 (of megatron-core 0.14.0).

    >>> int(chunks_in_flight(pp=4, vpp=1, num_microbatches=8, rank=0))
    4
    >>> int(chunks_in_flight(pp=4, vpp=2, num_microbatches=8, rank=0))
    11
    """
    interleaved = np.asarray(vpp) > 1
    in_group, later = np.asarray(pp if group is None else group), np.asarray(pp) - rank - 1
    alive = np.where(interleaved, 2 * later + (np.asarray(vpp) - 1) * in_group + 1, later + 1)
    return np.minimum(alive, num_microbatches * np.asarray(vpp))


def plain_seconds(forward: Array, backward: Array, num_ranks: NDArray[np.int64], *, num_microbatches: Numbers) -> Array:
    r"""
    Seconds of plain 1F1B from its first pass to its last one, shape (...).

    .. math::

        T = \max_r \Big[(m - 1 - p + r) R_r - \sum_{i < r} R_i + \max_{q \ge r} X_q + \max_{q \ge r} Y_q\Big]

        X_q = \sum_{i \le q} R_i + (p - 1 - q) \max_{i \le q} F_i, \qquad
        Y_q = \sum_{i \le q} R_i + (p - 1 - q) \max_{i \le q} B_i

    Rank r sets the pace. Until it does, the longest path leads down to a rank q and back. The other forward passes of
    the warm-up are on the slowest rank on that path. The cool-down is its mirror image. If the last rank is the slow
    one, :math:`T = (m - 1) \max R + \sum R`, the law of :mod:`costmodel.pipelines.interleaved`. For a slow rank nearer
    to the front, the others wait less.

    Parameters
    ----------
    forward, backward
        Seconds of both passes of a micro-batch on each stretch of equal ranks in model order, shape (..., U).
    num_ranks
        Number of ranks of each stretch, 0 for padding; shape (..., U).
    num_microbatches
        Decision, shape (...).

    References
    ----------
    Derivation: a pipeline is a max-plus linear system. A path from rank 0 to the first backward pass of any rank q has
    p forward passes, at least one of each rank up to q. A cycle through neighbouring ranks lasts no longer than as many
    micro-batches on the slowest of them. ``tests`` simulate such pipelines: exact from m = p on. With fewer
    micro-batches, one random pipeline in thirty is up to 6 % longer than this, none is shorter.

    >>> float(plain_seconds(np.array([2.0, 1.0]), np.array([4.0, 2.0]), np.array([1, 3]), num_microbatches=8))
    51.0
    """
    pp, m = num_ranks.sum(axis=-1), np.asarray(num_microbatches)
    few, passes = bool(np.any(m <= pp)), (forward, backward)
    first, way_through = np.zeros_like(pp), np.zeros(())
    slowest, in_a_row = [np.zeros(())] * 2, [np.zeros(())] * 2
    ways: list[tuple[Array, ...]] = []
    with np.errstate(invalid="ignore"):  # operators that nobody timed take for ever
        for index in range(num_ranks.shape[-1]):
            number, own = num_ranks[..., index], [one[..., index] for one in passes]
            rank, last = own[0] + own[1], first + number - 1
            begins = np.clip(pp + 1 - m, first, last)
            alone = m - 1 - pp + begins
            pace = np.where((alone >= 0) & (number > 0), (alone - begins + first) * rank - way_through, -np.inf)
            way_through = way_through + number * rank
            slowest = [np.maximum(most, one * (number > 0)) for most, one in zip(slowest, own, strict=True)]
            if few:
                in_warmup = (number > 0) & (first <= pp - m)
                in_a_row = [np.maximum(most, one * in_warmup) for most, one in zip(in_a_row, own, strict=True)]
            of_warmup = np.minimum(pp - 1 - last, m - 1)
            ways.append((pace, *(way_through + of_warmup * most for most in slowest), *in_a_row))
            first = first + number
        seconds, start, end = np.zeros(()), np.zeros(()), np.zeros(())
        for pace, down, up, forward_in_a_row, backward_in_a_row in reversed(ways):
            start, end = np.maximum(start, down), np.maximum(end, up)
            seconds = np.maximum(seconds, start + end + pace)
            if few:
                turning_once = np.maximum(end + (m - 1) * forward_in_a_row, start + (m - 1) * backward_in_a_row)
                seconds = np.maximum(seconds, np.where(m <= pp, turning_once, 0.0))
    return np.asarray(np.where(np.isfinite(way_through), seconds, np.inf))


def least_plain_seconds(ranks: Array, num_ranks: NDArray[np.int64], *, num_microbatches: Numbers) -> Array:
    r"""
    Lower bound in seconds of plain 1F1B with at least the given seconds per rank, shape (...).

    .. math:: T \ge \max_r \Big[(m - 1 - p + r) R_r - \sum_{i < r} R_i + 2 \sum_i R_i\Big], \qquad
        T \ge \max_r \Big[m R_r + \sum_{i < r} R_i\Big]

    the first of which holds if no rank counts less than once.

    Derivation: two of the paths of :func:`plain_seconds`: down to the last rank and back in the warm-up and again in
    the cool-down, or neither. A path is a sum of passes, so that shorter passes make it shorter.

    Parameters
    ----------
    ranks
        Seconds of a micro-batch, forward and backward, on each stretch of equal ranks, shape (..., U).
    num_ranks, num_microbatches
        As in :func:`plain_seconds`.

    >>> float(least_plain_seconds(np.array([6.0, 3.0]), np.array([1, 3]), num_microbatches=8))
    48.0
    """
    pp, m = num_ranks.sum(axis=-1), np.asarray(num_microbatches)
    whole = sum_last(num_ranks * ranks)
    seconds, before, first = np.zeros(()), np.zeros(()), np.zeros_like(pp)
    with np.errstate(invalid="ignore"):
        for index in range(num_ranks.shape[-1]):
            number, rank = num_ranks[..., index], ranks[..., index]
            alone = m - 1 - pp + first
            there_and_back = np.where(alone >= 0, alone * rank - before + 2 * whole, 0.0)
            seconds = np.maximum(seconds, np.where(number > 0, np.maximum(there_and_back, m * rank + before), 0.0))
            before, first = before + number * rank, first + number
    return np.asarray(np.where(np.isfinite(whole), seconds, np.inf))
