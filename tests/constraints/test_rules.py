"""Every rule: one strategy that it allows, one that it refuses, its sentence, arrays like scalars."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints import (
    FRAMEWORK_RULES,
    MEMORY_RULES,
    PHYSICS_RULES,
    RULES,
    family,
    find_violations,
    frameworks,
    physics,
)
from constraints.rule import Rule
from costmodel.strategy import Recompute, Schedule, Vocabulary
from costmodel.tables import tabulate
from tests.builders_cluster import a_cluster, a_strategy, a_workload, facts
from tests.cases import in_one_case
from tests.constraints.models import (
    COMPRESSED,
    DENSE,
    DENSE_LAYER,
    EXPERT_LAYER,
    HYBRID,
    LATENT,
    SPARSE,
    STATE_SPACE,
    TWO_MTP,
    a_stack,
)
from tests.constraints.rule_cases import NO_BYTES, OF_FACTS, OWN, in_a_table_and_alone, on, read_cases

CASES = read_cases()


@in_one_case("case", CASES, ids=lambda case: case.rule.__name__)
def test_rule_allows_and_refuses(case):
    """Each rule tells its allowed case from its refused one."""
    assert tabulate(case.rule, case.given, case.allowed)
    assert not tabulate(case.rule, case.given, case.refused)


def test_every_rule_has_a_case():
    """No rule is listed without an allowed and a refused case, and none is listed twice."""
    every = {*RULES, *OWN} - {*OF_FACTS}

    assert sorted(case.rule.__name__ for case in CASES) == sorted(rule.__name__ for rule in every)


def test_framework_rules_can_be_left_out():
    """Refusals of a framework live in one family; the rest is physics."""
    assert {family(rule) for rule in FRAMEWORK_RULES} == {"context", "frameworks", "releases", "targets"}
    assert not {"frameworks", "releases"} & {family(rule) for rule in PHYSICS_RULES}
    assert set(MEMORY_RULES) < set(PHYSICS_RULES)


@pytest.mark.slow
@in_one_case("rule", RULES, ids=lambda rule: rule.__name__)
@in_one_case(
    "model", [DENSE, SPARSE, TWO_MTP, HYBRID, STATE_SPACE], ids=["dense", "sparse", "mtp", "hybrid", "state-space"]
)
def test_arrays_equal_scalars(rule, model):
    """A table of 60 random strategies holds what 60 calls return."""
    answers, one_by_one = in_a_table_and_alone(rule, facts(model), 60)

    assert answers == one_by_one


def test_linear_attention_splits_keys_and_values():
    """16 key heads cannot go to 32 ranks although 32 value heads and 32 attention heads could."""
    assert physics.heads_split_over_tp(HYBRID, tp=16)
    assert not physics.heads_split_over_tp(HYBRID, tp=32)


def test_groups_of_the_output_stay_whole():
    """8 groups cannot go to 16 ranks, although 64 heads could."""
    assert physics.heads_split_over_tp(COMPRESSED, tp=8)
    assert not physics.heads_split_over_tp(COMPRESSED, tp=16)


def test_without_attention_there_are_no_attention_heads_to_split():
    """Its groups limit tensor parallelism, not the heads that it has not."""
    assert physics.heads_split_over_tp(STATE_SPACE, tp=64)
    assert physics.kv_heads_split_over_tp(STATE_SPACE, tp=64)


def test_causal_context_parallelism_needs_two_pieces_per_rank():
    """4,098 tokens are 2 equal pieces, but not 4."""
    assert physics.sequence_splits_over_cp(a_workload(sequence_length=4098), cp=1)
    assert not physics.sequence_splits_over_cp(a_workload(sequence_length=4098), cp=2)


def test_rack_scale_domain_takes_groups_of_whole_nodes():
    """16 tensor-parallel ranks are 4 whole nodes of 4 in a 72-GPU NVLink domain; 6 would cut a node."""
    network = {"name": "nvlink", "num_peers": 72, "bandwidth": 9e11, "latency": 1e-6}
    rack = a_cluster(144, devices_per_node=4, networks=(network,))

    assert physics.tp_stays_inside_a_scale_up_domain(rack, tp=16)
    assert physics.tp_groups_tile_the_nodes(rack, tp=16)
    assert not physics.tp_groups_tile_the_nodes(rack, tp=6)


def test_dense_models_need_no_expert_rules():
    """Without experts, the widths and counts of experts forbid nothing."""
    model = a_stack(DENSE_LAYER)

    assert physics.experts_split_over_ep(model, ep=3)
    assert physics.expert_widths_split_over_etp(model, etp=5)


def test_a_good_strategy_breaks_no_rule():
    """64 devices as tp 4, pp 2, dp 8 with all that Megatron wants."""
    strategy = a_strategy(tp=4, pp=2, dp=8, vpp=2, sequence_parallel=True, pp_overlap=True)

    assert find_violations(facts(DENSE), strategy.decisions() | NO_BYTES) == ()


def test_verdict_names_the_broken_rules():
    """63 ranks of 64, and overlap of communication that 1 rank does not have."""
    strategy = a_strategy(dp=63, tp_overlap=True)

    broken = find_violations(facts(DENSE), strategy.decisions(), rules=(*FRAMEWORK_RULES, *features_and_degrees()))

    assert broken == (
        frameworks.tp_overlap_needs_sequence_parallelism,
        physics.degrees_multiply_to_the_devices,
        physics.tp_overlap_needs_tp,
    )


def features_and_degrees() -> tuple[Rule, ...]:
    """Rules that need no bytes."""
    return physics.degrees_multiply_to_the_devices, physics.tp_overlap_needs_tp


def test_modules_are_those_of_the_model():
    """Latent attention has up-projections to recompute, dense models have no experts, some modules have no flag."""
    latent = a_stack(replace(EXPERT_LAYER, attention=LATENT))
    allowed = frameworks.recomputed_modules_have_names

    assert allowed(latent, a_cluster(), recompute=Recompute.SELECTIVE)
    assert not allowed(latent, a_cluster(), recompute=Recompute.of("mlp"))
    assert allowed(SPARSE, a_cluster(), recompute=Recompute.of("experts", "mlp"))
    assert not allowed(DENSE, a_cluster(), recompute=Recompute.of("expert_activation"))
    assert not any(
        allowed(model, a_cluster(), recompute=Recompute.of("every_other_matmul")) for model in (latent, SPARSE, DENSE)
    )


def test_modules_may_be_those_of_the_release():
    """torchtitan recomputes every other matmul, for which Megatron-LM has no word."""
    asked = {"recompute": Recompute.of("every_other_matmul")}

    assert frameworks.recomputed_modules_have_names(DENSE, on("torchtitan-0.1"), **asked)
    assert not frameworks.recomputed_modules_have_names(DENSE, on("megatron-bridge-26.04"), **asked)


@in_one_case(
    ("framework", "schedules"),
    [
        (
            "zero-bubble-2023",
            {Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_2P, Schedule.ZB_V, Schedule.V_HALF},
        ),
        ("torchtitan-0.1", {Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_V, Schedule.DUALPIPEV}),
        ("megatron-bridge-26.04", {Schedule.ONE_F_ONE_B}),
        ("mofa", {Schedule.ONE_F_ONE_B}),
    ],
)
def test_schedules_are_those_of_the_release(framework, schedules):
    """Zero-bubble schedules are the sail-sg fork's; a release that lists none has Megatron-LM's."""
    allowed = frameworks.pipelines_run_1f1b_or_what_the_release_has

    assert {one for one in Schedule if allowed(on(framework), schedule=one)} == schedules


@pytest.mark.parametrize(
    ("framework", "allowed"),
    [("vocabulary-parallelism-2024", set(Vocabulary)), ("mofa", {Vocabulary.ENDS, Vocabulary.REDISTRIBUTED})],
)
def test_vocabularies_are_where_the_release_has_them(framework, allowed):
    """The fork of Yeung et al. has slices on all ranks; a release that lists nothing has what Megatron-LM has."""
    rule = frameworks.vocabulary_is_whole_or_as_the_release_has_it

    assert {one for one in Vocabulary if rule(on(framework), vocabulary=one)} == allowed


def test_layers_of_experts_alone_are_offloaded_in_pipelines():
    """Norms, attention and routed experts are modules that Megatron-LM offloads; shared experts are none."""
    routed = replace(EXPERT_LAYER, feed_forward=replace(EXPERT_LAYER.feed_forward, shared_ffn_hidden_size=0))
    pipeline = {"pp": 2, "recompute": Recompute.NONE, "activation_offload": True}

    assert frameworks.offloading_in_pipelines_is_for_experts(a_stack(routed), **pipeline)
    assert not frameworks.offloading_in_pipelines_is_for_experts(a_stack(EXPERT_LAYER), **pipeline)
    assert not frameworks.offloading_in_pipelines_is_for_experts(a_stack(routed, DENSE_LAYER), **pipeline)
    assert not frameworks.offloading_in_pipelines_is_for_experts(
        DENSE, **{**pipeline, "pp": 1, "recompute": Recompute.of("norms")}
    )
