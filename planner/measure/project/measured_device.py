"""The device of a job with other constants, as plain data; and the constants that small runs can determine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel import catalog
from costmodel.catalog.files import merge_mappings
from costmodel.facts.calibration import Constants
from costmodel.tables import Facts
from planner.jobs.cluster import CATALOG, Fitted, device_of
from planner.jobs.document import nest_entries
from planner.jobs.entries import Reference
from planner.jobs.problem import Problem
from planner.measure.calibrate.constants import Constant, around, constants, read

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


@dataclass(frozen=True, kw_only=True, slots=True)
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
