r"""
Plain 1F1B, one chunk per rank, exact for unequal ranks: the longest path through its order.

F and B are the forward and backward seconds of a rank, R their sum, p ranks, m micro-batches. Equal neighbouring ranks
are one entry with a number, so that a pipeline has one entry per stretch of equal ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.axes import Array, sum_last
from costmodel.timing.work import Numbers


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
