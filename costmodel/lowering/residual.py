"""The residual around a block: one sum, earlier sums besides it, or several streams that hyper-connections mix."""

from __future__ import annotations

from dataclasses import replace

from costmodel.lowering.kernels import attach_kernel, elementwise, matmul
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Numbers, Operator

MIXED_PASSES = ((2, 3), (3, 5))
"""
Forward and backward passes of hyper-connections over one stream, and over all streams.

Of the width of one stream: the block's input is written and its output read. Of all streams: read for the weights and
their sum, read to be mixed, written. The backward pass reads and writes their gradients besides.
"""


def residual_operators(shape: Shape, *, streams: int = 1, snapshots: int = 0) -> tuple[Operator, ...]:
    """
    Return the addition after a block, with the weighted sum before it, or the hyper-connections around it.

    One stream: two reads and a write, in both passes; keeps the dropout mask. Several: the concatenated streams give
    weights to sum them into the block's input, to spread its output, and to mix the streams, in one kernel each way.
    The streams and the block's output are kept. Snapshots: a softmax of their scores weights them and the latest sum,
    which is kept; a score has a norm and a vector of the hidden size.

    Parameters
    ----------
    shape
        The micro-batch.
    streams
        Streams of the residual, n: a projection from n h to (2 + n) n, a bias for each result and three scales.
    snapshots
        Earlier sums of the residual.

    References
    ----------
    Xie et al., mHC (manifold-constrained hyper-connections, 2026); transformers 5.24,
    ``models/deepseek_v4/modeling_deepseek_v4.py``: ``DeepseekV4HyperConnection``; Megatron-Bridge,
    ``src/megatron/bridge/models/kimi/kimi_k3_ops.py``: ``attn_res_aggregate``.
    """
    rows = shape.tokens / shape.sequence_shards
    elements = rows * shape.hidden_size
    if streams == 1:
        added = elementwise(
            "residuals", shape, elements=elements, forward_passes=3, backward_passes=3, all_counted=True, kernels=1
        )
        added = attach_kernel(added, shape, "residual", rows=rows, width=shape.hidden_size)
        added = replace(added, saved_bytes=shape.memory.dropout_mask_bytes * elements, saved_as="dropout")
        return (*_weight_snapshots(shape, elements=elements, snapshots=snapshots), added)
    weights = _project_streams("stream_weights", shape, streams=streams, outputs=(2 + streams) * streams, scales=3)
    (one, of_one), (all_, of_all) = MIXED_PASSES
    mixed = elementwise(
        "residuals",
        shape,
        elements=elements,
        forward_passes=one + streams * all_,
        backward_passes=of_one + streams * of_all,
        all_counted=True,
        kernels=2,
        saved_elements=(1 + streams) * elements,
        saved_as="streams",
    )
    return weights, mixed


def _weight_snapshots(shape: Shape, *, elements: Numbers, snapshots: int) -> tuple[Operator, ...]:
    """
    Return the weighted sum of snapshots and the latest sum: a read of each and a write.

    The backward pass reads each again, and adds to its gradient.
    """
    if not snapshots:
        return ()
    summed = elementwise(
        "snapshots",
        shape,
        elements=elements,
        forward_passes=snapshots + 2,
        backward_passes=3 * (snapshots + 1) + 1,
        all_counted=True,
        saved_elements=elements,
        saved_as="streams",
        parameters=2 * shape.hidden_size,
    )
    return (summed,)


def collapse_operators(shape: Shape, *, streams: int) -> tuple[Operator, ...]:
    """Return the weighted sum of all streams in front of the head; nothing for a single stream."""
    if streams == 1:
        return ()
    elements = shape.tokens * shape.hidden_size / shape.sequence_shards
    collapsed = elementwise(
        "streams",
        shape,
        elements=elements,
        forward_passes=1 + 2 * streams,
        backward_passes=1 + 3 * streams,
        all_counted=True,
        saved_elements=streams * elements,
        saved_as="streams",
    )
    return _project_streams("stream_weights", shape, streams=streams, outputs=streams, scales=1), collapsed


def _project_streams(name: str, shape: Shape, *, streams: int, outputs: int, scales: int) -> Operator:
    """Return the weights of streams from their concatenation, with a bias each and a few scales."""
    return matmul(
        name,
        shape,
        rows=shape.tokens / shape.sequence_shards,
        inputs=streams * shape.hidden_size,
        outputs=outputs,
        bias=outputs + scales,
        narrow=False,
        dtype=shape.wide_dtype,
    )
