"""The JSON Schema of the JSON reports, made from the types of :mod:`planner.report.records`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from planner.report import records

PATH = Path(__file__).with_name("report.schema.json")

Schema: TypeAlias = dict[str, Any]

Report: TypeAlias = (
    records.PlanReportRecord | records.EstimateReportRecord | records.ExplanationRecord | records.ComparisonRecord
)


def report_schema() -> Schema:
    """The whole schema as plain data: a report is of one of four kinds."""
    from planner.schema import descriptions

    schema: Schema = TypeAdapter(Report).json_schema()
    for name, definition in schema["$defs"].items():
        record = getattr(records, name)
        definition["description"] = (inspect.getdoc(record) or "").partition("\n")[0]
        texts = {field: text for one in reversed(_lineage(record)) for field, text in descriptions(one).items()}
        for field, entry in definition["properties"].items():
            entry.pop("title", None)
            entry["description"] = texts[field]
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Report of planner"}
    return title | schema


def _lineage(record: Any) -> list[Any]:
    """A typed dictionary and those that it extends, which Python itself forgets."""
    bases = [base for base in getattr(record, "__orig_bases__", ()) if base is not TypedDict]
    return [record, *(one for base in bases for one in _lineage(base))]
