"""Candidates in CP-SAT."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from constraints.encoding import (
    MAX_TICKS,
    Candidates,
    Capacity,
    bytes_to_mebibytes,
    capacity_mebibytes,
    encode,
    seconds_to_floor_ticks,
    seconds_to_ticks,
)

MIB = 2**20


def three_candidates() -> Candidates:
    """Faster ones take more memory."""
    return Candidates(
        decisions={"tp": np.array([1, 2, 4]), "pp": np.array([4, 2, 1])},
        ticks=np.array([10, 20, 30]),
        device_mebibytes=np.array([300, 200, 100]),
        host_mebibytes=np.array([0, 0, 50]),
    )


def solved(encoding):
    """Status and solver, with default parameters."""
    solver = cp_model.CpSolver()
    return solver.solve(encoding.model), solver


def test_the_fastest_that_fits_is_chosen_and_its_decisions_follow():
    """Of 250 MiB, the candidate of 300 is too large."""
    encoding = encode(three_candidates(), Capacity(device_mebibytes=250, host_mebibytes=100))

    status, solver = solved(encoding)

    assert status == cp_model.OPTIMAL
    assert solver.objective_value == 20
    assert {name: solver.value(variable) for name, variable in encoding.variables.items()} == {"tp": 2, "pp": 2}


def test_host_memory_is_a_limit_of_its_own():
    """The only candidate that fits the device does not fit the host."""
    encoding = encode(three_candidates(), Capacity(device_mebibytes=150, host_mebibytes=49))

    assert solved(encoding)[0] == cp_model.INFEASIBLE


def test_some_candidates_keep_their_numbers():
    """What is taken away cannot be chosen."""
    encoding = encode(three_candidates().take(np.array([0, 2])), Capacity(device_mebibytes=250, host_mebibytes=100))

    status, solver = solved(encoding)

    assert status == cp_model.OPTIMAL
    assert solver.objective_value == 30


def test_rounding_of_memory_never_turns_the_rule_around():
    """Use is rounded up and capacity down, but the last byte decides as it does in the rule."""
    capacity = capacity_mebibytes(3.5 * MIB)
    use = np.array([2.2 * MIB, 3.4 * MIB, 3.6 * MIB])

    rounded = bytes_to_mebibytes(use, use <= 3.5 * MIB, capacity)

    assert capacity == 3
    assert rounded.tolist() == [3, 3, 4]


def test_ticks_are_microseconds_and_saturate():
    """1.6 us is 2 ticks to the nearest and 1 as a lower bound; infinity is the longest step."""
    seconds = np.array([1.6e-6, np.inf])

    assert seconds_to_ticks(seconds).tolist() == [2, MAX_TICKS]
    assert seconds_to_floor_ticks(seconds).tolist() == [1, MAX_TICKS]
