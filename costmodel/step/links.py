"""Load of a device's links in a micro-batch besides data-parallel traffic: layers' collectives, copies to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import EquippedDevice
from costmodel.lowering.layer import module_indices, recomputes
from costmodel.memory.parts import kept_bytes, layer_footprint
from costmodel.pipelines.stages import Stages
from costmodel.record import record
from costmodel.step.compute import LayerSeconds, layer_seconds
from costmodel.strategy import MODULES, Recompute
from costmodel.tables import Array, Decisions, Facts, Record, add_layer_axis, lookup, present


@record(frozen=True, kw_only=True, slots=True)
class LinkLoads(Record):
    """
    Seconds per micro-batch in which layers use their device's links, hidden or not.

    Parameters
    ----------
    scale_up, adapter
        Seconds on the scale-up network, and on the network adapter with its port. They are for one layer of each kind,
        shape (..., K), or for all layers of a rank, shape (..., U).
    """

    scale_up: Array
    adapter: Array

    def sum_by_rank(self, stages: Stages) -> LinkLoads:
        """Sum the loads over the layers of each rank."""
        return LinkLoads(scale_up=stages.sum_over_layers(self.scale_up), adapter=stages.sum_over_layers(self.adapter))


def layer_loads(facts: Facts, decisions: Decisions) -> LinkLoads:
    """
    Return the load of a layer of each kind on its device's links in both passes of a micro-batch.

    Derivation: its communication, overlapped or not, and the part that recomputation repeats. Copies of offloaded
    activations pass the adapter's port (:func:`port_share`).
    """
    seconds, recompute = lookup(layer_seconds, facts, decisions), add_layer_axis(decisions["recompute"])
    scale_up, adapter = (
        link.total
        + repeated_communication_seconds(
            link.pass_seconds("forward"), recompute=recompute, module_forward=seconds.module_forward
        )
        for link in (seconds.scale_up, seconds.adapter)
    )
    down, up = offload_seconds(facts, decisions)
    adapter = adapter + port_share(facts.cluster.device) * (down + up)
    return LinkLoads(scale_up=np.asarray(scale_up), adapter=np.asarray(adapter))


def adapter_seconds(decisions: Decisions, seconds: LayerSeconds) -> tuple[Array, Array]:
    """
    Seconds in which a layer uses the network adapter in its forward and its backward pass: shape (..., K) each.

    Derivation: its own collectives. With overlap, a pass has the all-to-alls of another micro-batch's opposite pass.
    """
    adapter, overlaps = seconds.adapter, add_layer_axis(decisions["ep_overlap"])
    forward = np.where(overlaps, adapter.ep_backward, adapter.ep_forward)
    backward = np.where(overlaps, adapter.ep_forward, adapter.ep_backward)
    return (
        adapter.tp_forward + adapter.cp_forward + forward,
        adapter.tp_backward + adapter.cp_backward + backward,
    )


COMMUNICATION_OF_MODULES = (
    ("core_attention", "cp", 1.0),
    ("experts", "ep", 1.0),
    ("mlp", "tp", 1 / 2),
    ("every_other_matmul", "tp", 1 / 2),
)
"""Modules that communicate, their group, and their share of that group's communication in a layer."""


def repeated_communication_seconds(
    forward: Mapping[str, Array], *, recompute: NDArray[Any], module_forward: Array
) -> Array:
    """
    Seconds of the forward pass's communication that recomputation repeats.

    Derivation: full recomputation repeats all of it, modules the communication inside them. The context-parallel ring
    belongs to the attention core, the all-to-alls to the experts. Attention and feed-forward have equal tensor-parallel
    collectives, so half of them belong to a dense feed-forward. torchtitan keeps the results of reduce-scatters and
    repeats gathers (``apply_ac``, ``_op_sac_save_list``).

    Parameters
    ----------
    forward
        Seconds of each group's communication, shape (..., K).
    recompute
        Decision.
    module_forward
        Seconds of each module, on one more axis; 0 if a kind of layer has none.
    """
    modules: Array | float = 0.0
    chosen = {index for decision in present(recompute) for index in module_indices(decision)}
    for name, group, share in COMMUNICATION_OF_MODULES:
        if MODULES.index(name) not in chosen:
            continue
        again = recomputes(name, recompute=recompute) & (module_forward[..., MODULES.index(name)] > 0)
        modules = modules + np.where(again, share * forward[group], 0.0)
    return np.where(recompute == int(Recompute.FULL), sum(forward.values()), modules)


def port_share(device: EquippedDevice) -> float:
    """
    Share of copies to and from the host that pass the port of the network adapter: 1 or 0.

    A device on PCIe has one port, behind a switch with its adapter (NVIDIA DGX H100 user guide, figure of the system
    topology). Traffic from and to other nodes passes it like copies from and to the host.
    """
    return float(device.host_link == "pcie")


def offload_seconds(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Seconds of copying an average layer's activations to the host in the forward pass, and back in the backward pass.

    Each is alone, shape (..., K), and 0 if none are offloaded. Derivation: the kept bytes of the offloaded layers over
    the bandwidth of either direction, the term A_layer / B of MoFa's equations (34) and (35).
    """
    offloads = add_layer_axis(decisions["activation_offload"])
    if not offloads.any():
        return np.zeros(offloads.shape), np.zeros(offloads.shape)
    device = facts.cluster.device
    down, up = host_copy_seconds(facts, decisions)
    share = offloads * device.behaviour.memory.offloaded_fraction
    return np.asarray(share * down), np.asarray(share * up)


def host_copy_seconds(facts: Facts, decisions: Decisions) -> tuple[Array, Array]:
    """
    Seconds of copying a layer's kept bytes to the host, and back: each alone, shape (..., K).

    Derivation: the kept bytes over the bandwidth of either direction, the term A_layer / B of MoFa's equations (34) and
    (35).
    """
    device, footprint = facts.cluster.device, lookup(layer_footprint, facts, decisions)
    recompute = add_layer_axis(decisions["recompute"])
    kept = kept_bytes(footprint.saved_bytes, footprint.module_bytes, footprint.input_bytes, recompute=recompute)
    return np.asarray(kept / device.device_to_host_bandwidth), np.asarray(kept / device.host_to_device_bandwidth)
