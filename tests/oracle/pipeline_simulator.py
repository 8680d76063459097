"""
A naive discrete-event simulator of pipelines: the oracle of ``costmodel.pipelines``.

It asks every rank again and again whether its next pass can start. It knows no formula, only the order in which each
rank works and what a pass waits for. The order here is Megatron-LM's
plain and interleaved 1F1B (megatron-core 0.16.1, ``megatron/core/pipeline_parallel/schedules.py``:
``get_pp_rank_microbatches``, ``get_schedule_table``); ``schedule_orders`` has the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"


class Pass(NamedTuple):
    """One pass of one virtual stage (numbered through the model) for one micro-batch."""

    kind: str
    stage: int
    microbatch: int

    @property
    def is_forward(self) -> bool:
        """Whether it is a forward pass."""
        return self.kind == FORWARD


Block: TypeAlias = Pass | tuple[Pass, ...]
"""A pass, or several that start together and end together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """
    What happened.

    Parameters
    ----------
    seconds
        From the first pass of all to the end of the last one.
    spans
        The same of each rank's own passes.
    peak_chunks
        Most chunk activations alive at once, per rank: from the forward to the end of the backward pass, of its second
        half where it has two.
    """

    seconds: float
    spans: tuple[float, ...]
    peak_chunks: tuple[int, ...]


def simulate(
    forward: Sequence[float],
    backward: Sequence[float],
    *,
    pp: int,
    num_microbatches: int,
    p2p_seconds: float = 0.0,
    hop_blocks: bool = False,
) -> Timeline:
    """
    One step of 1F1B.

    Parameters
    ----------
    forward, backward
        Seconds of each virtual stage in model order, pp * vpp of them; stage i is on rank i % pp.
    pp
        Pipeline ranks.
    num_microbatches
        Micro-batches; a multiple of pp where there is more than one chunk per rank.
    p2p_seconds, hop_blocks
        As in :func:`play`.
    """
    vpp = len(forward) // pp
    work = [order(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches) for rank in range(pp)]
    seconds = {FORWARD: forward, BACKWARD: backward}
    return play(work, seconds, p2p_seconds=p2p_seconds, hop_blocks=hop_blocks)


def play(
    work: Sequence[Sequence[Block]],
    seconds: dict[str, Sequence[float]],
    *,
    p2p_seconds: float = 0.0,
    hop_blocks: bool = False,
    hidden_seconds: float = 0.0,
) -> Timeline:
    """
    Play the orders of all ranks.

    Parameters
    ----------
    work
        What each rank does, in order.
    seconds
        Of each kind of pass, for every virtual stage in model order.
    p2p_seconds
        From one virtual stage to the next on another rank, either direction.
    hop_blocks
        Whether the sender does nothing else meanwhile; else transfers run beside computation.
    hidden_seconds
        By which passes of two micro-batches that run together take less than one after the other.
    """
    last = len(seconds[FORWARD]) - 1
    blocks = [[one if type(one) is tuple else (one,) for one in passes] for passes in work]
    rank_of = {one: rank for rank, own in enumerate(blocks) for block in own for one in block}
    ends: dict[Pass, float] = {}
    clock, position, begins = [0.0] * len(work), [0] * len(work), [float("inf")] * len(work)
    progress = True
    while progress:
        progress = False
        for rank, own in enumerate(blocks):
            while position[rank] < len(own):
                block = own[position[rank]]
                before = [other for one in block for other in predecessors(one, last=last) if other not in block]
                if any(one not in ends for one in before):
                    break
                ready = max((ends[one] + (rank_of[one] != rank) * p2p_seconds for one in before), default=0.0)
                start = max(clock[rank], ready)
                begins[rank] = min(begins[rank], start)
                end = start + sum(seconds[one.kind][one.stage] for one in block) - hidden_seconds * (len(block) > 1)
                ends |= dict.fromkeys(block, end)
                waited_for = any(rank_of[other] != rank for one in block for other in successors(one, last=last))
                clock[rank] = end + hop_blocks * waited_for * p2p_seconds
                position[rank] += 1
                progress = True
    assert all(done == len(own) for done, own in zip(position, blocks, strict=True)), "The schedule deadlocks."
    last_ends = [max(ends[one] for block in own for one in block) for own in blocks]
    return Timeline(
        seconds=max(ends.values()),
        spans=tuple(end - begin for end, begin in zip(last_ends, begins, strict=True)),
        peak_chunks=tuple(peak([one for block in own for one in block]) for own in blocks),
    )


def order(
    rank: int, *, pp: int, vpp: int, num_microbatches: int, group: int | None = None, together: bool = False
) -> list[Block]:
    """
    Everything that one rank does, in order: warm-up forwards, one forward and one backward in turn, the rest.

    Groups of pp micro-batches, or as many as told, pass through a rank's first chunk, then through its second, and so
    on. Passes that run together, of two micro-batches, need one forward pass more before the first backward pass.
    """
    group = (group or pp) if vpp > 1 else num_microbatches
    visits = [
        (chunk, microbatch)
        for start in range(0, num_microbatches, group)
        for chunk in range(vpp)
        for microbatch in range(start, min(start + group, num_microbatches))
    ]
    forwards = [Pass(FORWARD, chunk * pp + rank, microbatch) for chunk, microbatch in visits]
    backwards = [Pass(BACKWARD, (vpp - 1 - chunk) * pp + rank, microbatch) for chunk, microbatch in visits]
    before_the_first_answer = pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * group
    warmup = min(before_the_first_answer + together, len(forwards))
    pairs = list(zip(forwards[warmup:], backwards, strict=False))
    steady: list[Block] = [*pairs] if together else [one for pair in pairs for one in pair]
    return [*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :]]


def predecessors(now: Pass, *, last: int) -> tuple[Pass, ...]:
    """What must end before this can start; nothing in front of the first stage's forward."""
    if now.kind == FORWARD:
        return (Pass(FORWARD, now.stage - 1, now.microbatch),) if now.stage else ()
    own = Pass(FORWARD if now.kind == BACKWARD else BACKWARD, now.stage, now.microbatch)
    if now.kind == BACKWARD and now.stage < last:
        return own, Pass(BACKWARD, now.stage + 1, now.microbatch)
    return (own,)


def successors(now: Pass, *, last: int) -> tuple[Pass, ...]:
    """What other virtual stages do with its result."""
    if now.kind == FORWARD and now.stage < last:
        return (Pass(FORWARD, now.stage + 1, now.microbatch),)
    if now.kind == BACKWARD and now.stage > 0:
        return (Pass(BACKWARD, now.stage - 1, now.microbatch),)
    return ()


def peak(passes: Sequence[Pass]) -> int:
    """Most chunks between their forward and the end of their backward."""
    last = WEIGHT if any(one.kind == WEIGHT for one in passes) else BACKWARD
    alive = most = 0
    for one in passes:
        alive += (one.kind == FORWARD) - (one.kind == last)
        most = max(most, alive)
    return most
