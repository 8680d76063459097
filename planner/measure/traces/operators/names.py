"""Names of recorded operators, and the places of their sizes, as records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

from costmodel.catalog.files import read
from planner.measure.traces.events import Operands

FILE = "operators.yaml"
"""In the catalog."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """
    A recorded operator, or a sequence of them, and its name in the cost model; the file describes each entry.

    Parameters
    ----------
    operator
        Name in the table of samples.
    sequence
        Names that each member may have.
    sizes
        Place of each size.
    at, dtype
        The member whose inputs have the sizes, and the input whose type counts.
    mask
        Input that is a mask; None where there is none.
    alike, gemm
        True where both inputs must have equal sizes; True where only GEMM kernels count.
    """

    operator: str
    sequence: tuple[frozenset[str], ...]
    sizes: Mapping[str, str] = field(hash=False)
    at: int = 0
    dtype: int = 0
    mask: int | None = None
    alike: bool = False
    gemm: bool = False

    def sizes_of(self, operands: Operands) -> dict[str, int] | None:
        """Return the sizes of a recorded operator; None where its inputs do not have them."""
        if self.alike and (len(operands.sizes) < 2 or operands.sizes[0] != operands.sizes[1]):
            return None
        try:
            found = {name: _size(where, operands.sizes) for name, where in self.sizes.items()}
        except (IndexError, StopIteration):
            return None
        if self.alike and len(operands.sizes[0]) < 2:
            return None
        if self.operator == "attention":
            found["causal"] = int(self._is_unmasked(operands) and found["queries"] == found["keys"])
        return found if all(size > 0 for name, size in found.items() if name != "causal") else None

    def _is_unmasked(self, operands: Operands) -> bool:
        return self.mask is None or len(operands.sizes) <= self.mask or not operands.sizes[self.mask]


def _size(where: str, sizes: tuple[tuple[int, ...], ...]) -> int:
    """
    Return one size of an operator's inputs.

    >>> _size("1.-1", ((4, 8), (16, 8))), _size("0.rows", ((2, 4, 8),)), _size("0.repeated", ((9, 4, 8), (9, 1, 8)))
    (8, 8, 4)
    """
    place, _, which = where.partition(".")
    if place.startswith("all"):
        return sum(prod(one) for one in sizes if one) // int(place.partition("/")[2])
    one = sizes[int(place)]
    if which == "rows":
        return prod(one[:-1]) if len(one) > 1 else 0
    if which == "elements":
        return prod(one)
    if which in ("repeated", "rest"):
        along = _broadcast_size(one, sizes[int(place) + 1])
        return along if which == "repeated" else prod(one[:-1]) // along
    return one[int(which)]


def _broadcast_size(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the size along which the other tensor is broadcast; 1 where it is not."""
    beside = (1,) * (len(one) - len(other)) + other
    return next((size for size, least in zip(one[:-1], beside[:-1], strict=True) if least == 1 and size > 1), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """
    Contents of the file.

    Parameters
    ----------
    patterns
        Patterns in the file's order.
    views
        Operators that compute nothing, and may lie between the members of a sequence.
    dtypes
        Types by the profiler's names.
    gemm, eight_bits
        Names of GEMM kernels, and of kernels with 8-bit inputs.
    """

    patterns: tuple[Pattern, ...]
    views: frozenset[str]
    dtypes: Mapping[str, str] = field(hash=False)
    gemm: re.Pattern[str]
    eight_bits: re.Pattern[str]


@cache
def read_operator_names() -> Names:
    """Read the file, once."""
    found = read(FILE)
    return Names(
        patterns=tuple(_pattern(one) for one in found["operators"]),
        views=frozenset(found["views"]),
        dtypes=found["dtypes"],
        gemm=re.compile(found["gemm"]),
        eight_bits=re.compile(found["eight_bits"]),
    )


def _pattern(entry: Mapping[str, Any]) -> Pattern:
    sequence = tuple(frozenset(member.split("|")) for member in entry["sequence"])
    return Pattern(**{**entry, "sequence": sequence})
