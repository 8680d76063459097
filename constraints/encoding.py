"""
Candidates to CP-SAT: one literal per candidate, one integer variable per decision, memory as linear constraints.

Wide tables and multiplications are 10 to 100 times slower than literals with linear constraints (measured on Llama-3
405B and DeepSeek-V3). A literal exists only for what the rules allow; what a rule forbids is not in the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

MIB_BYTES = 2**20

TICK_SECONDS = 1e-6
"""Resolution of time in the solver."""

MAX_TICKS = 2**52
"""Longest step that the solver tells from longer ones, 142 years: a tick count stays exact in a double."""

MAX_MEBIBYTES = 2**40
"""Largest use of memory that the solver tells from larger ones."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """
    Complete strategies in the solver's integers, one per entry.

    Parameters
    ----------
    decisions
        Values of every decision.
    ticks
        Step time in ticks, to the nearest.
    device_mebibytes, host_mebibytes
        Memory of the fullest device and of its share of the host, rounded up.
    """

    decisions: Mapping[str, Ints]
    ticks: Ints
    device_mebibytes: Ints
    host_mebibytes: Ints

    def __len__(self) -> int:
        return len(self.ticks)

    def take(self, which: Ints) -> Candidates:
        """Some of them."""
        return Candidates(
            decisions={name: values[which] for name, values in self.decisions.items()},
            ticks=self.ticks[which],
            device_mebibytes=self.device_mebibytes[which],
            host_mebibytes=self.host_mebibytes[which],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """
    What a strategy may take, rounded down.

    Parameters
    ----------
    device_mebibytes, host_mebibytes
        Memory of one device without the headroom; its share of the host's.
    """

    device_mebibytes: int
    host_mebibytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """
    A model with handles into it.

    Parameters
    ----------
    model
        The CP-SAT model.
    literals
        One per candidate: it is chosen.
    variables
        One per decision.
    """

    model: cp_model.CpModel
    literals: list[cp_model.IntVar]
    variables: dict[str, cp_model.IntVar]


def encode(candidates: Candidates, capacity: Capacity) -> Encoding:
    """
    The model: exactly one candidate, its decisions, within memory, as fast as possible.

    Parameters
    ----------
    candidates
        What to choose from, at least one.
    capacity
        Memory.
    """
    model = cp_model.CpModel()
    literals = [model.new_bool_var("") for _ in range(len(candidates))]
    model.add_exactly_one(literals)
    variables = {name: _channel(model, literals, name, values) for name, values in candidates.decisions.items()}
    model.add(_weighted(literals, candidates.device_mebibytes) <= capacity.device_mebibytes)
    model.add(_weighted(literals, candidates.host_mebibytes) <= capacity.host_mebibytes)
    model.minimize(_weighted(literals, candidates.ticks))
    return Encoding(model=model, literals=literals, variables=variables)


def joined(some: Sequence[Candidates]) -> Candidates:
    """Candidates one after the other."""
    return Candidates(
        decisions={name: np.concatenate([one.decisions[name] for one in some]) for name in some[0].decisions},
        ticks=np.concatenate([one.ticks for one in some]),
        device_mebibytes=np.concatenate([one.device_mebibytes for one in some]),
        host_mebibytes=np.concatenate([one.host_mebibytes for one in some]),
    )


def seconds_to_ticks(seconds: NDArray[np.float64]) -> Ints:
    """Ticks to the nearest; from ``MAX_TICKS`` on all are alike."""
    return np.rint(np.minimum(seconds / TICK_SECONDS, MAX_TICKS)).astype(np.int64)


def seconds_to_floor_ticks(seconds: NDArray[np.float64]) -> Ints:
    """Ticks rounded down, for lower bounds."""
    return np.floor(np.minimum(seconds / TICK_SECONDS, MAX_TICKS)).astype(np.int64)


def most_seconds(ticks: Ints) -> NDArray[np.float64]:
    """The most seconds that are rounded to some ticks."""
    return np.asarray((ticks + 0.5) * TICK_SECONDS)


def bytes_to_mebibytes(nbytes: NDArray[np.float64], fits: NDArray[np.bool_], capacity: int) -> Ints:
    """
    Use of memory rounded up, except that what fits to the byte also fits in MiB, and what does not, does not.

    Parameters
    ----------
    nbytes
        Use.
    fits
        What the memory rule says of it.
    capacity
        Capacity in MiB, rounded down.

    >>> bytes_to_mebibytes(np.array([2.5 * 2**20, 3.2 * 2**20]), np.array([True, True]), 3)
    array([3, 3])
    """
    rounded = np.ceil(np.minimum(nbytes / MIB_BYTES, MAX_MEBIBYTES)).astype(np.int64)
    return np.where(fits, np.minimum(rounded, capacity), np.maximum(rounded, capacity + 1))


def capacity_mebibytes(nbytes: float) -> int:
    """Capacity rounded down; nothing fits into a negative one."""
    return int(np.floor(min(max(nbytes / MIB_BYTES, -1), MAX_MEBIBYTES)))


def _channel(model: cp_model.CpModel, literals: list[cp_model.IntVar], name: str, values: Ints) -> cp_model.IntVar:
    domain = sorted(set(values.tolist()))
    if len(domain) == 1:
        return model.new_constant(domain[0])
    variable = model.new_int_var_from_domain(cp_model.Domain.from_values(domain), name)
    model.add(_weighted(literals, values) == variable)
    return variable


def _weighted(literals: list[cp_model.IntVar], weights: Ints) -> Any:
    return cp_model.LinearExpr.weighted_sum(literals, weights.tolist())
