"""A device from small runs: its constants, with the catalog's as priors, and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.facts.device import Cluster
from costmodel.memory import WITHOUT_RUNTIME, seen_bytes
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.strategy import Strategy
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.problem import Problem, load
from planner.measure.calibrate.calibrate import MOST_MISFIT, require_consistent
from planner.measure.calibrate.constants import read
from planner.measure.calibrate.fit import NOISE
from planner.measure.project.comparison import differences, require_cut_down
from planner.measure.project.posterior import Posterior, Road, posterior, road, simulated_seconds
from planner.measure.runs.predictions import Case
from planner.uncertainty.intervals import NORMAL_80, intervals, kind_of, spread_of
from planner.uncertainty.peaks import LEAST_HEADROOM_BYTES, ODD_DEVIATION, STARTS, law_of

MOST_DEVIATIONS = 3

"""Deviations of odd runs' peaks beyond which a peak is of another job, or in another unit."""


@record(frozen=True, kw_only=True, slots=True)
class Peaks:
    """
    Measured and predicted peaks.

    Parameters
    ----------
    offset_bytes
        Mean of the bytes that no formula explains; negative where peaks are predicted too high.
    most_offset_bytes, most_ratio
        The largest such offset; the largest measured over predicted peak.
    """

    offset_bytes: float
    most_offset_bytes: float
    most_ratio: float

    def most_bytes(self, predicted: float, cluster: Cluster, *, is_alike: bool) -> float:
        r"""
        Return the upper bound of a job's peak in bytes, which ``STARTS`` of the jobs stay below.

        .. math:: \max(P + \max(0, d), P \max(1, q)) e^{w (u - \mu)}

        Derivation: the unexplained part is constant, or grows with the rest. So the base is the larger of two: the
        predicted peak P plus the largest offset d, and P times the largest ratio q. Peaks that were predicted too high
        do not lower the bound, since the omitted part may grow. The ratio also scatters from layout to layout, by the
        law of its stack: ``STARTS`` of the ratios lie below exp(u), their mean is :math:`\mu`. The run that determines
        the bound replaces the mean, with w = 1. The ratio of a differing run has its own error of equal size, which
        adds in squares: :math:`w = \sqrt 2`.

        Parameters
        ----------
        predicted
            The job's peak in bytes without small runs.
        cluster
            Its devices and software.
        is_alike
            True where a run with a peak differs from the job only in size.
        """
        law = law_of(cluster)
        spread = (law.log_ratio_of(STARTS) - law.mean) * (1.0 if is_alike else math.sqrt(2))
        base = max(predicted + max(0.0, self.most_offset_bytes), predicted * max(1.0, self.most_ratio))
        return base * math.exp(spread)


def predicted_bytes(small: Case, way: Road) -> float:
    """Return the predicted peak as the run's measurement would see it."""
    facts = way.facts(small.problem, {})
    peak = estimate(facts, small.strategy).device_bytes
    return seen_bytes(facts.cluster.device, peak, small.run.memory_kind, small.strategy)


def peaks_of(smalls: Sequence[Case], way: Road) -> Peaks | None:
    """
    Return offsets and ratios of the small runs' peaks; None where no peak was measured.

    Derivation: the mean of measured minus predicted. Memory that the allocator holds beyond allocated tensors grows
    with them. So missing bytes of an allocated peak count with their fragmentation.

    Raises
    ------
    SpecError
        If a peak is too far from the predicted one to be of this run.
    """
    offsets, ratios = [], []
    for one in smalls:
        if one.run.peak_memory_gib is not None:
            predicted, measured = predicted_bytes(one, way), one.run.peak_memory_gib * GIB_BYTES
            _require_plausible(one, predicted, measured)
            allocated = one.run.memory_kind in WITHOUT_RUNTIME
            fragments = one.facts.cluster.device.behaviour.memory.fragmentation if allocated else 0.0
            offsets.append((measured - predicted) * (1 + fragments))
            ratios.append(measured / predicted)
    if not offsets:
        return None
    return Peaks(offset_bytes=float(np.mean(offsets)), most_offset_bytes=max(offsets), most_ratio=max(ratios))


def _require_plausible(small: Case, predicted: float, measured: float) -> None:
    """Refuse a peak that is further off than odd runs; for small peaks some workspaces explain the difference."""
    is_far = abs(math.log(measured / predicted)) > MOST_DEVIATIONS * ODD_DEVIATION
    if is_far and abs(measured - predicted) > LEAST_HEADROOM_BYTES:
        kind = small.run.memory_kind or "all of the device's memory"
        raise SpecError(
            f"{small.run.id}: peak_memory_gib",
            f"{measured / GIB_BYTES:.4g} GiB were measured, {predicted / GIB_BYTES:.4g} GiB are predicted ({kind}).",
            "Is it the peak of the fullest device, of this layout, and does memory_kind name its source?",
        )


@record(frozen=True, kw_only=True, slots=True)
class AnchorRun:
    """
    One small run, measured and predicted.

    Parameters
    ----------
    case
        Its job and strategy, with the measurements.
    differences
        Differences from the job beyond its size.
    noise
        Standard deviation of the logarithm with which its time applies to the job: that of repeated runs, or that of
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
        """Logarithm of the anchored over the measured step, which no constants explain; 0 where none was measured."""
        return math.log(self.anchored_seconds / self.measured_seconds) if self.measured_seconds else 0.0

    @property
    def is_explained(self) -> bool:
        """True where the anchored step is within twice the noise of the measured one, as in all but one of 20 runs."""
        return abs(self.residual) <= 2 * self.noise

    @property
    def measured_seconds(self) -> float | None:
        """Measured step; None where only its memory was measured."""
        return self.case.run.step_seconds

    @property
    def measured_bytes(self) -> float | None:
        """Measured peak; None where it was not measured."""
        gib = self.case.run.peak_memory_gib
        return None if gib is None else gib * GIB_BYTES


@record(frozen=True, kw_only=True, slots=True)
class Moved:
    """
    A constant that the small runs moved.

    Parameters
    ----------
    field
        Its dotted name in a calibration.
    before
        Its value without them.
    after
        Its value with them.
    """

    field: str
    before: float
    after: float


@record(frozen=True, kw_only=True, slots=True)
class Anchor:
    """
    Small runs as facts of a device.

    Parameters
    ----------
    device
        The job's device with the resulting constants and memory, for a job's ``cluster.device``.
    runs
        The small runs.
    moved
        The constants that changed.
    posterior
        All constants, and their uncertainty after the runs.
    peaks
        Offsets of measured peaks; None where no peak was measured.
    """

    device: Mapping[str, Any]
    runs: tuple[AnchorRun, ...]
    moved: tuple[Moved, ...]
    posterior: Posterior
    peaks: Peaks | None

    @property
    def timed(self) -> tuple[AnchorRun, ...]:
        """Runs with a step time."""
        return tuple(one for one in self.runs if one.measured_seconds is not None)

    @property
    def noise(self) -> float:
        """
        Standard deviation of the logarithm with which measured parts apply to the job: that of the closest run.

        The unexplained part of a run counts as noise.
        """
        return min(math.hypot(one.noise, one.residual) for one in self.timed)

    def beside(self, problem: Problem, strategy: Strategy) -> Anchor:
        """Compare the small runs with a job's strategy, from which they may differ; constants are kept."""
        others = [differences(one.case, problem, strategy) for one in self.runs]
        runs = (
            replace(one, differences=differing, noise=_noise(problem, differing))
            for one, differing in zip(self.runs, others, strict=True)
        )
        return replace(self, runs=tuple(runs))

    def apply_to(self, problem: Problem) -> Problem:
        """Return the job on the resulting device; every prediction of it is an ordinary one."""
        cluster = {**problem.document["cluster"], "device": self.device}
        changed = load({**problem.document, "cluster": cluster}, name=problem.name)
        names = ("facts", "reliability", "machine", "document", "settings", "alternatives")
        return replace(problem, **{name: getattr(changed, name) for name in names})


def anchor(
    problem: Problem, smalls: Sequence[Case], strategy: Strategy | None = None, fitted: Fitted = CATALOG
) -> Anchor:
    r"""
    Find the device that explains the measured times of the small runs, as close as possible to the catalog's.

    .. math:: \min_x \sum_i (r_i(x) / \sigma_i)^2 + \sum_j ((x_j - p_j) / s_j)^2

    Derivation: as in ``planner calibrate`` (:func:`planner.measure.calibrate.fit.fit`), with residuals r in logarithms.
    Each constant x moves by its uncertainty s, and by the dependence of the measured steps on it. A layer's kernels
    dominate a small run, so their constants move most. Constants of absent parts, such as links between nodes, keep
    their prior p. Runs with two numbers of layers separate the seconds of a layer from those of a step.

    Parameters
    ----------
    problem
        The whole job.
    smalls
        Small runs of it.
    strategy
        The job's strategy; None where it is still to be chosen.
    fitted
        Constants instead of the catalog's.

    Raises
    ------
    SpecError
        If a run is not a smaller run of the job, or no constants explain the runs.
    Unfit
        If runs of one configuration contradict each other.
    """
    for small in smalls:
        require_cut_down(small, problem)
    timed = [small for small in smalls if small.run.step_seconds is not None]
    if not timed:
        raise SpecError("small runs", "none has a step time.")
    require_consistent(timed)
    assert problem.machine is not None, "a job is loaded, not made by hand"
    way, others = road(problem.machine.device, fitted), [differences(one, problem, strategy) for one in smalls]
    noises = [_noise(problem, differing) for differing in others]
    of_timed = [noise for one, noise in zip(smalls, noises, strict=True) if one.run.step_seconds is not None]
    found, peaks = posterior(way, timed, np.array(of_timed)), peaks_of(smalls, way)
    runs = tuple(
        AnchorRun(
            case=one,
            differences=differing,
            noise=noise,
            model_seconds=simulated_seconds(way.facts(one.problem, {}), one.strategy),
            anchored_seconds=simulated_seconds(way.facts(one.problem, found.values), one.strategy),
            model_bytes=predicted_bytes(one, way),
        )
        for one, differing, noise in zip(smalls, others, noises, strict=True)
    )
    _require_explained(runs)
    own = device_of(problem.machine.device, fitted).runtime_bytes
    runtime = max(0.0, own + peaks.offset_bytes) if peaks else own
    return Anchor(
        device=_add_sources(way.device(found.values, runtime_bytes=runtime), found.values, runs),
        runs=runs,
        moved=_list_moved(way, found.values),
        posterior=found,
        peaks=peaks,
    )


def _noise(problem: Problem, differing: Sequence[str]) -> float:
    """Return the noise of a repeated run; where the run differs beyond size, also that of the ratio of two layouts."""
    if not differing:
        return NOISE
    spread = spread_of(intervals().differences, kind_of(problem.facts.model, problem.facts.cluster))
    return math.hypot(NOISE, spread.upper / NORMAL_80)


def _require_explained(runs: Sequence[AnchorRun]) -> None:
    """Refuse a run that differs only in size, but that no constants explain; other runs only move constants less."""
    worst = max(runs, key=lambda one: abs(one.residual) * (not one.differences))
    if abs(worst.residual) > MOST_MISFIT and not worst.differences:
        raise SpecError(
            f"{worst.case.run.id}: step_seconds",
            f"{worst.measured_seconds:.4g} s were measured, and no constants within physical bounds come closer than "
            f"{worst.anchored_seconds:.4g} s{' together with the other runs' if len(runs) > 1 else ''}.",
            "Is it in seconds, of this layout, and did nothing else run?",
        )


def _list_moved(way: Road, values: Mapping[str, float]) -> tuple[Moved, ...]:
    known = device_of(way.entry, way.fitted).calibration.constants
    return tuple(
        Moved(field=field, before=before, after=value)
        for field, value in values.items()
        if (before := read(known, field)) is not None
    )


def _add_sources(device: dict[str, Any], values: Mapping[str, float], runs: Sequence[AnchorRun]) -> dict[str, Any]:
    """Return the device with the small runs as the source of its changed constants."""
    text = f"small runs: {', '.join(one.case.run.id for one in runs)}"
    calibration = device["calibration"]
    names = {field.partition(".")[0] for field in values}
    sources = {**calibration.get("sources", {}), **dict.fromkeys(sorted(names), text)}
    return {**device, "calibration": {**calibration, "sources": sources}}
