"""Short convolution: a causal convolution over a few tokens between two gates, instead of attention (LFM2)."""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import ShortConvolution
from costmodel.lowering.collectives import tensor_parallel_collectives
from costmodel.lowering.kernels import elementwise, matmul, output_projection
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Numbers, Operator

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
