"""
Simulation of a pipeline pass by pass: start and end of each pass of each micro-batch, for any ranks and chunks.

It uses no formula, only the order of each rank's passes (:mod:`costmodel.pipelines.orders`) and their dependencies. A
forward pass waits for that of the previous virtual stage, a backward pass for that of the next one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.pipelines.graph import SAME_SLOPE, STRIDES, WORTH_A_TRY, Graph, Seconds, graph_of
from costmodel.pipelines.orders import FORWARD, NONE, WEIGHT, Blocks, order, stages_of_rank
from costmodel.record import record
from costmodel.strategy import BIDIRECTIONAL, Schedule, default_microbatch_group

MOST_PASSES = 200_000
"""Number of passes that :func:`span_seconds` simulates at once; affects only run time, about a tenth of a second."""


class Pass(NamedTuple):
    """
    One pass of one virtual stage for one micro-batch.

    Parameters
    ----------
    kind
        ``forward``, ``backward`` (input gradients) or ``weight`` (weights' gradients).
    rank, stage, microbatch
        Rank that runs it; its virtual stage and micro-batch.
    start, end
        Seconds since the start of the step; equal for simultaneous passes, and for both halves of a backward pass.
    """

    kind: str
    rank: int
    stage: int
    microbatch: int
    start: float
    end: float


@record(frozen=True, kw_only=True, slots=True)
class Timeline:
    """
    One simulated step of a pipeline.

    Parameters
    ----------
    seconds
        Seconds from the first pass of all to the end of the last one.
    spans
        Seconds of each rank from its own first pass to the end of its last one.
    peak_chunks
        Most chunk activations alive at once, per rank. Each lives from the forward pass to the end of the backward
        pass, or of its second half.
    passes
        Every pass, rank by rank in its order; empty unless requested.
    """

    seconds: float
    spans: tuple[float, ...]
    peak_chunks: tuple[int, ...]
    passes: tuple[Pass, ...] = ()


def simulate(
    schedule: Schedule,
    *,
    forward: Seconds,
    backward: Seconds,
    weight: Seconds,
    pp: int,
    vpp: int,
    num_microbatches: int,
    group: int | None = None,
    p2p_seconds: float = 0.0,
    hop_blocks: bool = False,
    overlapped_fraction: float = 1.0,
    keep_passes: bool = False,
) -> Timeline:
    """
    Simulate one step of a pipeline.

    Parameters
    ----------
    schedule
        Pipeline schedule, which orders the passes of the ranks.
    forward, backward, weight
        Seconds of each virtual stage in model order, pp * vpp of them: forward pass; backward pass without weights'
        gradients; weights' gradients. Schedules with whole backward passes add the last two.
    pp, vpp, num_microbatches, group
        As in :func:`costmodel.pipelines.orders.order`; see :func:`costmodel.pipelines.orders.has_order`.
    p2p_seconds
        Seconds from one virtual stage to the next on another rank, either direction.
    hop_blocks
        True if a transfer blocks the sender; otherwise transfers overlap with computation.
    overlapped_fraction
        Time of a forward and a backward pass that run together (DualPipe's F&B), as a fraction of the sum of both.
    keep_passes
        True to return the passes.
    """
    graph = graph_of(schedule, pp, vpp, num_microbatches, group or int(default_microbatch_group(pp=pp, vpp=vpp)))
    seconds = graph.block_seconds(forward, backward, weight, overlapped_fraction)
    ends = graph.ends(seconds, p2p_seconds, hop_blocks)
    return Timeline(
        seconds=float(ends.max()),
        spans=tuple(graph.spans(ends, seconds).tolist()),
        peak_chunks=tuple(int(_alive(blocks).max()) for blocks in graph.rank_blocks),
        passes=_passes(graph, ends - seconds, ends) if keep_passes else (),
    )


def _passes(graph: Graph, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[Pass, ...]:
    return tuple(
        Pass(kind, rank, one // graph.num_microbatches, one % graph.num_microbatches, start, end)
        for block, rank, start, end in zip(
            graph.blocks.tolist(), graph.rank.tolist(), starts.tolist(), ends.tolist(), strict=True
        )
        for kind, one in zip(("forward", "backward", "weight"), block, strict=True)
        if one != NONE
    )


# --- how long it takes -------------------------------------------------------------------------------------


def span_seconds(
    schedule: Schedule,
    *,
    forward: Seconds,
    backward: Seconds,
    weight: Seconds,
    pp: int,
    vpp: int,
    num_microbatches: int,
    group: int | None = None,
) -> float:
    r"""
    Seconds from the first to the last pass of the rank that takes longest.

    Long steps are not simulated whole. Derivation: a pipeline is a max-plus linear system. If all passes of a stride of
    micro-batches end equally long after those of the previous stride, so do all further ones (1F1B; exact). Otherwise a
    pipeline is simulated whole up to :data:`MOST_PASSES` passes. Beyond, each further group of micro-batches takes
    equally long once the pipeline is full, the mean of its slowest cycle,

    .. math:: T(m) = T(m_3) + (m - m_3) \frac{T(m_3) - T(m_1)}{m_3 - m_1}

    with m, :math:`m_1, m_2, m_3` equal modulo the group. The pipeline counts as full if every rank has two equal slopes
    between them; otherwise twice as many micro-batches are simulated. A rank that is slowest by so little that others
    still determine the slope is counted by the path through all of its own passes. A cycle through several such ranks
    is not counted (too little by up to 0.3 % for one in fifty pipelines of random stages).

    Parameters
    ----------
    schedule, forward, backward, weight, pp, vpp, num_microbatches, group
        As in :func:`simulate`.
    """
    size = group or int(default_microbatch_group(pp=pp, vpp=vpp))
    pipeline = _Pipeline(
        schedule=schedule, forward=forward, backward=backward, weight=weight, pp=pp, vpp=vpp, group=size
    )
    per_microbatch = 2 * len(forward)
    period = 2 * size if schedule in BIDIRECTIONAL else size
    stride, fewest = period * -(-pp // period), 3 * max(pp, period)
    if (repeating := pipeline.repeating_span(num_microbatches, stride)) is not None:
        return repeating
    if per_microbatch * num_microbatches <= MOST_PASSES:
        return pipeline.span(num_microbatches)
    while True:
        first = fewest + (num_microbatches - fewest) % period
        last = first + 2 * stride
        if last >= num_microbatches:
            return pipeline.span(num_microbatches)
        spans = [pipeline.spans(count) for count in (first, first + stride, last)]
        early, late = ((spans[i + 1] - spans[i]) / stride for i in (0, 1))
        if (np.abs(late - early) <= SAME_SLOPE * late).all() or 2 * last * per_microbatch > MOST_PASSES:
            return pipeline.extrapolate(num_microbatches, num_simulated=last, spans=spans[-1], slopes=late)
        stride, fewest = 2 * stride, 2 * fewest


def fewest_passes(schedule: Schedule, *, pp: int, vpp: int, num_microbatches: int, group: int) -> int:
    """Smallest number of passes, forward and backward, that :func:`span_seconds` simulates."""
    period = 2 * group if schedule in BIDIRECTIONAL else group
    return 2 * pp * vpp * min(num_microbatches, 3 * max(pp, period))


@record(frozen=True, kw_only=True, slots=True)
class _Pipeline:
    """Description of a pipeline without its number of micro-batches."""

    schedule: Schedule
    forward: Seconds
    backward: Seconds
    weight: Seconds
    pp: int
    vpp: int
    group: int

    def spans(self, num_microbatches: int, *, late: int | None = None, delay: float = 0.0) -> NDArray[np.float64]:
        """Return the seconds of every rank from its first to its last pass; the last block of one rank may be late."""
        graph, seconds = self.blocks(num_microbatches)
        if late is not None:
            seconds[graph.stops[late] - 1] += delay
        return graph.spans(graph.ends(seconds), seconds)

    def blocks(self, num_microbatches: int) -> tuple[Graph, NDArray[np.float64]]:
        """Return the graph of all blocks, and the seconds of each."""
        graph = graph_of(self.schedule, self.pp, self.vpp, num_microbatches, self.group)
        return graph, graph.block_seconds(self.forward, self.backward, self.weight, 1.0)

    def span(self, num_microbatches: int) -> float:
        return float(self.spans(num_microbatches).max())

    def repeating_span(self, num_microbatches: int, stride: int) -> float | None:
        """Return the span extrapolate from few periodic micro-batches; None if they are not periodic, or not fewer."""
        few = STRIDES * stride + num_microbatches % stride
        if self.schedule != Schedule.ONE_F_ONE_B or WORTH_A_TRY * few > num_microbatches:
            return None
        graph, seconds = self.blocks(few)
        ends = graph.ends(seconds)
        period = graph.period_seconds(ends, stride, size=2 * self.vpp * stride)
        further = (num_microbatches - few) // stride
        return None if period is None else float(graph.spans(ends, seconds).max()) + further * period

    def rank_seconds(self, rank: int) -> float:
        """Return the seconds of one micro-batch on a rank, the mean of both directions if there are two."""
        stages = list(stages_of_rank(self.schedule, rank, pp=self.pp, vpp=self.vpp))
        every = (np.asarray(self.forward) + self.backward + self.weight)[stages]
        return float(every.mean() if self.schedule in BIDIRECTIONAL else every.sum())

    def extrapolate(
        self, num_microbatches: int, *, num_simulated: int, spans: NDArray[np.float64], slopes: NDArray[np.float64]
    ) -> float:
        """Return the span from the slopes, or from the path through each rank whose micro-batch is longer."""
        rest = num_microbatches - num_simulated
        paces = {rank: self.rank_seconds(rank) for rank in range(self.pp)}
        slower = {rank: pace for rank, pace in paces.items() if pace > float(slopes.max()) * (1 + SAME_SLOPE)}
        ways = [self.way_through(rank, pace, num_simulated) + rest * pace for rank, pace in slower.items()]
        return max([float((spans + rest * slopes).max()), *ways])

    def way_through(self, rank: int, pace: float, num_microbatches: int) -> float:
        """Return the longest span if one rank never waited: path to its first block, own blocks, path after."""
        own = self.spans(num_microbatches)
        delay = 2 * float(own.sum())
        return (
            float(self.spans(num_microbatches, late=rank, delay=delay).max())
            - delay
            - (float(own[rank]) - num_microbatches * pace)
        )


# --- what is alive -----------------------------------------------------------------------------------------


def alive_by_chunk(
    schedule: Schedule, *, rank: int, pp: int, vpp: int, num_microbatches: int, group: int | None = None
) -> NDArray[np.int64]:
    """
    Number of live activations of each chunk of a rank, at the moments with most of them.

    An activation is alive from its forward pass to the end of the backward pass, or of its second half. The memory of a
    rank with unequal chunks is the largest of these rows times its chunks' bytes.

    A moment is left out if another one has at least as many of all chunks. Derivation: the passes are visited in order;
    each forward pass adds an activation, each weights' gradient removes one.

    Parameters
    ----------
    schedule, rank, pp, vpp, num_microbatches, group
        As in :func:`costmodel.pipelines.orders.order`.

    Returns
    -------
    array
        Shape (n, vpp); (n, 2) if a rank holds a stage for each direction (DualPipe). The first column is then the stage
        with the rank's own number.
    """
    size = group or int(default_microbatch_group(pp=pp, vpp=vpp))
    period = 2 * size if schedule in BIDIRECTIONAL else size
    enough = 6 * max(pp, period)
    if schedule != Schedule.GPIPE and num_microbatches > enough:
        num_microbatches = enough + (num_microbatches - enough) % period
    return _alive_by_chunk(schedule, rank, pp, vpp, num_microbatches, size)


@lru_cache(maxsize=2**10)
def _alive_by_chunk(
    schedule: Schedule, rank: int, pp: int, vpp: int, num_microbatches: int, group: int
) -> NDArray[np.int64]:
    blocks = order(schedule, rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group)
    own = list(stages_of_rank(schedule, rank, pp=pp, vpp=vpp))
    added, freed = (blocks[:, [kind]] // num_microbatches == own for kind in (FORWARD, WEIGHT))
    alive = added.cumsum(axis=0) - freed.cumsum(axis=0) + freed  # before what the block frees
    falls = freed.any(axis=1)
    falls[-1] = True
    moments = alive[falls]  # after other blocks nothing is freed, so that the next one has at least as many
    pareto_front: list[tuple[int, ...]] = []
    while len(moments):  # none with the largest total is beaten by another one
        total = moments.sum(axis=1)
        most = sorted({*map(tuple, moments[total == total.max()].tolist())})
        pareto_front += most
        moments = moments[total < total.max()]
        moments = moments[(moments[:, None] > most).any(axis=2).all(axis=1)]
    found = np.array(pareto_front)
    found.setflags(write=False)
    return found


def _alive(blocks: Blocks) -> NDArray[np.int64]:
    """Count the activations alive after each forward and each weights' gradients among some blocks' passes."""
    passes = blocks != NONE
    changes = np.stack([passes[:, FORWARD] * 1, passes[:, WEIGHT] * -1], axis=1)
    alive: NDArray[np.int64] = changes.ravel().cumsum()
    return alive
