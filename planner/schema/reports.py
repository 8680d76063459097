"""JSON Schemas of the JSON reports and studies, made from the records of :mod:`planner.report.records`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from costmodel.events import LEVELS
from costmodel.facts.calibration import Calibration
from costmodel.facts.device import Device, Silicon
from costmodel.facts.framework import Framework
from costmodel.facts.model import Experts, Layer, Mixer, Mlp, Model
from costmodel.facts.workload import Precision
from costmodel.models.flops import AttentionConvention
from costmodel.step.estimate import PARTS
from planner import report
from planner.advice.records import AdviceRecord, ends_of
from planner.advice.records import PointRecord as ClusterPointRecord
from planner.batch.job_result import FORMAT_VERSION, KIND, JobOutcome, JobResult, JobStatus
from planner.batch.results import OF_LINE as OF_ROW
from planner.batch.top import OF_LINE
from planner.batch.work import OF_COSTS, OF_PLAN, OF_RUN
from planner.jobs.commented import descriptions
from planner.measure.sample.samples import DTYPES, OPERATORS, PASSES, Machine, Point, Sizes, Timing
from planner.measure.sample.table import COLUMNS as OF_SAMPLES
from planner.report.describe import ALIAS, MODEL_COUNTS, MODEL_FACTS, RECIPE_TEXTS
from planner.report.records.explained import ComparisonRecord, ExplanationRecord
from planner.report.records.plan import (
    CheckpointRecord,
    CostsRecord,
    NumberedPlanRecord,
    StrategyRecord,
    TrainingRunRecord,
)
from planner.report.records.reports import EffortRecord, EstimateReportRecord, PlanReportRecord, ReportRecord
from planner.report.records.setting import ClusterRecord
from planner.report.records.study import FeatureGainRecord, FeatureRecord, StudiedPlanRecord, StudyRecord
from planner.report.study import GAINS, OF_FEATURE, OF_POINT
from planner.report.table_csv import COLUMNS
from planner.schema.records import Schema, object_schema, record_schema, whole
from planner.uncertainty.peaks import Chance
from planner.verbs.study import Point as StudiedPoint

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


CELL = {"type": ["boolean", "number", "string", "null"]}
NUMBER = {"type": ["number", "null"]}


def cell(entry: Schema) -> Schema:
    """Make the schema of a cell whose column is an entry of a record."""
    known = {"number": NUMBER, "integer": {"type": ["integer", "null"]}, "boolean": {"type": ["boolean", "null"]}}
    return {**known.get(str(entry.get("type")), CELL), "description": entry["description"]}


def report_row_schema() -> Schema:
    """Make the schema of a row of ``planner plan`` or ``planner estimate --format csv``: one plan."""
    entries: dict[str, Schema] = {
        "job": {**CELL, "description": "Name of the job."},
        **_entries(EstimateReportRecord, EffortRecord, PlanReportRecord, ClusterRecord, NumberedPlanRecord),
        **_entries(StrategyRecord, TrainingRunRecord, CostsRecord),
        **_entries(CheckpointRecord, before="checkpoint_"),
        **_part_entries(),
        **_ends("step_time", "seconds", "measured step"),
        **_ends("peak_memory", "bytes", "measured peak"),
        **_ends("reserved", "bytes", "measured peak of what PyTorch's allocator holds"),
    }
    entries |= dict.fromkeys(("chance_to_fit", "chance_fast"), _entries(Chance)["share"])
    return whole("Row of a report", object_schema({name: cell(entries[name]) for name in COLUMNS}))


def study_row_schema() -> Schema:
    """Make the schema of a row of ``planner study --format csv``: a point, or a feature."""
    own = _entries(StudyRecord)
    entries = {**_entries(StudiedPlanRecord, StudiedPoint), "series": {**CELL, "description": "Entry that is changed."}}
    features = {**_entries(FeatureRecord), **_entries(StudiedPlanRecord, before="replanned_")}
    for name in GAINS:
        features |= _entries(FeatureGainRecord, before=f"{name}_")
    rows = [
        object_schema({name: cell((own | known)[name]) for name in columns})
        for known, columns in ((entries, OF_POINT), (features, OF_FEATURE))
    ]
    return whole("Row of a study", {"anyOf": rows})


def sample_row_schema() -> Schema:
    """Make the schema of a row of samples, which ``sample`` and ``trace extract`` write and ``calibrate`` reads."""
    entries: Schema = {}
    for record in (Point, Sizes, Timing, Machine):
        entries |= record_schema(record, "serialization")["properties"]
    names = {"operator": tuple(OPERATORS), "pass": PASSES, "dtype": DTYPES}
    columns = {name: _sample_cell(entries[f"{name}_" if name == "pass" else name]) for name in OF_SAMPLES}
    columns |= {
        name: {"enum": list(known), "description": columns[name]["description"]} for name, known in names.items()
    }
    return whole("Row of samples", object_schema(columns))


def _sample_cell(entry: Schema) -> Schema:
    """Make the schema of a cell of samples: numbers may be missing; texts, such as versions, may look like numbers."""
    kinds = {entry.get("type"), *(form.get("type") for form in entry.get("anyOf", ()))}
    number = next((kind for kind in ("integer", "number", "boolean") if kind in kinds), None)
    return cell({**entry, "type": number})


def _entries(*records: type, before: str = "") -> dict[str, Schema]:
    """Return entries of records by column; the last record with a column counts."""
    found: Mapping[str, Schema]
    entries: dict[str, Schema] = {}
    for record in records:
        found = record_schema(record, "serialization")["properties"]
        entries |= {f"{before}{name}": _plain(entry) for name, entry in found.items()}
    return entries


def _plain(entry: Schema) -> Schema:
    """Return the one type of an entry that may be null."""
    forms = [form for form in entry.get("anyOf", ()) if form.get("type") != "null"]
    return {**entry, **forms[0]} if len(forms) == 1 and "$ref" not in forms[0] else entry


def _part_entries() -> dict[str, Schema]:
    texts = {
        "exposed_seconds": "{}: its share of the step.",
        "hidden_seconds": "{}: time that is overlapped with computation.",
        "difference_seconds": "{}: additional time over the first plan.",
    }
    return {
        f"{part}_{name}": {"type": "number", "description": text.format(part)}
        for part in PARTS
        for name, text in texts.items()
    }


def _ends(name: str, unit: str, what: str) -> dict[str, Schema]:
    return {
        f"{name}_{side}_{unit}": {"type": "number", "description": f"The {side} bound of the {what}."}
        for side in ("low", "high")
    }


ANYTHING = ["boolean", "number", "string"]

OPEN = {
    "description": "An entry of the job that differs from its file, or a chosen setting, by dotted key.",
    "type": [*ANYTHING, "null"],
}

FREE = ("name", "source", "framework")
"""Texts of the job's author, which may look like numbers."""


OF_RANKING = ("Plan", "StrategyRecord", "StageLayout", "Gap", "JobStatus")
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


def batch_row_schema() -> Schema:
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
        "tokens_per_second": {"type": "number", "description": "Tokens that all devices together train per second."},
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
    own = {name: _row_cell(name, (job | outcome)[name]) for name in OF_ROW}
    own["status"] = {"enum": list(JobStatus), "description": outcome["status"]["description"]}
    own["key"] = {**own["key"], "type": ["number", "string"], "pattern": "^[0-9a-f]+$"}  # digits alone are a number
    decisions = record_schema(StrategyRecord, "serialization")["properties"]
    figures = {name: entry for name, entry in _plan()["properties"].items() if name not in ("strategy", "settings")}
    cells = {name: _row_cell(name, entry, "null") for name, entry in (figures | decisions).items()}
    return {**object_schema(own | cells, optional=tuple(cells)), "additionalProperties": OPEN}


def _row_cell(name: str, entry: Schema, *others: str) -> Schema:
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


def log_line_schema() -> Schema:
    """Make the schema of one message; its fields are those of its event."""
    line = object_schema(
        {
            "time": {"type": "string", "format": "date-time", "description": "Time in UTC."},
            "level": {"enum": list(LEVELS.values()), "description": "Severity of the message."},
            "event": {"type": "string", "description": "Text of the message, or a fixed name of the event."},
            "fields": {
                "type": "object",
                "description": "Numbers and names of the event; mistakes are a list with where, problem, hint, place.",
            },
        }
    )
    return whole("Message", line)


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}


def model_schema() -> Schema:
    """Make the schema of ``planner catalog models``: model, distinct layers, parameters and FLOPs."""
    layers = {"type": "array", "items": {"$ref": "#/$defs/LayerKind"}}
    properties = {
        **_model_facts(),
        "layers": {**layers, "description": "Its different layers, in order of first appearance."},
        "mtp_layers": {**layers, "description": "Layers of multi-token prediction."},
        **_model_counts(),
        "flops_per_token": {"type": "number", "description": "Model FLOPs of one token."},
        "flops_per_token_counts": {**TEXT, "description": "Operations that the FLOPs count."},
        "sequence_length": {**COUNT, "description": "Tokens per sequence that they hold for."},
        "attention_convention": {
            "enum": list(get_args(AttentionConvention)),
            "description": "Rule for scores that the causal mask hides: counted (full) or not (causal).",
        },
    }
    return whole("Model", {**object_schema(properties), "$defs": _layer_kinds()})


def catalog_schema() -> Schema:
    """Make the schema of ``planner catalog``: all lists, one of them, or one entry."""
    definitions: Schema = {"Model": object_schema({**_model_facts(), **_model_counts()}), "Alias": _alias()}
    definitions["Recipe"] = _recipe()
    for record in (Device, Calibration, Silicon, Framework, Precision):
        made = record_schema(record, "serialization")
        definitions.update(made.pop("$defs", {}))
        definitions[record.__name__] = object_schema(made["properties"])
    note = {"note": {**TEXT, "description": "Ambiguity of the name."}}
    entries = definitions["Device"]
    definitions["Device"] = object_schema(entries["properties"] | note, optional=("note",))
    definitions["Precision"] = object_schema(
        definitions["Precision"]["properties"] | {"source": {**TEXT, "description": "Source of the bytes."}}
    )
    lists = {
        name: {
            "type": "array",
            "items": {"$ref": f"#/$defs/{record}"},
            "description": f"The {name} of the catalog, each with its sources.",
        }
        for name, record in ENTRIES.items()
    }
    whole_catalog = {**object_schema(lists, optional=tuple(lists)), "minProperties": 1}
    one = [{"$ref": f"#/$defs/{record}"} for record in ENTRIES.values()]
    return whole("Catalog", {"anyOf": [whole_catalog, *one], "$defs": definitions})


def support_schema() -> Schema:
    """Make the schema of ``planner catalog support``: its tables."""
    texts: Schema = {"type": "array", "items": TEXT}
    table: dict[str, Schema] = {
        "title": {**TEXT, "description": "Families on a device, refused families, or devices with a model."},
        "header": {**texts, "description": "Names of the columns."},
        "rows": {"type": "array", "items": texts, "description": "Cells of each family or device."},
    }
    return whole("Support", {"type": "array", "items": object_schema(table)})


ENTRIES = {
    "devices": "Device",
    "aliases": "Alias",
    "calibrations": "Calibration",
    "architectures": "Silicon",
    "frameworks": "Framework",
    "models": "Model",
    "precisions": "Precision",
    "recipes": "Recipe",
}
"""Record of each list of the catalog."""


def _model_facts() -> Schema:
    known = _properties(Model)
    number = {"num_layers": {**COUNT, "description": "Number of layers without the multi-token prediction."}}
    return {name: (known | number)[name] for name in MODEL_FACTS}


def _model_counts() -> Schema:
    return {name: {**COUNT, "description": text} for name, text in MODEL_COUNTS.items()}


def _alias() -> Schema:
    return object_schema({name: {**TEXT, "description": text} for name, text in ALIAS.items()})


def _recipe() -> Schema:
    """Make the schema of a recipe: its own texts, and keys of a job with values as in job files."""
    lists = {
        "releases": {"type": "array", "items": TEXT, "description": "Releases that have it, oldest first."},
        "scales": {"type": "array", "items": COUNT, "description": "Numbers of devices that it is published for."},
    }
    texts = {name: {**TEXT, "description": text} for name, text in RECIPE_TEXTS.items()}
    return {**object_schema(texts | lists), "patternProperties": {r"^(cluster|training|settings|strategy)\.": {}}}


def _layer_kinds() -> Schema:
    """Make the schemas of a layer with its number, and of blocks with their kind."""
    made = record_schema(Layer, "serialization")
    definitions: Schema = made["$defs"]
    for block in (*get_args(Mixer), Mlp, Experts):
        kind = {"kind": {"const": block.__name__, "description": "Kind of the block."}}
        definitions[block.__name__] = object_schema(kind | definitions[block.__name__]["properties"])
    number = {"num_layers": {**COUNT, "description": "Number of such layers."}}
    return {**definitions, "LayerKind": object_schema(number | made["properties"], optional=("beside",))}


def _properties(record: Any) -> Schema:
    properties: Schema = record_schema(record, "serialization")["properties"]
    return properties


def advice_schema() -> Schema:
    """Make the schema of ``planner advise --format json``."""
    return whole("Advice", record_schema(AdviceRecord, "serialization"))


def advice_row_schema() -> Schema:
    """Make the schema of a row of ``planner advise --format csv``: a planned cell."""
    whole_advice = record_schema(AdviceRecord, "serialization")["properties"]
    beside = {name: {**CELL, "description": whole_advice[name]["description"]} for name in ("job", "model", "currency")}
    entries = record_schema(ClusterPointRecord, "serialization")["properties"]
    return whole("Row of an advice", object_schema({**beside, **dict(_columns(entries))}))


def _columns(entries: dict[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yield the columns of a point's entries; an interval has two."""
    for name, entry in entries.items():
        if ends := ends_of(name):
            yield from ((end, {**NUMBER, "description": entry["description"]}) for end in ends)
        else:
            known = entry if "type" in entry else next((one for one in entry.get("anyOf", ()) if "type" in one), {})
            yield name, cell({**known, "description": entry["description"]})
