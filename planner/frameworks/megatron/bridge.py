"""Plans as overrides of a Megatron-Bridge recipe: Megatron-LM's options by the names of its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from planner.frameworks.megatron.lm import DECISION_OPTIONS, environment, megatron_entries, require_job
from planner.frameworks.megatron.model import frequency_flags
from planner.frameworks.megatron.options import options
from planner.frameworks.megatron.settings import SETTINGS as OF_MEGATRON
from planner.frameworks.planned import Plan
from planner.frameworks.target import Answers, Entries, Export, FieldOptions, Program, effective_settings, only

TARGET = "Megatron-Bridge"
OVERRIDES_FILE = "bridge-overrides.txt"

NEGATED = (
    "--disable-bias-linear",
    "--no-check-for-nan-in-loss-and-grad",
    "--no-gradient-accumulation-fusion",
    "--no-overlap-p2p-communication",
    "--untie-embeddings-and-output-weights",
)
"""Switches whose field says the opposite."""

DEFAULTS: Entries = {
    "model.sequence_parallel": False,
    "model.virtual_pipeline_model_parallel_size": None,
    "model.pipeline_model_parallel_layout": None,
    "model.recompute_granularity": None,
    "model.recompute_method": None,
    "model.recompute_num_layers": None,
    "model.cpu_offloading": False,
    "model.fine_grained_activation_offloading": False,
    "model.cross_entropy_loss_fusion": False,
    "model.cuda_graph_impl": "none",
    "model.moe_shared_expert_overlap": False,
    "model.mtp_num_layers": None,
    "model.share_embeddings_and_output_weights": True,
    "ddp.use_distributed_optimizer": False,
    "optimizer.use_distributed_optimizer": False,
    "ddp.num_distributed_optimizer_instances": 1,
    "optimizer.use_precision_aware_optimizer": False,
    "optimizer.exp_avg_dtype": "torch.float32",
    "optimizer.exp_avg_sq_dtype": "torch.float32",
    "optimizer.optimizer_cpu_offload": False,
    "optimizer.overlap_cpu_optimizer_d2h_h2d": False,
    "dist.use_megatron_fsdp": False,
    "ddp.use_megatron_fsdp": False,
    "comm_overlap.tp_comm_overlap": False,
    "comm_overlap.overlap_grad_reduce": False,
    "comm_overlap.overlap_param_gather": False,
    "comm_overlap.overlap_moe_expert_parallel_comm": False,
    "comm_overlap.delay_wgrad_compute": False,
}
"""What no option means in Megatron-LM but a recipe may have set: written out."""

PRECISION = "++mixed_precision"
"""Added or merged: a recipe has either the name of a precision, or the object itself."""

KEPT = "checkpoint.most_recent_k"
"""How many checkpoints are kept, which no option of Megatron-LM says."""

RECIPES = {"--fp8-recipe": "fp8_recipe", "--fp4-recipe": "fp4_recipe"}

DELAYED: Entries = {"fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
"""
Beside delayed scaling, as ``megatron/bridge/training/mixed_precision.py`` has it; all layers are in 8 or 4 bits, as the
plan counts (that of current scaling leaves the first and the last one in BF16).
"""

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

SETTINGS: Mapping[str, FieldOptions] = {
    **OF_MEGATRON,
    "attention": only(
        "flash",
        "model.attention_backend is an object, which no override of a recipe makes "
        "(megatron/bridge/training/utils/omegaconf_utils.py, _apply_overrides).",
    ),
}
"""What each setting is: Megatron-LM's options, whose fields are :func:`fields_of` and those of :func:`precision_of`."""

ANSWERS = Answers(
    target=TARGET, decisions=DECISION_OPTIONS, settings=SETTINGS, require_job=partial(require_job, target=TARGET)
)
"""What it says of everything."""


PROGRAM = Program(
    words=("train.py",),
    has_options=True,
    todo="train.py is your own script, whose recipe of Megatron-Bridge takes overrides",
)
"""What every process runs."""


def to_megatron_bridge(plan: Plan) -> Export:
    """
    A plan as overrides of a recipe's configuration, a line each, quoted for a shell.

    Raises
    ------
    SpecError
        If Megatron Core cannot do it, with all reasons.
    """
    entries = bridge_entries(plan)
    lines = (shlex.quote(f"{key}={hydra_text(value)}") for key, value in entries.items())
    return Export(
        target=TARGET,
        files={OVERRIDES_FILE: "\n".join(lines) + "\n"},
        environment=environment(plan),
        notes=tuple(_notes(plan)),
    )


def bridge_entries(plan: Plan) -> Entries:
    """Values by field of the configuration."""
    entries = megatron_entries(plan, TARGET, SETTINGS)
    known = {key: option_value(name, value) for name, value in entries.items() for key in fields_of(name)}
    extra: Entries = {PRECISION: precision_of(plan, entries)}
    if known.get("model.cpu_offloading_num_layers"):
        extra["model.cpu_offloading"] = True
    if plan.kept_checkpoints is not None:
        extra[KEPT] = plan.kept_checkpoints
    return {**DEFAULTS, **known, **extra}


def fields_of(name: str) -> tuple[str, ...]:
    """Fields of the configuration that say what an option of Megatron-LM does; none where it needs no option."""
    fields = options()[name].bridge
    assert fields is not None, f"meanings.csv does not say what {name} is in Megatron-Bridge"
    return fields


def precision_of(plan: Plan, entries: Mapping[str, Any]) -> Entries:
    """
    The object ``MixedPrecisionConfig``, which overwrites what the configuration says of precision elsewhere.

    References
    ----------
    Megatron-Bridge 0.3.1, training/mixed_precision.py:104, training/utils/omegaconf_utils.py:461.
    """
    half = "fp16" if plan.facts.workload.precision.name == "fp16" else "bf16"
    dtype = {"_target_": DTYPES[half], "_call_": False}
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_enabled": False,
        "grad_reduce_in_fp32": effective_settings(plan).gradient_dtype == "fp32",
        "fp8": entries.get("--fp8-format"),
        "fp4": entries.get("--fp4-format"),
        **{field: entries[option] for option, field in RECIPES.items() if option in entries},
        **(DELAYED if entries.get("--fp8-recipe") == "delayed" else {}),
        "first_last_layers_bf16": False,
        "fp8_param": "--fp8-param-gather" in entries,
        "fp8_param_gather": "--fp8-param-gather" in entries,
        "reuse_grad_buf_for_mxfp8_param_ag": "--reuse-grad-buf-for-mxfp8-param-ag" in entries,
    }


def option_value(name: str, value: Any) -> Any:
    """
    What an option's value is as a field.

    >>> option_value("--disable-bias-linear", True), option_value("--cp-comm-type", ["p2p"])
    (False, 'p2p')
    >>> option_value("--moe-layer-freq", "([0]*1+[1]*2)"), option_value("--window-size", "128,0")
    ([0, 1, 1], [128, 0])
    """
    if name in NEGATED:
        return not value
    if name == "--cp-comm-type":
        return value[0]
    if name in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
        return DTYPES[value]
    if name in ("--moe-layer-freq", "--window-attn-skip-freq"):
        return [int(flag) for flag in frequency_flags(value, name)]
    return [int(size) for size in value.split(",")] if name == "--window-size" else value


def hydra_text(value: Any) -> str:
    """
    A value in Hydra's grammar.

    >>> hydra_text(True), hydra_text(None), hydra_text(7.0), hydra_text(["mlp", "moe"]), hydra_text("Et*3|(t|)*2tL")
    ('true', 'null', '7.0', '[mlp,moe]', "'Et*3|(t|)*2tL'")
    >>> hydra_text({"fp8": "hybrid", "bf16": True})
    '{fp8:hybrid,bf16:true}'
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{hydra_text(one)}' for name, one in value.items())}}}"
    text = str(value)
    return text if isinstance(value, float) or text.replace("_", "").replace("+", "").isalnum() else f"'{text}'"


def _notes(plan: Plan) -> Iterator[str]:
    yield (
        f"For {plan.cluster.num_devices} processes and a recipe of {plan.facts.model.name}: data, tokenizer, "
        "activation function, rotary base and optimizer are those of the recipe; it must have a comm_overlap."
    )
    if effective_settings(plan).optimizer != "adam":
        yield "Muon's own numbers are those of the recipe, which must be one with Muon."
