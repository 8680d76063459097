"""In which order each rank works: GPipe, zero-bubble and V-shaped schedules, from their papers and code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from costmodel.strategy import Schedule
from tests.oracle.pipeline_simulator import BACKWARD, FORWARD, WEIGHT, Pass

V_HALF_SLOTS = (2, 1, 2, 1)
"""Slots by which the passes F of the first chunk, F, B of the second and B of the first lag the neighbour's
(arXiv 2405.15362: lags that add up to 6 keep half of 1F1B's activations; these never meet in one slot)."""

V_HALF_TURNS = (1, 1, 5)
"""Slots from F to F on the last rank, from F to B on the first, and from B to B on the last, for an even p."""

SLOTS = 6
"""F, B and W of two chunks: the slots of a building block."""


def gpipe(rank: int, *, num_microbatches: int) -> list[Pass]:
    """All forward passes, then all backward passes."""
    return [Pass(kind, rank, one) for kind in (FORWARD, BACKWARD) for one in range(num_microbatches)]


def zero_bubble(rank: int, *, num_microbatches: int, warmup: int, delay: int) -> list[Pass]:
    """
    One forward and one input's backward in turn; weights' gradients some micro-batches later.

    PyTorch's ``ScheduleInterleavedZeroBubble`` with one stage per rank is this with ZB-H1's numbers.

    Parameters
    ----------
    rank, num_microbatches
        Whose order.
    warmup
        Forward passes before the first backward one: p - r in ZB-H1, 2 (p - r) - 1 in ZB-H2.
    delay
        Weights' gradients that wait: r in ZB-H1, 2 r in ZB-H2, 3 r in ZB-2p.
    """
    forwards = deque(Pass(FORWARD, rank, one) for one in range(num_microbatches))
    passes = [forwards.popleft() for _ in range(min(warmup, num_microbatches))]
    for one in range(num_microbatches):
        passes.append(Pass(BACKWARD, rank, one))
        if one >= delay:
            passes.append(Pass(WEIGHT, rank, one - delay))
        if forwards:
            passes.append(forwards.popleft())
    late = range(max(num_microbatches - delay, 0), num_microbatches)
    return [*passes, *(Pass(WEIGHT, rank, one) for one in late)]


class Counter:
    """Appends the next micro-batch of a kind of pass on one of two chunks."""

    def __init__(self, stages: tuple[int, int]):
        self.stages = stages
        self.passes: list[Pass] = []
        self.done = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD, WEIGHT) for chunk in (0, 1)}

    def add(self, kind: str, chunk: int) -> None:
        """The next one of its kind."""
        self.passes.append(Pass(kind, self.stages[chunk], self.done[kind, chunk]))
        self.done[kind, chunk] += 1

    def add_backward(self, chunk: int) -> None:
        """Both halves of a backward pass."""
        self.add(BACKWARD, chunk)
        self.add(WEIGHT, chunk)


def zb_v(rank: int, *, pp: int, num_microbatches: int) -> list[Pass]:
    """PyTorch 2.13's ``ScheduleZBVZeroBubble._calculate_single_rank_operations``, phase by phase."""
    work = Counter((rank, 2 * pp - 1 - rank))
    played = max(2 * pp - 1, num_microbatches)
    for _ in range(2 * (pp - rank) - 1):
        work.add(FORWARD, 0)
    for _ in range(rank):
        work.add(FORWARD, 1)
        work.add(FORWARD, 0)
    for _ in range(pp - rank):
        work.add(FORWARD, 1)
        work.add_backward(1)
    while work.done[FORWARD, 1] < work.done[FORWARD, 0] or work.done[FORWARD, 0] < played:
        if work.done[FORWARD, 0] < played:
            work.add(FORWARD, 0)
        work.add_backward(0)
        work.add(FORWARD, 1)
        work.add_backward(1)
    for _ in range(rank):
        work.add(BACKWARD, 0)
        work.add(BACKWARD, 1)
    for _ in range(pp - rank):
        work.add_backward(0)
    for chunk in (1, 0):
        while work.done[WEIGHT, chunk] < work.done[BACKWARD, chunk]:
            work.add(WEIGHT, chunk)
    return [one for one in work.passes if one.microbatch < num_microbatches]


def v_half(rank: int, *, pp: int, num_microbatches: int) -> list[Pass]:
    """One building block per micro-batch, six slots after the one before; weights' gradients in the slots left."""
    lags, turns = V_HALF_SLOTS, V_HALF_TURNS
    down, up = rank, pp - 1 - rank
    forward = lags[0] * down
    turned = (pp - 1) * lags[0] + turns[0]
    second_forward = turned + lags[1] * up
    returned = turned + (pp - 1) * lags[1] + turns[1]
    second_backward = returned + lags[2] * down
    backward = returned + (pp - 1) * lags[2] + turns[2] + lags[3] * up
    starts = {(FORWARD, 0): forward, (FORWARD, 1): second_forward}
    starts |= {(BACKWARD, 1): second_backward, (BACKWARD, 0): backward}
    taken = {start % SLOTS for start in starts.values()}
    assert len(taken) == len(starts), "Two passes meet in one slot."
    for chunk in (1, 0):
        slot = next(
            s for s in range(starts[BACKWARD, chunk] + 1, starts[BACKWARD, chunk] + SLOTS) if s % SLOTS not in taken
        )
        starts[WEIGHT, chunk] = slot
        taken.add(slot % SLOTS)
    stages = (rank, 2 * pp - 1 - rank)
    placed = [
        (start + SLOTS * one, Pass(kind, stages[chunk], one))
        for (kind, chunk), start in starts.items()
        for one in range(num_microbatches)
    ]
    return [one for _, one in sorted(placed)]


ORDERS: dict[Schedule, Callable[[int, int, int], list[Pass]]] = {
    Schedule.GPIPE: lambda r, p, m: gpipe(r, num_microbatches=m),
    Schedule.ZB_H1: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=p - r, delay=r),
    Schedule.ZB_H2: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=2 * (p - r) - 1, delay=2 * r),
    Schedule.ZB_2P: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=2 * (p - r) - 1, delay=3 * r),
    Schedule.ZB_V: lambda r, p, m: zb_v(r, pp=p, num_microbatches=m),
    Schedule.V_HALF: lambda r, p, m: v_half(r, pp=p, num_microbatches=m),
}
"""The order of rank r of p for m micro-batches."""
