"""JSON Schemas of the output of ``planner trace``."""

from __future__ import annotations

from planner.measure.project.projected import ProjectionRecord
from planner.measure.traces.report.compare import ComparedStep
from planner.measure.traces.report.contents import TraceContents
from planner.measure.traces.report.replay import ReplayReport
from planner.measure.traces.report.what_if import ChangedStep
from planner.schema.records import Schema, record_schema, whole


def read_schema() -> Schema:
    """Make the schema of ``planner trace read``: a list with an entry for each trace."""
    return whole("Contents of traces", record_schema(list[TraceContents], "serialization"))


def replay_schema() -> Schema:
    """Make the schema of ``planner trace replay``."""
    return whole("Replay of an iteration", record_schema(ReplayReport, "serialization"))


def compare_schema() -> Schema:
    """Make the schema of ``planner trace compare``."""
    schema = record_schema(ComparedStep, "serialization")
    return whole("Planned and traced step", schema | {"additionalProperties": False})


def what_if_schema() -> Schema:
    """Make the schema of ``planner trace what-if``."""
    return whole("Changed step", record_schema(ChangedStep, "serialization"))


def project_schema() -> Schema:
    """Make the schema of ``planner trace project``."""
    return whole("Projected job", record_schema(ProjectionRecord, "serialization"))
