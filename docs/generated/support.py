"""The page of what is supported, made of the tables of ``planner catalog support``."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.console import section_lines
from planner.report.support import support_sections


def support() -> Iterator[str]:
    """Yield the tables of ``planner catalog support``."""
    for section in support_sections():
        yield from ("", *section_lines(section, "##"))
