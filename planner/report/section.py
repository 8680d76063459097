"""One part of a report for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.record import record


@record(frozen=True, kw_only=True, slots=True)
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
    is_verbatim
        True if facts are commands to be copied, so that no line of them is folded.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    is_verbatim: bool = False


def group_rows(name: str, texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return texts as rows of facts, the first one with the name of all."""
    return tuple(("" if number else name, text) for number, text in enumerate(texts))


def number_rows(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return texts as rows of facts, numbered from 1."""
    return tuple((str(number), text) for number, text in enumerate(texts, start=1))


WIDTH = 100

"""Columns of text for a file or a pipe."""


class Screen(NamedTuple):
    """
    The console, file or pipe that text is laid out for.

    Parameters
    ----------
    width
        Its columns.
    has_color
        True if it shows colours; they carry no information of their own.
    """

    width: int = WIDTH
    has_color: bool = False


PLAIN = Screen()

"""A file, or a pipe."""

ENDLESS = Screen(width=100_000)

"""A file with one line per row of a table, for other programs to search."""


class Asked(NamedTuple):
    """
    The command that was run, from which a short answer makes the next commands.

    Parameters
    ----------
    command
        The whole command.
    job
        The words of it that name the job, as ``planner explain`` takes them.
    """

    command: str
    job: str
