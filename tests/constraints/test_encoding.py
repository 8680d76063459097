"""Candidates in CP-SAT."""

from __future__ import annotations

import numpy as np

from constraints.cp_sat import (
    MAX_TICKS,
    Candidates,
    Capacity,
    bytes_to_mebibytes,
    capacity_mebibytes,
    seconds_to_floor_ticks,
    seconds_to_ticks,
)

MIB = 2**20


def three_candidates() -> Candidates:
    """Faster ones take more memory."""
    return Candidates(
        decisions={"tp": np.array([1, 2, 4]), "pp": np.array([4, 2, 1])},
        seconds=np.array([10e-6, 20e-6, 30e-6]),
        ticks=np.array([10, 20, 30]),
        device_mebibytes=np.array([300, 200, 100]),
        host_mebibytes=np.array([0, 0, 50]),
        allowed=np.ones(3, dtype=bool),
    )


def test_host_memory_is_a_limit_of_its_own():
    """The only candidate that fits the device does not fit the host."""
    some = three_candidates()

    fits = Capacity(device_mebibytes=150, host_mebibytes=49).holds(some.device_mebibytes, some.host_mebibytes)

    assert fits.tolist() == [False, False, False]


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
