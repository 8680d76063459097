"""Operators that only move bytes: norms, rotary position, activations, softmax, loss, embedding, residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.measure.sample.bench import Bench, Tensor, Work
from planner.measure.sample.samples import Point
from planner.measure.sample.timing import Call
from planner.measure.sample.work import moved_bytes

Inputs = Callable[[], tuple[Tensor, ...]]


def rms_norm(bench: Bench, point: Point) -> Work:
    """Measure RMSNorm with a weight."""
    rows, width = _rows(point)
    function = bench.torch.nn.functional.rms_norm
    inputs = _leaves(bench, point, (rows, width), (width,))
    return _work(bench, point, lambda x, weight: function(x, (width,), weight), inputs)


def layer_norm(bench: Bench, point: Point) -> Work:
    """Measure LayerNorm with weight and bias."""
    rows, width = _rows(point)
    function = bench.torch.nn.functional.layer_norm
    inputs = _leaves(bench, point, (rows, width), (width,), (width,))
    return _work(bench, point, lambda x, weight, bias: function(x, (width,), weight, bias), inputs)


def rotary(bench: Bench, point: Point) -> Work:
    """Measure rotary position of the two halves of each head, kernel by kernel as in eager code."""
    torch, sizes = bench.torch, point.sizes
    rows, width = sizes.rows or 0, sizes.qk_head_dim or 0
    cosine, sine = (bench.tensor(rows, 1, width, dtype=point.dtype) for _ in range(2))

    def rotate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-right, left), dim=-1) * sine

    return _work(bench, point, rotate, _leaves(bench, point, (rows, sizes.heads or 0, width)))


def swiglu(bench: Bench, point: Point) -> Work:
    """Measure SwiGLU of one input of twice the width."""
    rows, width = _rows(point)
    silu = bench.torch.nn.functional.silu

    def gate_rows(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return silu(gate) * up

    return _work(bench, point, gate_rows, _leaves(bench, point, (rows, 2 * width)))


def gelu(bench: Bench, point: Point) -> Work:
    """Measure GELU with the tanh approximation."""
    function = bench.torch.nn.functional.gelu
    return _work(bench, point, lambda x: function(x, approximate="tanh"), _leaves(bench, point, _rows(point)))


def squared_relu(bench: Bench, point: Point) -> Work:
    """Measure the square of ReLU."""
    torch = bench.torch
    return _work(bench, point, lambda x: torch.relu(x).square(), _leaves(bench, point, _rows(point)))


def softmax(bench: Bench, point: Point) -> Work:
    """Measure softmax of each row."""
    return _work(bench, point, lambda x: x.softmax(dim=-1), _leaves(bench, point, _rows(point)))


def cross_entropy(bench: Bench, point: Point) -> Work:
    """Measure the loss of logits, in fp32 as in training code."""
    rows, width = _rows(point)
    function = bench.torch.nn.functional.cross_entropy
    targets = bench.integers(width, rows)
    return _work(bench, point, lambda x: function(x.float(), targets), _leaves(bench, point, (rows, width)))


def embedding(bench: Bench, point: Point) -> Work:
    """Measure the look-up of tokens in a vocabulary; backward a gradient of the whole vocabulary."""
    rows, width = _rows(point)
    vocabulary = point.sizes.n or 0
    tokens = bench.integers(vocabulary, rows)
    function = bench.torch.nn.functional.embedding
    return _work(bench, point, lambda weight: function(tokens, weight), _leaves(bench, point, (vocabulary, width)))


def residual(bench: Bench, point: Point) -> Work:
    """Measure the addition behind a block; its backward pass only passes gradients on and takes no time."""
    return _work(bench, point, lambda x, y: x + y, _leaves(bench, point, _rows(point), _rows(point)))


def top_k(bench: Bench, point: Point) -> Work:
    """Measure the router: softmax of the logits in fp32, then the top k."""
    rows, experts, best = point.sizes.rows or 0, point.sizes.experts or 0, point.sizes.top_k or 0
    inputs = _leaves(bench, point, (rows, experts))
    return _work(bench, point, lambda x: x.float().softmax(dim=-1).topk(best, dim=-1)[0], inputs)


def permutation(bench: Bench, point: Point) -> Work:
    """Measure copies of tokens in the order of their experts, balanced; backward sums the copies of a token."""
    rows, width = _rows(point)
    experts, best = point.sizes.experts or 1, point.sizes.top_k or 0
    torch = bench.torch
    first = torch.arange(rows, device=bench.device) * best
    chosen = (first[:, None] + torch.arange(best, device=bench.device)) % experts
    order = chosen.flatten().argsort(stable=True) // max(best, 1)
    return _work(bench, point, lambda x: x.index_select(0, order), _leaves(bench, point, (rows, width)))


def _rows(point: Point) -> tuple[int, int]:
    return point.sizes.rows or 0, point.sizes.width or 0


def _leaves(bench: Bench, point: Point, *shapes: tuple[int, ...]) -> Inputs:
    """Return a function that makes inputs with gradients."""
    return lambda: tuple(bench.tensor(*shape, dtype=point.dtype, grad=True) for shape in shapes)


def _work(bench: Bench, point: Point, function: Callable[..., Any], inputs: Inputs) -> Work:
    def make() -> Call:
        made = inputs()
        return bench.backward(function, *made) if point.pass_ == "backward" else lambda: function(*made)

    return bench.in_turn(make, moved_bytes(point))
