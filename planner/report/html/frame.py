"""The frame of any page: header, chapters, data, style and scripts in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from planner.report.section import Section, is_numeric

LIBRARY = ("draw.js", "bars.js", "plots.js", "zoomed.js", "copy.js")

"""Scripts of every page, in the order in which they need each other."""

START = "page.js"

"""The script that draws the page; it comes last."""


class Chapter(NamedTuple):
    """A chapter of a page: the anchor of its links, its name in the navigation, its title and its blocks of HTML."""

    anchor: str
    short: str
    title: str
    blocks: Iterable[str]


class Tile(NamedTuple):
    """A large figure at the top: its name, its text, and the small text below it."""

    name: str
    text: str
    below: str = ""


def page_text(*, title: str, subject: str, body: Iterable[str], data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    """
    Build a whole page.

    Parameters
    ----------
    title, subject
        Title and subject, for the browser's window; escaped here.
    body
        Blocks of HTML.
    data
        Data that its scripts draw: plain values without NaN and infinity.
    scripts
        Texts of the page's own scripts: one defines ``Timeline``.
    """
    style = asset("page.css")
    every = "\n".join([*map(asset, LIBRARY), *scripts, asset(START)])
    script = f'"use strict";(() => {{\n{every}\n}})();'
    return Template(asset("page.html")).substitute(
        title=escape(title),
        job=escape(subject),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        body="\n".join(body),
        data=_data(data),
    )


def body_html(header: str, chapters: Iterable[Chapter], switch: str = "") -> Iterator[str]:
    """
    Build header, navigation and chapters; chapters without content are left out.

    Parameters
    ----------
    header
        The top of the page.
    chapters
        Chapters in reading order.
    switch
        A control at the end of the navigation.
    """
    made = [(*names, "".join(blocks)) for *names, blocks in chapters]
    made = [chapter for chapter in made if chapter[-1]]
    links = "".join(f'<a href="#{anchor}">{escape(short)}</a>' for anchor, short, *_ in made)
    yield '<a class=skip href="#content">Skip to the content</a>'
    yield header
    yield f"<nav aria-label=Chapters><div class=links>{links}</div>{switch}</nav>"
    yield "<main id=content tabindex=-1>"
    yield "<noscript><p class=note>The plots need JavaScript; the tables have all of their numbers.</p></noscript>"
    for anchor, _, title, blocks in made:
        yield f'<section id="{anchor}"><h2>{escape(title)}</h2>{blocks}</section>'
    yield "</main>"


def header_html(
    *,
    subject: str,
    title: str,
    answer: str,
    verdict: str,
    tiles: Iterable[Tile] = (),
    facts: Mapping[str, str],
) -> str:
    """
    Build the top of a page: subject, title, answer, large figures, facts.

    Parameters
    ----------
    subject, title, answer
        Texts.
    verdict
        Class of the answer in the page's style: ``good``, ``bad`` or ``plain``.
    tiles
        Large figures.
    facts
        Texts by name.
    """
    large = "".join(map(_tile, tiles))
    rest = "".join(
        f"<div{' class=wide' if len(text) > LONG_FACT else ''}><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text in facts.items()
    )
    return (
        f"<header><p class=job>{escape(subject)}</p><h1>{escape(title)}</h1>"
        f'<p class="answer {verdict}">{escape(answer)}</p>'
        f"{f'<div class=tiles>{large}</div>' if large else ''}<dl class=setting>{rest}</dl></header>"
    )


LONG_FACT = 200

"""Letters from which on a fact takes the whole width."""


def _tile(tile: Tile) -> str:
    below = f"<small>{escape(tile.below)}</small>" if tile.below else ""
    return f"<div class=tile><span>{escape(tile.name)}</span><b>{escape(tile.text)}</b>{below}</div>"


def switch_html(label: str, choices: Sequence[object]) -> str:
    """Build the control that chooses the block to show; empty where there is only one."""
    if len(choices) < 2:
        return ""
    options = "".join(f"<option value={number}>{escape(str(one))}</option>" for number, one in enumerate(choices, 1))
    return f"<label class=switch>{escape(label)} <select id=plan>{options}</select></label>"


def choice_html(number: int, blocks: str) -> str:
    """Wrap blocks that are shown while a choice is on; choices are numbered from 1."""
    return f'<div data-plan="{number}">{blocks}</div>'


def details_html(title: str, blocks: str, *, kind: str = "") -> str:
    """Wrap blocks that are closed until the reader opens them; print opens them, and omits the kind ``other``."""
    return f"<details{f' class={kind}' if kind else ''}><summary>{escape(title)}</summary>{blocks}</details>"


def code_html(name: str, text: str) -> str:
    """Build a text to copy, such as a file or a command, with its name and a place for the button."""
    label = escape(name)
    return (
        f'<div class=code><p class=code-name>{label}</p><pre tabindex=0 role=group aria-label="{label}"><code>'
        f"{escape(text.rstrip())}</code></pre></div>"
    )


def side_by_side(plot: str, table: str) -> str:
    """Place a plot next to the table of its numbers."""
    return f"<div class=beside><div>{plot}</div><div>{table}</div></div>"


def pair(*blocks: str) -> str:
    """Place blocks of equal width side by side."""
    return f"<div class=pair>{''.join(f'<div>{block}</div>' for block in blocks)}</div>"


def plot(name: str, caption: str) -> str:
    """Build the place of a plot, from its name in the data and its caption."""
    return f'<figure class=plot data-chart="{escape(name)}"><figcaption>{escape(caption)}.</figcaption></figure>'


def timeline(number: int, caption: str, without: str) -> str:
    """Build the place of a timeline, from its number in the data, its caption, and the text where it is missing."""
    return (
        f'<figure class=timeline data-timeline="{number}"><figcaption>{escape(caption)}</figcaption>'
        f"<p class=note>{escape(without)}</p></figure>"
    )


def asset(name: str, package: str = "planner.report.html") -> str:
    """Read a file next to a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _data(data: Mapping[str, Any]) -> str:
    """Write the data of a page as JSON that no parser of HTML can take for markup."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _hash(text: str) -> str:
    """Return the hash by which the page's Content-Security-Policy allows this text and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


MOST_OPEN = 20

"""Rows up to which a table is open; longer ones are folded, and show their number of rows."""


def section_html(
    section: Section, *, compare: bool = False, across: bool = False, folded: bool = False, level: int = 3
) -> str:
    """
    Build a section: heading, table, notes.

    Parameters
    ----------
    section
        Its content.
    compare
        True to mark cells that differ from those of the first strategy.
    across
        True if a strategy is a column, as :func:`transpose` makes it, not a row.
    folded
        True if it is closed until the reader opens it.
    level
        Level of its heading.
    """
    table = table_html(section, compare=compare, across=across)
    if len(section.rows) > MOST_OPEN and not folded and not across and section.header:
        table = f"<details class=long><summary>{len(section.rows):,} rows</summary>{table}</details>"
    body = f"{table}{''.join(_notes(section.notes))}"
    if folded:
        return f"<details><summary>{escape(section.title)}</summary>{body}</details>"
    return f"<div class=block><h{level}>{escape(section.title)}</h{level}>{body}</div>"


def transpose(section: Section, name: str) -> Section:
    """
    Return a section with a column for each of its rows.

    Parameters
    ----------
    section
        Its first column names its rows.
    name
        Heading of the first column of the result.
    """
    columns = list(zip(section.header, *section.rows, strict=True))
    return replace(section, header=(name, *columns[0][1:]), rows=tuple(columns[1:]))


def table_html(section: Section, *, compare: bool, across: bool) -> str:
    """Build the table of a section's rows, in a box that scrolls where it is too wide."""
    if not section.rows:
        return ""
    numeric = [False, *[True] * (len(section.rows[0]) - 1)] if across else _numeric(section)
    head = _head(section.header, numeric) if section.header else ""
    rows = "".join(_rows(section, numeric, compare=compare, across=across))
    kind = "table" if section.header else "facts"
    return (
        f'<div class=scroll tabindex=0 role=group aria-label="{escape(section.title)}"><table class={kind}>'
        f"<caption>{escape(section.title)}</caption>{head}<tbody>{rows}</tbody></table></div>"
    )


def _numeric(section: Section) -> list[bool]:
    """Tell by column whether it holds only numbers; the first one names the rows."""
    return [False, *map(is_numeric, list(zip(*section.rows, strict=True))[1:])]


def _head(header: Iterable[str], numeric: Iterable[bool]) -> str:
    cells = "".join(
        f"<th scope=col{_class(is_number, False)}>{escape(name)}</th>" if name else "<td></td>"
        for name, is_number in zip(header, numeric, strict=True)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _rows(section: Section, numeric: Sequence[bool], *, compare: bool, across: bool) -> Iterator[str]:
    first = section.rows[0]
    for row in section.rows:
        name, *cells = row
        others = cells[:1] * len(cells) if across else first[1:]
        own = "".join(
            f"<td{_class(is_number, compare and cell != other, len(cell) > LONGEST_LINE)}>{_cell(cell)}</td>"
            for cell, other, is_number in zip(cells, others, numeric[1:], strict=True)
        )
        is_long = len(name) > LONGEST_LINE
        head = f"<th scope=row{_class(False, False, is_long)}>{_cell(name)}</th>" if name else EMPTY
        yield f"<tr>{head}{own}</tr>"


EMPTY = "<td></td>"
"""First cell of a row that goes on with the one above."""

LONGEST_LINE = 40
"""Characters up to which a cell stays on one line; longer ones, such as plans, wrap."""


def _class(is_number: bool, differs: bool, is_long: bool = False) -> str:
    names = " ".join(["num"] * is_number + ["differs"] * differs + ["long"] * is_long)
    return f' class="{names}"' if names else ""


def _cell(text: str) -> str:
    """Escape a cell; long joined words may break after their plus signs."""
    return escape(text).replace("+", "+<wbr>") if len(text) > 20 else escape(text)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"<p class=note>{escape(note)}</p>" for note in notes)
