"""
Device-hours, energy and money of a whole training.

Each device draws P while the job steps, P_idle while it is down; both follow from its power limit
(:class:`costmodel.facts.costs.PowerDraw`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.facts.costs import Costs, PowerDraw
from costmodel.step.estimate import Part

HOUR = 3600.0
KWH_JOULES = 3.6e6
MWH_JOULES = 1e3 * KWH_JOULES

COMPUTING = ("compute", "recompute", "optimizer")
"""Parts of a step in which a device computes; in the others it communicates or waits."""


def computing_fraction(breakdowns: Sequence[Sequence[Part]]) -> float:
    """
    Share of a step in which a device computes, the mean of all pipeline ranks.

    Derivation: the exposed parts of each rank add up to the step; communication that is hidden is beside computation.

    Parameters
    ----------
    breakdowns
        Where the step goes on each rank (:func:`costmodel.step.estimate.rank_breakdowns`).
    """
    parts = [part for breakdown in breakdowns for part in breakdown]
    busy = sum(part.exposed_seconds for part in parts if part.name in COMPUTING)
    return busy / sum(part.exposed_seconds for part in parts)


def step_watts(draw: PowerDraw, *, power_watts: float, computing_fraction: float) -> float:
    r"""
    Mean watts of one device while the job steps.

    .. math:: P = P_{limit} (a_{computing} s + a_{waiting} (1 - s))

    Derivation: a device computes for the share s of a step, and communicates or waits for the rest; phases of a step
    with a draw each are what Patel et al. measure (ASPLOS 2024, arXiv:2308.12908).

    >>> draw = PowerDraw(computing=1.0, waiting=0.5, idle=0.15)
    >>> step_watts(draw, power_watts=700, computing_fraction=0.8)
    630.0
    """
    return power_watts * (draw.computing * computing_fraction + draw.waiting * (1 - computing_fraction))


def stepping_seconds(*, effective_seconds: float, failures: float, interval_seconds: float) -> float:
    r"""
    Seconds of a training in which its devices run steps, those done again after failures included.

    .. math:: T_{eff} + N_{fail} K T_{step} / 2

    Derivation: the terms of MoFa's equations (37) and (39) in which steps run; in the others devices are idle.
    """
    return effective_seconds + failures * interval_seconds / 2


def device_joules(*, step_watts: float, idle_watts: float, stepping_seconds: float, total_seconds: float) -> float:
    r"""
    Energy of one device in a whole training.

    .. math:: E = P \, T_{steps} + P_{idle} (T_{total} - T_{steps})
    """
    return step_watts * stepping_seconds + idle_watts * (total_seconds - stepping_seconds)


def facility_joules(it_joules: float, *, pue: float) -> float:
    """
    Energy of the data centre: that of its computers times the power usage effectiveness.

    References
    ----------
    ISO/IEC 30134-2; Luccioni et al., "Estimating the Carbon Footprint of BLOOM", arXiv:2211.02001.
    """
    return it_joules * pue


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """
    What a training draws.

    Parameters
    ----------
    computing_fraction
        Share of a step in which a device computes.
    step_watts, mean_watts
        One device while the job steps, and in the mean of the whole training.
    it_joules
        All devices, waiting ones included, with the rest of their nodes where that is known.
    facility_joules
        The same with the data centre; None: its power usage effectiveness is not known.
    """

    computing_fraction: float
    step_watts: float
    mean_watts: float
    it_joules: float
    facility_joules: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """
    What is held, and for how long.

    Parameters
    ----------
    num_devices, num_waiting
        Devices that train, and those beside them that wait: spares, and what a plan leaves idle.
    total_seconds, stepping_seconds
        The whole training, and its time in steps.
    """

    num_devices: int
    num_waiting: int
    total_seconds: float
    stepping_seconds: float

    @property
    def hours(self) -> float:
        """Device-hours: all devices are held for the whole time."""
        return (self.num_devices + self.num_waiting) * self.total_seconds / HOUR


def training_energy(
    devices: Devices, costs: Costs, draw: PowerDraw, *, power_watts: float, computing_fraction: float
) -> Energy:
    r"""
    Energy of all devices in a whole training, of their hosts, and of the data centre.

    .. math:: E_{IT} = n E + n_{wait} P_{idle} T_{total} + (n + n_{wait}) P_{host} T_{total}

    Derivation: spares and idle devices wait the whole time; the rest of a node draws the same whatever its devices do.
    """
    step = step_watts(draw, power_watts=power_watts, computing_fraction=computing_fraction)
    idle, total = draw.idle * power_watts, devices.total_seconds
    each = device_joules(
        step_watts=step, idle_watts=idle, stepping_seconds=devices.stepping_seconds, total_seconds=total
    )
    host = (costs.host_watts_per_device or 0.0) * (devices.num_devices + devices.num_waiting) * total
    joules = devices.num_devices * each + devices.num_waiting * idle * total + host
    return Energy(
        computing_fraction=computing_fraction,
        step_watts=step,
        mean_watts=each / total,
        it_joules=joules,
        facility_joules=None if costs.pue is None else facility_joules(joules, pue=costs.pue),
    )


def device_cost(devices: Devices, costs: Costs) -> float | None:
    """What the devices cost: device-hours times their price; None where that is not given."""
    price = costs.price_per_device_hour
    return None if price is None else devices.hours * price


def electricity_cost(energy: Energy, costs: Costs) -> float | None:
    """What their energy costs, that of the data centre where it is known; None where no price is given."""
    price = costs.electricity_price_per_kwh
    joules = energy.it_joules if energy.facility_joules is None else energy.facility_joules
    return None if price is None else joules / KWH_JOULES * price


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCosts:
    """
    What a whole training costs.

    Parameters
    ----------
    device_hours
        Devices that are held times hours.
    energy
        What they draw; None: their power is not known.
    device_cost, electricity_cost
        Money; None: no price is given, or no energy is known.
    total_cost
        Both together, or the one that has a price; None: no price is given, or one of energy that is not known.
    """

    device_hours: float
    energy: Energy | None
    device_cost: float | None
    electricity_cost: float | None
    total_cost: float | None


def training_costs(
    devices: Devices, costs: Costs, draw: PowerDraw, *, power_watts: float | None, computing_fraction: float
) -> TrainingCosts:
    """
    Device-hours, energy and money of a whole training.

    Parameters
    ----------
    devices
        What is held.
    costs, draw
        Prices, and what devices draw of their power limit.
    power_watts
        That limit; None: not known.
    computing_fraction
        Share of a step in which a device computes.
    """
    energy = (
        None
        if power_watts is None
        else training_energy(devices, costs, draw, power_watts=power_watts, computing_fraction=computing_fraction)
    )
    of_devices = device_cost(devices, costs)
    of_energy = electricity_cost(energy, costs) if energy else None
    is_known = energy is not None or costs.electricity_price_per_kwh is None
    known = [cost for cost in (of_devices, of_energy) if cost is not None]
    return TrainingCosts(
        device_hours=devices.hours,
        energy=energy,
        device_cost=of_devices,
        electricity_cost=of_energy,
        total_cost=sum(known) if known and is_known else None,
    )
