"""Devices, their calibrations and their power draw: silicon in one folder, achieved rates in another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any

from costmodel.catalog.aliases import find_device
from costmodel.catalog.files import MOST_SPELLINGS, chain, entry, merge_mappings, names, read, require_known
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Calibration, Constants
from costmodel.facts.costs import PowerDraw
from costmodel.facts.device import Device, Silicon
from costmodel.validation import build, shown

BESIDE_CONSTANTS = ("base", "name", "samples", "sources")
"""Entries of a calibration in a job or a file that are not constants."""

Changes = Mapping[str, Mapping[str, float]]
"""Replaced constants: by entry of the catalog and dotted name."""


def devices() -> tuple[str, ...]:
    """Return the names of the devices."""
    return names("devices")


def calibrations() -> tuple[str, ...]:
    """Return the names of the calibrations."""
    return names("calibrations")


def architectures() -> tuple[str, ...]:
    """Return the names of the generations of devices."""
    return names("architectures")


def silicon(name: object, where: str) -> Silicon:
    """Return the properties of an architecture; raises a :class:`SpecError` if the catalog does not have it."""
    if name not in architectures():
        known = did_you_mean(str(name), architectures())
        raise SpecError(where, f"{shown(name)} is no architecture.", known)
    return build(Silicon, entry("architectures", str(name)), f"catalog.architectures.{name}")


@cache
def power_draw() -> PowerDraw:
    """Return the power draw of devices, as fractions of their power limit."""
    return build(PowerDraw, read("power.yaml"), "catalog.power")


@lru_cache(maxsize=MOST_SPELLINGS)
def device(name: str) -> Device:
    """
    Return a device with its networks and its calibration, by any of its names.

    Raises
    ------
    SpecError
        If the catalog has no such device, or several.
    """
    return device_of(device_entry(name), f"catalog.devices.{name}")


def device_entry(name: str, where: str = "device") -> Mapping[str, Any]:
    """Return the entry of a device by any of its names, inherited entries included; errors as in :func:`device`."""
    meant = find_device(name, where)
    return meant.place_on_network(_whole(meant.device))


@cache
def _whole(name: str) -> Mapping[str, Any]:
    """Merge a device's entry into the one that it extends; its networks replace all of the base's."""
    own = entry("devices", name)
    if "extends" not in own:
        return own
    base = _whole(own["extends"])
    kept = base["sources"]
    if "networks" in own:
        kept = {key: source for key, source in kept.items() if not key.startswith("networks.")}
    whole = {**base, **own, "sources": {**kept, **own["sources"]}}
    return {key: value for key, value in whole.items() if key != "extends"}


def device_of(given: Mapping[str, Any], where: str, changes: Changes | None = None) -> Device:
    """
    Build a device from plain data.

    Parameters
    ----------
    given
        Fields of :class:`costmodel.facts.device.Device`; its ``calibration`` is a name of the catalog, or constants
        with the ``base`` that they change.
    where
        Dotted path of the entry, for messages.
    changes
        Constants that replace the catalog's.

    Raises
    ------
    SpecError
        If an entry is unknown, missing or impossible.
    """
    whole = {**given}
    if given.get("architecture") is not None:
        whole["silicon"] = silicon(given["architecture"], f"{where}.architecture")
    if "calibration" in given:
        whole["calibration"] = calibration_of(given["calibration"], f"{where}.calibration", changes)
    return build(Device, whole, where)


def calibration_of(given: object, where: str, changes: Changes | None = None) -> Calibration:
    """Build a calibration from its name, or from changes to a named ``base``; errors as in :func:`device_of`."""
    if isinstance(given, str):
        if given not in calibrations():
            raise SpecError(where, f"{shown(given)} is not in the catalog.", did_you_mean(given, calibrations()))
        return calibration_with(given, changes) if changes else calibration(given)
    if not isinstance(given, Mapping):
        raise SpecError(where, f"expected a name or a mapping, got {shown(given)}.")
    base = calibration_of(given["base"], f"{where}.base", changes) if "base" in given else None
    own = {name: value for name, value in given.items() if name not in BESIDE_CONSTANTS}
    known = {one.name: getattr(base.constants, one.name) for one in fields(base.constants)} if base else {}
    sources = dict(base.sources) if base else {}
    sources |= dict.fromkeys(own, "job file") | (given.get("sources") or {})
    name = given.get("name", f"{base.name}, changed" if base else "inline")
    constants = build(Constants, merge_mappings(known, own), where)
    whole = {"name": name, "constants": constants, "samples": given.get("samples"), "sources": sources}
    return build(Calibration, whole, where)


@cache
def calibration(name: str) -> Calibration:
    """
    Return the calibration of an architecture, or of some of its devices.

    Raises
    ------
    SpecError
        If the catalog has no such calibration.
    """
    return calibration_with(name, {})


def calibration_chain(name: str) -> tuple[str, ...]:
    """Return the names of a calibration and of those that it extends, the base first."""
    require_known("calibration", name, calibrations())
    return chain("calibrations", name)


def calibration_of_fit(device: Device) -> str:
    """Return the calibration fitted to the runs behind a device's constants; empty if they are the device's own."""
    name = device.calibration.name
    return calibration_chain(name)[0] if device.calibration.samples is None and name in calibrations() else ""


def calibration_with(name: str, changes: Changes) -> Calibration:
    """Build a calibration with some constants of it, or of those that it extends, replaced."""
    constants: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for part in calibration_chain(name):
        own = entry("calibrations", part)
        constants = merge_mappings(constants, own.get("constants") or {})
        for key, value in changes.get(part, {}).items():
            first, _, inner = key.partition(".")
            constants = merge_mappings(constants, {first: {inner: value} if inner else value})
        sources |= own.get("sources") or {}
    described = {"name": name, "description": entry("calibrations", name).get("description", "")}
    whole = {**described, "constants": constants, "sources": sources}
    return build(Calibration, whole, f"catalog.calibrations.{name}")
