"""What measured peaks of small runs say of a device's memory, and the upper bound of a job's peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.errors import SpecError
from costmodel.facts.cluster import Cluster
from costmodel.memory.rank import WITHOUT_RUNTIME, seen_bytes
from costmodel.step.estimate import estimate
from planner.projection.measured_device import Road
from planner.runs.predictions import GIB, Case
from planner.uncertainty.peaks import LEAST_HEADROOM_BYTES, ODD_DEVIATION, STARTS, law_of

MOST_DEVIATIONS = 3
"""Deviations of odd runs' peaks beyond which a peak is of another job, or in another unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """
    Measured peaks beside predicted ones.

    Parameters
    ----------
    offset_bytes
        Bytes of a device that no formula has, the mean of the runs; negative where peaks are predicted too high.
    most_offset_bytes, most_ratio
        The largest such offset; the largest measured over predicted peak.
    """

    offset_bytes: float
    most_offset_bytes: float
    most_ratio: float

    def most_bytes(self, predicted: float, cluster: Cluster, *, is_alike: bool) -> float:
        r"""
        Upper bound of a job's peak in bytes, which ``STARTS`` of the jobs stay below.

        .. math:: \max(P + \max(0, d), P \max(1, q)) e^{w (u - \mu)}

        Derivation: what no formula has stays as it is, or grows with all else: the larger of the predicted peak P plus
        the largest offset d, and P times the largest ratio q. Peaks that small runs show to be predicted too high lower
        no bound: nobody knows whether what was left out grows. Beside that the ratio scatters from layout to layout, as
        the law of its stack has it: ``STARTS`` of them lie below exp(u), their mean is :math:`\mu`. The run that a
        bound rests on takes the place of the mean, with w = 1. Of a run that differs the ratio has an error of its own,
        which is as large and adds in squares: :math:`w = \sqrt 2`.

        Parameters
        ----------
        predicted
            The job's peak in bytes without small runs.
        cluster
            Its devices and software.
        is_alike
            Whether a run with a peak differs from the job in nothing but its size.
        """
        law = law_of(cluster)
        spread = (law.log_ratio_of(STARTS) - law.mean) * (1.0 if is_alike else math.sqrt(2))
        base = max(predicted + max(0.0, self.most_offset_bytes), predicted * max(1.0, self.most_ratio))
        return base * math.exp(spread)


def predicted_bytes(small: Case, way: Road) -> float:
    """Predicted peak as the run's measurement would see it."""
    facts = way.facts(small.problem, {})
    peak = estimate(facts, small.strategy).device_bytes
    return seen_bytes(facts.cluster.device, peak, small.run.memory_kind, small.strategy)


def peaks_of(smalls: Sequence[Case], way: Road) -> Peaks | None:
    """
    What small runs with a peak say; None: there is none.

    Derivation: the mean of measured minus predicted. What the allocator holds beyond allocated tensors grows with
    them, so that bytes missing from a peak of allocated ones count with the fragments around them.

    Raises
    ------
    SpecError
        If a peak is so far from the predicted one that it is of something else.
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
    """Refuse a peak that is further off than odd runs are; of small ones some workspaces make up for it."""
    is_far = abs(math.log(measured / predicted)) > MOST_DEVIATIONS * ODD_DEVIATION
    if is_far and abs(measured - predicted) > LEAST_HEADROOM_BYTES:
        kind = small.run.memory_kind or "all of the device's memory"
        raise SpecError(
            f"{small.run.id}: peak_memory_gib",
            f"{measured / GIB:.4g} GiB were measured, {predicted / GIB:.4g} GiB are predicted ({kind}).",
            "Is it the peak of the fullest device, of this layout, and is memory_kind what measured it?",
        )
