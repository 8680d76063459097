"""
Layouts of layers over virtual stages, and the layers of each pipeline rank.

Every formula that differs between ranks works on the few *different* ranks of a pipeline, not on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.model import Model
from costmodel.lowering.framework import SLOTS_AT_ENDS
from costmodel.models.flops import head_layers
from costmodel.pipelines.simulator import alive_by_chunk
from costmodel.record import record
from costmodel.strategy import BIDIRECTIONAL, V_SHAPED, Schedule, StageLayout, Strategy, Vocabulary
from costmodel.tables import Record, sum_last

Choice: TypeAlias = NDArray[np.int64] | int


def layers_per_chunk(num_layers: int, *, num_chunks: int, mtp_layers: int = 0) -> tuple[int, ...]:
    """
    Number of layers of each virtual stage in model order, those of multi-token prediction not counted.

    If the layers divide evenly, every virtual stage gets as many. Otherwise embedding, head and each layer of
    multi-token prediction count as one slot, slots are split evenly, and the first virtual stages get the remainder.

    Parameters
    ----------
    num_layers
        Layers of the model, at least ``num_chunks - 2``.
    num_chunks
        Virtual stages, pp * vpp.
    mtp_layers
        Layers of multi-token prediction, on the last virtual stage.

    References
    ----------
    Megatron-LM, ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``: embedding and
    head count as a layer each.

    >>> layers_per_chunk(80, num_chunks=8)
    (10, 10, 10, 10, 10, 10, 10, 10)
    >>> layers_per_chunk(126, num_chunks=16)[:2], layers_per_chunk(126, num_chunks=16)[-1]
    ((7, 8), 7)
    >>> layers_per_chunk(61, num_chunks=32, mtp_layers=1)[:2], layers_per_chunk(61, num_chunks=32, mtp_layers=1)[-2:]
    ((1, 2), (2, 0))
    >>> layers_per_chunk(2, num_chunks=4, mtp_layers=2)
    (1, 1, 0, 0)
    """
    if num_layers % num_chunks == 0:
        return (num_layers // num_chunks,) * num_chunks
    base, remainder = divmod(num_layers + SLOTS_AT_ENDS + mtp_layers, num_chunks)
    sizes = [base + 1] * remainder + [base] * (num_chunks - remainder)
    sizes[0] -= 1
    sizes[-1] -= 1 + mtp_layers
    missing = max(-sizes[-1], 0)
    sizes[-1] += missing
    sizes[-2] -= missing
    ends = [min(end, num_layers) for end in accumulate(max(size, 0) for size in sizes)]
    return tuple(end - begin for begin, end in pairwise([0, *ends]))


def layers_with_lighter_last_stage(num_layers: int, *, num_stages: int, head_layers: float) -> tuple[int, ...]:
    """
    Number of layers of each stage if the last one has fewer, so that the longest stage is as short as possible.

    Among equally long layouts, the one that moves fewest layers. The other stages split theirs evenly, and later ranks
    get the remainder (the first one, with embedding and most micro-batches in flight, is the fullest).

    Parameters
    ----------
    num_layers, num_stages
        Layers of the model; stages, one per rank.
    head_layers
        Number of layers that take as long as the head.

    References
    ----------
    Yeung et al., arXiv:2411.05288, section 6.1, "Redis".

    >>> layers_with_lighter_last_stage(32, num_stages=16, head_layers=2.4)
    (2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 0)
    >>> layers_with_lighter_last_stage(48, num_stages=16, head_layers=0.6)[-2:]
    (3, 3)
    """
    if num_stages == 1:
        return (num_layers,)
    even = -(-num_layers // num_stages)
    longest = {last: max(-(-(num_layers - last) // (num_stages - 1)), last + head_layers) for last in range(even + 1)}
    last = min(longest, key=lambda own: (longest[own], -own))
    base, remainder = divmod(num_layers - last, num_stages - 1)
    return (*(base,) * (num_stages - 1 - remainder), *(base + 1,) * remainder, last)


GROUPS_IN_FLIGHT = 3
"""Number of groups of micro-batches after which interleaved 1F1B reaches its peak of live activations."""


@lru_cache(maxsize=2**13)
def activation_imbalance(sizes: tuple[int, ...], *, rank: int, pp: int) -> float:
    """
    Activations alive at the peak over those of as many average chunks. Unit: none, at least 1.

    Early chunks have more micro-batches in flight than late ones: a rank whose late chunks are shorter holds more.

    Derivation: the simulated order gives the live activations of every chunk at each moment
    (:func:`costmodel.pipelines.simulator.alive_by_chunk`). They are weighted with the chunks' layers. The largest sum
    is divided by the largest number of chunks times the average size.

    Parameters
    ----------
    sizes
        Layers of the rank's chunks.
    rank, pp
        Number of the pipeline rank, and number of ranks.

    >>> [round(activation_imbalance(sizes, rank=0, pp=4), 3) for sizes in ((2, 2), (1, 2), (2, 1))]
    [1.0, 1.0, 1.152]
    """
    if list(sizes) == sorted(sizes):
        return 1.0
    vpp = len(sizes)
    alive = alive_by_chunk(Schedule.ONE_F_ONE_B, rank=rank, pp=pp, vpp=vpp, num_microbatches=GROUPS_IN_FLIGHT * pp)
    average = sum(sizes) / len(sizes) * alive.sum(axis=1).max()
    return max(1.0, float((alive @ np.array(sizes)).max() / average))


@record(frozen=True, kw_only=True, slots=True)
class Stages(Record):
    """
    The different stretches of pipeline ranks of a strategy, on trailing axes: U ranks, K kinds of layers.

    A rank with a stage for each direction (DualPipe) runs half of the micro-batches with either. Its entries are the
    mean of both stages, as a micro-batch sees them; :func:`costmodel.memory.whole_stages` has both.

    Parameters
    ----------
    rank
        Pipeline rank, first of a stretch of equal ranks (it holds the most micro-batches), shape (..., U).
    num_ranks
        Number of ranks of that stretch; 0 for a rank that pads the array; shape (..., U).
    layers
        Layers of each kind on that rank, those of multi-token prediction on the last one included; shape (..., U, K).
    mtp_layers
        Layers of multi-token prediction among them.
    first, last
        Fraction of the embedding, and of the head, that the rank holds, mostly 0 or 1; shape (..., U).
    full_layers
        Layers that are recomputed in full under any decision of the strategy; shape (..., U, K).
    largest_chunk
        Layers of the rank's largest virtual stage, shape (..., U).
    last_chunk
        Layers of its last virtual stage, those of multi-token prediction not counted, shape (..., U).
    in_flight_imbalance
        Activations alive at the peak over those of as many chunks of average size, at least 1; shape (..., U).
    all_layers
        Layers of each kind over all ranks, shape (..., K).
    in_front
        Layers of each kind in the first chunks of the ranks before the stretch's last one; shape (..., U, K).
    """

    rank: NDArray[np.float64]
    num_ranks: NDArray[np.int64]
    layers: NDArray[np.float64]
    mtp_layers: NDArray[np.float64]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    full_layers: NDArray[np.float64]
    largest_chunk: NDArray[np.float64]
    last_chunk: NDArray[np.float64]
    in_flight_imbalance: NDArray[np.float64]
    all_layers: NDArray[np.float64]
    in_front: NDArray[np.float64]

    def sum_over_layers(self, each: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum a quantity of one layer of each kind, (..., K), over all layers of each rank: (..., U)."""
        return sum_last(self.layers * each[..., None, :])


@record(frozen=True, kw_only=True, slots=True)
class _Layout:
    """Decisions that determine the layout of layers, one value each."""

    pp: int
    vpp: int
    schedule: int
    vocabulary: int

    @property
    def chunks(self) -> NDArray[np.int64]:
        """Virtual stages of each rank, shape (pp, vpp); (pp, 2) for DualPipe. V-shapes reverse with every chunk."""
        if self.schedule in BIDIRECTIONAL:
            return np.stack([np.arange(self.pp), np.arange(self.pp)[::-1]], axis=1)
        stages = np.arange(self.pp * self.vpp).reshape(self.vpp, self.pp)
        if self.schedule in V_SHAPED:
            stages[1::2] = stages[1::2, ::-1]
        return stages.T

    def layers_per_chunk(self, model: Model) -> tuple[int, ...]:
        """Return the number of layers of each virtual stage."""
        if self.vocabulary == Vocabulary.REDISTRIBUTED:
            return layers_with_lighter_last_stage(
                model.num_layers, num_stages=self.pp * self.vpp, head_layers=head_layers(model)
            )
        if self.vocabulary > Vocabulary.REDISTRIBUTED:
            base, remainder = divmod(model.num_layers, self.pp * self.vpp)
            return (base + 1,) * remainder + (base,) * (self.pp * self.vpp - remainder)
        return layers_per_chunk(model.num_layers, num_chunks=self.pp * self.vpp, mtp_layers=len(model.mtp_layers))

    def find_imbalance(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the imbalance of each rank's chunks, shape (pp,); 1 in orders other than 1F1B."""
        if self.vpp == 1 or self.schedule != Schedule.ONE_F_ONE_B:
            return np.ones(self.pp)
        ranks = enumerate(map(tuple, sizes.tolist()))
        return np.array([activation_imbalance(own, rank=rank, pp=self.pp) for rank, own in ranks])

    def layers_of_each_kind(self, model: Model) -> NDArray[np.int64]:
        """Return the number of layers of each kind of each virtual stage, shape (pp * vpp, K)."""
        before, ends = _layers_before(model), np.cumsum(self.layers_per_chunk(model))
        return np.asarray(before[ends] - before[np.concatenate([[0], ends[:-1]])])

    def share(self, stage: int) -> NDArray[np.float64]:
        """Return the fraction of the embedding (stage 0) or the head (stage -1) on each rank, shape (pp,)."""
        if self.vocabulary > Vocabulary.REDISTRIBUTED:
            return np.full(self.pp, 1 / self.pp)
        holds = self.chunks == stage % (self.pp * self.vpp)
        return np.asarray(holds.mean(axis=1) if self.schedule in BIDIRECTIONAL else holds.any(axis=1), dtype=np.float64)


# --- of a strategy -----------------------------------------------------------------------------------------


def stage_layers(strategy: Strategy, model: Model) -> tuple[int, ...]:
    """
    Number of layers of each virtual stage of a strategy in model order, those of multi-token prediction not counted.

    It is that of its layout, otherwise of its decisions. Every cost, report and export of a strategy uses this
    function.
    """
    if strategy.layout is not None:
        return strategy.layout.layers
    dealing = _Layout(pp=strategy.pp, vpp=strategy.vpp, schedule=strategy.schedule, vocabulary=strategy.vocabulary)
    return dealing.layers_per_chunk(model)


def stage_layout(strategy: Strategy, model: Model) -> StageLayout:
    """Return the layout of a strategy, explicit even if its decisions imply it."""
    return strategy.layout or StageLayout(
        layers=stage_layers(strategy, model),
        recompute=(strategy.recompute,) * strategy.pp,
        full_layers=(0,) * strategy.pp,
        activation_offload=(strategy.activation_offload,) * strategy.pp,
    )


def settle_layout(strategy: Strategy, model: Model, layout: StageLayout) -> Strategy:
    """
    Return a strategy with a layout in its canonical form: without one if its decisions imply that layout.

    Even stages and custom layouts are costed by different laws. Two forms of one strategy would have two costs.
    """
    plain = replace(strategy, layout=None)
    return plain if layout == stage_layout(plain, model) else replace(strategy, layout=layout)


# --- of a model --------------------------------------------------------------------------------------------


def layers_between(model: Model, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """
    Number of layers of each kind between positions in the model, one row per pair of positions: (S, K).

    Derivation: the layers of each kind before every position are counted once; the difference of two counts is the
    number between.
    """
    before = _layers_before(model)
    return np.asarray(before[ends] - before[starts], dtype=np.float64)


def layers_of_each_kind(model: Model) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    Number of layers of each kind, and number of those in multi-token prediction; shape (K,) each.

    Derivation: a count over the model's layers; the first number includes the second one.
    """
    mtp = _mtp_layers(model).astype(np.float64)
    return _layers_before(model)[-1] + mtp, mtp


@lru_cache(maxsize=2**10)
def _ranks(
    model: Model, layout: _Layout, select: Callable[[list[tuple[float, ...]]], list[int]]
) -> NDArray[np.float64]:
    """
    Selected ranks of a pipeline, and the layers before each.

    Rows of (rank, first, last, largest and last chunk, imbalance, layers per kind, layers per kind of first chunks
    before).
    """
    mtp_layers, per_chunk = _mtp_layers(model), layout.layers_of_each_kind(model)
    per_rank = per_chunk[layout.chunks].sum(axis=1) / (2 if layout.schedule in BIDIRECTIONAL else 1)
    first, last = layout.share(0), layout.share(-1)
    per_rank = per_rank + np.outer(last, mtp_layers)
    chunks = per_chunk.sum(axis=1)[layout.chunks]
    columns = [first, last, chunks.max(axis=1), chunks[:, -1], layout.find_imbalance(chunks), per_rank]
    stages = [tuple(row) for row in np.column_stack(columns).tolist()]
    selected = select(stages)
    until = np.array([*selected[1:], layout.pp]) - 1
    in_front = np.concatenate([np.zeros((1, len(mtp_layers))), per_chunk[layout.chunks[:, 0]].cumsum(axis=0)])[until]
    own = np.array([(rank, *stages[rank]) for rank in selected], dtype=np.float64)
    return np.concatenate([own, in_front], axis=1)


@lru_cache(maxsize=64)
def _layers_before(model: Model) -> NDArray[np.int64]:
    """Number of layers of each kind before layer i, shape (num_layers + 1, K)."""
    index = {layer: position for position, layer in enumerate(model.kinds)}
    one_hot = np.zeros((model.num_layers + 1, len(index)), dtype=np.int64)
    for position, layer in enumerate(model.layers):
        one_hot[position + 1, index[layer]] = 1
    return one_hot.cumsum(axis=0)


@lru_cache(maxsize=64)
def _mtp_layers(model: Model) -> NDArray[np.int64]:
    """Number of layers of each kind in multi-token prediction, shape (K,)."""
    return np.array([model.mtp_layers.count(kind) for kind in model.kinds], dtype=np.int64)


def stages(
    model: Model,
    *,
    pp: Choice,
    vpp: Choice,
    schedule: Choice = Schedule.ONE_F_ONE_B,
    vocabulary: Choice = Vocabulary.ENDS,
) -> Stages:
    """
    Return the different pipeline ranks of strategies, with their layers.

    Parameters
    ----------
    model
        Model whose layers are assigned.
    pp, vpp, schedule, vocabulary
        Decisions, scalars or arrays of one shape.
    """
    return _stages(model, (pp, vpp, schedule, vocabulary), select=_different)


def virtual_stage_layers(
    model: Model,
    *,
    pp: int,
    vpp: int,
    schedule: int = Schedule.ONE_F_ONE_B,
    vocabulary: int = Vocabulary.ENDS,
) -> NDArray[np.float64]:
    """
    Number of layers of each kind of each virtual stage of one strategy in model order: (pp * vpp, K).

    Derivation: :func:`layers_per_chunk` (or the layout of the vocabulary) splits the list of layers; those of
    multi-token prediction are on the last stage.
    """
    layers = _Layout(pp=pp, vpp=vpp, schedule=schedule, vocabulary=vocabulary).layers_of_each_kind(model)
    layers[-1] += _mtp_layers(model)
    return layers.astype(np.float64)


def every_stage(
    model: Model,
    *,
    pp: int,
    vpp: int,
    schedule: int = Schedule.ONE_F_ONE_B,
    vocabulary: int = Vocabulary.ENDS,
) -> Stages:
    """Return every pipeline rank of one strategy with its layers, equal ranks included: U = pp."""
    return _stages(model, (pp, vpp, schedule, vocabulary), select=_every)


def _every(stages: list[tuple[float, ...]]) -> list[int]:
    return list(range(len(stages)))


def _different(stages: list[tuple[float, ...]]) -> list[int]:
    """Return the first rank of each stretch of equal neighbours."""
    return [rank for rank, own in enumerate(stages) if not rank or own != stages[rank - 1]]


def _stages(
    model: Model,
    decisions: tuple[Choice, ...],
    *,
    select: Callable[[list[tuple[float, ...]]], list[int]],
) -> Stages:
    pp, vpp, schedule, vocabulary = np.broadcast_arrays(*map(np.asarray, decisions))
    every, mtp = layers_of_each_kind(model)
    layouts = [
        _Layout(pp=int(p), vpp=int(v), schedule=int(s), vocabulary=int(o))
        for p, v, s, o in zip(pp.flat, vpp.flat, schedule.flat, vocabulary.flat, strict=True)
    ]
    tables = [_ranks(model, layout, select) for layout in layouts]
    most = max(len(rows) for rows in tables)
    padded = np.stack([np.concatenate([rows, np.repeat(rows[:1], most - len(rows), axis=0)]) for rows in tables])
    padded = padded.reshape(*pp.shape, *padded.shape[1:])
    stretches = [np.diff(rows[:, 0], append=layout.pp) for rows, layout in zip(tables, layouts, strict=True)]
    num_ranks = np.array([[*own, *[0] * (most - len(own))] for own in stretches], dtype=np.int64)
    last, layers, in_front = padded[..., 2], *np.split(padded[..., 6:], 2, axis=-1)
    return Stages(
        rank=padded[..., 0],
        num_ranks=num_ranks.reshape(*pp.shape, most),
        first=padded[..., 1],
        last=last,
        layers=layers,
        mtp_layers=last[..., None] * mtp,
        full_layers=np.zeros_like(layers),
        largest_chunk=padded[..., 3],
        last_chunk=padded[..., 4],
        in_flight_imbalance=padded[..., 5],
        all_layers=np.broadcast_to(every, (*pp.shape, len(every))),
        in_front=in_front,
    )
