"""Operators of linear attention: a running state replaces the score of each pair of tokens."""

from __future__ import annotations

from costmodel.facts.model import LinearAttention
from costmodel.lowering.collectives import ring, tensor_parallel_collectives
from costmodel.lowering.kernels import elementwise, matmul, output_projection
from costmodel.lowering.shape import Shape
from costmodel.record import record
from costmodel.timing.work import Communication, Numbers, Operator

LIGHTNING_CHUNK = 256
"""Tokens per block of lightning attention: ``block_size`` of MiniMax-Text-01's config.json."""

DELTA_CHUNK = 64
"""Tokens per chunk of the gated delta rule (Yang et al., arXiv 2412.06464; flash-linear-attention's kernels)."""


@record(frozen=True, kw_only=True, slots=True)
class _Widths:
    """Elements per token on one device: projections, scalars, and output."""

    queries_keys_values: Numbers
    gate: Numbers
    scalars: Numbers
    output: Numbers


def linear_attention_operators(attention: LinearAttention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: projections, short convolution, the recurrence in chunks, gated norm, output projection.

    Saved are the input, queries, keys and values, the core's output, the gate, and the input of the output projection.
    A convolution or activation before the core saves queries, keys and values twice: before and after it.
    """
    widths = _widths(attention, shape)
    return (
        *_projections(attention, shape, widths),
        _convolution(attention, shape, widths),
        _core(attention, shape, widths),
        _lower_gated_norm(attention, shape, widths),
        output_projection(shape, inputs=widths.output),
    )


def linear_attention_communications(attention: LinearAttention, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives of the block, and the transfer of the context-parallel state."""
    state = attention.num_value_heads * attention.key_head_dim * attention.value_head_dim / shape.tp
    return (*tensor_parallel_collectives(shape), ring(shape, width=state * shape.mbs / shape.tokens))


def _widths(attention: LinearAttention, shape: Shape) -> _Widths:
    keys = attention.num_key_heads * attention.key_head_dim / shape.tp
    values = attention.num_value_heads * attention.value_head_dim / shape.tp
    scalars = 2 * attention.num_value_heads / shape.tp if attention.variant == "gated_delta" else 0.0
    return _Widths(queries_keys_values=2 * keys + values, gate=values, scalars=scalars, output=values)


def _projections(attention: LinearAttention, shape: Shape, widths: _Widths) -> tuple[Operator, ...]:
    """Return the projections of queries, keys, values and gate; for the delta rule also decay and step."""
    wide = matmul(
        "qkv",
        shape,
        rows=shape.tokens,
        inputs=shape.hidden_size,
        outputs=widths.queries_keys_values + widths.gate,
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )
    if attention.variant == "lightning":
        return (wide,)
    return (
        wide,
        matmul(
            "decay", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=widths.scalars, bias=widths.scalars
        ),
    )


def _convolution(attention: LinearAttention, shape: Shape, widths: _Widths) -> Operator:
    """Return the short depthwise convolution (if any) and activation, one pass over queries, keys and values."""
    elements = shape.tokens * widths.queries_keys_values
    return elementwise(
        "convolution",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        saved_elements=elements,
        saved_as="qkv",
        parameters=attention.conv_kernel * widths.queries_keys_values,
        flops=2 * attention.conv_kernel * elements,
    )


def _core(attention: LinearAttention, shape: Shape, widths: _Widths) -> Operator:
    """
    Return the recurrence in chunks: scores inside a chunk, a state between chunks.

    FLOPs per token and head, with chunk C and widths d_k, d_v: lightning has 2 (C d_k + C d_v + 2 d_k d_v). The gated
    delta rule has 2 (2 C d_k + C d_v + 3 d_k d_v) and a triangular solve of C (d_k + d_v).
    """
    key, value = attention.key_head_dim, attention.value_head_dim
    if attention.variant == "lightning":
        per_token = 2 * (LIGHTNING_CHUNK * (key + value) + 2 * key * value)
    else:
        per_token = 2 * (DELTA_CHUNK * (2 * key + value) + 3 * key * value) + DELTA_CHUNK * (key + value)
    flops = shape.tokens * per_token * attention.num_value_heads / shape.tp
    nbytes = shape.activation_bytes * shape.tokens * (widths.queries_keys_values + widths.output)
    return Operator(
        name="core_attention",
        kind="attention",
        dtype=shape.wide_dtype,
        flops=flops,
        backward_flops=2 * flops,
        bytes=nbytes,
        backward_bytes=2 * nbytes,
        saved_bytes=shape.activation_bytes * shape.tokens * widths.queries_keys_values,
        saved_as="qkv",
        rows=shape.tokens,
        shards=shape.tp,
    )


def _lower_gated_norm(attention: LinearAttention, shape: Shape, widths: _Widths) -> Operator:
    """Return the norm of the core's output times a gate; the delta rule's norm weight is one head wide."""
    elements = shape.tokens * widths.output
    return elementwise(
        "output_gate",
        shape,
        elements=elements,
        forward_passes=3,
        backward_passes=5,
        saved_elements=2 * elements,
        saved_as="core_attention",
        parameters=widths.output if attention.variant == "lightning" else attention.value_head_dim,
    )
