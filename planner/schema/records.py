"""JSON Schema of any record: types and limits from pydantic, descriptions from the records' docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from costmodel import catalog
from planner.jobs.commented import descriptions

Schema: TypeAlias = dict[str, Any]

LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


GENERIC = re.compile(r'(?<=["/])([A-Z][A-Za-z]*)_\w+_(?=")')
"""Pydantic's name of a record with a parameter, such as ``Point_Plan_``; its own name is enough."""


def whole(title: str, schema: Schema) -> Schema:
    """Add dialect and title to a schema, and use the words of JSON Schema alone."""
    parts = {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}
    return {name: _rename_limits(part) for name, part in parts.items()}


def object_schema(properties: Mapping[str, Schema], *, optional: Sequence[str] = ()) -> Schema:
    """Make an object with these entries and no others; only optional ones may be missing."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def record_schema(record_type: Any, mode: JsonSchemaMode = "validation") -> Schema:
    """
    Make pydantic's schema of a record, or of a type made of records, with the docstrings of all records inside.

    Parameters
    ----------
    record_type
        A dataclass with a docstring that explains its fields, or a type made of such ones.
    mode
        ``validation`` for input, ``serialization`` for output, in which no entry is missing.
    """
    schema: Schema = json.loads(GENERIC.sub(r"\1", json.dumps(TypeAdapter(record_type).json_schema(mode=mode))))
    known = {one.__name__: one for one in _record_types(record_type, set())}
    found = schema.get("$defs", {}) | ({record_type.__name__: schema} if "properties" in schema else {})
    for name in found.keys() & known.keys():
        _describe(found[name], known[name], is_input=mode == "validation")
        if mode == "serialization":
            found[name].update(required=list(found[name]["properties"]), additionalProperties=False)
    return schema


def _record_types(part: Any, seen: set[Any]) -> Iterator[type]:
    """Yield the dataclasses inside a type, at every depth, each once."""
    kind = get_origin(part) or part
    if isinstance(kind, type) and is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        yield kind
        for inner in get_type_hints(kind).values():
            yield from _record_types(inner, seen)
    for inner in get_args(part):
        yield from _record_types(inner, seen)


def _describe(schema: Schema, record_type: Any, *, is_input: bool) -> None:
    schema["description"] = (inspect.getdoc(record_type) or "").partition("\n")[0]
    texts: dict[str, str] = {}
    for base in reversed(record_type.__mro__):
        texts |= descriptions(base) if hasattr(base, "__dataclass_fields__") else {}
    texts |= {one.name: one.metadata["description"] for one in fields(record_type) if "description" in one.metadata}
    for name, entry in schema["properties"].items():
        entry.pop("title", None)
        if not is_input:
            entry.pop("default", None)
        entry["description"] = texts[name]
    ordered = sorted(schema.items())  # as pydantic sorts what it writes itself: since 2.13 descriptions, too
    schema.clear()
    schema.update(ordered)


def _rename_limits(part: Any) -> Any:
    """Rename limits that pydantic leaves in its own words; list architectures by their names."""
    if isinstance(part, list):
        return [_rename_limits(item) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("format") == "architecture":
        return {"enum": list(catalog.architectures()), "type": "string"}
    return {
        LIMITS.get(name, name) if isinstance(inner, (int, float)) else name: _rename_limits(inner)
        for name, inner in part.items()
    }
