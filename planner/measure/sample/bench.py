"""The bench: inputs for calls, enough of them that the last-level cache never holds those of the next call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from costmodel import GIB_BYTES
from costmodel.record import record
from costmodel.timing.sampled_source import ELEMENT_BYTES, MATMULS
from planner.measure.sample.samples import Point, Sizes, cache_bytes, free_bytes
from planner.measure.sample.timing import Call, UnavailableError

Tensor: TypeAlias = Any

PAST_CACHE = 2.5

"""Bytes of inputs that are used in turn, over those of the last-level cache."""

MOST_SETS = 64

"""Most sets of inputs; many small ones stay in the cache, as inputs of small operators do in training."""

MOST_SECONDS = 1.0

"""Seconds in which further sets are made; each set for a backward pass needs a forward pass."""

PIECES = 8

"""Tensors that the bench takes from its random numbers without overlap; larger ones are copied together from them."""

ALIGNMENT = 128

"""Elements between the starts of tensors."""

MOST_OF_MEMORY = 0.8

"""Fraction of the free memory that a point may take."""


TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

"""Measured dtypes by their names in torch."""


@record(frozen=True, kw_only=True)
class Work:
    """
    Calls to time.

    Parameters
    ----------
    calls
        Equal calls on different inputs.
    share
        Number of kernels in a call, whose time each is reported.
    on_host
        True where the host's clock times it, on an idle device.
    """

    calls: Sequence[Call]
    share: int = 1
    on_host: bool = False


class Bench:
    """
    Factory of inputs on a device.

    Parameters
    ----------
    torch, device
        The library, and its device: ``cuda`` or ``cpu``.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.device = device
        self.cache_bytes = cache_bytes(torch, device)
        self._generator = torch.Generator(device=device).manual_seed(0)
        self._numbers: dict[str, Tensor] = {}
        self._offset = 0

    @property
    def is_gpu(self) -> bool:
        """True where the device is a GPU."""
        return self.device == "cuda"

    def dtype(self, name: str) -> Any:
        """
        Return a dtype of torch.

        Raises
        ------
        UnavailableError
            If it is not measured.
        """
        if name not in TORCH_DTYPES:
            raise UnavailableError(f"operators in {name} are not measured")
        return getattr(self.torch, TORCH_DTYPES[name])

    def tensor(self, *sizes: int, dtype: str, grad: bool = False) -> Tensor:
        """Return normal random numbers, to be read only; with ``grad`` a leaf of autograd."""
        number = math.prod(sizes)
        numbers = self._random(dtype)
        if number > len(numbers) // PIECES:
            found = self.own(*sizes, dtype=dtype)
        else:
            if self._offset + number > len(numbers):
                self._offset = 0
            found = numbers[self._offset : self._offset + number].view(sizes)
            self._offset += -(-number // ALIGNMENT) * ALIGNMENT
        return found.detach().requires_grad_() if grad else found

    def own(self, *sizes: int, dtype: str) -> Tensor:
        """Return normal random numbers that may be overwritten."""
        numbers = self._random(dtype)
        found = self.torch.empty(math.prod(sizes), dtype=self.dtype(dtype), device=self.device)
        for start in range(0, len(found), len(numbers)):
            piece = found[start : start + len(numbers)]
            piece.copy_(numbers[: len(piece)])
        return found.view(sizes)

    def integers(self, below: int, *sizes: int) -> Tensor:
        """Return uniform random integers from 0."""
        return self.torch.randint(below, sizes, device=self.device, generator=self._generator)

    def cycle_inputs(self, make: Callable[[], Call], nbytes: int, *, share: int = 1) -> Work:
        """
        Make calls with more inputs than the cache can hold.

        Parameters
        ----------
        make
            Function that makes inputs and the call that reads them.
        nbytes
            Bytes that one call reads and writes.
        share
            As in :class:`Work`.
        """
        sets = min(MOST_SETS, math.ceil(PAST_CACHE * self.cache_bytes / max(nbytes, 1)))
        calls, started = [make()], time.perf_counter()
        while len(calls) < sets and time.perf_counter() - started < MOST_SECONDS:
            calls.append(make())
        return Work(calls=calls, share=share)

    def backward(self, function: Callable[..., Tensor], *inputs: Tensor) -> Call:
        """Return a call that computes the gradients of all inputs of a function, which has run once."""
        result = function(*inputs)
        gradient = self.torch.ones_like(result) if result.dim() == 0 else self._empty_like(result)
        return lambda: self.torch.autograd.grad(result, inputs, gradient, retain_graph=True)

    def require_memory(self, nbytes: int) -> None:
        """
        Raise if a point does not fit into memory.

        Raises
        ------
        UnavailableError
            If it takes most of the free memory.
        """
        free = free_bytes(self.torch, self.device)
        if nbytes > MOST_OF_MEMORY * free:
            raise UnavailableError(
                f"takes {nbytes / GIB_BYTES:.1f} GiB of memory, of which {free / GIB_BYTES:.1f} GiB are free"
            )

    def _empty_like(self, result: Tensor) -> Tensor:
        names = {getattr(self.torch, name): own for own, name in TORCH_DTYPES.items()}
        return self.tensor(*result.shape, dtype=names[result.dtype])

    def _random(self, dtype: str) -> Tensor:
        if dtype not in self._numbers:
            kind = self.dtype(dtype)
            number = int(PAST_CACHE * self.cache_bytes) // kind.itemsize
            numbers = self.torch.empty(number, dtype=kind, device=self.device)
            self._numbers[dtype] = numbers.normal_(generator=self._generator)
        return self._numbers[dtype]


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
    """Bytes of attention's scores where no kernel fuses them: in fp32 before and after softmax, and as read."""
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
