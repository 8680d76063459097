"""Prices of a training by the hour and by the kWh, and the power draw of its devices."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from costmodel.facts.fields import STRICT, Fraction, NotNegative, PowerUsageEffectiveness, Watts
from costmodel.quantities import PER_HOUR, PER_KWH, Quantity
from costmodel.validation import shown

MOST_LETTERS = 8
"""Longest name of a currency, in letters."""


def _currency(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(rf"[^\W\d_]{{1,{MOST_LETTERS}}}|[$€£¥]", value):
        problem = f"expected the short name of a currency, one to {MOST_LETTERS} letters such as USD or EUR"
        raise ValueError(f"{problem}, got {shown(value)}")
    return value


Currency: TypeAlias = Annotated[str, BeforeValidator(_currency)]
PricePerHour: TypeAlias = Annotated[NotNegative, Field(le=1e9), Quantity(PER_HOUR)]
PricePerKwh: TypeAlias = Annotated[NotNegative, Field(le=1e6), Quantity(PER_KWH)]


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Costs:
    """
    Prices of devices, electricity and the rest of a data centre; no price is assumed.

    Parameters
    ----------
    price_per_device_hour
        Price of one device for an hour, ``2.50``, rented or written off. Without it and without a price of
        electricity, no costs are shown.
    currency
        Short name of the prices' currency.
    electricity_price_per_kwh
        Price of a kWh, ``0.12``, added to the price of the devices; for owners of the machines. A rent already includes
        it.
    pue
        Power usage effectiveness, the energy of the data centre over that of its computers, at least 1. Without it the
        energy of the computers alone is shown.
    host_watts_per_device
        Watts that the rest of a node draws, processors, memory, network and fans, for each of its devices. Without it
        the energy of the devices alone is shown.
    """

    price_per_device_hour: PricePerHour | None = None
    currency: Currency = "USD"
    electricity_price_per_kwh: PricePerKwh | None = None
    pue: PowerUsageEffectiveness | None = None
    host_watts_per_device: Annotated[Watts, Field(le=1e6)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class PowerDraw:
    """
    Power draw of a device, as a fraction of its power limit.

    Parameters
    ----------
    computing
        Draw during computation.
    waiting
        Draw during communication without computation, or during waits for other devices in a step.
    idle
        Draw while the job saves checkpoints, recovers or starts.
    sources
        Source of each number, by field name.
    """

    computing: Fraction
    waiting: Fraction
    idle: Fraction
    sources: dict[str, str] = field(default_factory=dict)
