"""
Layouts made faster as simulated, one layer from one virtual stage to another at a time.

A solver compares layouts by the sum over their ranks. Simulated pass by pass, they take less, and interleaved ones of
unlike stages less or more: which rank waits for which depends on the order of their stages. So what a solver has chosen
is where a descent begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from costmodel.pipelines.stages import stage_layout
from costmodel.pipelines.wavefronts import spans_seconds
from costmodel.step.layouts import dealt_passes, layout_cost
from costmodel.step.rank_time import pipeline_order
from costmodel.strategy import Strategy
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.candidates import CostLike, Ints

MOST_MOVES = 1024
"""Moves that are simulated at once, those between near stages first; a matter of time only."""

MOST_CHECKED = 4
"""Moves, the fastest first, of which memory is asked before a descent ends; a matter of time only."""

MOST_STEPS = 64
"""Moves after which a descent ends; a matter of time only."""


def least_layers(problem: Problem) -> int:
    """
    Layers that each virtual stage has at least: none where embedding or head may be alone, else one.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_block.py:173: a hybrid's stages have layers.
    """
    return int(problem.search.framework_rules and problem.facts.model.has_single_blocks)


def descended(
    facts: Facts, strategy: Strategy, fits: Callable[[CostLike], bool], has_time: Callable[[], bool], *, fewest: int = 0
) -> tuple[Strategy, CostLike]:
    """
    A layout that no move of one layer makes faster, from a given one on; with what it costs.

    Derivation: steepest descent. All moves of one layer between two virtual stages are simulated together. Of the
    fastest the first that fits is made, until none is faster than what there is, or there is no time.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    strategy
        With a layout, none of whose ranks recomputes some layers in full, or it is left as it is.
    fits
        Whether a cost is within the memory.
    has_time
        Whether to go on.
    fewest
        Layers that each virtual stage keeps.
    """
    cost: CostLike = layout_cost(facts, strategy)
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
    cost: CostLike,
    order: dict[str, int],
    fits: Callable[[CostLike], bool],
    fewest: int,
) -> Iterator[tuple[Strategy, CostLike]]:
    """Neighbours of a layout that are faster and fit, the one of the shortest pipeline first."""
    assert strategy.layout is not None
    sizes = np.array(strategy.layout.layers)
    dealings = np.concatenate([sizes[None], moved(sizes, fewest=fewest)])
    passes = dealt_passes(facts, strategy, dealings)
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


def moved(sizes: Ints, *, fewest: int = 0) -> Ints:
    """
    All dealings with one layer less in one virtual stage and one more in another: shape (N, pp * vpp).

    Parameters
    ----------
    sizes
        Layers of each virtual stage, (pp * vpp,).
    fewest
        Layers that each virtual stage keeps.

    >>> moved(np.array([1, 2, 0])).tolist()
    [[0, 3, 0], [2, 1, 0], [1, 1, 1], [0, 2, 1]]
    >>> moved(np.array([1, 2, 1]), fewest=1).tolist()
    [[2, 1, 1], [1, 1, 2]]
    """
    giver, taker = np.nonzero((sizes[:, None] > fewest) & ~np.eye(len(sizes), dtype=bool))
    near = np.argsort(np.abs(giver - taker), kind="stable")[:MOST_MOVES]
    change: Ints = np.eye(len(sizes), dtype=np.int64)
    return np.asarray(sizes + change[taker[near]] - change[giver[near]])


def with_layout(facts: Facts, strategy: Strategy) -> Strategy:
    """A strategy with its layout written out, as a descent begins with."""
    return replace(strategy, layout=stage_layout(strategy, facts.model))
