"""Rules of physics, for any framework: ranks, micro-batches, even splits, schedules, features, memory."""

from __future__ import annotations

from math import gcd, lcm
from typing import TypeVar

import numpy as np

from constraints.rule import Flags, Floats, Holds, Ints, every, implies
from costmodel.facts.device import Cluster
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.facts.workload import Workload
from costmodel.lowering.layer import GRAPH_MODULE
from costmodel.step.compute import layer_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.strategy import (
    BIDIRECTIONAL,
    GRAPH_MODULES,
    V_SHAPED,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    TokenDispatcher,
    Vocabulary,
    captures,
    is_one_of,
)
from costmodel.tables import Facts, lookup


def degrees_multiply_to_the_devices(cluster: Cluster, *, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
    """The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs."""
    return tp * cp * pp * dp == cluster.num_devices


def tp_stays_inside_a_scale_up_domain(cluster: Cluster, *, tp: Ints) -> Holds:
    """
    The search keeps each tensor-parallel group inside one scale-up domain (search.preferences).

    Frameworks run wider groups, slowly: GPT-NeoX with tp 8 on nodes of 4 devices (Zhang et al., arXiv:2509.22832).
    """
    return tp <= cluster.scale_up_size


def tp_groups_tile_the_nodes(cluster: Cluster, *, tp: Ints) -> Holds:
    """Each node holds whole tensor-parallel groups, or each group holds whole nodes."""
    node = min(cluster.device.devices_per_node, cluster.num_devices)
    return (node % tp == 0) | (tp % node == 0)


def sites_hold_whole_replicas(cluster: Cluster, *, dp: Ints) -> Holds:
    """Only data parallelism crosses sites: their number (cluster.sites.count) divides dp."""
    return np.equal(dp % cluster.num_sites, 0)


def sites_hold_whole_groups_of_experts(cluster: Cluster, *, tp: Ints, cp: Ints, dp: Ints, ep: Ints, etp: Ints) -> Holds:
    """Each site (cluster.sites) holds whole expert-parallel groups (ep, etp)."""
    return np.equal(tp * cp * dp % (cluster.num_sites * ep * etp), 0)


def sites_reduce_once_per_step(cluster: Cluster, *, sharding: Ints) -> Holds:
    """Between sites (cluster.sites) gradients cross once per step: ZeRO-2 and ZeRO-3 send in each micro-batch."""
    return implies(cluster.num_sites > 1, sharding < Sharding.GRADIENTS)


def virtual_stages_hold_something(model: Model, *, pp: Ints, vpp: Ints) -> Holds:
    """Every virtual pipeline stage (pp times vpp of them) holds a layer, the embedding or the head."""
    return pp * vpp <= model.num_layers + 2


def virtual_stages_hold_equally_much(model: Model, *, pp: Ints, vpp: Ints) -> Holds:
    """
    The search uses virtual stages (vpp above 1) that divide the layers, alone or with the ends (search.preferences).

    Embedding, head and MTP count as one layer each. Megatron-LM's interleaved schedule wants it unless a layout
    is written by hand (``megatron/core/transformer/transformer_config.py``, ``account_for_*_in_pipeline_split``), as
    Megatron-Bridge's recipes do for DeepSeek-V3 in two pipeline ranks of four chunks. The search takes the chunks of a
    rank for equal, even if they differ.
    """
    stages = pp * vpp
    in_place = model.num_layers + 2 + len(model.mtp_layers)
    even = np.logical_or(model.num_layers % stages == 0, in_place % stages == 0)
    return implies(vpp > 1, even)


def interleaving_needs_a_pipeline(*, pp: Ints, vpp: Ints) -> Holds:
    """Only a pipeline of at least two ranks has more than one virtual stage per rank (vpp)."""
    return implies(vpp > 1, pp > 1)


def global_batch_splits_over_ranks(workload: Workload, *, dp: Ints, mbs: Ints) -> Holds:
    """The global batch divides evenly into micro-batches of mbs sequences on dp ranks."""
    return workload.global_batch_size % (dp * mbs) == 0


def microbatches_fill_the_pipeline(*, num_microbatches: Ints, pp: Ints) -> Holds:
    """
    The search gives each data-parallel rank at least as many micro-batches as pipeline ranks (search.preferences).

    Fewer leave ranks idle all the time, but run (vTrain's measurements with Megatron-DeepSpeed, pp 4 and two of them).

    References
    ----------
    MoFa, arXiv 2511.09837, the constraints of equation (42).
    """
    return num_microbatches >= pp


Block = TypeVar("Block")


def heads_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns equally many whole attention heads, and whole groups of a grouped output."""
    return gcd(*(count for layer in model.kinds for count in _head_counts(layer))) % tp == 0


def kv_heads_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns whole key-value heads, or equally many ranks share each one."""
    counts = {attention.num_kv_heads for attention in _blocks(model, Attention)}
    return every((count % tp == 0) | (tp % count == 0) for count in counts)


def state_groups_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """
    Each tensor-parallel rank owns equally many whole groups of state-space heads.

    Heads are multiples of groups, so that they are split evenly too.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_mixer.py:258.
    """
    return gcd(*(mamba.num_groups for mamba in _blocks(model, Mamba))) % tp == 0


def state_heads_split_over_cp(model: Model, *, tp: Ints, cp: Ints) -> Holds:
    """
    Each context-parallel rank owns equally many whole state-space heads of its tensor-parallel rank.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_context_parallel.py:99: tokens are exchanged for heads.
    """
    return gcd(*(mamba.num_heads for mamba in _blocks(model, Mamba))) % (tp * cp) == 0


def channels_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns equally many channels of short convolutions and of first-generation Mamba."""
    first, short = _blocks(model, SelectiveScan), _blocks(model, ShortConvolution)
    return gcd(*(block.channels for block in first), *(block.channels for block in short)) % tp == 0


def dense_widths_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns an equal part of every dense feed-forward block."""
    return gcd(*(mlp.ffn_hidden_size for mlp in _blocks(model, Mlp))) % tp == 0


def shared_expert_widths_split_over_tp(model: Model, *, tp: Ints) -> Holds:
    """Each tensor-parallel rank owns an equal part of every shared expert."""
    return gcd(*(experts.shared_ffn_hidden_size for experts in _blocks(model, Experts))) % tp == 0


def expert_widths_split_over_etp(model: Model, *, etp: Ints) -> Holds:
    """Each expert-tensor-parallel rank owns an equal part of every routed expert that it serves."""
    return gcd(*(experts.ffn_hidden_size for experts in _blocks(model, Experts))) % etp == 0


def sequence_splits_over_cp(workload: Workload, *, cp: Ints) -> Holds:
    """Each context-parallel rank owns two equal pieces of the sequence, an early and a late one."""
    return (cp == 1) | (workload.sequence_length % (2 * cp) == 0)


def entries_split_over_cp(model: Model, workload: Workload, *, cp: Ints) -> Holds:
    """Each context-parallel rank owns whole compressed entries of both its pieces of the sequence."""
    tokens = lcm(*(attention.ratio or 1 for attention in _blocks(model, CompressedAttention)))
    return (cp == 1) | (workload.sequence_length % (2 * cp * tokens) == 0)


def sequence_splits_over_tp(workload: Workload, *, tp: Ints, cp: Ints, sequence_parallel: Flags) -> Holds:
    """With sequence parallelism, each tensor-parallel rank owns an equal piece of its context-parallel sequence."""
    return implies(sequence_parallel, workload.sequence_length % (tp * cp) == 0)


def _head_counts(layer: Layer) -> tuple[int, ...]:
    if isinstance(layer.attention, LinearAttention):
        return layer.attention.num_key_heads, layer.attention.num_value_heads
    if isinstance(layer.attention, CompressedAttention):
        return layer.attention.num_heads, layer.attention.num_groups
    return (layer.attention.num_heads,) if isinstance(layer.attention, Attention | LatentAttention) else ()


def _blocks(model: Model, kind: type[Block]) -> list[Block]:
    return [block for layer in model.kinds for block in layer.blocks if isinstance(block, kind)]


def experts_split_over_ep(model: Model, *, ep: Ints) -> Holds:
    """Each expert-parallel rank owns equally many whole experts."""
    counts = (kind.feed_forward.num_experts for kind in model.kinds if isinstance(kind.feed_forward, Experts))
    return gcd(*counts) % ep == 0


def expert_degrees_need_experts(model: Model, *, ep: Ints, etp: Ints) -> Holds:
    """Only a model with experts has expert-parallel degrees (ep, etp) above 1."""
    return model.has_experts | ((ep == 1) & (etp == 1))


def expert_groups_tile_a_stage(*, tp: Ints, cp: Ints, dp: Ints, ep: Ints, etp: Ints) -> Holds:
    """The ranks of a pipeline stage (tp times cp times dp) hold whole expert-parallel groups (ep times etp)."""
    return (tp * cp * dp) % (ep * etp) == 0


def experts_split_like_attention_or_not_at_all(*, tp: Ints, etp: Ints) -> Holds:
    """Experts are split over all tensor-parallel ranks or over none (etp is tp or 1)."""
    return (etp == 1) | (etp == tp)


LONG_WARMUPS = (Schedule.ZB_H2, Schedule.ZB_2P, Schedule.ZB_V)
"""Schedules whose first rank does 2 p - 1 forward passes before the first backward one."""

TWO_WAYS = (Schedule.DUALPIPE, Schedule.DUALPIPEV)
"""Schedules that run micro-batches through the pipeline in both directions."""


def schedules_need_a_pipeline(*, pp: Ints, schedule: Ints) -> Holds:
    """Only a pipeline (pp above 1) has another schedule than 1F1B."""
    return implies(schedule != Schedule.ONE_F_ONE_B, pp > 1)


def v_shapes_have_two_chunks(*, vpp: Ints, schedule: Ints) -> Holds:
    """The V-shaped schedules (zb_v, v_half, dualpipev) have two chunks per rank (vpp is 2)."""
    return implies(is_one_of(schedule, V_SHAPED), vpp == 2)


def only_1f1b_interleaves(*, vpp: Ints, schedule: Ints) -> Holds:
    """
    The schedules gpipe, zb_h1, zb_h2, zb_2p and dualpipe have one chunk per rank (vpp is 1).

    DualPipe's ranks hold a stage for each direction, which counts as one. Interleaved versions of the others (such as
    PyTorch's ``ScheduleInterleavedZeroBubble``) have no formula here.
    """
    others = (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_2P, *BIDIRECTIONAL)
    return implies(is_one_of(schedule, others), vpp == 1)


def only_chunks_pass_in_groups(*, vpp: Ints, group: Ints) -> Holds:
    """Only ranks with several chunks (vpp above 1) have micro-batch groups larger than one."""
    return implies(vpp == 1, np.equal(group, 1))


def groups_reach_through_the_pipeline(*, pp: Ints, vpp: Ints, group: Ints) -> Holds:
    """
    With interleaved chunks (vpp above 1), a group holds at least as many micro-batches as there are pipeline ranks.

    With fewer, the first rank would wait for its second chunk's input.
    """
    return implies(vpp > 1, np.greater_equal(group, pp))


def long_warmups_need_microbatches(*, num_microbatches: Ints, pp: Ints, schedule: Ints) -> Holds:
    """
    Schedules that fill their warm-up (zb_h2, zb_2p, zb_v) have at least two micro-batches per pipeline rank.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 3: 2 p - 1 forward passes come first. PyTorch's ``ScheduleZBVZeroBubble``
    plays at least as many.
    """
    return implies(is_one_of(schedule, LONG_WARMUPS), num_microbatches >= 2 * pp - 1)


def two_ways_need_microbatches(*, num_microbatches: Ints, pp: Ints, schedule: Ints) -> Holds:
    """
    The schedules dualpipe and dualpipev have at least two micro-batches per pipeline rank.

    References
    ----------
    github.com/deepseek-ai/DualPipe, ``dualpipe.py`` and ``dualpipev.py``, ``step``: the assertions at its beginning.
    """
    return implies(is_one_of(schedule, TWO_WAYS), num_microbatches >= 2 * pp)


def two_ends_have_even_ranks(*, pp: Ints, schedule: Ints) -> Holds:
    """The schedules dualpipe and v_half have an even number of pipeline ranks (pp)."""
    return implies(is_one_of(schedule, (Schedule.V_HALF, *BIDIRECTIONAL)), pp % 2 == 0)


def two_ends_share_the_microbatches(*, num_microbatches: Ints, schedule: Ints) -> Holds:
    """The schedule dualpipe has an even number of micro-batches: half of them start at each end."""
    return implies(is_one_of(schedule, BIDIRECTIONAL), num_microbatches % 2 == 0)


def vocabulary_moves_in_a_pipeline(*, pp: Ints, vocabulary: Ints) -> Holds:
    """Only a pipeline (pp above 1) keeps embedding and head elsewhere than at its ends."""
    return implies(vocabulary != Vocabulary.ENDS, pp > 1)


def redistribution_is_for_one_chunk(*, vpp: Ints, vocabulary: Ints) -> Holds:
    """Layers are redistributed around the head only in pipelines of one chunk per rank (vpp is 1)."""
    return implies(vocabulary == Vocabulary.REDISTRIBUTED, vpp == 1)


def vocabulary_moves_without_mtp(model: Model, *, vocabulary: Ints) -> Holds:
    """
    In a model with multi-token prediction, embedding and head stay at the ends of the pipeline.

    Its layers are on the last rank, as is the head that they share; no published way splits both.
    """
    return implies(vocabulary != Vocabulary.ENDS, not model.mtp_layers)


def fits_in_device_memory(cluster: Cluster, *, device_bytes: Floats, memory_headroom_bytes: Floats) -> Holds:
    """Model states, activations and headroom fit in the memory of every GPU."""
    return device_bytes + memory_headroom_bytes <= cluster.device.memory_bytes


def fits_in_host_memory(cluster: Cluster, *, host_bytes: Floats) -> Holds:
    """Offloaded activations and optimizer states fit in each GPU's share of the host memory."""
    return host_bytes <= cluster.device.host_memory_bytes


def profile_has_measured_the_shapes(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Ints,
    cp: Ints,
    ep: Ints,
    etp: Ints,
    mbs: Ints,
    sequence_parallel: Flags,
) -> Holds:
    """The device's calibration has measured operators of these shapes, or computes their times."""
    if cluster.device.constants.times != "measured":
        return True
    facts = Facts(model=model, cluster=cluster, workload=workload)
    degrees = {"tp": tp, "cp": cp, "dp": 1, "ep": ep, "etp": etp, "mbs": mbs, "sequence_parallel": sequence_parallel}
    whole = {"pp": 1, "vocabulary": Vocabulary.ENDS, "cuda_graphs": CudaGraphs.NONE}
    layer = degrees | {"token_dispatcher": TokenDispatcher.ALLTOALL, "cuda_graphs": CudaGraphs.NONE}
    layers, edges = lookup(layer_seconds, facts, layer), lookup(embedding_head_seconds, facts, degrees | whole)
    return np.logical_and(np.isfinite(layers.forward).all(axis=-1), np.isfinite(edges.head))


def sequence_parallelism_needs_tp(*, tp: Ints, sequence_parallel: Flags) -> Holds:
    """Only tensor-parallel ranks (tp above 1) use sequence parallelism."""
    return implies(sequence_parallel, tp > 1)


def tp_overlap_needs_tp(*, tp: Ints, tp_overlap: Flags) -> Holds:
    """Only tensor-parallel ranks (tp above 1) have tensor-parallel communication to overlap."""
    return implies(tp_overlap, tp > 1)


def cp_overlap_needs_cp(*, cp: Ints, cp_overlap: Flags) -> Holds:
    """Only context-parallel ranks (cp above 1) have context-parallel communication to overlap."""
    return implies(cp_overlap, cp > 1)


def ep_overlap_needs_ep(*, ep: Ints, ep_overlap: Flags) -> Holds:
    """Only expert-parallel ranks (ep above 1) have expert-parallel communication to overlap."""
    return implies(ep_overlap, ep > 1)


def dispatchers_need_ep(*, ep: Ints, token_dispatcher: Ints) -> Holds:
    """Only expert-parallel ranks (ep above 1) use another token dispatcher than alltoall."""
    return implies(token_dispatcher != int(TokenDispatcher.ALLTOALL), ep > 1)


def graphs_hold_what_the_model_has(model: Model, *, cuda_graphs: Ints) -> Holds:
    """CUDA graphs hold only modules that the model has (attention, dense feed-forwards, experts, Mamba layers)."""
    had = graph_modules(model)
    return every(~captures(name, cuda_graphs=cuda_graphs) for name in GRAPH_MODULES if name not in had)


def graph_modules(model: Model) -> tuple[str, ...]:
    """Modules that CUDA graphs of a model may hold."""
    whole = {GRAPH_MODULE.get(type(block)) for layer in model.kinds for block in layer.blocks}
    routed = ("moe", "moe_router", "moe_preprocess") if model.has_experts else ()
    return tuple(name for name in GRAPH_MODULES if name in whole or name in routed)


def pp_overlap_needs_pp(*, pp: Ints, pp_overlap: Flags) -> Holds:
    """Only pipeline ranks (pp above 1) have pipeline communication to overlap."""
    return implies(pp_overlap, pp > 1)


def dp_overlap_needs_replicas(*, cp: Ints, dp: Ints, dp_overlap: Flags) -> Holds:
    """Only with replicas of the weights (dp times cp above 1) is there data-parallel communication to overlap."""
    return implies(dp_overlap, dp * cp > 1)


def sharding_needs_replicas(*, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """Only replicas of the weights (dp times cp above 1) shard optimizer states, gradients or weights."""
    return implies(sharding > Sharding.NONE, dp * cp > 1)


def full_recompute_leaves_nothing_to_offload(cluster: Cluster, *, recompute: Ints, activation_offload: Flags) -> Holds:
    """
    Activations are either recomputed in full or offloaded, not both, if the inputs of layers stay on the device.

    References
    ----------
    MoFa, arXiv 2511.09837, equations (31) and (33): full recomputation and offloading leave the same bytes, the
    inputs of the layers, and Table 5 uses one or the other.
    """
    keeps_inputs = cluster.device.behaviour.memory.offload_keeps_inputs
    return implies(activation_offload & keeps_inputs, recompute != Recompute.FULL)


def gradient_sharding_excludes_pipelines(*, pp: Ints, sharding: Ints) -> Holds:
    """
    The search shards gradients and weights (ZeRO-2, ZeRO-3, FSDP) only without a pipeline (search.preferences).

    They would be communicated again for every micro-batch of every stage, and the step time has no term for ranks whose
    pace such communication sets. Most frameworks refuse it (``frameworks.pipelines_keep_gradients_whole``).
    """
    return implies(sharding >= Sharding.GRADIENTS, pp == 1)
