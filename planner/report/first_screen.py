"""The first screen of a short answer: the lines needed for a decision; the whole report has the rest."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TypeAlias

from planner.report.screen import WIDTH

Row: TypeAlias = tuple[str, str]

MOST_LINES = 14
"""Lines above the table of plans, at the width of a pipe."""

OF_HEADING = 2
"""Lines of the title and below it."""

GAP = 2
"""Columns between a name and its text."""

SHORTENED = ("small runs", "forbidden", "left out", "uncertain", "unproven", "uses", "near-by batch", "batch", "step")
"""Rows whose last clauses or continuations go first where there are too many lines, the longest row first."""

DROPPED = ("small runs", "batch", "proof", "near-by batch", "uses", "money")
"""Rows that go after that, in this order."""

REST = "--full has the rest"


def fit_rows(rows: Sequence[Row], most: int = MOST_LINES) -> tuple[Row, ...]:
    """
    Shorten rows until they and the heading take at most so many lines.

    Parameters
    ----------
    rows
        A name and a text each; a row without a name continues the one before. Texts are clauses joined by semicolons.
    most
        Lines that they may take.

    Examples
    --------
    >>> fit_rows([("step", "1.0 s"), ("uncertain", "one; two"), ("", "three")], most=4)
    (('step', '1.0 s'), ('uncertain', 'one; two; --full has the rest'))
    """
    groups = _groups(rows)
    while _num_lines(groups) > most - OF_HEADING:
        shortened = [one for one in groups if one.name in SHORTENED and one.num_clauses > 1]
        if shortened:
            max(shortened, key=lambda one: one.num_clauses).shorten()
            continue
        name = next((name for name in DROPPED if any(one.name == name for one in groups)), None)
        if name is None:
            break
        groups = [one for one in groups if one.name != name]
    return tuple(row for one in groups for row in one.rows())


class _Group:
    """A row with those that continue it."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name, self.texts, self.is_cut = name, [text.split("; ") for text in texts], False

    @property
    def num_clauses(self) -> int:
        return sum(map(len, self.texts))

    def shorten(self) -> None:
        """Drop the last clause."""
        self.texts[-1].pop()
        if not self.texts[-1]:
            self.texts.pop()
        self.is_cut = True

    def rows(self) -> list[Row]:
        """Return the rows that are left."""
        texts = ["; ".join(clauses) for clauses in self.texts]
        if self.is_cut:
            texts[-1] = f"{texts[-1]}; {REST}"
        return [("" if number else self.name, text) for number, text in enumerate(texts)]


def _groups(rows: Sequence[Row]) -> list[_Group]:
    found: list[tuple[str, list[str]]] = []
    for name, text in rows:
        if name or not found:
            found.append((name, []))
        found[-1][1].append(text)
    return [_Group(name, texts) for name, texts in found]


def _num_lines(groups: Sequence[_Group]) -> int:
    rows = [row for one in groups for row in one.rows()]
    width = WIDTH - GAP - max((len(name) for name, _ in rows), default=0)
    return sum(max(1, len(wrap(text, width))) for _, text in rows)
