"""
Rules of targets: strategies that the configuration of an export target cannot express (``search.target``).

Exporters (``planner/frameworks``) refuse nothing themselves. Lines are those of torchtitan 0.3.0, PyTorch 2.13,
DeepSpeed 0.19.8 and Accelerate 1.15.0. :mod:`constraints.rules.exports` names the field that a rule is told of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from constraints.rule import Flags, Holds, Ints, every, implies
from constraints.rules.frameworks import shares_in_groups
from costmodel.catalog.releases import release_of
from costmodel.facts.device import Cluster
from costmodel.facts.fields import NARROW
from costmodel.facts.model import Attention, Experts, Model
from costmodel.facts.workload import Workload
from costmodel.lowering.framework import MUON, NARROW_WEIGHTS, loss_of
from costmodel.lowering.layer import recomputes
from costmodel.pipelines.stages import layers_per_chunk
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, StageLayout, TokenDispatcher, Vocabulary
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


def masters_are_offloaded_with_moments(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    In Megatron-LM and DeepSpeed FP32 weights are offloaded with the moments (settings.offloaded_masters).

    References
    ----------
    megatron/training/arguments.py, validate_args: --optimizer-cpu-offload needs --use-precision-aware-optimizer, whose
    FP32 weights are the optimizer's. deepspeed/runtime/zero/stage_1_and_2.py.
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


def hybrid_layouts_fill_every_rank(model: Model, *, layout: StageLayout | None) -> Holds:
    """
    In Megatron-LM no stage of a custom pipeline layout is empty where layers are single blocks.

    References
    ----------
    megatron/core/ssm/mamba_block.py:173: embedding and head are not alone on a rank.
    """
    return not (model.has_single_blocks and layout is not None and 0 in layout.layers)


def megatron_shards_gradients_without_pipelines(*, pp: Ints, sharding: Ints) -> Holds:
    """
    In Megatron-LM gradients and weights are sharded only without a pipeline.

    References
    ----------
    megatron/training/arguments.py, validate_args.
    """
    return implies(np.greater(pp, 1), np.less(sharding, Sharding.GRADIENTS))


def megatron_recomputes_named_modules(*, recompute: Ints) -> Holds:
    """
    In Megatron-LM every other matmul is not recomputed: --recompute-modules has no word for it.

    References
    ----------
    megatron/core/transformer/transformer_config.py; every_other_matmul is torchtitan's.
    """
    return np.logical_not(recomputes("every_other_matmul", recompute=recompute)) | np.equal(recompute, Recompute.FULL)


def megatron_fsdp_overlaps(*, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    In Megatron-LM communication of sharded gradients and weights (FSDP) always overlaps.

    References
    ----------
    megatron_fsdp.py:276.
    """
    return implies(np.greater_equal(sharding, Sharding.GRADIENTS), dp_overlap)


def megatron_ranks_recompute_alike(*, recompute: Ints, activation_offload: Flags, layout: StageLayout | None) -> Holds:
    """
    In Megatron-LM one option says what all pipeline ranks recompute and offload.

    References
    ----------
    megatron/training/arguments.py, --recompute-modules and --offload-modules.
    """
    return layout is None or ({*layout.recompute}, {*layout.activation_offload}) == ({recompute}, {activation_offload})


def megatron_stages_recompute_blocks(*, pp: Ints, recompute: Ints, layout: StageLayout | None) -> Holds:
    """
    In Megatron-LM each stage recomputes as many layers in full (--recompute-method block), and no further modules.

    References
    ----------
    megatron/core/transformer/transformer_block.py:544; --recompute-granularity is full or selective.
    """
    if layout is None or not any(layout.full_layers) or recompute == Recompute.FULL:
        return True
    return recompute == Recompute.NONE and block_of(layout, int(pp)) is not None


def full_by_block(most: int, layers: Sequence[int], pp: int) -> tuple[int, ...]:
    """
    Number of fully recomputed layers of each pipeline rank, if each stage recomputes at most its first ``most`` layers.

    >>> full_by_block(3, (2, 4, 4, 4), pp=2)
    (5, 6)

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_block.py:544 (of megatron-core 0.16.1).
    """
    return tuple(sum(min(most, count) for count in layers[rank::pp]) for rank in range(pp))


def block_of(layout: StageLayout, pp: int) -> int | None:
    """Return the number of layers that each stage of a layout recomputes in full, where it is one; else None."""
    numbers = range(1, max(layout.layers) + 1)
    return next((most for most in numbers if full_by_block(most, layout.layers, pp) == layout.full_layers), None)


def megatron_blocks_exclude_other_features(
    *, activation_offload: Flags, ep_overlap: Flags, cuda_graphs: Ints, layout: StageLayout | None
) -> Holds:
    """
    In Megatron-LM layers in full exclude offloaded activations, ep_overlap and CUDA graphs of modules.

    References
    ----------
    megatron/core/transformer/transformer_config.py:1781,1871.
    """
    excluded = ep_overlap or activation_offload or cuda_graphs > CudaGraphs.FULL_ITERATION
    return not (layout is not None and any(layout.full_layers) and excluded)


def delayed_scaling_has_no_wide_layers(cluster: Cluster, workload: Workload) -> Holds:
    """
    In Megatron-LM no layers are in BF16 together with FP8 with delayed scaling (fp8).

    References
    ----------
    megatron/core/transformer/transformer_config.py:990.
    """
    settings = cluster.settings
    return implies(workload.precision.name == "fp8", not (settings.first_layers_bf16 or settings.last_layers_bf16))


def mtp_has_no_learned_positions(model: Model) -> Holds:
    """
    In Megatron-LM multi-token prediction excludes learned positions.

    References
    ----------
    megatron/training/arguments.py, validate_args.
    """
    return implies(bool(model.mtp_layers), not model.learned_positions)


def _has_muon(cluster: Cluster) -> bool:
    return cluster.settings.optimizer in MUON


def megatron_muon_keeps_gradients_whole(cluster: Cluster, *, sharding: Ints) -> Holds:
    """
    In Megatron-LM Muon shares optimizer states only, neither gradients nor weights.

    References
    ----------
    megatron/core/optimizer/layer_wise_optimizer.py:30.
    """
    return implies(_has_muon(cluster), np.less_equal(sharding, Sharding.OPTIMIZER))


def megatron_muon_overlaps_shared_states(cluster: Cluster, *, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    In Megatron-LM data-parallel communication overlaps with Muon only where replicas share its states.

    References
    ----------
    megatron/core/optimizer/muon.py:193: an overlap is the distributed optimizer's.
    """
    is_alone = (cluster.settings.optimizer == "muon") & np.equal(sharding, Sharding.NONE)
    return implies(is_alone, np.logical_not(dp_overlap))


def megatron_muon_excludes_the_distributed_optimizer(
    cluster: Cluster, workload: Workload, *, cp: Ints, dp: Ints, sharding: Ints, optimizer_offload: Flags
) -> Holds:
    """
    In Megatron-LM Muon excludes FP16, and BF16 moments, 8-bit weights, groups and offload of the distributed optimizer.

    References
    ----------
    megatron/core/optimizer/muon.py:193,196, layer_wise_optimizer.py:30.
    """
    settings, precision = cluster.settings, workload.precision
    narrow = bool(settings.fp8_param_gather) and precision.compute in NARROW_WEIGHTS
    excluded = narrow or precision.compute == "fp16" or (settings.moments_dtype or "fp32") != "fp32"
    others = np.logical_not(optimizer_offload) & np.logical_not(shares_in_groups(cluster, cp, dp, sharding))
    return implies(_has_muon(cluster), others & (not excluded))


def bridge_reads_fp8_attention_of_tensors(cluster: Cluster, workload: Workload) -> Holds:
    """
    In Megatron-Bridge attention is in FP8 with delayed and current scaling alone (fp8, fp8_current).

    References
    ----------
    megatron/core/fp8_utils.py:563, megatron/core/extensions/transformer_engine.py:2210.
    """
    is_narrow = bool(cluster.settings.fp8_attention) and workload.precision.compute in NARROW
    return implies(is_narrow, workload.precision.name in ("fp8", "fp8_current"))


def bridge_hybrids_have_whole_ends(model: Model, *, vocabulary: Ints) -> Holds:
    """
    In Megatron-Bridge layers of a hybrid are not redistributed.

    References
    ----------
    Megatron-Bridge 0.3.1 has no field for --hybrid-layer-pattern, whose bars part the layers of ranks.
    """
    return implies(model.has_single_blocks, np.equal(vocabulary, Vocabulary.ENDS))


def bridge_hybrids_have_even_stages(model: Model, *, layout: StageLayout | None) -> Holds:
    """
    In Megatron-Bridge a hybrid has no custom pipeline layout.

    References
    ----------
    Megatron-Bridge 0.3.1 has no field for --hybrid-layer-pattern, whose bars part the layers of ranks.
    """
    return not (model.has_single_blocks and layout is not None and len({*layout.layers}) > 1)


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
    megatron/training/arguments.py (core 0.14.0): --moe-enable-deepep is its only way besides those without a library.
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


def early_cores_have_the_options(model: Model, cluster: Cluster, workload: Workload) -> Holds:
    """
    Megatron-LM up to core 0.14 has no options for windows, sinks, gated attention, latent experts, NVFP4 and Muon.

    References
    ----------
    megatron/training/arguments.py (core 0.14.0) has neither --window-size, --softmax-type, --attention-output-gate,
    --moe-latent-size, --moe-shared-expert-gate, --quick-geglu, --hybrid-context-parallel nor --fp4-format, and
    --optimizer is adam or sgd.
    """
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    experts = [kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts)]
    newer = (
        model.family == "gpt_oss",
        any(one.window is not None or one.sinks or one.output_gate for one in attentions),
        any(one.latent_size is not None or one.shared_gate for one in experts),
        workload.precision.name == "nvfp4",
        workload.lengths is not None and workload.lengths.rank_tokens is not None,
        _has_muon(cluster),
    )
    return implies(_is_until(cluster, 0, 14), not any(newer))


def early_hybrids_have_even_stages(model: Model, cluster: Cluster, *, layout: StageLayout | None) -> Holds:
    """
    In Megatron-LM up to core 0.16 a hybrid has no custom pipeline layout.

    References
    ----------
    megatron/training/arguments.py (core 0.17.1): --hybrid-layer-pattern, whose bars part the layers of stages, is new.
    """
    has_layout = model.has_single_blocks and layout is not None
    return implies(_is_until(cluster, 0, 16), not has_layout)


OPTION_RULES = (early_cores_have_the_options, early_hybrids_have_even_stages)
"""Rules of single releases on the options that exports need (``planner/frameworks/megatron/releases.csv``)."""


def gradients_in_fp16_are_of_fp16_weights(cluster: Cluster, workload: Workload) -> Holds:
    """
    Gradients in 16 bits are of the dtype of the weights (settings.gradient_dtype).

    References
    ----------
    megatron/core/distributed/distributed_data_parallel_config.py:11, grad_reduce_in_fp32;
    deepspeed/runtime/engine.py:1799; accelerate/utils/dataclasses.py:2137, set_mixed_precision.
    """
    return implies(cluster.settings.gradient_dtype == "fp16", workload.precision.compute == "fp16")


# --- several targets ---------------------------------------------------------------------------------------


def torchtitan_spreads_experts_or_splits_them(model: Model, *, tp: Ints, ep: Ints, etp: Ints) -> Holds:
    """
    In torchtitan experts are split by tensor parallelism where they are not spread (ep is 1), else never.

    References
    ----------
    torchtitan/models/common/moe_sharding.py:317.
    """
    return implies(model.has_experts, np.equal(etp, np.where(np.equal(ep, 1), tp, 1)))


def deepspeed_spreads_experts_or_splits_them(model: Model, *, tp: Ints, ep: Ints, etp: Ints) -> Holds:
    """
    In DeepSpeed experts that are spread are not split, and others are split like the rest (etp as tp).

    References
    ----------
    deepspeed/module_inject/auto_ep_folding.py, validate_folding_global, and autotp_config.py:433.
    """
    return torchtitan_spreads_experts_or_splits_them(model, tp=tp, ep=ep, etp=etp)


def fsdp_groups_are_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    With FSDP2, groups that share states hold equally many ranks, all context-parallel ones (settings.optimizer_group).

    References
    ----------
    torch/distributed/fsdp/_fully_shard: a dimension of a device mesh shares, another one has the copies.
    """
    group = cluster.device.behaviour.optimizer.sharding_ranks or 1
    whole = (dp * cp % group == 0) & (np.remainder(group, cp) == 0)
    return implies(shares_in_groups(cluster, cp, dp, sharding), whole)


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


def torchtitan_trains_mtp_without_cp(model: Model, *, cp: Ints) -> Holds:
    """
    In torchtitan multi-token prediction excludes context parallelism.

    References
    ----------
    torchtitan/models/deepseek_v3/mtp.py:206.
    """
    return implies(bool(model.mtp_layers), np.equal(cp, 1))


def torchtitan_trains_mtp_without_pipelines(model: Model, *, pp: Ints) -> Holds:
    """
    In torchtitan multi-token prediction excludes pipelines.

    References
    ----------
    torchtitan/models/deepseek_v3/mtp.py:201.
    """
    return implies(bool(model.mtp_layers), np.equal(pp, 1))


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
    In torchtitan FSDP2 shards gradients or weights without a pipeline (pp of one), not the optimizer states alone.

    References
    ----------
    torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder: gradients are sharded after each backward pass.
    """
    return implies(np.equal(pp, 1), np.not_equal(sharding, Sharding.OPTIMIZER))


def torchtitan_keeps_gradients_whole_in_pipelines(*, pp: Ints, sharding: Ints) -> Holds:
    """
    In torchtitan FSDP2 shards the optimizer states alone in a pipeline.

    References
    ----------
    torch/distributed/pipelining/stage.py:845: weights are gathered once, and gradients stay whole until the last
    micro-batch.
    """
    return implies(np.greater(pp, 1), np.less_equal(sharding, Sharding.OPTIMIZER))


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
    groups = np.where(shares_in_groups(cluster, cp, dp, sharding), np.maximum(dp * cp // group, 1), 1)
    copies = np.where(np.equal(sharding, Sharding.NONE), dp, groups)
    return np.equal(cp * tp * np.maximum(dp // copies, 1) % ep, 0)


def torchtitan_keeps_few_chunks_gathered(*, vpp: Ints, sharding: Ints) -> Holds:
    """
    In torchtitan pipeline ranks with more than 3 chunks shard nothing.

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
    In torchtitan pipeline sends overlap with computation if ranks have several chunks; 1f1b and gpipe with one do not.

    References
    ----------
    torch/distributed/pipelining/schedules.py:1105,2216.
    """
    return np.equal(np.greater(vpp, 1), np.not_equal(pp_overlap, 0))


def torchtitan_reduces_gradients_behind_computation(*, cp: Ints, pp: Ints, dp: Ints, dp_overlap: Flags) -> Holds:
    """
    In torchtitan FSDP2 overlaps data-parallel communication without a pipeline, always, and never in one.

    References
    ----------
    torch/distributed/fsdp/_fully_shard; perform_reduce_grad, torch/distributed/pipelining/stage.py.
    """
    return implies(np.greater(dp * cp, 1), np.equal(np.not_equal(dp_overlap, 0), np.equal(pp, 1)))


def torchtitan_captures_flat_steps(*, pp: Ints, ep: Ints, cuda_graphs: Ints) -> Holds:
    """
    In torchtitan CUDA graphs exclude pipelines and spread experts (pp and ep are 1).

    References
    ----------
    torchtitan/trainer.py:183,204: they support neither pipelines nor the standard dispatcher.
    """
    return implies(np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION), np.equal(pp, 1) & np.equal(ep, 1))


def torchtitan_stages_recompute_alike(
    *, recompute: Ints, activation_offload: Flags, layout: StageLayout | None
) -> Holds:
    """
    In torchtitan all stages recompute alike (search.stages: layers or even).

    References
    ----------
    torchtitan/distributed/pipeline_parallel.py: pipeline_llm passes one policy.
    """
    if layout is None:
        return True
    return megatron_ranks_recompute_alike(
        recompute=recompute, activation_offload=activation_offload, layout=layout
    ) and not any(layout.full_layers)


# --- DeepSpeed ---------------------------------------------------------------------------------------------


def deepspeed_shards_in_bf16(workload: Workload, *, dp: Ints, sharding: Ints) -> Holds:
    """
    In DeepSpeed replicas in BF16 share at least optimizer states.

    References
    ----------
    deepspeed/runtime/engine.py:2294, _do_optimizer_sanity_check: stage 0 has neither FP32 master weights nor FP32
    gradients, which plans count.
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
    cluster: Cluster, workload: Workload, *, dp: Ints, sharding: Ints, optimizer_offload: Flags
) -> Holds:
    """
    In DeepSpeed gradients in BF16 and FP32 at once are of ZeRO-1 without offload (settings.gradient_dtype).

    References
    ----------
    deepspeed/runtime/engine.py:2305: BF16_Optimizer.
    """
    has_both, is_bf16 = cluster.settings.gradient_dtype == "bf16+fp32", workload.precision.name == "bf16"
    own = np.equal(_stage(dp, sharding), Sharding.OPTIMIZER) & np.logical_not(optimizer_offload)
    return implies(has_both, own & is_bf16)


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


def deepspeed_offloads_and_waits(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    In DeepSpeed offloaded weights go back when all are updated (settings.offload_overlap).

    References
    ----------
    deepspeed/runtime/zero/stage_1_and_2.py, step.
    """
    return implies(optimizer_offload, not cluster.device.behaviour.offload.offload_overlap)


def deepspeed_overlaps_with_zero(*, dp: Ints, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    In DeepSpeed data-parallel communication overlaps only with ZeRO (sharding above none).

    References
    ----------
    deepspeed/runtime/engine.py: without ZeRO gradients are reduced after the backward pass.
    """
    return implies(dp_overlap, np.greater(_stage(dp, sharding), Sharding.NONE))


def norms_are_whole(*, tp: Ints, sequence_parallel: Flags) -> Holds:
    """
    DeepSpeed and Accelerate have tensor parallelism without sequence parallelism: norms and residuals are whole.

    References
    ----------
    deepspeed/module_inject/layers.py: AutoTP reduces whole activations; accelerate/parallelism_config.py: its sp is
    DeepSpeed's, and tensor parallelism the plan of the model in transformers.
    """
    return implies(np.greater(tp, 1), np.logical_not(sequence_parallel))


def deepspeed_shares_among_all_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    In DeepSpeed all replicas share optimizer states, not groups of them (settings.optimizer_group).

    References
    ----------
    deepspeed/runtime/zero/config.py: zero_hpz_partition_size and mics_shard_size are of weights.
    """
    return np.logical_not(shares_in_groups(cluster, cp, dp, sharding))


def _stage(dp: Ints, sharding: Ints) -> Ints:
    """ZeRO's stage: one replica has nothing to shard, and the FP32 master weights of stage 1."""
    stage: Ints = np.where(np.equal(dp, 1) & np.equal(sharding, Sharding.NONE), int(Sharding.OPTIMIZER), sharding)
    return stage


# --- Accelerate --------------------------------------------------------------------------------------------


def accelerate_keeps_experts_whole(model: Model, *, tp: Ints) -> Holds:
    """
    In Accelerate models with experts have no tensor parallelism: how they are split is the model's own.

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
