"""The choice of each query's keys by small heads of their own: DeepSeek sparse attention (DSA), blocks of keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.facts.model import Indexer
from costmodel.lowering.collectives import tensor_parallel
from costmodel.lowering.kernels import elementwise, matmul, mean_entries
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, MatmulSize, Numbers, Operator

SCORE_BYTES = 4
"""Bytes of a score and of the index of a chosen key: kernels write both in 32 bits."""

COMPRESSED_KEYS = 4
"""Projections that compressed keys come from: two series of keys and of their gates (DeepSeek-V4)."""


def indexer_operators(
    indexer: Indexer | None, shape: Shape, *, query_inputs: int, core: Operator
) -> tuple[Operator, ...]:
    """
    Return the operators of an indexer: projections, norms, rotation, scores of all pairs, choice of the best.

    Every tensor-parallel rank computes all of it if the heads are summed; otherwise the heads of its own keys. Its
    input is detached, so that the backward pass computes gradients of weights alone. Its own loss compares the scores
    of the chosen keys with the mean of all heads' scores in the attention core, which the backward pass computes again.

    Parameters
    ----------
    indexer
        The indexer; None, or one that repeats an earlier choice, has no operators.
    shape
        The micro-batch.
    query_inputs
        Width of the input of its queries: the latent of MLA, or the hidden size.
    core
        The attention core of the layer.

    References
    ----------
    DeepSeek-V3.2 (arXiv 2512.02556), section 2.1, sparse training; Megatron-LM,
    ``megatron/core/transformer/experimental_attention_variant/dsa.py`` (core 0.16.1): ``DSAIndexer``
    (``parallel_mode="duplicated"``), ``DSAttention.forward`` (``detach``), ``compute_dsa_indexer_loss``.
    """
    if indexer is None or indexer.is_shared:
        return ()
    queries = _heads(indexer, shape) * indexer.head_dim
    key = indexer.head_dim * (1 if indexer.ratio == 1 else COMPRESSED_KEYS)
    projections = {"index_query": (query_inputs, queries), "index_key": (shape.hidden_size, key)}
    if indexer.sums_heads:
        projections["index_weights"] = (shape.hidden_size, indexer.num_heads)
    return (
        *(_project(name, shape, inputs, outputs) for name, (inputs, outputs) in projections.items()),
        _normalise(indexer, shape),
        _score(indexer, shape, core),
        _choose(indexer, shape),
    )


def indexer_communications(indexer: Indexer | None, shape: Shape) -> tuple[Communication, ...]:
    """Return the gather of the indexer's input, which sequence-parallel ranks hold in parts; without gradients."""
    if indexer is None or indexer.is_shared:
        return ()
    nbytes = shape.activation_bytes * shape.tokens * shape.hidden_size * shape.sequence_parallel
    return (tensor_parallel("all_gather", shape, nbytes=nbytes, forward=1),)


def _heads(indexer: Indexer, shape: Shape) -> Numbers:
    """Number of the indexer's heads on one device: all, or those of its own key heads."""
    return indexer.num_heads if indexer.sums_heads else np.maximum(indexer.num_heads / shape.tp, 1.0)


def _project(name: str, shape: Shape, inputs: int, outputs: Numbers) -> Operator:
    """Return a projection of a detached input, whose backward pass is the gradient of its weights."""
    linear = matmul(name, shape, rows=shape.tokens, inputs=inputs, outputs=outputs)
    return replace(linear, backward_flops=linear.flops, backward_bytes=linear.bytes)


def _normalise(indexer: Indexer, shape: Shape) -> Operator:
    """
    Return norms of queries and keys (weight and bias of keys alone under DSA), their rotation and compression.

    Compressed keys have a norm's weight, and a bias of each position for the gates of both series.
    """
    elements = shape.tokens * (_heads(indexer, shape) + 1) * indexer.head_dim
    return elementwise(
        "index_norm",
        shape,
        elements=elements,
        forward_passes=4,
        backward_passes=5,
        kernels=4,
        saved_elements=2 * elements,
        saved_as="index",
        parameters=indexer.head_dim * (2 if indexer.ratio == 1 else 1 + 2 * indexer.ratio),
    )


def _score(indexer: Indexer, shape: Shape, core: Operator) -> Operator:
    """Return the scores of every pair of tokens; the backward pass works on the chosen keys, and on their targets."""
    heads, width = _heads(indexer, shape), indexer.head_dim
    per_pair = 2 * heads * (width + int(indexer.sums_heads))
    keys, chosen = mean_entries(shape, indexer.ratio), mean_entries(shape, indexer.ratio, indexer.num_keys)
    written = _scores_in_memory(indexer, shape)
    targets = core.flops * _share_of_scores(core)
    nbytes = shape.activation_bytes * shape.tokens * (heads + shape.cp / indexer.ratio) * width
    return Operator(
        name="index_scores",
        kind="batched_matmul",
        size=MatmulSize(m=shape.tokens / shape.mbs, n=keys, k=width, batch=shape.mbs * heads),
        dtype=shape.wide_dtype,
        flops=shape.tokens * keys * per_pair,
        backward_flops=2 * shape.tokens * chosen * per_pair + targets,
        bytes=nbytes + SCORE_BYTES * written,
        backward_bytes=2 * nbytes + 2 * SCORE_BYTES * shape.tokens * chosen,
        rows=shape.tokens,
    )


def _share_of_scores(core: Operator) -> float:
    """Share of the attention core's FLOPs in its scores; the rest weights the values."""
    widths = getattr(core.size, "qk_head_dim", 1), getattr(core.size, "v_head_dim", 1)
    return widths[0] / sum(widths)


def _scores_in_memory(indexer: Indexer, shape: Shape) -> Numbers:
    """Number of scores that reach the device memory: of each pair, or of each query, head and block of keys."""
    of_query = 1 if indexer.sums_heads else _heads(indexer, shape)
    return shape.tokens * mean_entries(shape, indexer.ratio) * of_query / indexer.block_size


def _choose(indexer: Indexer, shape: Shape) -> Operator:
    """Return the choice of the best keys: two reads of all scores, and the kept indices and scores of the chosen."""
    written = _scores_in_memory(indexer, shape)
    lists = 1 if indexer.sums_heads else _heads(indexer, shape)
    keys = min(indexer.num_keys, shape.own_length // indexer.ratio)
    chosen = shape.tokens * lists * np.ceil(keys / indexer.block_size)
    moved = SCORE_BYTES * (2 * written + 2 * chosen)
    return Operator(
        name="index_top_k",
        kind="elementwise",
        bytes=moved,
        backward_bytes=2 * SCORE_BYTES * chosen,
        saved_bytes=2 * SCORE_BYTES * chosen,
        saved_as="index",
        rows=shape.tokens,
    )
