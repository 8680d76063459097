"""The catalog: devices, models and precisions by name, every number with its source beside it in the YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from costmodel.errors import SpecError, did_you_mean
from costmodel.spec import Device, Model, Precision, Software
from costmodel.validation import build, shown

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser where PyYAML was built with it: ten times faster, the same result."""


@cache
def devices() -> tuple[str, ...]:
    """Names of the devices."""
    return _names("devices")


@cache
def models() -> tuple[str, ...]:
    """Names of the models."""
    return _names("models")


@cache
def precisions() -> tuple[str, ...]:
    """Names of the training recipes."""
    return tuple(sorted(_precision_entries()))


@cache
def software_stacks() -> tuple[str, ...]:
    """Names of the software stacks."""
    return _names("software")


@cache
def device(name: str) -> Device:
    """
    A device, its networks and its profile.

    Raises
    ------
    SpecError
        If the catalog has no such device.
    """
    _known("device", name, devices)
    return build(Device, _read(_folder("devices") / f"{name}.yaml"), f"catalog.devices.{name}")


@cache
def model(name: str) -> Model:
    """
    A model's layers and sizes.

    Raises
    ------
    SpecError
        If the catalog has no such model.
    """
    from costmodel.description import model_from_entry

    _known("model", name, models)
    return model_from_entry(_read(_folder("models") / f"{name}.yaml"), f"catalog.models.{name}", name)


@cache
def software(name: str) -> Software:
    """
    A generation of training software.

    Raises
    ------
    SpecError
        If the catalog has no such software.
    """
    _known("software", name, software_stacks)
    return build(Software, _read(_folder("software") / f"{name}.yaml"), f"catalog.software.{name}")


@cache
def precision(name: str) -> Precision:
    """
    A training recipe: the dtype of its matmuls and bytes per element.

    Raises
    ------
    SpecError
        If the catalog has no such recipe.
    """
    _known("precision", name, precisions)
    entry = {key: value for key, value in _precision_entries()[name].items() if key != "source"}
    return build(Precision, {"name": name, **entry}, f"catalog.precisions.{name}")


def precision_source(name: str) -> str:
    """Where the bytes of a training recipe come from."""
    _known("precision", name, precisions)
    return str(_precision_entries()[name]["source"])


@cache
def _precision_entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = _read(files("costmodel.catalog") / "precisions.yaml")
    return entries


def _known(what: str, name: str, names: Callable[[], Iterable[str]]) -> None:
    if name not in names():
        raise SpecError(what, f"{shown(name)} is not in the catalog.", did_you_mean(name, names()))


def _names(folder: str) -> tuple[str, ...]:
    paths = (path.name for path in _folder(folder).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in paths if name.endswith(".yaml")))


def _folder(name: str) -> Traversable:
    return files("costmodel.catalog") / name


def _read(path: Traversable) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
