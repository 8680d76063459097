"""The result of one job: the figures of its plans, or why there is none; as a record and as a line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from costmodel.record import record
from planner.batch.jobs import BatchJob
from planner.jobs.document import Plain
from planner.results import Displayed

KIND = "batch_result"
FORMAT_VERSION = 1
"""Grows when an entry changes its name, unit or meaning; new entries do not count."""


MAX_MESSAGE = 2000
"""Characters of a message; some quote long inputs."""


class JobStatus(StrEnum):
    """
    The end of a job.

    The first four are those of the search. ``wrong_input``: the job has a mistake. ``failed``: a fault of the planner.
    ``timed_out``: the job exceeded its time limit. ``worker_died``: two workers died with it.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    WRONG_INPUT = "wrong_input"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WORKER_DIED = "worker_died"


LOST = frozenset({JobStatus.FAILED, JobStatus.TIMED_OUT, JobStatus.WORKER_DIED})
"""Statuses that another attempt may change."""


@record(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """
    The outcome of a job, as a worker returns it.

    Parameters
    ----------
    status
        End of the job.
    exit_code
        Exit code that ``planner plan`` has for the job; None where planning did not end.
    message
        Reason that there is no plan; None where there is one.
    wall_seconds, cpu_seconds
        Time that the job took in its worker.
    attempts
        Workers that tried it.
    gap
        Largest possible gain of another plan over the first one, as a fraction.
    framework, framework_is_assumed
        The framework, and true if the job named none; None where the job could not be read.
    framework_is_extrapolated
        True if no measured run of it on such devices is known; None where the job could not be read.
    framework_doubt
        Note on an unknown release that the job names and this one stands in for; None: it is known.
    device_note
        Note on an ambiguous device name of the job; None: it is unambiguous.
    plans
        Key figures of each plan, best first, named as in the JSON report.
    report
        The whole JSON report, if requested.
    """

    status: JobStatus
    exit_code: int | None = None
    message: str | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    attempts: int = 1
    gap: float | None = None
    framework: str | None = None
    framework_is_assumed: bool | None = None
    framework_is_extrapolated: bool | None = None
    framework_doubt: str | None = None
    device_note: str | None = None
    plans: tuple[Mapping[str, Any], ...] = ()
    report: Mapping[str, Any] | None = None


@record(frozen=True, kw_only=True, slots=True)
class JobResult(Displayed):
    """
    One job and its outcome.

    Parameters
    ----------
    key
        Fingerprint of the job.
    name
        Name of the job: its file, its row, its swept values.
    source
        File that it was read from.
    overrides
        Entries that differ from its source, by dotted key.
    index
        Its place among the jobs that were given, from 0.
    outcome
        Its end, and its plans.
    """

    key: str
    name: str
    source: str
    overrides: Mapping[str, Plain] = field(default_factory=dict)
    index: int = 0
    outcome: JobOutcome

    @property
    def status(self) -> JobStatus:
        """The end of the job."""
        return self.outcome.status

    @property
    def plans(self) -> tuple[Mapping[str, Any], ...]:
        """Key figures of each plan, best first."""
        return self.outcome.plans

    @property
    def message(self) -> str | None:
        """The reason that there is no plan."""
        return self.outcome.message


def result_of(job: BatchJob, outcome: JobOutcome, index: int = 0) -> JobResult:
    """Combine a job with its outcome, and its place among the others."""
    return JobResult(
        key=job.key, name=job.name, source=job.source, overrides=job.overrides, index=index, outcome=outcome
    )


def line_of(result: JobResult) -> str:
    """Write a result as one line of strict JSON, its end included."""
    outcome = {entry.name: getattr(result.outcome, entry.name) for entry in fields(result.outcome)}
    if outcome["report"] is None:
        del outcome["report"]
    whole = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "key": result.key,
        "name": result.name,
        "source": result.source,
        "index": result.index,
        "overrides": _finite(dict(result.overrides)),
        **outcome,
        "wall_seconds": round(result.outcome.wall_seconds, 6),
        "cpu_seconds": round(result.outcome.cpu_seconds, 6),
    }
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by text, as JSON lacks them; a job may have ``.inf``, and is then refused."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
