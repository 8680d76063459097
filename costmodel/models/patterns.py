"""Models whose layers are single blocks, Mamba, attention or feed-forward: one letter per layer (Nemotron-H)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isclose
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Experts, Layer, Mixer, Mlp, Model
from costmodel.models.flops import parameters
from costmodel.record import record

Block: TypeAlias = Mixer | Mlp | Experts

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}

"""Letters of blocks in ``hybrid_override_pattern`` and in Megatron-LM's ssm/mamba_hybrid_layer_allocation.py."""

MTP_PATTERN = "*E"

"""Blocks of one layer of multi-token prediction: Nemotron 3, and the default of transformers' ``NemotronHConfig``."""


def single_blocks(
    pattern: str, build: Callable[[str], Block], where: str, *, norm: Literal["rms", "layer", "none"]
) -> tuple[Layer, ...]:
    """
    Build one layer per letter, each a norm and a block.

    Parameters
    ----------
    pattern
        Letters of ``LETTERS``.
    build
        Function that builds the block of a name in ``LETTERS``.
    where
        Dotted path of the pattern, for messages.
    norm
        As in :class:`costmodel.facts.model.Layer`.

    Raises
    ------
    SpecError
        If a letter is unknown.
    """
    for letter in pattern:
        if letter not in LETTERS:
            raise SpecError(where, f"unknown letter '{letter}'.", did_you_mean(letter, LETTERS))
    layers = {letter: _layer(build(LETTERS[letter]), norm=norm) for letter in dict.fromkeys(pattern)}
    return tuple(layers[letter] for letter in pattern)


def join_blocks(blocks: Sequence[Layer], where: str) -> Layer:
    """
    Join two single blocks into one layer, as multi-token prediction does: a token mixer, then a feed-forward.

    Raises
    ------
    SpecError
        If the blocks are of other kinds.
    """
    if len(blocks) != 2 or blocks[0].attention is None or blocks[1].feed_forward is None:
        raise SpecError(where, "must be one attention or Mamba block and one feed-forward, as in '*E'.")
    return Layer(attention=blocks[0].attention, feed_forward=blocks[1].feed_forward, norm=blocks[0].norm)


def _layer(block: Block, *, norm: Literal["rms", "layer", "none"]) -> Layer:
    if isinstance(block, Mlp | Experts):
        return Layer(attention=None, feed_forward=block, num_norms=1, norm=norm)
    return Layer(attention=block, feed_forward=None, num_norms=1, norm=norm)


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


TOLERANCE = 0.02

"""
Fraction by which the parameter counts of one model may differ.

Sources pad vocabularies, tie embeddings or not, and count key and value heads of Llama 3.1 405B as 16 or 8, which is
1.0 % of its parameters.
"""


@record(frozen=True, kw_only=True, slots=True)
class Shape:
    """
    Properties by which two models are recognised as one.

    Parameters
    ----------
    num_layers, hidden_size
        Equal in both.
    blocks
        The different mixers with their heads and feed-forward blocks with their widths, in words; equal in both.
    parameters
        Number of parameters without multi-token prediction; nearly equal.
    """

    num_layers: int
    hidden_size: int
    blocks: str
    parameters: int

    def is_like(self, other: Shape) -> bool:
        """Return True if both are shapes of one model."""
        same = ("num_layers", "hidden_size", "blocks")
        return all(getattr(self, name) == getattr(other, name) for name in same) and isclose(
            self.parameters, other.parameters, rel_tol=TOLERANCE
        )


HEADS = ("num_heads", "num_value_heads")

"""Entries of mixers that count heads, on which all sources agree."""

COLUMNS = tuple(one.name for one in fields(Shape))

"""Columns of a table that hold a shape."""


def shape_of(model: Model) -> Shape:
    """Return the shape of a model."""
    blocks = {_words(block) for kind in model.kinds for block in kind.blocks}
    return Shape(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        blocks="; ".join(sorted(blocks)),
        parameters=parameters(model),
    )


def shape_in(cells: Mapping[str, str]) -> Shape | None:
    """Return the shape in a row of a table; None if the row has none."""
    if not cells["parameters"]:
        return None
    counts = {name: int(cells[name]) for name in COLUMNS if name != "blocks"}
    return Shape(blocks=cells["blocks"], **counts)


def _words(block: Mixer | Mlp | Experts) -> str:
    """Return a block in words on which all sources agree: query heads, widths, experts, keys that are chosen."""
    if isinstance(block, Experts):
        return f"{block.top_k} of {block.num_experts} experts {_width(block)}"
    if isinstance(block, Mlp):
        return f"mlp {_width(block)}"
    heads = [getattr(block, name) for name in HEADS if hasattr(block, name)]
    chosen = " on chosen keys" if getattr(block, "indexer", None) else ""
    return f"{heads[0]} heads{chosen}" if heads else type(block).__name__


def _width(block: Mlp | Experts) -> str:
    return f"{block.ffn_hidden_size}{' gated' if block.gated else ''}"
