"""Faster than NumPy's own: sums and maxima over a short last axis (ranks, kinds of layers), the values of a choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


def present(values: Any) -> list[int]:
    """
    The different values of small numbers from 0 on, ascending; ``np.unique`` takes ten times as long.

    >>> present(np.array([[3, 0], [3, 1]]))
    [0, 1, 3]
    """
    return np.flatnonzero(np.bincount(np.ravel(values))).tolist()


SHORT = 32
"""Entries up to which slices are faster; NumPy's own reduction of two to five entries takes ten times as long."""


def largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    The largest along the last axis.

    >>> largest(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [3.0, 4.0]
    """
    return _over_last(np.maximum, values)


def added(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    The sum along the last axis.

    >>> added(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [4.0, 6.0]
    """
    return _over_last(np.add, values)


def _over_last(function: np.ufunc, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not 0 < values.shape[-1] <= SHORT:
        return np.asarray(function.reduce(values, axis=-1))
    slices: Any = (values[..., index] for index in range(values.shape[-1]))
    return np.asarray(reduce(function, slices))


def any_of(table: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """
    Whether anything of a table is true for each entry of a smaller shape that broadcasts to the table's.

    >>> any_of(np.array([[True, False], [False, False]]), (2, 1)).tolist()
    [[True], [False]]
    """
    in_front = table.ndim - len(shape)
    smaller = np.asarray(table.any(axis=tuple(range(in_front)))) if in_front > 0 else table
    folded = tuple(axis - smaller.ndim for axis in range(smaller.ndim) if shape[axis - smaller.ndim] == 1)
    return np.asarray(smaller.any(axis=folded, keepdims=True))


Decisions: TypeAlias = Mapping[str, Any]


Array: TypeAlias = NDArray[np.float64]


def either(decisions: Decisions) -> NDArray[np.bool_]:
    """False and true on an axis in front of those of the decisions."""
    return in_front([False, True], decisions)


def in_front(values: Any, decisions: Decisions) -> NDArray[np.bool_]:
    """Values on an axis in front of those of the decisions."""
    return np.array(values).reshape(-1, *(1,) * max(np.ndim(decision) for decision in decisions.values()))


def with_layer_axis(decision: Any) -> NDArray[Any]:
    """A decision with an axis for the kinds of layers (or for the ranks) behind its own."""
    return np.asarray(decision)[..., None]


def of_different(function: Callable[..., Any], *columns: Any) -> Any:
    """
    A function of arrays that broadcast, asked once for each different row of them.

    >>> asked = []
    >>> of_different(lambda one, other: asked.append(one) or one + other, np.array([1.0, 2.0, 1.0]), 3.0).tolist()
    [4.0, 5.0, 4.0]
    >>> asked[0].tolist()
    [1.0, 2.0]
    """
    arrays = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in columns))
    rows, inverse = np.unique(np.column_stack([one.ravel() for one in arrays]), axis=0, return_inverse=True)
    found = np.asarray(function(*rows.T), dtype=float)
    return found[inverse.ravel()].reshape(arrays[0].shape)[()]
