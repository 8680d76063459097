"""Models by their names in other libraries, and vocabularies by the names of tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from costmodel import catalog
from planner.frameworks.imports.documents import read_rows

MODELS = Path(__file__).parent / "models.csv"
"""
Table from names of Hugging Face's hub without their owner, and flavors of torchtitan as ``name/flavor``, to models.

The models are those of the catalog, or descriptions for a job file (sizes of the models' own ``config.json``).
"""

ENDINGS = ("-instruct", "-base", "-hf", "-chat", "-thinking", "-2507", "-bf16", "-v0.3")
"""Suffixes of names on the hub behind the size; the architecture is the same."""

ARCHITECTURE = {row["option"] for row in read_rows(Path(__file__).parent / "architecture.csv")}
"""Options of the architecture, which a model by its name sets."""

RECIPES = ("_config", "_pretrain")
"""Suffixes of recipes' names in Megatron-Bridge behind the model."""


def model_named(name: str) -> str | dict[str, Any] | None:
    """
    Return the entry ``model`` of a job for a name; None: unknown.

    >>> model_named("meta-llama/Llama-3.1-8B-Instruct"), model_named("llama3/70B"), model_named("my/model")
    ('llama3-8b', 'llama3-70b', None)
    """
    whole = name.strip().lower()
    plain = whole.rsplit("/", 1)[-1]
    for ending in (*RECIPES, *ENDINGS, *ENDINGS):
        plain = plain.removesuffix(ending)
    for spelling in (whole, plain, plain.replace("_", "-")):
        if spelling in catalog.models():
            return spelling
        if spelling in _models():
            text = _models()[spelling]
            return dict(yaml.safe_load(text)) if text.startswith("{") else model_named(text)
    return None


@cache
def _models() -> Mapping[str, str]:
    return {row["name"]: row["model"] for row in read_rows(MODELS)}


# --- vocabularies ------------------------------------------------------------------------------------------


TOKENIZERS = Path(__file__).parent / "tokenizers.csv"
"""Table of vocabulary sizes by a part of an option's value; the longest match counts."""

PATCHED = "--patch-tokenizer-type"
"""Pai-Megatron-Patch's option; with it ``--extra-vocab-size`` adds entries (megatron_patch/tokenizer)."""

TOKENIZER_OPTIONS = ("--tokenizer-type", "--tokenizer-model", "--tokenizer-name-or-path", PATCHED, "--vocab-file")

TIKTOKEN = 2**17
"""Vocabulary of ``TikTokenizer`` without ``--vocab-size`` (megatron/core/tokenizers, CustomTikTokenizer)."""


class Vocabulary(NamedTuple):
    """Size of a vocabulary, and its source."""

    entries: int
    source: str


def vocabulary_of(options: Mapping[str, Sequence[str]]) -> Vocabulary | None:
    """
    Return the vocabulary of Megatron-LM's options without ``--vocab-size``; None: unknown.

    >>> vocabulary_of({"--tokenizer-model": ["meta-llama/Llama-3.1-8B"]}).entries
    128256
    """
    options = {"--tokenizer-model": options.get("--tokenizer-name-or-path", ()), **options}
    kind = " ".join(options.get("--tokenizer-type", ()))
    if kind == "TikTokenizer":
        return Vocabulary(TIKTOKEN, kind)
    if not kind and "--vocab-file" in options and "--merge-file" in options:
        kind = "GPT2BPETokenizer"
    said = {**{name: " ".join(values) for name, values in options.items()}, "--tokenizer-type": kind}
    fitting = [row for row in read_rows(TOKENIZERS) if row["part"].lower() in said.get(row["option"], "").lower()]
    if not fitting:
        return None
    best = max(fitting, key=lambda row: (row["option"] == "--tokenizer-model", len(row["part"])))
    more = said.get("--extra-vocab-size", "") if best["option"] == PATCHED else ""
    return Vocabulary(int(best["entries"]) + (int(more) if more.isdecimal() else 0), best["source"])


def default_vocabulary(options: Mapping[str, Sequence[str]]) -> Vocabulary | None:
    """Return the vocabulary that is assumed for an unknown tokenizer; None: the options name no tokenizer."""
    named = [value for name in TOKENIZER_OPTIONS for value in options.get(name, ())]
    if not named:
        return None
    pieces = any("sentencepiece" in value.lower() or value.endswith("tokenizer.model") for value in named)
    return Vocabulary(32_000, "as Llama 2's pieces of sentences") if pieces else Vocabulary(TIKTOKEN, "2^17")
