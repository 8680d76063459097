"""Seconds of collectives on a fabric, by a law of its links with constants from datasheets and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Fabric
from costmodel.record import record
from costmodel.tables import Table
from costmodel.timing.gaussian_process import Rows

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send")

"""Kinds of sampled collectives; ``send``: one rank sends to another."""

ALL_REDUCE, ALL_TO_ALL, SEND = (KINDS.index(kind) for kind in ("all_reduce", "all_to_all", "send"))


@record(frozen=True, kw_only=True, slots=True)
class Calls(Table):
    """
    Collectives, one per row.

    Parameters
    ----------
    kinds
        Places in ``KINDS``; shape (rows,).
    nbytes
        Bytes of the whole tensor, bytes that a rank sends in an all-to-all, or bytes of a send; shape (rows,).
    ranks, nodes
        Devices that take part, and the number of their nodes, with equally many on each; shape (rows,).
    """

    kinds: NDArray[np.intp]
    nbytes: Rows
    ranks: Rows
    nodes: Rows

    @property
    def ranks_per_node(self) -> Rows:
        """Devices of each node that take part; shape (rows,)."""
        return self.ranks / self.nodes

    @property
    def steps(self) -> Rows:
        """Number of steps of a ring: n - 1, twice for an all-reduce, one for a send; shape (rows,)."""
        rounds = np.where(self.kinds == ALL_REDUCE, 2.0, 1.0)
        steps: Rows = np.where(self.kinds == SEND, 1.0, rounds * (self.ranks - 1))
        return steps

    @property
    def sent_bytes(self) -> Rows:
        r"""
        Bytes that each rank sends; shape (rows,).

        .. math:: W = 2 Q \frac{n - 1}{n}, \quad Q \frac{n - 1}{n}, \quad Q

        for an all-reduce; for gathers, scatters and all-to-alls; and for broadcasts and sends.

        References
        ----------
        Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69 (2009).
        """
        others = (self.ranks - 1) / self.ranks
        once = np.isin(self.kinds, (KINDS.index("broadcast"), SEND))
        return self.nbytes * np.where(once, 1.0, np.where(self.kinds == ALL_REDUCE, 2.0, 1.0) * others)

    @property
    def features(self) -> Rows:
        """Logarithms to base 2 of bytes, ranks, nodes and ranks per node, and one column for each kind."""
        numbers = [np.maximum(self.nbytes, 1.0), self.ranks, self.nodes, self.ranks_per_node]
        return np.column_stack([np.log2(np.column_stack(numbers)), np.eye(len(KINDS))[self.kinds]])

    @property
    def curves(self) -> list[tuple[int, int, int]]:
        """Kind, ranks and nodes of each row; rows that differ only in bytes are one curve."""
        return list(
            zip(self.kinds.tolist(), self.ranks.astype(int).tolist(), self.nodes.astype(int).tolist(), strict=True)
        )


NUM_SIZES = 4

"""Number of leading features that are sizes."""


def calls_of(kind: ArrayLike, *, nbytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike) -> Calls:
    """
    Build collectives from arrays that broadcast.

    Raises
    ------
    SpecError
        If a kind is not one of ``KINDS``, bytes are negative, or ranks are not a multiple of nodes.
    """
    arrays = np.broadcast_arrays(
        np.asarray(kind, dtype=str), *(np.asarray(one, float) for one in (nbytes, ranks, nodes))
    )
    names, sizes, ranks, nodes = (one.ravel() for one in arrays)
    unknown = sorted(set(names.tolist()) - set(KINDS))
    if unknown:
        raise SpecError("kind", f"{unknown[0]!r} is not a sampled collective.", did_you_mean(unknown[0], KINDS))
    if not (np.all(sizes >= 0) and np.all(np.isfinite(sizes))):
        raise SpecError("nbytes", "must not be negative or infinite.")
    if not (np.all(nodes >= 1) and np.all(ranks >= nodes) and np.all(ranks % nodes == 0)):
        raise SpecError("ranks", "must be a multiple of nodes, with at least one rank per node.")
    places = np.select([names == one for one in KINDS], list(range(len(KINDS))))
    return Calls(kinds=places.astype(np.intp), nbytes=sizes, ranks=ranks, nodes=nodes)


# --- the law -----------------------------------------------------------------------------------------------
INSIDE = ("bandwidth", "slow_bandwidth", "summing_bandwidth", "step_seconds", "segment_seconds")

BETWEEN = ("network_bandwidth", "node_network_bandwidth", "node_seconds", "network_segment_seconds")

BY_KIND = ("launch_seconds", "network_launch_seconds", "share", "network_share")

CONSTANTS = (*INSIDE, *BETWEEN, *(f"{name}.{kind}" for name in BY_KIND for kind in KINDS))

"""
Names of the law's constants: bandwidths in bytes per second, times in seconds, shares of bandwidths by kind.

``slow_bandwidth`` is that of :class:`costmodel.facts.calibration.Fabric`. ``summing_bandwidth`` is that of switches
that sum. ``step_seconds`` and ``node_seconds`` are those of a ring's step, and of each additional node.
``segment_seconds`` is the time of a piece in a pipeline, independent of its size.
"""


def law_seconds(constants: Mapping[str, float], calls: Calls, fabric: Fabric) -> Rows:
    r"""
    Seconds of collectives on a fabric with known constants; shape (rows,).

    Inside a node, with W bytes that each rank sends in k steps:

    .. math:: T = a_0 + a k + \frac{W}{B} + 2 \sqrt{\frac{g k W}{B}}

    Derivation of the last term: m pieces pass k steps in :math:`(m + k - 1) (g + W / (m B))`. With the best m that is
    :math:`2 \sqrt{g k W / B}` more than W / B and the time of the steps. Links of a mesh work in parallel,
    B = (n - 1) B_1. If a ring leaves the devices that are joined by fast links, the slow link sets its pace.

    Between N nodes with p ranks each, as many rings leave a node as it has ranks:

    .. math:: T = x_0 + x (N - 1) + a k + L + 2 \sqrt{g' k L}, \qquad
              L = \max\left(\frac{W}{\min(p B_d, B_N)}, \frac{W}{B}\right)

    with 2 x for an all-reduce. An all-to-all sends p Q (n - p) / n out of a node instead of W; a send has one adapter.

    References
    ----------
    NCCL, ``src/graph/tuning.cc`` (``ncclTopoTuneModel``: latency by step and by node, bandwidth by rings). Thakur,
    Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).
    """
    inside = _inside_seconds(constants, calls, fabric)
    if not np.any(calls.nodes > 1):
        return inside
    return np.where(calls.nodes > 1, _network_seconds(constants, calls, fabric), inside)


def _inside_seconds(constants: Mapping[str, float], calls: Calls, fabric: Fabric) -> Rows:
    fixed = _kind_values(constants, "launch_seconds", calls)
    transfer = calls.sent_bytes / _inside_bandwidth(constants, calls, fabric)
    steps, segment = calls.steps, constants["segment_seconds"]
    ring: Rows = fixed + constants["step_seconds"] * steps + transfer + 2 * np.sqrt(segment * steps * transfer)
    if not fabric.sums_in_switch:
        return ring
    is_summed = (calls.kinds == ALL_REDUCE) & (calls.ranks > 2)
    seconds: Rows = np.where(is_summed, np.minimum(ring, _summed_seconds(constants, calls)), ring)
    return seconds


def _summed_seconds(constants: Mapping[str, float], calls: Calls) -> Rows:
    r"""
    Seconds of an all-reduce that is summed by switches.

    .. math:: T = a_0 + 2 a + \frac{Q (1 + 1/n)}{B_v} + 2 \sqrt{\frac{g Q}{B_v}}

    Derivation: the switch reads all Q of a rank to sum them, and each rank sends its n-th part of the sum once, for
    the switch to copy. There are two steps, for any number of ranks.

    References
    ----------
    Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor Collectives", ISCA 2020;
    NCCL's NVLS.
    """
    transfer = calls.nbytes / constants["summing_bandwidth"]
    fixed = _kind_values(constants, "launch_seconds", calls) + 2 * constants["step_seconds"]
    seconds: Rows = fixed + transfer * (1 + 1 / calls.ranks) + 2 * np.sqrt(constants["segment_seconds"] * transfer)
    return seconds


def _inside_bandwidth(constants: Mapping[str, float], calls: Calls, fabric: Fabric) -> Rows:
    """Bytes per second of each rank to others of its node; shape (rows,)."""
    members = calls.ranks_per_node
    bandwidth = np.full(len(calls), constants["bandwidth"])
    if fabric.is_mesh:
        bandwidth *= np.where(calls.kinds == SEND, 1.0, np.maximum(members - 1, 1.0))
    if fabric.fast_peers is not None:
        bandwidth = np.where(members > fabric.fast_peers, constants["slow_bandwidth"], bandwidth)
    return bandwidth * _kind_values(constants, "share", calls)


def _network_seconds(constants: Mapping[str, float], calls: Calls, fabric: Fabric) -> Rows:
    members, is_send = calls.ranks_per_node, calls.kinds == SEND
    adapters = np.where(is_send, 1.0, members)
    outwards = np.minimum(adapters * constants["network_bandwidth"], constants["node_network_bandwidth"])
    leaving = np.where(
        calls.kinds == ALL_TO_ALL, members * calls.nbytes * (calls.ranks - members) / calls.ranks, calls.sent_bytes
    )
    transfer = leaving / (outwards * _kind_values(constants, "network_share", calls))
    within = np.where(members > 1, calls.sent_bytes / _inside_bandwidth(constants, calls, fabric), 0.0)
    transfer = np.maximum(transfer, within)
    rounds = np.where(calls.kinds == ALL_REDUCE, 2.0, 1.0)
    further = np.where(is_send, 1.0, rounds * (calls.nodes - 1))
    fixed = _kind_values(constants, "network_launch_seconds", calls) + constants["node_seconds"] * further
    segment = constants["network_segment_seconds"]
    seconds: Rows = (
        fixed + constants["step_seconds"] * calls.steps + transfer + 2 * np.sqrt(segment * calls.steps * transfer)
    )
    return seconds


def _kind_values(constants: Mapping[str, float], name: str, calls: Calls) -> Rows:
    values: Rows = np.array([constants[f"{name}.{kind}"] for kind in KINDS])[calls.kinds]
    return values


Law = Callable[[Mapping[str, float]], Rows]

"""Function that returns the seconds of each row, from constants by name."""

STEP = 1e-3

"""Step in a logarithm for numerical derivatives."""


@record(frozen=True, kw_only=True, slots=True)
class Estimates:
    """
    Positive constants by name, with normally distributed logarithms.

    Parameters
    ----------
    names
        Names of the constants.
    logarithms
        Natural logarithms of the most likely values; shape (names,).
    covariance
        Covariance of the logarithms; shape (names, names).
    """

    names: tuple[str, ...]
    logarithms: Rows
    covariance: Rows

    @property
    def values(self) -> dict[str, float]:
        """Most likely values by name."""
        return dict(zip(self.names, np.exp(self.logarithms).tolist(), strict=True))

    def deviation(self, name: str) -> float:
        """Standard deviation of a constant's logarithm."""
        place = self.names.index(name)
        return float(np.sqrt(self.covariance[place, place]))

    def variance(self, law: Law) -> Rows:
        r"""
        Variance of the logarithm of a law's seconds due to the constants; shape (rows,).

        .. math:: v = J \Sigma J^T, \qquad J_{ij} = \partial \log t_i / \partial \log c_j

        Derivation: within a constant's uncertainty, a law is nearly a power of the constant.
        """
        slopes = jacobian(lambda logarithms: law(self.name_constants(logarithms)), self.logarithms)
        variance: Rows = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return variance

    def name_constants(self, logarithms: Rows) -> dict[str, float]:
        """Return the constants of these logarithms by name."""
        return dict(zip(self.names, np.exp(logarithms).tolist(), strict=True))


def jacobian(seconds: Callable[[Rows], Rows], logarithms: Rows) -> Rows:
    """Return derivatives of the logarithms of seconds by logarithms of constants; shape (rows, constants)."""
    here = np.log(seconds(logarithms))
    moved = [np.log(seconds(logarithms + STEP * unit)) for unit in np.eye(len(logarithms))]
    slopes: Rows = (np.column_stack(moved) - here[:, None]) / STEP
    return slopes
