"""Texts that people and programs write in place of a number, a name or a path (``values.yaml``)."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from benchmarks.inputs import read_yaml

CANARY = "CANARY"
"""A file that exists only if an input was executed."""

DATA = read_yaml(__file__)


def _text(entry: Any) -> str:
    """Return an entry's text: itself, or ``first`` and then ``repeat``, ``times`` times."""
    return entry if isinstance(entry, str) else str(entry.get("first", "") + entry["repeat"] * entry["times"])


KINDS: list[tuple[str, ...]] = [
    (*DATA[kind]["words"].split(), *map(_text, DATA[kind]["texts"]))
    for kind in ("numbers", "names", "commands", "paths")
]
SHELL = tuple(map(_text, DATA["shell"]))
COMMAND_LINES = DATA["command lines"]


def text(random: Random) -> str:
    """A word that may be anything."""
    return random.choice(random.choices(KINDS, weights=(8, 4, 2, 2))[0])


def plain(random: Random) -> object:
    """A value that may be anything; nobody else has it."""
    return deepcopy(random.choice(DATA["plain"])) if random.random() < 0.4 else text(random)
