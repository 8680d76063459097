"""Plans as arguments of Megatron-LM, with the environment variables and the timeouts that go with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from constraints import MEGATRON_LM_RULES, MEGATRON_RULES, MEMORY_RULES, PHYSICS_RULES, Rule, family, sentence
from constraints.rules import topology
from constraints.rules.frameworks import MEGATRON_MODULES
from constraints.verdict import violated_by_ranks
from costmodel.errors import SpecError
from costmodel.lowering.recompute import recomputes
from costmodel.pipelines.stages import stage_layers
from costmodel.strategy import (
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    StageLayout,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    default_microbatch_group,
)
from planner.frameworks.megatron.model import PATTERN, STAGED_PATTERN, model_entries, split_pattern
from planner.frameworks.megatron.options import argument_lines
from planner.frameworks.megatron.releases import DROPOUTS, RELEASES, Releases
from planner.frameworks.megatron.settings import (
    SETTINGS,
    context_exchange,
    num_offloaded_layers,
    offloadable,
    offloads_whole_layers,
    precision_entries,
    shares_by_layers,
)
from planner.frameworks.megatron.stages import LAYOUT, block_of, stage_entries
from planner.frameworks.planned import Plan
from planner.frameworks.target import (
    TODO,
    Answers,
    Entries,
    Export,
    FieldOptions,
    OptionsOf,
    Program,
    Unsupported,
    commented,
    entries_of,
    no_options,
    require_version,
    switch,
    variables,
)

TARGET = "Megatron-LM"
VERSIONS = RELEASES
ARGUMENTS_FILE = "megatron-args.txt"
LAUNCHER_FILE = "ft-launcher-args.txt"

# --- export ------------------------------------------------------------------------------------------------


PROGRAM = Program(
    words=("pretrain_gpt.py",),
    has_options=True,
    todo="pretrain_gpt.py is in a checkout of Megatron-LM; add data, tokenizer and learning rate to its options",
)
"""Program of every process."""

HYBRID = replace(PROGRAM, words=("pretrain_mamba.py",), todo=PROGRAM.todo.replace("gpt", "mamba"))
"""Program for a hybrid (Mamba) model."""


def to_megatron_lm(plan: Plan, version: str | None = None) -> Export:
    """
    Write a plan as arguments of ``pretrain_gpt.py``, a line each, quoted for a shell.

    Without a version they are for the release that was costed, else for the newest one that accepts the plan.

    Raises
    ------
    SpecError
        If Megatron-LM cannot run it, with all reasons, or if the version is unknown or refuses the plan.
    """
    require_version(version, TARGET, VERSIONS)
    entries = megatron_entries(plan, TARGET, DECISION_OPTIONS)
    releases = Releases(plan, entries)
    chosen = releases.choose(version)
    return Export(
        target=TARGET,
        program=HYBRID if plan.facts.model.has_single_blocks else None,
        files={
            ARGUMENTS_FILE: commented((*releases.header(chosen), *map(TODO.format, chosen.todo)))
            + "\n".join(argument_lines(chosen.words))
            + "\n",
            LAUNCHER_FILE: "\n".join(argument_lines(timeout_entries(plan))) + "\n",
        },
        environment=environment(plan),
        notes=(*releases.notes(chosen), *_notes(plan, entries)),
        version=chosen.release,
    )


def megatron_entries(
    plan: Plan,
    target: str,
    decisions: Mapping[str, FieldOptions],
    settings: Mapping[str, FieldOptions] = SETTINGS,
    rules: Iterable[Rule] = MEGATRON_RULES,
) -> Entries:
    """
    Return values by option for the strategy, the settings, the model, the training and its checkpoints.

    Parameters
    ----------
    plan
        The plan.
    target
        Name of the target in messages.
    decisions
        Options for each decision.
    settings
        Options for each setting.
    rules
        Rules of the target, checked besides those of physics.

    Raises
    ------
    SpecError
        If Megatron-LM cannot run the plan.
    """
    precision = precision_entries(plan, target)
    entries = entries_of(plan, target, decisions, settings)
    _require_allowed(plan, target, rules)
    model = _model(plan)
    if PATTERN in model and LAYOUT in stage_entries(plan.strategy, plan.facts.model):
        model[STAGED_PATTERN] = split_pattern(model.pop(PATTERN), stage_layers(plan.strategy, plan.facts.model))
    return {**entries, **model, **_training(plan), **precision}


def _model(plan: Plan) -> Entries:
    return model_entries(plan.facts.model, plan.facts.workload.sequence_length)


def require_job(plan: Plan, target: str = TARGET) -> None:
    """Refuse a precision and a model that Megatron-LM does not have."""
    precision_entries(plan, target)
    _model(plan)


def _require_allowed(plan: Plan, target: str, rules: Iterable[Rule]) -> None:
    """Refuse a plan that breaks a rule; the planner's own rules and those of single releases are not checked here."""
    asked = [rule for rule in (*rules, *PHYSICS_RULES) if not _is_our_own(rule) and rule not in MEGATRON_LM_RULES]
    broken = violated_by_ranks(plan.facts, plan.strategy, rules=asked)
    if broken:
        sentences = " ".join(dict.fromkeys(map(sentence, broken)))
        raise SpecError("strategy", f"{target} cannot run this plan, which breaks: {sentences}")


def _is_our_own(rule: Rule) -> bool:
    """Tell whether a rule is the planner's own: on memory, profiles, groups in nodes or empty virtual stages."""
    own = (topology.tp_groups_tile_the_nodes, topology.virtual_stages_hold_something)
    return rule in (*own, *MEMORY_RULES) or family(rule) == "profiles"


# --- the strategy ------------------------------------------------------------------------------------------


def _expert_degree(name: str, option: str) -> OptionsOf:
    """Return the option of an expert degree; etp is always written, as its default is tp."""

    def say(plan: Plan) -> Entries:
        return {option: getattr(plan.strategy, name)} if plan.facts.model.has_experts else {}

    return say


def _stages_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of stages; hybrids have no VPP (megatron/core/ssm/mamba_block.py:173)."""
    model = plan.facts.model
    if not model.has_single_blocks:
        return stage_entries(plan.strategy, model)
    if plan.strategy.vpp > 1:
        return Unsupported("a hybrid's pipeline ranks have one chunk each (megatron/core/ssm/mamba_block.py:173).")
    if 0 in stage_layers(plan.strategy, model):
        return Unsupported("a hybrid's pipeline ranks have layers, embedding and head are not alone there.")
    return {name: value for name, value in stage_entries(plan.strategy, model).items() if name != LAYOUT}


def _group_options(plan: Plan) -> Entries:
    strategy = plan.strategy
    if strategy.group == default_microbatch_group(pp=strategy.pp, vpp=strategy.vpp):
        return {}
    return {"--microbatch-group-size-per-virtual-pipeline-stage": strategy.group}


def _schedule_options(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.schedule == Schedule.ONE_F_ONE_B:
        return {}
    return Unsupported(
        f"{plan.strategy.schedule.text} is not in megatron/core/pipeline_parallel/schedules.py, which runs 1f1b."
    )


def _vocabulary_options(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.vocabulary <= Vocabulary.REDISTRIBUTED:
        return _stages_options(plan)
    return Unsupported(
        f"{plan.strategy.vocabulary.text} has slices of the vocabulary on all ranks; embedding and head are on the "
        "first and the last one (megatron/core/models/gpt/gpt_model.py)."
    )


FSDP: Entries = {
    "--use-distributed-optimizer": True,
    "--use-megatron-fsdp": True,
    "--init-model-with-meta-device": True,
    "--no-gradient-accumulation-fusion": True,
    "--ckpt-format": "fsdp_dtensor",
}
"""Options that Megatron-FSDP requires (Megatron-LM, docs on Megatron-FSDP; megatron/training/arguments.py)."""

SHARDINGS: dict[Sharding, Entries] = {
    Sharding.NONE: {},
    Sharding.OPTIMIZER: {"--use-distributed-optimizer": True},
    Sharding.GRADIENTS: {**FSDP, "--data-parallel-sharding-strategy": "optim_grads"},
    Sharding.WEIGHTS: {**FSDP, "--data-parallel-sharding-strategy": "optim_grads_params"},
}


def _sharding_options(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.pp > 1 and plan.strategy.sharding >= Sharding.GRADIENTS:
        return Unsupported("Gradients and weights are sharded only without a pipeline (arguments.py, validate_args).")
    return {} if shares_by_layers(plan) else SHARDINGS[plan.strategy.sharding]


def _recompute_options(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    block = block_of(strategy.layout, strategy.pp) if strategy.layout else None
    if strategy.recompute == Recompute.FULL:
        return _fully("uniform", 1)
    if block:
        return _fully("block", block) if strategy.recompute == Recompute.NONE else Unsupported(_BLOCK_AND_MODULES)
    nameless = recomputes("every_other_matmul", recompute=strategy.recompute)
    if nameless:
        return Unsupported("every_other_matmul is torchtitan's; --recompute-modules has no word for it.")
    modules = recompute_modules(strategy.recompute)
    return {"--recompute-granularity": "selective", "--recompute-modules": modules} if modules else {}


_BLOCK_AND_MODULES = (
    "some layers in full and modules of the others at once: --recompute-granularity is full or selective."
)


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


def _activation_offload_options(plan: Plan) -> Entries:
    """Return the options that offload whole layers where Megatron-LM can, else all modules."""
    strategy = plan.strategy
    if not strategy.activation_offload:
        return {}
    if offloads_whole_layers(plan):
        return {"--cpu-offloading-num-layers": num_offloaded_layers(plan)}
    modules = offloadable(experts_recomputed=bool(recomputes("experts", recompute=strategy.recompute)))
    return {"--fine-grained-activation-offloading": True, "--offload-modules": modules}


def _token_dispatcher_options(plan: Plan) -> Entries:
    """Return the options of the dispatcher; without them Megatron-LM uses allgather."""
    dispatcher = plan.strategy.token_dispatcher
    if not plan.facts.model.has_experts:
        return {}
    if dispatcher == TokenDispatcher.ALLTOALL:
        return {"--moe-token-dispatcher-type": "alltoall"}
    return {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": dispatcher.text}


def _cuda_graphs_options(plan: Plan) -> Entries:
    """
    Return the options of CUDA graphs.

    They need Transformer Engine's RNG tracker, and a full-iteration graph cannot check for NaN. Recomputation inside a
    graph must not draw random numbers, so dropout is off then; plans are costed without it.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:784,1802; Megatron-Bridge 0.3.1,
    training/config.py:1455.
    """
    graphs = plan.strategy.cuda_graphs
    if graphs == CudaGraphs.NONE:
        return {}
    scope: Entries = {"--cuda-graph-scope": graphs.text.split("+"), "--te-rng-tracker": True}
    if plan.strategy.recompute not in (Recompute.NONE, Recompute.FULL):
        scope |= dict.fromkeys(DROPOUTS, 0.0)
    if graphs != CudaGraphs.FULL_ITERATION:
        return {"--cuda-graph-impl": "transformer_engine", **scope}
    return {"--cuda-graph-impl": "local", "--no-check-for-nan-in-loss-and-grad": True, **scope}


def _cp_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of context parallelism; an all-to-all needs heads that divide over the ranks."""
    strategy, kinds = plan.strategy, plan.facts.model.kinds
    degree: Entries = {"--context-parallel-size": strategy.cp}
    if strategy.cp == 1 or context_exchange(plan.cluster) == "p2p":
        return degree
    counts = {getattr(kind.attention, name, 0) for kind in kinds for name in ("num_heads", "num_kv_heads")}
    if any(max(count // strategy.tp, 1) % strategy.cp for count in counts - {0}):
        return Unsupported(
            "The plan counts all-to-alls (cp_comm_type a2a), which need heads of each tensor-parallel rank that are a "
            "multiple of cp (Transformer Engine 2.11, context_parallel.py, AttnFuncWithCPAndQKVOA2A)."
        )
    return degree


def _cp_overlap_options(plan: Plan) -> Entries | Unsupported:
    exchange = context_exchange(plan.cluster)
    if plan.strategy.cp > 1 and not plan.strategy.cp_overlap and exchange == "p2p":
        return Unsupported(
            "the ring's sends always run behind the attention (transformer_config.py:737, cp_comm_type p2p)."
        )
    return {"--cp-comm-type": [exchange]} if plan.strategy.cp > 1 else {}


def _pp_overlap_options(plan: Plan) -> Entries | Unsupported:
    """Return the options of pipeline overlap, which is on by default with VPP and off without."""
    strategy = plan.strategy
    if strategy.pp_overlap and strategy.vpp == 1:
        return Unsupported("megatron/training/arguments.py switches it off without virtual stages (vpp above 1).")
    return {"--no-overlap-p2p-communication": True} if strategy.vpp > 1 and not strategy.pp_overlap else {}


def _dp_overlap_options(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if not strategy.dp_overlap and strategy.sharding >= Sharding.GRADIENTS:
        return Unsupported("Megatron-FSDP always overlaps (megatron_fsdp.py:276).")
    if not strategy.dp_overlap:
        return {}
    gathers = {"--overlap-param-gather": True} if strategy.sharding >= Sharding.OPTIMIZER else {}
    return {"--overlap-grad-reduce": True, **gathers}


def _layout_options(plan: Plan) -> Entries | Unsupported:
    strategy, layout = plan.strategy, plan.strategy.layout
    if layout is None:
        return {}
    unlike = _unlike(layout, strategy)
    if unlike:
        return Unsupported(f"{unlike} differs between pipeline ranks; Megatron-LM has one option for all of them.")
    if any(layout.full_layers) and (strategy.ep_overlap or strategy.activation_offload):
        excluding = "ep_overlap" if strategy.ep_overlap else "activation_offload"
        return Unsupported(
            f"full_layers beside {excluding}, which excludes full recomputation (transformer_config.py:1871)."
        )
    if any(layout.full_layers) and strategy.cuda_graphs > CudaGraphs.FULL_ITERATION:
        return Unsupported("full_layers beside CUDA graphs of modules, which exclude it (transformer_config.py:1781).")
    return _stages_options(plan)


def _unlike(layout: StageLayout, strategy: Strategy) -> str | None:
    """Return the field of a layout that differs between ranks and has no option; None: every field has one."""
    if set(layout.recompute) != {strategy.recompute}:
        return "recompute"
    if set(layout.activation_offload) != {strategy.activation_offload}:
        return "activation_offload"
    is_full = strategy.recompute == Recompute.FULL
    is_expressible = is_full or not any(layout.full_layers) or block_of(layout, strategy.pp) is not None
    return None if is_expressible else "full_layers"


DECISION_OPTIONS: Mapping[str, FieldOptions] = {
    "tp": "--tensor-model-parallel-size",
    "cp": _cp_options,
    "pp": "--pipeline-model-parallel-size",
    "dp": no_options,  # it follows from the number of processes and the other degrees
    "ep": _expert_degree("ep", "--expert-model-parallel-size"),
    "etp": _expert_degree("etp", "--expert-tensor-parallel-size"),
    "vpp": _stages_options,
    "group": _group_options,
    "mbs": "--micro-batch-size",
    "sequence_parallel": switch("--sequence-parallel"),
    "schedule": _schedule_options,
    "vocabulary": _vocabulary_options,
    "sharding": _sharding_options,
    "recompute": _recompute_options,
    "activation_offload": _activation_offload_options,
    # The precision-aware optimizer needs the distributed one, also where there is nothing to shard.
    "optimizer_offload": switch(
        "--use-distributed-optimizer", "--use-precision-aware-optimizer", "--optimizer-cpu-offload"
    ),
    "token_dispatcher": _token_dispatcher_options,
    "cuda_graphs": _cuda_graphs_options,
    "tp_overlap": switch("--tp-comm-overlap"),
    "cp_overlap": _cp_overlap_options,
    "ep_overlap": switch("--overlap-moe-expert-parallel-comm"),
    "pp_overlap": _pp_overlap_options,
    "dp_overlap": _dp_overlap_options,
    "layout": _layout_options,
}
"""Megatron-LM's options for each field of a strategy."""

ANSWERS = Answers(target=TARGET, decisions=DECISION_OPTIONS, settings=SETTINGS, require_job=require_job)
"""Megatron-LM's answers for decisions, settings and the job."""


# --- the job -----------------------------------------------------------------------------------------------


def _training(plan: Plan) -> Entries:
    workload, schedule = plan.facts.workload, plan.schedule
    return {
        "--seq-length": workload.sequence_length,
        "--global-batch-size": workload.global_batch_size,
        "--train-iters": schedule.num_steps,
        "--save-interval": schedule.interval_steps,
        **(IN_BACKGROUND if _saves_in_background(plan) else {}),
    }


IN_BACKGROUND: Entries = {"--async-save": True, "--use-persistent-ckpt-worker": True, "--ckpt-format": "torch_dist"}
"""
Options of checkpoints that are written while training goes on, by a persistent worker.

Without the worker Megatron-LM switches asynchronous saving off (megatron/training/arguments.py, validate_args).
"""


def _saves_in_background(plan: Plan) -> bool:
    """
    Tell whether checkpoints are written while training goes on.

    The format of Megatron-FSDP does not support it (Megatron-Bridge 0.3.1, training/config.py:1511).
    """
    return plan.write_seconds > 0 and plan.strategy.sharding < Sharding.GRADIENTS


# --- beside the arguments ----------------------------------------------------------------------------------


def environment(plan: Plan) -> dict[str, str]:
    """
    Environment variables that every process needs.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: CUDA_DEVICE_MAX_CONNECTIONS is 1 with tensor or context
    parallelism before Blackwell, but neither with FSDP nor with overlapped expert-parallel communication, which get
    more. Transformer Engine from 2.10 on offloads in Megatron-LM's way with NVTE_CPU_OFFLOAD_V1 only.
    """
    strategy, needed = plan.strategy, variables(plan)
    is_early = plan.cluster.device.architecture in (None, "volta", "ampere", "ada", "hopper", "cdna3", "cdna4")
    if strategy.sharding >= Sharding.GRADIENTS:
        needed["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    elif strategy.ep_overlap:
        needed["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif is_early and strategy.tp * strategy.cp > 1:
        needed["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if strategy.activation_offload:
        needed["NVTE_CPU_OFFLOAD_V1"] = "1"
    return needed


SAFETY = 5
"""Ratio of a timeout to the predicted time: nvidia-resiliency-ext's own ``safety_factor``."""

SETUP_SECONDS, BETWEEN_SECONDS, LEAST_SECONDS = 600, 300, 60
"""
Timeouts of setup and between sections, which no prediction covers, and the shortest timeout, in seconds.

The first two are those of the example in megatron/training/ft_integration.py.
"""


def timeout_entries(plan: Plan) -> Entries:
    """
    Return timeouts of ``ft_launcher`` after which a rank counts as hung, from the predicted step and checkpoint.

    References
    ----------
    Megatron-LM, megatron/training/ft_integration.py: ``--ft-param-rank_section_timeouts``.
    """
    step = _timeout(plan.interval.high_seconds)
    checkpoint = _timeout(max(plan.checkpoint_seconds, plan.write_seconds))
    sections = {"setup": SETUP_SECONDS, "step": step, "checkpointing": checkpoint}
    return {
        "--ft-param-rank_section_timeouts": ",".join(f"{name}:{seconds}" for name, seconds in sections.items()),
        "--ft-param-rank_out_of_section_timeout": max(BETWEEN_SECONDS, step),
    }


def _timeout(seconds: float) -> int:
    return max(LEAST_SECONDS, math.ceil(SAFETY * seconds))


def _notes(plan: Plan, entries: Mapping[str, Any]) -> Iterator[str]:
    devices = plan.cluster.num_devices
    yield f"For {devices} processes, from which data parallelism (dp {plan.strategy.dp}) follows."
    yield (
        "Yours to add: data paths and tokenizer, learning rate and schedule, --save and --load, and what the file "
        "marks as TODO."
    )
    yield from _model_notes(plan, entries)
    if plan.kept_checkpoints is not None:
        yield f"All but the newest {plan.kept_checkpoints} checkpoints are yours to delete: no option says so."
    yield (
        f"Launched with ft_launcher, {LAUNCHER_FILE} has its timeouts, {SAFETY} times the predicted step and "
        "checkpoint; add --enable-ft-package then."
    )
    yield from _feature_notes(plan, entries)


def background_notes(plan: Plan) -> Iterator[str]:
    """Yield a note where checkpoints are not written as the plan counts them."""
    if plan.write_seconds and not _saves_in_background(plan):
        yield (
            "Megatron-FSDP writes no checkpoints while training goes on, which waits "
            f"{plan.write_seconds:.3g} s for each instead of {plan.checkpoint_seconds:.3g} s: plan with "
            "reliability.asynchronous_checkpoints=false."
        )


def _model_notes(plan: Plan, entries: Mapping[str, Any]) -> Iterator[str]:
    if plan.facts.model.has_single_blocks:
        yield (
            "A hybrid model is trained by pretrain_mamba.py; in newest releases --spec is "
            "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec."
        )
    if "--num-experts" in entries:
        yield "Costed with balanced routing; a real router's load varies."
    if not plan.headroom_bytes > 0:
        yield "The plan does not fit into the memory of its devices."


def _feature_notes(plan: Plan, entries: Mapping[str, Any]) -> Iterator[str]:
    yield from background_notes(plan)
    if "--async-save" in entries:
        yield (
            "From core 0.17 on --async-save is that of nvidia-resiliency-ext; --async-strategy mcore does without it."
        )
    if "--cpu-offloading-num-layers" in entries:
        yield "Layers are offloaded whole, never the last, whose backward pass comes first."
    if "--fine-grained-activation-offloading" in entries:
        yield "Offloaded are the inputs of all modules that can be; what the router keeps stays on the device."
    if "--tp-comm-overlap" in entries:
        yield "--tp-comm-overlap uses Transformer Engine's user buffers; --tp-comm-overlap-cfg changes their defaults."
    if "--use-megatron-fsdp" in entries and plan.strategy.tp * plan.strategy.cp > 1:
        yield (
            "Megatron-FSDP wants more than one CUDA connection, tensor and context parallelism before Blackwell one: "
            "the former is set."
        )
    if plan.strategy.ep_overlap and plan.strategy.tp * plan.strategy.cp > 1:
        yield (
            "Overlapped expert-parallel communication wants 32 CUDA connections, tensor and context parallelism before "
            "Blackwell one: try both."
        )
    if entries.get("--cp-comm-type") == ["a2a"] and plan.strategy.cp_overlap:
        yield "All-to-alls of context parallelism wait for each other; the plan counts them behind the attention."
    if entries.get("--moe-token-dispatcher-type") == "flex":
        yield (
            f"The flex dispatcher needs the library of {entries['--moe-flex-dispatcher-backend']}; "
            "--moe-token-dispatcher-type alltoall does without."
        )
    if "CUDA_LAUNCH_BLOCKING" in environment(plan):
        yield (
            "Launches that block are CUDA_LAUNCH_BLOCKING=1 in the environment, no argument: an import of the "
            "arguments alone does not see it."
        )
