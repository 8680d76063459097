"""
Process groups, and seconds of their collectives over a hierarchy of networks (NVLink domain, node, rail, spine).

Ranks are numbered as Megatron-LM does by default: tp fastest, then cp, dp, pp; inside experts etp, ep, expert data
parallel, pp. The ranks of a group are ``stride`` devices apart in this order, so ``stride`` determines how many of them
share an inner network. All functions of seconds have one signature.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster, EquippedDevice, Network
from costmodel.lowering.shape import Shape, distinct_ranks_fraction
from costmodel.record import record
from costmodel.strategy import CudaGraphs, TokenDispatcher, deduplicates_dispatch
from costmodel.tables import is_near
from costmodel.timing.roofline import STREAMING_SECONDS
from costmodel.timing.work import Communication, Numbers, has_any

Kept = TypeVar("Kept")


def all_gather(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    r"""
    Seconds of an all-gather, until every rank has the whole tensor of which each had one shard, equation (2).

    Rings run through all ranks, as NCCL builds them. Every rank receives the missing shards over the scale-up network.
    As many rings run in parallel as the group has members in one scale-up domain, each with its own link to the next.

    .. math:: T = Q \frac{n-1}{n} \max\left(\frac{1}{B_1}, \frac{1}{g_1 B_2}, \frac{1}{g_1 B_3} \ldots\right)
              + \sum_k \left(\frac{n}{g_{k-1}} - \frac{n}{g_k}\right) \lambda_k

    over the levels k that the group crosses; :math:`g_k` are its members within one network of level k,
    :math:`g_0 = 1`. Groups are assumed to fill networks. A shard passes n - 1 hops, few of which leave a network.
    Inside the first network, steps after the first ``STARTED_STEPS`` have a latency of ``HOP_SECONDS`` at most.

    Parameters
    ----------
    cluster
        Devices and networks.
    nbytes
        Bytes of the whole tensor, Q.
    ranks
        Ranks of the group, n; 1 sends nothing.
    stride
        Distance in devices from one rank of the group to the next.

    References
    ----------
    NCCL, ``src/graph/tuning.cc`` (``ncclTopoTuneModel``): of a ring's steps, those between nodes have another latency.
    """
    return _ring_seconds(cluster, "latency", nbytes=nbytes, ranks=ranks, stride=stride)


STARTED_STEPS = 7
"""Steps of a ring in one node of eight, in which the latency per step was measured, the start of the ring included."""

HOP_SECONDS = 3.4e-6
"""
Seconds of each further step inside a scale-up domain: NCCL, ``src/graph/tuning.cc`` (``hwLat``, NVLink, ring, simple).
"""


def _ring_seconds(cluster: Cluster, latency: str, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """Apply the formula of :func:`all_gather`, with the named latency of each step on a level of networks."""
    per_byte, seconds = _keep(cluster, latency, _ring_coefficients, ranks, stride)
    return nbytes * (ranks - 1) / ranks * per_byte + seconds


def _ring_coefficients(cluster: Cluster, name: str, ranks: Numbers, stride: Numbers) -> tuple[Numbers, Numbers]:
    """Return the seconds per byte of a ring, and its latency."""
    per_byte: Numbers = 0.0
    latency: Numbers = 0.0
    rings: Numbers = ranks
    device = cluster.device
    sockets = device.socket_bandwidth if device.behaviour.library.cross_socket_rings else None
    for number, level in enumerate(_levels(cluster, ranks=ranks, stride=stride)):
        per_byte = np.maximum(per_byte, level.is_crossed / (level.links * level.bandwidth))
        if sockets is not None:
            crossing = _socket_seconds_per_byte(level, sockets, devices_per_node=device.devices_per_node)
            per_byte = np.maximum(per_byte, crossing)
        beyond, own = ranks / level.outer, getattr(level, name)
        steps, rings = rings - beyond, beyond
        near = steps if number else np.minimum(steps, STARTED_STEPS)
        latency = latency + near * own
        if not number:
            latency = latency + (steps - near) * min(own, HOP_SECONDS)
    return per_byte, latency


FEW_GROUPS, MOST_KEPT = 2**9, 2**7
"""Groups of a result that is kept for other bytes between the same ranks; most of such results of a cluster."""


def _keep(
    cluster: Cluster, name: str, make: Callable[[Cluster, str, Numbers, Numbers], Kept], ranks: Numbers, stride: Numbers
) -> Kept:
    """
    Return what a collective is of its ranks and stride alone, computed once for equal ones.

    The collectives of a layer, and those of all gradients, run between few groups.
    """
    if np.size(ranks) + np.size(stride) > FEW_GROUPS:
        return make(cluster, name, ranks, stride)
    key, kept = (name, make, _content(ranks), _content(stride)), cluster.coefficients
    result: Kept | None = kept.get(key)
    if result is None:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        result = kept[key] = make(cluster, name, ranks, stride)
    return result


def _content(numbers: Numbers) -> Hashable:
    if isinstance(numbers, np.ndarray):
        return numbers.dtype.char, numbers.shape, numbers.tobytes()
    return type(numbers), numbers


def _socket_seconds_per_byte(level: _Level, bandwidth: float, *, devices_per_node: int) -> Numbers:
    r"""
    Seconds per byte between the sockets of a host, for a ring over some of its devices.

    .. math:: T = Q \frac{d}{g_1 B_s}

    with d devices per host: its d / g_1 rings share the link between the sockets. In a ring of all devices both
    neighbours use the same adapter, and a single device has its own.

    References
    ----------
    NCCL 2.11, ``src/graph/search.cc`` (rings keep their adapter, ``NCCL_CROSS_NIC``) and ``topo.h`` (``AMD_BW``,
    ``SKL_QPI_BW``); release notes of 2.12: PXN, adapters are reached over NVLink.
    """
    members = np.asarray(level.members)
    is_part = (members > 1) & (members < devices_per_node) & level.is_crossed
    return np.where(is_part, devices_per_node / (members * bandwidth), 0.0)


def reduce_scatter(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """
    Seconds of a reduce-scatter, until every rank has one shard of the sum.

    Derivation: a ring reduce-scatter is :func:`all_gather` backwards, with the same traffic on every link and its own
    latency per step.
    """
    return _ring_seconds(cluster, "scatter_latency", nbytes=nbytes, ranks=ranks, stride=stride)


def all_reduce(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """
    Seconds of an all-reduce, until every rank has the sum.

    Derivation: a ring all-reduce is a :func:`reduce_scatter` and an :func:`all_gather`, each of (n - 1) / n of the
    bytes, with its own latency per step. ``STARTED_STEPS`` and ``HOP_SECONDS`` bound it as there.

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69 (2009).
    """
    return 2 * _ring_seconds(cluster, "sum_latency", nbytes=nbytes, ranks=ranks, stride=stride)


def broadcast(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    r"""
    Seconds of a broadcast, until all ranks have one rank's tensor, in a chain through all ranks.

    .. math:: T = Q \max_k \frac{1}{g_{k-1}' B_k} + \sum_k \left(\frac{n}{g_{k-1}} - \frac{n}{g_k}\right) \lambda_k

    Chunks follow each other, so that the bytes pass once; but the last rank waits until the first chunk has passed all
    others. Links work in parallel as in :func:`all_gather`.

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69 (2009): pipelined broadcast in a chain.
    """
    transfer: Numbers = 0.0
    latency: Numbers = 0.0
    for level in _levels(cluster, ranks=ranks, stride=stride):
        traffic = np.where(level.is_crossed, nbytes, 0.0)[()]
        transfer = np.maximum(transfer, traffic / (level.links * level.bandwidth))
        latency = latency + (ranks / level.inner - ranks / level.outer) * level.latency
    return transfer + latency


def all_to_all(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    r"""
    Seconds of an all-to-all, until every rank has sent each other rank its part of ``nbytes``.

    .. math:: T = \max\left(\frac{Q (n - 1) / n}{B_1}, \max_{k > 1} \frac{Q (n - g_{k-1}) / n}{B_k}\right)
        + \sum_k \lambda_k

    Members within a scale-up domain have a link each to the outside, or share fewer. Bytes that leave the domain also
    pass the domain's own links, on their way to the adapter of their receiver. A rank's own part, Q / n, crosses no
    link: MoFa counts it (its printed times do not depend on (n - 1) / n), the physical time does not. Measured
    collectives of a device give the paper's times.
    """
    return _exchange(cluster, lambda level: nbytes, ranks=ranks, stride=stride)


def dispatch(
    cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers, num_experts: int, top_k: int
) -> Numbers:
    r"""
    Seconds of an :func:`all_to_all` that sends a token once to each place that it visits, not once per expert.

    .. math:: T = \max\left(\frac{q_1}{B_1}, \max_{k > 1} \sum_{j \ge k} \frac{q_j}{B_k}\right) + \sum_k \lambda_k,
        \qquad q_k = Q\, v(n / g_{k-1}) (g_k - g_{k-1}) / n, \qquad q_1 = Q\, v(n) (n - 1) / n

    A network of level k passes one copy to each network inside it (device, scale-up domain) that has one of the
    token's experts, where it is forwarded. The sum of the experts' outputs returns the same way.

    Parameters
    ----------
    cluster, nbytes, ranks, stride
        As in :func:`all_to_all`: bytes of all (token, expert) pairs.
    num_experts, top_k
        Experts that each token visits, and their total number.

    References
    ----------
    DeepSeek-V3, arXiv:2412.19437, section 3.2.2: over InfiniBand to each node once, then over NVLink.
    """

    def visiting(level: _Level) -> Numbers:
        return nbytes * distinct_ranks_fraction(ranks / level.inner, num_experts=num_experts, top_k=top_k)

    return _exchange(cluster, visiting, ranks=ranks, stride=stride)


def _exchange(cluster: Cluster, nbytes_of: Callable[[_Level], Numbers], *, ranks: Numbers, stride: Numbers) -> Numbers:
    """
    Seconds until every rank has sent each other rank its part of the bytes on each level of networks.

    Bytes that leave a scale-up domain pass its adapters, to any distance: the adapters carry the bytes of all outer
    levels. They also pass all networks inside the crossed one, those of the sender or of the receiver.

    References
    ----------
    NCCL, release notes of 2.12: PXN, traffic out of a node goes over NVLink to the device whose adapter is its
    receiver's.
    """
    transfer: Numbers = 0.0
    latency: Numbers = 0.0
    beyond: Numbers = 0.0
    innermost, *outer = _levels(cluster, ranks=ranks, stride=stride)
    for level in (*reversed(outer), innermost):
        beyond = beyond + nbytes_of(level) * (level.outer - level.inner) / ranks
        sent = nbytes_of(level) * (ranks - 1) / ranks if level is innermost else beyond
        transfer = np.maximum(transfer, sent * level.members_per_link / level.bandwidth)
        latency = latency + np.where(np.asarray(ranks) > level.inner, level.latency, 0.0)[()]
    return transfer + latency


def send(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    r"""
    Seconds of the average send of ``nbytes`` from one rank of a chain to the next.

    .. math:: T = \frac{1}{n - 1} \sum_k (n / g_{k-1} - n / g_k) (Q / B_k + \lambda_k)

    with the members :math:`g_k` of the group within one network of level k, as in :func:`all_gather`. Derivation: of
    the chain's n - 1 sends, n / g_{k-1} - n / g_k cross level k, and few of them leave a node. A micro-batch passes all
    of them, and waiting ranks share the slow ones in turn, so that the mean counts.
    """
    seconds: Numbers = 0.0
    for level in _levels(cluster, ranks=ranks, stride=stride):
        sends = ranks / level.inner - ranks / level.outer
        seconds = seconds + sends * (nbytes / (level.send_speedup * level.pair_bandwidth) + level.latency)
    return seconds / np.maximum(ranks - 1, 1)


def ring(cluster: Cluster, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers:
    """
    Seconds of n - 1 sends to the next rank, one after the other, of ``nbytes`` per rank in total.

    Derivation: in each of the n - 1 steps all ranks send nbytes / (n - 1) at the same time. They wait for the slowest
    send, the one between networks.
    """
    steps = ranks - 1
    each = nbytes / np.maximum(steps, 1)
    slowest: Numbers = 0.0
    for level in _levels(cluster, ranks=ranks, stride=stride):
        slowest = np.maximum(slowest, level.is_crossed * (each / level.pair_bandwidth + level.latency))
    return steps * slowest


COLLECTIVES = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "send": send,
    "ring": ring,
}


def collective_seconds(
    cluster: Cluster, group: str, kind: str, *, nbytes: Numbers, ranks: Numbers, stride: Numbers
) -> Numbers:
    """
    Seconds of one collective: measured or sampled if the device knows its shape, otherwise computed; 0 without bytes.

    Derivation: MoFa's equation (2) with the volume and the links of each kind in ``COLLECTIVES``; a measured time
    replaces it, scaled as equation (18) scales bandwidths.

    Parameters
    ----------
    cluster
        Devices and networks; its constants hold the measured collectives.
    group
        Group of ranks that take part: ``tp``, ``cp``, ``ep``, ``etp``, ``dp``, ``pp``.
    kind
        One of ``COLLECTIVES``.
    nbytes, ranks, stride
        As in :func:`all_gather`.
    """
    device = cluster.device
    sampled = None
    if device.samples_used is not None:
        from costmodel.network.sampled_fabric import sampled_seconds

        sampled = sampled_seconds(cluster, kind, nbytes=nbytes, ranks=ranks, stride=stride)
    if sampled is not None and not np.any(np.isnan(sampled)):
        seconds = sampled
    else:
        seconds = COLLECTIVES[kind](cluster, nbytes=nbytes, ranks=ranks, stride=stride)
        seconds = seconds if sampled is None else np.where(np.isnan(sampled), seconds, sampled)[()]
    for entry in reversed(device.constants.measured.collectives):
        if (entry.group, entry.kind) == (group, kind):
            known = (np.asarray(ranks) > 1) & _is_or_any(entry.ranks, ranks) & _is_or_any(entry.nbytes, nbytes)
            seconds = np.where(known, entry.seconds / device.constants.measured.communication_scaling, seconds)[()]
    return np.where(np.asarray(nbytes) > 0, seconds, 0.0)[()]


def communication_seconds(
    cluster: Cluster,
    communication: Communication,
    *,
    ranks: Numbers,
    stride: Numbers,
    token_dispatcher: Numbers = TokenDispatcher.ALLTOALL,
) -> Numbers:
    """
    Seconds of one of the collectives of a layer's communication, for one micro-batch.

    Derivation: volume over bandwidth plus latency, MoFa's equation (2), or a measured time
    (:func:`collective_seconds`). Some dispatchers send a token once to each place that it visits. For them an
    all-to-all to experts has the bytes of distinct places instead of those of all (token, expert) pairs
    (:func:`dispatch`).

    Parameters
    ----------
    cluster
        Devices and networks.
    communication
        Communication of a layer; ``forward`` and ``backward`` are its numbers of calls.
    ranks, stride
        Size and stride of the group ``communication.group``.
    token_dispatcher
        Decision; affects all-to-alls to experts.
    """
    group, kind, nbytes = communication.group, communication.kind, communication.nbytes
    once = np.asarray(deduplicates_dispatch(token_dispatcher=token_dispatcher) & (communication.top_k > 0))
    pairs: Numbers = np.nan
    if not once.all():
        pairs = collective_seconds(cluster, group, kind, nbytes=nbytes, ranks=ranks, stride=stride)
    if not once.any():
        return pairs
    case = {"num_experts": communication.num_experts, "top_k": communication.top_k}
    tokens = dispatch(cluster, nbytes=nbytes, ranks=ranks, stride=stride, **case)
    seconds: Numbers = np.where(once, tokens, pairs)[()]
    return seconds


def leaves_scale_up_domain(cluster: Cluster, *, ranks: Numbers, stride: Numbers) -> NDArray[np.bool_]:
    """
    Return True where a group has members in several scale-up domains, so that it uses network adapters.

    Parameters
    ----------
    cluster
        Devices and networks.
    ranks, stride
        As in :func:`all_gather`.
    """
    return np.asarray(np.asarray(ranks) > np.maximum(cluster.scale_up_size // np.asarray(stride), 1))


def copying_seconds(
    cluster: Cluster, seconds: Numbers, seconds_on: Callable[[Cluster], Numbers], *, leaves: NDArray[np.bool_]
) -> Numbers:
    """
    Seconds in which processors copy the bytes of a collective: all of it within a scale-up domain, less of it beyond.

    Derivation: a ring copies as fast between domains as within one, and then waits for its adapter. Its processors and
    memory are free for other kernels meanwhile. So the copies take as long as the same collective in one domain.

    Parameters
    ----------
    cluster
        Devices and networks.
    seconds
        Seconds of the collective.
    seconds_on
        Function that returns the seconds of the collective on another cluster.
    leaves
        True where it leaves a scale-up domain.
    """
    if not leaves.any():
        return seconds
    return np.where(leaves, np.minimum(seconds_on(cluster.single_domain), seconds), seconds)


def _is_or_any(known: float | None, seen: Numbers) -> NDArray[np.bool_]:
    return np.asarray(known is None or is_near(seen, known))


@record(frozen=True, kw_only=True, slots=True)
class _Level:
    """
    One network level as a group uses it.

    Parameters
    ----------
    inner, outer
        Members of the group within one network of the next inner level, and within one network of this level.
    members, links
        Members within one scale-up domain, and the links that work in parallel for them.
    bandwidth, latency
        Bytes per second and seconds of one link.
    scatter_latency, sum_latency
        Latency of one step of a reduce-scatter, of an all-reduce.
    pair_bandwidth
        Bytes per second from one member to a single other one.
    send_speedup
        Bandwidth over ``pair_bandwidth`` of a send without a receive at the same time.
    """

    inner: Numbers
    outer: Numbers
    members: Numbers
    links: Numbers
    bandwidth: Numbers
    latency: float
    scatter_latency: float
    sum_latency: float
    pair_bandwidth: Numbers
    send_speedup: float

    @property
    def members_per_link(self) -> Numbers:
        return self.members / self.links

    @property
    def is_crossed(self) -> NDArray[np.bool_]:
        return np.asarray(self.outer) > np.asarray(self.inner)


def _levels(cluster: Cluster, *, ranks: Numbers, stride: Numbers) -> tuple[_Level, ...]:
    """Return the networks of the cluster, from the innermost; the outermost reaches every rank."""
    return _keep(cluster, "levels", _make_levels, ranks, stride)


def _make_levels(cluster: Cluster, _: str, ranks: Numbers, stride: Numbers) -> tuple[_Level, ...]:
    levels: list[_Level] = []
    networks = cluster.device.networks
    inner: Numbers = 1
    members: Numbers = 1
    for network in networks:
        is_outermost = network is networks[-1]
        outer = ranks if is_outermost else np.minimum(np.maximum(network.num_peers // np.asarray(stride), inner), ranks)
        links = members if network.parallel_links is None else np.minimum(members, network.parallel_links)
        bandwidth = _bandwidth(cluster, network, ranks=ranks)
        levels.append(
            _Level(
                inner=inner,
                outer=outer,
                members=members,
                links=links,
                bandwidth=bandwidth * _link_share(network, outer, inner),
                latency=network.latency,
                scatter_latency=_own(network.reduce_scatter_latency, network.latency),
                sum_latency=_own(network.all_reduce_latency, network.latency),
                pair_bandwidth=bandwidth * _link_share(network, 2, 1),
                send_speedup=2.0 if network.is_half_duplex else 1.0,
            )
        )
        inner = outer
        members = outer if network is networks[0] else members
    return tuple(levels)


def _own(latency: float | None, usual: float) -> float:
    return usual if latency is None else latency


def _link_share(network: Network, outer: Numbers, inner: Numbers) -> Numbers:
    r"""
    Share of a device's links that lead to the other members of a group: of a mesh of N devices (n - 1) / (N - 1).

    References
    ----------
    All-reduces on Perlmutter, where four A100 have 4 of their 12 links to each other: 66 GB/s between two of them, 199
    between four (GitHub Littlesnakess/GPUModeling25, 268 MB).
    """
    if not network.is_mesh or network.num_peers == 1:
        return 1.0
    others = np.maximum(np.asarray(outer / inner) - 1, 1)
    share: Numbers = np.minimum(others / (network.num_peers - 1), 1.0)
    return share


def _bandwidth(cluster: Cluster, network: Network, *, ranks: Numbers) -> Numbers:
    r"""
    Bytes per second between this many ranks, equations (3) and (18).

    .. math:: B' = \beta B \gamma^{\max(0, \log_2(n / n_{reference}))}
    """
    alone = cluster.device.constants.measured.communication_scaling * network.bandwidth
    if network.decay == 1:
        return alone
    doublings = np.log2(np.maximum(ranks / network.reference_peers, 1))
    bandwidth: Numbers = alone * network.decay**doublings
    return bandwidth


@record(frozen=True, kw_only=True, slots=True)
class Group:
    """
    One process group.

    Parameters
    ----------
    ranks
        Devices in the group.
    stride
        Distance between neighbours in the order of devices.
    """

    ranks: Numbers
    stride: Numbers


def layer_group(name: str, *, tp: Numbers, cp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    """Return the group of a layer's collective: ``tp``, ``cp``, ``ep`` or ``etp``."""
    ranks, stride = {"tp": (tp, 1), "cp": (cp, tp), "ep": (ep, etp), "etp": (etp, 1)}[name]
    return Group(ranks=ranks, stride=stride)


def dense_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers) -> Group:
    """Return the ranks that hold equal dense parameters: they reduce gradients and shard states among themselves."""
    return Group(ranks=dp * cp, stride=tp)


def expert_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    r"""
    Return the ranks that hold the same experts.

    .. math:: d_e = t c d / (e \cdot t_e)
    """
    return Group(ranks=tp * cp * dp / (ep * etp), stride=ep * etp)


def sharding_group(group: Group, *, sharding_ranks: int | None) -> Group:
    """Return the ranks of a data-parallel group that share states: all, or the nearest ``sharding_ranks``."""
    if sharding_ranks is None:
        return group
    return Group(ranks=np.minimum(group.ranks, sharding_ranks), stride=group.stride)


def pipeline_group(*, tp: Numbers, cp: Numbers, dp: Numbers, pp: Numbers) -> Group:
    """Return the ranks that hold the stages of one pipeline."""
    return Group(ranks=pp, stride=tp * cp * dp)


TENSOR_PARALLEL = ("tp", "etp")

"""Groups whose ranks split matmuls."""

LAUNCHES_AFTER_COLLECTIVE = 3

"""
Number of launches until an idle device runs a long kernel again: after a collective come a residual's addition, a norm,
a linear.
"""


def copy_seconds(
    communication: Communication, device: EquippedDevice, *, called: NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """
    Seconds of the copies of a collective's whole tensor into or out of the order of ranks, in either pass.

    Derivation: the tensor is read and written once at the achieved memory bandwidth, and one kernel's gap passes.
    """
    copies = communication.forward_copies, communication.backward_copies
    if not any(map(has_any, copies)):
        return 0.0, 0.0
    once = 2 * communication.nbytes / device.achieved_memory_bandwidth + STREAMING_SECONDS
    forward, backward = (np.asarray(number * once * called) for number in copies)
    return forward, backward


def call_group(name: str, shape: Shape) -> Group:
    """Return the group of ranks in a layer's collective, as in :class:`costmodel.timing.work.Communication`."""
    if name == "cp_dynamic" and shape.dynamic_ranks is not None:
        return Group(ranks=shape.dynamic_ranks.most, stride=shape.tp)
    if name in ("cp_a2a", "cp_p2p"):
        near = shape.a2a_ranks
        return (
            Group(ranks=near, stride=shape.tp)
            if name == "cp_a2a"
            else Group(ranks=shape.cp / near, stride=shape.tp * near)
        )
    return layer_group(name, tp=shape.tp, cp=shape.cp, ep=shape.ep, etp=shape.etp)


def is_called(communication: Communication, shape: Shape) -> NDArray[np.bool_]:
    """Return True where the collective has bytes to send and more than one rank."""
    return (np.asarray(communication.nbytes) > 0) & (np.asarray(call_group(communication.group, shape).ranks) > 1)


def call_seconds(
    cluster: Cluster, communication: Communication, shape: Shape, called: NDArray[np.bool_] | None = None
) -> Numbers:
    """
    Seconds of a collective and its gap; 0 without bytes or other ranks.

    Derivation: the transfer of MoFa's equation (2) by :func:`communication_seconds`, plus :func:`gap_seconds`, in which
    nothing is sent yet. ``called`` is the answer of :func:`is_called`, where it is known.
    """
    called = is_called(communication, shape) if called is None else called
    if not called.ndim and not called:
        return 0.0
    group = call_group(communication.group, shape)
    dispatcher = shape.token_dispatcher
    seconds = communication_seconds(
        cluster, communication, ranks=group.ranks, stride=group.stride, token_dispatcher=dispatcher
    )
    gap = gap_seconds(communication, cluster.device, shape)
    return np.asarray((seconds + gap) * called)


@record(frozen=True, kw_only=True, slots=True)
class TimedCall:
    """
    A collective of a layer with its time.

    Parameters
    ----------
    one
        The collective.
    called
        Result of :func:`is_called`.
    seconds
        Seconds of one call alone: :func:`call_seconds`.
    copying, leaving
        Seconds of it in which processors copy bytes, and in which it uses the network adapter.
    """

    one: Communication
    called: NDArray[np.bool_]
    seconds: Numbers
    copying: Numbers
    leaving: Numbers


def time_call(cluster: Cluster, communication: Communication, shape: Shape) -> TimedCall:
    """Return a collective with its seconds alone and on the links, by :func:`copying_seconds`."""
    called, group = is_called(communication, shape), call_group(communication.group, shape)
    seconds = call_seconds(cluster, communication, shape, called)
    leaves = leaves_scale_up_domain(cluster, ranks=group.ranks, stride=group.stride)
    return TimedCall(
        one=communication,
        called=called,
        seconds=seconds,
        copying=copying_seconds(
            cluster, seconds, lambda other: call_seconds(other, communication, shape, called), leaves=leaves
        ),
        leaving=np.where(leaves, seconds, 0.0),
    )


def gap_seconds(communication: Communication, device: EquippedDevice, shape: Shape) -> Numbers:
    """
    Seconds of gaps around a collective: the gap of its kernel, and launches that the device waits for.

    Derivation: a tensor-parallel collective is a kernel between others and has their gap. A host that waits for the
    collective launches :data:`LAUNCHES_AFTER_COLLECTIVE` kernels after it. With blocking launches, the host also starts
    the collective only then. Only graphs of a whole iteration hold collectives; the host does not launch those.
    """
    host = device.behaviour.host
    launches: Numbers = LAUNCHES_AFTER_COLLECTIVE * host.blocking_collectives
    if host.launch_blocking:
        launches = launches + (np.asarray(shape.cuda_graphs) != int(CudaGraphs.FULL_ITERATION))
    gap = device.constants.kernel_gap_seconds if communication.group in TENSOR_PARALLEL else 0.0
    seconds: Numbers = gap + launches * device.constants.launch_overhead_seconds
    return seconds
