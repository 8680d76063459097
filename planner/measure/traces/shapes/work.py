"""FLOPs and bytes of an operator, from its name and the sizes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.traces.events import Operands
from planner.measure.traces.reading.messages import element_bytes
from planner.measure.traces.shapes.sizes import Expected

Kind: TypeAlias = Literal["matmul", "grouped matmul", "attention", "streaming"]

Numbers: TypeAlias = tuple[float, ...]

USUAL_BYTES = 4

"""Bytes of an element of other types: lists of tensors do not name theirs."""

MATMUL = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|_addmm_activation)(\.out)?$")

"""PyTorch's matmuls; those that begin with ``add`` or ``badd`` add their first input."""

GROUPED = re.compile(r"(?i)grouped_(mm|gemm|matmul)|gmm")

"""Grouped GEMM of MoE: rows of all experts one after the other, and a weight for each."""

ATTENTION = re.compile(r"(?i)attention|flash_?attn|fmha|AttnFunc|fused_attn")

"""Attention, of PyTorch, flash attention, Transformer Engine, xFormers."""

LOOK_UP = re.compile(r"^aten::(embedding|index_select|gather|take)$")

"""Operators that read only the rows of their first input that another input selects."""

VIEWS = re.compile(
    r"^aten::(t|transpose|permute|view|_unsafe_view|_reshape_alias|expand|expand_as|detach_?|alias|as_strided|slice"
    r"|select|narrow|chunk|split|split_with_sizes|unbind|squeeze|unsqueeze|unflatten|resize_|empty.*)$"
)

"""Operators that move no data."""

GEMM_KERNEL = re.compile(r"(?i)gemm|nvjet|cutlass.*(gemm|tensorop)|Cijk|xmma|wgmma")

"""Kernels that multiply, whatever operator launches them, except attention."""

MULTIPLY_AND_ADD = 2.0

"""Floating-point operations of each term of a matmul's sums."""

PACKED = 3

"""Sizes of attention's queries where the sequences are packed."""


class Shape(NamedTuple):
    """
    Properties of an operator that determine its work.

    Parameters
    ----------
    kind
        Formula of its work.
    sizes
        m, n, k and the batch of a matmul; sequences, heads and so on of attention's queries, and the length of its
        keys; for others the sizes of each tensor.
    expected
        Object that has these sizes.
    element_bytes
        Bytes per element of each tensor; one value for matmuls and attention.
    dtype
        Type of the first tensor, as the profiler names it.
    """

    kind: Kind
    sizes: tuple[tuple[int, ...], ...]
    expected: Expected
    element_bytes: Numbers
    dtype: str


class Work(NamedTuple):
    """
    FLOPs and bytes of an operator.

    Parameters
    ----------
    flops, nbytes
        Floating-point operations; least bytes that it reads and writes.
    """

    flops: float
    nbytes: float


def shape_of(
    name: str, operands: Operands, *, sequence_length: int, weights: bool = False, kernel: str = ""
) -> Shape | None:
    """
    Return the shape of an operator; None where it has no tensor, or is a view.

    Parameters
    ----------
    name, operands
        Name and inputs of the operator.
    sequence_length
        Sequence length of the job: packed attention does not record it.
    weights
        True where it works on weights or their gradients: in an optimizer, or in gradient accumulation.
    kernel
        Name of the kernel that it launches; empty on the host.
    """
    tensors = [
        (sizes, dtype) for sizes, dtype in zip(operands.sizes, operands.dtypes, strict=True) if sizes and all(sizes)
    ]
    if not tensors or (VIEWS.match(name) and not kernel):
        return None
    sizes, dtype = tuple(one for one, _ in tensors), tensors[0][1]
    bytes_of_each = tuple(float(_element_bytes(each)) for _, each in tensors)
    for applies, kind, found in _RULES:
        if applies(name, kernel) and (dims := found(name, sizes)) is not None:
            if kind == "attention" and len(dims) == PACKED:
                dims = (*dims, sequence_length)
            return Shape(kind, (dims,), _name_expected(kind, dims), bytes_of_each[:1], dtype)
    if LOOK_UP.match(name) and len(sizes) > 1:
        looked_up = ((*sizes[-1], sizes[0][-1]),)
        return Shape("streaming", looked_up, "activation", bytes_of_each[:1], dtype)
    return Shape("streaming", sizes, "weight" if weights else "activation", bytes_of_each, dtype)


def work(shape: Shape, sizes: tuple[Numbers, ...]) -> Work:
    r"""
    Return the work of an operator of a shape, at these sizes or others.

    For matmuls

    .. math:: F = 2 B m n k, \qquad Q = e B (m k + k n + m n)

    and for attention

    .. math:: F = 4 b a s_q d s_k, \qquad Q = 4 e b a s_q d

    All others have no FLOPs that count: they move their inputs, and a result as large as the largest input. Factors of
    attention's FLOPs, such as those of a causal mask or the backward pass, cancel in ratios and are left out.

    Parameters
    ----------
    shape
        Shape of the operator.
    sizes
        Sizes in the order of ``shape.sizes``.
    """
    if shape.kind == "streaming":
        elements = [prod(tensor) for tensor in sizes]
        moved = [number * each for number, each in zip(elements, shape.element_bytes, strict=True)]
        return Work(0.0, sum(moved) + max(moved))
    (dims,), (each,) = sizes, shape.element_bytes
    if shape.kind == "attention":
        queries = prod(dims[:-1])
        return Work(2 * MULTIPLY_AND_ADD * queries * dims[-1], 4 * each * queries)
    m, n, k, *rest = dims
    batch = prod(rest)
    flops = MULTIPLY_AND_ADD * m * n * k
    if shape.kind == "grouped matmul":
        return Work(flops, each * (m * k + batch * k * n + m * n))
    return Work(batch * flops, each * batch * (m * k + k * n + m * n))


def _name_expected(kind: Kind, dims: tuple[int, ...]) -> Expected:
    if kind == "attention":
        return "attention"
    return "batched matmul" if kind == "matmul" and len(dims) > len("mnk") else "matmul"


def _element_bytes(dtype: str) -> int:
    return 1 if "Float8" in dtype or "Float4" in dtype else element_bytes(dtype) or USUAL_BYTES


# --- sizes that are multiplied ---------------------------------------------------------------------------------------
Tensors: TypeAlias = tuple[tuple[int, ...], ...]


def _matmul(name: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the rows, columns, inner size and batch of PyTorch's matmul."""
    skipped = 1 if "::add" in name or "::_add" in name or "::badd" in name else 0
    if len(sizes) < 2 + skipped or min(map(len, sizes[skipped : 2 + skipped])) < 2:
        return None
    left, right = sizes[skipped : 2 + skipped]
    if "linear" in name:
        return (prod(left[:-1]), right[0], left[-1]) if right[-1] == left[-1] else None
    if left[-1] != right[-2]:
        return None
    if len(right) == 2:
        return prod(left[:-1]), right[-1], left[-1]
    return left[-2], right[-1], left[-1], prod(right[:-2])


def _read_grouped_matmul(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the rows of all groups, the columns, the inner size, and the number of groups."""
    weight = next((one for one in sizes if len(one) == 3), None)
    rows = next((one for one in sizes if len(one) == 2 and weight and one[-1] in weight[1:]), None)
    if weight is None or rows is None:
        return None
    other = weight[2] if rows[-1] == weight[1] else weight[1]
    return rows[0], other, rows[-1], weight[0]


def _attention(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """
    Return the sizes of the queries, and the length of the keys.

    PyTorch has heads before the sequence, flash attention after it: the larger of both counts as the sequence. Queries
    of three sizes are packed sequences, which do not record the length of a sequence.
    """
    tensors = [one for one in sizes if len(one) >= 3]
    if len(tensors) < 2:
        return None
    queries, keys = tensors[:2]
    return queries if len(queries) == PACKED else (*queries, max(keys[1:3]))


def _linear_of_any(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Return the sizes of an operator outside of PyTorch: an input and the first weight that fits it."""
    for left in sizes:
        for right in sizes:
            if left is not right and len(left) > 1 and len(right) == 2 and left[-1] == right[-1]:
                return prod(left[:-1]), right[0], left[-1]
    return None


_RULES: tuple[tuple[Callable[[str, str], bool], Kind, Callable[[str, Tensors], tuple[int, ...] | None]], ...] = (
    (lambda name, kernel: bool(MATMUL.match(name)), "matmul", _matmul),
    (lambda name, kernel: bool(GROUPED.search(name)), "grouped matmul", _read_grouped_matmul),
    (lambda name, kernel: bool(ATTENTION.search(name) or ATTENTION.search(kernel)), "attention", _attention),
    (lambda name, kernel: bool(GEMM_KERNEL.search(kernel)), "matmul", _linear_of_any),
)

"""Operators that multiply: a test of their names, their kind, and the function that reads their sizes."""

GOOD = 0.9

"""Quantile of rates that counts as the achieved rate of large operators; single operators are mismeasured."""

LARGE = 0.1

"""Share of the largest work above which an operator counts as large."""

LEAST = 0.05

"""Quantile of times that counts as the overhead of an operator."""

FIXED = 5_000.0

"""
Upper bound of a kernel's fixed time in nanoseconds, where no shorter kernel lowers it.

The smallest kernels of public traces, 5 % of all, take up to 2.0 us on H800 (DeepSeek-V3) and A100, and 1.7 us on
MI300X. Matmuls also fill and drain their pipelines. Vidur's times of linear layers at other numbers of tokens and ranks
follow equally well with 2 and 5 us on A100. On H100 those at twice the tokens follow better with 5 us.
"""

APART = 4.0

"""Ratio of two works above which a line through their times gives the overhead."""


@record(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    Rates and overhead that a machine achieved in a trace.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators that multiply, and of those that only move data; infinite where there are none.
    overhead
        Nanoseconds of an operator with almost no work: on threads the least time of an operator, on devices the
        shortest kernel, at most :data:`FIXED`.
    largest_flops
        FLOPs of the largest operator.
    """

    flops_per_second: float
    bytes_per_second: float
    overhead: float
    largest_flops: float

    def seconds(self, work: Work) -> float:
        r"""
        Roofline time, :math:`\max(F / R, Q / B)`; a term whose rate was not recorded is left out.

        Parameters
        ----------
        work
            Work of an operator.
        """
        return max(work.flops / self.flops_per_second, work.nbytes / self.bytes_per_second)


def machine(
    works: Sequence[Work],
    durations: NDArray[np.float64],
    everything: NDArray[np.float64],
    *,
    on_device: bool = False,
) -> Machine:
    """
    Derive the rates and the overhead of a trace's machine.

    Parameters
    ----------
    works, durations
        Work of operators, and their nanoseconds; shape (operators,).
    everything
        Nanoseconds of all operators, including those without work.
    on_device
        True where they are kernels.
    """
    flops = np.array([work.flops for work in works])
    nbytes = np.array([work.nbytes for work in works])
    return Machine(
        flops_per_second=_rate(flops, durations),
        bytes_per_second=_rate(np.where(flops > 0, 0.0, nbytes), durations),
        overhead=_overhead(everything, on_device=on_device),
        largest_flops=float(flops.max(initial=0.0)),
    )


def _overhead(everything: NDArray[np.float64], *, on_device: bool) -> float:
    """Return the time of an operator with almost no work."""
    if not len(everything):
        return 0.0
    return min(float(everything.min()), FIXED) if on_device else float(np.quantile(everything, LEAST))


def _rate(amounts: NDArray[np.float64], durations: NDArray[np.float64]) -> float:
    """Return the rate per second that large operators achieve."""
    large = (amounts > LARGE * amounts.max(initial=0.0)) & (durations > 0)
    if not large.any():
        return np.inf
    return float(np.quantile(amounts[large] / durations[large], GOOD)) * 1e9


def overhead_of(seconds: NDArray[np.float64], durations: NDArray[np.float64], *, least: float) -> float:
    r"""
    Return the overhead in nanoseconds of operators of one name, from those that differ in size.

    .. math:: t = t_0 + c \cdot w

    The median of t_0 over all pairs whose work differs enough (after Theil and Sen); at least the overhead of any
    operator, at most the time of the smallest one.

    Parameters
    ----------
    seconds
        Roofline time of the work of each size, w; shape (sizes,).
    durations
        Nanoseconds of each, t.
    least
        Overhead of any operator, in nanoseconds.

    >>> overhead_of(np.array([1.0, 2.0, 8.0]), np.array([7.0, 9.0, 21.0]), least=1.0)
    5.0
    """
    found = [
        low_time - low * (high_time - low_time) / (high - low)
        for (low, low_time), (high, high_time) in combinations(sorted(zip(seconds, durations, strict=True)), 2)
        if high >= APART * low > 0
    ]
    if not found:
        return min(least, float(durations.min()))
    return float(np.clip(np.median(found), min(least, durations.min()), durations.min()))
