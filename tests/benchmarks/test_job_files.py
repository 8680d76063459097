"""Measured runs as job files: the command says of a file what the benchmark says of its row, to the last digit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.accuracy.__main__ import JOBS_DIFFER, main
from benchmarks.accuracy.jobs import differences, figures, file_name, write_jobs
from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from planner import load
from planner.cli import main as planner
from planner.measure.runs.predictions import Prediction
from tests.builders_runs import a_file, predicted, project_predictions

NUM_ROWS = 42


def spread_over(rows: Sequence[Prediction], count: int) -> list[Prediction]:
    """One row of each framework and source in turn, then the middle one of what is left of each, and so on."""
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for one in rows:
        groups.setdefault((str(one.run.get("cluster.framework")), one.run.source), []).append(one)
    chosen: list[Prediction] = []
    while len(chosen) < count:
        for key in sorted(groups):
            if groups[key]:
                chosen.append(groups[key].pop(len(groups[key]) // 2))
    return chosen[:count]


@pytest.fixture(scope="module")
def rows() -> list[Prediction]:
    """Rows of all frameworks."""
    return spread_over(project_predictions(), NUM_ROWS)


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory) -> Path:
    """Their job files, as the benchmark writes them."""
    path = tmp_path_factory.mktemp("jobs")
    assert write_jobs(path, rows) == NUM_ROWS
    return path


@pytest.mark.slow
def test_the_rows_are_of_all_frameworks_and_sources(rows):
    """Every entry of ``cluster.framework`` of the table, every source, architectures and several kinds of memory."""
    everything = project_predictions()

    for kind_of in (
        lambda one: one.run.get("cluster.framework"),
        lambda one: one.run.source,
        lambda one: one.architecture,
        lambda one: one.facts.cluster.device.architecture,
    ):
        assert {kind_of(one) for one in rows} == {kind_of(one) for one in everything}
    assert {"allocated", "nvidia-smi", "unspecified"} <= {one.run.memory_kind for one in rows}
    assert len({one.run.id for one in rows}) == NUM_ROWS


@pytest.mark.slow
def test_the_command_estimates_a_rows_file_as_the_benchmark_its_row(rows, folder, capsys):
    """Step time, peak and what was allocated: equal, not close; devices and models named by path are written out."""
    for one in rows:
        path = folder / f"{file_name(one.run.id)}.yaml"
        assert load(path).sources == (path,)
        assert "strategy" in yaml.safe_load(path.read_text())

        code = planner(["estimate", str(path), "--format", "json"])

        said = json.loads(capsys.readouterr().out)
        assert code in (0, 1), one.run.id
        assert said["step_time_seconds"] == one.step_seconds, one.run.id
        assert said["peak_memory_bytes"] == one.device_bytes, one.run.id
        if one.run.memory_kind == "allocated":
            assert said["allocated_bytes"] == one.peak_memory_gib * GIB_BYTES, one.run.id


@pytest.mark.slow
def test_another_process_says_the_same(rows, folder):
    """Nothing that a test did before stays in memory; the command is called where the files are."""
    one = rows[NUM_ROWS // 2]

    command = [sys.executable, "-m", "planner", "estimate", f"{file_name(one.run.id)}.yaml", "--format", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    said = json.loads(done.stdout)
    assert (said["step_time_seconds"], said["peak_memory_bytes"]) == (one.step_seconds, one.device_bytes)


def test_a_file_with_stages_of_its_own_has_them(tmp_path):
    """Seven layers and five with the head, which recompute and keep what each says."""
    layout = "{layers: [18, 14], recompute: [full, none], full_layers: [9, 0]}"
    (one,) = predicted(tmp_path, {"strategy.pp": "2", "strategy.layout": layout})

    write_jobs(tmp_path / "jobs", [one])

    written = yaml.safe_load((tmp_path / "jobs" / "good.yaml").read_text())["strategy"]["layout"]
    assert written["layers"] == [18, 14]
    assert list(differences([one], tmp_path / "jobs")) == []


# --- --check-jobs ------------------------------------------------------------------------------------------


def test_all_files_of_a_table_are_checked_on_request(tmp_path, capsys):
    """Two rows, both agree; a refused one has no file and still decides over the exit code."""
    runs = a_file(tmp_path, {}, {"id": "b", "strategy.tp": "4"}, {"id": "c", "step_seconds": "-1"})

    code = main(["--runs", str(runs), "--check-jobs", "--jobs", str(tmp_path / "jobs")])

    assert code == 1
    assert "as their rows, to the last digit: 2 of 2" in capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "jobs").glob("*.yaml")} == {"good", "b"}


def test_files_are_checked_without_being_kept(tmp_path, capsys):
    """``--jobs`` says where they stay; without it they do not."""
    assert main(["--runs", str(a_file(tmp_path, {})), "--check-jobs"]) == 0
    assert "to the last digit: 1 of 1" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


def test_a_difference_in_the_last_digit_is_told(tmp_path):
    """The next number after the step time, another peak: each with both figures."""
    (one,) = predicted(tmp_path, {})
    other = replace(one, step_seconds=one.step_seconds * (1 + 2.3e-16), peak_memory_gib=one.peak_memory_gib + 1)

    assert other.step_seconds != one.step_seconds
    found = dict((how.partition(" is ")[0], row) for row, how in differences([other]))
    assert found == {"step_time_seconds": "good", "allocated_bytes": "good"}


@pytest.mark.slow
def test_a_file_that_differs_has_its_exit_code(tmp_path, capsys, monkeypatch):
    """A file that was changed behind the benchmark's back."""

    def spoiled(folder: Path, results: Sequence[Prediction]) -> int:
        count = write_jobs(folder, results)
        for path in folder.glob("*.yaml"):
            path.write_text(path.read_text().replace("mbs: 1", "mbs: 2"))
        return count

    monkeypatch.setattr("benchmarks.accuracy.jobs.write_jobs", spoiled)

    code = main(["--runs", str(a_file(tmp_path, {})), "--check-jobs"])

    out = capsys.readouterr().out
    assert code == JOBS_DIFFER == 3
    assert "to the last digit: 0 of 1" in out
    assert "good: step_time_seconds is " in out


def test_a_file_that_the_command_refuses_is_told(tmp_path):
    """With the command's own words."""
    (one,) = predicted(tmp_path, {})
    write_jobs(tmp_path, [one])
    (tmp_path / "good.yaml").write_text("model: llama3-8b\n")

    (row, how), *others = differences([one], tmp_path)

    assert (row, others) == ("good", [])
    assert "missing" in how


@pytest.mark.slow
def test_two_ids_never_share_a_file(tmp_path):
    """One would silently take the other's place."""
    rows = predicted(tmp_path, {"id": "a/b"}, {"id": "a b"})

    with pytest.raises(SpecError, match=r"'a/b' and 'a b' would both be written to a_b\.yaml"):
        write_jobs(tmp_path / "jobs", rows)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("allocated", "allocated_bytes"), ("unspecified", "allocated_bytes"), ("reserved", "reserved_bytes")],
)
def test_each_kind_of_memory_has_its_figure(tmp_path, kind, name):
    """What the benchmark compares with a measurement is what the command prints."""
    (one,) = predicted(tmp_path, {"memory_kind": kind})

    assert figures(one)[name] == one.peak_memory_gib * GIB_BYTES
    assert list(differences([one])) == []
