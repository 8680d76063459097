"""Rules of targets: one strategy that each allows, one that it refuses; whose they are, and where they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints import FRAMEWORK_RULES, PHYSICS_RULES, RELEASE_RULES, TARGET_RULES, family, sentence, violated_by_ranks
from constraints.rule import FieldValues
from constraints.rules import targets
from constraints.rules.exports import EXPORTS
from costmodel import catalog
from costmodel.facts.framework import OptimizerOffload, Settings
from costmodel.strategy import (
    DECISIONS,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    StageLayout,
    Strategy,
    TokenDispatcher,
    Vocabulary,
)
from costmodel.tables import signature, tabulate
from planner.frameworks import TARGETS
from tests.builders_cluster import a_cluster, a_device, a_strategy, a_workload, achieved, facts
from tests.cases import in_one_case
from tests.constraints.models import DENSE_LAYER, ONE_MTP, SPARSE, STATE_SPACE, a_stack
from tests.constraints.release_cases import IN_EIGHTS, Case, in_a_table_and_alone

ROWS = [one for target in EXPORTS.values() for row in target.fields.values() for one in row]
ASKED = (*(rule for rules in TARGET_RULES.values() for rule in rules), *targets.OPTION_RULES, *ROWS)
OWN = tuple(dict.fromkeys(rule for rule in ASKED if not isinstance(rule, FieldValues) and family(rule) == "targets"))
ON_ARRAYS = tuple(rule for rule in OWN if "layout" not in signature(rule)[1])
TIED = a_stack(*[DENSE_LAYER] * 8, tied_embeddings=True)
EXCHANGED = a_cluster(**achieved(a_device(), context_output=True))
IN_BF16 = replace(a_workload(), precision=catalog.precision("bf16"))


def told(**settings) -> object:
    """The test devices under some settings."""
    return replace(a_cluster(), settings=Settings(**settings))


def offloading(**changes) -> object:
    """The test devices with another way of offloading."""
    cluster = a_cluster()
    behaviour = replace(cluster.device.behaviour, offload=replace(OptimizerOffload(), **changes))
    return replace(cluster, device=replace(cluster.device, behaviour=behaviour))


def on_core(release: str, **settings) -> object:
    """The test devices with a release of Megatron-LM."""
    return replace(told(**settings), unknown_release=f"megatron-lm-{release}")


OFFLOADED = {"optimizer_offload": True}
ALIKE = StageLayout(
    layers=(2, 4),
    recompute=(Recompute.NONE, Recompute.NONE),
    full_layers=(0, 0),
    activation_offload=(False, False),
)
IN_ONE_GRAPH = {"cuda_graphs": CudaGraphs.FULL_ITERATION}
EP_IN_ONE_GRAPH = {"ep": 2, "ep_overlap": True, **IN_ONE_GRAPH}

SPREAD = (targets.torchtitan_spreads_experts_or_splits_them, targets.deepspeed_spreads_experts_or_splits_them)

CASES = (
    # 8 key-value heads of 32 heads
    Case(
        rule=targets.exchanged_heads_split_over_cp,
        allowed={"tp": 2, "cp": 4},
        refused={"tp": 4, "cp": 4},
        cluster=EXCHANGED,
    ),
    Case(
        rule=targets.masters_are_offloaded_with_moments,
        allowed={},
        refused=OFFLOADED,
        cluster=offloading(offloaded_masters=False),
    ),
    Case(
        rule=targets.hybrids_have_one_chunk_per_rank, allowed={"pp": 2}, refused={"pp": 2, "vpp": 2}, model=STATE_SPACE
    ),
    Case(rule=targets.hybrids_have_layers_on_every_rank, allowed={"pp": 3}, refused={"pp": 4}, model=STATE_SPACE),
    Case(
        rule=targets.hybrid_layouts_fill_every_rank,
        allowed={"pp": 2, "layout": ALIKE},
        refused={"pp": 2, "layout": replace(ALIKE, layers=(0, 6))},
        model=STATE_SPACE,
    ),
    Case(
        rule=targets.early_hybrids_have_even_stages,
        allowed={"pp": 2},
        refused={"pp": 2, "layout": ALIKE},
        model=STATE_SPACE,
        cluster=on_core("0.16"),
    ),
    Case(
        rule=targets.bridge_hybrids_have_whole_ends,
        allowed={"pp": 2},
        refused={"pp": 2, "vocabulary": Vocabulary.REDISTRIBUTED},
        model=STATE_SPACE,
    ),
    Case(
        rule=targets.bridge_hybrids_have_even_stages,
        allowed={"pp": 2},
        refused={"pp": 2, "layout": ALIKE},
        model=STATE_SPACE,
    ),
    Case(
        rule=targets.megatron_shards_gradients_without_pipelines,
        allowed={"pp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"pp": 2, "sharding": Sharding.GRADIENTS},
    ),
    Case(
        rule=targets.megatron_recomputes_named_modules,
        allowed={"recompute": Recompute.of("norms")},
        refused={"recompute": Recompute.of("every_other_matmul")},
    ),
    Case(
        rule=targets.megatron_fsdp_overlaps,
        allowed={"sharding": Sharding.WEIGHTS, "dp_overlap": True},
        refused={"sharding": Sharding.WEIGHTS},
    ),
    Case(
        rule=targets.megatron_ranks_recompute_alike,
        allowed={"pp": 2, "layout": ALIKE},
        refused={"pp": 2, "layout": replace(ALIKE, recompute=(Recompute.FULL, Recompute.NONE))},
    ),
    # Each stage recomputes its first two layers, or the first one two and the other one
    Case(
        rule=targets.megatron_stages_recompute_blocks,
        allowed={"pp": 2, "layout": replace(ALIKE, full_layers=(2, 2))},
        refused={"pp": 2, "layout": replace(ALIKE, full_layers=(2, 1))},
    ),
    Case(
        rule=targets.megatron_blocks_exclude_other_features,
        allowed={"pp": 2, "layout": replace(ALIKE, full_layers=(2, 2))},
        refused={"pp": 2, "activation_offload": True, "layout": replace(ALIKE, full_layers=(2, 2))},
    ),
    Case(
        rule=targets.megatron_muon_keeps_gradients_whole,
        allowed={"sharding": Sharding.OPTIMIZER},
        refused={"sharding": Sharding.GRADIENTS},
        cluster=told(optimizer="muon"),
    ),
    Case(
        rule=targets.megatron_muon_overlaps_shared_states,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER, "dp_overlap": True},
        refused={"dp": 2, "sharding": Sharding.NONE, "dp_overlap": True},
        cluster=told(optimizer="muon"),
    ),
    Case(
        rule=targets.megatron_muon_excludes_the_distributed_optimizer,
        allowed={"dp": 2},
        refused={"dp": 2, **OFFLOADED},
        cluster=told(optimizer="muon"),
    ),
    Case(rule=targets.bridge_deals_hybrids_evenly, allowed={"pp": 3}, refused={"pp": 2}, model=STATE_SPACE),
    Case(
        rule=targets.bridge_overlaps_ep_outside_one_graph,
        allowed={"ep": 2, "ep_overlap": True},
        refused=EP_IN_ONE_GRAPH,
        model=SPARSE,
        cluster=replace(told(), unknown_release="megatron-bridge-0.3.1"),
    ),
    # 8 key-value heads
    Case(
        rule=targets.early_cores_split_whole_query_groups,
        allowed={"tp": 8},
        refused={"tp": 16},
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.early_cores_capture_nothing_recomputed,
        allowed=IN_ONE_GRAPH,
        refused={**IN_ONE_GRAPH, "recompute": Recompute.of("norms")},
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.early_hybrids_deal_layers_evenly,
        allowed={"pp": 3},
        refused={"pp": 2},
        model=STATE_SPACE,
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.cores_to_0_17_overlap_ep_outside_one_graph,
        allowed=IN_ONE_GRAPH,
        refused=EP_IN_ONE_GRAPH,
        model=SPARSE,
        cluster=on_core("0.17.1"),
    ),
    *(
        Case(rule=rule, allowed={"tp": 2, "ep": 2}, refused={"tp": 2, "ep": 2, "etp": 2}, model=SPARSE)
        for rule in SPREAD
    ),
    Case(
        rule=targets.fsdp_groups_are_replicas,
        allowed={"dp": 16, "cp": 2, "sharding": Sharding.WEIGHTS},
        refused={"dp": 3, "cp": 4, "sharding": Sharding.WEIGHTS},
        cluster=IN_EIGHTS,
    ),
    Case(rule=targets.torchtitan_splits_whole_kv_heads, allowed={"tp": 8}, refused={"tp": 16}),
    # 4,096 tokens in 1,024 parts
    Case(
        rule=targets.torchtitan_splits_sequences_into_chunks,
        allowed={"cp": 4},
        refused={"cp": 8},
        cluster=a_cluster(**achieved(a_device(), loss_chunks=1024)),
    ),
    Case(rule=targets.torchtitan_trains_mtp_without_cp, allowed={"dp": 2}, refused={"cp": 2}, model=ONE_MTP),
    Case(rule=targets.torchtitan_trains_mtp_without_pipelines, allowed={"dp": 2}, refused={"pp": 2}, model=ONE_MTP),
    Case(rule=targets.torchtitan_captures_flat_steps, allowed=IN_ONE_GRAPH, refused={"pp": 2, **IN_ONE_GRAPH}),
    Case(
        rule=targets.torchtitan_stages_recompute_alike,
        allowed={"pp": 2, "layout": ALIKE},
        refused={"pp": 2, "layout": replace(ALIKE, full_layers=(1, 1))},
    ),
    Case(rule=targets.torchtitan_ties_embeddings_on_one_stage, allowed={"dp": 2}, refused={"pp": 2}, model=TIED),
    Case(
        rule=targets.torchtitan_shards_over_context,
        allowed={"cp": 2, "sharding": Sharding.WEIGHTS},
        refused={"cp": 2, "sharding": Sharding.NONE},
    ),
    Case(
        rule=targets.torchtitan_keeps_gradients_whole_in_pipelines,
        allowed={"pp": 2, "dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"pp": 2, "dp": 2, "sharding": Sharding.GRADIENTS},
    ),
    Case(
        rule=targets.torchtitan_shards_gradients_without_pipelines,
        allowed={"pp": 2, "dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "sharding": Sharding.OPTIMIZER},
    ),
    Case(
        rule=targets.torchtitan_spreads_experts_over_shards,
        allowed={"dp": 4, "ep": 4, "sharding": Sharding.WEIGHTS},
        refused={"dp": 4, "ep": 4, "sharding": Sharding.NONE},
        model=SPARSE,
    ),
    Case(
        rule=targets.torchtitan_keeps_few_chunks_gathered,
        allowed={"pp": 2, "vpp": 4, "sharding": Sharding.NONE},
        refused={"pp": 2, "vpp": 4, "sharding": Sharding.OPTIMIZER},
    ),
    # As many rounds of two micro-batches as fit into all of them
    Case(
        rule=targets.torchtitan_deals_microbatches_in_rounds,
        allowed={"pp": 2, "vpp": 2, "group": 2},
        refused={"pp": 2, "vpp": 2, "group": 4},
    ),
    Case(
        rule=targets.torchtitan_fills_plain_pipelines,
        allowed={"pp": 4, "dp": 16},
        refused={"pp": 8, "dp": 16},
        workload=replace(a_workload(), global_batch_size=64),
    ),
    Case(rule=targets.torchtitan_gathers_keys_first, allowed={"cp": 2}, refused={"cp": 2, "cp_overlap": True}),
    Case(
        rule=targets.torchtitan_sends_chunks_behind_computation,
        allowed={"pp": 2, "vpp": 2, "pp_overlap": True},
        refused={"pp": 2, "vpp": 2},
    ),
    Case(
        rule=targets.torchtitan_reduces_gradients_behind_computation,
        allowed={"dp": 2, "dp_overlap": True},
        refused={"dp": 2, "pp": 2, "dp_overlap": True},
    ),
    Case(
        rule=targets.deepspeed_shards_in_bf16,
        allowed={"dp": 1, "sharding": Sharding.NONE},
        refused={"dp": 2, "sharding": Sharding.NONE},
        workload=IN_BF16,
    ),
    Case(
        rule=targets.deepspeed_accumulates_in_16_bits_without_zero,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "sharding": Sharding.NONE},
        cluster=told(gradient_dtype="fp32"),
    ),
    Case(
        rule=targets.deepspeed_has_both_gradients_in_zero_1,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "sharding": Sharding.GRADIENTS},
        cluster=told(gradient_dtype="bf16+fp32"),
        workload=IN_BF16,
    ),
    Case(
        rule=targets.deepspeed_zero_1_in_fp32_waits,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "sharding": Sharding.OPTIMIZER, "dp_overlap": True},
        cluster=told(gradient_dtype="fp32"),
        workload=IN_BF16,
    ),
    Case(
        rule=targets.deepspeed_offloads_without_folded_experts,
        allowed={"tp": 2, **OFFLOADED},
        refused={"tp": 2, "ep": 2, **OFFLOADED},
        model=SPARSE,
    ),
    Case(
        rule=targets.deepspeed_offloads_a_share_in_zero_3,
        allowed={"dp": 2, "sharding": Sharding.WEIGHTS, **OFFLOADED},
        refused={"dp": 2, "sharding": Sharding.OPTIMIZER, **OFFLOADED},
        cluster=offloading(offloaded_states=0.5),
    ),
    Case(
        rule=targets.deepspeed_offloads_and_waits,
        allowed={},
        refused=OFFLOADED,
        cluster=offloading(offload_overlap=True),
    ),
    Case(
        rule=targets.deepspeed_overlaps_with_zero,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER, "dp_overlap": True},
        refused={"dp": 2, "sharding": Sharding.NONE, "dp_overlap": True},
    ),
    Case(rule=targets.norms_are_whole, allowed={"tp": 2}, refused={"tp": 2, "sequence_parallel": True}),
    Case(
        rule=targets.deepspeed_shares_among_all_replicas,
        allowed={"dp": 8, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 16, "sharding": Sharding.OPTIMIZER},
        cluster=IN_EIGHTS,
    ),
    Case(
        rule=targets.early_cores_capture_attention_or_all,
        allowed={"cuda_graphs": CudaGraphs.of("attn")},
        refused={"cuda_graphs": CudaGraphs.of("attn", "mlp")},
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.early_cores_keep_activations,
        allowed={},
        refused={"activation_offload": True},
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.early_cores_have_no_hybridep,
        allowed={"token_dispatcher": TokenDispatcher.DEEPEP},
        refused={"token_dispatcher": TokenDispatcher.HYBRIDEP},
        cluster=on_core("0.14"),
    ),
    Case(
        rule=targets.early_cores_have_no_experts_in_one_graph,
        allowed={"cuda_graphs": CudaGraphs.of("attn")},
        refused=IN_ONE_GRAPH,
        model=SPARSE,
        cluster=on_core("0.17"),
    ),
    Case(
        rule=targets.early_cores_have_no_graphs_of_fsdp,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER, **IN_ONE_GRAPH},
        refused={"dp": 2, "sharding": Sharding.WEIGHTS, "cuda_graphs": CudaGraphs.of("attn")},
        cluster=on_core("0.17"),
    ),
    Case(rule=targets.accelerate_keeps_experts_whole, allowed={"ep": 2}, refused={"tp": 2}, model=SPARSE),
    Case(
        rule=targets.inputs_of_recomputed_layers_are_offloaded,
        allowed={"recompute": Recompute.FULL, "activation_offload": True},
        refused={"activation_offload": True},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.__name__)
def test_rule_allows_and_refuses(case):
    """Each rule tells its allowed case from its refused one."""
    given = facts(case.model, cluster=case.cluster, workload=case.workload)

    assert tabulate(case.rule, given, decisions(a_strategy(**case.allowed)))
    assert not tabulate(case.rule, given, decisions(a_strategy(**case.refused)))


def decisions(strategy: Strategy) -> dict[str, object]:
    """The decisions that rules of targets ask for, the layout among them."""
    return {**strategy.decisions(), "layout": strategy.layout}


def test_every_rule_of_a_target_has_a_case_and_a_sentence_of_its_own():
    """None is listed without an allowed and a refused case; users meet the first docstring line."""
    every = {*PHYSICS_RULES, *FRAMEWORK_RULES, *OWN}

    assert sorted(case.rule.__name__ for case in CASES) == sorted(rule.__name__ for rule in {*OWN} - {*OF_FACTS})
    assert len({sentence(rule) for rule in every}) == len(every)
    assert all(sentence(rule)[0].isalpha() and sentence(rule).endswith(".") for rule in OWN)


OF_FACTS = (
    targets.early_hybrids_have_no_experts,
    targets.cores_from_0_18_compute_the_loss_themselves,
    targets.early_cores_have_the_options,
    targets.gradients_in_fp16_are_of_fp16_weights,
    targets.delayed_scaling_has_no_wide_layers,
    targets.mtp_has_no_learned_positions,
    targets.bridge_reads_fp8_attention_of_tensors,
)
"""Rules that hold of every strategy of a job, or of none."""


def in_precision(name: str) -> object:
    """The test workload in a precision."""
    return replace(a_workload(), precision=catalog.precision(name))


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("name", ["megatron-bridge-26.06", "nemo-25.07", "torchtitan-0.3", "megatron-lm-2022"])
def test_rules_of_single_releases_hold_of_megatron_lm_alone(name):
    """Recipes of Megatron-Bridge count by months, and set the configuration itself: nothing there refuses the loss."""
    cluster = replace(told(loss="fused"), framework=catalog.framework(name))

    assert targets.core_release(cluster) is None
    assert tabulate(OF_FACTS[1], facts(SPARSE, cluster=cluster), a_strategy().decisions())


@in_one_case("rule", ON_ARRAYS, ids=lambda rule: rule.__name__)
def test_arrays_equal_scalars(rule):
    """A table of strategies holds what one call after the other returns."""
    rng = np.random.default_rng(3)
    given = facts(SPARSE, cluster=IN_EIGHTS)
    table = {name: rng.choice([1, 2, 3, 4, 8], 100) for name in DECISIONS[:9]}
    table |= {name: rng.random(100) < 0.5 for name in DECISIONS[9:]}
    table |= {"schedule": rng.integers(0, len(Schedule), 100), "sharding": rng.integers(0, len(Sharding), 100)}

    answers, one_by_one = in_a_table_and_alone(rule, given, table)

    assert answers.tolist() == one_by_one
    assert len(one_by_one) == 100


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
        layers=(4, 4),
        recompute=(Recompute.NONE, own),
        full_layers=(0, full_layers),
        activation_offload=(False, False),
    )
    strategy = a_strategy(pp=2, dp=4, layout=layout, **IN_ONE_GRAPH)

    broken = violated_by_ranks(
        facts(a_stack(*[DENSE_LAYER] * 8), cluster=on_core("0.14")),
        strategy,
        rules=[targets.early_cores_capture_nothing_recomputed],
    )

    assert any(broken) == is_refused
