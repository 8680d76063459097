"""Training software over a device's profile: what another generation of kernels achieves on the same accelerator."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError

from costmodel.errors import SpecError, did_you_mean
from costmodel.spec import Device, Profile, Software

CAPPED = 1.0
"""A factor never lifts a fraction of a peak above the peak."""


def equip(device: Device, software: Software) -> Device:
    """
    A device as one generation of software uses it.

    Parameters
    ----------
    device
        The accelerator with the profile of the software that its constants were fitted with.
    software
        What differs: fields that it decides, fields that it multiplies.

    Raises
    ------
    SpecError
        If it names what is no number of a profile.
    """
    settings = {_field(software, "settings", name): value for name, value in software.settings.items()}
    profile = _changed(device.profile, settings, software)
    for key, factor in software.factors.items():
        name, _, architecture = key.partition("@")
        before = getattr(profile, _field(software, "factors", name))
        if architecture in ("", device.architecture):
            profile = _changed(profile, {name: _scaled(before, factor, software, name)}, software)
    return replace(device, profile=profile)


def _changed(profile: Profile, changes: dict[str, Any], software: Software) -> Profile:
    try:
        return replace(profile, **changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"software.{software.name}.{first['loc'][0]}", f"{first['msg']}.") from None


def _field(software: Software, section: str, name: str) -> str:
    known = [field.name for field in fields(Profile)]
    if name not in known:
        where = f"software.{software.name}.{section}.{name}"
        raise SpecError(where, "is no field of a device's profile.", did_you_mean(name, known))
    return name


def _scaled(value: Any, factor: float, software: Software, name: str) -> Any:
    """A number that is no count, or every number of a mapping, times the factor; fractions stay fractions."""
    if isinstance(value, dict):
        return {key: min(part * factor, CAPPED) for key, part in value.items()}
    if not isinstance(value, float):
        raise SpecError(f"software.{software.name}.factors.{name}", "is nothing that a factor could multiply.")
    return min(value * factor, CAPPED) if name.endswith("_efficiency") else value * factor
