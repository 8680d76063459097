"""
The collectives of layers and of a step, with the copies, launches and overlaps that a framework adds.

Data-parallel ranks share gradients and weights in the way of the framework's optimizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.facts.framework import OptimizerStyle
from costmodel.lowering.shape import Shape
from costmodel.record import record
from costmodel.strategy import CudaGraphs, Sharding, captures
from costmodel.timing.work import Communication, Numbers

RING_LAUNCHES, PIECE_LAUNCHES = 20, 10
"""
Number of launches of ring attention in the forward pass, in launches of eager code: for the whole, and for each piece.

A piece launches copies of the halves that it attends to, its kernels, a send and a receive in a group. Its streams wait
for each other, and it corrects the sums of exponentials and the output. The whole chooses a kernel for the shapes,
makes buffers, and casts queries, keys, values and the output. Source: Transformer Engine, ``DotProductAttention``,
``AttnFuncWithCPAndKVP2P``, recalled and counted: a dozen kernels of a piece. The numbers for two pieces are chosen on
NVIDIA's runs (benchmarks/LEDGER.md). There 8-bit layers of Llama-3 70B with 4,096 tokens per rank wait for the host on
H100 and GB200; their kernels are the shortest that overlap with a ring. Layers of twice the work do not wait. No run
distinguishes four pieces from two.
"""


def tensor_parallel(
    kind: str,
    shape: Shape,
    *,
    nbytes: Numbers,
    forward: int = 0,
    backward: int = 0,
    group: str = "tp",
    sums_gradients: bool = True,
) -> Communication:
    """
    Return a collective of tensor-parallel ranks as a framework does it: with its copies and its overlap.

    Tensors with the batch first are copied whole, sequence by sequence, into or out of the order of ranks. The kernel
    that sums input gradients of several linears writes them in that order by itself. Overlap hides all collectives. If
    it works in pieces of single matmuls, it hides only collectives that feed a matmul or that one matmul feeds.
    Gathered tensors feed matmuls unless they are cast in between. A scattered tensor is one matmul's result in the
    forward pass, and the sum of several in the backward pass.

    Parameters
    ----------
    kind, nbytes, forward, backward, group
        As in :class:`costmodel.timing.work.Communication`.
    shape
        The micro-batch.
    sums_gradients
        True if a scatter of the backward pass sums input gradients of several linears.

    References
    ----------
    PyTorch, ``torch/distributed/_functional_collectives.py`` (``torch.cat(torch.chunk(...))``);
    ``torch/_inductor/fx_passes/micro_pipeline_tp.py`` (``_find_producer_matmul``: a ``mm``, or a reshaped one).
    """
    is_ordered = kind in ("all_gather", "reduce_scatter")
    is_copied = shape.kernels.batch_first and is_ordered
    copies: Numbers = np.where(np.asarray(shape.mbs) > 1, 1.0, 0.0)[()] if is_copied else 0
    is_sorted = kind == "reduce_scatter" and sums_gradients and not shape.kernels.fused_projections
    return Communication(
        group=group,
        kind=kind,
        nbytes=nbytes,
        forward=forward,
        backward=backward,
        forward_copies=copies,
        backward_copies=0 if is_sorted else copies,
        **_overlap(kind, shape),
    )


def _overlap(kind: str, shape: Shape) -> dict[str, Any]:
    if not shape.communication.tp_overlaps_single_matmuls:
        return {"hides_forward": True, "hides_backward": True}
    feeds = shape.quantizes_before_gather or not shape.cast_bytes
    hides = {"all_gather": (feeds, feeds), "reduce_scatter": (True, False)}.get(kind, (False, False))
    return {"hides_forward": hides[0], "hides_backward": hides[1], "in_pieces": True}


def tensor_parallel_collectives(
    shape: Shape, *, entry_width: int | None = None, exit_width: int | None = None, sums_gradients: bool = True
) -> tuple[Communication, ...]:
    """
    Return the collectives of one tensor-parallel block, where tokens enter and leave it.

    With sequence parallelism the forward pass gathers the input and scatters the sum of the outputs, the backward pass
    the other way round. Without it the forward pass sums the outputs, and the backward pass sums the input's gradients.
    The kind that a strategy does not use has zero bytes. 8-bit recipes gather the inputs of their matmuls in 8 bits;
    sums stay in 16 bits. Megatron-LM gathers the input once more in the backward pass, which is counted where it hides
    (``costmodel.step.compute``).

    Parameters
    ----------
    shape
        The micro-batch.
    entry_width, exit_width
        Elements per token that enter and leave; None: the hidden size. Tensors of another width enter in 16 bits.
    sums_gradients
        As in :func:`tensor_parallel`.
    """
    wide = shape.activation_bytes
    entering, leaving = (_token_bytes(shape, width, wide) for width in (entry_width, exit_width))
    input_bytes, gradient_bytes = shape.gathered_bytes
    inputs = _token_bytes(shape, entry_width, input_bytes if entry_width is None else wide)
    gradients = _token_bytes(shape, exit_width, gradient_bytes)
    split, whole = shape.sequence_parallel, 1 - shape.sequence_parallel
    gathers = (
        tensor_parallel("all_gather", shape, nbytes=inputs * split, forward=1),
        tensor_parallel("all_gather", shape, nbytes=gradients * split, backward=1),
    )
    if entry_width == exit_width:
        return (
            *gathers,
            tensor_parallel(
                "reduce_scatter",
                shape,
                nbytes=entering * split,
                forward=1,
                backward=1,
                sums_gradients=sums_gradients,
            ),
            tensor_parallel("all_reduce", shape, nbytes=entering * whole, forward=1, backward=1),
        )
    return (
        *gathers,
        tensor_parallel("reduce_scatter", shape, nbytes=leaving * split, forward=1),
        tensor_parallel("reduce_scatter", shape, nbytes=entering * split, backward=1, sums_gradients=sums_gradients),
        tensor_parallel("all_reduce", shape, nbytes=leaving * whole, forward=1),
        tensor_parallel("all_reduce", shape, nbytes=entering * whole, backward=1),
    )


def context_parallel(shape: Shape, *, queries: Numbers, keys: Numbers, outputs: Numbers) -> tuple[Communication, ...]:
    """
    Return the communication of context-parallel ranks around softmax attention, by its kind.

    A ring passes keys and values, and the gradients too in the backward pass. An all-gather of both is repeated in the
    backward pass, which scatters their gradients' sums. All-to-alls exchange queries, keys and values before the
    attention, and its output after it; the backward pass does the same with the gradients. A hierarchical one does that
    among near ranks, each of which then passes its heads' keys and values round a ring of the groups. Only rings run
    overlapped with the attention. Dynamic context parallelism has a ring of as many ranks as each sequence needs.

    Parameters
    ----------
    shape
        The micro-batch.
    queries, keys, outputs
        Elements per token of this device: queries; keys and values; outputs.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py, ``cp_comm_type``; Transformer Engine 2.11,
    ``context_parallel.py``: ``AttnFuncWithCPAndKVP2P``, ``...KVAllGather``, ``...QKVOA2A``; Jacobs et al., DeepSpeed
    Ulysses, arXiv:2309.14509, section 3.
    """
    kind, dynamic = shape.communication.cp_comm_type, shape.dynamic_ranks
    if dynamic is not None:
        nbytes = shape.activation_bytes * shape.tokens * keys * (dynamic.mean - 1)
        calls: dict[str, Any] = {"forward": 1, "backward": 2, "launches": 1 + _ring_launches(shape, dynamic.mean)}
        return (Communication(group="cp_dynamic", kind="ring", nbytes=nbytes, **calls),)
    if kind in (None, "p2p"):
        return (ring(shape, width=keys),)
    nbytes = shape.activation_bytes * shape.tokens
    if kind == "all_gather":
        gathered = nbytes * keys * shape.cp
        return (
            Communication(group="cp", kind="all_gather", nbytes=gathered, forward=1, backward=1, waits=True),
            Communication(group="cp", kind="reduce_scatter", nbytes=gathered, forward=0, backward=1, waits=True),
        )
    group = "cp" if kind == "a2a" else "cp_a2a"
    exchanges = tuple(
        Communication(group=group, kind="all_to_all", nbytes=nbytes * width, forward=1, backward=1, waits=True)
        for width in (queries + keys, outputs)
    )
    return exchanges if kind == "a2a" else (*exchanges, ring(shape, width=keys, group="cp_p2p"))


def ring(shape: Shape, *, width: Numbers, group: str = "cp") -> Communication:
    """
    Return the ring of context-parallel ranks, which passes this rank's keys and values (or a state) to all others.

    Parameters
    ----------
    shape
        The micro-batch.
    width
        Elements per token that are sent; the backward pass sends the gradients too.
    group
        Ranks of the ring: all of ``cp``, or ``cp_p2p``, one of each group of near ranks. Each of those has all tokens
        of its group, and its share of the heads.
    """
    ranks: Numbers = shape.cp if group == "cp" else shape.cp / shape.a2a_ranks
    nbytes = shape.activation_bytes * shape.tokens * width * (ranks - 1)
    launches = 1 + _ring_launches(shape, ranks)
    return Communication(group=group, kind="ring", nbytes=nbytes, forward=1, backward=2, launches=launches)


def _ring_launches(shape: Shape, ranks: Numbers) -> Numbers:
    """Number of launches of a ring's pieces of attention; 0 with a CUDA graph or a framework's all-to-all."""
    if shape.memory.context_output and shape.communication.cp_comm_type is None:
        return 0.0
    graphs = np.asarray(shape.cuda_graphs)
    is_eager = ~captures("attn", cuda_graphs=graphs) & (graphs != int(CudaGraphs.FULL_ITERATION))
    return np.asarray((RING_LAUNCHES + PIECE_LAUNCHES * np.asarray(ranks)) * is_eager)


def _token_bytes(shape: Shape, width: int | None, element_bytes: float) -> Numbers:
    return element_bytes * shape.tokens * (shape.hidden_size if width is None else width)


# --- data-parallel ranks -----------------------------------------------------------------------------------

PARAMETER_TENSORS = 9
"""
Number of parameter tensors of a layer: two norms, queries with keys and values, the output, three of a gated block, two
biases (InternLM).
"""

WIDE_BYTES = 2.0
"""Bytes of a gradient's element as a layer's matmul leaves it."""


@record(frozen=True, kw_only=True, slots=True)
class StepCollective:
    """
    A collective in which data-parallel ranks share the gradients or weights of a step.

    Parameters
    ----------
    kind
        As in :class:`costmodel.timing.work.Communication`.
    rounds
        Number of times that it transfers all parameters of a rank in a step.
    tensors_per_layer
        Number of tensors of a layer that owners send whole; None: parameters are split into buckets.
    waits
        True if it is exposed even where data-parallel communication overlaps.
    """

    kind: str
    rounds: Numbers
    tensors_per_layer: int | None = None
    waits: Numbers = False


def gradient_collective(style: OptimizerStyle, *, sharding: Numbers, num_microbatches: Numbers) -> StepCollective:
    """
    Return the collective of gradients: once per step, from ZeRO-2 on once per micro-batch.

    Some frameworks all-reduce gradients under ZeRO-1, with twice the traffic of a reduce-scatter.

    References
    ----------
    Rajbhandari et al., arXiv:1910.02054, section 7.
    """
    is_zero1 = np.asarray(sharding) == int(Sharding.OPTIMIZER)
    twice = (style.gradient_sync == "all_reduce") & is_zero1
    rounds = np.where(np.asarray(sharding) >= int(Sharding.GRADIENTS), num_microbatches, np.where(twice, 2, 1))
    return StepCollective(kind="reduce_scatter", rounds=rounds, waits=(not style.gradient_sync_overlaps) & is_zero1)


def weight_collective(style: OptimizerStyle, *, sharding: Numbers, num_microbatches: Numbers) -> StepCollective:
    """
    Return the collective of updated weights: once per step, under ZeRO-3 before either pass of each micro-batch.

    Without sharding it gathers the gradients instead, as the second half of an all-reduce.

    References
    ----------
    Rajbhandari et al., arXiv:1910.02054, section 7; InternEvo, ``internlm/solver/optimizer/hybrid_zero_optim.py``,
    ``_broadcast_params``: one broadcast per owner, tensors are not cut.
    """
    is_broadcast = style.weight_sync == "broadcast"
    return StepCollective(
        kind=style.weight_sync,
        rounds=np.where(np.asarray(sharding) >= int(Sharding.WEIGHTS), 2 * num_microbatches, 1),
        tensors_per_layer=PARAMETER_TENSORS if is_broadcast else None,
        waits=(not style.weight_sync_overlaps) & (np.asarray(sharding) == int(Sharding.OPTIMIZER)),
    )


def sharding_copy_bytes(style: OptimizerStyle, *, gradient_bytes: float, gather_bytes: float) -> float:
    """
    Bytes read and written per parameter and micro-batch between tensors and collectives' buffers under ZeRO-3.

    Gathered weights are read and written before either pass; gradients are read in 16 bits and written in the dtype of
    the reduction. If weights are views of a flat tensor, only gradients count.

    References
    ----------
    PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`` (``foreach_all_gather_copy_out``,
    ``foreach_reduce_scatter_copy_in``); ``fsdp/_flat_param.py`` (``_get_unflat_views_unaligned``: the backward pass of
    a split).
    """
    gradient = WIDE_BYTES + gradient_bytes
    return {"none": 0.0, "flat": gradient, "tensors": 2 * 2 * gather_bytes + gradient}[style.sharding_copies]
