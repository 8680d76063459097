"""The space: rows, features, and their number."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from constraints import find_violations
from costmodel import catalog
from costmodel.strategy import DECISIONS, FLAGS, CudaGraphs, Recompute, Sharding, TokenDispatcher
from planner.search.domains import (
    MAX_MICRO_BATCH_SIZE,
    ROW_DECISIONS,
    cheap_recompute,
    default_features,
    default_recompute,
    divisors,
    micro_batches_are_small,
)
from planner.search.space import build_space
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_problem import a_problem, a_timed_device, is_allowed
from tests.cases import in_one_case


def rows_of(space) -> list[tuple[int, ...]]:
    """The rows, one tuple each."""
    return list(zip(*(space.rows[name].tolist() for name in ROW_DECISIONS), strict=True))


def test_rows_of_two_devices_can_be_listed_by_hand():
    """Two layers on two devices, one sequence: split the heads, the sequence or the layers (m >= p forbids that)."""
    problem = a_problem(a_model(), num_devices=2, workload={"global_batch_size": 1})

    space = build_space(problem)

    #      tp cp pp dp ep etp vpp group mbs sequence_parallel schedule vocabulary
    assert rows_of(space) == [(1, 2, 1, 1, 1, 1, 1, 1, 1, False, 0, 0), (2, 1, 1, 1, 1, 1, 1, 1, 1, True, 0, 0)]


def test_every_row_satisfies_every_rule_of_rows():
    """Asked again one row at a time."""
    problem = a_problem(a_moe_model(), num_devices=16)
    space = build_space(problem)

    for values in rows_of(space):
        assert not find_violations(problem.facts, dict(zip(ROW_DECISIONS, values, strict=True)), rules=space.rules.rows)


@pytest.mark.slow
def test_size_counts_the_strategies_that_the_rules_allow():
    """Counted one strategy at a time on a sample of rows."""
    sets = (Recompute.NONE, Recompute.FULL, Recompute.of("norms", "experts"))
    problem = a_problem(a_moe_model(), num_devices=8, allow={"mbs": (2,), "vpp": (1, 2), "recompute": sets})
    space = build_space(problem)

    rows, of_row = rows_of(space), [int(space.allowed[which].sum()) for which in space.feature_class]
    for row in range(0, space.num_rows, 81):
        counted = 0
        for features in product(*(column.tolist() for column in space.features.values())):
            strategy = dict(zip(DECISIONS, (*rows[row], *features), strict=True))
            counted += is_allowed(problem.facts, strategy, space.rules.mixed)
        assert of_row[row] == counted

    assert space.size == sum(of_row)
    assert space.raw_size > space.size


def test_a_box_holds_the_allowed_features_of_its_rows():
    """Whatever the box leaves out, no row of it may have."""
    space = build_space(a_problem(a_moe_model(), num_devices=8))
    rows = np.arange(0, space.num_rows, 7)

    block = space.block(rows)

    assert block.allowed.sum() == space.allowed[space.feature_class[rows]].sum()
    assert all(set(values.tolist()) <= set(space.features[name].tolist()) for name, values in block.features.items())


def test_features_of_a_box_become_columns():
    """Each chosen combination keeps its row's degrees and what it may have of the other features."""
    space = build_space(a_problem(a_moe_model(), num_devices=8))
    block, names = space.block(np.arange(0, space.num_rows, 7)), ("activation_offload", "recompute")
    shape = (len(block.class_of_row), *(len(block.features[name]) for name in names))
    chosen = np.random.default_rng(7).random(shape) < 0.2

    split, row = block.split(chosen, names)

    every = np.argwhere(chosen).tolist()
    assert row.tolist() == [one[0] for one in every]
    assert list(split.features) == [name for name in block.features if name not in names]
    for one, (of_row, offload, recompute) in enumerate(every):
        assert all(split.degrees[name][one] == values[of_row] for name, values in block.degrees.items())
        assert split.degrees["activation_offload"][one] == block.features["activation_offload"][offload]
        assert split.degrees["recompute"][one] == block.features["recompute"][recompute]
        assert np.array_equal(split.allowed[one], block.allowed[of_row, :, recompute, offload])


def test_the_furthest_sharding_of_a_row_is_one_that_it_may_have():
    """With it something is allowed, with a further one nothing."""
    space = build_space(a_problem(a_moe_model(), num_devices=8))
    block = space.block(np.arange(space.num_rows))

    values = block.features["sharding"]
    allowed = block.allowed.any(axis=tuple(range(2, 2 + len(block.features) - 1)))
    assert len(set(block.furthest_sharding.tolist())) > 1
    assert block.furthest_sharding.tolist() == [values[one].max() for one in allowed]


def test_without_data_parallel_ranks_nothing_is_sharded():
    """Pinned to dp = cp = 1, weights have no replicas."""
    space = build_space(a_problem(num_devices=4, pin={"dp": 1, "cp": 1}))

    block = space.block(np.arange(space.num_rows))

    assert block.features["sharding"].tolist() == [Sharding.NONE]
    assert not block.features["dp_overlap"].any()


def test_a_pin_beyond_the_usual_values_is_tried():
    """A micro-batch of 32 is more than the search tries by itself, sequence_parallel = false less than it uses."""
    problem = a_problem(pin={"mbs": 32, "sequence_parallel": 0}, workload={"global_batch_size": 64})

    space = build_space(problem)

    assert set(space.rows["mbs"].tolist()) == {32}
    assert set(space.rows["tp"].tolist()) >= {1, 2}
    assert [bound.__name__ for bound in space.rules.bounds] == [
        "pipelines_run_1f1b",
        "vocabulary_is_at_the_ends",
        "groups_are_as_many_as_ranks",
        "dispatchers_are_the_framework_s_own",
        "graphs_are_used_where_they_can_be",
    ]


def test_the_search_names_what_it_leaves_out():
    """Its own bounds are reported, and say the number that they use."""
    space = build_space(a_problem())

    assert len(space.rules.bound_sentences) == 7
    assert str(MAX_MICRO_BATCH_SIZE) in micro_batches_are_small.__doc__


@pytest.mark.parametrize(
    ("architecture", "dispatchers"),
    [("hopper", [*TokenDispatcher]), ("blackwell", [*TokenDispatcher]), (None, [TokenDispatcher.ALLTOALL])],
)
def test_dispatchers_that_are_tried(architecture, dispatchers):
    """All of them where they have kernels, as only HybridEP goes into one graph; dense models dispatch nothing."""
    device = a_timed_device(architecture=architecture, devices_per_node=8)
    sparse, dense = (default_features(a_problem(model, device=device).facts) for model in (a_moe_model(), a_model()))

    assert [*sparse["token_dispatcher"]] == dispatchers
    assert [*dense["token_dispatcher"]] == [TokenDispatcher.ALLTOALL]


def test_graphs_that_are_tried():
    """Nothing, all, and the modules that go beside every other feature; a forbidden value leaves the others."""
    sparse, dense = (default_features(a_problem(model).facts)["cuda_graphs"] for model in (a_moe_model(), a_model()))
    forbidding = build_space(a_problem(forbid=[{"cuda_graphs": 1}]))

    assert [one.text for one in dense] == ["none", "full_iteration", "attn+mlp"]
    assert [one.text for one in sparse] == ["none", "full_iteration", "attn+moe_router+moe_preprocess"]
    assert forbidding.num_rows > 0
    assert {*forbidding.features["cuda_graphs"].tolist()} >= {int(CudaGraphs.NONE), int(CudaGraphs.of("attn", "mlp"))}


def test_huge_pins_leave_an_empty_space():
    """No product overflows into a row."""
    space = build_space(a_problem(pin={"tp": 10**9, "cp": 10**9, "pp": 10**9, "dp": 10**9}))

    assert (space.num_rows, space.size) == (0, 0)


def test_flags_are_bools():
    """Formulas negate them."""
    space = build_space(a_problem())
    values = space.rows | space.features

    assert all((values[name].dtype == bool) == (name in FLAGS) for name in DECISIONS)


@in_one_case("number", [1, 2, 12, 36, 97, 65536, 999_999_937])
def test_divisors_divide_and_are_complete(number):
    """Each with its partner; 999,999,937 is prime."""
    found = divisors(number)

    assert all(number % divisor == 0 for divisor in found)
    assert sorted(number // divisor for divisor in found) == list(found)
    assert found[0] == 1
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("model", "num_sets", "usual"),
    [
        (a_model(), 2**3, "core_attention+norms"),  # core, norms, mlp
        (
            a_moe_model(),
            2**3 * 3,
            "core_attention+norms+expert_activation",
        ),  # core, norms, mlp; nothing, activation, experts
        (a_latent_model(), 2**4, "core_attention+qkv+norms"),  # core, projections, norms, mlp
    ],
    ids=["dense", "moe", "latent"],
)
def test_recomputation_that_is_tried(model, num_sets, usual):
    """Everything, and every set of the model's modules; of them the usual ones are cheap to compute again."""
    facts = a_problem(model).facts

    values = default_features(facts)["recompute"]

    assert len(values) == len(set(values)) == num_sets + 1  # and whole layers
    assert cheap_recompute(model, None) == (Recompute.NONE, Recompute.FULL, Recompute.named(usual))
    assert set(cheap_recompute(model, None)) <= set(values)


@pytest.mark.parametrize(
    ("release", "sets"),
    [
        ("megatron-lm-2021", ["none", "full"]),
        ("megatron-lm-2022", ["none", "full", "core_attention"]),
        ("torchtitan-0.1", ["none", "full", "every_other_matmul"]),
    ],
)
def test_releases_that_recompute_certain_sets_have_no_others(release, sets):
    """Entries of frameworks list them; modules of Megatron-LM are of others."""
    framework = catalog.framework(release)

    assert [one.text for one in default_recompute(a_model(), framework)] == sets
    assert [one.text for one in cheap_recompute(a_model(), framework)] == sets


def test_sets_of_modules_are_values_of_numpy_arrays_too():
    """Tables hold numpy's integers."""
    assert Recompute(np.int64(20)).text == "core_attention+norms"
