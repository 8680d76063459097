"""A report as Markdown: headings, lists of facts, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.report.section import Section, is_numeric


def sections_markdown(sections: Iterable[Section], title: str) -> str:
    """Format sections as Markdown; the first one's heading is of the title's level."""
    levels = [title, *["##"] * 100]
    blocks = ("\n".join(section_lines(section, level)) for section, level in zip(sections, levels, strict=False))
    return "\n\n".join(blocks) + "\n"


def section_lines(section: Section, level: str) -> Iterator[str]:
    """Yield the lines of a section below a heading of a level."""
    yield f"{level} {section.title}"
    yield ""
    yield from _table_lines(section) if section.header else (f"- {name}: {text}" for name, text in section.rows)
    for note in section.notes:
        yield ""
        yield note


def _table_lines(section: Section) -> Iterator[str]:
    columns = list(zip(*section.rows, strict=True))
    rules = ("--:" if is_numeric(column) else ":--" for column in columns)
    yield _row(section.header)
    yield _row(tuple(rules))
    yield from (_row(row) for row in section.rows)


def _row(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
