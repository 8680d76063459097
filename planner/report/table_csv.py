"""A report as CSV: one row per plan, one column per quantity of the records of the JSON."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Any

from costmodel.step.estimate import PARTS
from planner.plan import EstimateReport, PlanReport
from planner.report.records.plan import NumberedPlanRecord
from planner.report.records.record import finite
from planner.report.records.reports import EstimateReportRecord, PlanReportRecord, report_record
from planner.report.records.strategy import StrategyRecord

OF_REPORT = ("status", "lower_bound_seconds", "gap", "rounding_bound_seconds")

OF_SEARCH = ("num_strategies", "num_candidates")

OF_PLAN = (
    "step_time_seconds",
    "tokens_per_second_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "headroom_bytes",
    "host_memory_bytes",
    "host_headroom_bytes",
)

OF_RUN = ("num_steps", "total_seconds", "num_failures", "ettr", "days", "gpu_hours")

OF_PLACE = ("number", "slower_fraction", "difference_seconds")

OF_PART = ("exposed_seconds", "hidden_seconds")

OF_CHECKPOINT = ("interval_steps", "interval_seconds")

OF_INTERVAL = ("step_time_low_seconds", "step_time_high_seconds")
"""Columns of the interval of the step time."""

OF_CLUSTER = ("framework", "framework_is_assumed")

COLUMNS = (
    "job",
    *OF_CLUSTER,
    "number",
    "slower_fraction",
    *OF_INTERVAL,
    *StrategyRecord.model_fields,
    "num_devices",
    *OF_PLAN,
    *(f"{part}_{kind}" for part in PARTS for kind in OF_PART),
    "difference_seconds",
    *(f"{part}_difference_seconds" for part in PARTS),
    *(f"checkpoint_{name}" for name in OF_CHECKPOINT),
    *OF_RUN,
    *OF_REPORT,
    *OF_SEARCH,
    "broken_rules",
)


def csv_text(report: PlanReport | EstimateReport) -> str:
    """A header and one row per plan; what does not apply is empty."""
    whole = report_record(report)
    stream = StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(whole, plan) for plan in whole.plans)
    return stream.getvalue()


def _row(whole: PlanReportRecord | EstimateReportRecord, plan: NumberedPlanRecord) -> dict[str, Any]:
    entries = {
        "job": whole.job.name,
        **{name: getattr(whole.cluster, name) for name in OF_CLUSTER},
        **{name: getattr(plan, name) for name in OF_PLACE},
        **dict(zip(OF_INTERVAL, plan.step_time_interval_seconds, strict=True)),
        **plan.strategy.model_dump(),
        **{name: getattr(plan, name) for name in ("num_devices", *OF_PLAN)},
        **{f"{part.name}_{kind}": getattr(part, kind) for part in plan.breakdown for kind in OF_PART},
        **{f"{name}_difference_seconds": value for name, value in plan.difference_by_part.items()},
        **{f"checkpoint_{name}": getattr(plan.checkpoint, name) for name in OF_CHECKPOINT},
        **{name: getattr(plan.training_run, name) for name in OF_RUN},
    }
    if isinstance(whole, PlanReportRecord):
        entries |= {name: getattr(whole, name) for name in OF_REPORT}
        entries |= {name: getattr(whole.search, name) for name in OF_SEARCH}
    else:
        entries["broken_rules"] = " ".join(whole.broken_rules)
    return {name: _cell(finite(value)) for name, value in entries.items()}


def _cell(value: object) -> object:
    """Flags as job files spell them, a layout as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
