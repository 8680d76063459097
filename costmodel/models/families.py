"""
Families of Hugging Face configurations: facts that a ``model_type`` implies beyond its keys.

Entries of a ``config.json`` that contradict each other or the family are refused, or doubted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_type_hints

import yaml
from pydantic import ValidationError

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Attention, Experts, Indexer, LatentAttention, Layer, Model, Numerics
from costmodel.models.config_json import MAX_LAYERS, SPELLINGS, Config
from costmodel.record import adapter_of, record
from costmodel.validation import shown

Switch: TypeAlias = tuple[str, bool]
"""A flag: the key that sets it (empty: no key does) and its value without the key."""

OFF: Switch = ("", False)
ON: Switch = ("", True)

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser where PyYAML was built with it: ten times faster, the same result."""


class Period(NamedTuple):
    """
    A pattern: of each n layers one is full, the last, the first, or that at ``offset``; the others are of another kind.

    ``key`` and ``offset_key`` may set n and the place. With ``full_start`` the first layer of the model is full, too.
    """

    others: str
    key: str = ""
    default: int = 1
    starts_full: bool = False
    full_start: bool = False
    offset: int | None = None
    offset_key: str = ""

    def find_full(self, config: Config, *, num_layers: int) -> tuple[bool, ...]:
        """Return True for each full layer."""
        every = config.integer(self.key, at_least=1, default=self.default)
        place = self.offset if self.offset is not None else 0 if self.starts_full else every - 1
        place = config.integer(self.offset_key, at_most=every - 1, default=place)
        return tuple(n % every == place % every or (n == 0 and self.full_start) for n in range(num_layers))


class MambaKeys(NamedTuple):
    """
    Keys of a Mamba block; ``bias`` is that of its projections, ``expand`` its ``width`` over the hidden size.

    Blocks of the first generation have no heads, groups and chunks, but the rank of their steps.
    """

    num_heads: str = "mamba_num_heads"
    head_dim: str = "mamba_head_dim"
    state_size: str = "ssm_state_size"
    num_groups: str = "n_groups"
    conv_kernel: str = "conv_kernel"
    chunk_size: str = "chunk_size"
    bias: str = "use_bias"
    conv_bias: str = "use_conv_bias"
    expand: str = ""
    width: str = ""
    step_rank: str = "time_step_rank"


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
        Mixer of ``linear_attention`` in ``layer_types``, which is linear in the sequence; None: not allowed.
    beside
        True if each layer has a Mamba block in parallel to its attention (Falcon-H1).
    experts
        True if the feed-forward blocks are mixtures of experts unless the pattern says otherwise.
    tied, gated, squared_relu, norm, num_norms
        Fields of :class:`costmodel.facts.model.Model`, ``Layer`` and ``Mlp``.
    ties
        False if the class ties nothing, whatever ``tie_word_embeddings`` says.
    expert_norms
        Norms that layers with experts have more.
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
        Name in ``CHANGES`` of the keys that layers of one kind of attention have otherwise.
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
    kind_names
        Words in ``layer_types`` besides the usual ones, and the kinds that they mean.
    full_layers
        Key of a list of the layers with full attention, which counts from 0.
    expert_period
        Pattern of layers with experts, for which ``full`` stands in it; None: by the usual keys.
    renames
        Keys that stand for usual ones; a dot leads into a part of the configuration, as in ``attn_config.kv_n_heads``.
    scales
        Keys of factors and switches of scaling, which :attr:`costmodel.facts.model.Model.extras` names.
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
    mamba_norm
        Key that turns on the norm after its gate.
    scan_norms
        Norms of a Mamba block of the first generation, as in :class:`costmodel.facts.model.SelectiveScan`.
    mamba_chunk
        Tokens of a chunk of its recurrence if the key is absent.
    kv_heads
        Number of key-value heads if no key gives it; None: a key does.
    dense_width, ffn_width
        Key of the width of dense feed-forward blocks, if it is not the usual one; the width itself, if no key says it.
    activation_weights
        As in :class:`costmodel.facts.model.Mlp`.
    mtp_attention, mtp_dense
        Kind of attention of layers of multi-token prediction that no list names, if it is not the last layer's; True if
        their feed-forward blocks are dense.
    head_bias
        Key that turns :attr:`costmodel.facts.model.Model.head_bias` on.
    final_norm
        Norm in front of the head, if it is not that of the layers.
    embedding_norm
        As in :class:`costmodel.facts.model.Model`.
    extras
        As in :class:`costmodel.facts.model.Model`.
    text_part
        True if its configuration is of a multimodal model, of which only the text part is read.
    reads
        Keys of ``REFUSED`` that its reader supports, and ``moe_layer_freq`` if its class reads the number.
    plain
        Supported values of keys, and the meaning of any other value; a text may be the key of the value.
    refined
        Name in ``REFINEMENTS`` of the fields of the family that follow from a configuration.
    """

    latent: bool = False
    indexer: Literal["none", "keys", "blocks"] = "none"
    compressed: bool = False
    ignores: tuple[str, ...] = ()
    linear: Literal["lightning", "gated_delta", "kda", "mamba", "selective_scan", "short_convolution"] | None = None
    beside: bool = False
    experts: bool = False
    tied: bool = False
    ties: bool = True
    gated: bool = True
    squared_relu: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    num_norms: int = 2
    expert_norms: int = 0
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
    changes: str = ""
    head_dim: int | None = None
    multi_head: bool = False
    ffn_multiple: int | None = None
    expert_width: str = "moe_intermediate_size"
    num_shared: int | None = 0
    first_dense: int | None = 0
    window: int | None = None
    window_size: int = 0
    chunk: int | None = None
    window_switch: bool = False
    period: Period | None = None
    kind_names: Mapping[str, str] = field(default_factory=dict)
    full_layers: str = ""
    expert_period: Period | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    scales: tuple[str, ...] = ()
    lists_kinds: bool = False
    parallel_blocks: Switch = OFF
    learned_positions: tuple[str, int] | None = None
    rotary: bool = True
    rotary_windows: bool = False
    no_rotary: bool = False
    single_blocks: bool = False
    pattern: str = ""
    mamba: MambaKeys | None = None
    mamba_norm: Switch = ON
    scan_norms: Literal["none", "plain", "weighted"] = "none"
    mamba_chunk: int = 128
    kv_heads: int | None = None
    dense_width: str = ""
    ffn_width: int = 0
    activation_weights: int = 0
    mtp_attention: str = ""
    mtp_dense: bool = False
    head_bias: Switch = OFF
    final_norm: Literal["rms", "layer", "none"] | None = None
    embedding_norm: bool = False
    extras: str = ""
    text_part: bool = False
    reads: tuple[str, ...] = ()
    plain: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    refined: str = ""


def _falcon(config: Config) -> dict[str, Any]:
    """Return the fields of a Falcon generation (transformers, ``FalconDecoderLayer`` and ``FalconAttention``)."""
    is_new, parallel = (
        config.flag("new_decoder_architecture"),
        config.flag("parallel_attn", True),
    )
    one_head = config.flag("multi_query", True)
    heads = config.count("num_heads")
    norms = config.integer("num_ln_in_parallel_attn", at_least=1, at_most=2, default=2 if is_new else 1)
    alibi = config.flag("alibi")
    return {
        "kv_heads": config.count("num_kv_heads", default=heads) if is_new else 1 if one_head else heads,
        "num_norms": norms if parallel else 2,
        "parallel_blocks": ("", is_new or parallel),
        "rotary": not alibi,
        "extras": ALIBI if alibi else "",
    }


def _granite_hybrid(config: Config) -> dict[str, Any]:
    """Return the fields of Granite 4: without routed experts the shared one is the feed-forward."""
    return {
        "experts": config.mapping.get("num_local_experts") != 0 and config.integer("shared_intermediate_size") >= 0,
        "rotary": config.mapping.get("position_embedding_type") == "rope",
    }


def _hyperclovax(config: Config) -> dict[str, Any]:
    """Return the fields of HyperCLOVA X, which may have a norm after each block."""
    return {"num_norms": 4 if config.flag("use_post_norm", True) else 2}


def _falcon_h1(config: Config) -> dict[str, Any]:
    """Check the biases of Falcon-H1's Mamba blocks, and that their width is said."""
    config.integer("mamba_d_ssm" if config.mapping.get("mamba_d_ssm") is not None else "mamba_expand", at_least=1)
    if config.flag("projectors_bias") != config.flag("mamba_proj_bias"):
        raise config.error("projectors_bias", "means a bias after only one of the projections, which is not modelled.")
    return {}


def _jamba(config: Config) -> dict[str, Any]:
    """Return the fields of Jamba, whose layers with one expert are dense, without a router."""
    is_dense = config.count("num_experts", default=2) == 1
    return {"expert_period": None, "first_dense": MAX_LAYERS} if is_dense else {}


def _lfm2(config: Config) -> dict[str, Any]:
    """Return the feed-forward width of LFM2: two thirds of its key, times a factor, rounded up to a multiple."""
    width = config.count("ffn_hidden_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return {"ffn_width": width}
    factor = config.mapping.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return {"ffn_width": 2 * width // 3}
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 100:
        raise config.error("block_ffn_dim_multiplier", f"must be above 0 and at most 100, got {shown(factor)}.")
    multiple = config.integer("block_multiple_of", at_least=1, default=256)
    return {"ffn_width": -(-int(factor * (2 * width // 3)) // multiple) * multiple}


def _stablelm(config: Config) -> dict[str, Any]:
    """Return the fields of StableLM, whose parallel blocks share one norm."""
    return {"num_norms": 1 if config.flag("use_parallel_residual") else 2}


def _gpt_bigcode(config: Config) -> dict[str, Any]:
    """Return the fields of GPT-BigCode (StarCoder): one key head, or as many as query heads."""
    return {"kv_heads": 1 if config.flag("multi_query", True) else config.count("num_heads")}


def _olmo_hybrid(config: Config) -> dict[str, Any]:
    """Return the fields of OLMo's hybrid, which does not rotate if the base of its rotation is null."""
    rope = config.mapping.get("rope_parameters")
    return {"rotary": (rope if isinstance(rope, Mapping) else config.mapping).get("rope_theta", 0) is not None}


def _ministral3(config: Config) -> dict[str, Any]:
    """Return the fields of Ministral 3, which may scale queries by their position."""
    rope = config.mapping.get("rope_parameters", {"llama_4_scaling_beta": 0.1})
    scaled = isinstance(rope, Mapping) and rope.get("llama_4_scaling_beta")
    return {"extras": "queries scaled by their position" if scaled else ""}


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
    """Return the note on DeepSeek-V4's first layers, whose experts a fixed table chooses (default: 3 layers)."""
    listed = config.items("mlp_layer_types")
    hashed = config.integer("num_hash_layers", default=3) if listed is None else listed.count(EXPERT_KINDS[0])
    return {"extras": f"experts of {hashed} layers chosen by a table" if hashed else ""}


def _gemma4(config: Config) -> dict[str, Any]:
    """Return the fields of Gemma 4: with experts, each in parallel to a dense block, and three more norms."""
    if config.mapping.get("model_type") != "gemma4_unified_text":
        config.integer("hidden_size_per_layer_input")  # the class has 256 without the key
    if config.mapping.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error("use_bidirectional_attention", "means attention to later tokens, which is not modelled.")
    has_experts = config.flag("enable_moe_block")
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
    """Return the fields of MiMo-V2, whose window has the query and ``sliding_window_size`` earlier tokens."""
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

REFINEMENTS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "cohere2_moe": _cohere2_moe,
    "deepseek_v4": _deepseek_v4,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "flint": _flint,
    "gemma4": _gemma4,
    "gpt_bigcode": _gpt_bigcode,
    "granite_hybrid": _granite_hybrid,
    "hyperclovax": _hyperclovax,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "mimo_v2": _mimo_v2,
    "ministral3": _ministral3,
    "olmo_hybrid": _olmo_hybrid,
    "stablelm": _stablelm,
}
"""Fields of a family that follow from a configuration, by the name in ``refined``."""

CHANGES: dict[str, Callable[[Config, str], dict[str, Any]]] = {
    "gemma4": _gemma4_changes,
    "mimo_v2": _mimo_v2_changes,
    "step": _step_changes,
}
"""Keys that layers of one kind of attention have otherwise, by the name in ``changes``."""

_TABLE: Mapping[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), Loader=LOADER)

FAMILIES: Mapping[str, Mapping[str, Any]] = _TABLE["families"]
"""Row of every supported ``model_type``; checked against the classes of transformers 5 (tests/oracle)."""

REFUSED: Mapping[str, str] = _TABLE["refused_keys"]
"""Keys that change the architecture to one that is not modelled; null, false, 0 and empty leave it unchanged."""

SINGLE_BLOCK_KEYS: Mapping[str, str] = _TABLE["single_block_keys"]
"""Keys that only families with layers of one block may have."""

TEXT_PARTS: Mapping[str, str] = _TABLE["text_parts"]
"""Multimodal families, and names of their text parts, by the family of the text part."""

PART_DEFAULTS: Mapping[str, Mapping[str, int]] = _TABLE["part_defaults"]
"""Sizes of the configuration classes, which transformers leaves out of the text part of a multimodal file."""

UNMODELLED: Mapping[str, str] = _TABLE["unmodelled"] | dict.fromkeys(_TABLE["encoders"], "an encoder, or is one")
"""Known families that are not modelled, and the reason for each."""

NUMERICS: Mapping[str, Mapping[str, Any]] = _TABLE["numerics"]
"""Facts of each family's classes that change no cost, besides those of Llama's."""

NOT_IN_A_JOB = ("changes", "refined", "text_part")
"""Fields of a family that name functions, or that are not its own."""


@cache
def find_family(name: str) -> Family:
    """Return a supported family."""
    row = dict(FAMILIES[name])
    base = find_family(row.pop("like")) if "like" in row else Family()
    return _change_family(base, row, f"families.{name}")


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
    ('use_bias', False)
    """
    own = dict(row)
    name = own.pop("like", None)
    if not isinstance(name, str) or name not in FAMILIES:
        problem = "is required but missing." if name is None else f"unsupported family {shown(name)}."
        raise SpecError(f"{where}.like", problem, did_you_mean("" if name is None else str(name), FAMILIES))
    return name, _change_family(find_family(name), own, where, NOT_IN_A_JOB)


def _change_family(base: Family, row: Mapping[str, Any], where: str, without: Collection[str] = ()) -> Family:
    """Return a family with the fields of a row, which are checked."""
    types, changed = get_type_hints(Family), dict[str, Any]()
    allowed = types.keys() - {*without}
    for name, value in row.items():
        if name not in allowed:
            raise SpecError(f"{where}.{name}", "no such entry.", did_you_mean(str(name), allowed))
        if types[name] == Switch and isinstance(value, bool | str):
            value = ("", value) if isinstance(value, bool) else (value, False)
        try:
            changed[name] = adapter_of(types[name]).validate_python(value)
        except ValidationError as error:
            problem = f"got {shown(row[name])}: {error.errors()[0]['msg']}."
            raise SpecError(f"{where}.{name}", problem) from None
    return replace(base, **changed)


SAME = (
    ("n_group", "num_expert_group"),
    ("linear_num_heads", "linear_attn_config.num_heads"),
    ("linear_head_dim", "linear_attn_config.head_dim"),
    ("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"),
    ("index_n_heads", "sparse_attention_config.sparse_num_index_heads"),
    ("index_head_dim", "sparse_attention_config.sparse_index_dim"),
    ("index_block_size", "sparse_attention_config.sparse_block_size"),
    ("index_topk_blocks", "sparse_attention_config.sparse_topk_blocks"),
    ("num_sliding_attention_heads", "attention_other_setting.num_attention_heads"),
    ("rope_theta", "rope_parameters.rope_theta"),
    ("head_dim", "attention_head_dim"),
)
"""Pairs of entries with one meaning, besides the spellings of a concept; a dot leads into a part."""

LAYER_COUNTS = (*SPELLINGS["first_dense"], "num_hash_layers")
"""Entries that count some of the layers."""

LAST_LAYERS = ("moe_layer_end_index",)
"""Entries with the number of a last layer, from 0."""


def refuse_contradictions(config: Config) -> None:
    """
    Raise if two entries give one fact two values.

    Raises
    ------
    SpecError
        With the first entry, its value, and the other entry with its value.
    """
    for key, other in SAME:
        values = [_look_up(config.mapping, one) for one in (key, other)]
        if None not in values and values[0] != values[1]:
            problem = f"is {shown(values[0])}, but '{other}' is {shown(values[1])}, and they mean the same."
            raise config.error(key, problem)


def _look_up(mapping: object, path: str) -> Any:
    for part in path.split("."):
        mapping = mapping.get(part) if isinstance(mapping, Mapping) else None
    return mapping


def refuse_wide_indexer(
    indexer: Indexer, heads: tuple[Config, str], width: tuple[Config, str], *, num_heads: int, head_dim: int
) -> Indexer:
    """
    Return an indexer; raise if it has more or wider heads than the attention whose keys it chooses.

    Its scores stand in for those of the attention (DeepSeek-V3.2, section 2.1), which are cheaper if it is no smaller.
    """
    for (config, key), parts, own, most in (
        (heads, "attention heads", indexer.num_heads, num_heads),
        (width, "channels of an attention head's query", indexer.head_dim, head_dim),
    ):
        if own > most:
            raise config.error(key, f"must be at most the {most} {parts}, got {own}.")
    return indexer


def refuse_odd_rotations(config: Config, layers: Collection[Layer], numerics: Numerics) -> None:
    """Raise if attention rotates an odd number of channels, which no class can: they are rotated in pairs."""
    for mixer in (layer.attention for layer in layers):
        if not isinstance(mixer, Attention | LatentAttention) or not mixer.rotary:
            continue
        if isinstance(mixer, LatentAttention):
            key, width, rotated = "qk_rope_head_dim", mixer.qk_rope_head_dim, mixer.qk_rope_head_dim
        else:
            rotary = (mixer.window and numerics.windowed_rotary) or numerics.rotary
            stated = config.mapping.get("head_dim") is not None
            key = "head_dim" if stated else config.list_spellings("hidden_size")[0]
            width, fraction = mixer.head_dim, rotary.fraction if rotary and rotary.fraction is not None else 1.0
            rotated = int(round(width * fraction, 6))
        if rotated % 2:
            raise config.error(
                key, f"rotates {rotated} of the {width} channels of a head, which must be an even number."
            )


def doubt_layers(config: Config, *, num_layers: int) -> Iterator[str]:
    """Yield the doubts about counts and numbers of layers beyond the model's, which classes ignore."""
    for key in (*LAYER_COUNTS, *LAST_LAYERS):
        entry = config.mapping.get(key)
        if isinstance(entry, int) and entry > num_layers - (key in LAST_LAYERS):
            yield f"{config.where}.{key} is {entry}, but the model has {num_layers} layers"


def doubt_widths(config: Config, family: Family) -> Iterator[str]:
    """Yield the doubts about widths, heads and numbers of layers that contradict the ones that are read."""
    hidden, other = config.count("hidden_size"), _look_up(config.mapping, "ffn_config.hidden_size")
    if other not in (None, hidden):
        yield f"{config.where}.ffn_config.hidden_size is {shown(other)}, but the model is {hidden} wide, which is read"
    keys = family.mamba or MambaKeys()
    width, factor = config.mapping.get(keys.width), config.mapping.get(keys.expand)
    product = factor * hidden if isinstance(factor, int) and family.linear == "selective_scan" else width
    if width not in (None, product):
        said = f"{keys.expand} times hidden_size is {product}"
        yield f"{config.where}.{keys.width} is {width}, which is read, but {said}"
    if not family.ties and config.flag("tie_word_embeddings"):
        yield f"{config.where}.tie_word_embeddings is true, but transformers' class ties nothing, which is read"
    written, number = "mtp_hybrid_override_pattern", config.list_spellings("mtp_layers")[0]
    if family.single_blocks and config.mapping.get(written) and config.mapping.get(number) == 0:
        yield f"{config.where}.{number} is 0, which is read, but {written} is {shown(config.mapping[written])}"


def doubt_experts(config: Config, family: Family, layers: Sequence[Layer]) -> Iterator[str]:
    """Yield the doubts about experts that no layer has, and about keys that the class of a known family ignores."""
    blocks = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, Experts)]
    if not family.experts or "family" in config.mapping:
        return
    if not blocks:
        stated = config.count("num_experts", default=1)
        if stated > 1 and not any(doubt_layers(config, num_layers=len(layers))):
            yield f"{config.where}.{config.list_spellings('num_experts')[0]} is {stated}, but no layer has experts"
        return
    experts, step = blocks[0], "interleave_moe_layer_step"
    if config.mapping.get("moe_layers") and config.mapping.get(step) == 1 and len(blocks) < len(layers):
        named = f"names {len(blocks)} of {len(layers)} layers"
        yield f"{config.where}.{step} is 1, but 'moe_layers', which is read, {named}"
    period = config.mapping.get(key := "moe_layer_freq")
    if type(period) is int and period > 1 and key not in family.reads:
        yield f"{config.where}.{key} is {period}, which is read, but transformers' class ignores it"
    width, usual = experts.ffn_hidden_size, "moe_intermediate_size"
    if family.expert_width != usual and config.integer(usual, default=width) != width:
        named = f"{family.expert_width}, which is read, is {width}"
        yield f"{config.where}.{usual} is {config.integer(usual)}, but {named}"
    if family.shared_gate or family.shared_width or family.single_blocks:
        return
    shared, (number, *_) = experts.shared_ffn_hidden_size, config.list_spellings("num_shared")
    counted = config.count("num_shared", default=0, at_least=0) * experts.ffn_hidden_size
    if counted and counted != shared:
        key = config.list_spellings("shared_ffn_hidden_size")[0]
        yield f"{config.where}.{key} is {shared}, which is read, but the experts of {number} are {counted} wide"


SIZES = re.compile(r"size|dim|rank|head|layer|expert|moe|width|bias|residual|interleav")
"""Parts of keys that may decide a size."""

NO_SIZES = re.compile(r"max_|fp32|rescale|token|position|overlap|loss|router|image|vision|audio|scal|_tp$|^ep_size$")
"""Parts of keys that decide none."""


def _texts(value: object) -> Iterator[str]:
    """Yield all texts within plain data, keys of mappings among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in (*value, *(value.values() if isinstance(value, Mapping) else ())):
            yield from _texts(one)


@cache
def _keys_of_families() -> frozenset[str]:
    """Return keys that some known family has: files hold more of them than their own classes read."""
    return frozenset(_texts((_TABLE, SPELLINGS, SAME, MambaKeys())))


def doubt_unread(config: Config, read: Callable[[Mapping[str, Any]], Model], ignored: Collection[str]) -> str:
    """
    Return the doubt about keys that may decide a size, and that the family does not read; empty: none.

    A key is read if no model, or another one, is built with something else in its place.
    """
    is_described = config.mapping.get("family") is not None
    ignored = ignored if is_described else {*ignored, *_keys_of_families()}
    sized = [key for key in config.mapping if SIZES.search(key) and not NO_SIZES.search(key) and key not in ignored]
    stated = [key for key in sized if _may_decide(config.mapping[key])]
    model = read(config.mapping) if stated else None
    found = [key for key in stated if model and _is_unread(config, key, read, model)]
    values = ", ".join(f"{key} ({shown(config.mapping[key])})" for key in found)
    which = "that is described" if is_described else shown(config.mapping["model_type"])
    return f"not read by the family {which}: {values}" if found else ""


def _may_decide(value: object) -> bool:
    return value is True or (type(value) is int and value > 1) or (isinstance(value, list | Mapping) and bool(value))


def _is_unread(config: Config, key: str, read: Callable[[Mapping[str, Any]], Model], model: Model) -> bool:
    try:
        return read({**config.mapping, key: object()}) == model
    except (SpecError, TypeError, ValueError):
        return False


CLASS = re.compile(r"(\w+?)(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)?")


def doubt_architecture(mapping: Mapping[str, Any]) -> str:
    """Return the doubt about a class of another family than ``model_type``, which decides; empty: none."""
    classes, family = mapping.get("architectures"), mapping.get("model_type")
    if not isinstance(classes, list | tuple) or not isinstance(family, str) or "family" in mapping:
        return ""
    known = {_letters(name): name for name in (*FAMILIES, *TEXT_PARTS, *UNMODELLED)}
    for one in classes:
        found = CLASS.fullmatch(str(one))
        other = known.get(_letters(found[1])) if found else None
        if other is not None and _layers_of(other) != _layers_of(family):
            return f"architectures is {shown(one)}, but model_type is {shown(family)}, which is read"
    return ""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _layers_of(name: str) -> object:
    """Return the family's facts, equal for one that only renames another; a name that is not known as itself."""
    name = TEXT_PARTS.get(name, name)
    return find_family(name) if name in FAMILIES else name


def doubt_tied_embeddings(whole: Mapping[str, Any], part: Mapping[str, Any], where: str, key: str) -> str:
    """Return the doubt about embeddings that are tied in the text part, which is read, or around it alone."""
    inner, outer = part.get("tie_word_embeddings"), whole.get("tie_word_embeddings")
    if None in (inner, outer) or inner == outer:
        return ""
    entry = "tie_word_embeddings"
    return f"{where}.{key}.{entry} is {shown(inner)}, which is read, but {where}.{entry} is {shown(outer)}"
