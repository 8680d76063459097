"""What the JSON Schemas of jobs and of reports share: descriptions from docstrings, and the text of a file."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ROLE = re.compile(r":\w+:`([^`]+)`")
"""A cross-reference of the docstrings, such as :class:`costmodel.facts.spec.Layer`; a schema shows its last name."""


def schema_text(schema: Schema) -> str:
    """A schema as its checked-in file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def describe(schema: Schema, record_type: type) -> None:
    """Give the schema of a record and its entries the words of the docstrings of the record and of its bases."""
    schema["description"] = (inspect.getdoc(record_type) or "").partition("\n")[0]
    texts: dict[str, str] = {}
    for one in reversed(record_type.__mro__):
        texts |= descriptions(one)
    for name, entry in schema["properties"].items():
        entry.pop("title", None)
        entry["description"] = texts.get(name, schema["description"])


def descriptions(record_type: type) -> dict[str, str]:
    """
    What the docstring of a record says of each field.

    >>> from costmodel.facts.spec import RecoveryLevel
    >>> descriptions(RecoveryLevel)["probability"]
    'Share of the failures that this level recovers.'
    """
    lines = inspect.cleandoc(record_type.__doc__ or "").partition("Parameters\n----------\n")[2].splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            names = line.split(", ")
        elif line:
            text = ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", line.strip()).replace("``", "`")
            found.update({name: f"{found.get(name, '')} {text}".strip() for name in names})
        elif names:
            break
    return found
