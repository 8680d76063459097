"""``cluster.*`` of a collected row: device, network, framework."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measured_runs.cells import Row
from benchmarks.measured_runs.frameworks import entry_of
from costmodel import catalog

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
