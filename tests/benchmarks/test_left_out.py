"""The accuracy: rows predicted by fits that had not seen them, the goals beside them, and the page that shows both."""

from __future__ import annotations

from dataclasses import replace
from math import comb, nan

import numpy as np
import pytest

from benchmarks.accuracy.left_out import folds as leaving
from benchmarks.accuracy.left_out.goals import Goal, goals, left_out, mean_error_of_sources, worst_column
from benchmarks.accuracy.left_out.intervals import (
    FILE,
    LeftOutError,
    band,
    coverages,
    difference_errors,
    interval_document,
    left_out_errors,
    stored_errors,
)
from benchmarks.accuracy.page import PAGE, PLOTS, generated, newer_lines
from planner.measure.calibrate.cases import Predictor, log_measured_seconds
from planner.measure.calibrate.constants import constants
from planner.measure.calibrate.fit import fit, priors_of
from planner.measure.runs.predictions import Prediction
from planner.uncertainty.intervals import Error, Kind, Unseen
from tests.builders_runs import fitted_results, known, predicted
from tests.cases import require_near

BRIDGE = "megatron-bridge"


def held_out(name: str, seconds: float) -> leaving.HeldOut:
    """A row whose fits all say the same."""
    return leaving.HeldOut(id=name, seconds=dict.fromkeys(leaving.KINDS, seconds))


def of_releases(folder, *releases: str):
    """A row of each release, as cases."""
    rows = ({"id": f"{n}", "cluster.framework": release} for n, release in enumerate(releases))
    return predicted(folder, *rows)


# --- folds -------------------------------------------------------------------------------------------------


def test_a_release_is_predicted_by_older_ones_of_its_line(tmp_path):
    """Megatron-Bridge follows NeMo; the oldest release has nothing older, other software is always seen."""
    releases = ("megatron-bridge-26.06.01", "nemo-25.02", "megatron-bridge-26.04", "torchtitan-0.1", "nemo-24.07")
    timed = of_releases(tmp_path, *releases)

    folds = leaving.folds_by(leaving.SOFTWARE, timed)

    assert {name: rows.tolist() for name, rows in folds.left_out.items()} == {
        "nemo-25.02": [False, True, False, False, False],
        "megatron-bridge-26.04": [False, False, True, False, False],
        "megatron-bridge-26.06": [True, False, False, False, False],
    }
    assert folds.unseen["nemo-25.02"].tolist() == [True, True, True, False, False]
    assert [leaving.is_newest(case) for case in timed] == [True, False, False, False, False]
    assert leaving.release_of(timed[3]) is None
    assert leaving.release_of(timed[0]) == leaving.NEWEST


def test_shapes_of_a_sweep_are_left_out_as_one_model(tmp_path):
    """Layers of one source's sweep are no other models; sources and groups are left out whole, too."""
    rows = (
        {"id": "a"},
        {"id": "b", "source": "another"},
        {"id": "c", "model": "llama3-70b", "strategy.tp": "8", "step_seconds": "20"},
    )
    timed = predicted(tmp_path, *rows)

    by_model, by_source = leaving.folds_by(leaving.MODEL, timed), leaving.folds_by(leaving.SOURCE, timed)

    assert {name: rows.tolist() for name, rows in by_model.unseen.items()} == {
        "llama3-70b": [False, False, True],
        "llama3-8b": [True, True, False],
    }
    assert {name: rows.tolist() for name, rows in by_source.left_out.items()} == {
        "a paper": [True, False, True],
        "another": [False, True, False],
    }
    assert sum(rows.astype(int) for rows in leaving.folds_by(leaving.GROUP, timed).left_out.values()).tolist() == [
        1,
        1,
        1,
    ]


@pytest.mark.slow
def test_what_is_left_out_has_no_say(tmp_path):
    """Three rows at the catalog's pace and one twice as slow: whether that one is seen decides on the constants."""
    rows = [{"id": str(n), "training.global_batch_size": str(64 * (n + 1))} for n in range(4)]
    found = predicted(tmp_path, *rows)
    timed = [
        replace(one, run=replace(one.run, step_seconds=one.step_seconds * (2 if n == 3 else 1)))
        for n, one in enumerate(found)
    ]
    chosen = tuple(one for one in constants() if one.name == "matmul_efficiency.bf16 of hopper")
    predictor, priors = Predictor(cases=timed, constants=chosen, known=known()), priors_of(chosen)
    whole = fit(
        predictor.logarithms, predictor.jacobian, log_measured_seconds(timed), weights=np.ones(4), priors=priors
    )
    apart = np.array([False, False, False, True])

    def logs(unseen):
        weigh = lambda cases: np.ones(len(cases))  # noqa: E731
        return leaving.fitted_without(timed, whole, log_measured_seconds(timed), weigh, priors, unseen=unseen)

    assert logs(apart)[0] > logs(~apart)[0]
    folds = leaving.Folds(left_out={"apart": apart}, unseen={"apart": apart})
    seconds = leaving.left_out_seconds(predictor, whole, lambda cases: np.ones(len(cases)), priors, folds=folds)
    assert np.isnan(seconds[:3]).all()
    assert seconds[3] == pytest.approx(np.exp(predictor.estimate_logarithms(logs(apart), apart))[0])


# --- the file and the figures -------------------------------------------------------------------------------


def test_the_file_of_left_out_rows_is_read_as_written(tmp_path):
    """Six digits, and nothing where no fold leaves a row out."""
    rows = leaving.held_out_rows(
        ["a", "b"], {kind: [1.5, nan if kind == leaving.SOFTWARE else 2.25] for kind in leaving.KINDS}
    )

    leaving.write_held_out(tmp_path / "held_out.csv", rows)

    assert leaving.read_held_out(tmp_path / "held_out.csv") == {"a": rows[0], "b": rows[1]}
    assert leaving.SOFTWARE not in rows[1].seconds
    assert leaving.read_held_out(tmp_path / "none.csv") == {}


def test_errors_are_those_of_the_left_out_predictions(tmp_path):
    """2.1 s measured, 2.31 s predicted without the group: +10 %, whatever the shipped constants say."""
    rows = predicted(tmp_path, {"id": "a"}, {"id": "b"})

    (one,) = leaving.as_held_out(rows, {"a": held_out("a", 2.31)}, leaving.GROUP)

    assert round(one.time_error or 0.0, 9) == 0.1


def test_every_source_weighs_the_same(tmp_path):
    """One row 10 % off in one source, three exact ones in another: 5 %, not 2.5 %."""
    rows = predicted(tmp_path, {"id": "a"}, *({"id": name, "source": "another paper"} for name in "bcd"))
    stored = {"a": held_out("a", 2.31), **{name: held_out(name, 2.1) for name in "bcd"}}

    assert round(mean_error_of_sources(leaving.as_held_out(rows, stored, leaving.GROUP)), 9) == 0.05


def test_the_headline_is_the_worst_printed_column(tmp_path):
    """2.1 s measured, 4.2 s predicted without its group: a headline of 100 %, not the 20 % of its source."""
    rows = predicted(tmp_path, {"id": "a"})
    seconds = {leaving.GROUP: 4.2, leaving.MODEL: 2.31, leaving.SOURCE: 2.52, leaving.SOFTWARE: 2.205}

    figures = left_out(rows, {"a": leaving.HeldOut(id="a", seconds=seconds)})

    assert figures is not None
    kind, error, num_rows = worst_column(figures, "dense") or ("", 0.0, 0)
    assert (kind, round(error, 9), num_rows) == (leaving.GROUP, 1.0, 1)
    of_releases = left_out(
        rows, {"a": leaving.HeldOut(id="a", seconds={**seconds, leaving.GROUP: 2.1, leaving.SOFTWARE: 2.73})}
    )
    assert of_releases is not None
    assert (worst_column(of_releases, "dense") or ("",))[0] == leaving.SOFTWARE
    assert worst_column(figures, "MoE and hybrid") is None
    assert left_out(rows, {}) is None


def test_rows_collected_later_are_shown_by_model_mlperf_first(tmp_path):
    """2.1 s measured: predicted 10 % too slow on 64 devices and 30 % on 128, 20 % in the mean; 10 % too fast alone."""
    rows = (
        {"id": "a"},
        {"id": "m64", "source": "MLPerf Training v9 result logs"},
        {"id": "m128", "source": "MLPerf Training v9 result logs", "cluster.num_devices": "128"},
    )
    found = predicted(tmp_path, *rows)
    seconds = {"a": 1.89, "m64": 2.31, "m128": 2.73}

    lines = list(newer_lines([replace(one, step_seconds=seconds[one.run.id]) for one in found]))

    first, last = lines[-2:]
    assert first.startswith("| MLPerf Training v9 | llama3-8b | 64 to 128 | 2 | 2.1 s, 2.31 s | 2.1 s, 2.73 s |")
    assert "| 20.0% | +20.0% |" in first
    assert last.startswith("| a paper | llama3-8b | 64 | 1 | 2.1 s, 1.89 s | - | 10.0% | -10.0% |")


def test_goals_are_judged_only_where_there_are_rows(tmp_path):
    """Dense rows 3 % off whatever is left out; none has experts."""
    rows = predicted(tmp_path, *({"id": f"{n}", "training.global_batch_size": str(64 * n)} for n in range(1, 4)))
    stored = {one.run.id: held_out(one.run.id, 2.163) for one in rows}
    figures = left_out(rows, stored)
    assert figures is not None

    found = goals(figures, groups=rows, models=leaving.as_held_out(rows, stored, leaving.MODEL), predicted=rows)

    by_name = {goal.name.partition(" (")[0]: goal for goal in found}
    assert round(by_name["dense, the worst column"].figure or 0.0, 9) == 0.03
    assert by_name["MoE and hybrid, the worst column"].is_met is None
    assert round(by_name["unseen models, dense, mean over rows"].figure or 0.0, 9) == 0.03
    assert by_name["fitted constants"].texts == (str(len(constants(frameworks=True))), "<= 100")


def test_a_goal_is_met_from_its_side():
    """Errors from above, recalls from below."""
    assert Goal(name="error", figure=0.05, rows=1, limit=0.06).is_met
    assert not Goal(name="recall", figure=0.85, rows=1, limit=0.9, at_least=True).is_met
    assert [
        Goal(name="", figure=one, rows=1, limit=0.7, most=0.9, at_least=True).is_met for one in (0.6, 0.8, 1.0)
    ] == [False, True, False]


# --- intervals ---------------------------------------------------------------------------------------------


def some_errors(case, folds: str, logs, unseen: Unseen = "nothing") -> list[LeftOutError]:
    """One group for each error."""
    kind = Kind(device="hopper", model="dense", scale="several nodes", unseen=unseen)
    return [
        LeftOutError(case=case, folds=folds, error=Error(kind=kind, group=number, log=float(log)))
        for number, log in enumerate(logs)
    ]


def test_coverage_counts_rows_inside_the_intervals_of_others(tmp_path):
    """Of 101 evenly spread errors eight of ten lie inside what the others say; of one group there is nothing."""
    (one,) = predicted(tmp_path, {"id": "a"})
    found = coverages(some_errors(one, leaving.GROUP, np.linspace(-0.1, 0.1, 101)))

    assert [(each.name, each.units, each.unit) for each in found] == [("all", 101, "rows"), ("dense", 101, "rows")]
    assert found[0].share == pytest.approx(0.8, abs=0.02)
    assert coverages(some_errors(one, leaving.GROUP, [0.1])) == []


def test_models_count_once_however_many_rows_they_have(tmp_path):
    """Nine models near the prediction and one far off with ninety rows: nine of ten models, not nine of 99 rows."""
    (one,) = predicted(tmp_path, {"id": "a"})
    near = some_errors(one, leaving.MODEL, np.linspace(-0.1, 0.1, 40), "model")
    far = some_errors(one, leaving.MODEL, np.full(90, 2.0), "model")
    far = [replace(each, error=replace(each.error, group="far")) for each in far]

    found, rows = (each for each in coverages([*near, *far]) if each.name == "unseen models")

    assert (found.units, found.unit, rows.units, rows.unit) == (41, "models", 130, "rows")
    assert 0.7 < found.share < 0.9
    assert rows.share < 0.4


def test_the_band_is_that_of_the_binomial_distribution():
    """Sums of its chances: at most 5 % below and above."""
    low, high = (round(end * 50) for end in band(50, 0.8))

    def below(count: int) -> float:
        return sum(comb(50, k) * 0.8**k * 0.2 ** (50 - k) for k in range(count))

    assert below(low) <= 0.05 < below(low + 1)
    assert below(high) < 0.95 <= below(high + 1)


def test_errors_of_differences_cancel_what_both_share(tmp_path):
    """Two layouts of one job, 10 and 21 % slow: their ratio is 10 % off, by groups left out alone."""
    timed = predicted(tmp_path, {"id": "a"}, {"id": "b", "strategy.tp": "4"})
    seconds = {leaving.GROUP: [2.1 / 1.1, 2.1 / 1.21], leaving.MODEL: [2.1, 2.1], leaving.SOFTWARE: [nan, nan]}

    found = left_out_errors(timed, seconds)

    assert [one.error.kind.unseen for one in found] == ["nothing"] * 2 + ["model"] * 2
    (difference,) = difference_errors(found)
    assert difference.log == pytest.approx(np.log(1.1 / 1.21))


@pytest.mark.slow
def test_the_page_is_in_step_with_the_figures():
    """``python -m benchmarks.accuracy.page`` writes it anew; each of its plots is there."""
    text, rows = generated([*fitted_results()])

    require_near(text, PAGE.read_text(encoding="utf-8"))
    assert {path.stem for path in PLOTS.glob("*.svg")} == {one.run.device for one in rows}
    assert leaving.HELD_OUT.exists()


@pytest.mark.slow
def test_the_planners_intervals_are_those_of_the_stored_folds():
    """``python -m benchmarks.accuracy --share 1 --store`` writes both."""
    timed = [one for one in fitted_results() if isinstance(one, Prediction) and one.run.step_seconds is not None]

    found = interval_document(stored_errors(timed, leaving.read_held_out(leaving.HELD_OUT)))
    require_near(found, FILE.read_text(encoding="utf-8"))
