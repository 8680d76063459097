"""What an operator is: work, traffic, parameters and what it keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.fields import Dtype
from costmodel.strategy import CudaGraphs, captures

Numbers: TypeAlias = float | NDArray[np.float64]
"""A scalar, or an array over strategies; every formula takes both."""


MEMORY_BOUND = frozenset({"elementwise", "copy", "scores"})
"""Kinds of operators that only move bytes."""

BETWEEN_TOKENS = frozenset({"attention", "batched_matmul", "scan"})
"""Kinds of operators that compute with more than one token at a time, and have no weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulSize:
    """
    The matmuls of an operator's forward pass on one device.

    Parameters
    ----------
    m, n, k
        Rows, columns of the result, and the inner dimension that is summed over; grouped matmuls count the rows of all
        ``batch`` together.
    batch
        Number of matmuls: local experts, or sequences times heads.
    """

    m: Numbers
    n: Numbers
    k: Numbers
    batch: Numbers = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSize:
    """
    The attention of an operator on one device.

    Parameters
    ----------
    sequences, queries, keys
        Sequences of a micro-batch; tokens of each that ask; tokens that one reads (the sequence, or the window).
    heads, kv_heads, qk_head_dim, v_head_dim
        Query heads; key-value heads; widths of a head.
    causal
        Whether the masked half of the scores is skipped.
    is_window
        Whether a query reads less than what the causal mask leaves.
    """

    sequences: Numbers
    queries: Numbers
    keys: Numbers
    heads: Numbers
    kv_heads: Numbers
    qk_head_dim: int
    v_head_dim: int
    causal: bool
    is_window: bool = False

    @property
    def columns(self) -> dict[str, Numbers]:
        """Sizes by the names of the samples' columns."""
        names = ("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim")
        return {**{name: getattr(self, name) for name in names}, "causal": float(self.causal)}

    @property
    def head_dim(self) -> float:
        """Mean width of a head, of queries with keys and of values."""
        return (self.qk_head_dim + self.v_head_dim) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanSize:
    """
    The state-space recurrence of an operator on one device.

    Parameters
    ----------
    tokens, heads, head_dim, state_size, num_groups, chunk_size
        As in :class:`costmodel.facts.model.Mamba`, on this device.
    """

    tokens: Numbers
    heads: Numbers
    head_dim: int
    state_size: int
    num_groups: Numbers
    chunk_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSize:
    """
    The kernels of an operator that only moves bytes, where they are those that PyTorch has for it.

    Parameters
    ----------
    kernel
        Its name among sampled operators: ``rms_norm``, ``swiglu``, ``cross_entropy`` ...
    sizes
        Its sizes, by the names of the samples' columns: ``rows``, ``width`` ...
    dtype
        Dtype of what it moves.
    count
        How many of them there are, one after the other.
    is_adjoint
        Whether it does what the kernel's backward pass does, and its backward pass what the kernel does: tokens that
        come back from their experts are added up as gradients of copies are.
    """

    kernel: str
    sizes: Mapping[str, Numbers]
    dtype: Dtype
    count: Numbers = 1
    is_adjoint: bool = False


Size: TypeAlias = MatmulSize | AttentionSize | ScanSize | KernelSize
"""Shape by which a table, a sampled model or a trace knows an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """
    One operator of one micro-batch on one device, both passes.

    Every number may be an array over strategies.

    Parameters
    ----------
    name
        Name of what it computes: ``qkv``, ``core_attention``, ``up``, ``norm`` ...
    kind
        Which law times it: ``matmul``, ``grouped_matmul``, ``attention`` or one of the following. ``batched_matmul`` is
        of activations alone, one per sequence and head. ``elementwise`` is for kernels of which frameworks make more
        passes over memory than needed, ``copy`` for those where the passes counted are all. ``scores`` are softmax,
        mask and dropout of scores outside of a fused kernel. ``scan`` is a state-space recurrence in chunks.
    size
        What it multiplies, attends to or scans, or the kernels that move its bytes; None: kernels of the framework's
        own, or compiled ones.
    dtype
        Dtype of what it multiplies; empty: it multiplies nothing.
    flops, backward_flops
        Floating-point operations of the forward and of the whole backward pass.
    flops_fraction
        Fraction of its kind's rate that its sizes allow.
    bytes, backward_bytes
        Bytes read and written in device memory.
    cast_bytes, backward_cast_bytes
        Bytes read and written to bring inputs, weights and gradients into a narrower dtype, where the recipe has one.
    written_bytes, backward_written_bytes
        Bytes that a matmul writes when its multiplications have ended: its results, and those that it adds them to.
    group_kernels
        Kernels that only cast, or bring scales into order, of all groups, in the forward and in the backward pass: one
        after the other, with little to do.
    kernels
        Kernels launched in the forward pass (the backward launches twice as many).
    more_launches
        Kernels beside those, on streams of their own: a grouped matmul is launched group by group.
    is_routed
        Whether its sizes depend on where tokens are routed.
    graph_module
        The module of ``costmodel.strategy.GRAPH_MODULES`` with which CUDA graphs hold it; empty: none does.
    saved_bytes
        Bytes that stay in memory between forward and backward.
    saved_as
        The module of the saved bytes, by which selective recomputation drops them.
    parameters
        Parameters of this operator on one device.
    expert
        Whether the parameters belong to a routed expert, so that ``ep`` and ``etp`` split them.
    rows, shards, groups
        Shape facts by which a measured table knows the operator: tokens per micro-batch that enter it, ways it is
        split over tensor-parallel ranks, local experts.
    """

    name: str
    kind: str
    size: Size | None = None
    dtype: Dtype | Literal[""] = ""
    flops: Numbers = 0.0
    backward_flops: Numbers = 0.0
    flops_fraction: Numbers = 1.0
    bytes: Numbers = 0.0
    backward_bytes: Numbers = 0.0
    cast_bytes: Numbers = 0.0
    backward_cast_bytes: Numbers = 0.0
    written_bytes: Numbers = 0.0
    backward_written_bytes: Numbers = 0.0
    group_kernels: tuple[Numbers, Numbers] = (0, 0)
    kernels: Numbers = 1
    more_launches: Numbers = 0
    is_routed: bool = False
    graph_module: str = ""
    saved_bytes: Numbers = 0.0
    saved_as: str = ""
    parameters: Numbers = 0.0
    expert: bool = False
    rows: Numbers = 1.0
    shards: Numbers = 1.0
    groups: Numbers = 1.0


INSIDE_GRAPHS = {"moe_router": ("moe",), "moe_preprocess": ("moe",)}
"""Modules of CUDA graphs that hold others whole, by those."""


def is_graphed(operator: Operator, cuda_graphs: Numbers) -> NDArray[np.bool_]:
    """
    Whether a CUDA graph launches an operator.

    Parameters
    ----------
    operator
        What is launched.
    cuda_graphs
        The decision of that name; may be an array.

    Examples
    --------
    >>> scores = Operator(name="core_attention", kind="attention", graph_module="attn")
    >>> [bool(is_graphed(scores, CudaGraphs.named(graphs))) for graphs in ("none", "attn+mlp", "mlp", "full_iteration")]
    [False, True, False, True]
    """
    if isinstance(cuda_graphs, int):
        return _is_graphed_by_one(operator.graph_module, int(cuda_graphs))
    return _is_graphed(operator.graph_module, np.asarray(cuda_graphs))


@cache
def _is_graphed_by_one(module: str, cuda_graphs: int) -> NDArray[np.bool_]:
    """The same of a module in graphs of a single strategy, which every operator of a layer asks for."""
    return _is_graphed(module, np.asarray(cuda_graphs))


def _is_graphed(module: str, graphs: NDArray[np.int64]) -> NDArray[np.bool_]:
    captured = graphs == int(CudaGraphs.FULL_ITERATION)
    for name in (module, *INSIDE_GRAPHS.get(module, ())) if module else ():
        captured = captured | captures(name, cuda_graphs=graphs)
    return np.asarray(captured)


def host_launches(operator: Operator, cuda_graphs: Numbers) -> Numbers:
    """
    Number of kernels of an operator's forward pass that the host launches: none of what a CUDA graph holds.

    Derivation: every kernel outside of a graph is one launch, those on streams of their own too.
    """
    launches = operator.kernels + operator.more_launches
    launched: Numbers = np.where(is_graphed(operator, cuda_graphs), 0.0, launches)[()]
    return launched


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """
    Collectives that a layer needs for one micro-batch on one device.

    Parameters
    ----------
    group
        Whose ranks take part: ``tp``, ``cp``, ``ep``, ``etp``.
    kind
        ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``broadcast``, ``all_to_all``, ``ring`` (one
        send per step).
    nbytes
        Bytes of the whole tensor: gathered output, scattered input; or what a rank sends in an all-to-all, or in all
        steps of a ring together.
    forward, backward
        Number of them in each pass.
    forward_copies, backward_copies
        Number of copies of the whole tensor beside each, into or out of the order of ranks.
    hides_forward, hides_backward
        Whether matmuls hide those of a pass where tensor-parallel communication overlaps.
    in_pieces
        Whether single matmuls hide them, piece by piece with the matmul that they feed or that feeds them: nothing is
        copied then, pieces arrive in their places.
    launches
        Number of kernels that the host launches for each.
    num_experts, top_k
        Number of experts of an all-to-all to experts, and how many each token chooses; 0: what is sent has one
        destination.
    """

    group: str
    kind: str
    nbytes: Numbers
    forward: int
    backward: int
    forward_copies: Numbers = 0
    backward_copies: Numbers = 0
    hides_forward: bool = False
    hides_backward: bool = False
    in_pieces: bool = False
    launches: Numbers = 1
    num_experts: int = 0
    top_k: int = 0
