"""Best published tokens per second and device of comparable runs, and predictions above them."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import inf, log2
from typing import TypeAlias

from costmodel import catalog
from costmodel.catalog.releases import month_of_date, release_of
from costmodel.facts.device import Cluster
from costmodel.models.flops import model_flops_per_token, parameters, tokens_per_second_per_device
from costmodel.models.patterns import Shape, shape_in, shape_of
from costmodel.record import record
from costmodel.step.estimate import Estimate
from costmodel.strategy import Strategy, decision_text
from costmodel.tables import Facts
from planner.uncertainty.counts import (
    CHANGED,
    MATTERS_ABOVE,
    Gap,
    architecture_of,
    list_gaps,
    read_stored_rows,
    value_of,
)
from planner.uncertainty.features import num_bits
from planner.uncertainty.intervals import (
    Interval,
    TimedOperator,
    list_timed_operators,
    operators_deviation,
    release_name,
    size_of,
    step_interval,
)

TABLE = "records.csv"

DOUBTFUL = 0.1

"""Fraction above the record from which on a prediction is doubted."""

DOUBTFUL_OF_ANOTHER = 0.25

"""
Fraction for a model without records, which is compared with the best run of the nearest models.

In 102 of the 123 models, generations and bits with records, the record is at most this far above that of the nearest
models.
"""

NEAR = 1.0

"""Largest distance of models of about equal size: the sum of binary logarithms of two ratios, FLOPs and parameters."""

MONTHS = 12

"""Largest age in months of a run's release relative to the costed one for the run to raise a doubt."""

FURTHEST_SEQUENCE = 2.0

"""Ratio of two sequence lengths up to which their rates are compared."""


@record(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """
    A published run that is faster than all later ones of its model, device, precision and sequence length.

    Parameters
    ----------
    id, label, source
        The run, its name in reports, and the place of its publication.
    framework, date
        Its software in the catalog (empty if it is not there), and year and month of its publication.
    shape
        Shape of its model.
    device, precision
        Names in the catalog.
    model, architecture
        Its name among the measured runs; ``dense``, ``moe`` or ``hybrid``.
    sequence_length, num_devices
        Tokens of a sequence, and devices.
    tokens_per_second_per_device
        Measured rate.
    flops_per_token
        Model FLOPs with causal attention.
    notes
        Remarks on favourable conditions: forced balance, rounding, and the like.
    """

    id: str
    label: str
    source: str
    framework: str
    date: str
    model: str
    architecture: str
    shape: Shape
    device: str
    precision: str
    sequence_length: int
    num_devices: int
    tokens_per_second_per_device: float
    flops_per_token: float
    notes: str = ""

    @property
    def month(self) -> float:
        """Months from 2000 to the framework's release, or to the run's publication if earlier or more exact."""
        return record_month(self.framework, self.date)

    @property
    def num_bits(self) -> int:
        """Bits of its matmuls' operands."""
        return num_bits(catalog.precision(self.precision))

    @property
    def peak_flops(self) -> float:
        """Dense peak of its device for its matmuls, FLOP/s."""
        return catalog.device(self.device).peak_flops[catalog.precision(self.precision).compute]

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the device's peak."""
        return self.tokens_per_second_per_device * self.flops_per_token / self.peak_flops


@record(frozen=True, kw_only=True, slots=True)
class BestRun:
    """
    A prediction and the best comparable published run.

    Parameters
    ----------
    record
        The fastest run.
    comparable_rate
        Tokens per second and device of the job at the record's model FLOP/s: its own rate for sequences of equal
        length. For another model, at the record's share of the peak.
    same_model
        False where the job's model has no run, and the record is the nearest model's.
    above_fraction
        Fraction by which the predicted rate is above it; negative where it is below.
    is_recent
        True where a comparable run, the record or a slower one, is of a release at most ``MONTHS`` older than the
        costed one. Newer software may be faster than all runs of older software.
    record_step_seconds
        Step of the job at that rate.
    """

    record: RunRecord
    comparable_rate: float
    same_model: bool
    above_fraction: float
    is_recent: bool
    record_step_seconds: float

    @property
    def same_sequence(self) -> bool:
        """True where its sequences are as long as the job's, so that both rates have equal FLOPs."""
        return self.comparable_rate == self.record.tokens_per_second_per_device

    @property
    def is_doubtful(self) -> bool:
        """True where the prediction is further above the record than newer software explains."""
        return self.is_recent and self.above_fraction > (DOUBTFUL if self.same_model else DOUBTFUL_OF_ANOTHER)


def records(devices: Collection[str]) -> tuple[RunRecord, ...]:
    """Read the project's records on some devices."""
    rows = read_stored_rows(TABLE)
    return tuple(_record(row) for row in rows if row["device"] in devices)


def _record(row: Mapping[str, str]) -> RunRecord:
    shape = shape_in(row)
    assert shape is not None, f"{row['id']} has no shape"
    return RunRecord(
        **{name: row[name] for name in ("id", "label", "source", "framework", "date", "model", "architecture")},
        **{name: row[name] for name in ("device", "precision", "notes")},
        shape=shape,
        sequence_length=int(row["sequence_length"]),
        num_devices=int(row["num_devices"]),
        tokens_per_second_per_device=float(row["tokens_per_second_per_device"]),
        flops_per_token=float(row["flops_per_token"]),
    )


def record_month(framework: str, date: str) -> float:
    """Return months from 2000 to a run's release, or to its publication where that is earlier or more exact."""
    release = release_of(framework)
    return min(month_of_date(date), inf if release is None else release.month())


def best_run(facts: Facts, *, tokens_per_second_per_device: float) -> BestRun | None:
    """
    Find the best published run of a job's model and device that is comparable, else that of the nearest model.

    Comparable runs have an equal number of bits per operand of their matmuls, and sequences at most
    ``FURTHEST_SEQUENCE`` times longer or shorter; only the nearest length counts. Rates of other lengths are compared
    by their model FLOP/s. If the model has no such run, the best run of models of the family of about equal size
    counts, on devices of the same generation. None where there is none either.

    Parameters
    ----------
    facts
        The job.
    tokens_per_second_per_device
        Its predicted rate.
    """
    comparable_runs = _find_comparable(facts)
    runs = comparable_runs or _records_of_nearest_model(facts)
    if not runs:
        return None
    record, flops = max(runs, key=lambda one: one.mfu), _flops(facts, None)
    if comparable_runs:
        comparable = record.tokens_per_second_per_device * _flops(facts, record.sequence_length) / flops
    else:
        comparable = record.mfu * facts.cluster.device.peak_flops[facts.workload.precision.compute] / flops
    work, devices = facts.workload, facts.cluster.num_devices
    since = _month_of_release(facts.cluster) - MONTHS
    return BestRun(
        record=record,
        comparable_rate=comparable,
        same_model=bool(comparable_runs),
        above_fraction=tokens_per_second_per_device / comparable - 1,
        is_recent=any(one.month >= since for one in runs),
        record_step_seconds=work.global_batch_size * work.sequence_length / devices / comparable,
    )


def _find_comparable(facts: Facts) -> list[RunRecord]:
    shape, bits = shape_of(facts.model), num_bits(facts.workload.precision)
    found = [
        one
        for one in _records_of_device(facts.cluster.device.name)
        if one.num_bits == bits and one.shape.is_like(shape)
    ]
    ratios = {one.id: abs(log2(one.sequence_length / facts.workload.sequence_length)) for one in found}
    nearest = min(ratios.values(), default=inf)
    return [one for one in found if ratios[one.id] == nearest] if nearest <= log2(FURTHEST_SEQUENCE) else []


def _records_of_nearest_model(facts: Facts) -> list[RunRecord]:
    """Return the runs of the family's models of about equal size, or of the nearest one, on the device generation."""
    device, work = facts.cluster.device, facts.workload
    kind, flops = (architecture_of(facts.model), num_bits(work.precision)), _flops(facts, None)
    others = [one for one in _records_of_generation(device.architecture) if (one.architecture, one.num_bits) == kind]
    size = shape_of(facts.model).parameters

    def distance(one: RunRecord) -> float:
        return abs(log2(one.flops_per_token / flops)) + abs(log2(one.shape.parameters / size))

    near = max(NEAR, min(map(distance, others), default=inf))
    return [one for one in others if distance(one) <= near]


@cache
def _records_of_generation(name: str | None) -> tuple[RunRecord, ...]:
    known = {one for one in catalog.devices() if name is not None and catalog.device(one).architecture == name}
    return records(known)


@cache
def _records_of_device(name: str) -> tuple[RunRecord, ...]:
    return records({name} & {*catalog.devices()})  # Peaks of other devices are not known here.


def _month_of_release(cluster: Cluster) -> float:
    """Return months from 2000 to the costed release; without software all records are recent."""
    release = release_of(release_name(cluster))
    framework = cluster.framework
    if release is None and framework is None:
        return -inf
    since = framework.since if framework else ""
    month = inf if release is None else release.month(since)
    return month_of_date(since) if month == inf and since else month


def _flops(facts: Facts, sequence_length: int | None) -> float:
    """Return the model FLOPs of a token in sequences of a length; None uses the job's lengths."""
    if sequence_length is None:
        return model_flops_per_token(facts.model, facts.workload.sequence_length, "causal", facts.workload.lengths)
    return model_flops_per_token(facts.model, sequence_length, "causal")


def interval_and_record(
    facts: Facts, *, step_seconds: float, operators: tuple[TimedOperator, ...], gaps: Sequence[Gap]
) -> tuple[Interval, BestRun | None]:
    """
    Return the interval of a predicted step, and the best published run to compare with.

    Parameters
    ----------
    facts
        The job; its cluster has the devices that the strategy uses.
    step_seconds
        Predicted step.
    operators, gaps
        Uncertainty of its operators' times, and properties with few or no measured runs.
    """
    rate = float(tokens_per_second_per_device(facts.cluster, facts.workload, step_seconds=step_seconds))
    best = best_run(facts, tokens_per_second_per_device=rate)
    interval = step_interval(
        facts.model,
        facts.cluster,
        step_seconds=step_seconds,
        operators_deviation=operators_deviation(operators),
        gaps=gaps,
    )
    return reach_record(interval, best), best


def strategy_interval(facts: Facts, estimate: Estimate) -> Interval:
    """Return the interval of the measured step of an estimated strategy, as that of a plan."""
    interval, _ = interval_and_record(
        facts,
        step_seconds=estimate.step_seconds,
        operators=list_timed_operators(facts, estimate.strategy, estimate.breakdown),
        gaps=list_gaps(facts, estimate.strategy),
    )
    return interval


def reach_record(interval: Interval, best: BestRun | None) -> Interval:
    """Return the interval of a step; for a doubted prediction its slow end reaches the record's step."""
    if best is None or not best.is_doubtful or interval.high_seconds >= best.record_step_seconds:
        return interval
    basis = f"{interval.basis}; its slow end is the best published run"
    return replace(interval, high_seconds=best.record_step_seconds, basis=basis)


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


@record(frozen=True, kw_only=True, slots=True)
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


def nearest_run(facts: Facts, strategy: Strategy) -> tuple[MeasuredRun, tuple[str, ...]] | None:
    """
    Find the measured run of a strategy: same model, device, number of devices, batch, precision and degrees.

    If there are several, it is the one that differs in the fewest features, and of these the first of the table, which
    begins with the newest releases. The features and release in which it differs come with it, each as its value.
    """
    decisions, release = decisions_of(strategy), release_name(facts.cluster)
    matches = [
        (run, _unlike(run, decisions, release))
        for run in read_measured_runs().get(job_of(facts), ())
        if _is_same_model(run, facts) and all(run.decisions.get(name) == decisions.get(name) for name in DEGREES)
    ]
    return min(matches, key=lambda match: len(match[1]), default=None)


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
