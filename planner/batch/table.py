"""Results as a table, one row per plan: Parquet or CSV, written piece by piece."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import SpecError, optional_library
from planner.batch.job_result import JobOutcome

Cell: TypeAlias = bool | int | float | str | None
Row: TypeAlias = dict[str, Cell]
Lines: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]]

OF_OUTCOME = tuple(entry.name for entry in fields(JobOutcome) if entry.name not in ("plans", "report"))
OF_LINE = ("name", "source", *OF_OUTCOME, "key")
"""Entries of a line on the job itself."""

ROWS_AT_ONCE = 10_000
"""Rows of one group of a Parquet file; memory holds one group at a time."""

WIDENING = (bool, int, float, str)
"""Types of cells; a column with several has the last of them."""

LARGEST_INT = 2**63
"""Least integer that exceeds 64 bits; job files may have such numbers."""

PARQUET, CSV = ".parquet", ".csv"


def row_of(line: Mapping[str, Any], plan: Mapping[str, Any] | None) -> Row:
    """
    Build the row of one plan of a job; a job without a plan has a row, too.

    Overrides and chosen settings are columns by their dotted keys, decisions by their names.
    """
    figures = dict(plan or {})
    if "gaps" in figures:
        figures["gaps"] = "; ".join(sentences(figures))
    strategy = figures.pop("strategy", {})
    chosen = {f"settings.{name}": value for name, value in figures.pop("settings", {}).items()}
    own = {name: line.get(name) for name in OF_LINE}
    # Twice: the first to stand in front, the second because an override may have a name of ours.
    cells = {**own, **line.get("overrides", {}), **own, **figures, **strategy, **chosen}
    return {name: _cell(value) for name, value in cells.items()}


def sentences(plan: Mapping[str, Any]) -> list[str]:
    """Return the sentences on extrapolated properties of a plan; empty for lines of earlier versions."""
    return [str(gap["sentence"]) for gap in plan.get("gaps", ())]


def _cell(value: Any) -> Cell:
    if isinstance(value, int) and abs(value) >= LARGEST_INT:
        return float(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def require_writable(path: Path) -> None:
    """
    Refuse a table that could not be written, before the work begins.

    Raises
    ------
    SpecError
        If its ending is neither Parquet's nor CSV's, its folder is missing, or pyarrow is not installed for Parquet.
    """
    if path.suffix not in (PARQUET, CSV):
        raise SpecError(str(path), f"expected a file that ends with {PARQUET} or {CSV}.")
    if not os.path.isdir(path.parent) or os.path.isdir(path):
        problem = "is a directory" if os.path.isdir(path) else f"there is no folder '{path.parent}' to write to"
        raise SpecError(str(path), f"{problem}.")
    if path.suffix == PARQUET:
        _pyarrow()


def write_table(lines: Lines, path: Path) -> None:
    """
    Write results as a table.

    Parameters
    ----------
    lines
        Returns the lines of a results file; called twice, first to find the columns.
    path
        File to write, by its ending Parquet or CSV; nobody ever reads half of it.
    """
    kinds = _kinds(_rows(lines()))
    with _draft(path) as draft:
        if path.suffix == PARQUET:
            _write_parquet(_rows(lines()), kinds, draft)
        else:
            _write_csv(_rows(lines()), kinds, draft)


def _rows(lines: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for line in lines:
        for plan in line.get("plans") or [None]:
            yield row_of(line, plan)


def _kinds(rows: Iterable[Row]) -> dict[str, type]:
    """Return the type of each column: the widest one of its cells."""
    kinds: dict[str, type] = {}
    for row in rows:
        for name, cell in row.items():
            seen = kinds.setdefault(name, bool)
            if cell is not None and WIDENING.index(type(cell)) > WIDENING.index(seen):
                kinds[name] = type(cell)
    return kinds


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield a draft beside the file to write, and rename it in the end."""
    draft = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise SpecError(str(path), f"cannot be written: {error.strerror or error}.") from None
    finally:
        draft.unlink(missing_ok=True)


def csv_row(row: Row) -> Row:
    """Return a row with ``true`` and ``false`` as CSV files spell them."""
    return {name: str(cell).lower() if isinstance(cell, bool) else cell for name, cell in row.items()}


def _write_csv(rows: Iterable[Row], kinds: Mapping[str, type], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(kinds), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(csv_row(row))


def _write_parquet(rows: Iterator[Row], kinds: Mapping[str, type], path: Path) -> None:
    pyarrow = _pyarrow()
    from pyarrow import parquet

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, ROWS_AT_ONCE)):
            cells = [{name: None if cell is None else kinds[name](cell) for name, cell in row.items()} for row in group]
            writer.write_table(pyarrow.Table.from_pylist(cells, schema=schema))


def _pyarrow() -> Any:
    return optional_library("pyarrow", "table", "Parquet needs pyarrow, which is not installed.", extra="parquet")
