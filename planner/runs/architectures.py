"""The architecture behind every ``model`` key of the measured runs, as the cost model's own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel import catalog
from costmodel.description import model_from_description
from costmodel.errors import PlanningError, SpecError, did_you_mean
from costmodel.spec import Attention, Experts, LatentAttention, Layer, Model
from planner.runs.entries import Entry

VOCAB_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to multiples of this times tp (``--make-vocab-size-divisible-by``)."""

STATED_NOWHERE_VOCAB = {"zb-": 32_000}
"""
Vocabularies that a source does not state, by the start of the key.

``zb-``: the 6.2, 14.6 and 28.3 B that Zero Bubble (arXiv 2401.10241, Table 3) prints are 12 L h^2 + 32,000 h.
"""

STATED_NOWHERE_DENSE_LAYERS = {"simumax-deepseek-v2": 1}
"""
Dense layers in front that an entry leaves to its source's launcher, by the start of the key.

``simumax-deepseek-v2``: DeepSeek-V2's own (config.json, ``first_k_dense_replace``); without, its states alone would
take the whole measured peak.
"""

FFN_FACTOR = 4
"""Feed-forward width over hidden size where a source does not state it: GPT-2's."""

GATED = ("swiglu", "geglu")
ROTARY_MLPS = ("squared_relu",)
"""Activations without a gate that come with rotary positions (Nemotron-4, arXiv 2402.16819)."""


QUERY_KEY_NORMS = ("qwen3-",)
"""Starts of the keys whose queries and keys are normed, head by head (Qwen3, arXiv 2505.09388, section 2)."""

UNTIED_ROTARY_GPT = ("gpt-neox-",)
"""Starts of the keys of GPTs with rotations and a head of their own (GPT-NeoX-20B, arXiv 2204.06745, section 2.1)."""
PARALLEL_BLOCKS = ("gpt-neox",)
"""Architectures whose blocks run in parallel (GPT-NeoX-20B, arXiv 2204.06745, section 2.1)."""

ASSUMED = "in the predictor"
"""
How the activation of an entry ends that has what its source's predictor assumes, not what ran.

Llamas under GPT-NeoX: gated by SiLU (``configs/llama``), 8/3 hidden sizes wide (arXiv 2509.22832, its repository).
"""

LLAMA_MULTIPLE = 256
"""What their width is rounded up to (Llama's ``multiple_of``)."""


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
    vocab_multiple
        What the vocabulary is padded to multiples of.
    """

    num_layers: int | None
    num_kv_heads: int | None
    tied_embeddings: bool | None
    has_mtp: bool
    positions: int
    vocab_multiple: int


def architecture(entries: Mapping[str, Entry], key: str, variant: Variant) -> Model:
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
        hint = did_you_mean(key, entries or catalog.models())
        problem = f"'{key}' is not in the file of models." if entries else f"'{key}' is not in the catalog."
        others = f"It knows {len(entries)} others." if entries else "Name one of the catalog, or a config.json."
        raise SpecError("model", problem, hint if hint.startswith("Did") else others)
    entry = entries[key]
    _require_known(entry, key)
    if "DeltaNet" in str(entry.get("attention")) or (
        "sinks" in str(entry.get("sliding_window")) and key in catalog.models()
    ):
        return _from_catalog(entry, key, variant)
    model = model_from_description(_description(entry, key, variant), f"models.{key}", key, "measured runs")
    return _with_windows(model, entry)


def variant_of_model(model: Model, variant: Variant) -> Model:
    """A model as a run had it: layers of a proxy, padded vocabulary, multi-token prediction or not."""
    return replace(
        model,
        layers=model.layers[: variant.num_layers or None],
        vocab_size=_padded(model.vocab_size, variant.vocab_multiple),
        mtp_layers=model.mtp_layers if variant.has_mtp else (),
    )


def architecture_of(model: Model) -> str:
    """``dense``, ``moe`` or ``hybrid`` (layers without softmax attention among the others)."""
    kinds = model.kinds
    if not all(isinstance(kind.attention, Attention | LatentAttention) for kind in kinds):
        return "hybrid"
    return "moe" if any(isinstance(kind.feed_forward, Experts) for kind in kinds) else "dense"


def _require_known(entry: Entry, key: str) -> None:
    if any(entry.get(size) is None for size in ("hidden", "n_layers", "n_heads")):
        raise Unpredictable(f"unknown architecture: the sources do not give the sizes of '{key}'")


def _from_catalog(entry: Entry, key: str, variant: Variant) -> Model:
    """
    The catalog's model of the same name.

    The file of models does not give the sizes of Gated DeltaNet layers, nor which projections of gpt-oss have biases.
    """
    if key not in catalog.models():
        raise Unpredictable(f"the sizes of the Gated DeltaNet layers of '{key}' are neither here nor in the catalog")
    model = catalog.model(key)
    num_mtp = entry.part("moe").count("mtp_layers", 0) if variant.has_mtp else 0
    return replace(
        model,
        vocab_size=_padded_vocab(entry, key, variant.vocab_multiple),
        layers=model.layers[: variant.num_layers],
        mtp_layers=model.layers[-1:] * num_mtp,
    )


def _description(entry: Entry, key: str, variant: Variant) -> dict[str, Any]:
    activation = str(entry.get("activation") or "")
    activation = "swiglu" if activation.endswith(ASSUMED) else activation
    gated = activation.startswith(GATED)
    is_gpt = not gated and activation not in ROTARY_MLPS
    return {
        "hidden_size": entry["hidden"],
        "num_layers": variant.num_layers or entry["n_layers"],
        "vocab_size": _padded_vocab(entry, key, variant.vocab_multiple),
        "num_heads": entry["n_heads"],
        "head_dim": entry["head_dim"],
        "ffn_hidden_size": entry["ffn_hidden"] or _usual_width(entry.count("hidden"), gated=gated),
        "gated": gated,
        "squared_relu": activation == "squared_relu",
        "mlp_bias": is_gpt,
        "qkv_bias": is_gpt,
        "output_bias": is_gpt,
        "norm": "rms" if gated else "layer",
        "learned_positions": variant.positions if is_gpt and not key.startswith(UNTIED_ROTARY_GPT) else 0,
        "tied_embeddings": _tied(entry, variant, is_gpt and not key.startswith(UNTIED_ROTARY_GPT)),
        "qk_norm": "per_head" if key.startswith(QUERY_KEY_NORMS) else "none",
        "parallel_blocks": key.startswith(PARALLEL_BLOCKS),
        **_attention(entry, variant),
        **_experts(entry, key, variant),
        **_single_blocks(entry),
    }


def _usual_width(hidden: int, *, gated: bool) -> int:
    """
    Width of a feed-forward that an entry leaves open: GPT-2's, or what three instead of two matrices make of it.

    >>> _usual_width(4096, gated=False), _usual_width(4096, gated=True)
    (16384, 11008)
    """
    width = FFN_FACTOR * hidden
    return _padded(2 * width // 3, LLAMA_MULTIPLE) if gated else width


def _single_blocks(entry: Entry) -> dict[str, Any]:
    """Layers of one block, RMS norms, no positions: Nemotron-H (arXiv 2504.03624, section 2.1)."""
    if not entry.get("hybrid_pattern"):
        return {}
    mamba = entry.part("mamba")
    return {
        "pattern": entry["hybrid_pattern"],
        "norm": "rms",
        "rotary": False,
        "mamba_num_heads": mamba["num_heads"],
        "mamba_head_dim": mamba["head_dim"],
        "mamba_state_size": mamba["state_dim"],
        "mamba_num_groups": mamba["n_groups"],
    }


def _tied(entry: Entry, variant: Variant, by_default: bool) -> bool:
    """What the run or the entry says; where both are silent, GPT ties (Megatron-LM's default) and others do not."""
    if variant.tied_embeddings is not None:
        return variant.tied_embeddings
    stated = entry.get("tied_embeddings")
    return by_default if stated is None else bool(stated)


def _padded_vocab(entry: Entry, key: str, multiple: int) -> int:
    stated = next((entry.count(name) for name in ("padded_vocab", "vocab") if entry.get(name) is not None), None)
    if stated is None:
        stated = next((vocab for start, vocab in STATED_NOWHERE_VOCAB.items() if key.startswith(start)), None)
    if stated is None:
        raise Unpredictable(f"unknown architecture: the sources do not give the vocabulary of '{key}'")
    return _padded(stated, multiple)


def _padded(vocab_size: int, multiple: int) -> int:
    return -(-vocab_size // multiple) * multiple


def _attention(entry: Entry, variant: Variant) -> dict[str, Any]:
    if entry.get("mla"):
        return dict(entry.part("mla"))
    return {"num_kv_heads": variant.num_kv_heads or entry["n_kv_heads"]}


def _experts(entry: Entry, key: str, variant: Variant) -> dict[str, Any]:
    if not entry.get("moe"):
        return {}
    moe = entry.part("moe")
    dense = next((number for start, number in STATED_NOWHERE_DENSE_LAYERS.items() if key.startswith(start)), 0)
    return {
        "num_experts": moe["n_experts"],
        "top_k": moe["top_k"],
        "expert_ffn_hidden_size": moe["moe_ffn_hidden"],
        "shared_ffn_hidden_size": moe.count("shared_expert_ffn", 0),
        "expert_latent_size": moe.get("moe_latent_size"),
        "first_dense_layers": moe.count("first_k_dense", 0) or dense,
        "moe_layer_interval": 2 if "[0,1]" in str(moe.get("moe_layer_freq")) else 1,
        "mtp_layers": moe.count("mtp_layers", 0) if variant.has_mtp else 0,
    }


def _with_windows(model: Model, entry: Entry) -> Model:
    """Every second layer sees a window of 128 tokens only (gpt-oss)."""
    if not str(entry.get("sliding_window")).startswith("every 2nd layer, window 128"):
        return model
    return replace(model, layers=tuple(_windowed(layer, i) for i, layer in enumerate(model.layers)))


def _windowed(layer: Layer, index: int) -> Layer:
    if index % 2 or not isinstance(layer.attention, Attention):
        return layer
    return replace(layer, attention=replace(layer.attention, window=128))
