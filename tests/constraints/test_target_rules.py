"""Rules of targets: one strategy that each allows, one that it refuses; whose they are, and where they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints import FRAMEWORK_RULES, RELEASE_RULES, RULES, TARGET_RULES, sentence, violated_by_ranks
from constraints.rules import targets
from costmodel import catalog
from costmodel.strategy import CudaGraphs, Recompute, Sharding, StageLayout
from costmodel.tables import signature, tabulate
from planner.frameworks import TARGETS
from tests.builders_cluster import a_strategy, facts
from tests.cases import in_one_case
from tests.constraints.models import DENSE_LAYER, ONE_MTP, SPARSE, STATE_SPACE, a_stack
from tests.constraints.rule_cases import IN_EIGHTS, OF_FACTS, OWN, in_a_table_and_alone, in_precision, on_core, told

ON_ARRAYS = tuple(rule for rule in OWN if "layout" not in signature(rule)[1])
IN_ONE_GRAPH = {"cuda_graphs": CudaGraphs.FULL_ITERATION}


def test_every_rule_has_a_sentence_of_its_own():
    """Users meet the first docstring line."""
    every = {*RULES, *OWN}

    assert len({sentence(rule) for rule in every}) == len(every)
    assert all(sentence(rule)[0].isalpha() and sentence(rule).endswith(".") for rule in OWN)


@in_one_case(
    ("rule", "allowed", "refused"),
    [
        (OF_FACTS[2], {"cluster": on_core("0.16", optimizer="muon")}, {"cluster": on_core("0.14", optimizer="muon")}),
        (
            OF_FACTS[3],
            {"cluster": told(gradient_dtype="fp16"), "workload": in_precision("fp16")},
            {"cluster": told(gradient_dtype="fp16"), "workload": in_precision("bf16")},
        ),
        (
            OF_FACTS[4],
            {"cluster": told(first_layers_bf16=1), "workload": in_precision("fp8_current")},
            {"cluster": told(first_layers_bf16=1), "workload": in_precision("fp8")},
        ),
        (OF_FACTS[5], {"model": ONE_MTP}, {"model": replace(ONE_MTP, learned_positions=4096)}),
        (
            OF_FACTS[6],
            {"cluster": told(fp8_attention=True), "workload": in_precision("fp8")},
            {"cluster": told(fp8_attention=True), "workload": in_precision("mxfp8")},
        ),
    ],
)
def test_rules_of_jobs_allow_and_refuse(rule, allowed, refused):
    """Muon came with core 0.16; gradients, layers in BF16, positions and attention in FP8 are the target's."""
    for given, holds in ((allowed, True), (refused, False)):
        job = facts(given.pop("model", SPARSE), **given)

        assert bool(tabulate(rule, job, a_strategy().decisions())) is holds


@in_one_case(
    ("release", "loss", "holds"),
    [
        ("0.17", "fused", True),
        ("0.18", "fused", False),
        ("0.18.2", "unfused", True),
        ("0.19", "fused", False),
        ("main", "fused", False),
        ("main", "unfused", True),
    ],
)
def test_cores_from_0_18_refuse_transformer_engines_loss(release, loss, holds):
    """Megatron-LM's validate_args refuses it from 0.18 on, and not in 0.17.1."""
    given = facts(SPARSE, cluster=on_core(release, loss=loss))

    assert bool(tabulate(OF_FACTS[1], given, a_strategy().decisions())) is holds


@in_one_case(
    ("release", "experts", "fsdp"),
    [
        ("megatron-lm-2022", False, False),
        ("megatron-core-0.16", False, False),
        ("megatron-lm-0.17.1", False, False),
        ("megatron-lm-0.18.2", True, True),
        ("megatron-lm-main", True, True),
        ("megatron-bridge-26.04.01", False, False),
        ("megatron-bridge-0.4.2", False, False),
        ("megatron-bridge-26.06", True, True),
        ("megatron-bridge-0.5.1", True, True),
        ("megatron-bridge-26.08", True, True),
        ("megatron-bridge-main", True, True),
        ("torchtitan-0.3", True, True),
    ],
)
def test_graphs_of_experts_and_of_fsdp_came_with_core_0_18(release, experts, fsdp):
    """Cores have both from 0.18.2 on, on which Megatron-Bridge is built from v0.5.0 on."""
    given = facts(SPARSE, cluster=replace(told(), unknown_release=release))
    sharded = a_strategy(dp=2, sharding=Sharding.WEIGHTS, **IN_ONE_GRAPH)

    assert bool(tabulate(targets.early_cores_have_no_experts_in_one_graph, given, sharded.decisions())) is experts
    assert bool(tabulate(targets.early_cores_have_no_graphs_of_fsdp, given, sharded.decisions())) is fsdp


@pytest.mark.parametrize(("release", "holds"), [("0.14", False), ("0.16", True)])
def test_early_hybrids_have_no_experts(release, holds):
    """Core 0.14 has letters for Mamba, attention and dense feed-forwards; E came later."""
    given = facts(a_stack(*STATE_SPACE.layers, *SPARSE.layers), cluster=on_core(release))

    assert bool(tabulate(OF_FACTS[0], given, a_strategy().decisions())) is holds


def test_hybrids_are_dealt_no_empty_rank():
    """13 layers, embedding and head are 15 slots: of 8 ranks the last has the head alone, of 6 none is empty."""
    given = facts(a_stack(*[STATE_SPACE.layers[0]] * 13))
    rule = targets.hybrids_have_layers_on_every_rank

    assert tabulate(rule, given, a_strategy(pp=6).decisions())
    assert not tabulate(rule, given, a_strategy(pp=8).decisions())


@in_one_case("name", ["megatron-bridge-26.06", "nemo-25.07", "torchtitan-0.3", "megatron-lm-2022"])
def test_rules_of_single_releases_hold_of_megatron_lm_alone(name):
    """Recipes of Megatron-Bridge count by months, and set the configuration itself: nothing there refuses the loss."""
    cluster = replace(told(loss="fused"), framework=catalog.framework(name))

    assert targets.core_release(cluster) is None
    assert tabulate(OF_FACTS[1], facts(SPARSE, cluster=cluster), a_strategy().decisions())


@in_one_case("rule", ON_ARRAYS, ids=lambda rule: rule.__name__)
def test_arrays_equal_scalars(rule):
    """A table of strategies holds what one call after the other returns."""
    answers, one_by_one = in_a_table_and_alone(rule, facts(SPARSE, cluster=IN_EIGHTS), 60)

    assert answers == one_by_one


def test_every_target_has_rules_those_of_its_releases_among_them():
    """What a release lacks holds whatever the target; of Megatron's own refusals most are no other target's."""
    assert TARGET_RULES.keys() == TARGETS.keys()
    for rules in TARGET_RULES.values():
        assert {*RELEASE_RULES} <= {*rules}
        assert len({*rules}) == len(rules)
    assert {*FRAMEWORK_RULES} < {*TARGET_RULES["megatron-lm"]}


@pytest.mark.parametrize(
    ("own", "full_layers", "is_refused"),
    [(Recompute.NONE, 0, False), (Recompute.NONE, 3, True), (Recompute.FULL, 0, True)],
)
def test_ranks_that_recompute_more_than_most_are_judged_too(own, full_layers, is_refused):
    """Core 0.14 captures no layer that is recomputed, of whichever rank, and of however few layers."""
    layout = StageLayout(
        layers=(4, 4), recompute=(Recompute.NONE, own), full_layers=(0, full_layers), activation_offload=(False, False)
    )
    strategy = a_strategy(pp=2, dp=4, layout=layout, **IN_ONE_GRAPH)

    broken = violated_by_ranks(
        facts(a_stack(*[DENSE_LAYER] * 8), cluster=on_core("0.14")),
        strategy,
        rules=[targets.early_cores_capture_nothing_recomputed],
    )

    assert any(broken) == is_refused
