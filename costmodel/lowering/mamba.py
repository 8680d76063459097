"""
Mamba-2: projections, a short convolution and a recurrence in chunks, as in Megatron-LM's ``MambaMixer``.

The recurrence is that of the kernels ``mamba_split_conv1d_scan_combined`` of mamba-ssm 2.3.2
(``mamba_ssm/ops/triton/ssd_combined.py``), which keep little and recompute much in the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.facts.model import Mamba
from costmodel.lowering.collectives import tensor_parallel_collectives
from costmodel.lowering.kernels import elementwise, matmul, output_projection
from costmodel.lowering.shape import Shape
from costmodel.record import record
from costmodel.timing.work import Communication, Numbers, Operator, ScanSize

STATE_BYTES = 4
"""Bytes per element of chunk states and of scores inside a chunk: fp32 (``states_in_fp32``, ``output_dtype``)."""


@record(frozen=True, kw_only=True, slots=True)
class _Widths:
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
    widths = _widths(mamba, shape)
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
        _convolution(mamba, shape, widths),
        _scan(mamba, shape, widths),
        *((_norm(shape, widths),) if mamba.norm else ()),
        output_projection(shape, inputs=widths.inner, bias=mamba.bias),
    )


def _norm(shape: Shape, widths: _Widths) -> Operator:
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
    widths = _widths(mamba, shape)
    exchanged = shape.activation_bytes * shape.tokens * (widths.input_projection + widths.inner)
    return (
        *tensor_parallel_collectives(shape),
        Communication(group="cp", kind="all_to_all", nbytes=exchanged, forward=1, backward=1),
    )


def _widths(mamba: Mamba, shape: Shape) -> _Widths:
    return _Widths(
        inner=mamba.num_heads * mamba.head_dim / shape.tp,
        shared=2 * mamba.num_groups * mamba.state_size / shape.tp,
        steps=mamba.num_heads / shape.tp,
    )


def _convolution(mamba: Mamba, shape: Shape, widths: _Widths) -> Operator:
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


def _scan(mamba: Mamba, shape: Shape, widths: _Widths) -> Operator:
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
