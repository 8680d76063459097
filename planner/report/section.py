"""One part of a report for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """
    One part of a report.

    Parameters
    ----------
    title
        Its heading.
    header
        Names of the columns; empty where the rows are facts, a name and a text each.
    rows
        Cells.
    notes
        Full sentences below.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
