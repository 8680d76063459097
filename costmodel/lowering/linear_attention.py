"""Operators of linear attention: a running state replaces the score of each pair of tokens."""

from __future__ import annotations

from dataclasses import replace

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

DECAY_ELEMENTS = 2
"""16-bit elements of a decay per channel, which kernels keep in 32 bits (flash-linear-attention, ``chunk_kda``)."""


@record(frozen=True, kw_only=True, slots=True)
class _Widths:
    """Elements per token on one device: projections, decays per channel, scalars, and output."""

    queries_keys_values: Numbers
    decays: Numbers
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
    of_head = {"lightning": 0, "gated_delta": 2, "kda": 1}[attention.variant]
    return _Widths(
        queries_keys_values=2 * keys + values,
        decays=attention.num_value_heads * attention.key_head_dim / shape.tp if attention.decay_rank else 0.0,
        scalars=of_head * attention.num_value_heads / shape.tp,
        output=values,
    )


def _projections(attention: LinearAttention, shape: Shape, widths: _Widths) -> tuple[Operator, ...]:
    """
    Return the projections of queries, keys, values and gate; for the delta rule also decay and step.

    The decay of the gated delta rule is a number per head. Under KDA it is one per channel, of a low rank, as the gate
    may be; its bias is a number per channel, and one per head scales it.
    """
    is_low = bool(attention.gate_rank)
    wide = matmul(
        "qkv",
        shape,
        rows=shape.tokens,
        inputs=shape.hidden_size,
        outputs=widths.queries_keys_values + (0 if is_low else widths.output),
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )
    if attention.variant == "lightning":
        return (wide,)
    bias = 0 if attention.decay_rank else widths.scalars
    step = matmul("decay", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=widths.scalars, bias=bias)
    decays = _low_rank("decays", shape, rank=attention.decay_rank, outputs=widths.decays)
    decays = tuple(
        replace(one, parameters=one.parameters + widths.decays + widths.scalars) if one.name == "decays_up" else one
        for one in decays
    )
    return (wide, step, *decays, *_low_rank("gate", shape, rank=attention.gate_rank, outputs=widths.output))


def _low_rank(name: str, shape: Shape, *, rank: int, outputs: Numbers) -> tuple[Operator, ...]:
    """Return a projection of the hidden size by way of a rank, whose first half every tensor-parallel rank has."""
    if not rank:
        return ()
    down = matmul(f"{name}_down", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=rank)
    kept = shape.tokens * rank
    up = matmul(
        f"{name}_up", shape, rows=shape.tokens, inputs=rank, outputs=outputs, saved_elements=kept, saved_as="latent"
    )
    return down, up


def _convolution(attention: LinearAttention, shape: Shape, widths: _Widths) -> Operator:
    """Return the short depthwise convolution (if any) and activation, one pass over queries, keys and values."""
    elements = shape.tokens * (widths.queries_keys_values + DECAY_ELEMENTS * widths.decays)
    return elementwise(
        "convolution",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        saved_elements=elements,
        saved_as="qkv",
        parameters=attention.conv_kernel * widths.queries_keys_values,
        flops=2 * attention.conv_kernel * shape.tokens * widths.queries_keys_values,
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
    inputs = widths.queries_keys_values + DECAY_ELEMENTS * widths.decays
    nbytes = shape.activation_bytes * shape.tokens * (inputs + widths.output)
    return Operator(
        name="core_attention",
        kind="attention",
        dtype=shape.wide_dtype,
        flops=flops,
        backward_flops=2 * flops,
        bytes=nbytes,
        backward_bytes=2 * nbytes,
        saved_bytes=shape.activation_bytes * shape.tokens * inputs,
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
