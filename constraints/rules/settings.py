"""
Rules that follow from the settings of the framework (``settings`` of a job).

Lines of ``megatron/core`` are those of the wheel megatron-core 0.16.1.
"""

from __future__ import annotations

import numpy as np

from constraints.rule import Flags, Holds, Ints, implies
from costmodel.facts.device import Cluster
from costmodel.facts.model import Attention, Model
from costmodel.facts.workload import Workload
from costmodel.lowering.framework import MUON, NARROW_WEIGHTS
from costmodel.lowering.layer import recomputes
from costmodel.strategy import Recompute, Sharding, TokenDispatcher, captures


def overlapped_shared_experts_need_alltoall(model: Model, cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """
    Shared experts overlap with the dispatch of tokens only where that is alltoall (settings.shared_expert_overlap).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1090.
    """
    return implies(_overlaps_shared_experts(model, cluster), np.equal(token_dispatcher, TokenDispatcher.ALLTOALL))


def overlapped_shared_experts_exclude_ep_overlap(model: Model, cluster: Cluster, *, ep_overlap: Flags) -> Holds:
    """
    Overlapped shared experts exclude other overlap of expert-parallel communication (settings.shared_expert_overlap).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1887.
    """
    return implies(_overlaps_shared_experts(model, cluster), np.logical_not(ep_overlap))


def overlapped_shared_experts_are_kept(model: Model, cluster: Cluster, *, recompute: Ints) -> Holds:
    """
    Shared experts that overlap are not recomputed as a module (settings.shared_expert_overlap).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1235.
    """
    as_module = recomputes("shared_experts", recompute=recompute) & np.not_equal(recompute, Recompute.FULL)
    return implies(_overlaps_shared_experts(model, cluster), np.logical_not(as_module))


def delayed_weight_gradients_need_ep_overlap(cluster: Cluster, *, ep_overlap: Flags) -> Holds:
    """
    Weight gradients are delayed only where expert-parallel communication is overlapped (settings.delay_wgrad).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1909.
    """
    return implies(bool(cluster.settings.delay_wgrad), ep_overlap)


def delayed_weight_gradients_in_graphs_accumulate_in_matmuls(
    model: Model, cluster: Cluster, *, sharding: Ints, cuda_graphs: Ints, dp_overlap: Flags
) -> Holds:
    """
    Weight gradients that are delayed inside CUDA graphs of modules are not FSDP's (settings.delay_wgrad).

    References
    ----------
    Megatron-LM, megatron/training/arguments.py:1531 (core 0.17.1), 1706 (0.18.2), 1838 (0.19.0), 1919 (main): with
    --overlap-grad-reduce they need --gradient-accumulation-fusion, which Megatron-FSDP has not.
    """
    captured = captures("attn", cuda_graphs=cuda_graphs)
    if model.has_shared_experts and not _overlaps_shared_experts(model, cluster):
        captured = captured | captures("moe_router", cuda_graphs=cuda_graphs)
    delayed = captured & bool(cluster.settings.delay_wgrad)
    return implies(np.logical_and(delayed, dp_overlap), np.less(sharding, Sharding.GRADIENTS))


def delayed_weight_gradients_in_graphs_have_no_bias(
    model: Model, cluster: Cluster, *, cuda_graphs: Ints, dp_overlap: Flags
) -> Holds:
    """
    Attention whose weight gradients are delayed inside CUDA graphs has no biases (settings.delay_wgrad).

    References
    ----------
    Megatron-LM, megatron/training/arguments.py:1537 (core 0.17.1), 1712 (0.18.2), 1844 (0.19.0), 1925 (main).
    """
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    has_bias = any(attention.qkv_bias or attention.output_bias for attention in attentions)
    delayed = bool(cluster.settings.delay_wgrad) and has_bias
    return implies(np.logical_and(delayed, dp_overlap), np.logical_not(captures("attn", cuda_graphs=cuda_graphs)))


def muon_keeps_gradients_and_weights_whole(cluster: Cluster, *, sharding: Ints) -> Holds:
    """
    With Muon, optimizer states may be sharded, but neither gradients nor weights (settings.optimizer).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/layer_wise_optimizer.py:30.
    """
    return implies(_deals_matrices(cluster), np.less_equal(sharding, Sharding.OPTIMIZER))


def muon_shards_optimizer_states(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    With dist_muon, replicas of the weights (dp times cp above 1) always shard optimizer states (settings.optimizer).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/layer_wise_optimizer.py:29.
    """
    return implies(cluster.settings.optimizer == "dist_muon", _is_shared(cp, dp, sharding))


def muon_shares_among_all_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    With Muon, all replicas share optimizer states, not groups of them (settings.optimizer_group).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/layer_wise_optimizer.py:30.
    """
    return implies(_deals_matrices(cluster), np.logical_not(_shares_in_groups(cluster, cp, dp, sharding)))


def muon_overlaps_where_states_are_shared(cluster: Cluster, *, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    With Muon, data-parallel communication is overlapped only where optimizer states are shared (settings.optimizer).

    References
    ----------
    Megatron-LM, megatron/training/arguments.py:1487 (core 0.17.1): muon does not support overlaps, dist_muon does.
    """
    waits = np.logical_and(_deals_matrices(cluster), np.equal(sharding, Sharding.NONE))
    return implies(waits, np.logical_not(dp_overlap))


def muon_stays_on_the_device(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    With Muon, the optimizer is not offloaded (settings.optimizer).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/muon.py:193: it excludes the distributed optimizer, which offloading needs.
    """
    return implies(_is_muon(cluster), np.logical_not(optimizer_offload))


def narrow_moments_need_a_sharded_optimizer(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    With replicas of the weights, moments of 16 bits need sharded optimizer states (settings.moments_dtype).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/optimizer_config.py:381.
    """
    return implies(_has_narrow_moments(cluster), _is_shared(cp, dp, sharding))


def offloaded_moments_are_fp32(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """
    Moments of an offloaded optimizer are in FP32 (settings.moments_dtype).

    References
    ----------
    Megatron-LM, megatron/core/optimizer/cpu_offloading has no option for others.
    """
    return implies(_has_narrow_moments(cluster), np.logical_not(optimizer_offload))


def narrow_weights_need_a_sharded_optimizer(
    cluster: Cluster, workload: Workload, *, cp: Ints, dp: Ints, sharding: Ints
) -> Holds:
    """
    With replicas of the weights, weights kept only in 8 bits need sharded optimizer states (settings.fp8_param_gather).

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: --fp8-param-gather needs the distributed optimizer or
    FSDP.
    """
    return implies(_gathers_narrow_weights(cluster, workload), _is_shared(cp, dp, sharding))


def narrow_weights_stay_on_the_device(cluster: Cluster, workload: Workload, *, optimizer_offload: Flags) -> Holds:
    """
    Weights kept only in 8 bits exclude an offloaded optimizer, but for FP8 with delayed scaling (fp8_param_gather).

    References
    ----------
    Megatron-LM, megatron/training/arguments.py:1501 (core 0.17.1), 1676 (0.18.2), 1808 (0.19.0), 1889 (main):
    --optimizer-cpu-offload with --fp8-param-gather needs --fp8-recipe delayed.
    """
    is_other = _gathers_narrow_weights(cluster, workload) and workload.precision.name != "fp8"
    return implies(is_other, np.logical_not(optimizer_offload))


def wide_layers_fit_a_stage(model: Model, cluster: Cluster, workload: Workload, *, pp: Ints) -> Holds:
    """
    Each end of the model keeps at most as many layers in BF16 as a pipeline rank has (settings.first_layers_bf16).

    References
    ----------
    megatron-core 0.16.1, transformer/transformer_config.py:988, for recipes in 8 bits.
    """
    largest = max(cluster.settings.first_layers_bf16 or 0, cluster.settings.last_layers_bf16 or 0)
    return implies(workload.precision.compute in ("fp8", "mxfp8"), model.num_layers // np.asarray(pp) >= largest)


def optimizer_groups_divide_the_replicas(cluster: Cluster, *, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """
    Replicas of the weights (dp times cp) are whole groups that share optimizer states (settings.optimizer_group).

    References
    ----------
    Megatron-LM, megatron/core/parallel_state.py:833.
    """
    group = cluster.device.behaviour.optimizer.sharding_ranks or 1
    return implies(_shares_in_groups(cluster, cp, dp, sharding), dp * cp % group == 0)


def optimizer_groups_divide_the_experts(
    model: Model, cluster: Cluster, *, tp: Ints, cp: Ints, dp: Ints, ep: Ints, etp: Ints, sharding: Ints
) -> Holds:
    """
    Optimizer groups of experts are as many and as large as those of other weights (settings.optimizer_group).

    References
    ----------
    Megatron-LM, megatron/core/parallel_state.py:1264.
    """
    group = cluster.device.behaviour.optimizer.sharding_ranks or 1
    instances, replicas = np.maximum(dp * cp // group, 1), tp * cp * dp // (ep * etp)
    even = (replicas % instances == 0) & (replicas // instances == np.minimum(replicas, group))
    return implies(model.has_experts & _shares_in_groups(cluster, cp, dp, sharding), even)


def counted_layers_are_offloaded_whole(
    model: Model, cluster: Cluster, *, pp: Ints, recompute: Ints, activation_offload: Flags
) -> Holds:
    """
    A number of layers is offloaded only without a pipeline and without recomputation (settings.offloaded_layers).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1144 and 1149; --offload-modules (1268) are those of
    every layer.
    """
    is_counted = (cluster.settings.offloaded_layers or model.num_layers) < model.num_layers
    whole = np.equal(pp, 1) & np.equal(recompute, Recompute.NONE)
    return implies(np.logical_and(activation_offload, is_counted), whole)


def _overlaps_shared_experts(model: Model, cluster: Cluster) -> bool:
    return model.has_shared_experts and cluster.device.behaviour.communication.shared_expert_overlap


def _gathers_narrow_weights(cluster: Cluster, workload: Workload) -> bool:
    return bool(cluster.settings.fp8_param_gather) and workload.precision.compute in NARROW_WEIGHTS


def _deals_matrices(cluster: Cluster) -> bool:
    """Return True if Muon's matrices are whole on the ranks that own them, not sharded with their gradients."""
    return _is_muon(cluster) and not cluster.device.behaviour.optimizer.muon_takes_shards


def _is_muon(cluster: Cluster) -> bool:
    return cluster.settings.optimizer in MUON


def _has_narrow_moments(cluster: Cluster) -> bool:
    return (cluster.settings.moments_dtype or "fp32") != "fp32"


def _is_shared(cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """Return True where optimizer states are sharded, or where one replica makes sharding irrelevant."""
    return np.equal(dp * cp, 1) | np.greater_equal(sharding, Sharding.OPTIMIZER)


def _shares_in_groups(cluster: Cluster, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """Return True where optimizer states are sharded over groups smaller than the number of replicas."""
    group = cluster.device.behaviour.optimizer.sharding_ranks
    if group is None:
        return False
    return np.greater(sharding, Sharding.NONE) & np.greater(dp * cp, group)
