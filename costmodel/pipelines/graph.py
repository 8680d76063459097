"""The blocks of a pipeline's ranks and their dependencies: a graph whose longest path is the duration of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.pipelines.orders import BACKWARD, FORWARD, NONE, Blocks, order
from costmodel.record import record
from costmodel.strategy import BIDIRECTIONAL, Schedule
from costmodel.tables import Array

Seconds: TypeAlias = Sequence[float] | NDArray[np.float64]

"""Seconds of each virtual stage, in model order."""

SAME_SLOPE = 1e-9

"""Largest relative difference of two slopes that counts as rounding."""

KEPT_GRAPHS = ((2**12, 64), (2**62, 2))

"""Largest numbers of passes, and the graphs kept of at most so many: 60 bytes per pass; affects only memory."""

KEPT_ORDERS = ((2**12, 64), (2**16, 12), (2**62, 2))

"""Largest numbers of passes, and the orders kept of at most so many: 40 bytes per pass; affects only memory."""

Built = TypeVar("Built")


def _keep(kept: Sequence[tuple[int, int]], build: Callable[..., Built]) -> Callable[..., Built]:
    """Cache what is built of pipelines, many small ones and few large ones."""
    builders = [(most, lru_cache(maxsize=number)(build)) for most, number in kept]

    def build_once(schedule: Schedule, pp: int, vpp: int, num_microbatches: int, *others: int) -> Built:
        num_passes = 2 * pp * vpp * num_microbatches
        own = next(builder for most, builder in builders if num_passes <= most)
        return own(schedule, pp, vpp, num_microbatches, *others)

    return build_once


@partial(_keep, KEPT_GRAPHS)
def graph_of(schedule: Schedule, pp: int, vpp: int, num_microbatches: int, group: int) -> Graph:
    """
    Build the graph of a pipeline's blocks and their dependencies.

    Parameters
    ----------
    schedule, pp, vpp, num_microbatches, group
        As in :func:`costmodel.pipelines.orders.order`; see :func:`costmodel.pipelines.orders.has_order`.
    """
    of_each_rank = tuple(
        order(schedule, rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group) for rank in range(pp)
    )
    sizes = [len(blocks) for blocks in of_each_rank]
    blocks, stops = np.concatenate(of_each_rank), np.cumsum(sizes)
    num_blocks, num_passes = len(blocks), pp * vpp * num_microbatches
    place = np.full((2, num_passes), num_blocks)
    for kind in (FORWARD, BACKWARD):
        has = np.flatnonzero(blocks[:, kind] != NONE)
        place[kind, blocks[has, kind]] = has
    previous = np.arange(num_blocks) - 1
    previous[stops - sizes] = num_blocks
    forward, backward = blocks[:, FORWARD], blocks[:, BACKWARD]
    before = np.where(
        forward >= num_microbatches, place[FORWARD, (forward - num_microbatches) % num_passes], num_blocks
    )
    waits = (backward != NONE) & (backward < num_passes - num_microbatches)
    behind = np.where(waits, place[BACKWARD, (backward + num_microbatches) % num_passes], num_blocks)
    return Graph(
        blocks=blocks,
        rank=np.repeat(np.arange(pp), sizes),
        stops=stops,
        num_microbatches=num_microbatches,
        previous=previous,
        before=before,
        behind=behind,
        depth=_depths((stops - sizes).tolist(), stops.tolist(), before.tolist(), behind.tolist()),
    )


def _depths(firsts: list[int], stops: list[int], before: list[int], behind: list[int]) -> NDArray[np.int64]:
    """Count the blocks on the longest way to each block; each is visited once, and once more if it waited."""
    unknown, num_blocks = -1, stops[-1]
    depths = [unknown] * num_blocks + [0]
    position, last, ready = firsts, [0] * len(stops), list(range(len(stops)))
    waiting: dict[int, list[int]] = {}
    while ready:
        rank = ready.pop()
        one, stop, depth = position[rank], stops[rank], last[rank]
        while one < stop:
            first, second = depths[before[one]], depths[behind[one]]
            if first == unknown or second == unknown:
                waiting.setdefault(before[one] if first == unknown else behind[one], []).append(rank)
                break
            if first > depth:
                depth = first
            if second > depth:
                depth = second
            depth += 1
            depths[one] = depth
            if one in waiting:
                ready += waiting.pop(one)
            one += 1
        position[rank], last[rank] = one, depth
    assert unknown not in depths, "The schedule deadlocks."
    return np.array(depths[:num_blocks])


def _end_in_order(waits: Sequence[Sequence[int]], durations: Sequence[float]) -> list[float]:
    """
    Return the second at which each block ends, and 0 after the last one, which stands for no block.

    Parameters
    ----------
    waits
        Blocks that each depends on, three of them, no later one among them.
    durations
        Seconds of each block.
    """
    ends = [0.0] * (len(durations) + 1)
    for one, (previous, before, behind, duration) in enumerate(zip(*waits, durations, strict=True)):
        start, other = ends[previous], ends[before]
        if other > start:
            start = other
        other = ends[behind]
        ends[one] = (other if other > start else start) + duration
    return ends


@record(frozen=True, kw_only=True, slots=True)
class Graph:
    """
    Blocks of all ranks and their dependencies; the number of blocks stands for no block.

    Parameters
    ----------
    blocks, rank
        All blocks, rank by rank; the rank of each.
    stops
        Index after the last block of each rank.
    num_microbatches
        Divisor that separates a pass into its virtual stage and its micro-batch.
    previous, before, behind
        Dependencies of each block: the previous block on its rank, the forward pass of the previous virtual stage,
        the backward pass of the next one.
    depth
        Blocks on the longest way to each block, itself included.
    """

    blocks: Blocks
    rank: NDArray[np.int64]
    stops: NDArray[np.int64]
    num_microbatches: int
    previous: NDArray[np.int64]
    before: NDArray[np.int64]
    behind: NDArray[np.int64]
    depth: NDArray[np.int64]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Blocks in an order in which none depends on a later one."""
        return np.argsort(self.depth, kind="stable")

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Index of the first block of each rank."""
        return np.concatenate([[0], self.stops[:-1]])

    @property
    def rank_blocks(self) -> list[Blocks]:
        """Blocks of each rank."""
        return np.split(self.blocks, self.stops[:-1])

    def block_seconds(
        self, forward: Seconds, backward: Seconds, weight: Seconds, overlapped_fraction: float
    ) -> NDArray[np.float64]:
        """Return the seconds of each block."""
        stages = self.blocks // self.num_microbatches
        kinds = [np.append(kind, 0.0)[stages[:, column]] for column, kind in enumerate((forward, backward, weight))]
        together = (self.blocks[:, FORWARD] != NONE) & (self.blocks[:, BACKWARD] != NONE)
        return np.asarray(np.where(together, overlapped_fraction, 1.0) * sum(kinds))

    def ends(self, seconds: NDArray[np.float64], hop: float = 0.0, blocks: bool = False) -> NDArray[np.float64]:
        """Return the second at which each block ends: as soon as its rank and its dependencies allow."""
        num_blocks, sequence = len(self.blocks), self.sequence
        renumbered = np.empty(num_blocks + 1, dtype=np.int64)
        renumbered[sequence], renumbered[num_blocks] = np.arange(num_blocks), num_blocks
        waits = [renumbered[each[sequence]].tolist() for each in (self.previous, self.before, self.behind)]
        if hop:
            return self._ends_with_hops(seconds, waits, hop, blocks)
        return np.array(_end_in_order(waits, seconds[sequence].tolist()))[renumbered[:num_blocks]]

    def _ends_with_hops(
        self, seconds: NDArray[np.float64], waits: list[list[int]], hop: float, blocks: bool
    ) -> NDArray[np.float64]:
        """Return the second at which each block ends, with transfers between ranks."""
        rank = np.append(self.rank, NONE)
        crossed = [hop * ((rank[each] != self.rank) & (rank[each] != NONE)) for each in (self.before, self.behind)]
        sends = np.zeros(len(rank))
        for each in (self.before, self.behind):
            sends[each[rank[each] != self.rank]] = blocks * hop
        sends[-1] = 0.0
        ends, sequence = [0.0] * len(rank), self.sequence
        position = np.empty(len(self.blocks), dtype=np.int64)
        position[sequence] = np.arange(len(self.blocks))
        columns = (seconds, sends[self.previous], *crossed)
        rows = zip(*waits, *(column[sequence].tolist() for column in columns), strict=True)
        for one, (previous, before, behind, duration, busy, to_forward, to_backward) in enumerate(rows):
            start = max(ends[previous] + busy, ends[before] + to_forward, ends[behind] + to_backward)
            ends[one] = start + duration
        return np.array(ends)[position]

    def period_seconds(self, ends: NDArray[np.float64], stride: int, *, size: int) -> float | None:
        """
        Seconds between the end of a stride of micro-batches and the end of the next one, if equal for all blocks.

        None unless both strides are the same blocks but for their micro-batches. A block of the second stride, or after
        it, must not depend on one before the stride that precedes its own. Additional strides, inserted after the
        second one, then take as long.

        Parameters
        ----------
        ends
            Second at which each block ends; every rank must have equally many.
        stride, size
            Number of micro-batches, and the number of a rank's blocks for them.
        """
        num_ranks, num_blocks = len(self.stops), len(self.blocks)
        rows, of_rank = ends.reshape(num_ranks, -1), self.blocks.reshape(num_ranks, -1, self.blocks.shape[1])
        now = rows[0, rows.shape[1] // 2 - size]  # what has ended by any moment waits for nothing that has not
        first = (rows <= now).sum(axis=1, keepdims=True)
        if first.max() + 2 * size > rows.shape[1]:
            return None
        one, other = first + np.arange(size), first + np.arange(size, 2 * size)
        shifts = np.take_along_axis(rows, other, axis=1) - np.take_along_axis(rows, one, axis=1)
        early, late = (np.take_along_axis(of_rank, which[..., None], axis=1) for which in (one, other))
        period = float(shifts[0, 0])
        if (
            np.abs(shifts - period).max() > SAME_SLOPE * period
            or (np.where(early == NONE, NONE, early + stride) != late).any()
        ):
            return None
        part = np.clip((np.arange(rows.shape[1]) - first) // size, -1, 2).ravel()  # the two strides are 0 and 1
        for waits in (self.previous, self.before, self.behind):
            known = np.flatnonzero(waits < num_blocks)
            behind = part[known] - part[waits[known]]
            if not ((behind >= 0) & (behind <= 1)).all():
                return None
        return period

    def spans(self, ends: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds from the start of each rank's first block to the end of its last one."""
        first, last = self.firsts, self.stops - 1
        return np.asarray(ends[last] - (ends[first] - seconds[first]))


Ints = NDArray[np.int64]

STRIDES = 4

"""Strides of micro-batches, each at least as many as ranks, after which most pipelines become periodic."""

WORTH_A_TRY = 1.5

"""
Least ratio of micro-batches to the few that may repeat, from which repetition is tried; affects only run time.
"""

FEW_BLOCKS = 16

"""Largest mean number of blocks of a wavefront, of all strategies, that are ended one by one; affects only run time."""

ENDS_AT_ONCE = 2**21

"""Blocks times strategies that are simulated at once; affects only memory."""


def spans_seconds(
    schedule: Schedule,
    *,
    forward: Array,
    backward: Array,
    weight: Array,
    pp: int,
    vpp: int,
    num_microbatches: int,
    group: int,
) -> Array:
    r"""
    Seconds from the first to the last pass of the rank that takes longest, for each strategy: shape (C,).

    Derivation: a pipeline is a max-plus linear system; a block ends its own seconds after the last of its dependencies.
    Long steps are not simulated whole. If all blocks of a stride of micro-batches end equally long after those of the
    previous stride, so do all further ones,

    .. math:: T(m) = T(m_0) + \frac{m - m_0}{s} \lambda

    for a stride of s micro-batches that takes :math:`\lambda`. For strategies that are not periodic, twice as many
    strides are simulated, up to all micro-batches.

    Parameters
    ----------
    schedule, pp, vpp, num_microbatches, group
        As in :func:`costmodel.pipelines.orders.order`.
    forward, backward, weight
        As in :func:`costmodel.pipelines.simulator.simulate`, for each strategy: shape (C, pp * vpp).

    References
    ----------
    Baccelli et al., Synchronization and Linearity, 1992, section 3.7: max-plus linear systems become periodic.
    """
    finite = np.isfinite(forward + backward + weight).all(axis=1)
    spans = np.where(finite, 0.0, np.inf)
    passes = np.stack([forward, backward, weight]).transpose(0, 2, 1)
    period = 2 * group if schedule in BIDIRECTIONAL else group
    stride, num_strides = period * -(-pp // period), STRIDES
    left = np.flatnonzero(finite)
    while len(left):
        few = num_strides * stride + num_microbatches % stride
        if WORTH_A_TRY * few > num_microbatches:
            spans[left], _ = _wavefronts(schedule, pp, vpp, num_microbatches, group, stride).spans(passes[..., left])
            break
        num_strides *= 2
        waves = _wavefronts(schedule, pp, vpp, few, group, stride)
        if waves.strides is not None:
            some, strides = waves.spans(passes[..., left])
            repeats = np.isfinite(strides)
            spans[left[repeats]] = (some + (num_microbatches - few) // stride * strides)[repeats]
            left = left[~repeats]
    return spans


@record(frozen=True, kw_only=True, slots=True)
class _Wavefronts:
    """
    Blocks of all ranks in the order of their depth.

    Parameters
    ----------
    stages
        Virtual stage of each pass of the distinct blocks, :data:`costmodel.pipelines.orders.NONE` without: (U, 3).
    block
        Index of each block's distinct block, shape (N,).
    waves
        First block of each wavefront, the one behind its last, and the two or three blocks that each depends on.
    firsts, lasts
        First and last block of each rank, shape (pp,).
    strides
        Blocks of a stride of micro-batches and those of the next one, shape (2, n); None if strides differ.
    """

    stages: Ints
    block: Ints
    waves: tuple[tuple[int, int, tuple[Ints, ...]], ...]
    firsts: Ints
    lasts: Ints
    strides: Ints | None

    def spans(self, passes: Array) -> tuple[Array, Array]:
        """
        Return the longest span of each strategy's ranks, and the seconds of a stride, NaN if no stride repeats.

        Parameters
        ----------
        passes
            Seconds of each kind of pass and virtual stage of each strategy, shape (3, pp * vpp, C).
        """
        none = np.zeros_like(passes[0, :1])
        durations = np.sum(
            [np.concatenate([kind, none])[self.stages[:, column]] for column, kind in enumerate(passes)], axis=0
        )
        at_once = max(1, ENDS_AT_ONCE // len(self.block))
        parts = [self._spans(durations[:, at : at + at_once]) for at in range(0, durations.shape[1], at_once)]
        spans, strides = (np.concatenate(each) for each in zip(*parts, strict=True))
        return spans, strides

    def _spans(self, durations: Array) -> tuple[Array, Array]:
        ends = self.ends(durations)
        starts = ends[self.firsts] - durations[self.block[self.firsts]]
        spans = (ends[self.lasts] - starts).max(axis=0)
        if self.strides is None:
            return spans, np.full_like(spans, np.nan)
        early, late = self.strides
        shifts = ends[late] - ends[early]
        stride = shifts[0]
        same = np.abs(shifts - stride).max(axis=0) <= SAME_SLOPE * stride
        return spans, np.where(same, stride, np.nan)

    def ends(self, durations: Array) -> Array:
        """Return the second at which each block ends, shape (N + 1, C); the last row stands for no block and is 0."""
        if durations.shape[1] * len(self.block) <= FEW_BLOCKS * len(self.waves):
            columns = zip(*(waits for _, _, waits in self.waves), strict=True)
            previous, *others = (np.concatenate(column).tolist() for column in columns)
            latest_of = (previous, others[0], others[-1])
            return np.array([_end_in_order(latest_of, each) for each in durations.T[:, self.block].tolist()]).T
        ends = np.zeros((len(self.block) + 1, durations.shape[1]))
        np.take(durations, self.block, axis=0, out=ends[:-1])
        longest = max(stop - start for start, stop, _ in self.waves)
        first, second = np.empty((2, longest, durations.shape[1]))
        take = ends.take  # one for each: of few blocks, NumPy takes longest to split an array
        for start, stop, (previous, *others) in self.waves:
            latest, more = first[: stop - start], second[: stop - start]
            take(previous, 0, latest, "clip")  # NumPy buffers what it might refuse
            for other in others:
                np.maximum(latest, take(other, 0, more, "clip"), out=latest)
            block = ends[start:stop]
            block += latest
        return ends


@partial(_keep, KEPT_ORDERS)
def _wavefronts(schedule: Schedule, pp: int, vpp: int, num_microbatches: int, group: int, stride: int) -> _Wavefronts:
    graph = graph_of(schedule, pp, vpp, num_microbatches, group)
    depth, in_order = graph.depth, graph.sequence
    position = np.append(np.empty_like(in_order), len(in_order))
    position[in_order] = np.arange(len(in_order))
    stages = np.where(graph.blocks == NONE, NONE, graph.blocks // num_microbatches)
    keys = (stages - NONE) @ (pp * vpp + 1) ** np.arange(3)  # NONE is -1
    _, first, block = np.unique(keys, return_index=True, return_inverse=True)
    different = stages[first]
    waits = [position[each[in_order]] for each in (graph.previous, graph.before, graph.behind)]
    nothing = len(in_order)
    if not ((waits[1] < nothing) & (waits[2] < nothing)).any():  # a block waits for one other rank
        waits = [waits[0], np.minimum(waits[1], waits[2])]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(depth)[1:])]).tolist()
    strides = _strides(graph, depth, schedule, stride)
    return _Wavefronts(
        stages=different,
        block=block.ravel()[in_order],
        waves=tuple((start, stop, tuple(each[start:stop] for each in waits)) for start, stop in pairwise(bounds)),
        firsts=position[graph.firsts],
        lasts=position[graph.stops - 1],
        strides=None if strides is None else position[strides],
    )


def _strides(graph: Graph, depth: Ints, schedule: Schedule, stride: int) -> Ints | None:
    """
    Return the blocks of a stride of micro-batches and of the next one, (2, n), from which all further ones follow.

    None unless both are the same blocks but for their micro-batches. A block of the second stride, or after it, must
    not depend on one before the stride that precedes its own. Additional strides, inserted after the second one, then
    take as long as the second.
    """
    size, further = _stride_blocks(graph, schedule, stride), stride // 2 if schedule in BIDIRECTIONAL else stride
    middle = graph.stops[0] // 2 - size
    if middle < 0:
        return None
    shallow = depth <= depth[middle]  # waits for nothing that is deeper
    first = graph.firsts + np.add.reduceat(shallow, graph.firsts)
    if (first + 2 * size > graph.stops).any():
        return None
    one, other = ((first[:, None] + np.arange(size) + later).ravel() for later in (0, size))
    early, late = graph.blocks[one], graph.blocks[other]
    if (np.where(early == NONE, NONE, early + further) != late).any():
        return None
    part = np.clip((np.arange(len(depth)) - first[graph.rank]) // size, -1, 2)  # the two strides are 0 and 1
    for waits in (graph.previous, graph.before, graph.behind):
        known = np.flatnonzero(waits < len(depth))
        behind = part[known] - part[waits[known]]
        if not ((behind >= 0) & (behind <= 1)).all():
            return None
    return np.stack([one, other])


def _stride_blocks(graph: Graph, schedule: Schedule, stride: int) -> int:
    """Return the number of blocks of each rank in a stride of a full pipeline; DualPipe's are two passes each."""
    if schedule == Schedule.DUALPIPE:
        return stride
    if schedule == Schedule.DUALPIPEV:
        return 2 * stride
    return int(graph.stops[0]) * stride // graph.num_microbatches
