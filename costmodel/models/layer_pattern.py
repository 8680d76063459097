"""The order of a model's kinds of layers: a sequence of places, each with a kind, that ends in a period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.model import Model

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerPattern:
    """
    A sequence of layers that repeats a period after a start; the layers that follow depend only on the place.

    Parameters
    ----------
    kinds
        Kind of the layer at each place, shape (S,): first the start, then one period.
    start_of_period
        Place that follows the last place.
    num_kinds
        Kinds of layers of the model, K.
    """

    kinds: Ints
    start_of_period: int
    num_kinds: int

    @property
    def num_places(self) -> int:
        """Number of places, S."""
        return len(self.kinds)

    def place_after(self, num_layers: Ints | int) -> Ints:
        """Return the place of the layer that follows the given number of layers."""
        period = self.num_places - self.start_of_period
        in_period = self.start_of_period + (np.asarray(num_layers) - self.start_of_period) % period
        return np.asarray(np.where(np.asarray(num_layers) < self.num_places, num_layers, in_period))

    def counts(self, num_layers: int) -> Ints:
        """
        Number of layers of each kind among ``num_layers`` layers from each place: shape (S, K).

        Derivation: the pattern is written out far enough for the last place. Cumulative counts before every layer are
        sums, and the difference of two sums counts the layers between.
        """
        order = self.kinds[self.place_after(np.arange(self.num_places + num_layers))]
        before = np.zeros((len(order) + 1, self.num_kinds), dtype=np.int64)
        before[np.arange(1, len(order) + 1), order] = 1
        before = before.cumsum(axis=0)
        ends = np.arange(self.num_places) + num_layers
        return np.asarray(before[ends] - before[: self.num_places])


@lru_cache(maxsize=64)
def layer_pattern(model: Model) -> LayerPattern:
    """
    Return the pattern with the fewest places for a model's layers, without those of multi-token prediction.

    >>> from costmodel import catalog
    >>> pattern = layer_pattern(catalog.model("gemma-3-27b-text"))  # every sixth layer attends to all tokens
    >>> pattern.kinds, pattern.counts(7)[[0, 5]]
    (array([0, 0, 0, 0, 0, 1]), array([[6, 1],
           [5, 2]]))
    """
    index = {kind: position for position, kind in enumerate(model.kinds)}
    order = [index[layer] for layer in model.layers]
    start, period = shortest_pattern(order)
    kinds = np.array(order[: start + period], dtype=np.int64)
    return LayerPattern(kinds=kinds, start_of_period=start, num_kinds=len(index))


def shortest_pattern(order: Sequence[int]) -> tuple[int, int]:
    """
    Return the length of the start of a sequence and of the period that follows it, with the least sum.

    >>> shortest_pattern([0, 1, 0, 1, 0]), shortest_pattern([0, 0, 0, 1, 1]), shortest_pattern([2, 0, 1, 0, 1])
    ((0, 2), (3, 1), (1, 2))
    """
    ways = []
    for period in range(1, len(order) + 1):
        unlike = [at for at in range(len(order) - period) if order[at] != order[at + period]]
        ways.append((unlike[-1] + 1 if unlike else 0, period))
    return min(ways, key=sum)
