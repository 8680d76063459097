"""
Import of nested YAML: Megatron-LM's ``--yaml-cfg``, and fields of a ConfigContainer by sections.

The first becomes a command line of Megatron-LM, the second overrides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.overrides import bridge_job
from planner.frameworks.imports.tools.keys import meaning_of
from planner.frameworks.imports.tools.references import resolve
from planner.frameworks.megatron.read import Imported

MEGATRON = ("language_model", "model_parallel")
"""Sections of Megatron-LM's own YAML (megatron/training/yaml_arguments.py)."""

OWN_SECTIONS = ("train", "ddp", "comm_overlap", "trainer", "mixed_precision", "checkpoint", "dataset")
"""Sections of ConfigContainer and of NeMo's recipes; such a file has at least one."""

MARKS = (*MEGATRON, *OWN_SECTIONS)

OPEN = "???"


def import_nested_job(
    content: Mapping[str, Any],
    source: str,
    recipe: str,
    overrides: Sequence[str],
    fields: Mapping[str, str] | None = None,
) -> Imported:
    """
    Import a nested configuration.

    Parameters
    ----------
    content
        The document.
    source
        Name of the file in messages.
    recipe
        Name of the recipe that it changes; empty: none.
    overrides
        Entries of the job as ``key=value``.
    fields
        Overrides of a command, which take precedence.

    Raises
    ------
    SpecError
        If an entry that decides a degree, a batch, the precision or the recomputation is missing or unknown.
    """
    if isinstance(content.get("model"), list):
        raise SpecError("model", f"expected a mapping, got {shown(content['model'])}.")
    content, notes = _sort_into_sections(content)
    flat = {name: resolve(value, name, content, {}) for name, value in _flat(content)}
    if any(isinstance(content.get(section), Mapping) for section in MEGATRON):
        meaning = meaning_of("megatron_yaml", _short(flat), section="")
        imported = megatron_job(meaning.words, overrides, {})
        return Imported(document=imported.document, notes=(*meaning.notes, *imported.notes))
    texts = {name: _text(value) for name, value in flat.items() if not name.endswith(OF_OBJECTS)}
    config = _section(content, "model", "config")
    imported = bridge_job({**texts, **(fields or {})}, recipe or _class_of(config), overrides, {}, is_whole=not recipe)
    return Imported(document=imported.document, notes=(*notes, *imported.notes))


# --- NeMo 2 ------------------------------------------------------------------------------------------------

OF_OBJECTS = ("_target_", "_call_", "_partial_", "_args_")
"""Entries by which NeMo-Run writes an object."""

PARTS = {"MegatronMixedPrecision": "mixed_precision", "MegatronCommOverlapCallback": "comm_overlap"}
"""Sections of Megatron-Bridge that say what plugins and callbacks of NeMo 2 say."""

OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
"""Entries of DDP that MegatronCommOverlapCallback sets."""

DECISIVE = re.compile(
    r"Precision|Overlap|FSDP|DDP|Parallel|DeepEP|Token|Transform|PEFT|LoRA|Offload|Quant|Prun|Distill"
)
"""Parts of the names of plugins, callbacks and strategies that decide time or memory."""


def _class_of(value: Any) -> str:
    return str(value.get("_target_", "")).rpartition(".")[2] if isinstance(value, Mapping) else ""


def _section(content: Mapping[str, Any], *names: str) -> dict[str, Any]:
    inner: Any = content
    for name in names:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return dict(inner) if isinstance(inner, Mapping) else {}


def _sort_into_sections(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """
    NeMo 2's plugins and callbacks as sections of Megatron-Bridge, DDP as its strategy sets it up.

    References
    ----------
    NeMo 2: lightning/pytorch/strategies/megatron_strategy.py, MegatronStrategy.connect (DDP takes the optimizer's
    ``use_distributed_optimizer``, and the precision's dtypes); plugins/mixed_precision.py;
    callbacks/megatron_comm_overlap.py (a distributed optimizer overlaps where nothing else is said).
    """
    trainer, strategy = _section(content, "trainer"), _section(content, "trainer", "strategy")
    if (kind := _class_of(strategy)) not in ("", "MegatronStrategy"):
        raise SpecError("trainer.strategy", f"is {kind}; MegatronStrategy is read.")
    found, others = dict[str, dict[str, Any]](), list[str]()
    for name in ("callbacks", "plugins"):
        listed = trainer.pop(name, None) or []
        for part in listed if isinstance(listed, list) else [listed]:
            kind = _class_of(part) or str(part)
            if kind in PARTS:
                found[PARTS[kind]] = {key: value for key, value in part.items() if key not in OF_OBJECTS}
            elif DECISIVE.search(kind) or (name == "plugins" and "Checkpoint" not in kind):
                raise SpecError(f"trainer.{name}", f"has {shown(kind)}, which is not read and decides time or memory.")
            else:
                others.append(kind)
    optimizer, ddp = _section(content, "optim", "config"), _section(strategy, "ddp")
    if optimizer:
        ddp["use_distributed_optimizer"] = optimizer.pop("use_distributed_optimizer", False)
    notes = [f"Ignored (callbacks without influence): {', '.join(sorted(others))}."] if others else []
    in_fp32, overlap = ddp.pop("grad_reduce_in_fp32", None), found.get("comm_overlap")
    overruled = ["grad_reduce_in_fp32"] if in_fp32 is not None and "mixed_precision" in found else []
    overruled += [name for name in OVERLAPS if name in ddp and overlap is not None]
    notes += [f"Ignored (plugins and callbacks overrule them): {', '.join(overruled)}."] if overruled else []
    if "mixed_precision" not in found and ("precision" in trainer or in_fp32 is not None):
        notes += [] if "precision" in trainer else ["No entry says the precision: bf16-mixed is assumed."]
        half = trainer.pop("precision", "bf16-mixed")
        found["mixed_precision"] = {"precision": half, "grad_reduce_in_fp32": in_fp32}
    if overlap is not None:
        for name in OVERLAPS:
            said = overlap.pop(name, None)
            ddp |= {name: said is not False} if ddp.get("use_distributed_optimizer") is True else {}
        tp, is_split = (strategy.get(name) for name in ("tensor_model_parallel_size", "sequence_parallel"))
        overlap |= {} if tp not in (None, 1) and is_split is True else {"tp_comm_overlap": False}
    if (precision := found.get("mixed_precision")) is not None:
        notes += _settle_precision(precision)
    if not (found or optimizer):
        return content, notes
    trainer |= {"strategy": {**strategy, "ddp": ddp}} if ddp else {}
    optim = {**_section(content, "optim"), "config": optimizer}
    return {**content, **found, "trainer": trainer, **({"optim": optim} if optimizer else {})}, notes


def _settle_precision(entries: dict[str, Any]) -> Iterator[str]:
    """Give NeMo's entries the names of Megatron-Bridge; the recipe of 8-bit numbers hangs on the release."""
    half = str(entries.pop("precision", "")).removesuffix("-mixed")
    if half not in ("bf16", "16"):
        raise SpecError("trainer.plugins.precision", f"is {shown(half)}; expected bf16-mixed or 16-mixed.")
    entries |= {"bf16" if half == "bf16" else "fp16": True}
    if entries.get("grad_reduce_in_fp32") is None:
        entries["grad_reduce_in_fp32"] = True
    entries["fp8_param_gather"] = entries.pop("fp8_params", None) or entries.get("fp8_param_gather")
    if entries.get("fp8") and not entries.get("fp8_recipe"):
        entries["fp8_recipe"] = "delayed" if entries.get("fp8_amax_history_len") else "tensorwise"
        yield f"No entry says fp8_recipe: {entries['fp8_recipe']} is assumed; add it to trainer.plugins."


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Entries by dotted name; of a type or a function its name."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value.get("_call_") is False:
            yield f"{above}{name}", str(value.get("_target_"))
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _short(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the sections of Megatron-LM's YAML from the names."""
    return {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.count(".") <= 1}


def _text(value: Any) -> str:
    if value == OPEN:
        return "$OPEN"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
