"""Every formula of ``costmodel.pipelines.schedules`` against its order of passes, simulated, and published figures."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from costmodel.pipelines.orders import has_order
from costmodel.pipelines.schedules import Passes, bubble_seconds, chunks_alive, parameter_copies
from costmodel.pipelines.simulator import Timeline, simulate
from costmodel.strategy import V_SHAPED, Schedule, Vocabulary
from tests.cases import in_one_case

EVERY = pytest.mark.parametrize("schedule", list(Schedule), ids=lambda one: one.text)

NUM_CASES = 60

MOST_BLOCKS = 2000
"""Ranks, chunks and micro-batches of one case multiplied; what keeps these tests fast."""


def chunks(schedule: Schedule, *, interleaved: int = 1) -> int:
    """Chunks per rank."""
    return 2 if schedule in V_SHAPED else interleaved if schedule == Schedule.ONE_F_ONE_B else 1


def played(schedule: Schedule, rank: Passes, *, pp: int, vpp: int, m: int) -> Timeline:
    """A step of equal ranks, whose passes are given."""
    stages = {kind: [getattr(rank, kind) / vpp] * (pp * vpp) for kind in ("forward", "backward", "weight")}
    return simulate(schedule, **stages, pp=pp, vpp=vpp, num_microbatches=m)


def formula(schedule: Schedule, rank: Passes, *, pp: int, vpp: int, m: int) -> float:
    """Idle seconds of equal ranks."""
    every = Passes(forward=pp * rank.forward, backward=pp * rank.backward, weight=pp * rank.weight)
    return float(bubble_seconds(rank, every, pp=pp, vpp=vpp, num_microbatches=m, schedule=int(schedule)))


def random_case(schedule: Schedule, random: Random) -> dict[str, int]:
    """A pipeline that fills: at least three micro-batches per rank; whole groups of them where chunks interleave."""
    while True:
        pp, vpp = random.randint(2, 24), chunks(schedule, interleaved=random.choice((1, 1, 2, 3, 4)))
        groups = schedule == Schedule.ONE_F_ONE_B and vpp > 1
        m = pp * random.randint(1, 4) if groups else random.randint(3 * pp, 6 * pp)
        if has_order(schedule, pp=pp, vpp=vpp, num_microbatches=m) and pp * vpp * m <= MOST_BLOCKS:
            return {"pp": pp, "vpp": vpp, "m": m}


@pytest.mark.sampled(2)
@EVERY
def test_idle_time_of_equal_ranks(schedule):
    """60 random pipelines: the formula is what the order makes, for W <= F <= B <= 1.5 F; V-Half 2 B <= F + 2 W."""
    random = Random(int(schedule))
    for _ in range(NUM_CASES):
        weight = random.uniform(0.5, 1)
        forward = weight * random.uniform(1, 2)
        longest = min(1.5 * forward, forward / 2 + weight) if schedule == Schedule.V_HALF else 1.5 * forward
        rank = Passes(forward=forward, backward=random.uniform(forward, longest), weight=weight)
        case = random_case(schedule, random)
        idle = max(played(schedule, rank, **case).spans) - case["m"] * rank.total

        assert formula(schedule, rank, **case) == pytest.approx(idle, abs=1e-9, rel=1e-9)


# --- published figures -------------------------------------------------------------------------------------


class Published(NamedTuple):
    """
    A row of the papers' tables for p ranks, m micro-batches and v chunks; F, B and W as theirs: B is whole, W in it.

    ``alive`` are chunk activations on rank r; a chunk is a rank's 1 / v of the model (a stage of DeepSeek's tables).
    """

    schedule: Schedule
    vpp: int
    bubble: Callable[..., float]
    alive: Callable[..., int]
    parameters: int = 1


PUBLISHED = (
    # Huang et al. 2019
    Published(Schedule.GPIPE, 1, lambda p, F, B, W: (p - 1) * (F + B), lambda p, r, m: m),
    # Narayanan et al. 2021, PipeDream-Flush
    Published(Schedule.ONE_F_ONE_B, 1, lambda p, F, B, W: (p - 1) * (F + B), lambda p, r, m: min(p - r, m)),
    # SC21, section 2.2.2, F and B of a whole rank; warm-up of Megatron-LM
    Published(
        Schedule.ONE_F_ONE_B, 3, lambda p, F, B, W: (p - 1) * (F + B) / 3, lambda p, r, m: 2 * (p - r - 1) + 2 * p + 1
    ),
    # arXiv 2401.10241, whose B is that of inputs alone: (p - 1)(F + B - W), (p - 1)(F + B - 2 W)
    Published(Schedule.ZB_H1, 1, lambda p, F, B, W: (p - 1) * (F + B - 2 * W), lambda p, r, m: p),
    Published(Schedule.ZB_H2, 1, lambda p, F, B, W: (p - 1) * (F + B - 3 * W), lambda p, r, m: 2 * p - 1),
    # arXiv 2405.15362: none where F = B = W, p micro-batches of two chunks
    Published(Schedule.ZB_V, 2, lambda p, F, B, W: 0.0, lambda p, r, m: 2 * p),
    # arXiv 2412.19437, Table 2, with F&B = F + B
    Published(
        Schedule.DUALPIPE, 1, lambda p, F, B, W: (p / 2 - 1) * (F + B + B - 3 * W), lambda p, r, m: p + 1, parameters=2
    ),
    # DeepSeek's table counts stages, 2 p of them on p ranks, and two stages per rank: the chunks of a V
    Published(Schedule.DUALPIPEV, 2, lambda p, F, B, W: (p - 1) * (F + B + B - 3 * W) / 2, lambda p, r, m: 2 * p + 1),
)

TIMES = ((1.0, 2.0, 1.0), (2.0, 4.0, 2.0), (1.0, 1.75, 0.75))
"""F, whole B and W of a rank for which the papers' figures hold: F is B - W; in the last one W is shorter."""


@in_one_case("row", PUBLISHED, ids=lambda row: f"{row.schedule.text}-{row.vpp}")
@in_one_case("pp", [4, 8])
def test_published_figures_are_met(row, pp):
    """Bubble by formula and as played, activations of every rank by formula and as played, parameters."""
    case = {"pp": pp, "vpp": row.vpp, "m": 4 * pp}
    times = TIMES[:2] if row.schedule == Schedule.ZB_V else TIMES
    for forward, both, weight in times:
        rank = Passes(forward=forward, backward=both - weight, weight=weight)
        timeline = played(row.schedule, rank, **case)
        bubble = row.bubble(pp, forward, both, weight)

        assert formula(row.schedule, rank, **case) == pytest.approx(bubble)
        assert max(timeline.spans) - case["m"] * rank.total == pytest.approx(bubble)

    alive = [row.alive(pp, r, 4 * pp) for r in range(pp)]
    counted = chunks_alive(
        pp=pp,
        vpp=row.vpp,
        num_microbatches=4 * pp,
        rank=np.arange(pp),
        schedule=int(row.schedule),
        vocabulary=int(Vocabulary.ENDS),
    )

    assert list(timeline.peak_chunks) == alive
    assert counted.tolist() == alive
    assert parameter_copies(schedule=int(row.schedule)) == row.parameters


@pytest.mark.parametrize("pp", [4, 8, 16])
def test_v_half_where_all_passes_are_equal(pp):
    """13 p - 8 slots of 24: a little more than half of 1F1B's (p - 1) (F + B + W)."""
    rank = Passes(forward=1.0, backward=1.0, weight=1.0)
    idle = max(played(Schedule.V_HALF, rank, pp=pp, vpp=2, m=4 * pp).spans) - 4 * pp * 3

    assert idle == pytest.approx((13 * pp - 8) / 24 * 3)
    assert formula(Schedule.V_HALF, rank, pp=pp, vpp=2, m=4 * pp) == pytest.approx(idle)
    assert 0.5 * 3 * (pp - 1) < idle < 0.62 * 3 * (pp - 1)


# --- unequal ranks, and the rest ---------------------------------------------------------------------------


def test_unequal_ranks():
    """The last rank slower by a head: the zero-bubble formulas are upper bounds, at most 6 % of the step above."""
    for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_2P):
        for pp, head in ((4, 0.3), (8, 0.3), (8, 1.0)):
            stages = {kind: [1.0] * (pp - 1) + [1.0 + head] for kind in ("forward", "backward", "weight")}
            timeline = simulate(schedule, **stages, pp=pp, vpp=1, num_microbatches=4 * pp)
            slowest = Passes(forward=1 + head, backward=1 + head, weight=1 + head)
            every = Passes(forward=pp + head, backward=pp + head, weight=pp + head)
            idle = bubble_seconds(slowest, every, pp=pp, vpp=1, num_microbatches=4 * pp, schedule=int(schedule))
            computed = 4 * pp * 3 * (1 + head) + float(idle)

            assert -0.03 < computed / max(timeline.spans) - 1 < 0.06


@EVERY
@pytest.mark.parametrize("pp", [4, 8])
def test_chunks_alive_on_the_fullest_rank(schedule, pp):
    """
    From the forward pass to the weights' gradients: as counted, on every rank but those of V-Half.

    ZB-2p counts less for late ranks, on which most wait for their weights' gradients alone: its limit is 2 p.
    """
    vpp, m = chunks(schedule), 4 * pp
    rank = Passes(forward=1.0, backward=1.0, weight=1.0)
    peaks = np.array(played(schedule, rank, pp=pp, vpp=vpp, m=m).peak_chunks)
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
