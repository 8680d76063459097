"""Collectives of a cluster, from the samples in its device file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Fabric, SampledFabric, SampledTier
from costmodel.facts.device import Cluster, Network
from costmodel.network.link_law import CONSTANTS, KINDS, NUM_SIZES, Calls, Estimates, calls_of, law_seconds
from costmodel.record import record
from costmodel.tables import remember_rows
from costmodel.timing.gaussian_process import GaussianProcess, Rows, fit_samples
from costmodel.timing.sampled_source import BEYOND, NORMAL_90
from costmodel.timing.work import Numbers
from costmodel.validation import shown


@record(frozen=True, kw_only=True, slots=True)
class Deviations:
    """
    Learned error of the link law, inside nodes or between them.

    Parameters
    ----------
    process
        Gaussian process of the logarithm of measured over computed seconds, by ``Calls.features``.
    curves
        Kind, ranks and nodes of the samples.
    lowest, highest
        Least and greatest of each size feature among the samples; shape (sizes,).
    widening, widening_elsewhere
        Factors on the standard deviation on curves of samples, and on others, so that a 90 % interval holds 90 % of the
        left-out samples: sizes, or numbers of ranks.
    """

    process: GaussianProcess
    curves: frozenset[tuple[int, int, int]]
    lowest: Rows
    highest: Rows
    widening: float = 1.0
    widening_elsewhere: float = 1.0

    def variance(self, calls: Calls) -> Rows:
        """Return the variance of the logarithm of measured over computed seconds, not widened; shape (rows,)."""
        variance: Rows = self.process.deviation(calls.features) ** 2
        return variance

    def widenings(self, calls: Calls) -> Rows:
        """Return the factors on the standard deviation; shape (rows,)."""
        known = np.array([curve in self.curves for curve in calls.curves], dtype=bool)
        return np.where(known, self.widening, self.widening_elsewhere)

    def is_outside(self, calls: Calls) -> NDArray[np.bool_]:
        """Return True where sizes are outside of the sampled range, or no sample is of the kind; shape (rows,)."""
        sizes = calls.features[:, :NUM_SIZES]
        beyond = np.any(np.maximum(self.lowest - sizes, sizes - self.highest) > BEYOND, axis=1)
        kinds = [kind for kind, _, _ in self.curves]
        outside: NDArray[np.bool_] = beyond | ~np.isin(calls.kinds, kinds)
        return outside


UNKNOWN_DEVIATION = 1.0

"""Standard deviation of the logarithm of a time between nodes, or inside them, without samples."""


@record(frozen=True, kw_only=True, slots=True)
class SampledCollectives:
    r"""
    Seconds of collectives on one fabric, learned from samples.

    .. math:: T = T_{law} \cdot e^{g(x)}

    Far from all samples g is 0, so that times stay those of the law (:func:`law_seconds`).

    Parameters
    ----------
    fabric
        Links of the fabric, from datasheets.
    estimates
        Estimates of the law's ``CONSTANTS``.
    inside, between
        Learned error of the law inside a node, and between nodes; None: no samples.
    """

    fabric: Fabric
    estimates: Estimates
    inside: Deviations | None = None
    between: Deviations | None = None

    def seconds(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> Numbers:
        """
        Return the expected seconds of collectives; arrays broadcast; 0 without bytes or other ranks.

        Parameters
        ----------
        kind
            One of ``KINDS``.
        nbytes, ranks, nodes
            As in :class:`Calls`.

        Raises
        ------
        SpecError
            As :func:`calls_of`.
        """
        calls = calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        seconds = np.where((calls.nbytes > 0) & (calls.ranks > 1), self.seconds_of(calls), 0.0)
        shaped: Numbers = _reshape(seconds, kind, nbytes, ranks, nodes)
        return shaped

    def relative_deviation(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> Numbers:
        """Return the standard deviation of the logarithm of a measured time."""
        deviation = self.deviation_of(calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes))
        shaped: Numbers = _reshape(deviation, kind, nbytes, ranks, nodes)
        return shaped

    def interval(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """Return the 90 % interval of measured times, in seconds."""
        seconds = self.seconds(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        deviation = self.relative_deviation(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        factor = np.exp(NORMAL_90 * deviation)
        return seconds / factor, seconds * factor

    def is_outside(
        self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers
    ) -> bool | NDArray[np.bool_]:
        """Return True where samples do not cover such collectives, so that only the law counts."""
        calls = calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        outside = np.ones(len(calls), dtype=bool)
        for rows, deviations in self._tiers(calls):
            outside[rows] = deviations.is_outside(calls[rows])
        shaped: bool | NDArray[np.bool_] = _reshape(outside, kind, nbytes, ranks, nodes)
        return shaped

    def networks(self, *, devices_per_node: int, num_devices: int) -> tuple[Network, ...]:
        r"""
        Return the levels of networks of a device file, estimated from samples, the innermost first.

        .. math:: \lambda_1 = \frac{T_{1}(p)}{p - 1}, \qquad \lambda_2 = T_2(2 p) - 2 (p - 1) \lambda_1

        with the law's seconds of an all-gather without bytes on one and on two whole nodes of p devices. Derivation:
        :func:`costmodel.network.collectives.all_gather` then takes as long on both.

        Parameters
        ----------
        devices_per_node, num_devices
            Sizes of the cluster.
        """
        values, fabric = self.estimates.values, self.fabric
        members = devices_per_node - 1
        step = self._zero_byte_all_gather_seconds(devices_per_node, 1) / members if members else 0.0
        levels = []
        if fabric.fast_peers is not None and 1 < fabric.fast_peers < devices_per_node:
            bandwidth = values["bandwidth"]
            levels.append(Network(name="fast", num_peers=fabric.fast_peers, bandwidth=bandwidth, latency=step))
        if members:
            bandwidth = values["slow_bandwidth"] if levels else values["bandwidth"] * (members if fabric.is_mesh else 1)
            node = Network(name="node", num_peers=devices_per_node, bandwidth=bandwidth, latency=step)
            levels.append(replace(node, is_mesh=fabric.is_mesh))
        if num_devices > devices_per_node:
            further = self._zero_byte_all_gather_seconds(2 * devices_per_node, 2) - 2 * members * step
            outwards = min(values["network_bandwidth"], values["node_network_bandwidth"] / devices_per_node)
            latency = max(further, values["node_seconds"])
            levels.append(Network(name="network", num_peers=num_devices, bandwidth=outwards, latency=latency))
        return tuple(levels)

    def _zero_byte_all_gather_seconds(self, ranks: int, nodes: int) -> float:
        """Seconds of an all-gather without bytes: its latency over all ranks."""
        return float(self.law(calls_of("all_gather", nbytes=0.0, ranks=ranks, nodes=nodes))[0])

    def law(self, calls: Calls) -> Rows:
        """Return the seconds of the law alone; shape (rows,)."""
        return law_seconds(self.estimates.values, calls, self.fabric)

    def seconds_of(self, calls: Calls) -> Rows:
        """Return the expected seconds; shape (rows,)."""
        seconds = self.law(calls)
        for rows, deviations in self._tiers(calls):
            seconds[rows] *= np.exp(deviations.process.mean(calls[rows].features))
        return seconds

    def deviation_of(self, calls: Calls) -> Rows:
        """Return the deviation of a measured time's logarithm: constants, learned error and noise; shape (rows,)."""
        variance = self.estimates.variance(lambda constants: law_seconds(constants, calls, self.fabric))
        widenings, unknown = np.ones(len(calls)), np.ones(len(calls), dtype=bool)
        for rows, deviations in self._tiers(calls):
            variance[rows] += deviations.variance(calls[rows])
            widenings[rows], unknown[rows] = deviations.widenings(calls[rows]), False
        deviation: Rows = widenings * np.sqrt(variance + np.where(unknown, UNKNOWN_DEVIATION**2, 0.0))
        return deviation

    def _tiers(self, calls: Calls) -> list[tuple[NDArray[np.bool_], Deviations]]:
        """Return the rows inside a node and between nodes, with the learned error of each."""
        leaves = calls.nodes > 1
        tiers = [(~leaves, self.inside), (leaves, self.between)]
        return [(rows, deviations) for rows, deviations in tiers if deviations is not None and np.any(rows)]


def _reshape(values: NDArray[Any], *like: ArrayLike) -> Any:
    """Reshape rows to the broadcast shape of the arguments; scalars give a scalar."""
    return values.reshape(np.broadcast_shapes(*(np.shape(one) for one in like)))[()]


WHERE = "cluster.device.calibration.samples.collectives"

"""Entry of a device file that holds the samples of collectives."""


def learn_collectives(cluster: Cluster) -> SampledCollectives | None:
    """Return the learned collectives of a cluster; None if it was not sampled, or uses other times."""
    found = _find_samples(cluster)
    return None if found is None else _collectives(found)


def _find_samples(cluster: Cluster) -> SampledFabric | None:
    samples = cluster.device.samples_used
    return samples.collectives if samples else None


@lru_cache(maxsize=4)
def _collectives(found: SampledFabric) -> SampledCollectives:
    missing = [name for name in CONSTANTS if name not in found.constants]
    if missing:
        raise SpecError(f"{WHERE}.constants", f"lacks {', '.join(missing)}.", "'planner calibrate' writes them.")
    covariance = np.array([line.split() for line in found.covariance.splitlines()], dtype=float)
    if covariance.shape != (len(CONSTANTS), len(CONSTANTS)):
        raise SpecError(f"{WHERE}.covariance", f"expected {len(CONSTANTS)} lines with as many numbers each.")
    logarithms = np.log([found.constants[name] for name in CONSTANTS])
    return SampledCollectives(
        fabric=found.fabric,
        estimates=Estimates(names=CONSTANTS, logarithms=logarithms, covariance=covariance),
        inside=_deviations(found.inside),
        between=_deviations(found.between),
    )


def _deviations(tier: SampledTier | None) -> Deviations | None:
    if tier is None:
        return None
    kinds, *numbers = zip(*(line.split() for line in tier.rows.splitlines()), strict=True)
    nbytes, ranks, nodes, values = (np.array(column, dtype=float) for column in numbers)
    features = calls_of(kinds, nbytes=nbytes, ranks=ranks, nodes=nodes).features
    for name, own, expected in (
        ("lengths", tier.lengths, features.shape[1]),
        ("lowest", tier.lowest, NUM_SIZES),
        ("highest", tier.highest, NUM_SIZES),
    ):
        if len(own) != expected:
            raise SpecError(f"{WHERE}: {name}", f"has {len(own)} numbers, expected {expected}.")
    process = fit_samples(
        features,
        values,
        lengths=np.array(tier.lengths),
        variance=tier.variance,
        noise=tier.noise,
        offset=0.0,
    )
    curves = [line.split() for line in tier.curves.splitlines()]
    strange = [kind for kind, _, _ in curves if kind not in KINDS]
    if strange:
        raise SpecError(
            f"{WHERE}: curves", f"{shown(strange[0])} is not a collective.", did_you_mean(strange[0], KINDS)
        )
    return Deviations(
        process=process,
        curves=frozenset((KINDS.index(kind), int(ranks), int(nodes)) for kind, ranks, nodes in curves),
        lowest=np.array(tier.lowest),
        highest=np.array(tier.highest),
        widening=tier.widening,
        widening_elsewhere=tier.widening_elsewhere,
    )


@lru_cache(maxsize=4)
def _once(found: SampledFabric) -> Mapping[str, Callable[..., Any]]:
    """Return the functions of seconds by bytes, ranks and nodes, by kind; each call is computed once."""
    times = _collectives(found)
    return {kind: remember_rows(partial(_seconds, times, kind)) for kind in KINDS}


def _seconds(times: SampledCollectives, kind: str, nbytes: Rows, ranks: Rows, nodes: Rows) -> Rows:
    return np.asarray(times.seconds(kind, nbytes=nbytes, ranks=ranks, nodes=nodes))


def members_and_nodes(cluster: Cluster, *, ranks: Numbers, stride: Numbers) -> tuple[Numbers, Numbers]:
    """Number of a group's ranks in each innermost network, and of those networks; derivation: each is filled first."""
    members = np.clip(cluster.scale_up_size // np.asarray(stride), 1, np.maximum(ranks, 1))
    return members, np.ceil(np.asarray(ranks) / members)


def sampled_seconds(cluster: Cluster, kind: str, *, nbytes: Numbers, ranks: Numbers, stride: Numbers) -> Numbers | None:
    """
    Seconds of a collective from samples, for :func:`costmodel.network.collectives.collective_seconds`.

    None if the cluster's collectives, or those of that kind, were not sampled. NaN for groups inside nodes if only
    groups between nodes were sampled, and the other way round.

    Parameters
    ----------
    cluster
        Cluster, whose innermost network is a node of the samples.
    kind, nbytes, ranks, stride
        As in that function; ``send`` is the average one of a chain, of which few leave a node.
    """
    found = _find_samples(cluster)
    if found is None or kind not in KINDS:
        return None
    members, nodes = members_and_nodes(cluster, ranks=ranks, stride=stride)
    once = _once(found)[kind]
    unknown = ((nodes == 1) & (found.inside is None)) | ((nodes > 1) & (found.between is None))
    if kind == "send":
        inside, between = (once(nbytes, 2.0, hosts) for hosts in (1.0, 2.0))
        leaving = (nodes - 1) / np.maximum(np.asarray(ranks) - 1, 1)
        seconds = np.where(np.asarray(ranks) > 1, (1 - leaving) * inside + leaving * between, 0.0)
    else:
        seconds = once(nbytes, members * nodes, nodes)
    known: Numbers = np.where(unknown, np.nan, seconds)[()]
    return known
