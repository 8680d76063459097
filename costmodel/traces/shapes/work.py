"""What an operator computes and moves, by its name and the sizes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from costmodel.traces.events import Operands
from costmodel.traces.shapes.explaining import Expected

Kind: TypeAlias = Literal["matmul", "grouped matmul", "attention", "streaming"]

Numbers: TypeAlias = tuple[float, ...]

DTYPE_BYTES: Mapping[str, int] = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "c10::complex<float>": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
}
"""Bytes of an element by the profiler's name of its type; names with ``Float8`` or ``Float4`` are one byte."""

USUAL_BYTES = 4
"""Of types with other names: lists of tensors do not say theirs."""

MATMUL = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|_addmm_activation)(\.out)?$")
"""PyTorch's matmuls; of those that begin with ``add`` or ``badd`` the first input is added."""

GROUPED = re.compile(r"(?i)grouped_(mm|gemm|matmul)|gmm")
"""Matmuls of experts: rows of all of them one after the other, and a weight for each."""

ATTENTION = re.compile(r"(?i)attention|flash_?attn|fmha|AttnFunc|fused_attn")
"""Attention, of PyTorch, flash attention, Transformer Engine, xFormers."""

LOOK_UP = re.compile(r"^aten::(embedding|index_select|gather|take)$")
"""Operators that read of their first input only what another one says."""

VIEWS = re.compile(
    r"^aten::(t|transpose|permute|view|_unsafe_view|_reshape_alias|expand|expand_as|detach_?|alias|as_strided|slice"
    r"|select|narrow|chunk|split|split_with_sizes|unbind|squeeze|unsqueeze|unflatten|resize_|empty.*)$"
)
"""Operators that move nothing."""

GEMM_KERNEL = re.compile(r"(?i)gemm|nvjet|cutlass.*(gemm|tensorop)|Cijk|xmma|wgmma")
"""Kernels that multiply, whatever operator launches them; but attention's."""

MULTIPLY_AND_ADD = 2.0
"""Floating-point operations of each term of a matmul's sums."""


PACKED = 3
"""Sizes of attention's queries where the tokens of all sequences stand behind one another."""


class Shape(NamedTuple):
    """
    An operator as its work depends on it.

    Parameters
    ----------
    kind
        How its work is counted.
    sizes
        m, n, k and the batch of a matmul; sequences, heads and so on of attention's queries, and length of its keys;
        of others the sizes of each tensor.
    expected
        What these sizes are of.
    element_bytes
        Of each tensor; of matmuls and attention of all alike.
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
    What an operator computes and moves.

    Parameters
    ----------
    flops, nbytes
        Floating-point operations; bytes that it reads and writes at least.
    """

    flops: float
    nbytes: float


def shape_of(
    name: str, operands: Operands, *, sequence_length: int, weights: bool = False, kernel: str = ""
) -> Shape | None:
    """
    An operator by its name and inputs; None: it has no tensor, or only looks at it otherwise.

    Parameters
    ----------
    name, operands
        Of the operator.
    sequence_length
        Of the job: attention that has tokens of several sequences behind one another does not say it.
    weights
        Whether it works on weights or their gradients: of an optimizer, or where gradients are accumulated.
    kernel
        Name of the kernel that it launches; empty: it runs on the host.
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
            return Shape(kind, (dims,), _expected(kind, dims), bytes_of_each[:1], dtype)
    if LOOK_UP.match(name) and len(sizes) > 1:
        looked_up = ((*sizes[-1], sizes[0][-1]),)
        return Shape("streaming", looked_up, "activation", bytes_of_each[:1], dtype)
    return Shape("streaming", sizes, "weight" if weights else "activation", bytes_of_each, dtype)


def work(shape: Shape, sizes: tuple[Numbers, ...]) -> Work:
    r"""
    Work of an operator of some shape with these sizes or others.

    Of matmuls

    .. math:: F = 2 B m n k, \qquad Q = e B (m k + k n + m n)

    and of attention

    .. math:: F = 4 b a s_q d s_k, \qquad Q = 4 e b a s_q d

    All others compute nothing that counts: they move their inputs, and a result as large as the largest of these. What
    multiplies attention's FLOPs, causal mask or backward pass, leaves ratios alone.

    Parameters
    ----------
    shape
        Of the operator.
    sizes
        As ``shape.sizes`` has them.
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


def _expected(kind: Kind, dims: tuple[int, ...]) -> Expected:
    if kind == "attention":
        return "attention"
    return "batched matmul" if kind == "matmul" and len(dims) > len("mnk") else "matmul"


def _element_bytes(dtype: str) -> int:
    return 1 if "Float8" in dtype or "Float4" in dtype else DTYPE_BYTES.get(dtype, USUAL_BYTES)


# --- sizes that are multiplied ---------------------------------------------------------------------------------------

Tensors: TypeAlias = tuple[tuple[int, ...], ...]


def _matmul(name: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Rows, columns, what is summed over, and the batch of a matmul of PyTorch."""
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


def _grouped(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Rows of all groups, columns, what is summed over, and the number of groups."""
    weight = next((one for one in sizes if len(one) == 3), None)
    rows = next((one for one in sizes if len(one) == 2 and weight and one[-1] in weight[1:]), None)
    if weight is None or rows is None:
        return None
    other = weight[2] if rows[-1] == weight[1] else weight[1]
    return rows[0], other, rows[-1], weight[0]


def _attention(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """
    Sizes of the queries, and the length of the keys.

    PyTorch has heads in front of the sequence, flash attention behind it: the larger of both is taken for the sequence.
    Queries of three sizes are tokens of all sequences behind one another, which do not say how long a sequence is.
    """
    tensors = [one for one in sizes if len(one) >= 3]
    if len(tensors) < 2:
        return None
    queries, keys = tensors[:2]
    return queries if len(queries) == PACKED else (*queries, max(keys[1:3]))


def _linear_of_any(_: str, sizes: Tensors) -> tuple[int, ...] | None:
    """Of an operator that is none of PyTorch's: an input and the first weight with which it can be multiplied."""
    for left in sizes:
        for right in sizes:
            if left is not right and len(left) > 1 and len(right) == 2 and left[-1] == right[-1]:
                return prod(left[:-1]), right[0], left[-1]
    return None


_RULES: tuple[tuple[Callable[[str, str], bool], Kind, Callable[[str, Tensors], tuple[int, ...] | None]], ...] = (
    (lambda name, kernel: bool(MATMUL.match(name)), "matmul", _matmul),
    (lambda name, kernel: bool(GROUPED.search(name)), "grouped matmul", _grouped),
    (lambda name, kernel: bool(ATTENTION.search(name) or ATTENTION.search(kernel)), "attention", _attention),
    (lambda name, kernel: bool(GEMM_KERNEL.search(kernel)), "matmul", _linear_of_any),
)
"""Operators that multiply: by which names, and how their sizes are read."""
