"""What passes a device's network adapter beside data-parallel traffic: other groups' and copies to the host."""

from __future__ import annotations

import numpy as np

from costmodel.axes import Array, Decisions, added, with_layer_axis
from costmodel.memory.footprint import layer_footprint
from costmodel.memory.rank import data_groups
from costmodel.network.groups import Group, layer_group
from costmodel.pipelines.stages import Stages
from costmodel.step.compute import layer_seconds
from costmodel.step.layer import host_copy_seconds
from costmodel.tables import Facts, lookup

LAYER = ("tp", "cp", "ep", "etp")
"""Names of the degrees that split a layer."""


def adapter_seconds(facts: Facts, decisions: Decisions, stages: Stages) -> tuple[Array, Array]:
    """
    Seconds per micro-batch in which each rank's layers use its network adapter while they compute.

    Overlapped, a forward pass hides the expert-parallel exchange of another micro-batch's backward pass.

    Forward and backward pass, shape (..., U) each. Derivation: the sum over the rank's layers of overlapped exchanges
    that leave the scale-up domain, and of offloading copies through the adapter's port.
    """
    seconds, degrees = (
        lookup(layer_seconds, facts, decisions),
        {name: with_layer_axis(decisions[name]) for name in LAYER},
    )
    leaves = {
        name: with_layer_axis(decisions[f"{name}_overlap"]) * _leaves_domain(facts, layer_group(name, **degrees))
        for name in ("ep", "cp")
    }
    forward = leaves["ep"] * seconds.ep_backward + leaves["cp"] * seconds.cp_forward
    backward = leaves["ep"] * seconds.ep_forward + leaves["cp"] * seconds.cp_backward
    down, up = _copies_at_the_adapter(facts, decisions)
    return (
        np.asarray(added(stages.layers * (forward + down)[..., None, :])),
        np.asarray(added(stages.layers * (backward + up)[..., None, :])),
    )


def _leaves_domain(facts: Facts, group: Group) -> Array:
    """Whether a group's ranks are in several scale-up domains."""
    return np.asarray(group.ranks * group.stride > facts.cluster.scale_up_size)


def _copies_at_the_adapter(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Copies of a layer's offloaded activations through the port by which its network adapter is reached: (..., K).

    A device on PCIe has one port, behind a switch with its adapter (NVIDIA DGX H100 user guide, figure of the system
    topology). What comes from or goes to other nodes passes it like copies from and to the host.
    """
    device, offloads = facts.cluster.device, with_layer_axis(decisions["activation_offload"])
    if device.host_link != "pcie" or not offloads.any():
        return np.zeros(1), np.zeros(1)
    footprint = lookup(layer_footprint, facts, decisions)
    copies = host_copy_seconds(device, footprint, recompute=with_layer_axis(decisions["recompute"]))
    dense, _ = data_groups(decisions)
    share = offloads * device.behaviour.memory.offloaded_fraction * _leaves_domain(facts, dense)
    return np.asarray(share * copies[0]), np.asarray(share * copies[1])
