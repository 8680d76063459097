"""Every rule: one strategy that it allows, one that it refuses, its sentence, arrays like scalars."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from constraints import (
    FRAMEWORK_RULES,
    MEGATRON_LM_RULES,
    MEMORY_RULES,
    PHYSICS_RULES,
    RULES,
    family,
    find_violations,
    frameworks,
    physics,
    sentence,
)
from constraints.rule import Rule
from costmodel.facts.calibration import MeasuredRate
from costmodel.facts.device import Cluster, Sites
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
    GRAPH_MODULES,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    TokenDispatcher,
    Vocabulary,
)
from costmodel.tables import tabulate
from tests.builders_cluster import GB, a_cluster, a_device, a_strategy, a_workload, achieved, facts
from tests.cases import in_one_case
from tests.constraints.models import (
    COMPRESSED,
    CONVOLUTION,
    DENSE,
    DENSE_LAYER,
    EXPERT_LAYER,
    HYBRID,
    INDEXED,
    LATENT,
    ONE_MTP,
    SELECTIVE,
    SPARSE,
    STATE_SPACE,
    TWO_MTP,
    a_stack,
)
from tests.constraints.release_cases import RELEASE_CASES, SETTING_CASES, Case, in_a_table_and_alone, on

NO_BYTES = {"device_bytes": 0.0, "host_bytes": 0.0, "memory_headroom_bytes": 0.0}


def a_measured_cluster() -> Cluster:
    """Its profile has measured matmuls and attention of 4,096 tokens, nothing else."""
    measured = MeasuredRate(kinds=("matmul", "attention"), flops_per_second=1e14, rows=4096)
    return a_cluster(**achieved(a_device(), times="measured", measured_rates=(measured,)))


TWO_SITES = replace(a_cluster(), sites=Sites(count=2, bandwidth=None))

CASES = (
    *RELEASE_CASES,
    *SETTING_CASES,
    # 64 devices, 8 per node and NVLink domain
    Case(
        rule=physics.degrees_multiply_to_the_devices,
        allowed={"tp": 4, "cp": 2, "pp": 2, "dp": 4},
        refused={"tp": 4, "cp": 2, "pp": 2, "dp": 5},
    ),
    Case(rule=physics.tp_stays_inside_a_scale_up_domain, allowed={"tp": 8}, refused={"tp": 16}),
    Case(rule=physics.tp_groups_tile_the_nodes, allowed={"tp": 4}, refused={"tp": 3}),
    Case(rule=physics.sites_hold_whole_replicas, cluster=TWO_SITES, allowed={"dp": 4}, refused={"dp": 3}),
    Case(
        rule=physics.sites_hold_whole_groups_of_experts,
        cluster=TWO_SITES,
        allowed={"tp": 2, "dp": 4, "ep": 4},
        refused={"tp": 2, "dp": 4, "ep": 8},
    ),
    Case(
        rule=physics.sites_reduce_once_per_step,
        cluster=TWO_SITES,
        allowed={"dp": 4, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 4, "sharding": Sharding.GRADIENTS},
    ),
    # 8 layers, embedding and head
    Case(rule=physics.virtual_stages_hold_something, allowed={"pp": 5, "vpp": 2}, refused={"pp": 11}),
    Case(rule=physics.virtual_stages_hold_equally_much, allowed={"pp": 2, "vpp": 4}, refused={"pp": 2, "vpp": 3}),
    Case(rule=physics.interleaving_needs_a_pipeline, allowed={"pp": 2, "vpp": 2}, refused={"vpp": 2}),
    Case(
        rule=physics.schedules_need_a_pipeline,
        allowed={"pp": 2, "schedule": Schedule.GPIPE},
        refused={"schedule": Schedule.GPIPE},
    ),
    Case(
        rule=physics.v_shapes_have_two_chunks,
        allowed={"vpp": 2, "schedule": Schedule.ZB_V},
        refused={"vpp": 1, "schedule": Schedule.V_HALF},
    ),
    Case(
        rule=physics.only_1f1b_interleaves,
        allowed={"vpp": 2, "schedule": Schedule.ZB_V},
        refused={"vpp": 2, "schedule": Schedule.ZB_H1},
    ),
    Case(rule=physics.only_chunks_pass_in_groups, allowed={"group": 1}, refused={"group": 2}),
    Case(
        rule=physics.groups_reach_through_the_pipeline,
        allowed={"pp": 4, "vpp": 2, "group": 6},
        refused={"pp": 4, "vpp": 2, "group": 3},
    ),
    # 128 sequences on 16 ranks are 8 micro-batches
    Case(
        rule=physics.long_warmups_need_microbatches,
        allowed={"dp": 16, "pp": 4, "schedule": Schedule.ZB_2P},
        refused={"dp": 16, "pp": 8, "schedule": Schedule.ZB_2P},
    ),
    Case(
        rule=physics.two_ways_need_microbatches,
        allowed={"dp": 16, "pp": 4, "schedule": Schedule.DUALPIPE},
        refused={"dp": 16, "pp": 8, "schedule": Schedule.DUALPIPE},
    ),
    Case(
        rule=physics.two_ends_have_even_ranks,
        allowed={"pp": 4, "schedule": Schedule.DUALPIPE},
        refused={"pp": 3, "schedule": Schedule.DUALPIPE},
    ),
    # 128 sequences on 128 ranks are one micro-batch
    Case(
        rule=physics.two_ends_share_the_microbatches,
        allowed={"dp": 16, "schedule": Schedule.DUALPIPE},
        refused={"dp": 128, "schedule": Schedule.DUALPIPE},
    ),
    Case(
        rule=physics.vocabulary_moves_in_a_pipeline,
        allowed={"pp": 2, "vocabulary": Vocabulary.VOCAB_1},
        refused={"vocabulary": Vocabulary.VOCAB_1},
    ),
    Case(
        rule=physics.redistribution_is_for_one_chunk,
        allowed={"vocabulary": Vocabulary.REDISTRIBUTED},
        refused={"vpp": 2, "vocabulary": Vocabulary.REDISTRIBUTED},
    ),
    Case(
        rule=physics.vocabulary_moves_without_mtp,
        allowed={"vocabulary": Vocabulary.ENDS},
        refused={"vocabulary": Vocabulary.VOCAB_2},
        model=ONE_MTP,
    ),
    Case(
        rule=frameworks.pipelines_run_1f1b_or_what_the_release_has,
        allowed={"pp": 2, "vpp": 2},
        refused={"pp": 2, "schedule": Schedule.ZB_H1},
    ),
    Case(
        rule=frameworks.vocabulary_is_whole_or_as_the_release_has_it,
        allowed={"pp": 2, "vocabulary": Vocabulary.REDISTRIBUTED},
        refused={"pp": 2, "vocabulary": Vocabulary.INTERLACED},
    ),
    # 4,096 tokens per sequence
    Case(
        rule=physics.profile_has_measured_the_shapes,
        allowed={"mbs": 1},
        refused={"mbs": 2},
        cluster=a_measured_cluster(),
    ),
    # 128 sequences per step
    Case(
        rule=physics.global_batch_splits_over_ranks,
        allowed={"dp": 16, "mbs": 4},
        refused={"dp": 16, "mbs": 3},
    ),
    Case(
        rule=physics.microbatches_fill_the_pipeline,
        allowed={"dp": 16, "mbs": 4, "pp": 2},
        refused={"dp": 16, "mbs": 4, "pp": 4},
    ),
    # 32 heads, 8 key-value heads, widths of 96 (dense), 48 (expert) and 40 (shared), 4,096 tokens
    Case(rule=physics.heads_split_over_tp, allowed={"tp": 16}, refused={"tp": 64}),
    Case(rule=physics.kv_heads_split_over_tp, allowed={"tp": 16}, refused={"tp": 12}),
    # 32 state-space heads in 8 groups
    Case(rule=physics.state_groups_split_over_tp, allowed={"tp": 8}, refused={"tp": 16}, model=STATE_SPACE),
    # 96 channels of a short convolution
    Case(rule=physics.channels_split_over_tp, allowed={"tp": 32}, refused={"tp": 64}, model=CONVOLUTION),
    Case(rule=frameworks.selective_scans_exclude_cp, allowed={"tp": 2}, refused={"cp": 2}, model=SELECTIVE),
    Case(
        rule=physics.state_heads_split_over_cp,
        allowed={"tp": 8, "cp": 4},
        refused={"tp": 8, "cp": 8},
        model=STATE_SPACE,
    ),
    Case(rule=physics.dense_widths_split_over_tp, allowed={"tp": 32}, refused={"tp": 64}),
    Case(rule=physics.shared_expert_widths_split_over_tp, allowed={"tp": 8}, refused={"tp": 16}, model=SPARSE),
    Case(rule=physics.expert_widths_split_over_etp, allowed={"etp": 16}, refused={"etp": 32}, model=SPARSE),
    Case(rule=physics.sequence_splits_over_cp, allowed={"cp": 8}, refused={"cp": 3}),
    # 4,096 tokens in entries of 128, two pieces for each rank
    Case(rule=physics.entries_split_over_cp, allowed={"cp": 16}, refused={"cp": 32}, model=COMPRESSED),
    Case(
        rule=physics.sequence_splits_over_tp,
        allowed={"tp": 8, "cp": 2, "sequence_parallel": True},
        refused={"tp": 3, "sequence_parallel": True},
    ),
    # 16 experts
    Case(rule=physics.experts_split_over_ep, allowed={"ep": 8}, refused={"ep": 6}, model=SPARSE),
    Case(rule=physics.expert_degrees_need_experts, allowed={"ep": 1}, refused={"ep": 2}),
    Case(
        rule=physics.expert_groups_tile_a_stage,
        allowed={"tp": 2, "dp": 4, "ep": 4, "etp": 2},
        refused={"tp": 2, "dp": 4, "ep": 8, "etp": 2},
        model=SPARSE,
    ),
    Case(
        rule=physics.experts_split_like_attention_or_not_at_all,
        allowed={"tp": 4, "etp": 4},
        refused={"tp": 4, "etp": 2},
        model=SPARSE,
    ),
    Case(
        rule=physics.sequence_parallelism_needs_tp,
        allowed={"tp": 2, "sequence_parallel": True},
        refused={"sequence_parallel": True},
    ),
    Case(rule=physics.tp_overlap_needs_tp, allowed={"tp": 2, "tp_overlap": True}, refused={"tp_overlap": True}),
    Case(rule=physics.cp_overlap_needs_cp, allowed={"cp": 2, "cp_overlap": True}, refused={"cp_overlap": True}),
    Case(rule=physics.ep_overlap_needs_ep, allowed={"ep": 2, "ep_overlap": True}, refused={"ep_overlap": True}),
    Case(rule=physics.pp_overlap_needs_pp, allowed={"pp": 2, "pp_overlap": True}, refused={"pp_overlap": True}),
    Case(rule=physics.dp_overlap_needs_replicas, allowed={"dp": 2, "dp_overlap": True}, refused={"dp_overlap": True}),
    Case(
        rule=physics.sharding_needs_replicas,
        allowed={"cp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"tp": 2, "sharding": Sharding.OPTIMIZER},
    ),
    Case(
        rule=physics.full_recompute_leaves_nothing_to_offload,
        allowed={"recompute": Recompute.SELECTIVE, "activation_offload": True},
        refused={"recompute": Recompute.FULL, "activation_offload": True},
        cluster=a_cluster(**achieved(a_device(), offload_keeps_inputs=True)),
    ),
    # 80 GB per device and 200 GB of host memory
    Case(
        rule=physics.fits_in_device_memory,
        allowed={"device_bytes": 70.0 * GB, "memory_headroom_bytes": 10.0 * GB},
        refused={"device_bytes": 70.0 * GB, "memory_headroom_bytes": 11.0 * GB},
    ),
    Case(rule=physics.fits_in_host_memory, allowed={"host_bytes": 200.0 * GB}, refused={"host_bytes": 201.0 * GB}),
    # 128 sequences on 16 ranks are 8 micro-batches
    Case(
        rule=frameworks.interleaved_groups_fit_the_step,
        allowed={"dp": 16, "pp": 4, "vpp": 2, "group": 8},
        refused={"dp": 16, "pp": 4, "vpp": 2, "group": 9},
    ),
    # a rest of 3 micro-batches passes through 3 ranks, one of 2 does not
    Case(
        rule=frameworks.interleaving_needs_whole_groups_of_microbatches,
        allowed={"dp": 16, "pp": 3, "vpp": 2, "group": 5},
        refused={"dp": 16, "pp": 3, "vpp": 2, "group": 3},
    ),
    Case(
        rule=frameworks.two_rank_interleaving_needs_pp_overlap,
        allowed={"pp": 2, "vpp": 2, "pp_overlap": True},
        refused={"pp": 2, "vpp": 2},
    ),
    Case(
        rule=frameworks.pp_overlap_needs_interleaving,
        allowed={"pp": 4, "vpp": 2, "pp_overlap": True},
        refused={"pp": 4, "pp_overlap": True},
    ),
    Case(
        rule=frameworks.tp_overlap_needs_sequence_parallelism,
        allowed={"tp": 2, "tp_overlap": True, "sequence_parallel": True},
        refused={"tp": 2, "tp_overlap": True},
    ),
    Case(
        rule=frameworks.experts_need_sequence_parallelism,
        allowed={"tp": 2, "sequence_parallel": True},
        refused={"tp": 2},
        model=SPARSE,
    ),
    Case(rule=frameworks.indexers_exclude_cp, allowed={"tp": 2}, refused={"cp": 2}, model=INDEXED),
    Case(
        rule=frameworks.snapshots_exclude_interleaving,
        allowed={"pp": 2},
        refused={"pp": 2, "vpp": 2},
        model=a_stack(replace(DENSE_LAYER, snapshots=2)),
    ),
    Case(rule=frameworks.gated_delta_layers_exclude_cp, allowed={"tp": 2}, refused={"cp": 2}, model=HYBRID),
    Case(
        rule=frameworks.ep_overlap_excludes_full_recompute,
        allowed={"ep": 2, "ep_overlap": True, "recompute": Recompute.SELECTIVE},
        refused={"ep": 2, "ep_overlap": True, "recompute": Recompute.FULL},
    ),
    Case(
        rule=frameworks.ep_overlap_in_a_pipeline_needs_interleaving,
        allowed={"ep": 2, "ep_overlap": True, "pp": 2, "vpp": 2},
        refused={"ep": 2, "ep_overlap": True, "pp": 2},
    ),
    Case(
        rule=frameworks.ep_overlap_allows_one_mtp_layer,
        allowed={"ep": 2},
        refused={"ep": 2, "ep_overlap": True},
        model=TWO_MTP,
    ),
    Case(
        rule=frameworks.ep_overlap_with_mtp_needs_a_pipeline,
        allowed={"ep": 2, "ep_overlap": True, "pp": 2},
        refused={"ep": 2, "ep_overlap": True},
        model=ONE_MTP,
    ),
    Case(
        rule=frameworks.whole_gradients_wait,
        allowed={"dp": 2, "dp_overlap": True, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "dp_overlap": True},
    ),
    Case(
        rule=physics.gradient_sharding_excludes_pipelines,
        allowed={"dp": 2, "pp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "pp": 2, "sharding": Sharding.GRADIENTS},
    ),
    Case(
        rule=frameworks.optimizer_offload_needs_a_sharded_optimizer,
        allowed={"tp": 2, "optimizer_offload": True},
        refused={"dp": 2, "optimizer_offload": True},
    ),
    Case(
        rule=frameworks.context_parallel_rings_overlap,
        allowed={"cp": 2, "cp_overlap": True},
        refused={"cp": 2},
    ),
    Case(
        rule=frameworks.sharded_gradients_are_overlapped,
        allowed={"dp": 2, "sharding": Sharding.WEIGHTS, "dp_overlap": True},
        refused={"dp": 2, "sharding": Sharding.GRADIENTS},
    ),
    Case(
        rule=frameworks.recomputed_modules_have_names,
        allowed={"recompute": Recompute.of("core_attention", "norms", "mlp")},
        refused={"recompute": Recompute.SELECTIVE},
    ),
    Case(
        rule=frameworks.delayed_scaling_keeps_what_norms_put_out,
        allowed={"recompute": Recompute.of("core_attention", "experts")},
        refused={"recompute": Recompute.of("core_attention", "norms")},
        workload=a_workload(precision=replace(a_workload().precision, name="fp8")),
    ),
    Case(
        rule=frameworks.ep_overlap_excludes_recomputed_experts,
        allowed={"ep": 2, "ep_overlap": True, "recompute": Recompute.of("expert_activation")},
        refused={"ep": 2, "ep_overlap": True, "recompute": Recompute.of("experts")},
        model=SPARSE,
    ),
    Case(
        rule=frameworks.biased_experts_stay_whole,
        allowed={"tp": 2},
        refused={"tp": 2, "etp": 2},
        model=a_stack(replace(EXPERT_LAYER, feed_forward=replace(EXPERT_LAYER.feed_forward, bias=True))),
    ),
    Case(
        rule=frameworks.offloading_in_pipelines_is_for_experts,
        allowed={"pp": 1, "activation_offload": True},
        refused={"pp": 2, "activation_offload": True},
    ),
    Case(
        rule=physics.dispatchers_need_ep,
        allowed={"ep": 2, "token_dispatcher": TokenDispatcher.DEEPEP},
        refused={"token_dispatcher": TokenDispatcher.DEEPEP},
        model=SPARSE,
    ),
    Case(
        rule=physics.graphs_hold_what_the_model_has,
        allowed={"cuda_graphs": CudaGraphs.of("attn", "mlp", "moe_router")},
        refused={"cuda_graphs": CudaGraphs.of("attn", "mamba")},
        model=SPARSE,
    ),
    Case(
        rule=frameworks.deepep_runs_within_nodes,
        allowed={"token_dispatcher": TokenDispatcher.HYBRIDEP},
        refused={"token_dispatcher": TokenDispatcher.DEEPEP},
        cluster=a_cluster(architecture="blackwell", devices_per_node=4),
    ),
    Case(
        rule=frameworks.hybridep_runs_since_ampere,
        allowed={"token_dispatcher": TokenDispatcher.ALLTOALL},
        refused={"token_dispatcher": TokenDispatcher.HYBRIDEP},
        cluster=a_cluster(architecture="volta"),
    ),
    Case(
        rule=frameworks.preprocess_graphs_hold_the_router,
        allowed={"cuda_graphs": CudaGraphs.of("moe_router", "moe_preprocess")},
        refused={"cuda_graphs": CudaGraphs.of("attn", "moe_preprocess")},
    ),
    Case(
        rule=frameworks.graphs_of_modules_leave_routed_experts_out,
        allowed={"cuda_graphs": CudaGraphs.of("attn", "moe_router")},
        refused={"cuda_graphs": CudaGraphs.of("attn", "moe")},
    ),
    Case(
        rule=frameworks.graphs_of_iterations_with_experts_need_hybridep,
        allowed={"cuda_graphs": CudaGraphs.FULL_ITERATION, "token_dispatcher": TokenDispatcher.HYBRIDEP},
        refused={"cuda_graphs": CudaGraphs.FULL_ITERATION, "token_dispatcher": TokenDispatcher.DEEPEP},
        model=SPARSE,
    ),
    Case(
        rule=frameworks.graphs_exclude_offloaded_layers,
        allowed={"pp": 2, "activation_offload": True, "cuda_graphs": CudaGraphs.of("attn")},
        refused={"activation_offload": True, "cuda_graphs": CudaGraphs.of("attn")},
    ),
    Case(
        rule=frameworks.full_recompute_excludes_graphs_of_modules,
        allowed={"recompute": Recompute.FULL, "cuda_graphs": CudaGraphs.FULL_ITERATION},
        refused={"recompute": Recompute.FULL, "cuda_graphs": CudaGraphs.of("attn")},
    ),
    Case(
        rule=frameworks.recomputed_experts_exclude_graphs_of_routers,
        allowed={"recompute": Recompute.of("experts"), "cuda_graphs": CudaGraphs.of("attn")},
        refused={"recompute": Recompute.of("experts"), "cuda_graphs": CudaGraphs.of("attn", "moe_router")},
    ),
    Case(
        rule=frameworks.ep_overlap_excludes_graphs_of_dense_layers,
        allowed={"ep": 2, "ep_overlap": True, "cuda_graphs": CudaGraphs.FULL_ITERATION},
        refused={"ep": 2, "ep_overlap": True, "cuda_graphs": CudaGraphs.of("attn", "mlp")},
        model=SPARSE,
    ),
)


def decisions_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Every decision that a rule can name."""
    return a_strategy().decisions() | NO_BYTES | changes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.__name__)
def test_rule_allows_and_refuses(case):
    """Each rule tells its allowed case from its refused one."""
    assert tabulate(
        case.rule, facts(case.model, cluster=case.cluster, workload=case.workload), decisions_of(case.allowed)
    )
    assert not tabulate(
        case.rule, facts(case.model, cluster=case.cluster, workload=case.workload), decisions_of(case.refused)
    )


def test_every_rule_has_a_case():
    """No rule is listed without an allowed and a refused case, and none is listed twice."""
    every = [rule for rule in RULES if rule not in MEGATRON_LM_RULES]  # whose cases name releases: test_target_rules.py

    assert sorted(case.rule.__name__ for case in CASES) == sorted(rule.__name__ for rule in every)


def test_sentences_differ():
    """Two rules that say the same would be one rule."""
    assert len({sentence(rule) for rule in RULES}) == len(RULES)


def test_framework_rules_can_be_left_out():
    """Refusals of a framework live in one family; the rest is physics."""
    assert {family(rule) for rule in FRAMEWORK_RULES} == {"context", "frameworks", "releases", "targets"}
    assert not {"frameworks", "releases"} & {family(rule) for rule in PHYSICS_RULES}
    assert set(MEMORY_RULES) < set(PHYSICS_RULES)


@pytest.mark.slow
@in_one_case("rule", RULES, ids=lambda rule: rule.__name__)
@in_one_case(
    "model",
    [DENSE, SPARSE, TWO_MTP, HYBRID, STATE_SPACE],
    ids=["dense", "sparse", "mtp", "hybrid", "state-space"],
)
def test_arrays_equal_scalars(rule, model):
    """A table of 200 random strategies holds what 200 calls return."""
    given = facts(model)
    table = random_decisions(200)

    answers, one_by_one = in_a_table_and_alone(rule, given, table)

    assert answers.dtype == np.bool_
    assert answers.tolist() == one_by_one
    assert len(one_by_one) == 200


@cache
def random_decisions(rows: int) -> dict[str, np.ndarray]:
    """Random values of every decision, most strategies forbidden."""
    rng = np.random.default_rng(7)
    degrees = {name: rng.choice([1, 2, 3, 4, 8, 12, 16], rows) for name in DECISIONS[:9]}
    enums = {name: rng.integers(0, len(kind), rows) for name, kind in ENUMS.items()}
    flags = {name: rng.random(rows) < 0.5 for name in DECISIONS[9:] if name not in enums}
    enums["cuda_graphs"] = rng.choice([0, 1, *(2 * rng.integers(1, 1 << len(GRAPH_MODULES), 8))], rows)
    return degrees | enums | flags | {name: rng.random(rows) * 300 * GB for name in NO_BYTES}


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


@pytest.mark.parametrize(
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
