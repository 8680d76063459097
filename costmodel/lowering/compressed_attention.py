"""Attention to a window and to compressed entries of all earlier tokens, with one key head (DeepSeek-V4)."""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import CompressedAttention
from costmodel.lowering.collectives import ring, tensor_parallel_collectives
from costmodel.lowering.indexer import indexer_communications, indexer_operators
from costmodel.lowering.kernels import (
    context_output,
    core_attention,
    elementwise,
    matmul,
    mean_entries,
    output_projection,
)
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Numbers, Operator


def compression_operators(attention: CompressedAttention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: low-rank queries, the one key that is the value, compressor, indexer, core, grouped output.

    Query heads and groups of the output are split over tensor-parallel ranks. The key head, the compressor and the
    down-projection of queries are whole on each of them. One softmax is over the window, the entries and a sink.
    Parameters per layer without norms and compressor: h r + r a d + h d + a d r_o + g r_o h.

    References
    ----------
    transformers 5.24, ``models/deepseek_v4/modeling_deepseek_v4.py``: ``DeepseekV4Attention``.
    """
    heads = attention.num_heads / shape.tp
    width, rank, indexer = heads * attention.head_dim, attention.q_lora_rank, attention.indexer
    core = core_attention(
        shape,
        heads=heads,
        kv_heads=1,
        qk_head_dim=attention.head_dim,
        v_head_dim=attention.head_dim,
        window=attention.window,
        entries=mean_entries(shape, attention.ratio, indexer.num_keys if indexer else None),
        sinks=heads,
    )
    kept = shape.tokens * rank / shape.sequence_shards
    return (
        _project_input(attention, shape),
        _normalise("latent_norms", shape, elements=shape.tokens * (rank + attention.head_dim), saved_as="norm"),
        matmul("q_up", shape, rows=shape.tokens, inputs=rank, outputs=width, saved_elements=kept, saved_as="latent"),
        _normalise("qk_norm", shape, elements=shape.tokens * width, saved_as="qkv"),
        _rotate(attention, shape, heads=2 * heads + 1),
        *_compress(attention, shape),
        *indexer_operators(indexer, shape, query_inputs=rank, core=core[0]),
        *core,
        *context_output(shape, width=width),
        *_project_output(attention, shape, width=width),
    )


def compression_communications(attention: CompressedAttention, shape: Shape) -> tuple[Communication, ...]:
    """
    Return the tensor-parallel collectives of the block, and what context-parallel ranks pass on.

    That are the compressed entries and the indexer's keys to all others, and a window to the next rank.
    """
    index_key = attention.indexer.head_dim if attention.indexer else 0
    entries = (attention.head_dim + index_key) / attention.ratio if attention.ratio else 0.0
    window = attention.head_dim * attention.window * shape.mbs / shape.tokens / np.maximum(np.asarray(shape.cp) - 1, 1)
    return (
        *tensor_parallel_collectives(shape),
        *indexer_communications(attention.indexer, shape),
        ring(shape, width=entries + window),
    )


def _project_input(attention: CompressedAttention, shape: Shape) -> Operator:
    """Return the down-projection of queries and the projection of the key, which keep their input and have norms."""
    outputs = attention.q_lora_rank + attention.head_dim
    return matmul(
        "kv_down",
        shape,
        rows=shape.tokens,
        inputs=shape.hidden_size,
        outputs=outputs,
        bias=outputs,  # weights of their norms
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )


def _normalise(name: str, shape: Shape, *, elements: Numbers, saved_as: str) -> Operator:
    return elementwise(
        name, shape, elements=elements, forward_passes=2, backward_passes=3, saved_elements=elements, saved_as=saved_as
    )


def _rotate(attention: CompressedAttention, shape: Shape, *, heads: Numbers) -> Operator:
    """Return the rotation of queries, of the key, and back of the output, on the last channels of each head."""
    return elementwise(
        "rotary",
        shape,
        all_counted=True,
        elements=shape.tokens * heads * attention.rotary_dim,
        forward_passes=2,
        backward_passes=2,
        kernels=3,
    )


def _compress(attention: CompressedAttention, shape: Shape) -> tuple[Operator, ...]:
    """Return the projections of entries and their gates, and the weighted sum of each few tokens."""
    if not attention.ratio:
        return ()
    width = attention.num_series * attention.head_dim
    projected = matmul("compressor", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=2 * width)
    elements = shape.tokens * 2 * width
    summed = elementwise(
        "compression",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        kernels=2,
        saved_elements=elements,
        saved_as="latent",
        parameters=attention.ratio * width + attention.head_dim,
    )
    return projected, summed


def _project_output(attention: CompressedAttention, shape: Shape, *, width: Numbers) -> tuple[Operator, ...]:
    """Return the block-diagonal projection of groups of heads to a rank each, and that of all ranks to the output."""
    groups = attention.num_groups / shape.tp
    grouped = matmul(
        "output_groups",
        shape,
        rows=shape.tokens * groups,
        inputs=attention.num_heads * attention.head_dim / attention.num_groups,
        outputs=attention.output_rank,
        groups=groups,
        saved_elements=shape.tokens * width,
        saved_as="output_projection",
    )
    return grouped, output_projection(shape, inputs=groups * attention.output_rank)
