"""The architectures behind the rows: entries of the collected ``models.yaml`` in the planner's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.inputs import read_yaml
from benchmarks.measured_runs.columns import Row
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Model
from costmodel.models.description import Description, model_from_description
from costmodel.validation import shown

CATALOG_NAMES = read_yaml(Path(__file__).with_name("words.yaml"))["models"]

"""Names in the catalog of models that the table calls otherwise; models without a line have the same name in both."""

NOT_COMPARED = ("name", "source", "family", "config", "learned_positions", "mtp_layers", "numerics")

"""
Facts that may differ between an entry and the catalog's model.

They are names, facts of rows and of :func:`_on_top`, and facts that cost nothing.
"""

ASSUMED_VOCAB = {"zb-": 32_000}

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

LLAMA_MULTIPLE = 256

"""Multiple that the width of a gated MLP is rounded up to (Llama's ``multiple_of``)."""

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
Suffix of an entry's activation that is its source's predictor's assumption, not the one that ran.

Llamas under GPT-NeoX: gated by SiLU (``configs/llama``), 8/3 hidden sizes wide (arXiv 2509.22832, its repository).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """
    One key of ``models.yaml``.

    Parameters
    ----------
    entry
        As the explicit file has it: ``base`` with what differs from it, a flat description, or ``unknown``.
    comment
        Reason why it is not the catalog's model of that name; empty if there is nothing to say.
    model
        The model, if it is known.
    has_positions
        True if positions are learned: as many as the run's sequences are long.
    wrong
        Mistake of the collected entry: its rows are refused.
    said
        The collected entry.
    """

    entry: Mapping[str, Any]
    comment: str = ""
    model: Model | None = None
    has_positions: bool = False
    wrong: str = ""
    said: Mapping[str, Any]


def architectures(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Architecture]:
    """Every entry of a collected ``models.yaml``; what is wrong or unknown says so itself."""
    return {key: _architecture(key, entry) for key, entry in models.items()}


def of_catalog(name: str) -> Architecture:
    """Look up a name that is not in the file: a model of the catalog, or nothing that is known here."""
    model = catalog.model(name) if name in catalog.models() else None
    return Architecture(entry={}, model=model, said={})


def _architecture(key: str, entry: Mapping[str, Any]) -> Architecture:
    known_as = CATALOG_NAMES.get(key, key)
    base = catalog.model(known_as) if known_as in catalog.models() else None
    if any(entry.get(size) is None for size in ("hidden", "n_layers", "n_heads")):
        return _unknown(entry, f"the sources do not give the sizes of '{key}'")
    if entry.get("sliding_window") or "DeltaNet" in str(entry.get("attention")):
        if base is None:
            return _unknown(entry, f"the layers of '{key}' are neither described here nor in the catalog")
        # The file does not say some of their facts: sizes of Gated DeltaNet, biases and sinks of gpt-oss.
        return Architecture(entry=_on_top(known_as, base, _mtp(entry)), model=base, said=entry)
    try:
        description = _description(key, entry)
        if description.get("vocab_size") is None:
            return _unknown(entry, f"the sources do not give the vocabulary of '{key}'")
        model = model_from_description(description, f"models.{key}", key, "measured runs")
    except SpecError as error:
        return Architecture(entry={"unknown": str(error)}, wrong=str(error), said=entry)
    has_positions = _has_positions(key, entry)
    differing = [] if base is None else _differing(model, base)
    if base is not None and not differing:
        on_top = _on_top(known_as, base, len(model.mtp_layers))
        return Architecture(entry=on_top, model=model, has_positions=has_positions, said=entry)
    source = str(entry.get("where") or entry.get("read_in") or "measured runs")
    return Architecture(
        entry={**_without_defaults(description), "source": source},
        comment=f"not the catalog's {known_as}: {', '.join(differing)}" if differing else "",
        model=model,
        has_positions=has_positions,
        said=entry,
    )


def _unknown(entry: Mapping[str, Any], reason: str) -> Architecture:
    return Architecture(entry={"unknown": f"unknown architecture: {reason}"}, said=entry)


def _on_top(known_as: str, base: Model, num_mtp: Any) -> dict[str, Any]:
    """A catalog's model, with multi-token prediction where only the file has it."""
    return {"base": known_as, **({} if num_mtp == len(base.mtp_layers) else {"mtp_layers": num_mtp})}


def _mtp(entry: Mapping[str, Any]) -> Any:
    moe = entry.get("moe")
    return (moe.get("mtp_layers") or 0) if isinstance(moe, Mapping) else 0


def _differing(model: Model, base: Model) -> list[str]:
    """List the facts in which a described model differs from the catalog's."""
    names = [field.name for field in fields(model) if field.name not in NOT_COMPARED]
    differing = [name for name in names if getattr(model, name) != getattr(base, name)]
    if len(model.layers) != len(base.layers):
        return [f"num_layers {len(model.layers)}, not {len(base.layers)}"]
    whole = [f"{name} {getattr(model, name)}, not {getattr(base, name)}" for name in differing if name != "layers"]
    parts = {
        f"{part}.{field.name} {shown(getattr(ours, field.name))}, not {shown(getattr(theirs, field.name, None))}"
        for mine, other in zip(model.layers, base.layers, strict=True)
        for part in ("attention", "feed_forward")
        for ours, theirs in [(getattr(mine, part), getattr(other, part))]
        if ours is not None
        for field in fields(ours)
        if getattr(ours, field.name) != getattr(theirs, field.name, None)
    }
    return [*whole, *sorted(parts)]


def _without_defaults(description: Mapping[str, Any]) -> dict[str, Any]:
    usual = {field.name: field.default for field in fields(Description) if field.default is not MISSING}
    usual["num_kv_heads"] = description["num_heads"]
    if description["head_dim"] * description["num_heads"] == description["hidden_size"]:
        usual["head_dim"] = description["head_dim"]
    return {
        name: value
        for name, value in description.items()
        if value is not None and (name not in usual or usual[name] != value)
    }


# --- the words of the collected file -------------------------------------------------------------------------
def _description(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    where = f"models.{key}"
    activation = _activation(entry)
    gated = activation.startswith(GATED)
    is_gpt = not gated and activation not in ROTARY_MLPS
    has_positions = _has_positions(key, entry)
    tied = entry.get("tied_embeddings")
    return {
        "hidden_size": entry["hidden"],
        "num_layers": entry["n_layers"],
        "vocab_size": _vocab(key, entry),
        "num_heads": entry["n_heads"],
        "head_dim": _required(entry, where, "head_dim"),
        "ffn_hidden_size": _required(entry, where, "ffn_hidden") or _usual_width(_hidden(entry, where), gated=gated),
        "gated": gated,
        "squared_relu": activation == "squared_relu",
        "mlp_bias": is_gpt,
        "qkv_bias": is_gpt,
        "output_bias": is_gpt,
        "norm": "rms" if gated else "layer",
        "rotary": not has_positions,
        # If source and run are silent, GPT ties (Megatron-LM's default) and others do not.
        "tied_embeddings": has_positions if tied is None else bool(tied),
        "qk_norm": "per_head" if key.startswith(QUERY_KEY_NORMS) else "none",
        "parallel_blocks": key.startswith(PARALLEL_BLOCKS),
        **(_part(entry, where, "mla") if entry.get("mla") else {"num_kv_heads": entry.get("n_kv_heads")}),
        **_experts(key, entry),
        **_single_blocks(entry, where),
    }


def _activation(entry: Mapping[str, Any]) -> str:
    activation = str(entry.get("activation") or "")
    return "swiglu" if activation.endswith(ASSUMED) else activation


def _has_positions(key: str, entry: Mapping[str, Any]) -> bool:
    """Tell whether positions are learned: GPTs' are, but for those that are known to rotate."""
    return not _activation(entry).startswith((*GATED, *ROTARY_MLPS)) and not key.startswith(UNTIED_ROTARY_GPT)


def _required(entry: Mapping[str, Any], where: str, name: str) -> Any:
    if name not in entry:
        raise SpecError(f"{where}.{name}", "is required but missing.")
    return entry[name]


def _hidden(entry: Mapping[str, Any], where: str) -> int:
    if not isinstance(entry["hidden"], int):
        raise SpecError(f"{where}.hidden", f"expected a whole number from 1 on, got {shown(entry['hidden'])}.")
    return entry["hidden"]


def _part(entry: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    part = entry[name]
    if not isinstance(part, Mapping):
        raise SpecError(f"{where}.{name}", f"expected a mapping, got {shown(part)}.")
    return dict(part)


def _usual_width(hidden: int, *, gated: bool) -> int:
    """
    Width of a feed-forward that an entry leaves open: GPT-2's, or what three instead of two matrices make of it.

    >>> _usual_width(4096, gated=False), _usual_width(4096, gated=True)
    (16384, 11008)
    """
    width = FFN_FACTOR * hidden
    return -(-(2 * width // 3) // LLAMA_MULTIPLE) * LLAMA_MULTIPLE if gated else width


def _vocab(key: str, entry: Mapping[str, Any]) -> Any:
    """Not padded, where the entry says; the cost model pads as the framework does."""
    stated = next((entry[name] for name in ("vocab", "padded_vocab") if entry.get(name) is not None), None)
    if stated is not None:
        return stated
    return next((vocab for start, vocab in ASSUMED_VOCAB.items() if key.startswith(start)), None)


def _experts(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    if not entry.get("moe"):
        return {}
    where = f"models.{key}.moe"
    moe = _part(entry, f"models.{key}", "moe")
    dense = next((number for start, number in STATED_NOWHERE_DENSE_LAYERS.items() if key.startswith(start)), 0)
    return {
        "num_experts": _required(moe, where, "n_experts"),
        "top_k": _required(moe, where, "top_k"),
        "expert_ffn_hidden_size": _required(moe, where, "moe_ffn_hidden"),
        "shared_ffn_hidden_size": moe.get("shared_expert_ffn") or 0,
        "expert_latent_size": moe.get("moe_latent_size"),
        "first_dense_layers": moe.get("first_k_dense") or dense,
        "moe_layer_interval": 2 if "[0,1]" in str(moe.get("moe_layer_freq")) else 1,
        "mtp_layers": _mtp(entry),
    }


def _single_blocks(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Layers of one block, RMS norms, no positions: Nemotron-H (arXiv 2504.03624, section 2.1)."""
    if not entry.get("hybrid_pattern"):
        return {}
    mamba = _part(entry, where, "mamba")
    return {
        "pattern": entry["hybrid_pattern"],
        "norm": "rms",
        "rotary": False,
        "mamba_num_heads": _required(mamba, f"{where}.mamba", "num_heads"),
        "mamba_head_dim": _required(mamba, f"{where}.mamba", "head_dim"),
        "mamba_state_size": _required(mamba, f"{where}.mamba", "state_dim"),
        "mamba_num_groups": _required(mamba, f"{where}.mamba", "n_groups"),
    }


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
    """Return the number that the notes state, if the architecture has another one; latent attention has none."""
    stated = row.noted(KEY_VALUE_HEADS)
    kinds = [kind.attention for kind in of.model.kinds if isinstance(kind.attention, Attention)] if of.model else []
    if not stated or not kinds or all(kind.num_kv_heads == int(stated) for kind in kinds):
        return None
    return int(stated)


def _is_untied(row: Row) -> bool:
    is_early_fork = row.text("framework").startswith(UNTIED_FORK) and "" < row.text("date") < TIED_FROM
    return is_early_fork or UNTIED in row.text("notes")
