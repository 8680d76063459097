"""Bytes and parameters of a layer and of the pipeline's edges on one device, per micro-batch: terms of (4), (5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import SELECTIVE_MODULES, layer_shape
from costmodel.layers import embedding_operators, head_operators, layer_operators, mtp_edge_operators
from costmodel.operators.work import Numbers, Operator
from costmodel.spec import Cluster, Model, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFootprint:
    """
    What one layer of each kind keeps on one device; kinds on the last axis, shape (..., K).

    Parameters
    ----------
    dense_parameters, expert_parameters
        Parameters.
    saved_bytes
        Activations of one micro-batch between forward and backward.
    attention_bytes
        The share of them that selective recomputation drops.
    input_bytes
        The layer's input.
    """

    dense_parameters: NDArray[np.float64]
    expert_parameters: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    attention_bytes: NDArray[np.float64]
    input_bytes: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeFootprint:
    """
    What embedding (first rank), head and MTP (last rank) keep on one device, shape (...).

    Parameters
    ----------
    embedding_parameters, head_parameters, mtp_parameters
        Parameters; those of MTP around its transformer layers, which count as layers of the last rank.
    last_saved_bytes
        Activations of one micro-batch of head, loss and MTP.
    """

    embedding_parameters: NDArray[np.float64]
    head_parameters: NDArray[np.float64]
    mtp_parameters: NDArray[np.float64]
    last_saved_bytes: NDArray[np.float64]


def layer_footprint(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    ep: Numbers,
    etp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> LayerFootprint:
    """Parameters and saved activations of each kind of layer: S_w of (4), A of (5), A_attn of (29), A_in of (31)."""
    shape = layer_shape(
        model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs, sequence_parallel=sequence_parallel
    )
    layers = [layer_operators(layer, shape) for layer in model.kinds]
    layer_input = shape.activation_bytes * shape.tokens * shape.hidden_size / shape.sequence_shards
    return LayerFootprint(
        dense_parameters=shape.stack(_parameters(layer, expert=False) for layer in layers),
        expert_parameters=shape.stack(_parameters(layer, expert=True) for layer in layers),
        saved_bytes=shape.stack(_saved(layer) for layer in layers),
        attention_bytes=shape.stack(_saved(o for o in layer if o.saved_as in SELECTIVE_MODULES) for layer in layers),
        input_bytes=shape.stack(layer_input for _ in layers),
    )


def edge_footprint(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    pp: Numbers,
    ep: Numbers,
    etp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
) -> EdgeFootprint:
    """
    Parameters and saved activations of embedding, head and MTP.

    As soon as there is a pipeline, its last rank has a copy of the embedding if the head is tied to it or MTP reads it
    (Megatron-LM, ``megatron/core/models/gpt/gpt_model.py``: ``pre_process or mtp_process``).
    """
    shape = layer_shape(
        model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs, sequence_parallel=sequence_parallel
    )
    embedding, head, mtp = (
        embedding_operators(model, shape),
        head_operators(model, shape),
        mtp_edge_operators(model, shape),
    )
    zero = shape.zeros + np.zeros(np.shape(pp))
    embedding_parameters = zero + _parameters(embedding, expert=False)
    has_copy = model.tied_embeddings or bool(model.mtp_layers)
    copy = embedding_parameters * (np.asarray(pp) > 1) * has_copy
    return EdgeFootprint(
        embedding_parameters=embedding_parameters,
        head_parameters=zero + _parameters(head, expert=False) + copy,
        mtp_parameters=zero + _parameters(mtp, expert=False),
        last_saved_bytes=zero + _saved(head) + _saved(mtp),
    )


def _parameters(operators: Iterable[Operator], *, expert: bool) -> Numbers:
    return sum((operator.parameters for operator in operators if operator.expert == expert), start=0.0)


def _saved(operators: Iterable[Operator]) -> Numbers:
    return sum((operator.saved_bytes for operator in operators), start=0.0)
