"""The pipeline's formulas by hand; the whole schedule is in ``tests/oracle``."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.pipelines.schedules import (
    busy_seconds,
    chunks_in_flight,
    interleaved_bubble_seconds,
    p2p_exposed_seconds,
    steady_slots,
)
from tests.cases import in_one_case


def test_bubble_of_the_plain_schedule():
    """Four stages wait for three others: 3 (F + B) (Narayanan et al., section 2.2.1)."""
    assert interleaved_bubble_seconds(3.0, 4 * 3.0, vpp=1) == 9


def test_chunks_divide_the_bubble():
    """Two chunks per rank halve it (SC21, section 2.2.2)."""
    assert interleaved_bubble_seconds(3.0, 4 * 3.0, vpp=2) == 4.5


def test_bubble_fraction_of_the_paper():
    """Bubble over ideal time is (p - 1) / m: 7 / 56 = 1 / 8."""
    assert interleaved_bubble_seconds(1.0, 8.0, vpp=1) / busy_seconds(1.0, num_microbatches=56) == pytest.approx(1 / 8)


def test_unequal_ranks_keep_the_pace_of_the_slowest():
    """Ranks of 3, 3, 3 and 5 s, ten micro-batches: 10 * 5, and the other three once."""
    busy = busy_seconds(5.0, num_microbatches=10)

    assert busy + interleaved_bubble_seconds(5.0, 14.0, vpp=1) == 59


def test_one_rank_has_no_bubble():
    """Nobody to wait for."""
    assert interleaved_bubble_seconds(3.0, 3.0, vpp=1) == 0


def test_slots_of_the_steady_phase():
    """With p = 4, v = 2, m = 8 a forward and a backward chunk eleven times: m v - p v + p - 1."""
    assert steady_slots(pp=4, vpp=2, num_microbatches=8) == 11


def test_hidden_hops_do_not_depend_on_the_number_of_microbatches():
    """MoFa's PP column: 2 (p v - 1) T, so that 128 chunks over 64 cost 127 / 63 (5.47 s and 2.72 s)."""
    few, many = (p2p_exposed_seconds(0.02, 0.0, pp=16, vpp=8, num_microbatches=m) for m in (16, 512))
    half = p2p_exposed_seconds(0.02, 0.0, pp=8, vpp=8, num_microbatches=64)

    assert few == many
    assert few / half == pytest.approx(127 / 63)


def test_one_rank_sends_nothing():
    """Without a pipeline the hop is zero, and so is the number of those at the edges."""
    assert p2p_exposed_seconds(1.0, 0.0, pp=1, vpp=1, num_microbatches=8) == 0


def test_fewer_microbatches_than_ranks_do_not_give_time_back():
    """The steady phase has at least no slots."""
    assert p2p_exposed_seconds(1.0, 1.0, pp=8, vpp=4, num_microbatches=1) == 62


@in_one_case(("rank", "plain", "interleaved"), [(0, 4, 11), (1, 3, 9), (2, 2, 7), (3, 1, 5)])
def test_chunks_in_flight(rank, plain, interleaved):
    """Four ranks: p - r whole ones; with two chunks 2 (p - r - 1) + (v - 1) p + 1, the last rank p + 1."""
    assert chunks_in_flight(pp=4, vpp=1, num_microbatches=64, rank=rank) == plain
    assert chunks_in_flight(pp=4, vpp=2, num_microbatches=64, rank=rank) == interleaved


def test_chunks_in_flight_are_no_more_than_there_are():
    """Two micro-batches of two chunks are four chunks; of one chunk two."""
    assert chunks_in_flight(pp=4, vpp=2, num_microbatches=2, rank=0) == 4
    assert chunks_in_flight(pp=4, vpp=1, num_microbatches=2, rank=0) == 2


def test_formulas_take_arrays():
    """One value per strategy."""
    pp, vpp = np.array([1, 4, 4]), np.array([1, 1, 2])

    assert chunks_in_flight(pp=pp, vpp=vpp, num_microbatches=8, rank=0).tolist() == [1, 4, 11]
    assert steady_slots(pp=pp, vpp=vpp, num_microbatches=8).tolist() == [7, 7, 11]
