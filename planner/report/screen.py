"""What text is laid out for, and the question that it answers."""

from __future__ import annotations

from typing import NamedTuple

WIDTH = 100
"""Columns of what no terminal shows."""


class Screen(NamedTuple):
    """
    What text is laid out for.

    Parameters
    ----------
    width
        Its columns.
    has_color
        Whether it shows colours, which only repeat what words and places say.
    """

    width: int = WIDTH
    has_color: bool = False


PLAIN = Screen()
"""A file, or a pipe."""

ENDLESS = Screen(width=100_000)
"""A file of lines, one for each row of a table, which other programs search."""


class Asked(NamedTuple):
    """
    How somebody asked, so that the answer can say what to ask next.

    Parameters
    ----------
    command
        The whole command.
    job
        The words of it that name the job, as ``planner explain`` takes them.
    """

    command: str
    job: str
