"""
Several values of one entry: ``training.global_batch_size=512,1024,2048``, ``cluster.num_devices=64..8192``.

Commas outside brackets and quotes separate values. ``a..b`` doubles from a up to b; ``a..b..step`` adds the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.jobs.document import Plain, parse, split_assignment

MAX_VALUES = 1_000_000
"""Largest number of values of one entry."""

RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})(?:\.\.([0-9]{1,12}))?")
NEARLY_RANGE = re.compile(r"[+-]?[0-9][^/\s]*\.\.[^/\s]*|\w*\.\.[0-9]+")
"""Text that looks like a range but is none: two dots next to a number, and no path."""

CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """
    One entry of a job and the values that it takes in turn.

    Parameters
    ----------
    key
        Dotted path of the entry.
    values
        Values, at least one.
    """

    key: str
    values: tuple[Plain, ...]


def read_axis(assignment: str) -> Axis:
    """
    Read ``key=value,value``.

    Raises
    ------
    SpecError
        If it is no assignment, or a value is missing or a range empty.

    >>> read_axis("cluster.num_devices=64..512,768..1024..128").values
    (64, 128, 256, 512, 768, 896, 1024)
    >>> read_axis("search.allow.pp=[4, 8],[16]").values
    ([4, 8], [16])
    """
    name, equals, text = assignment.partition("=")
    key, _ = split_assignment(f"{name}{equals}")
    values = [value for item in _items(text) for value in _values(item, key)]
    return Axis(key=key, values=tuple(values))


def _items(text: str) -> Iterator[str]:
    """Split a text at commas that are outside brackets and quotes."""
    closing: list[str] = []
    begin = 0
    for index, letter in enumerate(text):
        quoted = bool(closing) and closing[-1] in "\"'"
        if closing and letter == closing[-1]:
            closing.pop()
        elif not quoted and letter in CLOSING:
            closing.append(CLOSING[letter])
        elif not closing and letter == ",":
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def _values(item: str, key: str) -> Iterator[Plain]:
    if not item.strip():
        raise SpecError(key, "lacks a value.", "Write key=value, key=512,1024 or key=64..8192.")
    found = RANGE.fullmatch(item.strip())
    if not found:
        if NEARLY_RANGE.fullmatch(item.strip()):
            raise SpecError(
                key, f"{shown(item.strip())} is no range of whole numbers.", "Write 64..8192 or 64..512..64."
            )
        yield parse(item, key)
        return
    first, last, step = int(found[1]), int(found[2]), int(found[3]) if found[3] else None
    if first < 1 or last < first or step == 0:
        raise SpecError(key, f"the range {shown(item.strip())} holds nothing.", "Write 64..8192 or 64..512..64.")
    if step and (last - first) // step >= MAX_VALUES:
        raise SpecError(key, f"the range {shown(item.strip())} has more than {MAX_VALUES:,} values.")
    while first <= last:
        yield first
        first = first + step if step else 2 * first
