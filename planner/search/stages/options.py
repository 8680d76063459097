"""Options of pipeline ranks for the solver: possible layers, recomputation and offload, with their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from constraints.stages import RANK_TICK_SECONDS, Chunks, Ints, Pipeline, StageOptions, kinds_met
from costmodel.facts.model import Model
from costmodel.models.patterns import LayerPattern, layer_pattern
from costmodel.pipelines.stages import activation_imbalance, layers_of_each_kind
from costmodel.record import record
from costmodel.step.layouts import (
    Contents,
    contents_bytes,
    contents_ending_seconds,
    contents_seconds,
    contents_update_seconds,
    even_chunks,
    full_by_chunk,
    last_rank_chunks,
    layers_equal_to_head,
)
from costmodel.strategy import OVERLAPS, Recompute, StageLayout
from costmodel.tables import Facts

Mode = tuple[int, bool]
"""Recomputation of a rank's layers, and the flag of activation offload."""


@record(frozen=True, kw_only=True, slots=True)
class RankChoices:
    """
    Possible contents of ranks, one per entry, shape (A,); ranks ascend.

    Parameters
    ----------
    contents
        Contents of the rank.
    sizes
        Layers of the chunks, a tuple per entry.
    num_leading
        Layers of the model's leading kind; 0 where kinds alternate.
    continues
        True where the first chunk holds nothing else.
    recompute, activation_offload, num_full
        Decisions of the rank.
    starts
        Start of the entries of each rank and number of layers, shape (S,).
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
        """Number of layers without those of multi-token prediction."""
        return np.asarray(self.kinds.sum(axis=1))

    def chunks(self, which: Ints) -> Chunks:
        """Return the layers in the chunks of some entries."""
        sizes = [self.sizes[one] for one in which.tolist()]
        full = [full_by_chunk(num, own) for num, own in zip(self.num_full[which].tolist(), sizes, strict=True)]
        return Chunks(
            layers=np.array(sizes, dtype=np.int64),
            full_layers=np.array(full, dtype=np.int64),
            kinds=np.concatenate([self.kinds[which], self.contents.full_layers[which].astype(np.int64)], axis=1),
        )


def num_leading(model: Model) -> int | None:
    """
    Return the number of layers before the first of another kind, 0 where all are alike; None where kinds alternate.

    The number of a rank's layers determines its content only in a model of one or two runs of equal layers.
    """
    changes = [position for position, (one, other) in enumerate(pairwise(model.layers), start=1) if one != other]
    if not changes:
        return 0
    return changes[0] if len(changes) == 1 else None


class _Row(NamedTuple):
    """One content of a rank; ``kinds`` and ``full_kinds`` count its layers, and its fully recomputed ones, by kind."""

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
    List all possible contents of ranks.

    With alternating kinds a chunk may begin at any place of the pattern. The solver then keeps the contents that begin
    where the chunk before ends.

    Parameters
    ----------
    model
        Model whose layers are divided.
    pp, vpp
        Ranks, and chunks per rank (VPP).
    most
        Most layers of a rank.
    modes
        Possible recomputation and offload of a rank.
    full_of_some
        True where a rank may recompute some of its layers in full and the others not at all.
    fewest
        Least number of layers of each chunk; with 0, embedding or head may be alone.
    """
    leading, head_equivalent, pattern = num_leading(model), layers_equal_to_head(model), layer_pattern(model)
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
    """Yield a rank with some layers, for every recomputation and offload; its first chunk may hold leading layers."""
    first, last = pattern.kinds[[0, -1]].tolist()

    def count_kinds(leading: int, num: int) -> tuple[int, ...]:
        return tuple(leading * (kind == first) + (num - leading) * (kind == last) for kind in range(pattern.num_kinds))

    num_leading_here = min(leading, sizes[0]) if rank <= leading else 0
    for here in range(num_leading_here if rank == 0 else 0, num_leading_here + 1):
        own = count_kinds(here, sum(sizes))
        for mode, num_full in kept:
            leading_full = min(full_by_chunk(num_full, sizes)[0], here) if num_full and here else 0
            yield _Row(rank, sum(sizes), own, here, sizes, mode, num_full, count_kinds(leading_full, num_full))


def _alternating_rows(
    pattern: LayerPattern, rank: int, sizes: tuple[int, ...], kept: Sequence[tuple[Mode, int]]
) -> Iterator[_Row]:
    """Yield a rank with some layers, for every possible kind of them and every recomputation and offload."""
    for num_full in sorted({num_full for _, num_full in kept}):
        modes = [mode for mode, own in kept if own == num_full]
        for kinds in _sums_of_kinds(pattern, sizes, full_by_chunk(num_full, sizes), is_first=rank == 0):
            own, full = kinds[: pattern.num_kinds], kinds[pattern.num_kinds :]
            for mode in modes:
                yield _Row(rank, sum(sizes), own, 0, sizes, mode, num_full, full)


def _sums_of_kinds(
    pattern: LayerPattern, sizes: Sequence[int], full: Sequence[int], *, is_first: bool
) -> list[tuple[int, ...]]:
    """Return possible sums over chunks: layers of each kind, then fully recomputed ones of each kind."""
    chunks = list(zip(sizes, full, strict=True))
    if not is_first:
        return [tuple(one) for one in _sums_anywhere(pattern, tuple(sorted(chunks))).tolist()]
    first, rest = kinds_met(pattern, *chunks[0])[0], _sums_anywhere(pattern, tuple(sorted(chunks[1:])))
    return [tuple(one) for one in (first + rest).tolist()]


@lru_cache(maxsize=2**11)
def _sums_anywhere(pattern: LayerPattern, chunks: tuple[tuple[int, int], ...]) -> Ints:
    """Return the distinct sums of layers, and of fully recomputed ones, of chunks that begin at any place: (N, 2 K)."""
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
            [activation_imbalance(own, rank=int(r), pp=pp) for own, r in zip(sizes, rank, strict=True)]
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
"""Decisions on which a rank's passes, its memory, the time after its last pass, and its update do not depend."""


@record(frozen=True, kw_only=True, slots=True)
class Costs:
    """
    Costs of every content in pipelines of one shape: (C, A).

    Parameters
    ----------
    seconds, steady_state_seconds
        Seconds of one micro-batch, without and with the waiting time of the rank.
    device_bytes, host_bytes
        Device and host memory.
    update_seconds
        Update of the parameters, for one content of each rank and number of layers: (C, S).
    """

    seconds: Any
    steady_state_seconds: Any
    device_bytes: Any
    host_bytes: Any
    update_seconds: Any


def costs_of(facts: Facts, decisions: Mapping[str, Any], choices: RankChoices) -> Costs:
    """
    Compute the costs of every content with the other decisions of pipelines of one shape.

    Each part is computed once for every combination of the decisions that it depends on.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision: ``pp`` and ``vpp`` as scalars, the others as arrays of shape (C,).
    choices
        Possible contents of ranks.
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
    """Compute a quantity of every content, or with ``once`` of each rank and layers, once per set of its decisions."""
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
    """Return the time after the last micro-batch for every content, shape (C, A); parameters as in :func:`costs_of`."""
    return _part(facts, decisions, choices, contents_ending_seconds, NOT_IN_ENDING)


def least_of_each(values: Any, choices: RankChoices) -> Any:
    """Return the minimum over all treatments of the same layers of a rank: from (..., A) to (..., S)."""
    return np.minimum.reduceat(values, choices.starts, axis=-1)


def options_of(
    choices: RankChoices, seconds: Any, pace: Any, ending: Any, *, slowest: float, alternate: bool = False
) -> tuple[StageOptions, Ints]:
    """
    Select the options that fit, are fast enough and not dominated, and the content of each.

    Options of one rank with the same layers are compared. One that takes, waits and ends no sooner than another is left
    out.

    Parameters
    ----------
    choices
        Possible contents of ranks.
    seconds, pace, ending
        Seconds of one micro-batch without and with waiting, infinite for contents that do not fit; seconds after the
        last one.
    slowest
        Longest time of a rank that is of interest, in seconds.
    alternate
        True where kinds of layers alternate: options then hold the same only if all their chunks do.
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
        kept += _drop_dominated(alike, costs)
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


def _drop_dominated(alike: Iterable[int], costs: Ints) -> list[int]:
    """Return the options that no other one with the same layers dominates in every cost."""
    needed: list[int] = []
    for one in alike:
        if not any((costs[other] <= costs[one]).all() for other in needed):
            needed.append(one)
    return needed


def layout_of(choices: RankChoices, chosen: Ints) -> StageLayout:
    """Build the layout of one content per rank."""
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
    Mark pipelines of one shape that may take less than their limits, shape (C,).

    A limit and the least sum of all ranks bound the time of the slowest rank. The least sum of the ranks within that
    bound tightens the bound again. The iteration ends where no ranks are within the bound, or where the least sum is
    below the limit. Time after the last micro-batch counts with the least value that places all layers.

    Parameters
    ----------
    choices
        Possible contents of ranks.
    seconds, pace, ending
        Minimum of each rank and layers: one micro-batch without and with waiting, time after the last one; (C, S).
    pipeline
        Shape of the pipelines; its number of micro-batches is not used.
    num_microbatches, limits
        Micro-batches of each pipeline, and seconds per step without its constant part, shape (C,).
    of_kinds
        With alternating kinds: seconds of a layer of each kind, (C, K). Any values are valid; true ones give good
        bounds.
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
    Mark pipelines whose slowest rank alone is below the limits, shape (C,).

    A quick check before :func:`can_improve_incumbent`, with the same parameters.
    """
    return _rest_of_limits(choices, pace, ending, pipeline, num_microbatches, limits)[-1]


def _rest_of_limits(
    choices: RankChoices, pace: Any, ending: Any, pipeline: Pipeline, num_microbatches: Ints, limits: Any
) -> tuple[Any, Any, Any]:
    """Return the chunk time within the limit, the weight of the slowest rank, and a mask of possible pipelines."""
    rest = (limits - _least_maximum(choices, ending, pipeline)) * pipeline.vpp
    weight = np.maximum(num_microbatches * pipeline.vpp - 1, 1)
    return rest, weight, rest > weight * _least_maximum(choices, pace, pipeline)


def _least_maximum(choices: RankChoices, values: Any, pipeline: Pipeline) -> Any:
    """Return the least possible maximum over all ranks, (C,): all layers after the leading ones need a place."""
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
"""Rounds after which a pipeline counts as below its limit; affects time only."""


def _least_sums(choices: RankChoices, seconds: Any, pipeline: Pipeline, of_kinds: Any) -> Any:
    """Return the least sum over all ranks of any division of the layers, or a bound of it; shape (C,)."""
    if pipeline.pattern is None:
        return _least_sums_in_runs(choices, seconds, pipeline)
    if pipeline.vpp == 1:
        return _least_sums_by_place(choices, seconds, pipeline, pipeline.pattern)
    return _least_sums_beside_kinds(choices, seconds, pipeline, pipeline.pattern, of_kinds)


def _least_sums_by_place(choices: RankChoices, seconds: Any, pipeline: Pipeline, pattern: LayerPattern) -> Any:
    """Compute least sums by dynamic programming over the layers so far, which determine the kinds that a rank holds."""
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
    Return a lower bound of the sum over ranks, with assumed seconds of a layer of each kind.

    It is the time of ranks besides their layers, plus all layers at these seconds.

    Derivation: the layers of each kind on all ranks sum to those of the model, so the seconds of kinds cancel, whatever
    they are (a Lagrangian relaxation of these sums). The rest depends almost only on the number of layers. Each rank
    may have the kinds that are best for it.
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
    Compute least sums by dynamic programming for a model of one or two runs of equal layers; shape (C,).

    A state is a flag that the next rank may still begin with leading layers, the leading layers so far, and all layers
    so far.
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
