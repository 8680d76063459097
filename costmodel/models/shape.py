"""The shape of a model in a few numbers, by which published runs and layouts of it are found whatever it is called."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from costmodel.facts.model import Model
from costmodel.models.parameters import active_parameters, parameters

TOLERANCE = 0.02
"""
Fraction by which parameters of one model may differ.

Sources pad vocabularies, tie embeddings or not, and count key and value heads of Llama 3.1 405B as 16 or 8, which is
1.0 % of its parameters; another size of a family differs in layers or hidden size.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """
    What two models must have in common to be called the same.

    Parameters
    ----------
    num_layers, hidden_size
        Equal in both.
    parameters, active_parameters
        Without multi-token prediction; nearly equal.
    """

    num_layers: int
    hidden_size: int
    parameters: int
    active_parameters: int

    def is_like(self, other: Shape) -> bool:
        """True where both are shapes of one model."""
        return (self.num_layers, self.hidden_size) == (other.num_layers, other.hidden_size) and all(
            isclose(getattr(self, name), getattr(other, name), rel_tol=TOLERANCE)
            for name in ("parameters", "active_parameters")
        )


def shape_of(model: Model) -> Shape:
    """Return the shape of a model."""
    return Shape(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        parameters=parameters(model),
        active_parameters=active_parameters(model),
    )
