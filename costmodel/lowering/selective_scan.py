"""Mamba of the first generation: a recurrence per channel, token by token, without matmuls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.facts.model import SelectiveScan
from costmodel.lowering.collectives import tensor_parallel, tensor_parallel_collectives
from costmodel.lowering.kernels import elementwise, matmul, output_projection
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Operator

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
    small_norms = elementwise(
        "scan_norm",
        shape,
        elements=rows * small,
        forward_passes=2,
        backward_passes=3,
        kernels=3,
        parameters=small if scan.norms == "weighted" else 0.0,
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
        *((small_norms,) if scan.norms != "none" else ()),
        replace(steps, saved_bytes=shape.activation_bytes * rows * small, saved_as="mamba"),
        recurrence,
        output_projection(shape, inputs=width, bias=scan.bias),
    )


def selective_scan_communications(scan: SelectiveScan, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives; steps, B and C depend on all channels, so that ranks sum them, too."""
    summed = shape.activation_bytes * shape.tokens * (scan.step_rank + 2 * scan.state_size)
    summed = summed * np.where(np.asarray(shape.tp) > 1, 1.0, 0.0)[()]
    return (
        *tensor_parallel_collectives(shape),
        tensor_parallel("all_reduce", shape, nbytes=summed, forward=1, backward=1),
    )
