"""Collective times learned from samples of one fabric: a law of its links, times what a Gaussian process learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.facts.device import Network
from costmodel.facts.samples import Fabric
from costmodel.network.estimates import Estimates
from costmodel.network.link_law import NUM_SIZES, Calls, calls_of, law_seconds
from costmodel.operators.gaussian_process import GaussianProcess, Rows
from costmodel.operators.sampled import BEYOND, NORMAL_90
from costmodel.operators.work import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviations:
    """
    What was learned of the law's error, inside nodes or between them.

    Parameters
    ----------
    process
        Of the logarithm of measured over computed seconds, by ``Calls.features``.
    curves
        Kind, ranks and nodes of the samples.
    lowest, highest
        Least and greatest of each size feature among the samples; shape (sizes,).
    widening, widening_elsewhere
        Standard deviations that count as one on curves of samples, and on others, so that a 90 % interval holds 90 % of
        what was left out: sizes, or numbers of ranks.
    """

    process: GaussianProcess
    curves: frozenset[tuple[int, int, int]]
    lowest: Rows
    highest: Rows
    widening: float = 1.0
    widening_elsewhere: float = 1.0

    def variance(self, calls: Calls) -> Rows:
        """Variance of the logarithm of measured over computed seconds, not widened; shape (rows,)."""
        variance: Rows = self.process.deviation(calls.features) ** 2
        return variance

    def widenings(self, calls: Calls) -> Rows:
        """Standard deviations that count as one; shape (rows,)."""
        known = np.array([curve in self.curves for curve in calls.curves], dtype=bool)
        return np.where(known, self.widening, self.widening_elsewhere)

    def is_outside(self, calls: Calls) -> NDArray[np.bool_]:
        """Whether sizes are outside of the sampled range, or no sample is of the kind; shape (rows,)."""
        sizes = calls.features[:, :NUM_SIZES]
        beyond = np.any(np.maximum(self.lowest - sizes, sizes - self.highest) > BEYOND, axis=1)
        kinds = [kind for kind, _, _ in self.curves]
        outside: NDArray[np.bool_] = beyond | ~np.isin(calls.kinds, kinds)
        return outside


UNKNOWN_DEVIATION = 1.0
"""Standard deviation of the logarithm of a time between nodes, or inside them, of which there is no sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledCollectives:
    r"""
    Seconds of collectives on one fabric, learned from samples.

    .. math:: T = T_{law} \cdot e^{g(x)}

    Far from all samples g is nothing, so that times stay those of the law (:func:`law_seconds`).

    Parameters
    ----------
    fabric
        What datasheets say of it.
    estimates
        The law's ``CONSTANTS``.
    inside, between
        What was learned of the law's error inside a node, and between nodes; None: no samples.
    """

    fabric: Fabric
    estimates: Estimates
    inside: Deviations | None = None
    between: Deviations | None = None

    def seconds(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> Numbers:
        """
        Expected seconds of collectives: arrays broadcast; nothing without bytes or other ranks.

        Parameters
        ----------
        kind
            Of ``KINDS``.
        nbytes, ranks, nodes
            As in :class:`Calls`.

        Raises
        ------
        SpecError
            As :func:`calls_of`.
        """
        calls = calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        seconds = np.where((calls.nbytes > 0) & (calls.ranks > 1), self.seconds_of(calls), 0.0)
        shaped: Numbers = _shaped(seconds, kind, nbytes, ranks, nodes)
        return shaped

    def relative_deviation(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> Numbers:
        """Standard deviation of the logarithm of a measured time."""
        deviation = self.deviation_of(calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes))
        shaped: Numbers = _shaped(deviation, kind, nbytes, ranks, nodes)
        return shaped

    def interval(self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """Seconds between which nine of ten measured times lie."""
        seconds = self.seconds(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        deviation = self.relative_deviation(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        factor = np.exp(NORMAL_90 * deviation)
        return seconds / factor, seconds * factor

    def is_outside(
        self, kind: ArrayLike, *, nbytes: Numbers, ranks: Numbers, nodes: Numbers
    ) -> bool | NDArray[np.bool_]:
        """Whether samples say nothing of such collectives, so that the law speaks alone."""
        calls = calls_of(kind, nbytes=nbytes, ranks=ranks, nodes=nodes)
        outside = np.ones(len(calls), dtype=bool)
        for rows, deviations in self._tiers(calls):
            outside[rows] = deviations.is_outside(calls[rows])
        shaped: bool | NDArray[np.bool_] = _shaped(outside, kind, nbytes, ranks, nodes)
        return shaped

    def networks(self, *, devices_per_node: int, num_devices: int) -> tuple[Network, ...]:
        r"""
        The levels of networks that a device file has, as samples say them, the innermost first.

        .. math:: \lambda_1 = \frac{T_{1}(p)}{p - 1}, \qquad \lambda_2 = T_2(2 p) - 2 (p - 1) \lambda_1

        with the law's seconds of an all-gather without bytes on one and on two whole nodes of p devices. Derivation:
        then :func:`costmodel.network.collectives.all_gather` takes as long on both.

        Parameters
        ----------
        devices_per_node, num_devices
            Of the cluster.
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
        """Seconds by the law alone; shape (rows,)."""
        return law_seconds(self.estimates.values, calls, self.fabric)

    def seconds_of(self, calls: Calls) -> Rows:
        """Expected seconds; shape (rows,)."""
        seconds = self.law(calls)
        for rows, deviations in self._tiers(calls):
            seconds[rows] *= np.exp(deviations.process.mean(calls[rows].features))
        return seconds

    def deviation_of(self, calls: Calls) -> Rows:
        """Standard deviation of the logarithm of a measured time: constants, what was learned, noise; shape (rows,)."""
        variance = self.estimates.variance(lambda constants: law_seconds(constants, calls, self.fabric))
        widenings, unknown = np.ones(len(calls)), np.ones(len(calls), dtype=bool)
        for rows, deviations in self._tiers(calls):
            variance[rows] += deviations.variance(calls[rows])
            widenings[rows], unknown[rows] = deviations.widenings(calls[rows]), False
        deviation: Rows = widenings * np.sqrt(variance + np.where(unknown, UNKNOWN_DEVIATION**2, 0.0))
        return deviation

    def _tiers(self, calls: Calls) -> list[tuple[NDArray[np.bool_], Deviations]]:
        """Rows inside a node and between nodes, with what was learned of them."""
        leaves = calls.nodes > 1
        tiers = [(~leaves, self.inside), (leaves, self.between)]
        return [(rows, deviations) for rows, deviations in tiers if deviations is not None and np.any(rows)]


def _shaped(values: NDArray[Any], *like: ArrayLike) -> Any:
    """Rows in the shape to which arguments broadcast; a scalar of scalars."""
    return values.reshape(np.broadcast_shapes(*(np.shape(one) for one in like)))[()]
