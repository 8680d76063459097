"""
Encode candidates for CP-SAT: a literal per candidate, an integer variable per decision, linear memory constraints.

Wide tables and multiplications are 10 to 100 times slower than literals with linear constraints (measured on Llama-3
405B and DeepSeek-V3). Only strategies that the rules allow have a literal; forbidden ones are not in the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.cp_sat import cp_model

MIB_BYTES = 2**20

TICK_SECONDS = 1e-6
"""Resolution of time in the solver."""

MAX_TICKS = 2**52
"""Longest step that the solver can distinguish, 142 years: a tick count stays exact in a double."""

MAX_MEBIBYTES = 2**40
"""Largest memory use that the solver can distinguish."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """
    Complete strategies in the solver's integers, one per entry.

    Parameters
    ----------
    decisions
        Values of every decision, shape (number of candidates,).
    ticks
        Step time in ticks, rounded to the nearest.
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
        """Return some of the candidates."""
        return Candidates(
            decisions={name: values[which] for name, values in self.decisions.items()},
            ticks=self.ticks[which],
            device_mebibytes=self.device_mebibytes[which],
            host_mebibytes=self.host_mebibytes[which],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """
    A CP-SAT model with its literals and variables.

    Parameters
    ----------
    model
        The CP-SAT model.
    literals
        One per candidate; true if it is chosen.
    variables
        One integer variable per decision.
    """

    model: cp_model.CpModel
    literals: list[cp_model.IntVar]
    variables: dict[str, cp_model.IntVar]


def encode(candidates: Candidates, capacity: Capacity) -> Encoding:
    """
    Build the model: exactly one candidate, its decisions, within memory, with the least step time.

    Parameters
    ----------
    candidates
        Candidates to choose from, at least one.
    capacity
        Memory that the chosen candidate may take.
    """
    model = cp_model.CpModel()
    literals = [model.new_bool_var("") for _ in range(len(candidates))]
    model.add_exactly_one(literals)
    variables = {name: _channel(model, literals, name, values) for name, values in candidates.decisions.items()}
    model.add(_sum_weighted(literals, candidates.device_mebibytes) <= capacity.device_mebibytes)
    model.add(_sum_weighted(literals, candidates.host_mebibytes) <= capacity.host_mebibytes)
    model.minimize(_sum_weighted(literals, candidates.ticks))
    return Encoding(model=model, literals=literals, variables=variables)


def concatenate_candidates(some: Sequence[Candidates]) -> Candidates:
    """Concatenate candidates."""
    return Candidates(
        decisions={name: np.concatenate([one.decisions[name] for one in some]) for name in some[0].decisions},
        ticks=np.concatenate([one.ticks for one in some]),
        device_mebibytes=np.concatenate([one.device_mebibytes for one in some]),
        host_mebibytes=np.concatenate([one.host_mebibytes for one in some]),
    )


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


def _channel(model: cp_model.CpModel, literals: list[cp_model.IntVar], name: str, values: Ints) -> cp_model.IntVar:
    domain = sorted(set(values.tolist()))
    if len(domain) == 1:
        return model.new_constant(domain[0])
    variable = model.new_int_var_from_domain(cp_model.Domain.from_values(domain), name)
    model.add(_sum_weighted(literals, values) == variable)
    return variable


def _sum_weighted(literals: list[cp_model.IntVar], weights: Ints) -> Any:
    return cp_model.LinearExpr.weighted_sum(literals, weights.tolist())
