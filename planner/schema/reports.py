"""The JSON Schema of the JSON reports, made from the records of :mod:`planner.report.records`."""

from __future__ import annotations

from pathlib import Path

from planner import report
from planner.report.document import AnyRecord
from planner.schema.records import Schema, tree_schema, whole

PATH = Path(report.__file__).with_name("report.schema.json")


def report_schema() -> Schema:
    """The whole schema as plain data: a report is of one of several kinds."""
    return whole("Report of planner", tree_schema(AnyRecord))
