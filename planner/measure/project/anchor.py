"""A device from small runs: its constants, with the catalog's as priors, their uncertainty, and its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from costmodel import GIB_BYTES, catalog
from costmodel.catalog.files import merge_mappings
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Settings
from costmodel.facts.model import Layer, Model
from costmodel.memory import WITHOUT_RUNTIME, seen_bytes
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import DECISIONS, FLAGS, Strategy, decision_text
from costmodel.tables import Facts
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.document import nest_entries
from planner.jobs.entries import Reference
from planner.jobs.problem import Problem, load
from planner.measure.calibrate.calibrate import require_consistent
from planner.measure.calibrate.cases import DIFFERENCE, LEAST_SENSITIVITY, Array, log_measured_seconds
from planner.measure.calibrate.constants import Constant, around, constants, read
from planner.measure.calibrate.fit import NOISE, REACH, Fit, covariance, fit, priors_of
from planner.measure.runs.predictions import Case, find_missed_interval
from planner.uncertainty.intervals import NORMAL_80, intervals, kind_of, spread_of
from planner.uncertainty.peaks import LEAST_HEADROOM_BYTES, ODD_DEVIATION, STARTS, law_of

SIZES = ("dp", "pp", "vpp", "group")
"""Decisions that are smaller in a small run: replicas, stages, and their order."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "sequence_parallel": ("tp",),
    "tp_overlap": ("tp",),
    "cp_overlap": ("cp",),
    "ep_overlap": ("ep",),
    "token_dispatcher": ("ep",),
    "pp_overlap": ("pp",),
    "schedule": ("pp",),
    "vocabulary": ("pp",),
    "dp_overlap": ("dp", "cp"),
    "sharding": ("dp", "cp"),
    "optimizer_group": ("dp", "cp"),
    "communication_sms": ("ep",),
    "cp_comm_type": ("cp",),
    "cp_a2a_ranks": ("cp",),
    "shared_expert_overlap": ("ep",),
    "offloaded_layers": ("activation_offload",),
    "offloaded_states": ("optimizer_offload",),
    "offloaded_masters": ("optimizer_offload",),
    "offload_overlap": ("optimizer_offload",),
    "host_threads": ("optimizer_offload",),
}
"""Decisions that another decision or setting depends on: without them it has no effect."""


def require_cut_down(small: Case, problem: Problem) -> None:
    """
    Refuse a run whose layers or device are not the job's.

    Raises
    ------
    SpecError
        If device, width, vocabulary, kinds of layers or precision differ, or if the run is larger than the job.
    """
    where, facts, whole = small.run.id, small.facts, problem.facts
    device, own = facts.cluster.device, whole.cluster.device
    if (device.name, device.peak_flops) != (own.name, own.peak_flops):
        raise SpecError(
            where,
            f"ran on {device.name}, the job on {own.name}: its times do not apply to another device.",
            "Measure the small run on the job's device.",
        )
    model, full = facts.model, whole.model
    if model.num_layers > full.num_layers:
        problem_text = f"has {model.num_layers} layers, the job {full.num_layers}: it is not a smaller run of the job."
        raise SpecError(where, problem_text, "Cut model.num_layers.")
    if facts.cluster.num_devices > whole.cluster.num_devices:
        problem_text = f"ran on {facts.cluster.num_devices} devices, the job on {whole.cluster.num_devices}"
        raise SpecError(where, f"{problem_text}: it is not a smaller run of the job.", "Cut cluster.num_devices.")
    for name in ("hidden_size", "vocab_size"):
        of_run, of_job = getattr(model, name), getattr(full, name)
        if of_run != of_job:
            raise SpecError(where, f"has {name} {of_run}, the job {of_job}: its layers differ.", KEEP)
    if others := [kind for kind in model.kinds if kind not in full.kinds]:
        text = _different_layer(others[0], full)
        raise SpecError(where, f"has layers that the job does not have: {text}.", KEEP)
    if facts.workload.precision != whole.workload.precision:
        names = f"{facts.workload.precision.name}, the job in {whole.workload.precision.name}"
        raise SpecError(where, f"computes in {names}: its kernels differ.", "Measure it in the job's precision.")


KEEP = "Reduce only the number of layers; width, experts and vocabulary stay the job's."


def _different_layer(layer: Layer, full: Model) -> str:
    """Name the entry in which a layer differs from the nearest of the model's."""
    names = [one.name for one in fields(Layer)]
    return min(
        ([name for name in names if getattr(layer, name) != getattr(kind, name)] for kind in full.kinds), key=len
    )[0].replace("_", " ")


def differences(small: Case, problem: Problem, strategy: Strategy | None) -> tuple[str, ...]:
    """
    List the differences of a run from the job beyond its size that change its layers' time; phrases for people.

    Parameters
    ----------
    small
        The run.
    problem
        The job.
    strategy
        The job's strategy; None where it is still open, and decisions are not compared. A stage, replica or schedule
        that the run lacks is no difference: its effect comes from the model.
    """
    return tuple(_differences(small, problem, strategy))


def _differences(small: Case, problem: Problem, strategy: Strategy | None) -> Iterator[str]:
    facts, whole = small.facts, problem.facts
    length, own = facts.workload.sequence_length, whole.workload.sequence_length
    if length != own:
        yield f"sequences of {length} tokens, not {own}"
    framework, job_framework = facts.cluster.framework, whole.cluster.framework
    if framework and job_framework and framework.name != job_framework.name:
        yield f"{framework.name}, not {job_framework.name}"
    yield from _different_settings(small, problem, strategy)
    if strategy is None:
        return
    for name in (one for one in DECISIONS if one not in SIZES):
        of_run, of_job = getattr(small.strategy, name), getattr(strategy, name)
        if of_run != of_job and _means(name, small.strategy) and _means(name, strategy):
            yield f"{name} = {decision_text(name, of_run)}, not {decision_text(name, of_job)}"


def _different_settings(small: Case, problem: Problem, strategy: Strategy | None) -> Iterator[str]:
    """Yield differing settings as frameworks resolve them; with an open strategy only those that always matter."""
    own, whole = small.facts.cluster.settings, problem.facts.cluster.settings
    for name in (one.name for one in fields(Settings)):
        of_run, of_job = getattr(own, name), getattr(whole, name)
        means = name not in NEEDED if strategy is None else _means(name, strategy)
        if of_run != of_job and means and _means(name, small.strategy):
            yield f"settings.{name} = {_setting_text(of_run)}, not {_setting_text(of_job)}"


def _means(name: str, strategy: Strategy) -> bool:
    """Return True if a decision or setting has an effect, given the others of a strategy."""
    needed = NEEDED.get(name, ())
    return not needed or any(getattr(strategy, one) > (0 if one in FLAGS else 1) for one in needed)


def _setting_text(value: object) -> str:
    """Format a setting as in job files."""
    if value is None:
        return "as the framework has it"
    return str(value).lower() if isinstance(value, bool) else str(value)


def covered_fraction(smalls: Sequence[Case], model: Model) -> float:
    """Return the share of a model's layers whose kind occurs in a small run."""
    known = [kind for small in smalls for kind in small.facts.model.kinds]
    return sum(layer in known for layer in model.layers) / model.num_layers


# --- constants -----------------------------------------------------------------------------------------------
SUFFIX = ", anchored"

"""Suffix of the name of a device whose constants come from small runs."""

UNFITTED_WIDTH = 0.5

"""
Standard deviation of the logarithm of rates that were not fitted to training runs: a datasheet's peak is twice the rate
of some kernels.
"""


def _general(field: str, prior: float, sigma: float) -> Constant:
    source = "small runs on a device without calibration on training runs"
    return Constant(
        name=field, fields=(field,), prior=prior, lower=prior / 50, upper=prior * 50, sigma=sigma, source=source
    )


GENERAL = (
    _general("measured.compute_scaling", 1.0, UNFITTED_WIDTH),
    _general("measured.communication_scaling", 1.0, UNFITTED_WIDTH),
    _general("step_seconds", 1e-2, 1.0),
    _general("microbatch_seconds", 1e-3, 1.0),
)

"""
Constants of a device whose calibration has no fitted ones, such as a sampled device.

All kernels share one factor, all messages another; seconds per step and micro-batch vary where the calibration has any.
"""


@record(frozen=True, kw_only=True, slots=True)
class Road:
    """
    Mapping from values of constants to a device, for a job's ``cluster.device``.

    Parameters
    ----------
    entry
        The job's device.
    constants
        Constants that vary, each around the device's own value.
    fitted
        Constants instead of the catalog's.
    """

    entry: Reference
    constants: tuple[Constant, ...]
    fitted: Fitted = CATALOG

    def device(self, values: Mapping[str, float], **more: Any) -> dict[str, Any]:
        """Return the device with constants by dotted field, and other entries; its sources name their origin."""
        whole = {"base": self.entry} if isinstance(self.entry, str) else dict(self.entry)
        calibration = merge_mappings(_calibration(whole), nest_entries(values))
        name = f"{device_of(self.entry, self.fitted).name}{SUFFIX}"
        return {**whole, **more, "name": name, "calibration": {**calibration, "name": name}}

    def facts(self, problem: Problem, values: Mapping[str, float]) -> Facts:
        """Return a job's facts, with other constants of its cluster."""
        machine = problem.machine
        assert machine is not None, "a job is loaded, not made by hand"
        cluster = replace(machine, device=self.device(values)).cluster(self.fitted)
        return Facts(model=problem.facts.model, cluster=cluster, workload=problem.facts.workload)

    def fields(self, chosen: Sequence[Constant], values: Sequence[float]) -> dict[str, float]:
        """Return values by the dotted fields that the device's calibration has."""
        known = device_of(self.entry, self.fitted).calibration.constants
        return {
            field: float(f"{value:.6g}")
            for one, value in zip(chosen, values, strict=True)
            for field in one.fields
            if read(known, field) is not None
        }


def road(entry: Reference, fitted: Fitted = CATALOG) -> Road:
    """Choose the constants of a device that vary: those that its calibration has fitted, else ``GENERAL``."""
    known = device_of(entry, fitted).calibration.constants
    chain = _chain(entry) if known.times == "modified_roofline" else ()
    chosen = [around(one, known) for one in constants() if one.calibration in chain and _value(known, one)]
    general = [around(one, known) for one in GENERAL if _value(known, one)]
    return Road(entry=entry, constants=tuple(chosen or general), fitted=fitted)


def _value(known: Constants, one: Constant) -> float | None:
    return next((value for field in one.fields if (value := read(known, field))), None)


def _calibration(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calibration of a device as constants on a base."""
    base = device.get("base")
    of_base = {"base": catalog.device_entry(base)["calibration"]} if base else {}
    own = device.get("calibration", {})
    return {"base": own} if isinstance(own, str) else {**of_base, **own}


def _chain(entry: Reference) -> tuple[str, ...]:
    """Return the catalog's calibration on which a device's is based, and those that it extends; () for none."""
    calibration: Any = {"base": entry} if isinstance(entry, str) else entry
    calibration = _calibration(calibration)
    while isinstance(calibration, Mapping):
        calibration = calibration.get("base", "")
    return catalog.calibration_chain(calibration) if calibration in catalog.calibrations() else ()


Seconds = Callable[[Facts, Strategy], float]


@record(frozen=True, kw_only=True, slots=True)
class Posterior:
    """
    Posterior of a device's constants after small runs.

    Parameters
    ----------
    way
        Mapping from constants to the device.
    logs
        Logarithms of all of its constants, at their likeliest values.
    covariance
        Covariance of these logarithms, shape (constants, constants).
    values
        Values of the constants on which a small run depends, by dotted field.
    """

    way: Road
    logs: Array
    covariance: Array
    values: Mapping[str, float]

    def deviation(self, seconds: Callable[[Mapping[str, float]], float]) -> float:
        r"""
        Return the standard deviation of the logarithm of some seconds, from the uncertainty of the constants.

        .. math:: \sqrt{g^T \Sigma g}, \quad g_j = \partial \log t / \partial x_j

        Derivation: first order around the likeliest constants. Two constants that small runs cannot separate have
        errors of opposite sign, which cancel in a time that depends on both alike. They remain where a job depends on
        one more than the small runs do.

        Parameters
        ----------
        seconds
            Seconds for values of constants by dotted field.
        """
        way = self.way

        def logarithm(logs: Array) -> Array:
            return np.asarray(np.log(seconds(way.fields(way.constants, np.exp(logs).tolist()))))

        slopes = differentiate(logarithm, self.logs, way.constants)
        return float(np.sqrt(slopes @ self.covariance @ slopes))


def posterior(way: Road, timed: Sequence[Case], noises: Array) -> Posterior:
    r"""
    Fit the constants on which small runs depend, and return the covariance of all.

    .. math:: \Sigma = (S^{-1} + J^T N^{-1} J)^{-1} = S - S J^T (J S J^T + N)^{-1} J S

    Derivation: normal priors of variances S, logarithms of the runs' steps that are linear in the constants' logarithms
    with slopes J, and normal noise of variances N. Constants on which no run depends keep their priors.

    Parameters
    ----------
    way
        Mapping from constants to the device.
    timed
        Runs with a step time.
    noises
        Standard deviation of the logarithm of each run's time.
    """
    measured, jacobian = log_measured_seconds(timed), _jacobian(way, timed, way.constants)
    priors, weights = priors_of(way.constants), NOISE / noises
    sensitive = np.abs(jacobian(priors.mean, None)).max(axis=0) > LEAST_SENSITIVITY
    chosen = tuple(one for one, is_sensitive in zip(way.constants, sensitive, strict=True) if is_sensitive)
    found = fit(
        lambda logs: _logarithms(way, timed, chosen, logs, simulated_seconds),
        _jacobian(way, timed, chosen),
        measured,
        weights=weights,
        priors=priors_of(chosen),
        start=_find_start(way, timed, chosen, measured, noises),
    )
    logs = priors.mean.copy()
    logs[sensitive] = found.logs
    return Posterior(
        way=way,
        logs=logs,
        covariance=covariance(jacobian(logs, None), weights, priors),
        values=way.fields(chosen, np.exp(found.logs).tolist()),
    )


def simulated_seconds(facts: Facts, strategy: Strategy) -> float:
    """Return the step that ``planner estimate`` predicts."""
    return estimate(facts, strategy).step_seconds


def _find_start(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], measured: Array, noises: Array) -> Fit:
    r"""
    Return the start of a fit, close to measured times, since the robust loss ignores distant ones.

    .. math:: x = p + S J^T (J S J^T + N)^{-1} (y - f(p)), \quad S = \mathrm{diag}(s^2), N = \mathrm{diag}(\sigma^2)

    Derivation: least squares without robustness, a few Gauss-Newton steps.
    """
    priors, jacobian = priors_of(chosen), _jacobian(way, timed, chosen)
    logs = priors.mean
    for number in range(MOST_STEPS + 1):
        residuals = _logarithms(way, timed, chosen, logs, simulated_seconds) - measured
        slopes = jacobian(logs, None)
        if np.abs(residuals).max() <= REACH or number == MOST_STEPS:
            break
        reach = slopes * priors.sigma**2
        missing = slopes @ (logs - priors.mean) - residuals
        step = reach.T @ np.linalg.solve(reach @ slopes.T + np.diag(noises**2), missing)
        logs = np.clip(priors.mean + step, priors.lower, priors.upper)
    return Fit(logs=logs, jacobian=slopes, residuals=residuals)


MOST_STEPS = 6

"""Most Gauss-Newton steps: a factor of ten takes four."""


def _logarithms(way: Road, timed: Sequence[Case], chosen: Sequence[Constant], logs: Array, seconds: Seconds) -> Array:
    values = way.fields(chosen, np.exp(logs).tolist())
    return np.log([seconds(way.facts(one.problem, values), one.strategy) for one in timed])


def _jacobian(way: Road, timed: Sequence[Case], chosen: Sequence[Constant]) -> Callable[[Array, Array | None], Array]:
    """Return a function of derivatives of the compared step time, which changes like the simulated one."""
    compared = partial(_logarithms, way, timed, chosen, seconds=strategy_seconds)
    return lambda logs, _: differentiate(compared, logs, chosen)


def differentiate(function: Callable[[Array], Array], logs: Array, chosen: Sequence[Constant]) -> Array:
    """Return derivatives by constants' logarithms, from differences: downwards at an upper bound."""
    before, columns = function(logs), []
    for index, upper in enumerate(priors_of(chosen).upper):
        step = DIFFERENCE if logs[index] + DIFFERENCE <= upper else -DIFFERENCE
        columns.append((function(logs + step * (np.arange(len(logs)) == index)) - before) / step)
    return np.stack(columns, axis=-1)


# --- the device ----------------------------------------------------------------------------------------------
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
    def runs_with_time(self) -> tuple[AnchorRun, ...]:
        """Runs with a step time."""
        return tuple(one for one in self.runs if one.measured_seconds is not None)

    @property
    def noise(self) -> float:
        """
        Standard deviation of the logarithm with which measured parts apply to the job: that of the closest run.

        The unexplained part of a run counts as noise.
        """
        return min(math.hypot(one.noise, one.residual) for one in self.runs_with_time)

    def compare_with(self, problem: Problem, strategy: Strategy) -> Anchor:
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
    """Refuse a run that differs only in size, but is outside its stated interval; others only move constants less."""
    alike = [one for one in runs if one.measured_seconds is not None and not one.differences]
    for one in sorted(alike, key=lambda each: -abs(each.residual)):
        if missed := find_missed_interval(one.case, one.model_seconds, one.anchored_seconds):
            raise SpecError(
                f"{one.case.run.id}: step_seconds",
                f"{one.measured_seconds:.4g} s were measured, not {missed.low_seconds:.4g} to "
                f"{missed.high_seconds:.4g} s as stated without it, and no constants within physical bounds come "
                f"closer than {one.anchored_seconds:.4g} s{' together with the other runs' if len(runs) > 1 else ''}.",
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
