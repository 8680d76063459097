"""A report as CSV: one row per plan, one column per quantity of the records of the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.step.estimate import PARTS
from planner.report.compared import BEST, GIVEN
from planner.report.records import csv_table, names_of
from planner.report.records.plan import CostsRecord, NumberedPlanRecord, PlanRecord, StrategyRecord
from planner.report.records.reports import ReportRecord
from planner.report.records.setting import SettingRecord

if TYPE_CHECKING:
    from planner.report.records.explained import ComparisonRecord

OF_CLUSTER = ("framework", "framework_is_assumed")

OF_PART = ("exposed_seconds", "hidden_seconds")

OF_RUN = ("num_steps", "total_seconds", "num_failures", "ettr", "days", "gpu_hours")

OF_COSTS = tuple(names_of(CostsRecord))

OF_OUTCOME = (
    "status",
    "lower_bound_seconds",
    "gap",
    "rounding_bound_seconds",
    "num_strategies",
    "num_candidates",
    "broken_rules",
    "broken_preferences",
)

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
    *names_of(StrategyRecord),
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
    *OF_OUTCOME,
    "settings",
)


def csv_text(whole: ReportRecord | ComparisonRecord) -> str:
    """Format a header and one row per plan; of a comparison a row for each side, the gain in that of the best plan."""
    if whole.kind != "comparison":
        return csv_table(COLUMNS, (_row(whole, plan) for plan in whole.plans))
    settings = [side.setting for side in whole.apart.sides] or [whole, whole]
    rows = [_side(GIVEN, settings[0], whole.given, whole)]
    if whole.best is not None:
        rows.append(_side(BEST, settings[1], whole.best, whole))
    return csv_table(COMPARED_COLUMNS, rows)


def _row(whole: ReportRecord, plan: NumberedPlanRecord) -> dict[str, Any]:
    """Build the row of a plan: its own entries, its strategy's and its search's, some under longer names."""
    entries = {
        **(dict(whole.search) if whole.kind == "plan" else {}),
        **dict(whole),
        **_plan_entries(whole, plan),
        **{f"{name}_difference_seconds": value for name, value in plan.difference_by_part.items()},
        "broken_rules": " ".join(whole.broken_rules),
        "broken_preferences": " ".join(whole.broken_preferences),
    }
    return _cells(entries, COLUMNS)


def _plan_entries(setting: SettingRecord, plan: PlanRecord) -> dict[str, Any]:
    """Return the entries of a plan for a job."""
    fits = plan.chance_to_fit
    return {
        **dict(plan),
        **dict(plan.training_run),
        **dict(plan.costs),
        **plan.strategy.plain(),
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

OF_GAIN = ("fraction", "low_fraction", "high_fraction", "is_sure", "unproven_fraction", "measured_fraction")

OF_MEASURED = ("id", "source", "release", "step_time_seconds", "predicted_seconds")

OF_SEARCH = (
    "number",
    "slower_fraction",
    "chance_fastest",
    "difference_seconds",
    *(f"{part}_difference_seconds" for part in PARTS),
    "difference_cost",
    *OF_OUTCOME,
)
"""Columns that rank a plan among others; a comparison lacks them."""

COMPARED_COLUMNS = (
    "side",
    *(name for name in COLUMNS if name not in OF_SEARCH),
    *(f"gain_{name}" for name in OF_GAIN),
    *(f"measured_{name}" for name in OF_MEASURED),
)


def _side(name: str, setting: SettingRecord, plan: PlanRecord, whole: ComparisonRecord) -> dict[str, Any]:
    measured = next((one for one in whole.apart.gain.measured if one.side == name), None) if whole.apart.gain else None
    entries = {
        **_plan_entries(setting, plan),
        "side": name,
        **{f"measured_{entry}": getattr(measured, entry) for entry in OF_MEASURED if measured},
        **{f"gain_{entry}": getattr(whole.apart.gain, entry) for entry in OF_GAIN if whole.apart.gain and name == BEST},
    }
    return _cells(entries, COMPARED_COLUMNS)


def _cells(entries: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {name: entries[name] for name in columns if name in entries}


def _ends(name: str, unit: str, interval: Sequence[Any]) -> dict[str, Any]:
    """Return the two ends of an interval by their columns."""
    return dict(zip((f"{name}_low_{unit}", f"{name}_high_{unit}"), interval, strict=True))
