"""
Plans as recipes of torchtitan: a Python function that returns the configuration, named by ``--config``.

Options, schedules and lines are those of torchtitan 0.3.0 and of ``torch/distributed`` of PyTorch 2.13.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from constraints.targets import name_of_release
from costmodel import catalog
from costmodel.facts.model import Model, Rotary, Routing
from costmodel.models.numerics import NAMES
from costmodel.pipelines.stages import stage_layers
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding
from planner.frameworks.target import (
    TODO,
    Entries,
    Export,
    Program,
    Write,
    checkpoints,
    model_notes,
    num_microbatches,
    num_sharing_groups,
    require_version,
    subject,
    variables,
    write_comments,
    write_entries,
)
from planner.jobs.document import nest_entries

if TYPE_CHECKING:
    from planner.results import Plan

SCALINGS: dict[str, tuple[str, dict[str, str]]] = {
    "default": ("none", {}),
    "llama3": (
        "llama",
        {
            "scaling_factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            "original_max_position_embeddings": "original_max_position_embeddings",
        },
    ),
    "yarn": (
        "yarn",
        {
            "rope_factor": "factor",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "original_seq_len": "original_max_position_embeddings",
        },
    ),
}

"""Names of rotary scalings and their parameters (torchtitan/models/common/rope.py, RoPE.Config)."""

WHOLE = ("original_max_position_embeddings", "original_seq_len")

SET_FACTS = '''

def parts(config):
    """Yield a configuration and all that it consists of."""
    yield config
    for field in fields(config):
        value = getattr(config, field.name)
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if is_dataclass(one) and not isinstance(one, type):
                yield from parts(one)


def set_facts(model) -> None:
    """Set what the planned model has wherever the configuration has a field of that name."""
    for part in parts(model):
        for owner, facts in FACTS.items():
            if hasattr(part, owner):
                for name, value in facts.items():
                    setattr(part, name, value)
'''

"""Functions that a recipe contains."""


def facts_of(model: Model) -> dict[str, dict[str, Any]]:
    """Return facts of rotary embeddings, norms and routers that torchtitan has fields for, by a field of each part."""
    numerics, facts = model.numerics, dict[str, dict[str, Any]]()
    rotary = numerics.rotary
    if rotary is not None and rotary.base is not None and rotary.scaling in SCALINGS:
        facts["theta"] = {"theta": rotary.base, **_scaling(rotary)}
    if numerics.norm_epsilon is not None:
        facts["normalized_shape"] = {"eps": numerics.norm_epsilon}
    if numerics.routing is not None and numerics.routing.score_function is not None:
        facts["score_func"] = _routing(numerics.routing)
    return facts


def _scaling(rotary: Rotary) -> dict[str, Any]:
    name, spelled = SCALINGS[rotary.scaling]
    numbers = {own: rotary.parameter(key) for own, key in spelled.items()}
    said = {own: int(value) if own in WHOLE else value for own, value in numbers.items() if value is not None}
    truncates = rotary.parameter("truncate", 1.0)
    return {"scaling": name, **said, **({"truncate": bool(truncates)} if name == "yarn" else {})}


def _routing(routing: Routing) -> dict[str, Any]:
    groups = {"num_expert_groups": routing.num_groups, "num_limited_groups": routing.group_topk}
    return {
        "score_func": routing.score_function,
        **({} if routing.normalizes is None else {"route_norm": routing.normalizes}),
        **({} if routing.scaling_factor is None else {"route_scale": routing.scaling_factor}),
        **groups,
    }


def todo_lines(model: Model) -> Iterator[str]:
    """Yield one line for each fact that is unknown, or that has no field."""
    numerics, rotary = model.numerics, model.numerics.rotary
    unknown = "the model's config.json does not say it, the registry's holds"
    no_field = "torchtitan 0.3.0 has no field for it"
    if numerics.norm_epsilon is None:
        yield f"{NAMES['norm_epsilon']}: {unknown}"
    if rotary is None or rotary.base is None:
        if not model.learned_positions and not model.has_single_blocks:
            yield f"{NAMES['base']}: {unknown}"
    else:
        if rotary.scaling not in SCALINGS:
            yield f"rope_scaling = {rotary.scaling}: {no_field}"
        if rotary.fraction not in (None, 1.0):
            yield f"{NAMES['fraction']} = {rotary.fraction:g}: it is the width (dim) of the registry's rotation"
    name = NAMES["initializer_range"]
    if numerics.initializer_range is None:
        yield f"{name}: {unknown}"
    else:
        yield f"{name} = {numerics.initializer_range:g}: initialisation is the registry's (param_init)"
    for name in ("attention_dropout", "hidden_dropout", "embedding_dropout", "attention_softcap", "logit_softcap"):
        if value := getattr(numerics, name):
            yield f"{NAMES[name]} = {value:g}: {no_field}"
    if model.has_experts:
        coefficient = numerics.routing and numerics.routing.aux_loss_coefficient
        text = f" = {coefficient:g}: {no_field}" if coefficient else f": {unknown}"
        if coefficient != 0:
            yield f"{NAMES['aux_loss_coefficient']}{text}"


TARGET = "torchtitan"

VERSION = "0.3.0"

VERSIONS = (VERSION,)

FILE = "torchtitan_recipe.py"

FLAVORS = {
    "llama3-8b": ("llama3", "llama3_8b", "8B"),
    "llama3-70b": ("llama3", "llama3_70b", "70B"),
    "llama3-405b": ("llama3", "llama3_70b", "405B"),
    "qwen3-8b": ("qwen3", "qwen3_14b", "8B"),
    "qwen3-32b": ("qwen3", "qwen3_32b", "32B"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "qwen3_30b_a3b", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b", "20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b", "120b"),
}

"""
Models of the catalog that torchtitan has: its module, the recipe with the options that a plan does not set, the flavor.

``llama3_405b`` of torchtitan is in FP8 and cannot be built without torchao.
"""

SCHEDULES = {
    Schedule.GPIPE: "GPipe",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPEV: "DualPipeV",
}

"""Names of ``get_schedule_class``, torch/distributed/pipelining/schedules.py; that of 1F1B depends on vpp."""

NUM_WAITS = 3

"""Steps that a collective may wait before the job counts as hung; at least torchtitan's 100 s."""

PROGRAM = Program(words=("-m", "torchtitan.train", "--module", "{module}", "--config", "recipe"))

"""Program of every process."""


def to_torchtitan(plan: Plan, version: str | None = None) -> Export:
    """
    Write a plan as a recipe of torchtitan: a module whose function ``recipe`` returns a ``Trainer.Config``.

    Raises
    ------
    SpecError
        If torchtitan cannot express it, or if the version is another one.
    """
    require_version(version, TARGET, VERSIONS)
    entries = write_entries(plan, TARGET, TABLE)
    flavor = _flavor(plan.facts.model)
    return Export(
        target=TARGET,
        files={FILE: _recipe(plan, entries, flavor)},
        environment=variables(plan),
        notes=_notes(plan, flavor),
    )


# --- decisions ---------------------------------------------------------------------------------------------
def _dp(plan: Plan, dp: int) -> Entries:
    copies = _num_copies(plan)
    return {
        "parallelism.data_parallel_replicate_degree": copies,
        "parallelism.data_parallel_shard_degree": dp // copies,
    }


def _num_copies(plan: Plan) -> int:
    """Number of groups of ranks that hold all states each."""
    return plan.strategy.dp if plan.strategy.sharding == Sharding.NONE else num_sharing_groups(plan)


def _mbs(plan: Plan, mbs: int) -> Entries:
    is_piped = plan.strategy.pp > 1
    return {
        "training.local_batch_size": mbs * num_microbatches(plan) if is_piped else mbs,
        "training.global_batch_size": plan.facts.workload.global_batch_size,
        "parallelism.pipeline_parallel_microbatch_size": mbs if is_piped else 1,
    }


def _loss(plan: Plan, chunks: int) -> Entries:
    """Return the loss; the loss of multi-token prediction is the recipe's own, on all logits."""
    model = plan.facts.model
    if model.mtp_layers:
        return {}
    whole = f"CrossEntropyLoss.Config(global_vocab_size={model.vocab_size})"
    return {"loss": whole if chunks == 1 else f"ChunkedLossWrapper.Config(num_chunks={chunks}, loss_fn={whole})"}


STAGES = "stages()"
"""Call of the recipe's own function, a value that is written without quotation marks."""

TABLE: Mapping[str, Write] = {
    "tp": "parallelism.tensor_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "dp": _dp,
    "ep": "parallelism.expert_parallel_degree",
    "mbs": _mbs,
    "sequence_parallel": "parallelism.enable_sequence_parallel",
    "schedule": lambda plan, schedule: {
        "parallelism.pipeline_parallel_schedule": SCHEDULES.get(
            schedule, "Interleaved1F1B" if plan.strategy.vpp > 1 else "1F1B"
        )
    },
    "sharding": {
        sharding: {"parallelism.fsdp_reshard_after_forward": "always" if sharding == Sharding.WEIGHTS else "never"}
        for sharding in Sharding
    },
    "recompute": {
        Recompute.NONE: {"activation_checkpoint": None},
        Recompute.FULL: {"activation_checkpoint": "FullAC"},
        Recompute.of("every_other_matmul"): {"activation_checkpoint": "SelectiveAC"},
    },
    "cuda_graphs": {
        CudaGraphs.NONE: {"training.disable_cuda_graphs": True},
        CudaGraphs.FULL_ITERATION: {"training.disable_cuda_graphs": False},
    },
    "tp_overlap": lambda plan, overlaps: {
        "compile.enable": True,
        "compile.enable_async_tensor_parallel": overlaps,
    },
    "layout": lambda plan, layout: {"parallelism.module_fqns_per_model_part": STAGES if plan.strategy.pp > 1 else None},
    "settings.gradient_dtype": {"fp32": {"training.mixed_precision_reduce": "float32"}},
    # With bfloat16 shards there would be no FP32 weights at all.
    "settings.weight_dtype": {"fp32": {"training.dtype": "float32", "training.mixed_precision_param": "bfloat16"}},
    "settings.loss_chunks": _loss,
}
"""torchtitan's options for each field of a plan; :mod:`constraints.rules.exports` has the refusals."""


# --- the recipe --------------------------------------------------------------------------------------------
def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) and value != STAGES else str(value)


def _recipe(plan: Plan, entries: Entries, flavor: tuple[str, str, str] | None) -> str:
    settings = nest_entries(entries | _facts(plan))
    policy, loss = settings.pop("activation_checkpoint"), settings.pop("loss", None)
    model, strategy = plan.facts.model, plan.strategy
    imports = _imports(flavor, policy, has_loss=loss is not None)
    # Context parallelism needs FlexAttention (torchtitan/distributed/full_dtensor.py:49); gpt_oss has another one.
    attention = ', attn_backend="flex"' if strategy.cp > 1 else ""
    spec = f"        model_spec=model_registry({_literal(flavor[2])}{attention}),\n" if flavor else ""
    costed = name_of_release(plan.cluster)
    is_own = not costed or VERSION.startswith(costed.removeprefix("torchtitan-"))
    differing = "" if is_own else f"Costed as {costed}, whose fields may differ.\n"
    return (
        f'"""\n{subject(plan)}: a recipe for torchtitan {VERSION}.\n\n{differing}'
        f"Optimizer, data, tokenizer and learning rate are those of the recipe that it changes.\n"
        f'"""\n\n{write_comments(map(TODO.format, todo_lines(model)))}\n{imports}\n\n'
        f'TORCHTITAN = "{VERSION}"\n"""Whose options these are; other versions have other ones."""\n\n'
        f"SIZES = {(model.num_layers, model.hidden_size, model.vocab_size)}\n"
        f'"""Layers, hidden size and vocabulary of the model that was planned."""\n' + f"\nFACTS = {facts_of(model)}\n"
        '"""Of rotations, norms and routers, each by a field that it has."""\n'
        + SET_FACTS
        + (_stages(plan) if strategy.pp > 1 else "")
        + "\n\ndef recipe() -> Trainer.Config:\n"
        '    """What torchtitan.train takes as --config."""\n'
        '    if (installed := version("torchtitan")) != TORCHTITAN:\n'
        '        raise RuntimeError(f"this recipe is for torchtitan {TORCHTITAN}, not {installed}")\n'
        "    config = base()\n"
        "    config = replace(\n        config,\n"
        + spec
        + "".join(_section(name, values) for name, values in settings.items())
        + (f"        loss={loss},\n" if loss else "")
        + f"        activation_checkpoint={f'{policy}.Config()' if policy else None},\n"
        "    )\n"
        "    model = config.model_spec.model\n"
        "    if (sizes := (len(model.layers), model.dim, model.vocab_size)) != SIZES:\n"
        '        raise RuntimeError(f"this recipe is for a model of {SIZES}, not {sizes}")\n'
        "    set_facts(model)\n"
        "    return config\n"
    )


def _facts(plan: Plan) -> dict[str, Any]:
    """Return options that follow from the job and the prediction rather than from a decision."""
    schedule = plan.schedule
    patience = ceil(NUM_WAITS * plan.step_seconds + plan.checkpoint_seconds)
    background = {"checkpoint.async_mode": "async_with_pinned_mem"} if plan.write_seconds else {}
    kept = {"checkpoint.keep_latest_k": plan.kept_checkpoints} if plan.kept_checkpoints else {}
    return {
        "training.seq_len": plan.facts.workload.sequence_length,
        "training.steps": schedule.num_steps,
        "checkpoint.enable": True,
        "checkpoint.interval": schedule.interval_steps,
        **background,
        **kept,
        "comm.train_timeout_seconds": max(100, patience),
    }


def _imports(flavor: tuple[str, str, str] | None, policy: str | None, *, has_loss: bool) -> str:
    lines = ["from dataclasses import fields, is_dataclass, replace", "from importlib.metadata import version"]
    lines.append("")
    if has_loss:
        lines.append("from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss")
    lines.append("from torchtitan.config import CompileConfig, ParallelismConfig")
    if policy:
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {policy}")
    if flavor:
        module, recipe, _ = flavor
        lines += [
            f"from torchtitan.models.{module} import model_registry",
            f"from torchtitan.models.{module}.config_registry import {recipe} as base",
        ]
    lines.append("from torchtitan.trainer import Trainer")
    if not flavor:
        lines += ["from your_recipes import your_model as base  # TODO: a function that returns a Trainer.Config"]
    return "\n".join(lines)


def _stages(plan: Plan) -> str:
    """Write the modules of each virtual stage as a literal list."""
    ends = list(accumulate(stage_layers(plan.strategy, plan.facts.model), initial=0))
    stages = [[f"layers.{layer}" for layer in range(begin, end)] for begin, end in pairwise(ends)]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "lm_head"]
    lines = (
        textwrap.fill(f"{json.dumps(stage)},", width=100, initial_indent="        ", subsequent_indent="         ")
        for stage in stages
    )
    text = "\n".join(lines)
    return (
        "\n\ndef stages() -> list[list[str]]:\n"
        '    """Names of the modules of each virtual stage, in the order of the model."""\n'
        f"    return [\n{text}\n    ]\n"
    )


def _section(name: str, values: dict[str, Any]) -> str:
    """Write a section; those of parallelism and compilation are written whole, without the base recipe's values."""
    whole = {"parallelism": "ParallelismConfig(", "compile": "CompileConfig("}
    begin = whole.get(name, f"replace(\n            config.{name},")
    lines = "".join(f"            {option}={_literal(value)},\n" for option, value in values.items())
    return f"        {name}={begin}\n{lines}        ),\n"


def has_model(model: Model) -> bool:
    """Return True if torchtitan has a recipe of exactly this model; another one is the user's own."""
    return _flavor(model) is not None


def _flavor(model: Model) -> tuple[str, str, str] | None:
    """Return module, recipe and flavor of a model in torchtitan; None where torchtitan does not have exactly it."""
    sizes = attrgetter("layers", "hidden_size", "vocab_size", "tied_embeddings")
    same = (flavor for name, flavor in FLAVORS.items() if sizes(catalog.model(name)) == sizes(model))
    return None if model.mtp_layers else next(same, None)


def _notes(plan: Plan, flavor: tuple[str, str, str] | None) -> tuple[str, ...]:
    strategy, framework = plan.strategy, plan.cluster.framework
    notes = [
        f"The options are those of torchtitan {VERSION}; the recipe refuses to run with another version. Its main "
        "branch names micro-batch, batches and sequence length otherwise, which is written when a package has them.",
        f"Optimizer, learning rate, data and tokenizer are those of {flavor[1] if flavor else 'your recipe'}: look at "
        "them.",
        checkpoints(plan),
        *model_notes(plan, TARGET, writes_loss=True),
    ]
    if framework is None or not framework.name.startswith(TARGET):
        notes.append(
            "The step time is torchtitan's only if the plan was made with cluster.framework=torchtitan-0.1; this is "
            "another framework's."
        )
    if flavor is None:
        notes.append(
            "TODO: let 'base' be your own recipe; torchtitan has no model of these sizes under a name known here."
        )
    if strategy.sharding == Sharding.GRADIENTS and num_microbatches(plan) > 1:
        notes.append("FSDP2 gathers the weights again for each micro-batch; the estimate gathers them once per step.")
    return tuple(notes)
