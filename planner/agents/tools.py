"""The tools that agents call: name, description, and the schemas of arguments and answer of each."""

from __future__ import annotations

from costmodel.record import record as plain_record
from planner.advice.wish import AIMS
from planner.agents.schemas import (
    CHANGES,
    MOST_CHOICES,
    MOST_PLANS,
    REPORT,
    SECONDS,
    TEXTS,
    Schema,
    answer,
    entries_of,
    job,
    plan_entry,
    record,
    text,
)
from planner.frameworks import DASHBOARDS, TARGETS
from planner.schema import schema

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
            description="Fit the constants of a device to own measured runs (a CSV in the server's folder, columns as "
            "in planner/measure/runs/README.md); the answer holds a device file for cluster.device.",
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
