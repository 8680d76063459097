"""A row's facts: its model, its devices and their network, its precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.spec import Cluster, Device, Model, Network, Precision, Retention, Workload
from costmodel.tables import Facts
from planner.runs.architectures import Unpredictable, Variant, architecture
from planner.runs.software import software_of
from planner.runs.table import Run

GIGA = 1e9
TERA = 1e12
TOKENS = 1e12
"""Of a whole training; a step does not depend on it."""

NARROW_WEIGHTS = ("fp8", "mxfp8")
MASTER_COPY_BYTES = 2.0
"""Weights in 16 bits, which ``fp8_param_gather`` does without (catalog/precisions.yaml)."""

GRADIENT_BYTES = {"grad_sync_dtype=bf16": 2.0, "BF16 optimizer with fp32 grad accumulation": 6.0}
"""What notes say of gradients: DeepSpeed's ``BF16_Optimizer`` adds up in FP32 beside the 16-bit gradients."""

PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_delayed": "fp8",
    "fp8_current": "fp8",
    "fp8_blockwise": "fp8",
    "fp8_tensorwise": "fp8",
    "fp8_rowwise": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
"""A row's ``dtype`` to the catalog's recipe; kinds of FP8 scaling differ in casts, for which the model has one law."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """
    What rows refer to by name, and what was made of it already.

    Parameters
    ----------
    models, systems
        ``models.yaml`` and ``systems.yaml``.
    made
        Models and clusters by what they depend on.
    """

    models: Mapping[str, Any]
    systems: Mapping[str, Any]
    made: dict[object, Any] = field(default_factory=dict)


def references(models: Path, *systems: Path) -> References:
    """
    Read what rows refer to.

    Parameters
    ----------
    models
        Architectures by key.
    systems
        Files of systems by name, later ones before earlier ones.

    Raises
    ------
    SpecError
        If a file cannot be read, or is no mapping of mappings.
    """
    known = {_plain(name): entry for path in systems for name, entry in _mapping(path).items()}
    return References(models=_mapping(models), systems=known)


def facts_of(run: Run, known: References) -> Facts:
    """
    Everything that is given in a row.

    Raises
    ------
    SpecError
        If the row names what does not exist.
    Unpredictable
        If it names what the cost model does not know.
    """
    model = _model(run, known)
    return Facts(
        model=model,
        cluster=_cluster(run, known, _retention(run, model)),
        workload=Workload(
            global_batch_size=run.global_batch_size,
            sequence_length=run.sequence_length,
            tokens=TOKENS,
            precision=_precision(run, known),
        ),
    )


def _mapping(path: Path) -> dict[str, Any]:
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=catalog.LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(str(path), f"cannot be read as YAML: {getattr(error, 'strerror', None) or error}.") from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise SpecError(str(path), "must be a mapping of names to mappings.")
    return entries


# --- model -------------------------------------------------------------------------------------------------


def _model(run: Run, known: References) -> Model:
    variant = Variant(
        num_layers=_stated_count(run, r"PROXY: n_layers=(\d+)"),
        num_kv_heads=_stated_count(run, r"num_query_groups=(\d+)"),
        tied_embeddings=False if "untied embeddings" in run.notes else None,
        has_mtp="w/o MTP" not in run.notes,
        positions=run.sequence_length,
        tp=run.tp,
    )
    if run.kind == "proxy" and variant.num_layers is None:
        raise SpecError("notes", "a proxy must say 'PROXY: n_layers=', but its notes do not.")
    key = (run.model, variant)
    if key not in known.made:
        known.made[key] = architecture(known.models, run.model, variant)
    model: Model = known.made[key]
    return model


def _stated_count(run: Run, pattern: str) -> int | None:
    stated = re.search(pattern, run.notes)
    return int(stated.group(1)) if stated else None


OFFLOADED_LAYERS = re.compile(r"activations:(\d+)layers")


def _retention(run: Run, model: Model) -> Retention:
    """What the row's software keeps, with its generation of attention and the layers that it offloads."""
    software = software_of(run.framework, run.date)
    retention = software.retention
    if run.date >= software.fused_since:
        retention = replace(retention, attention_score_bytes=0.0)
    if offloaded := OFFLOADED_LAYERS.search(run.offload):
        retention = replace(retention, offloaded_fraction=min(int(offloaded.group(1)) / model.num_layers, 1.0))
    return retention


# --- devices and network -----------------------------------------------------------------------------------


def _cluster(run: Run, known: References, retention: Retention) -> Cluster:
    internode = _stated_internode_bandwidth(run)
    key = (run.gpu, run.devices_per_node, run.scale_up_size, internode, retention)
    if key not in known.made:
        device = _device(run.gpu, known)
        device = replace(device, profile=replace(device.profile, retention=retention))
        known.made[key] = _placed(device, run, known, internode)
    return Cluster(device=known.made[key], num_devices=run.num_devices)


def _device(gpu: str, known: References) -> Device:
    """The catalog's device, or one of the systems with the profile of a relative in the catalog."""
    in_catalog = {_plain(name): name for name in catalog.devices()}
    if _plain(gpu) in in_catalog:
        return catalog.device(in_catalog[_plain(gpu)])
    if _plain(gpu) not in known.systems:
        raise SpecError("gpu", f"'{gpu}' is no known device.", did_you_mean(_plain(gpu), {*in_catalog, *known.systems}))
    system = known.systems[_plain(gpu)]
    if "profile_of" not in system:
        raise Unpredictable(f"the catalog has no device like '{gpu}', and its system names no 'profile_of'")
    return _like(catalog.device(system["profile_of"]), gpu, system, known)


def _like(relative: Device, gpu: str, system: Mapping[str, Any], known: References) -> Device:
    """A relative's profile on the peaks and nominal bandwidths of another system."""
    theirs = known.systems.get(_plain(relative.name), system)
    peaks = {dtype: TERA * system["peak_dense_tflops"][name] for dtype, name in _stated_peaks(system)}
    return replace(
        relative,
        name=gpu,
        peak_flops=peaks,
        memory_bytes=relative.memory_bytes * system["hbm_gb"] / theirs["hbm_gb"],
        memory_bandwidth=GIGA * system["hbm_gbps"],
        devices_per_node=system["gpus_per_node"],
        networks=_scaled_networks(
            relative.networks,
            inner=system["nvlink_gbps_per_gpu_per_direction"] / theirs["nvlink_gbps_per_gpu_per_direction"],
            outer=system["internode_gbps_per_gpu"] / theirs["internode_gbps_per_gpu"],
        ),
        profile=replace(
            relative.profile,
            matmul_efficiency={
                dtype: value for dtype, value in relative.profile.matmul_efficiency.items() if dtype in peaks
            },
            runtime_bytes=relative.profile.runtime_bytes * system["hbm_gb"] / theirs["hbm_gb"],
        ),
    )


PEAK_NAMES: dict[Any, str] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "fp4"}
"""A dtype's name in ``peak_dense_tflops``."""


def _stated_peaks(system: Mapping[str, Any]) -> list[tuple[Any, str]]:
    return [(dtype, name) for dtype, name in PEAK_NAMES.items() if system["peak_dense_tflops"].get(name)]


def _placed(device: Device, run: Run, known: References, internode: float | None) -> Device:
    """The device in nodes and scale-up domains of the row's size, on the network that its notes state."""
    node, *others = device.networks
    inner = replace(node, num_peers=run.scale_up_size or node.num_peers)
    outer = 1.0
    if internode is not None:
        outer = internode / _nominal_internode_bandwidth(device, known)
    return replace(
        device,
        devices_per_node=run.devices_per_node or device.devices_per_node,
        networks=_scaled_networks((inner, *others), inner=1.0, outer=outer),
    )


def _scaled_networks(networks: tuple[Network, ...], *, inner: float, outer: float) -> tuple[Network, ...]:
    first, *others = networks
    scaled = (replace(network, bandwidth=network.bandwidth * outer) for network in others)
    return (replace(first, bandwidth=first.bandwidth * inner), *scaled)


def _nominal_internode_bandwidth(device: Device, known: References) -> float:
    system = known.systems.get(_plain(device.name), {})
    return GIGA * float(system["internode_gbps_per_gpu"]) if system else device.networks[-1].bandwidth


INTERNODE = (
    (re.compile(r"(\d+)x ?(?:[\w-]+ )?(\d+) ?Gb(?:/s)? (?:\w+ )?per node"), "links"),
    (re.compile(r"inter-node (\d+) Gb/s"), "node"),
    (re.compile(r"(\d+)Gb/s RDMA per GPU"), "device"),
)
"""How notes state the network between nodes: links of a node, all of a node, one device."""


def _stated_internode_bandwidth(run: Run) -> float | None:
    """Nominal bytes per second of one device to other nodes, where the row's notes say."""
    for pattern, per in INTERNODE:
        if stated := pattern.search(run.notes):
            gigabits = 1.0
            for number in stated.groups():
                gigabits *= float(number)
            devices = 1 if per == "device" else run.devices_per_node or 1
            return gigabits * GIGA / 8 / devices
    return None


def _plain(name: str) -> str:
    """
    A device's name as all files spell it.

    >>> _plain("H100-80GB-SXM"), _plain("h100-80g-sxm")
    ('h100-80g-sxm', 'h100-80g-sxm')
    """
    return re.sub(r"(\d)gb\b", r"\1g", name.lower())


# --- precision ---------------------------------------------------------------------------------------------


def _precision(run: Run, known: References) -> Precision:
    software = software_of(run.framework, run.date)
    dtype = run.dtype or software.dtype
    if dtype not in PRECISIONS:
        raise SpecError("dtype", f"'{dtype}' is no known recipe.", did_you_mean(dtype, PRECISIONS))
    precision = catalog.precision(PRECISIONS[dtype])
    if precision.compute not in _device(run.gpu, known).peak_flops:
        raise SpecError("dtype", f"'{run.gpu}' has no {precision.compute} units.")
    gradient_bytes = next((nbytes for words, nbytes in GRADIENT_BYTES.items() if words in run.notes), None)
    weight_bytes = software.weight_bytes or precision.weight_bytes
    if software.holds_narrow_weights and precision.compute in NARROW_WEIGHTS:
        weight_bytes -= MASTER_COPY_BYTES
    return replace(
        precision,
        gradient_bytes=gradient_bytes or software.gradient_bytes,
        weight_bytes=weight_bytes,
        optimizer_bytes=software.optimizer_bytes or precision.optimizer_bytes,
    )
