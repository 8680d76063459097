"""One job in a worker: plans it, and returns its figures or its error."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import PlanningError
from planner.batch.job_result import MAX_MESSAGE, JobOutcome, JobStatus
from planner.batch.jobs import BatchJob

if TYPE_CHECKING:
    from planner.report.records.plan import NumberedPlanRecord
    from planner.results import PlanReport

OF_PLAN = (
    "line",
    "num_devices",
    "num_nodes",
    "step_time_seconds",
    "step_time_interval_seconds",
    "site_links_seconds",
    "length_imbalance_seconds",
    "tokens_per_second_per_gpu",
    "above_record_fraction",
    "model_tflops_per_gpu",
    "mfu",
    "hfu",
    "mfu_bf16",
    "peak_memory_bytes",
    "headroom_bytes",
    "host_memory_bytes",
)
OF_RUN = (
    "num_steps",
    "evaluation_seconds",
    "loading_seconds",
    "total_seconds",
    "days",
    "days_interval",
    "gpu_hours",
    "ettr",
)
OF_COSTS = (
    "device_hours",
    "it_energy_mwh",
    "facility_energy_mwh",
    "it_power_megawatts",
    "stepping_power_megawatts",
    "total_cost",
    "currency",
)
"""Entries of a plan's record that a line keeps."""


def plan_job(job: BatchJob, *, full: bool = False) -> JobOutcome:
    """
    Plan one job; an error is an outcome, too.

    Parameters
    ----------
    job
        The job.
    full
        True if the outcome holds the whole report.
    """
    wall, cpu = time.perf_counter(), time.process_time()

    def outcome(status: JobStatus, **entries: Any) -> JobOutcome:
        return JobOutcome(
            status=status,
            wall_seconds=time.perf_counter() - wall,
            cpu_seconds=time.process_time() - cpu,
            **entries,
        )

    try:
        return outcome(**_plan(job, full))
    except PlanningError as error:
        return outcome(JobStatus.WRONG_INPUT, exit_code=2, message=_cut(str(error)))
    except Exception as error:
        return outcome(JobStatus.FAILED, message=_cut(_where(error)))


def _plan(job: BatchJob, full: bool) -> dict[str, Any]:
    from planner.jobs.document import Document, mapping_from_python
    from planner.jobs.problem import load
    from planner.report.records import finite
    from planner.report.records.plan import NumberedPlanRecord
    from planner.report.records.reports import PlanReportRecord
    from planner.report.records.setting import is_assumed, is_extrapolated, nearest_relative
    from planner.verbs.plan import plan

    entries = mapping_from_python(job.document)
    read = Document(entries=entries, name=job.name, folder=Path(job.folder), places=dict(job.places))
    report = plan(load(read), certified=full)  # a line has no certificate
    cluster = report.chosen.facts.cluster
    framework = cluster.framework
    return {
        "status": JobStatus(report.outcome.status),
        "exit_code": report.exit_code,
        "message": None if report.plans else _cut(_why_none(report)),
        "gap": finite(report.outcome.gap),
        "framework": framework.name if framework else None,
        "framework_is_assumed": is_assumed(report.chosen),
        "framework_is_extrapolated": is_extrapolated(cluster),
        "framework_doubt": nearest_relative(cluster),
        "device_note": cluster.device_note or None,
        "plans": tuple(finite(figures(each)) for each in NumberedPlanRecord.build_all(report.plans)),
        "report": PlanReportRecord.read(report).plain() if full else None,
    }


def figures(plan: NumberedPlanRecord) -> dict[str, Any]:
    """Return the key figures of one plan, named as in the JSON report."""
    return {
        "number": plan.number,
        **{name: getattr(plan, name) for name in OF_PLAN},
        "tokens_per_second": plan.tokens_per_second_per_gpu * plan.num_devices,
        **{name: getattr(plan.training_run, name) for name in OF_RUN},
        **{name: getattr(plan.costs, name) for name in OF_COSTS},
        "checkpoint_interval_steps": plan.checkpoint.interval_steps,
        "strategy": plan.strategy,
        "settings": dict(plan.settings),
        "gaps": plan.gaps,
    }


def _why_none(report: PlanReport) -> str:
    conflict = report.outcome.conflict
    if report.exit_code == 1 and conflict and conflict.exclusive:
        return f"No strategy satisfies all of these together: {' '.join(conflict.exclusive[0])}"
    return "No strategy satisfies all rules." if report.exit_code == 1 else "The time limit came before a plan."


def _where(error: Exception) -> str:
    """Word an error with the line that raised it, for a bug report."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."
