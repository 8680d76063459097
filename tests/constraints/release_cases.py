"""Cases of the rules about a framework's release and its settings, and what a case is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from constraints.rule import Rule
from constraints.rules import context, frameworks, releases
from costmodel import catalog
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Settings
from costmodel.facts.model import Model
from costmodel.facts.workload import SequenceLengths, Workload
from costmodel.strategy import CudaGraphs, Recompute, Sharding, TokenDispatcher
from costmodel.tables import Facts, tabulate
from tests.builders_cluster import a_cluster, a_device, a_workload, achieved
from tests.constraints.models import COMPRESSED, DENSE, DENSE_LAYER, LATENT, SPARSE, STATE_SPACE, a_stack


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to change about a strategy of ones so that the rule holds, and so that it does not."""

    rule: Rule
    allowed: dict[str, Any]
    refused: dict[str, Any]
    model: Model = field(default=DENSE, repr=False)
    cluster: Cluster = field(default_factory=a_cluster, repr=False)
    workload: Workload = field(default_factory=a_workload, repr=False)


def in_a_table_and_alone(rule: Rule, given: Facts, table: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[bool]]:
    """What a rule says of the strategies of a table at once, and of one after the other."""
    rows = len(next(iter(table.values())))
    one_by_one = (tabulate(rule, given, {name: table[name][row].item() for name in table}) for row in range(rows))
    return np.broadcast_to(tabulate(rule, given, table), rows), [bool(answer) for answer in one_by_one]


def on(framework: str) -> Cluster:
    """The test devices under a release of the catalog."""
    return replace(a_cluster(), framework=catalog.framework(framework))


def exchanging(kind: str) -> Cluster:
    """The test devices with context-parallel communication of a kind; near ranks are pairs."""
    near = 2 if kind == "a2a+p2p" else None
    return a_cluster(**achieved(a_device(), cp_comm_type=kind, cp_a2a_ranks=near))


OF_2021 = on("megatron-lm-2021")
DEALT = a_workload(lengths=SequenceLengths(lengths=(1024, 4096), counts=(4.0, 1.0), rank_tokens=1024))

DELAYED = {"ep": 2, "ep_overlap": True, "cuda_graphs": CudaGraphs.of("attn")}
MUON = replace(a_cluster(), settings=Settings(optimizer="dist_muon"))
NARROW_MOMENTS = replace(a_cluster(), settings=Settings(moments_dtype="bf16"))
BESIDE = a_cluster(**achieved(a_device(), shared_expert_overlap=True))
IN_EIGHTS = a_cluster(**achieved(a_device(), sharding_ranks=8))

RELEASE_CASES = (
    Case(
        rule=frameworks.one_graph_with_experts_keeps_activations,
        allowed={"activation_offload": True, "cuda_graphs": CudaGraphs.of("attn")},
        refused={"activation_offload": True, "cuda_graphs": CudaGraphs.FULL_ITERATION},
        model=SPARSE,
    ),
    Case(
        rule=frameworks.one_graph_with_experts_has_them_whole,
        allowed={"tp": 2, "etp": 2, "cuda_graphs": CudaGraphs.of("attn")},
        refused={"tp": 2, "etp": 2, "cuda_graphs": CudaGraphs.FULL_ITERATION},
        model=SPARSE,
    ),
    Case(
        rule=frameworks.tp_overlap_excludes_block_scales,
        allowed={"tp": 2},
        refused={"tp": 2, "tp_overlap": True},
        workload=replace(a_workload(), precision=catalog.precision("nvfp4")),
    ),
    Case(
        rule=frameworks.pipelines_keep_gradients_whole,
        allowed={"dp": 2, "pp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "pp": 2, "sharding": Sharding.GRADIENTS},
    ),
    Case(
        rule=frameworks.ep_overlap_is_for_gpt_models,
        allowed={"ep": 2},
        refused={"ep": 2, "ep_overlap": True},
        model=STATE_SPACE,
    ),
    Case(
        rule=frameworks.ep_overlap_in_one_graph_needs_fused_experts,
        allowed={"ep": 2, "ep_overlap": True},
        refused={"ep": 2, "ep_overlap": True, "cuda_graphs": CudaGraphs.FULL_ITERATION},
    ),
    # Megatron-LM of 2021 trains dense models in pipelines, and shares, offloads and overlaps nothing
    Case(rule=releases.release_has_context_parallelism, allowed={"tp": 2}, refused={"cp": 2}, cluster=OF_2021),
    Case(rule=releases.release_has_expert_parallelism, allowed={}, refused={"ep": 2}, cluster=OF_2021),
    Case(
        rule=releases.release_has_sequence_parallelism,
        allowed={"tp": 2},
        refused={"tp": 2, "sequence_parallel": True},
        cluster=OF_2021,
    ),
    Case(rule=releases.release_shards_as_much, allowed={}, refused={"sharding": Sharding.OPTIMIZER}, cluster=OF_2021),
    Case(
        rule=releases.release_recomputes_the_same,
        allowed={"recompute": Recompute.FULL},
        refused={"recompute": Recompute.of("core_attention")},
        cluster=OF_2021,
    ),
    Case(rule=releases.release_offloads_activations, allowed={}, refused={"activation_offload": True}, cluster=OF_2021),
    Case(
        rule=releases.release_offloads_the_optimizer, allowed={}, refused={"optimizer_offload": True}, cluster=OF_2021
    ),
    Case(
        rule=releases.release_has_the_token_dispatcher,
        allowed={"ep": 2},
        refused={"ep": 2, "token_dispatcher": TokenDispatcher.HYBRIDEP},
        model=SPARSE,
        cluster=OF_2021,
    ),
    Case(
        rule=releases.release_captures_cuda_graphs,
        allowed={},
        refused={"cuda_graphs": CudaGraphs.FULL_ITERATION},
        cluster=OF_2021,
    ),
    Case(rule=releases.release_overlaps_tp, allowed={"tp": 2}, refused={"tp": 2, "tp_overlap": True}, cluster=OF_2021),
    Case(rule=releases.release_overlaps_ep, allowed={}, refused={"ep_overlap": True}, cluster=OF_2021),
    Case(rule=releases.release_overlaps_pp, allowed={"pp": 2}, refused={"pp": 2, "pp_overlap": True}, cluster=OF_2021),
    Case(rule=releases.release_overlaps_dp, allowed={"dp": 2}, refused={"dp": 2, "dp_overlap": True}, cluster=OF_2021),
    # llm-foundry is FSDP alone, DeepSpeed's pipelines have one stage per rank
    Case(
        rule=releases.release_has_tensor_parallelism,
        allowed={"dp": 2},
        refused={"tp": 2},
        cluster=on("llm-foundry-0.6"),
    ),
    Case(rule=releases.release_has_pipelines, allowed={"dp": 2}, refused={"pp": 2}, cluster=on("llm-foundry-0.6")),
    Case(
        rule=releases.release_has_virtual_stages,
        allowed={"pp": 2},
        refused={"pp": 2, "vpp": 2},
        cluster=on("megatron-deepspeed-2022"),
    ),
)

SETTING_CASES = (
    # EXPERT_LAYER has a shared expert
    Case(
        rule=frameworks.overlapped_shared_experts_need_alltoall,
        allowed={"ep": 2},
        refused={"ep": 2, "token_dispatcher": TokenDispatcher.DEEPEP},
        model=SPARSE,
        cluster=BESIDE,
    ),
    Case(
        rule=frameworks.overlapped_shared_experts_exclude_ep_overlap,
        allowed={"ep": 2},
        refused={"ep": 2, "ep_overlap": True},
        model=SPARSE,
        cluster=BESIDE,
    ),
    Case(
        rule=frameworks.overlapped_shared_experts_are_kept,
        allowed={"recompute": Recompute.FULL},
        refused={"recompute": Recompute.of("shared_experts")},
        model=SPARSE,
        cluster=BESIDE,
    ),
    Case(
        rule=frameworks.delayed_weight_gradients_need_ep_overlap,
        allowed={"ep": 2, "ep_overlap": True},
        refused={"ep": 2},
        model=SPARSE,
        cluster=replace(a_cluster(), settings=Settings(delay_wgrad=True)),
    ),
    Case(
        rule=frameworks.delayed_weight_gradients_in_graphs_accumulate_in_matmuls,
        allowed={**DELAYED, "dp": 2, "dp_overlap": True, "sharding": Sharding.OPTIMIZER},
        refused={**DELAYED, "dp": 2, "dp_overlap": True, "sharding": Sharding.WEIGHTS},
        model=SPARSE,
        cluster=replace(a_cluster(), settings=Settings(delay_wgrad=True)),
    ),
    Case(
        rule=frameworks.delayed_weight_gradients_in_graphs_have_no_bias,
        allowed={**DELAYED, "dp": 2},
        refused={**DELAYED, "dp": 2, "dp_overlap": True},
        model=a_stack(replace(DENSE_LAYER, attention=replace(DENSE_LAYER.attention, qkv_bias=True))),
        cluster=replace(a_cluster(), settings=Settings(delay_wgrad=True)),
    ),
    Case(
        rule=frameworks.muon_keeps_gradients_and_weights_whole,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "sharding": Sharding.GRADIENTS},
        cluster=MUON,
    ),
    Case(rule=frameworks.muon_shards_optimizer_states, allowed={"tp": 2}, refused={"dp": 2}, cluster=MUON),
    Case(
        rule=frameworks.muon_shares_among_all_replicas,
        allowed={"dp": 8, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 16, "sharding": Sharding.OPTIMIZER},
        cluster=replace(IN_EIGHTS, settings=Settings(optimizer="dist_muon")),
    ),
    Case(
        rule=frameworks.muon_overlaps_where_states_are_shared,
        allowed={"dp": 2, "dp_overlap": True, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2, "dp_overlap": True},
        cluster=MUON,
    ),
    Case(rule=frameworks.muon_stays_on_the_device, allowed={}, refused={"optimizer_offload": True}, cluster=MUON),
    Case(
        rule=frameworks.narrow_moments_need_a_sharded_optimizer,
        allowed={"cp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"cp": 2},
        cluster=NARROW_MOMENTS,
    ),
    Case(
        rule=frameworks.offloaded_moments_are_fp32,
        allowed={"optimizer_offload": False},
        refused={"optimizer_offload": True},
        cluster=NARROW_MOMENTS,
    ),
    Case(
        rule=frameworks.narrow_weights_need_a_sharded_optimizer,
        allowed={"dp": 2, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 2},
        cluster=replace(a_cluster(), settings=Settings(fp8_param_gather=True)),
        workload=a_workload(precision=replace(a_workload().precision, compute="fp8")),
    ),
    Case(
        rule=frameworks.narrow_weights_stay_on_the_device,
        allowed={"dp": 2},
        refused={"dp": 2, "optimizer_offload": True},
        cluster=replace(a_cluster(), settings=Settings(fp8_param_gather=True)),
        workload=a_workload(precision=replace(a_workload().precision, name="mxfp8", compute="fp8")),
    ),
    # 8 layers on 2 and on 4 pipeline ranks: 4 and 2 on each
    Case(
        rule=frameworks.wide_layers_fit_a_stage,
        allowed={"pp": 2},
        refused={"pp": 4},
        cluster=replace(a_cluster(), settings=Settings(last_layers_bf16=4)),
        workload=a_workload(precision=replace(a_workload().precision, compute="fp8")),
    ),
    # groups of 8: 24 replicas are three of them, 12 are one and a half
    Case(
        rule=frameworks.optimizer_groups_divide_the_replicas,
        allowed={"dp": 24, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 12, "sharding": Sharding.OPTIMIZER},
        cluster=IN_EIGHTS,
    ),
    # 32 replicas are four groups of 8; of 32 or 4 replicas of experts, groups are of 8 or of 1, where 4 would share
    Case(
        rule=frameworks.optimizer_groups_divide_the_experts,
        allowed={"dp": 32, "sharding": Sharding.OPTIMIZER},
        refused={"dp": 32, "ep": 8, "sharding": Sharding.OPTIMIZER},
        model=SPARSE,
        cluster=IN_EIGHTS,
    ),
    # 8 KV heads: 2 tensor-parallel ranks have 4 each, which 4 context-parallel ranks share, and 8 do not
    Case(
        rule=context.all_to_alls_exchange_whole_heads,
        allowed={"tp": 2, "cp": 4},
        refused={"tp": 2, "cp": 8},
        cluster=exchanging("a2a"),
    ),
    # pairs: 4 ranks are two of them, 2 only one
    Case(
        rule=context.groups_of_near_ranks_form_rings,
        allowed={"cp": 4},
        refused={"cp": 2},
        cluster=exchanging("a2a+p2p"),
    ),
    Case(
        rule=context.gathers_and_all_to_alls_wait,
        allowed={"cp": 2},
        refused={"cp": 2, "cp_overlap": True},
        cluster=exchanging("all_gather"),
    ),
    Case(
        rule=context.softmax_attention_alone_is_exchanged,
        allowed={"cp": 1},
        refused={"cp": 2},
        model=COMPRESSED,
        cluster=exchanging("a2a"),
    ),
    Case(
        rule=context.windows_exclude_rings,
        allowed={"cp": 1},
        refused={"cp": 2},
        model=a_stack(replace(DENSE_LAYER, attention=replace(DENSE_LAYER.attention, window=128))),
        cluster=exchanging("p2p"),
    ),
    Case(
        rule=context.latent_attention_has_a_ring,
        allowed={"cp": 1},
        refused={"cp": 2},
        model=a_stack(replace(DENSE_LAYER, attention=LATENT)),
        cluster=exchanging("a2a"),
    ),
    Case(
        rule=context.samples_of_sequences_keep_plain_exchanges,
        allowed={"cp": 1},
        refused={"cp": 2},
        cluster=exchanging("all_gather"),
        workload=a_workload(lengths=SequenceLengths(lengths=(512,), counts=(1.0,))),
    ),
    # a sequence of 4,096 tokens needs 4 ranks of 1,024, which a micro-batch of 4,096 gives to cp of 4 or less
    Case(
        rule=context.dynamic_ranks_hold_their_sequences,
        allowed={"dp": 2, "cp": 2},
        refused={"dp": 2},
        workload=DEALT,
    ),
    Case(
        rule=context.dynamic_ranks_exclude_pipelines,
        allowed={"dp": 2},
        refused={"pp": 2},
        workload=DEALT,
    ),
    # 2 of 8 layers
    Case(
        rule=frameworks.counted_layers_are_offloaded_whole,
        allowed={"activation_offload": True},
        refused={"activation_offload": True, "pp": 2},
        cluster=replace(a_cluster(), settings=Settings(offloaded_layers=2)),
    ),
)
