"""Names of devices as tools, people and clouds say them: which device of the catalog is meant."""

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
"""Letters of a name that are compared."""

SPELLED_ALIKE = 0.85
"""Share of letters that two names have in common where one is the other with a slip."""

NEAR_NUMBER, MOST_MEANT = 3.0, 3
"""Ratio of two products' numbers up to which one may be meant by the other; products that a hint names."""

SERIES = re.compile(r"([a-z]*)(\d*)")
"""Letters in front of a product's number, and the number."""

WORD, GIGABYTES = re.compile(r"[a-z0-9]+"), re.compile(r"(?<=\d)gb")


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """
    The device that a name means.

    Parameters
    ----------
    device
        Name of the device in the catalog.
    note
        A sentence, without a full stop, on what the name leaves open or says beside the device; empty: nothing.
    others
        Devices that the name may mean as well.
    internode_bandwidth
        Nominal bytes per second and direction of one device to other nodes, where a machine is named; None: the
        device's own.
    source
        Where that comes from.
    num_devices
        Devices of the machine that is named; 1: the name is a device's own.
    """

    device: str
    note: str = ""
    others: tuple[str, ...] = ()
    internode_bandwidth: float | None = None
    source: str = ""
    num_devices: int = 1

    def placed(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entry of the device with the network of the machine."""
        if self.internode_bandwidth is None:
            return entry
        inner, *outer = entry["networks"]
        ratio = self.internode_bandwidth / outer[-1]["bandwidth"]
        levels = [{**level, "bandwidth": level["bandwidth"] * ratio} for level in outer]
        sources = dict.fromkeys((f"networks.{level['name']}" for level in levels), self.source)
        return {**entry, "networks": [inner, *levels], "sources": {**entry["sources"], **sources}}


def named(name: str, where: str = "device") -> Named:
    """
    The device that a name means.

    Raises
    ------
    SpecError
        If it means several, with these, or none, with those of the same maker whose numbers are near.
    """
    if (found := known_name(name)) is not None:
        return found
    if means_several(name):
        which = alternatives(_ambiguous()[plain_name(name)])
        raise SpecError(where, f"{shown(name)} means several devices.", f"Which of {which}?")
    raise SpecError(where, f"{shown(name)} is not in the catalog.", hint(name))


def known_name(name: str) -> Named | None:
    """
    The device that a name means; None: several, or none.

    >>> known_name("NVIDIA H100 80GB HBM3").device, known_name("a100")
    ('h100-80gb-sxm', None)
    """
    return _names().get(plain_name(name))


def means_several(name: str) -> bool:
    """Whether a name means several devices, none of which is by far the common one."""
    return plain_name(name) in _ambiguous()


def plain_name(name: str) -> str:
    """
    What names are compared by: letters and digits without makers' words.

    >>> plain_name("NVIDIA A100-SXM4-80GB"), plain_name("ND H100 v5")
    ('a100sxm480g', 'ndh100v5')
    """
    words = WORD.findall(name[:LONGEST_NAME].lower())
    return GIGABYTES.sub("g", "".join(word for word in words if word not in _entries()["makers"]))


def hint(name: str) -> str:
    """
    Devices that an unknown name may mean: one with a slip, else those of the same letters with the nearest numbers.

    >>> hint("mi350x")
    "Did you mean 'mi355x', 'mi325x' or 'mi300x'?"
    """
    meant = [] if "/" in name else _meant(plain_name(name))
    if not meant:
        return did_you_mean("", names("devices"))
    shown_names = alternatives([f"'{one}'" for one in meant])
    return f"Did you mean {shown_names}?"


def _meant(plain: str) -> Sequence[str]:
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
    """Letters and number at the beginning of a name; 0: none."""
    found = SERIES.match(plain)
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def _far(number: int, other: int) -> float:
    """Ratio of two numbers, the larger over the smaller; of names without a number 1."""
    if not number or not other:
        return 1.0
    return max(number, other) / min(number, other)


# --- the file ------------------------------------------------------------------------------------------------


@cache
def _entries() -> Mapping[str, Any]:
    known: Mapping[str, Any] = read(FILE)
    return known


def spellings() -> Iterator[tuple[str, Named]]:
    """Every name beside the catalog's own, as written, and what it means; of several devices none is here."""
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
    """What each name means, by its plain form; the catalog's own names mean themselves."""
    own = {plain_name(device): Named(device=device) for device in names("devices")}
    return {**{plain_name(spelled): meant for spelled, meant in spellings()}, **own}


@cache
def _ambiguous() -> Mapping[str, Sequence[str]]:
    """Devices that a name may mean, by its plain form."""
    several: Mapping[str, Iterable[str]] = _entries()["ambiguous"]
    return {plain_name(name): tuple(devices) for name, devices in several.items()}
