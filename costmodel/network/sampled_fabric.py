"""Collectives of a cluster by what its device's file has of sampled ones."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from costmodel.axes import of_different
from costmodel.facts.cluster import Cluster
from costmodel.facts.samples import SampledFabric, SampledTier
from costmodel.network.estimates import Estimates
from costmodel.network.link_law import CONSTANTS, KINDS, calls_of
from costmodel.network.sampled import Deviations, SampledCollectives
from costmodel.operators.gaussian_process import given_samples
from costmodel.operators.work import Numbers


def sampled_collectives(cluster: Cluster) -> SampledCollectives | None:
    """What was learned of a cluster's collectives; None: nobody sampled them, or other times count."""
    device = cluster.device
    samples = device.calibration.samples
    if samples is None or samples.collectives is None or device.constants.times != "sampled":
        return None
    return _collectives(samples.collectives)


@lru_cache(maxsize=16)
def _collectives(found: SampledFabric) -> SampledCollectives:
    covariance = np.array([line.split() for line in found.covariance.splitlines()], dtype=float)
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
    process = given_samples(
        calls_of(kinds, nbytes=nbytes, ranks=ranks, nodes=nodes).features,
        values,
        lengths=np.array(tier.lengths),
        variance=tier.variance,
        noise=tier.noise,
        offset=0.0,
    )
    curves = (line.split() for line in tier.curves.splitlines())
    return Deviations(
        process=process,
        curves=frozenset((KINDS.index(kind), int(ranks), int(nodes)) for kind, ranks, nodes in curves),
        lowest=np.array(tier.lowest),
        highest=np.array(tier.highest),
        widening=tier.widening,
        widening_elsewhere=tier.widening_elsewhere,
    )


def sampled_seconds(
    times: SampledCollectives, cluster: Cluster, kind: str, *, nbytes: Numbers, ranks: Numbers, stride: Numbers
) -> Numbers:
    """
    Seconds of a collective by samples, as :func:`costmodel.network.collectives.collective_seconds` has them.

    Parameters
    ----------
    times
        What was learned.
    cluster
        Whose innermost network is what samples call a node.
    kind, nbytes, ranks, stride
        As there; ``send`` is the average one of a chain, of which few leave a node.
    """
    members = np.clip(cluster.scale_up_size // np.asarray(stride), 1, np.maximum(ranks, 1))
    nodes = np.ceil(np.asarray(ranks) / members)
    if kind != "send":
        whole: Numbers = of_different(
            lambda size, group, hosts: times.seconds(kind, nbytes=size, ranks=group, nodes=hosts),
            nbytes,
            members * nodes,
            nodes,
        )
        return whole
    inside, between = (
        of_different(lambda size, hosts=hosts: times.seconds(kind, nbytes=size, ranks=2, nodes=hosts), nbytes)
        for hosts in (1, 2)
    )
    leaving = (nodes - 1) / np.maximum(np.asarray(ranks) - 1, 1)
    seconds: Numbers = np.where(np.asarray(ranks) > 1, (1 - leaving) * inside + leaving * between, 0.0)[()]
    return seconds
