"""Plans as overrides of a Megatron-Bridge recipe: the fields of its configuration for Megatron-LM's options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from constraints.targets import (
    BRIDGE_RELEASES,
    bridge_release,
    effective_settings,
    name_of_release,
    require_release,
)
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.models.numerics import find_defaults
from costmodel.strategy import CudaGraphs, Sharding
from planner.frameworks.megatron.lm import (
    background_notes,
    environment,
    megatron_entries,
)
from planner.frameworks.megatron.model import frequency_flags
from planner.frameworks.megatron.numerics import POSITIONS, YARN, YARN_OPTIONS, facts_of, options_of, todo_lines
from planner.frameworks.megatron.options import WORDS, options
from planner.frameworks.megatron.releases import DROPOUTS, describe_costed_release, spell_graphs
from planner.frameworks.megatron.settings import WIDE, WIDE_NUMBERS
from planner.frameworks.target import (
    TODO,
    Entries,
    Export,
    Program,
    require_version,
    write_comments,
)

if TYPE_CHECKING:
    from planner.results import Plan

DATA = WORDS["bridge"]

TARGET = "Megatron-Bridge"
VERSIONS = BRIDGE_RELEASES

PACKAGED = VERSIONS[0]
OVERRIDES_FILE = "bridge-overrides.txt"


SCOPE = "model.cuda_graph_scope"


OWN_SECTIONS = ("model.", "ddp.", "optimizer.")
"""Sections of the configuration whose fields are Megatron Core's."""

OVERLAP = "++comm_overlap"
"""Section that is added or merged, as some recipes have none."""


PRECISION = "++mixed_precision"
"""Section that is added or merged, as a recipe has either the name of a precision or the object itself."""

KEPT = "checkpoint.most_recent_k"
"""Number of checkpoints that are kept, for which Megatron-LM has no option."""


DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


PROGRAM = Program(
    words=("train.py",),
    has_options=True,
    todo="train.py is your own script, whose recipe of Megatron-Bridge takes overrides",
)
"""Program of every process."""


def to_megatron_bridge(plan: Plan, version: str | None = None) -> Export:
    """
    Write a plan as overrides of a recipe's configuration, a line each, quoted for a shell.

    Raises
    ------
    SpecError
        If Megatron Core cannot run it, with all reasons, or if the version is unknown.
    """
    require_version(version, TARGET, VERSIONS)
    release = version or bridge_release(plan.cluster)
    entries, lines = bridge_entries(plan, release)
    words = (shlex.quote(f"{key}={hydra_text(value)}") for key, value in entries.items())
    head = (*_header(plan, release, entries), *map(TODO.format, lines))
    return Export(
        target=TARGET,
        files={OVERRIDES_FILE: write_comments(head) + "\n".join(words) + "\n"},
        environment=environment(plan),
        notes=tuple(_notes(plan, release)),
        version=release,
    )


def _header(plan: Plan, release: str, entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield comments on the release of the file, the release that was costed, and fields that may differ."""
    costed, words = name_of_release(plan.cluster), describe_costed_release(plan)
    yield f"Overrides for Megatron-Bridge {release}{f'; {words}' if words else ''}."
    if release != PACKAGED:
        own = [name.lstrip("+") for name in entries if not name.startswith(OWN_SECTIONS)]
        yield (
            f"There is no package of it: fields of Megatron Core are those of core 0.18.2, and these, which are as in "
            f"Megatron-Bridge {PACKAGED}, may differ: {', '.join(own)}."
        )
    elif costed.startswith("megatron-bridge") and not costed.startswith(PACKAGED_NAMES):
        own = [name.lstrip("+") for name in entries if name.startswith(DIFFERING) or not name.startswith(OWN_SECTIONS)]
        yield f"There is no package of {costed}; these fields may differ there: {', '.join(own)}."


PACKAGED_NAMES = ("megatron-bridge-26.02", f"megatron-bridge-{PACKAGED}")
"""Names of the release that has a package: by its container and by its version."""

DIFFERING = ("model.cuda_graph", "model.moe_flex", "model.fine_grained", "model.hybrid", "model.offload_modules")
"""Fields of Megatron Core that not all of its releases have (``releases.csv``)."""


def bridge_entries(plan: Plan, release: str = PACKAGED) -> tuple[Entries, tuple[str, ...]]:
    """
    Write a plan as fields of the configuration.

    Returns
    -------
    entries, lines
        Values by field; one line for each fact of the model without a field.

    Raises
    ------
    SpecError
        If the release refuses the plan.
    """
    entries = megatron_entries(plan, "megatron-bridge")
    require_release(plan.facts, plan.strategy, "megatron-bridge", (release,))
    is_newer = release != PACKAGED
    entries = spell_graphs(entries) if is_newer else entries
    model = plan.facts.model
    facts, left = options_of(facts_of(model), lambda option: option != YARN or _has_yarn(model))
    if facts.get(POSITIONS) == "yarn":
        facts = {name: value for name, value in facts.items() if name not in YARN_OPTIONS}
    lines = [*todo_lines(left, f"Megatron-Bridge {release}")]
    for name in DROPOUTS:
        if entries.get(name, facts[name]) != facts[name]:
            lines.append(f"{name} {facts.pop(name):g}: off, as what a CUDA graph recomputes draws no random numbers")
    entries |= facts
    known = {key: option_value(name, value) for name, value in entries.items() for key in fields_of(name)}
    overlaps = {key.removeprefix("comm_overlap."): value for key, value in known.items() if "comm_overlap." in key}
    fields = {key: value for key, value in known.items() if "comm_overlap." not in key}
    extra: Entries = {OVERLAP: {**DATA.overlaps, **overlaps}, PRECISION: precision_of(plan, entries)}
    if known.get("model.cpu_offloading_num_layers"):
        extra["model.cpu_offloading"] = True
    if plan.strategy.vpp > 1:  # also with a layout: Bridge checks overlaps before it reads vpp from the layout
        extra["model.virtual_pipeline_model_parallel_size"] = plan.strategy.vpp
    if plan.kept_checkpoints is not None:
        extra[KEPT] = plan.kept_checkpoints
    extra |= _fsdp_in_graphs(plan)
    defaults = {**DATA.defaults, **_facts_off(plan), **(DATA.of_core_0_18 if is_newer else {})}
    if is_newer:
        del defaults[SCOPE]
    return {**defaults, **fields, **extra}, tuple(lines)


def _fsdp_in_graphs(plan: Plan) -> Entries:
    """Fields that Megatron-LM sets for Megatron-FSDP in graphs (megatron/training/training.py:1924 of core 0.18.2)."""
    graphs = plan.strategy.cuda_graphs
    if plan.strategy.sharding < Sharding.GRADIENTS or graphs == CudaGraphs.NONE:
        return {}
    mode: Entries = {"ddp.megatron_fsdp_cuda_graph_mode": True}
    whole = graphs == CudaGraphs.FULL_ITERATION
    return mode | ({"ddp.fsdp_all_gather_in_start_param_sync": False} if whole else {})


def _facts_off(plan: Plan) -> Entries:
    """Return fields of facts without an option, and of facts that are off but that a recipe may have switched on."""
    facts = [*facts_of(plan.facts.model)]
    found: Entries = {fact.field: fact.value for fact in facts if fact.field and fact.value is not None}
    for fact in facts:
        if fact.option and fact.value is False:
            found |= dict.fromkeys(fields_of(fact.option), False)
    return found | (DATA.of_routers if plan.facts.model.numerics.routing is not None else {})


def _has_yarn(model: Model) -> bool:
    """Tell whether a model has YaRN outside latent attention, as gpt-oss alone has (gpt_oss_bridge.py:101)."""
    rotary, own = model.numerics.rotary, find_defaults("gpt_oss").rotary
    return model.family == "gpt_oss" and rotary is not None and own is not None and rotary.parameters == own.parameters


def fields_of(name: str) -> tuple[str, ...]:
    """Return the fields of an option of Megatron-LM; none where the configuration needs no field for it."""
    fields = options()[name].bridge
    if fields is None:
        raise SpecError("strategy", f"{TARGET} has no field for Megatron-LM's {name}.")
    return fields


def precision_of(plan: Plan, entries: Mapping[str, Any]) -> Entries:
    """
    Return the object ``MixedPrecisionConfig``, which overwrites the precision of all other sections.

    References
    ----------
    Megatron-Bridge 0.3.1, training/mixed_precision.py:104, training/utils/omegaconf_utils.py:461.
    """
    half = "fp16" if plan.facts.workload.precision.name == "fp16" else "bf16"
    dtype = {"_target_": DTYPES[half], "_call_": False}
    settings, gathered = effective_settings(plan.facts, plan.strategy), "--fp8-param-gather" in entries
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        **DATA.plain,
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_enabled": False,
        "grad_reduce_in_fp32": settings.gradient_dtype == "fp32",
        "fp8": entries.get("--fp8-format"),
        "fp4": entries.get("--fp4-format"),
        **{field: entries[option] for option, field in DATA.recipes.items() if option in entries},
        **(DATA.delayed if entries.get("--fp8-recipe") == "delayed" else {}),
        "fp8_dot_product_attention": bool(settings.fp8_attention),
        "first_last_layers_bf16": WIDE in entries,
        **{option.removeprefix("--").replace("-", "_"): entries.get(option, 0) for option in WIDE_NUMBERS.values()},
        "fp8_param": gathered,
        "fp8_param_gather": gathered,
        # With Megatron-FSDP, where Megatron-LM has no such option, Bridge wants it here and switches it off itself.
        "reuse_grad_buf_for_mxfp8_param_ag": gathered and entries.get("--fp8-recipe") == "mxfp8",
    }


def option_value(name: str, value: Any) -> Any:
    """
    Convert an option's value to that of its field.

    >>> option_value("--disable-bias-linear", True), option_value("--cp-comm-type", ["p2p"])
    (False, 'p2p')
    >>> option_value("--moe-layer-freq", "([0]*1+[1]*2)"), option_value("--window-size", "128,0")
    ([0, 1, 1], [128, 0])
    """
    if name in DATA.negated:
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
    Write a value in Hydra's grammar.

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


def _notes(plan: Plan, release: str) -> Iterator[str]:
    yield (
        f"Fields of Megatron-Bridge {release}, for {plan.cluster.num_devices} processes and a recipe of "
        f"{plan.facts.model.name}: data, tokenizer, activation function and the optimizer's numbers are those of the "
        "recipe."
    )
    yield from background_notes(plan)
    if effective_settings(plan.facts, plan.strategy).optimizer != "adam":
        yield "Muon's own numbers are those of the recipe, which must be one with Muon."
