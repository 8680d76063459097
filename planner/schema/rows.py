"""
JSON Schemas of rows of CSV files; a row is an object by column.

Cells are converted as they are read: an empty one is null, ``true`` and ``false`` are booleans, numbers are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.step.estimate import PARTS
from planner.measure.sample.samples import DTYPES, OPERATORS, PASSES, Machine, Point, Sizes, Timing
from planner.measure.sample.table import COLUMNS as OF_SAMPLES
from planner.report.records.plan import (
    CheckpointRecord,
    CostsRecord,
    NumberedPlanRecord,
    StrategyRecord,
    TrainingRunRecord,
)
from planner.report.records.reports import EffortRecord, EstimateReportRecord, PlanReportRecord
from planner.report.records.setting import ClusterRecord
from planner.report.records.study import FeatureGainRecord, FeatureRecord, PointRecord, StudiedPlanRecord, StudyRecord
from planner.report.study import GAINS, OF_FEATURE, OF_POINT
from planner.report.table_csv import COLUMNS
from planner.schema.records import Schema, object_schema, record_schema, whole
from planner.uncertainty.peaks import Chance

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
    entries = {**_entries(StudiedPlanRecord, PointRecord), "series": {**CELL, "description": "Entry that is changed."}}
    features = {**_entries(FeatureRecord), **_entries(StudiedPlanRecord, before="replanned_")}
    for name in GAINS:
        features |= _entries(FeatureGainRecord, before=f"{name}_")
    rows = [
        object_schema({name: cell((own | known)[name]) for name in columns})
        for known, columns in ((entries, OF_POINT), (features, OF_FEATURE))
    ]
    return whole("Row of a study", {"anyOf": rows})


def sample_row_schema() -> Schema:
    """Make the schema of a row of samples, which ``sample`` and ``trace extract`` write and ``fit`` reads."""
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
