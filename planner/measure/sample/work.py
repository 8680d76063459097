"""Work of a point: enough to recognise a wrong unit, a point that does not fit, and one that takes too long."""

from __future__ import annotations

from math import prod

from costmodel.timing.sampled_shapes import ELEMENT_BYTES, MATMULS
from planner.measure.sample.samples import Point, Sizes

ADAM_TENSORS = 4
"""Parameters, gradients, both moments."""

ROW_TENSORS = {"swiglu": 3, "residual": 3, "cross_entropy": 4}
"""Tensors of ``rows * width`` elements that a forward pass reads or writes, where they are not two."""


def least_flops(point: Point) -> int:
    """
    Least FLOPs of a point: 2 m n k for matmuls, for attention those of the scores that a query may read.

    Backward attention multiplies at least twice as often.

    >>> least_flops(Point(operator="matmul", pass_="wgrad", dtype="bf16", sizes=Sizes(m=2, n=3, k=4)))
    48
    """
    sizes = point.sizes
    if point.operator in MATMULS:
        batch = sizes.batch if point.operator == "batched_matmul" else 1
        return 2 * prod(value or 1 for value in (batch, sizes.m, sizes.n, sizes.k))
    if point.operator != "attention":
        return 0
    widths = (sizes.qk_head_dim or 0) + (sizes.v_head_dim or 0)
    forward = 2 * _scores(sizes, min(sizes.window or sizes.keys or 0, sizes.keys or 0)) * widths
    return forward // (2 if sizes.causal else 1) * (2 if point.pass_ == "backward" else 1)


def moved_bytes(point: Point) -> int:
    """
    Bytes of all inputs and results of a point, each once.

    >>> moved_bytes(Point(operator="rms_norm", pass_="forward", dtype="bf16", sizes=Sizes(rows=8, width=4)))
    128
    """
    element = ELEMENT_BYTES[point.dtype]
    return element * _elements(point) if point.sizes.nbytes is None else 2 * point.sizes.nbytes


def needed_bytes(point: Point) -> int:
    """Bytes of memory for a measurement: inputs and results; backward also gradients and saved tensors."""
    return moved_bytes(point) * (3 if point.pass_ == "backward" else 1)


def score_bytes(point: Point) -> int:
    """Bytes of attention's scores where no kernel fuses them: in fp32 before and behind softmax, and as read."""
    return 3 * 4 * _scores(point.sizes, point.sizes.keys or 0)


def _scores(sizes: Sizes, keys: int) -> int:
    return (sizes.sequences or 0) * (sizes.heads or 0) * (sizes.queries or 0) * keys


def _elements(point: Point) -> int:
    sizes, operator = point.sizes, point.operator
    rows, width, n = sizes.rows or 0, sizes.width or 0, sizes.n or 0
    if operator in MATMULS:
        return _matmul_elements(operator, sizes)
    if operator == "attention":
        widths = (sizes.qk_head_dim or 0) + (sizes.v_head_dim or 0)
        asked = (sizes.queries or 0) * (sizes.heads or 0)
        return (sizes.sequences or 0) * (asked + (sizes.keys or 0) * (sizes.kv_heads or 0)) * widths
    if operator == "rotary":
        return 2 * rows * (sizes.heads or 0) * (sizes.qk_head_dim or 0)
    if operator == "embedding":
        return n * width + rows * width
    if operator == "permutation":
        return rows * width * (1 + (sizes.top_k or 0))
    if operator == "top_k":
        return 2 * rows * (sizes.experts or 0)
    if operator in ("adam", "host_adam"):
        return ADAM_TENSORS * n
    return ROW_TENSORS.get(operator, 2) * rows * width


def _matmul_elements(operator: str, sizes: Sizes) -> int:
    m, n, k, batch = sizes.m or 0, sizes.n or 0, sizes.k or 0, sizes.batch or 1
    shared = batch if operator == "batched_matmul" else 1  # rows of a grouped matmul are those of all groups
    return shared * m * (n + k) + (batch if operator != "matmul" else 1) * n * k
