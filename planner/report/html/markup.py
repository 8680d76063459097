"""Sections as HTML; all text from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape

from planner.report.section import Section
from planner.report.wording import is_numeric

MOST_OPEN = 20
"""Rows up to which a table is open; longer ones are folded behind their number of rows."""


def section_html(
    section: Section, *, compare: bool = False, across: bool = False, folded: bool = False, level: int = 3
) -> str:
    """
    Build a section: heading, table, notes.

    Parameters
    ----------
    section
        Its content.
    compare
        True to mark cells that differ from those of the first strategy.
    across
        True if a strategy is a column, as :func:`transpose` makes it, not a row.
    folded
        True if it is closed until the reader opens it.
    level
        Level of its heading.
    """
    table = table_html(section, compare=compare, across=across)
    if len(section.rows) > MOST_OPEN and not folded and not across and section.header:
        table = f"<details class=long><summary>{len(section.rows):,} rows</summary>{table}</details>"
    body = f"{table}{''.join(_notes(section.notes))}"
    if folded:
        return f"<details><summary>{escape(section.title)}</summary>{body}</details>"
    return f"<div class=block><h{level}>{escape(section.title)}</h{level}>{body}</div>"


def transpose(section: Section, name: str) -> Section:
    """
    Return a section with a column for each of its rows.

    Parameters
    ----------
    section
        Its first column names its rows.
    name
        Heading of the first column of the result.
    """
    columns = list(zip(section.header, *section.rows, strict=True))
    return replace(section, header=(name, *columns[0][1:]), rows=tuple(columns[1:]))


def table_html(section: Section, *, compare: bool = False, across: bool = False) -> str:
    """Build the table of a section's rows, in a box that scrolls where it is too wide."""
    if not section.rows:
        return ""
    numeric = [False, *[True] * (len(section.rows[0]) - 1)] if across else _numeric(section)
    head = _head(section.header, numeric) if section.header else ""
    rows = "".join(_rows(section, numeric, compare=compare, across=across))
    kind = "table" if section.header else "facts"
    return (
        f'<div class=scroll tabindex=0 role=group aria-label="{escape(section.title)}"><table class={kind}>'
        f"<caption>{escape(section.title)}</caption>{head}<tbody>{rows}</tbody></table></div>"
    )


def _numeric(section: Section) -> list[bool]:
    """Tell by column whether it holds only numbers; the first one names the rows."""
    return [False, *map(is_numeric, list(zip(*section.rows, strict=True))[1:])]


def _head(header: Iterable[str], numeric: Iterable[bool]) -> str:
    cells = "".join(
        f"<th scope=col{_class(is_number, False)}>{escape(name)}</th>" if name else "<td></td>"
        for name, is_number in zip(header, numeric, strict=True)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _rows(section: Section, numeric: Sequence[bool], *, compare: bool, across: bool) -> Iterator[str]:
    first = section.rows[0]
    for row in section.rows:
        name, *cells = row
        others = cells[:1] * len(cells) if across else first[1:]
        own = "".join(
            f"<td{_class(is_number, compare and cell != other)}>{_cell(cell)}</td>"
            for cell, other, is_number in zip(cells, others, numeric[1:], strict=True)
        )
        yield f"<tr><th scope=row>{escape(name)}</th>{own}</tr>"


def _class(is_number: bool, differs: bool) -> str:
    names = " ".join(["num"] * is_number + ["differs"] * differs)
    return f' class="{names}"' if names else ""


def _cell(text: str) -> str:
    """Escape a cell; long joined words may break behind their plus signs."""
    return escape(text).replace("+", "+<wbr>") if len(text) > 20 else escape(text)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"<p class=note>{escape(note)}</p>" for note in notes)
