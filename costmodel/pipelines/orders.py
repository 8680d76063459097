"""
Orders of pipeline ranks: the sequence of passes in every schedule, from their papers and code.

A block is a piece of uninterrupted work: a pass, both halves of a backward pass, or a forward and a backward pass of
two micro-batches at the same time. An order is an array of blocks with three columns: its forward pass, its input
gradients and its weights' gradients. A pass is its virtual stage times the number of micro-batches plus its
micro-batch, ``NONE`` for no pass. Virtual stages are numbered through the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.strategy import BIDIRECTIONAL, V_SHAPED, Schedule, default_microbatch_group

Blocks: TypeAlias = NDArray[np.int64]
"""Blocks of one rank in order: shape (n, 3), columns as in :data:`FORWARD`, :data:`BACKWARD`, :data:`WEIGHT`."""

FORWARD, BACKWARD, WEIGHT = 0, 1, 2

NONE = -1

ONE_CHUNK = (
    Schedule.GPIPE,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.ZB_2P,
    *BIDIRECTIONAL,
)
"""Schedules with one virtual stage per rank (in each direction)."""

V_HALF_SLOTS = (2, 1, 2, 1)
"""Slots by which the passes F of the first chunk, F, B of the second and B of the first lag the neighbour's
(arXiv 2405.15362). Lags that add up to 6 keep half of 1F1B's activations; these never share a slot."""

V_HALF_TURNS = (1, 1, 5)
"""Slots from F to F on the last rank, from F to B on the first, and from B to B on the last, for an even p."""

SLOTS = 6
"""F, B and W of two chunks: the slots of a building block."""


def has_order(schedule: Schedule, *, pp: int, vpp: int, num_microbatches: int, group: int | None = None) -> bool:
    """
    Return True if a schedule has an order for these ranks, chunks and micro-batches; rules forbid all others.

    Interleaved ranks would deadlock with a group, or a remainder of one, of less than p.
    """
    if schedule == Schedule.ONE_F_ONE_B and vpp > 1:
        size = group or int(default_microbatch_group(pp=pp, vpp=vpp))
        return size >= pp and (num_microbatches % size == 0 or num_microbatches % size >= pp)
    if (schedule in V_SHAPED and vpp != 2) or (schedule in ONE_CHUNK and vpp != 1):
        return False
    if (schedule in (Schedule.V_HALF, *BIDIRECTIONAL) and pp % 2) or (
        schedule in BIDIRECTIONAL and num_microbatches % 2
    ):
        return False
    if schedule in (Schedule.DUALPIPE, Schedule.DUALPIPEV):
        return num_microbatches >= 2 * pp
    return schedule != Schedule.ZB_V or num_microbatches >= 2 * pp - 1


def stages_of_rank(schedule: Schedule, rank: int, *, pp: int, vpp: int) -> tuple[int, ...]:
    """
    Virtual stages of a rank, its first chunk first: their indices, from 0 at the embedding to p v - 1 at the head.

    Derivation: chunk c of rank r is stage c p + r. V-shaped schedules reverse direction with every chunk, so that their
    odd chunks count the ranks backwards. With both directions (DualPipe) rank r holds stages r and p - 1 - r.
    """
    if schedule in BIDIRECTIONAL:
        return rank, pp - 1 - rank
    turns = schedule in V_SHAPED
    return tuple(chunk * pp + (pp - 1 - rank if turns and chunk % 2 else rank) for chunk in range(vpp))


def order(
    schedule: Schedule, rank: int, *, pp: int, vpp: int, num_microbatches: int, group: int | None = None
) -> Blocks:
    """
    Return the blocks of one rank in a step, in order.

    Parameters
    ----------
    schedule
        Pipeline schedule.
    rank, pp, vpp, num_microbatches
        Rank, number of ranks, chunks per rank and micro-batches; see :func:`has_order`.
    group
        Micro-batches that pass through a chunk before the next chunk begins, with interleaved chunks; default p.
    """
    if schedule == Schedule.ONE_F_ONE_B:
        return _one_f_one_b(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group)
    return _ORDERS[schedule](rank, pp, num_microbatches)


# --- by slots ----------------------------------------------------------------------------------------------


def _one_f_one_b(rank: int, *, pp: int, vpp: int, num_microbatches: int, group: int | None) -> Blocks:
    """
    Return the order of 1F1B: warm-up forwards, alternating forward and backward, the remaining backwards.

    Groups of micro-batches pass through a rank's first chunk, then through its second, and so on.

    References
    ----------
    Megatron-LM, megatron-core 0.16.1, megatron/core/pipeline_parallel/schedules.py: ``get_pp_rank_microbatches``,
    ``get_schedule_table``.
    """
    size = group or int(default_microbatch_group(pp=pp, vpp=vpp))
    first_forward, first_backward = _passes_in_turn(pp, vpp, num_microbatches, size)
    number, warmup = len(first_forward), warmup_chunks(rank, pp=pp, vpp=vpp, group=size)
    early = min(warmup, number)
    forward, backward = first_forward + rank * num_microbatches, first_backward + rank * num_microbatches
    blocks = np.full((2 * number, 3), NONE, dtype=np.int64)
    blocks[:early, FORWARD] = forward[:early]
    blocks[early : 2 * number - early : 2, FORWARD] = forward[early:]
    blocks[early + 1 : 2 * number - early : 2, BACKWARD] = backward[: number - early]
    blocks[2 * number - early :, BACKWARD] = backward[number - early :]
    blocks[:, WEIGHT] = blocks[:, BACKWARD]
    return blocks


@lru_cache(maxsize=2)
def _passes_in_turn(
    pp: int, vpp: int, num_microbatches: int, group: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the forward and backward passes of the first rank in the order of 1F1B; all ranks of a pipeline ask."""
    every = np.arange(num_microbatches)
    microbatch, chunk = np.tile(every, vpp), np.repeat(np.arange(vpp), num_microbatches)
    in_turn = np.lexsort([microbatch, chunk, microbatch // group])
    microbatch, chunk = microbatch[in_turn], chunk[in_turn]
    first_pass = pp * num_microbatches
    return chunk * first_pass + microbatch, (vpp - 1 - chunk) * first_pass + microbatch


def warmup_chunks(rank: int, *, pp: int, vpp: int, group: int) -> int:
    """
    Number of forward chunks that a rank runs before its first 1F1B block.

    References
    ----------
    Megatron-LM, megatron-core 0.16.1, megatron/core/pipeline_parallel/schedules.py: ``get_pp_rank_microbatches``.
    """
    if vpp == 1:
        return pp - rank - 1
    return 2 * (pp - rank - 1) + (vpp - 1) * group


def _gpipe(rank: int, pp: int, num_microbatches: int) -> Blocks:
    """Return the order of GPipe: all forward passes, then all backward passes."""
    each = np.arange(num_microbatches)
    passes = rank * num_microbatches + each
    return _sort_by_slot((passes, each), (passes, num_microbatches + each))


def _zero_bubble(rank: int, num_microbatches: int, *, warmup: int, delay: int) -> Blocks:
    """
    Return a zero-bubble order: alternating forward and input backward; weights' gradients some micro-batches later.

    PyTorch's ``ScheduleInterleavedZeroBubble`` with one stage per rank is this order with ZB-H1's numbers.

    Parameters
    ----------
    rank, num_microbatches
        The rank, and the number of micro-batches.
    warmup
        Forward passes before the first backward one: p - r in ZB-H1, 2 (p - r) - 1 in ZB-H2.
    delay
        Number of delayed weights' gradients: r in ZB-H1, 2 r in ZB-H2, 3 r in ZB-2p.
    """
    each = np.arange(num_microbatches)
    passes = rank * num_microbatches + each
    forward = np.where(each < warmup, each - warmup, 3 * (each - warmup) + 2)  # those of the warm-up before slot 0
    return _sort_by_slot((passes, forward), (passes, 3 * each), (passes, 3 * (each + delay) + 1))


def _v_half(rank: int, pp: int, num_microbatches: int) -> Blocks:
    """
    Return the order of V-Half: a building block per micro-batch every six slots; weights' gradients in free slots.

    References
    ----------
    Qi et al., arXiv:2405.15362, V-Half.
    """
    lags, turns = V_HALF_SLOTS, V_HALF_TURNS
    down, up = rank, pp - 1 - rank
    turned = (pp - 1) * lags[0] + turns[0]
    second_forward = turned + lags[1] * up
    returned = turned + (pp - 1) * lags[1] + turns[1]
    second_backward = returned + lags[2] * down
    backward = returned + (pp - 1) * lags[2] + turns[2] + lags[3] * up
    starts = {(FORWARD, 0): lags[0] * down, (FORWARD, 1): second_forward}
    starts |= {(BACKWARD, 1): second_backward, (BACKWARD, 0): backward}
    taken = {start % SLOTS for start in starts.values()}
    assert len(taken) == len(starts), "Two passes meet in one slot."
    for chunk in (1, 0):
        free = range(starts[BACKWARD, chunk] + 1, starts[BACKWARD, chunk] + SLOTS)
        starts[WEIGHT, chunk] = next(slot for slot in free if slot % SLOTS not in taken)
        taken.add(starts[WEIGHT, chunk] % SLOTS)
    each, stages = np.arange(num_microbatches), (rank, 2 * pp - 1 - rank)
    columns = (
        (
            np.concatenate([stage * num_microbatches + each for stage in stages]),
            np.concatenate([starts[kind, chunk] + SLOTS * each for chunk in (0, 1)]),
        )
        for kind in (FORWARD, BACKWARD, WEIGHT)
    )
    return _sort_by_slot(*columns)


def _sort_by_slot(*columns: tuple[NDArray[np.int64], ...]) -> Blocks:
    """Sort passes into blocks by slot; with two kinds, backward passes are whole."""
    passes, slots = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    kinds = np.repeat(np.arange(len(columns)), [len(column[0]) for column in columns])
    order = np.argsort(slots, kind="stable")
    blocks = np.full((len(passes), 3), NONE, dtype=np.int64)
    blocks[np.arange(len(passes)), kinds[order]] = passes[order]
    if len(columns) == WEIGHT:
        blocks[:, WEIGHT] = blocks[:, BACKWARD]
    return blocks


# --- phase by phase ----------------------------------------------------------------------------------------


class _Work:
    """Appends the next micro-batch of a kind of pass on one of a rank's two chunks."""

    def __init__(self, firsts: tuple[int, int]) -> None:
        self.next = [list(firsts) for _ in (FORWARD, BACKWARD)]
        self.waiting: list[int] = []
        self.blocks: list[tuple[int, int, int]] = []

    def take(self, kind: int, chunk: int) -> int:
        self.next[kind][chunk] += 1
        return self.next[kind][chunk] - 1

    def forward(self, chunk: int) -> None:
        self.blocks.append((self.take(FORWARD, chunk), NONE, NONE))

    def backward(self, chunk: int) -> None:
        """Append both halves of a backward pass at once."""
        one = self.take(BACKWARD, chunk)
        self.blocks.append((NONE, one, one))

    def inputs(self, chunk: int) -> None:
        """Append input gradients; the weights' gradients wait."""
        self.waiting.append(self.take(BACKWARD, chunk))
        self.blocks.append((NONE, self.waiting[-1], NONE))

    def weights(self, num: int = 1) -> None:
        """Append the weights' gradients that have waited longest."""
        self.blocks += [(NONE, NONE, self.waiting.pop(0)) for _ in range(num)]

    def halves(self, chunk: int) -> None:
        """Append one half of a backward pass after the other: the next rank need not wait for the second one."""
        self.inputs(chunk)
        self.weights()

    def both(self, forward: int, backward: int) -> None:
        """Append the forward pass of one chunk and the backward pass of the other at the same time."""
        one = self.take(BACKWARD, backward)
        self.blocks.append((self.take(FORWARD, forward), one, one))


def _zb_v(rank: int, pp: int, num_microbatches: int) -> Blocks:
    """Return the order of PyTorch 2.13's ``ScheduleZBVZeroBubble._calculate_single_rank_operations``, by phases."""
    down, up = rank * num_microbatches, (2 * pp - 1 - rank) * num_microbatches
    work = _Work((down, up))
    for _ in range(2 * (pp - rank) - 1):
        work.forward(0)
    for _ in range(rank):
        work.forward(1)
        work.forward(0)
    for _ in range(pp - rank):
        work.forward(1)
        work.halves(1)
    while work.next[FORWARD][1] - up < num_microbatches:
        if work.next[FORWARD][0] - down < num_microbatches:
            work.forward(0)
        work.halves(0)
        work.forward(1)
        work.halves(1)
    for _ in range(rank):
        work.inputs(0)
        work.inputs(1)
    delayed, work.waiting = work.waiting, []
    for _ in range(pp - rank):
        work.halves(0)
    work.waiting = [one for one in delayed if one >= up] + [one for one in delayed if one < up]
    work.weights(len(delayed))
    return np.array(work.blocks, dtype=np.int64)


def _dualpipe(rank: int, pp: int, num_microbatches: int) -> Blocks:
    """Return the order of DualPipe: half of the micro-batches from either end; the second half of ranks swaps them."""
    half = num_microbatches // 2
    directions = (rank * num_microbatches, (pp - 1 - rank) * num_microbatches + half)
    first, depth = (directions, rank) if rank < pp // 2 else (directions[::-1], pp - 1 - rank)
    return _bidirectional(_Work(first), depth, pp // 2, half)


def _dualpipev(rank: int, pp: int, num_microbatches: int) -> Blocks:
    """Return the order of DualPipeV: micro-batches that turn on the last rank replace those from the other end."""
    stages = (rank * num_microbatches, (2 * pp - 1 - rank) * num_microbatches)
    return _bidirectional(_Work(stages), rank, pp, num_microbatches)


def _bidirectional(work: _Work, depth: int, middle: int, num_microbatches: int) -> Blocks:
    """
    Return the eight steps of DualPipe and DualPipeV.

    Parameters
    ----------
    work
        Blocks of a rank; the micro-batches of chunk 0 come first.
    depth, middle
        Distance of the rank from the nearer end of the pipeline; ranks from an end to the middle, where chunks meet.
    num_microbatches
        Micro-batches of each chunk.

    References
    ----------
    DeepSeek-AI, arXiv:2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe, ``dualpipe.py``, ``dualpipev.py``,
    ``step``.
    """
    outer = middle - depth - 1
    for _ in range(2 * outer):  # 1: F0
        work.forward(0)
    for _ in range(depth + 1):  # 2: F0 F1
        work.forward(0)
        work.forward(1)
    for _ in range(outer):  # 3: B1 W1 F1
        work.halves(1)
        work.forward(1)
    for one in range(num_microbatches - 2 * middle + depth + 1):  # 4: F0 with B1, F1 with B0
        if one == 0 and outer == 0:
            work.forward(0)
            work.backward(1)
        else:
            work.both(0, 1)
        work.both(1, 0)
    for _ in range(outer):  # 5: B1, F1 with B0
        work.backward(1)
        work.both(1, 0)
    for one in range(2 * (depth + 1)):  # 6: B1 B0, weights' gradients of the second half wait
        (work.backward if one < depth + 1 else work.inputs)((one + 1) % 2)
    for _ in range(outer):  # 7: W B0
        work.weights()
        work.inputs(0)
    work.weights(depth + 1)  # 8: W
    return np.array(work.blocks, dtype=np.int64)


_ORDERS: dict[Schedule, Callable[[int, int, int], Blocks]] = {
    Schedule.GPIPE: _gpipe,
    Schedule.ZB_H1: lambda r, p, m: _zero_bubble(r, m, warmup=p - r, delay=r),
    Schedule.ZB_H2: lambda r, p, m: _zero_bubble(r, m, warmup=2 * (p - r) - 1, delay=2 * r),
    Schedule.ZB_2P: lambda r, p, m: _zero_bubble(r, m, warmup=2 * (p - r) - 1, delay=3 * r),
    Schedule.ZB_V: _zb_v,
    Schedule.V_HALF: _v_half,
    Schedule.DUALPIPE: _dualpipe,
    Schedule.DUALPIPEV: _dualpipev,
}
"""Function that returns the order of rank r of p for m micro-batches."""
