"""A smooth function of few features learned from samples, with its uncertainty."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from costmodel.record import record

Rows = NDArray[np.float64]

BLOCK = 512
"""Rows computed at once: their kernel matrix stays in the cache."""

NUM_THREADS = 2
"""Threads that blocks are spread over: NumPy releases the lock in whole-array loops."""


@record(frozen=True, kw_only=True, slots=True)
class GaussianProcess:
    r"""
    A Gaussian process, represented by its values at support points.

    The kernel is Matern's of smoothness 3/2 with a length for every feature. It is differentiable once, as times are
    where one limit takes over from another.

    .. math:: k(x, x') = v (1 + \sqrt{3} r) e^{-\sqrt{3} r}, \qquad r^2 = \sum_j ((x_j - x'_j) / \ell_j)^2

    Parameters
    ----------
    offset
        Value far from all samples.
    lengths
        Distance over which the value changes, for each feature, in units of the feature; shape (features,).
    variance
        v: square of the standard deviation far from all samples.
    noise
        Variance of a single sample about the function.
    points
        Support points in lengths; shape (points, features).
    weights
        Contribution of each support point, by its kernel; shape (points,).
    root
        Maps kernels to the part of the variance that the samples explain: :math:`v - |R k|^2`; shape (points, points).

    References
    ----------
    Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, sections 4.2.1 and 8.3.4 (the
    projected process).
    """

    offset: float
    lengths: Rows
    variance: float
    noise: float
    points: Rows
    weights: Rows
    root: Rows

    def mean(self, features: Rows) -> Rows:
        """Return the expected value for each row of features; many rows in single precision; shape (rows,)."""
        kind: type[np.floating[Any]] = np.float64 if len(features) <= BLOCK else np.float32
        rows, points = _append_squares(features / self.lengths, kind), _append_squares(self.points, kind)
        points[:, [-2, -1]] = points[:, [-1, -2]]
        points[:, :-2] *= -2
        weights = (self.variance * self.weights).astype(kind)
        sums = np.empty(len(rows), dtype=kind)
        edges = np.linspace(0, len(rows), (NUM_THREADS if len(rows) > BLOCK else 1) + 1).astype(int)
        parts = [slice(*ends) for ends in pairwise(edges)]
        if len(parts) == 1:
            _sum_kernels(rows, points, weights, sums)
            return self.offset + sums.astype(float)
        with _blas().limit(limits=1), ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(lambda part: _sum_kernels(rows[part], points, weights, sums[part]), parts))
        return self.offset + sums.astype(float)

    def deviation(self, features: Rows) -> Rows:
        """Return the standard deviation of a sample at each row of features; shape (rows,)."""
        kernel = self.variance * matern(features / self.lengths, self.points)
        explained = np.sum((kernel @ self.root.T) ** 2, axis=1)
        deviation: Rows = np.sqrt(np.maximum(self.variance - explained, 0.0) + self.noise)
        return deviation

    def build_samples(self) -> tuple[Rows, Rows]:
        r"""
        Return samples that give a process of the same mean exactly (:func:`fit_samples`): features and values.

        .. math:: t = K_{mm} w + \sigma^2 w

        Shapes (points, features) and (points,). Its uncertainty is larger than that of a process with more samples.
        """
        features = self.points * self.lengths
        return features, self.mean(features) + self.noise * self.weights


@cache
def _blas() -> ThreadpoolController:
    """Return the control of the matrix library's threads; with ours they wait ten times as long as they work."""
    return ThreadpoolController()


def _append_squares(rows: Rows, kind: type[np.floating[Any]]) -> NDArray[Any]:
    """Append squared norms and ones to rows, so that squared distances are one product of matrices."""
    return np.column_stack([rows, np.sum(rows * rows, axis=1), np.ones(len(rows))]).astype(kind)


def _sum_kernels(rows: NDArray[Any], points: NDArray[Any], weights: NDArray[Any], sums: NDArray[Any]) -> None:
    """Write the weighted kernels of rows into sums, block by block in the same memory."""
    distances = np.empty((min(BLOCK, len(rows)), len(points)), dtype=rows.dtype)
    decays = np.empty_like(distances)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        distance, decay = distances[: len(block)], decays[: len(block)]
        np.matmul(block, points.T, out=distance)
        _correlate(distance, decay)
        np.matmul(distance, weights, out=sums[start : start + len(block)])


def matern(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return the correlation of each row of one array with each row of another, in lengths; shape (rows, others)."""
    squares: NDArray[Any] = one @ (-2 * other.T)
    squares += np.sum(one * one, axis=1)[:, None]
    squares += np.sum(other * other, axis=1)[None]
    _correlate(squares, np.empty_like(squares))
    return squares


def _correlate(squares: NDArray[Any], decays: NDArray[Any]) -> None:
    """Write Matern's correlations over squared distances in lengths; ``decays`` is memory of the same shape."""
    np.maximum(squares, 0, out=squares)
    squares *= 3
    distances = np.sqrt(squares, out=squares)
    np.negative(distances, out=decays)
    np.exp(decays, out=decays)
    distances += 1
    distances *= decays


def fit_sparse_process(
    features: Rows,
    values: Rows,
    *,
    lengths: Rows,
    variance: float,
    noise: float,
    num_points: int,
    offset: float | None = None,
) -> GaussianProcess:
    r"""
    Fit a process to samples, with a limited number of support points.

    .. math:: S = \sigma^2 K_{mm} + K_{mn} K_{nm}, \qquad w = S^{-1} K_{mn} y,
              \qquad R^T R = K_{mm}^{-1} - \sigma^2 S^{-1}

    Parameters
    ----------
    features, values
        Samples; shapes (rows, features) and (rows,).
    lengths, variance, noise
        As in :class:`GaussianProcess`.
    num_points
        Largest number of support points; as many as rows make it exact.
    offset
        Value far from all samples; None: the median of the samples.
    """
    offset = float(np.median(values)) if offset is None else offset
    scaled = features / lengths
    points = scaled[spread_out(scaled, num_points)]
    among = variance * matern(points, points) + 1e-6 * variance * np.eye(len(points))
    across = variance * matern(points, scaled)
    information = noise * among + across @ across.T
    known = np.linalg.inv(among) - noise * np.linalg.inv(information)
    squares, vectors = np.linalg.eigh((known + known.T) / 2)
    root = (vectors * np.sqrt(np.maximum(squares, 0.0))).T
    weights = np.asarray(np.linalg.solve(information, across @ (values - offset)), dtype=float)
    return GaussianProcess(
        offset=offset,
        lengths=np.asarray(lengths, dtype=float),
        variance=variance,
        noise=noise,
        points=points,
        weights=weights,
        root=root,
    )


def fit_samples(
    features: Rows, values: Rows, *, lengths: Rows, variance: float, noise: float, offset: float
) -> GaussianProcess:
    r"""
    Fit a process to few samples, exactly.

    .. math:: S = K + \sigma^2 I, \qquad w = S^{-1} y, \qquad R = L^{-1}, \quad L L^T = S

    Parameters
    ----------
    features, values
        Samples; shapes (rows, features) and (rows,).
    lengths, variance, noise, offset
        As in :class:`GaussianProcess`.

    References
    ----------
    Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, algorithm 2.1.
    """
    points = features / lengths
    among = variance * matern(points, points) + noise * np.eye(len(points))
    root = np.linalg.inv(np.linalg.cholesky(among))
    return GaussianProcess(
        offset=offset,
        lengths=lengths,
        variance=variance,
        noise=noise,
        points=points,
        weights=root.T @ (root @ (values - offset)),
        root=root,
    )


def spread_out(rows: Rows, count: int) -> NDArray[np.intp]:
    """Return indices of at most ``count`` distinct rows, each farthest from the previous ones; shape (count,)."""
    rows, numbers = np.unique(rows, axis=0, return_index=True)
    chosen = [int(np.argmin(np.sum((rows - np.median(rows, axis=0)) ** 2, axis=1)))]
    distance = np.sum((rows - rows[chosen[0]]) ** 2, axis=1)
    while len(chosen) < min(count, len(rows)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum((rows - rows[chosen[-1]]) ** 2, axis=1))
    found: NDArray[np.intp] = numbers[chosen]
    return found
