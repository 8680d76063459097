"""The recorded job and the wanted one: differences that a changed step covers, and those that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.strategy import default_microbatch_group
from planner.jobs.line import read_decisions
from planner.jobs.problem import Problem, load, split_overrides
from planner.measure.traces.report.what_if import same_shapes
from planner.measure.traces.shapes import sizes_of
from planner.results import EstimateReport
from planner.verbs.plan import estimate

DEALT_OUT = ("tp", "pp", "dp", "vpp", "mbs", "schedule", "sequence_parallel")
"""Decisions that redistribute the recorded work, or change its sizes."""

SIZES = ("training.sequence_length", "training.global_batch_size", "cluster.num_devices")
"""Entries outside of the model that do so."""

NO_STEP = ("training.tokens", "reliability", "search", "objective", "top", "variants", "strategy", "model.name")
"""Entries on which a step does not depend; their effect on the strategy is compared as decisions."""

CHANGEABLE = (
    f"A trace can be changed in layers and microbatches, sizes of the model, {', '.join(SIZES)}, the decisions "
    f"{', '.join(DEALT_OUT)}; --faster, --cuda-graphs, --no-overlap."
)


def read_changed_jobs(path: Path, assignments: Sequence[str]) -> tuple[EstimateReport, EstimateReport]:
    """
    Read the recorded job, and the job with assignments.

    Parameters
    ----------
    path
        The job's file.
    assignments
        Entries and decisions, as ``key=value``.

    Raises
    ------
    SpecError
        If the job or an assignment is wrong, or an assignment cannot be predicted from a trace.
    """
    overrides, decisions = split_overrides(assignments)
    before = estimate(load(path), {}, searched=False)
    wanted, asked = load(path, overrides), read_decisions(decisions)
    replicas = {name: value for name, value in wanted.given.decisions.items() if name == "dp"}
    after = estimate(wanted, {**replicas, **asked}, searched=False)
    require_shown(before, after)
    for number, override in enumerate(overrides):
        if override.startswith("model."):
            _require_sizes(path, overrides, number, after)
    return before, after


def require_shown(before: EstimateReport, after: EstimateReport) -> None:
    """
    Raise if two jobs differ in an entry that cannot be predicted from a trace of the first.

    Decisions that were not given may differ: they follow from the given ones.

    Parameters
    ----------
    before, after
        The recorded job, and the wanted one.

    Raises
    ------
    SpecError
        With the changes that are possible.
    """
    for name, old, new in (*_decisions(before, after), *_entries(before.problem, after.problem)):
        raise SpecError(
            name,
            f"is {_text(new)}, but {_text(old)} in the recorded job, and its effect on the step is unknown.",
            CHANGEABLE,
        )


def _decisions(before: EstimateReport, after: EstimateReport) -> Iterator[tuple[str, object, object]]:
    """Yield given decisions that differ and cannot be predicted."""
    old, new = before.plan.strategy, after.plan.strategy
    for name, value in new.decisions().items():
        differs = value != getattr(old, name) and name not in after.assumed
        usual = name == "group" and value == int(default_microbatch_group(pp=new.pp, vpp=new.vpp))
        if differs and not usual and name not in DEALT_OUT:
            yield name, getattr(old, name), value
    if old.tp > 1 and new.tp > 1 and old.sequence_parallel != new.sequence_parallel:
        yield "sequence_parallel", old.sequence_parallel, new.sequence_parallel


def _entries(before: Problem, after: Problem) -> Iterator[tuple[str, object, object]]:
    """Yield entries that differ, without predictable ones and those of the model."""
    old, new = (dict(_leaves(one.document)) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        shown = name in SIZES or any(name == one or name.startswith(f"{one}.") for one in NO_STEP)
        is_layout = name.startswith("strategy.layout")
        is_model = name.startswith("model")
        if old.get(name) != new.get(name) and (is_layout or not (shown or is_model)):
            yield name, old.get(name), new.get(name)


def _leaves(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a document, with their dotted names."""
    for name, value in entries.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _require_sizes(path: Path, overrides: Sequence[str], number: int, after: EstimateReport) -> None:
    """Raise if an entry of the model changes neither sizes nor layers."""
    name, _, value = overrides[number].partition("=")
    try:
        other = load(path, [one for place, one in enumerate(overrides) if place != number]).facts
    except SpecError:
        return  # without it the others are not a valid model
    facts, strategy = after.plan.facts, after.plan.strategy
    sizes = [sizes_of(one.model, one.workload, strategy) for one in (other, facts)]
    unused = same_shapes(*sizes) and other.model.num_layers == facts.model.num_layers
    if unused and other.model != facts.model:
        raise SpecError(
            name.strip(), f"is {value.strip()}: it changes neither a size nor the number of layers.", CHANGEABLE
        )


def _text(value: object) -> str:
    """Format a value as in job files, shortened."""
    if value is None:
        return "not given"
    found = getattr(value, "text", None)
    return str(found if isinstance(found, str) else value).lower()[:60]
