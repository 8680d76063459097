"""
Make layouts faster as simulated, by moving one layer at a time between virtual stages.

A solver compares layouts by the sum over their ranks. Simulated pass by pass, they take less time; interleaved
pipelines with unlike stages may take less or more. The order of the stages decides which rank waits for which. So the
solver's layout is the start of a descent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from costmodel.pipelines.graph import spans_seconds
from costmodel.pipelines.stages import stage_layout
from costmodel.step.layouts import layout_cost, passes_by_layer_counts
from costmodel.step.rank_time import pipeline_order
from costmodel.strategy import Strategy
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.candidates import CostLike, Ints

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
    facts: Facts, strategy: Strategy, fits: Callable[[CostLike], bool], has_time: Callable[[], bool], *, fewest: int = 0
) -> tuple[Strategy, CostLike]:
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
