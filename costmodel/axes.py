"""Reductions over a short last axis (ranks, kinds of layers) and distinct small numbers, faster than NumPy's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


def present(values: Any) -> list[int]:
    """
    Return the distinct values of small non-negative numbers, ascending; ``np.unique`` takes ten times as long.

    >>> present(np.array([[3, 0], [3, 1]]))
    [0, 1, 3]
    """
    return np.flatnonzero(np.bincount(np.ravel(values))).tolist()


SHORT = 32
"""Longest axis for which slices are faster; NumPy's own reduction of two to five entries takes ten times as long."""


def largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return the largest values along the last axis.

    >>> largest(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [3.0, 4.0]
    """
    return _reduce_last(np.maximum, values)


def sum_last(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return the sums along the last axis.

    >>> sum_last(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [4.0, 6.0]
    """
    return _reduce_last(np.add, values)


def _reduce_last(function: np.ufunc, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not 0 < values.shape[-1] <= SHORT:
        return np.asarray(function.reduce(values, axis=-1))
    slices: Any = (values[..., index] for index in range(values.shape[-1]))
    return np.asarray(reduce(function, slices))


def any_of(table: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """
    Return True for each entry of a smaller shape, which broadcasts to the table's, if any of its table entries is true.

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
    """Return false and true on a new axis before those of the decisions."""
    return add_leading_axis([False, True], decisions)


def add_leading_axis(values: Any, decisions: Decisions) -> NDArray[np.bool_]:
    """Return values on a new axis before those of the decisions."""
    return np.array(values).reshape(-1, *(1,) * max(np.ndim(decision) for decision in decisions.values()))


def add_layer_axis(decision: Any) -> NDArray[Any]:
    """Return a decision with a new last axis, for the kinds of layers or the ranks."""
    return np.asarray(decision)[..., None]


MOST_ROWS = 2**16
"""Largest number of cached rows; affects only memory."""


@dataclass(frozen=True, slots=True)
class OncePerRow:
    """
    A function of arrays that broadcast, called once for each distinct row.

    Parameters
    ----------
    function
        Function that takes columns of shape (rows,) and returns as many values.
    known
        Values by row; cleared beyond :data:`MOST_ROWS`, since the function may outlive many jobs.

    >>> asked = []
    >>> once = OncePerRow(lambda one, other: asked.extend(one.tolist()) or one + other)
    >>> once(np.array([1.0, 2.0, 1.0]), 3.0).tolist(), float(once(2.0, 3.0)), asked
    ([4.0, 5.0, 4.0], 5.0, [1.0, 2.0])
    """

    function: Callable[..., NDArray[np.float64]]
    known: dict[tuple[float, ...], float] = field(default_factory=dict)

    def __call__(self, *columns: Any) -> Any:
        """Return the values in the broadcast shape of the columns."""
        arrays = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in columns))
        rows, inverse = _different([one.ravel() for one in arrays])
        keys = list(zip(*(one.tolist() for one in rows), strict=True))
        if len(self.known) > MOST_ROWS:
            self.known.clear()
        unknown = [index for index, key in enumerate(keys) if key not in self.known]
        if unknown:
            values = self.function(*(one[unknown] for one in rows)).tolist()
            self.known.update(zip((keys[index] for index in unknown), values, strict=True))
        found = np.array([self.known[key] for key in keys])
        return found[inverse].reshape(arrays[0].shape)[()]


def _different(columns: list[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], NDArray[np.intp]]:
    """Return the columns of the distinct rows, and each row's index; ``np.unique`` along an axis takes much longer."""
    codes = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        if np.all(column == column[:1]):
            continue
        values, places = np.unique(column, return_inverse=True)
        codes = codes * len(values) + places
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return [column[first] for column in columns], inverse
