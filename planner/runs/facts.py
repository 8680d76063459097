"""A row's facts: its model, its devices and their network, its precision."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.software import equip
from costmodel.spec import Cluster, Device, Model, Network, Precision, Retention, Software, Workload
from costmodel.tables import Facts
from planner.problem import read_model
from planner.runs.architectures import VOCAB_MULTIPLE, Unpredictable, Variant, architecture, variant_of_model
from planner.runs.entries import Entry
from planner.runs.software import UNFUSED, software_of
from planner.runs.table import Run

GIGA = 1e9
TERA = 1e12
TOKENS = 1e12
"""Of a whole training; a step does not depend on it."""

CUDA_GRAPHS = {"static": re.compile(r"transformer_engine.*attn"), "full": re.compile(r"full_iteration|yes")}
"""What the column ``cuda_graph`` says where a step is launched at once, all of it or what is not routed."""
NARROW_WEIGHTS = ("fp8", "mxfp8")
NARROW_GATHERS = {"fp8": 1.0, "fp8_current": 1.0}
"""
Bytes per parameter that ``fp8_param_gather`` gathers, by recipe.

Those of MXFP8, whose two copies have scales along different axes, are gathered in 16 bits and cast then (Megatron-LM,
``reuse_grad_buf_for_mxfp8_param_ag``).
"""

GRADIENT_BYTES = {"grad_sync_dtype=bf16": 2.0, "BF16 optimizer with fp32 grad accumulation": 6.0}
"""What notes say of gradients: DeepSpeed's ``BF16_Optimizer`` adds up in FP32 beside the 16-bit gradients."""

PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_delayed": "fp8",
    "fp8_ds": "fp8",
    "fp8_cs": "fp8_current",
    "fp8_sc": "fp8_blockwise",
    "fp8_mx": "mxfp8",
    "fp8_current": "fp8_current",
    "fp8_blockwise": "fp8_blockwise",
    "fp8_tensorwise": "fp8_tensorwise",
    "fp8_rowwise": "fp8_rowwise",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
"""A row's ``dtype`` to the catalog's recipe; Megatron-Bridge's own names of four of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """
    What rows refer to by name, and what was made of it already.

    Parameters
    ----------
    models, systems
        ``models.yaml`` and ``systems.yaml``.
    devices
        Devices by name, instead of the catalog's: with other profiles, or of the user's own.
    factors
        By software stack: factors on the fields of a device's profile, instead of the catalog's.
    folder
        Where paths of models are relative to.
    made
        Models, clusters and facts by what they depend on.
    """

    models: Mapping[str, Entry]
    systems: Mapping[str, Entry]
    devices: Mapping[str, Device] = field(default_factory=dict)
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    folder: Path = Path()
    made: dict[object, Any] = field(default_factory=dict)

    def device(self, name: str) -> Device:
        """A device by the catalog's name."""
        return self.devices.get(name) or catalog.device(name)

    def software(self, stack: str) -> Software:
        """A software stack by the catalog's name."""
        known = catalog.software(stack)
        return replace(known, factors=dict(self.factors[stack])) if stack in self.factors else known

    def with_profiles(self, devices: Mapping[str, Device], factors: Mapping[str, Mapping[str, float]]) -> References:
        """The same references with other devices and software factors."""
        return replace(self, devices=devices, factors=factors, made={})


def references(models: Path | None, *systems: Path, folder: Path = Path()) -> References:
    """
    Read what rows refer to.

    Parameters
    ----------
    models
        Architectures by key; None: rows name models of the catalog, or the path of their ``config.json``.
    systems
        Files of systems by name, later ones before earlier ones.
    folder
        Where paths of models are relative to.

    Raises
    ------
    SpecError
        If a file cannot be read, or is no mapping of mappings.
    """
    known = {_plain(name): entry for path in systems for name, entry in _mapping(path, "systems").items()}
    return References(models=_mapping(models, "models") if models else {}, systems=known, folder=folder)


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
    cluster = _cluster(run, known, _retention(run, model))
    workload = Workload(
        global_batch_size=run.global_batch_size,
        sequence_length=run.sequence_length,
        tokens=TOKENS,
        precision=_precision(run, known),
    )
    return _shared(known, model, cluster, workload)


def with_profiles(facts: Facts, run: Run, known: References) -> Facts:
    """A row's facts with the devices of other references; the model and the work stay."""
    return _shared(known, facts.model, _cluster(run, known, facts.cluster.device.profile.retention), facts.workload)


def _shared(known: References, model: Model, cluster: Cluster, workload: Workload) -> Facts:
    """One record for all rows of the same facts, so that they share what is computed of them."""
    key = (id(model), id(cluster.device), cluster.num_devices, workload)
    if key not in known.made:
        known.made[key] = Facts(model=model, cluster=cluster, workload=workload)
    facts: Facts = known.made[key]
    return facts


def _mapping(path: Path, where: str) -> dict[str, Entry]:
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=catalog.LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(str(path), f"cannot be read as YAML: {getattr(error, 'strerror', None) or error}.") from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise SpecError(str(path), "must be a mapping of names to mappings.")
    return {str(name): Entry(f"{where}.{name}", entry) for name, entry in entries.items()}


# --- model -------------------------------------------------------------------------------------------------


def _model(run: Run, known: References) -> Model:
    software = software_of(run)
    pads = known.software(software.stack).settings.get("pads_vocabulary", True)
    variant = Variant(
        num_layers=_stated_count(run, r"PROXY: n_layers=(\d+)"),
        num_kv_heads=_stated_count(run, r"num_query_groups=(\d+)"),
        tied_embeddings=False if software.unties_embeddings or "untied embeddings" in run.notes else None,
        has_mtp=software.trains_mtp and "w/o MTP" not in run.notes,
        positions=run.sequence_length,
        vocab_multiple=VOCAB_MULTIPLE * run.tp if run.tp > 1 or pads else 1,
    )
    if run.kind == "proxy" and variant.num_layers is None:
        raise SpecError("notes", "a proxy must say 'PROXY: n_layers=', but its notes do not.")
    key = (run.model, variant)
    if key not in known.made:
        known.made[key] = _architecture(run, variant, known)
    model: Model = known.made[key]
    return model


def _architecture(run: Run, variant: Variant, known: References) -> Model:
    """The model of a key of the file of models, of a name in the catalog, or of a ``config.json``."""
    is_path = run.model.endswith(".json") or "/" in run.model
    if run.model in known.models or not (is_path or run.model in catalog.models()):
        return architecture(known.models, run.model, variant)
    return variant_of_model(read_model(run.model, known.folder), variant)


def _stated_count(run: Run, pattern: str) -> int | None:
    stated = re.search(pattern, run.notes)
    return int(stated.group(1)) if stated else None


OFFLOADED_LAYERS = re.compile(r"activations:(\d+)layers")


def _retention(run: Run, model: Model) -> Retention:
    """What the row's software keeps, with the layers that it offloads; parts that are timed alone have dropout."""
    retention = software_of(run).retention
    if run.is_sum_of_parts:
        dropout = {name: getattr(UNFUSED, name) for name in ("attention_score_bytes", "dropout_mask_bytes")}
        retention = replace(retention, **dropout)
    if offloaded := OFFLOADED_LAYERS.search(run.offload):
        retention = replace(retention, offloaded_fraction=min(int(offloaded.group(1)) / model.num_layers, 1.0))
    return retention


# --- devices and network -----------------------------------------------------------------------------------


def _cluster(run: Run, known: References, retention: Retention) -> Cluster:
    internode = _stated_internode_bandwidth(run, known)
    stack, settings = software_of(run).stack, _settings(run, known)
    key = (run.gpu, run.devices_per_node, run.scale_up_size, internode, stack, retention, *settings.items())
    if key not in known.made:
        placed = _placed(_device(_system(run, known), known), run, known, internode)
        device = equip(equip(placed, known.software(stack)), Software(name=run.id, settings=settings))
        known.made[key] = replace(device, profile=replace(device.profile, retention=retention))
    return Cluster(device=known.made[key], num_devices=run.num_devices)


def _settings(run: Run, known: References) -> dict[str, Any]:
    """Fields of the profile that the row itself decides, where it says."""
    settings: dict[str, Any] = {}
    for scope, words in CUDA_GRAPHS.items():
        if words.search(run.cuda_graph):
            settings["cuda_graphs"] = scope
    if TOKEN_DISPATCHERS.search(run.notes):
        settings["expert_dispatch"] = "tokens"
    if stated := ZERO_GROUP.search(run.id):
        ranks = int(stated.group(1))
        settings["sharding_ranks"] = ranks if ranks > 0 else None
    if run.framework.startswith("torchtitan") and NOT_COMPILED.match(run.notes):
        settings["fused_kernels"] = False
    if FLASH_ATTENTION.search(str(known.models[run.model].get("where")) if run.model in known.models else ""):
        settings["fused_attention"] = True
    if run.is_sum_of_parts:
        settings |= {"waits_for_collectives": True, "step_seconds": 0.0, **LOSS_OF_PARTS}
    return settings


LOSS_OF_PARTS = {"loss_forward_bytes": 16.0, "loss_backward_bytes": 4.0}
"""
Bytes per logit of Megatron-LM's loss on 16-bit logits (``fp16_lm_cross_entropy``, ``vocab_parallel_cross_entropy``):
maximum 2, difference, exponential and quotient in place 4 each, sum 2; backward a product in place. Sums of parts leave
no time for FP32 (``benchmarks/measured_runs/README.md``).
"""


AT_SITE = "-at-"
"""Between device and site in the name of a system: one site's network, which says nothing of others."""


def _system(run: Run, known: References) -> str:
    """The row's device, or the system that is known by it and a site that the row's id names."""
    start = f"{_plain(run.gpu)}{AT_SITE}"
    sites = (name for name in known.systems if name.startswith(start) and name.removeprefix(start) in run.id.lower())
    return next(sites, run.gpu)


def device_name(gpu: str, known: References) -> str:
    """
    The catalog's name of the device whose profile a row's device has.

    Raises
    ------
    SpecError
        If there is no such device.
    Unpredictable
        If there is one, but none in the catalog is like it.
    """
    names = {_plain(name): name for name in (*catalog.devices(), *known.devices)}
    if _plain(gpu) in names:
        return names[_plain(gpu)]
    return str(_relative(gpu, known)["profile_of"])


def _device(gpu: str, known: References) -> Device:
    """A known device, or one of the systems with the profile of a relative in the catalog."""
    device = known.device(device_name(gpu, known))
    if _plain(gpu) == _plain(device_name(gpu, known)):
        return device
    return _like(device, gpu, _relative(gpu, known), known)


def _relative(gpu: str, known: References) -> Entry:
    if _plain(gpu) not in known.systems:
        names = {*map(_plain, catalog.devices()), *known.devices, *known.systems}
        raise SpecError("gpu", f"'{gpu}' is no known device.", did_you_mean(_plain(gpu), names))
    system = known.systems[_plain(gpu)]
    if "profile_of" not in system:
        raise Unpredictable(f"the catalog has no device like '{gpu}', and its system names no 'profile_of'")
    return system


def _like(relative: Device, gpu: str, system: Entry, known: References) -> Device:
    """A relative's profile on the peaks and nominal bandwidths of another system."""
    theirs = known.systems.get(_plain(relative.name), system)
    peaks = {dtype: TERA * system.part("peak_dense_tflops").number(name) for dtype, name in _stated_peaks(system)}
    return replace(
        relative,
        name=gpu,
        peak_flops=peaks,
        memory_bytes=relative.memory_bytes * system.number("hbm_gb") / theirs.number("hbm_gb"),
        memory_bandwidth=GIGA * system.number("hbm_gbps"),
        devices_per_node=system.count("gpus_per_node"),
        networks=_networks_like(relative.networks, system, theirs),
        profile=replace(
            relative.profile,
            matmul_efficiency={
                dtype: value for dtype, value in relative.profile.matmul_efficiency.items() if dtype in peaks
            },
            runtime_bytes=relative.profile.runtime_bytes * system.number("hbm_gb") / theirs.number("hbm_gb"),
        ),
    )


def _networks_like(networks: tuple[Network, ...], system: Entry, theirs: Entry) -> tuple[Network, ...]:
    """A relative's networks with the nominal bandwidths of another system, or with those measured there."""
    node, *others = _scaled_networks(
        networks,
        inner=system.number("nvlink_gbps_per_gpu_per_direction") / theirs.number("nvlink_gbps_per_gpu_per_direction"),
        outer=system.number("internode_gbps_per_gpu") / theirs.number("internode_gbps_per_gpu"),
    )
    between: dict[str, Any] = {"is_half_duplex": system.get("internode_half_duplex", False)}
    if system.get("internode_is_measured"):
        between["bandwidth"] = GIGA * system.number("internode_gbps_per_gpu")
    is_mesh = system.get("nvlink_mesh", node.is_mesh)
    return (replace(node, is_mesh=is_mesh), *(replace(other, **between) for other in others))


PEAK_NAMES: dict[Any, str] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "fp4"}
"""A dtype's name in ``peak_dense_tflops``."""


def _stated_peaks(system: Entry) -> list[tuple[Any, str]]:
    return [(dtype, name) for dtype, name in PEAK_NAMES.items() if system.part("peak_dense_tflops").get(name)]


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
        networks=_scaled_networks((inner, *others), inner=_stated_links(run), outer=outer),
    )


def _stated_links(run: Run) -> float:
    """Share of an A100's NVLinks that lead to one other GPU, where they do not meet in a switch."""
    stated = DIRECT_LINKS.search(software_of(run).network)
    return float(stated.group(1)) / NVLINKS if stated else 1.0


def _scaled_networks(networks: tuple[Network, ...], *, inner: float, outer: float) -> tuple[Network, ...]:
    first, *others = networks
    scaled = (replace(network, bandwidth=network.bandwidth * outer) for network in others)
    return (replace(first, bandwidth=first.bandwidth * inner), *scaled)


def _nominal_internode_bandwidth(device: Device, known: References) -> float:
    system = known.systems.get(_plain(device.name))
    return GIGA * system.number("internode_gbps_per_gpu") if system else device.networks[-1].bandwidth


FLASH_ATTENTION = re.compile("flash attention")
"""What the source of an architecture says where its configuration chooses it (GPT-NeoX, ``attention_config``)."""

NOT_COMPILED = re.compile(r"bf16; ")
"""How the notes of torchtitan's rows begin where they do not say ``bf16+compile``."""

TOKEN_DISPATCHERS = re.compile("deepep|hybridep", re.IGNORECASE)
"""Dispatchers that send a token once to each place that it visits, as the notes name them."""

ZERO_GROUP = re.compile(r"-tp\d+-z(-?\d+)-")
"""How the rows of InternEvo name the size of the group that shares optimizer states; -1: all."""

DIRECT_LINKS = re.compile(r"NVLink (\d+) inter-gpu connects")
NVLINKS = 12
"""Of an A100 SXM (datasheet)."""

INTERNODE = (
    (re.compile(r"(\d+)x ?(?:[\w-]+ )?(\d+) ?Gb(?:/s)? (?:\w+ )?per node"), "links"),
    (re.compile(r"inter-node (\d+) Gb/s"), "node"),
    (re.compile(r"(\d+)Gb/s RDMA per GPU"), "device"),
)
"""How notes state the network between nodes: links of a node, all of a node, one device."""


def _stated_internode_bandwidth(run: Run, known: References) -> float | None:
    """Nominal bytes per second of one device to other nodes, where the row's notes say."""
    for text in (run.notes, software_of(run).network):
        for pattern, per in INTERNODE:
            if stated := pattern.search(text):
                gigabits = math.prod(float(number) for number in stated.groups())
                of_node = run.devices_per_node or _device(_system(run, known), known).devices_per_node
                return gigabits * GIGA / 8 / (1 if per == "device" else of_node)
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
    software = software_of(run)
    dtype = run.dtype or software.dtype
    if dtype not in PRECISIONS:
        raise SpecError("dtype", f"'{dtype}' is no known recipe.", did_you_mean(dtype, PRECISIONS))
    precision = catalog.precision(PRECISIONS[dtype])
    if precision.compute not in _device(run.gpu, known).peak_flops:
        raise SpecError("dtype", f"'{run.gpu}' has no {precision.compute} units.")
    gradient_bytes = next((nbytes for words, nbytes in GRADIENT_BYTES.items() if words in run.notes), None)
    if software.holds_narrow_weights and precision.compute in NARROW_WEIGHTS:
        precision = _narrow_weights(precision)
    if software.weight_bytes is not None:
        precision = replace(precision, weight_bytes=software.weight_bytes, copy_bytes=0.0)
    return replace(
        precision,
        gradient_bytes=gradient_bytes or software.gradient_bytes,
        optimizer_bytes=software.optimizer_bytes or precision.optimizer_bytes,
    )


def _narrow_weights(precision: Precision) -> Precision:
    """With ``fp8_param_gather``: the copy by rows, or the one by rows and columns, is the weight."""
    return replace(
        precision,
        weight_bytes=precision.copy_bytes - precision.transposed_bytes,
        copy_bytes=precision.transposed_bytes,
        parameter_gather_bytes=NARROW_GATHERS.get(precision.name, precision.parameter_gather_bytes),
    )
