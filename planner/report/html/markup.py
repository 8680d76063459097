"""Sections as HTML: everything that comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from planner.report.section import Section
from planner.report.wording import is_numeric


def section_html(section: Section, *, compare: bool = False, folded: bool = False) -> str:
    """
    A section: heading, table, notes.

    Parameters
    ----------
    section
        Its content.
    compare
        Whether cells that differ from the first row's are marked.
    folded
        Whether it is closed until it is asked for.
    """
    body = f"{table_html(section, compare=compare)}{''.join(_notes(section.notes))}"
    if folded:
        return f"<details><summary>{escape(section.title)}</summary>{body}</details>"
    return f"<div class=block><h3>{escape(section.title)}</h3>{body}</div>"


def table_html(section: Section, *, compare: bool = False) -> str:
    """The rows of a section as a table, in a box that scrolls where it is too wide."""
    if not section.rows:
        return ""
    head = _head(section.header, _numeric(section)) if section.header else ""
    rows = "".join(_rows(section, compare=compare))
    kind = "table" if section.header else "facts"
    return (
        f'<div class=scroll tabindex=0 role=region aria-label="{escape(section.title)}"><table class={kind}>'
        f"<caption>{escape(section.title)}</caption>{head}<tbody>{rows}</tbody></table></div>"
    )


def _numeric(section: Section) -> list[bool]:
    """Which columns hold nothing but numbers; the first one names the rows."""
    return [False, *map(is_numeric, list(zip(*section.rows, strict=True))[1:])]


def _head(header: Iterable[str], numeric: Iterable[bool]) -> str:
    cells = "".join(
        f"<th scope=col{_class(is_number, False)}>{escape(name)}</th>"
        for name, is_number in zip(header, numeric, strict=True)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _rows(section: Section, *, compare: bool) -> Iterator[str]:
    numeric, first = _numeric(section), section.rows[0]
    for row in section.rows:
        name, *cells = row
        own = "".join(
            f"<td{_class(is_number, compare and cell != other)}>{_cell(cell)}</td>"
            for cell, other, is_number in zip(cells, first[1:], numeric[1:], strict=True)
        )
        yield f"<tr><th scope=row>{escape(name)}</th>{own}</tr>"


def _class(is_number: bool, differs: bool) -> str:
    names = " ".join(["num"] * is_number + ["differs"] * differs)
    return f' class="{names}"' if names else ""


def _cell(text: str) -> str:
    """Long joined words may break behind their plus signs."""
    return escape(text).replace("+", "+<wbr>") if len(text) > 20 else escape(text)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"<p class=note>{escape(note)}</p>" for note in notes)
