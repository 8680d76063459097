"""Operators of forward passes among the events of threads, alone or as sequences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.catalog.files import read
from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Category, Integers, Operands, Trace
from planner.measure.traces.iterations import BACKWARD
from planner.measure.traces.structure.records import Nesting

FILE = "operators.yaml"

"""In the catalog."""


@record(frozen=True, kw_only=True, slots=True)
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
            unmasked = self.mask is None or len(operands.sizes) <= self.mask or not operands.sizes[self.mask]
            found["causal"] = int(unmasked and found["queries"] == found["keys"])
        return found if all(size > 0 for name, size in found.items() if name != "causal") else None


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


@record(frozen=True, kw_only=True, slots=True)
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


@record(frozen=True, kw_only=True, slots=True)
class Match:
    """
    An operator of a forward pass.

    Parameters
    ----------
    pattern
        The pattern that matched.
    dtype, sizes
        Type and sizes as in the table of samples.
    rows
        The events of its sequence, views between them included.
    """

    pattern: Pattern
    dtype: str
    sizes: Mapping[str, int]
    rows: tuple[int, ...]


def backward_nodes(trace: Trace, nesting: Nesting) -> Integers:
    """
    Return the row of autograd's node around each event, itself included; ``UNKNOWN`` in forward passes.

    Recomputation in a node is a forward pass: its operators have their own sequence numbers.
    """
    events = trace.events
    starts = trace.named(f"^{BACKWARD}") & (events.category == Category.OPERATOR)
    parent = np.maximum(nesting.parent, 0)  # operators that nodes run first have the node's sequence number
    is_inner = (nesting.parent != UNKNOWN) & starts[parent] & (events.sequence == events.sequence[parent])
    again = (events.sequence != UNKNOWN) & ~is_inner
    found = [UNKNOWN] * len(events)
    rows = zip(starts.tolist(), again.tolist(), nesting.parent.tolist(), strict=True)
    for row, (is_node, is_again, around) in enumerate(rows):
        if is_node:
            found[row] = row
        elif around != UNKNOWN and not is_again:
            found[row] = found[around]
    return np.array(found, dtype=np.int64)


def matches(
    trace: Trace, nesting: Nesting, node: Integers, names: Names, within: NDArray[np.bool_]
) -> tuple[list[Match], list[Match], dict[str, str]]:
    """
    Find the operators of forward passes: matches, updates without sizes, and the reasons of names that did not match.

    Parameters
    ----------
    trace, nesting, node
        A trace, the nesting of its events, and the node of autograd around each.
    names
        Patterns of recorded operators.
    within
        True for events that count; shape (events,).
    """
    by_first: dict[str, list[Pattern]] = defaultdict(list)
    for pattern in names.patterns:
        for name in pattern.sequence[0]:
            by_first[name].append(pattern)
    search = _Search(trace, names, by_first)
    rows = np.flatnonzero((trace.events.category == Category.OPERATOR) & within & (node == UNKNOWN))
    for siblings in _siblings(trace, nesting, rows):
        search.among(siblings, int(nesting.parent[siblings[0]]))
    return search.found, search.unsized, search.reasons


def _siblings(trace: Trace, nesting: Nesting, rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Group rows by parent and thread, in the order in which they ran; outer groups first."""
    order = np.lexsort((rows, trace.events.track[rows], nesting.parent[rows]))
    rows = rows[order]
    parent, track = nesting.parent[rows], trace.events.track[rows]
    breaks = np.flatnonzero((parent[1:] != parent[:-1]) | (track[1:] != track[:-1])) + 1
    return [group for group in np.split(rows, breaks) if len(group)]


class _Search:
    """Search from outer to inner operators, without those inside a match."""

    def __init__(self, trace: Trace, names: Names, by_first: Mapping[str, Sequence[Pattern]]) -> None:
        self.found, self.unsized = list[Match](), list[Match]()
        self.reasons: dict[str, str] = {}
        self._trace, self._names, self._by_first, self._inside = trace, names, by_first, set[int]()

    def among(self, siblings: NDArray[np.intp], parent: int) -> None:
        """Look for sequences among consecutive operators."""
        rows = siblings.tolist()
        if parent in self._inside:
            self._inside.update(rows)
            return
        names = [self._trace.names[name] for name in self._trace.events.name[siblings].tolist()]
        place = 0
        while place < len(rows):
            place = self._search_at(rows, names, place) if names[place] in self._by_first else place + 1

    def _search_at(self, rows: list[int], names: list[str], place: int) -> int:
        """Return the next place to search: after the sequence that begins here, else one further."""
        reasons: dict[str, str] = {}
        for pattern in self._by_first[names[place]]:
            members = self._members(pattern, names, place)
            if members and self._take(pattern, rows, members, reasons):
                return members[-1] + 1
        for name, reason in reasons.items():
            self.reasons.setdefault(name, reason)
        return place + 1

    def _members(self, pattern: Pattern, names: list[str], place: int) -> list[int]:
        """Return the places of a sequence that begins here; [] if it does not."""
        members = [place]
        for allowed in pattern.sequence[1:]:
            place += 1
            while place < len(names) and names[place] in self._names.views and names[place] not in allowed:
                place += 1
            if place >= len(names) or names[place] not in allowed:
                return []
            members.append(place)
        return members

    def _take(self, pattern: Pattern, rows: list[int], members: list[int], reasons: dict[str, str]) -> bool:
        row = rows[members[pattern.at]]
        name, place = self._trace.name_of(row), int(self._trace.events.operands[row])
        if place == UNKNOWN:
            reasons[name] = NO_SHAPES
            return False
        operands = self._trace.operands[place]
        sizes = pattern.sizes_of(operands)
        dtype = operands.dtypes[pattern.dtype] if pattern.dtype < len(operands.dtypes) else ""
        own = tuple(rows[members[0] : members[-1] + 1])
        if sizes is None and dtype == LIST and not any(operands.sizes):
            self.unsized.append(Match(pattern=pattern, dtype=self._names.dtypes[dtype], sizes={}, rows=own))
            reasons[name] = LONG_LIST
            return False
        if sizes is None or dtype not in self._names.dtypes:
            if not pattern.alike:
                reasons[name] = f"inputs {_sizes_text(operands.sizes)} of type {dtype or 'unknown'}"
            return False
        self.found.append(Match(pattern=pattern, dtype=self._names.dtypes[dtype], sizes=sizes, rows=own))
        self._inside.update(own)
        return True


LIST = "TensorList"

"""The profiler's type of a list of tensors."""

LONG_LIST = "PyTorch records no sizes of lists of more than 30 tensors; pass --job with its strategy to count them"

"""
Reason that most updates have no sizes (``TENSOR_LIST_DISPLAY_LENGTH_LIMIT`` in ``torch/csrc/profiler/util.h``), if
gradients have none either.
"""

NO_SHAPES = "no shapes were recorded (torch.profiler.profile(record_shapes=True))"

"""Reason that operators known only by name have no sizes."""


def _sizes_text(sizes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(" x ".join(str(size) for size in one) or "-" for one in sizes[:4])
