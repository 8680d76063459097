"""The file of rows predicted by fits that had not seen their group, model, source or release."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

from benchmarks.accuracy.left_out.folds import KINDS
from benchmarks.output import format_csv
from planner.jobs.run_table import RejectedRow
from planner.measure.runs.predictions import Prediction

HELD_OUT = Path(__file__).parents[1] / "held_out.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """
    One row predicted by fits that had not seen it.

    Parameters
    ----------
    id
        Of the row.
    seconds
        Predicted step time by what was left out: ``group``, ``model``, ``source``, ``software``; of other lines of
        software there is no ``software``.
    """

    id: str
    seconds: Mapping[str, float]


COLUMNS = ("id", *(f"{kind}_seconds" for kind in KINDS))


def held_out_rows(ids: Sequence[str], seconds: Mapping[str, Sequence[float]]) -> list[HeldOut]:
    """Rows from one column of seconds for each kind of folds, NaN where no fold leaves a row out."""
    return [
        HeldOut(id=name, seconds={kind: of[row] for kind, of in seconds.items() if not isnan(of[row])})
        for row, name in enumerate(ids)
    ]


def write_held_out(path: Path, rows: Sequence[HeldOut]) -> None:
    """Write the file, in the order of the runs."""
    cells = ((row.id, *(f"{row.seconds[kind]:.6g}" if kind in row.seconds else "" for kind in KINDS)) for row in rows)
    path.write_text(format_csv(COLUMNS, cells), encoding="utf-8")


def read_held_out(path: Path) -> dict[str, HeldOut]:
    """The rows of the file by id; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {cells["id"]: _held_out(cells) for cells in csv.DictReader(file)}


def _held_out(cells: dict[str, str]) -> HeldOut:
    given = {kind: cells[f"{kind}_seconds"] for kind in KINDS}
    return HeldOut(id=cells["id"], seconds={kind: float(cell) for kind, cell in given.items() if cell})


def as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], kind: str
) -> list[Prediction]:
    """Predictions with the step times of the fits that left out a group, model, source or release; others left away."""
    return list(_as_held_out(results, known, kind))


def _as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], kind: str
) -> Iterator[Prediction]:
    for one in results:
        if isinstance(one, Prediction) and one.run.id in known and one.run.step_seconds is not None:
            seconds = known[one.run.id].seconds.get(kind)
            if seconds is not None:
                yield replace(one, step_seconds=seconds)
