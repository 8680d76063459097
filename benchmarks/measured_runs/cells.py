"""One collected row: its cells as text, words, numbers and flags; wrong ones are named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.jobs.run_table import positive_or_none

MOST = 10**9
"""Of whatever a row counts."""

FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
"""How programs write yes and no; pandas makes ``1.0`` of a column with empty cells, spreadsheets ``TRUE``."""


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
        """What the first group of a pattern finds in the notes; empty if nothing."""
        found = pattern.search(self.text(column))
        return found.group(1) if found else ""

    def choice(self, column: str, choices: Mapping[str, str]) -> str:
        """
        What one of few words means; empty for an empty cell.

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
