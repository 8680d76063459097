"""Rules of memory: of each device, and of its share of the host."""

from __future__ import annotations

from constraints.rule import Floats, Holds
from costmodel.facts.device import Cluster


def fits_in_device_memory(cluster: Cluster, *, device_bytes: Floats, memory_headroom_bytes: Floats) -> Holds:
    """Model states, activations and headroom fit in the memory of every GPU."""
    return device_bytes + memory_headroom_bytes <= cluster.device.memory_bytes


def fits_in_host_memory(cluster: Cluster, *, host_bytes: Floats) -> Holds:
    """Offloaded activations and optimizer states fit in each GPU's share of the host memory."""
    return host_bytes <= cluster.device.host_memory_bytes
