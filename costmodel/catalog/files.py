"""The files of the catalog as plain data, and entries that extend others."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import SpecError, did_you_mean
from costmodel.models.families import LOADER
from costmodel.validation import shown

FOLDER = Path(__file__).parent

MOST_SPELLINGS = 256
"""Largest number of spellings that are cached with their entry: users may write a name in any number of ways."""


@cache
def names(folder: str) -> tuple[str, ...]:
    """Return the names of a folder's entries."""
    return tuple(sorted(path.stem for path in (FOLDER / folder).glob("*.yaml")))


@cache
def entry(folder: str, name: str) -> Mapping[str, Any]:
    """Read one file of a folder; the result is shared and must not be changed."""
    known: Mapping[str, Any] = read(f"{folder}/{name}.yaml")
    return known


def read(path: str) -> Any:
    """Read one file of the catalog."""
    return yaml.load((FOLDER / path).read_text(encoding="utf-8"), Loader=LOADER)


@cache
def read_table(path: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a CSV file of the catalog, cells by column; they are shared and must not be changed."""
    text = (FOLDER / path).read_text(encoding="utf-8")
    return read_rows(text)


def read_rows(text: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a CSV text, cells by column."""
    columns, *rows = csv.reader(text.splitlines())
    return tuple(dict(zip(columns, row, strict=True)) for row in rows)


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """
    Raise if the catalog does not know a name.

    Raises
    ------
    SpecError
        With similar names.
    """
    if name not in known:
        raise SpecError(what, f"{shown(name)} is not in the catalog.", did_you_mean(name, known))


def chain(folder: str, name: str) -> tuple[str, ...]:
    """Return an entry and the entries that it extends, the base first."""
    parent = entry(folder, name).get("extends")
    return (*(chain(folder, parent) if parent else ()), name)


def merge_mappings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """
    Merge changes into a base; mappings merge, all other values are replaced.

    >>> merge_mappings({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}})
    {'a': {'b': 4, 'c': 2}, 'd': 3}
    """
    result = dict(base)
    for name, value in changes.items():
        known = result.get(name)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            value = merge_mappings(known, value)
        result[name] = value
    return result
