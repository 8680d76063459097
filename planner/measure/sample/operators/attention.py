"""Fused attention, forward and backward: causal or full, windows by a mask, grouped heads, unequal widths of a head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from planner.measure.sample.bench import Bench, Tensor, UnavailableError, Work
from planner.measure.sample.samples import Point, Sizes
from planner.measure.sample.timing import Call
from planner.measure.sample.work import moved_bytes, score_bytes

MASK_BYTES = 3
"""Bytes per query and key of a mask: booleans, and values that kernels add to 16-bit scores."""


def attention(bench: Bench, point: Point) -> Work:
    """
    Measure ``scaled_dot_product_attention`` with tensors in the order of projections: token, head, element.

    On a GPU only fused kernels run, since scores in memory are another operator. A window is a mask and takes the time
    of all keys: torch's fused kernels skip no part of a mask.
    """
    sizes = point.sizes
    queries, keys, width = sizes.queries or 0, sizes.keys or 0, sizes.qk_head_dim or 0
    _require_runnable(bench, point)
    function = _attention(bench, sizes)

    def make() -> Call:
        heads = _heads(bench, point)
        query = heads(queries, sizes.heads or 0, width)
        key = heads(keys, sizes.kv_heads or 0, width)
        value = heads(keys, sizes.kv_heads or 0, sizes.v_head_dim or 0)
        with _kernels(bench):
            if point.pass_ == "backward":
                return bench.backward(function, query, key, value)
        return lambda: _run(bench, function, query, key, value)

    return bench.in_turn(make, moved_bytes(point))


def _run(bench: Bench, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    with _kernels(bench):
        return function(*inputs)


def _kernels(bench: Bench) -> AbstractContextManager[Any]:
    """Return a context that allows only fused kernels on a GPU."""
    if not bench.is_gpu:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
    chosen: AbstractContextManager[Any] = sdpa_kernel([getattr(SDPBackend, name) for name in names])
    return chosen


def _heads(bench: Bench, point: Point) -> Callable[[int, int, int], Tensor]:
    sequences = point.sizes.sequences or 0

    def make_heads(tokens: int, heads: int, width: int) -> Tensor:
        laid = bench.tensor(sequences, tokens, heads, width, dtype=point.dtype)
        return laid.transpose(1, 2).detach().requires_grad_()

    return make_heads


def _attention(bench: Bench, sizes: Sizes) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    function = bench.torch.nn.functional.scaled_dot_product_attention
    named: dict[str, Any] = {"is_causal": bool(sizes.causal)}
    if _is_windowed(sizes):
        named = {"attn_mask": _window(bench, sizes)}
    if sizes.heads != sizes.kv_heads:
        named["enable_gqa"] = True
    return lambda query, key, value: function(query, key, value, **named)


def _window(bench: Bench, sizes: Sizes) -> Tensor:
    """Return a mask, True where a query may read: itself and earlier tokens within the window."""
    torch = bench.torch
    distance = torch.arange(sizes.queries, device=bench.device)[:, None] - torch.arange(sizes.keys, device=bench.device)
    window = sizes.window or 0
    return (distance >= 0 if sizes.causal else distance > -window) & (distance < window)


def _is_windowed(sizes: Sizes) -> bool:
    return sizes.window is not None and sizes.window < (sizes.keys or 0)


def _require_runnable(bench: Bench, point: Point) -> None:
    sizes = point.sizes
    if sizes.causal and sizes.queries != sizes.keys:
        raise UnavailableError("causal attention is measured with as many queries as keys")
    if (sizes.heads or 0) % (sizes.kv_heads or 1):
        raise UnavailableError("query heads are no multiple of the key-value heads")
    if _is_windowed(sizes):
        bench.require_memory(MASK_BYTES * (sizes.queries or 0) * (sizes.keys or 0))
    if not bench.is_gpu and (_is_windowed(sizes) or sizes.qk_head_dim != sizes.v_head_dim):
        bench.require_memory(score_bytes(point))
