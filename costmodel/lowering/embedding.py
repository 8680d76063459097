"""Operators of both ends of a model: embedding, head and loss, split over tensor-parallel ranks by vocabulary."""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import Model
from costmodel.lowering.collectives import tensor_parallel, tensor_parallel_collectives
from costmodel.lowering.kernels import (
    attach_torch_function,
    collapse_operators,
    elementwise,
    logits_fraction,
    matmul,
    norms,
)
from costmodel.lowering.shape import Shape
from costmodel.record import replace
from costmodel.timing.work import Communication, Numbers, Operator


def rank_vocabulary(model: Model, shape: Shape) -> Numbers:
    r"""
    Number of vocabulary entries on one tensor-parallel rank, padded to the framework's multiple.

    .. math:: \lceil V / (m t) \rceil m

    References
    ----------
    Megatron-LM, ``_vocab_size_with_padding``: multiples of ``--make-vocab-size-divisible-by`` times tp.
    """
    share = model.vocab_size / np.asarray(shape.tp)
    padded = np.ceil(share / shape.kernels.vocabulary_multiple) * shape.kernels.vocabulary_multiple
    if shape.kernels.vocabulary_multiple == 1:
        return share[()]
    return np.where(shape.kernels.pads_vocabulary | (np.asarray(shape.tp) > 1), padded, share)[()]


def embedding_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the look-ups of token and learned positions; only the token ids are kept, which are not counted.

    The forward pass reads and writes a row per token; the backward pass reads the gradient and adds it to the
    weight's gradient.
    """
    lookups = 2 if model.learned_positions else 1
    vocabulary = rank_vocabulary(model, shape)
    looked_up = elementwise(
        "embedding",
        shape,
        elements=shape.tokens * shape.hidden_size * lookups,
        forward_passes=2,
        backward_passes=3,
        kernels=lookups,
        saved_as="embedding",
        parameters=(vocabulary + model.learned_positions) * shape.hidden_size,
    )
    rows, width = shape.tokens, shape.hidden_size
    found = attach_torch_function(looked_up, shape, "embedding", count=lookups, rows=rows, width=width, n=vocabulary)
    return (found, norms("embedding_norm", shape, count=1, norm="layer")) if model.embedding_norm else (found,)


def head_operators(model: Model, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the final norm, the logits and the loss, after the sum of the residual's streams if there are several.

    A tied head owns no parameters here; in a pipeline the last stage keeps a copy if it is not the first.
    """
    outputs = rank_vocabulary(model, shape)
    weight = 0 if model.tied_embeddings else shape.hidden_size * outputs
    logits = matmul(
        "head",
        shape,
        rows=shape.tokens,
        inputs=shape.hidden_size,
        outputs=outputs,
        saved_elements=shape.input_elements_to_keep,
        saved_as="head",
        narrow=False,
        dtype=shape.wide_dtype,
    )
    return (
        *collapse_operators(shape, streams=model.streams),
        norms("final_norm", shape, count=1, norm=model.final_norm),
        replace(
            logits,
            flops_fraction=logits_fraction(shape, model.vocab_size),
            parameters=weight + (outputs if model.head_bias else 0),
        ),
        _loss(model, shape),
    )


def embedding_communications(shape: Shape) -> tuple[Communication, ...]:
    """Return the collectives that sum the ranks' rows of the vocabulary: scatter or reduce forward, gather backward."""
    nbytes = shape.activation_bytes * shape.tokens * shape.hidden_size
    split = shape.sequence_parallel
    return (
        tensor_parallel("reduce_scatter", shape, nbytes=nbytes * split, forward=1),
        tensor_parallel("all_gather", shape, nbytes=nbytes * split, backward=1),
        tensor_parallel("all_reduce", shape, nbytes=nbytes * (1 - split), forward=1),
    )


def head_communications(shape: Shape) -> tuple[Communication, ...]:
    """Return the gather of the hidden state and the sum of its gradient; scalars of the loss are not counted."""
    nbytes = shape.activation_bytes * shape.tokens * shape.hidden_size
    split = shape.sequence_parallel
    return (
        tensor_parallel("all_gather", shape, nbytes=nbytes * split, forward=1),
        tensor_parallel("reduce_scatter", shape, nbytes=nbytes * split, backward=1, sums_gradients=False),
        tensor_parallel("all_reduce", shape, nbytes=nbytes * (1 - split), backward=1),
    )


def next_token_operators(model: Model, shape: Shape, block: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """
    Return the operators of one layer of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    They are embedding and head with the model's own weights, two norms, the projection of both normed inputs from 2 h
    to h, a whole block, and a final norm.

    Parameters
    ----------
    model, shape
        The model; the micro-batch.
    block
        The operators of the layer.
    """
    embedding = (replace(operator, parameters=0.0) for operator in embedding_operators(model, shape))
    *collapse, final_norm, logits, loss = head_operators(model, shape)
    projection = matmul(
        "mtp_projection",
        shape,
        rows=shape.tokens,
        inputs=2 * shape.hidden_size,
        outputs=shape.hidden_size / shape.tp,
        saved_elements=shape.tokens * 2 * shape.hidden_size / shape.sequence_shards,
        saved_as="embedding",
    )
    return (
        *embedding,
        norms("mtp_norms", shape, count=2, norm=model.final_norm),
        projection,
        *block,
        *collapse,
        final_norm,
        replace(logits, parameters=0.0),
        loss,
    )


def next_token_communications(
    model: Model, shape: Shape, block: tuple[Communication, ...]
) -> tuple[Communication, ...]:
    """Return the collectives of one layer of multi-token prediction, in the order of its operators."""
    return (
        *embedding_communications(shape),
        *tensor_parallel_collectives(
            shape, entry_width=2 * shape.hidden_size, exit_width=shape.hidden_size, sums_gradients=False
        ),
        *block,
        *head_communications(shape),
    )


def _loss(model: Model, shape: Shape) -> Operator:
    """
    Return the cross-entropy over a vocabulary-parallel rank's logits, with the bytes of the software's loss.

    In chunks it keeps the logits of one, and in FP32 the gradient of the hidden state, to which each chunk adds its
    part (torchtitan 0.3, ``components/loss.py``, ``GradAccumulator``). Megatron-LM's own,
    ``vocab_parallel_cross_entropy``, works in fp32. Forward: a cast (6 bytes), the maximum (4),
    subtraction, exponential and division in place (8 each), the sum (4). Backward: a product in place (8) and a cast
    (6).
    """
    vocabulary = rank_vocabulary(model, shape)
    logits, chunks = shape.tokens * vocabulary, shape.memory.loss_chunks
    gradient = HIDDEN_GRADIENT_BYTES * shape.tokens * shape.hidden_size if chunks > 1 else 0.0
    loss = Operator(
        name="loss",
        kind="copy",
        bytes=logits * shape.kernels.loss_forward_bytes,
        backward_bytes=logits * shape.kernels.loss_backward_bytes,
        kernels=4 * chunks,
        saved_bytes=logits * _bytes_per_logit(shape) / chunks + gradient,
        saved_as="head",
        rows=shape.tokens,
        shards=shape.tp,
    )
    return attach_torch_function(loss, shape, "cross_entropy", rows=shape.tokens, width=vocabulary)


HIDDEN_GRADIENT_BYTES = 4.0
"""Bytes per element of the hidden state's gradient that a loss in chunks accumulates."""


def _bytes_per_logit(shape: Shape) -> Numbers:
    """Bytes alive per logit, with and without a vocabulary that tensor-parallel ranks share."""
    memory = shape.memory
    if memory.shared_logit_bytes is None:
        return memory.logit_bytes
    return np.where(np.asarray(shape.tp) > 1, memory.shared_logit_bytes, memory.logit_bytes)
