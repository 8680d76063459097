"""A collected table's rows, whatever is in the file: what is broken is a row with a reason."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measured_runs.columns import COLLECTED
from costmodel.errors import SpecError

BROKEN_BYTES = "surrogateescape"
"""How bytes that are no UTF-8 stay in a cell until its row is refused."""

LINE = "line"
UNREADABLE = "unreadable"
"""Keys beside the columns: where a row stands in its file, why it cannot be read as CSV."""


def read(path: Path) -> Iterator[dict[str, str]]:
    """
    Every row of a file.

    Raises
    ------
    SpecError
        If there is no table to read: no such file, no header, or one that is not text.
    """
    try:
        with path.open(encoding="utf-8-sig", errors=BROKEN_BYTES, newline="") as file:
            reader = csv.DictReader(file)
            _require_header(reader.fieldnames, str(path))
            yield from _records(reader)
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}.") from None


def _require_header(names: object, where: str) -> None:
    if not names or not isinstance(names, list):
        raise SpecError(where, "is empty; its first line must name the columns.")
    if any(broken_byte(name) is not None for name in names):
        raise SpecError(where, "cannot be read as CSV: its first line is not UTF-8.")


def _records(reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    """Every record, or why it is none: after a cell that is too long, the reader goes on with the next line."""
    while True:
        try:
            cells = dict(next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            cells = {UNREADABLE: f"row: cannot be read as CSV: {error}."}
        yield {**cells, LINE: str(reader.reader.line_num)}


def require_whole(cells: Mapping[Any, str | None]) -> None:
    """
    Refuse a record that is none of a collected table.

    Raises
    ------
    SpecError
        If it cannot be read, lacks columns, has more or fewer cells than the header, or bytes that are no text.
    """
    if UNREADABLE in cells:
        raise SpecError("", str(cells[UNREADABLE]))
    if missing := [column for column in COLLECTED if column not in cells]:
        raise SpecError(missing[0], f"no such column; {len(missing)} of {len(COLLECTED)} are missing.")
    if None in cells or None in cells.values():
        raise SpecError("row", f"has {'fewer' if None in cells.values() else 'more'} cells than the header.")
    for column, cell in cells.items():
        if (byte := broken_byte(cell or "")) is not None:
            raise SpecError(str(column), f"is not UTF-8: it has the byte 0x{byte:02x}.")
    if not (cells["id"] or "").strip():
        raise SpecError("id", "is empty.")


def broken_byte(cell: str) -> int | None:
    r"""
    The first byte of a cell that is no UTF-8.

    >>> broken_byte("fine"), broken_byte(b"not \xff".decode("utf-8", BROKEN_BYTES))
    (None, 255)
    """
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError as error:
        return ord(cell[error.start]) & 0xFF
    return None


def printable(cell: str) -> str:
    """A cell with a mark for each byte that is no UTF-8."""
    return cell.encode("utf-8", BROKEN_BYTES).decode("utf-8", "replace").strip()
