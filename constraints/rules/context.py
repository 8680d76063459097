"""
Rules of context parallelism by the communication of its ranks (settings.cp_comm_type), where a job says which.

Transformer Engine's refusals are those of 2.11, ``transformer_engine/pytorch/attention/dot_product_attention/
context_parallel.py``, ``attn_forward_func_with_cp`` and its functions (recalled).
"""

from __future__ import annotations

import numpy as np

from constraints.rule import Flags, Holds, Ints, every, implies
from costmodel.facts.device import Cluster
from costmodel.facts.model import Attention, CompressedAttention, LatentAttention, Model
from costmodel.facts.workload import Workload
from costmodel.lowering.shape import a2a_ranks
from costmodel.strategy import CudaGraphs, Sharding

RINGS = ("p2p", "a2a+p2p")
"""Kinds with a ring, whose sends overlap with the attention."""


def _kind(cluster: Cluster) -> str | None:
    return cluster.device.behaviour.communication.cp_comm_type


def all_to_alls_exchange_whole_heads(model: Model, cluster: Cluster, *, tp: Ints, cp: Ints) -> Holds:
    """
    Context-parallel ranks that exchange tokens for heads get equally many whole heads and KV heads.

    References
    ----------
    Transformer Engine, AttnFuncWithCPAndQKVOA2A: num_heads and num_gqa_groups are multiples of the ranks.
    """
    near = a2a_ranks(cluster.device.behaviour.communication, cp=np.asarray(cp, dtype=np.float64))
    kinds = (kind.attention for kind in model.kinds if isinstance(kind.attention, Attention | LatentAttention))
    counts = {getattr(attention, name, 0) for attention in kinds for name in ("num_heads", "num_kv_heads")} - {0}
    return every(np.maximum(np.floor_divide(count, tp), 1) % near == 0 for count in counts)


def groups_of_near_ranks_form_rings(cluster: Cluster, *, cp: Ints) -> Holds:
    """
    With a2a+p2p, context-parallel ranks are at least two groups of near ranks (settings.cp_a2a_ranks).

    References
    ----------
    Megatron-LM, megatron/core/parallel_state.py:984: the hierarchical sizes multiply to cp.
    """
    near = cluster.device.behaviour.communication.cp_a2a_ranks or 1
    return implies(np.greater(cp, 1) & (_kind(cluster) == "a2a+p2p"), (cp % near == 0) & (cp > near))


def gathers_and_all_to_alls_wait(cluster: Cluster, *, cp_overlap: Flags) -> Holds:
    """
    All-gathers and all-to-alls of context parallelism alone (settings.cp_comm_type) stand before and after attention.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:739: "cannot be overlapped".
    """
    return implies(_kind(cluster) in ("all_gather", "a2a"), np.logical_not(cp_overlap))


def softmax_attention_alone_is_exchanged(model: Model, cluster: Cluster, *, cp: Ints) -> Holds:
    """Context parallelism of compressed attention and of indexers has a ring of its own (settings.cp_comm_type)."""
    blocks = [kind.attention for kind in model.kinds]
    own = any(isinstance(one, CompressedAttention) or getattr(one, "indexer", None) for one in blocks)
    return implies(np.greater(cp, 1) & own, _kind(cluster) in (None, "p2p"))


def windows_exclude_rings(model: Model, cluster: Cluster, *, cp: Ints) -> Holds:
    """
    Context-parallel rings have no attention in windows: only all_gather and a2a do (settings.cp_comm_type).

    References
    ----------
    Transformer Engine: "does not support sliding window attention with {cp_comm_type}".
    """
    windows = any(getattr(kind.attention, "window", None) for kind in model.kinds)
    return implies(np.greater(cp, 1) & windows, not _is_ring(cluster))


def _is_ring(cluster: Cluster) -> bool:
    """Return True for rings, which Megatron-LM's ranks form where nothing says another kind."""
    if _kind(cluster) is not None or cluster.framework is None:
        return _kind(cluster) in RINGS
    return "megatron-lm" in cluster.framework.targets and not cluster.device.behaviour.memory.context_output


def latent_attention_has_a_ring(model: Model, cluster: Cluster, *, cp: Ints) -> Holds:
    """
    Context parallelism of latent attention has a ring: p2p or a2a+p2p (settings.cp_comm_type).

    References
    ----------
    Transformer Engine: "does not support MLA with {cp_comm_type}".
    """
    latent = any(isinstance(kind.attention, LatentAttention) for kind in model.kinds)
    return implies(np.greater(cp, 1) & latent, _kind(cluster) in (None, *RINGS))


def samples_of_sequences_keep_plain_exchanges(cluster: Cluster, workload: Workload, *, cp: Ints) -> Holds:
    """
    Packed sequences are split over context-parallel ranks with p2p and a2a only (settings.cp_comm_type).

    References
    ----------
    Transformer Engine: qkv_format "thd" is refused by AttnFuncWithCPAndKVAllGather and by hierarchical groups.
    """
    is_packed = workload.lengths is not None
    return implies(np.greater(cp, 1) & is_packed, _kind(cluster) not in ("all_gather", "a2a+p2p"))


def dynamic_ranks_hold_their_sequences(workload: Workload, *, cp: Ints, dp: Ints, mbs: Ints) -> Holds:
    """
    With dynamic context parallelism, the longest sequence finds enough ranks of dp and cp, whose micro-batch holds it.

    References
    ----------
    megatron-core 0.16.1, pipeline_parallel/hybrid_cp_schedule.py, gpus_needed; parallel_state.py:940: an even number of
    ranks.
    """
    lengths = workload.lengths
    if lengths is None or lengths.dynamic_ranks is None or lengths.rank_tokens is None:
        return True
    ranks, tokens = np.asarray(dp) * cp, np.asarray(mbs) * workload.sequence_length
    found: Holds = (ranks >= lengths.dynamic_ranks.most) & (ranks % 2 == 0) & (lengths.rank_tokens * cp <= tokens)
    return found


def dynamic_ranks_exclude_pipelines(
    model: Model, cluster: Cluster, workload: Workload, *, pp: Ints, sharding: Ints, cuda_graphs: Ints
) -> Holds:
    """
    Dynamic context parallelism has a plain ring of softmax attention, no pipeline, no FSDP and no CUDA graph.

    References
    ----------
    megatron-core 0.16.1, pipeline_parallel/schedules.py:615: forward_backward_no_pipelining alone;
    transformer/multi_latent_attention.py:533. Megatron-LM, megatron/training/arguments.py, validate_args (recalled).
    """
    if workload.lengths is None or workload.lengths.rank_tokens is None:
        return True
    plain = all(isinstance(kind.attention, Attention) for kind in model.kinds) and _kind(cluster) in (None, "p2p")
    alone = np.equal(pp, 1) & np.less(sharding, Sharding.GRADIENTS) & np.equal(cuda_graphs, CudaGraphs.NONE)
    return alone & plain
