"""Matmuls: linear, batched, and grouped by expert; forward, and separate gradients of input and weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.measure.sample.bench import Bench, Tensor, UnavailableError, Work
from planner.measure.sample.samples import Point, Sizes
from planner.measure.sample.timing import Call
from planner.measure.sample.work import moved_bytes

GROUPED_CAPABILITY = (9, 0)
"""Compute capability from which on torch has grouped matmuls as one kernel (PyTorch, ``grouped_mm``: SM90)."""


def matmul(bench: Bench, point: Point) -> Work:
    """
    Measure a linear layer without bias, ``y = x w^T``.

    The gradient of its input is ``g w``, that of its weight ``g^T x``, as autograd computes them for ``F.linear``.
    """
    m, n, k = _sizes(point.sizes)
    linear = bench.torch.nn.functional.linear

    def make() -> Call:
        x, w, g = _operands(bench, point, (m, k), (n, k), (m, n))
        calls: dict[str, Call] = {
            "forward": lambda: linear(x, w),
            "dgrad": lambda: g @ w,
            "wgrad": lambda: g.t() @ x,
        }
        return calls[point.pass_]

    return bench.in_turn(make, moved_bytes(point))


def batched_matmul(bench: Bench, point: Point) -> Work:
    """Measure products of activations, ``y = a b``; dgrad is the gradient of ``a``, wgrad that of ``b``."""
    m, n, k = _sizes(point.sizes)
    batch = point.sizes.batch or 1

    def make() -> Call:
        a, b, g = _operands(bench, point, (batch, m, k), (batch, k, n), (batch, m, n))
        calls: dict[str, Call] = {
            "forward": lambda: a @ b,
            "dgrad": lambda: g @ b.transpose(1, 2),
            "wgrad": lambda: a.transpose(1, 2) @ g,
        }
        return calls[point.pass_]

    return bench.in_turn(make, moved_bytes(point))


def grouped_matmul(bench: Bench, point: Point) -> Work:
    """
    Measure the linear layers of local experts, with rows divided as evenly as possible.

    They are one kernel where the library and the device have it (:func:`has_grouped_kernel`), else a loop over the
    experts.
    """
    m, n, k = _sizes(point.sizes)
    groups = point.sizes.batch or 1
    counts = [m // groups + (index < m % groups) for index in range(groups)]
    grouped = (
        _call_grouped_kernel(bench, counts)
        if has_grouped_kernel(bench, point.dtype)
        else _loop_over_groups(bench, counts)
    )

    def make() -> Call:
        x, w, g = _operands(bench, point, (m, k), (groups, n, k), (m, n))
        calls: dict[str, Call] = {
            "forward": lambda: grouped(x, w.transpose(1, 2)),
            "dgrad": lambda: grouped(g, w),
            "wgrad": lambda: grouped(g.t(), x),
        }
        return calls[point.pass_]

    return bench.in_turn(make, moved_bytes(point))


def has_grouped_kernel(bench: Bench, dtype: str = "bf16") -> bool:
    """Return True if grouped matmuls are one kernel here."""
    if not bench.is_gpu or dtype != "bf16" or _find_grouped_matmul(bench) is None:
        return False
    return bool(bench.torch.cuda.get_device_capability() >= GROUPED_CAPABILITY)


def _find_grouped_matmul(bench: Bench) -> Any:
    public = getattr(bench.torch.nn.functional, "grouped_mm", None)
    return public or getattr(bench.torch, "_grouped_mm", None)


def _call_grouped_kernel(bench: Bench, counts: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    torch, function = bench.torch, _find_grouped_matmul(bench)
    ends = torch.tensor(counts, device=bench.device).cumsum(0).to(torch.int32)
    return lambda left, right: function(left, right, offs=ends)


def _loop_over_groups(bench: Bench, counts: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    """Multiply, for each group, rows of ``left`` by its matrix; or columns of ``left`` by its rows of ``right``."""

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        if right.dim() == 2:
            pieces = zip(left.split(counts, dim=1), right.split(counts), strict=True)
        else:
            pieces = zip(left.split(counts), right.unbind(), strict=True)
        return [one @ other for one, other in pieces]

    return multiply


def _sizes(sizes: Sizes) -> tuple[int, int, int]:
    return sizes.m or 0, sizes.n or 0, sizes.k or 0


_READS = {"forward": (True, True, False), "dgrad": (False, True, True), "wgrad": (True, False, True)}
"""Inputs, weights and gradients that a pass reads."""


def _operands(bench: Bench, point: Point, *shapes: tuple[int, ...]) -> list[Tensor]:
    if point.pass_ not in _READS:
        raise UnavailableError(f"{point.operator} has no pass {point.pass_}")
    reads = zip(_READS[point.pass_], shapes, strict=True)
    return [bench.tensor(*shape, dtype=point.dtype) if is_read else None for is_read, shape in reads]
