"""Lowering of layers to operators: one file per kind of layer, one registry, one source of every layer's numbers."""

from costmodel.lowering.embedding import (
    embedding_communications,
    embedding_operators,
    head_communications,
    head_operators,
)
from costmodel.lowering.layer import (
    layer_communications,
    layer_operators,
    mtp_operators,
    mtp_projection_communications,
    mtp_projection_operators,
)
from costmodel.lowering.shape import Shape

__all__ = [
    "Shape",
    "embedding_communications",
    "embedding_operators",
    "head_communications",
    "head_operators",
    "layer_communications",
    "layer_operators",
    "mtp_operators",
    "mtp_projection_communications",
    "mtp_projection_operators",
]
