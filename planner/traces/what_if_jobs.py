"""The recorded job and the wanted one: what of their difference a changed step shows, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.strategy import default_microbatch_group
from costmodel.traces.shapes import sizes_of
from planner.jobs.line.reading import read_decisions
from planner.jobs.problem import Problem, load, split_overrides
from planner.plan import estimate
from planner.results import EstimateReport
from planner.traces.what_if import same_shapes

DEALT_OUT = ("tp", "pp", "dp", "vpp", "mbs", "schedule", "sequence_parallel")
"""Decisions that deal out anew what was recorded, or give it other sizes."""

SIZES = ("training.sequence_length", "training.global_batch_size", "cluster.num_devices")
"""Entries besides the sizes of the model that do."""

NO_STEP = ("training.tokens", "reliability", "search", "objective", "top", "variants", "strategy", "model.name")
"""Entries on which a step does not depend; what they say of the strategy is compared as decisions."""

CHANGEABLE = (
    f"A trace can be changed in layers and microbatches, sizes of the model, {', '.join(SIZES)}, the decisions "
    f"{', '.join(DEALT_OUT)}; --faster, --cuda-graphs, --no-overlap."
)


def changed_jobs(path: Path, assignments: Sequence[str]) -> tuple[EstimateReport, EstimateReport]:
    """
    The job as it was recorded, and with what was assigned.

    Parameters
    ----------
    path
        The job's file.
    assignments
        Entries and decisions, as ``key=value``.

    Raises
    ------
    SpecError
        If the job or an assignment is wrong; if the assignments change what no changed step shows.
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
    Refuse what differs between two jobs, but in no step made of a trace of the first.

    Decisions that nobody gave may differ: they follow from those that somebody did.

    Parameters
    ----------
    before, after
        The job that was recorded, and the wanted one.

    Raises
    ------
    SpecError
        With what can be changed.
    """
    for name, old, new in _decisions(before, after):
        raise SpecError(
            name,
            f"is {_text(new)}, but {_text(old)} in the recorded job, and nothing is known of the step with it.",
            CHANGEABLE,
        )
    for name, old, new in _entries(before.problem, after.problem):
        raise SpecError(
            name,
            f"is {_text(new)}, but {_text(old)} in the recorded job, and nothing is known of the step with it.",
            CHANGEABLE,
        )


def _decisions(before: EstimateReport, after: EstimateReport) -> Iterator[tuple[str, object, object]]:
    """Decisions that somebody gave, that differ, and that no changed step shows."""
    old, new = before.plan.strategy, after.plan.strategy
    for name, value in new.decisions().items():
        differs = value != getattr(old, name) and name not in after.assumed
        usual = name == "group" and value == int(default_microbatch_group(pp=new.pp, vpp=new.vpp))
        if differs and not usual and name not in DEALT_OUT:
            yield name, getattr(old, name), value
    if old.tp > 1 and new.tp > 1 and old.sequence_parallel != new.sequence_parallel:
        yield "sequence_parallel", old.sequence_parallel, new.sequence_parallel


def _entries(before: Problem, after: Problem) -> Iterator[tuple[str, object, object]]:
    """Entries that differ, without those that a changed step shows, and those of the model."""
    old, new = (dict(_leaves(one.document)) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        shown = name in SIZES or any(name == one or name.startswith(f"{one}.") for one in NO_STEP)
        is_layout = name.startswith("strategy.layout")
        is_model = name.startswith("model")
        if old.get(name) != new.get(name) and (is_layout or not (shown or is_model)):
            yield name, old.get(name), new.get(name)


def _leaves(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The entries of a document that have no others in them, with their dotted names."""
    for name, value in entries.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _require_sizes(path: Path, overrides: Sequence[str], number: int, after: EstimateReport) -> None:
    """Refuse an entry of the model without which all sizes and layers are the same."""
    name, _, value = overrides[number].partition("=")
    try:
        other = load(path, [one for place, one in enumerate(overrides) if place != number]).facts
    except SpecError:
        return  # without it the others are no model: they belong together
    facts, strategy = after.plan.facts, after.plan.strategy
    sizes = [sizes_of(one.model, one.workload, strategy) for one in (other, facts)]
    unused = same_shapes(*sizes) and other.model.num_layers == facts.model.num_layers
    if unused and other.model != facts.model:
        raise SpecError(
            name.strip(), f"is {value.strip()}: no size and no number of layers is another one with it.", CHANGEABLE
        )


def _text(value: object) -> str:
    """A value as job files spell it; shortened."""
    if value is None:
        return "not given"
    found = getattr(value, "text", None)
    return str(found if isinstance(found, str) else value).lower()[:60]
