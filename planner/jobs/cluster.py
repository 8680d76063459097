"""The cluster and the model of a job: names, files and descriptions, looked up and joined with their changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from constraints import TARGET_RULES
from costmodel import GIB_BYTES, catalog
from costmodel.errors import SpecError, did_you_mean, together
from costmodel.facts.device import MOST_SITES, Cluster, Device, EquippedDevice, Sites
from costmodel.facts.fields import Count, CountOrZero, Flag
from costmodel.facts.framework import Framework, Settings
from costmodel.facts.model import Attention, Layer, Model
from costmodel.lowering import embedding_operators, layer_operators
from costmodel.lowering.framework import MUON, OF_MUON, apply_framework, find_absent_features, limit_mtp_layers
from costmodel.models import config_json, description, huggingface
from costmodel.models.flops import mtp_parameters, parameters, whole_shape
from costmodel.record import record, replace, strict_record
from costmodel.validation import build, shown
from planner.jobs.document import BlockDumper, require_one_of, similar_files
from planner.jobs.entries import ClusterSection, Reference
from planner.jobs.strategy_file import require_sound

DEVICE, FRAMEWORK, TARGET = "cluster.device", "cluster.framework", "search.target"


@record(frozen=True, kw_only=True, slots=True)
class Fitted:
    """
    Constants that take the place of the catalog's.

    Parameters
    ----------
    constants
        By calibration and dotted name.
    factors
        By framework and name; None: the catalog's.
    """

    constants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    factors: Mapping[str, Mapping[str, float]] | None = None


CATALOG = Fitted()


def device_path(entry: str | Mapping[str, Any], folder: Path) -> Path | None:
    """Return the path of a device file, such as one that ``planner calibrate`` wrote; None for a name or plain data."""
    if (
        isinstance(entry, str)
        and catalog.find_unique_device(entry) is None
        and ("/" in entry or entry.endswith((".yaml", ".yml")))
    ):
        return folder / os.path.expanduser(entry)
    return None


def device_text(entry: Mapping[str, Any]) -> str:
    """Write a device as YAML, in the form that ``cluster.device`` of a job accepts."""
    return yaml.dump(dict(entry), Dumper=BlockDumper, sort_keys=False, width=116, allow_unicode=True)


def add_target(section: ClusterSection, entry: Reference, target: str | None) -> ClusterSection:
    """
    Add the framework that plans are exported to: the job's own, or the target's newest release for the device.

    Raises
    ------
    SpecError
        If the target is unknown, none of its releases runs on the device, or the job names another framework.
    """
    if target is None:
        return section
    require_one_of(target, TARGET_RULES, TARGET, "no target")
    device, known = device_of(entry), ", ".join(catalog.releases_for(target))
    if section.framework is not None:
        framework = framework_of(section, device)
        if target in framework.targets:
            return section
        problem = f"{framework.name} is no release whose plans search.target {target} takes."
        raise SpecError(FRAMEWORK, problem, f"These are: {known}; without cluster.framework it is the newest of them.")
    newest = catalog.newest_for(target, device.architecture)
    if newest is None:
        others = [other for other in TARGET_RULES if catalog.newest_for(other, device.architecture)]
        problem = (
            f"is {target}, which has no release for {device.name} ({device.architecture}) in the catalog: {known}."
        )
        raise SpecError(TARGET, problem, f"These have one: {', '.join(others) or 'none'}.")
    return replace(section, framework=newest)


def framework_of(section: ClusterSection, device: Device, fitted: Fitted = CATALOG) -> Framework:
    """Return the framework of a job, or the default of its device; check one that the job defines itself."""
    given = catalog.default_framework(device) if section.framework is None else section.framework
    framework = catalog.framework_of(given, FRAMEWORK, fitted.factors)
    if isinstance(given, Mapping):
        require_sound(framework, FRAMEWORK)
    return framework


def cluster_of(
    section: ClusterSection,
    entry: Reference,
    settings: Settings,
    model: Model,
    precision: str | None,
    fitted: Fitted = CATALOG,
) -> Cluster:
    """
    Build the cluster of a job from its device, network, framework and settings.

    Parameters
    ----------
    section
        Section ``cluster`` of the job.
    entry
        Device of the job: a name of the catalog, or plain data.
    settings
        Settings of the job; the framework's defaults apply to the rest.
    model
        Model that is trained; some settings count its layers.
    precision
        Name of the precision recipe, on which defaults may depend; None: the framework's own.
    fitted
        Constants that replace the catalog's.

    Raises
    ------
    SpecError
        If an entry is unknown or impossible.
    """
    device = device_of(entry, fitted)
    framework = framework_of(section, device, fitted)
    framework = replace(framework, features={**framework.features, **find_absent_features(device)})
    defaults = framework.settings
    if own := framework.settings_by_precision.get(precision or framework.precision):
        defaults = own.fill_from(defaults)
    whole = settings.fill_from(defaults)
    placed = _set_bandwidths(device, section)
    made = _set_nodes(apply_framework(placed, framework, whole, model), section)
    _require_growing(made, section)
    _require_whole_nodes(made, section)
    num_devices = _count_devices(made, section)
    _require_reached(made, num_devices)
    _require_enough(settings, device, model, num_devices)
    _require_muon(settings, whole, precision or framework.precision)
    return Cluster(
        device=made,
        num_devices=num_devices,
        framework=framework,
        settings=whole,
        unknown_release=catalog.unknown_release(section.framework),
        device_note=device_note(entry),
        sites=_check_sites(section.sites, num_devices),
    )


def _check_sites(sites: Sites | None, num_devices: int) -> Sites | None:
    """Return the sites of a job if they hold equal shares of the devices, and their entries agree."""
    if sites is not None and num_devices % sites.count:
        fitting = [str(number) for number in range(2, MOST_SITES + 1) if num_devices % number == 0]
        fix = f"Give one of {', '.join(fitting)}." if fitting else "Give a number of devices that it divides."
        raise SpecError("cluster.sites.count", f"is {sites.count}, which does not divide {num_devices:,} devices.", fix)
    if sites is not None and sites.streams > 1 and sites.local_steps == 1:
        problem = f"is {sites.streams} without local steps: every step waits for its gradients."
        raise SpecError("cluster.sites.streams", problem, "Give cluster.sites.local_steps, such as 100.")
    return sites


def _count_devices(device: Device, section: ClusterSection) -> int:
    """Return the number of devices that plans may use: all except those of spare nodes."""
    spares, node, given = section.spare_nodes, device.devices_per_node, section.num_devices
    if spares and given % node:
        raise SpecError(
            "cluster.spare_nodes",
            f"is {spares}, but the {given} of cluster.num_devices do not fill nodes of {node}.",
            f"Give a multiple of {node} as num_devices, the spares included.",
        )
    if spares and spares * node >= given:
        raise SpecError(
            "cluster.spare_nodes",
            f"is {spares}, of {given // node} nodes with {node} devices each: none would train.",
            f"Allowed: 0 to {given // node - 1}.",
        )
    return given - spares * node


def _require_enough(settings: Settings, device: Device, model: Model, num_devices: int) -> None:
    """
    Refuse settings of the job that exceed the processors of the device, the layers of the model or the devices.

    Defaults are not checked: they may be made for larger ones.
    """
    counts: dict[str, tuple[Any, int | None, str]] = {
        "communication_sms": (settings.communication_sms, device.num_processors, f"processors of {device.name}"),
        "offloaded_layers": (settings.offloaded_layers, model.num_layers, f"layers of {model.name}"),
        "optimizer_group": (settings.optimizer_group, num_devices, "devices of cluster.num_devices"),
        "cp_a2a_ranks": (settings.cp_a2a_ranks, num_devices, "devices of cluster.num_devices"),
    }
    for name, (given, most, what) in counts.items():
        if isinstance(given, int) and most is not None and given > most:
            raise SpecError(f"settings.{name}", f"is {given}, more than the {most} {what}.", f"Give at most {most}.")


def _require_muon(settings: Settings, whole: Settings, precision: str) -> None:
    """
    Refuse settings of Muon with another optimizer, and Muon in FP16 or with moments below FP32.

    References
    ----------
    megatron-core 0.16.1, optimizer/muon.py:190,196.
    """
    if whole.optimizer in MUON:
        if precision == "fp16":
            problem = f"is fp16, which settings.optimizer={whole.optimizer} excludes."
            raise SpecError("training.precision", problem, "Give bf16 or an 8-bit recipe.")
        if whole.moments_dtype not in (None, "fp32"):
            problem = f"is {whole.moments_dtype}, but settings.optimizer={whole.optimizer} keeps its moment in fp32."
            raise SpecError("settings.moments_dtype", problem, "Give fp32, or settings.optimizer=adam.")
    given = [name for name in OF_MUON if getattr(settings, name) is not None]
    if given and whole.optimizer not in MUON:
        problem = f"is a setting of Muon, but settings.optimizer is {whole.optimizer or 'adam'}."
        raise SpecError(f"settings.{given[0]}", problem, "Give settings.optimizer=muon, or leave it out.")


# --- the device --------------------------------------------------------------------------------------------


def device_of(entry: Reference, fitted: Fitted = CATALOG) -> Device:
    """Build the device of a job: a name of the catalog, or plain data, which may start from one."""
    if isinstance(entry, str):
        known = catalog.device_entry(entry, DEVICE)
        return catalog.device_of(known, DEVICE, fitted.constants) if fitted.constants else catalog.device(entry)
    own = {name: value for name, value in entry.items() if name != "base"}
    if "base" not in entry:
        return catalog.device_of({"name": "inline", **own}, DEVICE, fitted.constants)
    base = entry["base"]
    if not isinstance(base, str):
        raise SpecError(f"{DEVICE}.base", f"expected a name, got {shown(base)}.")
    found = catalog.device_entry(base, f"{DEVICE}.base")
    known = {**found, "name": f"{found['name']}, changed"}
    calibration = own.get("calibration")
    if isinstance(calibration, Mapping) and "base" not in calibration:
        own["calibration"] = {"base": known["calibration"], **calibration}
    device = catalog.device_of(catalog.merge_mappings(known, own), DEVICE, fitted.constants)
    names = [name for name in own if name not in ("name", "sources", "calibration", "left_out_errors")]
    return device if "sources" in entry else replace(device, sources=_sources(device, names))


def device_note(entry: Reference) -> str:
    """Return the catalog's note on the device name of a job, such as an ambiguity, as a sentence; empty without one."""
    name = entry.get("base") if isinstance(entry, Mapping) else entry
    found = catalog.find_unique_device(name) if isinstance(name, str) else None
    return found.note if found else ""


def _sources(device: Device, changed: Iterable[str]) -> dict[str, str]:
    """Return the catalog's sources, and "job file" for entries that the job changed."""
    names = tuple(changed)
    kept = {
        key: source
        for key, source in device.sources.items()
        if not any(key == name or key.startswith(f"{name}.") for name in names)
    }
    return {**kept, **dict.fromkeys(names, "job file")}


# --- its nodes and networks --------------------------------------------------------------------------------


def _set_bandwidths(device: Device, section: ClusterSection) -> Device:
    """Set the nominal bandwidths that the job states, inside the scale-up domain and between nodes."""
    changed = [name for name in ("scale_up_bandwidth", "internode_bandwidth") if getattr(section, name) is not None]
    if not changed:
        return device
    if section.networks is not None:
        raise SpecError(f"cluster.{changed[0]}", "is given with 'networks', which have their own; keep one.")
    inner, *others = device.networks
    if section.scale_up_bandwidth is not None:
        inner = replace(inner, bandwidth=section.scale_up_bandwidth)
    if section.internode_bandwidth is not None:
        if not others:
            raise SpecError("cluster.internode_bandwidth", f"is of no level: {device.name} has one network only.")
        ratio = section.internode_bandwidth / others[-1].bandwidth
        others = [replace(level, bandwidth=level.bandwidth * ratio) for level in others]
    return replace(device, networks=(inner, *others), sources=_sources(device, ["networks"]))


def _set_nodes(device: EquippedDevice, section: ClusterSection) -> EquippedDevice:
    """Set the nodes, networks and memory that the job states."""
    stated = {
        "devices_per_node": section.devices_per_node,
        "networks": section.networks,
        "memory_bytes": section.memory_gib and section.memory_gib * GIB_BYTES,
        "host_memory_bytes": section.host_memory_gib and section.host_memory_gib * GIB_BYTES,
    }
    changes: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    if section.scale_up_size is not None:
        inner, *others = changes.pop("networks", device.networks)
        changes["networks"] = (replace(inner, num_peers=section.scale_up_size), *others)
    return replace(device, **changes, sources=_sources(device, changes)) if changes else device


def _require_reached(device: Device, num_devices: int) -> None:
    """
    Refuse more devices than the networks of a sampled device reach.

    Beyond that reach nothing was sampled or stated.
    """
    reach = device.networks[-1].num_peers
    if device.calibration.samples is not None and num_devices > reach:
        raise SpecError(
            "cluster.num_devices",
            f"is {num_devices:,}, but the networks of {device.name} reach {reach:,}: nobody sampled what is beyond.",
            "Sample several nodes with torchrun, or state networks in a file for 'planner calibrate --device'.",
        )


def _require_growing(device: Device, section: ClusterSection) -> None:
    """Refuse levels that reach fewer devices than the one inside; blame ``scale_up_size``, ``networks`` or device."""
    where = f"{DEVICE}.networks" if section.networks is None else "cluster.networks"
    if section.scale_up_size is not None:
        where = "cluster.scale_up_size"
    for inner, outer in pairwise(device.networks):
        if outer.num_peers < inner.num_peers:
            raise SpecError(
                where,
                f"level '{inner.name}' reaches {inner.num_peers} devices, level '{outer.name}' around it only "
                f"{outer.num_peers}.",
                "Levels go from the innermost outwards.",
            )


def _require_whole_nodes(device: Device, section: ClusterSection) -> None:
    """Refuse domains of the innermost level that are not whole nodes or whole fractions of a node."""
    domain, node = device.networks[0].num_peers, device.devices_per_node
    if domain % node and node % domain:
        raise SpecError(
            f"{DEVICE if section.devices_per_node is None else 'cluster'}.devices_per_node",
            f"is {node}, a domain of level '{device.networks[0].name}' holds {domain} devices; neither divides the "
            "other.",
            "Give cluster.devices_per_node and cluster.scale_up_size.",
        )


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


Read: TypeAlias = tuple[Model, Reference, Path | None]
"""A model as a job gives it, the model as plain data that needs no other file, and its file if there is one."""

MAX_PARAMETERS = 10**15
"""Largest number of a model's parameters: 500 times the largest published, and no byte or FLOP of it overflows."""


def read(entry: Reference, folder: Path) -> Model:
    """Read the model of a job; parameters and errors as in :func:`read_whole`."""
    model, _, _ = read_whole(entry, folder)
    return model


def read_whole(entry: Reference, folder: Path) -> Read:
    """
    Read the model of a job from the catalog, a file or plain data, with its plain data and its file.

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
    model, _, _ = found
    number = parameters(model) + mtp_parameters(model)
    if number > MAX_PARAMETERS:
        problem = f"has {number:.3g} parameters by its sizes, at most {MAX_PARAMETERS:.0e} are costed."
        raise SpecError("model", problem, f"Most are in '{_largest_operator(model)}'.")
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
        return model, entry, None
    path = config_path(entry, folder)
    if path is None:
        name = catalog.hub_names().get(entry, entry)
        return catalog.model(name), name, None
    from planner.jobs import config_file

    config = _copy_type(dict(config_file.read_config(path)))
    name = config_file.model_name(path) if exists(folder / os.path.expanduser(entry)) else entry.rpartition("/")[2]
    try:
        model = huggingface.model_from_config(config, "model", name, str(path))
    except SpecError as error:
        others = (one for one in config_json.wrong_counts(config, "model") if one.where != error.where)
        raise together([SpecError(one.where, one.problem, one.hint, str(path)) for one in (error, *others)]) from None
    return model, config, path


def _read_base(entry: Mapping[str, Any], folder: Path) -> Read:
    base = entry["base"]
    if not isinstance(base, str | Mapping):
        raise SpecError("model.base", f"expected a name or a model, got {shown(base)}.")
    if "family" in entry and isinstance(base, str):
        path = config_path(base, folder)
        if path is None:
            raise SpecError("model.family", f"describes the family of a config.json, and {shown(base)} is none.")
        from planner.jobs import config_file

        base = _copy_type(dict(config_file.read_config(path)))
    if "family" in entry:
        base = {**base, "family": entry["family"]}
    known, known_entry, path = read_whole(base if isinstance(base, str) else dict(base), folder)
    own = {name: value for name, value in entry.items() if name not in ("base", "family")}
    return apply_changes(known, build(Changes, own, "model")), {"base": known_entry, **own}, path


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
    from planner.jobs.config_file import cache_folder, find_cached_config, is_hub_name

    if is_hub_name(name):
        cached = find_cached_config(name)
        if cached is None and name not in catalog.hub_names():
            raise _not_cached(name, cache_folder())
        return cached
    if "/" in name or name.endswith(".json"):
        fix = similar_files(path) or "Give a path, or a name of 'planner catalog models'."
        raise SpecError("model", f"no such file: {shown(str(path))}.", fix)
    hint = did_you_mean(name, catalog.model_names())
    fix = hint if hint.startswith("Did") else "'planner catalog models' lists the names; or give a config.json."
    raise SpecError("model", f"{shown(name)} is neither in the catalog nor a file.", fix)


def _not_cached(name: str, cache: Path) -> SpecError:
    """Return the error for a model of the hub that is not cached, with the download command."""
    problem = (
        f"{shown(name)} is no file, nor in the catalog, nor in the Hugging Face cache ({cache}); nothing is downloaded."
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
