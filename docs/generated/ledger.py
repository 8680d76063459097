"""Tables of ``benchmarks/LEDGER.md``, from the lines of ``benchmarks/ledger.csv``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

LEDGER = Path(__file__).parents[2] / "benchmarks" / "ledger.csv"


class Line(NamedTuple):
    """
    One figure of one change.

    Parameters
    ----------
    date
        Day on which it was measured; empty: the text beside the table says.
    benchmark
        Table of the ledger, named after the benchmark.
    figure, value, unit
        Measured figure, as a number if it is one, and its unit.
    change
        Change that moved it, or the case that was measured.
    """

    date: str
    benchmark: str
    figure: str
    value: str
    unit: str
    change: str

    @property
    def text(self) -> str:
        """The value with its unit, thousands apart."""
        value = f"{int(self.value):,}" if self.value.isdecimal() else self.value
        return f"{value} {self.unit}".rstrip()


def read_ledger() -> list[Line]:
    """Read all lines, newest first within a table."""
    with LEDGER.open(encoding="utf-8", newline="") as file:
        return [Line(**row) for row in csv.DictReader(file)]


def ledger_tables() -> dict[str, list[str]]:
    """Return the rows of each table: a row per change, a column per figure."""
    lines = sorted(read_ledger(), key=lambda line: line.benchmark)
    return {name: [*_table([*found])] for name, found in groupby(lines, key=lambda line: line.benchmark)}


def _table(lines: list[Line]) -> Iterator[str]:
    figures = [*dict.fromkeys(line.figure for line in lines)]
    yield f"| date | change or case | {' | '.join(figures)} |"
    yield f"|---|---|{'---:|' * len(figures)}"
    for (date, change), found in groupby(lines, key=lambda line: (line.date, line.change)):
        row = {line.figure: line.text for line in found}
        yield f"| {date} | {change} | {' | '.join(row.get(figure, '') for figure in figures)} |"
