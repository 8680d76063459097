"""Read a Hugging Face ``config.json``: one reader of all families, which names unsupported entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import (
    Attention,
    CompressedAttention,
    Experts,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Mlp,
    Model,
    SelectiveScan,
    ShortConvolution,
)
from costmodel.models.config_json import (
    MAX_COUNT,
    MAX_LAYERS,
    SPELLINGS,
    WIDTHS,
    Config,
    refuse_impossible_sizes,
)
from costmodel.models.families import (
    CHANGES,
    EXPERT_KINDS,
    FAMILIES,
    PART_DEFAULTS,
    REFINEMENTS,
    REFUSED,
    SINGLE_BLOCK_KEYS,
    TEXT_PARTS,
    UNMODELLED,
    Family,
    MambaKeys,
    doubt_architecture,
    doubt_experts,
    doubt_layers,
    doubt_tied_embeddings,
    doubt_unread,
    doubt_widths,
    family_from_row,
    find_family,
    refuse_contradictions,
    refuse_odd_rotations,
    refuse_wide_indexer,
)
from costmodel.models.numerics import read_numerics
from costmodel.models.patterns import LETTERS, MTP_PATTERN, Block, join_blocks, single_blocks
from costmodel.validation import shown

ROTATED = ("full_attention", "sliding_attention")
"""Kinds of attention that every family may list."""


def _snapshots(config: Config, *, num_layers: int) -> int:
    """Return the mean number of snapshots of the residual that a layer reads: one more from each n-th layer on."""
    every = config.integer("attn_res_block_size", default=0)
    return round(sum(index // every + 1 for index in range(num_layers)) / num_layers) if every else 0


Changes: TypeAlias = tuple[tuple[str, Any], ...]
"""Keys that a layer has otherwise than its model, with their values."""

CHANGED = ("head_dim", "num_attention_heads", "num_key_value_heads")
"""Keys that ``per_layer_config`` may change."""

PER_LAYER = "num_attention_heads_per_layer"
"""Key of a list of query heads (Laguna)."""

NUMBERED_KINDS = {
    "attn_type_list": {0: "linear_attention", 1: "full_attention"},
    "hybrid_layer_pattern": {0: "full_attention", 1: "sliding_attention"},
}
"""Lists of a number per layer, and the kinds of attention that the numbers mean."""

INDEXED, SHARED_INDEX = "indexed_attention", "shared_index"
"""Kinds of attention whose keys an indexer chooses: the layer's own, or that of an earlier layer."""

BLOCK_LETTERS = {name: letter for letter, name in LETTERS.items()} | {
    "linear_attention": "M",
    "full_attention": "*",
    "moe": "E",
}
"""Names of single blocks in ``layers_block_type``; transformers 5 renamed mamba and attention."""

BLOCK_LISTS = ("layers_block_type", "layer_types")
"""Keys of a list of single blocks, which mean the same (``attribute_map`` of transformers' ``NemotronHConfig``)."""


def model_from_config(
    mapping: Mapping[str, Any], where: str = "model", name: str = "", source: str = "config.json"
) -> Model:
    """
    Build a model from a Hugging Face configuration.

    Keys that do not concern the architecture are ignored. For a multimodal configuration, only the text part is read
    and belongs to the model.

    Parameters
    ----------
    mapping
        The configuration, as read from JSON or YAML.
    where
        Dotted path of the mapping, for messages.
    name
        Name of the model; empty: the name of its family.
    source
        Source of the configuration.

    Raises
    ------
    SpecError
        If a key is missing, ill-typed or impossible, or the model is of an unsupported kind.

    Examples
    --------
    >>> sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 1000}
    >>> model_from_config({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, **sizes}).num_layers
    2
    """
    model = _read_model(mapping, where, name, source)
    config = _text_config(mapping, where)
    _, _, family = _family(config)
    unnamed = doubt_unread(config, lambda changed: _read_model(changed, where, name, source), family.ignores)
    return replace(model, doubts="; ".join(filter(None, (model.doubts, unnamed))))


def _read_model(mapping: Mapping[str, Any], where: str, name: str, source: str) -> Model:
    config = _text_config(mapping, where)
    refuse_impossible_sizes(config)
    config, family_name, family = _family(config)
    config = Config({key: value for key, value in config.mapping.items() if key not in family.ignores}, config.where)
    scaled = [key for key in family.scales if not _is_one(config, key)]
    _refuse_unmodelled(config, family_name, family)
    refuse_contradictions(config)
    _refuse_impossible_heads(config, family)
    _refuse_impossible_groups(config, family)
    layers = _layers(config, family)
    numerics = read_numerics(config, family_name, dict.fromkeys(layers))
    refuse_odd_rotations(config, dict.fromkeys(layers), numerics)
    positions, more = family.learned_positions or ("", 0)
    ignored = (*doubt_layers(config, num_layers=len(layers)), *doubt_experts(config, family, layers))
    doubts = (*_doubt_parts(mapping, where), *ignored, *doubt_widths(config, family))
    return Model(
        name=name or family_name,
        source=source,
        family=family_name,
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        layers=layers,
        tied_embeddings=config.flag("tie_word_embeddings", family.tied) and family.ties,
        mtp_layers=_mtp_layers(config, family, layers),
        learned_positions=config.integer(positions, at_least=1) + more if positions else 0,
        final_norm=family.final_norm or family.norm,
        head_bias=config.flag(*family.head_bias),
        embedding_norm=family.embedding_norm,
        extras=", ".join(filter(None, (family.extras, f"scales of {', '.join(scaled)}" if scaled else None))),
        doubts="; ".join(filter(None, doubts)),
        is_text_part=family.text_part or any(key in mapping for key in OTHER_PARTS),
        numerics=numerics,
    )


TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the text part: of transformers, of InternVL and Nemotron's, of DeepSeek's and Janus', of Qwen's Omni."""

OTHER_PARTS = (*TEXT_KEYS, "vision_config", "audio_config")
"""Keys of a configuration outside its text part."""


def _doubt_parts(mapping: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield the doubts about a configuration and its text part: their class, and embeddings that one of them ties."""
    yield doubt_architecture(mapping)
    key = next((key for key in TEXT_KEYS if isinstance(mapping.get(key), Mapping)), None)
    if key is not None:
        yield doubt_tied_embeddings(mapping, mapping[key], where, key)
        yield from _doubt_parts(mapping[key], f"{where}.{key}")


def _text_config(mapping: object, where: str) -> Config:
    """Return the configuration itself, or the text part of a multimodal one with the keys it inherits."""
    if not isinstance(mapping, Mapping):
        raise SpecError(where, f"expected a mapping, got {shown(mapping)}.")
    whole = Config(mapping, where)
    keys = [key for key in TEXT_KEYS if mapping.get(key) is not None]
    if not keys:
        return whole
    if len(keys) > 1:
        raise whole.error(keys[1], f"is a text part, as is '{keys[0]}'; a model has one.")
    text = mapping[keys[0]]
    if not isinstance(text, Mapping):
        raise whole.error(keys[0], f"expected a mapping, got {shown(text)}.")
    inherited = {key: mapping[key] for key in ("model_type", "tie_word_embeddings") if key in mapping}
    written = {**inherited, **text}
    part = Config({**_class_sizes(written), **written}, f"{where}.{keys[0]}")
    _refuse_contradictions(whole, part)
    return _text_config(part.mapping, part.where)


def _class_sizes(text: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of a text part that equal its class's, which transformers does not write."""
    sizes = PART_DEFAULTS.get(str(text.get("model_type")), {})
    written = {key for keys in SPELLINGS.values() if any(key in text for key in keys) for key in keys}
    return {key: size for key, size in sizes.items() if key not in written and key not in text}


def _refuse_contradictions(whole: Config, part: Config) -> None:
    """Raise if a size that stands around the text part is another one than within it."""
    widths = [(key,) for key in whole.mapping if str(key).endswith(WIDTHS)]
    for spellings in (*SPELLINGS.values(), *widths):
        inner = next((key for key in spellings if part.mapping.get(key) is not None), None)
        for key in spellings:
            outer = whole.mapping.get(key)
            if inner is not None and outer is not None and outer != part.mapping[inner]:
                problem = f"is {shown(part.mapping[inner])}, but '{whole.where}.{key}' is {shown(outer)}."
                raise part.error(inner, problem)


FAMILY = "family"
"""Entry of a configuration that describes a family which is not known."""

DESCRIBED = "Or describe it by a known one: model: {base: FILE, family: {like: NAME}} (docs/your_model.md)."


def _is_one(config: Config, key: str) -> bool:
    """Return True if a key of scaling scales nothing: absent, off, one, or ones."""
    said = config.mapping.get(key)
    factors = said if isinstance(said, list | tuple) else [said]
    if not all(one is None or isinstance(one, int | float) for one in factors):
        raise config.error(key, f"expected a number, numbers, true or false, got {shown(said)}.")
    return all(one is not True and one in (None, False, 1) for one in factors)


def _family(config: Config) -> tuple[Config, str, Family]:
    """Return the configuration with the usual keys, its family's name, and the family as the configuration has it."""
    name = config.mapping.get("model_type")
    if name is None:
        raise config.error("model_type", "is required but missing.", "Write its family, such as llama.")
    if not isinstance(name, str):
        raise config.error("model_type", f"expected text, got {shown(name)}.")
    row = config.mapping.get(FAMILY)
    if row is not None:
        if not isinstance(row, Mapping):
            raise config.error(FAMILY, f"expected a mapping, got {shown(row)}.")
        _, family = family_from_row(row, f"{config.where}.{FAMILY}")
        return _refine(config, name, family)
    if name in UNMODELLED:
        raise config.error("model_type", f"'{name}' has {UNMODELLED[name]}, which is not modelled.")
    name = TEXT_PARTS.get(name, name)
    if name not in FAMILIES:
        hint = " ".join(filter(None, (did_you_mean(name, FAMILIES), DESCRIBED)))
        raise config.error("model_type", f"unsupported family {shown(name)}.", hint)
    return _refine(config, name, find_family(name))


def _refine(config: Config, name: str, family: Family) -> tuple[Config, str, Family]:
    config = _rename_keys(config, family)
    return config, name, replace(family, **REFINEMENTS[family.refined](config)) if family.refined else family


def _rename_keys(config: Config, family: Family) -> Config:
    """Return the configuration with usual keys in place of the family's own; two that contradict each other raise."""
    changed = dict(config.mapping)
    for own, usual in family.renames.items():
        value: Any = config.mapping
        for part in own.split("."):
            if value is not None and not isinstance(value, Mapping):
                raise config.error(own.partition(".")[0], f"expected a mapping, got {shown(value)}.")
            value = None if value is None else value.get(part)
        if value is not None and changed.get(usual) not in (None, value):
            raise config.error(own, f"is {shown(value)}, but '{usual}' is {shown(changed[usual])}.")
        changed |= {} if value is None else {usual: value}
    return Config(changed, config.where)


def _refuse_unmodelled(config: Config, family_name: str, family: Family) -> None:
    refused = REFUSED if family.single_blocks else {**REFUSED, **SINGLE_BLOCK_KEYS}
    for key, what in refused.items():
        if config.mapping.get(key) and key not in family.reads and key not in (family.mamba or ()):
            raise config.error(key, f"asks for {what}, which is not modelled, got {shown(config.mapping[key])}.")
    for key in SPELLINGS["num_experts"]:
        if config.mapping.get(key) not in (None, 0, 1) and not family.experts:
            raise config.error(key, f"the family '{family_name}' has no experts, got {shown(config.mapping[key])}.")
    if config.mapping.get("kv_lora_rank") and not family.latent:
        raise config.error("kv_lora_rank", f"the family '{family_name}' has no latent attention.")
    for key, (plain, what) in family.plain.items():
        usual = config.mapping.get(plain, plain) if isinstance(plain, str) else plain
        if (value := config.mapping.get(key, usual)) not in (None, usual):
            raise config.error(key, f"means {what}, which is not modelled, got {shown(value)}.")
    if family.experts and config.flag("mlp_bias"):
        raise config.error("mlp_bias", f"biases of the feed-forward are not modelled for '{family_name}', got true.")


def _refuse_impossible_heads(config: Config, family: Family) -> None:
    """Raise if latent attention has another width of heads than its parts, or fewer keys than queries."""
    if not family.latent:
        return
    whole = config.mapping.get("qk_head_dim")
    parts = sum(config.integer(key, at_least=1) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    if whole not in (None, parts):
        problem = f"is {shown(whole)}, but 'qk_nope_head_dim' and 'qk_rope_head_dim' together are {parts}."
        raise config.error("qk_head_dim", problem)
    for key in SPELLINGS["num_kv_heads"]:
        if config.mapping.get(key) is not None and config.integer(key, at_least=1) != config.count("num_heads"):
            heads = config.count("num_heads")
            problem = f"must be the {heads} attention heads of a latent attention, got {config.mapping[key]}."
            raise config.error(key, problem)


def _refuse_impossible_groups(config: Config, family: Family) -> None:
    """Raise if a router's groups do not divide its experts, or the chosen ones hold too few."""
    keys = ("n_group", "num_expert_group")
    groups = next((config.integer(key, at_least=0) for key in keys if config.mapping.get(key) is not None), 0)
    if groups <= 1 or not family.experts:
        return
    num_experts, key = config.count("num_experts"), next(key for key in keys if config.mapping.get(key) is not None)
    if num_experts % groups:
        raise config.error(key, f"must divide the {num_experts} experts, got {groups}.")
    top_k = _top_k(config, num_experts=num_experts)
    chosen = config.integer("topk_group", at_least=1, at_most=groups, default=groups)
    if chosen * num_experts // groups < top_k:
        problem = f"chooses {chosen} of {groups} groups of {num_experts // groups} experts, fewer than a token visits."
        raise config.error("topk_group", problem)


def _top_k(config: Config, *, num_experts: int) -> int:
    """Return the number of experts that a token visits; more than there are raise."""
    if (top_k := config.count("top_k")) > num_experts:
        key = config.list_spellings("top_k")[0]
        raise config.error(key, f"must be at most the {num_experts} experts, got {top_k}.")
    return top_k


# --- layers --------------------------------------------------------------------------------------------------


def _layers(config: Config, family: Family) -> tuple[Layer, ...]:
    if family.single_blocks and not family.pattern:
        letters, key = _pattern(config, BLOCK_LISTS, "hybrid_override_pattern")
        blocks = _single_blocks(config, family, letters, key)
        stated = config.count("num_layers", default=len(blocks), at_most=MAX_LAYERS)
        if stated != len(blocks):
            other = config.list_spellings("num_layers")[0]
            raise config.error(key, f"names {len(blocks)} layers, but '{other}' is {stated}.")
        return blocks
    num_layers = config.count("num_layers", at_most=MAX_LAYERS)
    if family.pattern:
        return _single_blocks(config, family, family.pattern * num_layers, "model_type")
    rotary = _rotary_layers(config, family, num_layers=num_layers)
    kinds = _attention_kinds(config, family, rotary)
    if family.rotary_windows and _window(config, family):
        rotary = tuple(kind == "sliding_attention" for kind in kinds)
    if (bases := config.items("layer_rope_theta")) is not None:
        rotary = tuple(bool(base) for base in config.cut_layers("layer_rope_theta", bases, num_layers))
    attentions = tuple(zip(kinds, rotary, _changes(config, family, kinds), strict=True))
    experts = _expert_layers(config, family, num_layers=num_layers)
    attention = {
        one: _attention(_change(config, one[2]), family, kind=one[0], rotary=one[1]) for one in set(attentions)
    }
    feed_forward = {routed: _feed_forward(config, family, routed=routed) for routed in set(experts)}
    return tuple(
        Layer(
            attention=attention[kind],
            feed_forward=feed_forward[routed],
            num_norms=family.num_norms + (family.expert_norms if routed else 0),
            norm=family.norm,
            beside=_mamba(config, family) if family.beside else None,
            parallel_blocks=config.flag(*family.parallel_blocks),
            streams=config.integer("hc_mult", at_least=1) if family.compressed else 1,
            snapshots=_snapshots(config, num_layers=num_layers),
        )
        for kind, routed in zip(attentions, experts, strict=True)
    )


def _change(config: Config, changes: Changes) -> Config:
    """Return the configuration of a layer that has some keys otherwise."""
    return Config({**config.mapping, **dict(changes)}, config.where) if changes else config


def _changes(config: Config, family: Family, kinds: tuple[str, ...]) -> tuple[Changes, ...]:
    """Return the keys that each layer has otherwise: as the family says by kind, or as ``per_layer_config`` lists."""
    heads = config.items(PER_LAYER)
    if heads is not None:
        if len(heads) != len(kinds):
            problem = f"has {len(heads)} entries, the model {len(kinds)} layers."
            raise config.error(PER_LAYER, problem)
        each = Config({str(index): number for index, number in enumerate(heads)}, f"{config.where}.{PER_LAYER}")
        return tuple((("num_attention_heads", each.integer(index, at_least=1)),) for index in each.mapping)
    by_kind = {kind: CHANGES[family.changes](config, kind) if family.changes else {} for kind in set(kinds)}
    listed = config.mapping.get("per_layer_config")
    if listed is None:
        return tuple(tuple(by_kind[kind].items()) for kind in kinds)
    if not isinstance(listed, Mapping):
        raise config.error("per_layer_config", f"expected a mapping, got {shown(listed)}.")
    own: dict[int, dict[str, int]] = {}
    for name, entries in listed.items():
        if not str(name).isdecimal() or int(name) >= len(kinds):
            raise config.error(f"per_layer_config.{name}", f"is none of the {len(kinds)} layers.")
        if not isinstance(entries, Mapping) or not {*entries} <= {*CHANGED}:
            problem = f"expected a mapping with some of {', '.join(CHANGED)}, got {shown(entries)}."
            raise config.error(f"per_layer_config.{name}", problem)
        one = Config(entries, f"{config.where}.per_layer_config.{name}")
        own[int(name)] = {key: one.integer(key, at_least=1) for key in entries}
    kept = {kind: {key: value for key, value in by_kind[kind].items() if key not in CHANGED} for kind in by_kind}
    return tuple(tuple({**kept[kind], **own.get(index, {})}.items()) for index, kind in enumerate(kinds))


def _rotary_layers(config: Config, family: Family, *, num_layers: int) -> tuple[bool, ...]:
    """Return True for each layer that rotates queries and keys: by a list, or all but every fourth."""
    if not family.no_rotary:
        return (family.rotary and not family.learned_positions,) * num_layers
    key = "no_rope_layer_interval"
    interval = config.integer(key, at_least=1, default=4)
    regular = tuple("rotates" if (index + 1) % interval else "does not rotate" for index in range(num_layers))
    words, listed = {0: "does not rotate", 1: "rotates"}, None
    if config.items("no_rope_layers"):
        listed = config.read_numbers("no_rope_layers", words, length=num_layers)
    stated = (("no_rope_layers", listed), (key, None if config.mapping.get(key) is None else regular))
    return tuple(one == "rotates" for one in config.agree(stated) or regular)


def _attention_kinds(config: Config, family: Family, rotary: tuple[bool, ...]) -> tuple[str, ...]:
    """Return the kind of attention of each layer, from the list or from the family's pattern."""
    num_layers = len(rotary)
    if family.compressed:
        return _compression_kinds(config, num_layers=num_layers)[:num_layers]
    if family.indexer != "none":
        indexed = _index_kinds if family.indexer == "keys" else _block_kinds
        return indexed(config, num_layers=num_layers)
    others = (*(("linear_attention",) if family.linear else ()), *(("chunked_attention",) if family.chunk else ()))
    names = {**{kind: kind for kind in (*ROTATED, *others)}, **family.kind_names}
    if (stated := config.agree(_read_stated_kinds(config, family, names, num_layers=num_layers))) is not None:
        return stated
    if family.full_layers and not family.period:
        return ("linear_attention",) * num_layers
    if family.chunk:
        chunked = "chunked_attention" if _chunk(config, family) else "full_attention"
        return tuple(chunked if rotates else "full_attention" for rotates in rotary)
    if family.window_switch:
        first = config.integer("max_window_layers", default=0) if _window(config, family) else num_layers
        return tuple("sliding_attention" if index >= first else "full_attention" for index in range(num_layers))
    if family.period and (family.period.others != "sliding_attention" or _window(config, family)):
        places = family.period.find_full(config, num_layers=num_layers)
        return tuple("full_attention" if one else family.period.others for one in places)
    if family.linear or family.lists_kinds:
        raise config.error("layer_types", "is required but missing.")
    return ("sliding_attention" if _window(config, family) else "full_attention",) * num_layers


def _read_stated_kinds(
    config: Config, family: Family, names: Mapping[str, str], *, num_layers: int
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield each key that states the attention of every layer, with the kinds; None if it is absent."""
    listed = config.words("layer_types", tuple(names), length=num_layers, further=_num_mtp_layers(config))
    yield "layer_types", None if listed is None else tuple(names[kind] for kind in listed)
    if family.full_layers and config.mapping.get(family.full_layers) is not None:
        full = _layer_numbers(config, family.full_layers, below=num_layers)
        yield family.full_layers, _place_full(full, "linear_attention", num_layers=num_layers)
    if family.linear == "kda":
        yield "linear_attn_config", _kda_kinds(config, num_layers=num_layers)
    for key, meanings in NUMBERED_KINDS.items():
        known = {number: kind for number, kind in meanings.items() if kind in names.values()}
        yield key, config.read_numbers(key, known, length=num_layers)
    period = family.period
    if (
        period
        and type(config.mapping.get(period.key)) is int
        and (period.others != "sliding_attention" or _window(config, family))
    ):
        places = period.find_full(config, num_layers=num_layers)
        full = [index for index, is_full in enumerate(places) if is_full]
        yield period.key, _place_full(full, period.others, num_layers=num_layers)


def _place_full(full: list[int], others: str, *, num_layers: int) -> tuple[str, ...]:
    return tuple("full_attention" if index in full else others for index in range(num_layers))


def _index_kinds(config: Config, *, num_layers: int) -> tuple[str, ...]:
    """Return the layers that have an indexer, and those that share the previous one's choice (GLM-5.2)."""
    config.words("layer_types", (INDEXED,), length=num_layers)
    every = config.integer("index_topk_freq", default=1) or 1
    offset = config.integer("index_skip_topk_offset", default=2)
    regular = tuple("shared" if max(n - offset + 1, 0) % every else "full" for n in range(num_layers))
    stated = (
        ("indexer_types", config.words("indexer_types", ("full", "shared"), length=num_layers)),
        ("index_topk_freq", None if config.mapping.get("index_topk_freq") is None else regular),
    )
    listed = config.agree(stated) or regular
    if config.mapping.get("index_topk_pattern") is not None:
        raise config.error("index_topk_pattern", "is not read.", "Write 'indexer_types', a word for each layer.")
    if listed[0] == "shared":
        raise config.error("indexer_types.0", "is shared, but no earlier layer has an indexer.")
    return tuple(INDEXED if one == "full" else SHARED_INDEX for one in listed)


COMPRESSED = {4: "compressed_sparse_attention", 128: "heavily_compressed_attention", 0: "sliding_attention"}
"""Kinds of DeepSeek-V4's attention by the tokens of an entry in ``compress_ratios``; the first has an indexer."""


def _compression_kinds(config: Config, *, num_layers: int) -> tuple[str, ...]:
    """Return the kinds of DeepSeek-V4's layers, and of those of multi-token prediction if they are listed."""
    named = config.words("layer_types", tuple(COMPRESSED.values()), length=num_layers)
    most = max(len(config.items("compress_ratios") or ()), num_layers)
    numbered = config.read_numbers("compress_ratios", COMPRESSED, length=most)
    stated = config.agree((("layer_types", named), ("compress_ratios", numbered)))
    if stated is not None:
        return stated + (numbered or ())[len(stated) :]
    sparse, heavy = COMPRESSED[4], COMPRESSED[128]
    return tuple(sparse if index >= 2 and index % 2 else heavy for index in range(num_layers))


def _read_compression(config: Config, *, kind: str) -> CompressedAttention:
    num_heads, head_dim = config.count("num_heads"), config.integer("head_dim", at_least=1)
    if config.count("num_kv_heads", default=1) != 1:
        raise config.error("num_key_value_heads", "must be 1, the head of compressed keys.")
    num_groups = config.integer("o_groups", at_least=1)
    if num_heads % num_groups:
        raise config.error("o_groups", f"must divide the {num_heads} attention heads, got {num_groups}.")
    ratio = {name: tokens for tokens, name in COMPRESSED.items()}[kind]
    rates = config.mapping.get("compress_rates")
    if ratio and isinstance(rates, Mapping):
        ratio = Config(rates, f"{config.where}.compress_rates").integer(kind, at_least=2)
    rotated = _count_rotated_channels(config, head_dim=head_dim)
    is_sparse = kind == COMPRESSED[4]
    return CompressedAttention(
        num_heads=num_heads,
        head_dim=head_dim,
        rotary_dim=rotated,
        q_lora_rank=config.integer("q_lora_rank", at_least=1),
        num_groups=num_groups,
        output_rank=config.integer("o_lora_rank", at_least=1),
        window=config.integer("sliding_window", at_least=1),
        ratio=ratio,
        num_series=2 if is_sparse else 1,
        indexer=replace(_read_indexer(config, width=head_dim, rotated=rotated), ratio=ratio) if is_sparse else None,
    )


def _count_rotated_channels(config: Config, *, head_dim: int) -> int:
    """Return the number of rotated channels of DeepSeek-V4, which is given itself or as a share of a head."""
    if config.mapping.get("qk_rope_head_dim") is not None:
        return config.integer("qk_rope_head_dim", at_most=head_dim)
    share = config.mapping.get("partial_rotary_factor", 64 / 512)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise config.error("partial_rotary_factor", f"must be at least 0 and at most 1, got {shown(share)}.")
    return int(head_dim * share)


def _block_kinds(config: Config, *, num_layers: int) -> tuple[str, ...]:
    """Return the layers whose blocks of keys an indexer chooses, and those that read all keys (MiniMax-M3)."""
    names = {"full_attention": "full_attention", "minimax_m3_sparse": INDEXED}
    listed = config.words("layer_types", tuple(names), length=num_layers)
    own, kinds = _block_config(config), {0: "full_attention", 1: INDEXED}
    numbered = own.read_numbers("sparse_attention_freq", kinds, length=num_layers) if own else None
    stated = (
        ("layer_types", tuple(names[kind] for kind in listed) if listed else None),
        ("sparse_attention_config", numbered),
    )
    return config.agree(stated) or ("full_attention",) * num_layers


def _block_config(config: Config) -> Config | None:
    """Return the mapping of block-sparse attention; None if there is none."""
    own = config.mapping.get("sparse_attention_config")
    if own is not None and not isinstance(own, Mapping):
        raise config.error("sparse_attention_config", f"expected a mapping, got {shown(own)}.")
    return None if own is None else Config(own, f"{config.where}.sparse_attention_config")


BLOCK_KEYS = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
}
"""Keys of block-sparse attention that transformers writes, and those of the maker's mapping."""


def _read_block_indexer(config: Config, *, num_kv_heads: int, width: int) -> Indexer:
    """Read MiniMax's indexer, each of whose heads chooses blocks for the queries of one key head."""
    own = _block_config(config)
    said = [
        (own, key) if own is not None and config.mapping.get(usual) is None else (config, usual)
        for usual, key in BLOCK_KEYS.items()
    ]
    num_heads, head_dim, block_size, num_blocks = (holder.integer(key, at_least=1) for holder, key in said)
    if num_heads != num_kv_heads:
        holder, key = said[0]
        raise holder.error(key, f"must be the {num_kv_heads} key heads, one for each, got {num_heads}.")
    if num_blocks * block_size > MAX_COUNT:
        holder, key = said[3]
        raise holder.error(key, f"times {block_size} is a number of keys above {MAX_COUNT}.")
    indexer = Indexer(
        num_heads=num_heads,
        head_dim=head_dim,
        num_keys=num_blocks * block_size,
        block_size=block_size,
        sums_heads=False,
    )
    return refuse_wide_indexer(indexer, *said[:2], num_heads=num_kv_heads, head_dim=width)


def _window(config: Config, family: Family) -> int | None:
    """Return the tokens of the sliding window, or None."""
    if family.window_switch and not config.flag("use_sliding_window"):
        return None
    if family.window_size:
        return family.window_size
    absent = "sliding_window" not in config.mapping
    return config.integer("sliding_window", default=(family.window or 0) if absent else 0) or None


def _chunk(config: Config, family: Family) -> int | None:
    """Return the tokens of a chunk of chunked attention; None if there are no chunks."""
    absent = "attention_chunk_size" not in config.mapping
    return config.integer("attention_chunk_size", default=(family.chunk or 0) if absent else 0) or None


def _expert_layers(config: Config, family: Family, *, num_layers: int) -> tuple[bool, ...]:
    """Return True for each layer with experts, from the list or from the patterns of DeepSeek and Qwen."""
    if not family.experts:
        return (False,) * num_layers
    if family.compressed:
        hashed = config.integer("num_hash_layers", default=0)
        first = tuple(EXPERT_KINDS[n >= hashed] for n in range(num_layers)) if hashed else None
        listed = config.words("mlp_layer_types", EXPERT_KINDS, length=num_layers)
        config.agree((("mlp_layer_types", listed), ("num_hash_layers", first)))
        return (True,) * num_layers
    stated = config.agree(_read_stated_experts(config, family, num_layers=num_layers))
    return tuple(one == "sparse" for one in stated or _expert_pattern(config, family, num_layers=num_layers))


def _read_stated_experts(
    config: Config, family: Family, *, num_layers: int
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield each key that states the feed-forward of every layer, with the kinds; None if it is absent."""
    words = ("dense", "sparse")
    further = _num_mtp_layers(config)
    yield "mlp_layer_types", config.words("mlp_layer_types", words, length=num_layers, further=further)
    if isinstance(enumerated := config.mapping.get("moe_layers_enum"), str):
        config = _change(config, (("moe_layers_enum", [_whole(one) for one in enumerated.split(",")]),))
    if (flags := config.items("is_moe_layer")) is not None:
        for index, flag in enumerate(flags):
            if not isinstance(flag, bool):
                raise config.error(f"is_moe_layer.{index}", f"expected true or false, got {shown(flag)}.")
        yield (
            "is_moe_layer",
            tuple(words[flag] for flag in config.cut_layers("is_moe_layer", flags, num_layers, further)),
        )
    for key in ("moe_layers", "moe_layers_enum"):
        if config.mapping.get(key) is not None:
            sparse = _layer_numbers(config, key, below=num_layers)
            yield key, tuple(words[n in sparse] for n in range(num_layers))
    if isinstance(config.mapping.get("moe_layer_freq"), list | tuple):
        yield "moe_layer_freq", config.read_numbers("moe_layer_freq", dict(enumerate(words)), length=num_layers)
        config = _change(config, (("moe_layer_freq", None),))
    key = family.expert_period.key if family.expert_period else _find_pattern_key(config)
    if config.mapping.get(key) is not None:
        yield key, _expert_pattern(config, family, num_layers=num_layers)


def _find_pattern_key(config: Config) -> str:
    """Return a key of the pattern of layers with experts that says more than its default; empty if none does."""
    neutral = {"moe_layer_freq": (1,), "mlp_only_layers": ([],), **dict.fromkeys(SPELLINGS["expert_step"], (1,))}
    keys = (*SPELLINGS["first_dense"], *neutral)
    return next((key for key in keys if config.mapping.get(key) not in (None, *neutral.get(key, ()))), "")


def _expert_pattern(config: Config, family: Family, *, num_layers: int) -> tuple[str, ...]:
    """Return the feed-forward of each layer from a period, or from the patterns of DeepSeek and Qwen."""
    if family.expert_period:
        places = family.expert_period.find_full(config, num_layers=num_layers)
        return tuple("sparse" if one else "dense" for one in places)
    first = config.count("first_dense", default=family.first_dense, at_least=0, at_most=MAX_LAYERS)
    frequency = config.integer("moe_layer_freq", at_least=1, default=1)
    step = config.count("expert_step", default=1)
    last = config.mapping.get("moe_layer_end_index", -1)
    end = num_layers - 1 if last in (-1, None) else config.integer("moe_layer_end_index", at_most=MAX_LAYERS)
    dense = _layer_numbers(config, "mlp_only_layers", below=num_layers)
    return tuple(
        "sparse" if first <= n <= end and n % frequency == 0 and (n + 1) % step == 0 and n not in dense else "dense"
        for n in range(num_layers)
    )


def _whole(text: str) -> int | str:
    """Return the number that a text writes; another text unchanged, for the message."""
    return int(text) if text.strip().isdecimal() else text


def _layer_numbers(config: Config, key: str, *, below: int = MAX_LAYERS + 1) -> list[int]:
    """Return the numbers of layers in a list, each once and ``below`` a number."""
    numbers = config.items(key) or []
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int):
            raise config.error(f"{key}.{index}", f"expected a whole number, got {shown(number)}.")
        if not 0 <= number < below:
            raise config.error(f"{key}.{index}", f"is none of the {below} layers, which count from 0, got {number}.")
        if number in numbers[:index]:
            raise config.error(f"{key}.{index}", f"names layer {number} a second time.")
    return numbers


def _pattern(config: Config, listed: tuple[str, ...], written: str, default: str = "") -> tuple[str, str]:
    """Return a letter per block, and the key that holds it: of lists of names and a pattern, which must agree."""
    stated = {key: _read_letters(config, key) for key in listed if config.mapping.get(key) is not None}
    if config.mapping.get(written) is not None:
        text = config.mapping[written]
        if not isinstance(text, str) or not 0 < len(text) <= MAX_LAYERS:
            raise config.error(written, f"expected a letter per layer, got {shown(text)}.")
        stated[written] = text
    if not stated and not default:
        raise config.error(written, "is required but missing.")
    (key, pattern), *others = stated.items() or ((written, default),)
    for other, letters in others:
        if len(letters) != len(pattern):
            raise config.error(key, f"names {len(pattern)} layers, but '{other}' names {len(letters)}.")
    config.agree((name, tuple(letters)) for name, letters in stated.items())
    return pattern, key


def _read_letters(config: Config, key: str) -> str:
    """Return a letter per block from a list of names."""
    names = config.items(key) or []
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in BLOCK_LETTERS:
            problem = f"unknown kind {shown(name)}."
            raise config.error(f"{key}.{index}", problem, did_you_mean(name, BLOCK_LETTERS))
    if not 0 < len(names) <= MAX_LAYERS:
        raise config.error(key, f"must name at least 1 and at most {MAX_LAYERS} layers, got {len(names)}.")
    return "".join(BLOCK_LETTERS[name] for name in names)


def _single_blocks(config: Config, family: Family, pattern: str, key: str) -> tuple[Layer, ...]:
    builders: dict[str, Callable[[], Block]] = {
        "mamba": lambda: LINEAR_BUILDERS[family.linear or "mamba"](config, family),
        "attention": lambda: _attention(config, family, kind="full_attention", rotary=family.rotary),
        "mlp": lambda: _feed_forward(config, family, routed=False),
        "experts": lambda: _feed_forward(config, family, routed=True),
    }
    return single_blocks(pattern, lambda kind: builders[kind](), f"{config.where}.{key}", norm=family.norm)


def _mtp_layers(config: Config, family: Family, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    number = _num_mtp_layers(config)
    listed = (config.items("layer_types") or [])[len(layers) :]
    if family.compressed:
        listed = [*_compression_kinds(config, num_layers=len(layers))[len(layers) :]]
    if number and (family.mtp_attention or listed):
        return tuple(_mtp_layer(config, family, layers[-1], kind) for kind in listed or [family.mtp_attention] * number)
    if not number or not family.single_blocks:
        return layers[-1:] * number
    pattern, key = _pattern(config, ("mtp_layers_block_type",), "mtp_hybrid_override_pattern", MTP_PATTERN)
    return (join_blocks(_single_blocks(config, family, pattern, key), f"{config.where}.{key}"),) * number


def _mtp_layer(config: Config, family: Family, last: Layer, kind: str) -> Layer:
    """Return a layer of multi-token prediction with an attention of its own kind; the rest is the last layer's."""
    (changes,) = _changes(Config({**config.mapping, "per_layer_config": None}, config.where), family, (kind,))
    attention = _attention(_change(config, changes), family, kind=kind, rotary=family.rotary)
    feed_forward = _feed_forward(config, family, routed=False) if family.mtp_dense else last.feed_forward
    return replace(last, attention=attention, feed_forward=feed_forward)


def _num_mtp_layers(config: Config) -> int:
    if not config.flag("use_mtp", True):
        return 0
    modules = config.count("mtp_layers", default=0, at_least=0, at_most=MAX_LAYERS)
    return modules * config.integer("mtp_transformer_layers", at_least=1, at_most=16, default=1)


# --- blocks --------------------------------------------------------------------------------------------------


def _attention(config: Config, family: Family, *, kind: str, rotary: bool) -> Mixer:
    if kind == "linear_attention":
        return LINEAR_BUILDERS[str(family.linear)](config, family)
    if family.latent:
        return _latent_attention(config, family, kind=kind)
    if family.compressed:
        return _read_compression(config, kind=kind)
    num_heads = config.count("num_heads")
    num_kv_heads = _num_kv_heads(config, family, num_heads=num_heads)
    head_dim = _head_dim(config, family, num_heads=num_heads)
    indexer = _read_block_indexer(config, num_kv_heads=num_kv_heads, width=head_dim) if kind == INDEXED else None
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv_bias=config.flag(*family.qkv_bias),
        output_bias=config.flag(*family.output_bias),
        qk_norm=family.qk_norm if config.flag(*family.qk_norm_switch) else "none",
        v_head_dim=config.integer("v_head_dim", at_least=1) if family.v_head_dim else None,
        key_is_value=config.flag("attention_k_eq_v"),
        output_gate=family.output_gate,
        head_gate=family.head_gate,
        sinks=family.sinks == "all" or (family.sinks == "windows" and kind == "sliding_attention"),
        window=_require_window(config, family) if kind == "sliding_attention" else None,
        chunk=_require_chunk(config, family) if kind == "chunked_attention" else None,
        rotary=rotary,
        indexer=indexer,
    )


def _num_kv_heads(config: Config, family: Family, *, num_heads: int) -> int:
    if family.kv_heads is not None:
        return family.kv_heads
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
        key = config.list_spellings("hidden_size")[0]
        raise config.error(key, f"must be a multiple of the {num_heads} attention heads, got {hidden_size}.")
    return hidden_size // num_heads


def _require_window(config: Config, family: Family) -> int:
    window = _window(config, family)
    if window is None and family.window_switch and config.mapping.get("sliding_window") is not None:
        raise config.error("use_sliding_window", "must be true with the sliding attention in 'layer_types'.")
    if window is None:
        raise config.error("sliding_window", "is required by the sliding attention in 'layer_types', but missing.")
    return window


def _require_chunk(config: Config, family: Family) -> int:
    chunk = _chunk(config, family)
    if chunk is None:
        raise config.error(
            "attention_chunk_size", "is required by the chunked attention in 'layer_types', but missing."
        )
    return chunk


def _read_indexer(config: Config, *, width: int, rotated: int, is_shared: bool = False) -> Indexer:
    """Read DeepSeek's indexer, which rotates as many channels as the attention, whose queries have a ``width``."""
    head_dim = config.integer("index_head_dim", at_least=1)
    if head_dim < rotated:
        raise config.error("index_head_dim", f"must be at least the {rotated} rotated channels, got {head_dim}.")
    indexer = Indexer(
        num_heads=config.integer("index_n_heads", at_least=1),
        head_dim=head_dim,
        num_keys=config.integer("index_topk", at_least=1),
        is_shared=is_shared,
    )
    said = ((config, "index_n_heads"), (config, "index_head_dim"))
    return refuse_wide_indexer(indexer, *said, num_heads=config.count("num_heads"), head_dim=width)


def _latent_attention(config: Config, family: Family, *, kind: str) -> LatentAttention:
    has_rank = config.mapping.get("q_lora_rank") is not None
    if "q_lora_rank" not in config.mapping:
        raise config.error("q_lora_rank", "is required but missing.", "Write null for queries without a low rank.")
    plain, rotated = (config.integer(f"qk_{name}_head_dim", at_least=1) for name in ("nope", "rope"))
    width = plain + rotated
    return LatentAttention(
        num_heads=config.count("num_heads"),
        q_lora_rank=config.integer("q_lora_rank", at_least=1) if has_rank else None,
        kv_lora_rank=config.integer("kv_lora_rank", at_least=1),
        qk_nope_head_dim=plain,
        qk_rope_head_dim=rotated,
        v_head_dim=config.integer("v_head_dim", at_least=1),
        bias=config.flag(*family.qkv_bias),
        indexer=_read_indexer(config, width=width, rotated=rotated, is_shared=kind == SHARED_INDEX)
        if family.indexer != "none"
        else None,
        rotary=family.rotary,
        output_gate=config.flag("mla_use_output_gate"),
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


def _read_gated_delta(config: Config, family: Family) -> LinearAttention:
    num_key_heads, num_value_heads = (config.integer(f"linear_num_{one}_heads", at_least=1) for one in ("key", "value"))
    if num_value_heads % num_key_heads:
        problem = f"must be a multiple of the {num_key_heads} key heads, got {num_value_heads}."
        raise config.error("linear_num_value_heads", problem)
    return LinearAttention(
        variant="gated_delta",
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=config.integer("linear_key_head_dim", at_least=1),
        value_head_dim=config.integer("linear_value_head_dim", at_least=1),
        conv_kernel=config.integer("linear_conv_kernel_dim"),
    )


def _mamba(config: Config, family: Family) -> Mamba:
    keys = family.mamba or MambaKeys()
    num_heads = config.integer(keys.num_heads, at_least=1)
    num_groups = config.integer(keys.num_groups, at_least=1)
    if num_heads % num_groups:
        raise config.error(keys.num_groups, f"must divide the {num_heads} Mamba heads, got {num_groups}.")
    width = _mamba_width(config, keys)
    is_derived = config.mapping.get(keys.head_dim) == "auto" and width is not None
    head_dim = (width or 0) // num_heads if is_derived else config.integer(keys.head_dim, at_least=1)
    if width not in (None, num_heads * head_dim):
        problem = f"times the width of a head, {head_dim}, is {num_heads * head_dim}, but the blocks are {width} wide."
        raise config.error(keys.num_heads, problem)
    return Mamba(
        num_heads=num_heads,
        head_dim=head_dim,
        state_size=config.integer(keys.state_size, at_least=1),
        num_groups=num_groups,
        conv_kernel=config.integer(keys.conv_kernel, at_least=1),
        chunk_size=config.integer(keys.chunk_size, at_least=1, default=family.mamba_chunk),
        bias=config.flag(keys.bias),
        conv_bias=config.flag(keys.conv_bias, True),
        norm=config.flag(*family.mamba_norm),
    )


def _mamba_width(config: Config, keys: MambaKeys) -> int | None:
    """Return the inner width of Mamba blocks whose heads share it out; None if no key says it."""
    if config.mapping.get(keys.width) is not None:
        return config.integer(keys.width, at_least=1)
    if config.mapping.get(keys.expand) is None:
        return None
    return config.integer(keys.expand, at_least=1, at_most=64) * config.count("hidden_size")


def _selective_scan(config: Config, family: Family) -> SelectiveScan:
    keys, hidden_size = family.mamba or MambaKeys(), config.count("hidden_size")
    is_derived = config.mapping.get(keys.step_rank) == "auto"
    return SelectiveScan(
        channels=_mamba_width(config, keys) or config.integer(keys.expand, at_least=1),
        state_size=config.integer(keys.state_size, at_least=1),
        step_rank=-(-hidden_size // 16) if is_derived else config.integer(keys.step_rank, at_least=1),
        conv_kernel=config.integer(keys.conv_kernel, at_least=1),
        bias=config.flag(keys.bias),
        conv_bias=config.flag(keys.conv_bias, True),
        norms=family.scan_norms,
    )


def _short_convolution(config: Config, family: Family) -> ShortConvolution:
    return ShortConvolution(
        channels=config.count("hidden_size"),
        conv_kernel=config.integer("conv_L_cache", at_least=1),
        bias=config.flag("conv_bias"),
    )


def _read_kda(config: Config, family: Family) -> LinearAttention:
    own = _kda_config(config)
    sizes = own or config
    keys = ("num_heads", "head_dim", "short_conv_kernel_size") if own else KDA_KEYS
    num_heads, head_dim, kernel = (sizes.integer(key, at_least=1) for key in keys)
    has_full_gate = own is not None and own.flag("use_full_rank_gate")
    return LinearAttention(
        variant="kda",
        num_key_heads=num_heads,
        num_value_heads=num_heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_kernel=kernel,
        decay_rank=head_dim,
        gate_rank=0 if has_full_gate else head_dim,
    )


KDA_KEYS = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
"""Keys of KDA's sizes that transformers writes; the maker writes a mapping, ``linear_attn_config``."""


def _kda_config(config: Config) -> Config | None:
    """Return the mapping of KDA's sizes and layers; None if there is none."""
    own = config.mapping.get("linear_attn_config")
    if own is not None and not isinstance(own, Mapping):
        raise config.error("linear_attn_config", f"expected a mapping, got {shown(own)}.")
    return None if own is None else Config(own, f"{config.where}.linear_attn_config")


def _kda_kinds(config: Config, *, num_layers: int) -> tuple[str, ...] | None:
    """Return the kinds of attention from two lists that count layers from one; None without them."""
    own = _kda_config(config)
    if own is None or own.items("full_attn_layers") is None or own.items("kda_layers") is None:
        return None
    full, linear = (_layer_numbers(own, key) for key in ("full_attn_layers", "kda_layers"))
    if sorted([*full, *linear]) != list(range(1, num_layers + 1)):
        raise own.error("kda_layers", f"and 'full_attn_layers' must name each of the layers 1 to {num_layers} once.")
    return tuple("full_attention" if number in full else "linear_attention" for number in range(1, num_layers + 1))


LINEAR_BUILDERS: dict[str, Callable[[Config, Family], Mixer]] = {
    "lightning": _lightning,
    "gated_delta": _read_gated_delta,
    "kda": _read_kda,
    "mamba": _mamba,
    "selective_scan": _selective_scan,
    "short_convolution": _short_convolution,
}
"""Reader of each mixer that is linear in the sequence."""


def _feed_forward(config: Config, family: Family, *, routed: bool) -> Mlp | Experts:
    if routed:
        return _experts(config, family)
    multiple, key = family.ffn_multiple, family.dense_width
    default = multiple * config.count("hidden_size") if multiple else None
    width = config.integer(key, at_least=1) if key else config.count("ffn_hidden_size", default=default)
    return Mlp(
        ffn_hidden_size=family.ffn_width or width,
        gated=family.gated,
        bias=config.flag(*family.mlp_bias),
        squared_relu=family.squared_relu,
        activation_weights=family.activation_weights,
    )


def _experts(config: Config, family: Family) -> Experts:
    num_experts = config.count("num_experts")
    top_k = _top_k(config, num_experts=num_experts)
    ffn_hidden_size = config.integer(family.expert_width, at_least=1)
    own_width = family.shared_gate or family.single_blocks
    shared = config.count("num_shared", default=family.num_shared, at_least=0) * ffn_hidden_size
    if shared > MAX_COUNT:
        key = config.list_spellings("num_shared")[0]
        raise config.error(key, f"times {ffn_hidden_size} is a width above {MAX_COUNT}.")
    if family.shared_width:
        shared = config.integer(family.shared_width, at_least=1)
    return Experts(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=ffn_hidden_size,
        shared_ffn_hidden_size=config.count(
            "shared_ffn_hidden_size", default=None if own_width else shared, at_least=0
        ),
        gated=family.gated,
        bias=config.flag(*family.expert_bias),
        squared_relu=family.squared_relu,
        router_bias=config.flag(*family.router_bias),
        router_scales=family.router_scales,
        shared_gate=family.shared_gate,
        latent_size=config.count("latent_size", default=0, at_least=0) or None,
        latent_norm=config.flag("latent_moe_use_norm"),
    )
