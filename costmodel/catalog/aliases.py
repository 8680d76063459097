"""Names of devices in tools, in speech and at cloud providers, and the catalog's device for each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from costmodel.catalog.files import names, read
from costmodel.errors import SpecError, alternatives, did_you_mean
from costmodel.validation import shown

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


@dataclass(frozen=True, kw_only=True, slots=True)
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
    return _names().get(plain_name(name))


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

    >>> hint("mi350x")
    "Did you mean 'mi355x', 'mi325x' or 'mi300x'?"
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
