"""Refusal of trainings that are no pretraining of a decoder, by words of programs, options and entries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.documents import read_rows, read_words
from planner.frameworks.megatron.options import WHERE, split_options

DATA = read_words("refused")

REASONS = read_rows("reasons.csv")
KINDS, MODELS = ({row["kind"]: row["why"] for row in REASONS if row["of"] == one} for one in ("training", "model"))
"""Trainings that are no pretraining and models that are no decoders of text, with the reason to refuse each."""


LATENT = re.compile(r"(?:^|[^a-z])(?:q|kv|o|qk)_lora_")
"""Prefixes of latent attention's ranks, which are not adapters."""

LOADING = "finetune"
"""Megatron-LM's switch for the parts of a checkpoint to load; it does not mean fine-tuning."""

IDLE = re.compile(r"-*(rl|grpo|langrl|dino)[-_]")
"""Options without effect unless ``--perform-rl-step`` is on (megatron/training/arguments.py), or of vision models."""


MOST_LEVELS = 32
"""Levels of a document that are searched."""

Entries: TypeAlias = Sequence[tuple[str, Any]]


def refuse_program(name: str, where: str) -> None:
    """
    Refuse a program, a module or a recipe whose name means a training other than pretraining.

    Raises
    ------
    SpecError
        Names the kind of training, and inputs that are accepted.
    """
    folders = name.removesuffix(".py").split("/")
    for part in folders[-2:] if folders[-1] in DATA.generic else folders[-1].split("."):
        kind = kind_of(part) or kind_of(part, MODELS)
        if kind is not None:
            raise _refusal(where, f"{shown(name[-80:])} is of", kind)


def refuse_options(words: Sequence[str]) -> None:
    """
    Refuse options and overrides of a training other than pretraining.

    Raises
    ------
    SpecError
        Names the option, the kind of training, and inputs that are accepted.
    """
    for word in takewhile(lambda word: re.fullmatch(r"[\w-]+", word) and not word.startswith("-"), words):
        refuse_program(word, WHERE)
    overrides = [word.lstrip("+~").partition("=") for word in words if re.match(r"[+~]*[a-z_][\w.]*=", word)]
    given = [*split_options(words), *((one, [value]) for one, _, value in overrides)]
    entries = [(name, " ".join(values) if values else True) for name, values in given]
    _refuse(entries, [(name, value) for name, value in entries if name.startswith("--")], f"{WHERE}.")


def refuse_entries(content: Mapping[Any, Any], where: str) -> None:
    """
    Refuse a configuration with entries of a training other than pretraining.

    Raises
    ------
    SpecError
        Names the entry, the kind of training, and inputs that are accepted.
    """
    model = content.get("model")
    inner = [(str(name), value) for name, value in model.items()] if isinstance(model, Mapping) else []
    _refuse(list(_entries(content, MOST_LEVELS)), inner, f"{where}: ")
    if isinstance(model, Mapping) and all(isinstance(model.get(part), Mapping) for part in ("encoder", "decoder")):
        raise _refusal(f"{where}: model.encoder", "is of", "seq2seq")


def _refuse(entries: Entries, of_model: Entries, place: str) -> None:
    """Refuse entries that mean another training, that name another model, or that describe one."""
    for name, what, kind in _signs(entries, of_model):
        if kind is not None:
            raise _refusal(f"{place}{name}", what, kind)


def _signs(entries: Entries, of_model: Entries) -> Iterator[tuple[str, str, str | None]]:
    """Yield names of entries with what they may say, and the kind of training or model that they mean."""
    idle = any(name.strip("-").replace("-", "_") == "perform_rl_step" and _is_off(value) for name, value in entries)
    for name, value in entries:
        loads = name.lstrip("-") == LOADING and str(value).lower() == "true"
        if (idle and IDLE.match(name)) or _is_off(value) or loads or name.startswith("--no-"):
            continue
        yield name, "is of", kind_of(name, in_entry=True)
        if isinstance(value, str) and (re.findall(r"[a-z]+", name.lower()) or [""])[-1] in DATA.choosing:
            yield name, f"is {shown(value)}, which says", kind_of(value)
    for name, value in entries:
        words = re.findall(r"[a-z]+", name.lower()) or [""]
        if words[-1] in DATA.naming and {*DATA.of_others}.isdisjoint(words) and isinstance(value, str):
            yield name, f"is {shown(value)},", kind_of(value.rsplit("/", 1)[-1], MODELS)
    for name, value in of_model:
        yield name, "is of", None if _is_off(value) else kind_of(name, MODELS, in_entry=True)


def kind_of(text: str, kinds: Collection[str] = KINDS, *, in_entry: bool = False) -> str | None:
    """
    Return the kind of training or model that a name means; None: pretraining of a decoder.

    ``refused.csv`` has words in names, with a blank between adjacent ones. Some also apply to names of options and
    entries, others only to names of programs, models and choices.

    >>> kind_of("actor_rollout_ref"), kind_of("runDPOTrainer"), kind_of("--q-lora-rank")
    ('rl', 'preference', None)
    >>> kind_of("rm"), kind_of("rm", in_entry=True), kind_of("normal_perl"), kind_of("bert_110m", MODELS)
    ('reward', None, None, 'encoder')
    """
    rows = (row for row in _rows_in(text) if row["kind"] in kinds)
    found = [(len(row["word"]), row["kind"]) for row in rows if row["in_entries"] == "yes" or not in_entry]
    return max(found, default=(0, None))[1]


@lru_cache(maxsize=2**12)
def _rows_in(text: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of the table whose words a name has."""
    if LATENT.search(text.lower().replace("-", "_")):
        return ()
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", text)]
    joined = f" {' '.join(words)} "
    return tuple(row for row in read_rows("refused.csv") if f" {row['word']} " in joined)


def _refusal(where: str, what: str, kind: str) -> SpecError:
    kinds = {**KINDS, **MODELS}
    return SpecError(where, f"{what} {kinds[kind]}; the planner plans pretraining of decoders of text.", DATA.hint)


def _is_off(value: Any) -> bool:
    """Tell whether an entry is empty or switched off."""
    if isinstance(value, Mapping) and value:
        return str(value.get("enabled", value.get("enable", True))).lower() in DATA.off
    return not value if isinstance(value, Mapping | list | tuple) else str(value).strip().lower() in DATA.off


def _entries(content: Mapping[Any, Any], levels: int) -> Iterator[tuple[str, Any]]:
    """Yield entries of all levels by their own names."""
    for name, value in content.items():
        yield str(name), value
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Mapping) and levels and name != "tokenizer" and not _is_off(one):
                yield from _entries(one, levels - 1)
