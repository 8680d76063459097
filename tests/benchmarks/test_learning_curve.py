"""The learning curve's own arithmetic, on stacks made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from benchmarks.learning_curve.curve import Point, linear_change, worths
from benchmarks.learning_curve.stacks import Stack
from planner.jobs.run_jobs import References
from planner.measure.calibrate.constants import constants
from planner.measure.calibrate.fit import NOISE, REACH
from tests.builders_runs import a_case


def a_stack(folder: Path, slopes: tuple[float, ...], surprise: tuple[float, ...], tps: tuple[str, ...]) -> Stack:
    """Rows that differ in tp at most, with slopes by one constant."""
    return Stack(
        name="a stack",
        source="a source",
        base="h100-80gb-sxm",
        rows=tuple(a_case(folder, strategy__tp=tp) for tp in tps),
        known=References(),
        constants=tuple(one for one in constants() if one.name == "elementwise_efficiency of hopper"),
        slopes=np.array(slopes)[:, None],
        surprise=np.array(surprise),
    )


def test_repeats_of_own_runs_are_not_what_is_predicted(tmp_path):
    """Three layouts, the first of them twice: with it, two are left."""
    stack = a_stack(tmp_path, (1.0,) * 4, (0.0,) * 4, ("1", "2", "1", "4"))

    assert stack.others([0]) == [1, 3]


def test_a_row_moves_others_along_the_constant_that_it_shows(tmp_path):
    """One row 2 % off with noise of 2 % and a prior of 40 %: the other, twice as sensitive, moves by almost 4 %."""
    stack = a_stack(tmp_path, (1.0, 2.0), (0.02, 0.0), ("1", "2"))
    (constant,) = stack.constants

    change, _ = linear_change(stack, [0])

    moved = float(change[0])
    pull = (0.02 - moved) / (1 + ((0.02 - moved) / REACH) ** 2) ** 2
    assert moved == pytest.approx(pull * (constant.sigma / NOISE) ** 2, rel=1e-2)
    assert change[1] == pytest.approx(2 * moved)


@pytest.mark.parametrize(("surprise", "moves"), [((0.06, 0.06, 0.06, 0.06), True), ((0.06, -0.06, 0.06, -0.06), False)])
def test_constants_move_only_where_held_out_rows_gain(tmp_path, surprise, moves):
    """Rows that are all 6 % slower move the constant; rows of either sign keep the catalog's, whose error is said."""
    stack = a_stack(tmp_path, (1.0,) * 4, surprise, ("1", "2", "4", "8"))

    change, said = linear_change(stack, range(4))

    assert (change > 0.05).all() == moves
    assert moves or (change == 0).all()
    assert said == pytest.approx(0.0 if moves else 0.06, abs=0.005)


def a_point(stack: str, models: Literal["dense", "experts"], after: float) -> Point:
    """Eight runs that were measured first, 10 % off before."""
    return Point(stack=stack, models=models, chosen="first", runs=8, before=0.1, after=after)


def test_the_curve_is_the_median_over_stacks():
    """Ratios 0.2, 0.4 and 1.0: median 0.4, quartiles halfway; by models two and one."""
    found = [a_point("a", "dense", 0.02), a_point("b", "dense", 0.04), a_point("c", "experts", 0.1)]

    everything, dense, experts = worths(found)

    assert (everything.models, everything.stacks, everything.ratio) == ("all", 3, 0.4)
    assert (everything.quarter, everything.three_quarters) == (0.3, 0.7)
    assert (dense.models, dense.ratio, experts.models, experts.ratio) == ("dense", 0.3, "experts", 1.0)
