"""
Keep the stage options that occur in a layout of alternating layers, by listing all layouts of one pipeline.

The number of layers of each chunk determines where it begins, and so which kinds of layers it holds. CP-SAT finds
that out chunk by chunk. If the chunks of a rank are as even as possible, there are so few layouts that listing them
all is faster.
"""

from __future__ import annotations

import numpy as np

from constraints.stages import Flags, Ints, Pipeline, StageOptions

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
    assert options.chunks is not None
    of_rank = [np.flatnonzero(options.rank == rank) for rank in range(pipeline.pp)]
    chunks = np.concatenate([options.chunks.layers, options.chunks.full_layers], axis=1)
    different = [np.unique(chunks[own], axis=0) for own in of_rank]
    dealings = _dealings(different, pipeline)
    if dealings is None:
        return np.ones(len(options), dtype=bool)
    covered = _kinds_covered(dealings, pipeline)
    groups, (ticks, pace, ending) = [], np.zeros((3, len(covered)), dtype=np.int64)
    for rank, own in enumerate(of_rank):
        by_option = np.concatenate([chunks[own], options.chunks.kinds[own]], axis=1)
        by_dealing = np.concatenate([dealings[:, rank], covered[:, rank]], axis=1)
        _, group = np.unique(np.concatenate([by_option, by_dealing]), axis=0, return_inverse=True)
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
