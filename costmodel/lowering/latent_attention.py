"""Multi-head latent attention: queries, keys and values unfolded from low-rank latents (DeepSeek-V2, 2405.04434)."""

from __future__ import annotations

from costmodel.facts.model import LatentAttention
from costmodel.lowering.collectives import context_parallel, tensor_parallel_collectives
from costmodel.lowering.indexer import indexer_communications, indexer_operators
from costmodel.lowering.kernels import (
    attach_torch_function,
    context_output,
    core_attention,
    elementwise,
    matmul,
    output_projection,
)
from costmodel.lowering.shape import Shape
from costmodel.timing.work import Communication, Numbers, Operator


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
        *_rotary(attention, shape, heads=heads + 1),
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


def _rotary(attention: LatentAttention, shape: Shape, *, heads: Numbers) -> tuple[Operator, ...]:
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
