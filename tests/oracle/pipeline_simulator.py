"""
A discrete-event simulator of Megatron-LM's plain and interleaved 1F1B schedule: the oracle of ``costmodel.pipeline``.

It knows no formula, only the order in which each rank works (megatron-core 0.16.1,
``megatron/core/pipeline_parallel/schedules.py``: ``get_pp_rank_microbatches``, ``get_schedule_table``) and that a chunk
waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Pass(NamedTuple):
    """Forward or backward of one virtual stage (numbered through the model) for one micro-batch."""

    is_forward: bool
    stage: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """
    What happened.

    Parameters
    ----------
    seconds
        From the first forward to the end of the last backward.
    peak_chunks
        Most chunk activations alive at once, per rank.
    """

    seconds: float
    peak_chunks: tuple[int, ...]


def simulate(
    forward: Sequence[float],
    backward: Sequence[float],
    *,
    pp: int,
    num_microbatches: int,
    hop_seconds: float = 0.0,
    hop_blocks: bool = False,
) -> Timeline:
    """
    One step of the pipeline.

    Parameters
    ----------
    forward, backward
        Seconds of each virtual stage in model order, pp * vpp of them; stage i is on rank i % pp.
    pp
        Pipeline ranks.
    num_microbatches
        Micro-batches; a multiple of pp where there is more than one chunk per rank.
    hop_seconds
        From one virtual stage to the next, either direction.
    hop_blocks
        Whether the sender does nothing else meanwhile; else transfers run beside computation.
    """
    vpp, last = len(forward) // pp, len(forward) - 1
    work = [order(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches) for rank in range(pp)]
    ends: dict[Pass, float] = {}
    clock, position = [0.0] * pp, [0] * pp
    progress = True
    while progress:
        progress = False
        for rank in range(pp):
            while position[rank] < len(work[rank]):
                now = work[rank][position[rank]]
                before = predecessor(now, last=last)
                if before is not None and before not in ends:
                    break
                crosses = before is not None and before.stage != now.stage
                ready = 0.0 if before is None else ends[before] + crosses * hop_seconds
                seconds = forward[now.stage] if now.is_forward else backward[now.stage]
                ends[now] = max(clock[rank], ready) + seconds
                sends = now.stage != (last if now.is_forward else 0)
                clock[rank] = ends[now] + hop_blocks * sends * hop_seconds
                position[rank] += 1
                progress = True
    assert all(done == len(passes) for done, passes in zip(position, work, strict=True)), "The schedule deadlocks."
    return Timeline(seconds=max(ends.values()), peak_chunks=tuple(map(peak, work)))


def order(rank: int, *, pp: int, vpp: int, num_microbatches: int) -> list[Pass]:
    """
    Everything that one rank does, in order: warm-up forwards, one forward and one backward in turn, the rest.

    Groups of pp micro-batches pass through a rank's first chunk, then through its second, and so on.
    """
    group = pp if vpp > 1 else num_microbatches
    visits = [
        (chunk, microbatch)
        for start in range(0, num_microbatches, group)
        for chunk in range(vpp)
        for microbatch in range(start, min(start + group, num_microbatches))
    ]
    forwards = [Pass(True, chunk * pp + rank, microbatch) for chunk, microbatch in visits]
    backwards = [Pass(False, (vpp - 1 - chunk) * pp + rank, microbatch) for chunk, microbatch in visits]
    warmup = min(warmup_chunks(rank, pp=pp, vpp=vpp), len(forwards))
    steady = [one for pair in zip(forwards[warmup:], backwards, strict=False) for one in pair]
    return [*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :]]


def warmup_chunks(rank: int, *, pp: int, vpp: int) -> int:
    """Forward chunks before the first backward one."""
    if vpp == 1:
        return pp - rank - 1
    return 2 * (pp - rank - 1) + (vpp - 1) * pp


def predecessor(now: Pass, *, last: int) -> Pass | None:
    """What must end before this can start; nothing in front of the first stage's forward."""
    if now.is_forward:
        return Pass(True, now.stage - 1, now.microbatch) if now.stage else None
    if now.stage == last:
        return Pass(True, last, now.microbatch)
    return Pass(False, now.stage + 1, now.microbatch)


def peak(passes: Sequence[Pass]) -> int:
    """Most chunks between their forward and the end of their backward."""
    alive = most = 0
    for one in passes:
        alive += 1 if one.is_forward else -1
        most = max(most, alive)
    return most
