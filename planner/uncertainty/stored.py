"""The generated files of this folder as records."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import TypeVar

import yaml

from costmodel import catalog
from costmodel.validation import build

Kind = TypeVar("Kind")


def stored_rows(file: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of this folder, cells by column."""
    text = (files("planner.uncertainty") / file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def stored(kind: type[Kind], file: str) -> Kind:
    """The record that a file of this folder holds."""
    text = (files("planner.uncertainty") / file).read_text(encoding="utf-8")
    return build(kind, yaml.load(text, Loader=catalog.LOADER), file)
