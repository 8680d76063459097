"""Measured runs as somebody writes them down who knows no setting: model, cluster, training, strategy, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.jobs import job_entries
from constraints.rules.memory import fits_in_device_memory
from costmodel.step.estimate import estimate
from planner.jobs.problem import Problem, load
from planner.measure.runs.predictions import Case, Prediction

OF_CLUSTER = ("device", "num_devices", "framework")
"""What a plain job says of its cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """
    A row as a plain job.

    Parameters
    ----------
    case
        The row.
    step_seconds
        Predicted.
    fits
        Whether it fits into the device's memory.
    """

    case: Case
    step_seconds: float
    fits: bool

    @property
    def ran(self) -> bool:
        """Whether it really ran."""
        return self.case.run.kind != "oom"


def plain_job(case: Case) -> dict[str, Any]:
    """A row's job with nothing but model, device, count, framework, batch, sequence and precision."""
    job = job_entries(case)
    cluster = {name: job["cluster"][name] for name in OF_CLUSTER if name in job["cluster"]}
    return {"model": job["model"], "cluster": cluster, "training": job["training"]}


def plain_estimates(predicted: Iterable[Prediction]) -> Iterator[Plain]:
    """Every predicted row as a plain job with the row's strategy."""
    problems: dict[str, Problem] = {}
    for one in predicted:
        job = plain_job(one.case)
        key = json.dumps(job, sort_keys=True, default=str)
        if key not in problems:
            problems[key] = load(job, name=one.run.id)
        facts = problems[key].facts
        estimated = estimate(facts, one.strategy)
        fits = fits_in_device_memory(facts.cluster, device_bytes=estimated.device_bytes, memory_headroom_bytes=0.0)
        yield Plain(case=one.case, step_seconds=estimated.step_seconds, fits=bool(fits))


MEGATRON = ("nemo", "megatron-bridge", "megatron-core")
"""How the frameworks of Megatron and NeMo begin."""


def plain_lines(predicted: Iterable[Prediction]) -> Iterator[str]:
    """What plain jobs are refused for memory, as text."""
    rows = list(plain_estimates(predicted))
    yield f"\n{'Plain jobs: does it fit?':<60} {'ran':>5} {'refused':>8} {'oom':>5} {'refused':>8} {'step off':>9}"
    for name, starts in (("all", ("",)), ("NeMo, Megatron-Bridge, Megatron-Core", MEGATRON)):
        chosen = [one for one in rows if _framework(one).startswith(starts)]
        yield f"  {name:<58} {_counts(chosen)}"
    for one in rows:
        if one.ran and not one.fits:
            yield f"    refused: {one.case.run.id}"


def _framework(one: Plain) -> str:
    framework = one.case.facts.cluster.framework
    return framework.name if framework else ""


def _counts(rows: list[Plain]) -> str:
    ran, oom = [one for one in rows if one.ran], [one for one in rows if not one.ran]
    refused, caught = (sum(not one.fits for one in some) for some in (ran, oom))
    errors = [abs(one.step_seconds / one.case.run.step_seconds - 1) for one in ran if one.case.run.step_seconds]
    mean = sum(errors) / max(len(errors), 1)
    share = f"{refused} ({refused / max(len(ran), 1):.1%})"
    return f"{len(ran):>5} {share:>8} {len(oom):>5} {caught:>8} {mean:>9.1%}"
