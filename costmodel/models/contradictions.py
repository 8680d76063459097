"""Entries of a ``config.json`` that state one fact: those that contradict each other are refused, or doubted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.facts.model import Experts, Indexer, Layer, Model
from costmodel.models.config_json import SPELLINGS, Config
from costmodel.models.families import FAMILIES, TEXT_PARTS, UNMODELLED, Family, MambaKeys, find_family
from costmodel.validation import shown

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
"""Pairs of entries with one meaning, beside the spellings of a concept; a dot leads into a part."""

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


def doubt_layers(config: Config, *, num_layers: int) -> Iterator[str]:
    """Yield the doubts about counts and numbers of layers beyond the model's, which classes ignore."""
    for key in (*LAYER_COUNTS, *LAST_LAYERS):
        entry = config.mapping.get(key)
        if isinstance(entry, int) and entry > num_layers - (key in LAST_LAYERS):
            yield f"{config.where}.{key} is {entry}, but the model has {num_layers} layers"


def doubt_widths(config: Config, family: Family) -> Iterator[str]:
    """Yield the doubts about widths and numbers of layers beside the ones that are read."""
    hidden, other = config.count("hidden_size"), _look_up(config.mapping, "ffn_config.hidden_size")
    if other not in (None, hidden):
        yield f"{config.where}.ffn_config.hidden_size is {shown(other)}, but the model is {hidden} wide, which is read"
    keys = family.mamba or MambaKeys()
    width, factor = config.mapping.get(keys.width), config.mapping.get(keys.expand)
    product = factor * hidden if isinstance(factor, int) and family.linear == "selective_scan" else width
    if width not in (None, product):
        said = f"{keys.expand} times hidden_size is {product}"
        yield f"{config.where}.{keys.width} is {width}, which is read, but {said}"
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


def doubt_unread(config: Config, read: Callable[[Mapping[str, Any]], Model]) -> str:
    """
    Return the doubt about keys that may decide a size, and that a described family does not read; empty: none.

    A key is read if no model, or another one, is built with something else in its place.
    """
    model = read(config.mapping)
    sized = (key for key in config.mapping if SIZES.search(key) and not NO_SIZES.search(key))
    found = [key for key in sized if _may_decide(config.mapping[key]) and _is_unread(config, key, read, model)]
    values = ", ".join(f"{key} ({shown(config.mapping[key])})" for key in found)
    return f"not read by the family that is described: {values}" if found else ""


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
