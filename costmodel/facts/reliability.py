"""Failure rate of a job, and the cost of recovery and checkpoints."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from costmodel.facts.fields import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    PositiveFraction,
    PowerUsageEffectiveness,
    Seconds,
    Watts,
)
from costmodel.quantities import PER_HOUR, PER_KWH
from costmodel.record import strict_record
from costmodel.validation import shown


@strict_record(frozen=True, kw_only=True, slots=True)
class RecoveryLevel:
    """
    One way to recover from a failure.

    Parameters
    ----------
    name
        Part that restarts: ``process``, ``pod``, ``job``.
    probability
        Fraction of the failures that this level recovers.
    seconds
        Seconds from the failure to the next step.
    """

    name: str
    probability: Fraction
    seconds: Seconds


USUALLY_KEPT = 3

"""Number of checkpoints kept by default."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """
    Content and method of a checkpoint, from which its times on any number of devices follow.

    Parameters
    ----------
    nbytes
        Bytes of one checkpoint: weights and optimizer states of the whole model.
    is_asynchronous
        True if training waits only for the copy to the host.
    lost_seconds
        Seconds of training lost per checkpoint, if known; None: computed.
    device_to_host_bandwidth, disk_write_bandwidth
        Bytes per second and device of the copy to the host and of writing to storage; None: the device's own.
    storage_bandwidth
        Bytes per second with which all devices together write to storage; None: by their number
        (:func:`costmodel.reliability.storage_bandwidth`).
    keep
        Number of newest checkpoints that are kept.
    """

    nbytes: NotNegative
    is_asynchronous: bool = False
    lost_seconds: NotNegative | None = None
    device_to_host_bandwidth: Positive | None = None
    disk_write_bandwidth: Positive | None = None
    storage_bandwidth: Positive | None = None
    keep: Count = USUALLY_KEPT

    @property
    def is_measured(self) -> bool:
        """True if only the training time lost per checkpoint is known, not its time on the way to storage."""
        return self.lost_seconds is not None and self.storage_bandwidth is None


@strict_record(frozen=True, kw_only=True, slots=True)
class Reliability:
    """
    Failure rate of the job, and the cost of recovery and checkpoints.

    Parameters
    ----------
    failures_per_node_day
        Mean number of failures of one node in 86,400 s.
    mttr_seconds
        Mean seconds to repair: from failure to training again.
    checkpoint_seconds
        Seconds of training lost per checkpoint.
    init_seconds
        Seconds from the start of the job to its first step.
    evaluation_fraction
        Time of evaluations over the time of the steps between them.
    loading_seconds
        Seconds of each step in which devices wait for data.
    write_seconds
        Seconds from the start of a checkpoint until it is on storage, while training goes on: the shortest interval
        between two checkpoints.
    storage_seconds
        Seconds in which one checkpoint is written to storage, with or without training meanwhile.
    max_write_fraction
        Largest share of the time in which checkpoints are written to storage.
    checkpoint
        Checkpoint from which these seconds follow; None: they are the same on any number of devices.
    """

    failures_per_node_day: NotNegative
    mttr_seconds: NotNegative
    checkpoint_seconds: NotNegative
    init_seconds: NotNegative = 0.0
    evaluation_fraction: NotNegative = 0.0
    loading_seconds: NotNegative = 0.0
    write_seconds: NotNegative = 0.0
    storage_seconds: NotNegative = 0.0
    max_write_fraction: PositiveFraction = 1.0
    checkpoint: Checkpoint | None = None


MOST_LETTERS = 8

"""Longest name of a currency, in letters."""


def _currency(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(rf"[^\W\d_]{{1,{MOST_LETTERS}}}|[$€£¥]", value):
        problem = f"expected the short name of a currency, one to {MOST_LETTERS} letters such as USD or EUR"
        raise ValueError(f"{problem}, got {shown(value)}")
    return value


Currency: TypeAlias = Annotated[str, BeforeValidator(_currency)]

PricePerHour: TypeAlias = Annotated[NotNegative, Field(le=1e9), PER_HOUR]

PricePerKwh: TypeAlias = Annotated[NotNegative, Field(le=1e6), PER_KWH]


@strict_record(frozen=True, kw_only=True, slots=True)
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


@strict_record(frozen=True, kw_only=True, slots=True)
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
