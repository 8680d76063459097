"""
Plans as recipes of torchtitan: a Python function that returns the configuration, named by ``--config``.

Options, schedules and lines are those of torchtitan 0.3.0 and of ``torch/distributed`` of PyTorch 2.13.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import ceil
from operator import attrgetter
from typing import Any

from costmodel import catalog
from costmodel.facts.model import Attention, Model, Rotary, Routing
from costmodel.models.numerics import NAMES
from costmodel.pipelines.stages import stage_layers
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from planner.frameworks.target import (
    NO_STEP,
    OFFLOADS_WHOLE,
    TODO,
    Answers,
    Choice,
    Entries,
    Export,
    FieldOptions,
    Plan,
    Program,
    Unsupported,
    checkpoints,
    effective_settings,
    entries_of,
    hybrid_sharding,
    model_notes,
    name_of_costed_release,
    no_options,
    num_microbatches,
    num_sharing_groups,
    only,
    require_precision,
    require_version,
    subject,
    variables,
    write_comments,
)
from planner.jobs.document import nest_entries

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

NUM_ACTIVE_CHUNKS = 3

"""Number of chunks of a pipeline rank whose sharded weights PyTorch keeps gathered at a time."""

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
    entries = entries_of(plan, TARGET, DECISION_OPTIONS, SETTINGS)
    _precision(plan)
    flavor = _flavor(plan.facts.model)
    return Export(
        target=TARGET,
        files={FILE: _recipe(plan, entries, flavor)},
        environment=variables(plan),
        notes=_notes(plan, flavor),
    )


def _precision(plan: Plan) -> str:
    problem = f"{TARGET} chooses {{name}}{{own}} by converters of the model, which this export does not write."
    return require_precision(plan, ("bf16",), problem)


# --- decisions ---------------------------------------------------------------------------------------------
def _tp(plan: Plan) -> Entries | Unsupported:
    mixers = (kind.attention for kind in plan.facts.model.kinds)
    if any(one.num_kv_heads % plan.strategy.tp for one in mixers if isinstance(one, Attention)):
        return Unsupported("It divides the key-value heads (torchtitan/models/common/decoder.py:153).")
    return {"parallelism.tensor_parallel_degree": plan.strategy.tp}


def _cp(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.cp > 1 and plan.facts.model.mtp_layers:
        return Unsupported(
            "Multi-token prediction excludes context parallelism (torchtitan/models/deepseek_v3/mtp.py:206)."
        )
    return {"parallelism.context_parallel_degree": plan.strategy.cp}


def _pp(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.pp > 1 and plan.facts.model.mtp_layers:
        return Unsupported("Multi-token prediction excludes pipelines (torchtitan/models/deepseek_v3/mtp.py:201).")
    if strategy.pp > 1 and plan.facts.model.tied_embeddings:
        return Unsupported(
            "Embedding and head with the same weights exclude it (torchtitan/models/common/decoder.py:139)."
        )
    return {"parallelism.pipeline_parallel_degree": strategy.pp}


def _cuda_graphs(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.cuda_graphs not in (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION):
        return Unsupported(
            "One graph holds forward and backward pass, or none (wrap_with_cuda_graph, torchtitan/trainer.py:614)."
        )
    if strategy.cuda_graphs == CudaGraphs.FULL_ITERATION and (strategy.pp > 1 or strategy.ep > 1):
        return Unsupported(
            "They support neither pipelines nor the standard dispatcher (torchtitan/trainer.py:183,204)."
        )
    return {"training.disable_cuda_graphs": strategy.cuda_graphs == CudaGraphs.NONE}


def _dp(plan: Plan) -> Entries:
    copies = _num_copies(plan)
    return {
        "parallelism.data_parallel_replicate_degree": copies,
        "parallelism.data_parallel_shard_degree": plan.strategy.dp // copies,
    }


def _num_copies(plan: Plan) -> int:
    """Number of groups of ranks that hold all states each."""
    return plan.strategy.dp if plan.strategy.sharding == Sharding.NONE else num_sharing_groups(plan) or 1


def _ep(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    ranks = strategy.cp * strategy.tp * strategy.dp // _num_copies(plan)
    if ranks % strategy.ep:
        return Unsupported(
            f"Experts are spread over the ranks that shard weights, context or tensors, here {ranks}: no multiple of "
            f"{strategy.ep} (torchtitan/distributed/parallel_dims.py:279)."
        )
    return {"parallelism.expert_parallel_degree": strategy.ep}


def _etp(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    split = strategy.tp if strategy.ep == 1 else 1
    if plan.facts.model.has_experts and strategy.etp != split:
        return Unsupported(
            "Experts are split by tensor parallelism where they are not spread (ep is 1), else never "
            "(torchtitan/models/common/moe_sharding.py:317)."
        )
    return {}


def _loss_chunks(plan: Plan) -> Entries | Unsupported:
    """Return the loss; the loss of multi-token prediction is the recipe's own, on all logits."""
    model, chunks = plan.facts.model, effective_settings(plan).loss_chunks or 1
    if plan.facts.workload.sequence_length // plan.strategy.cp % chunks:
        return Unsupported(
            f"Each rank's part of a sequence must split into {chunks} chunks (torchtitan/components/loss.py, "
            "ChunkedLossWrapper)."
        )
    if model.mtp_layers:
        return {}
    whole = f"CrossEntropyLoss.Config(global_vocab_size={model.vocab_size})"
    return {"loss": whole if chunks == 1 else f"ChunkedLossWrapper.Config(num_chunks={chunks}, loss_fn={whole})"}


def _vpp(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    chunks = {Schedule.GPIPE: 1, Schedule.ZB_V: 2, Schedule.DUALPIPEV: 2}.get(strategy.schedule, strategy.vpp)
    if strategy.vpp != chunks or (strategy.vpp > 1 and strategy.pp == 1):
        return Unsupported(
            "Only 1f1b in a pipeline has any number of chunks, gpipe one, zb_v and dualpipev two "
            "(torchtitan/distributed/pipeline_parallel.py, _get_pp_rank_to_stage_indices_mapping)."
        )
    if strategy.vpp > NUM_ACTIVE_CHUNKS and strategy.sharding > Sharding.NONE:
        return Unsupported(
            f"Weights of {NUM_ACTIVE_CHUNKS} chunks of a rank stay gathered, of more they are gathered again and again "
            "(_add_unshard_reshard, torch/distributed/pipelining/schedules.py:1287)."
        )
    return {}


def _group(plan: Plan) -> Entries | Unsupported:
    strategy, total = plan.strategy, num_microbatches(plan)
    if strategy.vpp == 1 or strategy.schedule != Schedule.ONE_F_ONE_B or total is None:
        return {}
    rounds = max(1, total // strategy.pp)
    if total % rounds or strategy.group != total // rounds:
        return Unsupported(
            f"{total} micro-batches are dealt in {rounds} equal rounds (ScheduleInterleaved1F1B, "
            "torch/distributed/pipelining/schedules.py:2935), not in groups of "
            f"{strategy.group}."
        )
    return {}


def _mbs(plan: Plan) -> Entries | Unsupported:
    strategy, total = plan.strategy, num_microbatches(plan)
    if total is None:
        return Unsupported("The global batch is no multiple of dp * mbs (torchtitan/trainer.py, Trainer.__init__).")
    if strategy.pp > 1 and strategy.schedule == Schedule.ONE_F_ONE_B and strategy.vpp == 1 and total < strategy.pp:
        return Unsupported(
            f"1F1B needs a micro-batch for each of {strategy.pp} stages, here are {total} "
            "(torch/distributed/pipelining/schedules.py:1020)."
        )
    local = strategy.mbs * total if strategy.pp > 1 else strategy.mbs
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": plan.facts.workload.global_batch_size,
        "parallelism.pipeline_parallel_microbatch_size": strategy.mbs if strategy.pp > 1 else 1,
    }


def _schedule(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.schedule == Schedule.ONE_F_ONE_B:
        name = "Interleaved1F1B" if strategy.vpp > 1 else "1F1B"
        return {"parallelism.pipeline_parallel_schedule": name}
    if strategy.schedule not in SCHEDULES:
        return Unsupported(
            "PyTorch's pipelines are 1f1b, gpipe, zb_v and dualpipev "
            "(get_schedule_class, torch/distributed/pipelining/schedules.py)."
        )
    return {"parallelism.pipeline_parallel_schedule": SCHEDULES[strategy.schedule]}


def _sharding(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.sharding == Sharding.NONE:
        if strategy.cp > 1:
            return Unsupported(
                "Context-parallel ranks always shard weights (torchtitan/distributed/parallel_dims.py:215)."
            )
        return {"parallelism.fsdp_reshard_after_forward": "never"}
    if strategy.pp > 1 and strategy.sharding > Sharding.OPTIMIZER:
        return Unsupported(
            "In a pipeline FSDP2 gathers weights once and keeps gradients whole until the last micro-batch, which is "
            "optimizer (torch/distributed/pipelining/stage.py:845)."
        )
    if strategy.pp == 1 and strategy.sharding == Sharding.OPTIMIZER:
        return Unsupported(
            "FSDP2 shards gradients after each backward pass, which is gradients or weights "
            "(torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder)."
        )
    whole = strategy.sharding < Sharding.WEIGHTS
    return {"parallelism.fsdp_reshard_after_forward": "never" if whole else "always"}


def _tp_overlap(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.tp_overlap and not strategy.sequence_parallel:
        return Unsupported(
            "Asynchronous tensor parallelism cuts the gathers and scatters of sequence parallelism "
            "(torchtitan/distributed/compile.py:75; torch/_inductor/fx_passes/micro_pipeline_tp.py)."
        )
    return {"compile.enable": True, "compile.enable_async_tensor_parallel": strategy.tp_overlap}


def _pp_overlap(plan: Plan) -> Entries | Unsupported:
    if plan.strategy.pp_overlap == (plan.strategy.vpp > 1):
        return {}
    return Unsupported(
        "Schedules with several chunks per rank send behind computation, 1f1b and gpipe with one never "
        "(torch/distributed/pipelining/schedules.py:1105,2216)."
    )


def _dp_overlap(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    if strategy.dp * strategy.cp == 1 or strategy.dp_overlap == (strategy.pp == 1):
        return {}
    if strategy.pp > 1:
        return Unsupported(
            "In a pipeline FSDP2 reduces gradients after the last backward pass "
            "(perform_reduce_grad, torch/distributed/pipelining/stage.py)."
        )
    return Unsupported("FSDP2 gathers and reduces behind computation, always (torch/distributed/fsdp/_fully_shard).")


def _layout(plan: Plan) -> Entries | Unsupported:
    strategy = plan.strategy
    layout = strategy.layout
    if layout is not None:
        same = {*layout.recompute} == {strategy.recompute} and {*layout.activation_offload} == {
            strategy.activation_offload
        }
        if not same or any(layout.full_layers):
            return Unsupported(
                "All stages recompute alike (pipeline_llm passes one policy, "
                "torchtitan/distributed/pipeline_parallel.py); plan with search.stages: layers or even."
            )
    return {"parallelism.module_fqns_per_model_part": _Code("stages()" if strategy.pp > 1 else "None")}


DECISION_OPTIONS: dict[str, FieldOptions] = {
    "tp": _tp,
    "cp": _cp,
    "pp": _pp,
    "dp": _dp,
    "ep": _ep,
    "etp": _etp,
    "vpp": _vpp,
    "group": _group,
    "mbs": _mbs,
    "sequence_parallel": "parallelism.enable_sequence_parallel",
    "schedule": _schedule,
    "vocabulary": Choice(
        {Vocabulary.ENDS: {}, Vocabulary.REDISTRIBUTED: {}},
        "Embedding and head are modules of one stage each (torchtitan/distributed/pipeline_parallel.py, "
        "_split_module).",
    ),
    "sharding": _sharding,
    "recompute": Choice(
        {
            Recompute.NONE: {"activation_checkpoint": None},
            Recompute.FULL: {"activation_checkpoint": "FullAC"},
            Recompute.of("every_other_matmul"): {"activation_checkpoint": "SelectiveAC"},
        },
        "Layers are recomputed in full (full) or but for every other matmul (every_other_matmul) "
        "(torchtitan/distributed/activation_checkpoint.py:166,185).",
    ),
    "activation_offload": only(
        False, "Activations stay in device memory (torchtitan/config/configs.py has no option)."
    ),
    "optimizer_offload": only(
        False, "Its enable_cpu_offload moves weights and gradients to the host too (torchtitan/config/configs.py:61)."
    ),
    "token_dispatcher": only(
        TokenDispatcher.ALLTOALL,
        "The backend is an argument of the model's registry (moe_comm_backend, "
        "torchtitan/models/common/config_utils.py:388), whose buffers have sizes that the plan does not have.",
    ),
    "cuda_graphs": _cuda_graphs,
    "tp_overlap": _tp_overlap,
    "cp_overlap": only(
        False, "Keys and values are gathered before attention (torchtitan/models/common/decoder_sharding.py:235)."
    ),
    "ep_overlap": only(
        False,
        "Tokens are sent and awaited (torchtitan/models/common/token_dispatcher.py has no other micro-batch to run).",
    ),
    "pp_overlap": _pp_overlap,
    "dp_overlap": _dp_overlap,
    "layout": _layout,
}

"""torchtitan's options for each field of a strategy."""

NO_FP8 = "FP8 is a converter of the model, not written here."

SETTINGS: dict[str, FieldOptions] = {
    "gradient_dtype": Choice(
        {"fp32": {"training.mixed_precision_reduce": "float32"}},
        "FSDP2 reduces in FP32, always (mixed_precision_reduce, torchtitan/config/configs.py:93).",
    ),
    # With bfloat16 shards there would be no FP32 weights at all.
    "weight_dtype": Choice(
        {"fp32": {"training.dtype": "float32", "training.mixed_precision_param": "bfloat16"}},
        "Ranks hold shards of FP32 weights, which are cast before they are gathered "
        "(mixed_precision_param, torchtitan/config/configs.py:85).",
    ),
    "moments_dtype": only("fp32", "Adam's moments are of the dtype of its weights, FP32 (torch/optim/adam.py)."),
    "fp8_param_gather": only(False, NO_FP8),
    "first_layers_bf16": only(0, NO_FP8),
    "last_layers_bf16": only(0, NO_FP8),
    "fp8_attention": only(False, NO_FP8),
    "mtp_layers": no_options,  # the model's own, of which a note tells
    "shared_expert_overlap": only(
        False, "Shared experts run after the routed ones (torchtitan/models/common/moe.py:455)."
    ),
    "delay_wgrad": only(False, "Weight gradients come with the backward pass, but in zero-bubble schedules."),
    "communication_sms": only(None, "Tokens go by an all-to-all of NCCL."),
    "cp_comm_type": Choice(
        {None: {}, "all_gather": {}},
        "Keys and values are gathered before attention (torchtitan/models/common/decoder_sharding.py:235).",
    ),
    "cp_a2a_ranks": only(None, "Context parallelism has no all-to-alls."),
    "offloaded_layers": only(None, "Activations stay in device memory."),
    "offloaded_states": only(1.0, OFFLOADS_WHOLE),
    "offloaded_masters": only(True, OFFLOADS_WHOLE),
    "offload_overlap": only(False, OFFLOADS_WHOLE),
    "host_threads": only(None, OFFLOADS_WHOLE),
    "optimizer_group": hybrid_sharding,
    "optimizer": only(
        "adam",
        "DistMuon wants a layout for every parameter, which no option writes (distributed/flex_shard/dist_muon.py); "
        "Kimi's recipes have it.",
    ),
    "muon_tp_mode": no_options,  # refused with Muon
    "muon_num_ns_steps": no_options,
    "kernels": only("fused", "Layers are compiled (compile.enable), which fuses them."),
    "attention": only(
        "flash", "Its backends are kernels that keep no scores (torchtitan/models/common/attention.py:109,243,385)."
    ),
    "loss": only("unfused", "The loss is PyTorch's cross-entropy on FP32 logits (torchtitan/components/loss.py)."),
    "loss_chunks": _loss_chunks,
    "allocator": no_options,  # a variable of the environment
    "launches": no_options,  # a variable of the environment
    "composition": only("step", NO_STEP),
}

"""torchtitan's options for each setting."""

ANSWERS = Answers(target=TARGET, decisions=DECISION_OPTIONS, settings=SETTINGS, require_job=_precision)

"""torchtitan's answers for decisions, settings and the job."""


# --- the recipe --------------------------------------------------------------------------------------------
class _Code(str):
    """Value that is written as it is, without quotation marks."""

    __slots__ = ()


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) and not isinstance(value, _Code) else str(value)


def _recipe(plan: Plan, entries: Entries, flavor: tuple[str, str, str] | None) -> str:
    settings = nest_entries(entries | _facts(plan))
    policy, loss = settings.pop("activation_checkpoint"), settings.pop("loss", None)
    model, strategy = plan.facts.model, plan.strategy
    imports = _imports(flavor, policy, has_loss=loss is not None)
    # Context parallelism needs FlexAttention (torchtitan/distributed/full_dtensor.py:49); gpt_oss has another one.
    attention = ', attn_backend="flex"' if strategy.cp > 1 else ""
    spec = f"        model_spec=model_registry({_literal(flavor[2])}{attention}),\n" if flavor else ""
    costed = name_of_costed_release(plan)
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
    if strategy.sharding == Sharding.GRADIENTS and (num_microbatches(plan) or 1) > 1:
        notes.append("FSDP2 gathers the weights again for each micro-batch; the estimate gathers them once per step.")
    return tuple(notes)
