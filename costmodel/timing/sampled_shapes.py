"""Shapes of sampled operators: their FLOPs and bytes, and the features from which their times are learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.gaussian_process import Rows
from costmodel.timing.work import Numbers

TILES = ((128, 128), (256, 128), (128, 256))
"""Tiles of the result that matmul kernels assign to processors, in rows and columns (used by CUTLASS and cuBLAS)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """
    Shapes of one kind of operator: their work, and the features from which deviations from a roofline are learned.

    Parameters
    ----------
    flops
        Floating-point operations; shape (rows,).
    nbytes
        Least bytes of device memory read and written; shape (rows,).
    features
        Logarithms to base 2, so that a unit is a doubling; shape (rows, features).
    """

    flops: Rows
    nbytes: Rows
    features: Rows

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Shapes:
        """Return some of the rows."""
        return Shapes(flops=self.flops[rows], nbytes=self.nbytes[rows], features=self.features[rows])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.flops)

    def add_features(self, *columns: Rows) -> Shapes:
        """Return the shapes with additional features, each of shape (rows,)."""
        features = np.column_stack([self.features, *columns])
        return Shapes(flops=self.flops, nbytes=self.nbytes, features=features)


def matmul_shapes(
    m: Rows, n: Rows, k: Rows, *, batch: Rows | float = 1.0, num_bytes: float = 2.0, num_processors: int
) -> Shapes:
    r"""
    Return the shapes of matmuls of m x k with k x n, ``batch`` of them at once.

    A device assigns tiles of the result to its processors in waves, and the last wave, like the last tile of a row, is
    rarely full. For each tile size one feature is the computed over the required work:

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
    waves = [_tile_waste(m, n, batch, tile, num_processors) for tile in TILES]
    columns = [m, n, k, flops / nbytes, nbytes, np.ceil(m / TILES[0][0]) * TILES[0][0] / m, *waves]
    if np.any(batch != 1):
        columns.append(batch)
    return Shapes(flops=flops, nbytes=nbytes, features=np.log2(np.column_stack(columns)))


def _tile_waste(m: Rows, n: Rows, batch: Rows, tile: tuple[int, int], num_processors: int) -> Rows:
    rows, columns = tile
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    computed: Rows = np.ceil(tiles / num_processors) * num_processors * rows * columns
    return computed / (m * n * batch)


def streaming_shapes(rows: Rows, width: Rows, *, bytes_per_element: Rows | float) -> Shapes:
    """
    Return the shapes of kernels that only move bytes: norms, activations, additions, rotations, look-ups.

    Parameters
    ----------
    rows, width
        Tokens, and elements of each; shape (rows,).
    bytes_per_element
        Bytes read and written for each element together.
    """
    rows, width, each = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in (rows, width, bytes_per_element)))
    return Shapes(flops=0 * rows, nbytes=rows * width * each, features=np.log2(np.column_stack([rows, width])))


MATMULS = ("matmul", "batched_matmul", "grouped_matmul")
"""Sampled operators that multiply."""

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "mxfp8": 1, "nvfp4": 1}
"""Bytes of an element; a whole byte for nvfp4, of which two elements share one."""

MULTIPLIED = {"forward": ("m", "n", "k"), "dgrad": ("m", "k", "n"), "wgrad": ("n", "k", "m")}
"""Sizes of each pass's matmul, in terms of the forward sizes: y = x w, dx = dy w', dw' = dy' x."""

FLASH_BACKWARD = 2.5
"""Backward over forward FLOPs of flash attention: 5 matmuls against 2 (Dao, FlashAttention-2, arXiv 2307.08691)."""

TENSORS = {"swiglu": 3, "residual": 3, "cross_entropy": 4, "adam": 7, "host_adam": 7}
"""
Number of tensors that kernels read or write, if it is not two. They are both halves and the result. For the loss they
are logits, their copy in fp32 twice, and their gradient; for Adam parameters and both moments twice, and gradients.
"""


def shapes_of_samples(
    operator: str, of_pass: str, sizes: Mapping[str, Numbers], *, element_bytes: float, num_processors: int
) -> Shapes:
    """
    Return the shapes of sampled operators from the sizes in the table of samples.

    Parameters
    ----------
    operator, of_pass
        Operator and pass, in the words of the table.
    sizes
        Columns of the table that apply; they broadcast to shape (rows,).
    element_bytes
        Bytes of an element.
    num_processors
        Streaming multiprocessors, compute units or cores.
    """
    columns = {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in sizes.items()}
    columns = dict(zip(columns, np.broadcast_arrays(*columns.values()), strict=True))
    if operator in MATMULS:
        return _matmuls(operator, of_pass, columns, element_bytes=element_bytes, num_processors=num_processors)
    if operator == "attention":
        return attention_shapes(columns, of_pass=of_pass, num_bytes=element_bytes)
    nbytes = element_bytes * _least_elements_moved(operator, of_pass, columns)
    return Shapes(flops=0 * nbytes, nbytes=nbytes, features=np.log2(np.column_stack([nbytes, *columns.values()])))


def _matmuls(
    operator: str, of_pass: str, columns: Mapping[str, Rows], *, element_bytes: float, num_processors: int
) -> Shapes:
    """Return the matmuls of a pass; the rows of grouped ones are those of all groups together."""
    batch = columns.get("batch", np.ones(1))
    groups = batch if operator == "grouped_matmul" else np.ones(1)
    own = {"m": columns["m"] / groups, "n": columns["n"], "k": columns["k"]}
    m, n, k = (own[name] for name in MULTIPLIED[of_pass])
    shapes = matmul_shapes(m, n, k, batch=batch, num_bytes=element_bytes, num_processors=num_processors)
    return shapes if operator == "matmul" or np.any(batch != 1) else shapes.add_features(np.log2(batch + 0 * m))


def attention_shapes(columns: Mapping[str, Rows], *, of_pass: str, num_bytes: float) -> Shapes:
    r"""
    Return the shapes of attention cores; a causal one computes half of the scores.

    .. math:: F = 2 b a s_q s_k (d_{qk} + d_v) (1 - c / 2), \qquad c = 1 \text{ if causal}

    Parameters
    ----------
    columns
        ``sequences``, ``queries``, ``keys``, ``heads``, ``kv_heads``, ``qk_head_dim``, ``v_head_dim``, ``causal``;
        each of shape (rows,).
    of_pass
        ``forward`` or ``backward``.
    num_bytes
        Bytes of an element.
    """
    names = ("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal")
    sequences, queries, keys, heads, kv_heads, qk_dim, v_dim, causal = (columns[name] for name in names)
    widths, factor = qk_dim + v_dim, FLASH_BACKWARD if of_pass == "backward" else 1.0
    flops = factor * 2 * sequences * heads * queries * keys * widths * (1 - causal / 2)
    nbytes = factor * num_bytes * sequences * widths * (queries * heads + keys * kv_heads)
    features = [queries, keys, sequences * heads, widths, heads / kv_heads, flops / nbytes]
    return Shapes(flops=flops, nbytes=nbytes, features=np.column_stack([np.log2(np.column_stack(features)), causal]))


def _least_elements_moved(operator: str, of_pass: str, columns: Mapping[str, Rows]) -> Rows:
    """Least number of elements that an operator reads and writes in one pass; shape (rows,)."""
    if "nbytes" in columns:
        return 2 * columns["nbytes"]
    if operator in ("adam", "host_adam"):
        return TENSORS[operator] * columns["n"]
    rows = columns["rows"]
    if operator == "rotary":
        return 2 * rows * columns["heads"] * columns["qk_head_dim"]
    if operator == "top_k":
        return 2 * rows * columns["experts"]
    elements: Rows = rows * columns["width"]
    if operator == "permutation":
        return elements * (1 + columns["top_k"])
    if operator == "embedding" and of_pass == "backward":
        return 2 * elements + columns["n"] * columns["width"]
    return TENSORS.get(operator, 2) * elements
