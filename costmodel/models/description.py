"""A model described in the job: one flat record in the planner's own words, for models without a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.fields import Count, CountOrZero
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, LinearAttention, Mamba, Mlp, Model
from costmodel.models.huggingface import model_from_config
from costmodel.models.patterns import MTP_PATTERN, Block, join_blocks, single_blocks
from costmodel.record import strict_record
from costmodel.validation import build, shown

ENTRY_KEYS = ("name", "source", "config", "description")

LATENT_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERT_KEYS = ("num_experts", "top_k", "expert_ffn_hidden_size")
LINEAR_KEYS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
MAMBA_KEYS = ("mamba_num_heads", "mamba_head_dim", "mamba_state_size", "mamba_num_groups")


@strict_record(frozen=True, kw_only=True, slots=True)
class Description:
    """
    Flat description of a decoder-only model.

    Parameters
    ----------
    hidden_size, num_layers, vocab_size
        Width of the residual stream, layers, entries of the vocabulary.
    pattern
        One letter per layer, if each is a single block (Nemotron-H): ``M`` Mamba, ``*`` attention, ``-`` dense
        feed-forward, ``E`` experts. Absent: every layer is an attention and a feed-forward.
    num_heads, num_kv_heads, head_dim
        Query heads; key-value heads (absent: as many); width of a head (absent: hidden size over heads).
    ffn_hidden_size
        Width of the dense feed-forward blocks; only a model without any may leave it out.
    gated, mlp_bias, squared_relu
        True if the feed-forward has a gate, if it has biases, and if its non-linearity is the square of ReLU.
    qkv_bias, output_bias, qk_norm, output_gate, window, rotary
        True if Q, K and V, and if the output projection, have biases; norms of queries and keys. True if a second
        projection of the queries' size gates the output; tokens of the sliding window (absent: none); rotary positions.
    full_attention_interval
        Every n-th layer has this attention, all others a gated delta net (Qwen3-Next: 4); absent: all layers have it.
    linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim, linear_conv_kernel
        Heads of the gated delta net, their widths, and the width of its convolution; the first four, or none.
    tied_embeddings, learned_positions, head_bias
        True if the head shares the embedding's weights; entries of a learned position embedding, which replaces
        rotations (0: none); True if the head has a bias.
    norm, num_norms, parallel_blocks
        Kind of norm: ``rms`` (a weight per channel), ``layer`` (weight and bias) or ``none``; norms of a layer over the
        hidden size. True if attention and feed-forward read the same input (GPT-J).
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        Latent attention; all but the first, or none.
    num_experts, top_k, expert_ffn_hidden_size
        Routed experts; all three, or none.
    shared_ffn_hidden_size, shared_gate, router_bias, expert_latent_size
        Width of all shared experts together (0: none); True if a gate scales them; True if the router's logits have
        a bias. Width that tokens are projected to before they are sent to experts (LatentMoE; absent: none).
    first_dense_layers, moe_layer_interval
        Leading dense layers; of the following layers every n-th has experts, the last of each n.
    mamba_num_heads, mamba_head_dim, mamba_state_size, mamba_num_groups, mamba_conv_kernel, mamba_chunk_size
        Mamba-2: heads, their width, width of a channel's state, groups of heads that share B and C; all four, or none.
        Width of the convolution; tokens of a chunk.
    mtp_layers, mtp_pattern
        Layers of multi-token prediction, each like the last layer; with a ``pattern``, each of these two blocks.
    """

    hidden_size: Count
    num_layers: Annotated[Count, Field(le=4096)]
    vocab_size: Count
    pattern: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    num_heads: Count
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn_hidden_size: Count | None = None
    gated: bool = True
    squared_relu: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "full"] = "none"
    output_gate: bool = False
    window: Count | None = None
    rotary: bool = True
    full_attention_interval: Annotated[Count, Field(le=4096)] | None = None
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel: CountOrZero = 4
    tied_embeddings: bool = False
    learned_positions: CountOrZero = 0
    head_bias: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    num_norms: Annotated[CountOrZero, Field(le=16)] = 2
    parallel_blocks: bool = False
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    num_experts: Count | None = None
    top_k: Count | None = None
    expert_ffn_hidden_size: Count | None = None
    shared_ffn_hidden_size: CountOrZero = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_latent_size: Count | None = None
    mamba_num_heads: Count | None = None
    mamba_head_dim: Count | None = None
    mamba_state_size: Count | None = None
    mamba_num_groups: Count | None = None
    mamba_conv_kernel: Count = 4
    mamba_chunk_size: Count = 128
    first_dense_layers: CountOrZero = 0
    moe_layer_interval: Count = 1
    mtp_layers: Annotated[CountOrZero, Field(le=4096)] = 0
    mtp_pattern: Annotated[str, Field(max_length=2)] = MTP_PATTERN


def model_from_entry(mapping: Mapping[str, Any], where: str, name: str) -> Model:
    """
    Build a model from one entry of the catalog or of a job file.

    Parameters
    ----------
    mapping
        ``config:`` in the spelling of Hugging Face or ``description:`` in ours, with ``name`` and ``source``; or a
        bare description.
    where
        Dotted path of the mapping, for messages.
    name
        Name of the model, if the entry does not name it.

    Raises
    ------
    SpecError
        For the first wrong entry.
    """
    if not isinstance(mapping, Mapping):
        raise SpecError(where, f"expected a mapping, got {shown(mapping)}.")
    name, source = _text(mapping, where, "name", name), _text(mapping, where, "source", "job file")
    if "config" not in mapping and "description" not in mapping:
        bare = {key: value for key, value in mapping.items() if key not in ("name", "source")}
        return model_from_description(bare, where, name, source)
    for key in mapping:
        if key not in ENTRY_KEYS:
            raise SpecError(f"{where}.{key}", "no such entry.", did_you_mean(key, ENTRY_KEYS))
    if "config" in mapping and "description" in mapping:
        raise SpecError(where, "has both 'config' and 'description'; one of them describes the model.")
    if "config" in mapping:
        return model_from_config(mapping["config"], f"{where}.config", name, source)
    return model_from_description(mapping["description"], f"{where}.description", name, source)


def model_from_description(
    mapping: Mapping[str, Any], where: str = "model", name: str = "inline", source: str = "job file"
) -> Model:
    """
    Build a model from a flat description.

    Parameters
    ----------
    mapping
        Entries of a :class:`Description`.
    where
        Dotted path of the mapping, for messages.
    name, source
        Name of the model, and where it comes from.

    Raises
    ------
    SpecError
        If an entry is unknown, missing, ill-typed or impossible.

    Examples
    --------
    >>> sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 256, "vocab_size": 1000}
    >>> model_from_description(sizes).layers[0].attention.head_dim
    16
    """
    described = build(Description, mapping, where)
    layers = _layers(described, where)
    return Model(
        name=name,
        source=source,
        hidden_size=described.hidden_size,
        vocab_size=described.vocab_size,
        layers=layers,
        tied_embeddings=described.tied_embeddings,
        mtp_layers=_mtp_layers(described, layers, where),
        learned_positions=described.learned_positions,
        final_norm=described.norm,
        head_bias=described.head_bias,
    )


def _text(mapping: Mapping[str, Any], where: str, key: str, default: str) -> str:
    value = mapping.get(key, default)
    if not isinstance(value, str):
        raise SpecError(f"{where}.{key}", f"expected text, got {shown(value)}.")
    return value


def _layers(described: Description, where: str) -> tuple[Layer, ...]:
    _require_one_nonlinearity(described, where)
    if described.pattern is not None:
        if described.full_attention_interval is not None:
            problem = "needs layers with an attention each; with a pattern each layer is a single block."
            raise SpecError(f"{where}.full_attention_interval", problem)
        if len(described.pattern) != described.num_layers:
            problem = f"has {len(described.pattern)} letters, the model {described.num_layers} layers."
            raise SpecError(f"{where}.pattern", problem)
        return _single_blocks(described, described.pattern, where, "pattern")
    linear = _linear_attention(described, where)
    interval = described.full_attention_interval or 1
    kinds = [
        (linear if (index + 1) % interval else _attention(described, where), routed)
        for index, routed in enumerate(_expert_layers(described, where))
    ]
    layers = {
        (attention, routed): Layer(
            attention=attention,
            feed_forward=_experts(described, where) if routed else _mlp(described, where),
            num_norms=described.num_norms,
            parallel_blocks=described.parallel_blocks,
            norm=described.norm,
        )
        for attention, routed in set(kinds)
    }
    return tuple(layers[kind] for kind in kinds)


def _linear_attention(described: Description, where: str) -> LinearAttention | None:
    """Return the gated delta net of the layers between those with softmax attention; None if there is none."""
    has_sizes = _all_or_none(described, where, LINEAR_KEYS)
    if has_sizes != (described.full_attention_interval is not None):
        missing, given = ("full_attention_interval", LINEAR_KEYS[0])[:: 1 if has_sizes else -1]
        raise SpecError(f"{where}.{missing}", f"is required with '{given}', but missing.")
    if not has_sizes:
        return None
    keys, values = described.linear_num_key_heads or 0, described.linear_num_value_heads or 0
    if values % keys:
        raise SpecError(f"{where}.linear_num_value_heads", f"must be a multiple of the {keys} key heads, got {values}.")
    return LinearAttention(
        variant="gated_delta",
        num_key_heads=keys,
        num_value_heads=values,
        key_head_dim=described.linear_key_head_dim or 0,
        value_head_dim=described.linear_value_head_dim or 0,
        conv_kernel=described.linear_conv_kernel,
    )


def _mtp_layers(described: Description, layers: tuple[Layer, ...], where: str) -> tuple[Layer, ...]:
    if described.pattern is None or not described.mtp_layers:
        return layers[-1:] * described.mtp_layers
    blocks = _single_blocks(described, described.mtp_pattern, where, "mtp_pattern")
    return (join_blocks(blocks, f"{where}.mtp_pattern"),) * described.mtp_layers


def _single_blocks(described: Description, pattern: str, where: str, key: str) -> tuple[Layer, ...]:
    builders: dict[str, Callable[[Description, str], Block]] = {
        "mamba": _mamba,
        "attention": _attention,
        "mlp": _mlp,
        "experts": _experts,
    }
    return single_blocks(pattern, lambda kind: builders[kind](described, where), f"{where}.{key}", norm=described.norm)


def _expert_layers(described: Description, where: str) -> tuple[bool, ...]:
    """Return True for each layer with experts."""
    if not _all_or_none(described, where, EXPERT_KEYS):
        return (False,) * described.num_layers
    interval = described.moe_layer_interval
    behind_dense = (index - described.first_dense_layers for index in range(described.num_layers))
    return tuple(index >= 0 and (index + 1) % interval == 0 for index in behind_dense)


def _all_or_none(described: Description, where: str, keys: tuple[str, ...]) -> bool:
    """Return True if all of these entries are given; raise if only some of them are."""
    given = [key for key in keys if getattr(described, key) is not None]
    missing = [key for key in keys if key not in given]
    if given and missing:
        raise SpecError(f"{where}.{missing[0]}", f"is required with '{given[0]}', but missing.")
    return bool(given)


def _attention(described: Description, where: str) -> Attention | LatentAttention:
    if _all_or_none(described, where, LATENT_KEYS):
        return LatentAttention(
            num_heads=described.num_heads,
            q_lora_rank=described.q_lora_rank,
            kv_lora_rank=described.kv_lora_rank or 0,
            qk_nope_head_dim=described.qk_nope_head_dim or 0,
            qk_rope_head_dim=described.qk_rope_head_dim or 0,
            v_head_dim=described.v_head_dim or 0,
            bias=described.qkv_bias,
            rotary=described.rotary and not described.learned_positions,
            output_gate=described.output_gate,
        )
    if described.q_lora_rank is not None:
        raise SpecError(f"{where}.kv_lora_rank", "is required with 'q_lora_rank', but missing.")
    return Attention(
        num_heads=described.num_heads,
        num_kv_heads=_num_kv_heads(described, where),
        head_dim=_head_dim(described, where),
        qkv_bias=described.qkv_bias,
        output_bias=described.output_bias,
        qk_norm=described.qk_norm,
        output_gate=described.output_gate,
        window=described.window,
        rotary=described.rotary and not described.learned_positions,
    )


def _mamba(described: Description, where: str) -> Mamba:
    if not _all_or_none(described, where, MAMBA_KEYS):
        raise SpecError(f"{where}.{MAMBA_KEYS[0]}", "is required by the Mamba layers, but missing.")
    return Mamba(
        num_heads=described.mamba_num_heads or 0,
        head_dim=described.mamba_head_dim or 0,
        state_size=described.mamba_state_size or 0,
        num_groups=_mamba_groups(described, where),
        conv_kernel=described.mamba_conv_kernel,
        chunk_size=described.mamba_chunk_size,
    )


def _mamba_groups(described: Description, where: str) -> int:
    num_heads, num_groups = described.mamba_num_heads or 0, described.mamba_num_groups or 1
    if num_heads % num_groups:
        raise SpecError(f"{where}.mamba_num_groups", f"must divide the {num_heads} Mamba heads, got {num_groups}.")
    return num_groups


def _num_kv_heads(described: Description, where: str) -> int:
    num_kv_heads = described.num_kv_heads or described.num_heads
    if described.num_heads % num_kv_heads:
        problem = f"must divide the {described.num_heads} heads, got {num_kv_heads}."
        raise SpecError(f"{where}.num_kv_heads", problem)
    return num_kv_heads


def _head_dim(described: Description, where: str) -> int:
    if described.head_dim is not None:
        return described.head_dim
    if described.hidden_size % described.num_heads:
        problem = f"must be a multiple of the {described.num_heads} heads, got {described.hidden_size}."
        raise SpecError(f"{where}.hidden_size", problem, "Or write 'head_dim'.")
    return described.hidden_size // described.num_heads


def _require_one_nonlinearity(described: Description, where: str) -> None:
    if described.gated and described.squared_relu:
        raise SpecError(
            f"{where}.squared_relu", "needs a feed-forward without a gate.", "Write 'gated: false' with it."
        )


def _mlp(described: Description, where: str) -> Mlp:
    if described.ffn_hidden_size is None:
        raise SpecError(f"{where}.ffn_hidden_size", "is required by the dense layers, but missing.")
    return Mlp(
        ffn_hidden_size=described.ffn_hidden_size,
        gated=described.gated,
        bias=described.mlp_bias,
        squared_relu=described.squared_relu,
    )


def _experts(described: Description, where: str) -> Experts:
    if not _all_or_none(described, where, EXPERT_KEYS):
        raise SpecError(f"{where}.{EXPERT_KEYS[0]}", "is required by the expert layers, but missing.")
    num_experts, top_k = described.num_experts or 0, described.top_k or 0
    if top_k > num_experts:
        raise SpecError(f"{where}.top_k", f"must be at most the {num_experts} experts, got {top_k}.")
    return Experts(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=described.expert_ffn_hidden_size or 0,
        shared_ffn_hidden_size=described.shared_ffn_hidden_size,
        gated=described.gated,
        bias=described.mlp_bias,
        squared_relu=described.squared_relu,
        router_bias=described.router_bias,
        shared_gate=described.shared_gate,
        latent_size=described.expert_latent_size,
    )
