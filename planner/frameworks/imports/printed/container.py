"""Import of a whole ConfigContainer of Megatron-Bridge, printed or saved (``run_config.yaml``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.library import LAYERS, options_by_field
from planner.frameworks.imports.finish import newest, release_assumed
from planner.frameworks.imports.printed.names import DTYPES, name_of, words_of
from planner.frameworks.megatron.bridge import NEGATED
from planner.frameworks.megatron.read import Imported

TARGET = "megatron.bridge.training.config.ConfigContainer"

SECTIONS = ("dist", "rng", "optimizer", "ddp", "comm_overlap", "model", "mixed_precision", "train")
"""Sections with fields that change the cost of a step; of equal names the last one with a value counts."""

NEEDED = ("model", "train", "optimizer", "ddp")
"""Sections that every container has, written in the order of their names."""

NAMES = {
    "fp8_param": "fp8_param_gather",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
"""Arguments of Megatron-LM by fields of another name."""

ACTIVATIONS = {
    ("silu", True): "swiglu",
    ("quick_gelu", True): "quick_geglu",
    ("squared_relu", False): "squared_relu",
    ("gelu", False): "",
}
"""Arguments by the activation function, gated or not."""

TOGETHER = ("activation_func", "gated_linear_unit", "_target_")
"""Fields that are read together."""

GRAPHS = ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration_inference")
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "AttnBackend": ("flash", "fused", "unfused", "local", "auto"),
    "CudaGraphScope": GRAPHS,
    "CudaGraphModule": GRAPHS[1:-1],
}
"""Members of enumerations, which are written as numbers from 1 (megatron/core/transformer/enums.py)."""

DECIDES = ("parallel", "recompute", "offload", "pipeline")
HARMLESS = (
    *("cpu_offloading_activations", "cpu_offloading_weights", "deallocate_pipeline_outputs", "parallel_output"),
    *("scatter_embedding_sequence_parallel", "use_tp_pp_dp_mapping", "pipeline_dtype"),
)
"""Parts of names of fields that repeat other fields."""


def is_container(content: Any) -> bool:
    """Tell whether a document is a ConfigContainer."""
    return isinstance(content, Mapping) and content.get("_target_") == TARGET


def container_job(content: Mapping[str, Any], overrides: Sequence[str], place: str) -> Imported:
    """
    Import a configuration with all of its fields.

    Raises
    ------
    SpecError
        If a section is missing, if a field that decides a degree, the stages, recomputation or offloading is not known,
        or as ``megatron_job``.
    """
    missing = [name for name in NEEDED if not isinstance(content.get(name), Mapping)]
    if missing:
        problem = f"is a configuration without {', '.join(missing)}: it is cut."
        raise SpecError(place, problem, "Give all lines of it.")
    found: dict[str, Any] = {}
    strange: list[str] = []
    for section in SECTIONS:
        fields = content.get(section)
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            if name in TOGETHER:
                continue
            argument, value = _argument(section, name, _plain(value))
            if argument is None:
                strange += _strange(f"{section}.{name}", name, value)
            elif value is not None:
                found[argument] = value
    found |= dict(_more(found, content))
    entries = [
        *([] if any(entry.startswith("cluster.framework=") for entry in overrides) else [_framework()]),
        *overrides,
    ]
    imported = megatron_job(words_of({name: str(value) for name, value in found.items()}), entries, {})
    notes = list(release_assumed(newest("megatron-bridge-"), overrides))
    length, data = found.get("seq_length"), content.get("dataset")
    given = data.get("sequence_length", data.get("seq_length")) if isinstance(data, Mapping) else None
    if given not in (None, length):
        notes.append(f"dataset.sequence_length is {given}; read is model.seq_length, {length}.")
    if strange:
        notes.append(f"Not read, no options of Megatron-LM: {', '.join(strange)}.")
    return Imported(document=imported.document, notes=(*notes, *imported.notes))


def _framework() -> str:
    return f"cluster.framework={newest('megatron-bridge-')}"


def _plain(value: Any) -> Any:
    """Return a plain value; of a function, a type or a member of an enumeration its name."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    target = str(value.get("_target_")) if isinstance(value, Mapping) else ""
    members, chosen = MEMBERS.get(target.rpartition(".")[2]), value.get("_args_") if target else None
    if members is not None and isinstance(chosen, list) and chosen and chosen[0] in range(1, len(members) + 1):
        return members[chosen[0] - 1]
    return value if not target else target if target in DTYPES else target.rpartition(".")[2]


def _argument(section: str, name: str, value: Any) -> tuple[str | None, Any]:
    """Return the argument for a field, and its value."""
    option = options_by_field().get(f"{section}.{name}")
    if option in NEGATED and name_of(option) != name and isinstance(value, bool):
        return name_of(option), not value
    known = NAMES.get(name, name)
    return (known, value) if name_of("", known) else (name_of(option or ""), value)


def _strange(path: str, name: str, value: Any) -> list[str]:
    if value in (None, False) or isinstance(value, Mapping):
        return []
    if any(part in name for part in DECIDES) and name not in HARMLESS:
        raise SpecError(
            path, f"is {shown(value)}, a field that is not known here, and may say what matters.", "Take it out."
        )
    return [path]


def _more(found: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield arguments that several fields determine together."""
    model = content["model"]
    function, gated = str(_plain(model.get("activation_func"))), bool(model.get("gated_linear_unit"))
    if (function, gated) not in ACTIVATIONS and function != "None":
        problem = f"is {shown(function)}, {'' if gated else 'not '}gated, which Megatron-LM has no option for."
        raise SpecError("model.activation_func", problem)
    yield from ((name, True) for name in filter(None, (ACTIVATIONS.get((function, gated)),)))
    if found.get("num_query_groups") not in (None, found.get("num_attention_heads")):
        yield "group_query_attention", True
    if found.get("bf16") and found.get("accumulate_allreduce_grads_in_fp32") is False:
        yield "grad_reduce_in_bf16", True
    yield "max_position_embeddings", found.get("seq_length")
    layout = found.get("pipeline_model_parallel_layout")
    if layout is not None:
        yield "num_virtual_stages_per_pipeline_rank", None
    if isinstance(layout, list):
        stages = [stage if isinstance(stage, list) else [stage] for stage in layout]
        if strange := [layer for stage in stages for layer in stage if layer not in LAYERS]:
            problem = f"has {shown(strange[0])}; expected {', '.join(LAYERS)}."
            raise SpecError("model.pipeline_model_parallel_layout", problem)
        yield "pipeline_model_parallel_layout", "|".join("".join(LAYERS[layer] for layer in stage) for stage in stages)
