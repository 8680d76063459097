"""
JSON Schemas of the tools' arguments and answers, made of those of job files and reports.

The whole schema of a job has 280 KB, which an agent would read before its first question. A tool names the sections
and the entries of the three that every job has; the rest is a resource of the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import planner

Schema = dict[str, Any]

FOLDER = Path(planner.__file__).parent
SKILL = FOLDER / "skills" / "planner" / "SKILL.md"

LONGEST_TEXT = 4096
MOST_CHANGES = 64
MOST_PLANS = 10
MOST_CHOICES = 8
"""Devices, or sizes, of an advice."""

PLAN_ENTRIES = (
    *("number", "line", "num_devices", "step_time_seconds", "step_time_interval_seconds", "tokens_per_second_per_gpu"),
    *("mfu", "peak_memory_bytes", "slower_fraction", "chance_fastest"),
)
"""Entries of a plan in a report that answers repeat."""


@cache
def read_schema(name: str) -> Mapping[str, Any]:
    """Read a schema file of the package."""
    found: Mapping[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def text(description: str, **limits: Any) -> Schema:
    """Make the schema of a text, of limited length."""
    return {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT, "description": description, **limits}


def record(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """Make the schema of an object without other entries."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


@cache
def job() -> Schema:
    """Make the schema of a job: a file, or entries, whose values the planner itself checks."""
    whole = read_schema("job.schema.json")
    sections: dict[str, Schema] = {}
    for name, entry in whole["properties"].items():
        reference = str(entry.get("$ref", "")).rpartition("/")[2]
        section = whole["$defs"].get(reference, {}) if name in whole["required"] else {}
        sections[name] = {"description": _first_sentence(entry)}
        if "properties" in section:
            entries = {key: {"description": _first_sentence(one)} for key, one in section["properties"].items()}
            sections[name] |= {"type": "object", "properties": entries, "required": section["required"]}
    whole_job: Schema = {
        "type": "object",
        "properties": sections,
        "required": whole["required"],
        "description": "Entries of a job file. All of them: resource planner://schemas/job.",
    }
    file = text("A file in the server's folder: a job file, a launch script or configuration, or a JSON report.")
    return {"anyOf": [whole_job, file]}


def _first_sentence(entry: Mapping[str, Any]) -> str:
    """Return the beginning of a description; the schema of jobs, a resource, has the rest."""
    return f"{entry['description'].partition('. ')[0].rstrip('.')}."


CHANGES: Schema = {
    "type": "array",
    "maxItems": MOST_CHANGES,
    "items": text("key=value or a word of a strategy", pattern="^[A-Za-z_]"),
    "description": "Changes of the job such as training.global_batch_size=2048, and decisions such as TP8 PP4 "
    "recompute=full, as on the command line.",
}

SECONDS: Schema = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "Time of the search in seconds; the best plan so far is the answer. The server has a limit, too.",
}

REPORT = text("Reference of an earlier answer of plan or estimate, such as planner://answers/0123456789ab.")

WHOLE = text("Reference of the whole answer: a resource, and what 'read' takes.")

TEXTS: Schema = {"type": "array", "items": {"type": "string"}}


def entries_of(name: str, *entries: str) -> dict[str, Schema]:
    """Return schemas of entries of a record of the report."""
    known = read_schema("report/report.schema.json")["$defs"][name]["properties"]
    return {entry: dict(known[entry]) for entry in entries}


def plan_entry() -> Schema:
    """Make the schema of a plan in an answer."""
    plan = entries_of("NumberedPlanRecord", *PLAN_ENTRIES) | entries_of("TrainingRunRecord", "days", "gpu_hours")
    fits = {"type": ["number", "null"], "description": "Probability that it does not run out of memory."}
    return record(plan | {"chance_to_fit": fits}, (*plan, "chance_to_fit"))


def answer(**entries: Schema) -> Schema:
    """Make the schema of an answer: a short text, entries of its own, and the reference of the whole."""
    common = {"text": {"type": "string", "description": "Answer as text for people, one screen long."}, "whole": WHOLE}
    return record({**common, **entries}, (*common, *entries))
