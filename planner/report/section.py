"""One part of a report for people, and the formats of its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from costmodel import GIB_BYTES
from costmodel.record import record

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86_400

NOTHING = "-"
"""The text for zero, and for a figure that does not apply."""

RESIDUE = 1e-9
"""Values below this are rounding errors, such as a bubble of -1e-16 s."""


PART_LABELS = {"host": "launch overhead"}
"""Parts of a step whose name in JSON and CSV is not the word that people read."""


def part_label(name: str) -> str:
    """
    Return the name of a part of a step for people.

    >>> part_label("host"), part_label("compute")
    ('launch overhead', 'compute')
    """
    return PART_LABELS.get(name, name)


def seconds(value: float) -> str:
    """
    Write seconds to the millisecond.

    >>> seconds(33.2728), seconds(0.0)
    ('33.273', '-')
    """
    return f"{value:,.3f}" if abs(value) > RESIDUE else NOTHING


def share(part: float, whole: float) -> str:
    """
    Write a part in per cent of the whole.

    >>> share(0.5, 2.0), share(0.0, 2.0)
    ('25.0%', '-')
    """
    return f"{part / whole:.1%}" if abs(part) > RESIDUE else NOTHING


def gib(nbytes: float) -> str:
    """
    Write bytes as GiB, to a tenth.

    >>> gib(80e9), gib(-3.2 * 2**30), gib(0.0)
    ('74.5', '-3.2', '-')
    """
    return f"{nbytes / GIB_BYTES:,.1f}" if nbytes else NOTHING


def least_gib(nbytes: float) -> str:
    """
    Write bytes that are needed as GiB, rounded up to a tenth.

    >>> least_gib(80.01 * 2**30)
    '80.1'
    """
    return gib(ceil(10 * nbytes / GIB_BYTES) / 10 * GIB_BYTES)


def count(number: int, noun: str, plural: str = "") -> str:
    """
    Write a number with its noun.

    >>> count(1, "node"), count(2048, "node"), count(2, "batch", "batches")
    ('1 node', '2,048 nodes', '2 batches')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def mean_count(value: float) -> str:
    """
    Write a mean number of events.

    >>> mean_count(0.0483), mean_count(1335.24)
    ('0.048', '1,335.2')
    """
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def amount(value: float) -> str:
    """
    Write a large number in three or four digits.

    >>> amount(405853388800), amount(15e12), amount(950)
    ('405.9 billion', '15 trillion', '950')
    """
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.4g} {word}" if value < 1e4 * size else f"{value / size:,.0f} {word}"
    return f"{value:,.0f}"


def money(value: float, currency: str) -> str:
    """
    Write an amount of money.

    >>> money(46944187.05, "USD"), money(312.4, "EUR"), money(0.126, "USD")
    ('46.94 million USD', '312 EUR', '0.13 USD')
    """
    return f"{amount(value) if value >= 100 else f'{value:,.2f}'} {currency}"


def energy(megawatt_hours: float) -> str:
    """
    Write energy in the unit that suits it, in four digits at most.

    >>> energy(11792.2), energy(433.196), energy(0.0123)
    ('11.79 GWh', '433.2 MWh', '12.3 kWh')
    """
    for size, unit in ((1e6, "TWh"), (1e3, "GWh"), (1.0, "MWh")):
        if megawatt_hours >= size:
            return f"{megawatt_hours / size:.4g} {unit}"
    return f"{megawatt_hours * 1e3:.3g} kWh"


def megawatt_hours(energy: float) -> str:
    """
    Write energy under a heading with its unit; below one MWh in two digits.

    >>> megawatt_hours(12325.46), megawatt_hours(0.0213)
    ('12,325.5', '0.021')
    """
    return f"{energy:,.1f}" if energy >= 1 else f"{energy:#.2g}"


def power(megawatts: float) -> str:
    """
    Write power in the unit that suits it, in three digits.

    >>> power(1.2861), power(0.0056)
    ('1.29 MW', '5.6 kW')
    """
    return f"{megawatts:.3g} MW" if megawatts >= 1 else f"{megawatts * 1e3:.3g} kW"


def amount_of_bytes(nbytes: float) -> str:
    """
    Write bytes in the unit of disks that suits them, in three digits.

    >>> amount_of_bytes(5.6819e12), amount_of_bytes(250e9), amount_of_bytes(999)
    ('5.68 TB', '250 GB', '999 bytes')
    """
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:,.0f} bytes"


def span(value: float) -> str:
    """
    Write a span of time in the unit that suits it.

    >>> span(42.5), span(1930), span(35000), span(864000)
    ('42.5 s', '32.2 min', '9.7 h', '10.00 days')
    """
    if value < 2 * MINUTE_SECONDS:
        return f"{value:.1f} s"
    if value < 2 * HOUR_SECONDS:
        return f"{value / MINUTE_SECONDS:.1f} min"
    if value < 2 * DAY_SECONDS:
        return f"{value / HOUR_SECONDS:.1f} h"
    return f"{value / DAY_SECONDS:,.2f} days"


def is_numeric(cells: Iterable[str]) -> bool:
    """
    True if a column holds only numbers, so that it is set flush right.

    >>> is_numeric(["33.273", "1,024", "4.2%", "-"]), is_numeric(["-", "tp cp"])
    (True, False)
    """
    bare = [cell.replace(",", "").removesuffix("%") for cell in cells if cell != NOTHING]
    return all(_is_float(cell) for cell in bare)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def tflops(number: float) -> str:
    """
    Write a rate in TFLOP/s; the few of a processor with digits.

    >>> tflops(1979.0), tflops(0.0848)
    ('1,979', '0.085')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@record(frozen=True, kw_only=True, slots=True)
class Section:
    """
    One part of a report.

    Parameters
    ----------
    title
        Its heading.
    header
        Names of the columns; empty where the rows are facts, a name and a text each.
    rows
        Cells.
    notes
        Full sentences below.
    is_verbatim
        True if facts are commands to be copied, so that no line of them is folded.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    is_verbatim: bool = False


def group_rows(name: str, texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return texts as rows of facts, the first one with the name of all."""
    return tuple(("" if number else name, text) for number, text in enumerate(texts))


def number_rows(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return texts as rows of facts, numbered from 1."""
    return tuple((str(number), text) for number, text in enumerate(texts, start=1))


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
