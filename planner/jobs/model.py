"""The model of a job: a name of the catalog, a ``config.json``, a description, or one of these with changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean, together
from costmodel.facts.fields import Count, CountOrZero, Flag
from costmodel.facts.framework import Settings
from costmodel.facts.model import Attention, Layer, Model
from costmodel.lowering import embedding_operators, layer_operators
from costmodel.lowering.framework import limit_mtp_layers
from costmodel.models import config_json, description, huggingface
from costmodel.models.flops import mtp_parameters, parameters, whole_shape
from costmodel.record import record, strict_record
from costmodel.validation import build, shown
from planner.jobs.document import similar_files
from planner.jobs.entries import Reference


@strict_record(frozen=True, kw_only=True, slots=True)
class Changes:
    """
    Changes to the model of ``base``; None: unchanged.

    Parameters
    ----------
    num_layers
        Number of first layers to keep.
    num_kv_heads
        Key-value heads of every softmax attention.
    tied_embeddings, learned_positions
        As in :class:`costmodel.facts.model.Model`.
    mtp_layers
        Layers of multi-token prediction, each like the model's own such layer, or else like its last layer.
    """

    num_layers: Count | None = None
    num_kv_heads: Count | None = None
    tied_embeddings: Flag | None = None
    learned_positions: CountOrZero | None = None
    mtp_layers: CountOrZero | None = None


@record(frozen=True, kw_only=True, slots=True)
class Read:
    """
    A model as a job gives it, with its file read.

    Parameters
    ----------
    model
        The model.
    entry
        The model as plain data that needs no other file.
    path
        The file of the model; None: no file.
    """

    model: Model
    entry: Reference
    path: Path | None


MAX_PARAMETERS = 10**15
"""Largest number of a model's parameters: 500 times the largest published, and no byte or FLOP of it overflows."""


def read(entry: Reference, folder: Path) -> Read:
    """
    Read the model of a job from the catalog, a file or plain data.

    Parameters
    ----------
    entry
        ``model`` of a job.
    folder
        Folder to which paths are relative.

    Raises
    ------
    SpecError
        If there is no such model, an entry of it is wrong, or its sizes together are beyond every model.
    """
    found = _read(entry, folder)
    number = parameters(found.model) + mtp_parameters(found.model)
    if number > MAX_PARAMETERS:
        problem = f"has {number:.3g} parameters by its sizes, at most {MAX_PARAMETERS:.0e} are costed."
        raise SpecError("model", problem, f"Most are in '{_largest_operator(found.model)}'.")
    return found


def _largest_operator(model: Model) -> str:
    shape = whole_shape(model)
    each = [one for layer in model.kinds for one in layer_operators(layer, shape)]
    return max((*embedding_operators(model, shape), *each), key=lambda one: one.parameters).name


def _read(entry: Reference, folder: Path) -> Read:
    if isinstance(entry, Mapping) and "base" in entry:
        return _read_base(entry, folder)
    if isinstance(entry, Mapping):
        if "model_type" in entry:
            model = huggingface.model_from_config(entry, "model", "inline", "job file")
        else:
            model = description.model_from_entry(entry, "model", "inline")
        return Read(model=model, entry=entry, path=None)
    path = config_path(entry, folder)
    if path is None:
        name = catalog.hub_names().get(entry, entry)
        return Read(model=catalog.model(name), entry=name, path=None)
    config = _copy_type(dict(config_json.read_mapping(path)))
    name = huggingface.model_name(path) if exists(folder / os.path.expanduser(entry)) else entry.rpartition("/")[2]
    try:
        model = huggingface.model_from_config(config, "model", name, str(path))
    except SpecError as error:
        others = (one for one in config_json.wrong_counts(config, "model") if one.where != error.where)
        raise together([SpecError(one.where, one.problem, one.hint, str(path)) for one in (error, *others)]) from None
    return Read(model=model, entry=config, path=path)


def _read_base(entry: Mapping[str, Any], folder: Path) -> Read:
    base = entry["base"]
    if not isinstance(base, str | Mapping):
        raise SpecError("model.base", f"expected a name or a model, got {shown(base)}.")
    if "family" in entry and isinstance(base, str):
        path = config_path(base, folder)
        if path is None:
            raise SpecError("model.family", f"describes the family of a config.json, and {shown(base)} is none.")
        base = _copy_type(dict(config_json.read_mapping(path)))
    if "family" in entry:
        base = {**base, "family": entry["family"]}
    known = read(base if isinstance(base, str) else dict(base), folder)
    own = {name: value for name, value in entry.items() if name not in ("base", "family")}
    model = apply_changes(known.model, build(Changes, own, "model"))
    return Read(model=model, entry={"base": known.entry, **own}, path=known.path)


def apply_changes(model: Model, changes: Changes) -> Model:
    """Apply changes to a model; raise :class:`SpecError` if they are impossible."""
    if changes.num_layers is not None:
        if changes.num_layers > model.num_layers:
            problem = f"is {changes.num_layers}, {model.name} has {model.num_layers}."
            raise SpecError("model.num_layers", problem)
        model = replace(model, layers=model.layers[: changes.num_layers])
    if changes.num_kv_heads is not None:
        count = changes.num_kv_heads
        model = replace(model, layers=tuple(_set_kv_heads(layer, count) for layer in model.layers))
    changed = {name: getattr(changes, name) for name in ("tied_embeddings", "learned_positions")}
    model = replace(model, **{name: value for name, value in changed.items() if value is not None})
    return limit_mtp_layers(model, Settings(mtp_layers=changes.mtp_layers))


def _set_kv_heads(layer: Layer, count: int) -> Layer:
    attention = layer.attention
    if not isinstance(attention, Attention):
        return layer
    if attention.num_heads % count:
        raise SpecError("model.num_kv_heads", f"must divide the {attention.num_heads} heads, got {count}.")
    return replace(layer, attention=replace(attention, num_kv_heads=count))


def _copy_type(config: dict[str, Any]) -> dict[str, Any]:
    """Copy the type of the configuration from its text part where it is only there."""
    parts = [config[key] for key in huggingface.TEXT_KEYS if isinstance(config.get(key), Mapping)]
    return {**config, "model_type": config.get("model_type", parts[0].get("model_type"))} if parts else config


def config_path(name: str, folder: Path) -> Path | None:
    """
    Return the ``config.json`` of a model's name; None for names of the catalog, and of the hub for catalog models.

    Raises
    ------
    SpecError
        If it is neither in the catalog, nor a file or folder, nor in the Hugging Face cache of this machine.
    """
    if name in catalog.model_names():
        return None
    path = folder / os.path.expanduser(name)
    if name and exists(path):
        return path / "config.json" if path.is_dir() else path
    if config_json.is_hub_name(name):
        cached = config_json.find_cached_config(name)
        if cached is None and name not in catalog.hub_names():
            raise _not_cached(name)
        return cached
    if "/" in name or name.endswith(".json"):
        fix = similar_files(path) or "Give a path, or a name of 'planner catalog models'."
        raise SpecError("model", f"no such file: {shown(str(path))}.", fix)
    hint = did_you_mean(name, catalog.model_names())
    raise SpecError("model", f"{shown(name)} is neither in the catalog nor a file.", hint)


def _not_cached(name: str) -> SpecError:
    """Return the error for a model of the hub that is not cached, with the download command."""
    problem = (
        f"{shown(name)} is no file, nor in the catalog, nor in the Hugging Face cache ({config_json.cache_folder()}); "
        "nothing is downloaded."
    )
    nearest = did_you_mean(name, catalog.hub_names())
    meant = f"{nearest} " if nearest.startswith("Did") else ""
    return SpecError(
        "model", problem, f"{meant}Run 'hf download {name} config.json', or give the path of a config.json."
    )


def exists(path: Path) -> bool:
    """Tell whether a path exists; text that cannot be a path does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
