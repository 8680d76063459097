"""Operators outside of layers: optimizer updates on device and host, copies, launches."""

from __future__ import annotations

from typing import Any

from planner.measure.sample.bench import Bench, Tensor, UnavailableError, Work
from planner.measure.sample.samples import Point
from planner.measure.sample.timing import Call
from planner.measure.sample.work import moved_bytes

TINY = 1024
"""Elements of a kernel whose time is only that of its launch."""


def adam(bench: Bench, point: Point) -> Work:
    """Measure one step of AdamW on all parameters of the device, in one kernel."""
    return bench.in_turn(lambda: _step(bench, bench.device, point), moved_bytes(point))


def host_adam(bench: Bench, point: Point) -> Work:
    """Measure one step of AdamW on the host's processors, with states in its memory."""
    if not bench.is_gpu:
        raise UnavailableError("the device is the host, whose updates adam measures")
    return Work(calls=[_step(bench, "cpu", point)], on_host=True)


def _step(bench: Bench, device: str, point: Point) -> Call:
    number, dtype = point.sizes.n or 0, bench.dtype(point.dtype)
    parameter = bench.torch.zeros(number, dtype=dtype, device=device, requires_grad=True)
    parameter.grad = bench.torch.full_like(parameter, 1e-3)
    step: Call = bench.torch.optim.AdamW([parameter], lr=1e-4, fused=True).step
    step()  # the first one makes the moments
    return step


def copy(bench: Bench, point: Point) -> Work:
    """Measure a copy within the device's memory."""
    number = _elements(bench, point)

    def make() -> Call:
        source, target = bench.tensor(number, dtype=point.dtype), bench.own(number, dtype=point.dtype)
        return lambda: target.copy_(source)

    return bench.in_turn(make, moved_bytes(point))


def host_to_device(bench: Bench, point: Point) -> Work:
    """Measure a copy from the host's pinned memory to the device."""
    return _copy_over_link(bench, point, to_device=True)


def device_to_host(bench: Bench, point: Point) -> Work:
    """Measure a copy from the device to the host's pinned memory."""
    return _copy_over_link(bench, point, to_device=False)


def _copy_over_link(bench: Bench, point: Point, *, to_device: bool) -> Work:
    if not bench.is_gpu:
        raise UnavailableError("the device is the host, whose copies copy measures")
    number = _elements(bench, point)

    def make() -> Call:
        ours = bench.own(number, dtype=point.dtype)
        hosts = bench.torch.empty(number, dtype=ours.dtype, pin_memory=True).zero_()
        source, target = (hosts, ours) if to_device else (ours, hosts)
        return lambda: target.copy_(source, non_blocking=True)

    return Work(calls=[make()])


def _elements(bench: Bench, point: Point) -> int:
    itemsize: int = bench.dtype(point.dtype).itemsize
    return max(1, (point.sizes.nbytes or 0) // itemsize)


def launch(bench: Bench, point: Point) -> Work:
    """Measure a chain of tiny kernels from its first launch by the host to its end."""
    chain, number = _chain(bench, point)
    return Work(calls=[chain], share=number, on_host=True)


def graph_launch(bench: Bench, point: Point) -> Work:
    """Measure the same chain as one CUDA graph."""
    if not bench.is_gpu:
        raise UnavailableError("CUDA graphs need a GPU")
    torch = bench.torch
    chain, number = _chain(bench, point)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    return Work(calls=[graph.replay], share=number)


def _chain(bench: Bench, point: Point) -> tuple[Call, int]:
    number = point.sizes.n or 0
    numbers: Tensor = bench.own(TINY, dtype=point.dtype)

    def chain() -> None:
        for _ in range(number):
            numbers.add_(1.0)

    return chain, number
