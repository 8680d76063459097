"""Device-hours, energy and money: published trainings, and what must hold for any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel import catalog
from costmodel.costs import (
    KWH_JOULES,
    MWH_JOULES,
    Devices,
    computing_fraction,
    device_joules,
    step_watts,
    stepping_seconds,
    training_costs,
)
from costmodel.facts.reliability import Costs, PowerDraw
from costmodel.step.estimate import Part
from tests.cases import in_one_case

HOUR = 3600.0
FULL = PowerDraw(computing=1.0, waiting=1.0, idle=1.0)
"""Every hour at the power limit, as most papers count."""


def devices_of(device_hours: float, *, num_devices: int = 1024, stepping: float = 1.0, num_waiting: int = 0) -> Devices:
    """Devices for so many device-hours, of which they step for a share."""
    total = device_hours / num_devices * HOUR
    return Devices(
        num_devices=num_devices, num_waiting=num_waiting, total_seconds=total, stepping_seconds=stepping * total
    )


PUBLISHED = (
    # model, device, device-hours, PUE, MWh; LLaMA, arXiv 2302.13971, table 15; Luccioni et al., arXiv 2211.02001.
    ("BLOOM 176B", "a100-80gb-sxm", 1_082_990, None, 433.196),
    ("LLaMA 7B", "a100-80gb-sxm", 82_432, 1.1, 36),
    ("LLaMA 13B", "a100-80gb-sxm", 135_168, 1.1, 59),
    ("LLaMA 33B", "a100-80gb-sxm", 530_432, 1.1, 233),
    ("LLaMA 65B", "a100-80gb-sxm", 1_022_362, 1.1, 449),
    ("OPT 175B", "a100-80gb-sxm", 809_472, 1.1, 356),
)


@in_one_case(("model", "device", "hours", "pue", "mwh"), PUBLISHED)
def test_hours_at_the_power_limit_are_the_published_energy(model, device, hours, pue, mwh):
    """They count every GPU-hour with the datasheet's 400 W, times the PUE where they count the data centre."""
    watts = catalog.device(device).power_watts

    energy = training_costs(devices_of(hours), Costs(pue=pue), FULL, power_watts=watts, computing_fraction=0.8).energy

    assert energy is not None
    joules = energy.it_joules if pue is None else energy.facility_joules
    assert joules / MWH_JOULES == pytest.approx(mwh, rel=0.015)


def test_the_draw_of_a_measured_training():
    """
    OLMo 2 7B draws more than 600 W of an H100's 700 W while it trains (Morrison et al., arXiv 2503.05804).

    Its steps compute for 86 % as predicted; 622 W are 4 % more than that bound.
    """
    watts = step_watts(catalog.power_draw(), power_watts=700, computing_fraction=0.86)

    assert watts == pytest.approx(600, rel=0.05)
    assert watts > 600


def test_the_parts_of_a_step():
    """Ranks compute for 6 of 8 and for 4 of 8 seconds: 10 of 16."""
    first = (part("compute", 4), part("recompute", 1), part("optimizer", 1), part("tp", 2))
    second = (part("compute", 4), part("bubble", 4))

    assert computing_fraction((first, second)) == 10 / 16


def part(name: str, seconds: float) -> Part:
    """A line of a breakdown without hidden time."""
    return Part(name=name, exposed_seconds=seconds, hidden_seconds=0.0)


def test_steps_that_are_done_again_are_steps():
    """Two failures repeat half an interval of 100 s each; recoveries and checkpoints are no steps."""
    assert stepping_seconds(effective_seconds=1000, failures=2, interval_seconds=100) == 1100


def test_idle_time_draws_idle_power():
    """600 W for 90 s and 100 W for 10 s are 55 kJ."""
    assert device_joules(step_watts=600, idle_watts=100, stepping_seconds=90, total_seconds=100) == 55_000


def test_spares_and_hosts():
    """
    Ten devices at 700 W, two spares at 105 W, 300 W beside each of the twelve, for an hour: 7 + 0.21 + 3.6 kWh.

    At a PUE of 1.2 these 10.81 kWh are 12.972 kWh, which cost 1.30 at 0.10; twelve device-hours at 2 cost 24.
    """
    costs = Costs(price_per_device_hour=2, electricity_price_per_kwh=0.1, pue=1.2, host_watts_per_device=300)
    draw = PowerDraw(computing=1.0, waiting=0.5, idle=0.15)

    found = training_costs(
        devices_of(10, num_devices=10, num_waiting=2), costs, draw, power_watts=700, computing_fraction=1.0
    )

    assert found.device_hours == 12
    assert found.energy is not None
    assert found.energy.it_joules / KWH_JOULES == pytest.approx(10.81)
    assert found.energy.facility_joules / KWH_JOULES == pytest.approx(12.972)
    assert (found.device_cost, found.electricity_cost) == (24, pytest.approx(1.2972))
    assert found.total_cost == pytest.approx(25.2972)


def test_nothing_is_assumed():
    """No price, no money; no power, no energy; a price of energy that is not known makes no total."""
    free = training_costs(devices_of(10), Costs(), FULL, power_watts=None, computing_fraction=1.0)
    priced = Costs(price_per_device_hour=2, electricity_price_per_kwh=0.1)
    unknown = training_costs(devices_of(10), priced, FULL, power_watts=None, computing_fraction=1.0)

    assert (free.energy, free.device_cost, free.electricity_cost, free.total_cost) == (None, None, None, None)
    assert (unknown.device_cost, unknown.electricity_cost, unknown.total_cost) == (20, None, None)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy; the first draw imports
@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e7), st.floats(0, 1e3), st.floats(0, 100), st.integers(0, 64))
def test_energy_has_bounds_and_money_is_linear(computing, stepping, hours, price, factor, spares):
    """Between idle and full power all the time; with the price the money grows in proportion, from nothing."""
    draw, watts = catalog.power_draw(), 700.0
    devices = devices_of(hours, num_devices=64, stepping=stepping, num_waiting=spares)

    def of(price: float):
        costs = Costs(price_per_device_hour=price)
        return training_costs(devices, costs, draw, power_watts=watts, computing_fraction=computing)

    found = of(price)
    assert found.energy is not None
    full = watts * devices.hours * HOUR
    assert draw.idle * full * (1 - 1e-9) <= found.energy.it_joules <= full * (1 + 1e-9)
    assert of(0).total_cost == 0
    assert of(price * factor).total_cost == pytest.approx(factor * found.total_cost)


def test_draws_are_in_order_and_have_sources():
    """A device draws most while it computes, least while it is idle, and each number says where it comes from."""
    draw = catalog.power_draw()

    assert 0 < draw.idle < draw.waiting < draw.computing <= 1
    assert set(draw.sources) == {"computing", "waiting", "idle"}
    assert replace(draw, sources={}) != FULL
