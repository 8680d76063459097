"""Plans as arguments of Megatron-LM, with the environment variables and the timeouts that go with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.facts.workload import Workload
from costmodel.pipelines.stages import stage_layers
from costmodel.strategy import (
    Sharding,
)
from planner.frameworks.megatron.model import PATTERN, STAGED_PATTERN, model_entries, split_pattern
from planner.frameworks.megatron.options import argument_lines
from planner.frameworks.megatron.releases import RELEASES, Releases
from planner.frameworks.megatron.settings import (
    ENTRIES,
    PRECISIONS,
)
from planner.frameworks.megatron.stages import LAYOUT, stage_entries
from planner.frameworks.megatron.strategy import STRATEGY
from planner.frameworks.target import (
    TODO,
    Entries,
    Export,
    Program,
    Write,
    require_version,
    variables,
    write_comments,
    write_entries,
)

if TYPE_CHECKING:
    from planner.results import Plan

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
    entries = megatron_entries(plan, "megatron-lm")
    releases = Releases(plan, entries)
    chosen = releases.choose(version)
    return Export(
        target=TARGET,
        program=HYBRID if plan.facts.model.has_single_blocks else None,
        files={
            ARGUMENTS_FILE: write_comments((*releases.header(chosen), *map(TODO.format, chosen.todo)))
            + "\n".join(argument_lines(chosen.words))
            + "\n",
            LAUNCHER_FILE: "\n".join(argument_lines(timeout_entries(plan))) + "\n",
        },
        environment=environment(plan),
        notes=(*releases.notes(chosen), *_notes(plan, entries)),
        version=chosen.release,
    )


TABLE: Mapping[str, Write] = {
    **{name: entry.write for name, entry in STRATEGY.items()},
    **{f"settings.{name}": entry.write for name, entry in ENTRIES.items()},
}
"""Options of Megatron-LM for each field of a plan; :mod:`constraints.rules.exports` has the refusals."""


def megatron_entries(plan: Plan, target: str) -> Entries:
    """
    Return values by option for the strategy, the settings, the model, the training and its checkpoints.

    Parameters
    ----------
    plan
        The plan.
    target
        Megatron-LM or Megatron-Bridge, as ``--target`` names it.

    Raises
    ------
    SpecError
        If the target cannot run the plan.
    """
    entries, facts = write_entries(plan, target, TABLE), plan.facts
    model = model_entries(facts.model, facts.workload.sequence_length)
    if PATTERN in model and LAYOUT in stage_entries(plan.strategy, facts.model):
        model[STAGED_PATTERN] = split_pattern(model.pop(PATTERN), stage_layers(plan.strategy, facts.model))
    return {**entries, **model, **_training(plan), **PRECISIONS[facts.workload.precision.name]}


# --- the job -----------------------------------------------------------------------------------------------


def _training(plan: Plan) -> Entries:
    workload, schedule = plan.facts.workload, plan.schedule
    return {
        "--seq-length": workload.sequence_length,
        "--global-batch-size": workload.global_batch_size,
        **_packing_entries(workload),
        "--train-iters": schedule.num_steps,
        "--save-interval": schedule.interval_steps,
        **(IN_BACKGROUND if _saves_in_background(plan) else {}),
    }


def _packing_entries(workload: Workload) -> Entries:
    """Return the options of packed sequences, and those of dynamic context parallelism."""
    if workload.lengths is None:
        return {}
    most = workload.lengths.rank_tokens
    dynamic = {} if most is None else {"--hybrid-context-parallel": True, "--max-seqlen-per-dp-cp-rank": most}
    return {**WITHIN_DOCUMENTS, **dynamic}


WITHIN_DOCUMENTS: Entries = {"--reset-position-ids": True, "--reset-attention-mask": True}
"""Options of packed sequences, which end attention and positions (megatron/core/datasets/gpt_dataset.py)."""

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
            "Overlapped expert-parallel communication wants CUDA_DEVICE_MAX_CONNECTIONS=32, tensor and context "
            "parallelism before Blackwell 1: try both."
        )
    if entries.get("--cp-comm-type") == ["a2a"] and plan.strategy.cp_overlap:
        yield "All-to-alls of context parallelism wait for each other; the plan counts them as hidden by the attention."
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
