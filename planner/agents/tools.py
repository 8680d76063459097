"""The tools that agents call: name, description, and the schemas of arguments and answer of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.record import record as plain_record
from planner.advice.wish import AIMS
from planner.frameworks import DASHBOARDS, TARGETS
from planner.schema import schema

Schema = dict[str, Any]

HERE = Path(__file__).parent
SKILL = HERE / "skills" / "planner" / "SKILL.md"

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
    found: Mapping[str, Any] = json.loads((HERE.parent / name).read_text(encoding="utf-8"))
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


EXPLAINED = ("status", "slower_seconds", "broken_rules")
COMPARED = (
    *("status", "saved_seconds_per_step", "saved_fraction", "saved_days", "saved_gpu_hours", "within_noise"),
    "broken_rules",
)
"""Entries of a report that answers repeat."""

OF_PLANS = ("number", "slower_fraction", "chance_fastest")
"""Entries that tell several plans apart, which one estimated strategy lacks."""


@plain_record(frozen=True, kw_only=True, slots=True)
class Tool:
    """
    One tool.

    Parameters
    ----------
    name
        Its name, and that of its function in :mod:`planner.agents.work`.
    description
        Its use, for the agent that chooses among tools.
    arguments, answer
        JSON Schemas of arguments and of the answer.
    """

    name: str
    description: str
    arguments: Schema
    answer: Schema


def tools() -> dict[str, Tool]:
    """Return the tools by name."""
    return {one.name: one for one in (*list_job_tools(), advise_tool(), *list_file_tools(), *list_other_tools())}


def list_job_tools() -> tuple[Tool, ...]:
    """Return the tools that search or cost strategies of a job."""
    common = {"job": job(), "changes": CHANGES}
    plan = plan_entry()
    conflict = {"reasons": TEXTS} | entries_of("ConflictRecord", "release")
    one = record({name: each for name, each in plan["properties"].items() if name not in OF_PLANS})
    binding = record(entries_of("BindingRecord", "constraint", "saved_seconds"))
    return (
        Tool(
            name="plan",
            description="Choose the fastest tp, cp, pp, dp, ep, micro-batch, recomputation and overlap for a "
            "pretraining job, with the proof that nothing allowed is faster. Decisions in 'changes' are held fixed.",
            arguments=record(
                common | {"top": {"type": "integer", "minimum": 1, "maximum": MOST_PLANS}, "seconds": SECONDS}, ("job",)
            ),
            answer=answer(
                plans={"type": "array", "items": plan}, **entries_of("PlanReportRecord", "status"), **conflict
            ),
        ),
        Tool(
            name="estimate",
            description="Cost one given strategy (words such as TP8 PP4 MBS1 in 'changes', or the strategy of the job "
            "or launch script): step time, memory, chance to fit, and the rules that it breaks.",
            arguments=record(common, ("job",)),
            answer=answer(plan=one, **entries_of("EstimateReportRecord", "allowed", "broken_rules")),
        ),
        Tool(
            name="explain",
            description="Say which constraints hold the best plan back and by how much, or why nothing fits and what "
            "would; with words such as TP8 in 'changes': why that strategy is not the plan.",
            arguments=record(common | {"seconds": SECONDS}, ("job",)),
            answer=answer(
                bindings={"type": "array", "items": binding},
                **entries_of("ExplanationRecord", *EXPLAINED),
                **conflict,
            ),
        ),
        Tool(
            name="compare",
            description="Say what the recommended plan gains over the job's own strategy (of a launch script, a job "
            "with 'strategy', or words in 'changes'); with 'other', compare two jobs.",
            arguments=record(common | {"other": {"$ref": "#/properties/job"}, "seconds": SECONDS}, ("job",)),
            answer=answer(**entries_of("ComparisonRecord", *COMPARED)),
        ),
    )


ADVISED = ("is_proven", "currency", "answer", "ties", "fewest", "notes")
"""Entries of an advice that answers repeat."""

POINT = (
    *("number", "device", "num_devices", "global_batch_size", "is_on_front", "meets_wish", "days", "days_interval"),
    *("money", "energy_mwh", "power_megawatts", "line", "unmeasured"),
)
"""Entries of its points."""


def advise_tool() -> Tool:
    """Return the tool that chooses a cluster."""
    advice = schema("advice")
    points = advice["$defs"]["PointRecord"]["properties"]
    several = {"type": "array", "minItems": 1, "maxItems": MOST_CHOICES, "uniqueItems": True}
    positive = {"type": "number", "exclusiveMinimum": 0}
    return Tool(
        name="advise",
        description="Choose a cluster for a training: the devices and their number that meet a wish, and the proven "
        "front of days, money and energy. Each device and size is planned; the number of devices of 'job' is not used.",
        arguments=record(
            {
                "job": job(),
                "changes": CHANGES,
                "devices": {
                    **several,
                    "items": text("A name of the catalog, or a device file; default: priced ones, or the job's."),
                },
                "sizes": {**several, "items": {"type": "integer", "minimum": 1}, "description": "Numbers of devices."},
                "prices": text("A CSV of prices in the server's folder: columns device, price_per_hour, provider."),
                "aim": {"enum": [*AIMS], "description": "Default: follows from the limits."},
                "days": {**positive, "description": "Most days of the training."},
                "by": text("Day to be done by, such as 2027-01-31, instead of days."),
                "budget": {**positive, "description": "Most money, in the currency of the prices."},
                "power_watts": {**positive, "description": "Most power of the site."},
                "seconds": SECONDS,
            },
            ("job",),
        ),
        answer=answer(
            points={"type": "array", "items": record({name: points[name] for name in POINT}, POINT)},
            **{name: advice["properties"][name] for name in ADVISED},
        ),
    )


def list_file_tools() -> tuple[Tool, ...]:
    """Return the tools that turn files into jobs, and plans into files."""
    variables = {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 4096}}
    return (
        Tool(
            name="import",
            description="Read a launch script, arguments, a configuration or a log (Megatron-LM, Megatron-Bridge, "
            "NeMo, torchtitan, DeepSpeed, Accelerate) as a job with its strategy. Nothing of it is executed.",
            arguments=record(
                {
                    "file": text("The file, in the server's folder."),
                    "changes": CHANGES,
                    "variables": {**variables, "description": "Variables that the script takes from its environment."},
                },
                ("file",),
            ),
            answer=answer(job={"type": "object"}, notes=TEXTS),
        ),
        Tool(
            name="export",
            description="Write a plan of an earlier answer as the flags and files of a framework, with a launch file. "
            "The files are in the answer; nothing is written.",
            arguments=record(
                {
                    "report": REPORT,
                    "number": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MOST_PLANS,
                        "description": "Number of the plan.",
                    },
                    "target": text(f"{', '.join(TARGETS)}, or of figures: {', '.join(DASHBOARDS)}."),
                    "framework_version": text("Release of the framework; default: the one that the plan is for."),
                    "launch": text("torchrun, slurm or kubernetes: also the file that starts it."),
                },
                ("report", "target"),
            ),
            answer=answer(files=_texts_by_name(), environment=_texts_by_name(), notes=TEXTS),
        ),
    )


def list_other_tools() -> tuple[Tool, ...]:
    """Return the tools on the catalog, own measurements and earlier answers."""
    table = record({"title": {"type": "string"}, "header": TEXTS, "rows": {"type": "array", "items": TEXTS}})
    return (
        Tool(
            name="support",
            description="Say which models, devices and export targets are planned, exported, measured or refused, "
            "and why.",
            arguments=record(
                {
                    "model": text("Name of the catalog, or a config.json in the server's folder."),
                    "device": text("Name of a device, such as h100."),
                },
            )
            | {"minProperties": 1},
            answer=answer(tables={"type": "array", "items": table}),
        ),
        Tool(
            name="calibrate",
            description="Fit the constants of a device to own measured runs (a CSV in the server's folder with the "
            "columns id, step_seconds and keys of a job such as cluster.device and strategy.tp); the answer holds a "
            "device file for cluster.device.",
            arguments=record(
                {
                    "runs": text("The CSV of measured runs."),
                    "models": text("YAML with architectures by the names in the runs' 'model'."),
                    "device": text("Device of the catalog to start from."),
                    "name": text("Name of the calibrated device.", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$"),
                },
                ("runs",),
            ),
            answer=answer(device_file={"type": "string"}, refused=TEXTS),
        ),
        Tool(
            name="read",
            description="Read a part of the whole of an earlier answer.",
            arguments=record(
                {
                    "reference": text("planner://answers/..., as 'whole' of an answer names it."),
                    "pointer": {
                        "type": "string",
                        "maxLength": 400,
                        "description": "JSON Pointer of the part, such as /plans/0/breakdown; default: everything.",
                    },
                },
                ("reference",),
            ),
            answer=answer(value={}),
        ),
    )


def _texts_by_name() -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string"}}
