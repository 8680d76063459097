"""Rows that contradict physics, their model or themselves: refused by id and column, and never fitted."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import main as accuracy
from costmodel import catalog
from planner.jobs.run_jobs import RejectedRow
from planner.measure.calibrate import advice
from planner.measure.runs.predictions import Prediction
from tests.builders_runs import a_file, results_of
from tests.cases import in_one_case, read_table
from tests.planner.test_calibrate_command import FEW, command, runs_of

CASES = read_table("bad_rows")

BAD, GOOD = CASES["bad"], CASES["good"]


@in_one_case(("cells", "reason"), BAD.values())
def test_a_bad_row_is_refused_by_its_column(tmp_path, cells, reason):
    """With what was seen and what is allowed; the rows around it are predicted."""
    first, bad, last = results_of(tmp_path, {"id": "first"}, {"id": "bad", **cells}, {"id": "last"})

    assert isinstance(first, Prediction)
    assert isinstance(last, Prediction)
    assert isinstance(bad, RejectedRow)
    assert (bad.id, bad.is_refused) == ("bad", True)
    assert reason in bad.reason


@pytest.mark.parametrize("cells", GOOD.values(), ids=GOOD)
def test_what_is_odd_but_possible_is_predicted(tmp_path, cells):
    """Slow runs, full devices, FLOPs of another convention."""
    (row,) = results_of(tmp_path, cells)

    assert isinstance(row, Prediction), row


UNKNOWN = "megatron-core-9.9"

OF_THE_GOOD_ROW = {
    "cluster.num_devices": "64",
    "strategy.tp": "2",
    "strategy.recompute": "",
    "peak_memory_gib": "60",
    "step_seconds": "2.1",
}
"""Cells that the layouts of a calibration have otherwise."""


def bad_rows() -> list[dict[str, str]]:
    """All of them, each with the row's sentence as its id."""
    return [{"id": name, **cells} for name, (cells, _) in BAD.items()]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> tuple[int, str]:
    """Exit code and report of a calibration on good runs, one of an unknown release, and every bad row."""
    folder, odd = tmp_path_factory.mktemp("calibrated"), {"id": "odd", "cluster.framework": UNKNOWN}
    rows = ({**OF_THE_GOOD_ROW, **row} for row in bad_rows())
    with (folder / "out.txt").open("w") as file, redirect_stdout(file), pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "MOST_CANDIDATES", 4)
        code = command(runs_of(folder, 0.60, odd, *rows, layouts=FEW), folder / "mine.yaml")
    return code, (folder / "out.txt").read_text()


@pytest.mark.slow
def test_nothing_is_fitted_to_bad_rows(calibrated):
    """``planner calibrate`` names each with its reason, and fits the good ones alone."""
    code, out = calibrated

    assert code == 1
    assert f"{len(FEW) + 1} runs of h100-80gb-sxm fitted" in out
    told = [line for line in out.splitlines() if line.startswith("  refused: ")]
    assert len(told) == len(BAD)
    for line, (name, (_, reason)) in zip(told, BAD.items(), strict=True):
        assert line.startswith(f"  refused: {name}: ")
        assert reason in line


@pytest.mark.slow
def test_doubts_of_rows_are_told_by_calibrate(calibrated):
    """A release that no file knows is fitted as its nearest relative, and counted among the doubts."""
    assert UNKNOWN not in catalog.framework_names()
    assert f"  1 doubtful: {UNKNOWN} is not known: costed as megatron-core-0.16, its nearest release" in calibrated[1]


def test_the_benchmark_refuses_them_by_name(tmp_path: Path, capsys):
    """``python -m benchmarks.accuracy``: the good row is predicted, each other one listed with its reason."""
    path = a_file(tmp_path, {}, *bad_rows())

    code = accuracy(["--runs", str(path), "--json", str(tmp_path / "out.json")])

    refused = {one["id"]: one["reason"] for one in json.loads((tmp_path / "out.json").read_text())["refusals"]}
    assert code == 1
    assert "predicted: 1" in capsys.readouterr().out
    assert [name for name, (_, reason) in BAD.items() if reason not in refused[name]] == []
