"""``model`` and ``model.*`` of a collected row: a key, and how the run's model differs from it."""

from __future__ import annotations

import re

from benchmarks.measured_runs.architectures import Architecture
from benchmarks.measured_runs.cells import Row
from costmodel.errors import SpecError
from costmodel.facts.model import Attention

PROXY_LAYERS = re.compile(r"PROXY: n_layers=(\d+)")
KEY_VALUE_HEADS = re.compile(r"num_query_groups=(\d+)")
UNTIED = "untied embeddings"

UNTIED_FORK, TIED_FROM = "Megatron-LM fork (sail-sg)", "2024"
"""Zero Bubble's fork, untied as the notes of its later runs say (Vocabulary Parallelism)."""


def model(row: Row, of: Architecture) -> dict[str, object]:
    """
    The key, and what the row says of the model itself.

    Raises
    ------
    SpecError
        If a proxy does not say how many layers it has, or the key's entry is wrong.
    """
    if of.wrong:
        raise SpecError("", of.wrong)
    return {
        "model": row.text("model"),
        "model.num_layers": _proxy_layers(row),
        "model.num_kv_heads": _num_kv_heads(row, of),
        "model.tied_embeddings": False if _is_untied(row) else None,
        "model.learned_positions": row.count_or_none("seq_len") if of.has_positions else None,
    }


def num_layers(row: Row, of: Architecture) -> int | None:
    """Layers of the model that ran, if they are known."""
    stated = row.noted(PROXY_LAYERS)
    if stated:
        return int(stated)
    return of.model.num_layers if of.model else None


def _proxy_layers(row: Row) -> int | None:
    stated = row.noted(PROXY_LAYERS)
    if row.text("kind") == "proxy" and not stated:
        raise SpecError("notes", "a proxy must say 'PROXY: n_layers=', but its notes do not.")
    return int(stated) if stated else None


def _num_kv_heads(row: Row, of: Architecture) -> int | None:
    """What the notes state, where the architecture has another number; latent attention has none."""
    stated = row.noted(KEY_VALUE_HEADS)
    kinds = [kind.attention for kind in of.model.kinds if isinstance(kind.attention, Attention)] if of.model else []
    if not stated or not kinds or all(kind.num_kv_heads == int(stated) for kind in kinds):
        return None
    return int(stated)


def _is_untied(row: Row) -> bool:
    is_early_fork = row.text("framework").startswith(UNTIED_FORK) and "" < row.text("date") < TIED_FROM
    return is_early_fork or UNTIED in row.text("notes")
