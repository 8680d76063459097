"""
Softmax attention: MHA, GQA, MQA; from low-rank latents; to compressed entries; and the choice of each query's keys.

Latents are those of DeepSeek-V2 (2405.04434). Compressed entries of earlier tokens, with one key head and a window, are
those of DeepSeek-V4. Small heads of their own choose keys in DeepSeek sparse attention (DSA) and in blocks of keys.
"""

from __future__ import annotations

import numpy as np

from costmodel.facts.model import Attention, CompressedAttention, Indexer, LatentAttention
from costmodel.lowering.collectives import context_parallel, ring, tensor_parallel, tensor_parallel_collectives
from costmodel.lowering.kernels import (
    attach_torch_function,
    context_output,
    core_attention,
    elementwise,
    fuses_norms,
    lower_shared_input,
    matmul,
    mean_entries,
    output_projection,
)
from costmodel.lowering.shape import Shape
from costmodel.record import replace
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
        _normalise_index(indexer, shape),
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


def _normalise_index(indexer: Indexer, shape: Shape) -> Operator:
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


def attention_operators(attention: Attention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators of attention: projections, rotary position, core, output projection (MoFa's Table 2, extended).

    Query heads together may be narrower or wider than the hidden size. If there are more tensor-parallel ranks than KV
    heads, the KV heads are replicated.
    """
    heads = attention.num_heads / shape.tp
    queries, keys, outputs = heads * attention.head_dim, _key_width(attention, shape), heads * attention.value_width
    core = core_attention(
        shape,
        heads=heads,
        kv_heads=kv_heads_per_device(attention, shape),
        qk_head_dim=attention.head_dim,
        v_head_dim=attention.value_width,
        window=attention.indexer.num_keys if attention.indexer else attention.window,
        chunk=attention.chunk,
        sinks=heads if attention.sinks else 0.0,
    )
    return (
        *_qkv(attention, shape, queries=queries, keys=keys),
        *_query_key_norm(attention, shape, queries=queries, keys=keys),
        *_rotary(attention, shape, elements=shape.tokens * (queries + keys)),
        *_permute_heads(attention, shape, queries=queries),
        *indexer_operators(attention.indexer, shape, query_inputs=shape.hidden_size, core=core[0]),
        *core,
        *_output_gate(attention, shape, elements=shape.tokens * outputs),
        *context_output(shape, width=outputs),
        output_projection(shape, inputs=outputs, bias=attention.output_bias),
    )


def attention_communications(attention: Attention, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives of the block, and those of context-parallel ranks."""
    index_key = attention.indexer.head_dim if attention.indexer else 0
    heads = attention.num_heads / shape.tp
    exchanged = context_parallel(
        shape,
        queries=heads * attention.head_dim,
        keys=kv_heads_per_device(attention, shape) * (attention.head_dim + attention.value_width) + index_key,
        outputs=heads * attention.value_width,
    )
    return (*tensor_parallel_collectives(shape), *exchanged)


def kv_heads_per_device(attention: Attention, shape: Shape) -> Numbers:
    """
    Number of key-value heads on one device, at least 1.

    Derivation: tensor parallelism splits a_kv heads into a_kv / t each; a query head needs a whole one, so that more
    ranks than heads hold copies.
    """
    return np.maximum(attention.num_kv_heads / shape.tp, 1.0)


def _key_width(attention: Attention, shape: Shape) -> Numbers:
    return kv_heads_per_device(attention, shape) * attention.head_dim


def _qkv(attention: Attention, shape: Shape, *, queries: Numbers, keys: Numbers) -> tuple[Operator, ...]:
    """Return the projections of one input: one matmul, or three; and that of a gate per head."""
    widths = {"query_projection": queries * (2 if attention.output_gate else 1), "key_projection": keys}
    if not attention.key_is_value:
        widths["value_projection"] = kv_heads_per_device(attention, shape) * attention.value_width
    if shape.kernels.fused_projections:
        widths = {"qkv": sum(widths.values())}
    projected = lower_shared_input(
        shape,
        widths,
        has_bias=attention.qkv_bias,
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )
    if not attention.head_gate:
        return projected
    heads = attention.num_heads / shape.tp
    return (*projected, matmul("head_gate", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=heads))


def _query_key_norm(attention: Attention, shape: Shape, *, queries: Numbers, keys: Numbers) -> tuple[Operator, ...]:
    """Return the norm of queries and keys, which keeps its input."""
    if attention.qk_norm == "none":
        return ()
    elements = shape.tokens * (queries + keys)
    is_per_head = attention.qk_norm == "per_head"
    normed = elementwise(
        "qk_norm",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        kernels=2,
        saved_elements=elements,
        saved_as="qkv",
        parameters=2 * attention.head_dim if is_per_head else queries + keys,
    )
    width = attention.head_dim if is_per_head else queries
    return (attach_torch_function(normed, shape, "rms_norm", rows=elements / width, width=width),)


UNFUSED_ROTARY_PASSES = 10
"""
Passes of 2 bytes of an unfused rotary embedding: a cast to fp32 (6 bytes), the product with complex numbers (8), a cast
back (6).
"""

UNFUSED_ROTARY_KERNELS = 3


def _rotary(attention: Attention, shape: Shape, *, elements: Numbers) -> tuple[Operator, ...]:
    if not attention.rotary:
        return ()
    passes, kernels = (2, 1) if fuses_norms(shape) else (UNFUSED_ROTARY_PASSES, UNFUSED_ROTARY_KERNELS)
    rotated = elementwise(
        "rotary",
        shape,
        elements=elements,
        forward_passes=passes,
        backward_passes=passes,
        all_counted=True,
        kernels=2 * kernels,
    )
    width = attention.head_dim
    heads = elements / (shape.tokens * width)
    return (attach_torch_function(rotated, shape, "rotary", rows=shape.tokens, heads=heads, qk_head_dim=width),)


def _permute_heads(attention: Attention, shape: Shape, *, queries: Numbers) -> tuple[Operator, ...]:
    """
    Return the copies in front of the core: of queries, keys and values, and twice of keys and values.

    Each reads and writes. The mask's lengths are two buffers, two sums and two running sums, which only launch.
    """
    if not shape.kernels.permuted_heads:
        return ()
    keys = kv_heads_per_device(attention, shape) * (attention.head_dim + attention.value_width)
    copied = elementwise(
        "permuted_heads",
        shape,
        elements=shape.tokens * (queries + 3 * keys),
        forward_passes=2,
        backward_passes=2,
        all_counted=True,
        kernels=3,
    )
    return (replace(copied, more_launches=6),)


def _output_gate(attention: Attention, shape: Shape, *, elements: Numbers) -> tuple[Operator, ...]:
    """Return the gate on the attention's output, which keeps the gate and its input."""
    if not (attention.output_gate or attention.head_gate):
        return ()
    gates = 1.0 if attention.output_gate else 1 / attention.value_width
    return (
        elementwise(
            "output_gate",
            shape,
            elements=elements,
            forward_passes=2 + gates,
            backward_passes=3 + 2 * gates,
            saved_elements=(1 + gates) * elements,
            saved_as="core_attention",
        ),
    )


def latent_attention_operators(attention: LatentAttention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: down-projections, up-projections, core attention on the unfolded heads, output projection.

    As in Megatron-LM the down-projections are replicated over tensor-parallel ranks and work on this rank's part of
    the sequence; the up-projections are split by heads. Parameters per layer without norms:
    h r + r a (d_nope + d_rope) + h (r_kv + d_rope) + r_kv a (d_nope + d_v) + a d_v h.
    """
    heads, indexer = attention.num_heads / shape.tp, attention.indexer
    core = core_attention(
        shape,
        heads=heads,
        kv_heads=heads,
        qk_head_dim=_qk_head_dim(attention),
        v_head_dim=attention.v_head_dim,
        window=indexer.num_keys if indexer else None,
    )
    return (
        *_query_projections(attention, shape),
        *_key_value_projections(attention, shape),
        *_rotate_latent(attention, shape, heads=heads + 1),
        *indexer_operators(indexer, shape, query_inputs=attention.q_lora_rank or shape.hidden_size, core=core[0]),
        *core,
        *_gate_output(attention, shape, width=heads * attention.v_head_dim),
        *context_output(shape, width=heads * attention.v_head_dim),
        output_projection(shape, inputs=heads * attention.v_head_dim, bias=attention.bias),
    )


def latent_attention_communications(attention: LatentAttention, shape: Shape) -> tuple[Communication, ...]:
    """
    Return the tensor-parallel collectives of the block, and those of context-parallel ranks.

    Only the latents are gathered where tokens enter the block: they are narrower than the hidden state. If an indexer
    chooses the keys, context-parallel ranks pass latents and the indexer's keys, of which each query reads its own.
    """
    queries, indexer = attention.q_lora_rank or shape.hidden_size, attention.indexer
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    heads = attention.num_heads / shape.tp
    unfolded = heads * (_qk_head_dim(attention) + attention.v_head_dim)
    index_key = 0 if indexer is None or indexer.is_shared else indexer.head_dim
    return (
        *tensor_parallel_collectives(
            shape,
            entry_width=queries + latent,
            exit_width=shape.hidden_size,
        ),
        *indexer_communications(indexer, shape),
        *context_parallel(
            shape,
            queries=heads * _qk_head_dim(attention),
            keys=unfolded if indexer is None else latent + index_key,
            outputs=heads * attention.v_head_dim,
        ),
    )


def _qk_head_dim(attention: LatentAttention) -> int:
    return attention.qk_nope_head_dim + attention.qk_rope_head_dim


def _query_projections(attention: LatentAttention, shape: Shape) -> tuple[Operator, ...]:
    """Return the query's down-projection, norm and up-projection; without a rank, one projection to the heads."""
    outputs = attention.num_heads * _qk_head_dim(attention) / shape.tp
    if attention.q_lora_rank is None:
        return (matmul("q_up", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=outputs),)
    rank = attention.q_lora_rank
    return (
        _down("q_down", attention, shape, width=rank),
        _latent_norm("q_norm", shape, rank=rank),
        _lower_up_projection("q_up", shape, rank=rank, outputs=outputs),
    )


def _key_value_projections(attention: LatentAttention, shape: Shape) -> tuple[Operator, ...]:
    """Return the projections of keys and values: one latent and a shared rotary key, norm, heads; keeps the input."""
    rank = attention.kv_lora_rank
    outputs = attention.num_heads * (attention.qk_nope_head_dim + attention.v_head_dim) / shape.tp
    saved = shape.tokens * shape.hidden_size / shape.sequence_shards
    return (
        _down("kv_down", attention, shape, width=rank + attention.qk_rope_head_dim, saved_elements=saved),
        _latent_norm("kv_norm", shape, rank=rank),
        _lower_up_projection("kv_up", shape, rank=rank, outputs=outputs),
    )


def _down(
    name: str, attention: LatentAttention, shape: Shape, *, width: int, saved_elements: Numbers = 0.0
) -> Operator:
    return matmul(
        name,
        shape,
        rows=shape.tokens / shape.sequence_shards,
        inputs=shape.hidden_size,
        outputs=width,
        bias=width if attention.bias else 0,
        saved_elements=saved_elements,
        saved_as="norm_output",
    )


def _latent_norm(name: str, shape: Shape, *, rank: int) -> Operator:
    elements = shape.tokens * rank / shape.sequence_shards
    normed = elementwise(
        name,
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        saved_elements=elements,
        saved_as="norm",
        parameters=rank,
    )
    return attach_torch_function(normed, shape, "rms_norm", rows=shape.tokens / shape.sequence_shards, width=rank)


def _rotate_latent(attention: LatentAttention, shape: Shape, *, heads: Numbers) -> tuple[Operator, ...]:
    """Return the rotary position of the queries' heads and of the one key that they share."""
    if not attention.rotary:
        return ()
    width = attention.qk_rope_head_dim
    rotated = elementwise(
        "rotary",
        shape,
        all_counted=True,
        elements=shape.tokens * heads * width,
        forward_passes=2,
        backward_passes=2,
        kernels=2,
    )
    return (attach_torch_function(rotated, shape, "rotary", rows=shape.tokens, heads=heads, qk_head_dim=width),)


def _gate_output(attention: LatentAttention, shape: Shape, *, width: Numbers) -> tuple[Operator, ...]:
    """Return the projection of the gate and its product with the attention's output, which keeps both."""
    if not attention.output_gate:
        return ()
    elements = shape.tokens * width
    gated = elementwise(
        "output_gate",
        shape,
        elements=elements,
        forward_passes=3,
        backward_passes=5,
        saved_elements=2 * elements,
        saved_as="core_attention",
    )
    return matmul("gate", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=width), gated


def _lower_up_projection(name: str, shape: Shape, *, rank: int, outputs: Numbers) -> Operator:
    return matmul(
        name,
        shape,
        rows=shape.tokens,
        inputs=rank,
        outputs=outputs,
        saved_elements=shape.tokens * rank / shape.sequence_shards,
        saved_as="latent",
    )


def compression_operators(attention: CompressedAttention, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators: low-rank queries, the one key that is the value, compressor, indexer, core, grouped output.

    Query heads and groups of the output are split over tensor-parallel ranks. The key head, the compressor and the
    down-projection of queries are whole on each of them. One softmax is over the window, the entries and a sink.
    Parameters per layer without norms and compressor: h r + r a d + h d + a d r_o + g r_o h.

    References
    ----------
    transformers 5.24, ``models/deepseek_v4/modeling_deepseek_v4.py``: ``DeepseekV4Attention``.
    """
    heads = attention.num_heads / shape.tp
    width, rank, indexer = heads * attention.head_dim, attention.q_lora_rank, attention.indexer
    core = core_attention(
        shape,
        heads=heads,
        kv_heads=1,
        qk_head_dim=attention.head_dim,
        v_head_dim=attention.head_dim,
        window=attention.window,
        entries=mean_entries(shape, attention.ratio, indexer.num_keys if indexer else None),
        sinks=heads,
    )
    kept = shape.tokens * rank / shape.sequence_shards
    return (
        _project_input(attention, shape),
        _normalise("latent_norms", shape, elements=shape.tokens * (rank + attention.head_dim), saved_as="norm"),
        matmul("q_up", shape, rows=shape.tokens, inputs=rank, outputs=width, saved_elements=kept, saved_as="latent"),
        _normalise("qk_norm", shape, elements=shape.tokens * width, saved_as="qkv"),
        _rotate(attention, shape, heads=2 * heads + 1),
        *_compress(attention, shape),
        *indexer_operators(indexer, shape, query_inputs=rank, core=core[0]),
        *core,
        *context_output(shape, width=width),
        *_project_output(attention, shape, width=width),
    )


def compression_communications(attention: CompressedAttention, shape: Shape) -> tuple[Communication, ...]:
    """
    Return the tensor-parallel collectives of the block, and what context-parallel ranks pass on.

    That are the compressed entries and the indexer's keys to all others, and a window to the next rank.
    """
    index_key = attention.indexer.head_dim if attention.indexer else 0
    entries = (attention.head_dim + index_key) / attention.ratio if attention.ratio else 0.0
    window = attention.head_dim * attention.window * shape.mbs / shape.tokens / np.maximum(np.asarray(shape.cp) - 1, 1)
    return (
        *tensor_parallel_collectives(shape),
        *indexer_communications(attention.indexer, shape),
        ring(shape, width=entries + window),
    )


def _project_input(attention: CompressedAttention, shape: Shape) -> Operator:
    """Return the down-projection of queries and the projection of the key, which keep their input and have norms."""
    outputs = attention.q_lora_rank + attention.head_dim
    return matmul(
        "kv_down",
        shape,
        rows=shape.tokens,
        inputs=shape.hidden_size,
        outputs=outputs,
        bias=outputs,  # weights of their norms
        saved_elements=shape.input_elements_to_keep,
        saved_as="attention_input",
    )


def _normalise(name: str, shape: Shape, *, elements: Numbers, saved_as: str) -> Operator:
    return elementwise(
        name, shape, elements=elements, forward_passes=2, backward_passes=3, saved_elements=elements, saved_as=saved_as
    )


def _rotate(attention: CompressedAttention, shape: Shape, *, heads: Numbers) -> Operator:
    """Return the rotation of queries, of the key, and back of the output, on the last channels of each head."""
    return elementwise(
        "rotary",
        shape,
        all_counted=True,
        elements=shape.tokens * heads * attention.rotary_dim,
        forward_passes=2,
        backward_passes=2,
        kernels=3,
    )


def _compress(attention: CompressedAttention, shape: Shape) -> tuple[Operator, ...]:
    """Return the projections of entries and their gates, and the weighted sum of each few tokens."""
    if not attention.ratio:
        return ()
    width = attention.num_series * attention.head_dim
    projected = matmul("compressor", shape, rows=shape.tokens, inputs=shape.hidden_size, outputs=2 * width)
    elements = shape.tokens * 2 * width
    summed = elementwise(
        "compression",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        kernels=2,
        saved_elements=elements,
        saved_as="latent",
        parameters=attention.ratio * width + attention.head_dim,
    )
    return projected, summed


def _project_output(attention: CompressedAttention, shape: Shape, *, width: Numbers) -> tuple[Operator, ...]:
    """Return the block-diagonal projection of groups of heads to a rank each, and that of all ranks to the output."""
    groups = attention.num_groups / shape.tp
    grouped = matmul(
        "output_groups",
        shape,
        rows=shape.tokens * groups,
        inputs=attention.num_heads * attention.head_dim / attention.num_groups,
        outputs=attention.output_rank,
        groups=groups,
        saved_elements=shape.tokens * width,
        saved_as="output_projection",
    )
    return grouped, output_projection(shape, inputs=groups * attention.output_rank)
