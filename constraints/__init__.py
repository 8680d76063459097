"""
What is allowed: one function per rule, and this table of contents.

``PHYSICS_RULES`` hold for any framework; ``FRAMEWORK_RULES`` are refusals of today's. ``MEMORY_RULES``, a part of the
former, need the bytes that a strategy takes; all the others need the strategy alone.
"""

from constraints import (
    divisibility,
    experts,
    features,
    frameworks,
    memory,
    microbatches,
    profiles,
    releases,
    schedules,
    topology,
)
from constraints.rule import Rule, family, sentence

MEMORY_RULES: tuple[Rule, ...] = (memory.fits_in_device_memory, memory.fits_in_host_memory)

PHYSICS_RULES: tuple[Rule, ...] = (
    topology.degrees_multiply_to_the_devices,
    topology.tp_stays_inside_a_scale_up_domain,
    topology.tp_groups_tile_the_nodes,
    topology.virtual_stages_hold_something,
    topology.virtual_stages_hold_equally_much,
    topology.interleaving_needs_a_pipeline,
    schedules.schedules_need_a_pipeline,
    schedules.v_shapes_have_two_chunks,
    schedules.only_1f1b_interleaves,
    schedules.only_chunks_pass_in_groups,
    schedules.groups_reach_through_the_pipeline,
    schedules.long_warmups_need_microbatches,
    schedules.two_ways_need_microbatches,
    schedules.two_ends_have_even_ranks,
    schedules.two_ends_share_the_microbatches,
    schedules.vocabulary_moves_in_a_pipeline,
    schedules.redistribution_is_for_one_chunk,
    schedules.vocabulary_moves_without_mtp,
    microbatches.global_batch_splits_over_ranks,
    microbatches.microbatches_fill_the_pipeline,
    divisibility.heads_split_over_tp,
    divisibility.kv_heads_split_over_tp,
    divisibility.state_groups_split_over_tp,
    divisibility.state_heads_split_over_cp,
    divisibility.dense_widths_split_over_tp,
    divisibility.shared_expert_widths_split_over_tp,
    divisibility.expert_widths_split_over_etp,
    divisibility.sequence_splits_over_cp,
    divisibility.sequence_splits_over_tp,
    experts.experts_split_over_ep,
    experts.expert_degrees_need_experts,
    experts.expert_groups_tile_a_stage,
    experts.experts_split_like_attention_or_not_at_all,
    features.sequence_parallelism_needs_tp,
    features.tp_overlap_needs_tp,
    features.cp_overlap_needs_cp,
    features.ep_overlap_needs_ep,
    features.dispatchers_need_ep,
    features.graphs_hold_what_the_model_has,
    features.pp_overlap_needs_pp,
    features.dp_overlap_needs_replicas,
    features.sharding_needs_replicas,
    features.full_recompute_leaves_nothing_to_offload,
    features.gradient_sharding_excludes_pipelines,
    profiles.profile_has_measured_the_shapes,
    *MEMORY_RULES,
)

FRAMEWORK_RULES: tuple[Rule, ...] = (
    frameworks.megatron_pipelines_run_1f1b,
    frameworks.megatron_keeps_the_vocabulary_whole,
    frameworks.interleaved_groups_fit_the_step,
    frameworks.interleaving_needs_whole_groups_of_microbatches,
    frameworks.two_rank_interleaving_needs_pp_overlap,
    frameworks.pp_overlap_needs_interleaving,
    frameworks.tp_overlap_needs_sequence_parallelism,
    frameworks.experts_need_sequence_parallelism,
    frameworks.gated_delta_layers_exclude_cp,
    frameworks.ep_overlap_excludes_full_recompute,
    frameworks.ep_overlap_in_a_pipeline_needs_interleaving,
    frameworks.ep_overlap_allows_one_mtp_layer,
    frameworks.ep_overlap_with_mtp_needs_a_pipeline,
    frameworks.dp_overlap_needs_a_sharded_optimizer,
    frameworks.optimizer_offload_needs_a_sharded_optimizer,
    frameworks.context_parallel_rings_overlap,
    frameworks.sharded_gradients_are_overlapped,
    frameworks.recomputed_modules_have_names,
    frameworks.delayed_scaling_keeps_what_norms_put_out,
    frameworks.ep_overlap_excludes_recomputed_experts,
    frameworks.biased_experts_stay_whole,
    frameworks.offloading_in_pipelines_is_for_experts,
    releases.release_has_the_token_dispatcher,
    releases.release_captures_cuda_graphs,
    frameworks.deepep_runs_within_nodes,
    frameworks.hybridep_runs_since_ampere,
    frameworks.preprocess_graphs_hold_the_router,
    frameworks.graphs_of_modules_leave_routed_experts_out,
    frameworks.graphs_of_iterations_with_experts_need_hybridep,
    frameworks.graphs_exclude_offloaded_layers,
    frameworks.full_recompute_excludes_graphs_of_modules,
    frameworks.recomputed_experts_exclude_graphs_of_routers,
    frameworks.ep_overlap_excludes_graphs_of_dense_layers,
)

RULES: tuple[Rule, ...] = PHYSICS_RULES + FRAMEWORK_RULES

__all__ = ["FRAMEWORK_RULES", "MEMORY_RULES", "PHYSICS_RULES", "RULES", "Rule", "family", "sentence"]
