"""
Nested YAML: Megatron-LM's ``--yaml-cfg``, NeMo's of its first version, and fields of a ConfigContainer by sections.

The first two are made words of Megatron-LM's command line, the last one is made overrides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.library import options_by_field
from planner.frameworks.imports.bridge.overrides import bridge_job, said_by
from planner.frameworks.imports.finish import assumed, newest, release_assumed
from planner.frameworks.megatron.options import options
from planner.frameworks.megatron.read import Imported
from planner.jobs.problem import load

MEGATRON = ("language_model", "model_parallel")
"""Sections of Megatron-LM's own YAML (megatron/training/yaml_arguments.py)."""

OWN_SECTIONS = ("train", "ddp", "comm_overlap", "trainer", "mixed_precision", "checkpoint", "dataset")
"""Sections of ConfigContainer and of NeMo's recipes, one of which such a file has."""

MARKS = (*MEGATRON, *OWN_SECTIONS)

NEMO = {
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "num_moe_experts": "num_experts",
    "moe_router_topk": "moe_router_topk",
}
"""NeMo's names that are not Megatron-LM's (nemo_nlp examples, conf/megatron_gpt_config.yaml, 1.x and 2.0)."""

SWITCHED = {
    "add_bias_linear": ("--disable-bias-linear", False),
    "bias": ("--disable-bias-linear", False),
    "gated_linear_unit": ("--swiglu", True),
    "share_embeddings_and_output_weights": ("--untie-embeddings-and-output-weights", False),
    "overlap_p2p_comm": ("--no-overlap-p2p-communication", False),
}
"""Switches of Megatron-LM that say the opposite of an entry, or the same under another name."""

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
OPEN = "???"


def nested_job(
    content: Mapping[str, Any],
    source: str,
    recipe: str,
    overrides: Sequence[str],
    fields: Mapping[str, str] | None = None,
) -> Imported:
    """
    A nested configuration as a job.

    Parameters
    ----------
    content
        The document.
    source
        What messages call it.
    recipe
        Name of the recipe that it stands on; empty: none is said.
    overrides
        Entries of the job as ``key=value``.
    fields
        Overrides of a command, which count more.

    Raises
    ------
    SpecError
        If something that decides a degree, a batch, the precision or the recomputation is left open or not known.
    """
    flat = {name: _resolved(value, content, name) for name, value in _flat(content)}
    if any(isinstance(content.get(section), Mapping) for section in MEGATRON):
        return megatron_job(list(_words(_short(flat))), overrides, {}, uses={})
    model = content.get("model")
    if isinstance(model, Mapping) and ("encoder_seq_length" in model or "micro_batch_size" in model):
        return _nemo_job(flat, overrides)
    texts = {name: _text(value) for name, value in flat.items() if not name.endswith("_target_")}
    return bridge_job({**texts, **(fields or {})}, recipe, overrides, {})


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _resolved(value: Any, content: Mapping[str, Any], name: str, depth: int = 8) -> Any:
    """A value whose references to other entries are written out."""
    found = REFERENCE.fullmatch(str(value)) if isinstance(value, str) else None
    if found is None:
        return value
    entry: Any = content
    for part in found[1].split("."):
        entry = entry.get(part, OPEN) if isinstance(entry, Mapping) else OPEN
    if depth == 0 or isinstance(entry, Mapping):
        raise SpecError(name, f"refers to {shown(found[1])}, which is no value.")
    return _resolved(entry, content, name, depth - 1)


def _short(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Names without the sections that Megatron-LM's YAML has."""
    return {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.count(".") <= 1}


def _words(entries: Mapping[str, Any]) -> Iterator[str]:
    """Options of Megatron-LM by the names of their variables, or of the fields that they fill."""
    if entries.get("activation_func") in ("swiglu", "silu") or str(entries.get("activation", "")).endswith("swiglu"):
        yield "--swiglu"
    if entries.get("num_query_groups") is not None:
        yield "--group-query-attention"
    for name, value in entries.items():
        option = _option_of(name)
        if name in SWITCHED:
            switch, said_by = SWITCHED[name]
            if value is said_by:
                yield switch
        elif value is not None and value is not False and name not in ("activation_func", "activation"):
            yield option
            if value is not True:
                yield from map(_text, value) if isinstance(value, list) else (_text(value),)


def _nemo_job(flat: Mapping[str, Any], overrides: Sequence[str]) -> Imported:
    """NeMo's first version: a trainer, and a model with its sizes, degrees and batches."""
    model = {name.removeprefix("model."): value for name, value in flat.items() if name.startswith("model.")}
    entries = {NEMO.get(name, name): value for name, value in model.items() if "." not in name}
    words = {name: f"--{name.replace('_', '-')}" for name in entries}
    read = {name: one for name, one in entries.items() if name in (*SWITCHED, "activation") or words[name] in options()}
    for name, value in entries.items():
        decides = any(part in name for part in DECIDES) and name not in (*read, *HARMLESS)
        if decides and value not in (None, False):
            problem = f"is {shown(value)}, an entry that is not known here and may say what matters."
            raise SpecError(f"model.{name}", problem, "Take it out.")
    if str(read.get("normalization", "")).lower() in ("rmsnorm", "layernorm", "layernorm1p"):
        read["normalization"] = "RMSNorm" if str(read["normalization"]).lower() == "rmsnorm" else "LayerNorm"
    precision = str(flat.get("trainer.precision", "bf16"))
    read[{"16": "fp16", "16-mixed": "fp16"}.get(precision, "bf16")] = True
    if precision not in ("bf16", "bf16-mixed", "16", "16-mixed"):
        raise SpecError("trainer.precision", f"expected bf16 or 16, got {shown(precision)}: FP32 is not costed.")
    if read.pop("fp8", False):
        read |= {"fp8_format": "e4m3" if entries.get("fp8_e4m3") else "hybrid", "fp8_recipe": "delayed"}
    if "distributed" in str(flat.get("model.optim.name", "")):
        read["use_distributed_optimizer"] = True
    given = {entry.partition("=")[0] for entry in overrides}
    one, many = (flat.get(f"trainer.{name}") for name in ("devices", "num_nodes"))
    more = [f"cluster.framework={newest('nemo-')}"] if "cluster.framework" not in given else []
    if "cluster.num_devices" not in given and isinstance(one, int) and isinstance(many, int):
        more.append(f"cluster.num_devices={one * many}")
    if isinstance(flat.get("trainer.max_steps"), int) and flat["trainer.max_steps"] > 0:
        read["train_iters"] = flat["trainer.max_steps"]
    imported = megatron_job([*_words(read), *_tokenizer(flat)], [*more, *overrides], {}, uses={})
    has_experts = load(imported.document).facts.model.has_experts
    said = said_by({_option_of(name) for name in read}, overrides)
    notes = assumed(imported.document, said, has_experts=has_experts, whose="NeMo's defaults")
    release = release_assumed(newest("nemo-"), overrides)
    return Imported(document=imported.document, notes=(*release, *notes, *imported.notes))


def _option_of(name: str) -> str:
    """The option of Megatron-LM that an entry says something of."""
    if name in SWITCHED:
        return SWITCHED[name][0]
    option = f"--{name.replace('_', '-')}"
    return option if option in options() else options_by_field().get(f"model.{name}", option)


DECIDES = ("parallel", "recompute", "checkpoint", "batch", "fp8", "offload")
"""Parts of the names of entries that decide a degree, a batch, the precision or the recomputation."""

HARMLESS = ("fp8_e4m3", "fp8_hybrid", "fp8_margin", "fp8_interval", "fp8_amax_history_len", "fp8_amax_compute_algo")


def _tokenizer(flat: Mapping[str, Any]) -> Iterator[str]:
    """What says the vocabulary."""
    library, kind = (str(flat.get(f"model.tokenizer.{name}", "")) for name in ("library", "type"))
    if library == "huggingface" and kind:
        yield from ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", kind)
    elif kind and kind != "None":
        yield from ("--tokenizer-type", kind)


def _text(value: Any) -> str:
    if value == OPEN:
        return "$OPEN"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
