"""
Rules of targets: strategies that the configuration of an export target cannot express (``search.target``).

They refuse strategies for the same reasons as the exporters (``planner/frameworks``) refuse plans, and repeat their
sources. Lines are those of torchtitan 0.3.0, PyTorch 2.13, DeepSpeed 0.19.8 and Accelerate 1.15.0. A test checks on
random strategies that both agree (``tests/oracle/test_targets.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from constraints.rule import Flags, Holds, Ints, every, implies
from costmodel.catalog.releases import release_of
from costmodel.facts.device import Cluster
from costmodel.facts.model import Attention, Model
from costmodel.facts.workload import Workload
from costmodel.lowering.framework import loss_of
from costmodel.pipelines.stages import layers_per_chunk
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from costmodel.tables import distinct

NUM_ACTIVE_CHUNKS = 3
"""Chunks of a pipeline rank whose sharded weights PyTorch keeps gathered at a time."""


# --- Megatron-LM -------------------------------------------------------------------------------------------


def exchanged_heads_split_over_cp(model: Model, cluster: Cluster, *, tp: Ints, cp: Ints) -> Holds:
    """
    With all-to-all context parallelism, each tensor-parallel rank has a multiple of cp heads.

    References
    ----------
    Transformer Engine 2.11, context_parallel.py, AttnFuncWithCPAndQKVOA2A: the code of ``--cp-comm-type a2a``.
    """
    names, behaviour = ("num_heads", "num_kv_heads"), cluster.device.behaviour
    counts = {getattr(kind.attention, name, 0) for kind in model.kinds for name in names} - {0}
    whole = every(np.maximum(count // tp, 1) % cp == 0 for count in counts)
    is_default = behaviour.memory.context_output and behaviour.communication.cp_comm_type is None
    return implies(np.greater(cp, 1) & is_default, whole)


def megatron_offloads_masters(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    In Megatron-LM FP32 weights are offloaded with the moments (settings.offloaded_masters).

    References
    ----------
    megatron/training/arguments.py, validate_args: --optimizer-cpu-offload needs --use-precision-aware-optimizer, whose
    FP32 weights are the optimizer's.
    """
    return implies(optimizer_offload, cluster.device.behaviour.offload.offloaded_masters)


def hybrids_have_one_chunk_per_rank(model: Model, *, vpp: Ints) -> Holds:
    """
    In Megatron-LM pipeline ranks of a model whose layers are single blocks have one chunk (vpp is 1).

    References
    ----------
    megatron/core/ssm/mamba_block.py:173.
    """
    return implies(model.has_single_blocks, np.equal(vpp, 1))


def hybrids_have_layers_on_every_rank(model: Model, *, pp: Ints, vocabulary: Ints) -> Holds:
    """
    In Megatron-LM each pipeline rank of a model whose layers are single blocks has at least one.

    References
    ----------
    megatron/core/ssm/mamba_block.py:173: embedding and head are not alone on a rank.
    """
    if not model.has_single_blocks:
        return True
    num_layers, num_mtp = model.num_layers, len(model.mtp_layers)
    ranks = distinct(np.minimum(pp, num_layers)).tolist()
    filled = [num for num in ranks if 0 not in layers_per_chunk(num_layers, num_chunks=num, mtp_layers=num_mtp)]
    dealt = np.isin(pp, filled) | np.not_equal(vocabulary, Vocabulary.ENDS)
    return np.less_equal(pp, num_layers) & dealt


def bridge_deals_hybrids_evenly(model: Model, *, pp: Ints) -> Holds:
    """
    In Megatron-Bridge pipeline ranks of a hybrid have equally many layers.

    References
    ----------
    Megatron-Bridge 0.3.1 has no field for --hybrid-layer-pattern, whose bars part the layers of ranks.
    """
    return implies(model.has_single_blocks, np.equal(np.remainder(model.num_layers, pp), 0))


def bridge_overlaps_ep_outside_one_graph(cluster: Cluster, *, ep_overlap: Flags, cuda_graphs: Ints) -> Holds:
    """
    In Megatron-Bridge before 26.06 a CUDA graph of the iteration excludes overlapped expert-parallel communication.

    References
    ----------
    megatron/core/transformer/transformer_config.py:1898 (core 0.16.1, which Megatron-Bridge 0.3.1 is released with).
    """
    is_old = _lacks(cluster, FIRST_ON_CORE_0_18, 0, 18)
    return implies(is_old, np.logical_not(_overlaps_ep_in_one_graph(ep_overlap, cuda_graphs)))


def _overlaps_ep_in_one_graph(ep_overlap: Flags, cuda_graphs: Ints) -> Holds:
    return np.logical_and(ep_overlap, np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION))


# --- releases of Megatron-LM -------------------------------------------------------------------------------


def core_release(cluster: Cluster) -> tuple[float, ...] | None:
    """
    Release of Megatron Core that a cluster runs, as numbers, with main after all others; None if the job names none.

    Rules of single releases apply to no other framework: recipes of Megatron-Bridge and NeMo count by months, and
    Megatron-LM without a core by years.
    """
    named = cluster.unknown_release or (cluster.framework.name if cluster.framework else "")
    found = release_of(named)
    is_core = found is not None and found.stack in ("megatron-lm", "megatron-core") and found.scheme in CORES
    return found.number if found is not None and is_core else None


CORES = ("version", "branch")
"""Schemes by which releases of Megatron Core count."""

FIRST_ON_CORE_0_18 = {"megatron-bridge": ((26, 6), (0, 5))}
"""
First releases of other stacks that are built on Megatron Core 0.18, counted by months and by versions.

v0.5.0 of container 26.06 has the first recipes of Megatron-Bridge that use it (experts in one graph of the iteration).
"""


def _lacks(cluster: Cluster, others: Mapping[str, tuple[tuple[int, ...], ...]], *core: float) -> bool:
    """Return True if the job's release is older than a core and the stacks built on it; False if it is unknown."""
    found = release_of(cluster.unknown_release or (cluster.framework.name if cluster.framework else ""))
    if found is None:
        return False
    if found.stack in ("megatron-lm", "megatron-core"):
        return found.scheme == "year" or found.number < core
    if found.stack not in others or found.scheme == "branch":
        return False
    alike = (first for first in others[found.stack] if (first[0] >= 20) == (found.scheme == "month"))
    return all(found.number < first for first in alike)


def _is_from(cluster: Cluster, *first: float) -> bool:
    number = core_release(cluster)
    return number is not None and number >= first


def _is_until(cluster: Cluster, *last: float) -> bool:
    number = core_release(cluster)
    return number is not None and number[: len(last)] <= last


def early_cores_split_whole_query_groups(model: Model, cluster: Cluster, *, tp: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.14 each tensor-parallel rank owns whole query groups.

    References
    ----------
    megatron/core/transformer/transformer_config.py:696 (core 0.14.0).
    """
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    return implies(_is_until(cluster, 0, 14), every(np.equal(one.num_kv_heads % tp, 0) for one in attentions))


def early_cores_capture_nothing_recomputed(cluster: Cluster, *, recompute: Ints, cuda_graphs: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.14 recomputation excludes a CUDA graph of the whole iteration.

    References
    ----------
    megatron/core/transformer/transformer_config.py:1270 (core 0.14.0).
    """
    whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(_is_until(cluster, 0, 14) & whole, np.equal(recompute, Recompute.NONE))


def early_cores_capture_attention_or_all(cluster: Cluster, *, cuda_graphs: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.14 a CUDA graph holds the whole iteration, or attention alone.

    References
    ----------
    megatron/training/arguments.py (core 0.14.0): --cuda-graph-scope is full, attn or full_iteration.
    """
    known = (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION, CudaGraphs.of("attn"))
    return implies(_is_until(cluster, 0, 14), np.isin(cuda_graphs, known))


def early_cores_keep_activations(cluster: Cluster, *, activation_offload: Flags) -> Holds:
    """
    In Megatron-LM up to core 0.14 activations stay on the device.

    References
    ----------
    megatron/training/arguments.py (core 0.14.0) has no option for it (--fine-grained-activation-offloading).
    """
    return implies(_is_until(cluster, 0, 14), np.logical_not(activation_offload))


def early_cores_have_no_hybridep(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.14 tokens are dispatched by an all-to-all or by DeepEP.

    References
    ----------
    megatron/training/arguments.py (core 0.14.0): --moe-enable-deepep is its only way beside those without a library.
    """
    return implies(_is_until(cluster, 0, 14), np.not_equal(token_dispatcher, TokenDispatcher.HYBRIDEP))


def early_hybrids_have_no_experts(model: Model, cluster: Cluster) -> Holds:
    """
    In Megatron-LM up to core 0.14 hybrid models have no experts.

    References
    ----------
    megatron/core/ssm/mamba_hybrid_layer_allocation.py:17 (core 0.14.0).
    """
    return implies(_is_until(cluster, 0, 14), not (model.has_single_blocks and model.has_experts))


def early_hybrids_deal_layers_evenly(model: Model, cluster: Cluster, *, pp: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.14 pipeline ranks of a hybrid model have equally many layers.

    References
    ----------
    megatron/core/ssm/mamba_block.py (core 0.14.0).
    """
    hybrid = _is_until(cluster, 0, 14) and model.has_single_blocks
    return implies(hybrid, np.equal(np.remainder(model.num_layers, pp), 0))


def cores_to_0_17_overlap_ep_outside_one_graph(cluster: Cluster, *, ep_overlap: Flags, cuda_graphs: Ints) -> Holds:
    """
    In Megatron-LM up to core 0.17 one CUDA graph of the iteration excludes overlapped expert-parallel communication.

    References
    ----------
    megatron/core/transformer/transformer_config.py:1898 (core 0.16.1), 2143 (0.17.1); from 0.18.2 on (2443) only
    graphs of modules are looked at.
    """
    return implies(_is_until(cluster, 0, 17), np.logical_not(_overlaps_ep_in_one_graph(ep_overlap, cuda_graphs)))


def cores_from_0_18_compute_the_loss_themselves(cluster: Cluster) -> Holds:
    """
    Megatron-LM from core 0.18 on refuses Transformer Engine's fused loss (settings.loss: unfused).

    References
    ----------
    megatron/training/arguments.py:1528 (core 0.18.2), 1642 (0.19.0), 1697 (main): disabled due to stability issues.
    """
    loss = cluster.settings.loss or loss_of(cluster.device.behaviour.memory)
    return implies(_is_from(cluster, 0, 18), loss != "fused")


def early_cores_have_no_experts_in_one_graph(model: Model, cluster: Cluster, *, cuda_graphs: Ints) -> Holds:
    """
    With experts, a whole iteration is one CUDA graph only from core 0.18 (Megatron-Bridge 26.06) on.

    References
    ----------
    megatron/core/transformer/transformer_config.py:876,1140 (core 0.18.2): buffers of a fixed size hold a rank's tokens
    (moe_expert_rank_capacity_factor), and their part for the backward pass (moe_paged_stash); 0.17.1 has neither.
    """
    whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(model.has_experts & whole, not _lacks(cluster, FIRST_ON_CORE_0_18, 0, 18))


def early_cores_have_no_graphs_of_fsdp(cluster: Cluster, *, sharding: Ints, cuda_graphs: Ints) -> Holds:
    """
    CUDA graphs go together with Megatron-FSDP only from core 0.18 (Megatron-Bridge 26.06) on.

    References
    ----------
    megatron/training/training.py:1924 (core 0.18.2): megatron_fsdp_cuda_graph_mode leaves out code that breaks replays;
    0.17.1 has no such mode.
    """
    both = np.greater_equal(sharding, Sharding.GRADIENTS) & np.not_equal(cuda_graphs, CudaGraphs.NONE)
    return implies(both, not _lacks(cluster, FIRST_ON_CORE_0_18, 0, 18))


# --- several targets ---------------------------------------------------------------------------------------


def experts_are_spread_or_split(model: Model, *, tp: Ints, ep: Ints, etp: Ints) -> Holds:
    """
    torchtitan and DeepSpeed spread experts whole (ep above 1, etp 1), or split them like the rest (ep 1, etp as tp).

    References
    ----------
    torchtitan/models/common/moe_sharding.py:317; deepspeed/module_inject/auto_ep_folding.py, validate_folding_global,
    and autotp_config.py:433.
    """
    return implies(model.has_experts, np.equal(etp, np.where(np.equal(ep, 1), tp, 1)))


def fsdp_groups_are_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    With FSDP2, groups that share states hold equally many ranks, all context-parallel ones (settings.optimizer_group).

    References
    ----------
    torch/distributed/fsdp/_fully_shard: a dimension of a device mesh shares, another one has the copies.
    """
    group = cluster.device.behaviour.optimizer.sharding_ranks or 1
    whole = (dp * cp % group == 0) & (np.remainder(group, cp) == 0)
    return implies(_shares_in_groups(cluster, cp, dp, sharding), whole)


# --- torchtitan --------------------------------------------------------------------------------------------


def torchtitan_splits_whole_kv_heads(model: Model, *, tp: Ints) -> Holds:
    """
    In torchtitan each tensor-parallel rank owns whole key-value heads.

    References
    ----------
    torchtitan/models/common/decoder.py:153.
    """
    counts = {kind.attention.num_kv_heads for kind in model.kinds if isinstance(kind.attention, Attention)}
    return every(np.equal(np.remainder(count, tp), 0) for count in counts)


def torchtitan_splits_sequences_into_chunks(workload: Workload, cluster: Cluster, *, cp: Ints) -> Holds:
    """
    In torchtitan each context-parallel rank's part of a sequence splits into the chunks of the loss.

    References
    ----------
    torchtitan/components/loss.py, ChunkedLossWrapper.
    """
    return np.equal(workload.sequence_length // cp % cluster.device.behaviour.memory.loss_chunks, 0)


def torchtitan_trains_mtp_whole(model: Model, *, cp: Ints, pp: Ints) -> Holds:
    """
    In torchtitan multi-token prediction excludes context parallelism and pipelines.

    References
    ----------
    torchtitan/models/deepseek_v3/mtp.py:201,206.
    """
    return implies(bool(model.mtp_layers), np.equal(cp, 1) & np.equal(pp, 1))


def torchtitan_ties_embeddings_on_one_stage(model: Model, *, pp: Ints) -> Holds:
    """
    In torchtitan embedding and head with the same weights exclude pipelines.

    References
    ----------
    torchtitan/models/common/decoder.py:139.
    """
    return implies(model.tied_embeddings, np.equal(pp, 1))


def torchtitan_shards_over_context(*, cp: Ints, sharding: Ints) -> Holds:
    """
    In torchtitan context-parallel ranks (cp above 1) always shard.

    References
    ----------
    torchtitan/distributed/parallel_dims.py:215.
    """
    return implies(np.greater(cp, 1), np.greater(sharding, Sharding.NONE))


def torchtitan_shards_gradients_without_pipelines(*, pp: Ints, sharding: Ints) -> Holds:
    """
    In torchtitan FSDP2 shards gradients or weights without a pipeline, and in one the optimizer states alone.

    References
    ----------
    torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder; torch/distributed/pipelining/stage.py:845: in a pipeline
    weights are gathered once, and gradients stay whole until the last micro-batch.
    """
    alone = np.not_equal(sharding, Sharding.OPTIMIZER)
    return np.where(np.equal(pp, 1), alone, np.less_equal(sharding, Sharding.OPTIMIZER)).astype(bool)


def torchtitan_spreads_experts_over_shards(
    cluster: Cluster, *, tp: Ints, cp: Ints, dp: Ints, ep: Ints, sharding: Ints
) -> Holds:
    """
    In torchtitan experts are spread over the ranks that share weights, context or tensors.

    References
    ----------
    torchtitan/distributed/parallel_dims.py:279.
    """
    group = cluster.device.behaviour.optimizer.sharding_ranks or 1
    groups = np.where(_shares_in_groups(cluster, cp, dp, sharding), np.maximum(dp * cp // group, 1), 1)
    copies = np.where(np.equal(sharding, Sharding.NONE), dp, groups)
    return np.equal(cp * tp * np.maximum(dp // copies, 1) % ep, 0)


def torchtitan_keeps_few_chunks_gathered(*, vpp: Ints, sharding: Ints) -> Holds:
    """
    In torchtitan pipeline ranks with more than three chunks shard nothing.

    References
    ----------
    torch/distributed/pipelining/schedules.py:1287, _add_unshard_reshard: weights of three chunks stay gathered, of more
    they are gathered again and again.
    """
    return implies(np.greater(vpp, NUM_ACTIVE_CHUNKS), np.equal(sharding, Sharding.NONE))


def torchtitan_deals_microbatches_in_rounds(
    *, num_microbatches: Ints, pp: Ints, vpp: Ints, group: Ints, schedule: Ints
) -> Holds:
    """
    In torchtitan interleaved stages take the micro-batches in equal rounds, as many as pipeline ranks fit into them.

    References
    ----------
    torch/distributed/pipelining/schedules.py:2935, ScheduleInterleaved1F1B.
    """
    rounds = np.maximum(num_microbatches // pp, 1)
    equal = (num_microbatches % rounds == 0) & np.equal(group, num_microbatches // rounds)
    return implies(np.greater(vpp, 1) & np.equal(schedule, Schedule.ONE_F_ONE_B), equal)


def torchtitan_fills_plain_pipelines(*, num_microbatches: Ints, pp: Ints, vpp: Ints, schedule: Ints) -> Holds:
    """
    In torchtitan 1F1B with one chunk per rank has a micro-batch for each pipeline rank.

    References
    ----------
    torch/distributed/pipelining/schedules.py:1020.
    """
    is_plain = np.equal(schedule, Schedule.ONE_F_ONE_B) & np.equal(vpp, 1)
    return implies(is_plain, np.greater_equal(num_microbatches, pp))


def torchtitan_gathers_keys_first(*, cp_overlap: Flags) -> Holds:
    """
    In torchtitan keys and values of all context-parallel ranks are gathered before attention.

    References
    ----------
    torchtitan/models/common/decoder_sharding.py:235.
    """
    return np.logical_not(cp_overlap)


def torchtitan_sends_chunks_behind_computation(*, vpp: Ints, pp_overlap: Flags) -> Holds:
    """
    In torchtitan pipeline communication overlaps exactly where ranks have several chunks (vpp above 1).

    References
    ----------
    torch/distributed/pipelining/schedules.py:1105,2216.
    """
    return np.equal(np.greater(vpp, 1), np.not_equal(pp_overlap, 0))


def torchtitan_reduces_gradients_behind_computation(*, cp: Ints, pp: Ints, dp: Ints, dp_overlap: Flags) -> Holds:
    """
    In torchtitan data-parallel communication overlaps without a pipeline, always, and never in one.

    References
    ----------
    torch/distributed/fsdp/_fully_shard; perform_reduce_grad, torch/distributed/pipelining/stage.py.
    """
    return implies(np.greater(dp * cp, 1), np.equal(np.not_equal(dp_overlap, 0), np.equal(pp, 1)))


# --- DeepSpeed ---------------------------------------------------------------------------------------------


def deepspeed_shards_in_bf16(workload: Workload, *, dp: Ints, sharding: Ints) -> Holds:
    """
    In DeepSpeed replicas (dp above 1) in BF16 share at least optimizer states.

    References
    ----------
    deepspeed/runtime/engine.py:2294, _do_optimizer_sanity_check: stage 0 in bf16 has neither FP32 master weights nor
    FP32 gradients, which plans count.
    """
    return implies(workload.precision.name == "bf16", np.greater(_stage(dp, sharding), Sharding.NONE))


def deepspeed_accumulates_in_16_bits_without_zero(cluster: Cluster, *, dp: Ints, sharding: Ints) -> Holds:
    """
    In DeepSpeed gradients that nothing shards accumulate in the weights' dtype (settings.gradient_dtype).

    References
    ----------
    deepspeed/runtime/engine.py:2323.
    """
    in_fp32 = (cluster.settings.gradient_dtype or "fp32") == "fp32"
    return implies(in_fp32, np.greater(_stage(dp, sharding), Sharding.NONE))


def deepspeed_has_both_gradients_in_zero_1(
    cluster: Cluster, *, dp: Ints, sharding: Ints, optimizer_offload: Flags
) -> Holds:
    """
    In DeepSpeed gradients in 16 bits and FP32 at once are of ZeRO-1 without offload (settings.gradient_dtype).

    References
    ----------
    deepspeed/runtime/engine.py:2305: BF16_Optimizer.
    """
    has_both = cluster.settings.gradient_dtype == "bf16+fp32"
    return implies(has_both, np.equal(_stage(dp, sharding), Sharding.OPTIMIZER) & np.logical_not(optimizer_offload))


def deepspeed_zero_1_in_fp32_waits(
    cluster: Cluster, workload: Workload, *, dp: Ints, sharding: Ints, optimizer_offload: Flags, dp_overlap: Flags
) -> Holds:
    """
    In DeepSpeed ZeRO-1 in BF16 with FP32 gradients communicates after the backward pass (settings.gradient_dtype).

    References
    ----------
    deepspeed/runtime/engine.py:2305,2611: BF16_Optimizer, unless optimizer states are offloaded.
    """
    in_fp32 = (cluster.settings.gradient_dtype or "fp32") in ("fp32", "bf16+fp32")
    is_its = in_fp32 and workload.precision.name == "bf16"
    own = np.equal(_stage(dp, sharding), Sharding.OPTIMIZER) & np.logical_not(optimizer_offload)
    return implies(own & is_its, np.logical_not(dp_overlap))


def deepspeed_offloads_without_folded_experts(*, tp: Ints, ep: Ints, optimizer_offload: Flags) -> Holds:
    """
    In DeepSpeed spread experts with tensor parallelism (ep and tp above 1) exclude an offloaded optimizer.

    References
    ----------
    deepspeed/module_inject/auto_ep_folding.py.
    """
    return implies(np.not_equal(optimizer_offload, 0), np.equal(tp, 1) | np.equal(ep, 1))


def deepspeed_offloads_a_share_in_zero_3(cluster: Cluster, *, sharding: Ints, optimizer_offload: Flags) -> Holds:
    """
    In DeepSpeed optimizer states are offloaded in part only where weights are sharded (settings.offloaded_states).

    References
    ----------
    deepspeed/runtime/zero/offload_config.py: ratio is of stage 3.
    """
    is_share = cluster.device.behaviour.offload.offloaded_states < 1
    return implies(np.logical_and(optimizer_offload, is_share), np.equal(sharding, Sharding.WEIGHTS))


def deepspeed_offloads_masters_and_waits(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    In DeepSpeed FP32 weights are offloaded with the moments, and wait for all updates (settings.offload_overlap).

    References
    ----------
    deepspeed/runtime/zero/stage_1_and_2.py, step.
    """
    offload = cluster.device.behaviour.offload
    return implies(optimizer_offload, offload.offloaded_masters and not offload.offload_overlap)


def deepspeed_shares_among_all_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    In DeepSpeed all replicas share optimizer states, not groups of them (settings.optimizer_group).

    References
    ----------
    deepspeed/runtime/zero/config.py: zero_hpz_partition_size and mics_shard_size are of weights.
    """
    return np.logical_not(_shares_in_groups(cluster, cp, dp, sharding))


def _stage(dp: Ints, sharding: Ints) -> Ints:
    """ZeRO's stage: one replica has nothing to shard, and the FP32 master weights of stage 1."""
    stage: Ints = np.where(np.equal(dp, 1) & np.equal(sharding, Sharding.NONE), int(Sharding.OPTIMIZER), sharding)
    return stage


# --- Accelerate --------------------------------------------------------------------------------------------


def accelerate_keeps_experts_whole(model: Model, *, tp: Ints) -> Holds:
    """
    In Accelerate models with experts have no tensor parallelism (tp is 1): how they are split is the model's own.

    References
    ----------
    accelerate/parallelism_config.py has a degree; the plan is that of the model in transformers.
    """
    return implies(model.has_experts, np.equal(tp, 1))


def inputs_of_recomputed_layers_are_offloaded(*, recompute: Ints, activation_offload: Flags) -> Holds:
    """
    DeepSpeed and Accelerate offload only the inputs of recomputed layers (recompute is full).

    References
    ----------
    accelerate/utils/dataclasses.py:1967, activation_checkpointing_offload; deepspeed/runtime/activation_checkpointing/
    checkpointing.py:613, cpu_checkpointing.
    """
    return implies(activation_offload, np.equal(recompute, Recompute.FULL))


def _shares_in_groups(cluster: Cluster, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """Return True where optimizer states are sharded over groups smaller than the number of replicas."""
    group = cluster.device.behaviour.optimizer.sharding_ranks
    if group is None:
        return False
    return np.greater(sharding, Sharding.NONE) & np.greater(dp * cp, group)
