"""What a device and its share of the host hold fits into them."""

from __future__ import annotations

from constraints.rule import Floats, Holds
from costmodel.facts.cluster import Cluster


def fits_in_device_memory(cluster: Cluster, *, device_bytes: Floats, memory_headroom_bytes: Floats) -> Holds:
    """The training state, the activations and the headroom fit in the memory of every device."""
    return device_bytes + memory_headroom_bytes <= cluster.device.memory_bytes


def fits_in_host_memory(cluster: Cluster, *, host_bytes: Floats) -> Holds:
    """What is offloaded fits in each device's share of the host memory."""
    return host_bytes <= cluster.device.host_memory_bytes
