"""A report as text for a console of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from planner.report.document import AnyReport
from planner.report.section import Section
from planner.report.sections import all_sections
from planner.report.wording import is_numeric

WIDTH = 100
GAP = "  "


def console_text(report: AnyReport) -> str:
    """All sections, an empty line between them."""
    return sections_text(all_sections(report))


def sections_text(sections: Iterable[Section]) -> str:
    """Sections as text, an empty line between them."""
    return "\n\n".join("\n".join(_lines(section)) for section in sections) + "\n"


def _lines(section: Section) -> Iterator[str]:
    yield section.title
    yield "-" * len(section.title)
    if section.header:
        yield from table_lines(section.header, section.rows)
    else:
        yield from _fact_lines(section.rows)
    for note in section.notes:
        yield from _wrapped(note, WIDTH)


def _fact_lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    indent = max(len(name) for name, _ in rows) + len(GAP)
    for name, text in rows:
        wrapped = _wrapped(text, WIDTH - indent)
        yield f"{name:<{indent}}{wrapped[0]}".rstrip()
        yield from (" " * indent + line for line in wrapped[1:])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def table_lines(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as their widest cell, numbers flush right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [is_numeric(column[1:]) for column in columns]
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        )
        yield GAP.join(cells).rstrip()
