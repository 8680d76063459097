"""
Pipeline schedules: idle time and live activations of a rank in each order of passes; interleaved 1F1B, MoFa (12).

F, B and W are the seconds of a rank's forward pass, input gradients and weights' gradients of one micro-batch, of one
chunk where 1F1B is interleaved. There are p ranks, v chunks of each, and m micro-batches. Idle time is that of one rank
from its first pass to its last one. Ranks of a zero-bubble schedule begin and end one after the other, and so does
their optimizer (Qi et al., arXiv:2401.10241, section 4). Every formula is exact for equal stages
with W at most F and F at most B; that of interleaved 1F1B is for unequal ranks, too. Other unequal stages are simulated
by :mod:`costmodel.pipelines.simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.strategy import BIDIRECTIONAL, Schedule, Vocabulary, is_one_of
from costmodel.tables import Array, present, sum_last
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


def passes_alone(*, vpp: Numbers, group: Numbers, num_microbatches: Numbers) -> Numbers:
    r"""
    Number of forward passes of the last rank that run alone, though a schedule pairs passes of two micro-batches.

    .. math:: n = \min((v - 1) g + 1,\; m v)

    Derivation: those before its first backward pass. As many backward passes follow its last forward pass.

    References
    ----------
    megatron-core 0.16.1, ``get_pp_rank_microbatches``, with one forward pass more for
    ``overlap_moe_expert_parallel_comm``.

    >>> int(passes_alone(vpp=2, group=4, num_microbatches=8))
    5
    """
    return np.minimum((vpp - 1) * group + 1, num_microbatches * vpp)


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
    one, :math:`T = (m - 1) \max R + \sum R`, the law of :mod:`costmodel.pipelines.schedules`. For a slow rank nearer
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


@record(frozen=True, kw_only=True, slots=True)
class Passes:
    """
    Seconds of one micro-batch, on one rank or on several together.

    Parameters
    ----------
    forward
        Forward pass, F.
    backward
        The backward pass without the weights' gradients, B; it includes recomputation and all other non-forward work.
    weight
        Weights' gradients, W.
    """

    forward: Numbers
    backward: Numbers
    weight: Numbers

    @property
    def total(self) -> Numbers:
        """Seconds of all passes, R."""
        return self.forward + self.backward + self.weight

    def __sub__(self, other: Passes) -> Passes:
        """Return the passes of the other ranks."""
        return Passes(
            forward=self.forward - other.forward,
            backward=self.backward - other.backward,
            weight=self.weight - other.weight,
        )


Idle: TypeAlias = Callable[..., Numbers]
"""Idle seconds of one schedule, ``(slowest, others, *, pp, vpp, num_microbatches)``: the slowest rank, the others."""


def one_f_one_b_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of 1F1B, plain or interleaved, and of GPipe.

    .. math:: T = (p - 1)(F + B + W) / v

    References
    ----------
    :func:`costmodel.pipelines.schedules.interleaved_bubble_seconds`; Huang et al., arXiv:1811.06965, for GPipe.
    """
    return interleaved_bubble_seconds(slowest.total, slowest.total + others.total, vpp=vpp)


def zb_h1_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of zero bubble in the memory of 1F1B: rank r delays weights' gradients by r micro-batches.

    .. math:: T = (p - 1)(F + B - W)

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3, ZB-H1. Their automatic ZB-1p has the same idle time (Table 5).
    """
    return np.maximum(others.forward + others.backward - (pp - 1) * slowest.weight, 0.0)


def zb_h2_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of zero bubble in twice the memory of 1F1B.

    .. math:: T = (p - 1) \max(F + B - 2 W, B - F, 0)

    Additional forward passes fill the warm-up; rank r delays 2 r weights' gradients.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3, ZB-H2: the first of the three terms; the second is the rest of the warm-up
    that forward passes do not fill.
    """
    return _filled_bubble_seconds(slowest, others, pp=pp, delayed=2)


def zb_2p_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of zero bubble in twice the memory, scheduled automatically.

    .. math:: T = (p - 1) \max(F + B - 3 W, B - F, 0)

    Activations kept for a weight's gradient take less memory than those kept for the whole backward pass, so that more
    of them fit into the same limit.

    As in ZB-H2, but 3 r weights' gradients of rank r are delayed.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3.1 and Table 5, ZB-2p: idle for 0.3 to 0.7 % of a step.
    """
    return _filled_bubble_seconds(slowest, others, pp=pp, delayed=3)


def _filled_bubble_seconds(slowest: Passes, others: Passes, *, pp: Numbers, delayed: int) -> Numbers:
    drain = others.forward + others.backward - delayed * (pp - 1) * slowest.weight
    warmup = others.backward - (pp - 1) * slowest.forward
    return np.maximum(np.maximum(drain, warmup), 0.0)


def zb_v_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of zero bubble in the memory of 1F1B, two chunks in a V.

    .. math:: T = (p - 1)(\max(F, B) - W)

    Exact if F is at most B.

    References
    ----------
    Qi et al., arXiv:2405.15362, V-ZB: none if F = B = W; the order is that of PyTorch 2.13,
    ``torch.distributed.pipelining.schedules.ScheduleZBVZeroBubble``.
    """
    return np.maximum(np.maximum(others.forward, others.backward) - (pp - 1) * slowest.weight, 0.0)


def v_half_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of half the memory of 1F1B, two chunks in a V.

    .. math:: T = \max\left[T_{equal} - m (R_s - \bar R),\; \frac{p - 2}{2} \bar F\right]

    with the mean of the other ranks :math:`\bar R, \bar F` and :func:`v_half_equal_bubble_seconds`. Equal ranks idle
    somewhat more than half as long as in 1F1B. A first rank that is slower than the others, as it holds both ends of
    the model, waits only until its first micro-batch returns. The passes of p further micro-batches shorten the path of
    2 (p - 1) chunks.

    References
    ----------
    Qi et al., arXiv:2405.15362, V-Half: the building block whose passes are 2, 1, 2 and 1 slots after those of the
    rank before, simulated.
    """
    num_others = np.maximum(np.asarray(pp) - 1, 1)
    mean = Passes(
        forward=others.forward / num_others, backward=others.backward / num_others, weight=others.weight / num_others
    )
    equal = v_half_equal_bubble_seconds(mean, pp=pp)
    slower = equal - num_microbatches * (slowest.total - mean.total)
    return np.maximum(slower, (pp - 2) / 2 * mean.forward) * (np.asarray(pp) > 1)


def v_half_equal_bubble_seconds(rank: Passes, *, pp: Numbers) -> Numbers:
    r"""
    Idle seconds of V-Half on equal ranks: the longer of two paths through the order.

    .. math::

        T = \frac{1}{2} \max \begin{cases}
        (p + 2) F + (3 p - 6) B - (p - 3) W \\
        (7 p / 4 - 1) F + (2 p - 2) B - (p / 2 - 1) W & \text{4 divides p} \\
        (7 p / 4 - 5 / 2) F + 2 p B - p W / 2 & \text{else}
        \end{cases}

    and (3 F + 2 B - W) / 2 for p = 2. F = B = W and 4 divides p: (13 p - 8) / 8 F.

    Equal lags of 2, 1, 2 and 1 slots have a third path, F + 4 B of a chunk per micro-batch. It is longer than a rank's
    passes if 2 B > F + 2 W. It is not counted: authors who order passes by their times can choose other lags. With
    3, 1, 3 and 1 on 8 ranks no micro-batch waits, for 2 chunks more in flight. The best building blocks found take, for
    passes of 1, 1.4 and 0.7, 6 % less (p = 8) to 2 % more (16) than this. For p = 24 none was found below 12 % more.

    Parameters
    ----------
    rank
        F, B and W of a rank's two chunks.
    pp
        Decision; p is even.

    References
    ----------
    Qi et al., arXiv:2405.15362; taken from the longest paths that :mod:`costmodel.pipelines.simulator` finds. Exact if
    W is at most F, F at most B and 2 B at most F + 2 W.
    """
    p = np.asarray(pp)
    forward, backward, weight = rank.forward, rank.backward, rank.weight
    fours = np.where(p % 4 == 0, 1, 0)
    longest = np.maximum(
        (p + 2) * forward + (3 * p - 6) * backward - (p - 3) * weight,
        (7 * p / 4 - 5 / 2 + 3 / 2 * fours) * forward + (2 * p - 2 * fours) * backward - (p / 2 - fours) * weight,
    )
    return np.asarray(np.where(p == 2, 3 * forward + 2 * backward - weight, longest) / 2)


def dualpipe_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of DualPipe, in which micro-batches from both ends meet in the middle.

    .. math:: T = \max\left[(p / 2 - 1)(2 F + B),\; (p / 2 - 1)(F + 2 B) - F\right] - (p / 2 - 1) W

    DeepSeek's :math:`(p / 2 - 1)(F\&B + B + W - 3 W)` has the whole backward pass as B. It is equal if F = B and
    F&B takes as long as both. If B is longer, theirs is too large, by F at most. F, B and W are of a micro-batch in
    either direction.

    References
    ----------
    DeepSeek-AI, arXiv:2412.19437, section 3.2.1 and Table 2; github.com/deepseek-ai/DualPipe.
    """
    return _bidirectional_bubble_seconds(slowest, others, pp=pp, depth=np.asarray(pp) / 2, chunks=1)


def dualpipev_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers
) -> Numbers:
    r"""
    Idle seconds of DualPipeV, in which micro-batches turn in a V instead of coming from both ends.

    .. math:: T = \max\left[(p - 1)(2 F + B),\; (p - 1)(F + 2 B) - F\right] / 2 - (p - 1) W / 2

    with F and B of a rank, which has two chunks. DeepSeek counts stages: their p is twice our number of ranks.

    References
    ----------
    github.com/deepseek-ai/DualPipe, ``dualpipev.py``; Qi et al., "DualPipe could be better without the Dual", 2025.
    """
    return _bidirectional_bubble_seconds(slowest, others, pp=pp, depth=np.asarray(pp), chunks=2)


def _bidirectional_bubble_seconds(
    slowest: Passes, others: Passes, *, pp: Numbers, depth: Numbers, chunks: int
) -> Numbers:
    num_others = np.maximum(np.asarray(pp) - 1, 1) * chunks
    forward, backward = others.forward / num_others, others.backward / num_others
    by_forward = (depth - 1) * (2 * forward + backward)
    by_backward = (depth - 1) * (forward + 2 * backward) - forward
    longer = np.maximum(by_forward, by_backward) - (depth - 1) * slowest.weight / chunks
    return np.asarray(np.maximum(longer, 0.0))


WHOLE_BACKWARD = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
"""Schedules that depend only on the sums of a rank's passes."""

BUBBLES: dict[Schedule, Idle] = {
    Schedule.ONE_F_ONE_B: one_f_one_b_bubble_seconds,
    Schedule.GPIPE: one_f_one_b_bubble_seconds,
    Schedule.ZB_H1: zb_h1_bubble_seconds,
    Schedule.ZB_H2: zb_h2_bubble_seconds,
    Schedule.ZB_2P: zb_2p_bubble_seconds,
    Schedule.ZB_V: zb_v_bubble_seconds,
    Schedule.V_HALF: v_half_bubble_seconds,
    Schedule.DUALPIPE: dualpipe_bubble_seconds,
    Schedule.DUALPIPEV: dualpipev_bubble_seconds,
}
"""Function of the idle time of each schedule."""


def bubble_seconds(
    slowest: Passes, every: Passes, *, pp: Numbers, vpp: Numbers, num_microbatches: Numbers, schedule: Numbers
) -> Numbers:
    """
    Seconds in which the slowest rank waits while the pipeline fills and drains, by its schedule's formula.

    Parameters
    ----------
    slowest, every
        Passes of the slowest rank; passes of all ranks together.
    pp, vpp, num_microbatches, schedule
        Decisions.

    Derivation: between its first pass and its last one a rank waits for the passes of the others that precede and
    follow its own. The weights' gradients that fill this time are subtracted. For equal ranks that is (p - 1)(F + B +
    W) / v in 1F1B and GPipe, (p - 1)(F + B - W) in ZB-H1. :data:`BUBBLES` has the formula of each schedule, with its
    paper.
    """
    others, degrees = every - slowest, {"pp": pp, "vpp": vpp, "num_microbatches": num_microbatches}
    formulas = {one: partial(formula, slowest, others, **degrees) for one, formula in BUBBLES.items()}
    return _select_by_schedule(schedule, formulas)


def chunks_alive(
    *,
    pp: Numbers,
    vpp: Numbers,
    num_microbatches: Numbers,
    rank: Numbers,
    schedule: Numbers,
    vocabulary: Numbers,
    group: Numbers | None = None,
) -> Numbers:
    r"""
    Number of chunk activations alive at the peak on pipeline rank r.

    1F1B keeps those of :func:`costmodel.pipelines.schedules.chunks_in_flight`, GPipe all m micro-batches. The others
    keep equally many micro-batches on all ranks. They are p in ZB-H1 and ZB-V, 2 p - 1 in ZB-H2, 2 p in ZB-2p, (p + 3)
    / 2 in V-Half. DualPipe, whose ranks hold a stage for each direction, keeps p + 1, and DualPipeV p + 1/2. They live
    until their weights' gradients, and count whole until then. A vocabulary in slices adds micro-batches, see
    :func:`vocabulary_delay`.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3, and arXiv:2405.15362, Table 1; DeepSeek-AI, arXiv:2412.19437, Table 2.
    """
    m, chunks = num_microbatches, np.asarray(vpp) * np.ones_like(rank)
    plain = chunks_in_flight(pp=pp, vpp=vpp, num_microbatches=m, rank=rank, group=group)
    alive = _select_by_schedule(
        schedule,
        {
            Schedule.ONE_F_ONE_B: lambda: plain,
            Schedule.GPIPE: lambda: m * chunks,
            Schedule.ZB_H1: lambda: pp * chunks,
            Schedule.ZB_H2: lambda: (2 * np.asarray(pp) - 1) * chunks,
            Schedule.ZB_2P: lambda: 2 * np.asarray(pp) * chunks,
            Schedule.ZB_V: lambda: pp * chunks,
            Schedule.V_HALF: lambda: np.asarray(pp) + 1 + chunks,
            Schedule.DUALPIPE: lambda: np.asarray(pp) + chunks,
            Schedule.DUALPIPEV: lambda: np.asarray(pp) * chunks + 1,
        },
    )
    interlaced = np.asarray(vocabulary) == Vocabulary.INTERLACED
    longer = np.where(interlaced, 1.5 * alive, alive + vocabulary_delay(vocabulary=vocabulary) * vpp)
    return np.minimum(longer, m * np.asarray(vpp))


def parameter_copies(*, schedule: Numbers) -> Numbers:
    """
    Number of ranks that hold each stage with all its states: two if both directions meet.

    References
    ----------
    DeepSeek-AI, arXiv:2412.19437, Table 2.
    """
    return np.where(is_one_of(schedule, BIDIRECTIONAL), 2, 1)


def vocabulary_delay(*, vocabulary: Numbers) -> Numbers:
    """
    Number of micro-batches by which a vocabulary in slices delays each backward pass.

    It is one for each barrier between its passes.

    References
    ----------
    Yeung et al., arXiv:2411.05288, section 5: Vocab-1 has two barriers and keeps p + 2 micro-batches, Vocab-2 one and p
    + 1. An interlaced pipeline keeps 1.5 p and has no barrier.
    """
    one, two = np.asarray(vocabulary) == Vocabulary.VOCAB_2, np.asarray(vocabulary) == Vocabulary.VOCAB_1
    return np.asarray(one + 2.0 * two)


def _select_by_schedule(schedule: Numbers, values: Mapping[Schedule, Callable[[], Numbers]]) -> Numbers:
    """Select the value of each entry's schedule; only schedules that occur are computed."""
    occurring = [Schedule(one) for one in present(schedule)]
    if len(occurring) == 1:
        return values[occurring[0]]()
    chosen = np.select([np.asarray(schedule) == one for one in occurring], [values[one]() for one in occurring])
    return np.asarray(chosen, dtype=np.float64)
