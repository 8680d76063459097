"""Stored figures of rows left out: fingerprints, a drawn part computed anew, and what does not hold."""

from __future__ import annotations

import gzip
from argparse import Namespace

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import check_folds
from benchmarks.accuracy.fit import as_shipped, chosen_constants
from benchmarks.accuracy.left_out import drawn as redrawn
from benchmarks.accuracy.left_out.folds import GROUP, HELD_OUT, KINDS, SOURCE, HeldOut, read_held_out
from benchmarks.accuracy.metrics import RUNS
from costmodel.errors import SpecError
from costmodel.step import rank_time
from planner.measure.calibrate.cases import Predictor
from planner.measure.calibrate.constants import constants
from planner.measure.calibrate.fit import Fit
from planner.measure.runs.predictions import Prediction
from tests.builders_runs import fitted_results, known, predicted

FIRST = {"id": "a", "cluster.framework": "megatron-core-0.8"}
"""Software without fitted factors."""

PIPELINE = {**FIRST, "strategy.pp": "2", "source": "another paper", "id": "b"}


def table_for(rows) -> redrawn.Stored:
    """Derivatives by no constant: a fit leaves the cost model as it is."""
    return redrawn.Stored(
        ids=tuple(one.run.id for one in rows), constants=(), jacobian=np.zeros((len(rows), 0)), made_by={}
    )


def compute(rows, seconds):
    """The folds of sources with these stored seconds, computed anew."""
    held_out = {name: HeldOut(id=name, seconds={SOURCE: value}) for name, value in seconds.items()}
    drawn = {SOURCE: redrawn.draw_folds(rows, seed=1, share=1.0)[SOURCE]}
    return list(redrawn.compute_folds(rows, (), known(), table_for(rows), held_out, drawn))


def test_a_stored_figure_holds_until_the_cost_model_says_otherwise(tmp_path, monkeypatch):
    """Busy for 20 % longer, a step is not what is stored."""
    rows = predicted(tmp_path, FIRST, PIPELINE)
    seconds = {one.run.id: one.step_seconds for one in rows}

    assert [one.changes for one in compute(rows, seconds)] == [{}, {}]

    busy = rank_time.busy_seconds
    monkeypatch.setattr(rank_time, "busy_seconds", lambda slowest, **named: 1.2 * busy(slowest, **named))
    changes = {row: change for one in compute(rows, seconds) for row, change in one.changes.items()}
    assert set(changes) == {"a"}  # Plain pipelines have a law of their own.
    assert abs(changes["a"]) > 0.1


@pytest.mark.slow
def test_figures_that_are_missing_do_not_hold(tmp_path):
    """One is stored 25 % too long (1 / 1.25 - 1 = -20 %), another not at all: both are named."""
    rows = predicted(tmp_path, FIRST, PIPELINE)

    found = compute(rows, {"a": 1.25 * rows[0].step_seconds})

    assert found[0].changes == {"a": pytest.approx(-0.2)}
    text = "\n".join(redrawn.fold_lines(found, redrawn.fingerprints(), drawn=2, of=2, seed=7))
    assert "source a paper left out, 1 of 1 rows, the worst a -20.0%" in text
    assert "source another paper left out, 1 of 1 rows, the worst b cannot be computed" in text
    assert "2 of 2 folds computed anew (seed 7)" in text
    assert "made by today's" in text


@pytest.mark.slow
def test_a_spent_budget_is_said(tmp_path):
    """One of two drawn folds is computed."""
    rows = predicted(tmp_path, FIRST, PIPELINE)
    drawn = redrawn.draw_folds(rows, seed=1, share=1.0)

    found = list(redrawn.compute_folds(rows, (), known(), table_for(rows), {}, drawn, budget_seconds=0))

    assert len(found) == 1
    assert "1 of 9 folds computed anew (seed 1); 5 drawn, the budget was spent" in "\n".join(
        redrawn.fold_lines(found, {}, drawn=5, of=9, seed=1)
    )


def test_a_draw_has_folds_of_every_kind_and_follows_from_its_seed(tmp_path):
    """Two sources, two groups, one model; no release of a known line: a tenth is one of each."""
    timed = predicted(tmp_path, FIRST, PIPELINE)

    names = [
        {kind: list(of.left_out) for kind, of in redrawn.draw_folds(timed, seed).items()} for seed in (1, 1, 2, 3, 4)
    ]

    assert names[0] == names[1]
    assert len({str(one) for one in names}) > 1
    assert [len(names[0][kind]) for kind in KINDS] == [1, 1, 1, 0]


def test_derivatives_of_other_rows_fail_the_benchmark(tmp_path, capsys):
    """Folds of a table that the stored derivatives are not of cannot be computed: said, and no success."""
    rows = predicted(tmp_path, FIRST)
    options = Namespace(runs=RUNS, models=None, seed=3, share=0.1, budget=1.0, store=False)

    assert not check_folds(options, known(), rows)

    out = capsys.readouterr().out
    assert "Drawn folds (seed 3) cannot be computed anew: derivatives.json.gz: has other rows than the fit" in out


@pytest.mark.parametrize("content", [b"", b"id,seconds\n", gzip.compress(b"{}", mtime=0), b"\x1f\x8b\x08\x00broken"])
def test_a_file_that_is_no_table_of_derivatives_is_said(tmp_path, content):
    """Empty, a CSV, a broken archive, none at all."""
    (tmp_path / "odd.json.gz").write_bytes(content)

    for name in ("odd.json.gz", "none.json.gz"):
        with pytest.raises(SpecError, match=f"{name}: cannot be read"):
            redrawn.read_derivatives(tmp_path / name)


def test_derivatives_are_read_as_written(tmp_path):
    """Four digits behind the point, names in order, and what made them."""
    stored = redrawn.Stored(
        ids=("a", "b"), constants=("c",), jacobian=np.array([[0.12345], [-1.0]]), made_by={"code": "1f"}
    )

    redrawn.write_derivatives(tmp_path / "one.json.gz", stored)

    found = redrawn.read_derivatives(tmp_path / "one.json.gz")
    assert (found.ids, found.constants, dict(found.made_by)) == (("a", "b"), ("c",), {"code": "1f"})
    assert found.jacobian == pytest.approx(stored.jacobian, abs=5.1e-5)


def test_fingerprints_see_code_but_no_words(tmp_path):
    """A comment and a docstring change no figure, a factor does."""
    texts = ("def f(x):\n    return 2 * x\n", 'def f(x):\n    """Twice."""\n    return 2 * x  # why\n')
    for name, text in zip("abc", (*texts, "def f(x):\n    return 3 * x\n"), strict=True):
        (tmp_path / name).write_text(text)

    one, words, other = (redrawn.code_of(tmp_path / name) for name in "abc")

    assert one == words != other


def test_folds_start_at_the_constants_that_are_shipped(tmp_path):
    """0.123456 is 0.1235 in the catalog; errors are those of the steps that such constants predict."""
    rows = predicted(tmp_path, FIRST)
    chosen = tuple(one for one in constants() if one.name == "matmul_efficiency.bf16 of hopper")
    predictor = Predictor(cases=rows, constants=chosen, known=known())
    whole = Fit(logs=np.log([0.123456]), jacobian=np.ones((1, 1)), residuals=np.zeros(1))

    shipped = as_shipped(predictor, whole)

    assert np.exp(shipped.logs) == pytest.approx([0.1235], rel=1e-12)
    assert shipped.residuals == pytest.approx(predictor.estimate_logarithms(np.log([0.1235])) - np.log([2.1]))


def test_folds_computed_anew_are_stored(tmp_path):
    """Folds of sources take the place of what was stored; other kinds stay."""
    rows = predicted(tmp_path, FIRST)
    found = compute(rows, {"a": 1.0})

    redrawn.store_folds(tmp_path / "held_out.csv", {"a": HeldOut(id="a", seconds={"group": 3.0, SOURCE: 1.0})}, found)

    (one,) = read_held_out(tmp_path / "held_out.csv").values()
    assert one.seconds == {"group": 3.0, SOURCE: pytest.approx(rows[0].step_seconds, rel=1e-5)}


@pytest.mark.slow
def test_every_stored_figure_of_a_fold_of_each_kind_holds_and_notices_a_longer_pipeline(monkeypatch):
    """The project's own rows: all hold; with busy time 20 % longer most of those outside of the large groups do not."""
    every = (one for one in fitted_results() if isinstance(one, Prediction))
    rows = [one for one in every if one.run.step_seconds is not None]
    stored = redrawn.read_derivatives(redrawn.DERIVATIVES)
    drawn, chosen = redrawn.draw_folds(rows, 5, 0.01), chosen_constants(rows, frameworks=True)

    def compute(folds):
        return [*redrawn.compute_folds(rows, chosen, known(), stored, read_held_out(HELD_OUT), folds)]

    assert [row for one in compute(drawn) for row in one.changes] == []
    busy = rank_time.busy_seconds
    monkeypatch.setattr(rank_time, "busy_seconds", lambda slowest, **named: 1.2 * busy(slowest, **named))
    small = compute({kind: folds for kind, folds in drawn.items() if kind != GROUP})
    assert sum(len(one.changes) for one in small) > sum(len(one.seconds) for one in small) / 2
