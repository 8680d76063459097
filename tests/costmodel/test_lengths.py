"""Packed sequences of unequal lengths, against simulators that add sample by sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.facts.workload import SequenceLengths, largest_normal
from costmodel.lowering.kernels import mean_entries
from costmodel.models.flops import forward_attention_flops, forward_matmul_flops, model_flops_per_token
from costmodel.step.compute import layer_seconds
from costmodel.step.estimate import estimate, simulate_step
from costmodel.step.rank_time import imbalance_seconds, length_spread_seconds
from costmodel.step.step import cost, least_seconds, lower_bound_seconds
from costmodel.strategy import Sharding
from costmodel.tables import Facts, lookup
from tests.builders import a_model, a_shape
from tests.builders_cluster import a_strategy, a_workload
from tests.cases import in_one_case
from tests.costmodel.strategies import DENSE, MOE, one_of, random_strategies, the_facts

MILLION = 2**20
"""Tokens of a sample of 1M."""

SAMPLES = [[MILLION], [2**19, 2**18, 2**18], [2**12] * 256, [2**19, *[2**10] * 512]]
"""Sequences of four samples of 1M tokens each."""

CAUSAL = {"causal_attention": True, "fused_attention": True}


def lengths_of(samples: list[list[int]]) -> SequenceLengths:
    """The histogram of all sequences of some samples."""
    every = [length for sample in samples for length in sample]
    different = sorted({*every})
    return SequenceLengths(lengths=tuple(different), counts=tuple(float(every.count(one)) for one in different))


def packed(samples: list[list[int]], *, model=DENSE, **changes) -> Facts:
    """A job whose samples are packed sequences, on devices whose kernels skip what is masked."""
    work = a_workload(sequence_length=sum(samples[0]), lengths=lengths_of(samples), **changes)
    return replace(the_facts(model, **CAUSAL), workload=work)


def pairs(length: int, window: int | None) -> float:
    """Pairs of tokens in one sequence: query i has min(i, w) keys, added up in closed form."""
    seen = length if window is None else min(window, length)
    return seen * length - seen * seen / 2


@pytest.mark.parametrize("window", [None, 4096])
def test_flops_of_a_million_packed_tokens_are_those_of_each_sequence(window):
    """Each sequence of each sample is added: 4 FLOPs per pair and element of a head, for queries' heads."""
    model = a_model(num_layers=2, window=window) if window else a_model(num_layers=2)
    kind = model.layers[0].attention
    each = 2 * (kind.head_dim + kind.value_width) * kind.num_heads * model.num_layers
    added = sum(each * pairs(length, window) for sample in SAMPLES for length in sample)

    found = len(SAMPLES) * forward_attention_flops(
        model, sequence_length=MILLION, attention="causal", lengths=lengths_of(SAMPLES)
    )

    assert found == added
    tokens = len(SAMPLES) * MILLION
    matmuls = len(SAMPLES) * forward_matmul_flops(model, tokens=MILLION)
    per_token = model_flops_per_token(model, MILLION, "causal", lengths_of(SAMPLES))
    assert per_token == 3 * (matmuls + added) / tokens


def test_equal_lengths_cost_as_much_as_unpacked_ones():
    """Samples of eight sequences of 4,096 tokens are micro-batches of eight samples of one each."""
    whole = packed([[4096] * 8], global_batch_size=16)
    parts = replace(whole, workload=a_workload(sequence_length=4096, global_batch_size=128))
    strategy = a_strategy(dp=16, mbs=1)

    many = estimate(parts, replace(strategy, mbs=8))

    assert estimate(whole, strategy).step_seconds == many.step_seconds
    assert estimate(whole, strategy).device_bytes == many.device_bytes


def test_longer_sequences_take_longer():
    """As many tokens in fewer sequences have more pairs: attention lengthens, matmuls do not."""
    short, long = (packed([[one] * (2**16 // one)]) for one in (2**10, 2**14))
    decisions = a_strategy().decisions()

    assert lookup(layer_seconds, short, decisions).forward < lookup(layer_seconds, long, decisions).forward


def test_longer_sequences_are_never_faster():
    """None of 60 strategies takes less time if all sequences of its samples are twice as long."""
    strategies = random_strategies(DENSE, 60, seed=9)
    before, after = (
        cost(packed([[one] * (2**15 // one) for one in own], global_batch_size=256), strategies).step_seconds
        for own in ((2**9, 2**11), (2**10, 2**12))
    )

    assert (before < after).all()


@pytest.mark.parametrize("number", [2, 3, 64])
def test_the_largest_of_several_normal_values(number):
    """Mean and deviation of the largest of n values, against drawing 100,000 times."""
    drawn = np.random.default_rng(7).normal(size=(100_000, number)).max(axis=1)
    mean, deviation = largest_normal(number)

    assert float(mean) == pytest.approx(drawn.mean(), abs=0.01)
    assert float(deviation) == pytest.approx(drawn.std(), abs=0.01)


def slowest_step(drawn: np.ndarray, *, pp: int, seconds: float) -> float:
    """
    Mean seconds of steps, added task by task.

    Pipelines pass micro-batches from rank to rank, and the slowest pipeline ends the step: (steps, dp, m).
    """
    free = np.zeros((*drawn.shape[:2], pp))
    for index in range(drawn.shape[2]):
        done = np.zeros(drawn.shape[:2])
        for rank in range(pp):
            done = free[..., rank] = np.maximum(done, free[..., rank]) + seconds * drawn[..., index]
    return float(free[..., -1].max(axis=1).mean())


def draw_sums(lengths: SequenceLengths, sample: int, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of squares of sequences drawn until they fill a sample, over their mean; the last one is cut in share."""
    generator = np.random.default_rng(3)
    chances = np.array(lengths.counts) / sum(lengths.counts)
    number = 4 * int(sample / lengths.mean_length) + 64
    drawn = generator.choice(np.array(lengths.lengths, dtype=float), p=chances, size=(*shape, number))
    ends = drawn.cumsum(axis=-1)
    part = np.clip((sample - (ends - drawn)) / drawn, 0.0, 1.0)
    sums = (part * drawn**2).sum(axis=-1)
    return sums / (sample * lengths.mean_tokens)


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "pp", "m"), [(1, 4, 8), (16, 1, 4), (16, 2, 8), (64, 1, 16)])
def test_imbalance_is_the_mean_of_simulated_steps(dp, pp, m):
    """Attention of drawn steps, added micro-batch by micro-batch, exceeds equal ones as predicted, within 6 %."""
    lengths = SequenceLengths(lengths=(1024, 4096, 16384), counts=(60.0, 30.0, 10.0))
    sample = 2**17
    given = replace(
        packed([[sample]]), workload=a_workload(sequence_length=sample, global_batch_size=dp * m, lengths=lengths)
    )
    strategy = a_strategy(dp=dp, pp=pp, mbs=1)
    spread = lookup(length_spread_seconds, given, strategy.decisions())
    keys = lengths.keys("check", lambda own: own / 2)
    each = float((spread.forward + spread.backward).sum()) / np.sqrt(keys.variance / sample) * keys.mean
    each = each * given.model.num_layers / pp
    steps = draw_sums(lengths, sample, (400 if dp < 64 else 100, dp, m))

    predicted = float(imbalance_seconds(given, strategy.decisions())) + (m + pp - 1) * each

    assert predicted == pytest.approx(slowest_step(steps, pp=pp, seconds=each), rel=0.06)
    assert predicted > (m + pp - 1) * each


def test_sequences_that_fill_a_sample_are_alone_in_it():
    """Whole samples of 32k tokens and samples packed first-fit with the rest spread as predicted, within 3 %."""
    generator, sample = np.random.default_rng(5), 32768
    drawn = generator.choice([1024, 4096, sample], p=[0.6, 0.3, 0.1], size=60_000)
    short = drawn[drawn < sample]
    ends = short.cumsum() // sample
    rest = np.bincount(ends, weights=short.astype(float) ** 2) / np.bincount(ends, weights=short)
    samples = np.concatenate([rest[:-1], np.full((drawn == sample).sum(), float(sample))])
    lengths = SequenceLengths(lengths=(1024, 4096, sample), counts=(0.6, 0.3, 0.1))

    keys = lengths.keys("check", lambda own: own, sample=sample)

    assert keys.mean == pytest.approx(samples.mean(), rel=0.03)
    assert np.sqrt(keys.variance / sample) == pytest.approx(samples.std(), rel=0.03)


def test_equal_lengths_leave_nobody_waiting():
    """Sequences of one length have no spread, however many ranks there are, and if each is a sample of its own."""
    given = packed([[4096] * 8], global_batch_size=512)

    assert float(imbalance_seconds(given, a_strategy(dp=64, pp=4).decisions())) == 0.0
    assert lengths_of([[4096]]).keys("check", lambda own: own / 2, sample=4096).variance == 0.0


@in_one_case(("causal", "most", "entries"), [(True, None, 1.5), (True, 2, 1.25), (False, None, 3), (False, 2, 2)])
def test_compressed_entries_are_averaged_over_tokens(causal, most, entries):
    """
    Half of all tokens see 2 entries of 4 tokens, half 4; under a causal mask half as many on average.

    At most two of two are one on average, and at most two of four 2 - 4 / 8.
    """
    shape = a_shape(causal=causal, lengths=lengths_of([[8, 8, 16]]))

    assert mean_entries(shape, 4, most) == entries


def test_ranks_with_sharded_weights_wait_for_each_micro_batch():
    """With FSDP each micro-batch takes as long as the slowest of its ranks; otherwise only their sums are compared."""
    given = packed([[1024] * 64, [2**15] * 2], global_batch_size=256)
    apart = a_strategy(dp=32)
    together = replace(apart, sharding=Sharding.WEIGHTS)

    waiting = [float(imbalance_seconds(given, one.decisions())) for one in (apart, together)]

    assert 0 < waiting[0] < waiting[1]


def test_no_micro_batch_exceeds_the_longest_sequences():
    """Two samples of 1M tokens are at most one sequence each, by which the largest of many ranks is bounded."""
    rare = SequenceLengths(lengths=(1024, MILLION), counts=(MILLION, 1.0))
    given = replace(packed(SAMPLES), workload=a_workload(sequence_length=MILLION, global_batch_size=4096, lengths=rare))
    decisions = a_strategy(dp=4096, sharding=Sharding.WEIGHTS).decisions()
    spread = lookup(length_spread_seconds, given, decisions)

    bound = float((spread.most_forward + spread.most_backward).sum()) * given.model.num_layers

    assert float(imbalance_seconds(given, decisions)) <= bound * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_a_table_of_packed_jobs_is_its_strategies_and_bounds_hold(model):
    """Costs of a table are those of single strategies, and both bounds are below them."""
    given = packed([[1024] * 8, [8192], [4096] * 2], model=model, global_batch_size=256)
    strategies = random_strategies(model, 60, seed=5)
    table = cost(given, strategies).step_seconds

    assert table == pytest.approx(
        [float(cost(given, one_of(strategies, i).decisions()).step_seconds) for i in range(60)]
    )
    assert (imbalance_seconds(given, strategies) > 0).mean() > 0.5
    assert (lower_bound_seconds(given, strategies) <= table * (1 + 1e-9)).all()
    assert (least_seconds(given, strategies) <= table * (1 + 1e-9)).all()


def test_parts_of_a_packed_step_add_up():
    """Waiting for longer sequences is part of the bubble, in the estimate and in its simulation."""
    given = packed([[1024] * 8, [8192]], global_batch_size=64)
    strategy = a_strategy(dp=4, pp=2)
    found, simulated = estimate(given, strategy), simulate_step(given, strategy, most_passes=10_000)
    waiting = float(imbalance_seconds(given, strategy.decisions()))
    alone = next(part.exposed_seconds for part in found.breakdown if part.name == "bubble")

    assert waiting > 0
    assert alone > waiting
    assert simulated is not None
    assert found.step_seconds == pytest.approx(simulated.step_seconds)


# --- dynamic context parallelism ---------------------------------------------------------------------------


def dealt(rank_tokens: int | None, **changes) -> Facts:
    """Packed sequences of 1,024 to 16,384 tokens, shared by as many ranks as each needs."""
    given = packed([[16384], [4096] * 4, [1024] * 16], **changes)
    lengths = replace(given.workload.lengths, rank_tokens=rank_tokens)
    return replace(given, workload=replace(given.workload, lengths=lengths))


def test_sequences_get_as_many_ranks_as_they_need():
    """A power of two that leaves at most 4,096 tokens on a rank; a third of all tokens each has 1, 1 and 4."""
    ranks = SequenceLengths(lengths=(1024, 4096, 16384), counts=(16.0, 4.0, 1.0), rank_tokens=4096).dynamic_ranks

    assert ranks is not None
    assert ranks.most == 4
    assert ranks.mean == pytest.approx((1 + 1 + 4) / 3)


def test_a_dynamic_ring_sends_only_what_long_sequences_need():
    """Per layer (mean ranks - 1) times the rank's keys and values; a ring of four ranks sends three times them."""
    decisions = a_strategy(cp=4, dp=2).decisions()
    static, dynamic = (lookup(layer_seconds, dealt(most), decisions) for most in (None, 4096))

    assert (dynamic.cp_forward / static.cp_forward) == pytest.approx(1 / 3, rel=0.2)  # (2 - 1) of (4 - 1)
    none = lookup(layer_seconds, dealt(16384), decisions)
    assert (none.cp_forward == 0).all()


def test_dealt_sequences_leave_less_waiting():
    """Ranks differ by at most 5 % of attention instead of the spread of their sequences; the bound holds."""
    decisions = a_strategy(cp=2, dp=16).decisions()
    static, dynamic = (dealt(most, global_batch_size=32) for most in (None, 8192))

    assert 0 < imbalance_seconds(dynamic, decisions) < imbalance_seconds(static, decisions)
    assert cost(dynamic, decisions).step_seconds < cost(static, decisions).step_seconds
    assert least_seconds(dynamic, decisions) <= cost(dynamic, decisions).step_seconds * (1 + 1e-9)
