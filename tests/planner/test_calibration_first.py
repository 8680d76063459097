"""What to measure first, and what it is worth: orders and covariances that follow by hand."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from planner.jobs.run_jobs import references
from planner.measure.calibrate.advice import (
    FALLS_OVER,
    OF_LAYOUT,
    OF_MODEL,
    OF_RUN,
    common_covariance,
    distances,
    greedy,
    joint_covariance,
    measure_first,
    measure_run,
)
from planner.measure.calibrate.constants import constants
from planner.measure.calibrate.published import comparable, learning_curve, models_of
from planner.measure.runs.predictions import Case, cases
from tests.builders_runs import DEEPSEEK_V3, rows_of


def cases_of(folder, *rows: dict[str, str]) -> list[Case]:
    """Rows as the cost model takes them."""
    found = list(
        cases(rows_of(folder, *({"id": str(number), **row} for number, row in enumerate(rows))), references(None))
    )
    assert all(isinstance(one, Case) for one in found)
    return [one for one in found if isinstance(one, Case)]


def test_the_run_that_most_others_share_is_first():
    """Of three runs two are alike: one of them tells of both, the single one, as uncertain, of itself alone."""
    whole = 0.1**2 * np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])

    order, errors = greedy(whole)

    noise = OF_RUN**2
    left = 0.1**2 * noise / (0.1**2 + noise)  # A prior of 10 % and one measurement.
    assert (order[0] in (1, 2), order[1]) == (True, 0)
    assert errors[0] == pytest.approx(sqrt(0.1**2 + noise))
    assert errors[2] == pytest.approx(sqrt(left + noise))


def test_a_measured_run_is_known_up_to_its_noise():
    """Precisions add up."""
    after = measure_run(np.array([[0.1**2]]), 0)

    assert after[0, 0] == pytest.approx(1 / (1 / 0.1**2 + 1 / OF_RUN**2))


def test_runs_share_what_formulas_lack_the_more_the_nearer_they_are(tmp_path):
    """The same model with tp 2 and 8, which is two doublings, and another model, which shares nothing."""
    rows = cases_of(tmp_path, {}, {"strategy.tp": "8"}, {"model": "llama2-7b", "training.sequence_length": "4096"})

    apart, common = distances(rows), common_covariance(rows)

    near = OF_MODEL**2 + OF_LAYOUT**2 * exp(-apart[0, 1] / FALLS_OVER)
    assert apart[0, 1] >= 2
    assert common[0, 0] == pytest.approx(OF_MODEL**2 + OF_LAYOUT**2)
    assert common[0, 1] == pytest.approx(near)
    assert common[0, 2] == common[1, 2] == 0


def test_constants_are_shared_by_runs_of_all_models(tmp_path):
    """A constant known to 10 %, which one run follows and the other by half: 0.1^2 * 0.5 in common."""
    rows = cases_of(tmp_path, {}, {"model": "llama2-7b", "training.sequence_length": "4096"})

    whole = joint_covariance(rows, np.array([[1.0], [0.5]]), np.array([0.1]))

    assert whole[0, 1] == pytest.approx(0.005)


def test_what_a_measured_run_tells_already_is_measured_last(tmp_path):
    """One run is measured; of the same layout planned again and another model's, the other one comes first."""
    timed, again, other = cases_of(tmp_path, {}, {}, {"model": "llama2-7b", "training.sequence_length": "4096"})
    chosen = [one for one in constants() if one.name == "matmul_efficiency.bf16 of hopper"]

    order, errors = measure_first([again, other], [timed], chosen, references(None))

    assert order == [other, again]
    assert errors[0] > errors[1] > errors[2]


def test_a_planned_run_has_no_step_time(tmp_path):
    """Without any measurement it is a row in order; with a step time it is none."""
    empty = {"kind": "planned", "step_seconds": "", "peak_memory_gib": "", "memory_kind": ""}

    (one,) = cases_of(tmp_path, empty)

    assert (one.run.kind, one.run.step_seconds) == ("planned", None)
    (refused,) = rows_of(tmp_path, {**empty, "step_seconds": "2.1"})
    assert "must be empty for a planned run" in getattr(refused, "reason", "")


def test_stacks_are_compared_by_their_models(tmp_path):
    """Two runs with experts and one without: stacks of mostly such models, or all where these are few."""
    rows = cases_of(tmp_path, {}, DEEPSEEK_V3, {**DEEPSEEK_V3, "strategy.pp": "4"})

    curve = comparable(rows)

    assert (models_of(rows), models_of(rows[:1])) == ("experts", "dense")
    assert len({one.models for one in curve}) == 1
    assert [one.runs for one in curve] == sorted(one.runs for one in curve)


def test_runs_measured_first_help():
    """
    The stored curve: eight runs leave six tenths of the error in the median over at least twelve stacks.

    They help more than eight runs of any kind, and in three quarters of the stacks nothing gets worse.
    """
    by = {(one.models, one.chosen, one.runs): one for one in learning_curve()}

    first, anything = by["all", "first", 8], by["all", "any", 8]

    assert first.stacks >= 12
    assert first.ratio <= 0.6
    assert first.ratio < anything.ratio
    assert all(one.three_quarters <= 1.0 for one in learning_curve() if (one.models, one.chosen) == ("all", "first"))
    assert all(one.quarter <= one.ratio <= one.three_quarters for one in learning_curve())
