"""Tables of the accuracy page, which ``python -m benchmarks.accuracy.page`` generates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "README.md"

TITLES = ("mean error", "headline", "groups", "models", "sources", "each release by older ones", "newest software")
"""Short ones of the first table, whose own name what was left out at length."""


def headline() -> Iterator[str]:
    """Errors of dense models, and of those with experts, by what was left out of the fits."""
    rows = _table("| mean error")[2:]
    yield f"| {' | '.join(TITLES)} |"
    yield f"|---{'|---:' * (len(TITLES) - 1)}|"
    yield from rows


def newer() -> Iterator[str]:
    """Runs collected after the fit, MLPerf first, by source and model."""
    yield from _table("| source | model | devices |")


def goals() -> Iterator[str]:
    """Every goal with today's figure."""
    yield from _table("| what | rows | today")


def _table(start: str) -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(start))
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return lines[first:last]
