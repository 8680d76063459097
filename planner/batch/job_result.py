"""The result of one job: the figures of its plans, or why there are none; as a record and as a line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from planner.batch.jobs import BatchJob
from planner.jobs.document import Plain

KIND = "batch_result"
FORMAT_VERSION = 1
"""Grows when an entry changes its name, unit or meaning; new entries do not count."""


MAX_MESSAGE = 2000
"""Characters of a message; some quote what they complain of."""


class JobStatus(StrEnum):
    """
    How a job ended.

    The first four are those of the search; ``wrong_input``: the job says something wrong; ``failed``: the planner
    itself is at fault; ``timed_out``: it took longer than a job may; ``worker_died``: its worker did, twice.
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
"""Ends that another attempt may change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """
    The outcome of a job, as a worker returns it.

    Parameters
    ----------
    status
        How the job ended.
    exit_code
        What ``planner plan`` returns for the job; None where it was not brought to an end.
    message
        Why there is no plan; None where there is one.
    wall_seconds, cpu_seconds
        Time that the job took in its worker.
    attempts
        Workers that it was given to.
    gap
        How much faster than the first plan another one may be at most, as a fraction.
    framework, framework_is_assumed
        The framework, and whether the job named none; None where the job could not be read.
    framework_is_extrapolated
        Whether no run of it on such devices is known; None where the job could not be read.
    framework_doubt
        For which release that no file knows it stands; None: for none.
    device_note
        What the name that the job gave its device leaves open; None: nothing.
    plans
        Key figures of each plan, best first, named as in the JSON report.
    report
        The whole JSON report, where it was asked for.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """
    One job and its outcome.

    Parameters
    ----------
    key
        Fingerprint of the job.
    name
        What the job is called: its file, its row, what was swept.
    source
        Where it was read.
    overrides
        Entries that differ from its source, by dotted key.
    index
        Its place among the jobs that were given, from 0.
    outcome
        How it ended, and its plans.
    """

    key: str
    name: str
    source: str
    overrides: Mapping[str, Plain] = field(default_factory=dict)
    index: int = 0
    outcome: JobOutcome

    @property
    def status(self) -> JobStatus:
        """How the job ended."""
        return self.outcome.status

    @property
    def plans(self) -> tuple[Mapping[str, Any], ...]:
        """Key figures of each plan, best first."""
        return self.outcome.plans

    @property
    def message(self) -> str | None:
        """Why there is no plan."""
        return self.outcome.message


def result_of(job: BatchJob, outcome: JobOutcome, index: int = 0) -> JobResult:
    """The job together with its outcome, and its place among the others."""
    return JobResult(
        key=job.key, name=job.name, source=job.source, overrides=job.overrides, index=index, outcome=outcome
    )


def line_of(result: JobResult) -> str:
    """One line of strict JSON, its end included."""
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
    """A value with text in place of NaN and infinity, which JSON lacks: a job may say ``.inf``, and is then refused."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
