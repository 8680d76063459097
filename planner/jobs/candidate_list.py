"""The list of strategies of ``search.candidates``: read from CSV or YAML."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from constraints.limits import CandidateList
from costmodel.errors import MOST_MISTAKES, SpecError, mistakes_of, together
from costmodel.strategy import DECISIONS, Strategy
from costmodel.validation import shown
from planner.jobs.document import decision_value, parse, read_text, require_one_of
from planner.jobs.strategy_file import ENTRIES, FOLLOWING, LAYOUT, StrategyFile, read_layout

MAX_ROWS = 10_000
"""Strategies that a list may hold."""

MAX_BYTES = 2**22
"""Size of a list."""


def read_candidate_list(path: Path, complete: Callable[[StrategyFile], Strategy] | None = None) -> CandidateList:
    """
    Read strategies from a CSV file with a header of decisions, or from a YAML list of mappings.

    Parameters
    ----------
    path
        The file; its suffix decides between CSV and YAML.
    complete
        Completes a row with a layout to a whole strategy of the job.

    Raises
    ------
    SpecError
        If the file cannot be read, has no strategy or too many, or has an unknown decision or value.
    """
    if path.suffix.lower() not in (".csv", ".yaml", ".yml"):
        raise SpecError("search.candidates", f"{shown(str(path))} is neither a .csv nor a .yaml file.")
    text = read_text(path, MAX_BYTES)
    entries = _csv_rows(text, path) if path.suffix.lower() == ".csv" else _yaml_rows(text, path)
    rows: dict[str, Mapping[str, int]] = {}
    whole: dict[str, Strategy] = {}
    mistakes: list[SpecError] = []
    for place, entry in entries:
        if len(rows) + len(whole) == MAX_ROWS:
            raise SpecError(str(path), f"holds more than {MAX_ROWS:,} strategies.")
        if not entry.keys() - {*FOLLOWING}:
            raise SpecError(f"{path}, {place}", "gives no decision, and so would allow every strategy.")
        try:
            given = _read_row(entry, f"{path}, {place}")
            if given.layout is None or complete is None:
                rows[place] = given.decisions
            else:
                whole[place] = _complete_row(complete, given, f"{path}, {place}")
        except SpecError as error:
            mistakes += mistakes_of(error)
        if len(mistakes) >= MOST_MISTAKES:
            break
    if mistakes:
        raise together(mistakes)
    if not rows and not whole:
        raise SpecError(str(path), "holds no strategy.", "Write a header such as tp,pp,recompute and one row for each.")
    return CandidateList(
        source=path.name,
        rows=tuple(rows.values()),
        places=tuple(rows),
        whole=tuple(whole.values()),
        whole_places=tuple(whole),
    )


def _read_row(entry: Mapping[str, Any], where: str) -> StrategyFile:
    decisions: dict[str, int] = {}
    mistakes: list[SpecError] = []
    layout = None
    for name, value in entry.items():
        try:
            if name in DECISIONS:
                decisions[name] = decision_value(name, value, f"{where}, {name}")
            elif name == LAYOUT:
                layout = read_layout(value, f"{where}, {name}")
        except SpecError as error:
            mistakes.append(error)
    if mistakes:
        raise together(mistakes)
    return StrategyFile(decisions=decisions, layout=layout)


def _complete_row(complete: Callable[[StrategyFile], Strategy], given: StrategyFile, where: str) -> Strategy:
    try:
        return complete(given)
    except SpecError as error:
        raise SpecError(f"{where}: {error.where}", error.problem, error.hint) from None


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the non-empty cells of each line, by decision."""
    reader = csv.reader(StringIO(text, newline=""), skipinitialspace=True)
    plain: dict[str, Any] = {}
    try:
        header = [cell.strip() for cell in next(reader, [])]
        for number, name in enumerate(header, start=1):
            require_one_of(name, ENTRIES, f"{path}, line 1, column {number}")
            if name in header[: number - 1]:
                raise SpecError(f"{path}, line 1, column {number}", f"'{name}' is written twice.", "Take one out.")
        for cells in reader:
            place = f"line {reader.line_num}"
            if len(cells) > len(header):
                raise SpecError(f"{path}, {place}", f"has {len(cells)} cells, the header {len(header)}.")
            given = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if cell.strip()}
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                plain |= {c: parse(c, f"{path}, {place}, {n}") for n, c in given.items() if c not in plain}
                yield place, {name: plain[cell] for name, cell in given.items()}
    except csv.Error as error:
        raise SpecError(f"{path}, line {reader.line_num}", f"is not CSV: {error}.") from None


def _yaml_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping of the list."""
    entries = parse(text, str(path))
    if not isinstance(entries, list):
        raise SpecError(str(path), f"expected a list of strategies such as [{{tp: 8, pp: 4}}], got {shown(entries)}.")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise SpecError(f"{path}, entry {number}", f"expected decisions such as {{tp: 8}}, got {shown(entry)}.")
        for name in entry:
            require_one_of(name, ENTRIES, f"{path}, entry {number}")
        yield f"entry {number}", entry
