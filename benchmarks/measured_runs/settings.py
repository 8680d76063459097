"""``training.*`` and ``settings.*`` of a collected row: the work, and what the framework was told."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measured_runs.columns import Row
from costmodel import catalog
from costmodel.catalog.releases import release_of as release_named
from costmodel.errors import SpecError, did_you_mean

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

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}

GRADIENTS = (
    ("notes", re.compile(r"BF16[ _][oO]ptimizer with fp32 grad accumulation"), "bf16+fp32"),
    ("framework", re.compile(r"BF16_Optimizer"), "bf16+fp32"),
    ("notes", re.compile(r"grad_sync_dtype=bf16"), "bf16"),
    ("notes", re.compile(r"fp32 grad accumulation"), "fp32"),
)

"""What is said of gradients: DeepSpeed's ``BF16_Optimizer`` adds up in FP32 beside the 16-bit gradients."""

WITHOUT_MTP = re.compile(r"w/o MTP")

OFFLOADED_LAYERS = re.compile(r"^activations:(\d+)layers$")

"""How the column ``offload`` names layers whose activations go to the host."""

OFFLOADED_STATES = re.compile(r"^optimizer:(\d+)%(\+overlap)?$")

"""How it names the part of the optimizer states that is there, and transfers beside the host's update."""

ZERO_GROUP = re.compile(r"-tp\d+-z(-?\d+)-")

"""How the ids of InternEvo name the size of the group that shares optimizer states; -1: all."""

NOT_COMPILED = re.compile(r"^bf16; ")

"""How the notes of torchtitan's rows begin where they do not say ``bf16+compile``."""

FLASH_ATTENTION = re.compile(r"flash attention")

"""What the source of an architecture says where its configuration chooses it (GPT-NeoX, ``attention_config``)."""

SUMS_OF_PARTS = "vtrain-single-"

"""How ids of vTrain's runs on one node begin (README.md)."""


def training(row: Row) -> dict[str, object]:
    """The work of a step."""
    return {
        "training.global_batch_size": row.count_or_none("gbs"),
        "training.sequence_length": row.count_or_none("seq_len"),
    }


def precision(row: Row) -> dict[str, object]:
    """The catalog's recipe."""
    dtype = row.word("dtype")
    if dtype and dtype not in PRECISIONS:
        raise SpecError("dtype", f"'{dtype}' is no known recipe.", did_you_mean(dtype, PRECISIONS))
    return {"training.precision": PRECISIONS[dtype] if dtype else None}


def states(row: Row) -> dict[str, object]:
    """Gradients, optimizer states, weights in 8 bits."""
    in_fp32 = row.flag_or_none("grad_reduce_in_fp32")
    noted = next((dtype for column, words, dtype in GRADIENTS if words.search(row.text(column))), None)
    return {
        "settings.gradient_dtype": noted if in_fp32 is None else {True: "fp32", False: "bf16"}[in_fp32],
        "settings.moments_dtype": row.choice("exp_avg_dtype", DTYPES),
        "settings.fp8_param_gather": row.flag_or_none("fp8_param_gather"),
        "settings.optimizer": row.word("optimizer_name"),
        "settings.optimizer_group": _optimizer_group(row),
        **_offloaded_states(row),
    }


def _offloaded_states(row: Row) -> dict[str, object]:
    """What of them is in host memory: FP32 weights only of an optimizer that the row says to be precision-aware."""
    stated = OFFLOADED_STATES.search(row.word("offload"))
    if not stated:
        return {}
    return {
        "settings.offloaded_states": int(stated.group(1)) / 100,
        "settings.offloaded_masters": row.flag_or_none("precision_aware_optimizer"),
        "settings.offload_overlap": stated.group(2) is not None,
    }


def _optimizer_group(row: Row) -> int | str | None:
    stated = row.noted(ZERO_GROUP, "id")
    if not stated:
        return None
    return int(stated) if int(stated) > 0 else "all"


def layers(row: Row) -> dict[str, object]:
    """Multi-token prediction, layers whose activations go to the host."""
    num_mtp = row.count_or_none("mtp_layers", least=0)
    if num_mtp is None and WITHOUT_MTP.search(row.text("notes")):
        num_mtp = 0
    offloaded = OFFLOADED_LAYERS.search(row.word("offload"))
    return {
        "settings.mtp_layers": num_mtp,
        "settings.offloaded_layers": int(offloaded.group(1)) if offloaded else None,
    }


def experts(row: Row) -> dict[str, object]:
    """What is told to layers of experts."""
    return {
        "settings.shared_expert_overlap": row.flag_or_none("shared_expert_overlap"),
        "settings.delay_wgrad": row.flag_or_none("delay_wgrad"),
        "settings.communication_sms": row.count_or_none("comm_sms"),
    }


def kernels(row: Row, model: Mapping[str, Any]) -> dict[str, object]:
    """Which kernels ran, where they are not the framework's usual ones; whether parts were timed alone."""
    is_eager = row.word("framework").startswith("torchtitan") and NOT_COMPILED.search(row.text("notes"))
    return {
        "settings.kernels": "eager" if is_eager else None,
        "settings.attention": "flash" if FLASH_ATTENTION.search(str(model.get("where"))) else None,
        "settings.composition": "parts" if is_profiled_per_layer(row) else None,
    }


def is_profiled_per_layer(row: Row) -> bool:
    """Whether its step is a sum of layers that were timed alone (README.md)."""
    return row.text("id").startswith(SUMS_OF_PARTS)


TABLE = Path(__file__).with_name("frameworks.yaml")

RELEASE = r"(\d\d\.\d\d(?:\.\d\d)?)"

RELEASES = (
    ("source_ref", re.compile(rf"\({RELEASE} NeMo Container")),
    ("source_ref", re.compile(rf"performance-summary \({RELEASE}, ")),
    ("id", re.compile(rf"^mb-{RELEASE}-")),
    ("framework", re.compile(rf"\b{RELEASE}\b")),
    ("notes", re.compile(rf"container NeMo {RELEASE}\b")),
    ("notes", re.compile(rf"^NeMo {RELEASE}")),
    ("source_ref", re.compile(rf"dgxc-benchmarking@.*\([^()]*? {RELEASE} (?:BF16|FP8)")),
    ("source_ref", re.compile(r"dgxc-benchmarking@v(\d\d\.\d\d)")),
)

"""
Where a row tells the release of its container, the surest first.

Titles of dgxc-benchmarking name the container where it is not that of their own month; further digits of its tags are
of the recipes, not of the container.
"""

BUILD = re.compile(r"\s*[@(+]")

"""What stands between a framework's name and what it was built of."""


def entry_of(row: Row) -> str:
    """The catalog's name of a row's framework; empty if it has none."""
    found = framework_of(row)
    if "release" not in found:
        entry = str(found.get("entry", ""))
        return _stated(row.text("framework"), entry) or entry
    return f"{found['entry']}-{release_of(row) or found['release']}"


def _stated(framework: str, entry: str) -> str:
    """
    The release that a row's name of its framework has itself, of the same stack and counted alike; else empty.

    >>> _stated("Megatron-LM 0.19 @0a1b2c", "megatron-lm-0.17"), _stated("Megatron-LM (Core)", "megatron-lm-0.17")
    ('megatron-lm-0.19', '')
    """
    own, known = release_named(BUILD.split(framework)[0]), release_named(entry)
    if own is None or known is None or (own.stack, own.scheme) != (known.stack, known.scheme):
        return ""
    return f"{own.stack}-{'.'.join(map(str, own.number))}"


def framework_of(row: Row) -> Mapping[str, Any]:
    """The entry of the table that fits a row; empty if none does."""
    return next((one for one in _table() if _fits(one, row)), {})


def release_of(row: Row) -> str:
    """The container's release, if the row tells it."""
    return next((release for column, pattern in RELEASES if (release := row.noted(pattern, column))), "")


def _fits(one: Mapping[str, Any], row: Row) -> bool:
    starts = tuple(start.lower() for start in one["starts"])
    is_in_time = "until" not in one or "" < row.text("date") < one["until"]
    return row.word("framework").startswith(starts) and is_in_time and one.get("noted", "") in row.text("notes")


@cache
def _table() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


GIGABIT = 1e9 / 8

SITES = Path(__file__).with_name("sites.yaml")

PER_NODE = (
    re.compile(r"(\d+)x ?(?:[\w-]+ )?(\d+) ?Gb(?:/s)? (?:\w+ )?per node"),
    re.compile(r"inter-node (\d+) Gb/s"),
)

"""How notes state the network of a node: its links, or all of it."""

PER_DEVICE = re.compile(r"(\d+)Gb/s RDMA per GPU")


def cluster(row: Row) -> dict[str, object]:
    """What ran it."""
    site = site_of(row)
    stated = _stated_bandwidth(row)
    return {
        "cluster.device": site.get("device") or device_name(row.text("gpu")),
        "cluster.scale_up_bandwidth": site.get("scale_up_bandwidth"),
        "cluster.internode_bandwidth": site.get("internode_bandwidth") if stated is None else stated,
        "cluster.framework": entry_of(row),
    }


def sizes(row: Row) -> dict[str, object]:
    """How many devices, and how they hang together."""
    return {
        "cluster.num_devices": row.count_or_none("n_gpus"),
        "cluster.devices_per_node": row.count_or_none("gpus_per_node"),
        "cluster.scale_up_size": row.count_or_none("nvlink_domain"),
    }


def device_name(gpu: str) -> str:
    """
    The catalog's name of a device; what it does not know keeps its own.

    >>> device_name("H100-80g-SXM"), device_name("h800-80g-sxm"), device_name("npu-9")
    ('h100-80gb-sxm', 'h800', 'npu-9')
    """
    found = catalog.find_unique_device(gpu)
    return found.device if found else gpu


def _plain(name: str) -> str:
    return re.sub(r"(\d)gb\b", r"\1g", name.lower())


def site_of(row: Row) -> Mapping[str, Any]:
    """The site of a row's source, if its network is known; empty else."""
    return next((site for site in _sites() if _is_at(row, site)), {})


def _is_at(row: Row, site: Mapping[str, Any]) -> bool:
    return (
        row.text("source").startswith(site["source"])
        and site.get("in_id", "") in row.word("id")
        and site.get("gpu", _plain(row.text("gpu"))) == _plain(row.text("gpu"))
    )


@cache
def _sites() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(SITES.read_text(encoding="utf-8")))


def _stated_bandwidth(row: Row) -> float | None:
    """Nominal bytes per second of one device to other nodes, where the notes say."""
    notes = row.text("notes")
    for pattern in PER_NODE:
        if stated := pattern.search(notes):
            return math.prod(map(float, stated.groups())) * GIGABIT / _devices_per_node(row)
    stated = PER_DEVICE.search(notes)
    return float(stated.group(1)) * GIGABIT if stated else None


def _devices_per_node(row: Row) -> int:
    """As the row says; else as the catalog's device has them, one if it is not there."""
    name = device_name(row.text("gpu"))
    known = catalog.device(name).devices_per_node if catalog.find_unique_device(name) else 1
    return row.count_or_none("gpus_per_node") or known
