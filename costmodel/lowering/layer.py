"""One layer: the registry of its blocks, the norms and residuals around them, and its matrices, which Muon updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.lowering.attention import (
    attention_communications,
    attention_operators,
    compression_communications,
    compression_operators,
    latent_attention_communications,
    latent_attention_operators,
)
from costmodel.lowering.embedding import next_token_communications, next_token_operators
from costmodel.lowering.experts import experts_communications, experts_operators, mlp_communications, mlp_operators
from costmodel.lowering.kernels import EAGER, norms, residual_operators
from costmodel.lowering.recurrent import (
    linear_attention_communications,
    linear_attention_operators,
    mamba_communications,
    mamba_operators,
    selective_scan_communications,
    selective_scan_operators,
    short_convolution_communications,
    short_convolution_operators,
)
from costmodel.lowering.shape import Shape
from costmodel.record import record, replace
from costmodel.strategy import MODULES, Recompute
from costmodel.tables import present, sum_last
from costmodel.timing.work import AttentionSize, Communication, MatmulSize, Numbers, Operator

OPERATORS: dict[type, Callable[[Any, Shape], tuple[Operator, ...]]] = {
    Attention: attention_operators,
    LatentAttention: latent_attention_operators,
    CompressedAttention: compression_operators,
    LinearAttention: linear_attention_operators,
    Mamba: mamba_operators,
    SelectiveScan: selective_scan_operators,
    ShortConvolution: short_convolution_operators,
    Mlp: mlp_operators,
    Experts: experts_operators,
}

"""Function that returns the operators of a block, by its record."""

COMMUNICATIONS: dict[type, Callable[[Any, Shape], tuple[Communication, ...]]] = {
    Attention: attention_communications,
    LatentAttention: latent_attention_communications,
    CompressedAttention: compression_communications,
    LinearAttention: linear_attention_communications,
    Mamba: mamba_communications,
    SelectiveScan: selective_scan_communications,
    ShortConvolution: short_convolution_communications,
    Mlp: mlp_communications,
    Experts: experts_communications,
}

"""Function that returns the collectives of a block, by its record."""

GRAPH_MODULE: dict[type, str] = {
    Attention: "attn",
    LatentAttention: "attn",
    CompressedAttention: "attn",
    LinearAttention: "attn",
    Mamba: "mamba",
    SelectiveScan: "mamba",
    ShortConvolution: "attn",
    Mlp: "mlp",
}

"""
The module of CUDA graphs that holds a block with its norms and its residual.

Megatron-LM, ``megatron/core/transformer/transformer_layer.py:936`` (``_get_submodules_under_cudagraphs``, of
megatron-core 0.16.1), and ``megatron/core/ssm/mamba_layer.py:93``. Experts name it for each operator; their residual
comes after them.
"""


def layer_operators(layer: Layer, shape: Shape) -> tuple[Operator, ...]:
    """
    Return every operator of one layer for one micro-batch on one device.

    This is the one source of the layer's parameters, FLOPs, memory traffic and saved activations.

    Parameters
    ----------
    layer
        The blocks.
    shape
        The micro-batch and the degrees; its numbers may be arrays that broadcast.
    """
    shape = shape.widen() if layer.is_wide else shape
    around: list[Operator] = []
    inside: list[Operator] = []
    residuals: list[Operator] = []
    shares = _shares(layer.num_norms, len(layer.blocks))
    for block, num_norms in zip(layer.blocks, shares, strict=True):
        module = GRAPH_MODULE.get(type(block), "")
        normed = norms("norms", shape, count=num_norms, norm=layer.norm)
        around += [replace(normed, graph_module=module or "moe_router")] if num_norms else []
        operators = OPERATORS[type(block)](block, shape)
        inside += [replace(operator, graph_module=module) for operator in operators] if module else operators
        around_block = residual_operators(shape, streams=layer.streams, snapshots=layer.snapshots)
        residuals += [replace(one, graph_module=module) for one in around_block]
    return (*around, *inside, *residuals)


def _shares(number: int, blocks: int) -> list[int]:
    """Return the number of norms before each block; if they do not divide evenly, the first blocks have more."""
    return [number // blocks + (index < number % blocks) for index in range(blocks)]


def layer_communications(layer: Layer, shape: Shape) -> tuple[Communication, ...]:
    """
    Return every collective of one layer for one micro-batch on one device; some have zero bytes.

    Parallel blocks share the gather and the sum of the forward pass, as two parallel mixers do. In the
    backward pass each one sums the gradients of its input.

    Parameters
    ----------
    layer
        The blocks.
    shape
        The micro-batch and the degrees; its numbers may be arrays that broadcast.
    """
    shape = shape.widen() if layer.is_wide else shape
    found: list[Communication] = []
    for index, block in enumerate(layer.blocks):
        own = COMMUNICATIONS[type(block)](block, shape)
        shares = index > 0 and (layer.parallel_blocks or block is layer.beside)
        found += [replace(one, forward=0) if shares and one.group == "tp" else one for one in own]
    return tuple(found)


def mtp_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """Return the operators of all layers of multi-token prediction; empty if the model has none."""
    blocks = (layer_operators(layer, shape) for layer in model.mtp_layers)
    return tuple(operator for block in blocks for operator in next_token_operators(model, shape, block))


def mtp_projection_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """Return multi-token prediction outside its transformer layers: embedding, projection, norms, head, loss."""
    return tuple(operator for _ in model.mtp_layers for operator in next_token_operators(model, shape, ()))


def mtp_projection_communications(model: Model, shape: Shape) -> tuple[Communication, ...]:
    """Return the collectives of :func:`mtp_projection_operators`."""
    return tuple(collective for _ in model.mtp_layers for collective in next_token_communications(model, shape, ()))


FIRST_MODULE = int(Recompute.of(MODULES[0]))

"""The decision's value for the first module; each further one doubles it."""


@record(frozen=True, kw_only=True, slots=True)
class Module:
    """
    A module of a layer that the backward pass may recompute.

    Parameters
    ----------
    drops
        Saved tensors that it does not keep, by ``saved_as`` of their operators, and the dropped share of each.
    repeats
        Names of the operators that run again, and the repeated share of each.
    """

    drops: Mapping[str, float]
    repeats: Mapping[str, float]


def _all_of(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, 1.0)


PROJECTIONS = ("qkv", "query_projection", "key_projection", "value_projection")

FEED_FORWARD_PROJECTIONS = ("up", "gate_projection", "up_projection")

"""Linears of one input each, as one matmul or several."""

CONTENTS: dict[str, Module] = {
    "core_attention": Module(drops=_all_of("core_attention"), repeats=_all_of("core_attention", "softmax")),
    "qkv": Module(drops=_all_of("qkv"), repeats=_all_of(*PROJECTIONS, "q_up", "kv_up", "qk_norm", "rotary")),
    "norms": Module(drops={**_all_of("norm_output"), "eager_norm": 2 / 3}, repeats=_all_of("norms")),
    "mlp": Module(drops=_all_of("mlp", "activation"), repeats=_all_of(*FEED_FORWARD_PROJECTIONS, "activation", "down")),
    "shared_experts": Module(
        drops=_all_of("shared_mlp", "shared_activation"),
        repeats=_all_of(
            *(f"shared_{name}" for name in FEED_FORWARD_PROJECTIONS), "shared_activation", "shared_down", "shared_gate"
        ),
    ),
    "expert_activation": Module(drops=_all_of("expert_hidden"), repeats=_all_of("expert_clamps", "expert_activation")),
    "experts": Module(
        drops=_all_of("router", "experts", "expert_activation"),
        repeats={
            **_all_of("router", "top_k", "dispatch", "sort", "expert_up", "expert_down", "expert_bias", "combine"),
            **_all_of("router_norm", "latent_down", "latent_norm", "latent_up"),
        },
    ),
}

"""
Contents of Megatron-LM's ``recompute_modules`` (``megatron/core/transformer/transformer_config.py``, 0.14): core_attn,
mla_up_proj (``qkv``), layernorm, mlp, shared_experts, moe_act, moe (``experts``). MoFa's selective recomputation is
``core_attention+qkv``, its equations (29) and (30). The last module, ``every_other_matmul``, keeps results of operators
instead of dropping tensors (torchtitan's ``selective``), and cannot be combined with others.
"""


def find_kept_results(operators: Iterable[Operator]) -> Iterator[tuple[Operator, bool]]:
    """
    Yield the operators of a layer, each with True if ``every_other_matmul`` keeps its result.

    It keeps those of attention cores and of the first, third ... matmul. The router's matmul does not count and is
    repeated, as are grouped matmuls.

    References
    ----------
    torchtitan 0.3, ``distributed/activation_checkpoint.py``: ``SelectiveAC``, ``_get_default_save_ops``.
    """
    number = 0
    for operator in operators:
        counts = operator.kind == "matmul" and operator.name != "router"
        number += counts
        yield operator, operator.kind == "attention" or (counts and number % 2 == 1)


def sum_dropped_bytes(operators: Sequence[Operator], shape: Shape) -> list[Numbers]:
    """Bytes of saved tensors that recomputation of each module drops, in the order of ``MODULES``."""
    saved = [one.saved_bytes for one in operators]
    shares = ([_dropped_share(one, module) for one in operators] for module in CONTENTS.values())
    return [
        *(_sum_shares(own, saved) for own in shares),
        sum(saved) - _kept_result_bytes(operators, shape),
    ]


def _kept_result_bytes(operators: Iterable[Operator], shape: Shape) -> Numbers:
    """
    Bytes that ``every_other_matmul`` keeps: the layer's input, and the results of kept operators and of collectives.

    Collectives are both all-to-alls of experts, and reduce-scatters. Compiled layers do not keep results that nothing
    reads.
    """
    rows = shape.activation_bytes * shape.tokens * shape.hidden_size / shape.sequence_shards
    total: Numbers = rows
    for operator, is_kept in find_kept_results(operators):
        size, name = operator.size, operator.name.removeprefix("shared_")
        is_read = shape.memory.unfused_kernels or name not in BEHIND_THE_LAST_KEPT
        if isinstance(size, AttentionSize):
            total = total + shape.activation_bytes * shape.tokens * size.heads * size.v_head_dim
        elif is_kept and is_read:
            total = total + operator.written_bytes
        if isinstance(size, MatmulSize) and operator.name == "expert_up":
            total = total + 2 * np.where(np.asarray(shape.ep) > 1, shape.activation_bytes * size.m * size.k, 0.0)[()]
        if name in ("output_projection", "down") and is_read:
            total = total + np.where(np.asarray(shape.sequence_shards) > 1, rows, 0.0)[()]
    return total


def find_repeated_shares(operators: Sequence[Operator], module: str) -> list[float]:
    """Return the share of each operator that recomputation of a module repeats."""
    if module not in CONTENTS:
        kept = find_kept_results(operators)
        return [0.0 if is_kept else 1 - BEHIND_THE_LAST_KEPT.get(one.name, 0.0) for one, is_kept in kept]
    return [CONTENTS[module].repeats.get(operator.name, 0.0) for operator in operators]


def sum_repeated(operators: Sequence[Operator], values: Sequence[Numbers]) -> list[Numbers]:
    """
    Sum, in the unit of ``values``, over the operators that recomputation of each module repeats.

    Derivation: each operator is weighted by the share that the module repeats (:func:`find_repeated_shares`, after
    Megatron-LM's ``recompute_modules``). Modules are in the order of ``MODULES``.
    """
    return [_sum_shares(find_repeated_shares(operators, name), values) for name in MODULES]


def _sum_shares(shares: Iterable[float], values: Iterable[Numbers]) -> Numbers:
    """Sum shares of some values, most of them none."""
    return sum((share * value for share, value in zip(shares, values, strict=True) if share), start=0.0)


BEHIND_THE_LAST_KEPT = {"down": 1.0, "residuals": 1 / 2}

"""Operators whose results a dense layer's backward pass does not read, and the share of each."""


def early_stop_saving(operators: Iterable[Operator], values: Iterable[Numbers]) -> Numbers:
    """
    Sum, in the unit of ``values``, over the operators that full recomputation need not repeat.

    Derivation: recomputation may end with the last tensor that the backward pass reads; the operators after it
    (:data:`BEHIND_THE_LAST_KEPT`) need no second run.
    """
    return _sum_shares((BEHIND_THE_LAST_KEPT.get(operator.name, 0.0) for operator in operators), values)


def recomputes(name: str, *, recompute: Numbers | NDArray[np.int64]) -> NDArray[np.bool_]:
    """
    Return True where a decision recomputes a module by itself; full recomputation names none.

    >>> bool(recomputes("qkv", recompute=Recompute.SELECTIVE)), bool(recomputes("mlp", recompute=Recompute.SELECTIVE))
    (True, False)
    """
    return np.asarray(np.asarray(recompute, dtype=np.int64) & _bits_of(name) != 0)


@cache
def _bits_of(name: str) -> int:
    """Return the bits of the decisions that recompute a module by itself."""
    named = FIRST_MODULE << MODULES.index(name)
    return named | int(Recompute.SELECTIVE) if named & int(CORE_AND_PROJECTIONS) else named  # it has a bit of its own


def sum_over_modules(values: NDArray[np.float64], *, recompute: Numbers | NDArray[np.int64]) -> NDArray[np.float64]:
    """
    Sum of a number per module over the recomputed modules, in the unit of ``values`` (seconds, bytes).

    Derivation: modules drop and repeat disjoint shares of operators (:data:`CONTENTS`), so that their numbers add up.
    The shape is that of ``values`` without its last axis.

    Parameters
    ----------
    values
        A number of each module, in the order of ``MODULES`` on the last axis.
    recompute
        Decision; broadcasts against the axes before the last.
    """
    decisions = np.asarray(recompute)
    total: NDArray[np.float64] = np.zeros(())
    for decision in present(decisions):
        chosen = module_indices(decision)
        if chosen:
            total = np.where(decisions == decision, sum_last(values[..., chosen]), total)
    return total


@cache
def module_indices(decision: int) -> list[int]:
    """Return the positions in ``MODULES`` of the modules that a decision recomputes."""
    return [index for index, name in enumerate(MODULES) if decision & _bits_of(name)]


CORE_AND_PROJECTIONS = Recompute.of("core_attention", "qkv")


def _dropped_share(operator: Operator, module: Module) -> float:
    saved = operator.saved_as
    return module.drops.get(saved, module.drops.get(saved.removeprefix(EAGER), 0.0))


SPLIT = ("query_projection", "key_projection", "value_projection")
"""Parts of the fused projection ``qkv`` that Megatron-LM updates each for itself (``--muon-no-split-qkv`` does not)."""


@record(frozen=True, kw_only=True, slots=True)
class Matrix:
    """
    Weight matrices of one operator of a layer.

    Parameters
    ----------
    rows, columns
        Outputs and inputs of the whole matrix, of all tensor-parallel ranks.
    row_shards, column_shards
        Tensor-parallel ranks among which rows or columns are split; 1: each holds all of them.
    count
        Matrices on one device: local experts, otherwise 1.
    expert
        True if it belongs to routed experts.
    """

    rows: Numbers
    columns: Numbers
    row_shards: Numbers
    column_shards: Numbers
    count: Numbers
    expert: bool

    @property
    def shards(self) -> Numbers:
        """Tensor-parallel ranks that share one matrix."""
        return self.row_shards * self.column_shards

    @property
    def parameters(self) -> Numbers:
        """Parameters of one matrix on one device."""
        return self.rows * self.columns / self.shards


def layer_matrices(layer: Layer, shape: Shape) -> tuple[Matrix, ...]:
    """
    Return the weight matrices of a layer: weights of its matmuls, without biases, norms, convolutions and scales.

    Fused gates stay one matrix, as does each expert. Embedding and head are not among them: Adam updates both.

    References
    ----------
    megatron-core 0.16.1, ``optimizer/muon.py:259``: parameters of two dimensions that are no embedding or output;
    ``muon.py:136``: queries, keys and values apart.
    """
    whole = replace(shape, tp=1, etp=1, sequence_parallel=0)
    pairs = zip(_weights(layer, shape), _weights(layer, whole), strict=True)
    return tuple(_matrix(local, other) for local, other in pairs)


def _weights(layer: Layer, shape: Shape) -> list[Operator]:
    """Return the operators with a weight matrix, queries, keys and values apart."""
    apart = replace(shape, kernels=replace(shape.kernels, fused_projections=False))
    projections = [one for one in layer_operators(layer, apart) if one.name in SPLIT]
    others = [one for one in layer_operators(layer, shape) if one.name not in ("qkv", *SPLIT)]
    return [one for one in (*projections, *others) if isinstance(one.size, MatmulSize) and np.any(one.parameters)]


def _matrix(local: Operator, whole: Operator) -> Matrix:
    assert isinstance(local.size, MatmulSize)
    assert isinstance(whole.size, MatmulSize)
    return Matrix(
        rows=whole.size.n,
        columns=whole.size.k,
        row_shards=whole.size.n / local.size.n,
        column_shards=whole.size.k / local.size.k,
        count=local.groups,
        expert=local.expert,
    )
