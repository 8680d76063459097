"""The architecture behind every ``model`` key of the measured runs, as the cost model's own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.description import model_from_description
from costmodel.errors import PlanningError, SpecError, did_you_mean
from costmodel.spec import Attention, Layer, Model

VOCAB_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to multiples of this times tp (``--make-vocab-size-divisible-by``)."""

STATED_NOWHERE_VOCAB = {"zb-": 32_000}
"""
Vocabularies that a source does not state, by the start of the key.

``zb-``: the 6.2, 14.6 and 28.3 B that Zero Bubble (arXiv 2401.10241, Table 3) prints are 12 L h^2 + 32,000 h.
"""

FFN_FACTOR = 4
"""Feed-forward width over hidden size where a source does not state it: GPT-2's."""

GATED = ("swiglu", "geglu")
ROTARY_MLPS = ("squared_relu",)
"""Activations without a gate that come with rotary positions (Nemotron-4, arXiv 2402.16819)."""


PARALLEL_BLOCKS = ("gpt-neox",)
"""Architectures whose blocks run in parallel (GPT-NeoX-20B, arXiv 2204.06745, section 2.1)."""


class Unpredictable(PlanningError):
    """The row is in order, but the cost model has no formula for what it measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """
    How a run's model differs from the architecture of its key.

    Parameters
    ----------
    num_layers
        Layers of a proxy; None: as the key has them.
    num_kv_heads
        Key-value heads that the run states; None: as the key has them.
    tied_embeddings
        What the run states; None: as the key has it.
    has_mtp
        Whether its multi-token prediction was on.
    positions
        Entries of a learned position embedding, if the architecture has one: the sequence length.
    tp
        Ranks that the vocabulary is padded for.
    """

    num_layers: int | None
    num_kv_heads: int | None
    tied_embeddings: bool | None
    has_mtp: bool
    positions: int
    tp: int


def architecture(entries: Mapping[str, Any], key: str, variant: Variant) -> Model:
    """
    Make the model of one key of ``models.yaml``.

    Parameters
    ----------
    entries
        ``models.yaml``.
    key
        The row's ``model``.
    variant
        What the row says about it.

    Raises
    ------
    SpecError
        If there is no such key, or its entry is impossible.
    Unpredictable
        If the architecture is not known, or has layers that the cost model has not.
    """
    if key not in entries:
        hint = did_you_mean(key, entries)
        problem = f"'{key}' is not in the file of models."
        raise SpecError("model", problem, hint if hint.startswith("Did") else f"It knows {len(entries)} others.")
    entry = entries[key]
    _require_known(entry, key)
    model = model_from_description(_description(entry, key, variant), f"models.{key}", key, "measured runs")
    return _with_windows(model, entry)


def kind_of_architecture(entry: Mapping[str, Any]) -> str:
    """``dense``, ``moe`` or ``hybrid`` (layers without softmax attention among the others)."""
    if entry.get("hybrid_pattern") or "DeltaNet" in str(entry.get("attention")):
        return "hybrid"
    return "moe" if entry.get("moe") else "dense"


def _require_known(entry: Mapping[str, Any], key: str) -> None:
    if entry.get("hidden") is None or entry.get("n_layers") is None:
        raise Unpredictable(f"unknown architecture: the sources do not give the sizes of '{key}'")
    if entry.get("mamba"):
        raise Unpredictable("the cost model has no Mamba layers")
    if "DeltaNet" in str(entry.get("attention")):
        raise Unpredictable("the file of models does not give the sizes of the Gated DeltaNet layers")


def _description(entry: Mapping[str, Any], key: str, variant: Variant) -> dict[str, Any]:
    activation = str(entry.get("activation") or "")
    gated = activation.startswith(GATED)
    is_gpt = not gated and activation not in ROTARY_MLPS
    return {
        "hidden_size": entry["hidden"],
        "num_layers": variant.num_layers or entry["n_layers"],
        "vocab_size": _padded_vocab(entry, key, variant.tp),
        "num_heads": entry["n_heads"],
        "head_dim": entry["head_dim"],
        "ffn_hidden_size": entry["ffn_hidden"] or FFN_FACTOR * entry["hidden"],
        "gated": gated,
        "mlp_bias": is_gpt,
        "qkv_bias": is_gpt,
        "output_bias": is_gpt,
        "norm": "rms" if gated else "layer",
        "learned_positions": variant.positions if is_gpt else 0,
        "tied_embeddings": _tied(entry, variant, is_gpt),
        "parallel_blocks": key.startswith(PARALLEL_BLOCKS),
        **_attention(entry, variant),
        **_experts(entry, variant),
    }


def _tied(entry: Mapping[str, Any], variant: Variant, is_gpt: bool) -> bool:
    """What the run or the entry says; where both are silent, GPT ties (Megatron-LM's default) and others do not."""
    if variant.tied_embeddings is not None:
        return variant.tied_embeddings
    stated = entry.get("tied_embeddings")
    return is_gpt if stated is None else bool(stated)


def _padded_vocab(entry: Mapping[str, Any], key: str, tp: int) -> int:
    stated = entry.get("padded_vocab") or entry.get("vocab")
    if stated is None:
        stated = next((vocab for start, vocab in STATED_NOWHERE_VOCAB.items() if key.startswith(start)), None)
    if stated is None:
        raise Unpredictable(f"unknown architecture: the sources do not give the vocabulary of '{key}'")
    multiple = VOCAB_MULTIPLE * tp
    return -(-int(stated) // multiple) * multiple


def _attention(entry: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    if entry.get("mla"):
        return dict(entry["mla"])
    return {"num_kv_heads": variant.num_kv_heads or entry["n_kv_heads"]}


def _experts(entry: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    moe = entry.get("moe")
    if not moe:
        return {}
    return {
        "num_experts": moe["n_experts"],
        "top_k": moe["top_k"],
        "expert_ffn_hidden_size": moe["moe_ffn_hidden"],
        "shared_ffn_hidden_size": moe["shared_expert_ffn"] or 0,
        "first_dense_layers": moe["first_k_dense"] or 0,
        "moe_layer_interval": 2 if "[0,1]" in str(moe.get("moe_layer_freq")) else 1,
        "mtp_layers": (moe["mtp_layers"] or 0) if variant.has_mtp else 0,
    }


def _with_windows(model: Model, entry: Mapping[str, Any]) -> Model:
    """Every second layer sees a window of 128 tokens only (gpt-oss)."""
    if not str(entry.get("sliding_window")).startswith("every 2nd layer, window 128"):
        return model
    return replace(model, layers=tuple(_windowed(layer, i) for i, layer in enumerate(model.layers)))


def _windowed(layer: Layer, index: int) -> Layer:
    if index % 2 or not isinstance(layer.attention, Attention):
        return layer
    return replace(layer, attention=replace(layer.attention, window=128))
