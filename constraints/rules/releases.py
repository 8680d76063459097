"""Rules of releases: features that the framework release of the job lacks (``planner catalog frameworks``)."""

from __future__ import annotations

from constraints.rule import Flags, Holds, Ints
from costmodel.facts.device import Cluster
from costmodel.facts.framework import has_values


def release_has_tensor_parallelism(cluster: Cluster, *, tp: Ints) -> Holds:
    """Tensor parallelism (tp above 1) is used only where the framework's release has it (cluster.framework)."""
    return has_values(cluster.framework, "tp", tp)


def release_has_context_parallelism(cluster: Cluster, *, cp: Ints) -> Holds:
    """Context parallelism (cp above 1) is used only where the framework's release has it (cluster.framework)."""
    return has_values(cluster.framework, "cp", cp)


def release_has_pipelines(cluster: Cluster, *, pp: Ints) -> Holds:
    """Pipelines (pp above 1) are used only where the framework's release has them (cluster.framework)."""
    return has_values(cluster.framework, "pp", pp)


def release_has_virtual_stages(cluster: Cluster, *, vpp: Ints) -> Holds:
    """Virtual stages (vpp above 1) are used only where the framework's release has them (cluster.framework)."""
    return has_values(cluster.framework, "vpp", vpp)


def release_has_expert_parallelism(cluster: Cluster, *, ep: Ints) -> Holds:
    """Expert parallelism (ep above 1) is used only where the framework's release has it (cluster.framework)."""
    return has_values(cluster.framework, "ep", ep)


def release_has_sequence_parallelism(cluster: Cluster, *, sequence_parallel: Flags) -> Holds:
    """Sequence parallelism is used only where the framework's release has it (cluster.framework)."""
    return has_values(cluster.framework, "sequence_parallel", sequence_parallel)


def release_shards_as_much(cluster: Cluster, *, sharding: Ints) -> Holds:
    """Optimizer states, gradients and weights are sharded only as the framework's release does (cluster.framework)."""
    return has_values(cluster.framework, "sharding", sharding)


def release_recomputes_the_same(cluster: Cluster, *, recompute: Ints) -> Holds:
    """Only modules that the framework's release can recompute are recomputed (cluster.framework)."""
    return has_values(cluster.framework, "recompute", recompute)


def release_offloads_activations(cluster: Cluster, *, activation_offload: Flags) -> Holds:
    """Activations are offloaded only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "activation_offload", activation_offload)


def release_offloads_the_optimizer(cluster: Cluster, *, optimizer_offload: Flags) -> Holds:
    """The optimizer is offloaded only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "optimizer_offload", optimizer_offload)


def release_has_the_token_dispatcher(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """The framework's release has the token dispatcher (cluster.framework)."""
    return has_values(cluster.framework, "token_dispatcher", token_dispatcher)


def release_captures_cuda_graphs(cluster: Cluster, *, cuda_graphs: Ints) -> Holds:
    """The framework's release captures CUDA graphs of that scope (cluster.framework)."""
    return has_values(cluster.framework, "cuda_graphs", cuda_graphs)


def release_overlaps_tp(cluster: Cluster, *, tp_overlap: Flags) -> Holds:
    """Tensor-parallel communication is overlapped only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "tp_overlap", tp_overlap)


def release_overlaps_ep(cluster: Cluster, *, ep_overlap: Flags) -> Holds:
    """Expert-parallel communication is overlapped only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "ep_overlap", ep_overlap)


def release_overlaps_pp(cluster: Cluster, *, pp_overlap: Flags) -> Holds:
    """Pipeline communication is overlapped only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "pp_overlap", pp_overlap)


def release_overlaps_dp(cluster: Cluster, *, dp_overlap: Flags) -> Holds:
    """Data-parallel communication is overlapped only where the framework's release does that (cluster.framework)."""
    return has_values(cluster.framework, "dp_overlap", dp_overlap)
