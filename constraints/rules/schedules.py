"""Rules of pipeline schedules, and of where a pipeline places embedding and head."""

from __future__ import annotations

import numpy as np

from constraints.rule import Holds, Ints, implies
from costmodel.facts.model import Model
from costmodel.strategy import BIDIRECTIONAL, V_SHAPED, Schedule, Vocabulary, is_one_of

LONG_WARMUPS = (Schedule.ZB_H2, Schedule.ZB_2P, Schedule.ZB_V)
"""Schedules whose first rank does 2 p - 1 forward passes before the first backward one."""

TWO_WAYS = (Schedule.DUALPIPE, Schedule.DUALPIPEV)
"""Schedules that run micro-batches through the pipeline in both directions."""


def schedules_need_a_pipeline(*, pp: Ints, schedule: Ints) -> Holds:
    """Only a pipeline (pp above 1) has another schedule than 1F1B."""
    return implies(schedule != Schedule.ONE_F_ONE_B, pp > 1)


def v_shapes_have_two_chunks(*, vpp: Ints, schedule: Ints) -> Holds:
    """The V-shaped schedules (zb_v, v_half, dualpipev) have two chunks per rank (vpp is 2)."""
    return implies(is_one_of(schedule, V_SHAPED), vpp == 2)


def only_1f1b_interleaves(*, vpp: Ints, schedule: Ints) -> Holds:
    """
    The schedules gpipe, zb_h1, zb_h2, zb_2p and dualpipe have one chunk per rank (vpp is 1).

    DualPipe's ranks hold a stage for each direction, which counts as one. Interleaved versions of the others (such as
    PyTorch's ``ScheduleInterleavedZeroBubble``) have no formula here.
    """
    others = (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_2P, *BIDIRECTIONAL)
    return implies(is_one_of(schedule, others), vpp == 1)


def only_chunks_pass_in_groups(*, vpp: Ints, group: Ints) -> Holds:
    """Only ranks with several chunks (vpp above 1) have micro-batch groups larger than one."""
    return implies(vpp == 1, np.equal(group, 1))


def groups_reach_through_the_pipeline(*, pp: Ints, vpp: Ints, group: Ints) -> Holds:
    """
    With interleaved chunks (vpp above 1), a group holds at least as many micro-batches as there are pipeline ranks.

    With fewer, the first rank would wait for its second chunk's input.
    """
    return implies(vpp > 1, np.greater_equal(group, pp))


def long_warmups_need_microbatches(*, num_microbatches: Ints, pp: Ints, schedule: Ints) -> Holds:
    """
    Schedules that fill their warm-up (zb_h2, zb_2p, zb_v) have at least two micro-batches per pipeline rank.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3: 2 p - 1 forward passes come first. PyTorch's ``ScheduleZBVZeroBubble``
    plays at least as many.
    """
    return implies(is_one_of(schedule, LONG_WARMUPS), num_microbatches >= 2 * pp - 1)


def two_ways_need_microbatches(*, num_microbatches: Ints, pp: Ints, schedule: Ints) -> Holds:
    """
    The schedules dualpipe and dualpipev have at least two micro-batches per pipeline rank.

    References
    ----------
    github.com/deepseek-ai/DualPipe, ``dualpipe.py`` and ``dualpipev.py``, ``step``: the assertions at its beginning.
    """
    return implies(is_one_of(schedule, TWO_WAYS), num_microbatches >= 2 * pp)


def two_ends_have_even_ranks(*, pp: Ints, schedule: Ints) -> Holds:
    """The schedules dualpipe and v_half have an even number of pipeline ranks (pp)."""
    return implies(is_one_of(schedule, (Schedule.V_HALF, *BIDIRECTIONAL)), pp % 2 == 0)


def two_ends_share_the_microbatches(*, num_microbatches: Ints, schedule: Ints) -> Holds:
    """The schedule dualpipe has an even number of micro-batches: half of them start at each end."""
    return implies(is_one_of(schedule, BIDIRECTIONAL), num_microbatches % 2 == 0)


def vocabulary_moves_in_a_pipeline(*, pp: Ints, vocabulary: Ints) -> Holds:
    """Only a pipeline (pp above 1) keeps embedding and head elsewhere than at its ends."""
    return implies(vocabulary != Vocabulary.ENDS, pp > 1)


def redistribution_is_for_one_chunk(*, vpp: Ints, vocabulary: Ints) -> Holds:
    """Layers are redistributed around the head only in pipelines of one chunk per rank (vpp is 1)."""
    return implies(vocabulary == Vocabulary.REDISTRIBUTED, vpp == 1)


def vocabulary_moves_without_mtp(model: Model, *, vocabulary: Ints) -> Holds:
    """
    In a model with multi-token prediction, embedding and head stay at the ends of the pipeline.

    Its layers are on the last rank, as is the head that they share; no published way splits both.
    """
    return implies(vocabulary != Vocabulary.ENDS, not model.mtp_layers)
