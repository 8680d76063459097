"""Runs to measure next: other layouts of the same jobs, those first that reduce the uncertainty of all others most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from constraints.rules.memory import fits_in_device_memory
from costmodel.errors import PlanningError
from costmodel.step.layouts import strategy_cost
from planner.jobs.run_jobs import References
from planner.jobs.run_table import Run
from planner.measure.calibrate.cases import Array, Predictor
from planner.measure.calibrate.constants import Constant
from planner.measure.calibrate.first import greedy, unexplained_covariance
from planner.measure.runs.predictions import Case, case

MOST_CANDIDATES = 60
MOST_MORE = 12
SHOWN = 3

WELL_KNOWN = 0.03
"""Error of a step time from the constants' widths that is small enough: the noise of a measurement itself is 2 %."""

DEGREES = (1, 2, 4, 8, 16)
RECOMPUTES = ("none", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """
    One run worth measuring.

    Parameters
    ----------
    run
        Its layout, as a row without measurements.
    constant
        The constant that it narrows most.
    width_before, width_after
        Standard deviations of that constant's logarithm.
    """

    run: Run
    constant: str
    width_before: float
    width_after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """
    Verdict on the number of runs, and further runs to measure.

    Parameters
    ----------
    spread
        Error of a step time from the constants' widths, in the median over other layouts of the same jobs.
    num_more
        Further runs after which it is below ``WELL_KNOWN``; 0 if the runs are enough; None if more of these jobs do not
        reach it.
    suggestions
        The first of these runs.
    """

    spread: float
    num_more: int | None
    suggestions: tuple[Suggestion, ...]


def advice(
    timed: Sequence[Case],
    constants: Sequence[Constant],
    known: References,
    *,
    logs: Array,
    covariance: Array,
    noise: float,
) -> Advice:
    """
    Choose runs one after the other, each the one that lowers the sum of all candidates' variances most.

    This is better than narrowing the constants most: such runs are unusual ones, which formulas describe worst
    (``python -m benchmarks.learning_curve --variants``).

    Parameters
    ----------
    timed, constants, known
        Runs, constants and references of the fit.
    logs, covariance
        The constants' logarithms and their covariance.
    noise
        Error of one more measurement.
    """
    candidates = list(_candidates(timed, known))
    if not candidates:
        return Advice(spread=0.0, num_more=None, suggestions=())
    slopes = Predictor(cases=candidates, constants=constants, known=known).jacobian(logs)
    begin = _spread(slopes, covariance)
    num_more: int | None = 0 if begin <= WELL_KNOWN else None
    suggestions: list[Suggestion] = []
    order, _ = greedy(slopes @ covariance @ slopes.T + unexplained_covariance(candidates, timed))
    for count, best in enumerate(order[:MOST_MORE], start=1):
        narrowed = narrow_covariance(slopes[best], covariance, noise)
        if len(suggestions) < SHOWN:
            suggestions.append(_suggestion(candidates[best].run, constants, covariance, narrowed))
        covariance = narrowed
        if num_more is None and _spread(slopes, covariance) <= WELL_KNOWN:
            num_more = count
    return Advice(spread=begin, num_more=num_more, suggestions=tuple(suggestions))


def narrow_covariance(slope: Array, covariance: Array, noise: float) -> Array:
    """Return the constants' covariance after one more run."""
    reach = covariance @ slope
    return np.asarray(covariance - np.outer(reach, reach) / (noise**2 + float(reach @ slope)))


def _spread(slopes: Array, covariance: Array) -> float:
    return float(np.sqrt(np.median(((slopes @ covariance) * slopes).sum(axis=1))))


def _suggestion(run: Run, constants: Sequence[Constant], before: Array, after: Array) -> Suggestion:
    widths_before, widths_after = np.sqrt(np.diag(before)), np.sqrt(np.diag(after))
    narrowed = int((widths_before - widths_after).argmax())
    return Suggestion(
        run=run,
        constant=constants[narrowed].fields[0],
        width_before=float(widths_before[narrowed]),
        width_after=float(widths_after[narrowed]),
    )


def _candidates(timed: Sequence[Case], known: References) -> Iterator[Case]:
    """Yield other layouts of the measured jobs that are possible and fit into memory, spread over the jobs."""
    seen = {_layout(one) for one in timed}
    jobs = {_job(one): one for one in timed}
    each = max(MOST_CANDIDATES // len(jobs), 1)
    for template in jobs.values():
        found = 0
        for run in _variations(template):
            one = _possible(run, known)
            if one and _layout(one) not in seen:
                found += 1
                yield one
            if found == each:
                break


def _layout(one: Case) -> tuple[object, ...]:
    return (*_job(one), *one.strategy.decisions().values())


def _job(one: Case) -> tuple[str, int, str, int]:
    """Return the key that identifies a job in suggestions."""
    workload = one.facts.workload
    return (one.run.model, workload.sequence_length, workload.precision.name, one.run.num_devices)


def _variations(template: Case) -> Iterator[Run]:
    """Yield layouts of a run, from the least to the most divided."""
    run, cp = template.run, template.strategy.cp
    model, sequence_length, dtype, num_devices = _job(template)
    kept = {name: run.entries["strategy"][name] for name in ("cp", "ep") if name in run.entries["strategy"]}
    for tp, pp, mbs in ((tp, pp, mbs) for mbs in (1, 2, 4) for pp in DEGREES for tp in DEGREES):
        for recompute in RECOMPUTES:
            if tp <= template.facts.cluster.scale_up_size and not num_devices % (tp * pp * cp):
                strategy = {**kept, "tp": tp, "pp": pp, "mbs": mbs, "recompute": recompute}
                yield replace(
                    run,
                    id=f"{model}, {sequence_length} tokens, {dtype}, on {num_devices} devices: "
                    f"tp={tp} pp={pp} mbs={mbs} recompute={recompute}",
                    entries={**run.entries, "strategy": strategy},
                    step_seconds=None,
                    peak_memory_gib=None,
                )


def _possible(run: Run, known: References) -> Case | None:
    try:
        one = case(run, known)
    except PlanningError:
        return None
    nbytes = float(strategy_cost(one.facts, one.strategy).device_bytes)
    fits = fits_in_device_memory(one.facts.cluster, device_bytes=nbytes, memory_headroom_bytes=0.0)
    return one if bool(fits) else None
