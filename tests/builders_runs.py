"""Measured runs for tests: rows of the explicit table that differ from a good one in what a test is about."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy.metrics import FOLDER, NEWER, read_table
from benchmarks.measured_runs.columns import EXPLICIT
from planner.jobs.run_jobs import References, RejectedRow, Run, read, references
from planner.measure.runs.predictions import Case, Prediction, case, predictions

GOOD: dict[str, str] = {
    **dict.fromkeys(EXPLICIT, ""),
    "id": "good",
    "source": "a paper",
    "date": "2026-04",
    "kind": "pretrain",
    "usable": "1",
    "quality": "ok",
    "step_seconds": "2.1",
    "peak_memory_gib": "60",
    "memory_kind": "allocated",
    "model": "llama3-8b",
    "cluster.device": "h100-80gb-sxm",
    "cluster.num_devices": "64",
    "cluster.framework": "megatron-core-0.16",
    "training.global_batch_size": "128",
    "training.sequence_length": "8192",
    "training.precision": "bf16",
    "strategy.tp": "2",
    "strategy.pp": "1",
    "strategy.mbs": "1",
}
"""A row that is in order: 128 x 8192 tokens of an 8 B model on 64 H100 need about 1.9 s at 40 % of the peak."""

DEEPSEEK_V3: dict[str, str] = {
    "model": "deepseek-v3",
    "cluster.device": "gb200",
    "strategy.tp": "1",
    "strategy.pp": "8",
    "strategy.ep": "8",
    "step_seconds": "10",
    "peak_memory_gib": "150",
}
"""A pipeline of 61 layers on eight ranks."""


def a_file(folder: Path, *rows: Mapping[str, str], columns: tuple[str, ...] = ()) -> Path:
    """A CSV of rows that differ from the good one in what a test is about."""
    path = folder / "runs.csv"
    columns = columns or tuple(dict.fromkeys((*EXPLICIT, *(column for row in rows for column in row))))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows({**GOOD, **row} for row in rows)
    return path


def rows_of(folder: Path, *rows: Mapping[str, str]) -> list[Run | RejectedRow]:
    """Such rows, read."""
    return list(read(a_file(folder, *rows)))


def a_run(folder: Path, **cells: str) -> Run:
    """The good row with other cells, read; dots of columns are written ``__``."""
    (run,) = rows_of(folder, dotted(cells))
    assert isinstance(run, Run), run
    return run


def dotted(cells: Mapping[str, str]) -> dict[str, str]:
    """Cells by column, whose dots were written ``__``."""
    return {name.replace("__", "."): cell for name, cell in cells.items()}


@cache
def project_references() -> References:
    """The project's own models and devices."""
    return references(FOLDER / "models.yaml", FOLDER)


def known(**models: Any) -> References:
    """The project's own models and devices, and others."""
    ours = project_references()
    return replace(ours, models={**ours.models, **{name.replace("_", "-"): one for name, one in models.items()}})


def a_case(folder: Path, **cells: str) -> Case:
    """The good row with other cells, as the cost model takes it."""
    return case(a_run(folder, **cells), project_references())


def results_of(folder: Path, *rows: Mapping[str, str]) -> list[Prediction | RejectedRow]:
    """Rows predicted."""
    return list(predictions(rows_of(folder, *rows), project_references()))


def predicted(folder: Path, *rows: Mapping[str, str]) -> list[Prediction]:
    """Rows predicted, all of them."""
    found = [one for one in results_of(folder, *rows) if isinstance(one, Prediction)]
    assert len(found) == len(rows)
    return found


def require_refused(row: object, *reasons: str) -> None:
    """Hold that a row was refused for these reasons."""
    assert isinstance(row, RejectedRow), row
    assert row.is_refused
    assert [reason for reason in reasons if reason not in row.reason] == []


@cache
def project_table() -> tuple[list[Run | RejectedRow], References]:
    """The project's own table, read once for all tests, which must not change it."""
    return read_table()


@cache
def project_results() -> tuple[Prediction | RejectedRow, ...]:
    """Every row of the project's own table, predicted once for all tests."""
    return tuple(predictions(*project_table()))


@cache
def fitted_results() -> tuple[Prediction | RejectedRow, ...]:
    """Every row that a fit has, predicted once for all tests: the project's own ones and the newer ones."""
    newer, _ = read_table(NEWER, FOLDER / "models.yaml")
    return (*project_results(), *predictions(newer, project_table()[1]))


def project_predictions() -> list[Prediction]:
    """Those of them that have a prediction."""
    return [one for one in project_results() if isinstance(one, Prediction)]
