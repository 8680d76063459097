"""A report as text for a console: plain at 100 columns, or as wide as a terminal and in its colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from planner.report.section import PLAIN, Screen, Section, is_numeric

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

NARROWEST = 32
"""Columns that text is laid out for at least."""

LINE = "line"
"""The end of the names of facts that are strategies in one line."""

GAP = 2
"""Columns between two cells."""

LEAST_WRAPPED = 20
"""Width below which no column of words is folded."""


def sections_text(sections: Iterable[Section], screen: Screen = PLAIN) -> str:
    """Format sections as text, an empty line between them."""
    width = max(screen.width, NARROWEST)
    return "\n".join(_text(_section(section, width), width, screen) for section in sections)


def table_text(
    header: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen = PLAIN, *, notes: Sequence[str] = ()
) -> str:
    """Format a table alone, with notes below it."""
    from rich.text import Text

    width = max(screen.width, NARROWEST)
    return _text([*_tables(header, rows, width), *map(Text, notes)], width, screen)


def _text(parts: Iterable[RenderableType], width: int, screen: Screen) -> str:
    from rich.console import Console

    console = Console(
        file=StringIO(),
        width=width,
        color_system="standard" if screen.has_color else None,
        force_terminal=screen.has_color,
        legacy_windows=False,
        highlight=False,
        _environ={},
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=getattr(part, "no_wrap", None) is True)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _section(section: Section, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(section.title, style="bold")
    yield Text("-" * min(len(section.title), width), style="dim")
    if section.header:
        yield from _tables(section.header, section.rows, width)
    elif section.rows:
        yield from _commands(section.rows) if section.is_verbatim else _facts_and_lines(section.rows)
    for note in section.notes:
        yield Text(note)


def _commands(rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
    """Lay out commands, each on one line whatever the width of the screen, so that a terminal copies it whole."""
    from rich.text import Text

    indent = max(len(name) for name, _ in rows) + GAP
    for name, command in rows:
        yield Text.assemble((f"{name:<{indent}}", "cyan"), (command, "green"), no_wrap=True)


def _facts_and_lines(rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
    """Lay out facts; a strategy in one line is not wrapped, since a shell ends a command where a line ends."""
    from rich.text import Text

    indent = max(len(row[0]) for row in rows) + GAP
    for is_line, some in groupby(rows, key=lambda row: row[0].endswith(LINE)):
        if is_line:
            for name, line in some:
                yield Text.assemble((f"{name:<{indent}}", "cyan"), line, no_wrap=True)
        else:
            yield _facts(list(some), indent - GAP)


def _facts(rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(style="cyan", no_wrap=True, width=width)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


# --- tables ------------------------------------------------------------------------------------------------


def _tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[RenderableType]:
    """Lay out a table; one wider than the screen becomes several, each with its first column."""
    columns = list(zip(header, *rows, strict=True))
    for number, part in enumerate(_parts(columns, width)):
        if number:
            yield ""
        yield _table([columns[index] for index in part], width)


def _parts(columns: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Divide columns into as few tables as possible, of similar widths."""
    least = list(map(_least, columns))
    parts = _divide(least, width)
    if len(parts) == 1:
        return parts
    for narrower in range(width - 1, 0, -1):
        others = _divide(least, narrower)
        if len(others) > len(parts):
            break
        parts = others
    return parts


def _divide(widths: Sequence[int], width: int) -> list[list[int]]:
    """Divide columns in order, the first one in each part; a column that is too wide shares a part with it alone."""
    parts = [[0]]
    for index in range(1, len(widths)):
        whole = [*parts[-1], index]
        if len(whole) > 2 and _total(widths[one] for one in whole) > width:
            parts.append([0, index])
        else:
            parts[-1] = whole
    return parts


def _table(columns: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Lay out columns as wide as their widest cell, numbers flush right; words are folded where there is no room."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, own in zip(columns, _widths(columns, width), strict=True):
        flush: JustifyMethod = "right" if is_numeric(column[1:]) else "left"
        table.add_column(Text(column[0]), justify=flush, width=own, overflow="fold", no_wrap=own >= _natural(column))
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column; the widest ones are narrowed until all fit."""
    widths, least = list(map(_natural, columns)), list(map(_least, columns))
    while _total(widths) > width:
        index = max(range(len(widths)), key=lambda one: (widths[one] > least[one], widths[one]))
        widths[index] -= 1
        if widths[index] < 1:
            break
    return widths


def _total(widths: Iterable[int]) -> int:
    own = list(widths)
    return sum(own) + GAP * (len(own) - 1)


def _natural(column: Sequence[str]) -> int:
    return max(map(len, column))


def _least(column: Sequence[str]) -> int:
    """Return the least width of a column, at which no number is folded and no word is cut."""
    longest = max(len(word) for cell in column for word in cell.split() or [""])
    return min(_natural(column), max(LEAST_WRAPPED, longest))


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
