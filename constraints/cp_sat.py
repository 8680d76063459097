"""
CP-SAT's Python interface, without loading pandas, and strategies in the solver's integers.

OR-Tools imports pandas for vectorized variables, which nobody here uses; that takes a fifth of the processor time of a
small plan. Its import gets a stand-in with the two names that it annotates with, and pandas itself when it first asks
for anything later.

Integers are seconds as ticks and bytes as MiB, without a change of any rule's answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.strategy import DECISIONS

PANDAS, CP_MODEL = "pandas", "ortools.sat.python.cp_model"


class _Late(ModuleType):
    """A module that is imported when one of its names is asked for: an estimate needs no CP-SAT, CP-SAT no pandas."""

    def __getattr__(self, name: str) -> Any:
        own = vars(self)["__name__"]
        return getattr(_import_cp_model() if own == CP_MODEL else import_module(own), name)


@cache
def _import_cp_model() -> Any:
    if PANDAS in sys.modules or CP_MODEL in sys.modules:
        return import_module(CP_MODEL)
    stand_in = ModuleType(PANDAS)
    vars(stand_in).update(Index=object, Series=object)
    sys.modules[PANDAS] = stand_in
    try:
        module: Any = import_module(CP_MODEL)
    finally:
        del sys.modules[PANDAS]
    module.pd = _Late(PANDAS)
    return module


cp_model: Any = _Late(CP_MODEL)

MIB_BYTES = 2**20

TICK_SECONDS = 1e-6
"""Resolution of time in the solver."""

MAX_TICKS = 2**52
"""Longest step that the solver can distinguish, 142 years: a tick count stays exact in a double."""

MAX_MEBIBYTES = 2**40
"""Largest memory use that the solver can distinguish."""

Ints = NDArray[np.int64]


@record(frozen=True, kw_only=True, slots=True)
class Candidates:
    """
    Complete strategies in the solver's integers, one per entry.

    Parameters
    ----------
    decisions
        Values of every decision, shape (number of candidates,).
    seconds, ticks
        Step time, and step time in ticks, rounded to the nearest.
    device_mebibytes, host_mebibytes
        Memory of the fullest device and of its share of the host, rounded up.
    allowed
        True where the rules allow the strategy, as arrays say; a model has the rules themselves.
    """

    decisions: Mapping[str, Ints]
    seconds: NDArray[np.float64]
    ticks: Ints
    device_mebibytes: Ints
    host_mebibytes: Ints
    allowed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ticks)

    def take(self, which: Ints) -> Candidates:
        """Return some of the candidates."""
        decisions = {name: values[which] for name, values in self.decisions.items()}
        return Candidates(decisions=decisions, **{name: getattr(self, name)[which] for name in COLUMNS})


COLUMNS = tuple(one.name for one in fields(Candidates) if one.name != "decisions")
"""Arrays of candidates in addition to their decisions."""


@record(frozen=True, kw_only=True, slots=True)
class Capacity:
    """
    Memory that a strategy may take, rounded down.

    Parameters
    ----------
    device_mebibytes, host_mebibytes
        Memory of one device without the headroom; its share of the host memory.
    """

    device_mebibytes: int
    host_mebibytes: int

    def holds(self, device_mebibytes: Ints, host_mebibytes: Ints) -> NDArray[np.bool_]:
        """Tell whether memory fits."""
        return np.asarray((device_mebibytes <= self.device_mebibytes) & (host_mebibytes <= self.host_mebibytes))


def concatenate_candidates(some: Iterable[Candidates]) -> Candidates:
    """Concatenate candidates with every decision; without any of them the result is empty."""
    empty = np.zeros(0, dtype=np.int64)
    nothing = Candidates(
        decisions=dict.fromkeys(DECISIONS, empty),
        seconds=empty.astype(np.float64),
        ticks=empty,
        device_mebibytes=empty,
        host_mebibytes=empty,
        allowed=empty.astype(bool),
    )
    every = (nothing, *some)
    decisions = {name: np.concatenate([one.decisions[name] for one in every]) for name in DECISIONS}
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in every]) for name in COLUMNS}
    return Candidates(decisions=decisions, **columns)


def seconds_to_ticks(seconds: NDArray[np.float64]) -> Ints:
    """Round seconds to the nearest tick; values from ``MAX_TICKS`` on are equal."""
    return np.rint(np.minimum(seconds / TICK_SECONDS, MAX_TICKS)).astype(np.int64)


def seconds_to_floor_ticks(seconds: NDArray[np.float64]) -> Ints:
    """Round seconds down to ticks, for lower bounds."""
    return np.floor(np.minimum(seconds / TICK_SECONDS, MAX_TICKS)).astype(np.int64)


def most_seconds(ticks: Ints) -> NDArray[np.float64]:
    """Return the most seconds that round to the given ticks."""
    return np.asarray((ticks + 0.5) * TICK_SECONDS)


def bytes_to_mebibytes(nbytes: NDArray[np.float64], fits: NDArray[np.bool_], capacity: int) -> Ints:
    """
    Round memory use up to MiB, without changing the memory rule's answer.

    Memory that fits to the byte also fits in MiB, and memory that does not fit to the byte does not fit in MiB.

    Parameters
    ----------
    nbytes
        Memory use.
    fits
        Answers of the memory rule.
    capacity
        Capacity in MiB, rounded down.

    >>> bytes_to_mebibytes(np.array([2.5 * 2**20, 3.2 * 2**20]), np.array([True, True]), 3)
    array([3, 3])
    """
    rounded = np.ceil(np.minimum(nbytes / MIB_BYTES, MAX_MEBIBYTES)).astype(np.int64)
    return np.where(fits, np.minimum(rounded, capacity), np.maximum(rounded, capacity + 1))


def capacity_mebibytes(nbytes: float) -> int:
    """Round capacity down to MiB; nothing fits into a negative one."""
    return int(np.floor(min(max(nbytes / MIB_BYTES, -1), MAX_MEBIBYTES)))
