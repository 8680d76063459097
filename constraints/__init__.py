"""
Rules of allowed strategies: one function per rule, and this table of contents.

``PHYSICS_RULES`` hold for any framework; ``FRAMEWORK_RULES`` are refusals of today's. ``PREFERENCE_RULES`` bound the
search, though software runs the strategies that they exclude. ``MEMORY_RULES``, a part of the first, need the bytes
that a strategy takes; all the others need the strategy alone. ``TARGET_RULES`` replace ``FRAMEWORK_RULES`` where a job
names the target that its plans are exported to (``search.target``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from constraints.rule import FieldValues, Rule, family, sentence
from constraints.rules import context, exports, frameworks, physics, releases, targets
from costmodel.strategy import Recompute, Strategy
from costmodel.tables import Facts, signature, tabulate

MEMORY_RULES: tuple[Rule, ...] = (physics.fits_in_device_memory, physics.fits_in_host_memory)

PHYSICS_RULES: tuple[Rule, ...] = (
    physics.degrees_multiply_to_the_devices,
    physics.tp_groups_tile_the_nodes,
    physics.virtual_stages_hold_something,
    physics.interleaving_needs_a_pipeline,
    physics.schedules_need_a_pipeline,
    physics.v_shapes_have_two_chunks,
    physics.only_1f1b_interleaves,
    physics.only_chunks_pass_in_groups,
    physics.groups_reach_through_the_pipeline,
    physics.long_warmups_need_microbatches,
    physics.two_ways_need_microbatches,
    physics.two_ends_have_even_ranks,
    physics.two_ends_share_the_microbatches,
    physics.vocabulary_moves_in_a_pipeline,
    physics.redistribution_is_for_one_chunk,
    physics.vocabulary_moves_without_mtp,
    physics.global_batch_splits_over_ranks,
    physics.heads_split_over_tp,
    physics.kv_heads_split_over_tp,
    physics.channels_split_over_tp,
    physics.state_groups_split_over_tp,
    physics.state_heads_split_over_cp,
    physics.dense_widths_split_over_tp,
    physics.shared_expert_widths_split_over_tp,
    physics.expert_widths_split_over_etp,
    physics.sequence_splits_over_cp,
    physics.entries_split_over_cp,
    physics.sequence_splits_over_tp,
    physics.experts_split_over_ep,
    physics.expert_degrees_need_experts,
    physics.expert_groups_tile_a_stage,
    physics.experts_split_like_attention_or_not_at_all,
    physics.sequence_parallelism_needs_tp,
    physics.tp_overlap_needs_tp,
    physics.cp_overlap_needs_cp,
    context.all_to_alls_exchange_whole_heads,
    context.groups_of_near_ranks_form_rings,
    context.gathers_and_all_to_alls_wait,
    context.softmax_attention_alone_is_exchanged,
    context.dynamic_ranks_hold_their_sequences,
    physics.ep_overlap_needs_ep,
    physics.dispatchers_need_ep,
    physics.graphs_hold_what_the_model_has,
    physics.pp_overlap_needs_pp,
    physics.dp_overlap_needs_replicas,
    physics.sharding_needs_replicas,
    physics.full_recompute_leaves_nothing_to_offload,
    physics.profile_has_measured_the_shapes,
    *MEMORY_RULES,
)

SITE_RULES: tuple[Rule, ...] = (
    physics.sites_hold_whole_replicas,
    physics.sites_hold_whole_groups_of_experts,
    physics.sites_reduce_once_per_step,
)
"""Rules of jobs over several sites."""

PREFERENCE_RULES: tuple[Rule, ...] = (
    physics.tp_stays_inside_a_scale_up_domain,
    physics.virtual_stages_hold_equally_much,
    physics.microbatches_fill_the_pipeline,
    physics.gradient_sharding_excludes_pipelines,
)

MEGATRON_LM_RULES: tuple[Rule, ...] = (
    targets.early_cores_split_whole_query_groups,
    targets.early_cores_capture_nothing_recomputed,
    targets.early_cores_capture_attention_or_all,
    targets.early_cores_keep_activations,
    targets.early_cores_have_no_hybridep,
    targets.early_hybrids_have_no_experts,
    targets.early_hybrids_deal_layers_evenly,
    targets.cores_to_0_17_overlap_ep_outside_one_graph,
    targets.early_cores_have_no_experts_in_one_graph,
    targets.early_cores_have_no_graphs_of_fsdp,
    targets.cores_from_0_18_compute_the_loss_themselves,
)
"""Rules of single releases of Megatron Core: each one applies to the releases that it names."""

FRAMEWORK_RULES: tuple[Rule, ...] = (
    frameworks.pipelines_run_1f1b_or_what_the_release_has,
    frameworks.vocabulary_is_whole_or_as_the_release_has_it,
    frameworks.interleaved_groups_fit_the_step,
    frameworks.interleaving_needs_whole_groups_of_microbatches,
    frameworks.two_rank_interleaving_needs_pp_overlap,
    frameworks.pp_overlap_needs_interleaving,
    frameworks.tp_overlap_needs_sequence_parallelism,
    frameworks.tp_overlap_excludes_block_scales,
    frameworks.experts_need_sequence_parallelism,
    frameworks.gated_delta_layers_exclude_cp,
    frameworks.selective_scans_exclude_cp,
    frameworks.indexers_exclude_cp,
    frameworks.snapshots_exclude_interleaving,
    frameworks.ep_overlap_excludes_full_recompute,
    frameworks.ep_overlap_in_a_pipeline_needs_interleaving,
    frameworks.ep_overlap_allows_one_mtp_layer,
    frameworks.ep_overlap_with_mtp_needs_a_pipeline,
    frameworks.ep_overlap_is_for_gpt_models,
    frameworks.whole_gradients_wait,
    frameworks.optimizer_offload_needs_a_sharded_optimizer,
    frameworks.context_parallel_rings_overlap,
    context.windows_exclude_rings,
    context.dynamic_ranks_exclude_pipelines,
    context.latent_attention_has_a_ring,
    context.samples_of_sequences_keep_plain_exchanges,
    frameworks.sharded_gradients_are_overlapped,
    frameworks.pipelines_keep_gradients_whole,
    frameworks.recomputed_modules_have_names,
    frameworks.delayed_scaling_keeps_what_norms_put_out,
    frameworks.ep_overlap_excludes_recomputed_experts,
    frameworks.biased_experts_stay_whole,
    frameworks.offloading_in_pipelines_is_for_experts,
    releases.release_has_tensor_parallelism,
    releases.release_has_context_parallelism,
    releases.release_has_pipelines,
    releases.release_has_virtual_stages,
    releases.release_has_expert_parallelism,
    releases.release_has_sequence_parallelism,
    releases.release_shards_as_much,
    releases.release_recomputes_the_same,
    releases.release_offloads_activations,
    releases.release_offloads_the_optimizer,
    releases.release_has_the_token_dispatcher,
    releases.release_captures_cuda_graphs,
    releases.release_overlaps_tp,
    releases.release_overlaps_ep,
    releases.release_overlaps_pp,
    releases.release_overlaps_dp,
    frameworks.deepep_runs_within_nodes,
    frameworks.hybridep_runs_since_ampere,
    frameworks.preprocess_graphs_hold_the_router,
    frameworks.graphs_of_modules_leave_routed_experts_out,
    frameworks.graphs_of_iterations_with_experts_need_hybridep,
    frameworks.graphs_exclude_offloaded_layers,
    frameworks.one_graph_with_experts_keeps_activations,
    frameworks.one_graph_with_experts_has_them_whole,
    frameworks.full_recompute_excludes_graphs_of_modules,
    frameworks.recomputed_experts_exclude_graphs_of_routers,
    frameworks.ep_overlap_excludes_graphs_of_dense_layers,
    frameworks.ep_overlap_in_one_graph_needs_fused_experts,
    frameworks.overlapped_shared_experts_need_alltoall,
    frameworks.overlapped_shared_experts_exclude_ep_overlap,
    frameworks.overlapped_shared_experts_are_kept,
    frameworks.delayed_weight_gradients_need_ep_overlap,
    frameworks.delayed_weight_gradients_in_graphs_accumulate_in_matmuls,
    frameworks.delayed_weight_gradients_in_graphs_have_no_bias,
    frameworks.muon_keeps_gradients_and_weights_whole,
    frameworks.muon_shards_optimizer_states,
    frameworks.muon_shares_among_all_replicas,
    frameworks.muon_overlaps_where_states_are_shared,
    frameworks.muon_stays_on_the_device,
    frameworks.narrow_moments_need_a_sharded_optimizer,
    frameworks.offloaded_moments_are_fp32,
    frameworks.narrow_weights_need_a_sharded_optimizer,
    frameworks.narrow_weights_stay_on_the_device,
    frameworks.wide_layers_fit_a_stage,
    frameworks.optimizer_groups_divide_the_replicas,
    frameworks.optimizer_groups_divide_the_experts,
    frameworks.counted_layers_are_offloaded_whole,
    *MEGATRON_LM_RULES,
)

RELEASE_RULES: tuple[Rule, ...] = (
    frameworks.pipelines_run_1f1b_or_what_the_release_has,
    frameworks.vocabulary_is_whole_or_as_the_release_has_it,
    *(rule for rule in FRAMEWORK_RULES if family(rule) == "releases"),
)
"""Framework rules about the features of the release that the job's framework has."""

MEGATRON_RULES: tuple[Rule, ...] = (
    *FRAMEWORK_RULES,
    targets.exchanged_heads_split_over_cp,
    targets.masters_are_offloaded_with_moments,
    targets.hybrids_have_one_chunk_per_rank,
    targets.hybrids_have_layers_on_every_rank,
)
"""Rules of both targets that are Megatron Core."""


def _rules_of(target: str) -> tuple[Rule, ...]:
    """Return the rules of a target on decisions that a search chooses, in the order of its table."""
    rows = (row for rows in exports.EXPORTS[target].fields.values() for row in rows if not isinstance(row, FieldValues))
    own = (rule for rule in rows if rule not in PHYSICS_RULES and "layout" not in signature(rule)[1])
    return tuple(dict.fromkeys((*RELEASE_RULES, *own)))


TARGET_RULES: Mapping[str, tuple[Rule, ...]] = {
    "megatron-lm": MEGATRON_RULES,
    "megatron-bridge": (
        *MEGATRON_RULES,
        targets.bridge_deals_hybrids_evenly,
        targets.bridge_overlaps_ep_outside_one_graph,
    ),
    **{target: _rules_of(target) for target in exports.EXPORTS if not target.startswith("megatron")},
}
"""Rules that replace the framework rules, by target of ``planner export``: the release's rules and the target's own."""

RULES: tuple[Rule, ...] = PHYSICS_RULES + SITE_RULES + PREFERENCE_RULES + FRAMEWORK_RULES

__all__ = [
    "FRAMEWORK_RULES",
    "MEGATRON_LM_RULES",
    "MEGATRON_RULES",
    "MEMORY_RULES",
    "PHYSICS_RULES",
    "PREFERENCE_RULES",
    "RELEASE_RULES",
    "RULES",
    "SITE_RULES",
    "TARGET_RULES",
    "Rule",
    "family",
    "find_violations",
    "sentence",
    "violated_by_ranks",
]


def find_violations(facts: Facts, decisions: Mapping[str, Any], *, rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """
    Return the rules that forbid one strategy, in the order of the table of contents.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    decisions
        One value per decision that the rules name: the fields of a strategy and, for the memory rules,
        ``device_bytes``, ``host_bytes`` and ``memory_headroom_bytes``.
    rules
        Rules to check.
    """
    return tuple(rule for rule in rules if not tabulate(rule, facts, decisions))


def violated_by_ranks(facts: Facts, strategy: Strategy, *, rules: Iterable[Rule]) -> Iterator[Rule]:
    """
    Yield the rules that some pipeline rank of a strategy breaks, given that rank's recomputation and offloading.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    strategy
        The strategy, whose layout may give each rank its own values.
    rules
        Rules to check, none of them about memory.
    """
    ranks = list(_rank_decisions(strategy))
    return (rule for rule in rules if not all(tabulate(rule, facts, one) for one in ranks))


def _rank_decisions(strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Yield the decisions of the whole pipeline, then those of ranks with other recomputation or offloading."""
    yield strategy.decisions()
    layout = strategy.layout
    if layout is None:
        return
    own = set(zip(layout.recompute, layout.activation_offload, strict=True))
    if any(layout.full_layers):
        own |= {(Recompute.FULL, offload) for _, offload in own}
    for recompute, offload in sorted(own):
        yield strategy.decisions() | {"recompute": recompute, "activation_offload": offload}
