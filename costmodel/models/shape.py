"""Shape of a model in a few words, which finds published runs and layouts of it under any name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isclose

from costmodel.facts.model import Experts, Mixer, Mlp, Model
from costmodel.models.parameters import parameters

TOLERANCE = 0.02
"""
Fraction by which the parameter counts of one model may differ.

Sources pad vocabularies, tie embeddings or not, and count key and value heads of Llama 3.1 405B as 16 or 8, which is
1.0 % of its parameters.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
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
    blocks = {_words(block) for kind in model.kinds for block in (kind.attention, kind.feed_forward) if block}
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
    """Return a block in words on which all sources agree: query heads, widths, experts."""
    if isinstance(block, Experts):
        return f"{block.top_k} of {block.num_experts} experts {_width(block)}"
    if isinstance(block, Mlp):
        return f"mlp {_width(block)}"
    heads = [getattr(block, name) for name in HEADS if hasattr(block, name)]
    return f"{heads[0]} heads" if heads else type(block).__name__


def _width(block: Mlp | Experts) -> str:
    return f"{block.ffn_hidden_size}{' gated' if block.gated else ''}"
