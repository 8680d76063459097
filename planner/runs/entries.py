"""Entries of ``models.yaml`` and ``systems.yaml``: what lacks or is no number is a sentence, not an accident."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown


@dataclass(frozen=True, slots=True)
class Entry(Mapping[str, Any]):
    """
    One entry, or a part of one, that knows where it stands.

    Parameters
    ----------
    where
        Its path, for messages.
    said
        What it says.
    """

    where: str
    said: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """The value; a :class:`SpecError` if there is none, where a mapping would raise ``KeyError``."""
        if name not in self.said:
            raise SpecError(f"{self.where}.{name}", "is required but missing.")
        return self.said[name]

    def __contains__(self, name: object) -> bool:
        """Whether it says anything of it."""
        return name in self.said

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default."""
        return self.said.get(name, default)

    def __iter__(self) -> Iterator[str]:
        """Its names."""
        return iter(self.said)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.said)

    def number(self, name: str) -> float:
        """A finite number above zero."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SpecError(f"{self.where}.{name}", f"expected a number above 0, got {shown(value)}.")
        return float(value)

    def count(self, name: str, least: int = 1) -> int:
        """A whole number, at least ``least``; one that is left open (null) is 0 where 0 is allowed."""
        value = self[name]
        if value is None and least == 0:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"{self.where}.{name}", f"expected a whole number from {least} on, got {shown(value)}.")
        return value

    def part(self, name: str) -> Entry:
        """A mapping in it."""
        value = self[name]
        if not isinstance(value, Mapping):
            raise SpecError(f"{self.where}.{name}", f"expected a mapping, got {shown(value)}.")
        return Entry(f"{self.where}.{name}", value)
