"""
Device-hours, energy and money of a whole training.

Each device draws P while the job steps, and P_idle while it is down; both follow from its power limit
(:class:`costmodel.facts.reliability.PowerDraw`).
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.facts.reliability import Costs, PowerDraw
from costmodel.record import record
from costmodel.step.estimate import Part

HOUR = 3600.0
KWH_JOULES = 3.6e6
MWH_JOULES = 1e3 * KWH_JOULES

COMPUTING = ("compute", "recompute", "optimizer")
"""Parts of a step in which a device computes; in all others it communicates or waits."""


def computing_fraction(breakdowns: Sequence[Sequence[Part]]) -> float:
    """
    Share of a step in which a device computes, averaged over all pipeline ranks.

    Derivation: the exposed parts of each rank add up to the step; hidden communication overlaps with computation.

    Parameters
    ----------
    breakdowns
        Breakdown of the step on each rank (:func:`costmodel.step.estimate.rank_breakdowns`).
    """
    parts = [part for breakdown in breakdowns for part in breakdown]
    busy = sum(part.exposed_seconds for part in parts if part.name in COMPUTING)
    return busy / sum(part.exposed_seconds for part in parts)


def step_watts(draw: PowerDraw, *, power_watts: float, computing_fraction: float) -> float:
    r"""
    Mean watts of one device while the job steps.

    .. math:: P = P_{limit} (a_{computing} s + a_{waiting} (1 - s))

    Derivation: a device computes for the share s of a step, and communicates or waits for the rest. Patel et al.
    measure the draw by phase of a step (ASPLOS 2024, arXiv:2308.12908).

    >>> draw = PowerDraw(computing=1.0, waiting=0.5, idle=0.15)
    >>> step_watts(draw, power_watts=700, computing_fraction=0.8)
    630.0
    """
    return power_watts * (draw.computing * computing_fraction + draw.waiting * (1 - computing_fraction))


def stepping_seconds(*, effective_seconds: float, failures: float, interval_seconds: float) -> float:
    r"""
    Seconds of a training in which its devices run steps, including steps repeated after failures.

    .. math:: T_{eff} + N_{fail} K T_{step} / 2

    Derivation: the terms of MoFa's equations (37) and (39) in which steps run; devices are idle in all others.
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
    Energy of the data centre: the energy of its computers times the power usage effectiveness.

    References
    ----------
    ISO/IEC 30134-2; Luccioni et al., "Estimating the Carbon Footprint of BLOOM", arXiv:2211.02001.
    """
    return it_joules * pue


@record(frozen=True, kw_only=True, slots=True)
class Energy:
    """
    Power and energy of a training.

    Parameters
    ----------
    computing_fraction
        Share of a step in which a device computes.
    step_watts, mean_watts
        Power of one device while the job steps, and its mean over the whole training.
    stepping_watts
        Power of all devices and known hosts while the job steps; of the data centre if its power usage effectiveness is
        known.
    it_joules
        Energy of all devices, waiting ones included, and of the rest of their nodes if that is known.
    facility_joules
        Energy of the data centre; None if its power usage effectiveness is not known.
    """

    computing_fraction: float
    step_watts: float
    mean_watts: float
    stepping_watts: float
    it_joules: float
    facility_joules: float | None


@record(frozen=True, kw_only=True, slots=True)
class Devices:
    """
    Devices of a training, and the time for which they are held.

    Parameters
    ----------
    num_devices, num_waiting
        Devices that train, and devices that wait: spares, and devices that a plan leaves idle.
    total_seconds, stepping_seconds
        Time of the whole training, and its time in steps.
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

    Derivation: spares and idle devices wait the whole time; the draw of the rest of a node is constant.
    """
    step = step_watts(draw, power_watts=power_watts, computing_fraction=computing_fraction)
    idle, total = draw.idle * power_watts, devices.total_seconds
    each = device_joules(
        step_watts=step, idle_watts=idle, stepping_seconds=devices.stepping_seconds, total_seconds=total
    )
    hosts = (costs.host_watts_per_device or 0.0) * (devices.num_devices + devices.num_waiting)
    joules = devices.num_devices * each + devices.num_waiting * idle * total + hosts * total
    return Energy(
        computing_fraction=computing_fraction,
        step_watts=step,
        mean_watts=each / total,
        stepping_watts=(devices.num_devices * step + devices.num_waiting * idle + hosts) * (costs.pue or 1.0),
        it_joules=joules,
        facility_joules=None if costs.pue is None else facility_joules(joules, pue=costs.pue),
    )


def device_cost(devices: Devices, costs: Costs) -> float | None:
    """Cost of the devices: device-hours times their price; None if no price is given."""
    price = costs.price_per_device_hour
    return None if price is None else devices.hours * price


def electricity_cost(energy: Energy, costs: Costs) -> float | None:
    """Cost of the energy, of the data centre's if that is known; None if no price is given."""
    price = costs.electricity_price_per_kwh
    joules = energy.it_joules if energy.facility_joules is None else energy.facility_joules
    return None if price is None else joules / KWH_JOULES * price


@record(frozen=True, kw_only=True, slots=True)
class TrainingCosts:
    """
    Device-hours, energy and costs of a whole training.

    Parameters
    ----------
    device_hours
        Held devices times hours.
    energy
        Their energy; None if their power is not known.
    device_cost, electricity_cost
        Costs; None if no price is given, or no energy is known.
    total_cost
        Sum of both, or the one with a price; None if no price is given, or if it is one of unknown energy.
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
    Return the device-hours, the energy and the costs of a whole training.

    Parameters
    ----------
    devices
        Devices of the training, and their time.
    costs, draw
        Prices, and the power draw as fractions of the limit.
    power_watts
        Power limit of a device; None if it is not known.
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
