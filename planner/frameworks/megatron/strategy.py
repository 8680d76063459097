"""The strategy as options of Megatron-LM: each decision with its writing and its reading, and one table of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from constraints.rules.frameworks import MEGATRON_MODULES
from constraints.rules.physics import graph_modules
from constraints.rules.targets import block_of
from costmodel.errors import SpecError
from costmodel.lowering.layer import recomputes
from costmodel.strategy import (
    CudaGraphs,
    Recompute,
    Sharding,
    Strategy,
    TokenDispatcher,
    default_microbatch_group,
)
from costmodel.tables import Facts
from planner.frameworks.megatron.options import INFERENCE_SCOPE, WHERE, Arguments
from planner.frameworks.megatron.releases import DROPOUTS
from planner.frameworks.megatron.settings import (
    context_exchange,
    num_offloaded_layers,
    offloadable,
    offloads_whole_layers,
    shares_by_layers,
)
from planner.frameworks.megatron.stages import LAYOUT, place_layers, read_stages, stage_entries
from planner.frameworks.target import (
    Entries,
    Entry,
    Known,
    OptionsOf,
    reads_switch,
    switch,
)
from planner.jobs.strategy_file import AS_DEALT, StrategyFile, complete_strategy

if TYPE_CHECKING:
    from planner.results import Plan

CP, EP, ETP = "--context-parallel-size", "--expert-model-parallel-size", "--expert-tensor-parallel-size"
SP, TP_OVERLAP, EP_OVERLAP = "--sequence-parallel", "--tp-comm-overlap", "--overlap-moe-expert-parallel-comm"


def _expert_degree(option: str) -> OptionsOf:
    """Return the option of an expert degree; etp is always written, as its default is tp."""
    return lambda plan, degree: {option: degree} if plan.facts.model.has_experts else {}


def _read_etp(arguments: Arguments, known: Known, notes: list[str]) -> Any:
    """Return etp, which is tp without its option; None without experts."""
    return arguments.get(ETP, known["tp"]) if known["model"].has_experts else None


def _stages_options(plan: Plan, vpp: int) -> Entries:
    """Return the options of stages; the pattern of a hybrid has its uneven ones."""
    entries = stage_entries(plan.strategy, plan.facts.model)
    return {name: value for name, value in entries.items() if name != LAYOUT or not plan.facts.model.has_single_blocks}


GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"


def _group_options(plan: Plan, group: int) -> Entries:
    default = default_microbatch_group(pp=plan.strategy.pp, vpp=plan.strategy.vpp)
    return {} if group == default else {GROUP: group}


def _read_group(arguments: Arguments, known: Known, notes: list[str]) -> Any:
    group: int = arguments.get(GROUP, 0)
    return group if group and known["vpp"] > 1 else None


FSDP: Entries = {
    "--use-distributed-optimizer": True,
    "--use-megatron-fsdp": True,
    "--init-model-with-meta-device": True,
    "--no-gradient-accumulation-fusion": True,
    "--ckpt-format": "fsdp_dtensor",
}
"""Options that Megatron-FSDP requires (Megatron-LM, docs on Megatron-FSDP; megatron/training/arguments.py)."""

FSDP_SHARDING = "--data-parallel-sharding-strategy"

FSDP_SHARDINGS = {
    "no_shard": Sharding.NONE,
    "optim": Sharding.OPTIMIZER,
    "optim_grads": Sharding.GRADIENTS,
    "optim_grads_params": Sharding.WEIGHTS,
}
"""Sharding by the strategy of Megatron-FSDP; exports write the last two, the others without it."""


def _sharding_options(plan: Plan, sharding: Sharding) -> Entries:
    if shares_by_layers(plan) or sharding == Sharding.NONE:
        return {}
    if sharding == Sharding.OPTIMIZER:
        return {"--use-distributed-optimizer": True}
    names = {own: name for name, own in FSDP_SHARDINGS.items()}
    return {**FSDP, FSDP_SHARDING: names[sharding]}


def _read_sharding(arguments: Arguments, known: Known, notes: list[str]) -> Sharding:
    """Return the sharding; one replica shards nothing, whatever the options are."""
    if known["dp"] * known["cp"] == 1:
        return Sharding.NONE
    if "--use-torch-fsdp2" in arguments:
        return Sharding.WEIGHTS
    if arguments.get("--optimizer") == "dist_muon":
        return Sharding.OPTIMIZER
    if "--use-megatron-fsdp" in arguments:
        return FSDP_SHARDINGS[arguments.get(FSDP_SHARDING, "optim_grads_params")]
    return Sharding.OPTIMIZER if "--use-distributed-optimizer" in arguments else Sharding.NONE


def _recompute_options(plan: Plan, recompute: Recompute) -> Entries:
    layout = plan.strategy.layout
    block = block_of(layout, plan.strategy.pp) if layout else None
    if recompute == Recompute.FULL:
        return _fully("uniform", 1)
    if block:
        return _fully("block", block)
    modules = recompute_modules(recompute)
    return {"--recompute-granularity": "selective", "--recompute-modules": modules} if modules else {}


def _fully(method: str, num_layers: int) -> Entries:
    return {
        "--recompute-granularity": "full",
        "--recompute-method": method,
        "--recompute-num-layers": num_layers,
    }


def recompute_modules(recompute: Recompute) -> list[str]:
    """
    Return Megatron-LM's names of recomputed modules, without those inside a module that is recomputed whole.

    >>> recompute_modules(Recompute.of("norms", "experts"))
    ['layernorm', 'moe']
    """
    chosen = [name for name in MEGATRON_MODULES if recomputes(name, recompute=recompute)]
    inside = ("shared_experts", "expert_activation") if "experts" in chosen else ()
    return [MEGATRON_MODULES[name] for name in chosen if name not in inside]


def _read_recompute(arguments: Arguments, known: Known, notes: list[str]) -> Recompute:
    granularity = arguments.get("--recompute-granularity")
    if granularity == "full":
        return Recompute.NONE if arguments["--recompute-method"] == "block" else Recompute.FULL
    if granularity is None and "--recompute-activations" not in arguments:
        return Recompute.NONE
    ours = {name: module for module, name in MEGATRON_MODULES.items()}
    given = arguments.get("--recompute-modules", ["core_attn"])
    uncosted = [name for name in given if name not in ours]
    if uncosted:
        notes.append(f"--recompute-modules {' '.join(uncosted)}: costed as if they were kept.")
    chosen = Recompute.of(*(ours[name] for name in given if name in ours))
    paper = Recompute.of("core_attention", "qkv")
    return Recompute.SELECTIVE if chosen == paper else chosen


def _activation_offload_options(plan: Plan, offloads: bool) -> Entries:
    """Return the options that offload whole layers where Megatron-LM can, else all modules."""
    if not offloads:
        return {}
    if offloads_whole_layers(plan):
        return {"--cpu-offloading-num-layers": num_offloaded_layers(plan)}
    modules = offloadable(experts_recomputed=bool(recomputes("experts", recompute=plan.strategy.recompute)))
    return {"--fine-grained-activation-offloading": True, "--offload-modules": modules}


def _read_activation_offload(arguments: Arguments, known: Known, notes: list[str]) -> int:
    layers = arguments.get("--cpu-offloading-num-layers", 0)
    modules = set(arguments.get("--offload-modules", ()))
    all_modules = {*offloadable(experts_recomputed="moe" in arguments.get("--recompute-modules", ()))}
    if modules and not modules >= all_modules:
        names = ", ".join(sorted(modules))
        notes.append(f"Only activations of the modules {names} are offloaded: costed as if none were.")
    return int(layers > 0 or modules >= all_modules)


def _token_dispatcher_options(plan: Plan, dispatcher: TokenDispatcher) -> Entries:
    """Return the options of the dispatcher; without them Megatron-LM uses allgather."""
    if not plan.facts.model.has_experts:
        return {}
    if dispatcher == TokenDispatcher.ALLTOALL:
        return {"--moe-token-dispatcher-type": "alltoall"}
    return {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": dispatcher.text}


def _read_token_dispatcher(arguments: Arguments, known: Known, notes: list[str]) -> TokenDispatcher:
    """Return the dispatcher; alltoall with ep 1, and for Megatron-LM's default allgather, with a note."""
    kind = arguments.get("--moe-token-dispatcher-type", "allgather")
    if known["ep"] == 1:
        if kind == "flex" and known["etp"] > 1:
            notes.append("--moe-token-dispatcher-type flex between ranks of expert tensors: costed as alltoall.")
        return TokenDispatcher.ALLTOALL
    if kind == "allgather":
        notes.append("--moe-token-dispatcher-type allgather (Megatron-LM's default): costed as alltoall.")
    if kind != "flex":
        return TokenDispatcher.ALLTOALL
    backend = arguments.get("--moe-flex-dispatcher-backend", "deepep")
    dispatchers = {one.text: one for one in TokenDispatcher}
    if backend not in dispatchers:
        notes.append(f"--moe-flex-dispatcher-backend {backend}: costed as hybridep, which sends a token once as well.")
    return dispatchers.get(backend, TokenDispatcher.HYBRIDEP)


def _cuda_graphs_options(plan: Plan, graphs: CudaGraphs) -> Entries:
    """
    Return the options of CUDA graphs.

    They need Transformer Engine's RNG tracker, and a full-iteration graph cannot check for NaN. Recomputation inside a
    graph must not draw random numbers, so dropout is off then; plans are costed without it.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:784,1802; Megatron-Bridge 0.3.1,
    training/config.py:1455.
    """
    if graphs == CudaGraphs.NONE:
        return {}
    scope: Entries = {"--cuda-graph-scope": graphs.text.split("+"), "--te-rng-tracker": True}
    if plan.strategy.recompute not in (Recompute.NONE, Recompute.FULL):
        scope |= dict.fromkeys(DROPOUTS, 0.0)
    if graphs != CudaGraphs.FULL_ITERATION:
        return {"--cuda-graph-impl": "transformer_engine", **scope}
    return {"--cuda-graph-impl": "local", "--no-check-for-nan-in-loss-and-grad": True, **scope}


def _read_cuda_graphs(arguments: Arguments, known: Known, notes: list[str]) -> CudaGraphs:
    """Return the CUDA graphs; without modules whole layers are captured."""
    given = {"--enable-cuda-graph": "local", "--external-cuda-graph": "transformer_engine"}
    older = [impl for option, impl in given.items() if option in arguments]
    impl = arguments.get("--cuda-graph-impl", *older or ["none"])
    named: list[str] = arguments.get("--cuda-graph-modules") or arguments.get("--cuda-graph-scope") or []
    scope = {*named} - {"full", INFERENCE_SCOPE}
    if impl == "none":
        return CudaGraphs.NONE
    if impl == "full_iteration" or "full_iteration" in scope:
        return CudaGraphs.FULL_ITERATION
    routing = {"moe_router", "moe_preprocess"}
    if impl == "local" and scope & routing:
        scope |= routing
    return CudaGraphs.of(*(scope or set(graph_modules(known["model"])) - routing))


def _cp_overlap_options(plan: Plan, overlaps: bool) -> Entries:
    strategy, exchange = plan.strategy, context_exchange(plan.cluster)
    if strategy.cp == 1:
        return {}
    near = plan.cluster.device.behaviour.communication.cp_a2a_ranks or 1
    sizes = {"--hierarchical-context-parallel-sizes": [near, strategy.cp // near]} if exchange == "a2a+p2p" else {}
    return {"--cp-comm-type": [exchange], **sizes}


def _read_cp_overlap(arguments: Arguments, known: Known, notes: list[str]) -> int:
    """Return 1 if context-parallel ranks have a ring, whose sends always overlap."""
    return int(known["cp"] > 1 and any(kind.endswith("p2p") for kind in arguments.get("--cp-comm-type", ["p2p"])))


WITHOUT_PP_OVERLAP = "--no-overlap-p2p-communication"


def _pp_overlap_options(plan: Plan, overlaps: bool) -> Entries:
    """Return the options of pipeline overlap, which is on by default with VPP and off without."""
    return {WITHOUT_PP_OVERLAP: True} if plan.strategy.vpp > 1 and not overlaps else {}


def _dp_overlap_options(plan: Plan, overlaps: bool) -> Entries:
    gathers = plan.cluster.device.behaviour.optimizer.weight_sync_overlaps or not shares_by_layers(plan)
    return dict.fromkeys(_overlap_switches(plan.strategy.sharding, gathers=gathers), True) if overlaps else {}


def _overlap_switches(sharding: Sharding, *, gathers: bool) -> tuple[str, ...]:
    """Switches that overlap data-parallel communication; weights are gathered where optimizer states are sharded."""
    return ("--overlap-grad-reduce", *(("--overlap-param-gather",) if gathers and sharding > Sharding.NONE else ()))


def _read_pp_overlap(arguments: Arguments, known: Known, notes: list[str]) -> int:
    return int(known["vpp"] > 1 and WITHOUT_PP_OVERLAP not in arguments)


def _read_dp_overlap(arguments: Arguments, known: Known, notes: list[str]) -> int:
    """Return the overlap of gradients and of weights, if both wait for nothing; Megatron-FSDP always overlaps."""
    replicas, sharding = known["dp"] * known["cp"], known["sharding"]
    switches = _overlap_switches(sharding, gathers="muon" not in arguments.get("--optimizer", "adam"))
    halves, is_fsdp = [name in arguments for name in switches], sharding >= Sharding.GRADIENTS
    if any(halves) and not all(halves) and replicas > 1 and not is_fsdp:
        notes.append("--overlap-grad-reduce without --overlap-param-gather: costed as if neither were overlapped.")
    return int(replicas > 1 and (all(halves) or is_fsdp))


DEGREES = {
    "tp": "--tensor-model-parallel-size",
    "cp": CP,
    "pp": "--pipeline-model-parallel-size",
    "ep": EP,
    "etp": ETP,
    "mbs": "--micro-batch-size",
}
"""Options of the degrees and the micro-batch, on which the reading of other options depends."""


STRATEGY: Mapping[str, Entry] = {
    "tp": Entry("--tensor-model-parallel-size"),
    "cp": Entry(CP),
    "pp": Entry("--pipeline-model-parallel-size"),
    "dp": Entry({}),  # it follows from the number of processes and the other degrees
    "ep": Entry(_expert_degree(EP), EP),
    "etp": Entry(_expert_degree(ETP), _read_etp),
    "vpp": Entry(_stages_options),  # read with the layers of the stages
    "group": Entry(_group_options, _read_group),
    "mbs": Entry("--micro-batch-size"),
    "sequence_parallel": Entry(switch(SP), lambda arguments, known, _: int(SP in arguments and known["tp"] > 1)),
    "sharding": Entry(_sharding_options, _read_sharding),
    "recompute": Entry(_recompute_options, _read_recompute),
    "activation_offload": Entry(_activation_offload_options, _read_activation_offload),
    # The precision-aware optimizer needs the distributed one, also where there is nothing to shard.
    "optimizer_offload": Entry(
        switch("--use-distributed-optimizer", "--use-precision-aware-optimizer", "--optimizer-cpu-offload"),
        reads_switch("--optimizer-cpu-offload"),
    ),
    "token_dispatcher": Entry(_token_dispatcher_options, _read_token_dispatcher),
    "cuda_graphs": Entry(_cuda_graphs_options, _read_cuda_graphs),
    "tp_overlap": Entry(switch(TP_OVERLAP), reads_switch(TP_OVERLAP)),
    "cp_overlap": Entry(_cp_overlap_options, _read_cp_overlap),
    "ep_overlap": Entry(switch(EP_OVERLAP), reads_switch(EP_OVERLAP)),
    "pp_overlap": Entry(_pp_overlap_options, _read_pp_overlap),
    "dp_overlap": Entry(_dp_overlap_options, _read_dp_overlap),
}
"""Megatron-LM's options for each field of a strategy, written and read."""


def _refuse_below_one(known: Known, *names: str) -> None:
    for name in names:
        if known[name] is not None and known[name] < 1:
            raise SpecError(f"strategy.{name}", f"is {known[name]}, must be at least 1.")


SHARED = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--use-megatron-fsdp")
"""Switches that need several replicas."""


def read_strategy(arguments: Arguments, facts: Facts) -> tuple[Strategy, tuple[str, ...]]:
    """
    Read the strategy of arguments, with notes on what is costed otherwise.

    Raises
    ------
    SpecError
        If degrees are missing or wrong, or if options on stages contradict each other or the model.
    """
    notes: list[str] = []
    known: dict[str, Any] = {"model": facts.model}
    for name in ("tp", "cp", "pp", "mbs"):
        known[name] = STRATEGY[name].value(arguments, known, notes)
    if "--micro-batch-size" not in arguments:
        raise SpecError(
            f"{WHERE}.--micro-batch-size", "is required but missing.", "Add it, such as --micro-batch-size 1."
        )
    _refuse_below_one(known, "tp", "cp", "pp", "mbs")
    ranks, devices = known["tp"] * known["cp"] * known["pp"], facts.cluster.num_devices
    if devices % ranks:
        raise SpecError("cluster.num_devices", f"is {devices}, no multiple of tp * cp * pp = {ranks}.")
    known["dp"] = devices // ranks
    lonely = [name for name in SHARED if name in arguments] if known["dp"] * known["cp"] == 1 else []
    notes += [f"{', '.join(lonely)}: one replica has nobody to share with."] if lonely else []
    known["vpp"], layers = read_stages(arguments, facts.model, known["pp"])
    for name, entry in STRATEGY.items():
        if name not in known:
            known[name] = entry.value(arguments, known, notes)
    _refuse_below_one(known, "ep", "etp")
    decisions = {name: value for name, value in known.items() if name != "model" and value is not None}
    strategy = complete_strategy(facts, StrategyFile(decisions=decisions, layout=AS_DEALT))
    return place_layers(strategy, facts.model, arguments, layers), tuple(notes)
