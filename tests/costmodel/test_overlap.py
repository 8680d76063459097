"""Communication beside computation: what exceeds the computation is exposed."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.step.overlap import (
    exposed_cp_seconds,
    exposed_dp_seconds,
    exposed_dp_seconds_measured,
    exposed_overlapped_seconds,
    exposed_tp_seconds,
)

ALONE = {"slowdown_communication": 1.0, "slowdown_compute": 1.0}
CROWDED = {"slowdown_communication": 1.5, "slowdown_compute": 1.2}


def test_longer_communication_shows_what_exceeds_the_computation():
    """3 s beside 2 s: 1 s remains; beside 4 s nothing does."""
    assert exposed_overlapped_seconds(3.0, 2.0, **ALONE) == 1
    assert exposed_overlapped_seconds(3.0, 4.0, **ALONE) == 0


def test_running_together_slows_both():
    """1.5 * 6 = 9 s against 5 s: 4 s more; 1.2 * 10 = 12 s against 10 s: 2 s more, however short the communication."""
    assert exposed_overlapped_seconds(6.0, 5.0, **CROWDED) == pytest.approx(4)
    assert exposed_overlapped_seconds(1.0, 10.0, **CROWDED) == pytest.approx(2)


def test_a_collective_takes_processors_from_the_computation():
    """
    On a fifth of the processors for 3 s, the computation of 10 s loses 0.6 s, and of 1.5 * 3 s 0.9 s.

    A computation of 2 s is over after 2.5 s: what counts is the second that the 3 s take longer than the 2 s.
    """
    assert exposed_overlapped_seconds(3.0, 10.0, **ALONE, processors_taken=0.2) == pytest.approx(0.6)
    assert exposed_overlapped_seconds(3.0, 10.0, **ALONE | {"slowdown_communication": 1.5}, processors_taken=0.2) == (
        pytest.approx(0.9)
    )
    assert exposed_overlapped_seconds(3.0, 2.0, **ALONE, processors_taken=0.2) == pytest.approx(1.0)
    assert exposed_overlapped_seconds(0.0, 10.0, **ALONE, processors_taken=0.2) == 0


def test_communication_on_busy_links_adds_up():
    """4 s in four pieces: 1 s first, 3 s behind 5 s with 4 s of others: 7 - 5 more, of which the others expose none."""
    assert exposed_dp_seconds(4.0, 5.0, num_pieces=4, **ALONE) == 1
    assert exposed_dp_seconds(4.0, 5.0, num_pieces=4, busy_seconds=4.0, **ALONE) == pytest.approx(3)
    assert exposed_dp_seconds(4.0, 5.0, num_pieces=4, busy_seconds=9.0, **ALONE) == pytest.approx(4)


def test_nothing_is_exposed_where_nothing_is_sent():
    """Computation alone is not slowed down."""
    assert exposed_overlapped_seconds(0.0, 10.0, **CROWDED) == 0


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
def test_hidden_tensor_parallelism_leaves_its_first_piece(splits):
    """Equation (20): 4 s hidden in n pieces leave 4 / n."""
    assert exposed_tp_seconds(4.0, 100.0, splits=splits, **ALONE) == pytest.approx(4 / splits)


def test_four_pieces_leave_a_quarter():
    """MoFa's Table 6: 7.34 s of tensor parallelism become 1.83 s."""
    assert exposed_tp_seconds(7.34, 60.0, splits=4, **ALONE) == pytest.approx(1.83, abs=0.006)


def test_tensor_parallelism_that_exceeds_its_computation():
    """8 s in four pieces beside 4 s: 2, and three times 2 - 1; slowed by 1.5: 2, and three times 3 - 1."""
    assert exposed_tp_seconds(8.0, 4.0, splits=4, **ALONE) == pytest.approx(5)
    assert exposed_tp_seconds(8.0, 4.0, splits=4, **CROWDED) == pytest.approx(8)


def test_ring_attention_hides_all_sends_but_not_beyond_its_pieces():
    """Equation (21), four ranks: three sends of 2 s, each behind a piece of 1 s: 3 s remain; behind 3 s: none."""
    assert exposed_cp_seconds(6.0, 4.0, cp=4, **ALONE) == pytest.approx(3)
    assert exposed_cp_seconds(6.0, 12.0, cp=4, **ALONE) == 0


def test_one_context_parallel_rank_has_no_ring():
    """Nothing is sent, nothing is divided by zero sends."""
    assert exposed_cp_seconds(0.0, 12.0, cp=1, **CROWDED) == 0


def test_one_piece_of_data_parallelism_hides_behind_nothing():
    """Equation (24) with one chunk: the reduce-scatter starts when the computation is over."""
    assert exposed_dp_seconds(8.0, 100.0, num_pieces=1, **ALONE) == 8


def test_later_pieces_of_data_parallelism_hide():
    """Equation (24), four pieces of 2 s: the first alone, 6 s behind 3 s leave 3 more, behind 7 s none."""
    assert exposed_dp_seconds(8.0, 3.0, num_pieces=4, **ALONE) == pytest.approx(5)
    assert exposed_dp_seconds(8.0, 7.0, num_pieces=4, **ALONE) == pytest.approx(2)


@pytest.mark.parametrize("window", [0.3, 3.0])
def test_data_parallelism_is_the_sum_of_equation_24(window):
    """RS_v + sum of max(c RS_i, k B) - B over the other five of six equal pieces of a second, each behind B."""
    pieces = sum(max(1.5 * 1.0, 1.2 * window) - window for _ in range(5))

    assert exposed_dp_seconds(6.0, 5 * window, num_pieces=6, **CROWDED) == pytest.approx(1.0 + pieces)


def test_measured_data_parallelism():
    """0.303 * 10 + max(0, 1.64 * 10 - 0.216 * 4 * 2) = 3.03 + 14.672; with a long stage the first term alone."""
    law = {"unhidden": 0.303, "slowdown": 1.64, "window": 0.216}

    assert exposed_dp_seconds_measured(10.0, 2.0, pp=4, **law) == pytest.approx(17.702)
    assert exposed_dp_seconds_measured(10.0, 200.0, pp=4, **law) == pytest.approx(3.03)


def test_faster_communication_is_never_exposed_longer():
    """Each pattern grows with its communication, whatever the slow-downs."""
    communication, compute = np.linspace(0.001, 20, 200), 5.0
    for slowdowns in (ALONE, CROWDED):
        for exposed in (
            exposed_overlapped_seconds(communication, compute, **slowdowns),
            exposed_tp_seconds(communication, compute, splits=4, **slowdowns),
            exposed_cp_seconds(communication, compute, cp=4, **slowdowns),
            exposed_dp_seconds(communication, compute, num_pieces=4, **slowdowns),
        ):
            assert np.diff(exposed).min() >= -1e-12
