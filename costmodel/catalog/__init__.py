"""The catalog: devices, calibrations, frameworks, models, precisions; every number with its source in the YAML."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from costmodel.catalog.aliases import (
    Named,
    architectures,
    calibration,
    calibration_chain,
    calibration_of_fit,
    calibrations,
    device,
    device_entry,
    device_of,
    devices,
    find_device,
    find_unique_device,
    means_several,
    power_draw,
    silicon,
    spellings,
)
from costmodel.catalog.files import MOST_SPELLINGS, entry, merge_mappings, names, read, require_known
from costmodel.catalog.releases import (
    default_framework,
    framework,
    framework_names,
    framework_of,
    frameworks,
    newest_for,
    releases_for,
    releases_with_feature,
    runs_on,
    unknown_release,
)
from costmodel.facts.device import EquippedDevice
from costmodel.facts.model import Model
from costmodel.facts.workload import Precision
from costmodel.lowering.framework import apply_framework
from costmodel.models.families import LOADER
from costmodel.validation import build

__all__ = [
    "LOADER",
    "Named",
    "architectures",
    "calibration",
    "calibration_chain",
    "calibration_of_fit",
    "calibrations",
    "default_framework",
    "device",
    "device_entry",
    "device_of",
    "devices",
    "equip_device",
    "family_models",
    "find_device",
    "find_unique_device",
    "framework",
    "framework_names",
    "framework_of",
    "frameworks",
    "hub_names",
    "means_several",
    "merge_mappings",
    "model",
    "model_names",
    "models",
    "newest_for",
    "power_draw",
    "precision",
    "precision_source",
    "precisions",
    "releases_for",
    "releases_with_feature",
    "runs_on",
    "silicon",
    "spellings",
    "unknown_release",
]


def models() -> tuple[str, ...]:
    """Return the names of the models with an entry of their own."""
    return names("models")


def model_names() -> tuple[str, ...]:
    """Return the names of all models: of those with an entry, and of those that stand for their family."""
    return tuple(sorted((*models(), *family_models())))


@cache
def hub_names() -> dict[str, str]:
    """Return the catalog's names of models by their names on the Hugging Face hub."""
    known: dict[str, list[str]] = read("hub_names.yaml")
    return {alias: name for name, aliases in known.items() for alias in aliases}


@cache
def family_models() -> dict[str, dict[str, Any]]:
    """Return the configuration of a model of each family that no model of the catalog has, by the model's name."""
    return {name: known["config"] for name, known in read("families.yaml").items()}


@cache
def precisions() -> tuple[str, ...]:
    """Return the names of the training recipes."""
    return tuple(sorted(_precision_entries()))


@lru_cache(maxsize=MOST_SPELLINGS)
def equip_device(name: str, framework_name: str | None = None) -> EquippedDevice:
    """Return a device with a framework release; without a name, with the release that a job gets by default."""
    known = device(name)
    return apply_framework(known, framework(framework_name or default_framework(known)))


@cache
def model(name: str) -> Model:
    """
    Build the model of a catalog entry.

    Raises
    ------
    SpecError
        If the catalog has no such model.
    """
    from costmodel.models.description import model_from_entry

    require_known("model", name, model_names())
    if name in family_models():
        from costmodel.models.huggingface import model_from_config

        return model_from_config(family_models()[name], f"catalog.families.{name}", name, "class of transformers")
    return model_from_entry(entry("models", name), f"catalog.models.{name}", name)


@cache
def precision(name: str) -> Precision:
    """
    Build a training recipe: the dtype of its matmuls and bytes per element.

    Raises
    ------
    SpecError
        If the catalog has no such recipe.
    """
    require_known("precision", name, precisions())
    said = {key: value for key, value in _precision_entries()[name].items() if key != "source"}
    return build(Precision, {"name": name, **said}, f"catalog.precisions.{name}")


def precision_source(name: str) -> str:
    """Return the source of the bytes of a training recipe."""
    require_known("precision", name, precisions())
    return str(_precision_entries()[name]["source"])


@cache
def _precision_entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = read("precisions.yaml")
    return entries
