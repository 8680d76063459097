"""Operator times learned from samples: a roofline with estimated rates, times what a Gaussian process learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.operators.gaussian_process import GaussianProcess, Rows

NORMAL_90 = 1.6449
"""Standard deviations of a normal distribution beyond which a tenth lies, on both sides together."""

BEYOND = 1.0
"""Doublings of a feature beyond the samples' least and greatest, past which a shape is outside of their range."""

TILES = ((128, 128), (256, 128), (128, 256))
"""Tiles of the result that matmul kernels deal to processors, in rows and columns (CUTLASS and cuBLAS use these)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """
    Shapes of one kind of operator: their work, and the features by which deviations from a roofline are learned.

    Parameters
    ----------
    flops
        Floating-point operations; shape (rows,).
    nbytes
        Bytes of device memory read and written at least; shape (rows,).
    features
        Logarithms to base 2, so that a unit is a doubling; shape (rows, features).
    """

    flops: Rows
    nbytes: Rows
    features: Rows

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Shapes:
        """Some of the rows."""
        return Shapes(flops=self.flops[rows], nbytes=self.nbytes[rows], features=self.features[rows])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.flops)

    def with_features(self, *columns: Rows) -> Shapes:
        """The same shapes with more features, each of shape (rows,)."""
        features = np.column_stack([self.features, *columns])
        return Shapes(flops=self.flops, nbytes=self.nbytes, features=features)


def matmul_shapes(
    m: Rows, n: Rows, k: Rows, *, batch: Rows | float = 1.0, num_bytes: float = 2.0, num_processors: int
) -> Shapes:
    r"""
    Matmuls of m x k with k x n, ``batch`` of them at once.

    A device deals tiles of the result to its processors in waves, and the last wave, like the last tile of a row, is
    rarely full. For each size of tile a feature is what is computed over what is asked for:

    .. math:: \log_2 \frac{\lceil T / P \rceil P a b}{m n \, batch}, \qquad
              T = \lceil m / a \rceil \lceil n / b \rceil \, batch

    Parameters
    ----------
    m, n, k, batch
        Sizes of each; shape (rows,).
    num_bytes
        Bytes of an element.
    num_processors
        P: streaming multiprocessors, compute units or cores.
    """
    m, n, k, batch = np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in (m, n, k, batch)))
    flops = 2 * batch * m * n * k
    nbytes = num_bytes * batch * (m * k + k * n + m * n)
    waves = [_computed_over_asked(m, n, batch, tile, num_processors) for tile in TILES]
    columns = [m, n, k, flops / nbytes, nbytes, np.ceil(m / TILES[0][0]) * TILES[0][0] / m, *waves]
    if np.any(batch != 1):
        columns.append(batch)
    return Shapes(flops=flops, nbytes=nbytes, features=np.log2(np.column_stack(columns)))


def _computed_over_asked(m: Rows, n: Rows, batch: Rows, tile: tuple[int, int], num_processors: int) -> Rows:
    rows, columns = tile
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    computed: Rows = np.ceil(tiles / num_processors) * num_processors * rows * columns
    return computed / (m * n * batch)


def streaming_shapes(rows: Rows, width: Rows, *, bytes_per_element: Rows | float) -> Shapes:
    """
    Kernels that only move bytes: norms, activations, additions, rotations, look-ups.

    Parameters
    ----------
    rows, width
        Tokens, and elements of each; shape (rows,).
    bytes_per_element
        Bytes read and written for each element together.
    """
    rows, width, each = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in (rows, width, bytes_per_element)))
    return Shapes(flops=0 * rows, nbytes=rows * width * each, features=np.log2(np.column_stack([rows, width])))


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
    """

    rates: Rates
    processes: tuple[GaussianProcess, ...]
    lowest: Rows
    highest: Rows
    widening: float = 1.0

    def seconds(self, shapes: Shapes) -> Rows:
        """Expected seconds; shape (rows,)."""
        logarithms = sum((one.mean(shapes.features) for one in self.processes), np.zeros(len(shapes)))
        return self.rates.seconds(shapes) * np.exp(logarithms)

    def relative_deviation(self, shapes: Shapes) -> Rows:
        """Standard deviation of the logarithm of a measured time; shape (rows,)."""
        return self.widening * self.processes[-1].deviation(shapes.features)

    def interval(self, shapes: Shapes) -> tuple[Rows, Rows]:
        """Seconds between which nine of ten measured times lie; each of shape (rows,)."""
        seconds, factor = self.seconds(shapes), np.exp(NORMAL_90 * self.relative_deviation(shapes))
        return seconds / factor, seconds * factor

    def is_outside(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Whether shapes are outside of the sampled range, so that the roofline speaks; shape (rows,)."""
        below, above = self.lowest - shapes.features, shapes.features - self.highest
        beyond: NDArray[np.bool_] = np.any(np.maximum(below, above) > BEYOND, axis=1)
        return beyond
