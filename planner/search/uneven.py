"""
Uneven stages: branch and bound over the decisions of the whole pipeline, CP-SAT for the layers of its ranks.

The first bound of every combination of degrees and features assumes that ranks share the model evenly. Combinations are
taken in its order. For each the possible contents of ranks are costed, and a second bound is computed from those that
fit. If that bound is below the best strategy so far, CP-SAT divides the layers.

The solver compares layouts by the sum over their ranks. Simulated pass by pass, they take less time; interleaved
pipelines with unlike stages may take less or more. The order of the stages decides which rank waits for which. So the
solver's layout is the start of a descent, by moving one layer at a time between virtual stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from constraints.cp_sat import MAX_TICKS, TICK_SECONDS, cp_model, seconds_to_floor_ticks
from constraints.stages import (
    RANK_TICK_SECONDS,
    Pipeline,
    StageOptions,
    encode_stages,
    kinds_met,
    objective,
    options_of_dealings,
    read_solution,
)
from costmodel.facts.model import Model
from costmodel.models.patterns import LayerPattern, layer_pattern
from costmodel.pipelines.graph import spans_seconds
from costmodel.pipelines.stages import activation_imbalance, layers_of_each_kind, stage_layout
from costmodel.record import record
from costmodel.step.layer import layer_parts
from costmodel.step.layouts import (
    PER_RANK,
    Balance,
    Contents,
    balance_of,
    balanced_bound_seconds,
    contents_bytes,
    contents_ending_seconds,
    contents_seconds,
    contents_update_seconds,
    even_chunks,
    full_by_chunk,
    last_rank_chunks,
    layers_equal_to_head,
    layout_cost,
    least_memory,
    least_recompute_seconds,
    passes_by_layer_counts,
)
from costmodel.step.rank_time import pipeline_order
from costmodel.step.step import Cost
from costmodel.strategy import (
    DECISIONS,
    OVERLAPS,
    Recompute,
    Schedule,
    StageLayout,
    Strategy,
    Vocabulary,
    default_microbatch_group,
)
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.candidates import Ints, Memory, Run, SearchStats
from planner.search.candidates import fits as memory_fits
from planner.search.domains import FEATURES, cheap_recompute, job_choices
from planner.search.space import CandidateBlock, Space, strategy_of

MOST_MOVES = 1024
"""Moves that are simulated at once, those between near stages first; affects time only."""

MOST_CHECKED = 4
"""Fastest moves whose memory is checked before a descent ends; affects time only."""

MOST_STEPS = 64
"""Moves after which a descent ends; affects time only."""


def least_layers(problem: Problem) -> int:
    """
    Return the least number of layers of a virtual stage: 0 where embedding or head may be alone, else 1.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_block.py:173: a hybrid's stages have layers.
    """
    return int(problem.search.framework_rules and problem.facts.model.has_single_blocks)


def descend(
    facts: Facts, strategy: Strategy, fits: Callable[[Cost], bool], has_time: Callable[[], bool], *, fewest: int = 0
) -> tuple[Strategy, Cost]:
    """
    Move single layers from a given layout on until no move makes it faster; also return the cost.

    Derivation: steepest descent. All moves of one layer between two virtual stages are simulated together. The fastest
    move that fits is made, until none is faster than the current layout, or time is up.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    strategy
        Strategy with a layout; it is returned unchanged if a rank recomputes some layers in full.
    fits
        Tells whether a cost is within the memory.
    has_time
        Tells whether time is left.
    fewest
        Least number of layers of each virtual stage.
    """
    cost: Cost = layout_cost(facts, strategy)
    order = pipeline_order(strategy.decisions() | {"num_microbatches": int(microbatches(facts, strategy.decisions()))})
    if order is None or order["pp"] == 1 or strategy.layout is None or any(strategy.layout.full_layers):
        return strategy, cost
    for _ in range(MOST_STEPS):
        if not has_time():
            break
        better = next(_faster(facts, strategy, cost, order, fits, fewest), None)
        if better is None:
            break
        strategy, cost = better
    return strategy, cost


def _faster(
    facts: Facts,
    strategy: Strategy,
    cost: Cost,
    order: dict[str, int],
    fits: Callable[[Cost], bool],
    fewest: int,
) -> Iterator[tuple[Strategy, Cost]]:
    """Yield neighbours of a layout that are faster and fit, the one with the shortest pipeline first."""
    assert strategy.layout is not None
    sizes = np.array(strategy.layout.layers)
    dealings = np.concatenate([sizes[None], move_layers(sizes, fewest=fewest)])
    passes = passes_by_layer_counts(facts, strategy, dealings)
    spans = spans_seconds(
        forward=np.asarray(passes.forward),
        backward=np.asarray(passes.backward),
        weight=np.asarray(passes.weight),
        **order,  # type: ignore[arg-type]
    )
    for index in np.argsort(spans, kind="stable")[:MOST_CHECKED].tolist():
        if not spans[index] < spans[0]:
            return
        layout = replace(strategy.layout, layers=tuple(dealings[index].tolist()))
        neighbour = replace(strategy, layout=layout)
        own = layout_cost(facts, neighbour)
        if own.step_seconds < cost.step_seconds and fits(own):
            yield neighbour, own


def move_layers(sizes: Ints, *, fewest: int = 0) -> Ints:
    """
    Return all layouts with one layer less in one virtual stage and one more in another: shape (N, pp * vpp).

    Parameters
    ----------
    sizes
        Layers of each virtual stage, (pp * vpp,).
    fewest
        Least number of layers of each virtual stage.

    >>> move_layers(np.array([1, 2, 0])).tolist()
    [[0, 3, 0], [2, 1, 0], [1, 1, 1], [0, 2, 1]]
    >>> move_layers(np.array([1, 2, 1]), fewest=1).tolist()
    [[2, 1, 1], [1, 1, 2]]
    """
    giver, taker = np.nonzero((sizes[:, None] > fewest) & ~np.eye(len(sizes), dtype=bool))
    near = np.argsort(np.abs(giver - taker), kind="stable")[:MOST_MOVES]
    change: Ints = np.eye(len(sizes), dtype=np.int64)
    return np.asarray(sizes + change[taker[near]] - change[giver[near]])


def write_out_layout(facts: Facts, strategy: Strategy) -> Strategy:
    """Return a strategy with its layout written out, the start of a descent."""
    return replace(strategy, layout=stage_layout(strategy, facts.model))


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

    def chunks(self, which: Ints) -> Ints:
        """Return the chunks of some entries, as :class:`constraints.stages.StageOptions` has them."""
        sizes = [self.sizes[one] for one in which.tolist()]
        full = [full_by_chunk(num, own) for num, own in zip(self.num_full[which].tolist(), sizes, strict=True)]
        columns = (sizes, full, self.kinds[which], self.contents.full_layers[which])
        return np.concatenate([np.asarray(one, dtype=np.int64) for one in columns], axis=1)


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


@lru_cache(maxsize=4)
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


def _both_seconds(facts: Facts, decisions: Mapping[str, Any], contents: Contents) -> Any:
    return np.stack(np.broadcast_arrays(*contents_seconds(facts, decisions, contents)))


def _both_bytes(facts: Facts, decisions: Mapping[str, Any], contents: Contents) -> Any:
    return np.stack(np.broadcast_arrays(*contents_bytes(facts, decisions, contents)))


def costs_of(
    facts: Facts,
    decisions: Mapping[str, Any],
    choices: RankChoices,
    quantity: Callable[..., Any],
    without: Sequence[str],
    *,
    once: bool = False,
) -> Any:
    """
    Compute a quantity of every content in pipelines of one shape, once per set of its decisions: (..., C, A).

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Every decision: ``pp`` and ``vpp`` as scalars, the others as arrays of shape (C,).
    choices
        Possible contents of ranks.
    quantity
        Function of facts, decisions and contents.
    without
        Decisions on which it does not depend.
    once
        True for one content of each rank and number of layers: (..., C, S).
    """
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
    columns = [choices.contents.rank[index], choices.num_layers[index], choices.num_leading[index]]
    columns += [*choices.chunks(index).T] if alternate else []
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
        chunks=choices.chunks(which) if alternate else np.zeros((len(which), 0), dtype=np.int64),
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


ROWS_AT_ONCE = 512
"""Rows whose features are bounded at once; affects memory only."""

FIRST_BATCH, BATCH_GROWTH, LARGEST_BATCH = 64, 8, 2**14
"""Numbers of combinations whose ranks are costed at once."""

MOST_FOUND = 5
"""Best strategies with even stages whose recomputation is tried, for any number of wanted plans."""

NOTHING_AGAIN = {"recompute": np.int64(Recompute.NONE), "activation_offload": np.False_}
"""Decisions without recomputation and offload: no step is faster."""

BALANCE = tuple(field.name for field in fields(Balance))


@record(frozen=True, kw_only=True, slots=True)
class _Outer:
    """
    A combination of decisions for the whole pipeline, and the possible modes of its ranks.

    Its step takes at least ``seconds``, with ``constant_seconds`` for any contents of the ranks. A rank takes at least
    ``mean_seconds`` in the mean, a layer ``layer_seconds``.
    """

    seconds: float
    constant_seconds: float
    mean_seconds: float
    layer_seconds: float
    group: int
    decisions: dict[str, Any]
    modes: tuple[Mode, ...]
    pipeline: Pipeline


def recompute_to_try(problem: Problem) -> tuple[int, ...]:
    """Return the recomputation to try in uneven stages: the job's own, or else the usual sets of modules."""
    own = job_choices(problem).get("recompute")
    return own or cheap_recompute(problem.facts.model, problem.facts.cluster.framework)


MOST_PLACES = 16
"""Longest pattern of layers with which interleaved pipelines are searched: their chunks may begin at any place."""


def alternating_pattern(model: Model) -> LayerPattern | None:
    """Return the order of a model's kinds of layers; None for one or two runs of equal layers."""
    return layer_pattern(model) if num_leading(model) is None else None


def interleaves_unevenly(pattern: LayerPattern | None) -> bool:
    """Tell whether chunks of interleaved pipelines may differ, by the pattern of a model with alternating layers."""
    return pattern is None or pattern.num_places <= MOST_PLACES


def stage_restrictions(problem: Problem, space: Space) -> Iterator[str]:
    """Yield a sentence for each restriction that the search over uneven stages adds by itself."""
    if problem.search.stages == "even":
        return
    if not {*space.features["recompute"].tolist()} <= {*recompute_to_try(problem)}:
        yield (
            "Uneven stages recompute nothing, whole layers, the modules that are cheap to recompute or what the best "
            "strategies with even stages do (search.allow.recompute changes that)."
        )
    pattern = alternating_pattern(problem.facts.model)
    if pattern is None or not (space.rows["vpp"] > 1).any():
        return
    if not interleaves_unevenly(pattern):
        yield "Stages of interleaved pipelines stay even: the model's layers repeat no short pattern."
    elif problem.search.stages == "free":
        yield "Ranks with several chunks recompute all of their layers alike: the kinds of layers alternate."


class StageSearch:
    """
    One search over the uneven stages of a problem.

    Parameters
    ----------
    run
        The search that it is part of.
    found
        Recomputation of the best strategies with even stages, best first.
    """

    def __init__(self, run: Run, found: Sequence[Recompute]) -> None:
        self.run = run
        tried = {*recompute_to_try(run.problem), *found[:MOST_FOUND]}
        self.space = run.cost_table.space.keep_values(recompute=tried)
        self.facts = self.space.facts
        self.leading = num_leading(self.facts.model)
        self.pattern = alternating_pattern(self.facts.model)
        self.free = run.problem.search.stages == "free"
        self.fewest = least_layers(run.problem)
        self.num_outer = self.num_bounded = self.num_solved = 0
        self.least_ticks = 0

    @property
    def effort(self) -> SearchStats:
        """Effort for uneven stages, solves apart."""
        return SearchStats(
            num_pipelines=self.num_outer,
            num_pipelines_costed=self.num_bounded,
            num_pipelines_solved=self.num_solved,
        )

    def search(self) -> None:
        """Improve on the results of the run, or prove that no uneven stages do."""
        outer = sorted(self.outer(), key=lambda one: one.seconds)
        self.num_outer = len(outer)
        position, size = 0, FIRST_BATCH
        while position < len(outer):
            if self.run.seconds_left <= 0:
                self.run.leave(int(outer[position].seconds / TICK_SECONDS))
                return
            self.improve_all(outer[position : position + size])
            position, size = position + size, min(BATCH_GROWTH * size, LARGEST_BATCH)

    def cuts(self, some: Sequence[_Outer]) -> Ints:
        """Return the ticks that a strategy of each combination must undercut."""
        return self.run.cuts(np.array([one.group for one in some], dtype=np.int64))

    # --- outer ---------------------------------------------------------------------------------------------

    def outer(self) -> Iterator[_Outer]:
        """Yield combinations whose bound is within the cut and whose average rank fits into memory."""
        rows = self.rows()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            if self.run.seconds_left <= 0:
                self.run.leave(self.least_ticks)
                return
            yield from self.combine_rows(some)

    def rows(self) -> Ints:
        """Return rows with 1F1B, with embedding and head at the ends, whose bound is within the cut."""
        columns = self.space.rows
        pipelined = (columns["pp"] > 1) | self.free
        is_default = (columns["schedule"] == Schedule.ONE_F_ONE_B) & (columns["vocabulary"] == Vocabulary.ENDS)
        is_default &= columns["group"] == default_microbatch_group(pp=columns["pp"], vpp=columns["vpp"])
        if not interleaves_unevenly(self.pattern):
            is_default &= columns["vpp"] == 1
        rows = np.flatnonzero(pipelined & is_default)
        if not len(rows):
            return rows
        bounds = seconds_to_floor_ticks(np.asarray(balanced_bound_seconds(self.facts, self.space.degrees(rows))))
        kept: Ints = rows[bounds <= self.run.cuts(self.run.group_of_row[rows])]
        self.least_ticks = int(bounds.min())
        return kept

    def combine_rows(self, rows: Ints) -> Iterator[_Outer]:
        """Yield the combinations of some rows."""
        rows = self.filter_rows(rows)
        if not len(rows):
            return
        block = self.space.block(rows)
        decisions = self.least_decisions(block)
        balance = balance_of(self.facts, decisions, self.least_recompute_seconds(block, decisions))
        axes = tuple(1 + FEATURES.index(name) for name in PER_RANK) if self.free else ()
        allowed = block.allowed.any(axis=axes, keepdims=True) if self.free else block.allowed
        of_each = [np.broadcast_to(getattr(balance, name), allowed.shape) for name in BALANCE]
        groups = self.run.group_of_row[rows]
        cuts = self.run.cuts(groups).reshape(-1, *(1,) * len(FEATURES))
        possible = allowed & (of_each[0] <= cuts * TICK_SECONDS)
        possible &= self.light_enough(block, allowed.shape) if possible.any() else False
        position, *features = np.nonzero(possible)
        columns = {name: values[position] for name, values in block.degrees.items()}
        columns |= {name: block.features[name][at] for name, at in zip(FEATURES, features, strict=True)}
        num_microbatches = np.broadcast_to(microbatches(self.facts, columns), position.shape).tolist()
        chosen = zip(*(columns[name].tolist() for name in DECISIONS), strict=True)
        balances = zip(*(values[possible].tolist() for values in of_each), strict=True)
        where = zip(position.tolist(), *(at.tolist() for at in features), strict=True)
        for values, own, each, number in zip(chosen, balances, where, num_microbatches, strict=True):
            decisions_of_one = dict(zip(DECISIONS, values, strict=True))
            yield _Outer(
                **dict(zip(BALANCE, own, strict=True)),
                group=int(groups[each[0]]),
                decisions=decisions_of_one,
                modes=self.modes(block, each[0], each[1:], decisions_of_one),
                pipeline=self.pipeline(decisions_of_one, number),
            )

    def filter_rows(self, rows: Ints) -> Ints:
        """Return rows whose bound is within the cut without any recomputation."""
        block = self.space.block(rows)
        seconds = balance_of(self.facts, {**block.decisions, **NOTHING_AGAIN}).seconds
        least: Any = np.broadcast_to(seconds, (len(rows), *seconds.shape[1:])).reshape(len(rows), -1).min(axis=1)
        near: Ints = rows[least <= self.run.cuts(self.run.group_of_row[rows]) * TICK_SECONDS]
        return near

    def least_decisions(self, block: CandidateBlock) -> Mapping[str, Any]:
        """Return the decisions of a box; without recomputation and offload where ranks choose them."""
        return {**block.decisions, **NOTHING_AGAIN} if self.free else block.decisions

    def least_recompute_seconds(self, block: CandidateBlock, decisions: Mapping[str, Any]) -> Any:
        """Return the least recomputation time with which ranks fit into memory, where they choose it."""
        if not self.free:
            return 0.0
        available_bytes = self.facts.cluster.device.memory_bytes - self.run.cost_table.headroom_bytes
        return least_recompute_seconds(self.facts, decisions, self.all_modes(block), available_bytes)

    def light_enough(self, block: CandidateBlock, shape: tuple[int, ...]) -> Any:
        """Tell whether an average rank fits with the modes that save most memory."""
        of_modes = [dict(zip(PER_RANK, map(np.asarray, mode), strict=True)) for mode in self.all_modes(block)]
        lightest = np.zeros(shape, dtype=bool)
        for own in of_modes if self.free else [{}]:
            lightest |= self.fit(*least_memory(self.facts, block.decisions | own))
        return lightest

    def fit(self, device: Any, host: Any) -> Any:
        """Tell whether bytes fit, by the memory rules."""
        memory = Memory(device_bytes=np.asarray(device), host_bytes=np.asarray(host))
        fit, host_fit = memory_fits(self.facts, self.space.rules, memory, self.run.cost_table.headroom_bytes)
        return fit & host_fit

    def all_modes(self, block: CandidateBlock) -> list[Mode]:
        """List every pair of recomputation and offload that any of some rows may have."""
        return [
            (int(again), bool(off))
            for again in block.features["recompute"]
            for off in block.features["activation_offload"]
        ]

    def modes(
        self, block: CandidateBlock, position: int, features: Sequence[int], decisions: Mapping[str, Any]
    ) -> tuple[Mode, ...]:
        """Return the possible recomputation and offload of the ranks of one combination."""
        again, off = (FEATURES.index(name) for name in PER_RANK)
        if not self.free:
            return ((decisions["recompute"], decisions["activation_offload"]),)
        where: list[Any] = list(features)
        where[again] = where[off] = slice(None)
        table = block.of_class[(block.class_of_row[position], *where)]
        return tuple(
            mode for mode, allowed in zip(self.all_modes(block), table.ravel().tolist(), strict=True) if allowed
        )

    # --- inner ---------------------------------------------------------------------------------------------

    def improve_all(self, some: Sequence[_Outer]) -> None:
        """Divide the layers of each combination so that it is faster than the best, or prove that it cannot be."""
        shapes: dict[tuple[Any, ...], list[tuple[int, _Outer]]] = {}
        for one, cut in zip(some, self.cuts(some).tolist(), strict=True):
            most = self.most_layers(one, cut)
            if one.seconds <= cut * TICK_SECONDS and most * one.pipeline.pp >= one.pipeline.num_layers:
                shapes.setdefault((one.pipeline.pp, one.pipeline.vpp, one.modes), []).append((most, one))
        for (pp, vpp, modes), alike in shapes.items():
            if self.run.seconds_left <= 0:
                self.run.leave(int(min(one.seconds for _, one in alike) / TICK_SECONDS))
                continue
            full_of_some = self.free and {(Recompute.NONE, False), (Recompute.FULL, False)} <= set(modes)
            full_of_some &= vpp == 1 or self.pattern is None
            most = max(most for most, _ in alike)
            choices = rank_choices(self.facts.model, pp, vpp, most, modes, full_of_some, fewest=self.fewest)
            for one, seconds, pace, ending in self.promising(choices, [one for _, one in alike]):
                self.improve(one, choices, seconds, pace, ending)

    def promising(self, choices: RankChoices, alike: Sequence[_Outer]) -> Iterator[tuple[_Outer, Any, Any, Any]]:
        """Yield the combinations of one shape that may be faster, with the seconds, pace and ending of each content."""
        self.num_bounded += len(alike)
        decisions = _columns(alike)
        fits = self.fit(*costs_of(self.facts, decisions, choices, _both_bytes, NOT_IN_MEMORY))
        both = costs_of(self.facts, decisions, choices, _both_seconds, NOT_IN_TIME)
        seconds, pace = (np.where(fits, values, np.inf) for values in both)
        least, least_pace = least_of_each(seconds, choices), least_of_each(pace, choices)
        left = np.flatnonzero(
            is_within_limits(
                choices,
                least_pace,
                costs_of(self.facts, decisions, choices, contents_update_seconds, NOT_IN_UPDATE, once=True),
                alike[0].pipeline,
                num_microbatches=np.array([one.pipeline.num_microbatches for one in alike]),
                limits=self.limits(alike),
            )
        )
        if not len(left):
            return
        few = [alike[index] for index in left.tolist()]
        ending = costs_of(self.facts, _columns(few), choices, contents_ending_seconds, NOT_IN_ENDING)
        still = self.can_improve_incumbent(few, choices, least[left], least_pace[left], least_of_each(ending, choices))
        for position in np.flatnonzero(still).tolist():
            own = left[position]
            yield few[position], seconds[own], pace[own], ending[position]

    def can_improve_incumbent(
        self, alike: Sequence[_Outer], choices: RankChoices, seconds: Any, pace: Any, ending: Any
    ) -> Any:
        """Mark combinations of one shape that may be faster than the best, by the least times of their ranks."""
        return can_improve_incumbent(
            choices,
            seconds,
            pace,
            ending,
            alike[0].pipeline,
            num_microbatches=np.array([one.pipeline.num_microbatches for one in alike]),
            limits=self.limits(alike),
            of_kinds=layer_parts(self.facts, _columns(alike)).total if self.pattern else None,
        )

    def limits(self, some: Sequence[_Outer]) -> Any:
        """Return the seconds that the steps of combinations must undercut, without their constant parts."""
        return (self.cuts(some) - 0.5) * TICK_SECONDS - np.array([one.constant_seconds for one in some])

    def improve(self, one: _Outer, choices: RankChoices, seconds: Any, pace: Any, ending: Any) -> None:
        """Let CP-SAT divide the layers of one combination, given the costs of the possible contents of its ranks."""
        if self.run.seconds_left <= 0:
            self.run.leave(int(one.seconds / TICK_SECONDS))
            return
        pipeline, limit = one.pipeline, float(self.limits([one])[0])
        least = (least_of_each(values, choices)[None] for values in (seconds, pace, ending))
        if not self.can_improve_incumbent([one], choices, *least)[0]:
            return
        slowest = limit * pipeline.vpp / (pipeline.weight_of_slowest + 1)
        options, which = options_of(choices, seconds, pace, ending, slowest=slowest, alternate=self.pattern is not None)
        cut = min(int(np.ceil(limit * pipeline.vpp / RANK_TICK_SECONDS)), MAX_TICKS)
        if pipeline.pattern is not None and len(options):
            kept = options_of_dealings(options, pipeline, cut=cut)
            options, which = options.take(kept), which[kept]
        encoding = encode_stages(options, pipeline, cut=cut)
        if encoding is None:
            return
        self.num_solved += 1
        model, classes = encoding
        status, solver = self.run.solve(model)
        if status in (cp_model.FEASIBLE, cp_model.UNKNOWN):
            self.run.leave(int(one.seconds / TICK_SECONDS))
        if status in (cp_model.FEASIBLE, cp_model.OPTIMAL):
            chosen = read_solution(classes, solver, options)
            assert objective(options, chosen, pipeline) == round(solver.objective_value)
            layout = layout_of(choices, which[chosen])
            strategy = replace(strategy_of(one.decisions), layout=layout, **_most_common(layout))
            self.run.keep_uneven(one.group, strategy, layout_cost(self.facts, strategy))

    def pipeline(self, decisions: Mapping[str, Any], num_microbatches: int) -> Pipeline:
        """Return the shape of a combination's pipeline."""
        return Pipeline(
            pp=decisions["pp"],
            vpp=decisions["vpp"],
            num_microbatches=num_microbatches,
            num_layers=self.facts.model.num_layers,
            num_leading=self.leading or 0,
            pattern=self.pattern,
        )

    def most_layers(self, one: _Outer, cut: int) -> int:
        """Return the largest number of layers of a rank in a step within the cut."""
        pipeline = one.pipeline
        if cut >= MAX_TICKS:
            return pipeline.num_layers
        rest = (cut + 1) * TICK_SECONDS - one.constant_seconds
        slowest = (pipeline.vpp * rest - pipeline.pp * one.mean_seconds) / max(pipeline.weight_of_slowest, 1)
        return min(int(max(slowest, 0.0) / one.layer_seconds), pipeline.num_layers)


def _columns(alike: Sequence[_Outer]) -> dict[str, Any]:
    """Return the decisions of combinations of one shape as arrays, with the shape's own as scalars."""
    shape = {"pp": alike[0].pipeline.pp, "vpp": alike[0].pipeline.vpp}
    return {name: np.array([one.decisions[name] for one in alike]) for name in DECISIONS} | shape


def _most_common(layout: Any) -> dict[str, Any]:
    """Return the decisions of most ranks; in a tie the first rank's."""
    again, off = layout.recompute, layout.activation_offload
    return {
        "recompute": max(dict.fromkeys(again), key=again.count),
        "activation_offload": max(dict.fromkeys(off), key=off.count),
    }
