"""Read a Hugging Face ``config.json``: one table of families, one reader that names what it cannot use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, LinearAttention, Mamba, Mlp, Model
from costmodel.models.config_json import MAX_LAYERS, SPELLINGS, Config, Switch, read_mapping
from costmodel.models.patterns import LETTERS, MTP_PATTERN, Block, joined, single_blocks
from costmodel.validation import shown

OFF, ON = Switch("", False), Switch("", True)
ATTENTION_BIAS = Switch("attention_bias", False)


class Period(NamedTuple):
    """Every n-th layer has full attention, the others have another kind; ``key`` may set n."""

    others: str
    key: str
    default: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """
    What a ``model_type`` implies beyond its keys; defaults are those of its configuration class.

    Parameters
    ----------
    latent
        Multi-head latent attention instead of query, key and value heads.
    linear
        Linear attention that ``linear_attention`` in ``layer_types`` means; None: not allowed.
    experts
        Whether the feed-forward blocks are mixtures of experts where the pattern does not say otherwise.
    tied, gated, squared_relu, norm, num_norms
        Fields of :class:`costmodel.facts.model.Model`, ``Layer`` and ``Mlp``.
    qkv_bias, output_bias, mlp_bias, router_bias, expert_bias, qk_norm_switch
        Keys that turn these on.
    qk_norm
        Norm of queries and keys, where the switch is on.
    output_gate, sinks, shared_gate
        Parts of attention and experts, as in :class:`costmodel.facts.model.Attention` and
        :class:`costmodel.facts.model.Experts`.
    head_dim
        Width of a head where the key is absent; None: hidden size over heads.
    multi_head
        Whether absent KV heads mean as many as query heads.
    ffn_multiple
        Feed-forward width over hidden size where the key is null; None: the key is required.
    expert_width
        The key of one expert's width.
    num_shared, first_dense
        Shared experts and leading dense layers where the keys are absent.
    window
        Sliding window where the key is absent; None: none.
    window_switch
        Whether ``use_sliding_window`` turns windows on, from layer ``max_window_layers``.
    period
        Pattern of attention where ``layer_types`` is absent.
    parallel_blocks
        Key that turns :attr:`costmodel.facts.model.Layer.parallel_blocks` on.
    learned_positions
        Positions are an embedding of ``n_positions`` entries instead of rotations.
    rotary
        Whether attention rotates queries and keys, where positions are not learned.
    single_blocks
        Each layer is one block: Mamba, attention, feed-forward or experts, by ``layers_block_type``.
    """

    latent: bool = False
    linear: Literal["lightning", "gated_delta"] | None = None
    experts: bool = False
    tied: bool = False
    gated: bool = True
    squared_relu: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    num_norms: int = 2
    qkv_bias: Switch = OFF
    output_bias: Switch = OFF
    mlp_bias: Switch = OFF
    router_bias: Switch = OFF
    expert_bias: Switch = OFF
    qk_norm: Literal["per_head", "full"] = "per_head"
    qk_norm_switch: Switch = OFF
    output_gate: bool = False
    sinks: bool = False
    shared_gate: bool = False
    head_dim: int | None = None
    multi_head: bool = False
    ffn_multiple: int | None = None
    expert_width: str = "moe_intermediate_size"
    num_shared: int = 0
    first_dense: int = 0
    window: int | None = None
    window_switch: bool = False
    period: Period | None = None
    parallel_blocks: Switch = OFF
    learned_positions: bool = False
    rotary: bool = True
    single_blocks: bool = False


_DEEPSEEK_V3 = Family(
    latent=True, experts=True, qkv_bias=ATTENTION_BIAS, num_shared=1, first_dense=3
)  # fmt: skip
_GEMMA_2 = Family(
    tied=True, num_norms=4, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, window=4096,
    period=Period("sliding_attention", "", 2),
)  # fmt: skip
_GEMMA_3 = Family(
    tied=True, num_norms=4, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, window=4096,
    qk_norm_switch=ON, period=Period("sliding_attention", "sliding_window_pattern", 6),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(latent=True, experts=True, qkv_bias=ATTENTION_BIAS, num_shared=2),
    "deepseek_v3": _DEEPSEEK_V3,
    "gemma": Family(tied=True, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS),
    "gemma2": _GEMMA_2,
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "glm4_moe": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, qk_norm_switch=Switch("use_qk_norm", False), num_shared=1, first_dense=1
    ),
    "gpt2": Family(
        tied=True, gated=False, norm="layer", qkv_bias=ON, output_bias=ON, mlp_bias=ON, multi_head=True, ffn_multiple=4,
        learned_positions=True,
    ),
    "gpt_neox": Family(
        gated=False, norm="layer", qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_bias", True),
        mlp_bias=ON, multi_head=True, parallel_blocks=Switch("use_parallel_residual", True),
    ),
    "gpt_oss": Family(
        experts=True, qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_bias", True),
        router_bias=ON, expert_bias=ON, sinks=True, head_dim=64, expert_width="intermediate_size", window=128,
        period=Period("sliding_attention", "", 2),
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=Switch("mlp_bias", False), multi_head=True
    ),
    "minimax": Family(experts=True, linear="lightning", expert_width="intermediate_size"),
    "minimax_m2": Family(
        experts=True, qk_norm="full", qk_norm_switch=Switch("use_qk_norm", True), head_dim=128,
        expert_width="intermediate_size",
    ),
    "mistral": Family(window=4096),
    "mixtral": Family(experts=True, expert_width="intermediate_size"),
    "nemotron": Family(
        gated=False, squared_relu=True, norm="layer", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS,
        mlp_bias=Switch("mlp_bias", False), multi_head=True,
    ),
    "nemotron_h": Family(
        experts=True, gated=False, squared_relu=True, head_dim=128, rotary=False, single_blocks=True
    ),
    "olmo": Family(norm="none", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, multi_head=True),
    "olmo2": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm="full", qk_norm_switch=ON, multi_head=True
    ),
    "olmo3": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm="full", qk_norm_switch=ON, multi_head=True,
        window=4096, period=Period("sliding_attention", "", 4),
    ),
    "olmoe": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm="full", qk_norm_switch=ON,
        multi_head=True, expert_width="intermediate_size",
    ),
    "qwen2": Family(qkv_bias=ON, window_switch=True),
    "qwen2_moe": Family(experts=True, qkv_bias=Switch("qkv_bias", True), shared_gate=True, window_switch=True),
    "qwen3": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_dim=128, window_switch=True
    ),
    "qwen3_moe": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, window_switch=True
    ),
    "qwen3_next": Family(
        experts=True, linear="gated_delta", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON,
        output_gate=True, shared_gate=True, head_dim=256,
        period=Period("linear_attention", "full_attention_interval", 4),
    ),
    "seed_oss": Family(
        qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_out_bias", False),
        mlp_bias=Switch("mlp_bias", False), head_dim=128,
    ),
}  # fmt: skip
"""Every supported ``model_type``; checked against the classes of transformers 5 (tests/oracle)."""

REFUSED: dict[str, str] = {
    "add_cross_attention": "cross-attention",
    "attention_chunk_size": "chunked attention",
    "cla_share_factor": "keys and values shared across layers",
    "compress_ratios": "compressed sparse attention",
    "hc_mult": "hyper-connections",
    "hidden_size_per_layer_input": "per-layer embeddings",
    "index_head_dim": "sparse attention with an indexer (DSA)",
    "index_n_heads": "sparse attention with an indexer (DSA)",
    "index_topk": "sparse attention with an indexer (DSA)",
    "interleave_moe_layer_step": "Llama 4's interleaved experts",
    "intermediate_size_mlp": "Llama 4's interleaved experts",
    "is_encoder_decoder": "an encoder beside the decoder",
    "mamba_d_state": "state-space layers of another kind",
    "moe_layers": "Llama 4's interleaved experts",
    "num_kv_shared_layers": "keys and values shared across layers",
    "use_bidirectional_attention": "attention to later tokens",
    "zero_expert_num": "experts without computation",
}
"""Keys that change the architecture to something not modelled here; null, false, 0 and empty say that they do not."""

SINGLE_BLOCK_KEYS = {
    "hybrid_override_pattern": "layers of one block",
    "layers_block_type": "layers of one block",
    "mamba_num_heads": "state-space layers",
    "moe_latent_size": "experts on a latent",
    "ssm_state_size": "state-space layers",
}
"""Keys that only families with layers of one block may have."""

LAYER_TYPES = ("full_attention", "sliding_attention", "linear_attention")

BLOCK_LETTERS = {name: letter for letter, name in LETTERS.items()} | {
    "linear_attention": "M",
    "full_attention": "*",
    "moe": "E",
}
"""Names of single blocks in ``layers_block_type``; transformers 5 renamed mamba and attention."""


def read_config(path: str | Path) -> Model:
    """
    Read a model from its ``config.json``.

    Parameters
    ----------
    path
        The file; the model is called after it, or after its folder if it is called ``config.json``.

    Raises
    ------
    SpecError
        If the file cannot be read, is not one JSON object, or describes a model that is not supported.
    """
    file = Path(path)
    return model_from_config(read_mapping(file), where="model", name=model_name(file), source=str(file))


def model_name(file: Path) -> str:
    """What the model of a file is called."""
    return file.resolve().parent.name if file.name == "config.json" else file.stem


def model_from_config(
    mapping: Mapping[str, Any], where: str = "model", name: str = "", source: str = "config.json"
) -> Model:
    """
    Make a model of a Hugging Face configuration.

    Keys that say nothing about the architecture are ignored. The text part of a multimodal configuration is read,
    the rest of it is not part of the model.

    Parameters
    ----------
    mapping
        The configuration, as read from JSON or YAML.
    where
        Dotted path of the mapping, for messages.
    name
        Name of the model; empty: its family's.
    source
        Where the configuration comes from.

    Raises
    ------
    SpecError
        If a key is missing, ill-typed or impossible, or the model is of a kind that is not modelled.

    Examples
    --------
    >>> sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 1000}
    >>> model_from_config({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, **sizes}).num_layers
    2
    """
    config = _text_config(mapping, where)
    family_name, family = _family(config)
    _refuse_unmodelled(config, family_name, family)
    layers = _layers(config, family)
    return Model(
        name=name or family_name,
        source=source,
        family=family_name,
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        layers=layers,
        tied_embeddings=config.flag(Switch("tie_word_embeddings", family.tied)),
        mtp_layers=_mtp_layers(config, family, layers),
        learned_positions=config.integer("n_positions", at_least=1) if family.learned_positions else 0,
        final_norm=family.norm,
    )


def _text_config(mapping: object, where: str) -> Config:
    """The configuration itself, or the text part of a multimodal one with what the whole says about it."""
    if not isinstance(mapping, Mapping):
        raise SpecError(where, f"expected a mapping, got {shown(mapping)}.")
    text = mapping.get("text_config")
    if text is None:
        return Config(mapping, where)
    if not isinstance(text, Mapping):
        raise SpecError(f"{where}.text_config", f"expected a mapping, got {shown(text)}.")
    inherited = {key: mapping[key] for key in ("model_type", "tie_word_embeddings") if key in mapping}
    return Config({**inherited, **text}, f"{where}.text_config")


def _family(config: Config) -> tuple[str, Family]:
    name = config.mapping.get("model_type")
    if name is None:
        raise config.error("model_type", "is required but missing.", did_you_mean("", FAMILIES))
    if not isinstance(name, str):
        raise config.error("model_type", f"expected text, got {shown(name)}.")
    if name not in FAMILIES:
        raise config.error("model_type", f"unsupported family {shown(name)}.", did_you_mean(name, FAMILIES))
    return name, FAMILIES[name]


def _refuse_unmodelled(config: Config, family_name: str, family: Family) -> None:
    refused = REFUSED if family.single_blocks else {**REFUSED, **SINGLE_BLOCK_KEYS}
    for key, what in refused.items():
        if config.mapping.get(key):
            raise config.error(key, f"asks for {what}, which is not modelled, got {shown(config.mapping[key])}.")
    for key in SPELLINGS["num_experts"]:
        if config.mapping.get(key) and not family.experts:
            raise config.error(key, f"the family '{family_name}' has no experts, got {shown(config.mapping[key])}.")
    if config.mapping.get("kv_lora_rank") and not family.latent:
        raise config.error("kv_lora_rank", f"the family '{family_name}' has no latent attention.")
    if family.experts and config.flag(Switch("mlp_bias", False)):
        raise config.error("mlp_bias", f"biases of the feed-forward are not modelled for '{family_name}', got true.")


# --- layers --------------------------------------------------------------------------------------------------


def _layers(config: Config, family: Family) -> tuple[Layer, ...]:
    if family.single_blocks:
        return _single_blocks(config, family, *_pattern(config, "layers_block_type", "hybrid_override_pattern"))
    num_layers = config.count("num_layers", at_most=MAX_LAYERS)
    attentions = _attention_kinds(config, family, num_layers=num_layers)
    experts = _expert_layers(config, family, num_layers=num_layers)
    attention = {kind: _attention(config, family, kind=kind) for kind in set(attentions)}
    feed_forward = {routed: _feed_forward(config, family, routed=routed) for routed in set(experts)}
    return tuple(
        Layer(
            attention=attention[kind],
            feed_forward=feed_forward[routed],
            num_norms=family.num_norms,
            norm=family.norm,
            parallel_blocks=config.flag(family.parallel_blocks),
        )
        for kind, routed in zip(attentions, experts, strict=True)
    )


def _attention_kinds(config: Config, family: Family, *, num_layers: int) -> tuple[str, ...]:
    """One of ``LAYER_TYPES`` per layer, as listed or by the family's pattern."""
    listed = config.words("layer_types", LAYER_TYPES[: 3 if family.linear else 2], length=num_layers)
    if listed is not None:
        return listed
    if (numbered := config.items("attn_type_list")) is not None:
        return _numbered_kinds(config, family, numbered, num_layers=num_layers)
    if family.window_switch:
        first = config.integer("max_window_layers", default=0) if _window(config, family) else num_layers
        return tuple("sliding_attention" if index >= first else "full_attention" for index in range(num_layers))
    if family.period:
        period = config.integer(family.period.key, at_least=1, default=family.period.default)
        return tuple(family.period.others if index % period else "full_attention" for index in range(1, num_layers + 1))
    if family.linear:
        raise config.error("layer_types", "is required but missing.")
    return ("sliding_attention" if _window(config, family) else "full_attention",) * num_layers


def _numbered_kinds(config: Config, family: Family, numbers: list[Any], *, num_layers: int) -> tuple[str, ...]:
    """MiniMax's own spelling: 0 is linear, 1 full attention."""
    kinds = {0: "linear_attention", 1: "full_attention"} if family.linear else {1: "full_attention"}
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int) or number not in kinds:
            allowed = " or ".join(map(str, kinds))
            raise config.error(f"attn_type_list.{index}", f"expected {allowed}, got {shown(number)}.")
    if len(numbers) != num_layers:
        raise config.error("attn_type_list", f"has {len(numbers)} entries, the model {num_layers} layers.")
    return tuple(kinds[number] for number in numbers)


def _window(config: Config, family: Family) -> int | None:
    """Tokens of the sliding window, or None."""
    if family.window_switch and not config.flag(Switch("use_sliding_window", False)):
        return None
    absent = "sliding_window" not in config.mapping
    return config.integer("sliding_window", default=(family.window or 0) if absent else 0) or None


def _expert_layers(config: Config, family: Family, *, num_layers: int) -> tuple[bool, ...]:
    """Which layers are mixtures of experts, by list or by the patterns of DeepSeek and Qwen."""
    if not family.experts:
        return (False,) * num_layers
    listed = config.words("mlp_layer_types", ("dense", "sparse"), length=num_layers)
    if listed is not None:
        return tuple(kind == "sparse" for kind in listed)
    first = config.integer("first_k_dense_replace", default=family.first_dense, at_most=MAX_LAYERS)
    frequency = config.integer("moe_layer_freq", at_least=1, default=1)
    step = config.integer("decoder_sparse_step", at_least=1, default=1)
    dense = _layer_numbers(config, "mlp_only_layers")
    return tuple(
        index >= first and index % frequency == 0 and (index + 1) % step == 0 and index not in dense
        for index in range(num_layers)
    )


def _layer_numbers(config: Config, key: str) -> list[int]:
    numbers = config.items(key) or []
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int):
            raise config.error(f"{key}.{index}", f"expected int, got {shown(number)}.")
    return numbers


def _pattern(config: Config, listed: str, written: str, default: str | None = None) -> tuple[str, str]:
    """A letter per block, from a list of names (two generations of them) or as written, and the key that has it."""
    names = config.items(listed)
    if names is None:
        text = config.mapping.get(written, default)
        if text is None:
            raise config.error(written, "is required but missing.")
        if not isinstance(text, str) or not 0 < len(text) <= MAX_LAYERS:
            raise config.error(written, f"expected a letter per layer, got {shown(text)}.")
        return text, written
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in BLOCK_LETTERS:
            problem = f"unknown kind {shown(name)}."
            raise config.error(f"{listed}.{index}", problem, did_you_mean(name, BLOCK_LETTERS))
    if not 0 < len(names) <= MAX_LAYERS:
        raise config.error(listed, f"must name at least 1 and at most {MAX_LAYERS} layers, got {len(names)}.")
    return "".join(BLOCK_LETTERS[name] for name in names), listed


def _single_blocks(config: Config, family: Family, pattern: str, key: str) -> tuple[Layer, ...]:
    builders: dict[str, Callable[[], Block]] = {
        "mamba": lambda: _mamba(config),
        "attention": lambda: _attention(config, family, kind="full_attention"),
        "mlp": lambda: _feed_forward(config, family, routed=False),
        "experts": lambda: _feed_forward(config, family, routed=True),
    }
    return single_blocks(pattern, lambda kind: builders[kind](), f"{config.where}.{key}", norm=family.norm)


def _mtp_layers(config: Config, family: Family, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    number = _num_mtp_layers(config)
    if not number or not family.single_blocks:
        return layers[-1:] * number
    pattern, key = _pattern(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern", MTP_PATTERN)
    return (joined(_single_blocks(config, family, pattern, key), f"{config.where}.{key}"),) * number


def _num_mtp_layers(config: Config) -> int:
    if not config.flag(Switch("use_mtp", True)):
        return 0
    modules = config.count("mtp_layers", default=0, at_least=0, at_most=MAX_LAYERS)
    return modules * config.integer("mtp_transformer_layers", at_least=1, at_most=16, default=1)


# --- blocks --------------------------------------------------------------------------------------------------


def _attention(config: Config, family: Family, *, kind: str) -> Attention | LatentAttention | LinearAttention:
    if kind == "linear_attention":
        return LINEAR_BUILDERS[str(family.linear)](config, family)
    if family.latent:
        return _latent_attention(config, family)
    num_heads = config.count("num_heads")
    return Attention(
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, family, num_heads=num_heads),
        head_dim=_head_dim(config, family, num_heads=num_heads),
        qkv_bias=config.flag(family.qkv_bias),
        output_bias=config.flag(family.output_bias),
        qk_norm=family.qk_norm if config.flag(family.qk_norm_switch) else "none",
        output_gate=family.output_gate,
        sinks=family.sinks,
        window=_required_window(config, family) if kind == "sliding_attention" else None,
        rotary=family.rotary and not family.learned_positions,
    )


def _num_kv_heads(config: Config, family: Family, *, num_heads: int) -> int:
    key = SPELLINGS["num_kv_heads"][0]
    is_default = family.multi_head or key in config.mapping
    num_kv_heads = config.count("num_kv_heads", default=num_heads if is_default else None)
    if num_heads % num_kv_heads:
        raise config.error(key, f"must divide the {num_heads} attention heads, got {num_kv_heads}.")
    return num_kv_heads


def _head_dim(config: Config, family: Family, *, num_heads: int) -> int:
    if config.mapping.get("head_dim") is not None:
        return config.integer("head_dim", at_least=1)
    if family.head_dim is not None:
        return family.head_dim
    hidden_size = config.count("hidden_size")
    if hidden_size % num_heads:
        key = config.spelled("hidden_size")[0]
        raise config.error(key, f"must be a multiple of the {num_heads} attention heads, got {hidden_size}.")
    return hidden_size // num_heads


def _required_window(config: Config, family: Family) -> int:
    window = _window(config, family)
    if window is None:
        raise config.error("sliding_window", "is required by the sliding attention in 'layer_types', but missing.")
    return window


def _latent_attention(config: Config, family: Family) -> LatentAttention:
    has_rank = config.mapping.get("q_lora_rank") is not None
    if "q_lora_rank" not in config.mapping:
        raise config.error("q_lora_rank", "is required but missing.", "Write null for queries without a low rank.")
    return LatentAttention(
        num_heads=config.count("num_heads"),
        q_lora_rank=config.integer("q_lora_rank", at_least=1) if has_rank else None,
        kv_lora_rank=config.integer("kv_lora_rank", at_least=1),
        qk_nope_head_dim=config.integer("qk_nope_head_dim", at_least=1),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", at_least=1),
        v_head_dim=config.integer("v_head_dim", at_least=1),
        bias=config.flag(family.qkv_bias),
    )


def _lightning(config: Config, family: Family) -> LinearAttention:
    num_heads = config.count("num_heads")
    head_dim = _head_dim(config, family, num_heads=num_heads)
    return LinearAttention(
        variant="lightning",
        num_key_heads=num_heads,
        num_value_heads=num_heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
    )


def _gated_delta(config: Config, family: Family) -> LinearAttention:
    return LinearAttention(
        variant="gated_delta",
        num_key_heads=config.integer("linear_num_key_heads", at_least=1),
        num_value_heads=config.integer("linear_num_value_heads", at_least=1),
        key_head_dim=config.integer("linear_key_head_dim", at_least=1),
        value_head_dim=config.integer("linear_value_head_dim", at_least=1),
        conv_kernel=config.integer("linear_conv_kernel_dim"),
    )


def _mamba(config: Config) -> Mamba:
    num_heads = config.integer("mamba_num_heads", at_least=1)
    num_groups = config.integer("n_groups", at_least=1)
    if num_heads % num_groups:
        raise config.error("n_groups", f"must divide the {num_heads} Mamba heads, got {num_groups}.")
    return Mamba(
        num_heads=num_heads,
        head_dim=config.integer("mamba_head_dim", at_least=1),
        state_size=config.integer("ssm_state_size", at_least=1),
        num_groups=num_groups,
        conv_kernel=config.integer("conv_kernel", at_least=1),
        chunk_size=config.integer("chunk_size", at_least=1, default=128),
        bias=config.flag(Switch("use_bias", False)),
        conv_bias=config.flag(Switch("use_conv_bias", True)),
    )


LINEAR_BUILDERS: dict[str, Callable[[Config, Family], LinearAttention]] = {
    "lightning": _lightning,
    "gated_delta": _gated_delta,
}
"""What reads a family's linear attention."""


def _feed_forward(config: Config, family: Family, *, routed: bool) -> Mlp | Experts:
    if routed:
        return _experts(config, family)
    multiple = family.ffn_multiple
    return Mlp(
        ffn_hidden_size=config.count(
            "ffn_hidden_size", default=multiple * config.count("hidden_size") if multiple else None
        ),
        gated=family.gated,
        bias=config.flag(family.mlp_bias),
        squared_relu=family.squared_relu,
    )


def _experts(config: Config, family: Family) -> Experts:
    num_experts = config.count("num_experts")
    top_k = config.count("top_k")
    if top_k > num_experts:
        key = config.spelled("top_k")[0]
        raise config.error(key, f"must be at most the {num_experts} experts, got {top_k}.")
    ffn_hidden_size = config.integer(family.expert_width, at_least=1)
    own_width = family.shared_gate or family.single_blocks
    shared = config.count("num_shared", default=family.num_shared, at_least=0) * ffn_hidden_size
    return Experts(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=ffn_hidden_size,
        shared_ffn_hidden_size=config.count(
            "shared_ffn_hidden_size", default=None if own_width else shared, at_least=0
        ),
        gated=family.gated,
        bias=config.flag(family.expert_bias),
        squared_relu=family.squared_relu,
        router_bias=config.flag(family.router_bias),
        shared_gate=family.shared_gate,
        latent_size=config.integer("moe_latent_size", default=0) or None,
    )
