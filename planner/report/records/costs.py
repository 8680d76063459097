"""Money and energy: the prices and powers of a job, and the costs of a whole training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel import catalog
from costmodel.costs import MWH_JOULES
from planner.report.records.record import Figure, Record

if TYPE_CHECKING:
    from costmodel.costs import Energy
    from planner.jobs.problem import Problem
    from planner.results import Plan

TRILLION = 1e12


class CostBasisRecord(Record):
    """
    Prices and powers that money and energy follow from.

    Parameters
    ----------
    price_per_device_hour
        Price of one device for an hour; null: the job gives none.
    currency
        Currency of all prices and costs.
    electricity_price_per_kwh
        Price of a kWh, which is added to that of the devices; null: the job gives none.
    pue
        Power usage effectiveness: energy of the data centre over that of its computers; null: not known.
    host_watts_per_device
        Watts of the rest of a node per device; null: not counted.
    power_watts
        Power limit of one device; null: its maker publishes none.
    power_source
        Source of the power limit.
    computing_fraction
        Share of its power limit that a device draws while it computes.
    waiting_fraction
        Share that it draws while it communicates or waits for others in a step.
    idle_fraction
        Share that it draws while the job saves checkpoints, recovers or starts.
    draw_sources
        Sources of these fractions.
    """

    price_per_device_hour: Figure | None
    currency: str
    electricity_price_per_kwh: Figure | None
    pue: Figure | None
    host_watts_per_device: Figure | None
    power_watts: Figure | None
    power_source: str | None
    computing_fraction: Figure
    waiting_fraction: Figure
    idle_fraction: Figure
    draw_sources: dict[str, str]

    @classmethod
    def build(cls, problem: Problem) -> CostBasisRecord:
        """Build the record of a job."""
        device, draw = problem.facts.cluster.device, catalog.power_draw()
        return cls.read(
            problem.costs,
            power_watts=device.power_watts,
            power_source=device.sources.get("power_watts"),
            computing_fraction=draw.computing,
            waiting_fraction=draw.waiting,
            idle_fraction=draw.idle,
            draw_sources=dict(draw.sources),
        )


class CostsRecord(Record):
    """
    Costs and energy of a whole training; null where no price is given or no power is known.

    Parameters
    ----------
    device_hours
        Devices of the job, idle ones and spares included, times the hours of the whole training.
    device_hours_per_trillion_tokens
        Per trillion tokens of the training.
    computing_share
        Share of a step in which a device computes, the mean of all ranks.
    step_device_watts
        Power that one device draws while the job steps.
    mean_device_watts
        Mean power that one device draws over the whole training.
    it_power_megawatts
        Mean power of all devices, and of their hosts where that is given.
    facility_power_megawatts
        Mean power of the data centre; null without its PUE.
    stepping_power_megawatts
        Power while the job steps: of the data centre with its PUE, else of all devices and known hosts.
    it_energy_mwh
        Megawatt-hours of all devices, and of their hosts where that is given.
    it_energy_mwh_per_trillion_tokens
        Per trillion tokens of the training.
    facility_energy_mwh
        Megawatt-hours of the data centre; null without its PUE.
    facility_energy_mwh_per_trillion_tokens
        Per trillion tokens of the training.
    num_idle_devices
        Devices of the job that the plan leaves idle; they are paid and draw idle power.
    currency
        Currency of the costs.
    device_cost
        Money for the devices; null: no price is given.
    electricity_cost
        Money for energy, that of the data centre where it is known.
    total_cost
        Costs of devices and energy together, or of the one that has a price.
    total_cost_per_trillion_tokens
        Per trillion tokens of the training.
    """

    device_hours: Figure
    device_hours_per_trillion_tokens: Figure
    computing_share: Figure | None
    step_device_watts: Figure | None
    mean_device_watts: Figure | None
    it_power_megawatts: Figure | None
    facility_power_megawatts: Figure | None
    stepping_power_megawatts: Figure | None
    it_energy_mwh: Figure | None
    it_energy_mwh_per_trillion_tokens: Figure | None
    facility_energy_mwh: Figure | None
    facility_energy_mwh_per_trillion_tokens: Figure | None
    num_idle_devices: int
    currency: str
    device_cost: Figure | None
    electricity_cost: Figure | None
    total_cost: Figure | None
    total_cost_per_trillion_tokens: Figure | None

    @classmethod
    def build(cls, plan: Plan) -> CostsRecord:
        """Build the record of a plan."""
        costs, tokens = plan.costs, plan.facts.workload.tokens
        totals: dict[str, Any] = {
            "device_hours": costs.device_hours,
            "it_energy_mwh": _mwh(costs.energy.it_joules) if costs.energy else None,
            "facility_energy_mwh": _mwh(costs.energy.facility_joules) if costs.energy else None,
            "total_cost": costs.total_cost,
        }
        each = {
            f"{name}_per_trillion_tokens": None if total is None else total * TRILLION / tokens
            for name, total in totals.items()
        }
        others = totals | each | _powers(costs.energy, plan.schedule.total_seconds)
        return cls.read(costs, num_idle_devices=plan.num_idle_devices, currency=plan.problem.costs.currency, **others)


class SavedCostsRecord(Record):
    """
    Energy and money that one plan saves over another; negative where it takes more.

    Parameters
    ----------
    it_energy_mwh
        Megawatt-hours of all devices; null where no power is known.
    total_cost
        Money; null without prices, or with those in two currencies.
    """

    it_energy_mwh: Figure | None
    total_cost: Figure | None

    @classmethod
    def build(cls, given: CostsRecord, other: CostsRecord) -> SavedCostsRecord:
        """Return the savings of the other plan."""
        return cls(
            it_energy_mwh=difference(given.it_energy_mwh, other.it_energy_mwh),
            total_cost=difference(given.total_cost, other.total_cost) if given.currency == other.currency else None,
        )


def difference(one: float | None, other: float | None) -> float | None:
    """Return the first minus the second; None where one of them is not known."""
    return None if one is None or other is None else one - other


def _mwh(joules: float | None) -> float | None:
    return None if joules is None else joules / MWH_JOULES


def _powers(energy: Energy | None, total_seconds: float) -> dict[str, float | None]:
    """Return the watts of one device and the megawatts of all, by entry."""
    of_facility = energy.facility_joules if energy else None
    return {
        "computing_share": energy.computing_fraction if energy else None,
        "step_device_watts": energy.step_watts if energy else None,
        "mean_device_watts": energy.mean_watts if energy else None,
        "it_power_megawatts": energy.it_joules / total_seconds / 1e6 if energy else None,
        "stepping_power_megawatts": energy.stepping_watts / 1e6 if energy else None,
        "facility_power_megawatts": None if of_facility is None else of_facility / total_seconds / 1e6,
    }
