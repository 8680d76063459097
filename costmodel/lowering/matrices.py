"""Weight matrices of a layer, which optimizers on whole matrices (Muon) update one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.facts.model import Layer
from costmodel.lowering.layer import layer_operators
from costmodel.lowering.shape import Shape
from costmodel.record import record
from costmodel.timing.work import MatmulSize, Numbers, Operator

SPLIT = ("query_projection", "key_projection", "value_projection")
"""Parts of the fused projection ``qkv`` that Megatron-LM updates each for itself (``--muon-no-split-qkv`` does not)."""


@record(frozen=True, kw_only=True, slots=True)
class Matrix:
    """
    Weight matrices of one operator of a layer.

    Parameters
    ----------
    rows, columns
        Outputs and inputs of the whole matrix, of all tensor-parallel ranks.
    row_shards, column_shards
        Tensor-parallel ranks among which rows or columns are split; 1: each holds all of them.
    count
        Matrices on one device: local experts, otherwise 1.
    expert
        True if it belongs to routed experts.
    """

    rows: Numbers
    columns: Numbers
    row_shards: Numbers
    column_shards: Numbers
    count: Numbers
    expert: bool

    @property
    def parameters(self) -> Numbers:
        """Parameters of one matrix on one device."""
        return self.rows * self.columns / (self.row_shards * self.column_shards)


def layer_matrices(layer: Layer, shape: Shape) -> tuple[Matrix, ...]:
    """
    Return the weight matrices of a layer: weights of its matmuls, without biases, norms, convolutions and scales.

    Fused gates stay one matrix, as does each expert. Embedding and head are not among them: Adam updates both.

    References
    ----------
    megatron-core 0.16.1, ``optimizer/muon.py:259``: parameters of two dimensions that are no embedding or output;
    ``muon.py:136``: queries, keys and values apart.
    """
    whole = replace(shape, tp=1, etp=1, sequence_parallel=0)
    pairs = zip(_weights(layer, shape), _weights(layer, whole), strict=True)
    return tuple(_matrix(local, other) for local, other in pairs)


def _weights(layer: Layer, shape: Shape) -> list[Operator]:
    """Return the operators with a weight matrix, queries, keys and values apart."""
    apart = replace(shape, kernels=replace(shape.kernels, fused_projections=False))
    projections = [one for one in layer_operators(layer, apart) if one.name in SPLIT]
    others = [one for one in layer_operators(layer, shape) if one.name not in ("qkv", *SPLIT)]
    return [one for one in (*projections, *others) if isinstance(one.size, MatmulSize) and np.any(one.parameters)]


def _matrix(local: Operator, whole: Operator) -> Matrix:
    assert isinstance(local.size, MatmulSize)
    assert isinstance(whole.size, MatmulSize)
    return Matrix(
        rows=whole.size.n,
        columns=whole.size.k,
        row_shards=whole.size.n / local.size.n,
        column_shards=whole.size.k / local.size.k,
        count=local.groups,
        expert=local.expert,
    )
