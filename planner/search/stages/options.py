"""What the ranks of one pipeline may hold, recompute and offload, with what it costs each: the solver's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from constraints.stages import RANK_TICK_SECONDS, Chunks, Ints, Pipeline, StageOptions, kinds_met
from costmodel.facts.model import Model
from costmodel.models.layer_pattern import LayerPattern, layer_pattern
from costmodel.pipelines.stages import in_flight_imbalance, layers_of_each_kind
from costmodel.step.layouts import (
    Contents,
    beside_layers,
    contents_bytes,
    contents_ending_seconds,
    contents_seconds,
    contents_update_seconds,
    even_chunks,
    full_by_chunk,
    last_rank_chunks,
)
from costmodel.strategy import OVERLAPS, Recompute, StageLayout
from costmodel.tables import Facts

Mode = tuple[int, bool]
"""What a rank's layers compute again, and whether their activations are offloaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChoices:
    """
    Possible contents of ranks, one per entry, shape (A,); ranks ascend.

    Parameters
    ----------
    contents
        What the rank holds.
    sizes
        Layers of the chunks, a tuple per entry.
    num_leading
        Layers of the model's leading kind; 0 where kinds alternate.
    continues
        Whether the first chunk holds nothing else.
    recompute, activation_offload, num_full
        Decisions of the rank.
    starts
        Where the entries of another rank or with other layers begin, shape (S,).
    """

    contents: Contents
    sizes: tuple[tuple[int, ...], ...]
    num_leading: Ints
    continues: Any
    recompute: Ints
    activation_offload: Any
    num_full: Ints
    starts: Ints

    @property
    def kinds(self) -> Ints:
        """Layers of each kind without those of multi-token prediction, shape (A, K)."""
        return np.asarray(self.contents.layers - self.contents.mtp_layers, dtype=np.int64)

    @property
    def num_layers(self) -> Ints:
        """Layers without those of multi-token prediction."""
        return np.asarray(self.kinds.sum(axis=1))

    def chunks(self, which: Ints) -> Chunks:
        """What the chunks of some entries hold."""
        sizes = [self.sizes[one] for one in which.tolist()]
        full = [full_by_chunk(num, own) for num, own in zip(self.num_full[which].tolist(), sizes, strict=True)]
        return Chunks(
            layers=np.array(sizes, dtype=np.int64),
            full_layers=np.array(full, dtype=np.int64),
            kinds=np.concatenate([self.kinds[which], self.contents.full_layers[which].astype(np.int64)], axis=1),
        )


def num_leading(model: Model) -> int | None:
    """
    Layers in front of the first of another kind, 0 where all are alike; None where kinds alternate.

    Only where a model is one run of equal layers, or two, does a rank's content follow from how many it holds.
    """
    changes = [position for position, (one, other) in enumerate(pairwise(model.layers), start=1) if one != other]
    if not changes:
        return 0
    return changes[0] if len(changes) == 1 else None


class _Row(NamedTuple):
    """One content of a rank; ``kinds`` and ``full_kinds`` are its layers of each kind, and those in full."""

    rank: int
    num: int
    kinds: tuple[int, ...]
    num_leading: int
    sizes: tuple[int, ...]
    mode: Mode
    num_full: int
    full_kinds: tuple[int, ...]


@lru_cache(maxsize=64)
def rank_choices(
    model: Model, pp: int, vpp: int, most: int, modes: tuple[Mode, ...], full_of_some: bool, *, fewest: int = 0
) -> RankChoices:
    """
    Everything that ranks may hold.

    Where kinds alternate, a chunk is taken to begin at any place of the pattern. The solver then keeps to those where
    the chunk in front ends.

    Parameters
    ----------
    model
        What is shared out.
    pp, vpp
        Ranks, chunks per rank.
    most
        Most layers of a rank.
    modes
        What a rank may do with its activations.
    full_of_some
        Whether a rank may recompute some of its layers in full and the others not at all.
    fewest
        Layers that each chunk has; with none, embedding or head may be alone.
    """
    leading, head_equivalent, pattern = num_leading(model), beside_layers(model), layer_pattern(model)
    alone = fewest == 0
    chunks = [vpp - alone * ((rank == 0) + (rank == pp - 1)) for rank in range(pp)]
    plain = (int(Recompute.NONE), False)
    rows: list[_Row] = []
    for rank in range(pp):
        least = max(chunks[rank], model.num_layers - sum(most for other in range(pp) if other != rank), 0)
        for num in range(least, min(most, model.num_layers) + 1):
            is_last = rank == pp - 1
            ways = (
                last_rank_chunks(num, vpp=vpp, beside_layers=head_equivalent)
                if is_last
                else (even_chunks(num, vpp=vpp),)
            )
            kept = [(mode, 0) for mode in modes] + [(plain, full) for full in range(1, num) if full_of_some]
            for sizes in ways:
                if 0 not in sizes[alone and rank == 0 : vpp - (alone and is_last)]:
                    rows += (
                        _alternating_rows(pattern, rank, sizes, kept)
                        if leading is None
                        else _leading_rows(pattern, leading, rank, sizes, kept)
                    )
    return _rank_choices(model, pp, rows if leading is not None else sorted(rows))


def _leading_rows(
    pattern: LayerPattern, leading: int, rank: int, sizes: tuple[int, ...], kept: Sequence[tuple[Mode, int]]
) -> Iterator[_Row]:
    """A rank with some layers, in every way that they may be kept and recomputed; its first chunk may lead."""
    first, last = pattern.kinds[[0, -1]].tolist()

    def of_kinds(leading: int, num: int) -> tuple[int, ...]:
        return tuple(leading * (kind == first) + (num - leading) * (kind == last) for kind in range(pattern.num_kinds))

    num_leading_here = min(leading, sizes[0]) if rank <= leading else 0
    for here in range(num_leading_here if rank == 0 else 0, num_leading_here + 1):
        own = of_kinds(here, sum(sizes))
        for mode, num_full in kept:
            leading_full = min(full_by_chunk(num_full, sizes)[0], here) if num_full and here else 0
            yield _Row(rank, sum(sizes), own, here, sizes, mode, num_full, of_kinds(leading_full, num_full))


def _alternating_rows(
    pattern: LayerPattern, rank: int, sizes: tuple[int, ...], kept: Sequence[tuple[Mode, int]]
) -> Iterator[_Row]:
    """A rank with some layers, of every kind that they may be, in every way that they may be kept and recomputed."""
    for num_full in sorted({num_full for _, num_full in kept}):
        modes = [mode for mode, own in kept if own == num_full]
        for kinds in _sums_of_kinds(pattern, sizes, full_by_chunk(num_full, sizes), is_first=rank == 0):
            own, full = kinds[: pattern.num_kinds], kinds[pattern.num_kinds :]
            for mode in modes:
                yield _Row(rank, sum(sizes), own, 0, sizes, mode, num_full, full)


def _sums_of_kinds(
    pattern: LayerPattern, sizes: Sequence[int], full: Sequence[int], *, is_first: bool
) -> list[tuple[int, ...]]:
    """What chunks may hold together: layers of each kind, then those of each kind in full; the first is in front."""
    chunks = list(zip(sizes, full, strict=True))
    if not is_first:
        return [tuple(one) for one in _sums_anywhere(pattern, tuple(sorted(chunks))).tolist()]
    first, rest = kinds_met(pattern, *chunks[0])[0], _sums_anywhere(pattern, tuple(sorted(chunks[1:])))
    return [tuple(one) for one in (first + rest).tolist()]


@lru_cache(maxsize=2**11)
def _sums_anywhere(pattern: LayerPattern, chunks: tuple[tuple[int, int], ...]) -> Ints:
    """The different sums of what chunks of some layers, and of some in full, may hold from any place on: (N, 2 K)."""
    if not chunks:
        return np.zeros((1, 2 * pattern.num_kinds), dtype=np.int64)
    sums = _sums_anywhere(pattern, chunks[:-1])[:, None] + np.unique(kinds_met(pattern, *chunks[-1]), axis=0)
    return np.asarray(np.unique(sums.reshape(-1, sums.shape[-1]), axis=0))


def _rank_choices(model: Model, pp: int, rows: Sequence[_Row]) -> RankChoices:
    rank, first_kind, num_full = (
        np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in ("rank", "num_leading", "num_full")
    )
    layers, full = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in ("kinds", "full_kinds")
    )
    mtp = np.zeros_like(layers)
    mtp[rank == pp - 1] = layers_of_each_kind(model)[1]
    sizes = tuple(row.sizes for row in rows)
    changes = (np.diff(rank) != 0) | (np.diff(layers, axis=0) != 0).any(axis=1) | (np.diff(first_kind) != 0)
    contents = Contents(
        rank=rank,
        layers=layers + mtp,
        mtp_layers=mtp,
        full_layers=full,
        largest_chunk=np.array([max(own) for own in sizes], dtype=np.float64),
        last_chunk=np.array([own[-1] for own in sizes], dtype=np.float64),
        in_flight_imbalance=np.array(
            [in_flight_imbalance(own, rank=int(r), pp=pp) for own, r in zip(sizes, rank, strict=True)]
        ),
    )
    return RankChoices(
        contents=contents,
        sizes=sizes,
        num_leading=first_kind,
        continues=np.array([own[0] for own in sizes]) == first_kind,
        recompute=np.array([row.mode[0] for row in rows], dtype=np.int64),
        activation_offload=np.array([row.mode[1] for row in rows], dtype=bool),
        num_full=num_full,
        starts=np.concatenate([[0], np.flatnonzero(changes) + 1]),
    )


NOT_IN_TIME = ("sharding", "optimizer_offload", "pp_overlap", "dp_overlap")
NOT_IN_MEMORY = ("token_dispatcher", "cuda_graphs", "tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap")
NOT_IN_ENDING = ("pp_overlap",)
NOT_IN_UPDATE = (*OVERLAPS, "mbs", "sequence_parallel", "token_dispatcher", "cuda_graphs")
"""Decisions on which a rank's passes, its memory, what follows its last pass, and its update do not depend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """
    What every content costs in pipelines of one shape: (C, A).

    Parameters
    ----------
    seconds, steady_state_seconds
        One micro-batch, without and with what the rank waits meanwhile.
    device_bytes, host_bytes
        Memory.
    update_seconds
        Update of the parameters, for one content of each rank and layers: (C, S).
    """

    seconds: Any
    steady_state_seconds: Any
    device_bytes: Any
    host_bytes: Any
    update_seconds: Any


def costs_of(facts: Facts, decisions: Mapping[str, Any], choices: RankChoices) -> Costs:
    """
    What every content costs with the other decisions of pipelines of one shape.

    Each part is computed once for every combination of the decisions that it depends on.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision: ``pp`` and ``vpp`` as scalars, the others as arrays of shape (C,).
    choices
        What ranks may hold.
    """
    device, host = _part(facts, decisions, choices, _both_bytes, NOT_IN_MEMORY)
    seconds, pace = _part(facts, decisions, choices, _both_seconds, NOT_IN_TIME)
    return Costs(
        seconds=seconds,
        steady_state_seconds=pace,
        device_bytes=device,
        host_bytes=host,
        update_seconds=_part(facts, decisions, choices, contents_update_seconds, NOT_IN_UPDATE, once=True),
    )


def _both_seconds(facts: Facts, decisions: Mapping[str, Any], contents: Contents) -> Any:
    return np.stack(np.broadcast_arrays(*contents_seconds(facts, decisions, contents)))


def _both_bytes(facts: Facts, decisions: Mapping[str, Any], contents: Contents) -> Any:
    return np.stack(np.broadcast_arrays(*contents_bytes(facts, decisions, contents)))


def _part(
    facts: Facts,
    decisions: Mapping[str, Any],
    choices: RankChoices,
    quantity: Callable[..., Any],
    without: Sequence[str],
    *,
    once: bool = False,
) -> Any:
    """A quantity of every content, or ``once`` for each rank and layers, computed once where nothing else differs."""
    names = [name for name, values in decisions.items() if np.ndim(values) and name not in without]
    given = np.stack([decisions[name] for name in names])
    _, index, inverse = np.unique(given, axis=1, return_index=True, return_inverse=True)
    some = {name: values[index][:, None] if np.ndim(values) else values for name, values in decisions.items()}
    if once:
        contents = choices.contents.take(choices.starts)
    else:
        contents = choices.contents
        some |= {"recompute": choices.recompute, "activation_offload": choices.activation_offload}
    values = np.asarray(quantity(facts, some, contents))
    shape = (*values.shape[:-2], len(index), len(contents.rank))
    return np.broadcast_to(values, shape)[..., inverse.ravel(), :]


def ending_seconds(facts: Facts, decisions: Mapping[str, Any], choices: RankChoices) -> Any:
    """What follows the last micro-batch for every content; parameters as in :func:`costs_of`, shape (C, A)."""
    return _part(facts, decisions, choices, contents_ending_seconds, NOT_IN_ENDING)


def least_of_each(values: Any, choices: RankChoices) -> Any:
    """The least over what a rank may do with the same layers: from (..., A) to (..., S)."""
    return np.minimum.reduceat(values, choices.starts, axis=-1)


def options_of(
    choices: RankChoices, seconds: Any, pace: Any, ending: Any, *, slowest: float, alternate: bool = False
) -> tuple[StageOptions, Ints]:
    """
    The options that fit, are not too slow and not needless, and which of the contents each is.

    Of those of a rank that hold the same, one that takes, waits and ends no sooner than another is needless.

    Parameters
    ----------
    choices
        What ranks may hold.
    seconds, pace, ending
        One micro-batch, infinite for what does not fit, without and with what a rank waits; what follows the last one.
    slowest
        Longest time of a rank that is of interest, in seconds.
    alternate
        Whether kinds of layers alternate: it is then the same that options hold if all their chunks do.
    """
    index = np.flatnonzero(np.isfinite(seconds) & (seconds <= slowest))
    ticks, pace_ticks, ending_ticks = np.zeros((3, len(seconds)), dtype=np.int64)
    for rounded, values in ((ticks, seconds), (pace_ticks, pace), (ending_ticks, ending)):
        rounded[index] = np.rint(values[index] / RANK_TICK_SECONDS)
    num, chunks = choices.num_layers[index], choices.chunks(index) if alternate else None
    columns = [choices.contents.rank[index], num, choices.num_leading[index]]
    if chunks:
        columns += [*chunks.layers.T, *chunks.full_layers.T, *chunks.kinds.T]
    costs = np.stack([ticks, pace_ticks, ending_ticks], axis=1)
    order = np.lexsort(np.stack([*columns, *costs[index].T])[::-1])
    holds = dict(zip(index.tolist(), np.stack(columns, axis=1).tolist(), strict=True))
    kept: list[int] = []
    for _, alike in groupby(index[order].tolist(), key=holds.__getitem__):
        kept += _needed(alike, costs)
    which = np.array(kept, dtype=np.int64)
    options = StageOptions(
        rank=choices.contents.rank[which],
        choice=choices.recompute[which] * 2 + choices.activation_offload[which] + 4096 * choices.num_full[which],
        num_layers=choices.num_layers[which],
        num_leading=choices.num_leading[which],
        continues=np.asarray(choices.continues[which]),
        ticks=ticks[which],
        pace_ticks=pace_ticks[which],
        ending_ticks=ending_ticks[which],
        chunks=choices.chunks(which) if alternate else None,
    )
    return options, which


def _needed(alike: Iterable[int], costs: Ints) -> list[int]:
    """The options that no other one with the same layers dominates in every cost."""
    needed: list[int] = []
    for one in alike:
        if not any((costs[other] <= costs[one]).all() for other in needed):
            needed.append(one)
    return needed


def layout_of(choices: RankChoices, chosen: Ints) -> StageLayout:
    """The layout that one content per rank makes."""
    sizes = np.array([choices.sizes[one] for one in chosen])
    full = [
        int(choices.contents.full_layers[one].sum()) if choices.recompute[one] != Recompute.FULL else 0
        for one in chosen
    ]
    return StageLayout(
        layers=tuple(sizes.T.ravel().tolist()),
        recompute=tuple(Recompute(int(choices.recompute[one])) for one in chosen),
        full_layers=tuple(full),
        activation_offload=tuple(bool(choices.activation_offload[one]) for one in chosen),
    )


def can_improve_incumbent(
    choices: RankChoices,
    seconds: Any,
    pace: Any,
    ending: Any,
    pipeline: Pipeline,
    *,
    num_microbatches: Ints,
    limits: Any,
    of_kinds: Any = None,
) -> Any:
    """
    Which of some pipelines of one shape may take less than their limits, shape (C,).

    A limit and the least sum of all ranks bound the time of the slowest rank. The least sum of the ranks within that
    bound tightens the bound again. It ends where no ranks are left within the bound, or where the ranks of the least
    sum are below the limit. What follows the last micro-batch counts with the least that places all layers.

    Parameters
    ----------
    choices
        What ranks may hold.
    seconds, pace, ending
        The least of each rank and layers: one micro-batch without and with waiting, what follows the last; (C, S).
    pipeline
        Their shape; its micro-batches do not count.
    num_microbatches, limits
        Of each: micro-batches, and seconds per step without its constant part, shape (C,).
    of_kinds
        Where kinds alternate: seconds of a layer of each kind, (C, K). Any will do; true ones bound well.
    """
    rest, weight, within = _rest_of_limits(choices, pace, ending, pipeline, num_microbatches, limits)
    slowest = np.full(len(seconds), np.inf)
    undecided = np.flatnonzero(within)
    answer = np.zeros(len(seconds), dtype=bool)
    for _ in range(MOST_ROUNDS):
        quick = np.where(pace[undecided] <= slowest[undecided, None], seconds[undecided], np.inf)
        sums = _least_sums(choices, quick, pipeline, None if of_kinds is None else of_kinds[undecided])
        tighter = (rest[undecided] - sums) / weight[undecided]
        left = np.isfinite(sums) & (tighter > 0)
        settled = left & (tighter >= slowest[undecided])
        answer[undecided[settled]] = True
        going = left & ~settled
        slowest[undecided[going]] = tighter[going]
        undecided = undecided[going]
        if not len(undecided):
            break
    answer[undecided] = True
    return answer


def is_within_limits(
    choices: RankChoices, pace: Any, ending: Any, pipeline: Pipeline, *, num_microbatches: Ints, limits: Any
) -> Any:
    """
    What :func:`can_improve_incumbent` asks first: whether the slowest rank alone is below the limits, shape (C,).

    Parameters as there; it takes a fraction of the time.
    """
    return _rest_of_limits(choices, pace, ending, pipeline, num_microbatches, limits)[-1]


def _rest_of_limits(
    choices: RankChoices, pace: Any, ending: Any, pipeline: Pipeline, num_microbatches: Ints, limits: Any
) -> tuple[Any, Any, Any]:
    """Chunk times of a limit without what follows the last micro-batch, how often the slowest counts, if it fits."""
    rest = (limits - _least_maximum(choices, ending, pipeline)) * pipeline.vpp
    weight = np.maximum(num_microbatches * pipeline.vpp - 1, 1)
    return rest, weight, rest > weight * _least_maximum(choices, pace, pipeline)


def _least_maximum(choices: RankChoices, values: Any, pipeline: Pipeline) -> Any:
    """The least that the largest value of all ranks can be: all layers behind the leading ones need a place; (C,)."""
    rank, num_trailing = (
        choices.contents.rank[choices.starts],
        (choices.num_layers - choices.num_leading)[choices.starts],
    )
    num_placed = pipeline.num_layers - pipeline.num_leading
    largest, places = np.zeros(len(values)), []
    for one in range(pipeline.pp):
        own = np.flatnonzero(rank == one)
        own = own[np.argsort(num_trailing[own], kind="stable")]
        at_least = np.minimum.accumulate(values[:, own][:, ::-1], axis=1)[:, ::-1]
        places.append(np.repeat(at_least, np.diff(num_trailing[own], prepend=0), axis=1))
        largest = np.maximum(largest, at_least[:, 0])
    place = np.concatenate(places, axis=1)
    if place.shape[1] < num_placed:
        return np.full(len(values), np.inf)
    return np.maximum(largest, np.partition(place, num_placed - 1, axis=1)[:, num_placed - 1])


MOST_ROUNDS = 12
"""Rounds after which a pipeline is taken to undercut its limit; a matter of time only."""


def _least_sums(choices: RankChoices, seconds: Any, pipeline: Pipeline, of_kinds: Any) -> Any:
    """The least sum over all ranks of any way to share the layers out, or a bound of it; shape (C,)."""
    if pipeline.pattern is None:
        return _least_sums_in_runs(choices, seconds, pipeline)
    if pipeline.vpp == 1:
        return _least_sums_by_place(choices, seconds, pipeline, pipeline.pattern)
    return _least_sums_beside_kinds(choices, seconds, pipeline, pipeline.pattern, of_kinds)


def _least_sums_by_place(choices: RankChoices, seconds: Any, pipeline: Pipeline, pattern: LayerPattern) -> Any:
    """By dynamic programming over the layers so far, which say where a rank begins and so what kinds it holds."""
    at, length = choices.starts, pipeline.num_layers + 1
    ranks, num, kinds = choices.contents.rank[at], choices.num_layers[at], choices.kinds[at]
    met = {size: pattern.counts(size)[pattern.place_after(np.arange(length))] for size in np.unique(num).tolist()}
    sums = np.full((length, len(seconds)), np.inf)
    sums[0] = 0.0
    for rank in range(pipeline.pp):
        further = np.full_like(sums, np.inf)
        for one in np.flatnonzero(ranks == rank).tolist():
            size = int(num[one])
            begins = np.flatnonzero((met[size][: length - size] == kinds[one]).all(axis=1))
            further[begins + size] = np.minimum(further[begins + size], sums[begins] + seconds[:, one])
        sums = further
    return sums[-1]


def _least_sums_beside_kinds(
    choices: RankChoices, seconds: Any, pipeline: Pipeline, pattern: LayerPattern, of_kinds: Any
) -> Any:
    """
    A lower bound: what ranks take beside their layers at some seconds of each kind, and all layers at those.

    Derivation: the layers of each kind that the ranks hold sum to those of the model, so that the seconds of kinds
    cancel, whatever they are (a Lagrangian relaxation of these sums). What is left depends on the number of layers
    nearly alone. Each rank may have the kinds that are best for it.
    """
    at = choices.starts
    ranks, num, kinds = choices.contents.rank[at], choices.num_layers[at], choices.kinds[at]
    beside = seconds - of_kinds @ kinds.T
    firsts = np.flatnonzero((np.diff(ranks, prepend=-1) != 0) | (np.diff(num, prepend=-1) != 0))
    beside = np.minimum.reduceat(beside, firsts, axis=1)
    length = pipeline.num_layers + 1
    sums = np.full((length, len(seconds)), np.inf)
    sums[0] = 0.0
    for rank in range(pipeline.pp):
        further = np.full_like(sums, np.inf)
        for one in np.flatnonzero(ranks[firsts] == rank).tolist():
            size = int(num[firsts[one]])
            np.minimum(further[size:], sums[: length - size] + beside[:, one], out=further[size:])
        sums = further
    return sums[-1] + of_kinds @ pattern.counts(pipeline.num_layers)[0]


def _least_sums_in_runs(choices: RankChoices, seconds: Any, pipeline: Pipeline) -> Any:
    """
    By dynamic programming where a model is one run of equal layers, or two; shape (C,).

    Its states are whether the next rank may still begin with leading layers, leading layers so far, all layers so far.
    """
    at = choices.starts
    ranks, continues = choices.contents.rank[at], choices.continues[at]
    num, leading = choices.num_layers[at], choices.num_leading[at]
    sums = np.full((2, pipeline.num_leading + 1, pipeline.num_layers + 1, len(seconds)), np.inf)
    sums[1, 0, 0] = 0.0
    for rank in range(pipeline.pp):
        further = np.full_like(sums, np.inf)
        for one in np.flatnonzero(ranks == rank).tolist():
            n, d = int(num[one]), int(leading[one])
            before = sums[1:] if d else sums
            longer = before[:, : pipeline.num_leading + 1 - d, : pipeline.num_layers + 1 - n] + seconds[:, one]
            after = further[:, d:, n:]
            if continues[one]:
                np.minimum(after[1], longer[-1], out=after[1])
                longer = longer[:-1]
            if len(longer):
                np.minimum(after[0], longer.min(axis=0), out=after[0])
        sums = further
    return sums[:, -1, -1].min(axis=0)
