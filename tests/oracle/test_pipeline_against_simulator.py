"""Every formula of ``costmodel.pipelines.schedules`` and ``plain`` against the schedule played through."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from costmodel.pipelines import schedules
from costmodel.pipelines.stages import layers_per_chunk
from costmodel.step.layouts import even_chunks, last_rank_chunks
from tests.cases import in_one_case
from tests.oracle.pipeline_simulator import BACKWARD, FORWARD, Timeline, order, play, simulate

NUM_LAYERS = (126, 61, 94, 80, 62)
"""Llama 3 405B, DeepSeek-V3, Qwen3-235B, Llama 3 70B, 61 layers and one of multi-token prediction."""

LARGEST = 1200
"""Passes of one simulation; what keeps these tests fast."""


class Case(NamedTuple):
    """One pipeline of equal chunks."""

    pp: int
    vpp: int
    num_microbatches: int
    forward: float
    backward: float


class Layout(NamedTuple):
    """One pipeline with the canonical layout of a model."""

    num_layers: int
    pp: int
    vpp: int
    num_microbatches: int

    @property
    def is_even(self) -> bool:
        """Whether the layers, or layers with embedding and head, divide: what Megatron-LM's flags can say."""
        chunks = self.pp * self.vpp
        return self.num_layers % chunks == 0 or (self.num_layers + 2) % chunks == 0


def random_cases(num: int, *, seed: int) -> list[Case]:
    """Pipelines of up to 12 ranks; whole groups of micro-batches where chunks interleave."""
    random, cases = Random(seed), []
    for _ in range(num):
        pp = random.randint(1, 12)
        vpp = random.choice((1, 1, 2, 3, 4)) if pp > 1 else 1
        num_microbatches = pp * random.randint(1, 4) if vpp > 1 else random.randint(1, 30)
        cases.append(Case(pp, vpp, num_microbatches, random.uniform(0.5, 2), random.uniform(0.5, 4)))
    return cases


CASES = random_cases(60, seed=1)

LAYOUTS = [
    Layout(num_layers, pp, vpp, groups * pp)
    for num_layers in NUM_LAYERS
    for pp in (2, 4, 8, 12, 16)
    for vpp in (1, 2, 3, 4, 8)
    for groups in (1, 2, 4)
    if pp * vpp <= num_layers + 2 and groups * pp * pp * vpp <= LARGEST
]


def timeline_of(case: Case, **hops: float) -> Timeline:
    """The simulated schedule of equal chunks."""
    chunks = case.pp * case.vpp
    return simulate(
        [case.forward] * chunks, [case.backward] * chunks, pp=case.pp, num_microbatches=case.num_microbatches, **hops
    )


def played(case: Case, **hops: float) -> float:
    """Its seconds."""
    return timeline_of(case, **hops).seconds


def computed(case: Case) -> float:
    """Busy time and bubble of equal chunks."""
    rank = case.vpp * (case.forward + case.backward)
    busy = schedules.busy_seconds(rank, num_microbatches=case.num_microbatches)
    return busy + schedules.interleaved_bubble_seconds(rank, case.pp * rank, vpp=case.vpp)


def layout_error(layout: Layout, *, head_layers: float) -> float:
    """Formula over simulator, less one, for layers of one second and a head that takes as long as some layers."""
    layers = np.array(layers_per_chunk(layout.num_layers, num_chunks=layout.pp * layout.vpp), dtype=float)
    layers[-1] += head_layers
    return chunks_error(layers.reshape(layout.vpp, layout.pp), layout.num_microbatches)


def chunks_error(chunks: np.ndarray, num_microbatches: int) -> float:
    """Formula over simulator, less one, for seconds of each chunk of each rank, (vpp, pp): a third of them forward."""
    pp = chunks.shape[1]
    forward, backward = chunks.ravel() / 3, chunks.ravel() * 2 / 3
    timeline = simulate(list(forward), list(backward), pp=pp, num_microbatches=num_microbatches)
    return step_seconds(chunks, num_microbatches, waiting_seconds(chunks)) / timeline.seconds - 1


def waiting_seconds(chunks: np.ndarray) -> np.ndarray:
    """What each rank waits in a micro-batch because its chunks are unlike, (pp,)."""
    vpp, pp = chunks.shape
    ranks = chunks.sum(axis=0)
    return np.asarray(schedules.chunks_waiting_seconds(ranks, chunks[-1], ranks.mean(), vpp=vpp, group=pp)) * (vpp > 1)


def step_seconds(chunks: np.ndarray, num_microbatches: int, waiting: np.ndarray | float) -> float:
    """Work of the slowest rank, bubble, and what the pace of a rank that waits is slower."""
    ranks, vpp = chunks.sum(axis=0), len(chunks)
    slowest, pace = ranks.max(), (ranks + waiting).max()
    busy = schedules.busy_seconds(slowest, num_microbatches=num_microbatches)
    bubble = schedules.interleaved_bubble_seconds(slowest, ranks.sum(), vpp=vpp)
    return float(
        busy + bubble + schedules.unequal_chunks_seconds(slowest, pace, vpp=vpp, num_microbatches=num_microbatches)
    )


def errors(layouts: list[Layout], *, head_layers: float) -> np.ndarray:
    """The same for many layouts."""
    return np.array([layout_error(layout, head_layers=head_layers) for layout in layouts])


@pytest.mark.slow
def test_busy_time_bubble_and_chunks_of_equal_ranks():
    """
    Equal stages: (m v + p - 1)(F + B), equation (12) without hops, for 60 random pipelines.

    Warm-up chunks and one more are alive at the peak, unless the micro-batches run out.
    """
    for case in CASES:
        timeline = timeline_of(case)
        degrees = {"pp": case.pp, "vpp": case.vpp, "num_microbatches": case.num_microbatches}

        assert computed(case) == pytest.approx(timeline.seconds, rel=1e-9)
        assert tuple(schedules.chunks_in_flight(**degrees, rank=np.arange(case.pp))) == timeline.peak_chunks


def interleaved_groups(num: int) -> Iterator[dict[str, int]]:
    """Degrees of random interleaved pipelines with groups of at least pp micro-batches, as Megatron-LM takes them."""
    random = Random(3)
    while num:
        pp, vpp = random.randint(2, 8), random.randint(2, 4)
        group, m = random.randint(pp, 3 * pp), random.randint(pp, 6 * pp)
        if group <= m and not 0 < m % group < pp:
            num -= 1
            yield {"pp": pp, "vpp": vpp, "num_microbatches": m, "group": group}


@pytest.mark.slow
def test_larger_groups_idle_as_long_and_hold_more():
    """80 random interleaved pipelines: groups of g make the bubble of groups of p, and (v - 1)(g - p) more chunks."""
    random = Random(3)
    for degrees in interleaved_groups(80):
        pp, vpp, m = (degrees[name] for name in ("pp", "vpp", "num_microbatches"))
        backward = [random.uniform(0.5, 4)] * (pp * vpp)
        work = [order(rank, **degrees) for rank in range(pp)]
        timeline = play(work, {FORWARD: [1.0] * (pp * vpp), BACKWARD: backward})

        assert timeline.seconds == pytest.approx((m * vpp + pp - 1) * (1 + backward[0]), rel=1e-9)
        assert timeline.peak_chunks == tuple(schedules.chunks_in_flight(**degrees, rank=np.arange(pp)))


@pytest.mark.parametrize("degrees", [*interleaved_groups(20), {"pp": 4, "vpp": 2, "num_microbatches": 4, "group": 4}])
def test_passes_that_run_together_are_those_of_the_slots_that_are_not_alone(degrees):
    """A slot of both passes takes 0.4 s of 3 s less where they are of two micro-batches that run together."""
    pp, vpp, m = (degrees[name] for name in ("pp", "vpp", "num_microbatches"))
    work = [order(rank, **degrees, together=True) for rank in range(pp)]
    seconds = {FORWARD: [1.0] * (pp * vpp), BACKWARD: [2.0] * (pp * vpp)}
    slots = m * vpp + pp - 1

    hidden = slots - (pp - 1 + schedules.passes_alone(vpp=vpp, group=degrees["group"], num_microbatches=m))
    played = play(work, seconds, hidden_seconds=0.4).seconds
    assert played == pytest.approx(slots * 3 - hidden * 0.4, rel=1e-9)


def test_three_phases_add_up():
    """
    MoFa's (9) + (10) + (11) is (12): busy time, bubble, and 2 (m v + p - 2) hops where none is hidden.

    The first micro-batch runs through all chunks, and the last one back; between them a slot has a chunk of each pass.
    """
    for case in CASES:
        chunks, hop = case.pp * case.vpp, 0.1
        warmup, cooldown = (chunks * seconds + (chunks - 1) * hop for seconds in (case.forward, case.backward))
        slots = schedules.steady_slots(pp=case.pp, vpp=case.vpp, num_microbatches=case.num_microbatches)
        phases = warmup + slots * (case.forward + case.backward + 2 * hop) + cooldown

        assert phases == pytest.approx(computed(case) + 0.2 * (case.num_microbatches * case.vpp + case.pp - 2))


@pytest.mark.slow
def test_hops_beside_computation_of_an_interleaved_pipeline():
    """Interleaved ranks have work while a hop shorter than a chunk is under way: 2 (p v - 1) hops remain, exactly."""
    interleaved = [case for case in CASES if case.vpp > 1]
    hop = 0.1
    exposed = [
        schedules.p2p_exposed_seconds(hop, 0.0, pp=case.pp, vpp=case.vpp, num_microbatches=case.num_microbatches)
        for case in interleaved
    ]
    waited = [played(case, p2p_seconds=hop) - computed(case) for case in interleaved]

    assert len(interleaved) > 15
    assert waited == pytest.approx(exposed, rel=1e-9)


def test_hops_beside_computation_of_a_plain_pipeline_are_not_hidden():
    """
    Without interleaving a rank waits for its neighbour's answer in every slot, however asynchronous the hops.

    Eight ranks, F = 1, B = 2, hops of 0.1 s: each further micro-batch waits for 2 (p - 1) / p = 1.75 of them.
    """
    eight, sixteen = (Case(8, 1, num_microbatches, 1.0, 2.0) for num_microbatches in (64, 128))
    waits = [played(case, p2p_seconds=0.1) - computed(case) for case in (eight, sixteen)]

    assert waits[1] - waits[0] == pytest.approx(64 * 1.75 * 0.1)


def test_hops_that_block_the_sender():
    """
    Hops that nothing hides: the formula counts one too many in the plain schedule of three ranks or more.

    Two ranks that send once per micro-batch only wait for m + 1 hops: it is almost twice that.
    """
    plain = [case for case in CASES if case.vpp == 1 and case.pp > 2 and case.num_microbatches >= case.pp]
    hop = 0.1
    waited = np.array([played(case, p2p_seconds=hop, hop_blocks=True) - computed(case) for case in plain])
    formula = np.array([2 * (case.num_microbatches + case.pp - 2) for case in plain])

    assert len(plain) > 10
    assert waited / hop == pytest.approx(formula - 1)
    between_two = Case(2, 1, 10, 1.0, 2.0)
    assert played(between_two, p2p_seconds=hop, hop_blocks=True) - computed(between_two) == pytest.approx(11 * hop)
    assert schedules.p2p_exposed_seconds(hop, hop, pp=2, vpp=1, num_microbatches=10) == pytest.approx(20 * hop)


@pytest.mark.parametrize("head", [0.0, 0.05, 0.15, 0.5, 2.0])
def test_hops_that_block_unequal_ranks(head: float):
    """
    With a head on the last rank: each further micro-batch takes what the slowest rank works and sends.

    The ends of the pipeline send once, so that a head as long as a hop costs nothing. The whole step is that and the
    sum over the ranks, less a hop at most that nobody waits for behind the last gradient.
    """
    pp, hop = 6, 0.1
    forward, backward = [1.0] * pp, [2.0] * (pp - 1) + [2.0 + head]
    few, many = (
        simulate(forward, backward, pp=pp, num_microbatches=m, p2p_seconds=hop, hop_blocks=True).seconds
        for m in (32, 96)
    )
    ranks = np.array([3.0] * (pp - 1) + [3.0 + head]) + hop * np.array([1, *[2] * (pp - 2), 1])
    formula = schedules.busy_seconds(ranks.max(), num_microbatches=96) + schedules.interleaved_bubble_seconds(
        ranks.max(), ranks.sum(), vpp=1
    )

    assert (many - few) / 64 == pytest.approx(ranks.max())
    assert -1e-9 < formula - many < hop + 1e-9


@pytest.mark.slow
def test_hops_that_block_the_sender_of_an_interleaved_pipeline():
    """An upper bound of the interleaved schedule, whose ends send less: at most a hop per micro-batch and 2 p v."""
    interleaved = [case for case in CASES if case.vpp > 1]
    hop = 0.1
    for case in interleaved:
        waited = (played(case, p2p_seconds=hop, hop_blocks=True) - computed(case)) / hop
        formula = 2 * (case.num_microbatches * case.vpp + case.pp - 2)

        assert waited <= formula
        assert waited >= formula - case.num_microbatches - 2 * case.pp * case.vpp


@in_one_case(("pp", "vpp", "num_microbatches"), [(4, 1, 8), (4, 2, 8), (8, 2, 8), (4, 4, 16), (2, 3, 6)])
@in_one_case("extra", [0.5, 3.0])
def test_a_slow_head_costs_its_extra_time_once_per_microbatch(pp, vpp, num_microbatches, extra):
    """The last chunk slower by E: m E more, neither more nor less, as the formula says."""
    backward = [2.0] * (pp * vpp)
    even = simulate([1.0] * (pp * vpp), backward, pp=pp, num_microbatches=num_microbatches)
    head = simulate(
        [1.0] * (pp * vpp - 1) + [1.0 + extra / 3],
        [2.0] * (pp * vpp - 1) + [2.0 + extra * 2 / 3],
        pp=pp,
        num_microbatches=num_microbatches,
    )
    slowest, all_ranks = 3.0 * vpp + extra, 3.0 * pp * vpp + extra
    formula = schedules.busy_seconds(slowest, num_microbatches=num_microbatches) + schedules.interleaved_bubble_seconds(
        slowest, all_ranks, vpp=vpp
    )

    assert head.seconds - even.seconds == pytest.approx(num_microbatches * extra)
    assert formula == pytest.approx(head.seconds)


def test_a_slow_first_rank_is_an_upper_bound():
    """A slow embedding: later, faster ranks answer before the first one asks; the formula still charges m E."""
    forward, backward = [2.0, 1.0, 1.0, 1.0], [4.0, 2.0, 2.0, 2.0]
    timeline = simulate(forward, backward, pp=4, num_microbatches=8)
    formula = schedules.busy_seconds(6.0, num_microbatches=8) + schedules.interleaved_bubble_seconds(6.0, 15.0, vpp=1)

    # Rank 0 works 8 * 6 and waits for no more than the first answer, 9 - 3 * 2: 51 against 57.
    assert (timeline.seconds, formula) == (51, 57)


@pytest.mark.slow
def test_uneven_layouts_without_interleaving():
    """Plain schedule, canonical layouts: never below the simulator, at most 9 % above; exact when the head is slow."""
    plain = [layout for layout in LAYOUTS if layout.vpp == 1]
    light, heavy = (errors(plain, head_layers=head_layers) for head_layers in (0.0, 2.0))

    assert light.min() > -1e-9
    assert light.max() < 0.09
    assert np.abs(heavy).max() < 1e-9


def unequal_ranks(random: Random) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Stretches of equal ranks: forward and backward seconds, how many ranks each, and micro-batches."""
    num = random.randint(1, 5)
    numbers = np.array([random.randint(1, 4) for _ in range(num)])
    forward = np.array([random.choice([1.0, 1.0, random.uniform(0.1, 3)]) for _ in range(num)])
    of_forward = random.choice([2.0, 3.0, None])
    backward = forward * of_forward if of_forward else np.array([random.uniform(0.1, 6) for _ in range(num)])
    return forward, backward, numbers, random.randint(1, 40)


@pytest.mark.slow
def test_plain_pipelines_of_unequal_ranks():
    """160 random ones: the law is exact from as many micro-batches as ranks on, else up to 6 % below, never above."""
    random, errors_of = Random(5), {True: [], False: []}
    for _ in range(160):
        forward, backward, numbers, m = unequal_ranks(random)
        every = [np.repeat(one, numbers).tolist() for one in (forward, backward)]
        timeline = simulate(*every, pp=int(numbers.sum()), num_microbatches=m)
        padded = [np.append(one, filler) for one, filler in ((forward, 9.0), (backward, 9.0), (numbers, 0))]
        law = schedules.plain_seconds(*padded, num_microbatches=m)
        errors_of[m >= numbers.sum()].append(float(law) / timeline.seconds - 1)
        assert schedules.least_plain_seconds(forward + backward, numbers, num_microbatches=m) <= law * (1 + 1e-12)

    assert np.abs(errors_of[True]).max() < 1e-12
    assert max(errors_of[False]) < 1e-12
    assert min(errors_of[False]) > -0.07
    assert len(errors_of[False]) > 15


def test_no_rank_that_takes_longer_makes_a_plain_pipeline_faster():
    """Passes of 100 random pipelines made longer, one at a time: a step never gets shorter, nor does its bound."""
    random = Random(6)
    for _ in range(100):
        forward, backward, numbers, m = unequal_ranks(random)
        before = schedules.plain_seconds(forward, backward, numbers, num_microbatches=m)
        least = schedules.least_plain_seconds(forward + backward, numbers, num_microbatches=m)
        for own in (forward, backward):
            own[random.randrange(len(own))] *= random.uniform(1, 3)
            assert schedules.plain_seconds(forward, backward, numbers, num_microbatches=m) >= before * (1 - 1e-12)
            assert schedules.least_plain_seconds(forward + backward, numbers, num_microbatches=m) >= least * (1 - 1e-12)


@pytest.mark.slow
def test_interleaved_layouts_that_divide():
    """Interleaved, layers (or layers and two) divisible by chunks: at most 6 % above; 1.5 % with a slow head."""
    even = [layout for layout in LAYOUTS if layout.vpp > 1 and layout.is_even]
    light, heavy = (errors(even, head_layers=head_layers) for head_layers in (0.0, 2.0))

    assert light.min() > -1e-9
    assert light.max() < 0.06
    assert heavy.min() > -1e-9
    assert heavy.max() < 0.015


@pytest.mark.slow
def test_interleaved_layouts_that_do_not_divide():
    """
    A rank's chunks differ, and the bubble is no longer the average chunk: from 15 % below to 15 % above.

    Half of them are within 3.5 %. The worst are those with chunks of one and two layers and few micro-batches.
    """
    uneven = [layout for layout in LAYOUTS if layout.vpp > 1 and not layout.is_even]
    light, heavy = (errors(uneven, head_layers=head_layers) for head_layers in (0.0, 2.0))

    assert light.min() > -0.06
    assert light.max() < 0.15
    assert heavy.min() > -0.15
    assert heavy.max() < 0.02
    assert np.median(np.abs(light)) < 0.035
    assert np.median(np.abs(heavy)) < 0.015


def shared_out(random: Random) -> tuple[np.ndarray, int]:
    """Chunks of a pipeline as the planner shares layers out beside a head, (vpp, pp), and micro-batches."""
    pp, vpp, of_chunk = random.choice((2, 4, 8)), random.choice((2, 3, 4)), random.choice((1, 2, 3, 4))
    head, slots = random.uniform(0.3, 4.0), random.choice((0, 2, 3))
    loads, held = np.array([0.0] * (pp - 1) + [head]), [0] * pp
    for _ in range(of_chunk * pp * vpp - slots):
        rank = int(loads.argmin())
        held[rank], loads[rank] = held[rank] + 1, loads[rank] + 1
    ways = last_rank_chunks(held[-1], vpp=vpp, beside_layers=head)
    chunks = np.array([*(even_chunks(num, vpp=vpp) for num in held[:-1]), random.choice(ways)], dtype=float).T
    chunks[-1, -1] += head
    return chunks, pp * random.choice((2, 4))


@pytest.mark.slow
def test_ranks_of_unlike_chunks_wait_for_each_other():
    """
    80 pipelines whose last rank has fewer layers and the head: from 12 % below to 12 % above, 2.8 % in the mean.

    Without what ranks wait chunk by chunk it would be up to 34 % below, 6.6 % in the mean.
    """
    random = Random(7)
    pipelines = [shared_out(random) for _ in range(80)]
    known = np.array([chunks_error(chunks, num) for chunks, num in pipelines])
    played_through = [step_seconds(chunks, num, waiting_seconds(chunks)) for chunks, num in pipelines] / (1 + known)
    unknown = [step_seconds(chunks, num, 0.0) for chunks, num in pipelines] / played_through - 1

    assert np.abs(known).max() < 0.12
    assert np.abs(known).mean() < 0.03
    assert np.abs(unknown).max() > 0.3
    assert np.abs(unknown).mean() > 2 * np.abs(known).mean()
    assert (known >= unknown - 1e-12).all()


def memory_error(layout: Layout) -> float:
    """Layers alive on the fullest rank: those of the average chunk over those played through, less one."""
    degrees = {"pp": layout.pp, "vpp": layout.vpp, "num_microbatches": layout.num_microbatches}
    layers = layers_per_chunk(layout.num_layers, num_chunks=layout.pp * layout.vpp)
    chunks = schedules.chunks_in_flight(**degrees, rank=np.arange(layout.pp))
    formula = chunks / layout.vpp * np.reshape(layers, (layout.vpp, layout.pp)).sum(axis=0)
    played_through = [
        np.cumsum([layers[one.stage] * (1 if one.is_forward else -1) for one in order(rank, **degrees)]).max()
        for rank in range(layout.pp)
    ]
    return float(formula.max() / max(played_through) - 1)


def test_layers_in_flight():
    """
    Plain schedule: exact. Interleaved and divisible: never below, at most 4 % above (the first chunk is shorter).

    Others have up to 23 % more than counted: a rank's first chunk is its longest, and most of its micro-batches live.
    """
    plain = [memory_error(layout) for layout in LAYOUTS if layout.vpp == 1]
    even = [memory_error(layout) for layout in LAYOUTS if layout.vpp > 1 and layout.is_even]

    assert np.abs(plain).max() < 1e-12
    assert min(even) > -1e-12
    assert max(even) < 0.04
    uneven = [memory_error(layout) for layout in LAYOUTS if layout.vpp > 1 and not layout.is_even]
    assert min(uneven) > -0.23
    assert max(uneven) < 0.04
