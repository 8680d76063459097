"""Operator times learned from samples: a roofline with estimated rates, times a Gaussian process's correction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.gaussian_process import GaussianProcess, Rows
from costmodel.timing.sampled_shapes import Shapes

NORMAL_90 = 1.6449
"""Standard deviations of a normal distribution that bound 90 % of it."""

BEYOND = 1.0
"""Doublings of a feature beyond the samples' range, past which a shape counts as outside of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """
    Achieved rates of one kind of operator on a device, estimated from samples.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators.
    smallest_seconds
        Seconds of the smallest operator.
    """

    flops_per_second: float
    bytes_per_second: float
    smallest_seconds: float

    @property
    def text(self) -> str:
        """Rates as the end of a sentence: 251 TFLOP/s, 1.80 TB/s, at least 3.2 us."""
        computing = f"{self.flops_per_second / 1e12:.0f} TFLOP/s, " if np.isfinite(self.flops_per_second) else ""
        return f"{computing}{self.bytes_per_second / 1e12:.2f} TB/s, at least {self.smallest_seconds * 1e6:.1f} us"

    def seconds(self, shapes: Shapes) -> Rows:
        """Seconds of the slower of computing and moving bytes, plus the smallest kernel; shape (rows,)."""
        busy = np.maximum(shapes.flops / self.flops_per_second, shapes.nbytes / self.bytes_per_second)
        return busy + self.smallest_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTimes:
    r"""
    Seconds of one kind of operator on one device, learned from samples.

    .. math:: T = T_{roofline} \cdot e^{g_1(x) + g_2(x) + ...}

    Far from all samples g is constant, so that times stay those of a roofline.

    Parameters
    ----------
    rates
        Rates of the roofline.
    processes
        Gaussian processes of its error; for a device that was adapted, another device's process first.
    lowest, highest
        Least and greatest of each feature among the samples; shape (features,).
    widening
        Factor on the standard deviation, so that a 90 % interval holds 90 % of the left-out families.
    left_out_error
        Median error of the times of samples whose family was left out, in logarithms.
    """

    rates: Rates
    processes: tuple[GaussianProcess, ...]
    lowest: Rows
    highest: Rows
    widening: float = 1.0
    left_out_error: float = np.nan

    def seconds(self, shapes: Shapes) -> Rows:
        """Return the expected seconds; shape (rows,)."""
        logarithms = sum((one.mean(shapes.features) for one in self.processes), np.zeros(len(shapes)))
        return self.rates.seconds(shapes) * np.exp(logarithms)

    def relative_deviation(self, shapes: Shapes) -> Rows:
        """Return the standard deviation of the logarithm of a measured time; shape (rows,)."""
        deviation: Rows = self.widening * self.processes[-1].deviation(shapes.features)
        return deviation

    def interval(self, shapes: Shapes) -> tuple[Rows, Rows]:
        """Return the 90 % interval of measured times, in seconds; each of shape (rows,)."""
        seconds, factor = self.seconds(shapes), np.exp(NORMAL_90 * self.relative_deviation(shapes))
        return seconds / factor, seconds * factor

    def is_outside(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Return True where shapes are outside of the sampled range, and only the roofline counts; shape (rows,)."""
        below, above = self.lowest - shapes.features, shapes.features - self.highest
        beyond: NDArray[np.bool_] = np.any(np.maximum(below, above) > BEYOND, axis=1)
        return beyond
