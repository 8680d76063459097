"""Families of Hugging Face configurations: facts that a ``model_type`` implies beyond its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal, NamedTuple, get_type_hints

from pydantic import ValidationError

from costmodel.errors import SpecError, did_you_mean
from costmodel.models.config_json import Config, Switch
from costmodel.record import adapter_of, record
from costmodel.validation import shown

OFF, ON = Switch("", False), Switch("", True)
ATTENTION_BIAS = Switch("attention_bias", False)
ENABLE_BIAS, USE_BIAS = Switch("enable_bias", True), Switch("use_bias", False)


class Period(NamedTuple):
    """
    A pattern: of n layers the last, or the first, has full attention, the others another kind; ``key`` may set n.

    Of a pattern with ``full_start`` the first layer of the model has full attention, too.
    """

    others: str
    key: str
    default: int
    starts_full: bool = False
    full_start: bool = False


class Positions(NamedTuple):
    """Learned positions: the key of their number, and the number of additional ones."""

    key: str
    more: int = 0


class MambaKeys(NamedTuple):
    """Keys of a Mamba block; ``bias`` is that of its projections."""

    num_heads: str = "mamba_num_heads"
    head_dim: str = "mamba_head_dim"
    state_size: str = "ssm_state_size"
    num_groups: str = "n_groups"
    conv_kernel: str = "conv_kernel"
    chunk_size: str = "chunk_size"
    bias: str = "use_bias"
    conv_bias: str = "use_conv_bias"


@record(frozen=True, kw_only=True)
class Family:
    """
    Facts that a ``model_type`` implies beyond its keys; defaults are those of its configuration class.

    Parameters
    ----------
    latent
        Multi-head latent attention instead of query, key and value heads.
    indexer
        Choice of an indexer for each query: ``keys`` (DSA) or ``blocks`` of them (MiniMax-M3).
    compressed
        True if attention reads a window and compressed entries, and hyper-connections mix the residual (DeepSeek-V4).
    ignores
        Keys that say of how the model is served what others say of its training.
    linear
        Linear attention behind ``linear_attention`` in ``layer_types``; None: not allowed.
    experts
        True if the feed-forward blocks are mixtures of experts unless the pattern says otherwise.
    tied, gated, squared_relu, norm, num_norms
        Fields of :class:`costmodel.facts.model.Model`, ``Layer`` and ``Mlp``.
    qkv_bias, output_bias, mlp_bias, router_bias, expert_bias, qk_norm_switch
        Keys that turn these on.
    qk_norm
        Norm of queries and keys, if the switch is on.
    output_gate, head_gate, shared_gate, router_scales
        Parts of attention and experts, as in :class:`costmodel.facts.model.Attention` and
        :class:`costmodel.facts.model.Experts`.
    sinks
        Layers that have sinks: ``all``, or those with windows.
    v_head_dim
        True if ``v_head_dim`` gives the values a width of their own.
    changes
        Keys of a configuration that layers of one kind of attention have otherwise, and their values there.
    shared_width
        Key of the shared experts' width, if it is not a usual one.
    head_dim
        Width of a head if the key is absent; None: hidden size over heads.
    multi_head
        True if absent KV heads mean as many as query heads.
    ffn_multiple
        Feed-forward width over hidden size if the key is null; None: the key is required.
    expert_width
        The key of one expert's width.
    num_shared, first_dense
        Shared experts and leading dense layers if the keys are absent; None: the key is required.
    window
        Sliding window if the key is absent; None: no window.
    window_size
        Sliding window by another key; 0: by the usual one.
    chunk
        Tokens of a chunk of chunked attention if the key is absent; None: not allowed.
    window_switch
        True if ``use_sliding_window`` turns windows on, from layer ``max_window_layers``.
    period
        Pattern of attention if ``layer_types`` is absent.
    lists_kinds
        True if ``layer_types`` is required: its class's default is no such pattern.
    parallel_blocks
        Key that turns :attr:`costmodel.facts.model.Layer.parallel_blocks` on.
    learned_positions
        Key of the number of learned positions, which replace rotations, and the number of additional ones.
    rotary
        True if attention rotates queries and keys, unless positions are learned.
    rotary_windows
        True if layers without a window do not rotate, in a model that has windows.
    no_rotary
        True if ``no_rope_layers`` lists the layers that rotate (0: no), by default all but every fourth.
    single_blocks
        Each layer is one block: Mamba, attention, feed-forward or experts, by ``layers_block_type``.
    pattern
        Letter of all blocks of a family whose configuration does not list them.
    mamba
        Keys of a Mamba block: heads, their width, state, groups, convolution, chunk, and the biases of projections and
        convolution.
    mamba_chunk
        Tokens of a chunk of its recurrence if the key is absent.
    kv_heads
        Number of key-value heads if no key gives it; None: a key does.
    dense_width
        Key of the width of dense feed-forward blocks, if it is not the usual one.
    mtp_attention, mtp_dense
        Kind of attention of layers of multi-token prediction that no list names, if it is not the last layer's; True if
        their feed-forward blocks are dense.
    head_bias
        Key that turns :attr:`costmodel.facts.model.Model.head_bias` on.
    embedding_norm
        As in :class:`costmodel.facts.model.Model`.
    extras
        As in :class:`costmodel.facts.model.Model`.
    text_part
        True if its configuration is of a multimodal model, of which only the text part is read.
    reads
        Keys of ``REFUSED`` that its reader supports.
    plain
        Supported values of keys, and the meaning of any other value; a text is the key of the value.
    refined
        Fields of the family that follow from a configuration.
    """

    latent: bool = False
    indexer: Literal["none", "keys", "blocks"] = "none"
    compressed: bool = False
    ignores: tuple[str, ...] = ()
    linear: Literal["lightning", "gated_delta", "kda", "mamba"] | None = None
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
    head_gate: bool = False
    sinks: Literal["none", "all", "windows"] = "none"
    shared_gate: bool = False
    router_scales: bool = False
    shared_width: str = ""
    v_head_dim: bool = False
    changes: Callable[[Config, str], dict[str, Any]] | None = None
    head_dim: int | None = None
    multi_head: bool = False
    ffn_multiple: int | None = None
    expert_width: str = "moe_intermediate_size"
    num_shared: int | None = 0
    first_dense: int = 0
    window: int | None = None
    window_size: int = 0
    chunk: int | None = None
    window_switch: bool = False
    period: Period | None = None
    lists_kinds: bool = False
    parallel_blocks: Switch = OFF
    learned_positions: Positions | None = None
    rotary: bool = True
    rotary_windows: bool = False
    no_rotary: bool = False
    single_blocks: bool = False
    pattern: str = ""
    mamba: MambaKeys | None = None
    mamba_chunk: int = 128
    kv_heads: int | None = None
    dense_width: str = ""
    mtp_attention: str = ""
    mtp_dense: bool = False
    head_bias: Switch = OFF
    embedding_norm: bool = False
    extras: str = ""
    text_part: bool = False
    reads: tuple[str, ...] = ()
    plain: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    refined: Callable[[Config], dict[str, Any]] | None = None


def _falcon(config: Config) -> dict[str, Any]:
    """Return the fields of a Falcon generation (transformers, ``FalconDecoderLayer`` and ``FalconAttention``)."""
    is_new, parallel = (
        config.flag(Switch("new_decoder_architecture", False)),
        config.flag(Switch("parallel_attn", True)),
    )
    one_head = config.flag(Switch("multi_query", True))
    heads = config.count("num_heads")
    norms = config.integer("num_ln_in_parallel_attn", at_least=1, at_most=2, default=2 if is_new else 1)
    alibi = config.flag(Switch("alibi", False))
    return {
        "kv_heads": config.count("num_kv_heads", default=heads) if is_new else 1 if one_head else heads,
        "num_norms": norms if parallel else 2,
        "parallel_blocks": Switch("", is_new or parallel),
        "rotary": not alibi,
        "extras": ALIBI if alibi else "",
    }


def _scales(config: Config, *keys: str) -> dict[str, Any]:
    """Return the extras of scales other than one."""
    scaled = [key for key in keys if config.mapping.get(key) not in (None, 1, 1.0)]
    return {"extras": f"scales of {', '.join(scaled)}" if scaled else ""}


def _granite(config: Config) -> dict[str, Any]:
    """Return the fields of Granite, whose keys scale embeddings, scores, residuals and logits."""
    return _scales(config, "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


def _granite_hybrid(config: Config) -> dict[str, Any]:
    """Return the fields of Granite 4: without routed experts the shared one is the feed-forward."""
    return {
        **_granite(config),
        "experts": config.mapping.get("num_local_experts") != 0 and config.integer("shared_intermediate_size") >= 0,
        "rotary": config.mapping.get("position_embedding_type") == "rope",
    }


def _hyperclovax(config: Config) -> dict[str, Any]:
    """Return the fields of HyperCLOVA X: three of Granite's scales, and a norm behind each block."""
    scales = _scales(config, "embedding_multiplier", "residual_multiplier", "logits_scaling")
    return {**scales, "num_norms": 4 if config.flag(Switch("use_post_norm", True)) else 2}


def _stablelm(config: Config) -> dict[str, Any]:
    """Return the fields of StableLM, whose parallel blocks share one norm."""
    return {"num_norms": 1 if config.flag(Switch("use_parallel_residual", False)) else 2}


def _gpt_bigcode(config: Config) -> dict[str, Any]:
    """Return the fields of GPT-BigCode (StarCoder): one key head, or as many as query heads."""
    return {"kv_heads": 1 if config.flag(Switch("multi_query", True)) else config.count("num_heads")}


def _olmo_hybrid(config: Config) -> dict[str, Any]:
    """Return the fields of OLMo's hybrid, which does not rotate if the base of its rotation is null."""
    rope = config.mapping.get("rope_parameters")
    return {"rotary": (rope if isinstance(rope, Mapping) else config.mapping).get("rope_theta", 0) is not None}


def _ministral3(config: Config) -> dict[str, Any]:
    """Return the fields of Ministral 3, which may scale queries by their position."""
    rope = config.mapping.get("rope_parameters", {"llama_4_scaling_beta": 0.1})
    scaled = isinstance(rope, Mapping) and rope.get("llama_4_scaling_beta")
    return {"extras": "queries scaled by their position" if scaled else ""}


def _afmoe(config: Config) -> dict[str, Any]:
    """Return the fields of AFMoE (Trinity), which may scale embeddings."""
    return {"extras": "scaled embeddings" if config.flag(Switch("mup_enabled", False)) else ""}


EXPERT_KINDS = ("hash_moe", "moe")
"""Kinds of DeepSeek-V4's experts: a fixed table or the router chooses those of a token."""


def _cohere2_moe(config: Config) -> dict[str, Any]:
    """Return the fields of Cohere 2's experts, whose dense layers in front may have another width and other windows."""
    if config.mapping.get("first_k_dense_replace") and config.mapping.get("layer_types") is None:
        raise config.error("layer_types", "is required with dense layers in front, but missing.")
    has_own = config.mapping.get("prefix_dense_intermediate_size") is not None
    return {"dense_width": "prefix_dense_intermediate_size"} if has_own else {}


def _flint(config: Config) -> dict[str, Any]:
    """Return the fields of Flint, whose first two layers are dense unless a list says otherwise."""
    return {"first_dense": 2 if config.mapping.get("mlp_only_layers") is None else 0}


def _deepseek_v4(config: Config) -> dict[str, Any]:
    """Return the fields of DeepSeek-V4, where a fixed table chooses the experts of the first layers."""
    listed = config.items("mlp_layer_types")
    hashed = config.integer("num_hash_layers", default=3) if listed is None else listed.count(EXPERT_KINDS[0])
    return {"extras": f"experts of {hashed} layers chosen by a table" if hashed else ""}


def _gemma4(config: Config) -> dict[str, Any]:
    """Return the fields of Gemma 4: with experts, each beside a dense block, and three more norms."""
    if config.mapping.get("model_type") != "gemma4_unified_text":
        config.integer("hidden_size_per_layer_input")  # the class has 256 without the key
    if config.mapping.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error("use_bidirectional_attention", "means attention to later tokens, which is not modelled.")
    has_experts = config.flag(Switch("enable_moe_block", False))
    return {"experts": has_experts, "num_norms": 7 if has_experts else 4}


def _gemma4_changes(config: Config, kind: str) -> dict[str, Any]:
    """Return the changes of Gemma 4's full attention: wider heads, fewer key heads, and values that are keys."""
    if kind != "full_attention":
        return {"attention_k_eq_v": False}
    changes = {"head_dim": config.integer("global_head_dim", at_least=1, default=512)}
    if config.mapping.get("attention_k_eq_v") and config.mapping.get("num_global_key_value_heads") is not None:
        changes["num_key_value_heads"] = config.integer("num_global_key_value_heads", at_least=1)
    return changes


def _mimo_v2(config: Config) -> dict[str, Any]:
    """Return the fields of MiMo-V2, whose window has the query beside ``sliding_window_size`` earlier tokens."""
    sized = config.mapping.get("sliding_window_size") is not None
    return {"window_size": config.integer("sliding_window_size", at_least=1) + 1} if sized else {}


def _mimo_v2_changes(config: Config, kind: str) -> dict[str, Any]:
    """Return the changes of MiMo-V2's layers with a window: twice the key heads, unless keys say the sizes."""
    if kind != "sliding_attention":
        return {}
    own = [key for key in ("num_attention_heads", "head_dim", "v_head_dim") if f"swa_{key}" in config.mapping]
    heads = config.integer("swa_num_key_value_heads", at_least=1, default=2 * config.count("num_kv_heads"))
    return {"num_key_value_heads": heads, **{key: config.integer(f"swa_{key}", at_least=1) for key in own}}


def _step_changes(config: Config, kind: str) -> dict[str, Any]:
    """Return the changes of Step's layers with a window, which may have another number of query heads."""
    other = config.mapping.get("attention_other_setting") or {}
    if not isinstance(other, Mapping):
        raise config.error("attention_other_setting", f"expected a mapping, got {shown(other)}.")
    own = Config(other, f"{config.where}.attention_other_setting")
    named = ((config, "num_sliding_attention_heads"), (own, "num_attention_heads"))
    found = [holder.integer(key, at_least=1) for holder, key in named if holder.mapping.get(key) is not None]
    return {"num_attention_heads": found[0]} if kind == "sliding_attention" and found else {}


ALIBI = "positions as biases of scores (ALiBi)"

_DEEPSEEK_V3 = Family(
    latent=True, experts=True, qkv_bias=ATTENTION_BIAS, num_shared=1, first_dense=3
)  # fmt: skip
_DEEPSEEK_V32 = replace(_DEEPSEEK_V3, indexer="keys", reads=("index_head_dim", "index_n_heads", "index_topk"))
_GEMMA_2 = Family(
    tied=True, num_norms=4, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, window=4096,
    period=Period("sliding_attention", "", 2),
)  # fmt: skip
_GEMMA_3 = Family(
    tied=True, num_norms=4, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, window=4096,
    qk_norm_switch=ON, period=Period("sliding_attention", "sliding_window_pattern", 6),
)  # fmt: skip
_GEMMA_4 = Family(
    tied=True, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, window=512, qk_norm_switch=ON,
    period=Period("sliding_attention", "", 6), router_scales=True, shared_width="intermediate_size",
    extras="norms of values without weights", refined=_gemma4, changes=_gemma4_changes,
    reads=("use_bidirectional_attention",),
)  # fmt: skip

BAMBA_KEYS = MambaKeys(
    "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_chunk_size",
    "mamba_proj_bias", "mamba_conv_bias",
)  # fmt: skip
"""Keys of Bamba's and Granite's Mamba blocks."""

_COHERE = Family(
    tied=True, num_norms=1, parallel_blocks=ON, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, multi_head=True,
    extras="layer norms without biases, and scaled logits",
    plain={"use_qk_norm": (False, "norms of queries and keys with a weight for each head")},
)  # fmt: skip
_EXAONE_4 = Family(
    qk_norm_switch=ON, window=4096, rotary_windows=True,
    period=Period("sliding_attention", "sliding_window_pattern", 4),
)  # fmt: skip
_GLM_4_MOE = Family(
    experts=True, qkv_bias=ATTENTION_BIAS, qk_norm_switch=Switch("use_qk_norm", False), num_shared=1, first_dense=1
)  # fmt: skip
_GPT_J = Family(
    gated=False, norm="layer", num_norms=1, mlp_bias=ON, head_bias=ON, multi_head=True, ffn_multiple=4,
    parallel_blocks=ON,
)  # fmt: skip
_LLAMA = Family(
    qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=Switch("mlp_bias", False), multi_head=True
)  # fmt: skip
_FLINT = Family(
    experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_dim=128,
    shared_width="shared_expert_intermediate_size", window=513, rotary_windows=True, lists_kinds=True,
)  # fmt: skip
_OLMOE = Family(
    experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm="full", qk_norm_switch=ON,
    multi_head=True, expert_width="intermediate_size",
)  # fmt: skip
_QWEN_2 = Family(qkv_bias=ON, window_switch=True)
_GRANITE = replace(_LLAMA, refined=_granite)
_WITH_WINDOWS: dict[str, Any] = {
    "sinks": "all", "window": 128, "period": Period("sliding_attention", "", 4, starts_full=True)
}  # fmt: skip
"""Sinks and windows of Granite's families with sliding windows."""

_GRANITE_MOE = Family(
    experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, multi_head=True,
    expert_width="intermediate_size", refined=_granite,
)  # fmt: skip
_QWEN_3_5 = Family(
    linear="gated_delta", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, output_gate=True,
    head_dim=256, period=Period("linear_attention", "full_attention_interval", 4),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "afmoe": Family(
        experts=True, num_norms=4, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON,
        output_gate=True, head_dim=128, multi_head=True, num_shared=2, first_dense=1, window=1024, rotary_windows=True,
        period=Period("sliding_attention", "global_attn_every_n_layers", 4), refined=_afmoe,
    ),
    "arcee": replace(_LLAMA, gated=False, squared_relu=True),
    "aria_text": replace(_LLAMA, experts=True, expert_width="intermediate_size", num_shared=2),
    "bamba": Family(
        linear="mamba", mamba_chunk=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS,
        mlp_bias=Switch("mlp_bias", False),
        mamba=BAMBA_KEYS,
        reads=("mamba_d_state",),
    ),
    "bloom": Family(
        tied=True, gated=False, norm="layer", qkv_bias=ON, output_bias=ON, mlp_bias=ON, multi_head=True, ffn_multiple=4,
        rotary=False, embedding_norm=True, extras=ALIBI,
    ),
    "codegen": _GPT_J,
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE, window=4096, rotary_windows=True, period=Period("sliding_attention", "sliding_window_pattern", 4)
    ),
    "cohere2_moe": replace(
        _COHERE, experts=True, expert_width="intermediate_size", head_dim=128, window=4096, rotary_windows=True,
        period=Period("sliding_attention", "sliding_window_pattern", 4), refined=_cohere2_moe,
    ),
    "cwm": Family(
        head_dim=128, window=8192, period=Period("sliding_attention", "", 4, starts_full=True)
    ),
    "deepseek_v2": Family(latent=True, experts=True, qkv_bias=ATTENTION_BIAS, num_shared=2),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V32,
    "deepseek_v4": Family(
        compressed=True, experts=True, head_dim=512, num_shared=1, rotary=False, refined=_deepseek_v4,
        reads=("compress_ratios", "hc_mult", "index_head_dim", "index_n_heads", "index_topk"),
    ),
    "dots1": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, multi_head=True,
        num_shared=None, window_switch=True,
    ),
    "emu3_text_model": replace(_LLAMA, multi_head=False),
    "ernie4_5": Family(
        tied=True, qkv_bias=USE_BIAS, output_bias=USE_BIAS, mlp_bias=USE_BIAS, head_bias=USE_BIAS, head_dim=128,
    ),
    "ernie4_5_moe": Family(
        experts=True, tied=True, num_shared=2, first_dense=1, plain={"use_bias": (False, "biases of experts")},
    ),
    "exaone": replace(_LLAMA, multi_head=False),
    "exaone4": replace(_EXAONE_4, extras="norms behind the blocks"),
    "exaone_moe": replace(_EXAONE_4, experts=True, num_shared=1, first_dense=1),
    "falcon": Family(
        tied=True, gated=False, norm="layer", qkv_bias=Switch("bias", False), output_bias=Switch("bias", False),
        mlp_bias=Switch("bias", False), ffn_multiple=4, refined=_falcon,
    ),
    "flex_olmo": _OLMOE,
    "flint": replace(_FLINT, sinks="all", refined=_flint),
    "gemma": Family(tied=True, head_dim=256, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS),
    "gemma2": _GEMMA_2,
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "gemma4_text": _GEMMA_4,
    "gemma4_unified_text": replace(_GEMMA_4, window=1024),
    "glm": Family(qkv_bias=Switch("attention_bias", True), head_dim=128),
    "glm4": Family(qkv_bias=Switch("attention_bias", True), num_norms=4, head_dim=128),
    "glm4_moe": _GLM_4_MOE,
    "glm4_moe_lite": Family(
        latent=True, experts=True, qkv_bias=ATTENTION_BIAS, num_shared=1, first_dense=1
    ),
    "glm_moe_dsa": _DEEPSEEK_V32,
    "gpt2": Family(
        tied=True, gated=False, norm="layer", qkv_bias=ON, output_bias=ON, mlp_bias=ON, multi_head=True, ffn_multiple=4,
        learned_positions=Positions("n_positions"),
    ),
    "gpt_bigcode": Family(
        tied=True, gated=False, norm="layer", qkv_bias=ON, output_bias=ON, mlp_bias=ON, ffn_multiple=4,
        learned_positions=Positions("n_positions"), refined=_gpt_bigcode,
    ),
    "gpt_neox": Family(
        gated=False, norm="layer", qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_bias", True),
        mlp_bias=ON, multi_head=True, parallel_blocks=Switch("use_parallel_residual", True),
    ),
    "gpt_oss": Family(
        experts=True, qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_bias", True),
        router_bias=ON, expert_bias=ON, sinks="all", head_dim=64, expert_width="intermediate_size", window=128,
        period=Period("sliding_attention", "", 2),
    ),
    "gptj": _GPT_J,
    "granite": _GRANITE,
    "granite_swa": replace(_GRANITE, tied=True, multi_head=False, **_WITH_WINDOWS),
    "granitemoe": _GRANITE_MOE,
    "granitemoe_swa": replace(_GRANITE_MOE, **_WITH_WINDOWS),
    "granitemoehybrid": Family(
        linear="mamba", experts=True, mamba_chunk=256, mamba=BAMBA_KEYS, reads=("mamba_d_state",),
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, multi_head=True, expert_width="intermediate_size",
        dense_width="shared_intermediate_size", refined=_granite_hybrid,
    ),
    "granitemoeshared": _GRANITE_MOE,
    "helium": Family(qkv_bias=ATTENTION_BIAS, mlp_bias=Switch("mlp_bias", False), head_dim=128),
    "hunyuan_v1_dense": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, multi_head=True
    ),
    "hunyuan_v1_moe": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, multi_head=True,
        expert_width="intermediate_size", num_shared=1,
    ),
    "hy_v3": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_dim=128,
        num_shared=1, first_dense=1,
    ),
    "hyperclovax": replace(_LLAMA, refined=_hyperclovax),
    "internlm3": replace(
        _LLAMA, head_dim=128, multi_head=False, plain={"qkv_bias": (False, "biases"), "bias": (False, "biases")}
    ),
    "iquestcoder": replace(_LLAMA, multi_head=False),
    "jais2": Family(
        gated=False, squared_relu=True, norm="layer", qkv_bias=Switch("attention_bias", True),
        output_bias=Switch("attention_bias", True), mlp_bias=Switch("mlp_bias", True), multi_head=True,
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "kimi_linear": Family(
        latent=True, linear="kda", experts=True, rotary=False, qkv_bias=ATTENTION_BIAS, num_shared=1, first_dense=1,
        reads=("attn_res_block_size",), plain={"mla_use_nope": (True, "rotated keys")},
    ),
    "kolibri1": replace(
        _FLINT, num_norms=4, qkv_bias=OFF, output_bias=OFF, lists_kinds=False, extras="norms behind the blocks",
        period=Period("sliding_attention", "", 5),
    ),
    "laguna": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_gate=True,
        head_dim=128, shared_width="shared_expert_intermediate_size", first_dense=1, window=512,
        period=Period("sliding_attention", "", 1), plain={"gating": (True, "another gate than one per head")},
    ),
    "lara_mini": replace(_FLINT, tied=True, linear="gated_delta", window=512),
    "llama": _LLAMA,
    "llama4_text": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, num_shared=1,
        expert_width="intermediate_size", dense_width="intermediate_size_mlp", no_rotary=True, chunk=8192,
        reads=("attention_chunk_size", "interleave_moe_layer_step", "intermediate_size_mlp", "moe_layers"),
        extras="norms of queries and keys without weights, routing by sigmoids",
    ),
    "mamba2": Family(
        single_blocks=True, pattern="M", mamba_chunk=256,
        mamba=MambaKeys("num_heads", "head_dim", "state_size"),
    ),
    "mellum": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_dim=128, window=1024,
        period=Period("sliding_attention", "", 1),
    ),
    "mimo": _QWEN_2,
    "mimo_v2_flash": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, head_dim=192, v_head_dim=True, sinks="windows", first_dense=1,
        window=129, period=Period("sliding_attention", "", 6, full_start=True), refined=_mimo_v2,
        changes=_mimo_v2_changes, reads=("attention_chunk_size",), extras="scaled values",
        plain={
            "add_swa_attention_sink_bias": (True, "layers with a window and no sinks"),
            "add_full_attention_sink_bias": (False, "sinks in layers without a window"),
        },
    ),
    "minicpm3": Family(latent=True, tied=True, qkv_bias=ATTENTION_BIAS, extras="scales of embeddings and residuals"),
    "minimax": Family(experts=True, linear="lightning", expert_width="intermediate_size"),
    "minimax_m2": Family(
        experts=True, qk_norm="full", qk_norm_switch=Switch("use_qk_norm", True), head_dim=128,
        expert_width="intermediate_size",
    ),
    "minimax_m3_vl_text": Family(
        experts=True, qk_norm_switch=ON, head_dim=128, indexer="blocks", expert_width="intermediate_size",
        dense_width="dense_intermediate_size", shared_width="shared_intermediate_size", ignores=("num_mtp_modules",),
        reads=("index_head_dim", "index_n_heads"),
        plain={"attention_output_gate": (False, "a gate behind the attention")},
    ),
    "ministral3": Family(head_dim=128, refined=_ministral3),
    "ministral": Family(window=4096),
    "mistral": Family(window=4096),
    "mixtral": Family(experts=True, expert_width="intermediate_size"),
    "nanochat": Family(
        gated=False, squared_relu=True, norm="none", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS,
        multi_head=True, extras="norms of queries and keys without weights",
    ),
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
    "olmo_hybrid": Family(
        linear="gated_delta", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm="full", qk_norm_switch=ON,
        multi_head=True, period=Period("linear_attention", "", 4), refined=_olmo_hybrid,
    ),
    "olmoe": _OLMOE,
    "opt": Family(
        tied=True, gated=False, norm="layer", qkv_bias=ENABLE_BIAS, output_bias=ENABLE_BIAS, mlp_bias=ENABLE_BIAS,
        multi_head=True, learned_positions=Positions("max_position_embeddings", 2), extras="ReLU instead of GELU",
        plain={
            "do_layer_norm_before": (True, "norms behind the blocks"),
            "layer_norm_elementwise_affine": (True, "norms without weights"),
            "word_embed_proj_dim": ("hidden_size", "embeddings of another width"),
        },
    ),
    "phi": Family(
        gated=False, norm="layer", num_norms=1, qkv_bias=ON, output_bias=ON, mlp_bias=ON, head_bias=ON, multi_head=True,
        parallel_blocks=ON, plain={"qk_layernorm": (False, "layer norms of queries and keys")},
    ),
    "phi3": Family(multi_head=True),
    "phi4_multimodal": Family(text_part=True),
    "phimoe": Family(
        experts=True, norm="layer", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS,
        expert_width="intermediate_size", head_bias=Switch("lm_head_bias", False), extras="routing by SparseMixer",
    ),
    "qwen2": _QWEN_2,
    "qwen2_moe": Family(experts=True, qkv_bias=Switch("qkv_bias", True), shared_gate=True, window_switch=True),
    "qwen3": Family(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_dim=128, window_switch=True
    ),
    "qwen3_5_moe_text": replace(_QWEN_3_5, experts=True, shared_gate=True),
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_moe": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, window_switch=True
    ),
    "qwen3_next": Family(
        experts=True, linear="gated_delta", qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON,
        output_gate=True, shared_gate=True, head_dim=256,
        period=Period("linear_attention", "full_attention_interval", 4),
    ),
    "sarvam_mla": replace(_DEEPSEEK_V3, first_dense=1),
    "sarvam_moe": replace(_GLM_4_MOE, qk_norm_switch=Switch("use_qk_norm", True), head_dim=64),
    "seed_oss": Family(
        qkv_bias=Switch("attention_bias", True), output_bias=Switch("attention_out_bias", False),
        mlp_bias=Switch("mlp_bias", False), head_dim=128,
    ),
    "smollm3": Family(
        tied=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=Switch("mlp_bias", False),
        window_switch=True, no_rotary=True,
    ),
    "solar_open": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, head_dim=128, num_shared=1
    ),
    "stablelm": Family(
        norm="layer", qkv_bias=Switch("use_qkv_bias", False),
        parallel_blocks=Switch("use_parallel_residual", False), refined=_stablelm,
        plain={"qk_layernorm": (False, "layer norms of queries and keys")},
    ),
    "starcoder2": Family(
        tied=True, gated=False, norm="layer", qkv_bias=Switch("use_bias", True), output_bias=Switch("use_bias", True),
        mlp_bias=Switch("use_bias", True),
    ),
    "step3p5": Family(
        experts=True, qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, qk_norm_switch=ON, head_gate=True,
        head_dim=128, first_dense=3, num_shared=1, changes=_step_changes, mtp_attention="full_attention",
        mtp_dense=True, plain={"use_head_wise_attn_gate": (True, "attention without a gate per head")},
    ),
    "vaultgemma": replace(_GEMMA_2, num_norms=2),
    "youtu": Family(latent=True, tied=True, qkv_bias=ATTENTION_BIAS),
}  # fmt: skip
"""Every supported ``model_type``; checked against the classes of transformers 5 (tests/oracle)."""

REFUSED: dict[str, str] = {
    "add_cross_attention": "cross-attention",
    "attention_chunk_size": "chunked attention",
    "attn_res_block_size": "attention residuals",
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
"""Keys that change the architecture to one that is not modelled; null, false, 0 and empty leave it unchanged."""

SINGLE_BLOCK_KEYS = {
    "hybrid_override_pattern": "layers of one block",
    "layers_block_type": "layers of one block",
    "mamba_num_heads": "state-space layers",
    "moe_latent_size": "experts on a latent",
    "ssm_state_size": "state-space layers",
}
"""Keys that only families with layers of one block may have."""

TEXT_PARTS: dict[str, str] = {
    "aria": "aria_text",
    "emu3": "emu3_text_model",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "granite_docling_text": "granite",
    "kimi_k3": "kimi_linear",
    "llama4": "llama4_text",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "step3p7": "step3p5",
}
"""Multimodal families, and names of their text parts, by the family of the text part."""


def _sizes(layers: int, hidden: int, vocab: int, heads: int, kv_heads: int, **more: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


_QWEN_2_VL = _sizes(80, 8192, 152064, 64, 8, intermediate_size=29568)
_QWEN_3 = _sizes(32, 4096, 151936, 32, 32, intermediate_size=22016)
_GATED_DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

PART_DEFAULTS: dict[str, dict[str, int]] = {
    "cohere2": _sizes(40, 8192, 256000, 64, 64, intermediate_size=22528),
    "gemma": _sizes(28, 3072, 256000, 16, 16, intermediate_size=24576),
    "gemma2": _sizes(26, 2304, 256000, 8, 4, intermediate_size=9216),
    "gemma3_text": _sizes(26, 2304, 262208, 8, 4, intermediate_size=9216),
    "glm4v_text": _sizes(40, 4096, 151552, 32, 2, intermediate_size=13696),
    "granite": _sizes(32, 4096, 32000, 32, 32, intermediate_size=11008),
    "llama": _sizes(32, 4096, 32000, 32, 32, intermediate_size=11008),
    "llama4_text": _sizes(48, 5120, 202048, 40, 8, intermediate_size=8192, num_local_experts=16, num_experts_per_tok=1),
    "ministral3": _sizes(34, 4096, 131072, 32, 8, intermediate_size=14336),
    "mistral": _sizes(32, 4096, 32000, 32, 8, intermediate_size=14336),
    "mixtral": _sizes(32, 4096, 32000, 32, 8, intermediate_size=14336, num_local_experts=8, num_experts_per_tok=2),
    "qwen2": _QWEN_3,
    "qwen2_5_omni_text": _sizes(28, 3584, 152064, 28, 4, intermediate_size=18944),
    "qwen2_5_vl_text": _QWEN_2_VL,
    "qwen2_vl_text": _QWEN_2_VL,
    "qwen3": _QWEN_3,
    "qwen3_5_moe_text": _sizes(
        40, 2048, 248320, 16, 2, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, **_GATED_DELTA,
    ),
    "qwen3_5_text": _sizes(32, 4096, 248320, 16, 4, intermediate_size=12288, **_GATED_DELTA),
    "qwen3_moe": _sizes(
        24, 2048, 151936, 32, 4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
    ),
    "qwen3_vl_moe_text": _sizes(
        24, 2048, 151936, 16, 16, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, head_dim=128
    ),
    "qwen3_vl_text": _QWEN_3,
}  # fmt: skip
"""Sizes of the configuration classes, which transformers leaves out of the text part of a multimodal file."""

ENCODERS = (
    "albert", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "blenderbot", "blenderbot-small",
    "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "flaubert", "funnel",
    "git", "layoutlm", "led", "longformer", "longt5", "luke", "m2m_100", "marian", "mbart", "megatron-bert",
    "mobilebert", "modernbert", "mt5", "musicgen", "musicgen_melody", "mvp", "nllb-moe", "pegasus", "plbart",
    "prophetnet", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "switch_transformers", "t5",
    "trocr", "umt5", "whisper", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
"""Families that are not trained on next tokens alone."""

UNMODELLED: dict[str, str] = {
    **dict.fromkeys(("apertus", "apertus1p5_text"), "an activation with weights (xIELU)"),
    **dict.fromkeys(ENCODERS, "an encoder, or is one"),
    "axk1": "norms behind the experts alone",
    "axk2": "gated norms around sparse attention with an indexer (DSA)",
    "bailing_hybrid": "decays and gates of full rank (KDA), and latent attention with a gate per head",
    "beam": "a bias per head in the gate behind the attention",
    "biogpt": "scaled embeddings with learned positions behind an offset",
    "bitnet": "norms inside the blocks, and ternary weights",
    "blt": "bytes in patches instead of tokens",
    "cohere_compass_text": "positions of images in every layer",
    "cpmant": "relative positions as biases of scores, and segments",
    "ctrl": "positions as sinusoids in the embedding",
    "dbrx": "sizes in parts of their own (attn_config, ffn_config)",
    "diffllama": "differences of two attentions",
    "doge": "masks that depend on the values",
    "dory": "normalized weights, and layers that run twice (nGPT)",
    "dots3_note_text": "latent attention with norms of rotated keys and a gate per head",
    "falcon_h1": "Mamba and attention side by side in a layer",
    "falcon_mamba": "Mamba blocks of the first generation",
    "gemma3n": "per-layer embeddings",
    "gemma3n_text": "per-layer embeddings",
    "gpt_neo": "local attention in every other layer by a pattern of its own (attention_types)",
    "gpt_neox_japanese": "a bias behind the last layers' attention alone",
    "hrm_text": "layers that run in cycles",
    "hy_v4": "sparse attention with an indexer (DSA) and hyper-connections",
    "hy_v4_vl_text": "sparse attention with an indexer (DSA) and hyper-connections",
    "inkling2_loop_text": "convolutions of keys, values and residuals, and relative positions",
    "inkling2_text": "convolutions of keys, values and residuals, and relative positions",
    "inkling_text": "convolutions of keys, values and residuals, and relative positions",
    "jamba": "Mamba blocks of the first generation",
    "jetmoe": "attention heads that are experts",
    "lfm2": "short convolutions instead of attention",
    "lfm2_moe": "short convolutions instead of attention",
    "lfm3": "short convolutions instead of attention",
    "longcat_flash": "experts without computation, and two attentions per layer",
    "mamba": "Mamba blocks of the first generation",
    "mistral_large4_text": "keys and values shared across layers with sparse attention (DSA)",
    "mllama_text_model": "cross-attention to images",
    "modernbert-decoder": "a first layer without a norm, and a dense layer in front of the head",
    "moshi": "a second decoder over the codebooks of sound",
    "mpt": "sizes in a part of its own (attn_config), and positions as biases of scores",
    "openai-gpt": "norms behind the blocks",
    "persimmon": "layer norms of queries and keys",
    "qwen4_exp_text": "hyper-connections of low rank, and embeddings of n-grams",
    "recurrent_gemma": "recurrent blocks (RG-LRU)",
    "reformer": "attention by hashes, and reversible layers",
    "rwkv": "recurrent blocks (RWKV)",
    "xglm": "positions as sinusoids in the embedding",
    "xlnet": "attention in permuted order",
    "xlstm": "recurrent blocks (xLSTM)",
    "zamba": "one attention block shared across layers",
    "zamba2": "one attention block shared across layers",
    "zaya": "convolutions of queries and keys, and a router of several layers",
}
"""Known families that are not modelled, and the reason for each."""

NOT_IN_A_ROW = ("changes", "refined", "text_part")
"""Fields of a family that are functions, or not its own."""


def family_from_row(row: Mapping[str, Any], where: str) -> tuple[str, Family]:
    """
    Build a family from plain data, and return it with the name of the known one that it is like.

    Parameters
    ----------
    row
        ``like``, the known family with the same layers, and the fields of :class:`Family` that differ. A switch is
        true, false, the key that turns it on, or this key and its default.
    where
        Dotted path of the row, for messages.

    >>> family_from_row({"like": "qwen3_moe", "sinks": "all", "qkv_bias": "use_bias"}, "model.family")[1].qkv_bias
    Switch(key='use_bias', default=False)
    """
    own = dict(row)
    name = own.pop("like", None)
    if not isinstance(name, str) or name not in FAMILIES:
        problem = "is required but missing." if name is None else f"unsupported family {shown(name)}."
        raise SpecError(f"{where}.like", problem, did_you_mean("" if name is None else str(name), FAMILIES))
    types, changed = get_type_hints(Family), dict[str, Any]()
    allowed = types.keys() - set(NOT_IN_A_ROW)
    for field_name, value in own.items():
        if field_name not in allowed:
            hint = did_you_mean(str(field_name), allowed)
            raise SpecError(f"{where}.{field_name}", "no such entry.", hint)
        if types[field_name] is Switch:
            value = (
                Switch("", value) if isinstance(value, bool) else [value, False] if isinstance(value, str) else value
            )
        try:
            changed[field_name] = adapter_of(types[field_name]).validate_python(value)
        except ValidationError as error:
            problem = f"got {shown(own[field_name])}: {error.errors()[0]['msg']}."
            raise SpecError(f"{where}.{field_name}", problem) from None
    return name, replace(FAMILIES[name], **changed)
