"""
Rules of frameworks: strategies that the hardware could run and today's frameworks or their settings refuse.

Lines of ``megatron/core`` are those of the wheel megatron-core 0.16.1; refusals of ``validate_args`` were seen by
running the real parser of Megatron-LM main d98e8a64 (2026-08-22, MCore 0.20.0). Settings are a job's ``settings``.
"""

from __future__ import annotations

import numpy as np

from constraints.rule import Flags, Holds, Ints, every, implies
from costmodel.facts.device import Cluster
from costmodel.facts.framework import has_values, lists
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    LinearAttention,
    Mlp,
    Model,
    SelectiveScan,
)
from costmodel.facts.workload import Workload
from costmodel.lowering.framework import MUON, NARROW_WEIGHTS
from costmodel.lowering.layer import recomputes
from costmodel.strategy import (
    MODULES,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    TokenDispatcher,
    Vocabulary,
    captures,
)

MEGATRON_MODULES = {
    "core_attention": "core_attn",
    "qkv": "mla_up_proj",
    "norms": "layernorm",
    "mlp": "mlp",
    "shared_experts": "shared_experts",
    "expert_activation": "moe_act",
    "experts": "moe",
}
"""Our modules in ``--recompute-modules`` (megatron/core/transformer/transformer_config.py:1198)."""


def recomputable_modules(model: Model) -> tuple[str, ...]:
    """Return our names of the modules that ``--recompute-modules`` can recompute one by one."""
    blocks = {type(block) for kind in model.kinds for block in kind.blocks}
    of_experts = dict.fromkeys(("shared_experts", "expert_activation", "experts"), Experts in blocks)
    has = {"qkv": bool({LatentAttention, CompressedAttention} & blocks), "mlp": Mlp in blocks, **of_experts}
    return tuple(name for name in MEGATRON_MODULES if has.get(name, True))


def recomputation_of(model: Model, cluster: Cluster) -> str:
    """Return a sentence with the modules that may be recomputed: Megatron-LM's, and those of the release."""
    own = cluster.framework.features.get("recompute", ()) if cluster.framework else ()
    named = dict.fromkeys((*recomputable_modules(model), *(name for name in own if name in MODULES)))
    modules = ", ".join(MEGATRON_MODULES.get(name, name) for name in named)
    return f"Write recompute=core_attn, or modules of {model.name} joined by +: {modules}."


def pipelines_run_1f1b_or_what_the_release_has(cluster: Cluster, *, schedule: Ints) -> Holds:
    """
    Pipelines run 1F1B, plain or interleaved, or another schedule of the framework's release (cluster.framework).

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func: no other one. PyTorch 2.13
    (torchtitan) has GPipe, ZB-V and DualPipeV too; ZB-H1, ZB-H2, ZB-2p and V-Half are in the authors' fork of
    Megatron-LM only, DualPipe in DeepSeek's own code.
    """
    if lists(cluster.framework, "schedule"):
        return has_values(cluster.framework, "schedule", schedule)
    return np.equal(schedule, Schedule.ONE_F_ONE_B)


def vocabulary_is_whole_or_as_the_release_has_it(cluster: Cluster, *, vocabulary: Ints) -> Holds:
    """
    Embedding and head are on the first and last pipeline rank, or where the framework's release can place them.

    References
    ----------
    Megatron-LM, megatron/core/models/gpt/gpt_model.py, pre_process and post_process; its
    ``--decoder-last-pipeline-num-layers`` redistributes layers. Slices are in the fork of arXiv 2411.05288 only.
    """
    if lists(cluster.framework, "vocabulary"):
        return has_values(cluster.framework, "vocabulary", vocabulary)
    return np.less_equal(vocabulary, Vocabulary.REDISTRIBUTED)


def interleaved_groups_fit_the_step(*, num_microbatches: Ints, vpp: Ints, group: Ints, schedule: Ints) -> Holds:
    """
    With interleaved virtual stages (vpp above 1), a group holds at most all micro-batches.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py:981 (of megatron-core 0.14.0).
    """
    return implies(_interleaves(vpp, schedule), group <= num_microbatches)


def interleaving_needs_whole_groups_of_microbatches(
    *, num_microbatches: Ints, pp: Ints, vpp: Ints, group: Ints, schedule: Ints
) -> Holds:
    """
    Interleaved stages (vpp above 1) take micro-batches in groups (of pp); a last, smaller one has at least pp.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py:1007; megatron/core/model_parallel_config.py:448 sets
    groups to pp. V-shaped schedules have no groups: V-Half ran 128 micro-batches on 24 ranks (arXiv 2411.05288).
    """
    rest = num_microbatches % group
    return implies(_interleaves(vpp, schedule), (rest == 0) | (rest >= pp))


def two_rank_interleaving_needs_pp_overlap(*, pp: Ints, vpp: Ints, pp_overlap: Flags) -> Holds:
    """
    With virtual stages (vpp above 1) on only two pipeline ranks, pipeline communication is overlapped.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args.
    """
    return implies((vpp > 1) & (pp == 2), pp_overlap)


def pp_overlap_needs_interleaving(*, vpp: Ints, pp_overlap: Flags) -> Holds:
    """
    Only the interleaved schedule (vpp above 1) overlaps pipeline communication.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: switches the overlap off without virtual stages.
    """
    return implies(pp_overlap, vpp > 1)


def tp_overlap_needs_sequence_parallelism(*, sequence_parallel: Flags, tp_overlap: Flags) -> Holds:
    """
    Tensor-parallel communication is overlapped only together with sequence parallelism.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args; torchtitan/distributed/compile.py:75.
    """
    return implies(tp_overlap, sequence_parallel)


def tp_overlap_excludes_block_scales(workload: Workload, *, tp_overlap: Flags) -> Holds:
    """
    Tensor-parallel communication overlaps neither in NVFP4 nor in FP8 with scales of blocks.

    References
    ----------
    Transformer Engine 2.20, transformer_engine/pytorch/module/base.py:754: "Unsupported quantizer for Userbuffers" but
    for FP8 with one scale per tensor and MXFP8.
    """
    precision = workload.precision
    has_blocks = precision.compute == "nvfp4" or precision.name == "fp8_blockwise"
    return implies(tp_overlap, not has_blocks)


def experts_need_sequence_parallelism(model: Model, *, tp: Ints, sequence_parallel: Flags) -> Holds:
    """
    A model with experts on tensor-parallel ranks (tp above 1) uses sequence parallelism.

    References
    ----------
    Megatron-LM, megatron/core/transformer/moe/moe_layer.py:379.
    """
    return implies(model.has_experts & (tp > 1), sequence_parallel)


def gated_delta_layers_exclude_cp(model: Model, *, cp: Ints) -> Holds:
    """
    A model with gated delta layers (KDA among them) has no context parallelism (cp is 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:983; Megatron-Bridge,
    src/megatron/bridge/models/kimi/kimi_k3_layers.py.
    """
    attentions = [kind.attention for kind in model.kinds]
    return implies(any(isinstance(a, LinearAttention) and a.variant != "lightning" for a in attentions), cp == 1)


def selective_scans_exclude_cp(model: Model, *, cp: Ints) -> Holds:
    """
    A model with Mamba layers of the first generation has no context parallelism (cp is 1).

    References
    ----------
    mamba-ssm, ``selective_scan_interface.py``: a rank's recurrence begins with an empty state.
    """
    return implies(any(isinstance(kind.attention, SelectiveScan) for kind in model.kinds), cp == 1)


def indexers_exclude_cp(model: Model, *, cp: Ints) -> Holds:
    """
    A model whose attention chooses the keys of each query (DSA) has no context parallelism (cp is 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1989 (core 0.16.1): "not supported by DSAttention".
    """
    return implies(bool(model.indexers), cp == 1)


def snapshots_exclude_interleaving(model: Model, *, vpp: Ints) -> Holds:
    """
    A model with attention residuals has one chunk on each pipeline rank (vpp is 1).

    References
    ----------
    Megatron-Bridge, src/megatron/bridge/models/kimi/kimi_k3_layers.py.
    """
    return implies(any(kind.snapshots for kind in model.kinds), vpp == 1)


def ep_overlap_excludes_full_recompute(*, recompute: Ints, ep_overlap: Flags) -> Holds:
    """
    Expert-parallel communication is not overlapped while layers are recomputed in full.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1871.
    """
    return implies(ep_overlap, recompute != Recompute.FULL)


def ep_overlap_in_a_pipeline_needs_interleaving(*, pp: Ints, vpp: Ints, ep_overlap: Flags) -> Holds:
    """
    In a pipeline (pp above 1), expert-parallel communication is overlapped only with virtual stages (vpp above 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1857.
    """
    return implies((pp > 1) & ep_overlap, vpp > 1)


def ep_overlap_allows_one_mtp_layer(model: Model, *, ep_overlap: Flags) -> Holds:
    """
    Expert-parallel communication is overlapped in models with at most one multi-token-prediction layer.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1889.
    """
    return implies(ep_overlap, len(model.mtp_layers) <= 1)


def ep_overlap_with_mtp_needs_a_pipeline(model: Model, *, pp: Ints, ep_overlap: Flags) -> Holds:
    """
    With multi-token prediction, expert-parallel communication is overlapped only in a pipeline (pp above 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1892 (of megatron-core 0.16.1).
    """
    return implies(ep_overlap, (not model.mtp_layers) | (pp > 1))


def whole_gradients_wait(cluster: Cluster, *, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    Data-parallel communication overlaps only with sharded optimizer states, unless the release reduces earlier.

    References
    ----------
    DeepSpeed, deepspeed/runtime/engine.py: without ZeRO gradients are reduced after the backward pass. Megatron-LM
    reduces each bucket during it (--overlap-grad-reduce); ``overlaps_whole_gradients`` of a framework's entry says so.
    """
    reduces_earlier = cluster.framework is not None and cluster.framework.overlaps_whole_gradients
    return implies(dp_overlap, (sharding >= Sharding.OPTIMIZER) | reduces_earlier)


def optimizer_offload_needs_a_sharded_optimizer(
    *, cp: Ints, dp: Ints, sharding: Ints, optimizer_offload: Flags
) -> Holds:
    """
    With replicas of the weights (dp times cp above 1), the optimizer is offloaded only with sharded optimizer states.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py: --optimizer-cpu-offload needs --use-precision-aware-optimizer, which
    needs the distributed optimizer (megatron/core/optimizer/optimizer_config.py:379).
    """
    return implies(optimizer_offload & (dp * cp > 1), sharding >= Sharding.OPTIMIZER)


def context_parallel_rings_overlap(cluster: Cluster, *, cp: Ints, cp_overlap: Flags) -> Holds:
    """
    Context-parallel ranks (cp above 1) that pass keys and values in a ring overlap that with attention.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:737: the ring's sends are asynchronous; there is no
    option that makes them wait. All-to-alls (``--cp-comm-type a2a``) stand before and after the attention.
    """
    kind, memory = cluster.device.behaviour.communication.cp_comm_type, cluster.device.behaviour.memory
    has_ring = not memory.context_output if kind is None else kind.endswith("p2p")
    return implies((cp > 1) & has_ring, cp_overlap)


def sharded_gradients_are_overlapped(cluster: Cluster, *, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    With sharded gradients or weights (FSDP), data-parallel communication overlaps unless the release lets it wait.

    References
    ----------
    Megatron-LM, megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py:276 switches both overlaps on.
    ``sharded_gradients_may_wait`` of a framework's entry says which release does not.
    """
    may_wait = cluster.framework is not None and cluster.framework.sharded_gradients_may_wait
    return implies(np.greater_equal(sharding, Sharding.GRADIENTS), np.logical_or(dp_overlap, may_wait))


def pipelines_keep_gradients_whole(cluster: Cluster, *, pp: Ints, sharding: Ints) -> Holds:
    """
    Gradients and weights are sharded only without a pipeline (pp is 1), or where the release does both.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: --use-torch-fsdp2 is not supported with pipeline
    parallelism. DeepSpeed, deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipelines.
    PyTorch 2.13, torch/distributed/pipelining/stage.py:845 (torchtitan): gradients stay whole until the last
    micro-batch. ``shards_in_pipelines`` of a framework's entry says which release does both.
    """
    does_both = cluster.framework is not None and cluster.framework.shards_in_pipelines
    return implies(np.greater_equal(sharding, Sharding.GRADIENTS), np.equal(pp, 1) | does_both)


def recomputed_modules_have_names(model: Model, cluster: Cluster, *, recompute: Ints) -> Holds:
    """
    Recomputation is none, full, or of the model's modules that Megatron-LM (selective: core_attn) or the release names.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1198; mla_up_proj needs latent attention (1218),
    moe_act grouped experts (1213).
    """
    own = cluster.framework.features.get("recompute", ()) if cluster.framework else ()
    named = (*recomputable_modules(model), *(name for text in own for name in text.split("+")))
    nameless = (name for name in MODULES if name not in named)
    return every(np.logical_not(recomputes(name, recompute=recompute)) for name in nameless)


def delayed_scaling_keeps_what_norms_put_out(workload: Workload, *, recompute: Ints) -> Holds:
    """
    With delayed FP8 scaling, norms and the activation of experts are not recomputed as modules.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1242.
    """
    norms, activation, whole = (
        recomputes(name, recompute=recompute) for name in ("norms", "expert_activation", "experts")
    )
    return implies(workload.precision.name == "fp8", np.logical_not(norms | (activation & ~whole)))


def ep_overlap_excludes_recomputed_experts(*, recompute: Ints, ep_overlap: Flags) -> Holds:
    """
    Expert-parallel communication is not overlapped while experts are recomputed.

    References
    ----------
    Megatron-LM main d98e8a64, megatron/core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm: no
    ``moe`` among the recomputed modules, whose dispatch would run again.
    """
    return implies(ep_overlap, np.logical_not(recomputes("experts", recompute=recompute)))


def biased_experts_stay_whole(model: Model, *, etp: Ints) -> Holds:
    """
    Experts with biases are not split over tensor-parallel ranks (etp is 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1590.
    """
    has_bias = any(isinstance(kind.feed_forward, Experts) and kind.feed_forward.bias for kind in model.kinds)
    return implies(has_bias, np.equal(etp, 1))


def offloading_in_pipelines_is_for_experts(
    model: Model, *, pp: Ints, recompute: Ints, activation_offload: Flags
) -> Holds:
    """
    With a pipeline or recomputation, activations are offloaded only if all layers are attention and experts.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1144: offloading whole layers excludes pipelines, and
    line 1149 recomputation. Offloading modules (line 1273) knows norms, attention and routed experts
    (megatron/core/transformer/moe/experts.py:578), but neither dense feed-forwards nor shared experts.
    """
    return implies(activation_offload, _only_experts(model) | ((pp == 1) & (recompute == Recompute.NONE)))


def deepep_runs_within_nodes(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """
    DeepEP dispatches tokens on Ampere, Hopper and those Blackwell GPUs whose NVLink domain is one node.

    References
    ----------
    Megatron-Bridge 0.3.1, megatron/bridge/training/flex_dispatcher_backend.py:77: compute capability 8 or 9, or B200
    and B300; not GB200 and GB300, whose NVLink domains span nodes.
    """
    device = cluster.device
    one_node = device.architecture == "blackwell" and cluster.scale_up_size <= device.devices_per_node
    runs = device.architecture in ("ampere", "hopper") or one_node
    return implies(np.equal(token_dispatcher, TokenDispatcher.DEEPEP), runs)


def hybridep_runs_since_ampere(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """
    HybridEP dispatches tokens on Ampere, Hopper, Blackwell and Rubin GPUs.

    References
    ----------
    Megatron-Bridge 0.3.1, megatron/bridge/training/flex_dispatcher_backend.py:81; 0.4.0's recipes of VR200 use it.
    """
    runs = cluster.device.architecture in ("ampere", "hopper", "blackwell", "rubin")
    return implies(np.equal(token_dispatcher, TokenDispatcher.HYBRIDEP), runs)


def preprocess_graphs_hold_the_router(*, cuda_graphs: Ints) -> Holds:
    """
    CUDA graphs that hold the work before the dispatch (moe_preprocess) hold the router too (moe_router).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1747.
    """
    return implies(captures("moe_preprocess", cuda_graphs=cuda_graphs), captures("moe_router", cuda_graphs=cuda_graphs))


def graphs_of_modules_leave_routed_experts_out(*, cuda_graphs: Ints) -> Holds:
    """
    CUDA graphs of modules exclude whole MoE layers (moe), whose shapes vary as no tokens are dropped.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1764: only with a capacity factor and padding to it.
    """
    return np.logical_not(captures("moe", cuda_graphs=cuda_graphs))


def graphs_of_iterations_with_experts_need_hybridep(
    model: Model, *, token_dispatcher: Ints, cuda_graphs: Ints
) -> Holds:
    """
    With experts, a whole iteration is one CUDA graph only with HybridEP, which sends no token counts to the host.

    References
    ----------
    Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py:425: an all-to-all of unequal parts copies their
    sizes to the host and waits; DeepEP returns a list of counts. HybridEP waits only where it has no bound of tokens
    (981). All runs of Megatron-Bridge with experts and one graph are HybridEP's (performance summary, 26.06).
    """
    whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(model.has_experts & whole, np.equal(token_dispatcher, TokenDispatcher.HYBRIDEP))


def graphs_exclude_offloaded_layers(
    *, pp: Ints, recompute: Ints, activation_offload: Flags, cuda_graphs: Ints
) -> Holds:
    """
    With CUDA graphs, activations of whole layers are not offloaded (offload without pipeline and recomputation).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1722; offloading single modules is not refused.
    """
    whole = np.equal(pp, 1) & np.equal(recompute, Recompute.NONE)
    return implies(activation_offload & whole, np.equal(cuda_graphs, CudaGraphs.NONE))


def one_graph_with_experts_keeps_activations(model: Model, *, activation_offload: Flags, cuda_graphs: Ints) -> Holds:
    """
    With experts, activations are not offloaded where a whole iteration is one CUDA graph.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1691 (core 0.18.2): the paged stash that experts need
    there excludes offloading of its modules (expert_fc1, moe_act).
    """
    whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(model.has_experts & whole, np.logical_not(activation_offload))


def one_graph_with_experts_has_them_whole(model: Model, *, etp: Ints, cuda_graphs: Ints) -> Holds:
    """
    With experts, a whole iteration is one CUDA graph only where experts are not split (etp is 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/moe/experts.py:269 (core 0.18.2): the fused experts that the paged stash
    needs (use_transformer_engine_op_fuser) are of one rank each.
    """
    whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(model.has_experts & whole, np.equal(etp, 1))


def full_recompute_excludes_graphs_of_modules(*, recompute: Ints, cuda_graphs: Ints) -> Holds:
    """
    While layers are recomputed in full, a CUDA graph holds the whole iteration or there is none.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1781.
    """
    return implies(np.equal(recompute, Recompute.FULL), np.less_equal(cuda_graphs, CudaGraphs.FULL_ITERATION))


def recomputed_experts_exclude_graphs_of_routers(*, recompute: Ints, cuda_graphs: Ints) -> Holds:
    """
    While experts are recomputed, CUDA graphs of modules leave the router out.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1788.
    """
    return implies(
        recomputes("experts", recompute=recompute), np.logical_not(captures("moe_router", cuda_graphs=cuda_graphs))
    )


def ep_overlap_excludes_graphs_of_dense_layers(*, ep_overlap: Flags, cuda_graphs: Ints) -> Holds:
    """
    While expert-parallel communication is overlapped, CUDA graphs of modules leave dense feed-forwards out.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1898.
    """
    return implies(ep_overlap, np.logical_not(captures("mlp", cuda_graphs=cuda_graphs)))


def ep_overlap_is_for_gpt_models(model: Model, *, ep_overlap: Flags) -> Holds:
    """
    Models whose layers are single blocks (Mamba) do not overlap expert-parallel communication.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py:338 (of megatron-core 0.16.1): GPTModel alone has the
    schedule.
    """
    return implies(ep_overlap, not model.has_single_blocks)


def ep_overlap_in_one_graph_needs_fused_experts(cluster: Cluster, *, ep_overlap: Flags, cuda_graphs: Ints) -> Holds:
    """
    In a CUDA graph of the whole iteration, only releases with fused experts overlap expert-parallel communication.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1898 (of megatron-core 0.16.1) refuses both together;
    recipes of Megatron-Bridge from 26.06 on run so (performance summary: DeepSeek-V3 on GB300).
    """
    is_whole = np.equal(cuda_graphs, CudaGraphs.FULL_ITERATION)
    return implies(np.logical_and(ep_overlap, is_whole), cluster.device.behaviour.kernels.fuses_experts_in_graphs)


def _interleaves(vpp: Ints, schedule: Ints) -> Holds:
    """Return True where the chunks of a rank alternate in groups of micro-batches: 1F1B with several chunks."""
    return np.greater(vpp, 1) & np.equal(schedule, Schedule.ONE_F_ONE_B)


def _only_experts(model: Model) -> bool:
    """Return True if offloading modules covers every layer: attention and routed experts, without shared experts."""
    return all(
        isinstance(kind.attention, Attention | LatentAttention)
        and isinstance(kind.feed_forward, Experts)
        and not kind.feed_forward.shared_ffn_hidden_size
        for kind in model.kinds
    )


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
    return implies(_deals_matrices(cluster), np.logical_not(shares_in_groups(cluster, cp, dp, sharding)))


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
    return implies(shares_in_groups(cluster, cp, dp, sharding), dp * cp % group == 0)


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
    return implies(model.has_experts & shares_in_groups(cluster, cp, dp, sharding), even)


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


def shares_in_groups(cluster: Cluster, cp: Ints, dp: Ints, sharding: Ints) -> Holds:
    """Return True where optimizer states are sharded over groups smaller than the number of replicas."""
    group = cluster.device.behaviour.optimizer.sharding_ranks
    if group is None:
        return False
    return np.greater(sharding, Sharding.NONE) & np.greater(dp * cp, group)
