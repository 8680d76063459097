"""Bytes and parameters of a layer and of the pipeline's edges on one device, per micro-batch: terms of (4), (5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.cluster import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_projection_operators
from costmodel.lowering.recompute import sum_by_module
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.tables import Record
from costmodel.timing.work import Numbers, Operator


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFootprint(Record):
    """
    Parameters and bytes of one layer of each kind on one device; kinds on the last axis, shape (..., K).

    Parameters
    ----------
    dense_parameters, expert_parameters
        Number of parameters on one device, outside and inside of routed experts.
    saved_bytes
        Activations of one micro-batch between forward and backward.
    module_bytes
        Bytes of them that recomputation of each module drops, modules on one more axis.
    input_bytes
        Bytes of the layer's input.
    gradient_bytes
        Bytes of the gradients of activations that are alive at once in its backward pass.
    """

    dense_parameters: NDArray[np.float64]
    expert_parameters: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    module_bytes: NDArray[np.float64]
    input_bytes: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingHeadFootprint(Record):
    """
    Parameters and bytes of embedding (first rank), head and MTP (last rank) on one device, shape (...).

    Parameters
    ----------
    embedding_parameters, head_parameters, mtp_parameters
        Number of parameters; MTP without its transformer layers, which count as layers of the last rank.
    layer_shapes_parameters, head_shape_parameters
        Parameters of one weight of each shape in the layers; of the head's weight.
    gradient_bytes
        Bytes of the embedding's gradient in the backward pass.
    last_saved_bytes
        Bytes of one micro-batch's activations in head, loss and MTP.
    """

    embedding_parameters: NDArray[np.float64]
    head_parameters: NDArray[np.float64]
    mtp_parameters: NDArray[np.float64]
    layer_shapes_parameters: NDArray[np.float64]
    head_shape_parameters: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
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
        dense_parameters=shape.stack([_parameters(layer, expert=False) for layer in layers]),
        expert_parameters=shape.stack([_parameters(layer, expert=True) for layer in layers]),
        saved_bytes=shape.stack([_saved_bytes(layer) for layer in layers]),
        module_bytes=np.stack([shape.stack(_dropped_bytes(layer)) for layer in layers], axis=-2),
        input_bytes=shape.stack([layer_input for _ in layers]),
        gradient_bytes=shape.stack([_gradients(layer, shape) for layer in layers]),
    )


def has_embedding_copy(model: Model) -> bool:
    """
    Return True if a pipeline's last rank also holds the embedding: a head is tied to it, or MTP reads it.

    References
    ----------
    Megatron-LM, ``megatron/core/models/gpt/gpt_model.py``: ``pre_process or mtp_process``.
    """
    return model.tied_embeddings or bool(model.mtp_layers)


def embedding_head_footprint(
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
) -> EmbeddingHeadFootprint:
    """
    Parameters and saved activations of embedding, head and MTP.

    In a pipeline the last rank may have a copy of the embedding: :func:`has_embedding_copy`.
    """
    shape = layer_shape(
        model, cluster, workload, tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs, sequence_parallel=sequence_parallel
    )
    embedding, head, mtp = (
        embedding_operators(model, shape),
        head_operators(model, shape),
        mtp_projection_operators(model, shape),
    )
    zero = shape.zeros + np.zeros(np.shape(pp))
    embedding_parameters = zero + _parameters(embedding, expert=False)
    copy = embedding_parameters * (np.asarray(pp) > 1) * has_embedding_copy(model)
    return EmbeddingHeadFootprint(
        embedding_parameters=embedding_parameters,
        head_parameters=zero + _parameters(head, expert=False) + copy,
        mtp_parameters=zero + _parameters(mtp, expert=False),
        layer_shapes_parameters=zero + _one_of_each_shape(layer_operators(layer, shape) for layer in model.kinds),
        head_shape_parameters=zero + _one_of_each_shape([head]),
        gradient_bytes=embedding_parameters * shape.activation_bytes,
        last_saved_bytes=zero + _saved_bytes(head) + _saved_bytes(mtp),
    )


def _one_of_each_shape(layers: Iterable[Iterable[Operator]]) -> Numbers:
    """Sum the parameters of distinct matmuls: the largest shape of each name, and one expert."""
    largest: dict[str, Numbers] = {}
    for operator in (operator for layer in layers for operator in layer if "matmul" in operator.kind):
        weight = operator.parameters / operator.groups
        largest[operator.name] = np.maximum(largest.get(operator.name, 0.0), weight)
    return sum(largest.values(), start=0.0)


def _parameters(operators: Iterable[Operator], *, expert: bool) -> Numbers:
    return sum((operator.parameters for operator in operators if operator.expert == expert), start=0.0)


def _gradients(operators: Iterable[Operator], shape: Shape) -> Numbers:
    """
    The widest pair of gradients, of an operator's output and of its input, in bytes.

    It occurs at the activation, whose gradients are as large as its traffic without its kept tensors, or at the scores
    of an attention in several kernels.
    """
    gradients = 2 * shape.activation_bytes / max(shape.memory.attention_score_bytes, shape.activation_bytes)
    largest: Numbers = 0.0
    for operator in operators:
        if operator.name in ACTIVATIONS:
            largest = np.maximum(largest, operator.bytes)
        if operator.name == "softmax":
            largest = np.maximum(largest, operator.saved_bytes * gradients)
    return largest


ACTIVATIONS = ("activation", "expert_activation")


def _dropped_bytes(operators: tuple[Operator, ...]) -> list[Numbers]:
    return sum_by_module(operators, (operator.saved_bytes for operator in operators), dropped=True)


def _saved_bytes(operators: Iterable[Operator]) -> Numbers:
    return sum((operator.saved_bytes for operator in operators), start=0.0)
