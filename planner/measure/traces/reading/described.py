"""Entries of a trace beside its events: the rank, the devices, the process groups."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Mapping
from typing import Any, NamedTuple

from planner.measure.traces.events import Device
from planner.measure.traces.reading.arguments import ranks, whole

MOST_CHARACTERS = 1 << 20
"""Longest text of a list that is parsed."""

LIBRARIES = ("nccl", "gloo", "mpi", "ucc")


class Described(NamedTuple):
    """
    Entries of a trace beside its events.

    Parameters
    ----------
    rank, world_size
        None where they are not recorded.
    devices
        Devices of the host.
    groups
        Ranks of each process group by its name.
    library
        Communication library of the process groups; "" where it is not recorded.
    base
        Nanoseconds that the profiler subtracted from all times.
    """

    rank: int | None
    world_size: int | None
    devices: tuple[Device, ...]
    groups: dict[str, tuple[int, ...]]
    library: str
    base: int


def read_description(top: Mapping[str, Any]) -> Described:
    """Read the entries beside the events; ignore those of an unexpected type."""
    distributed = _plain(top.get("distributedInfo"))
    distributed = distributed if isinstance(distributed, dict) else {}
    world_size = _count(distributed.get("world_size"))
    backend = str(distributed.get("backend", "")).lower()
    return Described(
        rank=_count(distributed.get("rank")),
        world_size=world_size or None,
        devices=tuple(_device(one) for one in _dicts(top.get("deviceProperties"))),
        groups={str(one.get("pg_name", "")): _ranks(one, world_size) for one in _dicts(distributed.get("pg_config"))},
        library=next((library for library in LIBRARIES if library in backend), ""),
        base=max(whole(top.get("baseTimeNanoseconds")), 0),
    )


def _ranks(group: Mapping[str, Any], world_size: int | None) -> tuple[int, ...]:
    """Return the ranks of a group; PyTorch does not list those of the group of all ranks."""
    found = ranks(str(group.get("ranks", "")))
    size = _count(group.get("pg_size"))
    return found or (tuple(range(world_size)) if world_size and size == world_size else ())


def _device(one: Mapping[str, Any]) -> Device:
    processors = one.get("numSms", one.get("multiProcessorCount", 0))
    return Device(str(one.get("name", "")), max(whole(processors), 0), max(whole(one.get("totalGlobalMem")), 0))


def _count(number: object) -> int | None:
    """Return a number that is not negative, else None."""
    found = whole(number) if number is not None else -1
    return found if found >= 0 else None


def _dicts(entry: object) -> list[dict[str, Any]]:
    plain = _plain(entry)
    return [one for one in plain if isinstance(one, dict)] if isinstance(plain, list) else []


def _plain(entry: object) -> object:
    """Return an entry, parsed if it is text that holds JSON, or a list or dictionary of Python."""
    if not isinstance(entry, str) or len(entry) > MOST_CHARACTERS:
        return entry
    for parse in (json.loads, literal_eval):
        try:
            return parse(entry)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None
