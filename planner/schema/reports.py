"""JSON Schemas of the JSON reports and studies, made from the records of :mod:`planner.report.records`."""

from __future__ import annotations

from pathlib import Path

from planner import report
from planner.report.records.explained import ComparisonRecord, ExplanationRecord
from planner.report.records.reports import ReportRecord
from planner.report.records.study import StudyRecord
from planner.schema.records import Schema, record_schema, whole

PATH = Path(report.__file__).with_name("report.schema.json")


def report_schema() -> Schema:
    """
    Make the whole schema as plain data: a report is of one of several kinds.

    Its ``kind`` chooses the record for validation, so that validators name the wrong entry.
    """
    tree = record_schema(ReportRecord | ExplanationRecord | ComparisonRecord, "serialization")
    records = [form["$ref"] for form in tree["anyOf"]]
    kinds = [tree["$defs"][record.rpartition("/")[2]]["properties"]["kind"] for record in records]
    one_of_all = {"enum": [kind["const"] for kind in kinds], "description": kinds[0]["description"]}
    chosen = [
        {"if": {"properties": {"kind": kind}, "required": ["kind"]}, "then": {"$ref": record}}
        for kind, record in zip(kinds, records, strict=True)
    ]
    schema = {"type": "object", "properties": {"kind": one_of_all}, "required": ["kind"], "allOf": chosen}
    return whole("Report of planner", {**schema, "$defs": tree["$defs"]})


def study_schema() -> Schema:
    """Make the schema of ``planner study --format json``."""
    return whole("Study of planner", record_schema(StudyRecord, "serialization"))
