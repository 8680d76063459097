"""The width and colours of a console, and the command that a report answers."""

from __future__ import annotations

from typing import NamedTuple

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
