"""Operators of the dense feed-forward block."""

from __future__ import annotations

from costmodel.facts.model import Mlp
from costmodel.lowering.collectives import tensor_parallel_collectives
from costmodel.lowering.kernels import EAGER, attach_torch_function, elementwise, lower_shared_input, row_parallel
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Numbers, Operator


def mlp_operators(mlp: Mlp, shape: Shape) -> tuple[Operator, ...]:
    """Return linear, activation and linear: the last three rows of MoFa's Table 2 before the head."""
    return feed_forward_operators(
        shape,
        ffn_hidden_size=mlp.ffn_hidden_size,
        gated=mlp.gated,
        bias=mlp.bias,
        squared_relu=mlp.squared_relu,
        saved_input=shape.input_elements_to_keep,
    )


def mlp_communications(mlp: Mlp, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives of the block, which do not depend on its width."""
    return tensor_parallel_collectives(shape)


def feed_forward_operators(
    shape: Shape,
    *,
    ffn_hidden_size: int,
    gated: bool,
    bias: bool,
    squared_relu: bool,
    saved_input: Numbers,
    prefix: str = "",
) -> tuple[Operator, ...]:
    """
    Return a dense feed-forward block split by columns, then rows, over the tensor-parallel ranks.

    Parameters
    ----------
    shape
        The micro-batch.
    ffn_hidden_size, gated, bias, squared_relu
        Sizes and switches of the block, as in :class:`costmodel.facts.model.Mlp`.
    saved_input
        Elements of the input kept here; 0 if another operator keeps that tensor.
    prefix
        Text in front of the operators' names.
    """
    width = ffn_hidden_size / shape.tp
    if gated and not shape.kernels.fused_projections:
        widths = {f"{prefix}gate_projection": width, f"{prefix}up_projection": width}
    else:
        widths = {f"{prefix}up": width * (2 if gated else 1)}
    return (
        *lower_shared_input(shape, widths, has_bias=bias, saved_elements=saved_input, saved_as=f"{prefix}mlp"),
        activation(
            f"{prefix}activation",
            shape,
            rows=shape.tokens,
            width=width,
            gated=gated,
            squared_relu=squared_relu,
            saved_as=f"{prefix}activation",
        ),
        row_parallel(f"{prefix}down", shape, inputs=width, bias=bias, saved_as=f"{prefix}mlp"),
    )


SQUARED_RELU_PASSES = (4, 9)
"""
Forward and backward passes of ReLU and the square after it, ``torch.pow(F.relu(x), 2)`` (Megatron-LM,
``megatron/training/activations.py``). Each reads and writes. Backward: the scaled base (3), its product with the
gradient (3), ReLU's mask (3).
"""


UNFUSED_GATE_PASSES = (5, 9)
"""
Forward and backward passes of an unfused SiLU gate: SiLU (2) and the product (3); backward two products and SiLU's
gradient (3 each).
"""


def activation(
    name: str,
    shape: Shape,
    *,
    rows: Numbers,
    width: Numbers,
    gated: bool,
    squared_relu: bool,
    saved_as: str,
    is_fused: bool = False,
) -> Operator:
    """
    Return the non-linearity, which keeps its input: both halves if gated, and the gate's activation if it is eager.

    Fused with its gate or its bias it is one kernel; ReLU and the square after it are several.

    Parameters
    ----------
    name, shape, saved_as
        As in :class:`Operator`; the micro-batch.
    rows, width
        Tokens, and elements of each in its output.
    gated
        True if a gate doubles the input.
    squared_relu
        True if the non-linearity is the square of ReLU, as in :class:`costmodel.facts.model.Mlp`.
    is_fused
        True if the square of ReLU is one kernel.
    """
    halves, elements = 2 if gated else 1, rows * width
    is_eager = gated and shape.memory.unfused_kernels
    forward_passes, backward_passes = halves + 1, 2 * halves + 1
    in_pieces = squared_relu and not is_fused
    if in_pieces:
        forward_passes, backward_passes = SQUARED_RELU_PASSES
    elif gated and not shape.kernels.fused_kernels:
        forward_passes, backward_passes = UNFUSED_GATE_PASSES
    made = elementwise(
        name,
        shape,
        elements=elements,
        forward_passes=forward_passes,
        backward_passes=backward_passes,
        all_counted=not in_pieces,
        saved_elements=(halves + is_eager) * elements,
        saved_as=f"{EAGER}{saved_as}" if is_eager else saved_as,
    )
    kernel = "squared_relu" if squared_relu else "swiglu" if gated else "gelu"
    return attach_torch_function(made, shape, kernel, rows=rows, width=width)
