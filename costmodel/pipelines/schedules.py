"""
Pipeline schedules: idle time and live activations of a rank in each order of passes.

F, B and W are the seconds of a rank's forward pass, input gradients and weights' gradients of one micro-batch. There
are p ranks, v chunks of each, and m micro-batches. Idle time is that of one rank from its first pass to its last one.
Ranks of a zero-bubble schedule begin and end one after the other, and so does their optimizer (Qi et al.,
arXiv:2401.10241, section 4). Every formula is exact for equal stages with W at most F and F at most B; unequal stages
are simulated by :mod:`costmodel.pipelines.simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np

from costmodel.pipelines.interleaved import chunks_in_flight, interleaved_bubble_seconds
from costmodel.record import record
from costmodel.strategy import BIDIRECTIONAL, Schedule, Vocabulary, is_one_of
from costmodel.tables import present
from costmodel.timing.work import Numbers


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
    :func:`costmodel.pipelines.interleaved.interleaved_bubble_seconds`; Huang et al., arXiv:1811.06965, for GPipe.
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

    1F1B keeps those of :func:`costmodel.pipelines.interleaved.chunks_in_flight`, GPipe all m micro-batches. The others
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
