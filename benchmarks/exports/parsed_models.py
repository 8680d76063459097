"""Parameters of the model that Megatron-LM's own parser makes of arguments, counted from its configuration."""

from __future__ import annotations

from typing import Any


def count_parameters(arguments: Any, config: Any) -> int:
    """
    Count the parameters of a parsed model, without multi-token prediction and without the padding of the vocabulary.

    Parameters
    ----------
    arguments, config
        What ``parse_args`` and ``core_transformer_config_from_args`` return.
    """
    hidden, vocabulary = config.hidden_size, arguments.vocab_size
    tables = vocabulary * hidden * (2 if arguments.untie_embeddings_and_output_weights else 1)
    if arguments.position_embedding_type == "learned_absolute":
        tables += arguments.max_position_embeddings * hidden
    pattern = getattr(arguments, "hybrid_override_pattern", None) or getattr(arguments, "hybrid_layer_pattern", None)
    if pattern:
        letters = pattern.replace("|", "")
        blocks = {"M": _mamba, "*": _attention, "-": _dense, "E": _experts}
        layers = sum(blocks[letter](config) + _norm(config) for letter in letters)
    else:
        routed = _routed(config)
        layers = sum(_attention(config) + 2 * _norm(config) + (_experts if one else _dense)(config) for one in routed)
    return int(tables + layers + _norm(config))


def _routed(config: Any) -> list[bool]:
    if not config.num_moe_experts:
        return [False] * config.num_layers
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return [index % frequency == 0 for index in range(config.num_layers)]
    return [bool(one) for one in frequency]


def _norm(config: Any, width: int | None = None) -> Any:
    return (width or config.hidden_size) * (1 if config.normalization == "RMSNorm" else 2)


def _attention(config: Any) -> Any:
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.multi_latent_attention:
        width = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim)
        rank, latent = config.q_lora_rank, config.kv_lora_rank
        queries = hidden * width if rank is None else hidden * rank + rank * width + _norm(config, rank)
        keys = hidden * (latent + config.qk_pos_emb_head_dim) + _norm(config, latent)
        return (
            queries
            + keys
            + latent * heads * (config.qk_head_dim + config.v_head_dim)
            + heads * config.v_head_dim * hidden
        )
    queries, keys = heads * config.kv_channels, config.num_query_groups * config.kv_channels
    inputs = queries * (2 if getattr(config, "attention_output_gate", False) else 1) + 2 * keys
    biases = (inputs if config.add_bias_linear or config.add_qkv_bias else 0) + (
        hidden if config.add_bias_linear else 0
    )
    norms = 2 * _norm(config, config.kv_channels) if config.qk_layernorm else 0
    sinks = heads if getattr(config, "softmax_type", "vanilla") == "learnable" else 0
    return hidden * inputs + queries * hidden + biases + norms + sinks


def _linears(config: Any, inputs: int, width: int) -> Any:
    first = width * (2 if config.gated_linear_unit else 1)
    return inputs * first + width * inputs + (first + inputs if config.add_bias_linear else 0)


def _dense(config: Any) -> Any:
    return _linears(config, config.hidden_size, config.ffn_hidden_size)


def _experts(config: Any) -> Any:
    hidden, number = config.hidden_size, config.num_moe_experts
    latent = getattr(config, "moe_latent_size", None)
    routed = number * _linears(config, latent or hidden, config.moe_ffn_hidden_size)
    router = number * hidden + (number if config.add_bias_linear else 0)
    width = config.moe_shared_expert_intermediate_size
    shared = _linears(config, hidden, width) if width else 0
    gate = hidden if width and getattr(config, "moe_shared_expert_gate", False) else 0
    return routed + router + shared + gate + (2 * hidden * latent if latent else 0)


def _mamba(config: Any) -> Any:
    """Both projections, the convolution with its bias, the norm behind it; A, D and the bias of steps per head."""
    heads, width = config.mamba_num_heads, config.mamba_num_heads * config.mamba_head_dim
    groups = config.mamba_num_groups * config.mamba_state_dim
    convolved = width + 2 * groups
    inputs = config.hidden_size * (width + convolved + heads)
    return inputs + convolved * (4 + 1) + 3 * heads + width + width * config.hidden_size
