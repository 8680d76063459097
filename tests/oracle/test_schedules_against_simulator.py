"""Every formula of ``costmodel.schedules`` against its order of passes, played through."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from costmodel.schedules import Passes, chunks_alive, idle_seconds
from costmodel.strategy import V_SHAPED, Schedule, Vocabulary
from tests.oracle.pipeline_simulator import BACKWARD, FORWARD, WEIGHT, Pass, Timeline, order, play
from tests.oracle.schedule_orders import gpipe, v_half, zb_v, zero_bubble

ORDERS: dict[Schedule, Callable[[int, int, int], list[Pass]]] = {
    Schedule.ONE_F_ONE_B: lambda r, p, m: order(r, pp=p, vpp=1, num_microbatches=m),
    Schedule.GPIPE: lambda r, p, m: gpipe(r, num_microbatches=m),
    Schedule.ZB_H1: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=p - r, delay=r),
    Schedule.ZB_H2: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=2 * (p - r) - 1, delay=2 * r),
    Schedule.ZB_2P: lambda r, p, m: zero_bubble(r, num_microbatches=m, warmup=2 * (p - r) - 1, delay=3 * r),
    Schedule.ZB_V: lambda r, p, m: zb_v(r, pp=p, num_microbatches=m),
    Schedule.V_HALF: lambda r, p, m: v_half(r, pp=p, num_microbatches=m),
}
"""The order of rank r of p for m micro-batches."""

EXACT = [one for one in Schedule if one != Schedule.V_HALF]


def played(schedule: Schedule, seconds: dict[str, list[float]], *, pp: int, num_microbatches: int) -> Timeline:
    """A step; seconds are those of every virtual stage. 1F1B and GPipe do the whole backward pass at once."""
    work = [ORDERS[schedule](rank, pp, num_microbatches) for rank in range(pp)]
    if not any(one.kind == WEIGHT for one in work[0]):
        whole = [b + w for b, w in zip(seconds[BACKWARD], seconds[WEIGHT], strict=True)]
        return play(work, {FORWARD: seconds[FORWARD], BACKWARD: whole})
    return play(work, seconds)


def equal(
    schedule: Schedule, forward: float, backward: float, weight: float, *, pp: int, m: int
) -> tuple[float, float]:
    """Idle seconds of equal ranks: formula and simulator. The arguments are of a whole rank."""
    vpp = 2 if schedule in V_SHAPED else 1
    stages = {
        kind: [seconds / vpp] * (pp * vpp)
        for kind, seconds in ((FORWARD, forward), (BACKWARD, backward), (WEIGHT, weight))
    }
    timeline = played(schedule, stages, pp=pp, num_microbatches=m)
    rank = Passes(forward=forward, backward=backward, weight=weight)
    every = Passes(forward=pp * forward, backward=pp * backward, weight=pp * weight)
    formula = idle_seconds(rank, every, pp=pp, vpp=vpp, num_microbatches=m, schedule=int(schedule))
    return float(formula), max(timeline.spans) - m * (forward + backward + weight)


def test_orders_are_complete():
    """Every schedule's every rank does each pass of each of its stages once."""
    for schedule, of_rank in ORDERS.items():
        for rank in range(4):
            work = of_rank(rank, 4, 12)
            num_kinds = 2 if schedule <= Schedule.GPIPE else 3

            assert len(work) == len(set(work)) == 12 * num_kinds * (2 if schedule in V_SHAPED else 1)


@pytest.mark.parametrize("schedule", EXACT, ids=lambda one: one.text)
def test_idle_time_of_equal_ranks(schedule):
    """200 random pipelines: the formula is what the order makes, where W is at most F and F at most B."""
    random = Random(int(schedule))
    for _ in range(200):
        pp = random.randint(2, 10)
        weight = random.uniform(0.5, 1)
        forward = weight * random.uniform(1, 2)
        backward = forward * random.uniform(1, 1.5)
        formula, simulated = equal(schedule, forward, backward, weight, pp=pp, m=random.randint(3 * pp, 6 * pp))

        assert formula == pytest.approx(simulated, abs=1e-9)


PUBLISHED = {
    Schedule.ONE_F_ONE_B: 3.0,
    Schedule.GPIPE: 3.0,
    Schedule.ZB_H1: 1.0,
    Schedule.ZB_H2: 0.0,
    Schedule.ZB_2P: 0.0,
    Schedule.ZB_V: 0.0,
}
"""Idle time over p - 1 where F = B = W = 1 (arXiv 2401.10241, section 3; 2405.15362, Table 1)."""


@pytest.mark.parametrize("schedule", EXACT, ids=lambda one: one.text)
def test_published_bubbles(schedule):
    """F = B = W = 1, eight ranks: 21, 21, 7, and none."""
    formula, simulated = equal(schedule, 1.0, 1.0, 1.0, pp=8, m=32)

    assert formula == pytest.approx(7 * PUBLISHED[schedule])
    assert simulated == pytest.approx(7 * PUBLISHED[schedule])


@pytest.mark.parametrize("pp", [4, 8, 16, 32])
def test_v_half_where_all_passes_are_equal(pp):
    """13 p - 8 slots of 24: a little more than half of 1F1B's (p - 1) (F + B + W)."""
    formula, simulated = equal(Schedule.V_HALF, 1.0, 1.0, 1.0, pp=pp, m=4 * pp)

    assert formula == pytest.approx(simulated)
    assert 0.5 * 3 * (pp - 1) < simulated < 0.62 * 3 * (pp - 1)


def test_v_half_where_passes_differ():
    """F and B a tenth or a fifth longer than W, as in transformers: up to 12 % more idle time than counted."""
    for pp in (4, 8, 16, 24):
        for forward, backward, weight in ((1.1, 1.1, 1.0), (1.1, 1.2, 1.0), (1.0, 1.2, 1.0)):
            formula, simulated = equal(Schedule.V_HALF, forward, backward, weight, pp=pp, m=4 * pp)

            assert 0.88 * simulated < formula <= simulated


def test_unequal_ranks():
    """The last rank slower by a head: the zero-bubble formulas are upper bounds, at most 6 % of the step above."""
    for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_2P):
        for pp, head in ((4, 0.3), (8, 0.3), (8, 1.0)):
            stages = {kind: [1.0] * (pp - 1) + [1.0 + head] for kind in (FORWARD, BACKWARD, WEIGHT)}
            timeline = played(schedule, stages, pp=pp, num_microbatches=4 * pp)
            slowest = Passes(forward=1 + head, backward=1 + head, weight=1 + head)
            every = Passes(forward=pp + head, backward=pp + head, weight=pp + head)
            idle = idle_seconds(slowest, every, pp=pp, vpp=1, num_microbatches=4 * pp, schedule=int(schedule))
            formula = 4 * pp * 3 * (1 + head) + float(idle)

            assert -0.03 < formula / max(timeline.spans) - 1 < 0.06


@pytest.mark.parametrize("schedule", list(Schedule), ids=lambda one: one.text)
@pytest.mark.parametrize("pp", [4, 8, 16])
def test_chunks_alive_on_the_fullest_rank(schedule, pp):
    """
    From the forward pass to the weights' gradients: as counted, on every rank but those of V-Half.

    ZB-2p counts less for late ranks, on which most wait for their weights' gradients alone: its limit is 2 p.
    """
    vpp, m = 2 if schedule in V_SHAPED else 1, 4 * pp
    stages = {kind: [1.0] * (pp * vpp) for kind in (FORWARD, BACKWARD, WEIGHT)}
    peaks = np.array(played(schedule, stages, pp=pp, num_microbatches=m).peak_chunks)
    degrees = {"pp": pp, "vpp": vpp, "num_microbatches": m, "rank": np.arange(pp)}
    counted = chunks_alive(**degrees, schedule=int(schedule), vocabulary=int(Vocabulary.ENDS))

    if schedule == Schedule.ZB_2P:
        assert peaks[0] == counted[0] - 1
    elif schedule == Schedule.V_HALF:
        assert peaks.max() == counted.max()
    else:
        assert peaks.tolist() == counted.tolist()


def test_slices_of_the_vocabulary_keep_more_alive():
    """Four ranks: one micro-batch more for one barrier, two for two, and half as many again where slices interlace."""
    degrees = {"pp": 4, "vpp": 1, "num_microbatches": 64, "rank": np.array([0]), "schedule": Schedule.ONE_F_ONE_B}
    alive = [chunks_alive(**degrees, vocabulary=int(one)).item() for one in Vocabulary]

    assert alive == [4, 4, 6, 5, 6]
