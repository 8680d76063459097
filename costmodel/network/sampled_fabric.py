"""Collectives of a cluster, from the samples in its device file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np

from costmodel.axes import OncePerRow
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.cluster import Cluster
from costmodel.facts.samples import SampledFabric, SampledTier
from costmodel.network.estimates import Estimates
from costmodel.network.link_law import CONSTANTS, KINDS, NUM_SIZES, calls_of
from costmodel.network.sampled import Deviations, SampledCollectives
from costmodel.timing.gaussian_process import Rows, fit_samples
from costmodel.timing.work import Numbers
from costmodel.validation import shown

WHERE = "cluster.device.calibration.samples.collectives"
"""Entry of a device file that holds the samples of collectives."""


def learn_collectives(cluster: Cluster) -> SampledCollectives | None:
    """Return the learned collectives of a cluster; None if it was not sampled, or uses other times."""
    found = _find_samples(cluster)
    return None if found is None else _collectives(found)


def _find_samples(cluster: Cluster) -> SampledFabric | None:
    device = cluster.device
    samples = device.calibration.samples if device.constants.times == "sampled" else None
    return samples.collectives if samples else None


@lru_cache(maxsize=4)
def _collectives(found: SampledFabric) -> SampledCollectives:
    missing = [name for name in CONSTANTS if name not in found.constants]
    if missing:
        raise SpecError(f"{WHERE}.constants", f"lacks {', '.join(missing)}.", "'planner fit' writes them.")
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
def _once(found: SampledFabric) -> Mapping[str, OncePerRow]:
    """Return the functions of seconds by bytes, ranks and nodes, by kind; each call is computed once."""
    times = _collectives(found)
    return {kind: OncePerRow(partial(_seconds, times, kind)) for kind in KINDS}


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
