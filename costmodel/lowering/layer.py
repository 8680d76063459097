"""One layer: the registry of its blocks, and the norms and residuals around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, LinearAttention, Mamba, Mlp, Model
from costmodel.lowering.attention import attention_communications, attention_operators
from costmodel.lowering.embedding import next_token_communications, next_token_operators
from costmodel.lowering.experts import experts_communications, experts_operators
from costmodel.lowering.kernels import attach_kernel, elementwise, norms
from costmodel.lowering.latent_attention import latent_attention_communications, latent_attention_operators
from costmodel.lowering.linear_attention import linear_attention_communications, linear_attention_operators
from costmodel.lowering.mamba import mamba_communications, mamba_operators
from costmodel.lowering.mlp import mlp_communications, mlp_operators
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Operator

OPERATORS: dict[type, Callable[[Any, Shape], tuple[Operator, ...]]] = {
    Attention: attention_operators,
    LatentAttention: latent_attention_operators,
    LinearAttention: linear_attention_operators,
    Mamba: mamba_operators,
    Mlp: mlp_operators,
    Experts: experts_operators,
}
"""Function that returns the operators of a block, by its record."""

COMMUNICATIONS: dict[type, Callable[[Any, Shape], tuple[Communication, ...]]] = {
    Attention: attention_communications,
    LatentAttention: latent_attention_communications,
    LinearAttention: linear_attention_communications,
    Mamba: mamba_communications,
    Mlp: mlp_communications,
    Experts: experts_communications,
}
"""Function that returns the collectives of a block, by its record."""

GRAPH_MODULE: dict[type, str] = {
    Attention: "attn",
    LatentAttention: "attn",
    LinearAttention: "attn",
    Mamba: "mamba",
    Mlp: "mlp",
}
"""
The module of CUDA graphs that holds a block with its norms and its residual.

Megatron-LM, ``megatron/core/transformer/transformer_layer.py:936`` (``_get_submodules_under_cudagraphs``, of
megatron-core 0.16.1), and ``megatron/core/ssm/mamba_layer.py:93``. Experts name it for each operator; their residual
comes after them.
"""


def layer_operators(layer: Layer, shape: Shape) -> tuple[Operator, ...]:
    """
    Return every operator of one layer for one micro-batch on one device.

    This is the one source of the layer's parameters, FLOPs, memory traffic and saved activations.

    Parameters
    ----------
    layer
        The blocks.
    shape
        The micro-batch and the degrees; its numbers may be arrays that broadcast.
    """
    around: list[Operator] = []
    inside: list[Operator] = []
    residuals: list[Operator] = []
    shares = _shares(layer.num_norms, len(layer.blocks))
    for block, num_norms in zip(layer.blocks, shares, strict=True):
        module = GRAPH_MODULE.get(type(block), "")
        normed = norms("norms", shape, count=num_norms, norm=layer.norm)
        around += [replace(normed, graph_module=module or "moe_router")] if num_norms else []
        operators = OPERATORS[type(block)](block, shape)
        inside += [replace(operator, graph_module=module) for operator in operators] if module else operators
        residuals.append(replace(_residual(shape), graph_module=module))
    return (*around, *inside, *residuals)


def _shares(number: int, blocks: int) -> list[int]:
    """Return the number of norms before each block; if they do not divide evenly, the first blocks have more."""
    return [number // blocks + (index < number % blocks) for index in range(blocks)]


def layer_communications(layer: Layer, shape: Shape) -> tuple[Communication, ...]:
    """
    Return every collective of one layer for one micro-batch on one device; some have zero bytes.

    Parallel blocks share the gather and the sum of the forward pass. In the backward pass each one sums the gradients
    of its input.

    Parameters
    ----------
    layer
        The blocks.
    shape
        The micro-batch and the degrees; its numbers may be arrays that broadcast.
    """
    first, *others = (COMMUNICATIONS[type(block)](block, shape) for block in layer.blocks)
    if layer.parallel_blocks:
        others = [tuple(replace(one, forward=0) if one.group == "tp" else one for one in block) for block in others]
    return (*first, *(collective for block in others for collective in block))


def mtp_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """Return the operators of all layers of multi-token prediction; empty if the model has none."""
    blocks = (layer_operators(layer, shape) for layer in model.mtp_layers)
    return tuple(operator for block in blocks for operator in next_token_operators(model, shape, block))


def mtp_projection_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """Return multi-token prediction outside its transformer layers: embedding, projection, norms, head, loss."""
    return tuple(operator for _ in model.mtp_layers for operator in next_token_operators(model, shape, ()))


def mtp_projection_communications(model: Model, shape: Shape) -> tuple[Communication, ...]:
    """Return the collectives of :func:`mtp_projection_operators`."""
    return tuple(collective for _ in model.mtp_layers for collective in next_token_communications(model, shape, ()))


def mtp_communications(model: Model, shape: Shape) -> tuple[Communication, ...]:
    """Return the collectives of all layers of multi-token prediction."""
    blocks = (layer_communications(layer, shape) for layer in model.mtp_layers)
    return tuple(collective for block in blocks for collective in next_token_communications(model, shape, block))


def _residual(shape: Shape) -> Operator:
    """Return the addition after a block: two reads and a write, in both passes; keeps the dropout mask."""
    elements = shape.tokens * shape.hidden_size / shape.sequence_shards
    added = elementwise(
        "residuals", shape, elements=elements, forward_passes=3, backward_passes=3, all_counted=True, kernels=1
    )
    rows = shape.tokens / shape.sequence_shards
    added = attach_kernel(added, shape, "residual", rows=rows, width=shape.hidden_size)
    return replace(added, saved_bytes=shape.memory.dropout_mask_bytes * elements, saved_as="dropout")
