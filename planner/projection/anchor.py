"""What small runs say of a device: its constants, found with the catalog's as what is known before, and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.errors import SpecError
from costmodel.strategy import Strategy
from planner.calibration.calibrate import MOST_MISFIT, require_consistent
from planner.calibration.constants import read
from planner.calibration.fit import NOISE
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.problem import Problem, load
from planner.projection.comparison import differences, require_cut_down
from planner.projection.measured_device import Road, road
from planner.projection.memory import Peaks, peaks_of, predicted_bytes
from planner.projection.posterior import Posterior, posterior, simulated_seconds
from planner.runs.predictions import GIB, Case
from planner.uncertainty.intervals import NORMAL_80, intervals, kind_of, spread_of


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
    def is_explained(self) -> bool:
        """Whether the anchored step is as near to the measured one as its noise allows, in all but one of 20 runs."""
        return abs(self.residual) <= 2 * self.noise

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
    posterior
        All constants, and what the runs leave open of them.
    peaks
        What measured peaks say; None: no peak was measured.
    """

    device: Mapping[str, Any]
    runs: tuple[AnchorRun, ...]
    moved: tuple[Moved, ...]
    posterior: Posterior
    peaks: Peaks | None

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

    def beside(self, problem: Problem, strategy: Strategy) -> Anchor:
        """The same small runs beside a job's strategy, in which they may differ; constants stay as they are."""
        others = [differences(one.case, problem, strategy) for one in self.runs]
        runs = (
            replace(one, differences=differing, noise=_noise(problem, differing))
            for one, differing in zip(self.runs, others, strict=True)
        )
        return replace(self, runs=tuple(runs))

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
        device=_sourced(way.device(found.values, runtime_bytes=runtime), found.values, runs),
        runs=runs,
        moved=_moved(way, found.values),
        posterior=found,
        peaks=peaks,
    )


def _noise(problem: Problem, differing: Sequence[str]) -> float:
    """That of a repeated run, and where something differs beyond size that of the ratio of two layouts."""
    if not differing:
        return NOISE
    spread = spread_of(intervals().differences, kind_of(problem.facts.model, problem.facts.cluster))
    return math.hypot(NOISE, spread.upper / NORMAL_80)


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
