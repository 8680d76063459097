"""Operator times learned from samples: a roofline with estimated rates, times what a Gaussian process learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.operators.gaussian_process import GaussianProcess, Rows
from costmodel.operators.sampled_shapes import Shapes

NORMAL_90 = 1.6449
"""Standard deviations of a normal distribution beyond which a tenth lies, on both sides together."""

BEYOND = 1.0
"""Doublings of a feature beyond the samples' least and greatest, past which a shape is outside of their range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """
    What a device achieves with one kind of operator, estimated from samples.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators.
    smallest_seconds
        Seconds that the smallest takes.
    """

    flops_per_second: float
    bytes_per_second: float
    smallest_seconds: float

    @property
    def text(self) -> str:
        """The rates as a sentence's end: 251 TFLOP/s, 1.80 TB/s, at least 3.2 us."""
        computing = f"{self.flops_per_second / 1e12:.0f} TFLOP/s, " if np.isfinite(self.flops_per_second) else ""
        return f"{computing}{self.bytes_per_second / 1e12:.2f} TB/s, at least {self.smallest_seconds * 1e6:.1f} us"

    def seconds(self, shapes: Shapes) -> Rows:
        """The slower of computing and moving bytes, and the smallest kernel; shape (rows,)."""
        busy = np.maximum(shapes.flops / self.flops_per_second, shapes.nbytes / self.bytes_per_second)
        return busy + self.smallest_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTimes:
    r"""
    Seconds of one kind of operator on one device, learned from samples.

    .. math:: T = T_{roofline} \cdot e^{g_1(x) + g_2(x) + ...}

    Far from all samples g goes back to a constant, so that times stay those of a roofline.

    Parameters
    ----------
    rates
        Of the roofline.
    processes
        What was learned of its error; of a device that was adapted to, another device's process first.
    lowest, highest
        Least and greatest of each feature among the samples; shape (features,).
    widening
        Standard deviations that count as one, so that a 90 % interval holds 90 % of families that were left out.
    left_out_error
        Median error of the samples' times where their family was left out, in logarithms.
    """

    rates: Rates
    processes: tuple[GaussianProcess, ...]
    lowest: Rows
    highest: Rows
    widening: float = 1.0
    left_out_error: float = np.nan

    def seconds(self, shapes: Shapes) -> Rows:
        """Expected seconds; shape (rows,)."""
        logarithms = sum((one.mean(shapes.features) for one in self.processes), np.zeros(len(shapes)))
        return self.rates.seconds(shapes) * np.exp(logarithms)

    def relative_deviation(self, shapes: Shapes) -> Rows:
        """Standard deviation of the logarithm of a measured time; shape (rows,)."""
        deviation: Rows = self.widening * self.processes[-1].deviation(shapes.features)
        return deviation

    def interval(self, shapes: Shapes) -> tuple[Rows, Rows]:
        """Seconds between which nine of ten measured times lie; each of shape (rows,)."""
        seconds, factor = self.seconds(shapes), np.exp(NORMAL_90 * self.relative_deviation(shapes))
        return seconds / factor, seconds * factor

    def is_outside(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Whether shapes are outside of the sampled range, so that the roofline speaks; shape (rows,)."""
        below, above = self.lowest - shapes.features, shapes.features - self.highest
        beyond: NDArray[np.bool_] = np.any(np.maximum(below, above) > BEYOND, axis=1)
        return beyond
