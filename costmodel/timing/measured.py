"""Operator times from a table of measured rates, MoFa's equation (1): known shapes only, without interpolation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.calibration import Constants, MeasuredRate
from costmodel.facts.device import EquippedDevice
from costmodel.strategy import CudaGraphs
from costmodel.timing.work import MEMORY_BOUND, Numbers, Operator, host_launches


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTimes:
    """
    Operators at the rate measured for their kind and shape.

    A shape that was not measured takes NaN seconds: rules refuse its strategies (:func:`measured`). Element-wise
    operators without an entry take none: a rate over seconds per layer already contains them.

    Parameters
    ----------
    device
        The accelerator whose constants hold the table.
    cuda_graphs
        The decision of that name, which may be an array: it changes the host's launches, not the rates.
    """

    device: EquippedDevice
    cuda_graphs: Numbers = CudaGraphs.NONE

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass, equations (1) and (17)."""
        return self._seconds(operator, operator.flops)

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the backward pass, at the same rate."""
        return self._seconds(operator, operator.backward_flops)

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches its forward pass, from the device's constants."""
        return self.device.constants.launch_overhead_seconds * host_launches(operator, self.cuda_graphs)

    def origin(self, operator: Operator) -> str:
        """Return the name of the table, or that the operator is part of another one's rate."""
        if is_inside_other_rates(self.device.constants, operator):
            return f"inside the measured rates of {self.device.name}"
        return f"measured rates of {self.device.name}"

    def _seconds(self, operator: Operator, flops: Numbers) -> Numbers:
        constants = self.device.constants
        if is_inside_other_rates(constants, operator):
            return flops * 0.0
        return flops / (find_measured_rate(constants, operator) * constants.measured.compute_scaling)


def has_measured_rate(constants: Constants, operator: Operator) -> NDArray[np.bool_]:
    """Return True where the constants can time the operator: always for a roofline, otherwise where it was measured."""
    if constants.times != "measured" or is_inside_other_rates(constants, operator):
        return np.asarray(True)
    return ~np.isnan(find_measured_rate(constants, operator))


def find_measured_rate(constants: Constants, operator: Operator) -> Numbers:
    """
    FLOPs per second of the operator's shape, P of MoFa's equation (1); NaN if it was not measured.

    Entries for the operator's kind and name precede entries for its kind; earlier entries precede later ones.
    """
    rate: Numbers = np.nan
    for entry in reversed(_entries(constants, operator)):
        rate = np.where(_matches(entry, operator), entry.flops_per_second, rate)[()]
    return rate


def is_inside_other_rates(constants: Constants, operator: Operator) -> bool:
    """Return True if the table times this element-wise operator together with the others of its layer."""
    return operator.kind in MEMORY_BOUND and not _entries(constants, operator)


def _entries(constants: Constants, operator: Operator) -> list[MeasuredRate]:
    keys = (f"{operator.kind}:{operator.name}", operator.kind)
    return [entry for key in keys for entry in constants.measured.rates if key in entry.kinds]


def _matches(entry: MeasuredRate, operator: Operator) -> NDArray[np.bool_]:
    matches = np.asarray(True)
    for known, seen in ((entry.rows, operator.rows), (entry.shards, operator.shards), (entry.groups, operator.groups)):
        if known is not None:
            matches = matches & np.isclose(seen, known)
    return matches
