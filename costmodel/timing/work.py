"""Operators: work, traffic, parameters and the tensors kept for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.fields import Dtype
from costmodel.facts.workload import KeyStatistics
from costmodel.record import record
from costmodel.strategy import CudaGraphs, captures

Numbers: TypeAlias = float | NDArray[np.float64]
"""A scalar, or an array over strategies; every formula takes both."""

FLASH_BACKWARD = 2.5
"""Backward over forward FLOPs of flash attention: 5 matmuls against 2 (Dao, FlashAttention-2, arXiv 2307.08691)."""

MEMORY_BOUND = frozenset({"elementwise", "copy", "scores"})
"""Kinds of operators that only move bytes."""

BETWEEN_TOKENS = frozenset({"attention", "batched_matmul", "scan"})
"""Kinds of operators that compute with more than one token at a time, and have no weights."""


def has_any(numbers: Numbers) -> bool:
    """Tell if a number, or one of an array, is not 0; :func:`numpy.any` takes twenty times as long for a number."""
    return bool(numbers.any() if isinstance(numbers, np.ndarray) else numbers)


@record(frozen=True, kw_only=True, slots=True)
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


@record(frozen=True, kw_only=True, slots=True)
class AttentionSize:
    """
    The attention of an operator on one device.

    Parameters
    ----------
    sequences, queries, keys
        Sequences of a micro-batch; query tokens of each; key tokens of a query (the sequence, or the window).
    heads, kv_heads, qk_head_dim, v_head_dim
        Query heads; key-value heads; widths of a head.
    causal
        True if the masked half of the scores is skipped.
    is_window
        True if a query reads fewer tokens than the causal mask allows.
    packed
        Keys of a query where samples are packed sequences; None: all samples take the same time.
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
    packed: KeyStatistics | None = None

    @property
    def columns(self) -> dict[str, Numbers]:
        """Sizes by the names of the samples' columns."""
        names = ("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim")
        return {**{name: getattr(self, name) for name in names}, "causal": float(self.causal)}

    @property
    def head_dim(self) -> float:
        """Mean width of a head, of queries with keys and of values."""
        return (self.qk_head_dim + self.v_head_dim) / 2


@record(frozen=True, kw_only=True, slots=True)
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


@record(frozen=True, kw_only=True, slots=True)
class KernelSize:
    """
    The kernels of an operator that only moves bytes, if they are PyTorch's own.

    Parameters
    ----------
    kernel
        Its name among sampled operators: ``rms_norm``, ``swiglu``, ``cross_entropy`` ...
    sizes
        Its sizes, by the names of the samples' columns: ``rows``, ``width`` ...
    dtype
        Dtype of the moved elements.
    count
        Number of kernels, one after the other.
    is_adjoint
        True if it does the work of the kernel's backward pass, and its backward pass that of the kernel. Tokens that
        return from their experts are summed as gradients of copies are.
    """

    kernel: str
    sizes: Mapping[str, Numbers]
    dtype: Dtype
    count: Numbers = 1
    is_adjoint: bool = False


Size: TypeAlias = MatmulSize | AttentionSize | ScanSize | KernelSize
"""Shape that identifies an operator in a table, a sampled model or a trace."""


@record(frozen=True, kw_only=True, slots=True)
class Operator:
    """
    One operator of one micro-batch on one device, both passes.

    Every number may be an array over strategies.

    Parameters
    ----------
    name
        Name of the operator: ``qkv``, ``core_attention``, ``up``, ``norm`` ...
    kind
        Law that times it: ``matmul``, ``grouped_matmul``, ``attention`` or one of the following. ``batched_matmul`` is
        a matmul of activations alone, one per sequence and head. ``elementwise`` is for kernels with more passes over
        memory than needed, ``copy`` for kernels whose counted passes are all. ``scores`` are softmax, mask and dropout
        of scores outside of a fused kernel. ``scan`` is a state-space recurrence in chunks.
    size
        Size of the matmul, attention or scan, or of the kernels that move bytes; None: the framework's own kernels, or
        compiled ones.
    dtype
        Dtype of the multiplied tensors; empty: no multiplication.
    flops, backward_flops
        Floating-point operations of the forward and of the whole backward pass.
    flops_fraction
        Fraction of its kind's rate that its sizes allow.
    bytes, backward_bytes
        Bytes read and written in device memory.
    cast_bytes, backward_cast_bytes
        Bytes read and written to cast inputs, weights and gradients to a narrower dtype, if the recipe has one.
    written_bytes, backward_written_bytes
        Bytes that a matmul writes after its multiplications: its results, and accumulated gradients.
    group_kernels
        Kernels of all groups that only cast, or reorder scales, in the forward and in the backward pass: short kernels,
        one after the other.
    kernels
        Kernels launched in the forward pass (the backward launches twice as many).
    more_launches
        Additional kernels on their own streams: a grouped matmul is launched group by group.
    is_routed
        True if its sizes depend on the routing of tokens.
    graph_module
        Module of ``costmodel.strategy.GRAPH_MODULES`` whose CUDA graphs hold it; empty: no graph does.
    saved_bytes
        Bytes that stay in memory between forward and backward.
    saved_as
        Module of the saved bytes, for selective recomputation.
    parameters
        Parameters of this operator on one device.
    expert
        True if the parameters belong to a routed expert, so that ``ep`` and ``etp`` split them.
    rows, shards, groups
        Shape that identifies the operator in a measured table: input tokens per micro-batch, tensor-parallel ways,
        local experts.
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
"""Modules of CUDA graphs, and the modules that hold each of them whole."""


def is_graphed(operator: Operator, cuda_graphs: Numbers) -> NDArray[np.bool_]:
    """
    Return True where a CUDA graph launches an operator.

    Parameters
    ----------
    operator
        Operator to be launched.
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
    graphs = np.asarray(cuda_graphs)
    if graphs.size > FEW_GRAPHS or graphs.dtype != np.int64:
        return _is_graphed(operator.graph_module, graphs)
    return _is_graphed_by_few(operator.graph_module, graphs.shape, graphs.tobytes())


FEW_GRAPHS = 2**9
"""Most strategies whose answers are kept."""


@cache
def _is_graphed_by_one(module: str, cuda_graphs: int) -> NDArray[np.bool_]:
    """Cache the answer for a module and a single strategy, which every operator of a layer asks for."""
    return _is_graphed(module, np.asarray(cuda_graphs))


@lru_cache(maxsize=2**6)
def _is_graphed_by_few(module: str, shape: tuple[int, ...], cuda_graphs: bytes) -> NDArray[np.bool_]:
    """Cache the answer for a module and some strategies, which every operator of a layer asks for several times."""
    return _is_graphed(module, np.frombuffer(cuda_graphs, dtype=np.int64).reshape(shape))


def _is_graphed(module: str, graphs: NDArray[np.int64]) -> NDArray[np.bool_]:
    captured = graphs == int(CudaGraphs.FULL_ITERATION)
    for name in (module, *INSIDE_GRAPHS.get(module, ())) if module else ():
        captured = captured | captures(name, cuda_graphs=graphs)
    return np.asarray(captured)


def host_launches(operator: Operator, cuda_graphs: Numbers) -> Numbers:
    """
    Number of kernels of an operator's forward pass that the host launches; 0 inside a CUDA graph.

    Derivation: every kernel outside of a graph is one launch, also those on their own streams.
    """
    launches = operator.kernels + operator.more_launches
    launched: Numbers = np.where(is_graphed(operator, cuda_graphs), 0.0, launches)[()]
    return launched


@record(frozen=True, kw_only=True, slots=True)
class Communication:
    """
    Collectives that a layer needs for one micro-batch on one device.

    Parameters
    ----------
    group
        Group of ranks that take part: ``tp``, ``cp``, ``ep``, ``etp``; ``cp_a2a`` and ``cp_p2p``, near and far ranks
        of cp; ``cp_dynamic``, the ranks of the longest sequence.
    kind
        ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``broadcast``, ``all_to_all``, ``ring`` (one
        send per step).
    nbytes
        Bytes of the whole tensor: gathered output, scattered input; or the bytes that a rank sends in an all-to-all, or
        in all steps of a ring together.
    forward, backward
        Number of them in each pass.
    forward_copies, backward_copies
        Number of copies of the whole tensor in addition to each, into or out of the order of ranks.
    hides_forward, hides_backward
        True if matmuls hide the collectives of a pass where tensor-parallel communication overlaps.
    in_pieces
        True if single matmuls hide them, piece by piece with the matmul before or after: no copies are needed then,
        since pieces arrive in their places.
    launches
        Number of kernels that the host launches for each.
    waits
        True if attention stands still meanwhile, even where context-parallel communication overlaps.
    num_experts, top_k
        Number of experts of an all-to-all to experts, and of experts that each token chooses; 0: each byte has one
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
    waits: bool = False
    num_experts: int = 0
    top_k: int = 0
