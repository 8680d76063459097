"""Outputs held against the schemas that ``planner catalog schemas`` prints."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from planner.schema import schema_text


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """What checks documents of a name."""
    return jsonschema.Draft202012Validator(json.loads(schema_text(name)))


def valid(name: str, document: Any) -> Any:
    """The document, which satisfies the schema of that name."""
    validator(name).validate(document)
    return document


def row(cells: dict[str, str]) -> dict[str, Any]:
    """A row of CSV as its schema means it: empty cells are null, numbers are numbers."""
    return {column: _cell(text) for column, text in cells.items()}


def _cell(text: str) -> Any:
    known = {"": None, "true": True, "false": False}
    if text in known:
        return known[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
