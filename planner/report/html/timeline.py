"""The pipeline of a plan's step, packed for drawing: start and duration of every pass on each rank."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from costmodel.pipelines.simulator import Pass
from costmodel.step.estimate import PARTS, Estimate, SimulatedStep, simulate_step
from costmodel.tables import Facts

MOST_PASSES = 400_000
"""Passes of a step, forward and backward, beyond which it is not simulated: about a second."""

MOST_DRAWN = 110_000
"""Pieces of one timeline that a page holds, 1.2 MB; a longer one keeps its beginning and its end."""

KINDS = ("forward", "backward", "weight")

TICKS = 2**31
"""Ticks into which a step is divided: half a nanosecond of one second."""

WHOLE, UPPER, LOWER = 0, 1, 2
"""Lanes of a rank's line: its whole height, or half of it where a forward and a backward pass run at the same time."""


class Piece(NamedTuple):
    """One rectangle: a pass, or its part of a block of passes, in seconds, on a lane of its rank."""

    kind: str
    rank: int
    stage: int
    microbatch: int
    start: float
    seconds: float
    lane: int


def timeline_of(facts: Facts, estimate: Estimate) -> dict[str, Any] | None:
    """Return the packed timeline of an estimated strategy; None where its step is not simulated."""
    simulated = simulate_step(facts, estimate.strategy, most_passes=MOST_PASSES)
    if simulated is None:
        return None
    strategy = estimate.strategy
    every = [list(own) for _, own in groupby(pieces(simulated), key=lambda piece: piece.rank)]
    most = MOST_DRAWN // len(every)
    cut = any(len(own) > most for own in every)
    shown = [[*own[: most // 2], *own[-(most // 2) :]] if len(own) > most else own for own in every]
    end = simulated.timeline.seconds + sum(simulated.other_seconds.values())
    return {
        "pp": strategy.pp,
        "vpp": strategy.vpp,
        "microbatches": estimate.num_microbatches,
        "passes": sum(map(len, every)),
        "cut": cut,
        "pipeline": simulated.timeline.seconds,
        "end": end,
        "beside": [[name, simulated.other_seconds[name]] for name in PARTS if simulated.other_seconds.get(name)],
        **_pack(shown, num_microbatches=estimate.num_microbatches, tick=end / TICKS),
    }


def pieces(simulated: SimulatedStep) -> Iterator[Piece]:
    """
    Yield the passes one by one, rank by rank in the order of time.

    A block that holds several passes is divided: the halves of a backward pass follow each other, a forward pass
    that overlaps them has the upper half of the line.
    """
    for _, block in groupby(simulated.timeline.passes, key=lambda one: (one.rank, one.start, one.end)):
        yield from _split_block(list(block), simulated)


def _split_block(block: Sequence[Pass], simulated: SimulatedStep) -> Iterator[Piece]:
    forward = [one for one in block if one.kind == "forward"]
    others = [one for one in block if one.kind != "forward"]
    lanes = (UPPER, LOWER) if forward and others else (WHOLE, WHOLE)
    for lane, passes in zip(lanes, (forward, others), strict=True):
        own = [float(getattr(simulated.passes, one.kind)[one.stage]) for one in passes]
        start = block[0].start
        for one, seconds in zip(passes, own, strict=True):
            length = (one.end - one.start) * seconds / sum(own) if sum(own) else 0.0
            yield Piece(one.kind, one.rank, one.stage, one.microbatch, start, length, lane)
            start += length


def _pack(ranks: Sequence[Sequence[Piece]], *, num_microbatches: int, tick: float) -> dict[str, Any]:
    """
    Pack all pieces into columns, rank by rank: base64 of little-endian 32-bit integers.

    ``start`` is in ticks; ``code`` is ``((stage * microbatches + microbatch) * 4 + lane) * 4 + kind``. ``lengths`` has
    the ticks of each kind, lane and stage, which are the same for all micro-batches.
    """
    lengths: dict[str, int] = {}
    start, code = [], []
    for piece in (piece for own in ranks for piece in own):
        kind = KINDS.index(piece.kind)
        start.append(round(piece.start / tick))
        code.append(((piece.stage * num_microbatches + piece.microbatch) * 4 + piece.lane) * 4 + kind)
        lengths.setdefault(f"{kind} {piece.lane} {piece.stage}", round(piece.seconds / tick))
    return {
        "tick": tick,
        "counts": [len(own) for own in ranks],
        "lengths": lengths,
        "start": _column(start),
        "code": _column(code),
    }


def _column(values: Iterable[int]) -> str:
    return base64.b64encode(np.array(list(values), dtype="<u4").tobytes()).decode("ascii")
