"""Records of one measurement: operator, pass, dtype and sizes; seconds, and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

PASSES = ("forward", "dgrad", "wgrad", "backward")
"""
Forward; gradient of a matmul's input or weight alone; gradients of all inputs. Operators without backward are forward.
"""

DTYPES = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")
"""Dtypes of the cost model, and that of optimizer states. Copies have one, too."""


TRACED = "profiler trace"
"""Beginning of the software of a machine whose samples come from a training step, instead of separate measurements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """
    Sizes of an operator on one device, by the names of the table's columns; None where one does not apply.

    Parameters
    ----------
    batch, m, n, k
        Matmuls: rows and columns of the result and inner dimension, as in ``costmodel.timing.work.MatmulSize``;
        grouped matmuls count the rows of all groups. ``n`` alone: entries of a vocabulary, parameters, kernels of a
        chain.
    sequences, queries, keys
        Sequences; queries and keys of each.
    heads, kv_heads, qk_head_dim, v_head_dim
        Query heads, key-value heads, widths of a head.
    causal, window
        True where a query reads only earlier tokens; largest number of tokens that it reads.
    rows, width
        Tokens, and elements of each in the result.
    experts, top_k
        Experts, and experts per token.
    nbytes
        Bytes that are copied. For collectives those of the whole tensor: gathered output, scattered input, or all that
        a rank sends in an all-to-all, its own share included; as in ``costmodel.timing.work.Communication``.
    ranks, nodes
        Devices that take part in a collective, and their hosts, with equally many on each.
    """

    batch: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    sequences: int | None = None
    queries: int | None = None
    keys: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    qk_head_dim: int | None = None
    v_head_dim: int | None = None
    causal: bool | None = None
    window: int | None = None
    rows: int | None = None
    width: int | None = None
    experts: int | None = None
    top_k: int | None = None
    nbytes: int | None = None
    ranks: int | None = None
    nodes: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """Sizes that apply."""
        named = {name: getattr(self, name) for name in SIZE_COLUMNS}
        return {name: value for name, value in named.items() if value is not None}


SIZE_COLUMNS = tuple(one.name for one in fields(Sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """
    An operator to measure; equal points are measured once.

    Parameters
    ----------
    operator
        Its name in ``OPERATORS``.
    pass_
        One of ``PASSES``.
    dtype
        Dtype of its inputs.
    sizes
        Sizes of the operator.
    beside
        Operator that runs on the device at the same time; "" for none.
    """

    operator: str
    pass_: str
    dtype: str
    sizes: Sizes
    beside: str = ""

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.given.items())
        beside = f" beside {self.beside}" if self.beside else ""
        return f"{self.operator} {self.pass_} {self.dtype} {sizes}{beside}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    Machine of a measurement.

    Parameters
    ----------
    device, driver, software
        Name of the device; version of its driver, empty if it has none; versions of the libraries, and threads.
    clock_mhz
        Clock of the device when it is busy but far from its power limit, in MHz; None where it is unknown.
    memory_bytes, num_processors
        Bytes of the device's memory, free or not; number of its processors (SMs of a GPU, threads on a host). None
        where it is unknown.
    devices_per_node
        Number of such devices in the host; None where it is unknown.
    """

    device: str
    driver: str
    software: str
    clock_mhz: float | None = None
    memory_bytes: int | None = None
    num_processors: int | None = None
    devices_per_node: int | None = None

    def __str__(self) -> str:
        return ", ".join(text for text in (self.device, self.driver, self.software) if text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """
    Measured time.

    Parameters
    ----------
    seconds
        Median over the repeats.
    spread
        Half the interquartile range, as a fraction of the median.
    repeats
        Number of repeats.
    """

    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """
    One row of the table.

    Parameters
    ----------
    point, timing, machine
        The measured point, its time, and the machine.
    """

    point: Point
    timing: Timing
    machine: Machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """
    Columns and passes of an operator in the table.

    Parameters
    ----------
    needs, may
        Sizes that each of its rows must have, and may have.
    passes
        Its passes.
    """

    needs: tuple[str, ...]
    may: tuple[str, ...] = ()
    passes: tuple[str, ...] = ("forward", "backward")


_LINEAR = ("forward", "dgrad", "wgrad")
_ALONE = ("forward",)
_ROWS = Kind(needs=("rows", "width"))
_COLLECTIVE = Kind(needs=("nbytes", "ranks", "nodes"), passes=_ALONE)

OPERATORS: Mapping[str, Kind] = {
    "matmul": Kind(needs=("m", "n", "k"), passes=_LINEAR),
    "batched_matmul": Kind(needs=("batch", "m", "n", "k"), passes=_LINEAR),
    "grouped_matmul": Kind(needs=("batch", "m", "n", "k"), passes=_LINEAR),
    "attention": Kind(
        needs=("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal"),
        may=("window",),
    ),
    "rms_norm": _ROWS,
    "layer_norm": _ROWS,
    "rotary": Kind(needs=("rows", "heads", "qk_head_dim")),
    "swiglu": _ROWS,
    "gelu": _ROWS,
    "squared_relu": _ROWS,
    "softmax": _ROWS,
    "cross_entropy": _ROWS,
    "embedding": Kind(needs=("rows", "width", "n")),
    "top_k": Kind(needs=("rows", "experts", "top_k")),
    "permutation": Kind(needs=("rows", "width", "experts", "top_k")),
    "residual": Kind(needs=("rows", "width"), passes=_ALONE),
    "adam": Kind(needs=("n",), passes=_ALONE),
    "host_adam": Kind(needs=("n",), passes=_ALONE),
    "copy": Kind(needs=("nbytes",), passes=_ALONE),
    "host_to_device": Kind(needs=("nbytes",), passes=_ALONE),
    "device_to_host": Kind(needs=("nbytes",), passes=_ALONE),
    "launch": Kind(needs=("n",), passes=_ALONE),
    "graph_launch": Kind(needs=("n",), passes=_ALONE),
    "all_gather": _COLLECTIVE,
    "reduce_scatter": _COLLECTIVE,
    "all_reduce": _COLLECTIVE,
    "broadcast": _COLLECTIVE,
    "all_to_all": _COLLECTIVE,
    "send": _COLLECTIVE,
}
"""
Every operator of the table.

Seconds of ``launch`` and ``graph_launch`` are those of one of ``n`` kernels; seconds of ``send`` are one way of a
message that is sent back.
"""

COLLECTIVES = tuple(name for name, kind in OPERATORS.items() if kind is _COLLECTIVE)
"""Operators in which several devices take part."""
