"""A table of measured runs in either form: explicit, or as collected, which is converted on the way."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from benchmarks.measured_runs.__main__ import convert_files
from benchmarks.measured_runs.conversion import is_collected
from benchmarks.output import format_csv
from costmodel.errors import SpecError
from planner.jobs.run_jobs import References, references
from planner.jobs.run_table import RejectedRow, Run, read, read_rows

FOLDER = Path(__file__).parents[1] / "measured_runs"
RUNS = FOLDER / "runs.csv"
COLLECTED_MODELS = FOLDER / "collected" / "models.yaml"


def read_table(runs: Path = RUNS, models: Path | None = None) -> tuple[list[Run | RejectedRow], References]:
    """
    The rows of a table, and what they refer to.

    Parameters
    ----------
    runs
        CSV in either form.
    models
        The architectures behind its rows in the same form; None: the project's.

    Raises
    ------
    SpecError
        If there is no table.
    """
    if not is_collected(_columns(runs)):
        return list(read(runs)), references(models or FOLDER / "models.yaml", FOLDER if runs == RUNS else runs.parent)
    converted = convert_files(runs, models or COLLECTED_MODELS)
    columns = list(converted.rows[0]) if converted.rows else ["id", "model", "cluster.device", "cluster.num_devices"]
    rows = list(read_rows(csv.DictReader(io.StringIO(format_csv(columns, converted.rows))), str(runs)))
    return rows, replace(References(folder=FOLDER), models=dict(converted.models))


def _columns(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}.") from None
