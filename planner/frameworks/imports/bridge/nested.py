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
from planner.frameworks.imports.bridge.library import options_by_field
from planner.frameworks.imports.bridge.overrides import bridge_job
from planner.frameworks.megatron.options import options
from planner.frameworks.megatron.read import Imported

MEGATRON = ("language_model", "model_parallel")
"""Sections of Megatron-LM's own YAML (megatron/training/yaml_arguments.py)."""

OWN_SECTIONS = ("train", "ddp", "comm_overlap", "trainer", "mixed_precision", "checkpoint", "dataset")
"""Sections of ConfigContainer and of NeMo's recipes; such a file has at least one."""

MARKS = (*MEGATRON, *OWN_SECTIONS)

SWITCHED = {
    "add_bias_linear": ("--disable-bias-linear", False),
    "bias": ("--disable-bias-linear", False),
    "gated_linear_unit": ("--swiglu", True),
    "share_embeddings_and_output_weights": ("--untie-embeddings-and-output-weights", False),
    "overlap_p2p_comm": ("--no-overlap-p2p-communication", False),
}
"""Switches of Megatron-LM with the opposite value of an entry, or with another name."""

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
    flat = {name: _resolved(value, content, name) for name, value in _flat(content)}
    if any(isinstance(content.get(section), Mapping) for section in MEGATRON):
        return megatron_job(list(_words(_short(flat))), overrides, {}, uses={})
    texts = {name: _text(value) for name, value in flat.items() if not name.endswith("_target_")}
    return bridge_job({**texts, **(fields or {})}, recipe, overrides, {})


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _resolved(value: Any, content: Mapping[str, Any], name: str, depth: int = 8) -> Any:
    """Replace the references of a value to other entries."""
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
    """Drop the sections of Megatron-LM's YAML from the names."""
    return {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.count(".") <= 1}


def _words(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield options of Megatron-LM by the names of their variables, or of the fields that they fill."""
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


def _option_of(name: str) -> str:
    """Return the option of Megatron-LM for an entry."""
    if name in SWITCHED:
        return SWITCHED[name][0]
    option = f"--{name.replace('_', '-')}"
    return option if option in options() else options_by_field().get(f"model.{name}", option)


def _text(value: Any) -> str:
    if value == OPEN:
        return "$OPEN"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
