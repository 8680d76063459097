"""The JSON Schema of the JSON reports, made from the records of :mod:`planner.report.records`."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from planner.report.document import AnyRecord
from planner.report.records.record import Record
from planner.schema_parts import DIALECT, Schema, describe

PATH = Path(__file__).with_name("report.schema.json")


def report_schema() -> Schema:
    """The whole schema as plain data: a report is of one of four kinds."""
    schema: Schema = TypeAdapter(AnyRecord).json_schema()
    records = _records(Record)
    for name, definition in schema["$defs"].items():
        describe(definition, records[name])
    return {"$schema": DIALECT, "title": "Report of planner"} | schema


def _records(base: type[Record]) -> dict[str, type[Record]]:
    """Every kind of record by its name."""
    own = {one.__name__: one for one in base.__subclasses__()}
    return own | {name: one for each in own.values() for name, one in _records(each).items()}
