"""A report as text for a console: plain at 100 columns, or as wide as a terminal and in its colours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, TypeAlias
from unicodedata import combining, east_asian_width

from planner.report.section import PLAIN, Screen, Section
from planner.report.wording import is_numeric

if TYPE_CHECKING:
    from planner.report.records.reports import AnyReport

Line: TypeAlias = list[tuple[str, str]]
"""Parts of a line: a text and a name of ``STYLES``, or an empty one."""

STYLES = {"bold": 1, "dim": 2, "cyan": 36, "green": 32}
"""ANSI's numbers of what a part of a line may look like."""

WORD = re.compile(r"\s*\S+\s*")

UNSEEN = dict.fromkeys(map(ord, "\a\b\v\f\r"))
"""Control characters that would move the cursor; they are left out."""

NARROWEST = 32
"""Columns that text is laid out for at least."""

LINE = "line"
"""The end of the names of facts that are strategies in one line."""

GAP = 2
"""Columns between two cells."""

LEAST_WRAPPED = 20
"""Width below which no column of words is folded."""


def console_text(report: AnyReport, screen: Screen = PLAIN) -> str:
    """Format all sections of a report as text, an empty line between them."""
    from planner.report.sections import all_sections

    return sections_text(all_sections(report), screen)


def sections_text(sections: Iterable[Section], screen: Screen = PLAIN) -> str:
    """Format sections as text, an empty line between them."""
    width = max(screen.width, NARROWEST)
    return "\n".join(_text(_section(section, width), screen) for section in sections)


def table_text(
    header: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen = PLAIN, *, notes: Sequence[str] = ()
) -> str:
    """Format a table alone, with notes below it."""
    width = max(screen.width, NARROWEST)
    return _text([*_tables(header, rows, width), *_sentences(notes, width)], screen)


def _text(lines: Iterable[Line], screen: Screen) -> str:
    """Join lines, in colour where the screen has it."""
    return "".join(f"{''.join(_paint(*part, screen) for part in line).rstrip()}\n" for line in lines)


def _paint(text: str, style: str, screen: Screen) -> str:
    bare = text.rstrip()
    if not (style and bare and screen.has_color):
        return text
    return f"\x1b[{STYLES[style]}m{bare}\x1b[0m{text[len(bare) :]}"


def _section(section: Section, width: int) -> Iterator[Line]:
    yield from _sentences([section.title], width, "bold")
    yield [("-" * min(len(section.title), width), "dim")]
    if section.header:
        yield from _tables(section.header, section.rows, width)
    elif section.rows:
        yield from _commands(section.rows) if section.is_verbatim else _facts_and_lines(section.rows, width)
    yield from _sentences(section.notes, width)


def _sentences(texts: Iterable[str], width: int, style: str = "") -> Iterator[Line]:
    return ([(line, style)] for text in texts for line in fold(text, width))


def _commands(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    """Lay out commands, each on one line whatever the width of the screen, so that a terminal copies it whole."""
    indent = max(len(name) for name, _ in rows) + GAP
    return ([(f"{name:<{indent}}", "cyan"), (command, "green")] for name, command in rows)


def _facts_and_lines(rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    """Lay out facts; a strategy in one line is not wrapped, since a shell ends a command where a line ends."""
    indent = max(len(row[0]) for row in rows) + GAP
    for is_line, some in groupby(rows, key=lambda row: row[0].endswith(LINE)):
        if is_line:
            yield from ([(f"{name:<{indent}}", "cyan"), (line, "")] for name, line in some)
            continue
        for name, *texts in some:
            cells = [[name], *(fold(text, max(width - indent, 1)) for text in texts)]
            yield from _side_by_side(cells, [indent - GAP, max(width - indent, 1)], ["cyan", ""])


# --- words -------------------------------------------------------------------------------------------------


def fold(text: str, width: int) -> list[str]:
    """
    Break a text into lines between words, and inside of words that are longer than a line.

    >>> fold("one two three", 8), fold("a mixture_of_experts", 8)
    (['one two ', 'three'], ['a ', 'mixture_', 'of_exper', 'ts'])
    """
    folded = []
    for part in text.translate(UNSEEN).expandtabs(8).split("\n"):
        lines = [""]
        for word in WORD.findall(part):
            needed = num_columns(word.rstrip())
            if num_columns(lines[-1]) + needed <= width:
                lines[-1] += word
            else:
                lines += _chop(word, width) if needed > width else [word]
        folded += lines[1:] if len(lines) > 1 and not lines[0] else lines
    return folded


def _chop(word: str, width: int) -> list[str]:
    pieces = [""]
    for letter in word:
        if num_columns(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def num_columns(text: str) -> int:
    """
    Return the number of columns that a text takes on a console, where some letters take two, and accents none.

    >>> num_columns("tp"), num_columns("漢字")
    (2, 4)
    """
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)


def _fill(text: str, width: int, *, is_right: bool = False) -> str:
    """Fill a cell with spaces up to a width."""
    bare = text.rstrip() if is_right or num_columns(text) > width else text
    space = " " * (width - num_columns(bare))
    return space + bare if is_right else bare + space


def _side_by_side(
    cells: Sequence[Sequence[str]], widths: Sequence[int], styles: Sequence[str], flush: Sequence[bool] = ()
) -> Iterator[Line]:
    """Lay out the lines of the cells of a row beside each other."""
    is_right = flush or [False] * len(widths)
    for texts in zip_longest(*cells, fillvalue=""):
        parts = zip(texts, widths, styles, is_right, strict=True)
        line = [(_fill(text, width, is_right=right), style) for text, width, style, right in parts]
        yield [piece for part in line for piece in (part, (" " * GAP, ""))][:-1]


# --- tables ------------------------------------------------------------------------------------------------


def _tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    """Lay out a table; one wider than the screen becomes several, each with its first column."""
    columns = list(zip(header, *rows, strict=True))
    for number, part in enumerate(_parts(columns, width)):
        if number:
            yield []
        yield from _table([columns[index] for index in part], width)


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


def _table(columns: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    """Lay out columns as wide as their widest cell, numbers flush right; words are folded where there is no room."""
    widths = _widths(columns, width)
    flush = [is_numeric(column[1:]) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [fold(cell, own) for cell, own in zip(row, widths, strict=True)]
        if not number:  # names stand right above their columns
            cells = [[""] * (max(map(len, cells)) - len(cell)) + cell for cell in cells]
        yield from _side_by_side(cells, widths, ["" if number else "bold"] * len(widths), flush)


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
    return max(map(num_columns, column))


def _least(column: Sequence[str]) -> int:
    """Return the least width of a column, at which no number is folded and no word is cut."""
    longest = max(num_columns(word) for cell in column for word in cell.split() or [""])
    return min(_natural(column), max(LEAST_WRAPPED, longest))
