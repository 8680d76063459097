"""Measured runs with the degrees of a strategy, and the model's error on them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from costmodel.models.parameters import parameters
from costmodel.strategy import Strategy, decision_text
from costmodel.tables import Facts
from planner.uncertainty.evidence.kinds import CHANGED
from planner.uncertainty.evidence.traits import MATTERS_ABOVE, value_of
from planner.uncertainty.intervals import release_name, size_of

RUNS_TABLE = "measured.csv"

DEGREES = ("tp", "cp", "pp", "ep", "etp", "vpp", "mbs")
"""Degrees that a run must share with a strategy; dp follows from them and the number of devices."""

FEATURES = (
    "schedule",
    "vocabulary",
    "sharding",
    "recompute",
    "activation_offload",
    "optimizer_offload",
    "token_dispatcher",
    "cuda_graphs",
    "ep_overlap",
)
"""Decisions in which a run may differ from a strategy; reports list them."""

SAME_PARAMETERS = 0.005
"""Fraction up to which two counts of parameters are of one model: tables pad the vocabulary or leave out biases."""

Job: TypeAlias = tuple[str, int, int, int, str]
"""Device, number of devices, batch, sequence length, precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """
    One row of the table of measured runs.

    Parameters
    ----------
    id, source
        Its name there, and its publisher.
    model, parameters, hidden_size, num_experts
        Its model: the name, and the properties that identify it (0 experts for dense).
    job
        The rest of its job.
    release
        Software and release as named by the source; empty if unknown.
    decisions
        Degrees above 1, and features other than none, spelled as in job files.
    step_seconds, predicted_seconds
        Measured step; step that the shipped constants predict for the run.
    """

    id: str
    source: str
    model: str
    parameters: float
    hidden_size: int
    num_experts: int
    job: Job
    release: str
    decisions: Mapping[str, str]
    step_seconds: float
    predicted_seconds: float

    @property
    def error_fraction(self) -> float:
        """Predicted over measured step, minus 1."""
        return self.predicted_seconds / self.step_seconds - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """
    A measured run with a strategy's degrees, for its model, devices and batch.

    Parameters
    ----------
    run
        The run.
    unlike
        Features and release in which it differs, each as ``name value`` of the run.
    """

    run: MeasuredRun
    unlike: tuple[str, ...]


def job_of(facts: Facts) -> Job:
    """Return the entries of a job that a run must share."""
    cluster, work = facts.cluster, facts.workload
    return (
        cluster.device.name.removesuffix(CHANGED),
        cluster.num_devices,
        work.global_batch_size,
        work.sequence_length,
        work.precision.name.removesuffix(CHANGED),
    )


def decisions_of(strategy: Strategy) -> dict[str, str]:
    """Return degrees above 1 and features other than none, spelled as in job files."""
    degrees = {name: str(int(getattr(strategy, name))) for name in DEGREES if getattr(strategy, name) > 1}
    return degrees | {
        name: decision_text(name, int(getattr(strategy, name)))
        for name in FEATURES
        if getattr(strategy, name) and (name not in MATTERS_ABOVE or value_of(strategy, name) is not None)
    }


@cache
def read_measured_runs() -> Mapping[Job, tuple[MeasuredRun, ...]]:
    """Read the project's measured pretraining runs by their job."""
    found: dict[Job, list[MeasuredRun]] = {}
    text = (files("planner.uncertainty") / RUNS_TABLE).read_text(encoding="utf-8")
    for run in map(_run, csv.DictReader(text.splitlines())):
        found.setdefault(run.job, []).append(run)
    return {job: tuple(runs) for job, runs in found.items()}


def _run(cells: Mapping[str, str]) -> MeasuredRun:
    device, *numbers, precision = cells["job"].split()
    num_devices, batch, sequence = map(int, numbers)
    return MeasuredRun(
        id=cells["id"],
        source=cells["source"],
        model=cells["model"],
        parameters=float(cells["parameters"]),
        hidden_size=int(cells["hidden_size"]),
        num_experts=int(cells["num_experts"]),
        job=(device, num_devices, batch, sequence, precision),
        release=cells["release"],
        decisions=dict(word.split("=") for word in cells["decisions"].split()),
        step_seconds=float(cells["step_seconds"]),
        predicted_seconds=float(cells["predicted_seconds"]),
    )


def nearest_run(facts: Facts, strategy: Strategy) -> Match | None:
    """
    Find the measured run of a strategy: same model, device, number of devices, batch, precision and degrees.

    If there are several, it is the one that differs in the fewest features, and of these the first of the table, which
    begins with the newest releases.
    """
    decisions, release = decisions_of(strategy), release_name(facts.cluster)
    matches = [
        Match(run=run, unlike=_unlike(run, decisions, release))
        for run in read_measured_runs().get(job_of(facts), ())
        if _is_same_model(run, facts) and all(run.decisions.get(name) == decisions.get(name) for name in DEGREES)
    ]
    return min(matches, key=lambda match: len(match.unlike), default=None)


def _is_same_model(run: MeasuredRun, facts: Facts) -> bool:
    apart = abs(parameters(facts.model) / run.parameters - 1)
    return (run.hidden_size, run.num_experts) == size_of(facts.model) and apart <= SAME_PARAMETERS


def _unlike(run: MeasuredRun, decisions: Mapping[str, str], release: str) -> tuple[str, ...]:
    features = tuple(
        f"{name}={run.decisions.get(name, decision_text(name, 0))}"
        for name in FEATURES
        if run.decisions.get(name) != decisions.get(name)
    )
    return (*([run.release or "unknown software"] if run.release != release else []), *features)
