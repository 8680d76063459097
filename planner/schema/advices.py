"""JSON Schemas of an advice, and of a row of its CSV."""

from __future__ import annotations

from collections.abc import Iterator

from planner.advice.records import AdviceRecord, PointRecord, ends_of
from planner.schema.records import Schema, object_schema, record_schema, whole
from planner.schema.reports import CELL, NUMBER, cell


def advice_schema() -> Schema:
    """Make the schema of ``planner advise --format json``."""
    return whole("Advice", record_schema(AdviceRecord, "serialization"))


def advice_row_schema() -> Schema:
    """Make the schema of a row of ``planner advise --format csv``: a planned cell."""
    whole_advice = record_schema(AdviceRecord, "serialization")["properties"]
    beside = {name: {**CELL, "description": whole_advice[name]["description"]} for name in ("job", "model", "currency")}
    entries = record_schema(PointRecord, "serialization")["properties"]
    return whole("Row of an advice", object_schema({**beside, **dict(_columns(entries))}))


def _columns(entries: dict[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yield the columns of a point's entries; an interval has two."""
    for name, entry in entries.items():
        if ends := ends_of(name):
            yield from ((end, {**NUMBER, "description": entry["description"]}) for end in ends)
        else:
            known = entry if "type" in entry else next((one for one in entry.get("anyOf", ()) if "type" in one), {})
            yield name, cell({**known, "description": entry["description"]})
