"""A ``config.json`` as a mapping that names missing, ill-typed and contradictory entries."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from costmodel.errors import SpecError, did_you_mean
from costmodel.record import record
from costmodel.validation import shown

MAX_COUNT = 10**7

"""Largest accepted count, above every width, vocabulary and number of heads of any config so far."""

MAX_LAYERS = 4096

"""Largest number of layers, as in :class:`costmodel.facts.model.Model`."""


SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed"),
    "vocab_size": ("vocab_size",),
    "ffn_hidden_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_groups"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts"),
    "top_k": (
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k",
        "top_k_experts",
    ),
    "num_shared": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_ffn_hidden_size": (
        "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
        "share_expert_dim", "share_expert_dims",
    ),
    "latent_size": ("moe_latent_size", "routed_expert_hidden_size"),
    "first_dense": ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    "expert_step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"),
    "mtp_layers": ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers"),
}  # fmt: skip

"""Spellings of one concept; two of them in one file must agree."""

LISTED = ("moe_topk", "num_shared_expert", "moe_intermediate_size")
"""Keys whose number may be a list with an equal entry for each layer, as in Hunyuan-A13B's file."""

OF_EVERY_MODEL = ("num_layers", "hidden_size", "vocab_size", "num_heads")

"""Concepts that are at least one in every model."""


WIDTHS = ("intermediate_size", "hidden_size", "head_dim", "_rank", "intermediate_size_mlp")
"""Ends of keys that hold a width."""


def refuse_impossible_sizes(config: Config) -> None:
    """
    Raise if a size is negative or not a finite number, even if the family does not read it.

    Raises
    ------
    SpecError
        With the entry of the size.
    """
    sizes = {key for keys in SPELLINGS.values() for key in keys}
    for key in {*sizes, *(key for key in config.mapping if str(key).endswith(WIDTHS))}:
        value = config.mapping.get(key)
        if isinstance(value, int | float) and (not math.isfinite(value) or (value < 0 and key not in sizes)):
            raise config.error(key, f"expected a whole number, got {shown(value)}.")


def wrong_counts(mapping: Mapping[str, Any], where: str) -> Iterator[SpecError]:
    """Yield an error for each size of a configuration that is present and not a whole number, for any family."""
    config = Config(mapping, where)
    concepts = {key: concept for concept, keys in SPELLINGS.items() for key in keys if key in mapping}
    for key, concept in concepts.items():
        try:
            config.integer(key, at_least=int(concept in OF_EVERY_MODEL), default=1)
        except SpecError as error:
            yield error


# --- a mapping that names what it does not understand ------------------------------------------------------------
@record(frozen=True)
class Config:
    """A configuration and its dotted path."""

    mapping: Mapping[str, Any]
    where: str

    def error(self, key: str, problem: str, hint: str = "") -> SpecError:
        """Build the error of a key's entry."""
        return SpecError(f"{self.where}.{key}", problem, hint)

    def integer(self, key: str, *, at_least: int = 0, at_most: int = MAX_COUNT, default: int | None = None) -> int:
        """Return an integer between limits; if absent or null, the default, or an error without one."""
        value = self._collapse_repeats(key) if key in LISTED else self.mapping.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            problem = "expected a whole number, got null." if key in self.mapping else "is required but missing."
            raise self.error(key, problem, self._name_spellings(key))
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"expected a whole number, got {shown(value)}.")
        if not at_least <= value <= at_most:
            raise self.error(key, f"must be at least {at_least} and at most {at_most}, got {shown(value)}.")
        return value

    def _name_spellings(self, key: str) -> str:
        """Return a hint with other spellings of a missing key, of which families have their own; empty: none."""
        keys = next((keys for name, keys in SPELLINGS.items() if key in keys and name not in OF_EVERY_MODEL), ())
        others = ", ".join(one for one in keys if one != key)
        return f"Other spellings: {others}." if others and key not in self.mapping else ""

    def _collapse_repeats(self, key: str) -> object:
        """Return the number of a list that repeats it for every layer; another value unchanged."""
        value = self.mapping.get(key)
        if not isinstance(value, list) or any(type(one) is not int for one in value):
            return value
        each = self.cut_layers(key, value, self.count("num_layers"))
        other = next((index for index, one in enumerate(each) if one != each[0]), None)
        if other is not None:
            problem = f"differs among layers, which is not modelled: {each[0]} in layer 0, {each[other]} in {other}."
            raise self.error(key, problem)
        return each[0]

    def count(self, concept: str, *, default: int | None = None, at_least: int = 1, at_most: int = MAX_COUNT) -> int:
        """Return the integer of a concept under any of its spellings; all that are present must agree."""
        keys = self.list_spellings(concept)
        value, *others = (self.integer(key, at_least=at_least, at_most=at_most, default=default) for key in keys)
        for key, other in zip(keys[1:], others, strict=True):
            if other != value:
                raise self.error(key, f"is {other}, but '{keys[0]}' is {value}, and they mean the same.")
        return value

    def list_spellings(self, concept: str) -> list[str]:
        """Return the spellings of a concept that hold a value; otherwise the first one present."""
        present = [key for key in SPELLINGS[concept] if key in self.mapping]
        return [key for key in present if self.mapping[key] is not None] or (present or [SPELLINGS[concept][0]])[:1]

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the value of a flag, of an empty key the default."""
        value = self.mapping.get(key) if key else None
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {shown(value)}.")
        return value

    def items(self, key: str) -> list[Any] | None:
        """Return a list; None if it is absent."""
        value = self.mapping.get(key)
        if value is not None and not isinstance(value, list | tuple):
            raise self.error(key, f"expected a list, got {shown(value)}.")
        return None if value is None else list(value)

    def words(self, key: str, allowed: Collection[str], *, length: int, further: int = 0) -> tuple[str, ...] | None:
        """Return a list of one word per layer, without those of ``further`` layers; None if it is absent."""
        words = self.items(key)
        if words is None:
            return None
        for index, word in enumerate(words):
            if word not in allowed:
                raise self.error(f"{key}.{index}", f"unknown kind {shown(word)}.", did_you_mean(word, allowed))
        return tuple(self.cut_layers(key, words, length, further))

    def read_numbers(self, key: str, kinds: Mapping[int, str], *, length: int) -> tuple[str, ...] | None:
        """Return the kind of each layer from a list of numbers; None if it is absent."""
        numbers = self.items(key)
        if numbers is None:
            return None
        for index, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int) or number not in kinds:
                raise self.error(f"{key}.{index}", f"expected {' or '.join(map(str, kinds))}, got {shown(number)}.")
        return tuple(kinds[number] for number in self.cut_layers(key, numbers, length))

    def agree(self, readings: Iterable[tuple[str, tuple[Any, ...] | None]]) -> tuple[Any, ...] | None:
        """Return the first statement on each layer that is present; another one that differs raises, with its key."""
        found = [(key, values) for key, values in readings if values is not None]
        for key, values in found[1:]:
            first, stated = found[0]
            index = next((index for index, one in enumerate(stated) if one != values[index]), None)
            if index is not None:
                one, other = (f"{shown(kinds[index])} by '{name}'" for name, kinds in ((first, stated), (key, values)))
                value = shown(self.mapping.get(key))
                raise self.error(first, f"layer {index} (from 0) is {one}, but {other}, which is {value}.")
        return found[0][1] if found else None

    def cut_layers(self, key: str, entries: list[Any], length: int, further: int = 0) -> list[Any]:
        """Return the entries of the model's layers, from a list that may also have those of ``further`` ones."""
        if len(entries) not in (length, length + further):
            raise self.error(key, f"has {len(entries)} entries, the model {length} layers.")
        return entries[:length]
