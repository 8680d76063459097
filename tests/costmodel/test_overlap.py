"""Communication beside computation: what exceeds the computation is exposed."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.facts.device import Slowdowns
from costmodel.step.overlap import (
    exposed_cp_seconds,
    exposed_dp_seconds,
    exposed_overlapped_seconds,
    exposed_tp_seconds,
    measured_law_exposed_dp_seconds,
)
from tests.cases import in_one_case

ALONE = Slowdowns(slowdown_communication=1.0, slowdown_compute=1.0, processors_taken=0.0)
CROWDED = Slowdowns(slowdown_communication=1.5, slowdown_compute=1.2, processors_taken=0.0)
TAKING = Slowdowns(slowdown_communication=1.5, slowdown_compute=1.0, processors_taken=0.2)


def overtaken(communication: float, compute: float, slowdowns: Slowdowns, *, steps: int = 20_000) -> float:
    """Seconds beyond the computation of two that run side by side, step by step, each at its share: an oracle."""
    pace_of_link = 1 / slowdowns["slowdown_communication"]
    pace_of_compute = (1 - slowdowns["processors_taken"]) / slowdowns["slowdown_compute"]
    tick, time, sent, computed = (communication + compute) / steps, 0.0, 0.0, 0.0
    while sent < communication or computed < compute:
        both = sent < communication and computed < compute
        sent += tick * (pace_of_link if both else 1)
        computed += tick * (pace_of_compute if both else 1)
        time += tick
    return min(communication, time - compute)


def test_longer_communication_shows_what_exceeds_the_computation():
    """3 s beside 2 s: 1 s remains; beside 4 s nothing does."""
    assert exposed_overlapped_seconds(3.0, 2.0, ALONE) == 1
    assert exposed_overlapped_seconds(3.0, 4.0, ALONE) == 0


def test_running_together_slows_both():
    """
    6 s beside 5 s: after 1.2 * 5 s of both 4 of the 6 s are sent, and 2 s are left.

    1 s beside 10 s takes 1.5 s, in which 1.25 s are computed; but one after the other they take no longer than 11 s.
    """
    assert exposed_overlapped_seconds(6.0, 5.0, CROWDED) == pytest.approx(3)
    assert exposed_overlapped_seconds(1.0, 10.0, CROWDED) == pytest.approx(0.25)


@in_one_case("slowdowns", [ALONE, CROWDED, {**CROWDED, "slowdown_compute": 1.0}])
@in_one_case(("communication", "compute"), [(3.0, 2.0), (6.0, 5.0), (1.0, 10.0), (4.0, 4.0), (9.0, 1.0)])
def test_two_side_by_side_progress_at_their_shares(slowdowns, communication, compute):
    """As if both were stepped through."""
    exposed = exposed_overlapped_seconds(communication, compute, slowdowns)

    assert exposed == pytest.approx(overtaken(communication, compute, slowdowns), abs=0.005)


def test_a_collective_takes_processors_from_the_computation():
    """A fifth of the processors for 1.5 * 3 s are 0.9 s; beside 2 s more than that is left of the communication."""
    assert exposed_overlapped_seconds(3.0, 10.0, TAKING) == pytest.approx(0.9)
    assert exposed_overlapped_seconds(3.0, 10.0, TAKING, copying_seconds=1.0) == pytest.approx(0.3)
    assert exposed_overlapped_seconds(3.0, 2.0, TAKING) == pytest.approx(3 - 2 / 1.5)
    assert exposed_overlapped_seconds(0.0, 10.0, TAKING) == 0


def test_overlap_is_never_slower_than_none():
    """Processors that a collective takes whole cost no more than the collective itself."""
    greedy = Slowdowns(slowdown_communication=3.0, slowdown_compute=4.0, processors_taken=0.9)

    assert exposed_overlapped_seconds(2.0, 50.0, greedy) == pytest.approx(2)


def test_communication_on_busy_links_adds_up():
    """4 s in four pieces: 1 s first, 3 s behind 5 s with 4 s of others on the link: 2 s are left; no more than all."""
    assert exposed_dp_seconds(4.0, 5.0, ALONE, num_pieces=4) == 1
    assert exposed_dp_seconds(4.0, 5.0, ALONE, num_pieces=4, scale_up_seconds=4.0) == pytest.approx(3)
    assert exposed_dp_seconds(4.0, 5.0, ALONE, num_pieces=4, scale_up_seconds=9.0) == pytest.approx(4)


def test_communication_runs_while_a_device_waits():
    """3 s beside 1 s of computation and 1 s of waiting: 1 s is left."""
    assert exposed_overlapped_seconds(3.0, 1.0, ALONE, waiting_seconds=1.0) == pytest.approx(1)


def test_the_busiest_link_counts():
    """3 s on the adapter, 1 s of it on the scale-up network, beside 4 s: others' 2 s on either, 5 s on the second."""
    case = {"copying_seconds": 1.0}

    assert exposed_overlapped_seconds(3.0, 4.0, ALONE, **case, adapter_seconds=2.0) == 1
    assert exposed_overlapped_seconds(3.0, 4.0, ALONE, **case, scale_up_seconds=2.0) == 0
    assert exposed_overlapped_seconds(3.0, 4.0, ALONE, **case, scale_up_seconds=5.0) == 2


def test_nothing_is_exposed_where_nothing_is_sent():
    """Computation alone is not slowed down."""
    assert exposed_overlapped_seconds(0.0, 10.0, CROWDED) == 0


@in_one_case("splits", [1, 2, 4, 8])
def test_hidden_tensor_parallelism_leaves_its_first_piece(splits):
    """Equation (20): 4 s hidden in n pieces leave 4 / n."""
    assert exposed_tp_seconds(4.0, 100.0, ALONE, splits=splits) == pytest.approx(4 / splits)


def test_four_pieces_leave_a_quarter():
    """MoFa's Table 6: 7.34 s of tensor parallelism become 1.83 s."""
    assert exposed_tp_seconds(7.34, 60.0, ALONE, splits=4) == pytest.approx(1.83, abs=0.006)


def test_tensor_parallelism_that_exceeds_its_computation():
    """
    8 s in four pieces beside 4 s: 2, and three times 2 - 1.

    Crowded, a piece's computation takes 1.2 s, in which 0.8 of its 2 s are sent: 1.2 + 1.2 - 1 = 1.4 are exposed.
    """
    assert exposed_tp_seconds(8.0, 4.0, ALONE, splits=4) == pytest.approx(5)
    assert exposed_tp_seconds(8.0, 4.0, CROWDED, splits=4) == pytest.approx(2 + 3 * 1.4)


def test_ring_attention_hides_all_sends_but_not_beyond_its_pieces():
    """Equation (21), four ranks: three sends of 2 s, each behind a piece of 1 s: 3 s remain; behind 3 s: none."""
    assert exposed_cp_seconds(6.0, 4.0, ALONE, cp=4) == pytest.approx(3)
    assert exposed_cp_seconds(6.0, 12.0, ALONE, cp=4) == 0


def test_one_context_parallel_rank_has_no_ring():
    """Nothing is sent, nothing is divided by zero sends."""
    assert exposed_cp_seconds(0.0, 12.0, CROWDED, cp=1) == 0


def test_one_piece_of_data_parallelism_hides_behind_nothing():
    """Equation (24) with one chunk: the reduce-scatter starts when the computation is over."""
    assert exposed_dp_seconds(8.0, 100.0, ALONE, num_pieces=1) == 8


def test_later_pieces_of_data_parallelism_hide():
    """Equation (24), four pieces of 2 s: the first alone, 6 s behind 3 s leave 3 more, behind 7 s none."""
    assert exposed_dp_seconds(8.0, 3.0, ALONE, num_pieces=4) == pytest.approx(5)
    assert exposed_dp_seconds(8.0, 7.0, ALONE, num_pieces=4) == pytest.approx(2)


@pytest.mark.parametrize("window", [0.3, 3.0])
def test_data_parallelism_is_the_sum_of_equation_24(window):
    """RS_v + sum of max(RS_i, B) - B over the other five of six equal pieces of a second, each behind B."""
    pieces = sum(max(1.0, window) - window for _ in range(5))

    assert exposed_dp_seconds(6.0, 5 * window, ALONE, num_pieces=6) == pytest.approx(1.0 + pieces)


def test_measured_data_parallelism():
    """0.303 * 10 + max(0, 1.64 * 10 - 0.216 * 4 * 2) = 3.03 + 14.672; with a long stage the first term alone."""
    law = {"unhidden": 0.303, "slowdown": 1.64, "window": 0.216}

    assert measured_law_exposed_dp_seconds(10.0, 2.0, pp=4, **law) == pytest.approx(17.702)
    assert measured_law_exposed_dp_seconds(10.0, 200.0, pp=4, **law) == pytest.approx(3.03)


def test_faster_communication_is_never_exposed_longer():
    """Each pattern grows with its communication, whatever the slow-downs."""
    communication, compute = np.linspace(0.001, 20, 200), 5.0
    for slowdowns in (ALONE, CROWDED):
        for exposed in (
            exposed_overlapped_seconds(communication, compute, slowdowns),
            exposed_tp_seconds(communication, compute, slowdowns, splits=4),
            exposed_cp_seconds(communication, compute, slowdowns, cp=4),
            exposed_dp_seconds(communication, compute, slowdowns, num_pieces=4),
        ):
            assert np.diff(exposed).min() >= -1e-12
