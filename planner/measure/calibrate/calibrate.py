"""A device's calibration from a user's own runs: fitted, judged on held-out runs, with runs to measure next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel import catalog
from costmodel.errors import PlanningError, SpecError
from costmodel.events import log_event
from costmodel.record import record, write_out
from costmodel.strategy import Strategy
from planner.jobs.cluster import device_of
from planner.jobs.document import nest_entries
from planner.jobs.run_jobs import PLANNED, References, RejectedRow, find_time_column
from planner.jobs.run_jobs import read as read_runs
from planner.measure.calibrate.advice import OF_LAYOUT, OF_MODEL, OF_RUN, Advice, First, advice, measure_first
from planner.measure.calibrate.cases import (
    LEAST_SENSITIVITY,
    Array,
    Predictor,
    folds_of,
    group_of,
    log_measured_seconds,
)
from planner.measure.calibrate.constants import Constant, around, calibration_fields, constants
from planner.measure.calibrate.fit import (
    NOISE,
    Candidates,
    Fit,
    Priors,
    candidates,
    choose_useful,
    covariance,
    fit_share,
    mean_error,
    priors_of,
)
from planner.measure.calibrate.published import Gain, Worth, gains_of, models_of, read_gains, worth_of_one
from planner.measure.runs.predictions import (
    Case,
    cases,
    find_missed_interval,
    find_unreported_recompute,
    not_predicted,
)
from planner.uncertainty.counts import population_of
from planner.uncertainty.intervals import COVERAGE, Interval

MOST_FOLDS = 10
"""Most fits of the leave-one-group-out error; more groups share folds."""

MOST_REPEATED = 1.25
"""Slowest over fastest measurement of one configuration; containers differ by 1.1 (see ``fit.NOISE``)."""

ODD = 3.5
"""
Deviations from the median of the other rows beyond which a row is odd.

Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993, with their deviation: the median absolute one over
0.6745.
"""

DETERMINED = 0.5
UNTOUCHED = 0.9
"""Posterior over prior width: at most the first, the runs determined a constant; above the second, the prior did."""


class Unfit(PlanningError):
    """
    The runs are too few or contradict each other, and nothing is fitted.

    Parameters
    ----------
    message
        The runs, and the missing ones.
    first
        Order in which to measure the planned runs; None where none are planned.
    """

    def __init__(self, message: str, first: First | None = None) -> None:
        super().__init__(message)
        self.first = first


@record(frozen=True, kw_only=True, slots=True)
class Determined:
    """
    One constant after the fit.

    Parameters
    ----------
    constant
        The constant, with its prior from the catalog in the units of the device's field.
    value
        Fitted value, in the units of the device's field.
    width
        Standard deviation of the logarithm after the fit.
    is_at_bound
        True where a physical bound limits it.
    """

    constant: Constant
    value: float
    width: float
    is_at_bound: bool

    @property
    def origin(self) -> str:
        """Source of the value: the runs, the catalog, or both."""
        narrowed = self.width / self.constant.sigma
        return "the runs" if narrowed <= DETERMINED else "runs and catalog" if narrowed <= UNTOUCHED else "the catalog"


@record(frozen=True, kw_only=True, slots=True)
class Calibration:
    """
    A calibration fitted to runs.

    Parameters
    ----------
    device
        The device with the fitted constants as plain data, for a job's ``cluster.device``.
    base
        The device of the catalog whose calibration was the prior.
    determined
        Every constant that a run depends on.
    num_runs, num_groups
        Number of fitted runs; number of their groups, which were held out in turn.
    error_before, error_left_out, error_fitted
        Mean absolute error of the step time: of the catalog; of held-out runs; of the fitted runs. That of held-out
        runs is to be expected on others of the stack. None: of one configuration nothing can be held out.
    worth_of_one
        Value of one run on published stacks.
    refused
        Rows with an error.
    skipped
        Rows without a predictable step time, or of another device, with reasons.
    advice
        Runs to measure next.
    first
        Order in which to measure the planned runs of the file; None where it plans none.
    doubts
        Names in rows that were replaced by known ones, runs outside their stated intervals, and odd rows: a sentence
        without a full stop each.
    """

    device: Mapping[str, Any]
    base: str
    determined: tuple[Determined, ...]
    num_runs: int
    num_groups: int
    error_before: float
    error_left_out: float | None
    error_fitted: float
    worth_of_one: Worth
    refused: tuple[RejectedRow, ...]
    skipped: tuple[RejectedRow, ...]
    advice: Advice
    first: First | None
    doubts: tuple[str, ...]

    @property
    def is_better(self) -> bool:
        """True unless held-out runs are predicted no better than by the catalog."""
        return self.error_left_out is None or self.error_left_out < self.error_before


def calibrate(runs: Path, known: References, *, name: str, base: str | None = None) -> Calibration:
    """
    Fit the calibration of a device to runs.

    Parameters
    ----------
    runs
        CSV with the columns of ``benchmarks/measured_runs/runs.csv``.
    known
        References of its rows.
    name
        Name of the new device.
    base
        Device of the catalog whose calibration is the prior. Only its rows and those of unknown devices are fitted.
        None uses the rows' device.

    Raises
    ------
    SpecError
        If there is no table, its rows are of several devices, or the catalog does not have the base.
    Unfit
        If the valid rows are too few, or contradict each other.
    """
    rows = list(read_runs(runs))
    if base is not None:
        base = catalog.find_device(base).device
        known = replace(known, device=base)
    found = list(cases(rows, known))
    timed = [one for one in found if isinstance(one, Case) and one.run.step_seconds is not None]
    reasons = [_reject_other_device(one, base) or find_unreported_recompute(one) for one in timed]
    timed = [one for one, reason in zip(timed, reasons, strict=True) if reason is None]
    others = (*(one for one in found if isinstance(one, RejectedRow)), *(reason for reason in reasons if reason))
    refused = tuple(one for one in others if one.is_refused)
    planned = [one for one in found if isinstance(one, Case) and one.run.kind == PLANNED]
    planned = [one for one in planned if base in (None, base_name(one))]
    if not planned:
        _require_enough(timed, others, None, runs)
    base = base or _one_device([*timed, *planned])
    first = measure_first(planned, timed, constants_of(base, known), known) if planned else None
    _require_enough(timed, others, first, runs)
    require_consistent(timed)
    skipped = tuple(one for one in others if not one.is_refused)
    return replace(_calibration(timed, known, base, name, runs.name), refused=refused, skipped=skipped, first=first)


# --- whether the runs can be fitted -------------------------------------------------------------------------


def base_name(case: Case) -> str:
    """Return the device of the catalog that a row's job names, or on which its device is based."""
    machine = case.problem.machine
    assert machine is not None, "a row's job is loaded, not made by hand"
    entry = machine.device
    own = {"base": entry} if isinstance(entry, str) else entry
    base = own.get("base")
    return catalog.find_device(base).device if isinstance(base, str) else str(own.get("name", "inline"))


def _reject_other_device(one: Case, base: str | None) -> RejectedRow | None:
    name = base_name(one)
    if base in (None, name):
        return None
    return not_predicted(one.run, f"{OF_ANOTHER_DEVICE} {name}", is_refused=False)


OF_ANOTHER_DEVICE = "not of the chosen device, but of"


def _one_device(timed: Sequence[Case]) -> str:
    names = sorted({base_name(case) for case in timed})
    if len(names) > 1:
        raise SpecError(
            "runs",
            f"are of {len(names)} devices: {', '.join(names)}.",
            "A calibration is of one device: choose it with --device.",
        )
    return names[0]


def _require_enough(timed: Sequence[Case], others: Sequence[RejectedRow], first: First | None, runs: Path) -> None:
    if not timed:
        refused = [one for one in others if one.is_refused]
        wrong = f" First refused: {refused[0].id}: {refused[0].reason}" if refused else ""
        strangers = Counter(one.reason for one in others if one.reason.startswith(OF_ANOTHER_DEVICE))
        elsewhere = "".join(f" Runs {reason}: {count}." for reason, count in strangers.items())
        meant = find_time_column(runs)
        column = f" No column is step_seconds: rename '{meant}' if it holds step times in seconds." if meant else ""
        raise Unfit(
            f"Too few runs: none with a step time, and {len(refused)} rows were refused.{elsewhere}{wrong}{column}",
            first,
        )


def require_consistent(timed: Sequence[Case]) -> None:
    """
    Refuse runs of one configuration whose times differ too much.

    Raises
    ------
    Unfit
        If one takes more than ``MOST_REPEATED`` times as long as another.
    """
    times: dict[Any, list[Case]] = {}
    for case in timed:
        times.setdefault(_configuration(case), []).append(case)
    for same in times.values():
        fastest, slowest = (choose(same, key=lambda case: case.run.step_seconds or 0.0) for choose in (min, max))
        if (slowest.run.step_seconds or 0.0) > MOST_REPEATED * (fastest.run.step_seconds or 1.0):
            raise Unfit(
                f"The runs contradict each other: '{fastest.run.id}' took {fastest.run.step_seconds:g} s, "
                f"'{slowest.run.id}' of the same configuration {slowest.run.step_seconds:g} s. Nothing is fitted."
                f"{_name_silent_facts(fastest, slowest)}"
            )


WITH_EFFECT: Mapping[str, Callable[[Strategy], bool]] = {
    "strategy.sharding": lambda one: one.dp * one.cp > 1,
    "strategy.schedule": lambda one: one.pp > 1,
    "strategy.vpp": lambda one: one.pp > 1,
    "strategy.recompute": lambda _: True,
    "strategy.token_dispatcher": lambda one: one.ep > 1,
    "strategy.dp_overlap": lambda one: one.dp * one.cp > 1,
    "cluster.framework": lambda _: True,
}
"""Facts that change a step by a quarter or more, and the strategies for which they do."""


def _name_silent_facts(*cases: Case) -> str:
    """Return a sentence on facts that none of some rows state; empty if there are none."""
    silent = [
        name
        for name, has_effect in WITH_EFFECT.items()
        if all(one.run.get(name) is None and has_effect(one.strategy) for one in cases)
    ]
    return f" Neither states {', '.join(silent)}: they may differ there." if silent else ""


def _configuration(case: Case) -> tuple[Any, ...]:
    """Return all of a row that the model uses; facts as text, since they hold mappings."""
    return (case.strategy, write_out(case.facts))


# --- the fit -----------------------------------------------------------------------------------------------


def constants_of(base: str, known: References) -> tuple[Constant, ...]:
    """
    Return the constants that runs of a device can determine, with their known values as priors.

    Raises
    ------
    SpecError
        If there are none.
    """
    calibration = device_of(base, known.fitted).calibration
    chain = catalog.calibration_chain(calibration.name)
    found = tuple(around(one, calibration.constants) for one in constants() if one.calibration in chain)
    if not found:
        problem = f"is {base}, whose calibration {calibration.name} has no constants that runs could determine."
        raise SpecError("--device", problem, "Give a device of a maker, such as h100-80gb-sxm.")
    return found


def stack_fit(
    timed: Sequence[Case], known: References, base: str, gains: Sequence[Gain]
) -> tuple[Predictor, Fit, Fit, Array]:
    """
    Fit the constants of a device to runs of one stack.

    Parameters
    ----------
    timed
        Runs with a step time.
    known
        References of the runs; its constants are the priors.
    base
        Device of the runs.
    gains
        Gains on published stacks.

    Returns
    -------
    tuple
        Predictor of the runs with the constants that they may move; the prediction before the fit; the fit; logarithms
        of predicted over measured seconds of held-out runs. There are none where all are of one configuration.
    """
    predictor, start = _start(timed, known, constants_of(base, known))
    return predictor, start, *choose_fit(try_fits(predictor, start), timed, start, gains)


def try_fits(predictor: Predictor, start: Fit) -> Candidates:
    """Return the fits to choose from; one, with nothing held out, where all runs are of one configuration."""
    if is_alone(predictor.cases):
        return {SHARE_OF_ONE: (fit_share(predictor, start, run_weights, SHARE_OF_ONE), np.zeros(0))}
    return candidates(predictor, start, run_weights, folds=fold_rows(predictor.cases))


def choose_fit(found: Candidates, timed: Sequence[Case], start: Fit, gains: Sequence[Gain]) -> tuple[Fit, Array]:
    """Return the fit that other runs are expected to gain by, and the errors of held-out runs."""
    if is_alone(timed):
        return found[SHARE_OF_ONE]
    return choose_useful(found, start, folds=fold_rows(timed), gains=gains_of(gains, timed))


SHARE_OF_ONE = NOISE / float(np.hypot(OF_LAYOUT, OF_RUN))
"""
Share of the priors' widths for one configuration: beside it no other tells the scatter of layouts from the constants.

The published scatter is in place of ``NOISE``, and a fit only depends on the ratio of noise and widths.
"""


def is_alone(timed: Sequence[Case]) -> bool:
    """Return True where all runs are of one configuration, so that none can be held out."""
    return len({_configuration(case) for case in timed}) == 1


def _calibration(timed: Sequence[Case], known: References, base: str, name: str, runs: str) -> Calibration:
    """Fit the runs of a file, and return the calibration with all that the other rows do not determine."""
    log_event(__name__, "runs read", runs=len(timed))
    predictor, start, fitted, left_out = stack_fit(timed, known, base, read_gains())
    log_event(__name__, "constants fitted", constants=len(predictor.constants))
    chosen, priors = tuple(predictor.constants), priors_of(predictor.constants)
    missed = list_missed(timed, start, fitted)
    require_explained(timed, missed, fitted)
    noise = max(NOISE, float(np.median(np.abs(fitted.residuals))) / _MEDIAN_OF_NORMAL)
    widths = covariance(fitted.jacobian, run_weights(timed), priors, noise)
    determined = _build_determined(chosen, fitted.logs, widths, priors)
    log_event(__name__, "next runs are chosen")
    return Calibration(
        device=_device(determined, left_out, base, timed, name, runs),
        base=base,
        determined=determined,
        num_runs=len(timed),
        num_groups=len(set(fold_rows(timed).tolist())),
        error_before=mean_error(start.residuals),
        error_left_out=mean_error(left_out) if len(left_out) else None,
        error_fitted=mean_error(fitted.residuals),
        worth_of_one=worth_of_one(timed),
        refused=(),
        skipped=(),
        advice=advice(timed, chosen, known, logs=fitted.logs, covariance=widths, noise=noise),
        first=None,
        doubts=(
            *(doubt for one in timed for doubt in one.run.doubts),
            *describe_missed(missed, len(timed)),
            *describe_odd_rows(timed, fitted.residuals),
        ),
    )


_MEDIAN_OF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal variable."""


def _start(timed: Sequence[Case], known: References, all_constants: Sequence[Constant]) -> tuple[Predictor, Fit]:
    """Return the catalog's prediction, and its derivatives by the constants that a run depends on."""
    predictor = Predictor(cases=timed, constants=all_constants, known=known)
    logs = priors_of(all_constants).mean
    jacobian = predictor.jacobian(logs)
    may_move = movable(timed, all_constants, jacobian)
    chosen = tuple(constant for constant, moves in zip(all_constants, may_move, strict=True) if moves)
    residuals = predictor.logarithms(logs) - log_measured_seconds(timed)
    return replace(predictor, constants=chosen), Fit(
        logs=logs[may_move], jacobian=jacobian[:, may_move], residuals=residuals
    )


def movable(timed: Sequence[Case], all_constants: Sequence[Constant], jacobian: Array) -> NDArray[np.bool_]:
    """
    Return the constants that runs may move: those on which one depends.

    Errors of models with experts are of single models and layouts. So several runs of mostly such models move the
    scales of these models alone, if there are any: constants that they share with others would carry the errors over.
    """
    is_seen = np.abs(jacobian).max(axis=0) > LEAST_SENSITIVITY
    is_scale = is_seen & [bool(one.size) for one in all_constants]
    only_scales = models_of(timed) == "experts" and not is_alone(timed) and is_scale.any()
    return np.asarray(is_scale if only_scales else is_seen)


def run_weights(timed: Sequence[Case]) -> Array:
    """Return square roots of the rows' weights: a further run of a group adds less information than the first."""
    rows = Counter(group_of(case) for case in timed)
    return np.array([rows[group_of(case)] ** -0.25 for case in timed])


def fold_rows(timed: Sequence[Case]) -> NDArray[np.int64]:
    """Return one fold for each group; with fewer than three groups, one for each configuration."""
    groups = {group_of(case) for case in timed}
    if len(groups) >= 3:
        return folds_of(timed, min(len(groups), MOST_FOLDS))
    configurations = list(dict.fromkeys(_configuration(case) for case in timed))
    return np.array([configurations.index(_configuration(case)) % MOST_FOLDS for case in timed])


Missed: TypeAlias = tuple[Case, Interval]
"""A run, and the interval that the planner states of its step and in which it is not."""


def list_missed(timed: Sequence[Case], start: Fit, found: Fit) -> list[Missed]:
    """List the runs outside their stated intervals, before and after the fit, the furthest first."""
    missed = []
    for case, *logs in zip(timed, start.residuals, found.residuals, strict=True):
        measured = case.run.step_seconds or 0.0
        if interval := find_missed_interval(case, *(measured * float(np.exp(log)) for log in logs)):
            beyond = max(measured / interval.high_seconds, interval.low_seconds / measured)
            missed.append((beyond, (case, interval)))
    return [one for _, one in sorted(missed, key=lambda pair: -pair[0])]


def require_explained(timed: Sequence[Case], missed: Sequence[Missed], found: Fit) -> None:
    """
    Refuse runs most of which are outside their stated intervals.

    An interval is of runs like them: narrow where many recipes of vendors were measured, wide for whoever has none.
    """
    if 2 * len(missed) <= len(timed):
        return
    closest = float(np.expm1(np.median(np.abs(found.residuals))))
    doubts = (*describe_missed(missed, len(timed)), *describe_odd_rows(timed, found.residuals))
    raise Unfit(
        f"The runs contradict the model: within the physical bounds the closest calibration is {closest:.0%} off in "
        f"the median. {''.join(f'{one}. ' for one in doubts)}Nothing is fitted. Check the runs' units and layouts, and "
        "that no other job shared their devices or network."
    )


def describe_missed(missed: Sequence[Missed], num_runs: int) -> Iterator[str]:
    """Yield a sentence without a full stop on the runs outside their stated intervals, of which it names the first."""
    for case, stated in missed[:1]:
        more = f"; {len(missed) - 1} more of {num_runs} runs are outside of theirs" if missed[1:] else ""
        yield (
            f"'{case.run.id}' took {case.run.step_seconds:.4g} s, not {stated.low_seconds:.4g} to "
            f"{stated.high_seconds:.4g} s, the interval of {COVERAGE:.0%} of measured steps by the errors on "
            f"{stated.basis}{more}"
        )


def describe_odd_rows(timed: Sequence[Case], residuals: Array) -> Iterator[str]:
    r"""
    Yield a sentence without a full stop for each row off the others, or one for rows of two populations.

    .. math:: |x_i - \tilde x_{-i}| > 3.5 \max(\mathrm{MAD}_{-i} / 0.6745, \sigma)

    The spread of others counts as no narrower than that of runs on published stacks, sigma: a few may agree by chance.
    A row is compared with two others or more. Odd rows are a population where two or more lie on either side of the
    widest gap.

    Parameters
    ----------
    timed
        The rows.
    residuals
        Logarithms of predicted over measured time.
    """
    names, logs = [case.run.id for case in timed], -residuals
    odd = list(_find_odd(logs)) if len(logs) > 2 else []
    few, many = _part(logs) if len(odd) > 1 else ((), ())
    if len(few) > 1:
        first = ", ".join(f"'{names[number]}'" for number in few[:3]) + (", ..." if len(few) > 3 else "")
        times = [f"{np.exp(np.median(logs[group])):.2g} times the fit's prediction" for group in (few, many)]
        yield f"{first} took {times[0]}, the {len(many)} other rows {times[1]}: two populations, for a calibration each"
        return
    for number, low, high in odd:
        yield (
            f"'{names[number]}' took {np.exp(logs[number]):.2g} times the fit's prediction, outside the spread of "
            f"the other rows ({np.exp(low):.2g} to {np.exp(high):.2g})"
        )


def _find_odd(logs: Array) -> Iterator[tuple[int, float, float]]:
    """Yield the index of each value outside the spread of the others, with the ends of that spread."""
    for number, own in enumerate(logs):
        others = np.delete(logs, number)
        middle = float(np.median(others))
        reach = ODD * max(float(np.median(np.abs(others - middle))) / _MEDIAN_OF_NORMAL, SCATTER)
        if abs(own - middle) > reach:
            yield number, middle - reach, middle + reach


def _part(logs: Array) -> list[NDArray[np.int64]]:
    """Part values at their widest gap: the indices of either side, the smaller side first."""
    order = np.argsort(logs)
    sides = np.split(order, [int(np.diff(logs[order]).argmax()) + 1])
    return sorted(map(np.sort, sides), key=len)


SCATTER = float(np.linalg.norm([OF_MODEL, OF_LAYOUT, OF_RUN]))
"""Standard deviation of the logarithm of measured over predicted time of runs on a published stack."""


def _build_determined(chosen: Sequence[Constant], logs: Array, widths: Array, priors: Priors) -> tuple[Determined, ...]:
    at_bound = np.isclose(logs, priors.lower, atol=1e-3) | np.isclose(logs, priors.upper, atol=1e-3)
    return tuple(
        Determined(
            constant=constant,
            value=float(np.exp(logs[index])),
            width=float(np.sqrt(widths[index, index])),
            is_at_bound=bool(at_bound[index]),
        )
        for index, constant in enumerate(chosen)
    )


# --- the device --------------------------------------------------------------------------------------------


def _device(
    determined: Sequence[Determined], left_out: Array, base: str, timed: Sequence[Case], name: str, runs: str
) -> dict[str, Any]:
    """Return the catalog's device with the nodes of most runs, and the fitted constants on top of its calibration."""
    entry = catalog.device_entry(base)
    shapes = Counter(_node(case) for case in timed)
    devices_per_node, domain = max(shapes, key=lambda node: shapes[node])
    inner, *others = entry["networks"]
    return {
        **entry,
        "name": name,
        "devices_per_node": devices_per_node,
        "networks": [{**inner, "num_peers": domain}, *others],
        "calibration": {
            "base": entry["calibration"],
            "name": name,
            **nest_entries(
                {field: float(f"{one.value:.6g}") for one in determined for field in calibration_fields(one.constant)}
            ),
            "sources": _sources(determined, base, f"{len(timed)} runs of {runs}"),
        },
        "left_out_errors": _errors_by_population(timed, left_out),
        "sources": {
            **entry["sources"],
            "left_out_errors": f"planner calibrate: {runs}, each group left out of a fit",
        },
    }


def _errors_by_population(timed: Sequence[Case], left_out: Array) -> dict[str, list[float]]:
    """Return the logarithms of measured over predicted time of rows, if they were held out."""
    errors: dict[str, list[float]] = {}
    for case, log in zip(timed if len(left_out) else (), left_out, strict=True):
        errors.setdefault(population_of(case.facts, case.strategy), []).append(round(-float(log), 4))
    return errors


def _sources(determined: Sequence[Determined], base: str, runs: str) -> dict[str, str]:
    """Return the sources of the fitted numbers; several numbers of one entry share a text."""
    texts: dict[str, list[str]] = {}
    for one in determined:
        for field in calibration_fields(one.constant):
            entry, last = field.partition(".")[0], field.rpartition(".")[2]
            prior = f"prior {one.constant.prior:.4g} +- {one.constant.sigma:.0%} of {base}"
            texts.setdefault(entry, []).append(f"{last} +- {one.width:.1%}, {prior}")
    return {entry: f"planner calibrate: fitted to {runs}: {'; '.join(lines)}" for entry, lines in texts.items()}


def _node(case: Case) -> tuple[int, int]:
    device = case.facts.cluster.device
    return device.devices_per_node, device.networks[0].num_peers
