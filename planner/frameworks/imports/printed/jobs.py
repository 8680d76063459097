"""Import of printed and saved configurations as jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.deepspeed import deepspeed_job, require_deepspeed
from planner.frameworks.imports.finish import newest
from planner.frameworks.imports.printed.container import container_job
from planner.frameworks.imports.printed.log import cluster_of, find_printed
from planner.frameworks.imports.printed.names import entries_of, whole_arguments, words_of
from planner.frameworks.imports.printed.titan_model import model_from_layers
from planner.frameworks.imports.torchtitan import torchtitan_job
from planner.frameworks.imports.torchtitan_python import MODES
from planner.frameworks.imports.trainer import Trainer
from planner.frameworks.megatron.read import Imported


def arguments_job(content: Mapping[str, Any], source: str, overrides: Sequence[str], text: str = "") -> Imported:
    """
    Import arguments of Megatron-LM by name.

    Raises
    ------
    SpecError
        If some are missing, or as ``megatron_job``.
    """
    texts = whole_arguments(content, source)
    entries = entries_of(texts, text)
    imported = megatron_job(words_of(texts), [*_entry_words(entries), *overrides], {}, uses={})
    return Imported(document=imported.document, notes=(*_replacement_notes(entries, overrides), *imported.notes))


OF_MODES = {"force_recompute_mm_shapes_by_fqns": "SelectiveAC", "memory_budget": "MemoryBudgetAC"}
"""Classes of activation checkpointing by a field that only they have, as their name is not saved."""


def titan_job(content: Mapping[str, Any], overrides: Sequence[str]) -> Imported:
    """
    Import the configuration that torchtitan saves: by sections, from 0.3 on with the specification of the model.

    Raises
    ------
    SpecError
        If its layers are converted to a precision that is not saved, or as ``torchtitan_job``.
    """
    said, spec = _drop_empty_entries(content), content.get("model_spec")
    if not isinstance(spec, Mapping):
        return torchtitan_job(said, overrides)
    if spec.get("converters"):
        raise SpecError(
            "model_spec.converters", "is not empty: the precision of layers is not saved.", "Give its Python."
        )
    given = said.get("activation_checkpoint") or {}
    if not isinstance(given, Mapping):
        raise SpecError("activation_checkpoint", f"expected a section, got {shown(given)}.")
    kind = next((kind for field, kind in OF_MODES.items() if field in given), "FullAC")
    recomputed = {**given, **MODES[kind]} if given else {"mode": "none"}
    model = {"name": spec.get("name"), "flavor": spec.get("flavor")}
    more = {"framework": newest("torchtitan-"), "model": model, "activation_checkpoint": recomputed}
    whole = {name: value for name, value in said.items() if name != "model_spec"} | more
    is_said = any(entry.startswith("model=") for entry in overrides)
    described, sent_by = (None, "standard") if is_said else model_from_layers(spec)
    if sent_by != "standard" and isinstance(whole.get("parallelism"), Mapping):
        whole["parallelism"] = {**whole["parallelism"], "expert_parallel_comm_backend": sent_by}
    return torchtitan_job(whole, overrides, described=described)


def import_printed(text: str, source: str, overrides: Sequence[str], run: str) -> Imported | None:
    """
    Import the configuration in a log, with the devices and the software that it names; None: it prints none.

    Raises
    ------
    SpecError
        As ``find_printed``, and as the import of the framework's configuration.
    """
    found = find_printed(text, source, run)
    if found is None:
        return None
    content, entries = found.content, dict(cluster_of(text, found.kind))
    if found.kind == "deepspeed":
        entries |= _replicas(content, text)
    given = [*_entry_words(entries), *overrides]
    match found.kind:
        case "megatron":
            imported = arguments_job(content, source, given, text)
        case "bridge":
            imported = container_job(content, given, f"{source}, line {found.line}")
        case "torchtitan":
            imported = titan_job(content, given)
        case _:
            imported = deepspeed_job(require_deepspeed(content, source), Trainer(), given)
    note = f"Read from {Path(source).name}, line {found.line}, as it was printed."
    return Imported(document=imported.document, notes=(note, *_replacement_notes(entries, overrides), *imported.notes))


def _entry_words(entries: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in entries.items()]


def _replacement_notes(printed: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Remarks on what the run printed and the command says otherwise."""
    said = {name: value for name, _, value in (entry.partition("=") for entry in overrides)}
    differing = {name for name in {*printed} & {*said} if printed[name] != said[name]}
    return [
        f"{name}: the run had {printed[name]}; the command's {said[name]} counts instead." for name in sorted(differing)
    ]


def _replicas(config: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the devices of a DeepSpeed engine, which prints its replicas as world_size."""
    said = set(re.findall(r"  world_size \.+ (\d+)", text))
    tensors = config.get("tensor_parallel")
    width = tensors.get("autotp_size", 1) if isinstance(tensors, Mapping) else 1
    return {"cluster.num_devices": str(int(said.pop()) * int(width))} if len(said) == 1 else {}


def _drop_empty_entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Drop entries without a value from a saved configuration."""
    return {
        name: _drop_empty_entries(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value is not None
    }
