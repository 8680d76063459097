"""Chances of several plans to be the fastest, from errors of differences between layouts of one job."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.uncertainty.intervals import NORMAL_80

PLACES = 401
"""Points of the integral over one plan's error."""

REACH = 6.0
"""Standard deviations at which the integral ends."""


def chances_fastest(step_seconds: Sequence[float], noise_fraction: float) -> list[float]:
    r"""
    Return the chance of each plan that its measured step is the shortest.

    .. math:: P_i = \int \varphi(z) \prod_{j \ne i}
        \Phi\left(z + \frac{\ln T_j - \ln T_i}{\sigma / \sqrt 2}\right) dz

    Derivation: shared errors of two layouts of one job cancel. Their difference has the standard deviation sigma, each
    of two independent errors sigma over the root of two. A plan is the fastest if all others, each with its own error,
    take longer.

    Parameters
    ----------
    step_seconds
        Predicted steps of the plans; one or more.
    noise_fraction
        Largest fraction, with a probability of 80 %, by which the ratio of two steps is off; 0 for exact predictions.

    Examples
    --------
    >>> [round(chance, 2) for chance in chances_fastest([1.0, 1.0], 0.05)]
    [0.5, 0.5]
    >>> [round(chance, 2) for chance in chances_fastest([1.0, 1.05], 0.05)]
    [0.9, 0.1]
    """
    logs = np.log(np.asarray(step_seconds, dtype=np.float64))
    deviation = math.log1p(noise_fraction) / NORMAL_80 / math.sqrt(2)
    if deviation <= 0:
        first = logs == logs.min()
        return [float(share) for share in first / first.sum()]
    apart = (logs[None, :] - logs[:, None]) / deviation
    errors = np.linspace(-REACH, REACH, PLACES)
    weights = np.exp(-(errors**2) / 2)
    slower = _normal(errors[None, None, :] + apart[:, :, None])
    slower[np.arange(len(logs)), np.arange(len(logs))] = 1.0
    chances = (slower.prod(axis=1) * weights).sum(axis=1) / weights.sum()
    return [float(chance) for chance in chances / chances.sum()]


def _normal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal distribution's share below each value; the shape is kept."""
    return np.asarray([(1 + math.erf(value / math.sqrt(2))) / 2 for value in values.ravel()]).reshape(values.shape)
