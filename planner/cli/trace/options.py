"""Options of several commands on traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.output import current

if TYPE_CHECKING:
    from planner.measure.traces.events import Trace

MOST_DIGITS = 9


def iteration_number(text: str | None) -> int | None:
    """
    Read ``--iteration``, where it is given.

    Raises
    ------
    SpecError
        If it is no whole number from 0.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise SpecError("--iteration", f"expected a whole number from 0, got '{text[:40]}'.")
    return int(text)


def traces_of(paths: Sequence[Path]) -> tuple[Trace, ...]:
    """Read traces, with a progress line."""
    from planner.measure.traces.reading import read_traces

    line = current()
    what = files_text(paths)
    traces = read_traces(paths, progress=lambda fraction: line.show(f"reading {what}: {fraction:.0%}"))
    line.clear()
    return traces


def files_text(paths: Sequence[Path]) -> str:
    """Return the name of the only file, or the number of files."""
    return paths[0].name if len(paths) == 1 else f"{len(paths)} traces"
