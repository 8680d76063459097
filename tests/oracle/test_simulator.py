"""The project's simulator of pipelines against a naive one, and against itself where it plays less."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from costmodel.pipelines import simulator
from costmodel.pipelines.graph import STRIDES, graph_of
from costmodel.pipelines.orders import FORWARD as FORWARDS
from costmodel.pipelines.orders import NONE, has_order, order, stages_of_rank
from costmodel.pipelines.orders import WEIGHT as WEIGHTS
from costmodel.pipelines.simulator import alive_by_chunk, simulate, span_seconds
from costmodel.strategy import BIDIRECTIONAL, V_SHAPED, Schedule
from tests.oracle import pipeline_simulator as naive
from tests.oracle.pipeline_simulator import BACKWARD, FORWARD, WEIGHT, Pass
from tests.oracle.schedule_orders import ORDERS

EVERY = pytest.mark.parametrize("schedule", list(Schedule), ids=lambda one: one.text)

KINDS = (FORWARD, BACKWARD, WEIGHT)


def random_pipeline(schedule: Schedule, random: Random) -> dict[str, Any]:
    """Ranks, chunks and micro-batches that a schedule has an order for."""
    while True:
        pp = random.randint(1, 8)
        vpp = 2 if schedule in V_SHAPED else random.choice((1, 2, 3)) if schedule == Schedule.ONE_F_ONE_B else 1
        group = random.choice((None, random.randint(pp, 2 * pp))) if vpp > 1 and schedule not in V_SHAPED else None
        pipeline = {"pp": pp, "vpp": vpp, "num_microbatches": random.randint(1, 5 * pp)}
        if has_order(schedule, **pipeline, group=group):
            return pipeline | {"group": group}


def random_seconds(num: int, random: Random) -> dict[str, list[float]]:
    """Uneven virtual stages."""
    return {kind: [random.uniform(0.5, 2) for _ in range(num)] for kind in KINDS}


def naive_work(schedule: Schedule, pipeline: dict[str, Any]) -> list[list[naive.Block]]:
    """The orders of all ranks from the oracle's own code; those of DualPipe, whose figures are checked elsewhere."""
    pp, vpp, m, group = (pipeline[name] for name in ("pp", "vpp", "num_microbatches", "group"))
    if schedule == Schedule.ONE_F_ONE_B:
        each = [naive.order(rank, pp=pp, vpp=vpp, num_microbatches=m, group=group) for rank in range(pp)]
    elif schedule in ORDERS:
        each = [ORDERS[schedule](rank, pp, m) for rank in range(pp)]
    else:
        return [
            [tuple(Pass(k, one // m, one % m) for k, one in zip(KINDS, b, strict=True) if one != NONE) for b in blocks]
            for blocks in (order(schedule, rank, pp=pp, vpp=vpp, num_microbatches=m).tolist() for rank in range(pp))
        ]
    split = any(one.kind == WEIGHT for one in each[0])
    whole = {one: (one, Pass(WEIGHT, one.stage, one.microbatch)) for work in each for one in work}
    return [[one if split or one.is_forward else whole[one] for one in work] for work in each]


@pytest.mark.sampled(3)
@EVERY
@pytest.mark.parametrize(("hop", "blocks"), [(0.0, False), (0.3, False), (0.3, True)], ids=["none", "beside", "block"])
def test_every_time_is_that_of_the_naive_simulator(schedule, hop, blocks):
    """40 random pipelines with random stages: seconds and peaks of every rank, with and without transfers."""
    random = Random(100 * int(schedule) + 7)
    for _ in range(40):
        pipeline = random_pipeline(schedule, random)
        seconds = random_seconds(pipeline["pp"] * pipeline["vpp"], random)
        expected = naive.play(naive_work(schedule, pipeline), seconds, p2p_seconds=hop, hop_blocks=blocks)
        timeline = simulate(schedule, **seconds, **pipeline, p2p_seconds=hop, hop_blocks=blocks)

        assert timeline.seconds == pytest.approx(expected.seconds, rel=1e-12)
        assert timeline.spans == pytest.approx(expected.spans, rel=1e-12)
        assert timeline.peak_chunks == expected.peak_chunks


@EVERY
def test_orders_are_complete(schedule):
    """Every rank does each pass of each of its stages and micro-batches once, the forward before the backward one."""
    random = Random(int(schedule))
    for _ in range(12):
        pipeline = random_pipeline(schedule, random)
        pp, vpp, m = pipeline["pp"], pipeline["vpp"], pipeline["num_microbatches"]
        blocks = [order(schedule, rank, **pipeline) for rank in range(pp)]

        for kind in range(3):
            every = np.concatenate([own[own[:, kind] != NONE, kind] for own in blocks])

            assert np.array_equal(np.sort(every), np.arange(pp * vpp * m))
        for rank, own in enumerate(blocks):
            stages = set(stages_of_rank(schedule, rank, pp=pp, vpp=vpp))
            place = [{one: at for at, one in enumerate(own[:, kind].tolist()) if one != NONE} for kind in range(3)]

            assert {one // m for one in place[FORWARDS]} <= stages
            assert all(place[0][one] < place[1][one] <= place[2][one] for one in place[WEIGHTS])


def test_passes_are_kept_when_asked_for():
    """Two ranks, F = 1, B = W = 1, one micro-batch: F from 0 to 1 and 1 to 2, backward from 2 to 4 and from 4 to 6."""
    pipeline: dict[str, Any] = {"pp": 2, "vpp": 1, "num_microbatches": 1}
    seconds = {kind: [1.0, 1.0] for kind in KINDS}

    passes = simulate(Schedule.ONE_F_ONE_B, **seconds, **pipeline, keep_passes=True).passes

    assert [(one.kind, one.rank, one.stage, one.microbatch, one.start, one.end) for one in passes] == [
        ("forward", 0, 0, 0, 0, 1),
        ("backward", 0, 0, 0, 4, 6),
        ("weight", 0, 0, 0, 4, 6),
        ("forward", 1, 1, 0, 1, 2),
        ("backward", 1, 1, 0, 2, 4),
        ("weight", 1, 1, 0, 2, 4),
    ]
    assert simulate(Schedule.ONE_F_ONE_B, **seconds, **pipeline).passes == ()


def test_passes_at_the_same_time():
    """DualPipe on two ranks: F&B blocks that take 10 % less than both save 0.1 (F + B) each."""
    pipeline: dict[str, Any] = {"pp": 2, "vpp": 1, "num_microbatches": 8}
    seconds = {kind: [1.0, 1.0] for kind in KINDS}

    plain, overlapped = (
        max(simulate(Schedule.DUALPIPE, **seconds, **pipeline, overlapped_fraction=one).spans) for one in (1.0, 0.9)
    )

    # No bubble on two ranks: 8 micro-batches of 3; step 4 is 4 - 2 + 1 rounds of two blocks, the first one apart.
    assert plain == pytest.approx(24)
    assert plain - overlapped == pytest.approx((2 * 3 - 1) * 0.1 * 3)


# --- long steps --------------------------------------------------------------------------------------------


def error_of_a_long_step(schedule, pipeline, seconds, random, monkeypatch) -> float:
    """A pipeline of many more micro-batches with a tenth of its passes over the whole one, less one."""
    stages, size = pipeline["pp"] * pipeline["vpp"], pipeline["group"] or pipeline["pp"]
    m = pipeline["num_microbatches"] + 2 * size * random.randint(60, 80)
    longer = {**seconds, **pipeline, "num_microbatches": m}
    whole = max(simulate(schedule, **longer).spans)
    monkeypatch.setattr("costmodel.pipelines.simulator.MOST_PASSES", 2 * stages * m // 10)
    return span_seconds(schedule, **longer) / whole - 1


@pytest.mark.sampled(1)
@EVERY
def test_long_steps_are_what_playing_them_whole_gives(schedule, monkeypatch):
    """20 random uneven pipelines, whole and with a tenth of the passes: never more, less by 0.3 % for a few."""
    random, errors = Random(int(schedule) + 900), []
    while len(errors) < 20:
        pipeline = random_pipeline(schedule, random)
        seconds = random_seconds(pipeline["pp"] * pipeline["vpp"], random)
        errors.append(error_of_a_long_step(schedule, pipeline, seconds, random, monkeypatch))

    assert np.abs(np.sort(np.abs(errors))[:18]).max() < 1e-9
    assert min(errors) > -0.003
    assert max(errors) < 1e-9


@pytest.mark.sampled(1)
@EVERY
def test_long_steps_of_equal_stages_are_exact(schedule, monkeypatch):
    """Equal stages: with a tenth of the passes the same as whole, to 1e-9."""
    random = Random(int(schedule) + 950)
    for _ in range(12):
        pipeline = random_pipeline(schedule, random)
        stages, weight = pipeline["pp"] * pipeline["vpp"], random.uniform(0.5, 1)
        seconds = {FORWARD: [1.0] * stages, BACKWARD: [random.uniform(1, 1.5)] * stages, WEIGHT: [weight] * stages}

        assert abs(error_of_a_long_step(schedule, pipeline, seconds, random, monkeypatch)) < 1e-9


@pytest.mark.parametrize("uneven", ["ends", "random"])
def test_pipelines_that_repeat_themselves_are_played_in_part(uneven, monkeypatch):
    """30 interleaved pipelines: four strides of micro-batches and what is left over give the whole step, to 1e-12."""
    random, played = Random(970), 0
    for _ in range(30):
        pp, vpp = random.choice([2, 3, 4, 8]), random.choice([1, 2, 3])
        group = 1 if vpp == 1 else random.choice([pp, pp + 1, 2 * pp])
        stride = group * -(-pp // group)
        few = STRIDES * stride + random.randrange(stride) // group * group
        m = few + stride * random.randint(STRIDES, 2 * STRIDES)
        seconds = {kind: np.ones(pp * vpp) for kind in KINDS}
        for kind in KINDS:
            chosen = slice(None) if uneven == "random" else [0, -1]
            seconds[kind][chosen] += [random.random() for _ in seconds[kind][chosen]]
        pipeline: dict[str, Any] = {"pp": pp, "vpp": vpp, "num_microbatches": m, "group": group}
        asked: set[tuple[Any, ...]] = set()
        monkeypatch.setattr(simulator, "graph_of", lambda *key, asked=asked: asked.add(key) or graph_of(*key))

        span = span_seconds(Schedule.ONE_F_ONE_B, **seconds, **pipeline)

        played += len(asked) == 1  # one pipeline, the short one: the whole one would be the second
        assert span == pytest.approx(max(simulate(Schedule.ONE_F_ONE_B, **seconds, **pipeline).spans), rel=1e-12)

    assert played >= 15


def test_a_rank_that_is_slowest_by_little_wins_in_the_end(monkeypatch):
    """
    Last rank 1 % slower, first ranks to fill before it: the way through the first rank rules until m is large.

    Plain 1F1B of four ranks R = 3, 3, 3 and 3.03 with m = 10,000: 9 + 10,000 * 3.03 through the last rank.
    """
    monkeypatch.setattr("costmodel.pipelines.simulator.MOST_PASSES", 2_000)
    seconds = {kind: [1.0, 1.0, 1.0, 1.01] for kind in KINDS}

    span = span_seconds(Schedule.ONE_F_ONE_B, **seconds, pp=4, vpp=1, num_microbatches=10_000)

    assert span == pytest.approx(9 + 10_000 * 3.03, rel=1e-12)


def test_a_million_passes_take_a_moment():
    """A step of 2 million passes is not played whole, which would take seconds."""
    seconds = {kind: [1.0] * 128 for kind in KINDS}

    span = span_seconds(Schedule.ONE_F_ONE_B, **seconds, pp=16, vpp=8, num_microbatches=8192)

    # (m v + p - 1)(F + B) = (8192 * 8 + 15) * 3
    assert span == pytest.approx((8192 * 8 + 15) * 3, rel=1e-12)


# --- what is alive -----------------------------------------------------------------------------------------


@EVERY
def test_what_is_alive_by_chunk(schedule):
    """In short and long steps the largest sum over the chunks is the peak that is played; no row beats another."""
    random = Random(int(schedule) + 50)
    for _ in range(12):
        pipeline = random_pipeline(schedule, random)
        more = 2 * (pipeline["group"] or pipeline["pp"]) * random.choice((0, 8))
        pipeline |= {"num_microbatches": pipeline["num_microbatches"] + more}
        seconds = random_seconds(pipeline["pp"] * pipeline["vpp"], random)
        peaks = simulate(schedule, **seconds, **pipeline).peak_chunks
        rows = [alive_by_chunk(schedule, rank=rank, **pipeline) for rank in range(pipeline["pp"])]

        assert [int(own.sum(axis=1).max()) for own in rows] == list(peaks)
        for own in rows:
            assert own.shape[1] == (2 if schedule in BIDIRECTIONAL else pipeline["vpp"])
            assert all((own >= row).all(axis=1).sum() == 1 for row in own)


def test_alive_by_chunk_of_two_chunks():
    """Two ranks, two chunks: rank 0 warms up with two micro-batches of each, then has at most five chunks."""
    rows = alive_by_chunk(Schedule.ONE_F_ONE_B, rank=0, pp=2, vpp=2, num_microbatches=8)

    # F: 1a 2a 1b 2b | 3a B1b 4a B2b 3b B1a ...: 3a makes (3, 2), 4a (4, 1), 3b (4, 1).
    assert rows.tolist() == [[3, 2], [4, 1]]


@EVERY
def test_alive_by_chunk_does_not_grow_with_the_step(schedule):
    """What is alive of 1,000 ranks' worth of micro-batches is what is alive of ten; all of them in GPipe."""
    pp, vpp = 4, 2 if schedule in V_SHAPED else 1
    few, many = (
        alive_by_chunk(schedule, rank=1, pp=pp, vpp=vpp, num_microbatches=m).tolist() for m in (10 * pp, 1000 * pp)
    )

    assert many == ([[1000 * pp]] if schedule == Schedule.GPIPE else few)
