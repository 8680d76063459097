"""JSON Schemas of a batch: its lines, its table, and the ranking of its jobs."""

from __future__ import annotations

from planner.batch.job_result import FORMAT_VERSION, KIND, JobOutcome, JobResult, JobStatus
from planner.batch.results import OF_LINE as OF_ROW
from planner.batch.top import OF_LINE
from planner.batch.work import OF_COSTS, OF_PLAN, OF_RUN
from planner.jobs.commented import descriptions
from planner.report.records.plan import (
    CheckpointRecord,
    CostsRecord,
    NumberedPlanRecord,
    StrategyRecord,
    TrainingRunRecord,
)
from planner.report.records.reports import PlanReportRecord
from planner.schema.records import Schema, object_schema, record_schema, whole

NUMBER = {"type": "number"}
ANYTHING = ["boolean", "number", "string"]

OPEN = {
    "description": "An entry of the job that differs from its file, or a chosen setting, by dotted key.",
    "type": [*ANYTHING, "null"],
}

FREE = ("name", "source", "framework")
"""Texts of the job's author, which may look like numbers."""


OF_RANKING = ("Plan", "StrategyRecord", "LayoutRecord", "Gap", "JobStatus")
"""Records that occur in a line and in a ranking."""


def line_schema() -> Schema:
    """Make the schema of a result line: a job and its outcome, with the whole report for ``--full``."""
    outcome, plan = record_schema(JobOutcome, "serialization"), _plan()
    report = record_schema(PlanReportRecord, "serialization")
    definitions = {**outcome.get("$defs", {}), **report.pop("$defs"), "Plan": plan, "Report": report}
    of_outcome = outcome["properties"] | {
        "plans": {**outcome["properties"]["plans"], "items": {"$ref": "#/$defs/Plan"}},
        "report": {"$ref": "#/$defs/Report", "description": outcome["properties"]["report"]["description"]},
    }
    properties = {
        "kind": {"const": KIND, "description": "Kind of the line."},
        "format_version": {
            "const": FORMAT_VERSION,
            "description": "Grows when an entry changes its name, unit or meaning; new entries do not count.",
        },
        **_job(),
        **of_outcome,
    }
    return whole("Line of a batch", {**object_schema(properties, optional=("report",)), "$defs": definitions})


def row_schema() -> Schema:
    """Make the schema of a table row: a plan of a job, or a job without one."""
    return whole("Row of a batch", _row())


def top_schema() -> Schema:
    """Make the schema of the ranking: an entry for each job, the best one first."""
    line = line_schema()
    shown = {name: line["properties"][name] for name in OF_LINE}
    entry = object_schema({"rank": _rank(), **shown, "plan": {"$ref": "#/$defs/Plan", "description": "Its best plan."}})
    definitions = {name: part for name, part in line["$defs"].items() if name in OF_RANKING}
    return whole("Ranking of jobs", {"type": "array", "items": entry, "$defs": definitions})


def top_row_schema() -> Schema:
    """Make the schema of a ranking row: a table row with its rank."""
    row = _row()
    return whole("Row of a ranking", {**row, "properties": {"rank": _rank(), **row["properties"]}})


def _plan() -> Schema:
    """Make the schema of one plan's key figures, as :func:`planner.batch.work.figures` writes them."""
    plan = record_schema(NumberedPlanRecord, "serialization")["properties"]
    run = record_schema(TrainingRunRecord, "serialization")["properties"]
    costs = record_schema(CostsRecord, "serialization")["properties"]
    properties = {
        "number": plan["number"],
        **{name: plan[name] for name in OF_PLAN},
        "tokens_per_second": {**NUMBER, "description": "Tokens that all devices together train per second."},
        **{name: run[name] for name in OF_RUN},
        **{name: costs[name] for name in OF_COSTS},
        "checkpoint_interval_steps": record_schema(CheckpointRecord, "serialization")["properties"]["interval_steps"],
        "strategy": plan["strategy"],
        "settings": plan["settings"],
        "gaps": plan["gaps"],
    }
    return object_schema(properties)


def _row() -> Schema:
    """Make the schema of cells by column: entries of a job, overrides by dotted key, and the figures of a plan."""
    job, outcome = _job(), record_schema(JobOutcome, "serialization")["properties"]
    own = {name: _cell(name, (job | outcome)[name]) for name in OF_ROW}
    own["status"] = {"enum": list(JobStatus), "description": outcome["status"]["description"]}
    own["key"] = {**own["key"], "type": ["number", "string"], "pattern": "^[0-9a-f]+$"}  # digits alone are a number
    decisions = record_schema(StrategyRecord, "serialization")["properties"]
    figures = {name: entry for name, entry in _plan()["properties"].items() if name not in ("strategy", "settings")}
    cells = {name: _cell(name, entry, "null") for name, entry in (figures | decisions).items()}
    return {**object_schema(own | cells, optional=tuple(cells)), "additionalProperties": OPEN}


def _cell(name: str, entry: Schema, *others: str) -> Schema:
    """Make the schema of a cell whose column is an entry of a record; lists and records are text."""
    kinds = [form.get("type", "string").replace("array", "string") for form in entry.get("anyOf", [entry])]
    known = [kind for given in kinds for kind in (ANYTHING if name in FREE and given == "string" else [given])]
    return {"type": list(dict.fromkeys([*known, *others])), "description": entry["description"]}


def _job() -> dict[str, Schema]:
    """Make the schema of a job's entries in a line, before its outcome."""
    texts = descriptions(JobResult)
    return {
        **{name: {"type": "string", "description": texts[name]} for name in ("key", "name", "source")},
        "index": {"type": "integer", "minimum": 0, "description": texts["index"]},
        "overrides": {"type": "object", "description": texts["overrides"]},
    }


def _rank() -> Schema:
    return {"type": "integer", "minimum": 1, "description": "The job's place, from 1, the best."}
