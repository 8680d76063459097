"""A report as CSV: one row per plan, one column per quantity of the records of the JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from typing import Any

from costmodel.step.estimate import PARTS
from planner.plan import EstimateReport, PlanReport
from planner.report.records.costs import CostsRecord
from planner.report.records.plan import NumberedPlanRecord
from planner.report.records.record import finite
from planner.report.records.reports import PlanReportRecord, ReportRecord, report_record
from planner.report.records.strategy import StrategyRecord

OF_CLUSTER = ("framework", "framework_is_assumed")

OF_PART = ("exposed_seconds", "hidden_seconds")

OF_RUN = ("num_steps", "total_seconds", "num_failures", "ettr", "days", "gpu_hours")

OF_COSTS = tuple(CostsRecord.model_fields)

COLUMNS = (
    "job",
    *OF_CLUSTER,
    "number",
    "line",
    "slower_fraction",
    "chance_fastest",
    "step_time_low_seconds",
    "step_time_high_seconds",
    "gaps",
    *StrategyRecord.model_fields,
    "num_devices",
    "step_time_seconds",
    "tokens_per_second_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu",
    "hfu",
    "mfu_bf16",
    "peak_memory_bytes",
    "peak_memory_low_bytes",
    "peak_memory_high_bytes",
    "reserved_bytes",
    "reserved_low_bytes",
    "reserved_high_bytes",
    "headroom_bytes",
    "chance_to_fit",
    "host_memory_bytes",
    "host_headroom_bytes",
    *(f"{part}_{kind}" for part in PARTS for kind in OF_PART),
    "difference_seconds",
    *(f"{part}_difference_seconds" for part in PARTS),
    "checkpoint_interval_steps",
    "checkpoint_interval_seconds",
    *OF_RUN,
    *OF_COSTS,
    "difference_cost",
    "status",
    "lower_bound_seconds",
    "gap",
    "rounding_bound_seconds",
    "num_strategies",
    "num_candidates",
    "broken_rules",
    "broken_preferences",
    "settings",
)


def csv_text(report: PlanReport | EstimateReport) -> str:
    """A header and one row per plan; what does not apply is empty."""
    whole = report_record(report)
    stream = StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(whole, plan) for plan in whole.plans)
    return stream.getvalue()


def _row(whole: ReportRecord, plan: NumberedPlanRecord) -> dict[str, Any]:
    """The entries of a plan, its strategy and its search by name, and those that have a longer name in a table."""
    step_seconds, fits = plan.step_time_interval_seconds, plan.chance_to_fit
    entries = {
        **(dict(whole.search) if isinstance(whole, PlanReportRecord) else {}),
        **dict(whole),
        **dict(plan),
        **dict(plan.training_run),
        **dict(plan.costs),
        **plan.strategy.model_dump(),
        **{name: getattr(whole.cluster, name) for name in OF_CLUSTER},
        "job": whole.job.name,
        "chance_to_fit": fits.share,
        "gaps": "; ".join(gap.sentence for gap in plan.gaps),
        **_ends("step_time", "seconds", step_seconds),
        **_ends("peak_memory", "bytes", fits.peak_memory_interval_bytes),
        **_ends("reserved", "bytes", fits.reserved_interval_bytes),
        **{f"{part.name}_{kind}": getattr(part, kind) for part in plan.breakdown for kind in OF_PART},
        **{f"{name}_difference_seconds": value for name, value in plan.difference_by_part.items()},
        **{f"checkpoint_{name}": value for name, value in plan.checkpoint},
    }
    if not isinstance(whole, PlanReportRecord):
        entries["broken_rules"] = " ".join(whole.broken_rules)
        entries["broken_preferences"] = " ".join(whole.broken_preferences)
    return {name: _cell(finite(entries[name])) for name in COLUMNS if name in entries}


def _ends(name: str, unit: str, interval: Sequence[Any]) -> dict[str, Any]:
    """The two ends of an interval by their columns."""
    return dict(zip((f"{name}_low_{unit}", f"{name}_high_{unit}"), interval, strict=True))


def _cell(value: object) -> object:
    """Flags as job files spell them, a layout as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
