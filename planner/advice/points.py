"""Cells of the question, a device, a size and a batch each; their lower bounds, and the points that plans make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any, TypeAlias

from costmodel import catalog
from costmodel import reliability as formulas
from costmodel.costs import KWH_JOULES, MWH_JOULES, device_joules, step_watts
from costmodel.models.flops import model_flops_per_token
from costmodel.record import record
from planner.advice.prices import Offer
from planner.jobs.entries import EVALUATION_INTERVAL_STEPS
from planner.jobs.problem import Problem
from planner.search.domains import least_device_seconds, num_spares
from planner.uncertainty.intervals import COVERAGE

STARTUP_SECONDS = 520
"""
Median warm-up of 14 trainings of Llama 3.1 405B on 256 to 8,192 GPUs, 315 to 1,062 s.

MLPerf Training v5.0, result logs (mlcommons/training_results_v5.0), from the start of the process to that of the run.
"""

UPTIMES: Mapping[str, float] = {
    "HLAT on 4,096 Trainium, automatic restarts": 0.9881,
    "HLAT on 4,096 Trainium, manual restarts": 0.7783,
    "Llama 3.1 405B on 16,384 H100": 0.90,
    "Gemini on TPU v4, before improvements": 0.85,
    "Gemini on TPU v4": 0.97,
    "OPT-175B on 992 A100": 0.59,
}
"""
Share of the time of a training in which its job ran.

HLAT: arXiv 2404.10630; Llama 3: arXiv 2407.21783, section 3.3.4; Gemini: arXiv 2312.11805, section 4; OPT: arXiv
2205.01068. All by the table of glennklockwood.com/garden/job-reliability.
"""


def lower_uptime() -> float:
    """
    Return the lower end of the interval of published uptimes.

    >>> round(lower_uptime(), 3)
    0.684
    """
    tail = (1 - COVERAGE) / 2
    return quantiles(UPTIMES.values(), n=round(1 / tail), method="inclusive")[0]


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "reliability": {"init_seconds": STARTUP_SECONDS},
    "training": {"evaluation_interval_steps": EVALUATION_INTERVAL_STEPS},
}
"""Entries of a whole training by section."""


def missing_entries(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the defaults of the entries that a job leaves out, by section."""
    return {
        section: {name: value for name, value in entries.items() if name not in (document.get(section) or {})}
        for section, entries in DEFAULTS.items()
    }


def assignments(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the defaults of the entries that a job leaves out as ``key=value``."""
    for section, entries in missing_entries(document).items():
        yield from (f"{section}.{name}={value}" for name, value in entries.items())


def lengthening(uptime: float) -> float:
    """
    Factor on the time of a training at the lower end of published uptimes; 1 where its own uptime is lower.

    >>> round(lengthening(0.97), 2), lengthening(0.5)
    (1.42, 1.0)
    """
    return max(1.0, uptime / lower_uptime())


DAYS, MONEY, ENERGY, DEVICES, MEGAWATTS = "days", "money", "energy_mwh", "num_devices", "megawatts"

FRONT = (DAYS, MONEY, ENERGY)
"""Quantities of the front."""

Metrics: TypeAlias = Mapping[str, float]
"""Values by quantity; infinite where one is not known, so that it never wins."""

ROUNDING = 1e-9
"""Fraction by which a bound is lowered, for sums in another order."""

OF_DEVICE = ("device", "architecture")
"""Dimensions of gaps that say that a device has no measured runs."""


@record(frozen=True, kw_only=True, slots=True)
class ClusterCell:
    """
    A device, a size and a batch.

    Parameters
    ----------
    device
        Name of the device.
    num_devices, global_batch_size
        Size of the cluster and batch of the job.
    tokens_factor
        Tokens of the training over those of the job, as the batch was said to need.
    offer
        The cheapest offer of the device at this size; None without a price.
    document
        The job.
    """

    device: str
    num_devices: int
    global_batch_size: int
    tokens_factor: float
    offer: Offer | None
    document: Mapping[str, Any]

    @property
    def cluster_text(self) -> str:
        """Size, device and provider in words."""
        at = f" at {self.offer.provider}" if self.offer and self.offer.provider else ""
        return f"{self.num_devices:,} x {self.device}{at}"

    @property
    def name(self) -> str:
        """Device, size and batch in words."""
        provider = f" at {self.offer.provider}" if self.offer and self.offer.provider else ""
        return f"{self.num_devices:,} x {self.device}, batch {self.global_batch_size:,}{provider}"


@record(frozen=True, kw_only=True, slots=True)
class ClusterPoint:
    """
    A cell with its plan.

    Parameters
    ----------
    cell
        Device, size and batch.
    metrics
        Days, money, energy, devices and power.
    spread
        Ends of the training over its prediction, by the interval of measured steps.
    intervals
        Ends of days, money and energy: with the spread, the ends of the price, and at the high end the lower end of
        published uptimes.
    is_proven
        True where the plan is proven to be the fastest.
    figures
        Figures of the plan, by the names of a batch's lines.
    """

    cell: ClusterCell
    metrics: Metrics
    spread: tuple[float, float]
    intervals: Mapping[str, tuple[float, float]]
    is_proven: bool
    figures: Mapping[str, Any]

    @property
    def gap_sentence(self) -> str:
        """Sentence that no measured run is of the device; empty where some are."""
        gaps = (gap for gap in self.figures["gaps"] if _entry(gap, "dimension") in OF_DEVICE)
        return next((str(_entry(gap, "sentence")) for gap in gaps if not _entry(gap, "runs")), "")

    @property
    def num_idle_devices(self) -> int:
        """Number of devices of the cell that the plan leaves idle; they are paid."""
        return self.cell.num_devices - int(self.figures["num_devices"])

    def ties_with(self, other: ClusterPoint, quantity: str) -> bool:
        """Tell whether each one's value lies within the spread of the other; numbers of devices must be equal."""
        pairs = ((self, other), (other, self))
        ends = [(1.0, 1.0) if quantity == DEVICES else one.spread for one, _ in pairs]
        return all(
            low * one.metrics[quantity] <= two.metrics[quantity] <= high * one.metrics[quantity]
            for (one, two), (low, high) in zip(pairs, ends, strict=True)
        )


def _entry(gap: Any, name: str) -> Any:
    return gap[name] if isinstance(gap, Mapping) else getattr(gap, name)


def make_point(cell: ClusterCell, figures: Mapping[str, Any], *, is_proven: bool) -> ClusterPoint:
    """
    Build the point of a cell from the figures of its plan, as a batch's line holds them.

    The job has no price of devices: its costs are those of electricity, and the offer's price is added.
    """
    days, (low, high) = float(figures["days"]), figures["days_interval"]
    energy = figures["facility_energy_mwh"] or figures["it_energy_mwh"]
    is_priced = (cell.document.get("costs") or {}).get("electricity_price_per_kwh") is not None
    price = None if is_priced and energy is None else cell.offer
    electricity, hours = float(figures["total_cost"] or 0.0), float(figures["device_hours"])
    known = {
        DAYS: days,
        MONEY: None if price is None else hours * price.price + electricity,
        ENERGY: energy,
        DEVICES: float(cell.num_devices),
        MEGAWATTS: figures["stepping_power_megawatts"],
    }
    metrics = {name: math.inf if value is None else float(value) for name, value in known.items()}
    uptime = figures["ettr"] + (figures["evaluation_seconds"] + figures["loading_seconds"]) / figures["total_seconds"]
    ends = (low / days, high / days * lengthening(uptime))
    intervals = {name: (metrics[name] * ends[0], metrics[name] * ends[1]) for name in FRONT if metrics[name] < math.inf}
    if price is not None:
        low_cost, high_cost = (hours * each + electricity for each in (price.low, price.high))
        intervals[MONEY] = (low_cost * ends[0], high_cost * ends[1])
    return ClusterPoint(
        cell=cell,
        metrics=metrics,
        spread=(low / days, high / days),
        intervals=intervals,
        is_proven=is_proven,
        figures=figures,
    )


def bound(cell: ClusterCell, problem: Problem) -> Metrics:
    r"""
    Return lower bounds of the quantities of a cell, over all strategies and all numbers of its devices.

    .. math:: T \ge N_{step} \max(W, F) / n + T_{init}

    with W the least devices times seconds of a step (:func:`planner.search.domains.least_device_seconds`), F the
    model's FLOPs of a step over the peak of one device, and n the devices. Money follows from the time. Energy:
    computation takes at least F, and the rest of W is waited for at least.

    Parameters
    ----------
    cell
        Device, size and batch.
    problem
        Job of the cell, loaded.
    """
    workload, device, costs = problem.facts.workload, problem.facts.cluster.device, problem.costs
    tokens = workload.global_batch_size * workload.sequence_length
    flops = min(
        model_flops_per_token(one.facts.model, workload.sequence_length, "causal", workload.lengths) * tokens
        for one in problem.each
    )
    computing = flops / device.peak_flops[workload.precision.compute]
    work = max(least_device_seconds(problem), computing) * (1 - ROUNDING)
    steps, num_held = formulas.num_steps(workload), cell.num_devices + num_spares(problem)
    step_seconds = work / cell.num_devices
    other = formulas.other_seconds(problem.reliability, num_steps=steps, step_seconds=step_seconds)
    total = formulas.effective_seconds(num_steps=steps, step_seconds=step_seconds) + other
    hosts = (costs.host_watts_per_device or 0.0) * num_held
    joules = watts = math.inf
    if device.power_watts is not None:
        draw, limit = catalog.power_draw(), device.power_watts
        step = step_watts(draw, power_watts=limit, computing_fraction=computing * (1 - ROUNDING) / work)
        joules = device_joules(
            step_watts=step, idle_watts=0.0, stepping_seconds=steps * work, total_seconds=steps * work
        )
        joules += hosts * total
        watts = draw.idle * limit * cell.num_devices + hosts
    pue, money = costs.pue or 1.0, math.inf
    if cell.offer is not None:
        money = num_held * total / 3600 * cell.offer.price
        if costs.electricity_price_per_kwh is not None and joules < math.inf:
            money += joules * pue / KWH_JOULES * costs.electricity_price_per_kwh
    return {
        DAYS: total / formulas.DAY,
        MONEY: money,
        ENERGY: joules * pue / MWH_JOULES,
        DEVICES: float(cell.num_devices),
        MEGAWATTS: watts * pue / 1e6,
    }


def dominates(one: Metrics, other: Metrics, quantities: Sequence[str]) -> bool:
    """Tell whether one is nowhere more and somewhere less."""
    return all(one[name] <= other[name] for name in quantities) and any(one[name] < other[name] for name in quantities)


def find_front(points: Iterable[ClusterPoint], quantities: Sequence[str] = FRONT) -> tuple[ClusterPoint, ...]:
    """Return the points that no other one dominates, fastest first."""
    every = sorted(points, key=lambda one: (one.metrics[DAYS], one.metrics[MONEY], one.metrics[ENERGY]))
    return tuple(
        point for point in every if not any(dominates(other.metrics, point.metrics, quantities) for other in every)
    )
