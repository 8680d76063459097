"""A device's memory from measured peaks of small runs, and the upper bound of a job's peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.errors import SpecError
from costmodel.facts.cluster import Cluster
from costmodel.memory.rank import WITHOUT_RUNTIME, seen_bytes
from costmodel.step.estimate import estimate
from planner.measure.project.measured_device import Road
from planner.measure.runs.predictions import GIB, Case
from planner.uncertainty.peaks import LEAST_HEADROOM_BYTES, ODD_DEVIATION, STARTS, law_of

MOST_DEVIATIONS = 3
"""Deviations of odd runs' peaks beyond which a peak is of another job, or in another unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """
    Measured and predicted peaks.

    Parameters
    ----------
    offset_bytes
        Mean of the bytes that no formula explains; negative where peaks are predicted too high.
    most_offset_bytes, most_ratio
        The largest such offset; the largest measured over predicted peak.
    """

    offset_bytes: float
    most_offset_bytes: float
    most_ratio: float

    def most_bytes(self, predicted: float, cluster: Cluster, *, is_alike: bool) -> float:
        r"""
        Return the upper bound of a job's peak in bytes, which ``STARTS`` of the jobs stay below.

        .. math:: \max(P + \max(0, d), P \max(1, q)) e^{w (u - \mu)}

        Derivation: the unexplained part is constant, or grows with the rest. So the base is the larger of two: the
        predicted peak P plus the largest offset d, and P times the largest ratio q. Peaks that were predicted too high
        do not lower the bound, since the omitted part may grow. The ratio also scatters from layout to layout, by the
        law of its stack: ``STARTS`` of the ratios lie below exp(u), their mean is :math:`\mu`. The run that determines
        the bound replaces the mean, with w = 1. The ratio of a differing run has its own error of equal size, which
        adds in squares: :math:`w = \sqrt 2`.

        Parameters
        ----------
        predicted
            The job's peak in bytes without small runs.
        cluster
            Its devices and software.
        is_alike
            True where a run with a peak differs from the job only in size.
        """
        law = law_of(cluster)
        spread = (law.log_ratio_of(STARTS) - law.mean) * (1.0 if is_alike else math.sqrt(2))
        base = max(predicted + max(0.0, self.most_offset_bytes), predicted * max(1.0, self.most_ratio))
        return base * math.exp(spread)


def predicted_bytes(small: Case, way: Road) -> float:
    """Return the predicted peak as the run's measurement would see it."""
    facts = way.facts(small.problem, {})
    peak = estimate(facts, small.strategy).device_bytes
    return seen_bytes(facts.cluster.device, peak, small.run.memory_kind, small.strategy)


def peaks_of(smalls: Sequence[Case], way: Road) -> Peaks | None:
    """
    Return offsets and ratios of the small runs' peaks; None where no peak was measured.

    Derivation: the mean of measured minus predicted. Memory that the allocator holds beyond allocated tensors grows
    with them. So missing bytes of an allocated peak count with their fragmentation.

    Raises
    ------
    SpecError
        If a peak is too far from the predicted one to be of this run.
    """
    offsets, ratios = [], []
    for one in smalls:
        if one.run.peak_memory_gib is not None:
            predicted, measured = predicted_bytes(one, way), one.run.peak_memory_gib * GIB
            _require_plausible(one, predicted, measured)
            allocated = one.run.memory_kind in WITHOUT_RUNTIME
            fragments = one.facts.cluster.device.behaviour.memory.fragmentation if allocated else 0.0
            offsets.append((measured - predicted) * (1 + fragments))
            ratios.append(measured / predicted)
    if not offsets:
        return None
    return Peaks(offset_bytes=float(np.mean(offsets)), most_offset_bytes=max(offsets), most_ratio=max(ratios))


def _require_plausible(small: Case, predicted: float, measured: float) -> None:
    """Refuse a peak that is further off than odd runs; for small peaks some workspaces explain the difference."""
    is_far = abs(math.log(measured / predicted)) > MOST_DEVIATIONS * ODD_DEVIATION
    if is_far and abs(measured - predicted) > LEAST_HEADROOM_BYTES:
        kind = small.run.memory_kind or "all of the device's memory"
        raise SpecError(
            f"{small.run.id}: peak_memory_gib",
            f"{measured / GIB:.4g} GiB were measured, {predicted / GIB:.4g} GiB are predicted ({kind}).",
            "Is it the peak of the fullest device, of this layout, and does memory_kind name its source?",
        )
