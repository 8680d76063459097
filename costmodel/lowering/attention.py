"""Softmax attention with query, key and value heads: MHA, GQA, MQA."""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import Attention
from costmodel.lowering.collectives import context_parallel, tensor_parallel_collectives
from costmodel.lowering.indexer import indexer_operators
from costmodel.lowering.kernels import (
    attach_torch_function,
    context_output,
    core_attention,
    elementwise,
    lower_shared_input,
    matmul,
    output_projection,
)
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Numbers, Operator


def attention_operators(attention: Attention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators of attention: projections, rotary position, core, output projection (MoFa's Table 2, extended).

    Query heads together may be narrower or wider than the hidden size. If there are more tensor-parallel ranks than KV
    heads, the KV heads are replicated.
    """
    heads = attention.num_heads / shape.tp
    queries, keys, outputs = heads * attention.head_dim, _key_width(attention, shape), heads * attention.value_width
    core = core_attention(
        shape,
        heads=heads,
        kv_heads=kv_heads_per_device(attention, shape),
        qk_head_dim=attention.head_dim,
        v_head_dim=attention.value_width,
        window=attention.indexer.num_keys if attention.indexer else attention.window,
        chunk=attention.chunk,
        sinks=heads if attention.sinks else 0.0,
    )
    return (
        *_qkv(attention, shape, queries=queries, keys=keys),
        *_query_key_norm(attention, shape, queries=queries, keys=keys),
        *_rotary(attention, shape, elements=shape.tokens * (queries + keys)),
        *indexer_operators(attention.indexer, shape, query_inputs=shape.hidden_size, core=core[0]),
        *core,
        *_output_gate(attention, shape, elements=shape.tokens * outputs),
        *context_output(shape, width=outputs),
        output_projection(shape, inputs=outputs, bias=attention.output_bias),
    )


def attention_communications(attention: Attention, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives of the block, and those of context-parallel ranks."""
    index_key = attention.indexer.head_dim if attention.indexer else 0
    heads = attention.num_heads / shape.tp
    exchanged = context_parallel(
        shape,
        queries=heads * attention.head_dim,
        keys=kv_heads_per_device(attention, shape) * (attention.head_dim + attention.value_width) + index_key,
        outputs=heads * attention.value_width,
    )
    return (*tensor_parallel_collectives(shape), *exchanged)


def kv_heads_per_device(attention: Attention, shape: Shape) -> Numbers:
    """
    Number of key-value heads on one device, at least 1.

    Derivation: tensor parallelism splits a_kv heads into a_kv / t each; a query head needs a whole one, so that more
    ranks than heads hold copies.
    """
    return np.maximum(attention.num_kv_heads / shape.tp, 1.0)


def _key_width(attention: Attention, shape: Shape) -> Numbers:
    return kv_heads_per_device(attention, shape) * attention.head_dim


def _qkv(attention: Attention, shape: Shape, *, queries: Numbers, keys: Numbers) -> tuple[Operator, ...]:
    """Return the projections of one input: one matmul, or three; and that of a gate per head."""
    widths = {"query_projection": queries * (2 if attention.output_gate else 1), "key_projection": keys}
    if not attention.key_is_value:
        widths["value_projection"] = kv_heads_per_device(attention, shape) * attention.value_width
    if shape.kernels.fused_projections:
        widths = {"qkv": sum(widths.values())}
    projected = lower_shared_input(
        shape,
        widths,
        has_bias=attention.qkv_bias,
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )
    if not attention.head_gate:
        return projected
    heads = attention.num_heads / shape.tp
    return (*projected, matmul("head_gate", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=heads))


def _query_key_norm(attention: Attention, shape: Shape, *, queries: Numbers, keys: Numbers) -> tuple[Operator, ...]:
    """Return the norm of queries and keys, which keeps its input."""
    if attention.qk_norm == "none":
        return ()
    elements = shape.tokens * (queries + keys)
    is_per_head = attention.qk_norm == "per_head"
    normed = elementwise(
        "qk_norm",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        kernels=2,
        saved_elements=elements,
        saved_as="qkv",
        parameters=2 * attention.head_dim if is_per_head else queries + keys,
    )
    width = attention.head_dim if is_per_head else queries
    return (attach_torch_function(normed, shape, "rms_norm", rows=elements / width, width=width),)


UNFUSED_ROTARY_PASSES = 10
"""
Passes of 2 bytes of an unfused rotary embedding: a cast to fp32 (6 bytes), the product with complex numbers (8), a cast
back (6).
"""

UNFUSED_ROTARY_KERNELS = 3


def _rotary(attention: Attention, shape: Shape, *, elements: Numbers) -> tuple[Operator, ...]:
    if not attention.rotary:
        return ()
    passes, kernels = (2, 1) if shape.kernels.fused_kernels else (UNFUSED_ROTARY_PASSES, UNFUSED_ROTARY_KERNELS)
    rotated = elementwise(
        "rotary",
        shape,
        elements=elements,
        forward_passes=passes,
        backward_passes=passes,
        all_counted=True,
        kernels=2 * kernels,
    )
    width = attention.head_dim
    heads = elements / (shape.tokens * width)
    return (attach_torch_function(rotated, shape, "rotary", rows=shape.tokens, heads=heads, qk_head_dim=width),)


def _output_gate(attention: Attention, shape: Shape, *, elements: Numbers) -> tuple[Operator, ...]:
    """Return the gate on the attention's output, which keeps the gate and its input."""
    if not (attention.output_gate or attention.head_gate):
        return ()
    gates = 1.0 if attention.output_gate else 1 / attention.value_width
    return (
        elementwise(
            "output_gate",
            shape,
            elements=elements,
            forward_passes=2 + gates,
            backward_passes=3 + 2 * gates,
            saved_elements=(1 + gates) * elements,
            saved_as="core_attention",
        ),
    )
