"""How many entries a vocabulary has, where its tokenizer says it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

TOKENIZERS = Path(__file__).parent / "tokenizers.csv"
"""Entries by a part of what an option says; of several that fit, the longest."""

TIKTOKEN = 2**17
"""Of ``TikTokenizer`` without ``--vocab-size`` (Megatron-LM, megatron/core/tokenizers, CustomTikTokenizer)."""


class Vocabulary(NamedTuple):
    """Entries, and who says so."""

    entries: int
    source: str


def vocabulary_of(options: Mapping[str, Sequence[str]]) -> Vocabulary | None:
    """
    The vocabulary that options of Megatron-LM mean without ``--vocab-size``; None: none is known.

    >>> vocabulary_of({"--tokenizer-model": ["meta-llama/Llama-3.1-8B"]}).entries
    128256
    """
    kind = " ".join(options.get("--tokenizer-type", ()))
    if kind == "TikTokenizer":
        return Vocabulary(TIKTOKEN, kind)
    if not kind and "--vocab-file" in options and "--merge-file" in options:
        kind = "GPT2BPETokenizer"
    said = {**{name: " ".join(values) for name, values in options.items()}, "--tokenizer-type": kind}
    fitting = [row for row in _tokenizers() if row["part"].lower() in said.get(row["option"], "").lower()]
    if not fitting:
        return None
    best = max(fitting, key=lambda row: (row["option"] == "--tokenizer-model", len(row["part"])))
    return Vocabulary(int(best["entries"]), best["source"])


@cache
def _tokenizers() -> tuple[dict[str, str], ...]:
    with TOKENIZERS.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))
