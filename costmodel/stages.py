"""
Which layers live where: the canonical layout of layers over virtual stages, and what each pipeline rank holds.

Every formula that differs between ranks works on the few *different* ranks of a pipeline, not on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.spec import Layer, Model

EDGE_SLOTS = 2
"""Slots of embedding and head where layers do not divide evenly (Megatron-LM: ``account_for_*_in_pipeline_split``)."""


def layers_per_chunk(num_layers: int, *, num_chunks: int, mtp_layers: int = 0) -> tuple[int, ...]:
    """
    Layers of each virtual stage in model order, those of multi-token prediction not counted.

    Where the layers divide evenly, every virtual stage gets as many. Otherwise embedding, head and each layer of
    multi-token prediction count as one slot, slots are dealt evenly, and virtual stages in front get the remainder.

    Parameters
    ----------
    num_layers
        Layers of the model, at least ``num_chunks - 2``.
    num_chunks
        Virtual stages, pp * vpp.
    mtp_layers
        Layers of multi-token prediction, on the last virtual stage.

    >>> layers_per_chunk(80, num_chunks=8)
    (10, 10, 10, 10, 10, 10, 10, 10)
    >>> layers_per_chunk(126, num_chunks=16)[:2], layers_per_chunk(126, num_chunks=16)[-1]
    ((7, 8), 7)
    >>> layers_per_chunk(61, num_chunks=32, mtp_layers=1)[:2], layers_per_chunk(61, num_chunks=32, mtp_layers=1)[-2:]
    ((1, 2), (2, 0))
    """
    if num_layers % num_chunks == 0:
        return (num_layers // num_chunks,) * num_chunks
    if num_chunks == 1:
        return (num_layers,)
    base, remainder = divmod(num_layers + EDGE_SLOTS + mtp_layers, num_chunks)
    sizes = [base + 1] * remainder + [base] * (num_chunks - remainder)
    sizes[0] -= 1
    sizes[-1] -= 1 + mtp_layers
    missing = max(-sizes[-1], 0)
    sizes[-1] += missing
    sizes[-2] -= missing
    return tuple(max(size, 0) for size in sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """
    The different pipeline ranks of a strategy, on trailing axes: U ranks, K kinds of layers.

    Parameters
    ----------
    rank
        Pipeline rank, first of its equals (it holds the most micro-batches), shape (..., U).
    layers
        Layers of each kind on that rank, those of multi-token prediction on the last one included; shape (..., U, K).
    mtp_layers
        Those of multi-token prediction among them.
    first, last
        1 where the rank holds the embedding, the head; shape (..., U).
    all_layers
        Layers of each kind over all ranks, shape (..., K).
    largest_chunk
        Layers of the largest virtual stage, shape (...).
    """

    rank: NDArray[np.float64]
    layers: NDArray[np.float64]
    mtp_layers: NDArray[np.float64]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    all_layers: NDArray[np.float64]
    largest_chunk: NDArray[np.float64]


def _ranks(
    layers_before: NDArray[np.int64],
    mtp_layers: NDArray[np.int64],
    pp: int,
    vpp: int,
    select: Callable[[list[tuple[int, ...]]], list[int]],
) -> tuple[NDArray[np.float64], int]:
    """Selected ranks of one pipeline, rows of (rank, first, last, layers per kind), and the largest chunk."""
    num_layers = len(layers_before) - 1
    sizes = layers_per_chunk(num_layers, num_chunks=pp * vpp, mtp_layers=int(mtp_layers.sum()))
    ends = np.minimum(np.cumsum(sizes), num_layers)
    starts = np.concatenate([[0], ends[:-1]])
    per_chunk = layers_before[ends] - layers_before[starts]
    per_rank = per_chunk.reshape(vpp, pp, -1).sum(axis=0)
    per_rank[-1] += mtp_layers
    held = [(rank == 0, rank == pp - 1, *layers) for rank, layers in enumerate(per_rank.tolist())]
    return np.array([(rank, *held[rank]) for rank in select(held)], dtype=np.float64), max(sizes)


def _layers_before(layers: tuple[Layer, ...], kinds: tuple[Layer, ...]) -> NDArray[np.int64]:
    """Layers of each kind in front of layer i, shape (num_layers + 1, K)."""
    index = {layer: position for position, layer in enumerate(kinds)}
    one_hot = np.zeros((len(layers) + 1, len(kinds)), dtype=np.int64)
    for position, layer in enumerate(layers):
        one_hot[position + 1, index[layer]] = 1
    return one_hot.cumsum(axis=0)


def stages(model: Model, *, pp: NDArray[np.int64] | int, vpp: NDArray[np.int64] | int) -> Stages:
    """
    What the different pipeline ranks hold under the canonical layout.

    Parameters
    ----------
    model
        Its layers.
    pp, vpp
        Pipeline degree and chunks per rank, scalars or arrays.
    """
    return _stages(model, pp=pp, vpp=vpp, select=_different)


def every_stage(model: Model, *, pp: int, vpp: int) -> Stages:
    """What every pipeline rank of one strategy holds, equal ones included: U = pp."""
    return _stages(model, pp=pp, vpp=vpp, select=lambda held: list(range(len(held))))


def _different(held: list[tuple[int, ...]]) -> list[int]:
    """The first rank of each kind."""
    first: dict[tuple[int, ...], int] = {}
    for rank, content in enumerate(held):
        first.setdefault(content, rank)
    return list(first.values())


def _stages(
    model: Model,
    *,
    pp: NDArray[np.int64] | int,
    vpp: NDArray[np.int64] | int,
    select: Callable[[list[tuple[int, ...]]], list[int]],
) -> Stages:
    pp, vpp = np.broadcast_arrays(np.asarray(pp), np.asarray(vpp))
    before = _layers_before(model.layers, model.kinds)
    mtp = _layers_before(model.mtp_layers, model.kinds)[-1]
    tables = [_ranks(before, mtp, int(p), int(v), select) for p, v in zip(pp.ravel(), vpp.ravel(), strict=True)]
    most = max(len(rows) for rows, _ in tables)
    padded = np.stack([np.concatenate([rows, np.repeat(rows[:1], most - len(rows), axis=0)]) for rows, _ in tables])
    padded = padded.reshape(*pp.shape, *padded.shape[1:])
    last = padded[..., 2]
    return Stages(
        rank=padded[..., 0],
        first=padded[..., 1],
        last=last,
        layers=padded[..., 3:],
        mtp_layers=last[..., None] * mtp,
        all_layers=np.broadcast_to((before[-1] + mtp).astype(np.float64), (*pp.shape, before.shape[1])),
        largest_chunk=np.array([largest for _, largest in tables], dtype=np.float64).reshape(pp.shape),
    )
