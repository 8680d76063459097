"""The columns of the explicit form: what a row says of itself, and keys of a job file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.inputs import read_yaml
from benchmarks.output import format_csv
from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.jobs.run_jobs import positive_or_none

DATA = read_yaml(__file__)

JOB, RARE, COLLECTED, ESSENTIAL = (tuple(DATA[name]) for name in ("job", "rare", "collected", "essential"))

EXPLICIT = (*DATA["metadata"], *JOB, *DATA["last"])

"""All columns, in the order of the file."""


MOST = 10**9

"""Largest number that a cell may count."""

FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}

"""Spellings of yes and no; pandas writes ``1.0`` in a column with empty cells, spreadsheets ``TRUE``."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    The cells of one row.

    Parameters
    ----------
    cells
        Text by column; columns that a table has not are empty.
    """

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell without the space around it."""
        return (self.cells.get(column) or "").strip()

    def word(self, column: str) -> str:
        """A cell of few words, in which case says nothing."""
        return self.text(column).lower()

    def noted(self, pattern: re.Pattern[str], column: str = "notes") -> str:
        """Return the text that the first group of a pattern matches in the notes; empty if nothing matches."""
        found = pattern.search(self.text(column))
        return found.group(1) if found else ""

    def choice(self, column: str, choices: Mapping[str, str]) -> str:
        """
        Return the meaning of one of few words; empty for an empty cell.

        Raises
        ------
        SpecError
            For another word.
        """
        word = self.word(column)
        if word and word not in choices:
            raise SpecError(column, f"unknown entry {shown(word)}.", did_you_mean(word, choices))
        return choices[word] if word else ""

    def number_or_none(self, column: str) -> float | None:
        """A finite number above 0."""
        return positive_or_none({column: self.text(column)}, column)

    def count_or_none(self, column: str, least: int = 1) -> int | None:
        """A whole number, at least ``least``; pandas writes it with a decimal point."""
        if least == 0 and self.text(column) in ("0", "0.0"):
            return 0
        number = self.number_or_none(column)
        if number is None:
            return None
        if number > MOST:
            raise SpecError(column, f"must be at most {MOST:,}, got {shown(self.text(column))}.")
        if number != int(number):
            raise SpecError(column, f"must be a whole number, got {shown(self.text(column))}.")
        return int(number)

    def degree(self, column: str) -> int:
        """A parallel degree; 1 where the row is silent."""
        return self.count_or_none(column) or 1

    def flag_or_none(self, column: str) -> bool | None:
        """Yes or no."""
        cell = self.word(column)
        if cell and cell not in FLAGS:
            raise SpecError(column, f"expected 0 or 1, got {shown(cell)}.")
        return FLAGS.get(cell)

    @property
    def replicas(self) -> int:
        """Data-parallel ranks, which follow from the devices."""
        others = self.degree("tp") * self.degree("cp") * self.degree("pp")
        return max((self.count_or_none("n_gpus") or others) // others, 1)


def written(value: object) -> str:
    """
    A value as a cell of the explicit form has it.

    >>> written(True), written(None), written(6.25e9), written("x"), written(8)
    ('true', '', '6.25e+09', 'x', '8')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


BROKEN_BYTES = "surrogateescape"

"""Error handler that keeps bytes that are no UTF-8 in a cell until its row is refused."""

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


MODELS_HEAD = """\
# Made by `python -m benchmarks.measured_runs` of collected/models.yaml; change that one.
# By key, what a job file's `model` takes: a model of the catalog with what differs, or a description of its own.
# 'rotary: false' of a GPT: its positions are learned, as many as the row's 'model.learned_positions' says.
"""


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows as CSV."""
    rows = list(rows)
    columns = [name for name in EXPLICIT if name not in RARE or any(row[name] for row in rows)]
    return format_csv(columns, rows)


def models_file(models: Mapping[str, Mapping[str, Any]], comments: Mapping[str, str]) -> str:
    """Models as YAML."""
    return MODELS_HEAD + "".join(_entry(key, entry, comments.get(key, "")) for key, entry in models.items())


def _entry(key: str, entry: Mapping[str, Any], comment: str) -> str:
    text = yaml.safe_dump({key: dict(entry)}, sort_keys=False, allow_unicode=True, width=120)
    return f"# {comment}\n{text}" if comment else text
