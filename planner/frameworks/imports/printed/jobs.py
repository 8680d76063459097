"""What a log prints, or a file saves, as a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.deepspeed import deepspeed_job, require_deepspeed
from planner.frameworks.imports.finish import devices_contradicted, newest
from planner.frameworks.imports.printed.container import container_job
from planner.frameworks.imports.printed.log import cluster_of, printed_configuration
from planner.frameworks.imports.printed.names import entries_of, whole_arguments, words_of
from planner.frameworks.imports.torchtitan import torchtitan_job
from planner.frameworks.imports.torchtitan_python import CONFIG, MODES
from planner.frameworks.imports.trainer import Trainer
from planner.frameworks.megatron.read import Imported


def arguments_job(content: Mapping[str, Any], source: str, overrides: Sequence[str], text: str = "") -> Imported:
    """
    Arguments of Megatron-LM by name as a job.

    Raises
    ------
    SpecError
        If some are missing, or as ``megatron_job``.
    """
    texts = whole_arguments(content, source)
    entries = [f"{name}={value}" for name, value in entries_of(texts, text).items()]
    imported = megatron_job(words_of(texts), [*entries, *overrides], {}, uses={})
    notes = devices_contradicted(texts["world_size"], overrides)
    return Imported(document=imported.document, notes=(*notes, *imported.notes))


OF_MODES = {"force_recompute_mm_shapes_by_fqns": "SelectiveAC", "memory_budget": "MemoryBudgetAC"}
"""Classes of activation checkpoints by a field that they alone have: their name is not saved."""


def titan_job(content: Mapping[str, Any], overrides: Sequence[str]) -> Imported:
    """
    The configuration that torchtitan saves, as a job: by sections, from 0.3 on with the specification of the model.

    Raises
    ------
    SpecError
        If its layers are converted to another precision, which it does not say, or as ``torchtitan_job``.
    """
    said, spec = _said(content), content.get("model_spec")
    if not isinstance(spec, Mapping):
        return torchtitan_job(said, overrides)
    if spec.get("converters"):
        raise SpecError(
            "model_spec.converters", "is not empty: the precision of layers is not saved.", "Give its Python."
        )
    given = content.get("activation_checkpoint")
    kind = next((kind for field, kind in OF_MODES.items() if given and field in given), "FullAC")
    tables = {name: said[name] for name in CONFIG if name in said}
    model = {"name": spec.get("name"), "flavor": spec.get("flavor")}
    recomputed = MODES[kind] if given else {"mode": "none"}
    whole = {**tables, "framework": newest("torchtitan-"), "model": model, "activation_checkpoint": recomputed}
    return torchtitan_job(whole, overrides)


def printed_job(text: str, source: str, overrides: Sequence[str], run: str) -> Imported | None:
    """
    The configuration out of a log, with what the log says of its devices and software; None: it prints none.

    Raises
    ------
    SpecError
        As ``printed_configuration``, and as the framework's own configuration.
    """
    found = printed_configuration(text, source, run)
    if found is None:
        return None
    content, entries = found.content, dict(cluster_of(text, found.kind))
    if found.kind == "deepspeed":
        entries |= _replicas(content, text)
    given = [*(f"{name}={value}" for name, value in entries.items()), *overrides]
    match found.kind:
        case "megatron":
            imported = arguments_job(content, source, given, text)
        case "bridge":
            imported = container_job(content, given)
        case "torchtitan":
            imported = titan_job(content, given)
        case _:
            imported = deepspeed_job(require_deepspeed(content, source), Trainer(), given)
    note = f"Read from {Path(source).name}, line {found.line}, as it was printed."
    return Imported(document=imported.document, notes=(note, *imported.notes))


def _replicas(config: Mapping[str, Any], text: str) -> dict[str, str]:
    """Devices of a DeepSpeed engine, which prints its replicas as world_size."""
    said = set(re.findall(r"  world_size \.+ (\d+)", text))
    tensors = config.get("tensor_parallel")
    width = tensors.get("autotp_size", 1) if isinstance(tensors, Mapping) else 1
    return {"cluster.num_devices": str(int(said.pop()) * int(width))} if len(said) == 1 else {}


def _said(content: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration without entries that say nothing."""
    return {
        name: _said(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value is not None
    }
