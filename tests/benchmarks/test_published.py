"""Tables that follow from published ones: records of measured runs, runs that nothing was fitted to, recipes."""

from __future__ import annotations

import csv
import io

import pytest

from benchmarks.measured_runs.__main__ import FOLDER, NEWER, convert_files
from benchmarks.measured_runs.columns import table as runs_table
from benchmarks.output import format_csv
from benchmarks.recipes.__main__ import recipe_rows, table
from benchmarks.recipes.published import read_published
from benchmarks.records.__main__ import COLUMNS, TABLE, best_rows, record_rows
from planner.jobs.run_jobs import Run, read
from tests.cases import read_table


@pytest.mark.slow
def test_records_are_current():
    """``python -m benchmarks.records --write`` writes them."""
    assert TABLE.read_text(encoding="utf-8") == format_csv(COLUMNS, record_rows())


@pytest.mark.slow
def test_newer_runs_are_current_and_apart():
    """``python -m benchmarks.measured_runs`` writes them; none is in the table that fits read."""
    newer = convert_files(NEWER, FOLDER / "collected" / "models.yaml").rows
    known = {one.id for one in read(FOLDER / "runs.csv")}

    assert (FOLDER / "newer.csv").read_text(encoding="utf-8") == runs_table(newer)
    assert len(newer) == 54
    assert all(isinstance(one, Run) and one.id not in known for one in read(FOLDER / "newer.csv"))


def row(name, date, rate, sequence="4096"):
    """A run of one model on one device."""
    facts = {"model": "m", "device": "d", "bits": "16", "sequence_length": sequence, "framework": ""}
    return {**facts, "id": name, "date": date, "tokens_per_second_per_device": str(rate)}


def test_a_record_is_what_no_later_run_reaches():
    """An old slow run is none; an old fast one stays beside a newer slower one; other lengths are their own."""
    rows = [row("slow", "2024-01", 90), row("fast", "2024-02", 120), row("new", "2025-01", 100)]

    found = [one["id"] for one in best_rows([*rows, row("long", "2020-01", 10, "8192")])]

    assert found == ["new", "fast", "long"]


COLUMNS_OF = read_table("published_columns")


def written(path, rows):
    """Rows as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())


@pytest.fixture
def folder(tmp_path):
    """One layout in two releases and at two sizes, one that cannot run; dgxc with the same one and another."""
    empty = dict.fromkeys(COLUMNS_OF["others"], "")
    same = {**COLUMNS_OF["bridge"], **empty}
    rows = [
        {"release": "v0.2.0", **same, "container": "25.11", "n_gpus": "64", "gbs": "128"},
        {"release": "v0.4.0", **same, "n_gpus": "64", "gbs": "128"},
        {"release": "v0.4.0", **same, "n_gpus": "128", "gbs": "256"},
        {"release": "v0.4.0", **same, "n_gpus": "64", "gbs": "96", "note": "dp*mbs does not divide gbs"},
    ]
    theirs = {name: cell for name, cell in same.items() if name not in ("file", "name")}
    scales = {
        **dict.fromkeys(COLUMNS_OF["dgxc_only"], ""),
        **theirs,
        "framework": "megatron_bridge",
        "kind": "pretrain",
    }
    dgxc = [
        {**scales, "n_gpus": "64;512", "gbs": "128;1024"},
        {**scales, "n_gpus": "64;512", "gbs": "128;1024", "tp": "8"},
        {**scales, "n_gpus": "8", "gbs": "16", "tp": "1", "kind": "proxy"},
    ]
    written(tmp_path / "megatron_bridge.csv", rows)
    written(tmp_path / "dgxc.csv", dgxc)
    return tmp_path


def test_each_layout_comes_once(folder):
    """With its releases and sizes; dgxc's only where Megatron-Bridge has not the same; no proxy."""
    rows = recipe_rows(read_published(folder), {})

    told = [(one["id"], one["releases"], one["scales"], one["strategy.tp"]) for one in rows]
    assert told == [
        ("llama3-70b-64xh100-bf16-26.04", "25.11;26.04", "64;128", "4"),
        ("llama3-70b-64xh100-bf16-26.04-2", "26.04", "64", "4"),
        ("dgxc-llama3-70b-64xh100-bf16-26.04", "26.04", "64;512", "8"),
    ]


def test_what_cannot_run_is_kept_with_its_reason(folder):
    """The planner refuses it by name."""
    rows = recipe_rows(read_published(folder), {})

    assert [one["refused"] for one in rows] == ["", "cannot run as published: dp*mbs does not divide gbs", ""]
    assert "step_seconds" not in table(rows).splitlines()[0]
