"""Names of devices in tools, in speech and at cloud providers, and the catalog's device for each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any

from costmodel.catalog.files import MOST_SPELLINGS, chain, entry, merge_mappings, names, read, require_known
from costmodel.errors import SpecError, alternatives, did_you_mean
from costmodel.facts.calibration import Calibration, Constants
from costmodel.facts.device import Device, Silicon
from costmodel.facts.reliability import PowerDraw
from costmodel.record import record
from costmodel.validation import build, shown

FILE = "aliases.yaml"

LONGEST_NAME = 80

"""Longest compared name, in letters."""

SPELLED_ALIKE = 0.85

"""Share of common letters from which one name counts as a misspelling of the other."""

NEAR_NUMBER, MOST_MEANT = 3.0, 3

"""Largest ratio of the numbers of two products that may be confused; number of products in a hint."""

SERIES = re.compile(r"([a-z]*)(\d*)")

"""Letters before a product's number, and the number."""

WORD, GIGABYTES = re.compile(r"[a-z0-9]+"), re.compile(r"(?<=\d)gb")


@record(frozen=True, kw_only=True, slots=True)
class Named:
    """
    The device that a name refers to.

    Parameters
    ----------
    device
        Name of the device in the catalog.
    note
        Sentence, without a full stop, on ambiguous or additional parts of the name; empty: there are none.
    others
        Other devices that the name may refer to.
    internode_bandwidth
        Nominal bytes per second and direction of one device to other nodes, if a machine is named; None: the device's
        own.
    source
        Source of the network's bandwidth.
    num_devices
        Number of devices of the named machine; 1: the name is that of a device.
    """

    device: str
    note: str = ""
    others: tuple[str, ...] = ()
    internode_bandwidth: float | None = None
    source: str = ""
    num_devices: int = 1

    def place_on_network(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the device's entry with the network of the machine."""
        if self.internode_bandwidth is None:
            return entry
        inner, *outer = entry["networks"]
        ratio = self.internode_bandwidth / outer[-1]["bandwidth"]
        levels = [{**level, "bandwidth": level["bandwidth"] * ratio} for level in outer]
        sources = dict.fromkeys((f"networks.{level['name']}" for level in levels), self.source)
        return {**entry, "networks": [inner, *levels], "sources": {**entry["sources"], **sources}}


def find_device(name: str, where: str = "device") -> Named:
    """
    Return the device that a name refers to.

    Raises
    ------
    SpecError
        If it refers to several devices, with these, or to none, with the maker's devices of near numbers.
    """
    if (found := find_unique_device(name)) is not None:
        return found
    if means_several(name):
        which = alternatives(_ambiguous()[plain_name(name)])
        raise SpecError(where, f"{shown(name)} means several devices.", f"Write {which}.")
    raise SpecError(where, f"{shown(name)} is not in the catalog.", hint(name))


def find_unique_device(name: str) -> Named | None:
    """
    Return the device that a name refers to; None if it refers to several, or to none.

    >>> find_unique_device("NVIDIA H100 80GB HBM3").device, find_unique_device("a100")
    ('h100-80gb-sxm', None)
    """
    return Named(device=name) if name in names("devices") else _names().get(plain_name(name))


def means_several(name: str) -> bool:
    """Return True if a name refers to several devices of which none is by far the most common."""
    return plain_name(name) in _ambiguous()


def plain_name(name: str) -> str:
    """
    Return the form in which names are compared: letters and digits without makers' words.

    >>> plain_name("NVIDIA A100-SXM4-80GB"), plain_name("ND H100 v5")
    ('a100sxm480g', 'ndh100v5')
    """
    words = WORD.findall(name[:LONGEST_NAME].lower())
    return GIGABYTES.sub("g", "".join(word for word in words if word not in _entries()["makers"]))


def hint(name: str) -> str:
    """
    Suggest devices for an unknown name: the one it misspells, otherwise those of its series with the nearest numbers.

    >>> hint("mi375x")
    "Did you mean 'mi355x', 'mi350x' or 'mi325x'?"
    """
    meant = [] if "/" in name else _guess_names(plain_name(name))
    if not meant:
        return did_you_mean("", names("devices"))
    shown_names = alternatives([f"'{one}'" for one in meant])
    return f"Did you mean {shown_names}?"


def _guess_names(plain: str) -> Sequence[str]:
    known = {key: one.device for key, one in _names().items()}
    series, number = _series(plain)
    alike = [key for key in known if _series(key)[0] == series] if series else []
    if found := difflib.get_close_matches(plain, alike, n=1, cutoff=SPELLED_ALIKE):
        return [known[found[0]]]
    several = {**{key: (device,) for key, device in known.items()}, **_ambiguous()}
    same = [key for key in several if series and _series(key)[0] == series]
    numbers = sorted((_far(number, _series(key)[1]), len(key), key) for key in same)
    # Other numbers are no guess where the number is the same.
    furthest = 1.0 if numbers and numbers[0][0] == 1.0 else NEAR_NUMBER
    if near := dict.fromkeys(device for far, _, key in numbers if far <= furthest for device in several[key]):
        return list(near)[:MOST_MEANT]
    found = difflib.get_close_matches(plain, known, n=1, cutoff=SPELLED_ALIKE) if series else []
    return [known[key] for key in found if set(_series(key)[0]) & set(series)]


def _series(plain: str) -> tuple[str, int]:
    """Return letters and number at the beginning of a name; 0: no number."""
    found = SERIES.match(plain)
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def _far(number: int, other: int) -> float:
    """Return the ratio of two numbers, the larger over the smaller; 1 for names without a number."""
    if not number or not other:
        return 1.0
    return max(number, other) / min(number, other)


# --- the file ------------------------------------------------------------------------------------------------
@cache
def _entries() -> Mapping[str, Any]:
    known: Mapping[str, Any] = read(FILE)
    return known


def spellings() -> Iterator[tuple[str, Named]]:
    """Yield every other name as written, with its device; names of several devices are left out."""
    known = _entries()
    for device, others in known["devices"].items():
        yield from ((other, Named(device=device)) for other in others)
    for name, (device, *others) in known["common"].items():
        note = f"'{name}' is taken for {device}, the common one; there are also {', '.join(others)}"
        yield name, Named(device=device, note=note, others=tuple(others))
    for name, machine in known["machines"].items():
        for spelled in (name, *machine.get("names", ())):
            yield spelled, _machine(spelled, machine)


def _machine(spelled: str, machine: Mapping[str, Any]) -> Named:
    bandwidth = machine.get("internode_bandwidth")
    network = "" if bandwidth is None else f" with {bandwidth / 1e9:.3g} GB/s per device to other nodes"
    note = f"'{spelled}' is a machine of {machine['devices']} {machine['device']}{network} ({machine['source']})"
    return Named(
        device=machine["device"],
        note=note,
        internode_bandwidth=bandwidth,
        source=f"{machine['source']}, '{spelled}'",
        num_devices=machine["devices"],
    )


@cache
def _names() -> Mapping[str, Named]:
    """Return the device of each name by its plain form; the catalog's own names refer to themselves."""
    own = {plain_name(device): Named(device=device) for device in names("devices")}
    return {**{plain_name(spelled): meant for spelled, meant in spellings()}, **own}


@cache
def _ambiguous() -> Mapping[str, Sequence[str]]:
    """Return the possible devices of each ambiguous name, by its plain form."""
    several: Mapping[str, Iterable[str]] = _entries()["ambiguous"]
    return {plain_name(name): tuple(devices) for name, devices in several.items()}


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


def calibration_of(given: object, where: str, changes: Changes | None) -> Calibration:
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
    """Return the calibration fitted to the runs that gave a device's constants; empty if they are the device's own."""
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
