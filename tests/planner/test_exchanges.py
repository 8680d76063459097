"""Interleaved stages that descend as simulated: nothing one layer away is faster, by estimates of single strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.step.estimate import Estimate, estimate
from costmodel.step.layouts import layout_cost, layout_passes, passes_by_layer_counts
from planner import load
from planner.search.questions import search
from planner.search.uneven import descend, move_layers, write_out_layout
from tests.planner.test_alternating_stages import fits, with_layers
from tests.planner.test_alternating_stages import moved as moved_one_by_one

JOB = {
    "model": "gpt-oss-120b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64},
    "training": {"global_batch_size": 256, "sequence_length": 4096, "tokens": 1e12},
    "search": {
        "evidence": "any",
        "pin": {"tp": 1, "cp": 1, "pp": 4, "ep": 16, "vpp": 3, "mbs": 1, "recompute": "norms"},
    },
}
"""Layers with and without a window, dealt to twelve virtual stages of which the first embeds and the last predicts."""


def peak(one: Estimate) -> float:
    """Bytes of the fullest rank."""
    return max(rank.device_bytes for rank in one.ranks)


@pytest.fixture(scope="module")
def outcome():
    """What a search of the job finds."""
    return search(load(JOB))


@pytest.mark.slow
def test_no_layer_moved_makes_the_plan_faster(outcome):
    """Every neighbour that fits, costed as a strategy of its own."""
    problem = load(JOB)
    [best] = outcome.strategies

    neighbours = [estimate(problem.facts, with_layers(best, sizes)) for sizes in moved_one_by_one(best.layout.layers)]

    fitting = [one.step_seconds for one in neighbours if fits(problem, peak(one))]
    assert len(fitting) > 50
    assert estimate(problem.facts, best).step_seconds <= min(fitting)


@pytest.mark.slow
def test_a_descent_gains_what_the_sum_over_the_ranks_does_not_see(outcome):
    """The plan is faster than the even stages that it descends from or beside."""
    problem = load(JOB)
    [best] = outcome.strategies
    even = write_out_layout(problem.facts, replace(best, layout=None))

    assert estimate(problem.facts, best).step_seconds < 0.999 * estimate(problem.facts, even).step_seconds


def test_even_stages_in_a_layout_cost_what_they_cost_without(outcome):
    """The layout that says how even stages are dealt changes nothing."""
    problem = load(JOB)
    even = replace(outcome.strategies[0], layout=None)

    told = write_out_layout(problem.facts, even)

    assert sum(told.layout.layers) == 36
    assert estimate(problem.facts, told).step_seconds == pytest.approx(estimate(problem.facts, even).step_seconds)


def test_moves_are_those_of_one_layer():
    """All of them, each once; none takes a layer from a stage without one."""
    sizes = (2, 0, 3, 1)

    assert sorted(map(tuple, move_layers(np.array(sizes)).tolist())) == sorted(moved_one_by_one(sizes))


def test_dealings_are_timed_as_layouts_of_their_own(outcome):
    """Passes of many dealings at once are those of the strategy with each as its layout."""
    problem = load(JOB)
    [best] = outcome.strategies
    dealings = move_layers(np.array(best.layout.layers))[::17]

    together = passes_by_layer_counts(problem.facts, best, dealings)

    for index, sizes in enumerate(dealings.tolist()):
        alone = layout_passes(problem.facts, with_layers(best, tuple(sizes)))
        for name in ("forward", "backward", "weight"):
            many, one = (np.asarray(getattr(passes, name)) for passes in (together, alone))
            np.testing.assert_allclose(np.broadcast_to(many, (len(dealings), *many.shape[1:]))[index], one)


@pytest.mark.parametrize(("may_fit", "has_time"), [(False, True), (True, False)])
def test_a_descent_ends_where_nothing_fits_or_time_is_up(outcome, may_fit, has_time):
    """It is then the layout that it began with."""
    facts = load(JOB).facts
    start = write_out_layout(facts, replace(outcome.strategies[0], layout=None))

    found, cost = descend(facts, start, lambda _: may_fit, lambda: has_time)

    assert found == start
    assert cost.step_seconds == layout_cost(facts, start).step_seconds


def test_layers_in_full_do_not_descend(outcome):
    """Which of a rank's layers are recomputed in full is the solver's: such a layout stays."""
    facts = load(JOB).facts
    start = write_out_layout(facts, replace(outcome.strategies[0], layout=None))
    full = replace(start, layout=replace(start.layout, full_layers=(1, 0, 0, 0)))

    assert descend(facts, full, lambda _: True, lambda: True)[0] == full


@pytest.mark.slow
def test_a_plan_keeps_within_the_memory_as_it_descends(outcome):
    """Where its best dealing lacks a MiB, the plan is another one that fits, and slower."""
    problem = load(JOB)
    unused = problem.facts.cluster.device.memory_bytes - peak(estimate(problem.facts, outcome.strategies[0]))
    tight = load({**JOB, "search": {**JOB["search"], "memory_headroom_gib": (unused + 2**20) / 2**30}})

    less = search(tight)

    assert not fits(tight, peak(estimate(tight.facts, outcome.strategies[0])))
    assert fits(tight, peak(estimate(tight.facts, less.strategies[0])))
    assert less.step_seconds[0] > outcome.step_seconds[0]
