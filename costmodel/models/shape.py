"""The shape of a model in a few words, by which published runs and layouts of it are found whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isclose

from costmodel.facts.model import Experts, Mixer, Mlp, Model
from costmodel.models.parameters import parameters

TOLERANCE = 0.02
"""
Fraction by which parameters of one model may differ.

Sources pad vocabularies, tie embeddings or not, and count key and value heads of Llama 3.1 405B as 16 or 8, which is
1.0 % of its parameters.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """
    What two models must have in common to be called the same.

    Parameters
    ----------
    num_layers, hidden_size
        Equal in both.
    blocks
        The different mixers with their heads and feed-forward blocks with their widths, in words; equal in both.
    parameters
        Without multi-token prediction; nearly equal.
    """

    num_layers: int
    hidden_size: int
    blocks: str
    parameters: int

    def is_like(self, other: Shape) -> bool:
        """True where both are shapes of one model."""
        same = ("num_layers", "hidden_size", "blocks")
        return all(getattr(self, name) == getattr(other, name) for name in same) and isclose(
            self.parameters, other.parameters, rel_tol=TOLERANCE
        )


HEADS = ("num_heads", "num_value_heads")
"""Entries of mixers that count heads which no source counts otherwise."""

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
    """Return the shape that a row of a table holds; None where it holds none."""
    if not cells["parameters"]:
        return None
    counts = {name: int(cells[name]) for name in COLUMNS if name != "blocks"}
    return Shape(blocks=cells["blocks"], **counts)


def _words(block: Mixer | Mlp | Experts) -> str:
    """A block by what no source counts otherwise: query heads, widths, experts."""
    if isinstance(block, Experts):
        return f"{block.top_k} of {block.num_experts} experts {_width(block)}"
    if isinstance(block, Mlp):
        return f"mlp {_width(block)}"
    heads = [getattr(block, name) for name in HEADS if hasattr(block, name)]
    return f"{heads[0]} heads" if heads else type(block).__name__


def _width(block: Mlp | Experts) -> str:
    return f"{block.ffn_hidden_size}{' gated' if block.gated else ''}"
