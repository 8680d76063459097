"""Rules of features: each is on only where it has an effect."""

from __future__ import annotations

from constraints.rule import Flags, Holds, Ints, every, implies
from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.lowering.layer import GRAPH_MODULE
from costmodel.strategy import GRAPH_MODULES, Recompute, Sharding, TokenDispatcher, captures


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
