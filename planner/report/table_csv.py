"""A report as CSV: one row per plan, one column per quantity of the records of the JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from costmodel.step.estimate import PARTS
from planner.report.gain import BEST, GIVEN
from planner.report.records.costs import CostsRecord
from planner.report.records.explained import ComparisonRecord
from planner.report.records.plan import NumberedPlanRecord, PlanRecord
from planner.report.records.record import finite
from planner.report.records.reports import PlanReportRecord, ReportRecord, report_record
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import StrategyRecord
from planner.results import EstimateReport, PlanReport

if TYPE_CHECKING:
    from planner.verbs.compare import Comparison

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
    "unproven",
    *StrategyRecord.model_fields,
    "num_devices",
    "step_time_seconds",
    "tokens_per_second_per_gpu",
    "above_record_fraction",
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
    "chance_fast",
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
    """Format a header and one row per plan; cells that do not apply are empty."""
    whole = report_record(report)
    stream = StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(whole, plan) for plan in whole.plans)
    return stream.getvalue()


def _row(whole: ReportRecord, plan: NumberedPlanRecord) -> dict[str, Any]:
    """Build the row of a plan: its own entries, its strategy's and its search's, some under longer names."""
    entries = {
        **(dict(whole.search) if isinstance(whole, PlanReportRecord) else {}),
        **dict(whole),
        **_plan_entries(whole, plan),
        **{f"{name}_difference_seconds": value for name, value in plan.difference_by_part.items()},
    }
    if not isinstance(whole, PlanReportRecord):
        entries["broken_rules"] = " ".join(whole.broken_rules)
        entries["broken_preferences"] = " ".join(whole.broken_preferences)
    return _cells(entries, COLUMNS)


def _plan_entries(setting: SettingRecord, plan: PlanRecord) -> dict[str, Any]:
    """Return the entries of a plan for a job."""
    fits = plan.chance_to_fit
    return {
        **dict(plan),
        **dict(plan.training_run),
        **dict(plan.costs),
        **plan.strategy.model_dump(),
        **{name: getattr(setting.cluster, name) for name in OF_CLUSTER},
        "job": setting.job.name,
        "chance_to_fit": fits.share,
        "chance_fast": plan.chance_fast.share,
        "gaps": "; ".join(gap.sentence for gap in plan.gaps),
        "unproven": "; ".join(one.text for one in plan.unproven),
        **_ends("step_time", "seconds", plan.step_time_interval_seconds),
        **_ends("peak_memory", "bytes", fits.peak_memory_interval_bytes),
        **_ends("reserved", "bytes", fits.reserved_interval_bytes),
        **{f"{part.name}_{kind}": getattr(part, kind) for part in plan.breakdown for kind in OF_PART},
        **{f"checkpoint_{name}": value for name, value in plan.checkpoint},
    }


# --- comparisons -------------------------------------------------------------------------------------------

OF_GAIN = (
    "gain_fraction",
    "gain_low_fraction",
    "gain_high_fraction",
    "gain_is_sure",
    "gain_unproven_fraction",
    "gain_measured_fraction",
)

OF_MEASURED = ("id", "source", "release", "step_time_seconds", "predicted_seconds")

OF_SEARCH = (
    "number",
    "slower_fraction",
    "chance_fastest",
    "difference_seconds",
    *(f"{part}_difference_seconds" for part in PARTS),
    "difference_cost",
    "status",
    "lower_bound_seconds",
    "gap",
    "rounding_bound_seconds",
    "num_strategies",
    "num_candidates",
    "broken_rules",
    "broken_preferences",
)
"""Columns that rank a plan among others; a comparison lacks them."""

COMPARED_COLUMNS = (
    "side",
    *(name for name in COLUMNS if name not in OF_SEARCH),
    *OF_GAIN,
    *(f"measured_{name}" for name in OF_MEASURED),
)


def comparison_csv_text(comparison: Comparison) -> str:
    """Format a header, a row for the given strategy, and a row for the best plan with its gain, if there is one."""
    whole = ComparisonRecord.build(comparison)
    settings = [side.setting for side in whole.apart.sides] or [whole, whole]
    rows = [_side(GIVEN, settings[0], whole.given, whole)]
    if whole.best is not None:
        rows.append(_side(BEST, settings[1], whole.best, whole))
    stream = StringIO()
    writer = csv.DictWriter(stream, COMPARED_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _side(name: str, setting: SettingRecord, plan: PlanRecord, whole: ComparisonRecord) -> dict[str, Any]:
    measured = next((one for one in whole.apart.gain.measured if one.side == name), None) if whole.apart.gain else None
    entries = {
        **_plan_entries(setting, plan),
        "side": name,
        **{f"measured_{entry}": getattr(measured, entry) for entry in OF_MEASURED if measured},
        **({f"gain_{entry}": value for entry, value in whole.apart.gain if name == BEST} if whole.apart.gain else {}),
    }
    return _cells(entries, COMPARED_COLUMNS)


def _cells(entries: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {name: _cell(finite(entries[name])) for name in columns if name in entries}


def _ends(name: str, unit: str, interval: Sequence[Any]) -> dict[str, Any]:
    """Return the two ends of an interval by their columns."""
    return dict(zip((f"{name}_low_{unit}", f"{name}_high_{unit}"), interval, strict=True))


def _cell(value: object) -> object:
    """Write a flag as job files spell it, a layout as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
