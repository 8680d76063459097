"""Groups of ranks fit the devices and their network; stages fit the model."""

from __future__ import annotations

import numpy as np

from constraints.rule import Holds, Ints, implies
from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.strategy import Sharding


def degrees_multiply_to_the_devices(cluster: Cluster, *, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
    """The parallel degrees (tp, cp, pp, dp) multiply to the number of GPUs."""
    return tp * cp * pp * dp == cluster.num_devices


def tp_stays_inside_a_scale_up_domain(cluster: Cluster, *, tp: Ints) -> Holds:
    """
    The search keeps each tensor-parallel group inside one scale-up domain (search.preferences).

    Frameworks run wider groups, slowly: GPT-NeoX with tp 8 on nodes of 4 devices (Zhang et al., arXiv:2509.22832).
    """
    return tp <= cluster.scale_up_size


def tp_groups_tile_the_nodes(cluster: Cluster, *, tp: Ints) -> Holds:
    """Each node holds whole tensor-parallel groups, or each group holds whole nodes."""
    node = min(cluster.device.devices_per_node, cluster.num_devices)
    return (node % tp == 0) | (tp % node == 0)


def sites_hold_whole_replicas(cluster: Cluster, *, dp: Ints) -> Holds:
    """Only data parallelism crosses sites: their number (cluster.sites.count) divides dp."""
    return np.equal(dp % cluster.num_sites, 0)


def sites_hold_whole_groups_of_experts(cluster: Cluster, *, tp: Ints, cp: Ints, dp: Ints, ep: Ints, etp: Ints) -> Holds:
    """Each site (cluster.sites) holds whole expert-parallel groups (ep, etp)."""
    return np.equal(tp * cp * dp % (cluster.num_sites * ep * etp), 0)


def sites_reduce_once_per_step(cluster: Cluster, *, sharding: Ints) -> Holds:
    """Between sites (cluster.sites) gradients cross once per step: ZeRO-2 and ZeRO-3 send in each micro-batch."""
    return implies(cluster.num_sites > 1, sharding < Sharding.GRADIENTS)


def virtual_stages_hold_something(model: Model, *, pp: Ints, vpp: Ints) -> Holds:
    """Every virtual pipeline stage (pp times vpp of them) holds a layer, the embedding or the head."""
    return pp * vpp <= model.num_layers + 2


def virtual_stages_hold_equally_much(model: Model, *, pp: Ints, vpp: Ints) -> Holds:
    """
    The search uses virtual stages (vpp above 1) that divide the layers, alone or with the ends (search.preferences).

    Embedding, head and MTP count as one layer each. Megatron-LM's interleaved schedule wants it unless a layout
    is written by hand (``megatron/core/transformer/transformer_config.py``, ``account_for_*_in_pipeline_split``), as
    Megatron-Bridge's recipes do for DeepSeek-V3 in two pipeline ranks of four chunks. Where the chunks of a rank
    differ, the search takes them for equal.
    """
    stages = pp * vpp
    in_place = model.num_layers + 2 + len(model.mtp_layers)
    even = np.logical_or(model.num_layers % stages == 0, in_place % stages == 0)
    return implies(vpp > 1, even)


def interleaving_needs_a_pipeline(*, pp: Ints, vpp: Ints) -> Holds:
    """Only a pipeline of at least two ranks has more than one virtual stage per rank (vpp)."""
    return implies(vpp > 1, pp > 1)
