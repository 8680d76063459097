"""Pipelines of many strategies at once against the simulator of one, and bounds that none of them undercuts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from costmodel.pipelines import orders
from costmodel.pipelines.graph import STRIDES, spans_seconds
from costmodel.pipelines.simulator import simulate
from costmodel.strategy import V_SHAPED, Schedule

NUM_STRATEGIES = 6

LENGTHS = (1, 3 * STRIDES)
"""Micro-batches over ranks: too few to repeat themselves, and so many that most are not simulated."""


def passes(random: Random, num_stages: int) -> dict[str, np.ndarray]:
    """Seconds of each strategy's stages, (C, stages): random ones, and equal ones with one long stage."""
    rng = np.random.default_rng(random.randrange(2**32))
    seconds = {kind: rng.uniform(0.2, 2.0, (NUM_STRATEGIES, num_stages)) for kind in ("forward", "backward", "weight")}
    for kind in seconds:
        seconds[kind][::2] = 1.0
        seconds[kind][::2, random.randrange(num_stages)] += random.random()
    return seconds


@pytest.mark.parametrize("length", LENGTHS)
def test_interleaved_pipelines_of_unlike_chunks_are_those_of_the_simulator(length):
    """12 orders, groups larger than the ranks among them, of 6 strategies each: whole or in part, to rounding."""
    random = Random(length)
    for _ in range(12):
        pp, vpp = random.choice([2, 3, 4]), random.choice([2, 3, 5])
        group = random.choice([pp, pp, pp + 1, 2 * pp])
        degrees = {"pp": pp, "vpp": vpp, "num_microbatches": group * length, "group": group}
        assert_simulated(Schedule.ONE_F_ONE_B, passes(random, pp * vpp), **degrees)


def assert_simulated(schedule: Schedule, seconds: dict[str, np.ndarray], **degrees: int) -> None:
    """Steps of all strategies at once are those of one after the other."""
    spans = spans_seconds(schedule, **seconds, **degrees)
    for index, span in enumerate(spans):
        own = {kind: values[index] for kind, values in seconds.items()}
        assert span == pytest.approx(max(simulate(schedule, **own, **degrees).spans), rel=1e-9)


@pytest.mark.parametrize("schedule", Schedule, ids=lambda schedule: schedule.text)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_order_is_that_of_the_simulator(schedule, length):
    """Six strategies of unequal stages, on two and four ranks: each as one block after the other has it."""
    random, vpp = Random(length), 2 if schedule in V_SHAPED else 1
    for pp in (2, 4):
        degrees = {"pp": pp, "vpp": vpp, "num_microbatches": (2 + length) * pp}
        assert orders.has_order(schedule, **degrees)
        assert_simulated(schedule, passes(random, pp * vpp), **degrees, group=pp if vpp > 1 else 1)


def test_stages_that_nobody_timed_take_for_ever():
    """One strategy of two has an infinite stage; the other one keeps its step, 3 (m v + p - 1) = 27."""
    ones = np.ones((2, 4))
    endless = ones.copy()
    endless[1, 2] = np.inf
    degrees = {"pp": 2, "vpp": 2, "num_microbatches": 4, "group": 2}

    spans = spans_seconds(Schedule.ONE_F_ONE_B, forward=endless, backward=ones, weight=ones, **degrees)

    assert spans.tolist() == [27.0, np.inf]


def test_no_interleaved_pipeline_is_shorter_than_the_way_through_a_rank():
    """200 strategies: m R of any rank, and the first chunks of those in front of it."""
    random = Random(11)
    for _ in range(34):
        pp, vpp, groups = random.choice([2, 3, 4, 8]), random.choice([2, 3, 4]), random.randint(1, 8)
        seconds, m = passes(random, pp * vpp), groups * pp
        chunks = sum(seconds.values()).reshape(NUM_STRATEGIES, vpp, pp)
        in_front = chunks[:, 0].cumsum(axis=1) - chunks[:, 0]

        spans = spans_seconds(Schedule.ONE_F_ONE_B, **seconds, pp=pp, vpp=vpp, num_microbatches=m, group=pp)

        assert (spans >= (m * chunks.sum(axis=1) + in_front).max(axis=1) * (1 - 1e-12)).all()
