"""Generated files of a package as records."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import TypeVar

import yaml

from costmodel import catalog
from costmodel.validation import build

Kind = TypeVar("Kind")


def read_stored_rows(file: str, package: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of a package, cells by column."""
    text = (files(package) / file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def read_stored(kind: type[Kind], file: str, package: str) -> Kind:
    """Return the record that a file of a package holds."""
    text = (files(package) / file).read_text(encoding="utf-8")
    return build(kind, yaml.load(text, Loader=catalog.LOADER), file)
