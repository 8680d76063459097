r"""
CP-SAT model that assigns the layers of one pipeline to its ranks.

Each rank chooses one option: its number of layers, its recomputation and offloading, with their cost for that rank.
Ranks with the same options form one class, and the model counts how many ranks of a class choose each option.
Otherwise every permutation of equal ranks would be another solution. Options that exceed the rank's memory are not in
the model.

If kinds of layers alternate, the layers of a rank depend on where its chunks begin. Virtual stages are then a path
through the places of the pattern of layers (:class:`costmodel.models.patterns.LayerPattern`). Each stage begins
where the previous one ends. A rank's option holds as many layers of each kind as its chunks cover.

The objective is the compared step time times the chunks per rank,

.. math:: v T = (m v - 1) \max_i P_i + \sum_i R_i + v \max_i E_i

in ticks of a nanosecond (R: one micro-batch; P: one micro-batch with the waits for other ranks; E: work after the last
one).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field, fields
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from constraints.cp_sat import cp_model
from costmodel.models.patterns import LayerPattern
from costmodel.record import record
from costmodel.tables import distinct

RANK_TICK_SECONDS = 1e-9

"""Resolution of a rank's time: rounded per rank, a step is off by half of it times its micro-batches."""

Ints = NDArray[np.int64]

Flags = NDArray[np.bool_]

Linear: TypeAlias = "cp_model.LinearExpr | cp_model.IntVar | int"


@record(frozen=True, kw_only=True, slots=True)
class StageOptions:
    """
    Options of each rank of one pipeline, one per entry, shape (A,).

    Parameters
    ----------
    rank
        Rank that the option belongs to.
    choice
        Identifier of the option, shared by equal options of different ranks.
    num_layers, num_leading
        Layers; those of the model's leading kind, if the model begins with layers of another kind.
    continues
        True if the next rank may hold leading layers as well: the first chunk holds no other kind.
    ticks, pace_ticks, ending_ticks
        Time of one micro-batch, without and with waits for other ranks; time after the last micro-batch.
    chunks
        Contents of the chunks, shape (A, 2 v + 2 K); (A, 0) where kinds of layers do not alternate. First the layers of
        each chunk and those at its front that are recomputed in full, then the layers of each kind likewise.
    """

    rank: Ints
    choice: Ints
    num_layers: Ints
    num_leading: Ints
    continues: Flags
    ticks: Ints
    pace_ticks: Ints
    ending_ticks: Ints
    chunks: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, which: Ints | Flags) -> StageOptions:
        """Return some of the options."""
        return StageOptions(**{one.name: getattr(self, one.name)[which] for one in fields(self)})


@record(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """
    Ranks and layers of one pipeline, with the weights of its objective.

    Parameters
    ----------
    pp, vpp, num_microbatches
        Ranks, chunks per rank, micro-batches.
    num_layers, num_leading
        Layers of the model; leading layers, whose kind differs from the rest.
    pattern
        Order of the kinds of layers, where they alternate.
    """

    pp: int
    vpp: int
    num_microbatches: int
    num_layers: int
    num_leading: int
    pattern: LayerPattern | None = field(default=None, compare=False)

    @property
    def weight_of_slowest(self) -> int:
        """Weight of the slowest rank in the objective, besides its own term of the sum."""
        return self.num_microbatches * self.vpp - 1


@record(frozen=True, kw_only=True, slots=True)
class RankClass:
    """Ranks with equal options, the options of the first of them, and variables that count the choices of each."""

    ranks: tuple[int, ...]
    options: Ints
    counts: list[cp_model.IntVar]


def encode_stages(
    options: StageOptions, pipeline: Pipeline, *, cut: int
) -> tuple[cp_model.CpModel, tuple[RankClass, ...]] | None:
    """
    Build the model: one option per rank, each layer once, and the least objective below the cut.

    Parameters
    ----------
    options
        Options that fit, in ascending order of the ranks.
    pipeline
        Ranks and layers to assign.
    cut
        Objective that a solution must undercut.

    Returns
    -------
    tuple | None
        The model and its classes of ranks; None where a rank has no option.
    """
    if len(distinct(options.rank)) < pipeline.pp:
        return None
    model = cp_model.CpModel()
    classes = tuple(_classes(model, options, pipeline))
    counts = [count for one in classes for count in one.counts]
    index = np.concatenate([one.options for one in classes])
    model.add(_sum_weighted(counts, options.num_layers[index]) == pipeline.num_layers)
    if pipeline.num_leading:
        model.add(_sum_weighted(counts, options.num_leading[index]) == pipeline.num_leading)
        _add_order(model, classes, options, pipeline)
    if pipeline.pattern is not None:
        _add_path(model, classes, options, pipeline)
    slowest = _maximum(model, classes, options.pace_ticks)
    ending = _maximum(model, classes, options.ending_ticks)
    total = pipeline.weight_of_slowest * slowest + _sum_weighted(counts, options.ticks[index]) + pipeline.vpp * ending
    model.add(total <= cut - 1)
    model.minimize(total)
    return model, classes


def read_solution(classes: Sequence[RankClass], solver: cp_model.CpSolver, options: StageOptions) -> Ints:
    """Return the option of each rank, shape (pp,); within a class, options with fewer layers come first."""
    chosen: dict[int, int] = {}
    for one in classes:
        order = sorted(range(len(one.options)), key=lambda i: (int(options.num_layers[one.options[i]]), i))
        picked = [i for i in order for _ in range(solver.value(one.counts[i]))]
        firsts = np.searchsorted(options.rank, one.ranks).tolist()
        chosen |= {rank: first + i for rank, first, i in zip(one.ranks, firsts, picked, strict=True)}
    return np.array([chosen[rank] for rank in sorted(chosen)], dtype=np.int64)


def objective(options: StageOptions, chosen: Ints, pipeline: Pipeline) -> int:
    """Return the objective of one choice of options."""
    ticks, pace, ending = options.ticks[chosen], options.pace_ticks[chosen], options.ending_ticks[chosen]
    return int(pipeline.weight_of_slowest * pace.max() + ticks.sum() + pipeline.vpp * ending.max())


def _classes(model: cp_model.CpModel, options: StageOptions, pipeline: Pipeline) -> list[RankClass]:
    """Group ranks with equal options; a rank is alone where its order counts: leading layers or alternating kinds."""
    bounds = np.searchsorted(options.rank, np.arange(pipeline.pp + 1))
    keys = {}
    for rank in range(pipeline.pp):
        own = slice(bounds[rank], bounds[rank + 1])
        columns = (options.choice, options.num_layers, options.ticks, options.pace_ticks, options.ending_ticks)
        may_lead = rank == 0 or bool(options.num_leading[own].any())
        is_single = pipeline.pattern is not None or (pipeline.num_leading and may_lead)
        own_rank = rank if is_single else -1
        keys[rank] = (own_rank, *(tuple(column[own].tolist()) for column in columns))
    ordered = sorted(keys, key=lambda rank: (keys[rank], rank))
    classes = []
    for _, group in groupby(ordered, key=lambda rank: keys[rank]):
        ranks = tuple(group)
        index = np.arange(bounds[ranks[0]], bounds[ranks[0] + 1])
        counts = [model.new_int_var(0, len(ranks), "") for _ in index]
        model.add(cp_model.LinearExpr.sum(counts) == len(ranks))
        classes.append(RankClass(ranks=ranks, options=index, counts=counts))
    return classes


def _add_order(
    model: cp_model.CpModel, classes: Sequence[RankClass], options: StageOptions, pipeline: Pipeline
) -> None:
    """Place leading layers at the front: a rank holds some only if all ranks before it hold no other layers so far."""
    class_of = {rank: one for one in classes for rank in one.ranks}
    leads: cp_model.IntVar | int = 1
    for rank in range(pipeline.pp):
        one = class_of[rank]
        if len(one.ranks) > 1:
            leads = 0
            continue
        leading = [c for c, i in zip(one.counts, one.options, strict=True) if options.num_leading[i]]
        continues = [c for c, i in zip(one.counts, one.options, strict=True) if options.continues[i]]
        model.add(cp_model.LinearExpr.sum(leading) <= leads)
        after = model.new_bool_var("")
        model.add(after <= cp_model.LinearExpr.sum(continues))
        model.add(after <= leads)
        leads = after


def _add_path(model: cp_model.CpModel, classes: Sequence[RankClass], options: StageOptions, pipeline: Pipeline) -> None:
    """Chain virtual stages along the pattern, and match each rank's chunks with the kinds that its option holds."""
    pattern, vpp = pipeline.pattern, pipeline.vpp
    assert pattern is not None
    class_of = {one.ranks[0]: one for one in classes}
    arcs_of_rank: list[list[cp_model.IntVar]] = [[] for _ in range(pipeline.pp)]
    kinds_of_rank: list[list[Ints]] = [[] for _ in range(pipeline.pp)]
    begins: dict[int, Linear] = {0: 1}
    for stage in range(pipeline.pp * vpp):
        chunk, rank = divmod(stage, pipeline.pp)
        leaving, entering = defaultdict(list), defaultdict(list)
        content = options.chunks[class_of[rank].options]
        content = content[:, [chunk, vpp + chunk]] if vpp > 1 else content  # a single chunk has the kinds of its rank
        for (layers, full_layers, *own_kinds), counts in _group_counts(class_of[rank], content).items():
            met = kinds_met(pattern, layers, full_layers)
            places = [place for place in begins if not own_kinds or met[place].tolist() == own_kinds]
            arcs = [model.new_bool_var("") for _ in places]
            model.add(cp_model.LinearExpr.sum(arcs) == cp_model.LinearExpr.sum(counts))
            for place, arc in zip(places, arcs, strict=True):
                leaving[place].append(arc)
                entering[int(pattern.place_after(place + layers))].append(arc)
            arcs_of_rank[rank] += arcs
            kinds_of_rank[rank] += list(met[places])
        for place, begin in begins.items():
            model.add(cp_model.LinearExpr.sum(leaving[place]) == begin)
        begins = {place: cp_model.LinearExpr.sum(arcs) for place, arcs in entering.items()}
    for rank, one in class_of.items() if vpp > 1 else ():
        kinds = options.chunks[one.options, 2 * vpp :]
        for of_options, met in zip(kinds.T, np.array(kinds_of_rank[rank]).T, strict=True):
            model.add(_sum_weighted(one.counts, of_options) == _sum_weighted(arcs_of_rank[rank], met))


def kinds_met(pattern: LayerPattern, num_layers: int, full_layers: int) -> Ints:
    """Count the layers of each kind of a chunk from each place, then those recomputed in full: shape (S, 2 K)."""
    return np.concatenate([pattern.counts(num_layers), pattern.counts(full_layers)], axis=1)


def _group_counts(one: RankClass, content: Ints) -> dict[tuple[int, ...], list[cp_model.IntVar]]:
    """Group the counts of a rank's options by the layers that they hold, a row per option."""
    counts = defaultdict(list)
    for key, count in zip(content.tolist(), one.counts, strict=True):
        counts[tuple(key)].append(count)
    return counts


def _maximum(model: cp_model.CpModel, classes: Sequence[RankClass], values: Ints) -> cp_model.IntVar:
    """Create a variable that is at least the value of every chosen option."""
    every = np.concatenate([values[one.options] for one in classes])
    least = max(int(values[one.options].min()) for one in classes)
    largest = model.new_int_var(least, int(every.max()), "")
    for one in classes:
        if len(one.ranks) == 1:
            model.add(_sum_weighted(one.counts, values[one.options]) <= largest)
            continue
        for count, value in zip(one.counts, values[one.options].tolist(), strict=True):
            if value > least:
                used = model.new_bool_var("")
                model.add(count <= len(one.ranks) * used)
                model.add(largest >= value).only_enforce_if(used)
    return largest


def _sum_weighted(variables: Sequence[cp_model.IntVar], weights: Ints) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum(list(variables), weights.tolist())


MOST_DEALINGS = 20_000

"""Largest number of layouts that are listed, to bound the run time; beyond it every option is kept."""

ABSENT = 2**60

"""Ticks of a combination that no option covers; larger sums are ignored."""


def options_of_dealings(options: StageOptions, pipeline: Pipeline, *, cut: int) -> Flags:
    """
    Return a mask of options that are part of a layout whose objective is below the cut, shape (A,).

    Derivation: in every layout each rank takes, waits and ends with the least of its options that hold the layers its
    chunks cover. No choice of options has a lower objective.

    Parameters
    ----------
    options
        Options of all ranks.
    pipeline
        The pipeline; its kinds of layers alternate.
    cut
        Objective that a layout must undercut.
    """
    of_rank = [np.flatnonzero(options.rank == rank) for rank in range(pipeline.pp)]
    different = [np.unique(options.chunks[own, : 2 * pipeline.vpp], axis=0) for own in of_rank]
    dealings = _dealings(different, pipeline)
    if dealings is None:
        return np.ones(len(options), dtype=bool)
    covered = _kinds_covered(dealings, pipeline)
    groups, (ticks, pace, ending) = [], np.zeros((3, len(covered)), dtype=np.int64)
    for rank, own in enumerate(of_rank):
        by_dealing = np.concatenate([dealings[:, rank], covered[:, rank]], axis=1)
        _, group = np.unique(np.concatenate([options.chunks[own], by_dealing]), axis=0, return_inverse=True)
        of_options, of_dealings = np.split(group.ravel(), [len(own)])
        groups.append((of_options, of_dealings))
        ticks = ticks + _least(options.ticks[own], of_options, of_dealings)
        pace = np.maximum(pace, _least(options.pace_ticks[own], of_options, of_dealings))
        ending = np.maximum(ending, _least(options.ending_ticks[own], of_options, of_dealings))
    total = pipeline.weight_of_slowest * pace + ticks + pipeline.vpp * ending
    fast = (ending < ABSENT) & (total < cut)
    kept = np.zeros(len(options), dtype=bool)
    for own, (of_options, of_dealings) in zip(of_rank, groups, strict=True):
        kept[own] = np.isin(of_options, of_dealings[fast])
    return kept


def _least(ticks: Ints, of_options: Ints, of_dealings: Ints) -> Ints:
    """Return the least ticks among the options of each layout's group."""
    least = np.full(max(of_options.max(initial=-1), of_dealings.max(initial=-1)) + 1, ABSENT)
    np.minimum.at(least, of_options, ticks)
    return np.asarray(least[of_dealings])


def _dealings(different: list[Ints], pipeline: Pipeline) -> Ints | None:
    """List the chunks of all ranks that together hold all layers, shape (D, pp, 2 v); None if there are too many."""
    chosen, num_so_far = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for rank, chunks in enumerate(different):
        with_own = num_so_far[:, None] + chunks[:, : pipeline.vpp].sum(axis=1)
        is_last = rank == pipeline.pp - 1
        before, own = np.nonzero(with_own == pipeline.num_layers if is_last else with_own <= pipeline.num_layers)
        if len(before) > MOST_DEALINGS:
            return None
        chosen, num_so_far = np.concatenate([chosen[before], own[:, None]], axis=1), with_own[before, own]
    return np.stack([chunks[chosen[:, rank]] for rank, chunks in enumerate(different)], axis=1)


def _kinds_covered(dealings: Ints, pipeline: Pipeline) -> Ints:
    """Count the layers of each kind per rank, then those that are recomputed in full, shape (D, pp, 2 K)."""
    pattern = pipeline.pattern
    assert pattern is not None
    before = np.zeros((pipeline.num_layers + 1, pattern.num_kinds), dtype=np.int64)
    order = pattern.kinds[pattern.place_after(np.arange(pipeline.num_layers))]
    before[np.arange(1, pipeline.num_layers + 1), order] = 1
    before = before.cumsum(axis=0)
    covered = np.zeros((*dealings.shape[:2], 2 * pattern.num_kinds), dtype=np.int64)
    begin = np.zeros(len(dealings), dtype=np.int64)
    for stage in range(pipeline.pp * pipeline.vpp):
        chunk, rank = divmod(stage, pipeline.pp)
        layers, full_layers = dealings[:, rank, chunk], dealings[:, rank, pipeline.vpp + chunk]
        ends = [before[begin + num] - before[begin] for num in (layers, full_layers)]
        covered[:, rank] += np.concatenate(ends, axis=1)
        begin = begin + layers
    return covered
