"""
Layers whose tokens meet in a state or a window: linear attention, Mamba-2, Mamba, and short convolutions (LFM2).

Mamba-2 is projections, a short convolution and a recurrence in chunks, as in Megatron-LM's ``MambaMixer``. The
recurrence is that of the kernels ``mamba_split_conv1d_scan_combined`` of mamba-ssm 2.3.2
(``mamba_ssm/ops/triton/ssd_combined.py``), which keep little and recompute much in the backward pass.
"""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import LinearAttention, Mamba, SelectiveScan, ShortConvolution
from costmodel.lowering.collectives import ring, tensor_parallel, tensor_parallel_collectives
from costmodel.lowering.kernels import elementwise, matmul, output_projection
from costmodel.lowering.shape import Shape
from costmodel.record import record, replace
from costmodel.timing.work import Communication, Numbers, Operator, ScanSize

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


STATE_BYTES = 4
"""Bytes per element of chunk states and of scores inside a chunk: fp32 (``states_in_fp32``, ``output_dtype``)."""


@record(frozen=True, kw_only=True, slots=True)
class _MambaWidths:
    """Elements per token on one device: d of the heads, 2 G N of B and C together, one step per head."""

    inner: Numbers
    shared: Numbers
    steps: Numbers

    @property
    def convolution_width(self) -> Numbers:
        """Elements per token in the convolution: x, B, C."""
        return self.inner + self.shared

    @property
    def input_projection(self) -> Numbers:
        """Elements per token of the input projection: gate, x, B, C, steps."""
        return self.inner + self.convolution_width + self.steps


def mamba_operators(mamba: Mamba, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: input projection, convolution, recurrence with its gate, grouped norm, output projection.

    Saved are the input, the whole output of the input projection (the convolution is recomputed), the recurrence's
    output before and after its gate, and the normed output. Context-parallel ranks exchange tokens for heads: each one
    works on all tokens of its share of the heads, which is as much work as its share of the tokens.
    """
    widths = _mamba_widths(mamba, shape)
    return (
        matmul(
            "in_projection",
            shape,
            rows=shape.tokens,
            inputs=shape.hidden_size,
            outputs=widths.input_projection,
            bias=widths.input_projection if mamba.bias else 0,
            saved_elements=shape.input_elements_to_keep,
            saved_as="attention_input",
        ),
        _mamba_convolution(mamba, shape, widths),
        _scan(mamba, shape, widths),
        *((_norm(shape, widths),) if mamba.norm else ()),
        output_projection(shape, inputs=widths.inner, bias=mamba.bias),
    )


def _norm(shape: Shape, widths: _MambaWidths) -> Operator:
    return elementwise(
        "scan_norm",
        shape,
        elements=shape.tokens * widths.inner,
        forward_passes=2,
        backward_passes=3,
        saved_elements=shape.tokens * widths.inner,
        saved_as="mamba",
        parameters=widths.inner,
    )


def mamba_communications(mamba: Mamba, shape: Shape) -> tuple[Communication, ...]:
    """
    Return the tensor-parallel collectives, and the all-to-alls of context-parallel ranks from tokens to heads and back.

    References
    ----------
    Megatron-LM, megatron/core/ssm/mamba_context_parallel.py (``pre_conv_ssm``, ``post_conv_ssm``); B and C of a group
    that ranks share are sent once more per rank, not counted.
    """
    widths = _mamba_widths(mamba, shape)
    exchanged = shape.activation_bytes * shape.tokens * (widths.input_projection + widths.inner)
    return (
        *tensor_parallel_collectives(shape),
        Communication(group="cp", kind="all_to_all", nbytes=exchanged, forward=1, backward=1),
    )


def _mamba_widths(mamba: Mamba, shape: Shape) -> _MambaWidths:
    return _MambaWidths(
        inner=mamba.num_heads * mamba.head_dim / shape.tp,
        shared=2 * mamba.num_groups * mamba.state_size / shape.tp,
        steps=mamba.num_heads / shape.tp,
    )


def _mamba_convolution(mamba: Mamba, shape: Shape, widths: _MambaWidths) -> Operator:
    """
    Return the depthwise causal convolution and SiLU over x, B and C, one kernel.

    The backward pass recomputes it (a read, a write) before its own kernel (two reads, a write).
    """
    elements = shape.tokens * widths.convolution_width
    taps = mamba.conv_kernel + (1 if mamba.conv_bias else 0)
    one_kernel = elementwise(
        "convolution",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=5,
        parameters=taps * widths.convolution_width,
        flops=2 * mamba.conv_kernel * elements,
    )
    return replace(one_kernel, kind="copy")


def _scan(mamba: Mamba, shape: Shape, widths: _MambaWidths) -> Operator:
    r"""
    Return the recurrence in chunks of Q tokens, with H heads of width P, states of N, G groups, d = H P.

    .. math::

        F_{FWD} = 2 H (2 N P + Q P) + 2 G Q N, \qquad F_{BWD} = 2 H (5 N P + 3 Q P) + 6 G Q N

    per token. Forward: states of the chunks and their effect on the output, N P each; outputs from inside the chunk,
    Q P; the scores of B and C. Backward: states and scores are recomputed. The gradients of states, x, B and C take N P
    each, those of x, scores and decays Q P each. Two matmuls lead from the gradient of the scores to those of B and C.

    The traffic is the reads and writes of those kernels per token. Elements of d and G N have 16 bits; the states d N /
    Q and the scores G Q are in fp32. Steps and decays, one element per head, are left out:

    - forward: x twice, gate, output with and without it; B and C to the state, the scores and the output. States go out
      and in, in fp32 and in 16 bits; scores go out and in.
    - backward: x six times and the output's gradient seven times, one of them written, through the ten kernels. Gate,
      output, and the gradients of gate and x; states and scores made again, and their gradients.

    References
    ----------
    Dao and Gu, arXiv:2405.21060, section 6; mamba-ssm 2.3.2, ``_mamba_chunk_scan_combined_fwd`` and ``_bwd``.
    """
    size, chunk = mamba.state_size, mamba.chunk_size
    state_flops = 2 * size * widths.inner
    pair_flops = 2 * chunk * widths.inner
    score_flops = chunk * widths.shared
    states = widths.inner * size / chunk
    scores = mamba.num_groups / shape.tp * chunk
    groups = widths.shared / 2
    nbytes = shape.activation_bytes * (5 * widths.inner + 4 * groups + 2 * states) + STATE_BYTES * 2 * (states + scores)
    backward = shape.activation_bytes * (16 * widths.inner + 11 * groups + 5 * states)
    backward = backward + STATE_BYTES * (6 * states + 6 * scores + 4 * groups)
    return Operator(
        name="scan",
        kind="scan",
        size=ScanSize(
            tokens=shape.tokens,
            heads=widths.steps,
            head_dim=mamba.head_dim,
            state_size=size,
            num_groups=mamba.num_groups / shape.tp,
            chunk_size=chunk,
        ),
        dtype=shape.wide_dtype,
        flops=shape.tokens * (2 * state_flops + pair_flops + score_flops),
        backward_flops=shape.tokens * (5 * state_flops + 3 * pair_flops + 3 * score_flops),
        bytes=shape.tokens * nbytes,
        backward_bytes=shape.tokens * backward,
        kernels=5,
        saved_bytes=shape.activation_bytes * shape.tokens * (widths.input_projection + widths.inner),
        saved_as="mamba",
        parameters=3 * widths.steps,
        rows=shape.tokens,
        shards=shape.tp,
    )


EXPONENTIAL_PASSES = 0.45
"""
Passes of 16-bit elements over memory in the time of an exponential, of which the recurrence has one per channel, token
and state. An SM has 16 per clock (CUDA C++ Programming Guide, arithmetic instructions of 8.0 and 9.0): on an A100 or
H100 0.9 bytes pass in that time.
"""


def selective_scan_operators(scan: SelectiveScan, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: input projection, convolution, projections of steps, B and C, recurrence, output projection.

    Convolution and recurrence keep their inputs: what the input projection puts out, the convolution's output and the
    steps; states are recomputed. The recurrence reads input, gate and steps and writes its output, or computes an
    exponential per state if that takes longer. The backward pass does all of it twice and writes three gradients.
    Its FLOPs are those of the states' product with C, 2 d N per token; backward it is repeated and has two gradients.

    References
    ----------
    Gu and Dao, arXiv:2312.00752, section 3.3; transformers 5.24, ``models/falcon_mamba/modeling_falcon_mamba.py``.
    """
    width, rows = scan.channels / shape.tp, shape.tokens
    elements, small = rows * width, scan.step_rank + 2 * scan.state_size
    passes = max(4.0, EXPONENTIAL_PASSES * scan.state_size)
    steps = matmul("steps_up", shape, rows=rows, inputs=scan.step_rank, outputs=width, bias=width)
    convolved = elementwise(
        "convolution",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=5,
        all_counted=True,
        parameters=(scan.conv_kernel + int(scan.conv_bias)) * width,
        flops=2 * scan.conv_kernel * elements,
    )
    recurrence = elementwise(
        "scan",
        shape,
        elements=elements,
        forward_passes=passes,
        backward_passes=2 * passes + 3,
        all_counted=True,
        saved_elements=3 * elements,
        saved_as="mamba",
        parameters=width * (scan.state_size + 1),
    )
    products = 2 * elements * scan.state_size
    recurrence = replace(recurrence, kind="scan", dtype=shape.wide_dtype, flops=products, backward_flops=3 * products)
    return (
        matmul(
            "in_projection",
            shape,
            rows=rows,
            inputs=shape.hidden_size,
            outputs=2 * width,
            bias=2 * width if scan.bias else 0,
            saved_elements=shape.input_elements_to_keep,
            saved_as="attention_input",
        ),
        convolved,
        matmul("steps_down", shape, rows=rows, inputs=width, outputs=small, saved_elements=elements, saved_as="mamba"),
        *(_small_norms(scan, shape, elements=rows * small, weights=small) if scan.norms != "none" else ()),
        replace(steps, saved_bytes=shape.activation_bytes * rows * small, saved_as="mamba"),
        recurrence,
        output_projection(shape, inputs=width, bias=scan.bias),
    )


def _small_norms(scan: SelectiveScan, shape: Shape, *, elements: Numbers, weights: Numbers) -> tuple[Operator, ...]:
    """Return the norms of steps, B and C, with weights or without."""
    parameters = weights if scan.norms == "weighted" else 0.0
    norms = elementwise(
        "scan_norm", shape, elements=elements, forward_passes=2, backward_passes=3, kernels=3, parameters=parameters
    )
    return (norms,)


def selective_scan_communications(scan: SelectiveScan, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives; steps, B and C depend on all channels, so that ranks sum them, too."""
    summed = shape.activation_bytes * shape.tokens * (scan.step_rank + 2 * scan.state_size)
    summed = summed * np.where(np.asarray(shape.tp) > 1, 1.0, 0.0)[()]
    return (
        *tensor_parallel_collectives(shape),
        tensor_parallel("all_reduce", shape, nbytes=summed, forward=1, backward=1),
    )


PIECES = 2
"""Pieces of the sequence that a context-parallel rank owns, early and late; each lacks the tokens before it."""


def short_convolution_operators(convolution: ShortConvolution, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: the projection to both gates and the value, the gated convolution, the output projection.

    Both gates are passes of their own around the convolution's kernel: a product (3), the convolution (2), a product
    (3). Backward: each product reads its gradient and both factors and writes two gradients (5), the convolution reads
    its gradient and its input and writes one (3). Saved are the input, all that the projection puts out, and the
    convolution's input and output.

    References
    ----------
    transformers 5.24, ``models/lfm2/modeling_lfm2.py``: ``Lfm2ShortConv``.
    """
    width, bias = convolution.channels / shape.tp, int(convolution.bias)
    elements = shape.tokens * width
    return (
        matmul(
            "in_projection",
            shape,
            rows=shape.tokens,
            inputs=shape.hidden_size,
            outputs=3 * width,
            bias=bias * 3 * width,
            saved_elements=shape.input_elements_to_keep,
            saved_as="attention_input",
        ),
        elementwise(
            "convolution",
            shape,
            elements=elements,
            forward_passes=8,
            backward_passes=13,
            all_counted=True,
            kernels=3,
            saved_elements=5 * elements,
            saved_as="mamba",
            parameters=(convolution.conv_kernel + bias) * width,
            flops=2 * convolution.conv_kernel * elements,
        ),
        output_projection(shape, inputs=width, bias=convolution.bias),
    )


def short_convolution_communications(convolution: ShortConvolution, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives, and the last tokens of each piece, which the next rank's piece reads."""
    before = PIECES * shape.mbs * (convolution.conv_kernel - 1) * convolution.channels / shape.tp
    sent: Numbers = np.where(np.asarray(shape.cp) > 1, shape.activation_bytes * before, 0.0)[()]
    return (
        *tensor_parallel_collectives(shape),
        Communication(group="cp", kind="send", nbytes=sent, forward=1, backward=1, waits=True),
    )
