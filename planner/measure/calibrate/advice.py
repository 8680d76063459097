"""Runs to measure next: other layouts of the same jobs, those first that reduce the uncertainty of all others most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from constraints.rules.physics import fits_in_device_memory
from costmodel.errors import PlanningError
from costmodel.record import record
from costmodel.step.layouts import strategy_bytes
from planner.jobs.run_jobs import References, Run
from planner.measure.calibrate.cases import Array, Predictor
from planner.measure.calibrate.constants import Constant
from planner.measure.calibrate.fit import priors_of
from planner.measure.runs.predictions import Case, case

OF_MODEL, OF_LAYOUT, FALLS_OVER, OF_RUN = 0.057, 0.060, 2.6, 0.029

"""
Standard deviations of the logarithm of measured over predicted time that constants leave on an unseen stack.

They belong to all runs of one model, to its layouts, whose common part falls to 1/e over the distance, and to one run.
They are the likeliest ones of the published stacks (``python -m benchmarks.learning_curve --spread``).
"""


def common_covariance(runs: Sequence[Case]) -> Array:
    r"""
    Return the common covariance of runs on an unseen stack, without the noise of each; shape (runs, runs).

    .. math:: [m_i = m_j] (\sigma_m^2 + \sigma_l^2 e^{-d_{ij} / \ell})

    A doubled degree, or a changed feature, is a distance of 1.

    References
    ----------
    Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001: constants and a discrepancy, fitted together.
    """
    names = np.array([one.facts.model.name for one in runs])
    is_same = names[:, None] == names
    return np.asarray(is_same * (OF_MODEL**2 + OF_LAYOUT**2 * np.exp(-distances(runs) / FALLS_OVER)))


DOUBLED = ("tp", "pp", "cp", "ep", "mbs", "vpp")

CHANGED = ("recompute", "sharding", "cuda_graphs", "tp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")

"""Decisions whose doublings, or changes, count as a distance of 1 each."""


def distances(runs: Sequence[Case]) -> Array:
    """Return distances between layouts: doublings of sizes and degrees, and different features; shape (runs, runs)."""
    sizes = np.log2([_sizes(one) for one in runs])
    features = np.array([_features(one) for one in runs])
    doubled = np.abs(sizes[:, None, :] - sizes).sum(axis=2)
    changed = (features[:, None, :] != features).sum(axis=2)
    return np.asarray(doubled + changed, dtype=np.float64)


def _sizes(one: Case) -> list[float]:
    workload, decisions = one.facts.workload, one.strategy.decisions()
    num_devices = one.run.num_devices
    per_device = workload.global_batch_size / num_devices
    return [num_devices, workload.sequence_length, per_device, *(float(decisions[name]) for name in DOUBLED)]


def _features(one: Case) -> list[str]:
    return [one.facts.workload.precision.name, *(str(one.strategy.decisions()[name]) for name in CHANGED)]


First: TypeAlias = tuple[list[Case], tuple[float, ...]]
"""
Planned runs, the most informative first, and expected errors of their step times, as standard deviations.

The first error is before any of them is measured, the others after each.
"""


def measure_first(
    planned: Sequence[Case], timed: Sequence[Case], constants: Sequence[Constant], known: References
) -> First:
    """
    Order planned runs: first the run that narrows the constants most.

    Parameters
    ----------
    planned
        At least one run that was not measured.
    timed
        Measured runs.
    constants, known
        Constants of a fit, with priors; references of the runs.
    """
    runs = [*timed, *planned]
    logs = priors_of(constants).mean
    slopes = Predictor(cases=runs, constants=constants, known=known).jacobian(logs)
    whole = joint_covariance(runs, slopes, priors_of(constants).sigma)
    for row in range(len(timed)):
        whole = measure_run(whole, row)
    order, errors = greedy(whole[len(timed) :, len(timed) :])
    return [planned[index] for index in order], errors


def joint_covariance(runs: Sequence[Case], slopes: Array, sigma: Array) -> Array:
    r"""
    Return the covariance of the logarithms of runs on an unseen stack.

    .. math:: K = J S J^T + D

    J: slopes by the constants; S: their prior variances; D: errors of the formulas
    (:func:`common_covariance`).
    """
    reach = slopes * sigma
    return np.asarray(reach @ reach.T + common_covariance(runs))


def residual_covariance(runs: Sequence[Case], timed: Sequence[Case]) -> Array:
    """Return the covariance that constants do not explain, after other runs were measured; shape (runs, runs)."""
    whole = common_covariance([*timed, *runs])
    for row in range(len(timed)):
        whole = measure_run(whole, row)
    return whole[len(timed) :, len(timed) :]


def measure_run(whole: Array, row: int) -> Array:
    """Return the covariance after one run is measured."""
    column = whole[:, row]
    return np.asarray(whole - np.outer(column, column) / (whole[row, row] + OF_RUN**2))


def greedy(whole: Array) -> tuple[list[int], tuple[float, ...]]:
    """
    Order runs so that each lowers the sum of all variances most; return the order, and the deviation after each.

    References
    ----------
    I-optimal design, one run after the other: Sacks et al., "Design and Analysis of Computer Experiments", 1989.
    """
    left, order = list(range(len(whole))), []
    errors = [_deviation(whole)]
    while left:
        gains = (whole[:, left] ** 2).sum(axis=0) / (whole[left, left] + OF_RUN**2)
        best = left.pop(int(gains.argmax()))
        order.append(best)
        whole = measure_run(whole, best)
        errors.append(_deviation(whole))
    return order, tuple(errors)


def _deviation(whole: Array) -> float:
    """Return the root of the mean variance, including the noise of a measurement."""
    return float(np.sqrt(np.diag(whole).mean() + OF_RUN**2))


MOST_CANDIDATES = 60

MOST_MORE = 12

SHOWN = 3

WELL_KNOWN = 0.03

"""Error of a step time from the constants' widths that is small enough: the noise of a measurement itself is 2 %."""

DEGREES = (1, 2, 4, 8, 16)

RECOMPUTES = ("none", "full")


@record(frozen=True, kw_only=True, slots=True)
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


@record(frozen=True, kw_only=True, slots=True)
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
    slopes = Predictor(cases=candidates, constants=constants, known=known, is_at_once=True).jacobian(logs)
    begin = _spread(slopes, covariance)
    num_more: int | None = 0 if begin <= WELL_KNOWN else None
    suggestions: list[Suggestion] = []
    order, _ = greedy(slopes @ covariance @ slopes.T + residual_covariance(candidates, timed))
    for count, best in enumerate(order[:MOST_MORE], start=1):
        narrowed = narrow_covariance(slopes[best], covariance, noise)
        found = _suggestion(candidates[best].run, constants, covariance, narrowed)
        narrows = found.width_after <= NARROWED * found.width_before
        if len(suggestions) < SHOWN and narrows and round(found.width_after, 2) < round(found.width_before, 2):
            suggestions.append(found)
        covariance = narrowed
        if num_more is None and _spread(slopes, covariance) <= WELL_KNOWN:
            num_more = count
    return Advice(spread=begin, num_more=num_more, suggestions=tuple(suggestions))


NARROWED = 0.9
"""Largest width of a constant after a suggested run, over that before it; others do not determine it."""


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
    nbytes, _ = strategy_bytes(one.facts, one.strategy)
    fits = fits_in_device_memory(one.facts.cluster, device_bytes=nbytes, memory_headroom_bytes=0.0)
    return one if bool(fits) else None
