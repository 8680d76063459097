"""A report as CSV: one row per plan, one column per quantity of the JSON document."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Any

from costmodel.step.estimate import PARTS
from costmodel.strategy import DECISIONS
from planner.plan import EstimateReport, PlanReport
from planner.report.document import document

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

ENDS = ("low", "high")
"""Of the interval of the step time."""

OF_CLUSTER = ("framework", "framework_is_assumed")

COLUMNS = (
    "job",
    *OF_CLUSTER,
    "number",
    "slower_fraction",
    *(f"step_time_{end}_seconds" for end in ENDS),
    *DECISIONS,
    "layout",
    "num_microbatches",
    "num_devices",
    *OF_PLAN,
    *(f"{part}_{kind}_seconds" for part in PARTS for kind in ("exposed", "hidden")),
    "difference_seconds",
    *(f"{part}_difference_seconds" for part in PARTS),
    "checkpoint_interval_steps",
    "checkpoint_interval_seconds",
    *OF_RUN,
    *OF_REPORT,
    *OF_SEARCH,
    "broken_rules",
)


ALONE = {
    "number": 1,
    "slower_fraction": 0.0,
    "difference_seconds": 0.0,
    "difference_by_part": dict.fromkeys(PARTS, 0.0),
}
"""How one plan compares with itself."""


def csv_text(report: PlanReport | EstimateReport) -> str:
    """A header and one row per plan; what does not apply is empty."""
    whole = document(report)
    plans = whole["plans"] if isinstance(report, PlanReport) else [{**ALONE, **whole}]
    stream = StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(whole, plan) for plan in plans)
    return stream.getvalue()


def _row(whole: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    parts = {part["name"]: part for part in plan["breakdown"]}
    return {
        "job": whole["job"]["name"],
        **{name: _cell(whole["cluster"][name]) for name in OF_CLUSTER},
        "number": plan["number"],
        "slower_fraction": plan["slower_fraction"],
        **{f"step_time_{end}_seconds": plan["step_time_interval_seconds"][index] for index, end in enumerate(ENDS)},
        **{name: _cell(value) for name, value in plan["strategy"].items()},
        "num_devices": plan["num_devices"],
        **{name: plan[name] for name in OF_PLAN},
        **{
            f"{name}_{kind}_seconds": part[f"{kind}_seconds"]
            for name, part in parts.items()
            for kind in ("exposed", "hidden")
        },
        "difference_seconds": plan["difference_seconds"],
        **{f"{name}_difference_seconds": value for name, value in plan["difference_by_part"].items()},
        **{f"checkpoint_{name}": plan["checkpoint"][name] for name in ("interval_steps", "interval_seconds")},
        **{name: plan["training_run"][name] for name in OF_RUN},
        **{name: whole.get(name) for name in OF_REPORT},
        **{name: whole.get("search", {}).get(name) for name in OF_SEARCH},
        "broken_rules": " ".join(whole.get("broken_rules", ())),
    }


def _cell(value: object) -> object:
    """Flags as job files spell them, a layout as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
