"""The sections on money and energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.report.section import Section
from planner.report.wording import NOTHING, amount, count, energy, money, power

if TYPE_CHECKING:
    from planner.report.records.costs import CostBasisRecord, CostsRecord
    from planner.report.records.plan import NumberedPlanRecord, PlanRecord
    from planner.report.records.setting import SettingRecord

NO_PRICE = "no price is given: costs.price_per_device_hour=2.50"
"""The note where no price is given: the entry that gives one."""

TRILLION_TOKENS = "per trillion tokens"


def costs_sections(whole: SettingRecord, plans: Sequence[NumberedPlanRecord], of_best: str) -> Iterator[Section]:
    """Build the section on money and energy of the first plan, and the table of all plans."""
    yield costs_section(whole, plans[0], of_best)
    if plans[1:]:
        yield costs_table(plans, whole.job.costs.currency)


def costs_section(whole: SettingRecord, plan: PlanRecord, of_plan: str) -> Section:
    """Build the section on money and energy of one plan."""
    basis = whole.job.costs
    return Section(
        title=f"Money and energy{of_plan}",
        rows=(
            *_money_rows(basis, plan.costs),
            *_energy_rows(whole, plan),
            *_draw_rows(basis, plan.costs),
            *_omission_rows(whole, plan),
        ),
    )


def money_rows(basis: CostBasisRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the money of a training; none where no price is given."""
    if basis.price_per_device_hour is not None or basis.electricity_price_per_kwh is not None:
        yield next(_money_rows(basis, plan.costs))


def _money_rows(basis: CostBasisRecord, costs: CostsRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on the cost of the training and its prices, or on the option that gives a price."""
    if costs.total_cost is not None and costs.total_cost_per_trillion_tokens is not None:
        each = money(costs.total_cost_per_trillion_tokens, basis.currency)
        idle = costs.num_idle_devices
        paid = f"; {count(idle, 'idle GPU')} {'is' if idle == 1 else 'are'} paid" if idle else ""
        yield "money", f"{money(costs.total_cost, basis.currency)}, {each} {TRILLION_TOKENS}{paid}"
    elif basis.price_per_device_hour is None and basis.electricity_price_per_kwh is None:
        yield "money", NO_PRICE
    else:
        yield "money", "not known: electricity has a price, but the energy is not known"
    if costs.device_cost is not None and basis.price_per_device_hour is not None:
        yield (
            "devices",
            f"{money(costs.device_cost, basis.currency)}: {amount(costs.device_hours)} device-hours at "
            f"{basis.price_per_device_hour:,.2f} {basis.currency}",
        )
    if costs.electricity_cost is not None and basis.electricity_price_per_kwh is not None:
        yield (
            "electricity",
            f"{money(costs.electricity_cost, basis.currency)}: {basis.electricity_price_per_kwh:g} {basis.currency} "
            f"per kWh of the {'computers' if basis.pue is None else 'data centre'}",
        )


def _energy_rows(whole: SettingRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on energy and power, or on why they are not known."""
    basis, costs = whole.job.costs, plan.costs
    joined, each = costs.it_energy_mwh, costs.it_energy_mwh_per_trillion_tokens
    if joined is None or each is None or costs.it_power_megawatts is None:
        device = f"cluster.device: {{base: {whole.cluster.device}, power_watts: N}}"
        yield "energy", f"not known: no power limit of the device is published; give it: {device}"
        return
    yield "energy", f"{energy(joined)} of the {_drawing(basis, costs)}, {energy(each)} {TRILLION_TOKENS}"
    if costs.facility_energy_mwh is not None and costs.facility_energy_mwh_per_trillion_tokens is not None:
        yield (
            "data centre",
            f"{energy(costs.facility_energy_mwh)} at a PUE of {basis.pue:g}, "
            f"{energy(costs.facility_energy_mwh_per_trillion_tokens)} {TRILLION_TOKENS}",
        )
    yield (
        "power",
        f"{power(costs.it_power_megawatts)} in the mean of {plan.training_run.days:,.2f} days{_facility(costs)}",
    )


def _drawing(basis: CostBasisRecord, costs: CostsRecord) -> str:
    """Name the parts of the computers whose energy is counted."""
    idle = f" ({count(costs.num_idle_devices, 'idle one')} included)" if costs.num_idle_devices else ""
    return f"GPUs{idle}" if basis.host_watts_per_device is None else f"GPUs{idle} and the rest of their nodes"


def _facility(costs: CostsRecord) -> str:
    megawatts = costs.facility_power_megawatts
    return "" if megawatts is None else f"; {power(megawatts)} of the data centre"


def _draw_rows(basis: CostBasisRecord, costs: CostsRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the power of one GPU."""
    watts, share = costs.step_device_watts, costs.computing_share
    if watts is not None and share is not None and basis.power_watts is not None:
        yield (
            "one GPU",
            f"{watts:,.0f} of {basis.power_watts:,.0f} W in a step, of which it computes {share:.0%}; "
            f"{basis.idle_fraction * basis.power_watts:,.0f} W while it is down",
        )


def _omission_rows(whole: SettingRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the row on parts that no figure counts: entries that the job lacks, and GPUs beyond its limit."""
    basis, most = whole.job.costs, whole.job.max_devices
    beyond = 0 if most is None else whole.cluster.num_devices - most
    left_out = [f"{count(beyond, 'GPU')} beyond search.max_devices"] if beyond else []
    if plan.costs.it_energy_mwh is not None:
        if basis.host_watts_per_device is None:
            left_out.append("the rest of the nodes (costs.host_watts_per_device)")
        if basis.pue is None:
            left_out.append("the data centre (costs.pue)")
    if left_out:
        yield "not counted", "; ".join(left_out)


def costs_table(plans: Sequence[NumberedPlanRecord], currency: str) -> Section:
    """Build the table of money and energy of all plans; money where it is known."""
    has_money = plans[0].costs.total_cost is not None
    return Section(
        title="Money and energy of all strategies",
        header=("#", "device-hours", "MWh", "MW", *((currency, "difference") if has_money else ())),
        rows=tuple(_row(plan, has_money=has_money) for plan in plans),
    )


def _row(plan: NumberedPlanRecord, *, has_money: bool) -> tuple[str, ...]:
    costs = plan.costs
    cells = [
        str(plan.number),
        f"{costs.device_hours:,.0f}",
        _cell(costs.it_energy_mwh, ",.1f"),
        _cell(costs.it_power_megawatts, ",.3f"),
    ]
    if has_money:
        cells += [_cell(costs.total_cost, ",.0f"), _cell(plan.difference_cost or None, "+,.0f")]
    return tuple(cells)


def _cell(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"
