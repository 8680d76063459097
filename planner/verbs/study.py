"""The verb ``study``: one job changed in one thing, each point a proven plan."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from costmodel.errors import SpecError, did_you_mean
from costmodel.events import log_progress
from costmodel.models.flops import linearity_fraction
from costmodel.quantities import COUNT, RATE, finite
from costmodel.validation import require_type, shown
from planner.jobs.entries import kinds
from planner.jobs.line import PIN
from planner.jobs.problem import Problem, load
from planner.results import LOCAL_STEPS_CAVEAT, Plan, PlanReport
from planner.search.branch_and_bound import Status
from planner.search.domains import num_held
from planner.verbs.plan import plan
from planner.verbs.study_axes import AXES, reschedule
from planner.verbs.study_names import FEATURES, STUDIES
from planner.verbs.study_points import Axis, Point, Series, StudyReport

OF_A_PLAN = (FEATURES, "schedule", "reliability")
"""Studies of a plan: without one there is nothing to study."""

Values: TypeAlias = Mapping[str, Sequence[Any]]


def study(
    job: Problem | str | os.PathLike[str] | Mapping[str, Any],
    name: str,
    values: Values | None = None,
    *,
    step_seconds: float | None = None,
) -> StudyReport:
    """
    Change a job in one thing at a time, and plan it each time.

    Parameters
    ----------
    job
        The job; one that is not yet read as :func:`planner.load` takes it, such as a path or a mapping.
    name
        Name of the study, one of :data:`planner.verbs.study_names.STUDIES`.
    values
        Values by name of the entry, such as ``{"vpp": [1, 2, 4]}``; only these entries are studied. Default: all
        entries of the study with usual values.
    step_seconds
        Measured step that the study of reliability counts with instead of the plan's.

    Raises
    ------
    SpecError
        If the study, an entry or a value is unknown or impossible, fewer than two values are given, or the study does
        not apply to the job.

    >>> from planner import load
    >>> job = load(
    ...     {
    ...         "model": "llama3-8b",
    ...         "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    ...         "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    ...     }
    ... )
    >>> (series,) = study(job, "schedule", {"mbs": [1, 2]}).series
    >>> [point.plan.strategy.mbs for point in series.points]
    [1, 2]
    """
    problem = job if isinstance(job, Problem) else load(job)
    _require_study(problem, name, values or {})
    base = plan(problem.change_limits(simplest=False), certified=False, explained=False)
    best = base.plans[0] if base.plans else None
    if step_seconds is not None:
        best = _replace_step(problem, best, name, step_seconds)
    found = StudyReport(name=name, problem=problem, base=best, status=base.outcome.status)
    if best is None and name in OF_A_PLAN:
        return replace(found, notes=(NO_PLAN if found.status is Status.INFEASIBLE else NO_TIME,))
    if name == FEATURES:
        from planner.verbs.study_features import study_features

        assert best is not None, "a study of features has a plan"
        return replace(found, features=tuple(study_features(problem, best)))
    axes, notes = _choose_axes(problem, best, name, values or {})
    if name == "sites":
        notes = (*notes, LOCAL_STEPS_CAVEAT)
    series = tuple(_study_axis(axis, problem, base, best, values or {}) for axis in axes)
    return replace(found, series=series, notes=notes)


NO_PLAN = "no strategy fits: 'planner explain' with the same job says why."
"""Note on a job for which it is proven that nothing fits."""

NO_TIME = "time ran out before a strategy was found: raise --time-limit."
"""Note on a job whose search ended without a plan and without a proof."""


def _require_study(problem: Problem, name: str, values: Values) -> None:
    """Refuse unknown names, and jobs that a study cannot change."""
    require_type(name, str, "study", "the name of a study")
    if name not in STUDIES:
        raise SpecError("study", f"there is no study {shown(name)}.", did_you_mean(name, STUDIES))
    known = [axis.name for axis in AXES.get(name, ())]
    require_type(values, Mapping, "values", "lists of values by the names of entries")
    for entry in values:
        if not known:
            raise SpecError(
                f"values.{entry}", f"the study '{name}' takes no values: it reads the features of the plan."
            )
        if entry not in known:
            hint = did_you_mean(entry, known)
            raise SpecError(f"values.{entry}", f"is no entry of the study '{name}'.", hint)
        if isinstance(values[entry], str) or not isinstance(values[entry], Iterable):
            raise SpecError(f"values.{entry}", f"expected a list of values, got {shown(values[entry])}.")
    listed = problem.search.candidates
    if listed is not None and (name not in (FEATURES, "reliability") or listed.source != PIN):
        raise SpecError(
            listed.source, f"names whole strategies: nothing is left that the study '{name}' could choose.", "Drop it."
        )


def _replace_step(problem: Problem, best: Plan | None, name: str, step_seconds: float) -> Plan | None:
    """Return the plan with a measured step, and the checkpoints that follow from it."""
    if name != "reliability":
        raise SpecError("step", f"the study '{name}' predicts steps; 'reliability' takes a measured one.")
    require_type(step_seconds, (int, float), "step", "a number of seconds")
    if not 0 < step_seconds < math.inf:
        raise SpecError("step", f"must be positive and finite, got {step_seconds:g}.")
    if best is None:
        return None
    measured = replace(best, estimate=replace(best.estimate, step_seconds=step_seconds))
    return reschedule(measured, problem)


def _choose_axes(problem: Problem, best: Plan | None, name: str, values: Values) -> tuple[list[Axis], tuple[str, ...]]:
    """Return the entries to change, and a note on each that does not apply to the job."""
    asked = [axis for axis in AXES[name] if not values or axis.name in values]
    refused = {axis.name: text for axis in asked if (text := axis.refusal(problem, best))}
    chosen = [axis for axis in asked if axis.name not in refused]
    if not chosen:
        raise SpecError("study", f"'{name}' does not apply to this job: {' '.join(dict.fromkeys(refused.values()))}")
    return chosen, tuple(f"{name} does not apply to this job: {text}" for name, text in refused.items())


def _study_axis(axis: Axis, problem: Problem, base: PlanReport, best: Plan | None, values: Values) -> Series:
    given = values.get(axis.name)
    read = _read_values(axis, axis.defaults(problem, best) if given is None else given)
    if len(read) < 2:
        number = f"has one value, {next(iter(read.values()))}" if read else "has no value"
        hint = f"Write --values {axis.name}=VALUE,VALUE."
        raise SpecError(f"values.{axis.name}", f"{number}; a study compares at least two.", hint)
    own = axis.own(problem, best)
    points = tuple(_points(axis, problem, base, best, read))
    if axis.is_scale:
        points = tuple(_add_linearity(points))
    return Series(
        name=axis.name, label=axis.label, points=points, own=own if own in [one.value for one in points] else None
    )


def _read_values(axis: Axis, values: Sequence[Any]) -> dict[float, str]:
    """Return the texts of values by their numbers, ascending, each once."""
    kind, where = kinds().get(axis.entry, COUNT), f"values.{axis.name}"
    read = {finite(_text(value), kind, where): _text(value) for value in values}
    for value in read:
        if not axis.entry and not (value.is_integer() and value >= 1):
            raise SpecError(where, f"expected whole numbers from 1, got {value:g}.")
        if not axis.is_read and value < 0:
            raise SpecError(where, f"must be at least 0, got {value:g}.")
    return dict(sorted(read.items()))


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _words(axis: Axis, value: float, text: str) -> str:
    """Return a value as people read it: as it was given, computed ones in four digits and a common unit."""
    if not isinstance(value, float) or text != repr(value) or (value.is_integer() and value < MOST_WHOLE):
        return text
    return f"{value / 1e9:.4g} GB/s" if kinds().get(axis.entry) is RATE else f"{value:.4g}"


MOST_WHOLE = 1e6
"""Whole numbers from which on people read a unit."""


def _points(
    axis: Axis, problem: Problem, base: PlanReport, best: Plan | None, values: Mapping[float, str]
) -> Iterator[Point]:
    for number, (value, text) in enumerate(values.items()):
        log_progress(__name__, f"{axis.name} is studied", number, len(values))
        changed = [f"{axis.entry}={text}", *axis.also(problem, value)] if axis.is_read else []
        job = load(problem.document, changed, name=problem.name) if changed else problem
        words = _words(axis, value, text)
        try:
            found, status = _plan_point(axis, job, base, best, value)
            yield Point(value=value, text=words, plan=found, status=status)
        except SpecError as error:
            if error.where.partition(".")[0] != "reliability":
                raise
            yield Point(
                value=value, text=_words(axis, value, text), plan=None, status=Status.INFEASIBLE, reason=STANDSTILL
            )


STANDSTILL = "failures outrun progress"
"""Reason of points at which no training ends."""


def _plan_point(
    axis: Axis, job: Problem, base: PlanReport, best: Plan | None, value: float
) -> tuple[Plan | None, Status]:
    """Return the plan of a point with the status of its search: the job's own where nothing was changed."""
    if axis.plan is not None:
        assert best is not None, "the study has a plan"
        return axis.plan(best, job, value), base.outcome.status
    if value == axis.own(base.problem, best):
        return best, base.outcome.status
    report = plan(job.change_limits(simplest=False), certified=False, explained=False)
    return next(iter(report.plans), None), report.outcome.status


def _add_linearity(points: Sequence[Point]) -> Iterator[Point]:
    """Add the linearity of each point over the first one that has a plan."""
    first = next((point.plan for point in points if point.plan), None)
    for point in points:
        if first is None or point.plan is None:
            yield point
            continue
        base, own = (replace(one.facts.cluster, num_devices=num_held(one.problem)) for one in (first, point.plan))
        yield replace(
            point,
            linearity_fraction=linearity_fraction(
                (base, first.facts.workload),
                (own, point.plan.facts.workload),
                base_step_seconds=first.step_seconds,
                step_seconds=point.plan.step_seconds,
            ),
        )
