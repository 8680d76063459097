"""Small runs of a job: their differences from the job and their measurements, or rows of a table of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from costmodel import catalog
from costmodel.catalog.files import merge_mappings
from costmodel.errors import SpecError
from costmodel.facts.device import Device
from costmodel.facts.fields import Positive
from costmodel.record import strict_record
from costmodel.step.estimate import estimate
from costmodel.timing.sampled_source import MATMULS, size_of_operator
from costmodel.validation import build, shown
from planner.jobs.document import nest_entries, read_mapping
from planner.jobs.problem import Problem
from planner.jobs.run_jobs import MEMORY_KINDS, References, RejectedRow, Run, references
from planner.jobs.run_jobs import read as read_table
from planner.measure.runs.predictions import Case, case
from planner.measure.traces.events import Trace
from planner.measure.traces.iterations import is_whole, iterations
from planner.measure.traces.operators import find_operators
from planner.measure.traces.reading import read_trace
from planner.measure.traces.report.compare import has_other_layers
from planner.measure.traces.structure import parts
from planner.uncertainty.intervals import strategy_operators

NAMED = ("annotations", "modules")

"""Sources of layers that are reliable, since they name each layer."""

MOST_NAMED = 3

"""Sizes that a sentence lists."""

AGAIN = "Record one more iteration, and wait until the profiler has written its file."


def traced_seconds(traces: Sequence[Trace]) -> float:
    """
    Return the median step time in seconds of the iterations in some traces of one run.

    An iteration in which its file is truncated does not count: its missing part is unknown.

    Raises
    ------
    SpecError
        If a trace holds no complete iteration.
    """
    lengths: list[int] = []
    for trace in traces:
        found = [one for one in iterations(trace) if one.found != "whole" and one.duration > 0]
        whole = [one for one in found if is_whole(trace, one)]
        if not whole and found:
            raise SpecError(trace.source, "is truncated inside of its only iteration.", AGAIN)
        if not whole:
            raise SpecError(trace.source, "holds no complete iteration.", "Record a step from its begin to its end.")
        lengths += [one.duration for one in whole]
    return median(lengths) / 1e9


def doubts_of(traces: Sequence[Trace], case: Case) -> tuple[str, ...]:
    """
    Return doubts about the traces of a small run; sentences for people.

    Parameters
    ----------
    traces
        Traces of its ranks.
    case
        The run's job and strategy.

    Raises
    ------
    SpecError
        If a trace has matmuls with sizes, but none of the run's, or names other layers.
    """
    found = (f"{Path(trace.source).name}: {doubt}" for trace in traces for doubt in _doubts(trace, case))
    return tuple(dict.fromkeys(found))


def _doubts(trace: Trace, case: Case) -> Iterator[str]:
    yield from trace.doubts
    if cut := [one.name for one in iterations(trace) if not is_whole(trace, one)]:
        yield f"{', '.join(cut)} left out: the file is truncated inside or before."
    if trace.world_size and trace.world_size != case.facts.cluster.num_devices:
        yield f"It is of a job of {trace.world_size} ranks, the run of {case.facts.cluster.num_devices}."
    yield from _missing_sizes(trace, case)
    yield from _other_layers(trace, case)


def require_device(trace: Trace, device: Device) -> None:
    """
    Refuse a trace of another device than the job's; devices outside of the catalog are not compared.

    Raises
    ------
    SpecError
        If nothing ran on a device, or another device of the catalog was recorded.
    """
    if device.architecture is None:
        return
    if not trace.has_device:
        problem = f"holds nothing that ran on a device, the job is for {device.name}."
        raise SpecError(trace.source, problem, "Record activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].")
    says = trace.devices[0].name if trace.devices else ""
    known = {_brand(name) for name in catalog.devices()}
    said = {one for one in known if re.search(rf"(?<![a-z0-9]){one}(?![a-z0-9])", says.lower())}
    if said and _brand(device.name) in known and _brand(device.name) not in said:
        raise SpecError(trace.source, f"was recorded on {says}, the job is for {device.name}.", "Is it of that run?")


def _brand(name: str) -> str:
    """
    Return the model name of a device in the catalog, which the profiler's name contains.

    >>> _brand("h100-80gb-sxm"), _brand("h100-80gb-sxm, changed")
    ('h100', 'h100')
    """
    return re.split(r"[-, ]", name, maxsplit=1)[0]


def _other_layers(trace: Trace, case: Case) -> Iterator[str]:
    """Doubt a trace whose layers times micro-batches no rank of the run has; refuse it if names show the layers."""
    found, own = parts(trace), estimate(case.facts, case.strategy)
    layers = [rank.num_layers for rank in own.ranks]
    if not has_other_layers(found, layers, own.num_microbatches, case.facts.model):
        return
    shown = f"shows {found.num_layers} x {found.num_microbatches} layers x micro-batches"
    wanted = f"the run has {' or '.join(map(str, dict.fromkeys(layers)))} x {own.num_microbatches} on a rank"
    if found.layers_from in NAMED:
        raise SpecError(trace.source, f"{shown} by its {found.layers_from}, {wanted}.", "Is it of this run?")
    yield f"It {shown}, {wanted}, by {found.layers_from}: is it of this run?"


def _missing_sizes(trace: Trace, case: Case) -> Iterator[str]:
    """Doubt a trace that lacks sizes of the run's matmuls; refuse it if it has none of them."""
    seen = {(one.operator, tuple(sorted(one.sizes.items()))) for one in find_operators(trace).operators}
    traced = {size for kernel, size in seen if kernel in MATMULS}
    if not traced:
        return
    wanted: dict[tuple[tuple[str, int], ...], str] = {}
    for operator, _ in strategy_operators(case.facts, case.strategy):
        size = size_of_operator(operator)
        if size is not None and size.kernel in MATMULS and None not in size.sizes.values():
            wanted[tuple(sorted((name, round(float(value))) for name, value in size.sizes.items()))] = operator.name
    missing = [f"{name} ({_size_text(size)})" for size, name in wanted.items() if size not in traced]
    if wanted and len(missing) == len(wanted):
        raise SpecError(
            trace.source,
            f"has no matmul of the run, such as {missing[0]}, but others, such as {_size_text(min(traced))}.",
            "Is it of the same widths, sequence length, micro-batch and degrees?",
        )
    if missing:
        yield f"It has no matmul of the size of {', '.join(missing[:MOST_NAMED])}: is it of this run?"


def _size_text(size: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in size)


MODEL = "the job's model"

"""Name under which small runs refer to the job's model."""

SECTIONS = ("model", "cluster", "training", "settings")

"""Sections of a job that a small run may change."""

OF_PIPELINES = ("vpp", "group", "schedule", "vocabulary", "pp_overlap")

"""Decisions that a run without a pipeline does not take from the job: a single stage has one chunk, and no order."""

EXAMPLE = (
    "Such as: runs: [{name: two layers, job: {model.num_layers: 2, cluster.num_devices: 8}, strategy: {pp: 1}, "
    "step_seconds: 1.93, peak_memory_gib: 61.2, memory_kind: allocated}]."
)


def _no_text(value: object) -> object:
    """Refuse text as a measurement: a quoted number may be a mistake."""
    if isinstance(value, str):
        raise ValueError(f"expected a number, got {shown(value)}")
    return value


Measured: TypeAlias = Annotated[Positive, BeforeValidator(_no_text)]


@strict_record(frozen=True, kw_only=True, slots=True)
class SmallRun:
    """
    One small run as its file states it.

    Parameters
    ----------
    name
        Name in reports; "" uses the file's name and the run's number.
    job
        Entries that differ from the job, by dotted key: ``model.num_layers``, ``cluster.num_devices``,
        ``training.global_batch_size``.
    strategy
        Decisions that differ from the job's ``strategy``. The run never has the job's ``dp`` and ``layout``; with ``pp:
        1`` it has no pipeline decisions either.
    step_seconds
        Measured step; None where it comes from ``traces``, or was not measured.
    traces
        Profiler traces of the run, one for each rank recorded, relative to the file.
    peak_memory_gib, memory_kind
        Measured peak of the fullest device, and its source: ``allocated``, ``reserved``, ``nvidia-smi``.
    """

    name: str = ""
    job: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    step_seconds: Measured | None = None
    traces: tuple[str, ...] = ()
    peak_memory_gib: Measured | None = None
    memory_kind: str = ""


@strict_record(frozen=True, kw_only=True, slots=True)
class SmallRuns:
    """
    A file of small runs.

    Parameters
    ----------
    runs
        At least one run.
    """

    runs: Annotated[tuple[SmallRun, ...], Field(min_length=1)]


def small_runs(paths: Sequence[Path], problem: Problem) -> tuple[Case, ...]:
    """
    Read the small runs of some files as jobs with strategies.

    Parameters
    ----------
    paths
        YAML as :class:`SmallRuns`, with each run's differences from the job; or CSV with the columns of ``planner
        calibrate``, each row complete.
    problem
        The whole job.

    Raises
    ------
    SpecError
        If a file or a run in it is wrong, or there is none.
    """
    found = tuple(one for path in paths for one in _read_file(path, problem))
    if not any(one.run.step_seconds for one in found):
        raise SpecError("small runs", "none has a step time.", EXAMPLE)
    return found


def _read_file(path: Path, problem: Problem) -> Iterator[Case]:
    if path.name.endswith((".json", ".json.gz")):
        raise SpecError(
            str(path),
            "is a trace, which does not name its job.",
            "Name it under 'traces' of a run: runs: [{job: {model.num_layers: 2}, traces: [rank0.json.gz]}].",
        )
    if path.suffix == ".csv":
        yield from _read_table_runs(path)
        return
    document = read_mapping(path, needs=EXAMPLE)
    given = build(SmallRuns, document if "runs" in document else {"runs": [document]}, str(path))
    for number, one in enumerate(given.runs):
        yield _read_small_run(one, problem, path, f"{path}: runs.{number}")


def _read_small_run(one: SmallRun, problem: Problem, path: Path, where: str) -> Case:
    """Read one run of a file, with the doubts of its traces."""
    _require_measured(one, where)
    traces = [read_trace(path.parent / name) for name in one.traces]
    for trace in traces:
        require_device(trace, problem.facts.cluster.device)
    known = References(models={MODEL: problem.document["model"]})
    small = _build_case(where, _run(one, problem, path, where, traces), known)
    return replace(small, run=replace(small.run, doubts=doubts_of(traces, small))) if traces else small


def _require_measured(one: SmallRun, where: str) -> None:
    """Refuse a run without measurements, or with two step times."""
    if one.step_seconds is None and one.peak_memory_gib is None and not one.traces:
        raise SpecError(where, "has neither step_seconds nor traces nor peak_memory_gib: nothing was measured.")
    if one.step_seconds is not None and one.traces:
        raise SpecError(f"{where}.step_seconds", "is given with traces, which have their own step time; keep one.")
    if one.memory_kind not in ("", *MEMORY_KINDS):
        raise SpecError(f"{where}.memory_kind", f"expected one of {', '.join(MEMORY_KINDS)}, got '{one.memory_kind}'.")


def _read_table_runs(path: Path) -> Iterator[Case]:
    known = references(None, path.parent)
    for row in read_table(path):
        if isinstance(row, RejectedRow):
            raise SpecError(f"{path}: {row.id}", row.reason)
        yield _build_case(f"{path}: {row.id}", row, known)


def _build_case(where: str, run: Run, known: References) -> Case:
    """Build the case of a run; errors name the run."""
    try:
        return case(run, known)
    except SpecError as error:
        raise SpecError(f"{where}: {error.where}", error.problem, error.hint) from None


def _run(one: SmallRun, problem: Problem, path: Path, where: str, traces: Sequence[Trace]) -> Run:
    return Run(
        id=one.name or f"{path.name}, run {where.rpartition('.')[2]}",
        source=str(path),
        date="",
        kind="proxy",
        entries=_entries(one, problem, where),
        step_seconds=traced_seconds(traces) if traces else one.step_seconds,
        peak_memory_gib=one.peak_memory_gib,
        memory_kind=one.memory_kind,
    )


def _entries(one: SmallRun, problem: Problem, where: str) -> dict[str, Any]:
    """Return the whole job's sections, with the run's differences."""
    different = nest_entries(one.job)
    for name in different:
        if name not in SECTIONS:
            raise SpecError(f"{where}.job.{name}", f"cannot be changed by a small run; allowed: {', '.join(SECTIONS)}.")
    whole = {name: dict(problem.document.get(name) or {}) for name in SECTIONS if name != "model"}
    sections = merge_mappings(whole, {name: entry for name, entry in different.items() if name != "model"})
    return {**sections, "model": {"base": MODEL, **_model(different, where)}, "strategy": _strategy(one, problem)}


def _model(different: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    changes = different.get("model", {})
    if not isinstance(changes, Mapping):
        problem = f"is '{changes}': a small run has the job's own model."
        raise SpecError(f"{where}.job.model", problem, "Give the reduced entries, such as model.num_layers: 2.")
    return changes


def _strategy(one: SmallRun, problem: Problem) -> dict[str, Any]:
    """Return the job's strategy with the run's differences; its stages are those of the whole job."""
    given = problem.document.get("strategy") or {}
    dropped = {"dp", "layout", *(OF_PIPELINES if str(one.strategy.get("pp")) == "1" else ())}
    kept = {name: value for name, value in given.items() if name not in dropped}
    return {**kept, **one.strategy}
