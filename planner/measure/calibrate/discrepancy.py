"""Errors of the cost model on a stack beyond its constants: correlated for runs of one model and similar layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.measure.calibrate.cases import Array
from planner.measure.runs.predictions import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Discrepancy:
    r"""
    Standard deviations of the logarithm of measured over predicted time that constants leave on an unseen stack.

    .. math:: \mathrm{cov}(i, j) = [m_i = m_j] (\sigma_m^2 + \sigma_l^2 e^{-d_{ij} / \ell}) + [i = j] \sigma^2

    Parameters
    ----------
    model
        Common to all runs of one model.
    layout, reach
        Deviation of its layouts, and the distance over which it falls to 1/e: a doubled degree, or a changed feature,
        is 1.
    repeat
        Deviation of one run.

    References
    ----------
    Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001: constants and a discrepancy, fitted together.
    The numbers are the likeliest ones of the published stacks: ``python -m benchmarks.learning_curve --spread``.
    """

    model: float = 0.057
    layout: float = 0.060
    reach: float = 2.6
    repeat: float = 0.029

    def covariance(self, runs: Sequence[Case]) -> Array:
        """Return the common covariance of runs, without the noise of each; shape (runs, runs)."""
        names = np.array([one.facts.model.name for one in runs])
        is_same = names[:, None] == names
        return np.asarray(is_same * (self.model**2 + self.layout**2 * np.exp(-distances(runs) / self.reach)))


PUBLISHED = Discrepancy()

DOUBLED = ("tp", "pp", "cp", "ep", "mbs", "vpp")
CHANGED = ("recompute", "sharding", "cuda_graphs", "tp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")
"""Decisions whose doublings, or changes, count as a distance of 1 each."""


def distances(runs: Sequence[Case]) -> Array:
    """Return distances between layouts: doublings of sizes and degrees, and different features; shape (runs, runs)."""
    sizes = np.log2([_sizes(one) for one in runs])
    features = np.array([_features(one) for one in runs])
    doubled = np.abs(sizes[:, None, :] - sizes).sum(axis=2)
    changed = (features[:, None, :] != features).sum(axis=2)
    return np.asarray(doubled + changed, dtype=np.float64)


def _sizes(one: Case) -> list[float]:
    workload, decisions = one.facts.workload, one.strategy.decisions()
    num_devices = one.run.num_devices
    per_device = workload.global_batch_size / num_devices
    return [num_devices, workload.sequence_length, per_device, *(float(decisions[name]) for name in DOUBLED)]


def _features(one: Case) -> list[str]:
    return [one.facts.workload.precision.name, *(str(one.strategy.decisions()[name]) for name in CHANGED)]
