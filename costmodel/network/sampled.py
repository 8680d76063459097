"""Collective times learned from samples of one fabric: a law of its links, times a Gaussian process's correction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.facts.device import Network
from costmodel.facts.samples import Fabric
from costmodel.network.estimates import Estimates
from costmodel.network.link_law import NUM_SIZES, Calls, calls_of, law_seconds
from costmodel.timing.gaussian_process import GaussianProcess, Rows
from costmodel.timing.sampled import BEYOND, NORMAL_90
from costmodel.timing.work import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
        step = self._empty_gather(devices_per_node, 1) / members if members else 0.0
        levels = []
        if fabric.fast_peers is not None and 1 < fabric.fast_peers < devices_per_node:
            bandwidth = values["bandwidth"]
            levels.append(Network(name="fast", num_peers=fabric.fast_peers, bandwidth=bandwidth, latency=step))
        if members:
            bandwidth = values["slow_bandwidth"] if levels else values["bandwidth"] * (members if fabric.is_mesh else 1)
            node = Network(name="node", num_peers=devices_per_node, bandwidth=bandwidth, latency=step)
            levels.append(replace(node, is_mesh=fabric.is_mesh))
        if num_devices > devices_per_node:
            further = self._empty_gather(2 * devices_per_node, 2) - 2 * members * step
            outwards = min(values["network_bandwidth"], values["node_network_bandwidth"] / devices_per_node)
            latency = max(further, values["node_seconds"])
            levels.append(Network(name="network", num_peers=num_devices, bandwidth=outwards, latency=latency))
        return tuple(levels)

    def _empty_gather(self, ranks: int, nodes: int) -> float:
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
