"""What small runs say of a device: its constants, found with the catalog's as what is known before, and its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.errors import SpecError
from costmodel.memory.rank import WITHOUT_RUNTIME, seen_bytes
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.calibration.calibrate import MOST_MISFIT, require_consistent
from planner.calibration.cases import DIFFERENCE, LEAST_SENSITIVITY, measured_logarithms
from planner.calibration.constants import Constant, read
from planner.calibration.fit import NOISE, REACH, Array, Fit, fit, priors_of
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.problem import Problem, load
from planner.projection.comparison import differences, require_cut_down
from planner.projection.measured_device import Road, road
from planner.runs.predictions import GIB, Case
from planner.uncertainty.intervals import NORMAL_80, intervals, kind_of, spread_of

Seconds = Callable[[Facts, Strategy], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchorRun:
    """
    One small run beside what is predicted of it.

    Parameters
    ----------
    case
        Its job and strategy, with what was measured.
    differences
        In what it differs from the job beyond its size.
    noise
        Standard deviation of the logarithm with which its time holds for the job: that of repeated runs, or that of
        the ratio of two layouts where it differs.
    model_seconds, anchored_seconds
        Step predicted without and with the small runs.
    model_bytes
        Predicted peak without them, as the measurement would see it.
    """

    case: Case
    differences: tuple[str, ...]
    noise: float
    model_seconds: float
    anchored_seconds: float
    model_bytes: float

    @property
    def residual(self) -> float:
        """Logarithm of the anchored over the measured step, what no constants explain; 0 where none was measured."""
        return math.log(self.anchored_seconds / self.measured_seconds) if self.measured_seconds else 0.0

    @property
    def measured_seconds(self) -> float | None:
        """Measured step; None: its memory alone was measured."""
        return self.case.run.step_seconds

    @property
    def measured_bytes(self) -> float | None:
        """Measured peak; None: not measured."""
        gib = self.case.run.peak_memory_gib
        return None if gib is None else gib * GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """
    A constant that the small runs moved.

    Parameters
    ----------
    field
        Its dotted name in a calibration.
    before, after
        Its value without and with them.
    """

    field: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """
    Small runs as facts of a device.

    Parameters
    ----------
    device
        The job's device with constants and memory that follow, as a job's ``cluster.device`` takes it.
    runs
        The small runs.
    moved
        The constants that changed.
    memory_bytes
        Bytes of a device that no formula has, from measured peaks; negative where peaks are predicted too high.
    memory_ratio
        Largest measured over predicted peak; None: no peak was measured.
    """

    device: Mapping[str, Any]
    runs: tuple[AnchorRun, ...]
    moved: tuple[Moved, ...]
    memory_bytes: float
    memory_ratio: float | None

    @property
    def timed(self) -> tuple[AnchorRun, ...]:
        """The runs with a step time."""
        return tuple(one for one in self.runs if one.measured_seconds is not None)

    @property
    def noise(self) -> float:
        """
        Standard deviation of the logarithm with which measured parts hold for the job: that of the closest run.

        What no constants explain of a run counts as noise.
        """
        return min(math.hypot(one.noise, one.residual) for one in self.timed)

    def applied(self, problem: Problem) -> Problem:
        """The job on the device that follows: every prediction of it is an ordinary one."""
        cluster = {**problem.document["cluster"], "device": self.device}
        changed = load({**problem.document, "cluster": cluster}, name=problem.name)
        names = ("facts", "reliability", "machine", "document", "settings", "alternatives")
        return replace(problem, **{name: getattr(changed, name) for name in names})


def anchor(
    problem: Problem, smalls: Sequence[Case], strategy: Strategy | None = None, fitted: Fitted = CATALOG
) -> Anchor:
    r"""
    Find the device on which the small runs take what was measured, as close as possible to the catalog's.

    .. math:: \min_x \sum_i (r_i(x) / \sigma_i)^2 + \sum_j ((x_j - p_j) / s_j)^2

    Derivation: as ``planner calibrate`` fits (:func:`planner.calibration.fit.fit`), residuals r in logarithms. Each
    constant x moves by what it is uncertain, s, and by how much the measured steps depend on it. A layer's kernels
    dominate a small run, so that they take the most; what no small run has, such as links between nodes, stays at its
    prior p. Runs of two numbers of layers tell the seconds of a layer from those of a step.

    Parameters
    ----------
    problem
        The whole job.
    smalls
        Runs of it, cut down.
    strategy
        The job's strategy; None: it is still to be chosen.
    fitted
        Constants instead of the catalog's.

    Raises
    ------
    SpecError
        If a run is none of the job cut down, or no constants explain the runs.
    Unfit
        If runs of the same configuration contradict each other.
    """
    for small in smalls:
        require_cut_down(small, problem)
    timed = [small for small in smalls if small.run.step_seconds is not None]
    if not timed:
        raise SpecError("small runs", "none of them has a step time.")
    require_consistent(timed)
    assert problem.machine is not None, "a job is loaded, not made by hand"
    way, noises = road(problem.machine.device, fitted), {id(one): _noise(one, problem, strategy) for one in smalls}
    values = _values(way, timed, np.array([noises[id(one)] for one in timed]))
    offset, ratio = _memory(smalls, fitted)
    runtime = max(0.0, device_of(problem.machine.device, fitted).runtime_bytes + offset)
    runs = tuple(
        AnchorRun(
            case=one,
            differences=differences(one, problem, strategy),
            noise=noises[id(one)],
            model_seconds=estimate(_facts(one, way, {}), one.strategy).step_seconds,
            anchored_seconds=estimate(_facts(one, way, values), one.strategy).step_seconds,
            model_bytes=_seen(one, fitted),
        )
        for one in smalls
    )
    _require_explained(runs)
    return Anchor(
        device=_sourced(way.device(values, runtime_bytes=runtime), values, runs),
        runs=runs,
        moved=_moved(way, values),
        memory_bytes=offset,
        memory_ratio=ratio,
    )


def _noise(small: Case, problem: Problem, strategy: Strategy | None) -> float:
    """That of a repeated run, and where something differs beyond size that of the ratio of two layouts."""
    if not differences(small, problem, strategy):
        return NOISE
    spread = spread_of(intervals().differences, kind_of(problem.facts.model, problem.facts.cluster))
    return math.hypot(NOISE, spread.upper / NORMAL_80)


# --- time --------------------------------------------------------------------------------------------------


def _facts(small: Case, way: Road, values: Mapping[str, float]) -> Facts:
    """What ran on what, with other constants."""
    machine = small.problem.machine
    assert machine is not None, "a run's job is loaded, not made by hand"
    cluster = replace(machine, device=way.device(values)).cluster(way.fitted)
    return Facts(model=small.facts.model, cluster=cluster, workload=small.facts.workload)


def _values(way: Road, timed: Sequence[Case], noises: Array) -> dict[str, float]:
    """The fitted constants by dotted field: those on which a run depends."""
    measured, jacobian = measured_logarithms(timed), _jacobian(way, timed, way.constants)
    sensitive = np.abs(jacobian(priors_of(way.constants).mean, None)).max(axis=0) > LEAST_SENSITIVITY
    chosen = tuple(one for one, is_sensitive in zip(way.constants, sensitive, strict=True) if is_sensitive)
    found = fit(
        lambda logs: _logarithms(way, timed, chosen, logs, _simulated),
        _jacobian(way, timed, chosen),
        measured,
        weights=NOISE / noises,
        priors=priors_of(chosen),
        start=_near(way, timed, chosen, measured, noises),
    )
    return way.fields(chosen, np.exp(found.logs).tolist())


def _near(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], measured: Array, noises: Array) -> Fit:
    r"""
    Where a fit begins: near enough to what was measured for its robust loss to pull, which lets go of what is far.

    .. math:: x = p + S J^T (J S J^T + N)^{-1} (y - f(p)), \quad S = \mathrm{diag}(s^2), N = \mathrm{diag}(\sigma^2)

    Derivation: least squares without robustness, a few steps of Gauss and Newton.
    """
    priors, jacobian = priors_of(chosen), _jacobian(way, timed, chosen)
    logs = priors.mean
    for number in range(MOST_STEPS + 1):
        residuals = _logarithms(way, timed, chosen, logs, _simulated) - measured
        slopes = jacobian(logs, None)
        if np.abs(residuals).max() <= REACH or number == MOST_STEPS:
            break
        reach = slopes * priors.sigma**2
        missing = slopes @ (logs - priors.mean) - residuals
        step = reach.T @ np.linalg.solve(reach @ slopes.T + np.diag(noises**2), missing)
        logs = np.clip(priors.mean + step, priors.lower, priors.upper)
    return Fit(logs=logs, jacobian=slopes, residuals=residuals)


MOST_STEPS = 6
"""Of that kind: a factor of ten takes four."""


def _simulated(facts: Facts, strategy: Strategy) -> float:
    return estimate(facts, strategy).step_seconds


def _logarithms(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], logs: Array, seconds: Seconds) -> Array:
    values = way.fields(chosen, np.exp(logs).tolist())
    return np.log([seconds(_facts(one, way, values), one.strategy) for one in timed])


def _jacobian(way: Road, timed: Sequence[Case], chosen: Sequence[Constant]) -> Callable[[Array, Array | None], Array]:
    """Derivatives by differences of the closed form, which changes as the simulated step does."""
    upper = priors_of(chosen).upper

    def jacobian(logs: Array, _: Array | None) -> Array:
        columns, before = [], _logarithms(way, timed, chosen, logs, strategy_seconds)
        for index in range(len(chosen)):
            step = DIFFERENCE if logs[index] + DIFFERENCE <= upper[index] else -DIFFERENCE
            moved = logs + step * (np.arange(len(logs)) == index)
            columns.append((_logarithms(way, timed, chosen, moved, strategy_seconds) - before) / step)
        return np.stack(columns, axis=1)

    return jacobian


def _require_explained(runs: Sequence[AnchorRun]) -> None:
    """Refuse runs that hold for the job, but that no constants explain; others only move constants by less."""
    worst = max(runs, key=lambda one: abs(one.residual) * (not one.differences))
    if abs(worst.residual) > MOST_MISFIT and not worst.differences:
        raise SpecError(
            f"{worst.case.run.id}: step_seconds",
            f"{worst.measured_seconds:.4g} s were measured, and no constants within physical bounds come closer than "
            f"{worst.anchored_seconds:.4g} s{' together with the other runs' if len(runs) > 1 else ''}.",
            "Is it in seconds, of this layout, and did nothing else run?",
        )


def _moved(way: Road, values: Mapping[str, float]) -> tuple[Moved, ...]:
    known = device_of(way.entry, way.fitted).calibration.constants
    return tuple(
        Moved(field=field, before=before, after=value)
        for field, value in values.items()
        if (before := read(known, field)) is not None
    )


def _sourced(device: dict[str, Any], values: Mapping[str, float], runs: Sequence[AnchorRun]) -> dict[str, Any]:
    """The device with the small runs as the source of what follows from them."""
    text = f"small runs: {', '.join(one.case.run.id for one in runs)}"
    calibration = device["calibration"]
    names = {field.partition(".")[0] for field in values}
    sources = {**calibration.get("sources", {}), **dict.fromkeys(sorted(names), text)}
    return {**device, "calibration": {**calibration, "sources": sources}}


# --- memory ------------------------------------------------------------------------------------------------


def _seen(small: Case, fitted: Fitted) -> float:
    """Predicted peak as the run's measurement would see it."""
    machine = small.problem.machine
    assert machine is not None, "a run's job is loaded, not made by hand"
    facts = Facts(model=small.facts.model, cluster=machine.cluster(fitted), workload=small.facts.workload)
    peak = estimate(facts, small.strategy).device_bytes
    return seen_bytes(facts.cluster.device, peak, small.run.memory_kind)


def _memory(smalls: Sequence[Case], fitted: Fitted) -> tuple[float, float | None]:
    """
    Bytes of a device that no formula has, and the largest ratio of measured to predicted peak.

    Derivation: the mean of measured minus predicted. What the allocator holds beyond allocated tensors grows with
    them, so that bytes missing from a peak of allocated ones count with the fragments around them.
    """
    offsets, ratios = [], []
    for one in smalls:
        if one.run.peak_memory_gib is not None:
            predicted, measured = _seen(one, fitted), one.run.peak_memory_gib * GIB
            allocated = one.run.memory_kind in WITHOUT_RUNTIME
            fragments = one.facts.cluster.device.behaviour.memory.fragmentation if allocated else 0.0
            offsets.append((measured - predicted) * (1 + fragments))
            ratios.append(measured / predicted)
    return (float(np.mean(offsets)), max(ratios)) if offsets else (0.0, None)
