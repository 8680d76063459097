"""JSON Schemas of input and output files, by name; each is made when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown

SCHEMAS: Mapping[str, tuple[str, str]] = {
    "job": ("job.job_schema", "a job file, for plan, estimate, explain and batch; init and import write one"),
    "device": ("job.device_schema", "a device file, for cluster.device; calibrate writes one"),
    "report": ("reports.report_schema", "plan, estimate and explain --format json"),
    "report-row": ("reports.report_row_schema", "a row of plan and estimate --format csv"),
    "advice": ("reports.advice_schema", "advise --format json"),
    "advice-row": ("reports.advice_row_schema", "a row of advise --format csv"),
    "study": ("reports.study_schema", "study --format json"),
    "study-row": ("reports.study_row_schema", "a row of study --format csv"),
    "batch-line": ("reports.line_schema", "a line of what batch -o writes"),
    "batch-row": ("reports.batch_row_schema", "a row of what batch --table writes"),
    "top": ("reports.top_schema", "batch RESULTS.jsonl --format json, a ranking"),
    "top-row": ("reports.top_row_schema", "a row of batch RESULTS.jsonl --format csv"),
    "model": ("reports.model_schema", "catalog models NAME --format json"),
    "catalog": ("reports.catalog_schema", "catalog --format json, all of it, a list or one entry"),
    "support": ("reports.support_schema", "catalog support --format json"),
    "sample-row": ("reports.sample_row_schema", "a row of samples, for calibrate; sample and trace extract write them"),
    "log-line": ("reports.log_line_schema", "a line on stderr with --log-json, of any command"),
    "trace-read": ("traces.read_schema", "trace read --format json"),
    "trace-replay": ("traces.replay_schema", "trace replay --format json"),
    "trace-compare": ("traces.compare_schema", "trace compare --format json"),
    "trace-what-if": ("traces.what_if_schema", "trace what-if --format json"),
    "trace-project": ("traces.project_schema", "trace project --format json"),
}
"""Function and description of each schema."""


def schema(name: str) -> dict[str, Any]:
    """
    Make the JSON Schema of a name of ``SCHEMAS``, as plain data.

    Raises
    ------
    SpecError
        If there is no such name.
    """
    if name not in SCHEMAS:
        raise SpecError("schema", f"{shown(name)} is none.", did_you_mean(name, SCHEMAS))
    module, function = SCHEMAS[name][0].split(".")
    made: dict[str, Any] = getattr(import_module(f"{__name__}.{module}"), function)()
    return {"$schema": made.pop("$schema"), "$id": f"urn:pretraining-planner:schema:{name}", **made}


@cache
def schema_text(name: str) -> str:
    """Return the JSON Schema of a name as JSON text."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def list_text() -> str:
    """List the names with their descriptions."""
    width = max(map(len, SCHEMAS))
    return "\n".join(f"{name:{width}}  {what}" for name, (_, what) in SCHEMAS.items())
