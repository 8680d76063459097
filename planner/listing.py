"""The list of strategies of ``search.candidates``: read from CSV or YAML, and which of its rows the rules forbid."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from constraints.listing import Listing
from constraints.rule import Rule, sentence
from constraints.verdict import violated
from costmodel.errors import SpecError, did_you_mean
from costmodel.strategy import DECISIONS
from costmodel.validation import shown
from planner.document import parse, read_text
from planner.values import decision_value

if TYPE_CHECKING:
    from planner.problem import Problem
    from planner.space import Space

MAX_ROWS = 10_000
"""Strategies that a list may hold."""

MAX_BYTES = 2**22
"""Size of a list."""

MAX_EXPLAINED = 5
"""Impossible rows whose reason is given."""


def read_listing(path: Path) -> Listing:
    """
    Strategies from a CSV file with a header of decisions, or from a YAML list of mappings.

    Parameters
    ----------
    path
        The file; its ending says which of the two it is.

    Raises
    ------
    SpecError
        If it cannot be read, holds no strategies or too many, or names what is no decision or no value of one.
    """
    if path.suffix.lower() not in (".csv", ".yaml", ".yml"):
        raise SpecError("search.candidates", f"{shown(str(path))} is neither a .csv nor a .yaml file.")
    text = read_text(path, MAX_BYTES)
    entries = _csv_rows(text, path) if path.suffix.lower() == ".csv" else _yaml_rows(text, path)
    rows: dict[str, dict[str, int]] = {}
    for place, entry in entries:
        if len(rows) == MAX_ROWS:
            raise SpecError(str(path), f"holds more than {MAX_ROWS:,} strategies.")
        if not entry:
            raise SpecError(f"{path}, {place}", "gives no decision, and so would allow every strategy.")
        rows[place] = {name: decision_value(name, value, f"{path}, {place}, {name}") for name, value in entry.items()}
    if not rows:
        raise SpecError(str(path), "holds no strategy.", "Write a header such as tp,pp,recompute and one row for each.")
    return Listing(source=path.name, rows=tuple(rows.values()), places=tuple(rows))


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cells of each line that are not empty, by decision."""
    reader = csv.reader(StringIO(text, newline=""), skipinitialspace=True)
    plain: dict[str, Any] = {}
    try:
        header = [cell.strip() for cell in next(reader, [])]
        for number, name in enumerate(header, start=1):
            _require_decision(name, f"{path}, line 1, column {number}")
            if name in header[: number - 1]:
                raise SpecError(f"{path}, line 1, column {number}", f"'{name}' is written twice.")
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
    """Each mapping of a list."""
    entries = parse(text, str(path))
    if not isinstance(entries, list):
        raise SpecError(str(path), f"expected a list of strategies such as [{{tp: 8, pp: 4}}], got {shown(entries)}.")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise SpecError(f"{path}, entry {number}", f"expected decisions such as {{tp: 8}}, got {shown(entry)}.")
        for name in entry:
            _require_decision(name, f"{path}, entry {number}")
        yield f"entry {number}", entry


def _require_decision(name: str, where: str) -> None:
    if name not in DECISIONS:
        raise SpecError(where, f"{shown(name)} is no decision.", did_you_mean(name, DECISIONS))


# --- impossible rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """
    What the rules leave of a list.

    Parameters
    ----------
    source
        Its name.
    num_rows, num_impossible
        Its strategies; those that rules forbid, memory apart.
    impossible
        The first of them: where it stands, and the sentences of the rules that forbid it. None where no rule alone
        does, but nothing that the row leaves open satisfies all of them.
    """

    source: str
    num_rows: int
    num_impossible: int
    impossible: tuple[tuple[str, tuple[str, ...]], ...]


def listed(problem: Problem, space: Space) -> Listed | None:
    """What the rules leave of a problem's list; None without one."""
    listing = problem.search.candidates
    if listing is None:
        return None
    matches = _Matches(space)
    impossible = [number for number, row in enumerate(listing.rows) if not matches.any(row)]
    asked = [rule for rule in (*space.rules.rows, *space.rules.mixed) if rule not in space.rules.listing]
    return Listed(
        source=listing.source,
        num_rows=len(listing.rows),
        num_impossible=len(impossible),
        impossible=tuple(
            (listing.places[number], _reasons(problem, listing.rows[number], asked))
            for number in impossible[:MAX_EXPLAINED]
        ),
    )


class _Matches:
    """Which rows of a list occur in a space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.classes: dict[tuple[str, ...], dict[tuple[int, ...], set[int]]] = {}

    def any(self, row: Mapping[str, int]) -> bool:
        """Whether a strategy of the space has all the values of a row."""
        degrees = tuple(name for name in row if name in self.space.rows)
        found = self.classes_by(degrees).get(tuple(int(row[name]) for name in degrees), ())
        axes: list[Any] = []
        for name, values in self.space.features.items():
            axes.append(np.isin(values, row[name]) if name in row else np.ones(len(values), dtype=bool))
        return any(self.space.allowed[one][np.ix_(*axes)].any() for one in found)

    def classes_by(self, degrees: tuple[str, ...]) -> dict[tuple[int, ...], set[int]]:
        """Classes of features by the values of some degrees."""
        if degrees not in self.classes:
            known: dict[tuple[int, ...], set[int]] = {}
            columns = [self.space.rows[name].astype(np.int64).tolist() for name in degrees]
            keys: Iterable[tuple[int, ...]] = zip(*columns, strict=True) if degrees else ((),) * self.space.num_rows
            for key, one in zip(keys, self.space.feature_class.tolist(), strict=True):
                known.setdefault(key, set()).add(one)
            self.classes[degrees] = known
        return self.classes[degrees]


def _reasons(problem: Problem, row: Mapping[str, int], rules: Iterable[Rule]) -> tuple[str, ...]:
    """The rules that forbid a row whatever it leaves open."""
    from planner.space import needs

    values = dict(row)
    uses_all = problem.search.max_devices is None
    if uses_all and "dp" not in values and {"tp", "cp", "pp"} <= values.keys():
        rest, remainder = divmod(problem.facts.cluster.num_devices, values["tp"] * values["cp"] * values["pp"])
        values |= {"dp": rest} if rest and not remainder else {}
    decided = [rule for rule in rules if needs(rule) <= values.keys()]
    return tuple(dict.fromkeys(sentence(rule) for rule in violated(problem.facts, values, rules=decided)))
