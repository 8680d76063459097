"""Releases of training frameworks: one entry each, which may extend another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, cast

from costmodel.catalog.files import chain, entry, merged, names, require_known
from costmodel.errors import SpecError, did_you_mean
from costmodel.fields import Architecture
from costmodel.framework import Framework
from costmodel.spec import Device
from costmodel.validation import build, shown

OWN = ("extends", "name", "description", "releases", "since", "is_default", "measured_on", "kernels_of", "factors")
"""Of an entry alone; whatever else it does not say is as in the entry that it extends."""

REPLACED = ("architectures", "settings_by_precision", "strategy_by_precision")
"""Mappings and lists that are as a whole one's own or the other's."""

Factors = Mapping[str, Mapping[str, float]]
"""Factors on constants by entry, instead of the catalog's."""


def frameworks() -> tuple[str, ...]:
    """Names of the releases that have an entry of their own."""
    return names("frameworks")


@cache
def framework_names() -> dict[str, str]:
    """The entry of every name that a job may write: entries, and the other releases that they stand for."""
    others = {release: name for name in frameworks() for release in entry("frameworks", name).get("releases") or ()}
    return {**others, **{name: name for name in frameworks()}}


@cache
def framework(name: str) -> Framework:
    """
    A release of a training framework.

    Raises
    ------
    SpecError
        If the catalog has no such release.
    """
    require_known("framework", name, framework_names())
    return framework_with(name, None)


def framework_with(name: str, factors: Factors | None) -> Framework:
    """A release with other factors on constants: by the entry that they belong to; None: the catalog's."""
    own = framework_names()[name]
    whole: dict[str, Any] = {}
    for part in chain("frameworks", own):
        said = entry("frameworks", part)
        kept = {key: value for key, value in said.items() if key not in OWN}
        whole = {**merged(whole, kept), **{key: said[key] for key in REPLACED if key in said}}
    said = entry("frameworks", own)
    whole |= {key: said[key] for key in OWN if key in said and key != "extends"}
    kernels = said.get("kernels_of", own)
    known = entry("frameworks", kernels).get("factors") or {}
    whole |= {"name": name, "kernels_of": kernels, "factors": known if factors is None else factors.get(kernels, {})}
    return build(Framework, whole, f"catalog.frameworks.{name}")


def framework_of(given: object, where: str, factors: Factors | None = None) -> Framework:
    """
    A release by its name, or changed on top of a named ``base``.

    Raises
    ------
    SpecError
        If there is no such release, or an entry is wrong.
    """
    if isinstance(given, str):
        return _named(given, where, factors)
    if not isinstance(given, Mapping):
        raise SpecError(where, f"expected a name or a mapping, got {shown(given)}.")
    base = given.get("base")
    if base is not None and not isinstance(base, str):
        raise SpecError(f"{where}.base", f"expected a name, got {shown(base)}.")
    changes = {name: value for name, value in given.items() if name != "base"}
    if base is None:
        return build(Framework, {"name": "inline", **changes}, where)
    plain = asdict(cast(Any, _named(base, f"{where}.base", factors)))
    return build(Framework, merged({**plain, "name": f"{base}, changed"}, changes), where)


def _named(name: str, where: str, factors: Factors | None) -> Framework:
    if name not in framework_names():
        raise SpecError(where, f"{shown(name)} is not in the catalog.", did_you_mean(name, framework_names()))
    return framework(name) if factors is None else framework_with(name, factors)


def default_framework(device: Device) -> str:
    """
    The release that a job gets which names none: the newest Megatron-LM recipe for the device, or the device's own.

    Raises
    ------
    SpecError
        If no default runs on the device.
    """
    if device.framework is not None:
        return device.framework
    fitting = [name for name in frameworks() if _is_default_on(framework(name), device.architecture)]
    if not fitting:
        raise SpecError("cluster.framework", f"is required: no default runs on {device.name}.")
    return max(fitting, key=lambda name: framework(name).since)


def _is_default_on(known: Framework, architecture: Architecture | None) -> bool:
    return known.is_default and (architecture is None or architecture in known.architectures)


def with_feature(decision: str, value: str) -> tuple[str, ...]:
    """Releases whose entries say that they have a value of a decision."""
    return tuple(name for name in frameworks() if value in framework(name).features.get(decision, ()))
