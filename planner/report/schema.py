"""The JSON Schema of the JSON reports, made from the records of :mod:`planner.report.records`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from planner.report.document import AnyRecord

PATH = Path(__file__).with_name("report.schema.json")


def report_schema() -> dict[str, Any]:
    """The whole schema as plain data: a report is of one of four kinds."""
    schema = TypeAdapter[AnyRecord](AnyRecord).json_schema(by_alias=False)
    records = schema["$defs"]
    for record in records.values():
        for entry in record["properties"].values():
            entry.pop("title", None)
            if "description" not in entry:  # pydantic leaves out what the record of the entry says in the same words
                entry["description"] = records[entry["$ref"].rpartition("/")[2]]["description"]
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": "Report of planner", **schema}
