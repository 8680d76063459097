"""The learning curve's own arithmetic, on stacks made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from benchmarks.learning_curve.curve import Point, Stack, Trial, linear, misjudged, summarize_gains, worse, worths
from planner.jobs.run_jobs import References
from planner.measure.calibrate.calibrate import choose_fit, try_fits
from planner.measure.calibrate.cases import Array
from planner.measure.calibrate.constants import constants
from planner.measure.calibrate.fit import NOISE, REACH, SHARES, fit_share, gain_of, mean_error
from planner.measure.calibrate.published import Gain
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

    own, slopes = linear(stack, [0])
    change = slopes @ (fit_share(own, own.start, lambda rows: np.ones(len(rows)), 1.0).logs - own.start.logs)

    moved = float(change[0])
    pull = (0.02 - moved) / (1 + ((0.02 - moved) / REACH) ** 2) ** 2
    assert moved == pytest.approx(pull * (constant.sigma / NOISE) ** 2, rel=1e-2)
    assert change[1] == pytest.approx(2 * moved)


def gains(mean: float, deviation: float) -> list[Gain]:
    """The same with every width of the priors."""
    return [Gain(models="dense", runs=2, share=share, mean=mean, deviation=deviation) for share in SHARES]


def change_of(stack: Stack, known: list[Gain]) -> tuple[Array, Array]:
    """All rows as own runs: by how much they move, and the errors of held-out rows."""
    own, slopes = linear(stack, range(len(stack.rows)))
    found, left_out = choose_fit(try_fits(own, own.start), own.cases, own.start, known)
    return slopes @ (found.logs - own.start.logs), left_out


@pytest.mark.parametrize(("surprise", "moves"), [((0.06, 0.06, 0.06, 0.06), True), ((0.06, -0.06, 0.06, -0.06), False)])
def test_constants_move_only_where_held_out_rows_gain(tmp_path, surprise, moves):
    """Rows that are all 6 % slower move the constant; rows of either sign keep the catalog's, whose error is said."""
    stack = a_stack(tmp_path, (1.0,) * 4, surprise, ("1", "2", "4", "8"))

    change, left_out = change_of(stack, gains(0.2, 0.3))

    assert (change > 0.05).all() == moves
    assert moves or (change == 0).all()
    assert mean_error(left_out) == pytest.approx(0.0 if moves else 0.06, abs=0.005)


@pytest.mark.parametrize(("mean", "moves"), [(0.4, True), (0.0, False)])
def test_a_gain_within_its_error_counts_where_published_stacks_gained(tmp_path, mean, moves):
    """Three layouts gain and one loses: enough beside stacks that gained 40 %, not beside those that gained nothing."""
    stack = a_stack(tmp_path, (1.0,) * 4, (0.06, 0.06, 0.06, 0.0), ("1", "2", "4", "8"))

    change, _ = change_of(stack, gains(mean, 0.2))

    assert (change != 0).any() == moves


def test_a_gain_has_the_standard_error_of_folds():
    """Errors of 10 % fall by 8 and by 4 points: 60 % of them on average, 20 % the error of the mean of two."""
    before, after = np.log([1.1, 1.1]), np.log([1.02, 1.06])

    gain, error = gain_of(before, after, np.array([0, 1]))

    assert (gain, error) == (pytest.approx(0.6), pytest.approx(0.2))


def test_what_was_seen_and_what_is_published_count_by_their_precision():
    """A gain of 60 +- 20 % beside 20 +- 20 %: 40 %, less its deviation, 20 % over the root of two."""
    assert gains(0.2, 0.2)[0].narrow(0.6, 0.2) == pytest.approx(0.4 - 0.2 / np.sqrt(2))


def test_gains_of_a_stacks_own_source_decide_nothing_there(tmp_path):
    """Of five stacks that all gain, one is of the source left out; of the fewer than four others nothing is said."""
    own, slopes = linear(a_stack(tmp_path, (1.0,) * 4, (0.06,) * 4, ("1", "2", "4", "8")), [0, 1])
    found = try_fits(own, own.start)
    tried = [
        Trial(
            stack=replace(one, name=str(number), source=str(number)),
            chosen="any",
            own=[0, 1],
            others=[2, 3],
            predictor=own,
            slopes=slopes,
            found=found,
        )
        for number, one in enumerate(
            a_stack(tmp_path, (1.0,) * 4, (0.06, 0.06, 0.06, 0.05 + 0.005 * number), ("1", "2", "4", "8"))
            for number in range(5)
        )
    ]

    measured = list(summarize_gains(tried, without="0"))

    assert [(one.models, one.runs, one.share) for one in measured] == [("dense", 2, share) for share in SHARES]
    assert all(0.5 < one.mean < 1 for one in measured)
    assert not list(summarize_gains(tried[:4], without="0"))


def a_point(stack: str, models: Literal["dense", "experts"], after: float) -> Point:
    """Eight runs that were measured first, 10 % off before."""
    return Point(
        stack=stack, models=models, chosen="first", runs=8, before=0.1, after=after, median=10 * after, said=0.05
    )


def test_the_curve_is_the_median_over_stacks():
    """Ratios 0.2, 0.4 and 1.0: median 0.4, quartiles halfway; by models two and one."""
    found = [a_point("a", "dense", 0.02), a_point("b", "dense", 0.04), a_point("c", "experts", 0.1)]

    everything, dense, experts = worths(found)

    assert (everything.models, everything.stacks, everything.ratio) == ("all", 3, 0.4)
    assert (everything.quarter, everything.three_quarters) == (0.3, 0.7)
    assert (dense.models, dense.ratio, experts.models, experts.ratio) == ("dense", 0.3, "experts", 1.0)


def test_stacks_that_get_worse_and_errors_that_are_not_those_said_are_named():
    """Said 5 %: seen 4 % is within 1.5 times, 2 and 11 % are not, and 11 of 10 % is worse."""
    near, far, harmed = (a_point(name, "dense", after) for name, after in (("a", 0.04), ("b", 0.02), ("c", 0.11)))

    assert worse([near, far, harmed]) == [harmed]
    assert misjudged([near, far, harmed]) == [far, harmed]
